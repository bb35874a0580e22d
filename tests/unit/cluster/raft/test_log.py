"""The log as a step sees it: what storage holds, and what the step adds behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.log import journal
from cluster.log.entries import Entry
from cluster.log.journal import Journal
from cluster.raft.log import Log

TERM = 1
SLICE_BYTES = 300


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return a log of five entries in storage, the last of them large, and five of this step."""
    monkeypatch.setattr(journal, "SLICE_BYTES_MAX", SLICE_BYTES)
    monkeypatch.setattr(journal, "SLICE_ENTRIES_MAX", 6)
    Journal.create(tmp_path)
    storage = Journal.open(tmp_path)
    for index, size_bytes in enumerate((40, 40, 40, 40, SLICE_BYTES), start=1):
        storage.add(bytes(size_bytes), index, TERM)
    log = Log(storage)
    for index in range(6, 11):
        log.add(bytes(10), index, TERM)
    return log


@pytest.mark.parametrize("first_index", range(1, 11))
def test_a_slice_has_no_hole_where_the_step_s_entries_begin(log: Log, first_index: int) -> None:
    indexes = [index for _, index, _ in log.entries(first_index, 100)]
    assert indexes == [*range(first_index, first_index + len(indexes))]
    assert len(indexes) >= min(2, 11 - first_index)


@pytest.mark.parametrize("first_index", range(1, 11))
def test_a_slice_has_a_bound_wherever_it_begins(log: Log, first_index: int) -> None:
    found: list[Entry] = log.entries(first_index, 100)
    size_bytes = sum(len(command) for command, _, _ in found)
    assert len(found) <= journal.SLICE_ENTRIES_MAX
    assert len(found) == journal.SLICE_ENTRIES_MIN or size_bytes <= SLICE_BYTES
