"""The list of checks, in the order of docs/checks.md, and what identifies a row of each.

What lives here: only that. What must not: any rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from analytics.twins import answers, clocks, delays, disks, groups, owed, stored
from analytics.twins.record import Event, Evidence
from analytics.twins.run import Run, read


def reordered(run: Run) -> Iterable[Evidence]:
    """Find answers and publications out of order."""
    return chain(answers.back(run), stored.overtaken(run))


TWINS: Final[Mapping[str, Callable[[Run], Iterable[Evidence]]]] = {
    "lost": owed.lost,
    "duplicate_stored": stored.duplicate_stored,
    "duplicate_delivered": answers.duplicate_delivered,
    "inconsistent_id": stored.inconsistent_id,
    "properties": stored.properties,
    "gap": answers.gap,
    "reordered": reordered,
    "phantom": stored.phantom,
    "aborted_read": stored.aborted_read,
    "future_read": stored.future_read,
    "torn_batch": stored.torn_batch,
    "corrupt": answers.corrupt,
    "realtime_order": clocks.realtime_order,
    "stale_read": clocks.stale_read,
    "cursor_regression": clocks.cursor_regression,
    "subscription": answers.subscription,
    "purge": answers.purge,
    "delayed": delays.delayed,
    "group_order": groups.group_order,
    "group_lease": groups.group_lease,
    "group_lost": groups.group_lost,
    "group_content": groups.group_content,
    "key_order": groups.key_order,
    "dead_letter": groups.dead_letter,
    "fencing": clocks.fencing,
    "term_order": clocks.term_order,
    "leaders_per_term": clocks.leaders_per_term,
    "replica_divergence": disks.replica_divergence,
    "ack_not_durable": disks.ack_not_durable,
}


def evidence_of(name: str, run: Run) -> list[Evidence]:
    """Return what a check finds, sorted. What two rows identify alike is one violation: one row."""
    first: dict[object, Evidence] = {}
    for row in sorted(TWINS[name](run), key=repr):
        first.setdefault(identity(name, row), row)
    return list(first.values())


# What identifies a row, by the column "row" of the table of checks; the rest says how to see it.
IDENTITY: Final[Mapping[str, tuple[str, ...]]] = {
    "lost": ("topic", "client_id", "id", "producer", "counter", "word"),
    "duplicate_stored": ("topic", "producer", "counter"),
    "duplicate_delivered": ("topic", "client_id", "id"),
    "inconsistent_id": ("topic", "id"),
    "properties": ("topic", "id", "word"),
    "gap": ("topic", "client_id", "id"),
    "reordered": ("topic", "client_id", "producer", "id"),
    "phantom": ("topic", "id", "producer", "counter"),
    "aborted_read": ("topic", "id", "producer", "counter"),
    "future_read": ("topic", "id", "producer", "counter"),
    "torn_batch": ("topic", "producer", "counter"),
    "corrupt": ("topic", "client_id", "id"),
    "realtime_order": ("topic", "id", "producer", "counter"),
    "stale_read": ("topic", "client_id", "id", "operation"),
    "cursor_regression": ("topic", "client_id", "id", "operation"),
    "subscription": ("topic", "client_id", "word", "operation"),
    "purge": ("topic", "client_id", "id", "word"),
    "delayed": ("topic", "client_id", "id", "producer", "counter", "word"),
    "group_order": ("topic", "client_id", "id", "word"),
    "group_lease": ("topic", "client_id", "id", "word"),
    "group_lost": ("topic", "client_id", "id"),
    "group_content": ("topic", "client_id", "id", "word"),
    "key_order": ("topic", "client_id", "id", "word"),
    "dead_letter": ("topic", "client_id", "id", "word"),
    "fencing": ("topic", "client_id", "operation"),
    "term_order": ("id",),
    "leaders_per_term": ("id",),
    "replica_divergence": ("topic", "id", "word"),
    "ack_not_durable": ("topic", "producer", "counter"),
}


def identity(name: str, row: Evidence) -> tuple[object, ...]:
    """Return what a row of a check is known by."""
    values = {
        **row._asdict(),
        "word": (row.detail or "").partition(" ")[0].rstrip(":"),
        "operation": row.operations[-1] if row.operations else None,
    }
    return tuple(values[column] for column in IDENTITY[name])


def find_all(
    events: Iterable[Event], truth: Iterable[Event] = (), nodes: Mapping[str, bool] | None = None
) -> dict[str, list[Evidence]]:
    """Return the evidence of every check over the events of one run, sorted.

    `truth`: what stood on the nodes' disks at its end; `nodes`: of each whether its disk was read.
    """
    return found_in(read(events, truth, nodes))


def found_in(run: Run) -> dict[str, list[Evidence]]:
    """Return the evidence of every check over a run, sorted."""
    return {name: evidence_of(name, run) for name in TWINS}
