"""Tests of the report's pages: as text, and in a real browser."""
