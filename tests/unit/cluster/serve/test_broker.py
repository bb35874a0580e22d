"""The leader's core: who waits, how many may, and what they are told when leadership ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cluster.log.entries import PLACE_MAX
from cluster.serve import broker as broker_module
from cluster.serve.broker import Answer, Broker, BrokerLimits, Waiting
from cluster.serve.quotas import Quotas, Refusals
from cluster.store import commands, publications
from cluster.store import store as stores
from cluster.store.commands import ChangeUser, Put, Raise, SetTopic, Subscribe
from cluster.store.outcomes import Delivery, Done, Looked, Refused
from cluster.store.store import Limits, Store
from cluster.store.tables import ID_MAX, RecoveryRow
from cluster.wire.levels import (
    LEVEL_FIRST,
    LEVEL_OF_EXPIRY,
    LEVEL_OF_GROUPS,
    LEVEL_OF_IDLE,
    LEVEL_OF_NAMES,
    LEVEL_OF_TOPICS,
)
from flotilla_client.policies import parse_keep
from flotilla_client.properties import Enveloped, Properties
from flotilla_client.properties import encode as encode_properties
from flotilla_client.protocol import (
    ACK,
    ACTS,
    EARLIEST,
    GET,
    INSPECT,
    INTEGER_MAX,
    MESSAGE_BYTES_MAX,
    NAME_BYTES_MAX,
    PUT,
    READ,
    REQUEST_ID,
    SEEK,
    SUB,
    TAKE,
    TEXT_HEADER_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TOPICS,
    UNSUB,
    ProtocolError,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    pack,
)

ME = "client-1"


class BrokerBench:
    """A broker on a real store; `turn` replicates and applies whatever it was asked."""

    def __init__(self, directory: Path, **limits: int) -> None:
        self.store = Store.open(directory / "store.db", {"a": "1"})
        self.room_bytes = 1024 * 1024
        self.broker = Broker(
            self.store, BrokerLimits(**limits), lambda: ME, lambda _: self.room_bytes
        )
        self.now_ms = 0.0
        self.is_timed = False  # entries are stamped with that
        self.barrier = 0
        self.submit()
        self.ask(REQUEST_ID, client_id="")
        self.ask(SUB, "t")
        self.turn()

    def ask(
        self,
        kind: str,
        topic: str = "",
        client_id: str = ME,
        epoch: int | None = None,
        **body: Any,
    ) -> None:
        made = Request(kind, "r", topic, client_id, epoch, body)
        request = decode_request(encode_request(made))
        self.receive(request)

    def receive(self, request: Request) -> None:
        """Have the broker take a request as it came from the wire."""
        waiting = self.broker.request(b"me", request, self.now_ms)
        if waiting is not None:
            self.barrier += 1
            self.broker.await_barrier(waiting, self.barrier, self.store.applied_index)

    def put(self, counter: int, publication: bytes = b"p") -> None:
        self.ask(PUT, "t", counter=counter, publication=publication.decode())

    def submit(self) -> list[tuple[int, bytes]]:
        entries = []
        index = self.store.applied_index
        if not index:
            self.store.apply(1, 1, b"")
        for operations, authors in self.broker.take_entries():
            index += 1
            self.broker.submitted(index, 1, authors)
            stamp_ms = round(self.now_ms) if self.is_timed else 0
            entries.append((index, commands.encode(stamp_ms, operations)))
        return entries

    def turn(self, took_ms: float = 0.0) -> list[Answer]:
        """`took_ms`: how long the entries are under way."""
        entries = self.submit()
        self.now_ms += took_ms
        for index, payload in entries:
            self.broker.applied(index, 1, self.store.apply(index, 1, payload))
        self.serve(self.barrier, self.store.applied_index)
        return self.taken()

    def serve(self, barrier: int, index: int, enough: Callable[[], bool] = lambda: False) -> bool:
        if not self.broker.may_serve(self.now_ms):  # then a turn leaves it out
            return False
        return self.broker.serve(barrier, index, self.now_ms, enough)

    def taken(self) -> list[Answer]:
        return self.broker.take_answers()


def code_of(answer: Answer) -> str:
    return str(answer.body.get("error", answer.type))


@pytest.fixture
def bench(tmp_path: Path) -> BrokerBench:
    return BrokerBench(tmp_path)


def test_a_put_s_bytes_are_kept_once(bench: BrokerBench) -> None:
    lengths, data = pack([b"x" * 1000])
    request = Request(PUT, "r", "t", ME, None, {"counter": 1, "count": 1}, lengths, data)
    bench.broker.request(b"me", request, 0.0)
    assert (request.lengths, request.data) == (b"", b"")
    assert code_of(*bench.turn()) == "ACK"
    assert bench.store.backlog_bytes("t") == 1004


@pytest.mark.parametrize(
    ("letter", "limit"), [("x", TEXT_HEADER_BYTES_MAX), ('"', MESSAGE_BYTES_MAX)]
)
@pytest.mark.parametrize("known", ["", "the last one"])
def test_the_largest_client_is_taken_up_in_one_reply(
    tmp_path: Path, known: str, letter: str, limit: int
) -> None:
    bench = BrokerBench(tmp_path)
    store, limits = bench.store, Limits()
    name_bytes = limits.names_bytes_max // limits.producers_per_client_max - len('""')
    names = [f"{number:0{name_bytes}}" for number in range(limits.producers_per_client_max)]
    subscribed = [
        f"{number:04}".ljust(TOPIC_BYTES_MAX, letter)
        for number in range(limits.subscriptions_per_client_max - 1)  # and "t"
    ]
    asked = [
        Raise(LEVEL_OF_TOPICS),
        *(Put(ME, None, name, INTEGER_MAX, *pack([b""])) for name in names),
        *(Subscribe(ME, None, name, None, start=EARLIEST) for name in subscribed),
    ]
    outcomes = store.apply(store.applied_index + 1, 1, commands.encode(0, asked))
    assert all(isinstance(each, Done) for each in outcomes)
    store._recoveries.append(RecoveryRow("the last one", {}))
    bench.ask(REQUEST_ID, recovery=known)
    answers = bench.turn()
    while not answers:
        bench.serve(bench.barrier, store.applied_index)
        answers = bench.taken()
    [answer] = answers
    assert len(answer.body["counters"]) == limits.producers_per_client_max
    ids = {name: ID_MAX for name in answer.body["subscriptions"]}
    assert len(ids) == limits.subscriptions_per_client_max
    body = answer.body | {"subscriptions": ids, "placed": dict.fromkeys(ids, PLACE_MAX)}
    body |= {told: ids for told in body.keys() & {"ends", "settled"}}
    body["patterns"] = dict.fromkeys(subscribed[: limits.patterns_per_client_max], PLACE_MAX)
    frames = encode_reply(Reply(ACK, "r" * NAME_BYTES_MAX, "a", "a", PLACE_MAX, body))
    assert len(frames[0]) <= limit
    assert decode_reply(frames).body == body


@pytest.mark.parametrize(
    ("pattern", "code", "message"),
    [
        *((each, "unsupported", "patterns take feature level 4") for each in ("o.*", "*", "o.>")),
        *((each, "bad_request", "stand for whole words") for each in ("o.a*", "*>")),
        ("a.>.b", "bad_request", "only be the last word"),
        *((each, "bad_request", f"`{each}` is no pattern") for each in ("a/#", "a/+/b")),
        (".".join("*" * 17), "too_large", "more than 16 words"),
    ],
)
def test_a_subscription_that_is_refused_as_a_pattern_goes_on_where_it_is_of_before(
    bench: BrokerBench, pattern: str, code: str, message: str
) -> None:
    bench.ask(SUB, pattern)
    [answer] = bench.turn()
    assert code_of(answer) == code
    assert message in answer.body["message"]
    # 0.1 took it.
    payload = commands.encode(0, [commands.Subscribe(ME, None, pattern, None)])
    bench.store.apply(bench.store.applied_index + 1, 1, payload)
    bench.ask(SUB, pattern)
    bench.ask(PUT, pattern, counter=1, publication="p")
    bench.turn()
    bench.ask(GET, pattern)
    bench.ask(SUB, "c#")
    assert [code_of(answer) for answer in bench.turn()] == ["ACK", "ACK"]


def test_deadlines_of_woken_gets_do_not_pile_up(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "STALE_DEADLINES_MIN", 10)
    for counter in range(1, 101):
        bench.ask(GET, "t", wait_ms=60_000, last_id=counter - 1)
        assert bench.turn() == []
        bench.put(counter)
        assert [code_of(answer) for answer in bench.turn()] == ["ACK", "ACK"]
        assert len(bench.broker._parked_by_deadline) <= 12
    bench.ask(GET, "t", wait_ms=50, last_id=100)
    bench.turn()
    bench.now_ms = 50.0
    assert [answer.body["count"] for answer in bench.turn()] == [0]


def test_one_parked_get_over_the_limit_is_refused(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path, parked_gets_max=1)
    bench.ask(GET, "t", wait_ms=1000)
    bench.ask(GET, "t", wait_ms=1000)
    [refused] = bench.turn()
    assert (code_of(refused), refused.body["limit"]) == ("overloaded", 1)


def test_one_request_over_the_limit_is_refused_until_others_are_answered(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path, in_flight_max=2)
    bench.put(1)
    bench.ask(TOPICS)
    bench.put(2)
    assert [code_of(answer) for answer in bench.turn()] == ["overloaded", "ACK", "ACK"]
    bench.put(2)
    assert [code_of(answer) for answer in bench.turn()] == ["ACK"]


def test_what_takes_long_of_one_principal_does_not_fill_the_log(bench: BrokerBench) -> None:
    index = bench.store.applied_index + 1
    bench.store.apply(index, 1, commands.encode(0, [Raise(LEVEL_OF_GROUPS)]))
    bench.ask(SUB, "t", group="g")
    bench.turn()
    extends = [[1, 1, 8_192, 1_000]]

    def asked_by(principal: str, count: int) -> None:
        body = {"group": "g", "max_count": 0, "extends": extends}
        for _ in range(count):
            made = Request(TAKE, principal, "t", ME, None, body)
            bench.broker.request(b"me", decode_request(encode_request(made)), 0.0, principal)

    for _ in range(2):
        asked_by("flood", 40)
        refused = [(each.request_id, code_of(each)) for each in bench.taken()]
        taken = 40 - len(refused)
        assert 10 < taken < 20
        assert refused == [("flood", "overloaded")] * len(refused)
        asked_by("other", 1)
        assert bench.taken() == []
        whose = Counter(each.principal for each in bench.turn())
        assert whose == {"flood": taken, "other": 1}
    asked_by("flood", 40)
    bench.broker.abdicate("n2")
    assert bench.broker._work_under_way_of == {}


def test_who_has_most_places_of_what_is_under_way_leaves_some_to_others(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path, in_flight_max=8)

    def asked_by(principal: str, kind: str, **body: Any) -> None:
        made = Request(kind, principal, "t" if kind == GET else "", ME, None, body)
        request = decode_request(encode_request(made))
        waiting = bench.broker.request(b"me", request, bench.now_ms, principal)
        if waiting is not None:
            bench.broker.await_barrier(waiting, bench.barrier, bench.store.applied_index)

    for _ in range(2):
        for kind in (REQUEST_ID, TOPICS, REQUEST_ID, TOPICS, REQUEST_ID, TOPICS, TOPICS):
            asked_by("flood", kind)
        asked_by("other", TOPICS)
        answers = [(each.request_id, code_of(each)) for each in bench.turn()]
        assert answers[0] == ("flood", "overloaded")
        assert sorted(answers[1:]) == [("flood", "ACK")] * 6 + [("other", "ACK")]
    for _ in range(7):
        asked_by("flood", GET, wait_ms=1_000)  # those who wait for publications are counted apart
        assert bench.turn() == []
    asked_by("flood", TOPICS)
    bench.broker.abdicate("n2")
    assert len(bench.taken()) == 8
    assert bench.broker._under_way_of == {}


def test_a_full_topic_refuses_puts(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path, backlog_bytes_max=1004)
    bench.put(1, b"x" * 1000)
    bench.turn()
    bench.put(2)
    assert [code_of(answer) for answer in bench.turn()] == ["backlog_full"]


def test_full_topics_are_told_with_how_often_in_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.serve.broker.HELD_TOPICS_MAX", 2)
    bench = BrokerBench(tmp_path, backlog_bytes_max=0)
    for topic in ("a", "b", "c", "a", "d", "b"):
        bench.ask(PUT, topic, counter=1, publication="p")
    assert [code_of(answer) for answer in bench.turn()] == ["backlog_full"] * 6
    assert bench.broker.take_held() == {"a": 2, "b": 2}
    assert bench.broker.take_held() == {}


def test_a_publication_counts_with_its_own_bytes_against_its_topics_limit(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path, backlog_bytes_max=1004)
    bench.put(1, b"x" * 600)
    bench.turn()
    bench.put(2, b"x" * 397)
    bench.put(2, b"x" * 396)
    bench.put(3, b"x")
    codes = [code_of(answer) for answer in bench.turn()]
    assert codes == ["backlog_full", "backlog_full", "ACK"], "400 and the 604 there are: no more"
    assert bench.store.backlog_bytes("t") == 604 + 400


def test_who_waits_for_a_topic_hears_that_its_subscription_was_ended_by_hand(
    bench: BrokerBench,
) -> None:
    bench.ask(GET, "t", wait_ms=60_000, last_id=0)
    assert bench.turn() == []
    bench.ask(UNSUB, "t")
    assert [code_of(answer) for answer in bench.turn()] == ["ACK", "unknown_topic"]


def test_what_is_stored_is_a_duplicate_even_when_there_is_no_room(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path, backlog_bytes_max=1004)
    bench.put(1, b"x" * 1000)
    bench.turn()
    bench.put(1, b"x" * 1000)
    [answer] = bench.turn()
    assert answer.body == {"id": 1, "count": 1, "duplicate": True, "stored": True}
    bench.broker.note_room(is_low=True, spare_bytes=0)
    bench.put(1, b"x" * 1000)
    [(_, payload)] = bench.submit()
    assert len(payload) < 200, "a duplicate's bytes would fill the log of a full disk"


def test_a_duplicate_without_its_bytes_is_not_stored_for_a_client_that_was_made_anew(
    tmp_path: Path,
) -> None:
    bench = BrokerBench(tmp_path, backlog_bytes_max=1004)
    bench.put(1, b"x" * 1000)
    bench.turn()
    bench.put(1, b"x" * 1000)
    [(asked, _)] = bench.broker.take_entries()
    ahead = [
        Raise(LEVEL_OF_NAMES),
        commands.Register("other", True, 1, "nonce"),
        Subscribe("other", None, "t", None),
        commands.DropClient(ME, True, None, "act"),
        commands.Register(ME, True, 1, "nonce"),
    ]
    payload = commands.encode(0, [*ahead, *asked])
    *_, outcome = bench.store.apply(bench.store.applied_index + 1, 1, payload)
    assert isinstance(outcome, Refused), outcome
    assert (outcome.code, bench.store.backlog_bytes("t")) == ("fenced", 1004)


@pytest.mark.parametrize("name", ["kept", "*"])
def test_who_waits_for_any_topic_is_given_what_a_new_subscription_brings(
    bench: BrokerBench, name: str
) -> None:
    kept = SetTopic("kept", parse_keep("forever"), is_new=True, is_root=False)
    for operation in (Raise(4), kept, Put(ME, None, "kept", 1, *pack([b"x"]))):
        index = bench.store.applied_index + 1
        [outcome] = bench.store.apply(index, 1, commands.encode(0, [operation]))
        assert isinstance(outcome, Done), outcome
    bench.ask(GET, wait_ms=1000, last_ids={})
    assert bench.turn() == []
    bench.ask(SUB, name, start="earliest", sequence=1)
    assert [(answer.type, answer.data) for answer in bench.turn()] == [("ACK", b""), ("ACK", b"x")]


def test_a_duplicate_put_wakes_nobody(bench: BrokerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(1)
    bench.turn()
    bench.ask(GET, "t", wait_ms=1000, last_id=1)
    bench.turn()
    monkeypatch.setattr(bench.broker, "_wake", lambda topic: pytest.fail(topic))
    bench.put(1)
    assert [code_of(answer) for answer in bench.turn()] == ["ACK"]


def test_a_short_disk_refuses_puts_and_nothing_else(bench: BrokerBench) -> None:
    bench.broker.note_room(is_low=True, spare_bytes=0)
    bench.put(1)
    bench.ask(GET, "t")
    assert [code_of(answer) for answer in bench.turn()] == ["disk_full", "ACK"]


def test_a_publication_that_is_no_text_is_not_sent_as_text(bench: BrokerBench) -> None:
    lengths, data = pack([b"\xff"])
    request = Request(PUT, "r", "t", ME, None, {"counter": 1, "count": 1}, lengths, data)
    bench.broker.request(b"me", request, 0.0)
    bench.turn()
    bench.ask(GET, "t", text=True)
    assert [code_of(answer) for answer in bench.turn()] == ["bad_request"]


def test_a_read_waits_for_its_barrier(bench: BrokerBench) -> None:
    bench.ask(TOPICS)
    bench.serve(bench.barrier - 1, bench.store.applied_index)
    assert bench.taken() == []
    bench.serve(bench.barrier, bench.store.applied_index - 1)
    assert bench.taken() == []
    bench.serve(bench.barrier, bench.store.applied_index)
    assert [code_of(answer) for answer in bench.taken()] == ["ACK"]


def test_what_was_replicated_ends_uncertain_and_all_else_definite(bench: BrokerBench) -> None:
    bench.ask(GET, "t", wait_ms=1000)
    bench.turn()
    bench.put(1)
    bench.submit()
    bench.put(2)
    bench.ask(TOPICS)
    bench.broker.abdicate("b")
    answers = bench.taken()
    assert sorted(map(code_of, answers)) == ["not_leader", "not_leader", "not_leader", "uncertain"]
    assert {answer.body["definite"] for answer in answers if code_of(answer) != "uncertain"} == {
        True
    }
    assert bench.broker.is_idle()
    assert bench.turn() == []


def test_an_entry_of_another_term_is_never_taken_for_one_s_own(bench: BrokerBench) -> None:
    bench.put(1)
    [(index, payload)] = bench.submit()
    with pytest.raises(AssertionError, match="replaced by term 2"):
        bench.broker.applied(index, 2, bench.store.apply(index, 2, payload))


def test_a_get_for_any_topic_is_woken_by_a_topic_of_its_client(bench: BrokerBench) -> None:
    bench.ask(SUB, "other")
    bench.turn()
    bench.ask(GET, "", wait_ms=1000, last_ids={})
    assert bench.turn() == []
    bench.ask(PUT, "nobody's", counter=1, publication="p")
    assert [code_of(answer) for answer in bench.turn()] == ["ACK"]
    bench.ask(PUT, "other", counter=1, publication="p")
    answers = bench.turn()
    assert [answer.body.get("topic") for answer in answers] == [None, "other"]


def test_a_get_of_any_topic_acknowledges_whatever_it_names_that_is_news(bench: BrokerBench) -> None:
    bench.ask(SUB, "u")
    bench.turn()
    bench.put(0)
    bench.ask(PUT, "u", counter=0, publication="p")
    bench.turn()

    bench.ask(GET, last_ids={"t": 0, "u": 1})  # the first one is known
    bench.turn()

    assert (bench.store.cursor(ME, "t"), bench.store.cursor(ME, "u")) == (0, 1)


def test_a_get_that_moved_its_cursor_gets_no_definite_refusal(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path, parked_gets_max=1)
    bench.put(1)
    bench.turn()
    bench.ask(GET, "t", wait_ms=1000, last_id=1)
    assert bench.turn() == []
    bench.broker.abdicate("b")
    assert [code_of(answer) for answer in bench.taken()] == ["uncertain"]


def test_a_get_that_moved_its_cursor_and_finds_no_place_is_told_that_nothing_is_new(
    tmp_path: Path,
) -> None:
    bench = BrokerBench(tmp_path, parked_gets_max=1)
    bench.put(1)
    bench.turn()
    bench.ask(GET, "t", wait_ms=1000, last_id=1)
    assert bench.turn() == []
    bench.ask(SUB, "other")
    bench.ask(PUT, "other", counter=1, publication="p")
    bench.turn()
    bench.ask(GET, "other", wait_ms=1000, last_id=1)
    [nothing] = bench.turn()
    assert (nothing.type, nothing.body["count"]) == ("ACK", 0)


def test_bytes_that_wait_for_a_majority_are_bounded(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "PUT_BYTES_MAX", 1000)
    bench.put(1, b"x" * 600)
    bench.put(2, b"x" * 600)
    assert [code_of(answer) for answer in bench.turn()] == ["overloaded", "ACK"]
    bench.put(2, b"x" * 600)
    assert [code_of(answer) for answer in bench.turn()] == ["ACK"]


def test_publications_without_bytes_that_wait_for_a_majority_are_bounded_too(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes four bytes of the log, and of the store: its length."""
    monkeypatch.setattr(broker_module, "PUT_BYTES_MAX", 1000)
    for counter in (1, 151):
        request = Request(PUT, "r", "t", ME, None, {"counter": counter, "count": 150})
        request.lengths, request.data = pack([b""] * 150)
        bench.receive(decode_request(encode_request(request)))
    assert [code_of(answer) for answer in bench.turn()] == ["overloaded", "ACK"]


def test_bytes_that_wait_for_a_majority_are_bounded_by_what_the_disk_takes(
    bench: BrokerBench,
) -> None:
    bench.broker.note_room(is_low=False, spare_bytes=1000)
    bench.put(1, b"x" * 600)
    bench.put(2, b"x" * 600)
    refused, taken = bench.turn()
    assert (code_of(refused), refused.body["limit"], code_of(taken)) == ("overloaded", 1000, "ACK")
    bench.broker.note_room(is_low=False, spare_bytes=1)
    bench.put(2, b"x" * 600)
    assert [code_of(answer) for answer in bench.turn()] == ["ACK"], "one at a time"


# --- room on the way to clients -------------------------------------------------------------------


def test_a_get_is_put_off_while_its_replies_find_no_room(bench: BrokerBench) -> None:
    bench.put(1, b"x" * 1000)
    bench.turn()
    bench.room_bytes = 1500
    for _ in range(3):
        bench.ask(GET, "t", last_id=0)
    answers = bench.turn()
    assert [code_of(answer) for answer in answers] == ["ACK", "ACK", "overloaded"]
    assert answers[2].body["definite"] is True
    bench.ask(GET, "t", last_id=0)
    assert code_of(bench.turn()[0]) == "ACK", "the count begins anew with each turn"
    bench.room_bytes = 0
    bench.ask(GET, "t", last_id=0)
    bench.ask(TOPICS)
    assert [code_of(answer) for answer in bench.turn()] == ["overloaded", "ACK"]


def test_a_get_without_room_whose_acknowledgment_was_carried_out_does_not_say_that_nothing_is_there(
    bench: BrokerBench,
) -> None:
    bench.put(1)
    bench.put(2)
    bench.turn()
    bench.room_bytes = 0
    bench.ask(GET, "t", last_id=1)
    [answer] = bench.turn()
    assert (code_of(answer), answer.body["definite"]) == ("uncertain", False)
    bench.room_bytes = 1
    bench.ask(GET, "t", last_id=1)
    [answer] = bench.turn()
    assert answer.body["id"] == 2, "the same again brings it"


def test_a_fenced_get_whose_acknowledgment_was_carried_out_is_not_refused_for_certain(
    bench: BrokerBench,
) -> None:
    bench.put(1)
    bench.put(2)
    bench.turn()
    bench.ask(GET, "t", epoch=1, last_id=1)
    bench.ask(REQUEST_ID)  # a newer process, in the same entry
    got, _ = bench.turn()
    assert (code_of(got), got.body["definite"]) == ("uncertain", False)
    assert bench.store.cursor(ME, "t") == 1
    bench.ask(GET, "t", epoch=1, last_id=1)
    [got] = bench.turn()
    assert (code_of(got), got.body["definite"]) == ("fenced", True), (
        "the same again changes nothing"
    )


def test_one_turn_reads_so_much_and_the_others_wait(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "READ_BYTES_PER_TURN_MAX", 1500)
    bench.put(1, b"x" * 1000)
    bench.turn()
    for _ in range(5):
        bench.ask(GET, "t", last_id=0)
    assert [len(bench.turn()) for _ in range(3)] == [2, 2, 1]


# --- a turn's time ------------------------------------------------------------------------------


def after(steps: int) -> Callable[[], bool]:
    """Return an `enough` that is true from so many steps on."""
    left = steps

    def enough() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    return enough


def test_reads_that_find_no_time_are_answered_in_later_turns_and_in_order(
    bench: BrokerBench,
) -> None:
    for _ in range(7):
        bench.ask(TOPICS, all=True)
    reached = bench.barrier, bench.store.applied_index
    counts = []
    while bench.serve(*reached, after(3)):
        counts.append(len(bench.taken()))
    counts.append(len(bench.taken()))
    assert counts == [3, 3, 1]
    assert bench.broker.is_idle()


def test_one_put_wakes_thousands_step_by_step_and_forgets_nobody(bench: BrokerBench) -> None:
    for _ in range(100):
        bench.ask(GET, "t", wait_ms=1000, last_id=0)
    assert bench.turn() == []
    bench.put(1)
    [(index, payload)] = bench.submit()
    bench.broker.applied(index, 1, bench.store.apply(index, 1, payload))
    assert len(bench.taken()) == 1, "the PUT alone: who waits is served later"
    answers, turns = [], 1
    while bench.serve(bench.barrier, index, after(8)):
        answers += bench.taken()
        turns += 1
    answers += bench.taken()
    assert [answer.body["count"] for answer in answers] == [1] * 100
    assert turns == 13
    assert bench.broker.is_idle()


def test_gets_that_are_woken_keep_their_places(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path, parked_gets_max=2)
    bench.ask(SUB, "u")
    bench.turn()
    bench.ask(GET, "", wait_ms=1000)
    bench.ask(GET, "", wait_ms=1000)
    bench.turn()
    bench.put(1)
    [(index, payload)] = bench.submit()
    bench.broker.applied(index, 1, bench.store.apply(index, 1, payload))
    bench.taken()
    bench.ask(GET, "u", wait_ms=1000)
    bench.broker._first_source = 0  # reads
    bench.serve(bench.barrier, index, after(1))
    assert [code_of(answer) for answer in bench.taken()] == ["overloaded"]
    assert [answer.body["count"] for answer in bench.turn()] == [1, 1]


def test_gets_whose_wait_is_over_are_answered_step_by_step(bench: BrokerBench) -> None:
    for _ in range(20):
        bench.ask(GET, "t", wait_ms=50)
    bench.turn()
    bench.now_ms = 50.0
    sizes = []
    while bench.serve(bench.barrier, bench.store.applied_index, after(8)):
        sizes.append(len(bench.taken()))
    sizes.append(len(bench.taken()))
    assert sizes == [8, 8, 4]


def test_a_registration_s_counters_are_looked_up_step_by_step(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "COUNTERS_PER_STEP", 10)
    names = [f"topic {number:02}" for number in range(30)]
    for name in names:
        bench.ask(PUT, name, counter=5, publication="p")
    bench.turn()
    bench.ask(REQUEST_ID)
    [(index, payload)] = bench.submit()
    bench.broker.applied(index, 1, bench.store.apply(index, 1, payload))
    turns = 1
    while bench.serve(bench.barrier, index, after(1)):
        if answers := bench.taken():
            break
        turns += 1
    [answer] = answers
    assert answer.body["counters"] == dict.fromkeys(names, 5)
    assert list(answer.body["counters"]) == names
    assert answer.body["subscriptions"] == {"t": 0}
    assert turns == 4


def test_who_is_dropped_before_the_registration_is_answered_is_told_to_ask_again(
    bench: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "COUNTERS_PER_STEP", 10)
    for number in range(30):
        bench.ask(PUT, f"topic {number:02}", counter=5, publication="p")
    bench.turn()
    bench.ask(REQUEST_ID)
    [(index, payload)] = bench.submit()
    bench.broker.applied(index, 1, bench.store.apply(index, 1, payload))
    assert bench.serve(bench.barrier, index, after(1))
    assert bench.taken() == []
    dropping = [commands.Raise(LEVEL_OF_IDLE), commands.DropClient(ME, True, None, "act")]
    for operation in dropping:
        bench.store.apply(bench.store.applied_index + 1, 1, commands.encode(0, [operation]))
    while bench.serve(bench.barrier, index, after(1)):
        pass
    assert [code_of(answer) for answer in bench.taken()] == ["uncertain"]


def test_the_kinds_of_work_take_turns(bench: BrokerBench) -> None:
    bench.put(1)
    bench.turn()
    for _ in range(5):
        bench.ask(GET, "t", wait_ms=1000, last_id=1)
    bench.turn()
    bench.put(2)
    [(index, payload)] = bench.submit()
    bench.broker.applied(index, 1, bench.store.apply(index, 1, payload))
    bench.taken()
    for _ in range(5):
        bench.ask(TOPICS)
    bench.serve(bench.barrier, index, after(6))
    kinds = ["topics" in answer.body for answer in bench.taken()]
    assert sorted(kinds) == [False] * 3 + [True] * 3


def test_who_is_woken_or_looked_up_when_leadership_ends_is_told(bench: BrokerBench) -> None:
    bench.ask(GET, "t", wait_ms=1000)
    bench.turn()
    bench.put(1)
    bench.ask(REQUEST_ID)
    [(index, payload)] = bench.submit()
    bench.broker.applied(index, 1, bench.store.apply(index, 1, payload))
    assert [code_of(answer) for answer in bench.taken()] == ["ACK"]
    bench.broker.abdicate("b")
    assert [code_of(answer) for answer in bench.taken()] == ["uncertain", "not_leader"]
    assert bench.broker.is_idle()


def test_a_parked_get_of_any_topic_holds_no_names_and_wakes_to_what_is_new(
    bench: BrokerBench,
) -> None:
    bench.put(1)
    bench.turn()
    bench.ask(GET, "", wait_ms=1000, last_ids={"t": 1})
    assert bench.turn() == []
    [parked] = bench.broker._parked_any[ME].values()
    assert parked.request.body["last_ids"] == {}
    bench.put(2)
    put, got = bench.turn()
    assert (put.body["id"], got.body["topic"], got.body["id"]) == (2, "t", 2)


def test_who_reads_is_heard_and_who_is_inspected_is_not(tmp_path: Path) -> None:
    hour_ms = 3_600_000
    bench = BrokerBench(tmp_path, client_idle_ms=10 * hour_ms)
    store = bench.store
    passing = [commands.Raise(LEVEL_OF_IDLE), *[commands.Hear([])] * 4]
    for hour, operation in enumerate(passing):
        payload = commands.encode(hour * hour_ms, [operation])
        store.apply(store.applied_index + 1, 1, payload)
    for what in ("client", "subscriptions", "clients"):
        bench.ask(INSPECT, "t" if what == "subscriptions" else "", what=what)
        assert [code_of(answer) for answer in bench.turn()] == ["ACK"]
    assert bench.broker.take_heard(9) == [], "an operator looked at it; nothing came from it"
    bench.ask(TOPICS)
    bench.turn()
    assert bench.broker.take_heard(9) == [ME]
    assert bench.broker.take_heard(9) == []


def test_of_so_many_who_only_read_some_are_heard_when_they_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.serve.broker.HEARD_MAX", 2)
    hour_ms = 3_600_000
    bench = BrokerBench(tmp_path, client_idle_ms=10 * hour_ms)
    ids = [ME, "c1", "c2", "c3"]
    made = [commands.Register(client_id, True, None, "") for client_id in ids[1:]]
    passing = [commands.Raise(LEVEL_OF_IDLE), *made, *[commands.Hear([])] * 4]
    for hour, operation in enumerate(passing):
        payload = commands.encode(hour * hour_ms, [operation])
        bench.store.apply(bench.store.applied_index + 1, 1, payload)
    for heard in (ids[:2], ids[:2]):  # until an entry says so, they are still to be heard
        for client_id in ids:
            bench.ask(TOPICS, client_id=client_id)
        bench.turn()
        assert bench.broker.take_heard(9) == heard


# --- what expires -------------------------------------------------------------------------------


def put_expiring(bench: BrokerBench, counter: int, ms: int, topic: str = "t") -> None:
    """Publish a text that expires after so many ms, behind a counter."""
    put_with(bench, counter, Properties(expires_ms=ms), topic)


def put_with(bench: BrokerBench, counter: int, own: Properties, topic: str = "t") -> None:
    """Publish a text with properties, behind a counter."""
    publication = Enveloped(encode_properties(own) + b"p")
    made = Request(PUT, "r", topic, ME, None, {"counter": counter, "count": 1})
    made.lengths, made.data = pack([publication])
    bench.receive(decode_request(encode_request(made)))


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[BrokerBench]:
    """A broker at the level of expiries, whose entries are stamped with its clock."""
    bench = BrokerBench(tmp_path)
    bench.is_timed, bench.broker.term = True, lambda: 1
    index = bench.store.applied_index + 1
    bench.store.apply(index, 1, commands.encode(0, [Raise(LEVEL_OF_EXPIRY)]))
    bench.turn()
    yield bench
    bench.store.close()


def test_what_expires_is_refused_below_its_level(bench: BrokerBench) -> None:
    put_expiring(bench, 1, 50)
    [answer] = bench.turn()
    assert (code_of(answer), answer.body["needs"]) == ("unsupported", LEVEL_OF_EXPIRY)


def test_a_level_that_is_too_low_is_told_behind_a_barrier(bench: BrokerBench) -> None:
    put_expiring(bench, 1, 50)
    bench.ask(TAKE, "t", group="g")
    assert not bench.serve(bench.barrier - 2, bench.store.applied_index), "nothing is confirmed"
    assert not bench.taken(), "who leads by now may know of a higher level"
    assert not any(read.waiting.request.data for read in bench.broker._reads), "kept meanwhile"
    answers = bench.turn()
    assert [code_of(each) for each in answers] == ["unsupported", "unsupported"]
    assert all(f"is at {LEVEL_FIRST}" in each.body["message"] for each in answers)


def test_a_level_that_is_raised_before_the_barrier_has_who_was_refused_ask_again(
    bench: BrokerBench,
) -> None:
    put_with(bench, 1, Properties(key="k"))
    bench.ask(TAKE, "t", group="g")
    put_expiring(bench, 1, 50)
    bench.ask(INSPECT, client_id="", what="groups")
    index = bench.store.applied_index + 1
    payload = commands.encode(0, [Raise(LEVEL_OF_GROUPS)])
    bench.broker.applied(index, 1, bench.store.apply(index, 1, payload))
    put, take, expiring, inspect = bench.turn()
    assert code_of(put) == "overloaded", "nothing is kept of it meanwhile, and nothing is stored"
    assert "the feature level has changed since" in put.body["message"]
    assert code_of(take) == "overloaded"
    assert code_of(expiring) == "unsupported", "that takes a level still higher"
    assert f"is at {LEVEL_OF_GROUPS}" in expiring.body["message"]
    assert code_of(inspect) == "ACK", "what is read is read now"
    put_with(bench, 1, Properties(key="k"))
    assert code_of(*bench.turn()) == "ACK"


def test_a_get_that_meets_what_has_expired_by_the_clock_waits_for_the_entry_that_says_so(
    timed: BrokerBench,
) -> None:
    put_expiring(timed, 1, 50)
    timed.turn()
    timed.now_ms += 49
    timed.ask(GET, "t", expiry=True)
    [given] = timed.turn()
    assert (given.body["count"], given.body["id"]) == (1, 1)
    timed.now_ms += 1
    index = timed.store.applied_index
    timed.ask(GET, "t", expiry=True)
    assert timed.turn() == []
    assert timed.store.applied_index == index
    [told] = timed.turn()
    assert timed.store.applied_index == index + 1
    assert (code_of(told), told.body["first_id"], told.body["last_id"]) == ("expired", 1, 1)


@pytest.mark.parametrize("topic", ["t", ""])
def test_who_waits_is_given_what_comes_when_its_delay_is_over(
    timed: BrokerBench, topic: str
) -> None:
    place: dict[str, Any] = {"last_id": 0} if topic else {"last_ids": {"t": 0}}
    timed.ask(GET, topic, wait_ms=60_000, expiry=True, **place)
    put_with(timed, 1, Properties(deliver_after_ms=50))
    [stored] = timed.turn()
    assert stored.body["delayed"]
    timed.now_ms += 50
    timed.ask(SUB, "another")  # any entry lets in what is due
    subscribed, given = timed.turn()
    assert (subscribed.type, given.body["topic"] if not topic else "t") == ("ACK", "t")
    assert (given.body["id"], given.body["count"]) == (1, 1)


def test_who_asks_for_any_topic_is_given_the_one_that_was_given_longest_ago(
    bench: BrokerBench,
) -> None:
    bench.ask(SUB, "u")
    bench.turn()
    for counter, topic in ((1, "t"), (2, "t"), (1, "u")):
        bench.ask(PUT, topic, counter=counter, publication="p")
        bench.turn()
    given = []
    for last_ids in ({}, {"t": 1}, {"t": 1, "u": 1}):
        bench.ask(GET, "", last_ids=last_ids, max_count=1)
        given += [(answer.body["topic"], answer.body["id"]) for answer in bench.turn()]
    assert given == [("t", 1), ("u", 1), ("t", 2)]


def test_a_topic_whose_publication_expires_before_it_is_sent_keeps_its_turn(
    timed: BrokerBench,
) -> None:
    timed.ask(SUB, "u")
    timed.turn()
    put_expiring(timed, 1, 50)
    put_expiring(timed, 2, 60_000)
    timed.turn()
    put_expiring(timed, 1, 60_000, "u")
    timed.turn()
    timed.now_ms += 50
    timed.ask(GET, "", expiry=True)
    timed.turn()
    [given] = timed.turn()
    assert (given.body["topic"], given.body["id"]) == ("t", 2)
    assert given.body["passed"] == {
        "error": "expired",
        "topic": "t",
        "first_id": 1,
        "last_id": 1,
        "missed": 1,
    }
    timed.ask(GET, "", last_ids={"t": 2}, expiry=True)
    [given] = timed.turn()
    assert (given.body["topic"], given.body["id"]) == ("u", 1)


def test_a_topic_of_which_all_expires_takes_no_turn_from_those_that_have_something(
    timed: BrokerBench,
) -> None:
    """Each answer told of it alone: by the next question more of it had expired, for ever."""
    timed.ask(SUB, "u")
    timed.turn()
    counter, cursors, given = 0, {"t": 0, "u": 0}, []
    for number in range(1, 21):
        put_expiring(timed, number, 60_000, "u")
    timed.turn()
    while cursors["u"] < 20:
        counter += 1
        put_expiring(timed, counter, 1)
        timed.turn(took_ms=2)  # longer than it lives
        timed.ask(GET, "", last_ids=dict(cursors), max_count=1, expiry=True)
        [answer] = [each for each in timed.turn() + timed.turn() if "topic" in each.body]
        given.append((answer.body["topic"], answer.body.get("error")))
        cursors[answer.body["topic"]] = answer.body.get("id") or answer.body["last_id"]
    assert given == [("u", None)] * 20
    timed.turn(took_ms=2)
    for is_definite in (False, True):  # the first one has acknowledged something as well
        timed.ask(GET, "", last_ids=cursors, expiry=True)
        [told] = timed.turn()
        assert (code_of(told), told.body["last_id"]) == ("expired", counter)
        assert told.body["definite"] is is_definite


def test_a_quota_is_counted_once_wherever_it_is_met(timed: BrokerBench) -> None:
    """One that was met where an entry is applied was not counted."""
    broker, refusals = timed.broker, Refusals()
    broker.quotas, broker.refused = Quotas(topics_max=1, clients_max=1), refusals.note
    broker.new_client_id = lambda: "of-shop"
    index = timed.store.applied_index + 1
    may_read = ChangeUser("user-add", "shop", [], [">"], False, False, True)
    timed.store.apply(index, 1, commands.encode(0, [may_read]))

    def asked_by_shop(kind: str, topic: str, client_id: str) -> str:
        request = decode_request(encode_request(Request(kind, "r", topic, client_id, None, {})))
        broker.request(b"shop", request, timed.now_ms, "shop")
        [answer] = timed.turn()
        return code_of(answer)

    timed.ask(SUB, "o.a")
    timed.ask(SUB, "o.b")
    timed.turn()
    assert asked_by_shop(REQUEST_ID, "", "") == "ACK"
    assert asked_by_shop(SUB, "o.*", "of-shop") == "quota"  # its entry says how many topics
    assert asked_by_shop(REQUEST_ID, "", "") == "quota"  # refused before there is an entry
    assert refusals.total == {("shop", "topics_max"): 1, ("shop", "clients_max"): 1}


@pytest.mark.parametrize("code", ["purged", "gap", "expired", "compacted"])
def test_who_acknowledges_and_meets_what_is_gone_is_told_so_in_one_exchange(
    timed: BrokerBench, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """It was `uncertain`, and told by the next answer."""
    put_expiring(timed, 1, 60_000)
    put_expiring(timed, 2, 60_000)
    timed.turn()
    gone = Refused(code, "2 is gone", {"topic": "t", "first_id": 2, "last_id": 2})
    monkeypatch.setattr(Store, "read", lambda *_: gone)
    timed.ask(GET, "t", last_id=1, expiry=True)
    [told] = timed.turn()
    assert (code_of(told), told.body["last_id"], told.body["definite"]) == (code, 2, False)
    assert timed.store.cursor(ME, "t") == 1
    timed.ask(GET, "t", last_id=1, expiry=True)
    [told] = timed.turn()
    assert (code_of(told), told.body["definite"]) == (code, True)


def test_nobody_hears_of_one_topic_alone_whatever_is_gone_of_it(timed: BrokerBench) -> None:
    """What a policy drops is told in its turn, however often it drops."""
    timed.ask(SUB, "u")
    policy = parse_keep("unread") | {"max_bytes": 40, "when_full": "drop-oldest"}
    index = timed.store.applied_index + 1
    act = SetTopic("t", policy, True, True)
    outcomes = timed.store.apply(index, 1, commands.encode(0, [act]))
    assert isinstance(outcomes[0], Done), outcomes
    timed.turn()
    counter, cursors, given = 0, {"t": 0, "u": 0}, []
    for number in range(1, 6):
        put_expiring(timed, number, 60_000, "u")
    for _ in range(10):
        for _ in range(20):
            counter += 1
            put_expiring(timed, counter, 60_000)
        timed.turn()
        timed.ask(GET, "", last_ids=dict(cursors), max_count=1, expiry=True)
        [answer] = timed.turn()
        given.append((answer.body["topic"], answer.body.get("error")))
        cursors[answer.body["topic"]] = answer.body.get("id") or answer.body["last_id"]
    assert given == [("t", "gap"), ("u", None)] * 5 or given == [("u", None), ("t", "gap")] * 5


def test_more_expired_topics_than_one_get_looks_behind_are_told_of_in_turns(
    timed: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "LAPSED_TOPICS_MAX", 2)
    names = [f"e{number}" for number in range(5)]
    for name in (*names, "u"):
        timed.ask(SUB, name)
    timed.turn()
    for name in names:
        put_expiring(timed, 1, 1, name)
    timed.turn(took_ms=2)
    put_expiring(timed, 1, 60_000, "u")
    timed.turn()
    cursors, given = dict.fromkeys((*names, "u"), 0), []
    for _ in range(6):
        timed.ask(GET, "", last_ids=dict(cursors), expiry=True)
        [answer] = timed.turn()
        given.append(answer.body["topic"])
        cursors[answer.body["topic"]] = 1
    assert sorted(given) == sorted(cursors)
    assert "u" in given[:6]


@pytest.mark.parametrize("kind", ["of one", "of any", "read"])
def test_who_meets_a_long_run_that_has_expired_is_told_of_it_at_once(
    timed: BrokerBench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is looked at in steps of READ_ROWS_MAX rows, between which others are served."""
    monkeypatch.setattr(publications, "READ_ROWS_MAX", 4)
    put_expiring(timed, 1, 60_000)  # holds the floor
    timed.turn()
    for counter in range(2, 42):
        put_expiring(timed, counter, 1)
        timed.turn()
    put_expiring(timed, 42, 60_000)
    timed.turn(took_ms=2)
    steps: list[Looked] = []
    read = Broker._read

    def counted(broker: Broker, waiting: Waiting) -> Any:
        found = read(broker, waiting)
        steps.extend([found] if isinstance(found, Looked) else [])
        return found

    monkeypatch.setattr(Broker, "_read", counted)
    timed.ask(SUB, "another")
    timed.turn()  # an entry, so that the log's time has gone on
    if kind == "read":
        timed.ask(READ, "t", from_id=2, expiry=True)
    elif kind == "of one":
        timed.ask(GET, "t", last_id=1, expiry=True)
    else:
        timed.ask(GET, "", last_ids={"t": 1}, expiry=True)
    [answer] = [each for each in timed.turn() + timed.turn() if "passed" in each.body]
    passed = answer.body["passed"]
    assert (passed["first_id"], passed["last_id"], answer.body["id"]) == (2, 41, 42)
    assert [(each.first_id, each.last_id) for each in steps] == [
        (2, end) for end in range(5, 42, 4)
    ]


def test_what_waits_behind_the_expired_is_as_old_as_it_is(timed: BrokerBench) -> None:
    timed.ask(SUB, "u")
    timed.turn()
    put_expiring(timed, 1, 50)
    timed.turn()
    put_expiring(timed, 1, 60_000, "u")
    timed.turn()
    put_expiring(timed, 2, 60_000)
    timed.turn()
    first = timed.store.read_any(ME, {}, 1, 1_000)  # looks up how old what is next is
    assert isinstance(first, Delivery)
    assert (first.topic, first.first_id) == ("t", 1)
    timed.now_ms += 50
    timed.ask(SUB, "another")
    timed.turn()
    timed.ask(GET, "", expiry=True)
    [given] = timed.turn()
    assert (given.body["topic"], given.body["id"]) == ("u", 1)


def test_who_lags_by_the_time_to_live_is_given_what_has_not_expired(timed: BrokerBench) -> None:
    """Each answer told what had expired meanwhile, and more had by the next question, for ever."""
    counter, cursor, asked = 0, 0, 0
    given: list[tuple[int, int, int]] = []  # passed up to, first id, count
    while timed.now_ms < 400:  # a publication and an entry a millisecond, each lives for 100
        counter += 1
        put_expiring(timed, counter, 100)
        if timed.now_ms > 150 and counter % 3 == 0:
            timed.ask(GET, "t", last_id=cursor, max_count=50, expiry=True)
            asked += 1
        for answer in timed.turn(took_ms=1):
            if "topic" in answer.body:
                body = answer.body
                given.append((body["passed"]["last_id"], body["id"], body["count"]))
                assert body["passed"]["first_id"] == cursor + 1
                cursor = body["passed"]["last_id"]  # as if it were slow, and never had the rest
    assert len(given) == asked > 50
    assert all(first_id == passed_id + 1 and count == 50 for passed_id, first_id, count in given)


def test_a_get_that_parks_behind_its_entry_is_given_nothing_that_has_expired_since(
    timed: BrokerBench,
) -> None:
    put_expiring(timed, 1, 50)
    timed.turn()
    timed.now_ms += 50
    timed.ask(GET, "t", expiry=True, wait_ms=60_000)
    timed.serve(timed.barrier, timed.store.applied_index)  # it needs an entry
    timed.ask(GET, "t", last_id=1)  # acknowledges meanwhile what that one would be told of
    assert [each.body["count"] for each in timed.turn()] == [0]
    put_expiring(timed, 2, 50)
    [stored] = timed.turn(took_ms=50)
    assert stored.body["id"] == 2
    [told] = timed.turn()
    assert (code_of(told), told.body["first_id"]) == ("expired", 2)


def test_who_knows_no_expiry_is_told_of_a_gap_and_sent_no_expiry(timed: BrokerBench) -> None:
    put_expiring(timed, 1, 50)
    put_expiring(timed, 2, 60_000)
    timed.turn()
    timed.ask(GET, "t", max_count=2, properties=True)
    [given] = timed.turn()
    assert (given.body["count"], given.data) == (2, b"pp")
    timed.now_ms += 50
    timed.ask(GET, "t", properties=True)
    timed.turn()
    [told] = timed.turn()
    assert (code_of(told), told.body["first_id"], told.body["last_id"]) == ("gap", 1, 1)


# What JSON can have in a field's place; 0.0 == False and 1.0 == True.
_STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1, 0.0, 1.0, -0.0, 1.5, 1e308, 2**53 - 1, 2**53, 2**64 - 1),
    *("", "x", "\0", "é" * 200, "new", "@5", "@٣", [], [[]], [1], [[1, 1, 1]], [[1, 1.0, 1]]),
    *([[1, 1, 1, 1]], [True], ["a"], {}, {"t": 1}, {"t": 1.0}, {"keep": "forever", "amount": 0.0}),
]
_FIELDS_OF: dict[str, dict[str, Any]] = {
    REQUEST_ID: {"sequence": 1, "nonce": "n", "create": True},
    SUB: {
        "sequence": 1,
        "start": "new",
        "group": "w",
        "lease_ms": 1000,
        "max_attempts": 3,
        "dead_letter": "dead",
        "ordered_by_key": False,
    },
    UNSUB: {"sequence": 1, "group": "w"},
    "SEEK": {"sequence": 1, "start": 1},
    PUT: {"counter": 1, "publication": "p", "count": 1},
    GET: {"last_id": 1, "placed": 0, "last_ids": {"t": 1}, "max_count": 1, "max_bytes": 1},
    "TAKE": {
        "group": "w",
        "number": 1,
        "max_count": 1,
        "max_bytes": 1,
        "lease_ms": 1000,
        "acks": [[1, 1, 1]],
        "naks": [[1, 1, 1, 1]],
        "extends": [[1, 1, 1, 1000]],
    },
    "ADMIN": {
        "act": "purge",
        "act_id": "a",
        "last_id": 1,
        "user": "u",
        "publish": ["a"],
        "group": "w",
        "subscribe": ["a"],
        "observe": True,
        "admin": True,
        "start": 1,
        "ends": True,
        "policy": {"keep": "forever", "amount": 0},
        "node": "a",
    },
}


@pytest.mark.parametrize("kind", _FIELDS_OF)
def test_what_a_leader_takes_from_a_client_every_node_reads_from_the_log(
    timed: BrokerBench, kind: str
) -> None:
    fields = _FIELDS_OF[kind]
    acts = sorted(ACTS - {"transfer-leader"}) if kind == "ADMIN" else [""]
    entered = 0
    timed.put(1)
    timed.turn()
    for name, strange, act in product(fields, _STRANGE, acts):
        body = fields | ({"act": act} if act else {}) | {name: strange}
        with suppress(ProtocolError):  # it is refused before
            timed.ask(kind, "" if kind == REQUEST_ID or name == "last_ids" else "t", **body)
        before = timed.store.applied_index
        timed.turn()  # decodes each entry, as a follower does
        entered += timed.store.applied_index - before
    assert entered


def test_what_no_node_could_read_from_the_log_is_refused(timed: BrokerBench) -> None:
    made = Request(SUB, "r", "t", ME, None, {"group": "w", "start": "new"})
    request = decode_request(encode_request(made))
    request.body["ordered_by_key"] = 0.0
    assert timed.broker.request(b"me", request, timed.now_ms) is None
    [answer] = timed.turn()
    assert code_of(answer) == "bad_request"
    assert "MakeGroup's fields are wrong" in answer.body["message"]


def sizes(bench: BrokerBench) -> list[int]:
    """Return how many operations each entry of a turn has."""
    return [len(commands.decode(payload)[1]) for _, payload in bench.submit()]


def test_what_is_long_to_apply_stands_alone_in_its_entry(timed: BrokerBench) -> None:
    timed.ask(SUB, "u")
    timed.put(1)
    for _ in range(3):
        timed.ask(SUB, "x.*")
    timed.ask(UNSUB, "x.*")
    timed.ask("ADMIN", "u", act="topic-delete", ends=True)
    timed.ask("ADMIN", act="drop-client")
    timed.put(2)
    assert sizes(timed) == [2, *[1] * 6, 1]


def test_starts_at_a_time_are_spread_over_entries(timed: BrokerBench) -> None:
    """To find where each is takes as long as thirty subscriptions."""
    for number, start in enumerate(("new", *["@0"] * 40, "earliest")):
        timed.ask(SEEK, f"t{number}", start=start)
    assert sizes(timed) == [32, 10]


def test_batches_with_delays_are_spread_over_entries(timed: BrokerBench) -> None:
    """Each of their publications may be a row of its own."""
    later = Enveloped(encode_properties(Properties(deliver_after_ms=1)))
    for counter in (1, 601, 1_201):
        request = Request(PUT, "r", "t", ME, None, {"counter": counter, "count": 600})
        request.lengths, request.data = pack([later] * 600)
        timed.receive(decode_request(encode_request(request)))
    assert sizes(timed) == [1, 1, 1]


def test_topics_that_patterns_bring_to_many_are_spread_over_entries(
    timed: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "ENTRY_WORK_MAX", 6)
    for pattern in ("x.*", "x.>"):
        timed.ask(SUB, pattern)
        timed.turn()
    for number in range(5):
        timed.ask(SUB, f"x.{number}")  # each a subscription, and two that are brought
    for number in range(5):
        timed.ask(SUB, f"y.{number}")  # brought to nobody
    assert sizes(timed) == [2, 2, 4, 2]


def test_a_get_of_any_topic_is_answered_though_several_have_long_runs_that_have_expired(
    timed: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found of one topic was forgotten where another one's run was looked at."""
    monkeypatch.setattr(publications, "READ_ROWS_MAX", 4)
    names = ("t", "u", "v")
    for name in names[1:]:
        timed.ask(SUB, name)
    timed.turn()
    for name in names:
        put_expiring(timed, 1, 60_000, name)  # holds the floor
    timed.turn()
    for counter in range(2, 22):
        for name in names:
            put_expiring(timed, counter, 1, name)
        timed.turn()
    timed.turn(took_ms=2)
    timed.ask(SUB, "w")
    timed.turn()  # an entry, so that the log's time has gone on
    steps = 0
    read = Broker._read

    def counted(broker: Broker, waiting: Waiting) -> Any:
        nonlocal steps
        steps += 1
        assert steps < 100, "it goes on for ever"
        return read(broker, waiting)

    monkeypatch.setattr(Broker, "_read", counted)
    timed.ask(GET, "", last_ids=dict.fromkeys(names, 1), expiry=True)
    [told] = [each for each in timed.turn() + timed.turn() if "last_id" in each.body]
    assert (code_of(told), told.body["last_id"]) == ("expired", 21)


def test_a_parked_get_hears_of_a_seek_of_its_client_at_once(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path)
    index = bench.store.applied_index + 1
    bench.store.apply(index, 1, commands.encode(0, [Raise(LEVEL_OF_GROUPS)]))
    bench.put(1)
    bench.turn()
    bench.ask(GET, "t", last_id=1, wait_ms=1000)
    assert bench.turn() == []
    bench.ask(SEEK, "t", start="new", sequence=2)
    sought, told = bench.turn()
    assert (code_of(sought), code_of(told)) == ("ACK", "uncertain")
    assert told.body["placed"] == sought.body["placed"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [(UNSUB, {}), ("ADMIN", {"act": "drop-subscription"})],
    ids=["left", "dropped"],
)
def test_who_waits_for_a_topic_hears_at_once_that_the_pattern_is_gone_that_brought_it(
    timed: BrokerBench, kind: str, body: dict[str, Any]
) -> None:
    timed.ask(SUB, "x.*")
    timed.turn()
    timed.ask(PUT, "x.1", counter=1, publication="p")
    timed.turn()
    for topic, last_id in (("x.1", 1), ("t", 0)):
        timed.ask(GET, topic, last_id=last_id, wait_ms=1000)
    assert timed.turn() == []
    timed.ask(kind, "x.*", **body)
    assert [code_of(answer) for answer in timed.turn()] == ["ACK", "uncertain"]
    assert timed.broker.load()["publication"] == 1


def test_who_waits_for_any_topic_hears_at_once_that_there_was_no_room_for_one(
    tmp_path: Path,
) -> None:
    bench = BrokerBench(tmp_path)
    bench.store.commit()
    bench.store.close()
    path, limits = tmp_path / "store.db", Limits(subscriptions_per_client_max=1)
    bench.store = bench.broker.store = Store.open(path, {}, limits)
    index = bench.store.applied_index + 1
    bench.store.apply(index, 1, commands.encode(0, [Raise(LEVEL_OF_TOPICS)]))
    bench.ask(SUB, "x.*")
    bench.ask(GET, wait_ms=1000, last_ids={})
    assert [code_of(answer) for answer in bench.turn()] == ["ACK"]
    bench.ask(PUT, "x.1", counter=1, publication="p")
    assert [code_of(answer) for answer in bench.turn()] == ["ACK", "too_many"]


@pytest.mark.parametrize("kind", [SEEK, SUB])
def test_who_was_placed_and_moved_at_once_by_somebody_else_is_told_so(
    timed: BrokerBench, kind: str
) -> None:
    """A place is known by its entry's number, so an entry places a subscription once."""
    topic = "t" if kind == SEEK else "u"
    for counter in range(1, 6):
        timed.ask(PUT, topic, counter=counter, publication="p")
    timed.ask("ADMIN", topic, "", act="topic-create", policy=parse_keep("forever"))
    timed.turn()
    timed.ask(kind, topic, start="earliest")
    timed.ask(SEEK, topic, start="new")
    timed.ask(SEEK, "t", start="new")
    first, second = timed.turn()[:2]
    assert first.body["placed"] < second.body["placed"]
    timed.ask(GET, topic, last_id=first.body["last_id"], placed=first.body["placed"])
    assert [code_of(answer) for answer in timed.turn()] == ["moved"]
