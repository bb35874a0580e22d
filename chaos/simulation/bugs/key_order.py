"""Bugs in groups that are ordered by key, and in groups that are moved.

What must not live here: what finds them.
"""

from __future__ import annotations

from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.store.groups import Groups, SharedGroup
from cluster.store.key_order import KeyOrder

FOUND: Final = {"answered", "rebuilt", "books", "digest", "ended", "key_order", "progress"}

_add: Final = KeyOrder.add
_settle: Final = KeyOrder.settle
_wait: Final = Groups._wait
_clear: Final = SharedGroup.clear


@bug("the next one of a key is leased when the one before is settled", FOUND)
def keys_are_not_looked_at(patches: Patches) -> None:
    """Take no key for one that is open."""
    patches.attribute(KeyOrder, "is_taken", lambda self, key: False)
    patches.attribute(KeyOrder, "is_behind", lambda self, id_: False)


@bug("what is given back holds up its key", FOUND)
def a_nak_lets_the_next_one_of_its_key_go(patches: Patches) -> None:
    """Give the next one of a key as soon as the one before is given back."""

    def wait(self: Groups, group: SharedGroup, ids: Any, at_ms: int) -> None:
        _wait(self, group, ids, at_ms)
        if group.order is None:
            return
        for id_ in ids:
            queue = group.order._queue_of.get(id_)
            if queue is not None and len(queue.ids) > 1:
                group.due.add(queue.ids[1])
                group.due_heap = sorted(group.due)

    patches.attribute(Groups, "_wait", wait)


@bug("what waits for its key is due when it is its turn", FOUND | {"upkeep"})
def whoever_waits_for_his_key_waits_for_ever(patches: Patches) -> None:
    """Tell nobody that the one before is settled."""

    def settle(self: KeyOrder, id_: int) -> int | None:
        _settle(self, id_)
        return None

    patches.attribute(KeyOrder, "settle", settle)


@bug("a node that starts knows who waits for his key", FOUND)
def keys_are_forgotten_at_a_restart(patches: Patches) -> None:
    """Find no keys of what is open when a store is opened."""
    patches.attribute(Groups, "_find_order", lambda self, group, order: None)


@bug("each key has its own order", FOUND)
def all_keys_are_one(patches: Patches) -> None:
    """Have each publication with a key wait for any other one."""
    taken = KeyOrder.is_taken
    patches.attribute(
        KeyOrder, "add", lambda self, id_, key: _add(self, id_, None if key is None else b"")
    )
    patches.attribute(
        KeyOrder, "is_taken", lambda self, key: taken(self, None if key is None else b"")
    )


@bug("as many wait for their keys as may", FOUND)
def any_number_waits_for_its_key(patches: Patches) -> None:
    """Pass over whatever stands behind another one of its key."""
    patches.attribute(KeyOrder, "behind_count", property(lambda self: 0))


@bug("a group that is moved has leased nothing", FOUND | {"given_again", "given_twice"})
def leases_outlive_a_move(patches: Patches) -> None:
    """Leave what workers have in hand with them when their group begins anew."""

    def clear(group: SharedGroup, cursor: int) -> None:
        leases = {id_: lease for id_, lease in group.open.items() if lease.client_id}
        _clear(group, cursor)
        for id_, lease in leases.items():
            if cursor < id_ <= group.topic.last_id and group.order is None:
                group.put(id_, lease)
                group.set_timer(lease.at_ms, id_, id_)
                group.head = max(group.head, id_)

    patches.attribute(SharedGroup, "clear", clear)
