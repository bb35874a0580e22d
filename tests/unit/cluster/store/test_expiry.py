"""Claims about what expires: who is told what, what is kept, and that it is so on every node."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.checks.reference import Reference
from cluster.store import expiry, groups, topics
from cluster.store.commands import (
    Advance,
    DamagedEntry,
    Hear,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Seek,
    SeekGroup,
    SetTopic,
    Stamp,
    Subscribe,
    Take,
    Unsubscribe,
    decode,
    encode,
    level_of,
)
from cluster.store.expiry import NEVER, Expiry, over_ms
from cluster.store.groups import GroupLimits
from cluster.store.outcomes import Delivery, Looked, Refused
from cluster.store.store import CorruptStore, Limits, Store
from cluster.wire.levels import LEVEL_OF_EXPIRY
from flotilla_client.policies import parse_keep
from flotilla_client.properties import Properties, envelope_bytes
from flotilla_client.properties import decode as decode_properties
from flotilla_client.properties import encode as encode_properties
from flotilla_client.protocol import Enveloped, pack, unpack
from tests.seeds import seeds
from tests.unit.model_store import MEMBERS, answer_of
from tests.unit.store_bench import Bench

LIMITS = Limits()


def expiring(text: bytes, ms: int, key: str | None = None) -> bytes:
    envelope = encode_properties(Properties(key, {}, ms))
    return Enveloped(envelope + text) if envelope else text


def putting(counter: int, *publications: bytes, topic: str = "t") -> Put:
    lengths, data = pack(publications)
    has_properties = any(type(each) is Enveloped for each in publications)
    has_expiry = any(
        type(each) is Enveloped and decode_properties(each)[0].expires_ms for each in publications
    )
    return Put("p", None, topic, counter, lengths, data, None, has_properties, has_expiry)


class ExpiryBench(Bench):
    """A store at the level of expiries with p, who publishes, and s, who subscribes to t."""

    now_ms = 0
    counter = 0

    @classmethod
    def at_level(cls, path: Path) -> ExpiryBench:
        bench = cls(path, LIMITS)
        bench.ok(Raise(LEVEL_OF_EXPIRY))
        for client in ("p", "s"):
            bench.ok(Register(client, True, None, ""))
        bench.ok(Subscribe("s", None, "t", None))
        return bench

    def publish(self, *publications: bytes) -> int:
        self.counter += len(publications)
        first = self.counter - len(publications) + 1
        body: dict[str, Any] = self.ok(putting(first, *publications))
        return int(body["id"])

    def passing(self, ms: int) -> None:
        self.now_ms += ms
        self.apply(Hear([]))

    def read(self, last_id: int | None = None, knows_expiry: bool = True) -> Any:
        """Return what s is given: [ids], or (code, first id, last id) of what it is told.

        [told, *ids]: both at once.
        """
        got = self.store.read("s", "t", last_id, 100, 1_000_000, 0, knows_expiry)
        if isinstance(got, Refused):
            return _told(got)
        passed = [] if got.passed is None else [_told(got.passed)]
        return [*passed, *range(got.first_id, got.first_id + got.count)]

    @property
    def floor(self) -> int:
        row = self.store.topic_row("t")
        assert row is not None
        return int(row["first_id"]) - 1


def _told(gone: Refused) -> tuple[str, Any, Any]:
    return gone.code, gone.details.get("first_id"), gone.details.get("last_id")


@pytest.fixture
def bench(tmp_path: Path) -> ExpiryBench:
    return ExpiryBench.at_level(tmp_path / "store.db")


def test_an_answer_ends_before_what_has_expired_and_who_goes_on_is_told(
    bench: ExpiryBench,
) -> None:
    bench.publish(b"1", expiring(b"2", 100), expiring(b"3", 50), b"4")
    assert bench.read() == [1, 2, 3, 4]
    bench.passing(99)
    assert bench.read() == [1, 2]
    assert bench.read(2) == [("expired", 3, 3), 4]
    bench.passing(1)
    assert bench.read() == [1]
    assert bench.read(1) == [("expired", 2, 3), 4]
    assert bench.read(1, knows_expiry=False) == ("gap", 2, 3)
    assert bench.read(3) == [4]


def test_of_topics_that_have_all_expired_the_one_that_has_waited_longest_is_told_of(
    bench: ExpiryBench,
) -> None:
    bench.ok(Subscribe("s", None, "u", None))
    bench.publish(expiring(b"1", 100))
    bench.ok(putting(1, expiring(b"2", 100), topic="u"))
    bench.passing(100)
    for first in ("t", "u", "t"):
        told = bench.store.read_any("s", {}, 9, 1_000)
        assert isinstance(told, Refused)
        assert (told.code, told.details["topic"]) == ("expired", first)
        bench.store.note_turn("s", first)  # then it is the other one's


def test_what_was_found_to_have_expired_counts_only_for_who_has_all_below_it(
    bench: ExpiryBench,
) -> None:
    """A reader that goes back while it is looked at is given what stands below."""
    bench.publish(b"1", expiring(b"2", 50), expiring(b"3", 50), b"4")
    bench.passing(60)
    looked = {"t": Looked("t", 2, 3)}
    given = {
        last_id: bench.store.read("s", "t", last_id, 1, 1_000, looked=looked) for last_id in (0, 1)
    }
    first_ids = {key: found.first_id for key, found in given.items() if isinstance(found, Delivery)}
    assert first_ids == {0: 1, 1: 4}


def test_the_oldest_goes_when_its_time_is_over_whoever_has_not_read_it(bench: ExpiryBench) -> None:
    bench.publish(expiring(b"1", 100), expiring(b"2", 50))
    bench.publish(expiring(b"3", 100_000))
    bench.publish(b"4")
    bench.passing(99)
    assert (bench.floor, bench.read()) == (0, [1])
    bench.passing(1)
    told = ("expired", 1, 2)
    assert (bench.floor, bench.read()) == (2, [told, 3, 4])
    bench.store.collect_garbage(100)
    bench.restart()
    assert (bench.floor, bench.read(), bench.read(2)) == (2, [told, 3, 4], [3, 4])
    bench.passing(100_000)
    assert (bench.floor, bench.read(2)) == (3, [("expired", 3, 3), 4])
    assert bench.read() == [("expired", 1, 3), 4]
    assert bench.store.has_ages is False


def test_what_was_there_before_the_first_that_expires_stays(bench: ExpiryBench) -> None:
    bench.publish(b"1")
    bench.publish(b"2", b"3")
    bench.publish(expiring(b"4", 100))
    bench.passing(1_000)
    assert (bench.floor, bench.read(), bench.read(3)) == (0, [1, 2, 3], ("expired", 4, 4))


def test_when_its_publications_are_collected_a_stamp_goes_with_them(bench: ExpiryBench) -> None:
    for _ in range(5):
        bench.publish(expiring(b"x", 100))
    assert bench.store._database.query("SELECT count(*) FROM stamps") == [(5,)]
    bench.passing(100)
    while bench.store.collect_garbage(2):
        pass
    assert bench.store._database.query("SELECT count(*) FROM stamps") == [(0,)]


def test_a_policy_keeps_nothing_that_has_expired(bench: ExpiryBench) -> None:
    bench.ok(SetTopic("t", parse_keep("forever"), True, False))
    bench.publish(expiring(b"1", 100))
    bench.publish(b"2")
    bench.ok(Advance("s", None, {"t": 2}))
    assert bench.floor == 0
    bench.passing(100)
    assert bench.floor == 1
    assert bench.store.read_from("t", 2, 9, 99).first_id == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_topic_that_died_and_lives_again_forgets_what_has_expired_as_any_other(
    bench: ExpiryBench, is_reopened: bool
) -> None:
    bench.publish(expiring(b"1", 10_000))
    bench.ok(Unsubscribe("s", None, "t", None))
    bench.store.collect_garbage(100)
    bench.ok(Subscribe("s", None, "t", None))
    bench.publish(expiring(b"2", 60_000))
    if is_reopened:
        bench.restart()
    bench.passing(10_000)
    assert (bench.floor, bench.read()) == (1, [2])
    bench.passing(50_000)
    assert (bench.floor, bench.read()) == (2, ("expired", 2, 2))
    assert bench.store.has_ages is False


def test_a_topic_that_lives_again_may_be_due_when_the_one_before_it_was(bench: ExpiryBench) -> None:
    bench.publish(expiring(b"1", 10_000))
    bench.ok(Unsubscribe("s", None, "t", None))
    bench.store.collect_garbage(100)
    bench.passing(1_000)
    bench.ok(Subscribe("s", None, "t", None))
    bench.publish(expiring(b"2", 9_000))
    bench.publish(expiring(b"3", 90_000))
    bench.passing(9_000)
    assert (bench.floor, bench.read(2)) == (2, [3])


def test_times_of_topics_that_have_died_need_no_memory(
    bench: ExpiryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "STALE_TIMES_MIN", 2)
    for ms in range(10_000, 9_980, -1):
        bench.publish(expiring(b"x", ms))
        bench.ok(Unsubscribe("s", None, "t", None))
        bench.ok(Subscribe("s", None, "t", None))
    assert len(bench.store._topics._due) <= 5
    bench.publish(expiring(b"x", 100))
    bench.passing(100)
    assert bench.floor == 21


def test_who_asks_behind_what_others_have_acknowledged_is_told_so(bench: ExpiryBench) -> None:
    bench.publish(b"1", expiring(b"2", 10))
    bench.ok(Advance("s", None, {"t": 2}))
    assert bench.read(0)[0] == "already_acknowledged"


def test_a_stretch_is_over_with_its_last_and_older_ones_are_joined_in_pairs() -> None:
    of_topic = Expiry()
    for id_ in range(1, expiry.STRETCHES_MAX + 2):
        of_topic.added(id_, 1_000 - id_)
    assert len(of_topic.stretches) == expiry.STRETCHES_MAX + 1 - expiry.STRETCHES_MAX // 4
    assert of_topic.stretches[0] == [2, 999]
    assert not of_topic.pass_to(998)
    assert of_topic.pass_to(999)
    assert of_topic.expired_id == expiry.STRETCHES_MAX + 1
    assert over_ms(5, [1, 0]) == NEVER
    assert over_ms(5, [1, 7]) == 12
    assert Expiry.of(of_topic.text()).expired_id == of_topic.expired_id
    with pytest.raises(ValueError, match="version 2"):
        Expiry.of("[2,0,[]]")


def test_what_expires_stands_in_entries_of_its_level_alone() -> None:
    payload = encode(1, [putting(1, expiring(b"x", 5))])
    assert level_of(payload) == LEVEL_OF_EXPIRY
    assert decode(payload)[1][0].has_expiry  # type: ignore[union-attr]
    with pytest.raises(DamagedEntry):
        decode(payload, LEVEL_OF_EXPIRY - 1)


def test_a_row_whose_stamp_is_damaged_is_not_read(bench: ExpiryBench) -> None:
    bench.publish(expiring(b"x", 1_000))
    bench.restart()
    database = bench.store._database
    database.write("UPDATE stamps SET log_ms = log_ms + 1", [()])
    with pytest.raises(CorruptStore):
        bench.read()


def test_a_group_buries_what_has_expired_or_lets_it_go(bench: ExpiryBench) -> None:
    bench.ok(Subscribe("s", None, "dead", None))
    for name, dead in (("g", ("dead", 3)), ("h", ("", 0))):
        bench.ok(MakeGroup("s", None, "t", None, name, 1_000, dead[1], dead[0]))
    bench.publish(expiring(b"1", 100, "k"), b"2", expiring(b"3", 100))
    bench.ok(Advance("s", None, {"t": 3}))
    bench.passing(100)
    takes = [
        bench.ok(Take("s", None, "t", name, None, 9, 1_000, None, [], [], [])) for name in "gh"
    ]
    assert [(each["given"], each["dead"]) for each in takes] == [([[2, 2, 1]], 1), ([[2, 2, 1]], 0)]
    takes = [
        bench.ok(Take("s", None, "t", name, None, 9, 1_000, None, [[each["token"], 2, 2]], [], []))
        for name, each in zip("gh", takes, strict=True)
    ]
    assert [(each["given"], each["dead"]) for each in takes] == [([], 1), ([], 0)]
    letters = bench.store.read("s", "dead", None, 9, 1_000)
    assert isinstance(letters, Delivery)
    first, second = unpack(letters.lengths, letters.data)
    own, end = decode_properties(first)
    assert (own.key, own.expires_ms, first[end:]) == ("k", 0, b"1")
    assert own.headers["dead-letter-reason"] == "expired"
    assert second[envelope_bytes(second) :] == b"3"
    assert bench.floor == 3


def test_a_group_in_which_nobody_works_passes_what_has_expired(bench: ExpiryBench) -> None:
    bench.ok(MakeGroup("s", None, "t", None, "g", 1_000, 0, ""))
    bench.publish(expiring(b"1", 100))
    bench.publish(b"2")
    bench.ok(Advance("s", None, {"t": 2}))
    bench.passing(100)
    [row] = bench.store.groups.page("", "", 9)
    assert (row["cursor"], row["backlog"], bench.floor) == (1, 1, 1)


def test_what_expires_before_a_group_looks_goes_where_its_topic_says(bench: ExpiryBench) -> None:
    bench.ok(Subscribe("s", None, "dead", None))
    bench.ok(SetTopic("t", {"dead_letter": "dead"}, True, True))
    bench.ok(MakeGroup("s", None, "t", None, "g", 1_000, 3, None))
    bench.publish(expiring(b"1", 100), expiring(b"2", 100))
    bench.passing(100)
    assert bench.ok(Take("s", None, "t", "g", None, 9, 1_000, None, [], [], []))["dead"] == 2


def test_a_group_that_is_moved_back_to_what_has_expired_keeps_none_of_it(
    bench: ExpiryBench,
) -> None:
    bench.ok(Subscribe("s", None, "dead", None))
    bench.ok(MakeGroup("s", None, "t", None, "g", 1_000, 0, ""))
    bench.ok(MakeGroup("s", None, "t", None, "h", 1_000, 3, "dead"))
    bench.publish(expiring(b"1", 100), expiring(b"2", 100))
    bench.ok(Advance("s", None, {"t": 2}))
    bench.passing(100)
    assert bench.floor == 0, "they have yet to be dead letters of the other group"
    assert bench.ok(SeekGroup("t", "g", 1, True)) == {"last_id": 0}
    assert bench.ok(Take("s", None, "t", "h", None, 9, 1_000, None, [], [], []))["dead"] == 2
    assert bench.floor == 2


def test_a_dead_letter_between_publications_that_expire_stays(bench: ExpiryBench) -> None:
    bench.ok(Subscribe("s", None, "dead", None))
    bench.ok(MakeGroup("s", None, "t", None, "g", 1_000, 1, "dead"))
    bench.publish(expiring(b"buried", 50))
    bench.passing(50)
    bench.ok(putting(1, expiring(b"1", 100), topic="dead"))
    assert bench.ok(Take("s", None, "t", "g", None, 9, 1_000, None, [], [], []))["dead"] == 1
    bench.ok(putting(2, expiring(b"3", 100), topic="dead"))
    bench.passing(100)
    letters = bench.store.read("s", "dead", None, 9, 1_000, 0, True)
    assert isinstance(letters, Delivery)
    assert letters.passed is not None
    assert (_told(letters.passed), letters.first_id, letters.count) == (("expired", 1, 1), 2, 1)


def test_what_is_given_back_and_has_expired_is_not_given_again_though_nothing_is_committed_yet(
    bench: ExpiryBench,
) -> None:
    bench.ok(MakeGroup("s", None, "t", None, "g", 1_000, 0, ""))

    def uncommitted(ms: int, operation: Operation) -> Any:
        payload = encode(ms, [operation])
        [outcome] = bench.store.apply(bench.store.applied_index + 1, 1, payload)
        return answer_of(outcome)[1]

    def take(naks: list[list[int]]) -> Take:
        return Take("s", None, "t", "g", None, 9, 1_000, None, [], naks, [])

    uncommitted(0, putting(1, b"1", expiring(b"2", 100)))
    taken = uncommitted(0, take([]))
    assert taken["given"] == [[1, 2, 1]]
    assert uncommitted(100, take([[taken["token"], 1, 2, 0]]))["given"] == [[1, 1, 2]]
    bench.store.commit()


def test_a_delivery_of_several_entries_says_when_the_first_of_all_expires(
    bench: ExpiryBench,
) -> None:
    bench.publish(b"1", expiring(b"2", 200))
    bench.publish(b"3", expiring(b"4", 100))
    bench.publish(expiring(b"5", 300))
    delivery = bench.store.read("s", "t", None, 100, 1_000_000)
    assert isinstance(delivery, Delivery)
    assert (delivery.count, delivery.over_ms) == (5, 100)
    larger_than_asked = bench.store.read("s", "t", 1, 100, 0)
    assert isinstance(larger_than_asked, Delivery)
    assert (larger_than_asked.count, larger_than_asked.over_ms) == (1, 200)


def test_a_take_lets_go_of_so_much_that_has_expired_and_the_next_one_goes_on(
    bench: ExpiryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "CLOSED_MAX", 2)
    bench.ok(Subscribe("s", None, "t", None))
    bench.ok(MakeGroup("s", None, "t", None, "g", 1_000, 0, ""))
    bench.publish(*(expiring(b"x", 100) for _ in range(5)), b"6")
    bench.ok(Advance("s", None, {"t": 6}))
    take = Take("s", None, "t", "g", None, 5, 1_000, 50, [], [], [])
    assert bench.ok(take)["given"] == [[1, 5, 1]]
    bench.passing(100)
    floors, given = [], []
    for _ in range(3):
        given.append(bench.ok(take)["given"])
        floors.append(bench.floor)
    assert given == [[], [], [[6, 6, 1]]]
    assert floors == [2, 4, 5]


TOPICS = ("t", "u")


@pytest.mark.parametrize("seed", seeds(4, 12))
def test_random_operations_come_to_what_the_reference_says_whenever_the_store_is_reopened(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "CLOSED_MAX", 2)
    monkeypatch.setattr(groups, "DEAD_COUNT_MAX", 2)
    monkeypatch.setattr(groups, "TAKE_AGAIN_MAX", 4)
    monkeypatch.setattr(expiry, "STRETCHES_MAX", 64)
    rng = random.Random(seed)
    limits = replace(LIMITS, groups=GroupLimits(4, 200, 60, 20, 3))
    reference = Reference(limits)
    stores = [Store.open(tmp_path / f"{each}.db", MEMBERS, limits) for each in range(2)]
    counters = dict.fromkeys(TOPICS, 1)
    now_ms, told, buried = 1, 0, 0
    for index in range(1, 500):
        operations = _operations(rng, index, counters, reference)
        now_ms += rng.choice((0, 5, 40, 200))
        results = reference.apply(index, operations, 1, Stamp(now_ms, now_ms))
        payload = encode(now_ms, operations, now_ms if index > 1 else 0)
        outcomes = [store.apply(index, 1, payload) for store in stores]
        assert outcomes[0] == outcomes[1], operations
        for operation, outcome, result in zip(operations, outcomes[0], results, strict=True):
            if result is not None:
                code, said = answer_of(outcome)
                assert (code if code != "ok" else "") == result[0], (operation, said, result)
                assert result[1].items() <= said.items(), (operation, said, result)
                buried += result[1].get("dead", 0)
        assert stores[0].groups.page("", "", 100) == reference.groups_at("", "", index)
        for topic in stores[0].topics_page("", 100):
            unread_from, _ = reference.kept(topic.name) or (0, 0)
            assert topic.floor_id + 1 == unread_from, (index, topic.name)
        told += sum(_reads(stores[1], reference, index, topic) for topic in TOPICS)
        if rng.random() < 0.1:
            stores[1].collect_garbage(100)
        if rng.random() < 0.05:
            stores[1].commit()
            stores[1].close()
            stores[1] = Store.open(tmp_path / "1.db", {}, limits)
            assert stores[0].digest() == stores[1].digest()
    assert stores[0].digest() == stores[1].digest()
    assert told > 10
    assert buried > 0
    for store in stores:
        store.close()


def _reads(store: Store, reference: Reference, index: int, name: str) -> bool:
    """Check what s is given of a topic; return whether it is told that something has expired."""
    cursor = reference.cursor_at("s", name, index)
    if cursor is None:
        return False
    placed = reference.clients["s"].placed_at(index).get(name, 0)
    got = store.read("s", name, None, 100, 1_000_000, placed)
    told = got if isinstance(got, Refused) else got.passed
    end = reference.last_id_at(name, index)
    if told is not None:
        if told.code != "expired":
            assert told.code in ("purged", "gap"), told
            return False
        ids = range(told.details["first_id"], told.details["last_id"] + 1)
        assert ids[0] == cursor + 1
        assert all(reference.is_over_at(name, each, index) for each in ids)
        cursor = ids[-1]
    if isinstance(got, Refused):
        assert cursor == end or reference.is_over_at(name, cursor + 1, index)
        return True
    ids = range(cursor + 1, cursor + 1 + got.count)
    assert not any(reference.is_over_at(name, each, index) for each in ids)
    assert ids.stop > end or reference.is_over_at(name, ids.stop, index)
    return told is not None


def _operations(
    rng: random.Random, index: int, counters: dict[str, int], reference: Reference
) -> list[Operation]:
    if index == 1:
        return [
            Raise(LEVEL_OF_EXPIRY),
            *(Register(each, True, None, "") for each in "psq"),
            *(Subscribe("s", None, each, None) for each in (*TOPICS, "dead")),
        ]
    made: list[Operation] = []
    for _ in range(rng.randint(0, 3)):
        topic, client, chance = rng.choice(TOPICS), rng.choice("sq"), rng.random()
        end = reference.last_id_at(topic, index - 1)
        near = max(0, end - rng.randrange(6))
        group = rng.choice("gh")
        if chance < 0.45:
            batch = [
                expiring(b"x" * rng.randrange(9), rng.choice((0, 0, 30, 200, 1_000, 100_000)))
                for _ in range(rng.randint(1, 4))
            ]
            made.append(putting(counters[topic], *batch, topic=topic))
            counters[topic] += len(batch)
            return made  # its counter is taken only if it is stored, or nobody subscribes
        if chance < 0.6:
            made.append(Advance(client, None, {topic: near}, placed={}))
        elif chance < 0.65:
            start: Any = rng.choice(("new", "earliest", near + 1))
            made.append(Subscribe("q", None, topic, None, start=start))
        elif chance < 0.68:
            made.append(Unsubscribe("q", None, topic, None))
        elif chance < 0.7:
            made.append(Seek("q", None, topic, None, rng.choice(("earliest", near + 1))))
        elif chance < 0.72:
            made.append(Purge(topic, near, False))
        elif chance < 0.75:
            keep = parse_keep(rng.choice(("unread", "forever", "5", "64B", "200ms")))
            made.append(SetTopic(topic, keep, rng.random() < 0.5, False))
        elif chance < 0.8:
            attempts, dead = rng.choice(((0, ""), (2, "dead")))
            made.append(MakeGroup("s", None, topic, None, group, 150, attempts, dead))
        else:
            found = reference.groups.get((topic, group))
            own = [] if found is None else list(found.open.items())
            rows = [[had.token, id_, id_] for id_, had in own if had.by == client]
            acks, naks = rows[: len(rows) // 2], [[*row, 10] for row in rows[len(rows) // 2 :]]
            count = rng.choice((0, 3, 50))
            made.append(Take(client, None, topic, group, None, count, 1_000, None, acks, naks, []))
    return made
