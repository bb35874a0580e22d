"""Claims about GETs of any topic: the index says what a look at all of a client's topics says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.serve.broker import TOLD_OF_A_TOPIC
from cluster.store import unread
from cluster.store.commands import (
    Advance,
    ChangeUser,
    DeleteTopic,
    DropClient,
    EndGroup,
    Hear,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Seek,
    SetTopic,
    Subscribe,
    SubscribePattern,
    Take,
    Unsubscribe,
    UnsubscribePattern,
)
from cluster.store.outcomes import Delivery, Looked, Refused, missed
from cluster.store.store import LAPSED, Limits, Store
from cluster.store.topics import Subscription, Topic
from cluster.store.unread import KEPT_MIN, Unread
from cluster.store.users import SUBSCRIBE, unauthorized
from cluster.wire.levels import BUILD
from flotilla_client.policies import parse_keep
from flotilla_client.properties import Properties
from flotilla_client.properties import encode as encode_properties
from flotilla_client.protocol import Enveloped, pack
from tests.unit.store_bench import Bench

TOPICS = [f"{kind}.{number}" for kind in "ab" for number in range(12)]
CLIENTS = ("c0", "c1", "c2")
USER = "shop"


def plain(
    store: Store, client_id: str, last_ids: Mapping[str, int], principal: str | None
) -> Delivery | Refused:
    """Answer a GET of any topic by a look at each of the client's topics, and its oldest first."""
    own = store._topics.of(client_id)
    placed = store.placed(client_id)
    hidden = store._hidden(principal, own)
    if principal is not None and own and len(hidden) == len(own):
        return unauthorized(principal, SUBSCRIBE, "any topic that it subscribes to")
    for name, last_id in last_ids.items():
        if name in hidden:
            continue
        if name not in own and (lacking := store.lacks(principal, SUBSCRIBE, name)):
            return lacking
        start = store._start(client_id, name, last_id, placed.get(name, 0))
        if isinstance(start, Refused):
            return start
    if (pattern := store.patterns.missed_by(client_id)) is not None:
        return missed(pattern.text, pattern.missed)
    waiting: list[tuple[Topic, Subscription, int]] = []
    for name, topic in own.items():
        if name in hidden:
            continue
        subscription = topic.subscribers[client_id]
        last_id = last_ids.get(name, subscription.cursor)
        if last_id < topic.last_id:
            waiting.append((topic, subscription, last_id))
    return in_turn(store, waiting)


def in_turn(store: Store, waiting: list[tuple[Topic, Subscription, int]]) -> Delivery | Refused:
    """Answer with the first of them that has something; else say what is gone of the first."""
    lapsed: Refused | None = None
    for topic, _, last_id in sorted(waiting, key=lambda each: (each[1].served, *store._age(each))):
        found = store._deliver(topic, last_id, 3, 100, True, {}, False)
        if isinstance(found, Delivery):
            return found
        assert isinstance(found, Refused)
        if found.code not in LAPSED or found.details["last_id"] < topic.last_id:
            return found
        lapsed = lapsed or found
    return lapsed or Delivery("", 0, 0, b"", b"")


def publication(rng: random.Random, is_delayed: bool) -> bytes:
    own = Properties(None, {}, rng.choice((0, 0, 0, 40)), rng.choice((5, 50)) if is_delayed else 0)
    envelope = encode_properties(own)
    return Enveloped(envelope + b"x") if envelope else b"x"


class Happenings:
    """Random operations on a store, and the counters that make its PUTs the next ones."""

    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench(path, Limits())
        self.bench.ok(Raise(BUILD.level_max))
        self.bench.apply(*(Register(client, True, None, "") for client in ("p", *CLIENTS)))
        who = USER, [">"], [">"], False, False, True
        self.bench.ok(ChangeUser("user-add", *who))
        self.counters: dict[tuple[str, bool], int] = {}

    def put(self, topic: str) -> Put:
        is_delayed = self.rng.random() < 0.1
        batch = [publication(self.rng, is_delayed) for _ in range(self.rng.randrange(1, 4))]
        has_expiry = any(type(each) is Enveloped for each in batch) and not is_delayed
        has_expiry = has_expiry or any(len(each) > 12 for each in batch)
        lane = topic, is_delayed
        counter = self.counters.get(lane, 0)
        self.counters[lane] = counter + len(batch)
        has_properties = any(type(each) is Enveloped for each in batch)
        said = None, has_properties, has_expiry, is_delayed
        return Put("p", None, topic, counter, *pack(batch), *said)

    def advance(self, client: str) -> Advance:
        store, cursors = self.bench.store, {}
        own = store._topics.of(client)
        for name in self.rng.sample(sorted(own), min(len(own), self.rng.randrange(1, 4))):
            cursors[name] = self.rng.randrange(own[name].last_id + 1)
        return Advance(client, None, cursors, None, store.placed(client))

    def operation(self) -> Operation:
        rng, topic, client = self.rng, self.rng.choice(TOPICS), self.rng.choice(CLIENTS)
        topics = self.bench.store._topics.active
        last_id = topics[topic].last_id if topic in topics else 0
        policy: dict[str, Any] = parse_keep(rng.choice(("unread", "3")))
        if rng.random() < 0.5:
            policy |= {"max_bytes": 40, "when_full": "drop-oldest"}
        choices: list[tuple[int, Any]] = [
            (30, lambda: self.put(topic)),
            (25, lambda: self.advance(client)),
            (
                8,
                lambda: Subscribe(client, None, topic, None, None, rng.choice(("new", "earliest"))),
            ),
            (3, lambda: Unsubscribe(client, None, topic, None)),
            (2, lambda: Seek(client, None, topic, None, rng.randrange(1, last_id + 2))),
            (2, lambda: Purge(topic, rng.randrange(last_id + 1), True)),
            (2, lambda: SetTopic(topic, policy, topic not in topics, True)),
            (1, lambda: DeleteTopic(topic, True, True)),
            (1, lambda: SubscribePattern(client, None, rng.choice(("a.*", "b.>")), None, "new", 0)),
            (1, lambda: UnsubscribePattern(client, None, rng.choice(("a.*", "b.>")), None)),
            (1, lambda: MakeGroup("p", None, topic, None, "g", None, None, None)),
            (1, lambda: Take("p", None, topic, "g", None, 2, 99, None, [], [], [])),
            (1, lambda: EndGroup("p", None, topic, None, "g")),
            (1, lambda: self.change()),
        ]
        weights = [weight for weight, _ in choices]
        return rng.choices([make for _, make in choices], weights)[0]()  # type: ignore[no-any-return]

    def change(self) -> ChangeUser:
        act, patterns = self.rng.choice(("user-allow", "user-deny")), ["a.1", "b.*", "a.*"]
        said = [self.rng.choice(patterns)], False, False, True
        return ChangeUser(act, USER, [], *said)

    def look(self) -> str:
        """Ask for any topic; return what it came to, which is what the plain look says as well."""
        store, rng = self.bench.store, self.rng
        client, principal = rng.choice(CLIENTS), rng.choice((None, USER, USER))
        cursors = store.subscriptions(client)
        last_ids = {}
        for name in rng.sample(sorted(cursors), rng.randrange(len(cursors) + 1)):
            last_ids[name] = max(0, cursors[name] - rng.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 1)))
        if rng.random() < 0.3:
            last_ids = {}
        placed = store.placed(client)
        found = store.read_any(client, last_ids, 3, 100, principal, placed)
        assert found == plain(store, client, last_ids, principal)
        assert not isinstance(found, Looked)
        if isinstance(found, Refused):
            if found.code in TOLD_OF_A_TOPIC and rng.random() < 0.8:
                store.note_turn(client, found.details["topic"])
            if "last_id" in found.details and rng.random() < 0.7:
                behind = {found.details["topic"]: found.details["last_id"]}
                self.bench.apply(Advance(client, None, behind, None, placed))
            return found.code
        if found.count and rng.random() < 0.8:
            store.note_turn(client, found.topic)
        return "delivery" if found.count else "nothing"


@pytest.mark.parametrize("seed", range(12))
def test_the_index_says_what_a_look_at_all_topics_says(tmp_path: Path, seed: int) -> None:
    history = Happenings(seed, tmp_path / "store.db")
    bench, rng, seen = history.bench, history.rng, set[str]()
    kept = set[str]()
    for _ in range(400):
        bench.now_ms += rng.choice((0, 1, 10))
        bench.apply(*(history.operation() for _ in range(rng.randrange(1, 4))))
        for _ in range(rng.randrange(4)):
            seen.add(history.look())
        kept |= bench.store._topics._unread.keys()
        chance = rng.random()
        if chance < 0.01:
            bench.reopen()
        elif chance < 0.015:
            bench.ok(DropClient(client := rng.choice(CLIENTS), True))
            bench.ok(Register(client, True, None, ""))
    assert len(kept) > 1
    assert "delivery" in seen
    assert seen & {"gap", "purged", "expired"}
    bench.store.close()


def _many(tmp_path: Path, count: int) -> tuple[Bench, list[str]]:
    bench = Bench(tmp_path / "store.db", Limits())
    bench.apply(Register("p", True, None, ""), Register("s", True, None, ""))
    names = [f"t{number:03}" for number in range(count)]
    bench.apply(*(Subscribe("s", None, name, None) for name in names))
    return bench, names


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names at which indexes look from now on."""
    names: list[str] = []
    look_at = Unread._look_at

    def counted(self: Unread, name: str, *arguments: Any) -> None:
        names.append(name)
        look_at(self, name, *arguments)

    monkeypatch.setattr(Unread, "_look_at", counted)
    return names


def test_an_idle_topic_is_looked_at_once(tmp_path: Path, looks: list[str]) -> None:
    bench, names = _many(tmp_path, 900)
    cursors = dict.fromkeys(names, 0)
    for _ in range(3):
        assert bench.store.read_any("s", cursors, 9, 9) == Delivery("", 0, 0, b"", b"")
    assert looks == names
    looks.clear()
    for counter in range(3):
        bench.put(counter, topic="t007")
        delivery = bench.store.read_any("s", {}, 9, 9)
        assert isinstance(delivery, Delivery)
        assert delivery.topic == "t007"
        bench.store.note_turn("s", "t007")
    bench.ok(Advance("s", None, {"t007": 3}))
    assert bench.store.read_any("s", {}, 9, 9) == Delivery("", 0, 0, b"", b"")
    assert set(looks) == {"t007"}
    assert len(looks) <= 7
    bench.store.close()


def test_who_has_read_all_is_stirred_once_however_much_is_put(
    tmp_path: Path, looks: list[str]
) -> None:
    bench, _ = _many(tmp_path, KEPT_MIN)
    bench.store.read_any("s", {}, 9, 9)
    topic = bench.store._topics.active["t003"]
    assert list(topic.watchers) == ["s"]
    for counter in range(5):
        bench.put(counter, topic="t003")
        assert not topic.watchers
    looks.clear()
    bench.store.read_any("s", {}, 9, 9)
    assert looks == ["t003"]
    bench.store.close()


def test_a_topic_that_is_sought_back_is_looked_at_again(tmp_path: Path) -> None:
    bench, names = _many(tmp_path, KEPT_MIN)
    bench.ok(Subscribe("p", None, names[3], None))  # who has not read it, so that it stays
    bench.put(0, topic=names[3])
    bench.ok(Advance("s", None, {names[3]: 1}))
    assert bench.store.read_any("s", {}, 9, 9) == Delivery("", 0, 0, b"", b"")
    bench.ok(Seek("s", None, names[3], None, 1, None))
    delivery = bench.store.read_any("s", {}, 9, 9)
    assert isinstance(delivery, Delivery)
    assert (delivery.topic, delivery.first_id) == (names[3], 1)
    bench.store.close()


def test_of_few_topics_nothing_is_kept(tmp_path: Path) -> None:
    bench, names = _many(tmp_path, KEPT_MIN - 1)
    bench.put(0, topic=names[3])
    delivery = bench.store.read_any("s", {}, 9, 9)
    assert isinstance(delivery, Delivery)
    assert delivery.topic == names[3]
    assert not bench.store._topics._unread
    assert not any(topic.watchers for topic in bench.store._topics.active.values())
    bench.store.close()


def test_what_is_kept_goes_on_with_fewer_topics(tmp_path: Path) -> None:
    bench, names = _many(tmp_path, KEPT_MIN)
    bench.store.read_any("s", {}, 9, 9)
    bench.apply(*(Unsubscribe("s", None, name, None) for name in names[1:]))
    for counter in range(2):
        bench.put(counter, topic=names[0])
        delivery = bench.store.read_any("s", {}, 9, 9)
        assert isinstance(delivery, Delivery)
        assert delivery.first_id == counter + 1
        bench.ok(Advance("s", None, {names[0]: counter + 1}))
        assert bench.store.read_any("s", {}, 9, 9) == Delivery("", 0, 0, b"", b"")
    bench.store.close()


def test_what_is_kept_goes_with_the_last_subscription(tmp_path: Path) -> None:
    bench, names = _many(tmp_path, KEPT_MIN)
    bench.store.read_any("s", {}, 9, 9)
    assert "s" in bench.store._topics._unread
    bench.apply(*(Unsubscribe("s", None, name, None) for name in names))
    assert not bench.store._topics._unread
    bench.store.close()


def test_topics_that_were_left_are_forgotten_also_where_nobody_asks_any_more(
    tmp_path: Path,
) -> None:
    """Who follows a pattern may have had millions of them since this node led."""
    bench, names = _many(tmp_path, KEPT_MIN)
    assert isinstance(bench.store.read_any("s", {}, 9, 9), Delivery)
    kept = bench.store._topics._unread["s"]
    for number in range(9):
        bench.apply(Subscribe("s", None, f"left-{number}", None))
        bench.put(1, topic=f"left-{number}")
        bench.apply(Unsubscribe("s", None, f"left-{number}", None))
    assert kept.stirred.keys() <= set(names)
    bench.apply(Subscribe("s", None, "left-1", None))
    bench.put(2, topic="left-1")
    found = bench.store.read_any("s", {}, 9, 9)
    assert isinstance(found, Delivery)
    assert found.topic == "left-1"
    bench.apply(Unsubscribe("s", None, "left-1", None))
    assert bench.store.read_any("s", {}, 9, 9) == Delivery("", 0, 0, b"", b"")
    bench.store.close()


def test_a_place_that_is_given_up_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "STALE_MIN", 4)
    bench, names = _many(tmp_path, KEPT_MIN)
    bench.ok(Raise(BUILD.level_max))
    bench.put(0, *[b"x"] * 30, topic=names[0])
    for cursor in range(1, 30):
        bench.ok(Hear([]))
        bench.ok(Seek("s", None, names[0], None, cursor))
        delivery = bench.store.read_any("s", {}, 1, 9)
        assert isinstance(delivery, Delivery)
        assert delivery.first_id == cursor
        bench.store.note_turn("s", names[0])
    assert len(bench.store._topics.unread("s")._queue) <= 2 + 4
    bench.store.close()


def test_places_behind_one_that_nobody_reads_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "STALE_MIN", 4)
    bench, names = _many(tmp_path, KEPT_MIN)
    bench.put(0, topic=names[0])  # the oldest: it stands first, and is not read
    for counter in range(30):
        bench.put(counter, topic=names[1])
    for cursor in range(1, 30):
        bench.ok(Advance("s", None, {names[1]: cursor}))
        delivery = bench.store.read_any("s", {}, 1, 9)
        assert isinstance(delivery, Delivery)
        assert delivery.topic == names[0]
        assert len(bench.store._topics.unread("s")._queue) <= 2 * 2 + 4
    bench.store.close()
