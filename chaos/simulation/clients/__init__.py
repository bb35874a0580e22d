"""Clients of a world, and what they do."""
