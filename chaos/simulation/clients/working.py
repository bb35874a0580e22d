"""What a simulated client does in groups: it takes, and settles, or does not.

What lives here: one process's part in the groups of its topics. What must not: exchanges, which are
the library's own (flotilla_client/work.py), and what must hold of it (checks/work.py).

Bodies end, raise, take longer or never end, and a process dies with what it has in hand: so leases
run out, and their publications are given to others.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn, Protocol

from chaos.simulation.clients.clients import ClientWire, Process, Script
from flotilla_client import (
    AnotherChoice,
    BadRequest,
    FlotillaError,
    NotSubscribed,
    Unauthorized,
    UnknownTopic,
    Unsupported,
    WorkItem,
)
from flotilla_client.operations import Ask, Operations, Steps
from flotilla_client.protocol import GROUPS, INSPECT, Request
from flotilla_client.reading import Owner
from flotilla_client.work import (
    WORK_ACKS,
    GroupSettings,
    LeaseBook,
    WorkLoop,
    end_group,
    make_group,
    take,
)

GROUP: Final = "g"
DEAD: Final = "dead"  # the topic of dead letters; a group alone reads it
DESK: Final = "desk"  # one that a single client publishes to, and another one works for
NOWHERE: Final = "nowhere"  # one that nobody makes
EARLIEST_SHARE: Final = 0.1  # of those who make a group have it begin where the topic does
AGAIN_SHARE: Final = 0.2  # of the times it says once more how often a publication may be given
END_SHARE: Final = 0.02  # of the times the group is ended, and perhaps made again
# What becomes of an item each time that its worker comes by, with its share.
FATES: Final = {"ack": 0.55, "nak": 0.15, "extend": 0.1, "wait": 0.2}
LOOPS_SHARE: Final = 0.3  # of the times a worker takes part by a loop of the library's
BODIES_MAX: Final = 5  # of a loop
BODY_S: Final = (0.0, 0.0, 0.03, 0.15, 0.6)  # the longer ones are slow, and outlive some leases
EVERYTHING: Final = 1_000  # more than is ever in hand
DRAIN_WAIT_MS: Final = 200
DRAIN_LEASE_MS: Final = 3_000  # above what the slowest network takes to say that it is done
DRAIN_COUNT: Final = 100


class WorkHearer(Protocol):
    """Who hears of work; see `scripts.Course`."""

    def refused(self, client: str, error: FlotillaError) -> None:
        """Hear of an operation's error."""

    def given(self, client: str, item: WorkItem) -> None:
        """Hear what a worker was given."""

    def worked(self, client: str, item: WorkItem) -> None:
        """Hear that an item is done, and that the cluster has agreed."""

    def leased(self, client: str, item: WorkItem, asked_ms: float) -> None:
        """Hear of an item that was brought to a client, and when it asked for it first."""

    def told_lost(self, client: str, item: WorkItem) -> None:
        """Hear that an acknowledgment of an item came too late, as its worker is told."""

    def believed(self, client: str, item: WorkItem, until_ms: float) -> None:
        """Hear until when an item that was extended may be taken to be leased, at most."""

    def spoken(self, client: str, item: WorkItem, kind: str, ms: int) -> None:
        """Hear what a worker says of an item."""

    def taking(self, client: str, book: LeaseBook) -> None:
        """Hear what the next TAKE of a client says."""

    def agreed(self, client: str, item: WorkItem, kind: str, ms: int) -> None:
        """Hear that the cluster has heard that of an item, and agreed."""

    def loop_left(self, client: str, book: LeaseBook) -> None:
        """Hear that a loop over a group was left."""


def _extender(item: WorkItem, lease_ms: int) -> NoReturn:
    raise AssertionError("nobody extends by itself here")


class Working:
    """One process's work. `lease_ms` None: as the group has it.

    `own_letters`: by how much chance it names where dead letters go, and does not leave that to
    its topics; `waits_ms`: as long as a TAKE waits, one of them; `naks`: the share of
    "nak" among FATES.
    """

    def __init__(
        self,
        name: str,
        topics: tuple[str, ...],
        lease_ms: int | None,
        max_attempts: int,
        own_letters: float,
        waits_ms: Sequence[int],
        naks: float,
        is_ordered: bool | None,
        process: Process,
        course: WorkHearer,
        rng: random.Random,
        wire: ClientWire,
    ) -> None:
        self._name, self._topics, self._course, self._rng = name, topics, course, rng
        self._operations: Operations = process.session.operations
        self._settings = GroupSettings(lease_ms, ordered_by_key=is_ordered)
        if max_attempts:
            own = DEAD if rng.random() < own_letters else None  # else where its topic says
            self._settings = replace(self._settings, max_attempts=max_attempts, dead_letter=own)
            self._topics += (DEAD,)
        self._wire, self._waits_ms = wire, waits_ms
        self._fates = FATES | {"nak": naks}
        self._books: dict[str, LeaseBook] = {}
        # Of the last TAKE to a group that has ended: they go on, as one that is late may come yet.
        self._numbers: dict[str, int] = {}
        self._items: dict[str, list[WorkItem]] = {}
        self._has_own_letters = own_letters > 0.0
        self._unsaid = set[str]()  # whose topics have not said where dead letters go

    def work(self) -> Script:
        """Settle some of what is here, and take more."""
        rng, topic = self._rng, self._rng.choice(self._topics)
        if topic not in self._books:
            try:
                yield from self._begin(topic)
            except Unsupported:  # the level has not been raised yet
                return
        elif topic in self._unsaid and rng.random() < AGAIN_SHARE:
            self._unsaid.discard(topic)
            yield from self._choose(topic, self._settings)
            return
        elif rng.random() < END_SHARE:
            yield end_group(self._operations, topic, GROUP)
            self._forget(topic)
            return
        if rng.random() < LOOPS_SHARE:
            yield from self._loop(topic)
            return
        self._go_on(topic)
        lease_ms = rng.choice((None, None, 150, 600))
        count, wait_ms = rng.choice((0, 1, 3, 20)), rng.choice(self._waits_ms)
        if wait_ms:  # who asks for nothing is answered at once
            count = max(count, 1)
        book = self._books[topic]
        # Who has something in hand does not wait, or what is extended would have run out by then.
        yield from self._take(
            topic, 0 if book.hand else count, lease_ms, 0 if book.hand else wait_ms
        )
        if topic in self._books:
            self._hand_over(topic, rng.choice((1, 3, EVERYTHING)))

    def _go_on(self, topic: str) -> None:
        """Let something become of each item of a topic."""
        for item in list(self._items[topic]):
            [fate] = self._rng.choices(list(self._fates), list(self._fates.values()))
            self._decide(item, fate)

    def _loop(self, topic: str) -> Script:
        """Work by a loop of the library's, and leave it, perhaps with something in hand."""
        rng, book = self._rng, self._books[topic]
        ack, prefetch = rng.choice(WORK_ACKS), rng.choice((1, 3, 20))
        loop = WorkLoop(book, self._settings, ack, prefetch, rng.choice((0, 100)), None)
        owner = Owner(loop, f"a loop of {self._name}", lambda: False)
        loop.begin(owner)
        is_done = False
        try:
            is_done = yield from self._bodies(topic, loop, owner, is_manual=ack == "manual")
        finally:
            loop.leave(is_done)
        self._course.loop_left(self._name, book)
        while topic in self._books and book.is_left:
            book.give_back()
            yield from self._take(topic, 0, None, 0)

    def _bodies(
        self, topic: str, loop: WorkLoop, owner: Owner, is_manual: bool
    ) -> Generator[Any, Any, bool]:
        """Carry out some bodies of a loop; return whether the last one has ended well."""
        rng, book = self._rng, self._books[topic]
        for _ in range(rng.randint(1, BODIES_MAX)):
            loop.come_back(owner)
            while (item := loop.item()) is None:
                yield from self._take(topic, *loop.wish())
                if topic not in self._books or not book.hand:
                    return False
            self._given(topic, item)
            if is_manual:
                self._go_on(topic)
            yield rng.choice(BODY_S)
        return rng.random() < 0.5

    def drain(self) -> Script:
        """Work until nothing is left in any of the groups, whoever has it now.

        In each group by turns: what one has open may be as much as all may have, and then no other
        one gives anything.
        """
        topics, is_done = list(self._topics), False
        while not is_done:
            is_done = True
            for topic in list(topics):
                try:
                    backlog = yield _backlog(self._operations, topic)
                except Unauthorized as error:  # its key may not observe
                    self._course.refused(self._name, error)
                    topics.remove(topic)
                    continue
                except Unsupported:  # the level was never raised, so there are no groups
                    return
                if backlog:
                    is_done = False
                    yield from self._drain_some(topic)

    def _drain_some(self, topic: str) -> Script:
        if topic not in self._books:  # what a process before has left may keep others' room
            yield from self._begin(topic)
        for item in self._items[topic]:
            self._decide(item, "ack")
        yield from self._take(topic, DRAIN_COUNT, DRAIN_LEASE_MS, DRAIN_WAIT_MS)
        if topic in self._books:
            self._hand_over(topic, EVERYTHING)

    def _begin(self, topic: str) -> Script:
        settings = GroupSettings() if topic == DEAD else self._settings
        if settings.max_attempts and DEAD not in self._books:
            yield from self._begin(DEAD)  # or there would be nobody for them
        if self._rng.random() < EARLIEST_SHARE:
            settings = replace(settings, start="earliest")
        yield from self._choose(topic, settings)
        book = LeaseBook(topic, GROUP, lambda: self._wire.now * 1000, _extender, lambda: None)
        book._number = self._numbers.get(topic, 0)
        self._books[topic] = book
        self._items[topic] = []

    def _choose(self, topic: str, settings: GroupSettings) -> Script:
        """Make a group, or change it, as far as somebody else and its topic let this one."""
        while True:
            try:
                yield make_group(self._operations, topic, GROUP, settings)
            except AnotherChoice:  # somebody has made it otherwise, or does just now
                if settings.ordered_by_key is None:
                    raise
                settings = replace(settings, ordered_by_key=None)
            except BadRequest:  # its topic does not say where dead letters go, or not yet
                if settings.dead_letter or not settings.max_attempts:
                    raise
                if self._has_own_letters:
                    settings = replace(settings, dead_letter=DEAD)
                else:
                    self._unsaid.add(topic)
                    settings = replace(settings, max_attempts=None)
            else:
                return

    def begin_anew(self) -> None:
        """Have no leases any more: they were of the client that this one was."""
        for book in self._books.values():
            book.lose()

    def _forget(self, topic: str) -> None:
        if book := self._books.pop(topic, None):
            self._numbers[topic] = book._number
        self._items.pop(topic, None)

    def _decide(self, item: WorkItem, fate: str) -> None:
        ms, was_settled = 0, bool(item.settled)
        if fate == "ack":
            item.ack()
        elif fate == "nak":
            delay_s = self._rng.choice((0, 0, 0.1, 1.0))
            ms = round(delay_s * 1000)
            item.nak(delay_s)
        elif fate == "extend":
            ms = self._rng.choice((150, 1_000))
            item._book.extend(item, ms)
        else:
            return
        if not was_settled:
            self._course.spoken(self._name, item, fate, ms)

    def _take(
        self, topic: str, count: int, lease_ms: int | None, wait_ms: int
    ) -> Generator[Any, Any, None]:
        book = self._books[topic]
        book.body(count, lease_ms, wait_ms)  # the same for `take`: to see what it says
        self._course.taking(self._name, book)
        said = list(book._told.values())
        asked_ms, before = book._asked_ms, set(book.hand)
        try:
            yield take(self._operations, book, count, lease_ms, wait_ms)
        except (NotSubscribed, UnknownTopic):  # somebody has ended the group
            self._forget(topic)
            return
        self._note_said(topic, said, asked_ms)
        for item in book.hand:
            if item not in before:
                self._course.leased(self._name, item, asked_ms)

    def _note_said(
        self, topic: str, said: Sequence[tuple[str, WorkItem, int]], asked_ms: float
    ) -> None:
        """Tell what became of what a TAKE said that was carried out."""
        book, kept = self._books[topic], []
        for item in self._items[topic]:
            if item.settled == "ack" and not book.is_to_be_said(item):
                self._course.worked(self._name, item)
            elif not item.settled or book.is_to_be_said(item):
                kept.append(item)
        self._items[topic] = kept
        for kind, item, ms in said:
            is_lost = item.settled == "lost"
            if is_lost and kind == "ack":
                self._course.told_lost(self._name, item)
            if is_lost:
                continue
            self._course.agreed(self._name, item, kind, ms)
            if kind == "extend":
                self._course.believed(self._name, item, asked_ms + ms)

    def _hand_over(self, topic: str, count: int) -> None:
        """Let the worker have so many of what is in hand."""
        for _ in range(count):
            if (item := self._books[topic].next_item()) is None:
                return
            self._given(topic, item)

    def _given(self, topic: str, item: WorkItem) -> None:
        self._course.given(self._name, item)
        self._items[topic].append(item)


def _backlog(operations: Operations, topic: str) -> Steps[int]:
    """INSPECT: how many publications of a topic's group are not settled; 0 without one."""
    yield from operations.opened()
    request = Request(INSPECT, "", topic, body={"what": GROUPS, "after": ""})
    done = yield from operations.asked(Ask(request))
    rows = [row for row in done.reply.body["rows"] if row["topic"] == topic]
    return rows[0]["backlog"] if rows else 0
