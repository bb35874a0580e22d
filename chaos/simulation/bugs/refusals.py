"""Bugs in what is refused, in what a listing leaves out, and in what is asked for once alone.

Each had escaped as a mutant before the simulator could meet its situation and judge it. What must
not live here: what finds them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.members.catchup import SnapshotFetch
from cluster.node.context import DiskRoom
from cluster.node.member import Member
from cluster.serve.broker import Broker, Waiting
from flotilla_client.operations import Ask, Operations, Steps
from flotilla_client.protocol import Request

_refuse: Final = Broker.refuse
_no_room: Final = Broker._no_room
_note_room: Final = Member.note_room


@bug("a refusal of what is stored would say that it is not", {"answered", "definite"})
def what_is_stored_is_refused(patches: Patches) -> None:
    """Refuse a PUT that has no room, also one that takes none."""
    patches.attribute(Broker, "_is_stored", lambda broker, request: False)


@bug("11: what is carried out in part is refused for certain by nobody", {"definite"})
def carried_out_and_denied(patches: Patches) -> None:
    """Tell whoever waits at a deposed leader that nothing was done."""

    def refuse(broker: Broker, waiting: Waiting, code: str, message: str, **details: Any) -> None:
        waiting.carried_out &= code != "not_leader"
        _refuse(broker, waiting, code, message, **details)

    patches.attribute(Broker, "refuse", refuse)


@bug("a topic holds no more than its limit", {"limit"})
def backlogs_grow_to_twice_their_limit(patches: Patches) -> None:
    """Take half of the limit for all of it."""

    def no_room(broker: Broker, request: Request) -> Any:
        limits = broker.limits
        broker.limits = replace(limits, backlog_bytes_max=2 * limits.backlog_bytes_max)
        try:
            return _no_room(broker, request)
        finally:
            broker.limits = limits

    patches.attribute(Broker, "_no_room", no_room)


@bug("a majority with room takes publications", {"books"})
def one_full_disk_stops_all(patches: Patches) -> None:
    """Refuse PUTs while any member is short of room."""

    def note_room(member: Member, room: DiskRoom) -> None:
        _note_room(member, room)
        health = member._neighbours.health
        member.broker.disk_low |= any(each.disk_low for each in health.values())

    patches.attribute(Member, "note_room", note_room)


@bug("a majority without room stops publications", {"books"})
def a_full_majority_stops_nobody(patches: Patches) -> None:
    """Refuse PUTs only while the leader itself is short of room."""

    def note_room(member: Member, room: DiskRoom) -> None:
        _note_room(member, room)
        member.broker.disk_low = room.is_low

    patches.attribute(Member, "note_room", note_room)


@bug("a piece of a copy that was lost is asked for again", {"progress"})
def lost_pieces_are_not_asked_for_again(patches: Patches) -> None:
    """Wait for a piece until it comes."""

    def tick(fetch: SnapshotFetch, now: float) -> None:
        fetch._now_s = now

    patches.attribute(SnapshotFetch, "tick", tick)


@bug("a listing has every topic", {"answered"})
def listings_end_with_a_page(patches: Patches) -> None:
    """Ask for no page behind the first."""

    def topic_pages(
        operations: Operations, request: Request, body: dict[str, Any]
    ) -> Steps[list[dict[str, Any]]]:
        done = yield from operations.asked(Ask(replace(request, body=body | {"after": ""})))
        rows: list[dict[str, Any]] = done.reply.body["topics"]
        return rows

    patches.attribute(Operations, "_topic_pages", topic_pages)
