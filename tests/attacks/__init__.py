"""Attacks on a cluster with keys, each with its figures: `make attacks`, or a few in a test."""
