"""Bugs in what nodes answer, whom they make wait, and what they keep on their books.

What must not live here: what finds them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from chaos.workloads import payload
from cluster.raft.raft import Raft
from cluster.raft.transport import Guard, Window
from cluster.serve import frontend
from cluster.serve.broker import _OPERATIONS, Answer, Broker, Waiting
from cluster.serve.frontend import Frontend
from cluster.serve.relays import Relayed, Relays
from cluster.store import store as stores
from cluster.store.commands import Operation, Put, Subscribe, Unsubscribe
from cluster.store.publications import Publications, Row
from cluster.store.store import Delivery, Done, Outcome, Refused, Store
from cluster.store.topics import Subscription, Topic
from cluster.wire.messages import AppendEntriesResponse
from flotilla_client.protocol import GET, Reply, encode_reply, pack

_read: Final = Broker._read
_subscribe: Final = Store._subscribe
_answer: Final = Broker._answer
_put: Final = Store._put
_deliver: Final = Broker._deliver
_age: Final = Store._age
_ask_barrier: Final = Raft.ask_barrier
_applied: Final = Broker.applied
_get: Final = Broker._get
_cut: Final = Row.cut


@bug("a GET brings no more than it asked for", {"answered"})
def max_count_is_ignored(patches: Patches) -> None:
    """Deliver all there is."""

    def read(broker: Broker, waiting: Waiting) -> Any:
        request = waiting.request
        more = replace(request, body=request.body | {"max_count": 1 << 30})
        return _read(broker, replace(waiting, request=more))

    patches.attribute(Broker, "_read", read)


@bug("a GET brings all that it asked for and has room for", {"answered"})
def one_publication_less_is_delivered(patches: Patches) -> None:
    """Leave out the last of several publications."""

    def cut(row: Row, first_id: int, count_max: int, bytes_max: int) -> tuple[int, bytes, bytes]:
        return _cut(row, first_id, max(1, count_max - 1), bytes_max)

    patches.attribute(Row, "cut", cut)


@bug("a subscription begins behind the topic's last publication", {"answered", "gap", "lost"})
def a_subscription_starts_one_too_late(patches: Patches) -> None:
    """Say that a subscription begins one publication behind where it does."""

    def subscribe(store: Store, operation: Subscribe) -> Outcome:
        outcome = _subscribe(store, operation)
        if isinstance(outcome, Done) and not outcome.body["resumed"]:
            outcome.body["last_id"] += 1
        return outcome

    _handle(patches, "_subscribe", subscribe)


@bug("an UNSUB ends the subscription", {"answered", "subscription", "rebuilt"})
def unsubscribed_clients_go_on(patches: Patches) -> None:
    """Answer an UNSUB, and deliver as before."""

    def unsubscribe(store: Store, operation: Unsubscribe) -> Outcome:
        client = store._controlling(operation)
        if isinstance(client, Refused):
            return client
        return Done({"was_subscribed": operation.topic in store._topics.of(client.client_id)})

    _handle(patches, "_unsubscribe", unsubscribe)


@bug("a batch is stored whole", {"answered", "rebuilt", "lost", "gap", "inconsistent_id"})
def a_batch_is_torn(patches: Patches) -> None:
    """Store all of a batch but its last publication, under the counters of all."""

    def put(store: Store, operation: Put) -> Outcome:
        outcome = _put(store, operation)
        topic = store._topics.active.get(operation.topic)
        is_new = isinstance(outcome, Done) and not outcome.body["duplicate"]
        if topic is not None and is_new and len(operation.lengths) > 4:
            added: Any = store._publications._added[topic]
            last = int.from_bytes(operation.lengths[-4:], "little")
            added[1][-1] = operation.lengths[:-4]
            added[2][-1] = operation.data[: len(operation.data) - last]
            topic.last_id -= 1
        return outcome

    _handle(patches, "_put", put)


@bug("who asks for any topic is given the one that has waited longest", {"answered"})
def any_topic_is_the_newest(patches: Patches) -> None:
    """Deliver first what came last."""

    def age(store: Store, place: tuple[Topic, Subscription, int]) -> tuple[int, str]:
        entry, name = _age(store, place)
        return -entry, name

    patches.attribute(Store, "_age", age)


@bug("who waits for a publication is given it at once", {"waits", "answered"})
def parked_gets_are_not_woken(patches: Patches) -> None:
    """Answer parked GETs when their time is over."""
    patches.attribute(Broker, "_wake", lambda broker, topic: None)


@bug("a GET that finds nothing waits as long as it asked", {"answered"})
def nobody_is_made_to_wait(patches: Patches) -> None:
    """Answer at once that there is nothing."""

    def park(broker: Broker, waiting: Waiting) -> None:
        _deliver(broker, waiting, Delivery(waiting.request.topic, 0, 0, b"", b""))

    patches.attribute(Broker, "_park", park)


@bug("what an entry brought is no more under way", {"books", "limit"})
def room_is_not_given_back(patches: Patches) -> None:
    """Count the bytes of PUTs for ever."""

    def applied(broker: Broker, index: int, term: int, outcomes: list[Outcome]) -> None:
        put_bytes = broker._put_bytes
        _applied(broker, index, term, outcomes)
        broker._put_bytes = put_bytes

    patches.attribute(Broker, "applied", applied)


@bug("a relay ends with its reply", {"answered", "books", "limit"})
def relays_stay_when_they_are_answered(patches: Patches) -> None:
    """Keep a relay until its time is over, and answer it then once more."""
    patches.attribute(Relays, "finish", lambda relays, number: relays._under_way.get(number))


@bug("a follower knows nothing of what it has passed on", {"answered", "definite"})
def lost_relays_count_as_refused(patches: Patches) -> None:
    """Refuse for certain what a leader that is gone may have carried out."""

    def abandon(front: Frontend, leader: str) -> None:
        for relayed in front._relays.abandon(leader):
            _refuse_lost(front, relayed)

    def _refuse_lost(front: Frontend, relayed: Relayed) -> None:
        front._refuse(relayed.route, relayed.request_id, "electing", "the leader was lost")

    patches.attribute(Frontend, "abandon_relays", abandon)


@bug("a leader answers in its own term", {"term_order"})
def terms_go_back(patches: Patches) -> None:
    """Name in every third reply the term before the leader's own."""
    replies = count(1)

    def encode(reply: Reply) -> list[bytes]:
        is_old = reply.term > 1 and next(replies) % 3 == 0
        return encode_reply(replace(reply, term=reply.term - 1) if is_old else reply)

    patches.attribute(frontend, "encode_reply", encode)


@bug("nothing is given before it is put", {"future_read"})
def what_comes_next_is_given(patches: Patches) -> None:
    """Deliver a single publication as what its producer will put next."""

    def deliver(broker: Broker, waiting: Waiting, delivery: Delivery) -> None:
        if delivery.count == 1 and len(fields := delivery.data.split(b" ", 4)) == 5:
            producer, topic, counter, _, filler = (field.decode() for field in fields)
            text = payload.make(producer, topic, int(counter) + 1, filler)
            lengths, data = pack([text.encode()])
            delivery = replace(delivery, lengths=lengths, data=data)
        _deliver(broker, waiting, delivery)

    patches.attribute(Broker, "_deliver", deliver)


@bug("every request gets one reply", {"answered", "ended"})
def answers_go_out_twice(patches: Patches) -> None:
    """Answer every other GET twice."""

    def answer(broker: Broker, waiting: Waiting, *what: Any) -> None:
        _answer(broker, waiting, *what)
        if waiting.request.type == GET and len(broker._answers) % 2:
            last: Answer = broker._answers[-1]
            broker._answers.append(last)

    patches.attribute(Broker, "_answer", answer)


@bug("an entry holds what was asked for", {"asked", "answered", "cursor", "lost"})
def acknowledgments_are_made_up(patches: Patches) -> None:
    """Acknowledge one publication more than a GET says."""

    def get(broker: Broker, waiting: Waiting) -> Operation | None:
        operation = _get(broker, waiting)
        if operation is not None:
            for name, last_id in operation.cursors.items():  # type: ignore[union-attr]
                end = broker.store.topic_ends()[name]
                operation.cursors[name] = min(last_id + 1, end)  # type: ignore[union-attr]
        return operation

    patches.entry(_OPERATIONS, GET, get)


@bug("28: a read waits for answers to a question that was sent after it came", {"barrier"})
def reads_join_an_earlier_barrier(patches: Patches) -> None:
    """Let a read wait for the barrier before its own."""
    patches.attribute(Raft, "ask_barrier", lambda raft: _ask_barrier(raft) - 1)


@bug("18: an acknowledgment says no more than was shown", {"acknowledged", "commit", "prefix"})
def acknowledgments_are_not_clamped(patches: Patches) -> None:
    """Acknowledge all of the own log, whatever the message proved of it."""

    def next_index(guard: Guard, name: str, message: dict[str, Any]) -> AppendEntriesResponse:
        if not message["success"]:
            return _next_index(guard, name, message)
        core = guard._core
        return AppendEntriesResponse(core.term, core.log.last_index + 1, message["reset"], True)

    patches.attribute(Guard, "_next_index", next_index)


@bug("what is in flight to a follower is bounded", {"limit"})
def windows_have_no_end(patches: Patches) -> None:
    """Send a follower's whole backlog."""
    patches.attribute(Window, "is_full", False)


@bug("the rows' cache is bounded", {"limit", "books"})
def cached_rows_are_not_counted(patches: Patches) -> None:
    """Take no note of a row's bytes when it leaves the cache."""
    load = Publications._row

    def row(rows: Publications, key: int) -> Row:
        before = rows._cache_bytes
        found = load(rows, key)
        rows._cache_bytes = max(before, rows._cache_bytes)
        return found

    patches.attribute(Publications, "_row", row)


def _handle(patches: Patches, name: str, handler: Any) -> None:
    """Replace a handler of operations, which a store takes when it is made."""
    patches.attribute(stores.Store, name, handler)


_next_index: Final = Guard._next_index
