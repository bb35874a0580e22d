"""Claims about cluster/store/groups.py: the rules of groups, alone and against the reference."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.store import groups
from cluster.store.commands import (
    ENTRY_BYTES_MAX,
    OPERATIONS_PER_ENTRY,
    Advance,
    DeleteTopic,
    DropClient,
    DropGroup,
    EndGroup,
    Hear,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    SeekGroup,
    SetTopic,
    Stamp,
    Subscribe,
    Take,
    Unsubscribe,
    encode,
    level_of,
    size_bytes,
)
from cluster.store.commands import decode as decode_entry
from cluster.store.groups import PASSED_OVER, GroupLimits, Lease, SharedGroup
from cluster.store.outcomes import Delivery, Leased, Outcome
from cluster.store.store import Limits, Store
from cluster.store.tables import CorruptStore
from cluster.wire.levels import LEVEL_OF_DEAD_LETTERS, LEVEL_OF_KEY_ORDER
from flotilla_client.policies import parse_keep
from flotilla_client.properties import Enveloped, Properties, decode
from flotilla_client.properties import encode as envelope_of
from flotilla_client.protocol import PUBLICATION_BYTES_MAX, pack, text_of, unpack
from tests.seeds import seeds
from tests.unit.model_store import MEMBERS, SMALL, ModelStore, answer_of
from tests.unit.store_bench import Bench

LIMITS = replace(SMALL, clients_max=6, groups=GroupLimits(3, 30, 20, 8, 2, 5))
LEASE_MS = 1_000


def making(group: str = "g", topic: str = "t", **settings: Any) -> MakeGroup:
    fields = {"lease_ms": LEASE_MS, "max_attempts": None, "dead_letter": None} | settings
    return MakeGroup("a", None, topic, None, group, **fields)


def taking(
    client: str = "a",
    count: int = 10,
    number: int | None = None,
    acks: Any = (),
    naks: Any = (),
    extends: Any = (),
    epoch: int | None = None,
    max_bytes: int = 1_000_000,
) -> Take:
    acks, naks, extends = ([list(row) for row in rows] for rows in (acks, naks, extends))
    return Take(client, epoch, "t", "g", number, count, max_bytes, None, acks, naks, extends)


class GroupsBench(Bench):
    """A store with the clients a, b and the publisher p; each call is an entry at `now_ms`."""

    def __init__(self, path: Path, limits: Limits = LIMITS) -> None:
        super().__init__(path, limits)
        self.counter = 0
        self.ok(Raise(LEVEL_OF_KEY_ORDER))
        for client in "abp":
            self.ok(Register(client, True, None, ""))

    def restart(self, limits: Limits | None = None) -> None:
        digest = self.store.digest()
        super().restart(limits)
        assert self.store.digest() == digest

    def publish(self, *publications: bytes, topic: str = "t") -> None:
        own = any(type(each) is Enveloped for each in publications)
        batch = pack(publications)
        self.ok(Put("p", None, topic, self.counter, *batch, has_properties=own))
        self.counter += len(publications)

    def take(self, *args: Any, **fields: Any) -> dict[str, Any]:
        return self.ok(taking(*args, **fields))

    def read(self, client: str, taken: dict[str, Any]) -> list[bytes]:
        found = self.store.read_leased(client, "t", "g", taken["token"], taken["given"])
        assert isinstance(found, Leased), found
        return unpack(found.lengths, found.data)

    def row(self) -> dict[str, Any]:
        [row] = self.store.groups.page("", "", 10)
        return row

    def floor(self) -> int:
        [topic] = [each for each in self.store.topics_page("", 10) if each.name == "t"]
        return topic.floor_id


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GroupsBench]:
    """A group g of the topic t, in which five publications wait."""
    bench = GroupsBench(tmp_path / "store.db")
    assert bench.ok(making()) == {
        "last_id": 0,
        "resumed": False,
        "lease_ms": LEASE_MS,
        "max_attempts": 0,
        "dead_letter": "",
        "ordered_by_key": False,
    }
    bench.publish(b"1", b"2", b"3")
    bench.publish(b"4", b"5")
    yield bench
    bench.store.close()


# --- leases ---------------------------------------------------------------------------------------


def test_what_is_said_of_a_group_of_before_settles_nothing_in_the_one_of_its_name(
    bench: GroupsBench,
) -> None:
    bench.ok(SetTopic("t", parse_keep("forever"), is_new=True, is_root=False))
    before = bench.take(count=1, number=1)
    bench.ok(EndGroup("a", None, "t", None, "g"))
    bench.ok(making(start="earliest"))
    again = bench.take(count=1, number=1)
    assert before["given"] == again["given"] == [[1, 1, 1]]
    late = bench.take(count=0, number=2, acks=[[before["token"], 1, 1]])
    assert late["lost"] == [[1, 1]]


def test_no_entry_has_so_many_takes_that_two_groups_of_a_name_would_share_a_token() -> None:
    least = size_bytes(Take("", None, "", "", None, 0, 1, None, [], [], []))
    assert least * OPERATIONS_PER_ENTRY >= ENTRY_BYTES_MAX


def test_each_publication_is_leased_to_one_client(bench: GroupsBench) -> None:
    first, second = bench.take("a", 2), bench.take("b", 10)
    assert (first["given"], second["given"]) == ([[1, 2, 1]], [[3, 5, 1]])
    assert bench.read("a", first) == [b"1", b"2"]
    assert bench.read("b", second) == [b"3", b"4", b"5"]
    assert bench.take("a")["given"] == []


def test_what_is_acknowledged_is_never_given_again_and_let_go_in_order(bench: GroupsBench) -> None:
    taken = bench.take("a", 3)
    token = taken["token"]
    bench.take("a", 0, acks=[(token, 2, 2)])
    assert (bench.row()["cursor"], bench.floor()) == (0, 0)
    bench.take("a", 0, acks=[(token, 1, 1)])
    assert (bench.row()["cursor"], bench.floor()) == (2, 2)
    bench.now_ms += LEASE_MS
    assert bench.take("b")["given"] == [[3, 3, 2], [4, 5, 1]]


def test_a_lease_that_runs_out_is_given_again_with_its_attempt_raised(bench: GroupsBench) -> None:
    late = bench.take("a", 1)["token"]
    bench.now_ms += LEASE_MS - 1
    assert bench.take("b", 1)["given"] == [[2, 2, 1]]
    bench.now_ms += 1
    again = bench.take("b", 1)
    assert again["given"] == [[1, 1, 2]]
    assert bench.take("a", 0, acks=[(late, 1, 1)])["lost"] == [[1, 1]]
    assert bench.take("b", 0, acks=[(again["token"], 1, 1)])["lost"] == []


def test_a_lease_that_ran_out_may_be_acknowledged_as_long_as_nobody_else_has_it(
    bench: GroupsBench,
) -> None:
    token = bench.take("a", 2)["token"]
    bench.now_ms += LEASE_MS
    assert bench.take("a", 0, acks=[(token, 1, 1)], extends=[(token, 2, 2, 50)])["lost"] == []
    assert bench.take("b", 10)["given"] == [[3, 5, 1]]
    bench.now_ms += 50
    assert bench.take("b", 10)["given"] == [[2, 2, 2]]


def test_what_another_process_gives_back_is_looked_at_alone_not_all_that_lies_between(
    bench: GroupsBench,
) -> None:
    bench.take("a", 1)
    between = bench.take("b", 3)
    bench.take("b", 0, acks=[(between["token"], 2, 4)])
    bench.take("a", 1)
    bench.ok(Register("a", False, None, ""))
    group = bench.store.groups.get("t", "g")
    assert group is not None
    assert [each for each in group.timers if each[0] == bench.store.idle.log_ms] == [
        (bench.store.idle.log_ms, 1, 1),
        (bench.store.idle.log_ms, 5, 5),
    ]
    assert bench.take("b")["given"] == [[1, 1, 2], [5, 5, 2]]


def test_what_is_extended_again_and_again_is_not_looked_at_as_often_when_its_time_is_over(
    bench: GroupsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "STALE_TIMERS_MIN", 0)
    token = bench.take("a", 5)["token"]
    for _ in range(100):
        bench.take("a", 0, extends=[(token, 1, 5, LEASE_MS)])
        bench.now_ms += 1
    group = bench.store.groups.get("t", "g")
    assert group is not None
    assert sum(last + 1 - first for _, first, last in group.timers) == group.timed <= 15


def test_what_was_due_again_and_again_is_kept_once(
    bench: GroupsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "STALE_TIMERS_MIN", 0)
    token = bench.take("a", 5)["token"]
    for _ in range(10):
        bench.now_ms += LEASE_MS
        bench.take("a", 0, extends=[(token, 3, 5, LEASE_MS)])  # as late as it may
    assert bench.take("b", 1)["given"] == [[1, 1, 2]]
    group = bench.store.groups.get("t", "g")
    assert group is not None
    assert group.due == {2}
    assert len(group.due_heap) <= 2 * 2


def test_what_is_settled_is_not_looked_at_again_for_a_time_that_is_over(bench: GroupsBench) -> None:
    token = bench.take("a", 5)["token"]
    bench.take("a", 0, acks=[(token, 1, 3)])
    group = bench.store.groups.get("t", "g")
    assert group is not None
    at_ms = group.next_ms()
    assert (at_ms, group.timers) == (bench.store.idle.log_ms + LEASE_MS, [(at_ms, 4, 5)])
    assert group.timed == 2
    bench.now_ms += LEASE_MS
    assert bench.take("b")["given"] == [[4, 5, 2]]


def test_what_is_given_back_waits_for_its_delay(bench: GroupsBench) -> None:
    token = bench.take("a", 5)["token"]
    bench.take("a", 0, naks=[(token, 2, 3, 100), (token, 5, 5, 0)])
    assert bench.row()["waiting"] == 3
    assert bench.take("b", 10)["given"] == [[5, 5, 2]]
    bench.now_ms += 100
    assert bench.take("b", 10)["given"] == [[2, 3, 2]]
    assert bench.take("a", 0, acks=[(token, 2, 2)])["lost"] == [[2, 2]]


def test_nobody_settles_what_another_has(bench: GroupsBench) -> None:
    token = bench.take("a", 2)["token"]
    lost = bench.take("b", 0, acks=[(token, 1, 1)], naks=[(token, 2, 7, 0)])["lost"]
    assert lost == [[1, 7]]
    assert bench.row()["leased"] == 2


def test_a_new_process_or_a_dropped_client_loses_its_leases_at_once(bench: GroupsBench) -> None:
    bench.take("a", 2)
    bench.ok(Register("a", False, None, ""))
    taken = bench.take("b", 2)
    assert taken["given"] == [[1, 2, 2]]
    bench.ok(DropClient("b", True))
    assert bench.take("a", 2)["given"] == [[1, 2, 3]]


def test_a_new_process_looks_at_those_groups_alone_in_which_its_client_has_something(
    bench: GroupsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a thousand, and a fleet of clients that all begin at once."""
    bench.ok(making("h"))
    bench.take("a", 2, number=1)
    looked: list[str] = []
    lapse = SharedGroup.lapse

    def counted(group: SharedGroup, now_ms: int) -> None:
        looked.append(group.name)
        lapse(group, now_ms)

    monkeypatch.setattr(SharedGroup, "lapse", counted)
    for client in "ab":
        bench.ok(Register(client, False, None, ""))
    assert looked == ["g"]
    bench.ok(DropClient("a", True))
    assert looked == ["g", "g"], "it knows of that client's last take"


def test_a_new_process_looks_at_what_its_client_has_alone(bench: GroupsBench) -> None:
    """A full group has 50,000 open, and a fleet of clients begins at once."""

    class Unlooked(dict[int, Lease]):
        def items(self) -> Any:
            raise AssertionError("all that is open is looked at")

    bench.take("a", 4)
    bench.take("b", 1)
    group = bench.store.groups.get("t", "g")
    assert group is not None
    group.open = Unlooked(group.open)
    bench.ok(Register("b", False, None, ""))
    assert bench.take("b", 5)["given"] == [[5, 5, 2]]


def test_of_what_is_dropped_no_more_is_looked_at_than_there_is(bench: GroupsBench) -> None:
    class Unlooked(dict[int, Lease]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("all that is open is looked at")

    found = bench.store.groups.get("t", "g")
    assert found is not None
    group = SharedGroup(found.topic, "many", LEASE_MS, 0, "", head=9, cursor=3)
    group.open = Unlooked(dict.fromkeys((4, 6, 8, 9), Lease("a", 1, 0, 1)))
    assert (group.open_up_to(2), group.open_up_to(6)) == ([], [4, 6])
    group.open = {9: PASSED_OVER, 6: PASSED_OVER, 4: PASSED_OVER}
    assert group.open_up_to(8) == [4, 6]


def test_a_purge_of_all_that_was_given_closes_nothing_one_by_one(
    bench: GroupsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(SharedGroup, "close", lambda group, id_: closed.append(id_))
    token = bench.take("a", 3)["token"]
    bench.ok(Purge("t", 4, True))
    assert closed == []
    assert bench.take("a", 0, acks=[(token, 1, 3)])["lost"] == [[1, 3]]
    bench.restart()
    assert bench.take("b", 5)["given"] == [[5, 5, 1]]
    assert bench.store.groups._open_count == 1


def test_the_cursor_passes_at_a_stroke_what_is_far_ahead_of_it(bench: GroupsBench) -> None:
    class Counted(dict[int, Lease]):
        looks = 0

        def __contains__(self, id_: object) -> bool:
            self.looks += 1
            return super().__contains__(id_)

    found = bench.store.groups.get("t", "g")
    assert found is not None
    group = SharedGroup(found.topic, "far", LEASE_MS, 0, "", head=10**6, cursor=3)
    group.open = opened = Counted(dict.fromkeys((10**5, 10**5 + 1, 10**6), Lease("a", 1, 0, 1)))
    assert group.find_cursor() == 10**5 - 1
    del opened[10**5]
    assert group.find_cursor() == 10**5
    del opened[10**5 + 1]
    assert group.find_cursor() == 10**6 - 1
    opened.clear()
    assert group.find_cursor() == 10**6
    assert opened.looks <= 10


def test_a_take_is_bounded_by_bytes_but_for_its_first(bench: GroupsBench) -> None:
    bench.take("a", 5)
    bench.publish(b"x" * 100, b"y" * 100, b"z" * 10)
    assert bench.take("b", 10, max_bytes=50)["given"] == [[6, 6, 1]]
    assert bench.take("b", 10, max_bytes=105)["given"] == [[7, 7, 1]]
    bench.now_ms += LEASE_MS
    bench.take("a", 5)
    assert bench.take("b", 10, max_bytes=150)["given"] == [[6, 6, 2]]


def test_what_the_same_entry_publishes_is_left_to_the_next_take(bench: GroupsBench) -> None:
    bench.take("a", 5)
    put = Put("p", None, "t", bench.counter, *pack([b"6"]))
    _, (code, body) = bench.apply(put, taking("a"))
    assert (code, body["given"]) == ("ok", [])
    assert bench.take("a")["given"] == [[6, 6, 1]]


# --- repeated takes -------------------------------------------------------------------------------


def test_a_repeated_take_is_answered_as_it_was(bench: GroupsBench) -> None:
    first = bench.take("a", 2, number=1)
    assert bench.take("a", 2, number=1) == first
    settled = bench.take("a", 2, number=2, acks=[(first["token"], 1, 9)])
    assert (settled["lost"], settled["given"]) == ([[3, 9]], [[3, 4, 1]])
    bench.restart()
    assert bench.take("a", 2, number=2, acks=[(first["token"], 1, 9)]) == settled
    assert bench.apply(taking("a", number=1)) == [("stale_request", {"expected": 3})]
    bench.now_ms += LEASE_MS
    bench.take("b", 1)
    assert bench.read("a", settled) == [b"4"], "3 is b's by now"


def test_a_take_that_gave_nothing_gives_when_it_is_repeated(bench: GroupsBench) -> None:
    token = bench.take("a", 5)["token"]
    assert bench.take("b", 5, number=1)["given"] == []
    bench.take("a", 0, naks=[(token, 1, 1, 0)])
    assert bench.take("b", 5, number=1)["given"] == [[1, 1, 2]]


def test_a_new_process_counts_its_takes_anew(bench: GroupsBench) -> None:
    of_before = bench.ok(Register("a", False, None, ""))["epoch"]
    bench.take("a", 1, number=7, epoch=of_before)
    epoch = bench.ok(Register("a", False, None, ""))["epoch"]
    assert bench.take("a", 1, number=1, epoch=epoch)["given"] == [[1, 1, 2]]


def test_of_too_many_workers_the_idlest_is_forgotten(bench: GroupsBench) -> None:
    for client in "cd":
        bench.ok(Register(client, True, None, ""))
    bench.take("a", 1, number=1)
    bench.take("b", 0, number=1)
    bench.take("c", 1, number=1)  # in b's place: a has a lease
    assert bench.apply(taking("b", 0, number=1)) == [("too_many", {"limit": 2})]
    bench.restart()
    bench.now_ms += LEASE_MS
    assert bench.take("b", 0, number=1)["given"] == []
    bench.take("d", 0, number=2)  # in a's place: that lease is over, and b has asked since
    assert bench.apply(taking("b", 0, number=0))[0][0] == "stale_request"


# --- dead letters ---------------------------------------------------------------------------------


def test_a_dead_letter_is_the_same_whatever_a_node_s_python_takes_for_printable() -> None:
    name = "\u0378"  # which is unassigned to this one
    before = Enveloped(envelope_of(Properties(headers={name: "x"}), were_read=True) + b"text")
    group: Any = SimpleNamespace(name="g", topic=SimpleNamespace(name="t"))
    letter = groups._dead_letter(group, 1, before, "given 2 times, never acknowledged")
    assert [*decode(letter)[0].headers][:2] == [name, "dead-letter-topic"]
    assert text_of(letter) == b"text"


def test_what_was_given_often_enough_goes_to_the_dead_letter_topic(bench: GroupsBench) -> None:
    bench.ok(making(max_attempts=2, dead_letter="dead"))
    bench.ok(Subscribe("b", None, "dead", None))
    for attempt in (1, 2):
        token = bench.take("a", 1)["token"]
        assert bench.row()["attempts"] == attempt
        bench.take("a", 0, naks=[(token, 1, 1, 0)])
    taken = bench.take("a", 1)
    assert (taken["dead"], taken["given"]) == (1, [[2, 2, 1]])
    found = bench.store.read("b", "dead", None, 10, 1000)
    assert isinstance(found, Delivery), found
    [letter] = unpack(found.lengths, found.data)
    assert text_of(letter) == b"1"
    assert decode(letter)[0].headers == {
        "dead-letter-topic": "t",
        "dead-letter-id": "1",
        "dead-letter-group": "g",
        "dead-letter-reason": "given 2 times, never acknowledged",
    }
    assert bench.row()["cursor"] == 1


def test_a_dead_letter_keeps_its_properties_and_is_as_it_was_without_room_for_headers(
    bench: GroupsBench,
) -> None:
    bench.take("a", 5)
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    bench.ok(Subscribe("b", None, "dead", None))
    kept = Enveloped(envelope_of(Properties("k", {"n": b"v", "dead-letter-id": "7"})) + b"text")
    large = b"x" * PUBLICATION_BYTES_MAX
    full = Enveloped(envelope_of(Properties(None, {f"h{n}": "v" for n in range(64)})) + b"full")
    for publication in (kept, large, full):
        bench.publish(publication)
    for _ in range(4):
        token = bench.take("b", 10, max_bytes=2**20)["token"]
        bench.take("b", 0, naks=[(token, 6, 8, 0)])
    letters = []
    for id_ in range(3):
        found = bench.store.read("b", "dead", id_, 1, 2**21)
        assert isinstance(found, Delivery), found
        letters += unpack(found.lengths, found.data)
    properties, size = decode(letters[0])
    assert (properties.key, letters[0][size:]) == ("k", b"text")
    assert properties.headers["n"] == b"v"
    assert properties.headers["dead-letter-id"] == "6"
    assert letters[1:] == [large, full]


def test_a_dead_letter_without_room_for_headers_does_not_expire_any_more(
    bench: GroupsBench,
) -> None:
    bench.take("a", 0, acks=[(bench.take("a", 5)["token"], 1, 5)])
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    bench.ok(Subscribe("b", None, "dead", None))
    own = envelope_of(Properties("k", {}, expires_ms=60_000))
    text = b"x" * (PUBLICATION_BYTES_MAX - len(own))
    bench.publish(Enveloped(own + text))
    for _ in range(2):
        token = bench.take("b", 1, max_bytes=2**20)["token"]
        bench.take("b", 0, naks=[(token, 6, 6, 0)])
    found = bench.store.read("b", "dead", 0, 1, 2**21)
    assert isinstance(found, Delivery), found
    [letter] = unpack(found.lengths, found.data)
    assert letter == envelope_of(Properties("k")) + text


@pytest.mark.parametrize("has_policy", [False, True])
def test_without_a_subscriber_of_dead_letters_it_is_given_again(
    bench: GroupsBench, has_policy: bool
) -> None:
    if has_policy:  # which keeps what is unread, so nothing
        bench.ok(SetTopic("dead", parse_keep("unread"), True, True))
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    for attempt in (1, 2, 3):
        taken = bench.take("a", 1)
        assert taken["given"] == [[1, 1, attempt]]
        bench.take("a", 0, naks=[(taken["token"], 1, 1, 0)])


def letting(dead_letter: str, is_new: bool = False) -> SetTopic:
    return SetTopic("t", {"dead_letter": dead_letter}, is_new, True)


def test_dead_letters_are_the_group_maker_s_until_they_are_read_and_collected(
    bench: GroupsBench,
) -> None:
    bench.store.holdings.made("ann", "t", "g")  # as if the group were hers
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    bench.ok(Subscribe("b", None, "dead", None))
    assert give_up(bench) == 1
    found = bench.store.read("b", "dead", None, 10, 1000)
    assert isinstance(found, Delivery), found
    assert found.count
    assert bench.store.unread_bytes_of("ann") == len(found.lengths) + len(found.data)
    bench.ok(Advance("b", None, {"dead": found.count}))
    while bench.store.collect_garbage(1):
        pass
    assert bench.store.unread_bytes_of("ann") == 0


def give_up(bench: GroupsBench) -> int:
    """Have the next one given once, and given back; return how many dead letters that makes."""
    token = bench.take("a", 1)["token"]
    bench.take("a", 0, naks=[(token, 1, 5, 0)])
    dead: int = bench.take("a", 0 if bench.row()["waiting"] == 0 else 1)["dead"]
    return dead


def test_what_a_group_gives_up_goes_where_its_topic_says_if_it_has_said_nothing(
    bench: GroupsBench,
) -> None:
    for topic in ("dead", "other"):
        bench.ok(Subscribe("b", None, topic, None))
    assert bench.ok(letting("dead", is_new=True))["policy"]["dead_letter"] == "dead"
    assert bench.ok(making(max_attempts=1))["dead_letter"] == ""
    bench.restart()
    assert give_up(bench) == 1
    assert bench.store.topic_ends() | {"t": 0} == {"t": 0, "dead": 1, "other": 0}
    bench.ok(letting("other"))
    token = bench.take("a", 0)["token"]
    bench.now_ms += LEASE_MS
    assert bench.take("a", 1)["dead"] == 1, token
    assert bench.store.topic_ends() | {"t": 0} == {"t": 0, "dead": 1, "other": 1}


def test_what_a_group_has_said_of_its_dead_letters_comes_before_what_its_topic_says(
    bench: GroupsBench,
) -> None:
    for topic in ("dead", "own"):
        bench.ok(Subscribe("b", None, topic, None))
    bench.ok(letting("dead", is_new=True))
    bench.ok(making(max_attempts=1, dead_letter="own"))
    assert give_up(bench) == 1
    assert bench.store.topic_ends() | {"t": 0} == {"t": 0, "dead": 0, "own": 1}


def test_a_group_that_gives_up_needs_a_topic_for_it_its_own_or_its_topics(
    bench: GroupsBench,
) -> None:
    assert bench.apply(making(max_attempts=1))[0][0] == "bad_request"
    assert bench.apply(making("h", max_attempts=1))[0][0] == "bad_request"
    assert [row["group"] for row in bench.store.groups.page("", "", 10)] == ["g"]
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    assert bench.ok(making(max_attempts=2))["dead_letter"] == "dead"
    assert bench.apply(making(max_attempts=2, dead_letter=""))[0][0] == "bad_request"
    bench.ok(letting("dead", is_new=True))
    assert bench.ok(making(max_attempts=2, dead_letter=""))["dead_letter"] == ""
    bench.ok(letting(""))  # then it is given again, as where nobody subscribes to them
    for attempt in (1, 2, 3):
        taken = bench.take("a", 1)
        assert taken["given"] == [[1, 1, attempt]]
        bench.take("a", 0, naks=[(taken["token"], 1, 1, 0)])


def test_dead_letters_of_topics_stand_in_entries_of_their_level_alone() -> None:
    for operation in (letting("dead"), letting(""), making(max_attempts=1)):
        payload = encode(1, [operation])
        assert (level_of(payload), decode_entry(payload)[1]) == (LEVEL_OF_KEY_ORDER, [operation])
    assert level_of(encode(1, [making(max_attempts=1, dead_letter="d")])) == LEVEL_OF_KEY_ORDER - 1


# --- groups and topics ----------------------------------------------------------------------------


def test_a_group_keeps_its_topic_and_what_it_has_not_settled(bench: GroupsBench) -> None:
    bench.ok(Subscribe("b", None, "t", None))
    bench.ok(Unsubscribe("b", None, "t", None))
    assert bench.store.topic_ends() == {"t": 5}
    bench.restart()
    assert bench.take("a")["given"] == [[1, 5, 1]]
    assert bench.ok(EndGroup("a", None, "t", None, "g")) == {"was_subscribed": True}
    assert bench.store.topic_ends() == {}
    assert bench.ok(EndGroup("a", None, "t", None, "g")) == {"was_subscribed": False}
    assert bench.apply(taking()) == [("unknown_topic", {})]
    assert bench.ok(making())["last_id"] == 5


def test_behind_a_restart_a_topic_s_policy_leaves_what_its_groups_have_not_settled(
    bench: GroupsBench,
) -> None:
    bench.ok(SetTopic("t", {"keep": "unread", "amount": 0}, True, True))
    bench.restart()
    bench.publish(b"6")  # the floor is looked for again
    bench.store.collect_garbage(100)
    assert bench.floor() == 0
    assert bench.read("a", bench.take("a")) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_group_that_is_not_there_gives_nothing(bench: GroupsBench) -> None:
    bench.ok(Subscribe("b", None, "t", None))
    bench.ok(DropGroup("t", "g", True))
    assert bench.apply(taking()) == [("not_subscribed", {})]


def test_settings_that_are_said_replace_those_that_stand(bench: GroupsBench) -> None:
    bench.ok(making(lease_ms=None, max_attempts=3, dead_letter="dead"))
    body = bench.ok(making(lease_ms=77))
    assert body == {
        "last_id": 0,
        "resumed": True,
        "lease_ms": 77,
        "max_attempts": 3,
        "dead_letter": "dead",
        "ordered_by_key": False,
    }


def test_a_purge_settles_what_it_removes(bench: GroupsBench) -> None:
    token = bench.take("a", 2)["token"]
    bench.ok(Purge("t", 3, True))
    assert (bench.row()["cursor"], bench.floor()) == (3, 3)
    assert bench.take("a", 0, acks=[(token, 1, 2)])["lost"] == [[1, 2]]
    assert bench.take("b")["given"] == [[4, 5, 1]]


def test_groups_their_open_publications_and_a_clients_leases_have_limits(
    bench: GroupsBench,
) -> None:
    bench.publish(*[b"x"] * 30)
    assert bench.take("a", 30)["given"] == [[1, 8, 1]]
    assert bench.take("a", 30)["given"] == []
    assert bench.take("b", 30)["given"] == [[9, 16, 1]]
    bench.ok(Register("c", True, None, ""))
    assert bench.take("c", 30)["given"] == [[17, 20, 1]], "20 are open in the group"
    for name in "hi":
        bench.ok(making(name))
    assert bench.apply(making("j")) == [("too_many", {"limit": 3})]


def test_a_damaged_row_is_found_when_the_store_is_opened(bench: GroupsBench) -> None:
    bench.take("a", 2, number=1)
    bench.store.commit()
    for table in ("groups", "leases", "workers"):
        [(crc,)] = bench.store._database.query(f"SELECT crc FROM {table}")
        bench.store._database.write(f"UPDATE {table} SET crc = ?", [(crc ^ 1,)])
        bench.store._database.commit()
        with pytest.raises(CorruptStore, match="checksum"):
            Store.open(bench.path, {}, LIMITS)
        bench.store._database.write(f"UPDATE {table} SET crc = ?", [(crc,)])
        bench.store._database.commit()


# --- ordered by key -------------------------------------------------------------------------------


def keyed(key: str | bytes | None, text: bytes = b"x") -> bytes:
    envelope = envelope_of(Properties(key))
    return Enveloped(envelope + text) if envelope else text


@pytest.fixture
def ordered(tmp_path: Path) -> Iterator[GroupsBench]:
    """A group g of the topic t that is ordered by key."""
    bench = GroupsBench(tmp_path / "ordered.db")
    bench.ok(making(ordered_by_key=True))
    yield bench
    bench.store.close()


def ids(taken: dict[str, Any]) -> list[int]:
    return [id_ for first, last, _ in taken["given"] for id_ in range(first, last + 1)]


def test_the_next_one_of_a_key_is_leased_when_the_one_before_is_acknowledged(
    ordered: GroupsBench,
) -> None:
    ordered.publish(*map(keyed, ("k", "k", None, "l", None, "k")))
    first = ordered.take("a")
    assert ids(first) == [1, 3, 4, 5]
    assert ids(ordered.take("b")) == []
    assert ordered.row()["behind"] == 2
    ordered.take("a", 0, acks=[(first["token"], 1, 1)])
    second = ordered.take("b")
    assert second["given"] == [[2, 2, 1]]
    ordered.take("b", 0, acks=[(second["token"], 2, 2)])
    assert ids(ordered.take("a")) == [6]
    assert ordered.row()["behind"] == 0


def test_a_delayed_nak_holds_up_its_key_alone(ordered: GroupsBench) -> None:
    ordered.publish(*map(keyed, ("k", "k", "l", "l")))
    taken = ordered.take("a")
    assert ids(taken) == [1, 3]
    token = taken["token"]
    ordered.take("a", 0, acks=[(token, 3, 3)], naks=[(token, 1, 1, 500)])
    assert ids(ordered.take("b")) == [4]
    ordered.now_ms += 500
    assert ordered.take("b")["given"] == [[1, 1, 2]]


def test_a_lease_that_runs_out_is_given_again_before_the_next_one_of_its_key(
    ordered: GroupsBench,
) -> None:
    ordered.publish(*map(keyed, ("k", "k")))
    late = ordered.take("a")
    ordered.now_ms += LEASE_MS
    assert ordered.take("b")["given"] == [[1, 1, 2]]
    assert ordered.take("a", 0, acks=[(late["token"], 1, 1)])["lost"] == [[1, 1]]
    assert ids(ordered.take("a")) == []


def test_a_dead_letter_lets_the_next_one_of_its_key_go(ordered: GroupsBench) -> None:
    ordered.ok(Subscribe("p", None, "dead", None))
    ordered.ok(making(max_attempts=1, dead_letter="dead"))
    ordered.publish(*map(keyed, ("k", "k", "k")))
    assert ids(ordered.take("a")) == [1]
    ordered.now_ms += LEASE_MS
    taken = ordered.take("b")
    assert (taken["dead"], taken["given"]) == (1, [[2, 2, 1]])


def test_texts_and_bytes_are_two_keys(ordered: GroupsBench) -> None:
    ordered.publish(keyed("k"), keyed(b"k"), keyed("k"), keyed(b"k"))
    assert ids(ordered.take("a")) == [1, 2]


def test_a_hot_key_stops_others_only_where_as_many_wait_as_may(ordered: GroupsBench) -> None:
    behind_max = LIMITS.groups.behind_per_group_max
    ordered.publish(*[keyed("hot")] * (behind_max + 2), keyed("cold"), keyed(None))
    taken = ordered.take("a")
    assert ids(taken) == [1]
    group = ordered.store.groups.get("t", "g")
    assert group is not None
    assert ordered.row()["behind"] == behind_max
    assert not ordered.store.groups.has_work(group, "b", ordered.now_ms)  # nobody asks in vain
    again = ordered.take("a", acks=[(taken["token"], 1, 1)])
    assert ids(again) == [2, behind_max + 3, behind_max + 4]  # there is room for one more


def test_a_take_looks_ahead_so_far_and_the_next_one_goes_on(
    ordered: GroupsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "TAKE_LOOK_MAX", 3)
    ordered.publish(*map(keyed, ("k", "k", "k", "k", "l")))
    assert ids(ordered.take("a")) == [1]
    group = ordered.store.groups.get("t", "g")
    assert group is not None
    assert ordered.store.groups.has_work(group, "b", ordered.now_ms)
    assert ids(ordered.take("b")) == [5]


def test_what_waits_behind_its_key_is_known_when_the_store_is_opened_again(
    ordered: GroupsBench,
) -> None:
    ordered.publish(*map(keyed, ("k", None, "k")))
    ordered.publish(*map(keyed, ("l", "k", "l")))
    taken = ordered.take("a")
    ordered.restart()
    assert ids(ordered.take("b")) == []
    assert ordered.row()["behind"] == 3
    ordered.take("a", 0, acks=[(taken["token"], 1, 1)])
    ordered.restart()
    assert ids(ordered.take("b")) == [3]


def test_a_purge_lets_the_next_one_of_a_key_go(ordered: GroupsBench) -> None:
    ordered.publish(*map(keyed, ("k", "k", "k")))
    ordered.take("a")
    ordered.store.groups.take_stirred()
    ordered.ok(Purge("t", 2, True))
    assert ordered.store.groups.take_stirred() == [("t", "g")]
    assert ids(ordered.take("b")) == [3]


def test_a_group_is_joined_as_it_was_made_or_not_at_all(ordered: GroupsBench) -> None:
    assert ordered.ok(making(ordered_by_key=None))["ordered_by_key"]
    assert ordered.ok(making(ordered_by_key=True))["resumed"]
    [(code, details)] = ordered.apply(making(ordered_by_key=False))
    assert (code, details) == ("another_choice", {"ordered_by_key": True})


# --- where a group begins -------------------------------------------------------------------------


def test_a_group_begins_where_it_is_told_to(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path / "store.db")
    bench.ok(Subscribe("b", None, "t", None))
    bench.publish(b"1", b"2", b"3")
    assert bench.ok(making(start="earliest"))["last_id"] == 0
    assert bench.ok(making("h", start=2))["last_id"] == 1
    assert bench.ok(making("i"))["last_id"] == 3
    assert bench.apply(making("j", start=9)) == [("too_many", {"limit": 3})]
    bench.ok(EndGroup("a", None, "t", None, "i"))
    assert bench.apply(making("j", start=9)) == [("bad_request", {"end": 3})]
    assert bench.take("a")["given"] == [[1, 3, 1]]
    bench.store.close()


def test_a_group_that_is_moved_begins_anew_and_its_leases_are_nobodys(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path / "store.db")
    bench.ok(making(ordered_by_key=True))
    bench.ok(Subscribe("b", None, "t", None))  # so that all of it is kept
    bench.publish(*map(keyed, ("k", "k", "l", None)))
    taken = bench.take("a")
    bench.take("a", 1, acks=[(taken["token"], 1, 1)])
    assert bench.ok(SeekGroup("t", "g", 1, True)) == {"last_id": 0}
    assert bench.row()["cursor"] == 0
    bench.restart()
    assert bench.take("a", 0, acks=[(taken["token"], 3, 3)])["lost"] == [[3, 3]]
    again = bench.take("b")
    assert ids(again) == [1, 3, 4]
    assert again["token"] > taken["token"]
    bench.ok(SeekGroup("t", "g", "new", True))
    assert (bench.row()["cursor"], bench.row()["backlog"]) == (4, 0)
    bench.store.close()


# --- against the reference ------------------------------------------------------------------------

CLIENTS, TOPICS, GROUPS = "abcd", ("t", "u", "dead"), "gh"


def random_operation(rng: random.Random, model: ModelStore) -> Operation:
    client, topic, name = rng.choice(CLIENTS), rng.choice(TOPICS), rng.choice(GROUPS)
    known = model.reference.client(client)
    epoch = rng.choice((None, known.epoch.now)) if known else None
    kind = rng.random()
    if known is None or kind < 0.03:
        return Register(client, known is None, None, "")
    if kind < 0.10:
        dead = ("", 0) if rng.random() < 0.5 else ("dead", rng.randint(1, 3))
        if rng.random() < 0.3:
            dead = rng.choice(("", None)), rng.randint(1, 3)
        settings = rng.choice(((None, None, None), (rng.choice((100, 300)), *reversed(dead))))
        topic = topic if topic != "dead" else "t"
        ordered = rng.choice((None, True, True, True, False))
        start = rng.choice(("new", "new", "earliest", 1 + rng.randrange(30), "@100"))
        made = MakeGroup(client, epoch, topic, None, name, *settings)
        return replace(made, ordered_by_key=ordered, start=start)
    if kind < 0.12:
        return rng.choice(
            (EndGroup(client, epoch, topic, None, name), DropGroup(topic, name, True))
        )
    if kind < 0.15:
        return rng.choice(
            (Subscribe(client, epoch, topic, None), Unsubscribe(client, epoch, topic, None))
        )
    if kind < 0.16:
        if rng.random() < 0.5:
            start = rng.choice(("new", "earliest", 1 + rng.randrange(30), "@200"))
            return SeekGroup(topic, name, start, True)
        return DropClient(client, True)
    if kind < 0.165:
        parts = {"dead_letter": rng.choice(("dead", "dead", "none", ""))}
        return SetTopic(rng.choice(TOPICS[:2]), parts, rng.random() < 0.5, True)
    if kind < 0.18:
        end = model.last_id(topic)
        return Purge(topic, max(0, end - rng.randrange(30)), True)
    if kind < 0.35:
        producer = known.producers.get(topic)
        batch = [random_publication(rng) for _ in range(rng.choice((1, 3, 12)))]
        counter = producer.counter.now + 1 if producer else 0
        own = any(type(each) is Enveloped for each in batch)
        return Put(client, epoch, topic, counter, *pack(batch), has_properties=own)
    return random_take(rng, model, client, epoch, rng.choice(TOPICS[:2]), name)


def random_publication(rng: random.Random) -> bytes:
    text = b"x" * rng.randrange(40)
    key = rng.choice((None, "hot", "hot", "hot", b"hot", "k1"))
    headers = {"h": "v"} if rng.random() < 0.2 else {}
    envelope = envelope_of(Properties(key, headers))
    return Enveloped(envelope + text) if envelope else text


def random_take(
    rng: random.Random, model: ModelStore, client: str, epoch: int | None, topic: str, name: str
) -> Take:
    group = model.reference.groups.get((topic, name))
    rows: list[list[list[int]]] = [[], [], []]
    number = None
    if group is not None:
        own = [id_ for id_, had in group.open.items() if had.by == client or rng.random() < 0.1]
        for id_ in rng.sample(own, rng.randint(0, min(6, len(own)))):
            kind = rng.choice((0, 0, 0, 1, 2))
            last = id_ + rng.choice((0, 0, 1, 4))
            row = [max(0, group.open[id_].token - rng.choice((0, 0, 0, 0, 1))), id_, last]
            rows[kind].append(row if not kind else [*row, rng.choice((0, 50, 200, 700))])
        last_take = group.takes.get(client)
        number = last_take.number if last_take and last_take.number > 0 else 1
        number += rng.choice((0, 1, 1, 1, -1))
    number = rng.choice((None, number)) if number is None or number < 1 else number
    lease_ms = rng.choice((None, None, 100, 500))
    count = rng.choice((0, 1, 3, 30))
    most = count, rng.choice((30, 90, 10_000)), lease_ms
    return Take(client, epoch, topic, name, number, *most, rows[0], rows[1], rows[2])


def bounds(seed: int) -> list[Operation]:
    """Return what every second seed does so that dead letters find room when some are purged."""
    policy = {"max_bytes": 400, "when_full": "refuse"}
    return [SetTopic("dead", policy, True, True)] if seed % 2 else []


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_random_takes_come_to_what_the_reference_says_whenever_the_store_is_reopened(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "TAKE_AGAIN_MAX", 4)
    monkeypatch.setattr(groups, "TAKE_ROWS_MAX", 3)
    monkeypatch.setattr(groups, "TAKE_LOOK_MAX", 7)
    monkeypatch.setattr(groups, "DEAD_COUNT_MAX", 2)
    monkeypatch.setattr(groups, "DEAD_BYTES_MAX", 60)
    monkeypatch.setattr(groups, "CHUNK_SHIFT", 2)
    monkeypatch.setattr(groups, "STALE_TIMERS_MIN", 2)
    rng, model, limits = random.Random(seed), ModelStore(LIMITS), replace(LIMITS, id_max=100_000)
    model.reference.limits = limits
    stores = [Store.open(tmp_path / f"{each}.db", MEMBERS, limits) for each in range(2)]
    first: list[Operation] = [Raise(LEVEL_OF_KEY_ORDER), Register("e", True, None, "")]
    first += [Subscribe("e", None, "dead", None), *bounds(seed)]
    now_ms, given, dead, blocked = 1, 0, 0, 0
    for index in range(1, 600):
        model.begin_entry()
        operations = first if index == 1 else []
        if index > 1:
            operations = [random_operation(rng, model)] if rng.random() < 0.9 else [Hear([])]
            now_ms += rng.choice((0, 0, 5, 60, 200))
        reference = model.reference
        results = reference.apply(index, operations, 1, Stamp(now_ms, now_ms))
        payload = encode(now_ms, operations, now_ms)
        outcomes = [store.apply(index, 1, payload) for store in stores]
        assert outcomes[0] == outcomes[1], operations
        for operation, outcome, result in zip(operations, outcomes[0], results, strict=True):
            if result is not None:
                assert _is_so(outcome, result), (index, operation, outcome, result)
            if isinstance(operation, Take) and not result[0]:  # type: ignore[index]
                given += len(result[1]["given"])  # type: ignore[index]
                dead += result[1]["dead"]  # type: ignore[index]
        rows = reference.groups_at("", "", index)
        assert stores[0].groups.page("", "", 100) == rows
        for group in stores[0].groups._groups.values():
            assert group.timed == sum(last + 1 - first for _, first, last in group.timers)
        ends = {row["topic"]: row["last_id"] for row in reference.listing_at("", index)}
        assert stores[0].topic_ends() == ends
        blocked += sum(each["behind"] for each in rows)
        for topic in stores[0].topics_page("", 100):
            unread_from, _ = reference.kept(topic.name) or (0, 0)
            assert topic.floor_id + 1 == unread_from, topic.name
        if rng.random() < 0.1:
            stores[1].collect_garbage(100)
        if rng.random() < 0.1:
            stores[1].commit()
        if rng.random() < 0.05:
            stores[1].commit()
            stores[1].close()
            stores[1] = Store.open(tmp_path / "1.db", {}, limits)
            assert stores[0].digest() == stores[1].digest()
    assert stores[0].digest() == stores[1].digest()
    assert given > 50
    assert dead > 0
    assert blocked > 0
    for store in stores:
        store.close()


def _is_so(outcome: Outcome, result: Any) -> bool:
    code, said = answer_of(outcome)
    return bool((code if code != "ok" else "") == result[0] and result[1].items() <= said.items())


# --- limits, topics that drop, and dead letters ---------------------------------------------------


def limited(path: Path, limits: GroupLimits, **others: int) -> GroupsBench:
    return GroupsBench(path, replace(SMALL, clients_max=6, groups=limits, **others))


def test_what_waits_behind_its_key_is_open_too_so_it_has_the_same_limit(tmp_path: Path) -> None:
    bench = limited(tmp_path / "store.db", GroupLimits(3, 30, 4, 8, 2, 100))
    bench.ok(making(ordered_by_key=True))
    bench.publish(*[keyed("k")] * 10)
    assert ids(bench.take("a", 5)) == [1]
    group = bench.store.groups.get("t", "g")
    assert group is not None
    assert sorted(group.open) == [1, 2, 3, 4]


def test_what_waits_behind_its_key_counts_among_what_is_open_of_all_groups(tmp_path: Path) -> None:
    bench = limited(tmp_path / "store.db", GroupLimits(3, 5, 20, 8, 2, 100))
    bench.ok(making(ordered_by_key=True))
    bench.ok(making("h"))
    bench.publish(*[keyed("k")] * 3)
    assert ids(bench.take("a")) == [1]
    assert ids(bench.ok(replace(taking("b"), group="h"))) == [1, 2], "5 are open of all groups"


def test_who_has_as_much_as_he_may_has_no_work_and_others_have(bench: GroupsBench) -> None:
    bench.publish(*[b"x"] * 10)
    bench.take("a", 8)
    group = bench.store.groups.get("t", "g")
    assert group is not None
    now_ms = bench.store.idle.log_ms
    assert not bench.store.groups.has_work(group, "a", now_ms)
    assert bench.store.groups.has_work(group, "b", now_ms)


def test_a_dead_letter_goes_nowhere_where_its_topic_is_at_its_last_id(tmp_path: Path) -> None:
    bench = limited(tmp_path / "store.db", LIMITS.groups, id_max=1)
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    bench.ok(Subscribe("b", None, "dead", None))
    bench.publish(b"1")
    bench.counter = 0
    bench.publish(b"full", topic="dead")
    for attempt in (1, 2):
        taken = bench.take("a", 1)
        assert (taken["given"], taken["dead"]) == ([[1, 1, attempt]], 0)
        bench.take("a", 0, naks=[(taken["token"], 1, 1, 0)])
    assert bench.store.topic_ends() == {"dead": 1, "t": 1}


def test_what_would_be_a_dead_letter_is_given_again_while_their_topic_is_full(
    tmp_path: Path,
) -> None:
    bench = GroupsBench(tmp_path / "store.db")
    policy = {"keep": "forever", "amount": 0, "max_bytes": 40, "when_full": "refuse"}
    bench.ok(SetTopic("dead", policy, True, True))
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    bench.publish(b"1", b"2")

    def failing(attempts: list[int]) -> int:
        taken = bench.take("a", 9)
        ids = [id_ for first, last, _ in taken["given"] for id_ in range(first, last + 1)]
        assert [attempt for *_, attempt in taken["given"]] == attempts
        naks = [(taken["token"], id_, id_, 0) for id_ in ids]
        bench.take("a", 0, naks=naks)
        return int(taken["dead"])

    assert failing([1]) == 0
    assert failing([2]) == 1, "one letter may get the topic over its bound"
    assert failing([3]) == 0
    assert bench.store.topic_ends() == {"dead": 1, "t": 2}
    bench.ok(SetTopic("dead", {"max_bytes": 4_000}, False, True))
    assert failing([]) == 1
    assert bench.store.topic_ends() == {"dead": 2, "t": 2}


def test_below_their_level_a_full_topic_takes_dead_letters(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path / "store.db")
    policy = {"keep": "forever", "amount": 0, "max_bytes": 40, "when_full": "refuse"}
    bench.ok(SetTopic("dead", policy, True, True))
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    bench.publish(b"1", b"2")
    taken = bench.take("a", 2)
    bench.take("a", 0, naks=[(taken["token"], 1, 2, 0)])
    bench.store.level = LEVEL_OF_DEAD_LETTERS - 1
    assert bench.take("a", 2)["dead"] == 2


def dropping(bench: GroupsBench, topic: str) -> None:
    policy = {"keep": "forever", "amount": 0, "max_bytes": 40, "when_full": "drop-oldest"}
    bench.ok(SetTopic(topic, policy, True, True))


def test_what_a_put_drops_is_open_in_no_group(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path / "store.db")
    dropping(bench, "t")
    bench.ok(making())
    bench.publish(b"x" * 16)
    bench.take("a", 1)
    bench.publish(b"y" * 30)
    group = bench.store.groups.get("t", "g")
    assert group is not None
    assert (dict(group.open), group.head) == ({}, 1)


def test_what_a_dead_letter_drops_is_open_in_no_group(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path / "store.db")
    dropping(bench, "dead")
    bench.ok(making("of-the-dead", "dead"))
    bench.ok(making(max_attempts=1, dead_letter="dead"))
    bench.publish(b"x" * 30, topic="dead")
    of_the_dead = Take("b", None, "dead", "of-the-dead", None, 5, 1_000, None, [], [], [])
    assert bench.ok(of_the_dead)["given"] == [[1, 1, 1]]
    bench.counter = 0
    bench.publish(b"y")
    token = bench.take("a", 1)["token"]
    assert bench.take("a", 1, naks=[(token, 1, 1, 0)])["dead"] == 1
    group = bench.store.groups.get("dead", "of-the-dead")
    assert group is not None
    assert (dict(group.open), group.head) == ({}, 1)


def test_a_topic_that_is_deleted_takes_its_groups_with_it(bench: GroupsBench) -> None:
    bench.take("a", 2)
    assert bench.ok(DeleteTopic("t", True, True))["ended"] == 1
    assert bench.store.groups.get("t", "g") is None
    bench.restart()
    assert bench.store.groups.count == 0
