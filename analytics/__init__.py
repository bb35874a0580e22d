"""Spark checks of recorded histories. Knows the history's schema (docs/history.md), nothing else
of the project: neither the client's nor the cluster's code may be imported here.
"""
