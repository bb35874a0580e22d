"""The store that most tests here begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.store_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A cluster with the client p, and s subscribed to t."""
    bench = Bench.started(tmp_path / "store.db")
    yield bench
    bench.store.close()
