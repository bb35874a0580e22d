"""Lines with one field changed: both intakes must call the same ones malformed.

What lives here: the lines. What must not: whether a line is malformed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from tests.judges.history import Row

GONE: Final = object()
VALUES: Final = (
    *(GONE, None, -1, 0, 1, 2, 5, 2**24, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**70),
    *("1", "", "x", 1.0, 1.5, True, False, [], {}, [1], [None], [[1, "p", 1, 1]], [[1, "x"]]),
    *(
        [[1, 2, 3]],
        [[1, 2]],
        [[1, 2, None]],
        [[2, 1, 3]],
        [[1, 1, 1.0]],
        [[1, 1, "1"]],
        [0],
        [1, 2],
    ),
    *([[1, 1]], [[2, 1]], [[0, 1]], [[1, 2, 0]], [[0, 1, 1]], [[1, 1, 2, 5]], [[1, 3, 2, 5]]),
    *([[1, "x", "g", 7]], [[1, "x", 5, 7]], [[1, "x", "g", 0]], [["1", "x", "g", 7]], [[1, "x"]]),
    *("00" * 8, "00" * 16, "00" * 7, "zz" * 8),
)
OTHERS: Final = (
    *("digests", "items", "corrupt", "times", "marked", "cursor", "more"),
    *("group", "leases", "lost", "acks", "naks", "letters", "token"),
)
COMMON: Final[Row] = {
    "run_id": "run",
    "process": "c",
    "client_id": "c",
    "op_id": 3,
    "session": 1,
    "t_ns": 10,
    "wall_ns": 10,
    "host": "h",
}
ANSWERED: Final[Row] = {"type": "ok", "node": "a", "term": 1, "attempt": 1, "invoke_ns": 5}
EVENTS: Final[tuple[Row, ...]] = (
    {"type": "invoke", "f": "put", "topic": "t", "counter": 1, "count": 2, "epoch": 1},
    {**ANSWERED, "f": "put", "topic": "t", "first_id": 1, "last_id": 2, "count": 2, "counter": 1,
     "duplicate": False, "epoch": 1},
    {"type": "fail", "f": "put", "topic": "t", "error": "electing", "count": 2, "counter": 1},
    {"type": "info", "f": "put", "topic": "t", "error": "timeout", "attempt": 2},
    {"type": "invoke", "f": "get", "topic": "t", "last_id": 0, "max_count": 5, "max_bytes": 9},
    {**ANSWERED, "f": "get", "topic": "t", "asked": 0, "count": 1, "first_id": 1, "last_id": 1,
     "items": [[1, "p", 1, 1]], "bytes": 9, "handed_apart": True, "max_count": 5},
    {**ANSWERED, "f": "get", "topic": "t", "asked": 0, "count": 0},
    {**ANSWERED, "f": "get", "topic": "t", "count": 1, "corrupt": [[1, "format"]], "cursor": 0},
    {**ANSWERED, "f": "get", "topic": "t", "count": 1, "first_id": 1, "last_id": 1,
     "digests": "00" * 8},
    {**ANSWERED, "f": "get", "topic": "t", "asked": 0, "count": 1, "first_id": 1, "last_id": 1,
     "items": [[1, "p", 1, 1]], "times": [[1, 1, 5]], "marked": [1], "properties": "00" * 8},
    {"type": "fail", "f": "get", "topic": "t", "error": "not_subscribed"},
    {"type": "fail", "f": "get", "topic": "t", "error": "purged", "first_id": 1, "last_id": 2},
    {"type": "invoke", "f": "sub", "topic": "t", "epoch": 1},
    {**ANSWERED, "f": "sub", "topic": "t", "last_id": 0, "cursor": 0, "resumed": False},
    {"type": "invoke", "f": "unsub", "topic": "t"},
    {**ANSWERED, "f": "unsub", "topic": "t"},
    {"type": "info", "f": "hand", "topic": "t", "first_id": 1, "last_id": 2, "cursor": 0,
     "redelivered": 1},
    {"type": "info", "f": "ack", "topic": "t", "last_id": 2, "cursor": 0},
    {"type": "info", "f": "ack", "topic": "t", "first_id": 1, "last_id": 2, "cursor": 0},
    {"type": "info", "f": "release", "topic": "t", "first_id": 1, "last_id": 2},
    {"type": "info", "f": "phase", "phase": "drained", "topic": "t", "last_id": 2},
    {"type": "info", "f": "phase", "phase": "heal"},
    {"type": "info", "f": "fault", "error": "{}"},
    {"type": "invoke", "f": "group", "topic": "t", "group": "g", "lease_ms": 100,
     "max_attempts": 2, "dead_letter": "d"},
    {**ANSWERED, "f": "group", "topic": "t", "last_id": 3, "resumed": True},
    {"type": "invoke", "f": "take", "topic": "t", "group": "g", "number": 2, "max_count": 5,
     "acks": [[1, 1, 2]], "naks": [[1, 3, 3, 0]], "extends": [[1, 4, 4, 100]]},
    {**ANSWERED, "f": "take", "topic": "t", "count": 2, "token": 3, "leases": [[5, 6, 1]],
     "left_ms": 9, "lease_ms": 100, "lost": [[3, 3]], "items": [[5, "p", 1, 2]]},
    {**ANSWERED, "f": "take", "topic": "t", "count": 1, "token": 3, "leases": [[5, 5, 1]],
     "left_ms": 9, "letters": [[5, "t", "g", 1]]},
    {**ANSWERED, "f": "take", "topic": "t", "count": 1, "token": 3, "leases": [[5, 5, 1]],
     "left_ms": 9, "items": [[5, "p", 1, 1]]},
    {**ANSWERED, "f": "take", "topic": "t", "count": 0},
    {"type": "invoke", "f": "put", "topic": "t\x1fdelayed", "counter": 1, "count": 2,
     "delays": [[1, 2, 100]]},
    {**ANSWERED, "f": "get", "topic": "t", "asked": 0, "count": 1, "first_id": 1, "last_id": 1,
     "delayed": [[1, "p", 1, 1]]},
    {**ANSWERED, "f": "get", "topic": "t", "asked": 0, "count": 1, "first_id": 1, "last_id": 1,
     "letters": [[1, "x", "g", 7]]},
)  # fmt: skip


def changed_lines() -> Iterator[tuple[str, bytes]]:
    """Yield lines with one field changed, each with what was done to it."""
    for number, event in enumerate(EVENTS):
        row = {**COMMON, **event}
        yield f"{number} {row['f']} {row['type']}", as_line(row)
        for name in (*row, *OTHERS):
            for value in VALUES:
                other = {**row, name: value}
                if value is GONE:
                    del other[name]
                what = "gone" if value is GONE else json.dumps(value)
                yield f"{number} {row['f']} {row['type']}: {name} {what}", as_line(other)


def as_line(row: Row) -> bytes:
    """Return a row as it stands in a file."""
    return json.dumps(row, separators=(",", ":")).encode()
