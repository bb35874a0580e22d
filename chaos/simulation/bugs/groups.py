"""Bugs in groups: leases, their settlement, dead letters, and what is kept of them.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.store.commands import Take
from cluster.store.groups import Groups, Lease, SharedGroup
from cluster.store.outcomes import Outcome
from cluster.store.retention import Retention
from cluster.store.topics import Topic

FOUND: Final = {"answered", "rebuilt", "given_again", "given_twice", "digest", "books", "ended"}

_take: Final = Groups.take
_give: Final = Groups._give
_flush: Final = Groups.flush
_close: Final = SharedGroup.close
_place_group: Final = Topic.place_group
_put: Final = SharedGroup.put


@bug("a lease is settled by its own token alone", FOUND)
def late_acknowledgments_count(patches: Patches) -> None:
    """Let whoever had a publication once acknowledge it, whoever has it now."""

    def own(
        self: Groups,
        group: SharedGroup,
        client_id: str,
        token: int,
        first: int,
        last: int,
        lost: list[int],
    ) -> Iterator[int]:
        for id_ in range(first, last + 1):
            if id_ in group.open:
                yield id_
            else:
                lost.append(id_)

    patches.attribute(Groups, "_own", own)


@bug("a lease that runs out is given again", FOUND | {"progress"})
def leases_never_run_out(patches: Patches) -> None:
    """Leave a publication with its worker for ever."""
    patches.attribute(SharedGroup, "lapse", lambda group, now_ms: None)


@bug("what is acknowledged is never given again", FOUND)
def acknowledgments_are_forgotten_at_times(patches: Patches) -> None:
    """Let every fifth publication that is acknowledged be given back."""

    def close(group: SharedGroup, id_: int) -> None:
        before = group.open[id_]
        if id_ % 5 or before.attempt > 1:
            _close(group, id_)
            return
        group.put(id_, Lease("", 0, 0, before.attempt))
        group.set_timer(0, id_, id_)

    patches.attribute(SharedGroup, "close", close)


@bug("a numbered take is carried out once", FOUND)
def a_repeated_take_gives_more(patches: Patches) -> None:
    """Give somebody who asks again, as his reply was lost, other publications than before."""

    def take(self: Groups, group: SharedGroup, asked: Take, now_ms: int, entry: int) -> Outcome:
        known = group.workers.get(asked.client_id)
        if known is not None and known.number == asked.number:
            known.token = 0
        return _take(self, group, asked, now_ms, entry)

    patches.attribute(Groups, "take", take)


@bug("a client's new process has none of its leases", FOUND)
def a_new_process_leaves_the_leases_of_the_old_one(patches: Patches) -> None:
    """Let what a process that died had in hand wait for the end of its leases."""
    patches.attribute(Groups, "release", lambda self, client_id, now_ms, is_gone=False: None)


@bug("each time that a publication is given it says so", FOUND)
def attempts_are_not_counted(patches: Patches) -> None:
    """Give a publication again as if it were the first time."""

    def put(group: SharedGroup, id_: int, lease: Lease) -> None:
        before = group.open.get(id_)
        _put(group, id_, replace(lease, attempt=before.attempt) if before else lease)

    patches.attribute(SharedGroup, "put", put)


def _add_nothing(
    topic: Topic, count: int, lengths: bytes, data: bytes, expires: bool = False
) -> int:
    return 0


@bug("dead letters are published as they are removed", FOUND, seeds_max=150)
def dead_letters_are_dropped(patches: Patches) -> None:
    """Remove what was given often enough, and publish it nowhere."""

    def give(self: Groups, group: SharedGroup, asked: Take, now_ms: int, at_ms: int) -> Any:
        add = self._publications.add
        self._publications.add = _add_nothing  # type: ignore[method-assign]
        try:
            return _give(self, group, asked, now_ms, at_ms)
        finally:
            self._publications.add = add  # type: ignore[method-assign]

    patches.attribute(Groups, "_give", give)


@bug("a topic says where the dead letters go of groups that do not", FOUND)
def topics_are_not_asked_for_dead_letters(patches: Patches) -> None:
    """Give again what was given often enough, as the group has said nothing."""
    patches.attribute(SharedGroup, "dead_letters_to", property(lambda group: group.dead_letter))


@bug("a group's own dead letters go where it has said", FOUND, mode="live")
def topics_say_where_all_dead_letters_go(patches: Patches) -> None:
    """Heed what a group has said only where its topic says nothing."""

    def dead_letters_to(group: SharedGroup) -> str:
        kept = group.topic.retention
        return ("" if kept is None else kept.policy.dead_letter) or group.dead_letter

    patches.attribute(SharedGroup, "dead_letters_to", property(dead_letters_to))


@bug("where a topic's dead letters go is known behind a restart", FOUND)
def dead_letters_of_topics_are_in_memory_alone(patches: Patches) -> None:
    """Read policies as builds before would have written them."""
    _of: Final = Retention.of

    def of(text: str) -> Retention:
        kept = _of(text)
        kept.policy = replace(kept.policy, dead_letter="")
        return kept

    patches.attribute(Retention, "of", staticmethod(of))


@bug("leases stand on every node's disk", FOUND)
def leases_are_in_memory_alone(patches: Patches) -> None:
    """Write no leases: a node that starts again takes them for settled."""

    def flush(self: Groups) -> None:
        for group in self._dirty:
            group.dirty_chunks.clear()
        _flush(self)

    patches.attribute(Groups, "flush", flush)


@bug("a group keeps what it has not settled", FOUND)
def groups_hold_no_floor(patches: Patches) -> None:
    """Let a topic's publications go when its subscribers have them, whatever its groups have."""

    def place_group(topic: Topic, name: str, cursor: int | None) -> None:
        _place_group(topic, name, cursor)
        cursors = [each.cursor for each in topic.subscribers.values()]
        if cursors:
            topic.floor_id = max(min(cursors), topic.purged_id)

    patches.attribute(Topic, "place_group", place_group)


@bug("a lease has its own end", FOUND)
def extensions_do_nothing(patches: Patches) -> None:
    """Agree to every extension, and leave the lease as it is."""
    settle = Groups._settle

    def unextended(self: Groups, group: SharedGroup, asked: Take, now_ms: int) -> Any:
        return settle(self, group, replace(asked, extends=[]), now_ms)

    patches.attribute(Groups, "_settle", unextended)
