"""Bugs in what workers believe of their leases, and in TAKEs that wait.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.serve import leases
from cluster.serve.broker import Broker
from flotilla_client.errors import FlotillaError
from flotilla_client.protocol import Reply
from flotilla_client.work import LeaseBook, WorkItem, WorkLoop

_answered: Final = LeaseBook.answered
_brought: Final = LeaseBook._brought
_offer: Final = Broker._offer


@bug("a lease is believed in from when it was asked for", {"leases"})
def leases_count_from_their_answer(patches: Patches) -> None:
    """Take what is given to be leased from the moment at which the answer is read."""

    def brought(book: LeaseBook, reply: Reply) -> Iterator[WorkItem]:
        asked_ms, book._asked_ms = book._asked_ms, book.now_ms()
        yield from _brought(book, reply)
        book._asked_ms = asked_ms

    patches.attribute(LeaseBook, "_brought", brought)


@bug("an extension is believed in from when it was asked for", {"leases"})
def extensions_count_from_their_answer(patches: Patches) -> None:
    """Take what is extended to be leased from the moment at which the answer is read."""

    def answered(book: LeaseBook, reply: Reply) -> set[int]:
        told = [(item, ms) for kind, item, ms in book._told.values() if kind == "extend"]
        lost = _answered(book, reply)
        for item, ms in told:
            item._end_ms = book.now_ms() + ms
        return lost

    patches.attribute(LeaseBook, "answered", answered)


@bug("a TAKE that may have been carried out is asked for again as it is", {"leases"})
def takes_without_an_answer_are_said_anew(patches: Patches) -> None:
    """Say under another number what a TAKE says of which nobody knows what became of it."""

    def failed(book: LeaseBook, error: FlotillaError) -> None:
        book._pending = book._told | book._pending
        book._asked, book._told = None, {}

    patches.attribute(LeaseBook, "failed", failed)


@bug("who leaves a loop gives back what he has", {"leases"})
def left_loops_keep_what_they_have(patches: Patches) -> None:
    """Leave a loop with what was taken and not handed over."""

    def leave(loop: WorkLoop, is_done: bool) -> bool:
        was_there, loop.is_over = loop.has_begun and not loop.is_over, True
        if was_there:
            loop._settle("ack" if is_done else "nak")
            loop.book.loop = None
        return was_there

    patches.attribute(WorkLoop, "leave", leave)


@bug("who waits for work is given it", {"waits"})
def parked_takes_are_offered_nothing(patches: Patches) -> None:
    """Leave TAKEs that wait where they are, whatever there is for them, while their group is."""

    def offer(broker: Broker, key: leases.Key, log_ms: int) -> None:
        if broker.store.groups.get(*key) is None:
            _offer(broker, key, log_ms)

    patches.attribute(Broker, "_offer", offer)


@bug("who waits for work of a group that ends is told so", {"waits", "books"})
def takes_wait_on_when_their_group_ends(patches: Patches) -> None:
    """Leave the parked TAKEs of a group where they are when it ends."""

    def offer(broker: Broker, key: leases.Key, log_ms: int) -> None:
        if broker.store.groups.get(*key) is not None:
            _offer(broker, key, log_ms)

    patches.attribute(Broker, "_offer", offer)


@bug("the first of what a worker says of an item counts", {"said"})
def an_extension_takes_an_ack_back(patches: Patches) -> None:
    """Extend what was acknowledged, as long as the cluster has not heard of that."""

    def extend(book: LeaseBook, item: WorkItem, lease_ms: int) -> None:
        book._pending[item.id] = "extend", item, lease_ms

    patches.attribute(LeaseBook, "extend", extend)
