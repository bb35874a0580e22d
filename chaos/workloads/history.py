"""The history of a run: the recorder of a run's processes (docs/history.md), and its reader.

What lives here: what a run's history has beyond any client's (its recording.py): phases, faults,
and publications that say who put them; and reading back what the runner measures. What must not:
judging a history (analytics does, and shares nothing but the format with this file), sockets,
retries.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import orjson

from chaos.workloads import payload
from flotilla_client import Outcome, recording
from flotilla_client.protocol import lane_of
from flotilla_client.recording import read as read

PHASES: Final = ("warmup", "steady", "fault", "heal", "tombstone", "drain", "done")
DRAINED: Final = "drained"
SETTLED: Final = "settled"  # of a group: a worker was told so
Delivered = tuple[int, str, bytes]  # id, to what it was put, text


class HistoryFileError(Exception):
    """The history cannot be written or read; the run proves nothing from here on."""


class ProcessRecorder(recording.Recorder):
    """Records one process of a run. `phase` joins every event while it is set.

    Raises HistoryError when a line can't be written.
    """

    phase: str | None = None

    def mark_phase(self, phase: str, **fields: Any) -> int:
        """Record that `phase` begins; return the row's t_ns.

        `drained`: that this client has; `settled`: that a group's work is done.
        """
        assert phase in (*PHASES, DRAINED, SETTLED), phase
        return self.single("phase", phase=phase, **fields)

    def mark_fault(self, name: str, action: str, targets: list[str]) -> int:
        """Record that fault `name` is being injected or healed now; return the row's t_ns."""
        assert action in ("inject", "heal"), action
        detail = {"name": name, "action": action, "targets": targets}
        return self.single("fault", error=orjson.dumps(detail).decode())

    def labels(self) -> dict[str, Any]:
        """Return what joins every event."""
        return {**super().labels(), "phase": self.phase}

    def _write_bytes(self, line: bytes) -> None:
        try:
            super()._write_bytes(line)
        except OSError as error:
            raise HistoryFileError(f"{self.path}: {error}") from error


class WorkloadObserver(recording.ClientObserver):
    """Records what a client of a run does. Its publications say who put them (payload.py)."""

    def delivered(self, outcome: Outcome) -> dict[str, Any]:
        """Return whose publications a GET brought, as runs, and what is corrupt of them."""
        assert outcome.first_id is not None, outcome
        first_id, count = outcome.first_id, len(outcome.publications)
        return _whose(outcome, range(first_id, first_id + count))

    def given(self, outcome: Outcome) -> dict[str, Any]:
        """Return the same of a TAKE."""
        assert outcome.leased is not None, outcome
        return _whose(outcome, outcome.leased.ids)


def _whose(outcome: Outcome, ids: Sequence[int]) -> dict[str, Any]:
    """Return runs of who put what came, and what is corrupt. A dead letter is of another topic."""
    letters = recording.letters(outcome)
    dead = {id_: topic for id_, topic, _, _ in letters}
    own: list[Delivered] = []
    theirs: list[Delivered] = []
    delayed: list[Delivered] = []
    for id_, data in zip(ids, outcome.publications, strict=True):
        topic = dead.get(id_, outcome.topic)
        is_delayed = payload.is_delayed(data, topic)
        kind = theirs if id_ in dead else delayed if is_delayed else own
        kind.append((id_, lane_of(topic, is_delayed), data))
    items, corrupt = payload.runs_of(own)
    bad = payload.runs_of(theirs)[1]
    late, bad_late = payload.runs_of(delayed)
    is_bad = {id_ for id_, _ in bad}
    return {
        "items": items,
        "corrupt": sorted(corrupt + bad + bad_late) or None,
        "letters": [letter for letter in letters if letter[0] not in is_bad] or None,
        "delayed": late or None,
    }


def longest_gap_ns(times_ns: list[int], begin_ns: int, end_ns: int) -> int | None:
    """Return the longest time without an acknowledgment in the window of one fault.

    `times_ns` is sorted. The first gap reaches back to the last acknowledgment before `begin_ns`;
    the last one ends at `end_ns`, or the outage that the next fault opens would count here too.
    It is not simply the gap to the first acknowledgment after `begin_ns`: a reply that was on its
    way when the leader died must not hide the silence behind it. None when nothing was
    acknowledged before, or when the second half of the window is silent: service has not come back.
    """
    assert begin_ns < end_ns, (begin_ns, end_ns)
    first = bisect_right(times_ns, begin_ns) - 1
    inside = times_ns[max(first, 0) : bisect_right(times_ns, end_ns)]
    if first < 0 or inside[-1] < (begin_ns + end_ns) / 2:
        return None
    return max(after - before for before, after in itertools.pairwise([*inside, end_ns]))
