"""What workers of groups are promised, by what they are told alone.

What lives here: who was given what, which attempt that was, and what was acknowledged. What must
not: the log's word of it (reference_groups.py), replies (replies.py).
"""

from __future__ import annotations

from collections.abc import Callable

from flotilla_client import WorkItem

Fail = Callable[[str, str], None]
Place = tuple[str, str, int]  # topic, group, id


class WorkPromises:
    """Hears of work, from all clients together; a client that asks again is told the same."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._given: dict[tuple[Place, int], str] = {}  # by place and attempt
        self._done: dict[Place, str] = {}

    def given(self, client: str, item: WorkItem) -> None:
        """Check what a worker was given: no attempt is two workers', nothing done comes again."""
        place = item.topic, item.group, item.id
        if place in self._done:
            text = f"{client} is given {place}, which {self._done[place]} has acknowledged"
            self._fail("given_again", text)
        before = self._given.setdefault((place, item.attempt), client)
        if before != client:
            self._fail("given_twice", f"{client} and {before} are given {place}, {item.attempt}")

    def worked(self, client: str, item: WorkItem) -> None:
        """Check that an item is done once."""
        place = item.topic, item.group, item.id
        before = self._done.setdefault(place, client)
        if before != client:
            self._fail("given_again", f"{client} has acknowledged {place}, and so has {before}")
