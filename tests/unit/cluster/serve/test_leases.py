"""TAKE at the leader: what goes into the log, who waits, and what wakes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.serve.broker import Answer
from cluster.serve.leases import LOOK_MS, OFFERED_MAX, TAKES_OF_ONE_MAX
from cluster.store import commands
from cluster.store.commands import DropClient, MakeGroup, Raise, Register, SetTopic
from cluster.store.groups import GroupLimits, SharedGroup
from cluster.store.outcomes import Done
from cluster.wire.levels import LEVEL_OF_DEAD_LETTERS, LEVEL_OF_GROUPS
from flotilla_client.protocol import (
    ADMIN,
    CREATE_TOPIC,
    GET,
    INSPECT,
    REQUEST_ID,
    SETTLE_ROWS_MAX,
    SETTLED_MAX,
    SUB,
    TAKE,
    TOPIC_BYTES_MAX,
    UNSUB,
    ProtocolError,
    Request,
    decode_request,
    encode_request,
    unpack,
)
from tests.unit.cluster.serve.test_broker import ME, BrokerBench, code_of

LEASE_MS = 1_000


class LeasesBench(BrokerBench):
    """A broker whose entries have the time, in a cluster of the level of groups."""

    term = 1

    def __init__(self, directory: Path, **limits: int) -> None:
        self.entries = 0
        super().__init__(directory, **limits)
        self.broker.term = lambda: self.term
        for operation in (Raise(LEVEL_OF_GROUPS), Register("you", True, None, "")):
            payload = commands.encode(0, [operation])
            self.store.apply(self.store.applied_index + 1, self.term, payload)
        self.ask(SUB, "t", group="g", lease_ms=LEASE_MS)
        self.ask(UNSUB, "t")
        assert [code_of(each) for each in self.turn()] == ["ACK", "ACK"]
        self.counter = 0

    def submit(self) -> list[tuple[int, bytes]]:
        if not self.store.applied_index:
            self.store.apply(1, self.term, b"")
        entries, index = [], self.store.applied_index
        for operations, authors in self.broker.take_entries():
            index += 1
            self.entries += 1
            self.broker.submitted(index, self.term, authors)
            entries.append((index, commands.encode(int(self.now_ms), operations)))
        return entries

    def turn(self) -> list[Answer]:
        """Take turns until nothing more is to be proposed."""
        answers: list[Answer] = []
        while True:
            for index, payload in self.submit():
                outcomes = self.store.apply(index, self.term, payload)
                self.broker.applied(index, self.term, outcomes)
            self.serve(self.barrier, self.store.applied_index)
            answers += self.taken()
            if not self.broker.has_operations:
                return answers

    def take(self, client_id: str = ME, **body: Any) -> list[Answer]:
        self.ask(TAKE, "t", client_id, **{"group": "g", "max_count": 10, **body})
        return self.turn()

    def publish(self, count: int = 1) -> list[Answer]:
        for _ in range(count):
            self.counter += 1
            self.put(self.counter, b"%d" % self.counter)
        return [each for each in self.turn() if "leases" in each.body]


@pytest.fixture
def bench(tmp_path: Path) -> LeasesBench:
    return LeasesBench(tmp_path)


def test_a_take_brings_publications_with_their_token_and_attempts(bench: LeasesBench) -> None:
    bench.publish(3)
    [answer] = bench.take(max_count=2)
    assert answer.body == {
        "topic": "t",
        "group": "g",
        "count": 2,
        "token": answer.body["token"],
        "leases": [[1, 2, 1]],
        "left_ms": LEASE_MS,
        "lease_ms": LEASE_MS,
        "lost": [],
        "timestamps": [[2, None]],
    }
    assert answer.body["token"] > 0
    assert unpack(answer.lengths, answer.data) == [b"1", b"2"]


@pytest.mark.parametrize("later_ms", [LEASE_MS // 4, LEASE_MS * 4])
def test_a_take_says_how_long_its_own_leases_are_though_the_group_was_changed_since(
    bench: LeasesBench, later_ms: int
) -> None:
    bench.publish()
    bench.ask(TAKE, "t", group="g")
    bench.ask(SUB, "t", group="g", lease_ms=later_ms)  # carried out before the TAKE is answered
    [answer] = [each for each in bench.turn() if "leases" in each.body]
    assert (answer.body["left_ms"], answer.body["lease_ms"]) == (LEASE_MS, LEASE_MS)


def test_a_lease_that_is_told_again_is_no_shorter_than_what_is_left_of_it(
    bench: LeasesBench,
) -> None:
    bench.publish()
    bench.take(number=1)
    bench.ask(SUB, "t", group="g", lease_ms=LEASE_MS // 4)
    bench.turn()
    bench.now_ms += LEASE_MS / 2
    [answer] = bench.take(number=1)  # as behind a lost answer
    assert (answer.body["left_ms"], answer.body["lease_ms"]) == (LEASE_MS // 2, LEASE_MS // 2)


def test_leases_of_which_one_was_extended_are_told_again_for_as_long_as_the_shortest(
    bench: LeasesBench,
) -> None:
    bench.publish(2)
    [first] = bench.take(number=1, max_count=2)
    extends = [[first.body["token"], 2, 2, 4 * LEASE_MS]]
    bench.take(max_count=0, extends=extends)
    [answer] = bench.take(number=1, max_count=2)  # as behind a lost answer
    assert answer.body["leases"] == [[1, 1, 1], [2, 1, 1]]
    assert answer.body["left_ms"] == LEASE_MS


def test_a_take_without_anything_to_give_leaves_the_log_alone(bench: LeasesBench) -> None:
    before = bench.entries
    [answer] = bench.take()
    assert (answer.body["count"], answer.body["token"]) == (0, 0)
    assert bench.take(wait_ms=500) == []
    bench.now_ms = 500.0
    [answer] = bench.turn()
    assert (answer.body["count"], bench.entries) == (0, before)


def test_a_take_that_waits_keeps_nothing_of_what_it_has_settled(bench: LeasesBench) -> None:
    """Ten thousand may wait, and each have settled 256 runs."""
    bench.publish(3)
    [first] = bench.take()
    acks = [[first.body["token"], id_, id_] for id_ in (1, 2, 3, 9)]
    assert bench.take(acks=acks, wait_ms=500) == []
    [waiting] = [each for own in bench.broker._parked_takes.values() for each in own.values()]
    assert (waiting.request.body["acks"], waiting.carried_out) == ([], True)
    [answer] = bench.publish()
    assert (answer.body["leases"], answer.body["lost"]) == ([[4, 1, 1]], [[9, 1]])


def test_a_publication_wakes_one_take_and_what_it_leaves_the_next(bench: LeasesBench) -> None:
    for client in (ME, "you", ME):
        assert bench.take(client, wait_ms=5_000, max_count=1) == []
    [answer] = bench.publish()
    assert answer.body["leases"] == [[1, 1, 1]]
    answers = bench.publish(2)
    assert [each.body["leases"] for each in answers] == [[[2, 1, 1]], [[3, 1, 1]]]


def test_who_asks_for_nothing_does_not_wait_beside_those_who_are_offered_what_comes(
    bench: LeasesBench,
) -> None:
    for _ in range(OFFERED_MAX + 1):
        [answer] = bench.take("you", max_count=0, wait_ms=5_000)
        assert answer.body["count"] == 0
    assert bench.take(wait_ms=5_000) == []
    [answer] = bench.publish()
    assert answer.body["leases"] == [[1, 1, 1]]


def test_who_may_have_no_more_does_not_stand_before_those_who_may(
    bench: LeasesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.store.groups, "_limits", GroupLimits(leases_per_client_max=1))
    bench.publish()
    assert bench.take("you")[0].body["count"] == 1
    refused = [each for _ in range(OFFERED_MAX) for each in bench.take("you", wait_ms=5_000)]
    assert {code_of(each) for each in refused} == {"overloaded"}
    assert len(refused) == OFFERED_MAX - TAKES_OF_ONE_MAX
    assert bench.take(wait_ms=5_000) == []
    [answer] = bench.publish()
    assert answer.body["leases"] == [[2, 1, 1]]


def test_all_who_may_have_no_more_at_a_time_leave_others_a_place_among_those_offered() -> None:
    limits = GroupLimits()
    full = limits.open_per_group_max // limits.leases_per_client_max
    assert full * TAKES_OF_ONE_MAX < OFFERED_MAX


def test_whose_takes_were_woken_or_answered_may_wait_again(bench: LeasesBench) -> None:
    def parked() -> int:
        takes = (bench.take("you", wait_ms=500, max_count=1) for _ in range(TAKES_OF_ONE_MAX + 1))
        return sum(not answers for answers in takes)

    assert parked() == TAKES_OF_ONE_MAX
    bench.publish(TAKES_OF_ONE_MAX)
    assert parked() == TAKES_OF_ONE_MAX
    bench.now_ms += 500
    assert len(bench.turn()) == TAKES_OF_ONE_MAX
    assert parked() == TAKES_OF_ONE_MAX
    bench.broker.users_changed()
    assert bench.turn() == []
    bench.broker.abdicate("n2")
    bench.taken()
    assert parked() == TAKES_OF_ONE_MAX


def test_what_was_offered_to_a_take_that_is_refused_is_offered_to_the_next(
    bench: LeasesBench,
) -> None:
    for _ in range(3):
        bench.ask(TAKE, "t", "you", epoch=1, group="g", wait_ms=5_000)
    bench.turn()
    bench.ask(REQUEST_ID, client_id="you")  # a newer process: what the older one asks is refused
    bench.turn()
    assert bench.take(wait_ms=5_000) == []
    [answer] = bench.publish()
    assert answer.body["leases"] == [[1, 1, 1]]


def test_what_was_offered_to_a_take_whose_connection_is_full_is_offered_to_the_next(
    bench: LeasesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in ("you", ME):
        assert bench.take(client, wait_ms=5_000) == []
    rooms = iter((0,))  # of the first that is served
    monkeypatch.setattr(bench.broker, "room_bytes", lambda route: next(rooms, bench.room_bytes))
    bench.put(1)
    put, refused, given = bench.turn()
    assert [code_of(put), code_of(refused)] == ["ACK", "overloaded"]
    assert given.body["leases"] == [[1, 1, 1]]


def test_what_was_offered_to_a_take_that_its_entry_refuses_is_offered_to_the_next(
    bench: LeasesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.store.groups, "_limits", GroupLimits(workers_max=1))
    bench.publish()
    bench.take(number=1)  # who has leases is the only one that the group may know
    assert bench.take("you", number=1, wait_ms=5_000) == []
    assert bench.take("you", wait_ms=5_000) == []
    [answer] = bench.publish()
    assert answer.body["leases"] == [[2, 1, 1]]


def test_a_look_for_what_ran_out_asks_a_group_once_however_many_wait(
    bench: LeasesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in (ME, "you"):
        for _ in range(TAKES_OF_ONE_MAX):
            bench.take(client, wait_ms=5_000)
    groups, asked = bench.store.groups, list[str]()
    has_work = groups.has_work

    def counted(group: SharedGroup, client_id: str, now_ms: int) -> bool:
        asked.append(client_id)
        return has_work(group, client_id, now_ms)

    monkeypatch.setattr(groups, "has_work", counted)
    bench.now_ms += LOOK_MS
    assert bench.turn() == []
    assert asked == [""]


def test_what_takes_settle_is_spread_over_entries(bench: LeasesBench) -> None:
    for _ in range(3):
        bench.ask(TAKE, "t", group="g", extends=[[1, 1, SETTLED_MAX, LEASE_MS]])
    for _ in range(3):
        bench.ask(TAKE, "t", group="g", acks=[[1, 1, 1]])
    entries = [len(commands.decode(payload)[1]) for _, payload in bench.submit()]
    assert entries == [1, 1, 4]


def test_what_is_given_back_wakes_who_waits(bench: LeasesBench) -> None:
    bench.publish()
    [answer] = bench.take()
    assert bench.take("you", wait_ms=5_000) == []
    answers = bench.take(max_count=0, naks=[[answer.body["token"], 1, 1, 0]])
    assert [each.body["leases"] for each in answers] == [[], [[1, 1, 2]]]


def test_a_lease_that_runs_out_wakes_who_waits_though_nothing_else_happens(
    bench: LeasesBench,
) -> None:
    bench.publish()
    bench.take()
    assert bench.take("you", wait_ms=50_000) == []
    bench.now_ms = LEASE_MS - 1.0
    before = bench.entries
    assert bench.turn() == []
    bench.now_ms = LEASE_MS + 20.0
    [answer] = bench.turn()
    assert (answer.body["leases"], bench.entries) == ([[1, 1, 2]], before + 1)


def test_a_new_leader_lets_the_log_s_time_go_on_for_who_waits(bench: LeasesBench) -> None:
    bench.publish()
    bench.take()
    bench.broker.abdicate("")
    bench.taken()
    bench.term = 2
    bench.now_ms = 1_000_000.0  # its clock has nothing to do with that of the leader before
    assert bench.take("you", wait_ms=50_000) == []
    bench.now_ms += LEASE_MS - 1.0
    assert bench.turn() == []
    bench.now_ms += 21.0
    [answer] = bench.turn()
    assert answer.body["leases"] == [[1, 1, 2]]


@pytest.mark.parametrize("number", [2, None])  # None: by hand
def test_a_take_that_settles_and_waits_tells_both(bench: LeasesBench, number: int | None) -> None:
    bench.publish()
    token = bench.take(number=1)[0].body["token"]
    before = bench.entries
    assert bench.take(number=number, acks=[[token, 1, 3]], wait_ms=5_000) == []
    [answer] = bench.publish()
    assert (answer.body["leases"], answer.body["lost"]) == ([[2, 1, 1]], [[2, 2]])
    assert bench.entries == before + 3


def test_a_repeated_take_gets_the_same_also_while_its_first_request_waits(
    bench: LeasesBench,
) -> None:
    for _ in range(2):
        assert bench.take(number=1, wait_ms=5_000) == []
    answers = bench.publish()
    assert [each.body["leases"] for each in answers] == [[[1, 1, 1]], [[1, 1, 1]]]
    [answer] = bench.take(number=1)
    assert (answer.body["leases"], answer.data) == ([[1, 1, 1]], b"1")


def test_a_take_of_a_group_that_ends_is_told_so(bench: LeasesBench) -> None:
    bench.publish()
    [answer] = bench.take("you")
    assert bench.take(wait_ms=5_000) == []
    bench.ask(ADMIN, "t", "", act="drop-group", group="g")
    assert sorted(code_of(each) for each in bench.turn()) == ["ACK", "unknown_topic"]
    assert code_of(*bench.take("you", acks=[[answer.body["token"], 1, 1]])) == "unknown_topic"
    assert code_of(*bench.take()) == "unknown_topic"


def test_of_what_was_settled_no_refusal_is_definite(bench: LeasesBench) -> None:
    bench.publish()
    token = bench.take()[0].body["token"]
    assert bench.take(acks=[[token, 1, 1]], wait_ms=5_000) == []
    bench.ask(REQUEST_ID, client_id=ME)
    bench.ask(UNSUB, "t", group="g")
    codes = [(code_of(each), each.body.get("definite")) for each in bench.turn()]
    assert ("uncertain", False) in codes


def test_deadlines_and_leases_hold_in_a_full_table_of_parked_requests(tmp_path: Path) -> None:
    bench = LeasesBench(tmp_path, parked_gets_max=1)
    bench.publish()
    token = bench.take()[0].body["token"]
    assert bench.take("you", wait_ms=5_000) == []
    assert code_of(*bench.take(wait_ms=5_000)) == "overloaded"
    [answer] = bench.take(wait_ms=5_000, acks=[[token, 1, 1]])
    assert (code_of(answer), answer.body["count"]) == ("ACK", 0)


def test_a_group_s_dead_letters_wake_who_reads_them(bench: LeasesBench) -> None:
    bench.ask(SUB, "dead")
    bench.ask(SUB, "t", group="g", lease_ms=LEASE_MS, max_attempts=1, dead_letter="dead")
    bench.turn()
    bench.publish()
    token = bench.take()[0].body["token"]
    bench.ask(GET, "dead", wait_ms=5_000)
    assert bench.turn() == []
    answers = bench.take("you", naks=[], acks=[]) + bench.take(naks=[[token, 1, 1, 0]])
    assert b"1" in [each.data for each in answers]


@pytest.mark.parametrize(
    ("kind", "body"),
    [(UNSUB, {}), (SUB, {"max_attempts": 1, "dead_letter": "elsewhere"})],
    ids=["ended", "set anew"],
)
def test_dead_letters_wake_their_readers_whatever_the_same_entry_makes_of_their_group(
    bench: LeasesBench, kind: str, body: dict[str, Any]
) -> None:
    bench.ask(SUB, "dead")
    bench.ask(SUB, "t", group="g", lease_ms=LEASE_MS, max_attempts=1, dead_letter="dead")
    bench.turn()
    bench.publish()
    token = bench.take()[0].body["token"]
    bench.ask(GET, "dead", wait_ms=5_000)
    assert bench.turn() == []
    bench.ask(TAKE, "t", group="g", max_count=1, naks=[[token, 1, 1, 0]])
    bench.ask(kind, "t", group="g", **body)
    assert b"1" in [each.data for each in bench.turn()]


def test_a_take_of_a_client_that_is_dropped_waits_no_more(bench: LeasesBench) -> None:
    assert bench.take("you", wait_ms=5_000) == []
    assert bench.take(wait_ms=5_000) == []
    [outcome] = bench.store.apply(
        bench.store.applied_index + 1,
        bench.term,
        commands.encode(0, [DropClient("you", is_root=True)]),
    )
    assert isinstance(outcome, Done)
    bench.broker.forgotten(outcome.body["forgotten"], outcome.body["left"])
    [answer] = bench.turn()
    assert code_of(answer) == "forgotten"
    assert bench.broker.load()["publication"] == 1


def test_groups_are_listed(bench: LeasesBench) -> None:
    bench.publish(3)
    bench.take(max_count=2)
    bench.ask(INSPECT, what="groups")
    [answer] = bench.turn()
    [row] = answer.body["rows"]
    assert (row["topic"], row["group"], row["backlog"], row["leased"]) == ("t", "g", 3, 2)


def test_below_its_level_a_cluster_has_no_groups(tmp_path: Path) -> None:
    bench = BrokerBench(tmp_path)
    bench.ask(SUB, "t", group="g")
    bench.ask(UNSUB, "t", group="g")
    bench.ask(TAKE, "t", group="g")
    bench.ask(INSPECT, what="groups")
    assert {code_of(each) for each in bench.turn()} == {"unsupported"}


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (TAKE, {}, "group's name"),
        (TAKE, {"group": "g\n"}, "group's name"),
        (TAKE, {"group": "g", "acks": [[1, 2]]}, "`acks`"),
        (TAKE, {"group": "g", "acks": [[1, 3, 2]]}, "`acks`"),
        (TAKE, {"group": "g", "naks": [[1, 2, 3]]}, "`naks`"),
        (TAKE, {"group": "g", "extends": [[1, 2, 3, 1]]}, "`extends`"),
        (TAKE, {"group": "g", "lease_ms": 1}, "`lease_ms`"),
        (TAKE, {"group": "g", "acks": [[1, 1, 10_000]]}, "to settle"),
        (TAKE, {"group": "g", "acks": [[1, 1, 1]] * (SETTLE_ROWS_MAX + 1)}, "runs to settle"),
        (SUB, {"group": "g", "dead_letter": "d"}, "goes with `max_attempts`"),
        (SUB, {"group": "g", "max_attempts": 3, "dead_letter": "t"}, "its own topic"),
        (SUB, {"group": "g", "max_attempts": 3, "dead_letter": "\n"}, "printable"),
    ],
)
def test_what_is_no_take_or_no_group_is_refused(kind: str, body: dict[str, Any], said: str) -> None:
    request = Request(kind, "r", "t", ME, None, body)
    with pytest.raises(ProtocolError, match=said):
        decode_request(encode_request(request))


@pytest.mark.parametrize(
    ("dead_letter", "code", "said"),
    [
        ("t", "bad_request", "its own topic"),
        ("t.*", "bad_request", "pattern"),
        ("x" * (TOPIC_BYTES_MAX + 1), "too_large", "`dead_letter`"),
        (5, "bad_request", "`dead_letter`"),
    ],
)
def test_what_is_no_topic_for_dead_letters_is_refused(
    dead_letter: Any, code: str, said: str
) -> None:
    body = {"act": CREATE_TOPIC, "policy": {"dead_letter": dead_letter}}
    with pytest.raises(ProtocolError, match=said) as caught:
        decode_request(encode_request(Request(ADMIN, "r", "t", "", None, body)))
    assert caught.value.code == code


def test_dead_letters_that_go_where_the_topic_says_take_a_level(bench: LeasesBench) -> None:
    bench.ask(SUB, "t", group="g", max_attempts=1)
    policy = {"keep": "unread", "amount": 0, "dead_letter": "dead"}
    bench.ask(ADMIN, "t", "", act=CREATE_TOPIC, policy=policy)
    for answer in bench.turn():
        assert (code_of(answer), answer.body["needs"]) == ("unsupported", 5)


def test_who_waits_for_dead_letters_is_woken_wherever_they_go(bench: LeasesBench) -> None:
    policy = {"dead_letter": "dead"}
    operations = (
        Raise(LEVEL_OF_DEAD_LETTERS),
        SetTopic("t", policy, is_new=True, is_root=True),
        MakeGroup("you", None, "t", None, "g", None, 1, None),
    )
    for operation in operations:
        payload = commands.encode(0, [operation])
        bench.store.apply(bench.store.applied_index + 1, bench.term, payload)
    bench.ask(SUB, "dead")
    bench.turn()
    bench.put(1)
    bench.turn()
    bench.ask(GET, "dead", wait_ms=10_000)
    assert bench.turn() == []
    bench.ask(TAKE, "t", group="g")
    [given] = [each for each in bench.turn() + bench.turn() if each.body.get("count")]
    bench.ask(TAKE, "t", group="g", max_count=0, naks=[[given.body["token"], 1, 1, 0]])
    bench.turn()
    bench.ask(TAKE, "t", group="g")
    answers = [*bench.turn(), *bench.turn()]
    assert [(each.body["topic"], each.body["count"]) for each in answers if each.data] == [
        ("dead", 1)
    ]


def test_a_take_that_waits_is_looked_at_again_when_users_change(bench: LeasesBench) -> None:
    assert bench.take(wait_ms=5_000) == []
    bench.broker.users_changed()
    assert bench.broker.load()["publication"] == 0
    assert bench.broker.load()["turn"] == 1
