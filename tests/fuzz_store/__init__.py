"""Entries of many operations of every kind, drawn from seeds, on stores: see docs/simulation.md."""
