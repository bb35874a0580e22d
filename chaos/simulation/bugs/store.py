"""Bugs of the state machine: dedupe, fencing, sequences, cursors, garbage, ids, determinism.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaos.simulation.bugs.registry import SEEDS_RARE_MAX, Patches, bug
from chaos.simulation.world.builds import NEXT
from cluster.serve.broker import _OPERATIONS, Broker, Route, Waiting
from cluster.store import commands
from cluster.store.clients import Client, Clients, Producer
from cluster.store.commands import Advance, Operation, Put, Subscribe, Unsubscribe
from cluster.store.outcomes import Done, Outcome, Refused
from cluster.store.publications import Publications
from cluster.store.store import Delivery, Store
from cluster.store.topics import Topic, Topics
from flotilla_client.protocol import GET, Request

_request: Final = Broker.request
_serve_get: Final = Broker._serve_get
_apply: Final = Store.apply
_controlling: Final = Store._controlling
_put_again: Final = Store._put_again
_flush_clients: Final = Clients.flush
_inactive: Final = Topics.inactive
_seal: Final = Publications.seal
_LAME: Final = "a"  # the node that does it differently


def _stored_again(store: Store, operation: Put, count: int) -> Done:
    topic = store._topics.active.get(operation.topic)
    blobs = operation.lengths, operation.data
    first_id = 0 if topic is None else store._publications.add(topic, count, *blobs)
    stored = first_id > 0
    return Done({"id": first_id, "count": count, "duplicate": False, "stored": stored})


@bug("a PUT is stored once, however often it is sent", {"answered", "duplicate_stored", "rebuilt"})
def repeated_puts_are_stored_again(patches: Patches) -> None:
    """Store a PUT whose counter was taken before."""

    def put_again(store: Store, operation: Put, producer: Producer, count: int) -> Outcome:
        answer = _put_again(store, operation, producer, count)
        return answer if isinstance(answer, Refused) else _stored_again(store, operation, count)

    patches.attribute(Store, "_put_again", put_again)


@bug("counters have no holes", {"answered", "inconsistent_id", "lost", "reordered"})
def counter_gaps_are_accepted(patches: Patches) -> None:
    """Store a PUT although publications before it have not come."""

    def put_again(store: Store, operation: Put, producer: Producer, count: int) -> Outcome:
        if operation.counter > producer.counter:
            producer.counter = operation.counter - 1
            return store._put(operation)
        return _put_again(store, operation, producer, count)

    patches.attribute(Store, "_put_again", put_again)


@bug("counters outlive a restart", {"answered", "digest", "duplicate_stored", "ended", "rebuilt"})
def producers_live_in_memory(patches: Patches) -> None:
    """Never write down which counters a producer has used."""

    def flush(clients: Clients) -> None:
        clients._dirty_producers.clear()
        _flush_clients(clients)

    patches.attribute(Clients, "flush", flush)


@bug("an older process of a client is fenced", {"answered", "fenced"})
def epochs_are_not_compared(patches: Patches) -> None:
    """Treat every request as one without an epoch."""

    def request(
        broker: Broker, route: Route, request: Request, now_ms: float, principal: str | None = None
    ) -> Waiting | None:
        request.epoch = None
        return _request(broker, route, request, now_ms, principal)

    patches.attribute(Broker, "request", request)


# It is carried out in one seed of ten, and contradicted by a later answer in far fewer.
@bug(
    "a late control request is refused",
    {"answered", "lost", "subscription", "unexpected"},
    seeds_max=SEEDS_RARE_MAX,
)
def sequences_are_not_compared(patches: Patches) -> None:
    """Carry out a control request however late it comes."""

    def controlling(store: Store, operation: Subscribe | Unsubscribe) -> Client | Refused:
        client = store._clients.get(operation.client_id)
        if client is not None and operation.sequence is not None:
            operation.sequence = max(operation.sequence, client.sequence)
        return _controlling(store, operation)

    patches.attribute(Store, "_controlling", controlling)


@bug("nothing is there only for who has looked", {"answered", "stale_read"})
def nothing_is_said_without_a_look(patches: Patches) -> None:
    """Say that nothing is behind a cursor when there is no room for what may be there."""

    def serve_get(broker: Broker, waiting: Waiting, now_ms: float) -> None:
        if waiting.carried_out and not broker._has_room(waiting.route):
            broker._deliver(waiting, Delivery(waiting.request.topic, 0, 0, b"", b""))
            return
        _serve_get(broker, waiting, now_ms)

    patches.attribute(Broker, "_serve_get", serve_get)


@bug("a cursor never moves back", {"answered", "cursor", "ended"})
def cursors_move_back(patches: Patches) -> None:
    """Set a cursor to what a GET says, even if it is lower."""

    def get(broker: Broker, request: Request) -> Operation | None:
        last_id = request.body.get("last_id")
        claims = request.body["last_ids"] if not request.topic else {request.topic: last_id or 0}
        return Advance(request.client_id, request.epoch, claims)

    def advance(store: Store, operation: Advance) -> Outcome:
        for name, cursor in operation.cursors.items():
            found = store._subscription(operation.client_id, name)
            if isinstance(found, Refused):
                return found
            topic, subscription = found
            topic._depart(subscription.cursor)
            subscription.cursor = cursor
            topic._enter(cursor)
            topic.find_floor()
            store._topics._dirty_cursors[topic.number, subscription.client] = cursor
        return Done({})

    patches.entry(_OPERATIONS, GET, get)
    patches.attribute(Store, "_advance", advance)


@bug("what a subscriber still wants is kept", {"answered", "ended", "gap", "lost", "unexpected"})
def floor_is_the_fastest_cursor(patches: Patches) -> None:
    """Collect what any subscriber of a topic has read."""

    def find_floor(topic: Topic) -> None:
        cursors = [subscription.cursor for subscription in topic.subscribers.values()]
        topic.floor_id = max(cursors, default=topic.last_id)

    patches.attribute(Topic, "find_floor", find_floor)


@bug(
    "ids never restart",
    {"answered", "cursor", "ended", "gap", "inconsistent_id", "reordered", "stale_read"},
)
def ids_restart_with_the_topic(patches: Patches) -> None:
    """Begin at 1 again when a topic without subscribers gets one."""

    def inactive(topics: Topics, name: str) -> Topic | None:
        topic = _inactive(topics, name)
        if topic is not None:
            topic.last_id = 0
        return topic

    patches.attribute(Topics, "inactive", inactive)


@bug(
    "a node whose state differs from the majority's stops",
    {"ended"},
)
def one_node_counts_a_topic_s_bytes_wrong(patches: Patches) -> None:
    """Count a publication too long on one node, which no operation and no reader meets."""

    def seal(publications: Publications, entry: int, timestamp_ms: int, log_ms: int) -> list[Topic]:
        topics = _seal(publications, entry, timestamp_ms, log_ms)
        if publications._database.path.parts[-3] == _LAME:
            for topic in topics:
                topic.added_bytes += 1
                publications.stored_bytes += 1
        return topics

    patches.attribute(Publications, "seal", seal)


@bug("apply does the same on every node", {"answered", "digest", "inconsistent_id", "rebuilt"})
def one_node_applies_backwards(patches: Patches) -> None:
    """Carry out an entry's operations in the opposite order on one node."""

    def apply(
        store: Store,
        index: int,
        term: int,
        payload: bytes,
        made_of: tuple[commands.Stamp, Sequence[Operation]] | None = None,
    ) -> list[Outcome]:
        if not payload or store._database.path.parts[-3] != _LAME:
            return _apply(store, index, term, payload, made_of)
        stamp, operations = commands.decode(payload, NEXT.level_max)
        turned = commands.encode(stamp.ms, operations[::-1], stamp.wall_ms)
        return _apply(store, index, term, turned)[::-1]

    patches.attribute(Store, "apply", apply)
