"""Big synthetic histories with violations planted in them, to measure and to test the checks.

shape.py says what is to be made, operations.py how a correct cluster's operations come about
from numbers alone, plants.py and scripts.py how each violation changes a few of them, writing.py
what stands on disk. Knows docs/history.md and nothing of how a check works.
"""
