"""What workers of groups are promised, by what they are told alone.

What lives here: who was given what, which attempt that was, and what was acknowledged. What must
not: the log's word of it (reference_groups.py), replies (replies.py).

A group that was moved, or made anew, may give again what was done: nothing is promised of that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from chaos.simulation.checks.reference import NEVER, Reference
from flotilla_client import WorkItem
from flotilla_client.work import LeaseBook

Fail = Callable[[str, str], None]
Place = tuple[str, str, int]  # topic, group, id
KINDS: Final = ("ack", "nak", "extend")


class WorkPromises:
    """Hears of work, from all clients together; a client that asks again is told the same."""

    def __init__(self, fail: Fail, reference: Reference) -> None:
        self._fail, self._reference = fail, reference
        self._given: dict[tuple[Place, int], str] = {}  # by place and attempt
        self._done: dict[Place, str] = {}
        # By topic, group and key: each id that anybody was given, with all its items.
        self._of_key: defaultdict[tuple[str, str, object], dict[int, list[WorkItem]]]
        self._of_key = defaultdict(dict)
        # What workers have said of what they have, and when by the log's time; see `spoken`.
        self._words: dict[WorkItem, tuple[str, int, int]] = {}
        self._not_before: dict[Place, int] = {}  # by the log's time: of what was given back

    def given(self, client: str, item: WorkItem) -> None:
        """Check what a worker was given: no attempt is two workers', nothing done comes again."""
        self._look_at_key(client, item)
        if item.settled:
            text = f"{client} is handed {item.topic} {item.id}, which is settled: {item.settled}"
            self._fail("leases", text)
        if self._is_moved(item):
            return
        place = item.topic, item.group, item.id
        due_ms, log_ms = self._not_before.pop(place, 0), self._reference.log_ms
        if log_ms < due_ms:
            text = f"{client} is given {place} at {log_ms}, it was given back until {due_ms}"
            self._fail("said", text)
        if item.message.redelivered != (item.attempt > 1):
            text = f"{client} is given {place} for the {item.attempt}. time"
            again = item.message.redelivered
            self._fail("handed_over_twice", f"{text}, and told that it is again: {again}")
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
        if before != client and not self._is_moved(item):
            self._fail("given_again", f"{client} has acknowledged {place}, and so has {before}")

    def spoken(self, item: WorkItem, kind: str, ms: int) -> None:
        """Note what a worker says of an item: the first of what ends it counts."""
        if self._words.get(item, ("extend",))[0] == "extend":
            self._words[item] = kind, ms, self._reference.log_ms

    def taking(self, client: str, book: LeaseBook) -> None:
        """Check that the next TAKE of a client says of each item what its worker said.

        One that is asked for again says what was true when it was asked for first.
        """
        if book._exchanges:
            return
        asked = book._asked or {}
        rows = [(kind, *row) for kind in KINDS for row in asked.get(f"{kind}s", ())]
        said = {
            id_: (kind, token, ms[0] if ms else 0)
            for kind, token, first, last, *ms in rows
            for id_ in range(first, last + 1)
        }
        for id_, (kind, item, ms) in book._told.items():
            word, due = self._words.get(item), (kind, ms)
            # Nobody works on what a loop has left: it gives that back, however long it was to be.
            if word is not None and (word[0] != "extend" or kind == "extend"):
                due = word[:2]
            if said.get(id_) != (due[0], item._token, due[1]):
                text = f"{client} says {said.get(id_)} of {item.topic} {id_}, its worker {due}"
                self._fail("said", text)

    def agreed(self, item: WorkItem, kind: str, ms: int) -> None:
        """Note until when what was given back is given to nobody."""
        word = self._words.get(item)
        if kind == "extend" and round(item._lease_ms) != ms:
            text = f"{item.topic} {item.id} was extended for {ms} ms, and next for {item._lease_ms}"
            self._fail("leases", text)
        if kind != "extend":
            self._words.pop(item, None)
        if kind == "nak" and word is not None:
            self._not_before[item.topic, item.group, item.id] = word[2] + ms

    def told_lost(self, client: str, item: WorkItem) -> None:
        """Check that an acknowledgment came too late, as its worker is told.

        Who was forgotten or displaced is told so of what was done as well: it is known no more.
        """
        group = self._reference.groups.get((item.topic, item.group))
        if group is None:
            return
        token, client_id = group.acked.get(item.id, (0, ""))
        is_known = client_id not in group.displaced and client_id not in self._reference.gone
        if token != item._token or not is_known:
            return
        text = f"{client} is told that {item.topic} {item.id} is another's, which it has done"
        self._fail("leases", text)

    def leased(self, client: str, item: WorkItem, asked_ms: float) -> None:
        """Check that a client believes in no longer lease than the log gave it, when it asked.

        Nor in a longer one than it was told that leases are, whatever became of the group since.
        """
        given_ms = self._reference.lease_ms[item.topic, item.group, item._token]
        self.believed(client, item, asked_ms + min(given_ms, item._lease_ms))

    def believed(self, client: str, item: WorkItem, until_ms: float) -> None:
        """Check that a client believes in no longer lease than that, which it asked for itself."""
        if item._end_ms > until_ms:
            text = f"{client} takes {item.topic} {item.id} to be leased until {item._end_ms:.0f} ms"
            self._fail("leases", f"{text}, and may until {until_ms:.0f}")

    def loop_left(self, client: str, book: LeaseBook) -> None:
        """Check that a loop that was left has nothing any more."""
        kept = sorted([*book.given, *(item.id for item in book.hand)])
        if kept or book.loop is not None:
            text = f"{client} has left a loop over {book.group!r} of {book.topic}"
            self._fail("leases", f"{text}, and keeps {kept}")

    def _is_moved(self, item: WorkItem) -> bool:
        return (item.topic, item.group) in self._reference.moved_groups

    def _look_at_key(self, client: str, item: WorkItem) -> None:
        """Check that somebody has said of all before it of its key that they are done.

        Who was forgotten may have been told of what it had said, and had carried out, that it was
        not its own any more: so what the log has counts as well.
        """
        if item.key is None:
            return
        before = self._of_key[item.topic, item.group, (type(item.key), item.key)]
        before.setdefault(item.id, []).append(item)
        first_id = self._reference.ordered_from(item.topic, item.group)
        over, log_ms = self._reference.topics[item.topic].over, self._reference.log_ms
        for id_, items in before.items():
            if first_id is None or not first_id <= id_ < item.id:
                continue
            if over.get(id_, NEVER) <= log_ms:
                continue  # it has expired: nobody is to do it
            is_done = id_ in self._reference.groups[item.topic, item.group].acked
            if not is_done and not any(each.settled == "ack" for each in items):
                text = f"{client} is given {item.topic} {item.id}, and {id_} of its key is not done"
                self._fail("key_order", text)
