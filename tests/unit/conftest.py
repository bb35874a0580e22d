"""Fixtures that several modules of unit tests share.

What lives here: fixtures alone. What must not: the fakes and helpers behind them (fake_*.py).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation import bench
from tests.unit.fake_node import FakeNode

make_bench = bench.make_bench
make_stage = bench.make_stage


@pytest.fixture
def node() -> Iterator[FakeNode]:
    """A fake cluster of one node, gone after the test."""
    with FakeNode() as node:
        yield node


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect in this test what it has broken off: in another one its sockets would complain."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds the key of whoever runs it, or of a chaos target that another test has left."""
    monkeypatch.setenv("FLOTILLA_KEY", "")
