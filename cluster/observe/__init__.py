"""Seeing a node from outside: what it counts, and the HTTP that shows it (docs/metrics.md)."""
