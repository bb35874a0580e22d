"""Tests of the Spark checks."""
