"""Each replica's state against one that is made anew of the log, and against the reference.

What lives here: an empty store that takes every entry once, without a restart, a copy or a cut, and
what is compared with it. What must not: the entries' meaning (reference.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.checks.reference import Reference
from chaos.simulation.world.builds import NEXT
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from cluster.log.entries import FIRST_INDEX
from cluster.store.store import Delivery, Store

BYTES_MAX: Final = 1 << 40  # of a delivery: no bound
COUNT_MAX: Final = 1 << 30


class Rebuilt:
    """Keeps the entries of a run's log; compares when asked."""

    def __init__(self, world: World, invariants: Invariants, reference: Reference) -> None:
        self._world, self._invariants, self._reference = world, invariants, reference
        self._founding: Mapping[str, str] = {}
        world.observers.append(self._observe)

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "founded":
            self._founding = fields["founding"]

    def compare(self, nodes: Sequence[SimNode]) -> None:
        """Compare the stores of these nodes with one that is made of the same entries."""
        stores = sorted(
            ((each.name, each.as_member.store) for each in nodes if each.as_member is not None),
            key=lambda pair: pair[1].applied_index,
        )
        entries = self._invariants.payloads
        if not stores or not self._founding or len(entries) + 1 < stores[-1][1].applied_index:
            return
        self._world.active = self._world.machine(stores[0][0])
        directory = self._world.directory / "rebuilt"
        directory.mkdir(exist_ok=True)
        rebuilt = Store.open(directory / "store.db", self._founding, build=NEXT)
        rebuilt.apply(FIRST_INDEX, 0, b"")
        for name, store in stores:
            for index in range(rebuilt.applied_index + 1, store.applied_index + 1):
                rebuilt.apply(index, *entries[index])
            if rebuilt.digest() != store.digest():
                text = f"{name} is not at {store.applied_index} what its log makes of an empty one"
                self._invariants.fail("rebuilt", text)
            for difference in self._differences(store):
                self._invariants.fail("rebuilt", f"{name}: {difference}")
        rebuilt.close()

    def _differences(self, store: Store) -> Iterator[str]:
        """Yield where a store is not what the reference says."""
        index, reference = store.applied_index, self._reference
        if index > reference.applied_index:
            return
        for client_id, client in reference.clients.items():
            cursors = client.topics_at(index)
            if store.subscriptions(client_id) != cursors:
                yield f"{client_id} has {store.subscriptions(client_id)}, not {cursors}"
            counters = {topic: each.counter.at(index) for topic, each in client.producers.items()}
            counters = {topic: counter for topic, counter in counters.items() if counter >= 0}
            if (found := store.counters(client_id, "", COUNT_MAX)) != counters:
                yield f"counters of {client_id} are {found}, not {counters}"
            if store.check_client(client_id, client.epoch.at(index)) is not None:
                yield f"the epoch of {client_id} is not {client.epoch.at(index)}"
            for topic, cursor in cursors.items():
                yield from self._unread(store, client_id, topic, cursor)
        ends = {row["topic"]: row["last_id"] for row in reference.listing_at("", index)}
        if store.topic_ends() != ends:
            yield f"topics end at {store.topic_ends()}, not {ends}"

    def _unread(self, store: Store, client_id: str, topic: str, cursor: int) -> Iterator[str]:
        """Read all that a subscriber has not acknowledged."""
        known, end = self._reference.topics[topic].publications, store.topic_ends()[topic]
        while cursor < end:
            found = store.read(client_id, topic, cursor, COUNT_MAX, BYTES_MAX)
            if not isinstance(found, Delivery) or not found.count:
                yield f"{topic} from {cursor + 1} on is not there: {found}"
                return
            last_id = cursor + found.count
            data = b"".join(known[each][1] for each in range(cursor + 1, last_id + 1))
            if found.first_id != cursor + 1 or found.data != data:
                yield f"{topic} from {cursor + 1} to {last_id} is not what was published"
                return
            cursor = last_id
