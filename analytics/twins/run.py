"""A run as the checks look at it: its record, what is known by it, and who stood subscribed.

What lives here: only that. What must not: any rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from analytics.twins.compaction import replacements_of
from analytics.twins.knowledge import Knowledge
from analytics.twins.record import Event, Record, fill
from analytics.twins.standing import Standing, take_back_idle


class Run(Record):
    """A record with all that follows from it for every check."""

    @cached_property
    def knowledge(self) -> Knowledge:
        """What is known of publications and ids, and since when."""
        return Knowledge(self)

    @cached_property
    def standing(self) -> Standing:
        """Who was subscribed to what, and when."""
        return Standing(self)

    @cached_property
    def replacements(self) -> set[tuple[str, int]]:
        """The gaps that replaced publications explain."""
        return replacements_of(self)


def read(
    events: Iterable[Event],
    truth: Iterable[Event] = (),
    nodes: Mapping[str, bool] | None = None,
    is_application: bool = False,
) -> Run:
    """Return the run of these rows; those of a process are in the order of its lines.

    `truth`: what stood on the nodes' disks at its end; `nodes`: of each whether its disk was read.
    `is_application`: run.json says so; a line with digests does as well.
    """
    rows, held = list(events), list(truth)
    run_id = next((str(row["run_id"]) for row in (*rows[:1], *held[:1])), "")
    run = Run(run_id, truth=held, nodes=dict(nodes or {}), is_application=is_application)
    fill(run, rows)
    take_back_idle(run)
    return run
