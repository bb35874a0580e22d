"""Fixtures of tests that drive a simulated cluster by hand. No claims here."""

from __future__ import annotations

from tests.simulation import bench

make_bench = bench.make_bench
make_stage = bench.make_stage
