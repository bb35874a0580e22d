"""Clusters on this machine: `flotilla-cluster`."""
