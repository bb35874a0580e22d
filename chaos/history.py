"""The history of a run: the record of one operation, and its recorder (docs/history.md).

What lives here: writing events, one JSON object a line, into the append-only file of one
recording process, and reading back what the runner measures from them. What must not: judging a
history (analytics does, and shares nothing but the format with this file), sockets, retries.

The order is the contract: an `invoke` is in the kernel's hands before its request leaves, and a
delivery before the client's cursor moves. So a process that is killed leaves at most operations
without an end, never an effect without its operation.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import orjson

from chaos import payload
from flotilla import Operation, Outcome

OPERATIONS: Final = frozenset({"put", "get", "sub", "unsub"})
OUTCOMES: Final = frozenset({"ok", "fail", "info"})
PHASES: Final = ("warmup", "steady", "fault", "heal", "tombstone", "drain", "done")
DRAINED: Final = "drained"
OPEN_OPERATIONS_MAX: Final = 65_536  # in flight in one process: more is a leak of ours


class HistoryError(Exception):
    """The history cannot be written or read; the run proves nothing from here on."""


class Recorder:
    """Writes the events of one process to `<directory>/<process>.jsonl`.

    A process that comes back opens the same file: its `session` is one higher than the last one
    there and `op_id` goes on, so (process, op_id) stays unique. `client_id` joins every event once
    it is known and `phase` while it is set. Raises HistoryError when a line can't be written.
    """

    def __init__(
        self,
        directory: Path,
        process: str,
        run_id: str,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{process}.jsonl"
        self.client_id: str | None = None
        self.phase: str | None = None
        self._clocks = (monotonic_ns, wall_ns)
        self._open: dict[int, dict[str, Any]] = {}
        last_op_id, last_session, ends_whole = _tail(self.path)
        self._next_op_id = last_op_id + 1
        self._common = {
            "run_id": run_id,
            "process": process,
            "host": socket.gethostname(),
            "session": last_session + 1,
        }
        self._file = self.path.open("ab", buffering=0)
        if not ends_whole:
            self._write_bytes(b"\n")  # the torn line stays, alone, for the reader to count

    def invoke(self, f: str, topic: str, **fields: Any) -> int:
        """Record that an operation is about to be sent; return its op_id."""
        assert f in OPERATIONS, f
        assert len(self._open) < OPEN_OPERATIONS_MAX, len(self._open)
        op_id = self._take_op_id()
        operation = {"op_id": op_id, "f": f, "topic": topic}
        self._open[op_id] = operation
        self._write({**operation, "type": "invoke", **fields})
        return op_id

    def complete(self, op_id: int, type: str, **fields: Any) -> None:
        """Record the end of operation `op_id`: `ok`, `fail` (definitely not done) or `info`."""
        assert type in OUTCOMES, type
        operation = self._open.pop(op_id, None)
        assert operation is not None, f"operation {op_id} was not invoked or has ended already"
        self._write({**operation, "type": type, **fields})

    def mark_phase(self, phase: str, **fields: Any) -> int:
        """Record that `phase` begins (`drained`: that this client has); return the row's t_ns."""
        assert phase in PHASES or phase == DRAINED, phase
        return self._single("phase", phase=phase, **fields)

    def mark_fault(self, name: str, action: str, targets: list[str]) -> int:
        """Record that fault `name` is being injected or healed now; return the row's t_ns."""
        assert action in ("inject", "heal"), action
        detail = {"name": name, "action": action, "targets": targets}
        return self._single("fault", error=orjson.dumps(detail).decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Operations still open stay without an end, as after a crash."""
        self._file.close()

    def _single(self, f: str, **fields: Any) -> int:
        return self._write({"op_id": self._take_op_id(), "f": f, "type": "info", **fields})

    def _take_op_id(self) -> int:
        op_id = self._next_op_id
        self._next_op_id += 1
        return op_id

    def _write(self, fields: dict[str, Any]) -> int:
        monotonic_ns, wall_ns = self._clocks
        now_ns = monotonic_ns()
        stamps = {"t_ns": now_ns, "wall_ns": wall_ns()}
        own = {"client_id": self.client_id, "phase": self.phase}
        event = {**self._common, **own, **stamps, **fields}
        known = {name: value for name, value in event.items() if value is not None}
        self._write_bytes(orjson.dumps(known) + b"\n")
        return now_ns

    def _write_bytes(self, line: bytes) -> None:
        try:
            written = self._file.write(line)
        except OSError as error:
            raise HistoryError(f"{self.path}: {error}") from error
        if written != len(line):
            raise HistoryError(f"{self.path}: {written} of {len(line)} bytes written")


class ClientObserver:
    """Records what a client of the library does, through the library's Observer Protocol.

    `definite` errors become `fail`, all others `info`. The client calls `on_invoke` before the
    request leaves and `on_complete` before its cursor moves, so the recorder's order is the truth.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._op_ids: dict[int, int] = {}

    def on_invoke(self, operation: Operation) -> None:
        """Record an operation that is about to be sent."""
        self._recorder.client_id = operation.client_id
        self._op_ids[operation.number] = self._recorder.invoke(
            operation.f,
            operation.topic,
            counter=operation.counter,
            count=operation.count,
            last_id=operation.last_id,
        )

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        """Record how it ended."""
        op_id = self._op_ids.pop(operation.number)
        common = {
            "attempt": outcome.attempts,
            "node": outcome.leader or None,
            "term": outcome.term or None,
        }
        if outcome.error:
            kind = "fail" if outcome.definite else "info"
            self._recorder.complete(op_id, kind, error=outcome.error, **_asked(operation), **common)
        else:
            self._recorder.complete(op_id, "ok", **_answer(operation, outcome), **common)


def _asked(operation: Operation) -> dict[str, Any]:
    return {"counter": operation.counter, "count": operation.count}


def _answer(operation: Operation, outcome: Outcome) -> dict[str, Any]:
    if operation.f == "put":
        return _asked(operation) | _stored(operation, outcome)
    if operation.f == "get":
        return _delivered(outcome)
    return {"last_id": outcome.last_id}


def _stored(operation: Operation, outcome: Outcome) -> dict[str, Any]:
    assert operation.count, operation
    assert outcome.first_id is not None, outcome
    last_id = outcome.first_id + operation.count - 1 if outcome.first_id else 0
    return {
        "first_id": outcome.first_id,
        "last_id": last_id,
        "duplicate": outcome.duplicate,
    }


def _delivered(outcome: Outcome) -> dict[str, Any]:
    if not outcome.publications:
        return {"count": 0}
    assert outcome.first_id is not None, outcome
    items, corrupt = payload.runs(outcome.topic, outcome.first_id, outcome.publications)
    count = len(outcome.publications)
    return {
        "topic": outcome.topic,
        "count": count,
        "first_id": outcome.first_id,
        "last_id": outcome.first_id + count - 1,
        "items": items,
        "corrupt": corrupt or None,
    }


def _tail(path: Path) -> tuple[int, int, bool]:
    """Return (last op_id, last session, whether the last line is whole) of a file; 0, 0 if none."""
    if not path.exists():
        return 0, 0, True
    op_id = session = 0
    for event in read(path):
        op_id, session = max(op_id, event["op_id"]), max(session, event["session"])
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return op_id, session, file.read() in (b"\n", b"")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in order; lines that are torn are left out."""
    with path.open("rb") as file:
        for line in file:
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # analytics counts and reports these
            yield event


def acknowledged_at_ns(directory: Path) -> list[int]:
    """Return when each PUT was acknowledged, over all files of a history, in order (t_ns)."""
    times = []
    for path in sorted(directory.glob("*.jsonl")):
        times += [event["t_ns"] for event in read(path) if _is_acknowledged_put(event)]
    return sorted(times)


def _is_acknowledged_put(event: dict[str, Any]) -> bool:
    return (event["f"], event["type"]) == ("put", "ok")


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
