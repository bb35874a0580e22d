"""Measures a local cluster against bare ZeroMQ and the bare disk: `python -m chaos.bench`.

What lives here: modules. What must not: code.
"""
