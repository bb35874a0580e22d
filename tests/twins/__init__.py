"""Tests of the second judge."""
