"""Histories that a correct cluster can produce, the same with one sentence of the specification
broken, and what both judges say of them: `python -m tests.judges --help`.

No rule of a judge is imported here. Where what must be found is known beforehand, it is known from
docs/checks.md and docs/history.md alone.
"""
