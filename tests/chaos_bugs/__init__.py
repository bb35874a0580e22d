"""Planted bugs in real processes: real clusters with a rule sabotaged, broken until it shows."""
