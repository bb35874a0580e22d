"""Each replica's state against two that are made anew of the log, and against the reference.

What lives here: an empty store that takes every entry once, without a restart, a copy or a cut; one
that is written, collected and opened again at any time; what their operations come to, and what is
compared with them. What must not: the entries' meaning (reference.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.checks.reference import Reference, ReferenceClient, Result, described
from chaos.simulation.world.builds import NEXT
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from cluster.log.entries import FIRST_INDEX
from cluster.store.groups import SharedGroup
from cluster.store.outcomes import Done, Looked, Outcome
from cluster.store.store import CorruptStore, Delivery, Store

BYTES_MAX: Final = 1 << 40  # of a delivery: no bound
COUNT_MAX: Final = 1 << 30
# What befalls the reopened store behind an entry: it is what a node's store meets by chance.
COMMIT_SHARE: Final = 0.1
COLLECT_SHARE: Final = 0.05
REOPEN_SHARE: Final = 0.02
OF_A_NODE: Final = "backlog_bytes"  # in a store's statistics: a node collects when it has time


class ReopenedStore:
    """A store that is written, collected and opened again at times of its own.

    `reopened_index`: where it was opened last. `fail(text)` hears of what is lost then.
    """

    def __init__(
        self, path: Path, founding: Mapping[str, str], rng: Random, fail: Callable[[str], None]
    ) -> None:
        self.reopened_index = 0
        self._path, self._founding, self._rng, self._fail = path, founding, rng, fail
        self.store = self._opened()

    def _opened(self) -> Store:
        return Store.open(self._path, self._founding, build=NEXT)

    def apply(self, index: int, term: int, payload: bytes) -> list[Outcome]:
        """Carry out an entry; then something may befall it."""
        outcomes = self.store.apply(index, term, payload)
        rng = self._rng
        if rng.random() < COLLECT_SHARE:
            self.store.collect_garbage(rng.randint(1, 3))
        if rng.random() < COMMIT_SHARE:
            self.store.commit()
        if rng.random() < REOPEN_SHARE:
            self.reopen()
        return outcomes

    def reopen(self) -> None:
        """Go on with what is on the disk, all of it."""
        self.store.commit()
        before, index = memory_of(self.store), self.store.applied_index
        self.store.close()
        self.store = self._opened()
        self.reopened_index, after = index, memory_of(self.store)
        for what, value in before.items():
            if value != after[what]:
                text = f"a store has {what} {value} at {index}"
                self._fail(f"{text}; opened again it has {after[what]}")


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
        """Compare the stores of these nodes with two that are made of the same entries."""
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
        rng = self._world.stream("reopened")
        reopened = ReopenedStore(directory / "reopened.db", self._founding, rng, self._fail)
        for store in (rebuilt, reopened.store):
            store.apply(FIRST_INDEX, 0, b"")
        for name, store in stores:
            for index in range(rebuilt.applied_index + 1, store.applied_index + 1):
                outcomes = rebuilt.apply(index, *entries[index])
                self._same(index, outcomes, reopened.apply(index, *entries[index]))
                if reopened.reopened_index == index and rebuilt.digest() != reopened.store.digest():
                    self._fail(f"a store that was opened again at {index} has another state")
            reopened.reopen()
            self._compare(name, store, rebuilt, reopened.store)
        reopened.store.close()
        rebuilt.close()

    def _same(self, index: int, outcomes: Sequence[Outcome], others: Sequence[Outcome]) -> None:
        """Compare what an entry came to in both stores, and in the reference."""
        if outcomes != others:
            text = f"entry {index} comes to {outcomes}"
            self._fail(f"{text}, and to {others} in a store that was opened again")
        expected = self._reference.results.get(index)
        for outcome, result in zip(outcomes, expected or (), strict=False):
            if result is not None and not is_so(outcome, result):
                self._fail(f"entry {index} comes to {outcome}, not to {result}")

    def _compare(self, name: str, store: Store, rebuilt: Store, reopened: Store) -> None:
        digest = store.digest()
        if rebuilt.digest() != digest:
            self._fail(f"{name} is not at {store.applied_index} what its log makes of an empty one")
        if reopened.digest() != digest:
            self._fail(f"{name} is not at {store.applied_index} what a store is that was reopened")
        own, other = memory_of(store), memory_of(reopened)
        for what, value in own.items():
            if value != other[what]:
                self._fail(f"{name} has {what} {value}; opened again it would have {other[what]}")
        for difference in Differences(self._reference).of(store):
            self._fail(f"{name}: {difference}")

    def _fail(self, text: str) -> None:
        self._invariants.fail("rebuilt", text)


class Differences:
    """Where a store is not what the reference says."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def of(self, store: Store) -> Iterator[str]:
        """Yield where the store differs."""
        index, reference = store.applied_index, self._reference
        if index > reference.applied_index:
            return
        acts = [(row["index"], row["act"]) for row in store.acts.page(0, COUNT_MAX)[0]]
        if acts != (due := [act for act in reference.acts if act[0] <= index]):
            yield f"its history has {acts}, not {due}"
        for client_id, client in reference.clients.items():
            if client.epoch.at(index):
                yield from self._differences_of(store, client_id, client)
            elif store.check_client(client_id, None) is None:
                yield f"{client_id} is there, and was forgotten"
        forgotten = reference.forgotten.at(index)
        if store.idle.forgotten != forgotten:
            yield f"{store.idle.forgotten} clients were forgotten, not {forgotten}"
        if index == reference.applied_index and store.idle.log_ms != reference.log_ms:
            yield f"the log's time is {store.idle.log_ms} ms, not {reference.log_ms}"
        ends = {row["topic"]: row["last_id"] for row in reference.listing_at("", index)}
        if store.topic_ends() != ends:
            yield f"topics end at {store.topic_ends()}, not {ends}"
        yield from self._differences_of_topics(store)
        users = described(reference.users.at(index))
        if (found := _found_users(store)) != users:
            yield f"users are {found}, not {users}"

    def _differences_of_topics(self, store: Store) -> Iterator[str]:
        """Yield the same of where topics begin, and of what waits for them."""
        index, reference = store.applied_index, self._reference
        for topic in store.topics_page("", COUNT_MAX):
            first_id = reference.first_id_at(topic.name, index)
            if topic.floor_id + 1 != first_id:
                yield f"{topic.name} begins with {topic.floor_id + 1}, not with {first_id}"
            if topic.is_compacted:
                yield from self._stays(store, topic.name, topic.floor_id)
                held = reference.topics[topic.name].compaction.held.at(index)
                if store.compaction.held_bytes(topic) != held:
                    found = store.compaction.held_bytes(topic)
                    yield f"{topic.name} holds {found} bytes, not {held}"
            waiting = reference.topics[topic.name].delayed.at(index)
            if store.delayed.count_of(topic) != waiting:
                yield f"{store.delayed.count_of(topic)} wait for {topic.name}, not {waiting}"

    def _differences_of(
        self, store: Store, client_id: str, client: ReferenceClient
    ) -> Iterator[str]:
        """Yield the same of one client."""
        index = store.applied_index
        cursors = client.topics_at(index)
        if store.subscriptions(client_id) != cursors:
            yield f"{client_id} has {store.subscriptions(client_id)}, not {cursors}"
        row = store._clients.get(client_id)
        if row is None:
            yield f"{client_id} is not there"
            return
        said = {
            "epoch": (row.epoch, client.epoch.at(index)),
            "sequence": (row.sequence, client.sequence.at(index)),
            "owner": (row.owner, client.owner.at(index)),
        }
        if index == self._reference.applied_index:
            said["heard"] = row.heard, client.heard
            said["producers"] = row.producers, len(client.producers)
            said["names' bytes"] = row.names_bytes, client.names_bytes
        for what, (found, expected) in said.items():
            if found != expected:
                yield f"{client_id} has {what} {found}, not {expected}"
        counters = {topic: each.counter.at(index) for topic, each in client.producers.items()}
        counters = {topic: counter for topic, counter in counters.items() if counter >= 0}
        if (kept := store.counters(client_id, "", COUNT_MAX)) != counters:
            yield f"counters of {client_id} are {kept}, not {counters}"
        for topic, cursor in cursors.items():
            yield from self._unread(store, client_id, topic, cursor)

    def _stays(self, store: Store, topic: str, last_id: int) -> Iterator[str]:
        """Read all of a topic that is compacted from the floor on: what is gone, and what is not.

        What has expired is passed: when it does is the log's time of the last entry.
        """
        end, index, reference = store.topic_ends()[topic], store.applied_index, self._reference
        while last_id < end:
            try:
                found = store.read_from(topic, last_id + 1, COUNT_MAX, BYTES_MAX)
            except CorruptStore as error:
                yield f"{topic} from {last_id + 1} on: {error}"
                return
            runs: list[tuple[range, bool]] = []  # ids, and whether they are compacted away
            if isinstance(found, Looked):
                runs.append((range(found.first_id, found.last_id + 1), False))
                told = None
            else:
                told = found.passed if isinstance(found, Delivery) else found
            if told is not None:
                ids = range(told.details["first_id"], told.details["last_id"] + 1)
                runs.append((ids, told.code == "compacted"))
            if isinstance(found, Delivery):
                runs.append((range(found.first_id, found.first_id + found.count), False))
            for ids, is_gone in runs:
                said = [reference.is_compacted_at(topic, each, index) for each in ids]
                if not said or ids[0] != last_id + 1 or said != [is_gone] * len(ids):
                    yield f"{topic} from {last_id + 1} on: {found}, compacted are {said}"
                    return
                last_id = ids[-1]

    def _unread(self, store: Store, client_id: str, topic: str, cursor: int) -> Iterator[str]:
        """Read all that a subscriber has not acknowledged and that is there for him."""
        known, end = self._reference.topics[topic].publications, store.topic_ends()[topic]
        cursor = max(cursor, self._reference.gone_at(topic, store.applied_index))
        placed = store.placed(client_id).get(topic, 0)
        index = store.applied_index
        while cursor < end:
            is_over = self._reference.is_over_at(topic, cursor + 1, index)
            if is_over or self._reference.is_compacted_at(topic, cursor + 1, index):
                cursor += 1
                continue
            found = store.read(client_id, topic, cursor, COUNT_MAX, BYTES_MAX, placed)
            if not isinstance(found, Delivery) or not found.count:
                yield f"{topic} from {cursor + 1} on is not there: {found}"
                return
            last_id = cursor + found.count
            data = b"".join(known[each][1] for each in range(cursor + 1, last_id + 1))
            if found.first_id != cursor + 1 or found.data != data:
                yield f"{topic} from {cursor + 1} to {last_id} is not what was published"
                return
            cursor = last_id


def memory_of(store: Store) -> dict[str, Any]:
    """Return what a store has in memory of its state, as far as it does not depend on the node.

    All of it is read anew when a process starts: so one that has gone on for long has the same.
    """
    counts = {name: n for name, n in store.statistics().items() if name != OF_A_NODE}
    topics = {
        topic.name: (
            topic.last_id,
            topic.floor_id,
            topic.added_bytes,
            dict(sorted(topic.cursors.items())),
            {
                client_id: (each.cursor, each.placed, each.is_brought)
                for client_id, each in sorted(topic.subscribers.items())
            },
            None if topic.retention is None else topic.retention.text(),
        )
        for topic in store.topics_page("", COUNT_MAX)
    }
    held = {owner: dict(+topics) for owner, topics in store.holdings._topics.items()}
    return {
        "counts": counts,
        "level": store.level,
        "members": dict(store.members),
        "topics": topics,
        "topics' names": store._topics.names_count,
        "clients": store.clients_page("", COUNT_MAX),
        "epoch of clients that are gone": store._clients.gone_epoch,
        "time": (*store.idle.row(), store.timestamp_ms),
        "audit": store.audit.row(),
        "users": _found_users(store),
        "owners' clients": dict(+store.holdings.clients),
        "owners' topics": held,
        "groups": {key: _of_group(group) for key, group in sorted(store.groups._groups.items())},
        "open ones of all groups": store.groups._open_count,
        "patterns": store.patterns.page("", "", COUNT_MAX),
        "how many patterns": store.patterns.count,
        "whose patterns names are of": {
            name: [(client_id, [each.text for each in found]) for client_id, found in of_name]
            for name in sorted(store.topic_ends())
            for of_name in [store.patterns.of_topic(name)]
        },
        "what waits": (
            *(store.delayed.count, store.delayed.size_bytes, store.delayed.due_ms),
            dict(store.delayed.bytes_of),
            sorted(store.delayed._lanes.items(), key=lambda pair: pair[0]),
            sorted(store.delayed._dropped),
        ),
        "what is compacted": (
            sorted(store._latest.topics.items()),
            store._latest.size_bytes,
            store.compaction._due(),
        ),
        "acts": (store.acts.last_number, store.acts._count, store.acts._size),
    }


def _of_group(group: SharedGroup) -> tuple[Any, ...]:
    """Return what a group has in memory, but for what depends on when its time was looked at."""
    order = group.order
    behind = None if order is None else [id_ for id_ in sorted(group.open) if order.is_behind(id_)]
    settings = group.lease_ms, group.max_attempts, group.dead_letter
    place = group.head, group.cursor, group.token, group.leased
    return *settings, *place, sorted(group.open.items()), sorted(group.workers), behind


def is_so(outcome: Outcome, result: Result) -> bool:
    """Return whether an operation came to what the reference says; texts are free."""
    code, said = result
    if isinstance(outcome, Done):
        return not code and _has(outcome.body, said)
    return outcome.code == code and _has(outcome.details, said)


def _has(body: Mapping[str, Any], said: Mapping[str, Any]) -> bool:
    return all(body.get(name) == value for name, value in said.items())


def _found_users(store: Store) -> list[Any]:
    rows = store.users.page("", COUNT_MAX)
    return [{**row, **{name: sorted(row[name]) for name in _LISTS}} for row in rows]


_LISTS: Final = ("publish", "subscribe", "deny_publish", "deny_subscribe")
