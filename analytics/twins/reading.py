"""From a run's files to rows in memory, and what is wrong with the lines. No Spark, no judging.

A line is malformed when the twins could not go on with what it says: no object, or without a field
that they rely on. analytics/load.py is stricter with numbers that no recorder writes.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from analytics.twins.run import Event
from analytics.wholeness import TORN_MARK

TYPES: Final = ("invoke", "ok", "fail", "info")
OPERATIONS: Final = ("put", "get", "sub", "unsub")
HANDLINGS: Final = ("hand", "ack", "release")
FUNCTIONS: Final = (*OPERATIONS, "fault", "phase", *HANDLINGS)
# Of events by type and function: the fields without which they say nothing.
NEEDED: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("invoke", "put"): ("client_id", "session", "topic", "counter"),
    ("invoke", "get"): ("client_id", "session"),
    ("invoke", "sub"): ("client_id", "topic"),
    ("invoke", "unsub"): ("client_id", "topic"),
    ("ok", "put"): ("first_id",),
    ("ok", "sub"): ("last_id",),
    ("info", "hand"): ("client_id", "session", "topic", "first_id", "last_id"),
    ("info", "ack"): ("client_id", "session", "topic", "last_id"),
    ("info", "release"): ("client_id", "session", "topic", "first_id", "last_id"),
}
# Of a truth's rows by kind.
NEEDED_OF_TRUTH: Final[Mapping[str, tuple[str, ...]]] = {
    "entry": ("index", "term", "digest"),
    "state": ("index", "digest"),
    "held": ("topic", "producer", "first_counter", "count"),
    "topic": ("topic", "last_id", "floor_id"),
    "counter": ("topic", "producer", "counter"),
    "leadership": ("term",),
}
EXAMPLE_CHARACTERS_MAX: Final = 120


@dataclass(slots=True)
class Lines:
    """The rows of some files, and what else stood in them.

    `torn` lines were cut off while they were written, by the end of their process. `foreign` ones
    carry another run's id. `example`: the first malformed one, with its file.
    """

    rows: list[Event] = field(default_factory=list)
    torn: int = 0
    malformed: int = 0
    foreign: int = 0
    example: str = ""

    def reasons(self, run_id: str) -> tuple[str, ...]:
        """Return what could not be read of the run `run_id`; empty if all could."""
        found = []
        if self.malformed:
            found.append(f"{self.malformed} malformed lines, such as {self.example}")
        if self.foreign:
            found.append(f"{self.foreign} lines are of another run than {run_id}")
        return tuple(found)


def history_of(files: Iterable[Path], run_id: str) -> Lines:
    """Return the events of `run_id` in the files of a history."""
    return _lines(files, run_id, _is_event)


def truth_of(files: Iterable[Path], run_id: str) -> Lines:
    """Return the rows of `run_id` in the files of a truth, each of which was written whole."""
    lines = _lines(files, run_id, _is_of_a_node)
    return replace(lines, torn=0, malformed=lines.malformed + lines.torn)


def _lines(files: Iterable[Path], run_id: str, is_whole: Callable[[Event], bool]) -> Lines:
    lines = Lines()
    for file in files:
        *ended, last = file.read_bytes().split(b"\n")
        for text in filter(bytes.strip, [*ended, last]):
            row, is_json = _parsed(text)
            if isinstance(row, dict) and is_whole(row):
                if row["run_id"] == run_id:
                    lines.rows.append(row)
                else:
                    lines.foreign += 1
            elif not is_json and (text is last or text.endswith(TORN_MARK.encode())):
                lines.torn += 1
            else:
                lines.malformed += 1
                shown = text[:EXAMPLE_CHARACTERS_MAX].decode(errors="replace")
                lines.example = lines.example or f"{file.name}: {shown}"
    return lines


def _parsed(text: bytes) -> tuple[Any, bool]:
    """Return what a line says, and whether it is JSON at all."""
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):
        return None, False


def _is_event(row: Event) -> bool:
    if not _has(row, "run_id", "process", "t_ns"):
        return False
    kind, function = row.get("type"), row.get("f")
    if kind not in TYPES or function not in FUNCTIONS:
        return False
    own = ("op_id",) if function in (*OPERATIONS, *HANDLINGS) else ()
    return _has(row, *own, *NEEDED.get((str(kind), str(function)), ()))


def _is_of_a_node(row: Event) -> bool:
    needed = NEEDED_OF_TRUTH.get(str(row.get("kind")))
    return needed is not None and _has(row, "run_id", "node", *needed)


def _has(row: Event, *names: str) -> bool:
    return all(row.get(name) is not None for name in names)
