"""What run_result.py promises: counts of publications, each once, from what the files say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.run.run_result import tally
from chaos.workloads.history import ProcessRecorder

Record = Callable[..., None]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Record one operation of a process that ends at `end_ns`."""

    def recording(process: str, f: str, end: str, end_ns: int, **fields: int) -> None:
        clock = iter([end_ns - 5, end_ns])
        with ProcessRecorder(tmp_path, process, "r", monotonic_ns=lambda: next(clock)) as made:
            made.client_id = process
            op_id = made.invoke(f, "t", counter=fields.get("counter"))
            made.complete(op_id, end, **fields)

    return recording


def test_acknowledgments_are_counted_over_all_processes_in_order(
    record: Record, tmp_path: Path
) -> None:
    record("a", "put", "ok", 30, counter=1, count=5)
    record("b", "put", "ok", 20, counter=1, count=2)
    record("b", "put", "info", 40, counter=3, count=2)
    record("b", "put", "fail", 50, counter=3, count=2)
    record("c", "get", "ok", 60, count=7)
    record("c", "get", "ok", 70, count=0)
    counts = tally(tmp_path)
    assert counts.times_ns == [(20, 2), (30, 5)]
    assert (counts.delivered, counts.unknown, counts.failed) == (7, 1, 1)


def test_a_publication_that_is_acknowledged_again_is_counted_once_and_heard_twice(
    record: Record, tmp_path: Path
) -> None:
    record("a", "put", "ok", 10, counter=1, count=3)
    record("a", "put", "ok", 20, counter=1, count=3)
    assert tally(tmp_path).times_ns == [(10, 3), (20, 0)]
