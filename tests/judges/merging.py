"""Many small histories as one: a judge that takes seconds to start judges them all at once.

What lives here: how parts are renamed so that they do not touch each other, which may stand in one
record, and of which part a row of evidence is. What must not: a judge.

Why a judge must find in the whole what it finds in the parts, and no more. By docs/checks.md, every
sentence is about one of these, and each is made a part's own:

- *names*: a client (its sessions, epochs, subscriptions, what it was handed), a producer, a topic
  (its ids, tries, places, what is known of it, its groups), a process (its op_ids, its file). The
  number of the part is put before each. A topic of "" names none, and stays.
- *times*: only those of one host are compared, and hosts are named after their part as well. Rows
  without a host count as one host: of a part they get one of its own.
- *terms* (`term_order`, `leaders_per_term`) and *indices* (`replica_divergence`) are the run's, and
  numbers: each part has a range of its own, in which their order is kept.

What is the run's and can't be divided is the same for all parts of one record (`shape`):

- whether it is an application's; whether it has a phase `tombstone`;
- whether its workers were given anything, for what is open in any group takes room from all groups
  (`stale_read` `idle`): who was told nothing in a run without leases stays so in a whole of such;
  and one that was told nothing of what was given back stays so alone;
- whether truth was collected, of how many nodes, and whose disks were read, for `ack_not_durable`
  counts a majority. The nodes of all parts are the same ones; as topics and indices are apart, a
  disk holds the sum of theirs;
- which nodes have the same states: these have all in common (`replica_divergence` `content`).

What can't be merged: whatever is about the record and not in it. A hole takes the proof from all
rows of a run, and a reason for `unknown` is of no part; so a history of which `unknown` is expected
is judged alone. A verdict is not divided either: a part is invalid if it has a row, for no record
here has a hole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.judges.history import RAW, MadeHistory, Row

RANGE: Final = 2**24  # of terms and indices of a part: there are far fewer in one
RUN_ID: Final = "merged"
NO_HOST: Final = "none"
NAMED: Final = ("process", "client_id", "topic", "host", "dead_letter")
Shape = tuple[object, ...]


def shape(history: MadeHistory) -> Shape:
    """Return what has to be the same for all parts of one record."""
    nodes = history.document.get("nodes", ()) if history.truth else ()
    return (
        *(history.is_application, "outcome" in history.document),
        any(row.get("phase") == "tombstone" and row["f"] == "phase" for row in _events(history)),
        tuple(node in history.truth for node in nodes),
        _alike(history, nodes),
        _works(history),
        id(history) if _is_told_nothing_of_a_nak(history) else None,
    )


def _alike(history: MadeHistory, nodes: Iterable[str]) -> tuple[int, ...]:
    """Return of each node the place of the first one that has the same states."""
    states = [
        {(row["index"], row["digest"]) for row in history.truth.get(node, ()) if _is_state(row)}
        for node in nodes
    ]
    return tuple(states.index(own) for own in states)


def _is_state(row: Row) -> bool:
    return bool(row["kind"] == "state")


def _works(history: MadeHistory) -> bool:
    """Return whether a TAKE was given something, or nobody knows what it was given."""
    takes = [row for row in _events(history) if row["f"] == "take"]
    told = {_key(row) for row in takes if row["type"] == "ok" and not row.get("leases")}
    return any(_key(row) not in told for row in takes)


def _is_told_nothing_of_a_nak(history: MadeHistory) -> bool:
    """Return whether a TAKE is told nothing while nothing is leased, behind one that gives back."""
    has_given_back, leased = False, set[tuple[object, ...]]()
    groups: dict[tuple[object, ...], tuple[object, ...]] = {}  # an end does not say it again
    for row in _events(history):
        if row["f"] != "take":
            continue
        group = groups.setdefault(_key(row), (row.get("topic"), row.get("group")))
        for _, first, last, *_ in (*(row.get("acks") or ()), *(row.get("naks") or ())):
            leased -= {(*group, id_) for id_ in range(first, last + 1)}
        for first, last, _ in row.get("leases") or ():
            leased |= {(*group, id_) for id_ in range(first, last + 1)}
        if has_given_back and not leased and row["type"] == "ok" and row.get("max_count"):
            return True
        has_given_back |= any(nak[3] == 0 for nak in row.get("naks") or ())
    return False


def batches(parts: Iterable[MergedPart], size: int) -> Iterator[list[MergedPart]]:
    """Yield the parts in lists of one shape, of at most so many."""
    open_: dict[Shape, list[MergedPart]] = defaultdict(list)
    for part in parts:
        batch = open_[shape(part.history)]
        batch.append(part)
        if len(batch) == size:
            yield open_.pop(shape(part.history))
    yield from open_.values()


@dataclass(frozen=True)
class MergedPart:
    """A history with the names of part `number`; `name` says what it was made of."""

    number: int
    name: str
    history: MadeHistory

    @classmethod
    def of(cls, number: int, name: str, history: MadeHistory) -> MergedPart:
        """Return a history as a part: renamed, and in no way changed otherwise."""
        return cls(number, name, _Renaming(number, history).renamed())


def merged(parts: Sequence[MergedPart]) -> MadeHistory:
    """Return one record of all parts. They are of one shape."""
    assert len({shape(part.history) for part in parts}) == 1, "their runs differ"
    assert len({part.number for part in parts}) == len(parts), "a part twice"
    first = parts[0].history
    whole = MadeHistory(RUN_ID, document=first.document)
    for part in parts:
        whole.rows += part.history.rows
        whole.open |= part.history.open
        for node, rows in part.history.truth.items():
            whole.truth.setdefault(node, []).extend(rows)
    return whole


def part_of(row: Mapping[str, Any]) -> int:
    """Return the number of the part that a row of evidence is of, by any name in it."""
    for name in ("topic", "client_id", "producer"):
        if row.get(name):
            return int(str(row[name]).partition("-")[0].removeprefix("m"))
    return int(row["id"]) // RANGE


class _Renaming:
    """Gives a history the names of a part."""

    def __init__(self, number: int, history: MadeHistory) -> None:
        self._history, self._base = history.copy(), number * RANGE
        self._prefix = f"m{number}-"
        nodes = history.document.get("nodes", ())
        self._nodes = {node: f"n{place}" for place, node in enumerate(nodes)}
        # A line without a host is of the other line's host, if that one has any.
        self._placed = {_key(row) for row in _events(history) if row.get("host") is not None}

    def renamed(self) -> MadeHistory:
        history = self._history
        history.run_id = RUN_ID
        for row in history.rows:
            if RAW in row:
                row["process"] = self._own(row["process"])
            else:
                self._rename(row)
        history.open = {self._own(name): lines for name, lines in history.open.items()}
        history.truth = {self._nodes[node]: rows for node, rows in history.truth.items()}
        for rows in history.truth.values():
            for row in rows:
                self._rename_truth(row)
        if "nodes" in history.document:
            history.document["nodes"] = [*self._nodes.values()]
        if "truth" in history.document:
            read = history.document["truth"]["nodes"]
            history.document["truth"] = {"nodes": [self._nodes[node] for node in read]}
        return history

    def _rename(self, row: Row) -> None:
        if row.get("host") is None and _key(row) not in self._placed:
            row["host"] = NO_HOST
        row["run_id"] = RUN_ID
        for name in NAMED:
            if row.get(name):
                row[name] = self._own(row[name])
        for item in (*(row.get("items") or ()), *(row.get("delayed") or ())):
            item[1] = self._own(item[1])
        for letter in row.get("letters") or ():
            letter[1] = self._own(letter[1])
        if row.get("node"):
            row["node"] = self._nodes.get(row["node"], row["node"])
        self._shift(row, "term")

    def _rename_truth(self, row: Row) -> None:
        row |= {"run_id": RUN_ID, "node": self._nodes[row["node"]]}
        for name in ("topic", "producer"):
            if row.get(name):
                row[name] = self._own(row[name])
        self._shift(row, "term")
        self._shift(row, "index")

    def _shift(self, row: Row, name: str) -> None:
        value = row.get(name)
        if value is not None:
            assert 0 <= value < RANGE, (name, value)
            row[name] = self._base + value

    def _own(self, name: str) -> str:
        return self._prefix + name


def _events(history: MadeHistory) -> Iterator[Row]:
    return (row for row in history.rows if RAW not in row)


def _key(row: Row) -> tuple[str, int]:
    return row["process"], row["op_id"]
