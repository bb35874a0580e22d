"""Claims about flotilla_client/work.py: what a worker says, in which order, and says again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from flotilla_client import (
    AlreadyReading,
    AsyncClient,
    Client,
    Closed,
    FlotillaError,
    Forgotten,
    LeaseLost,
    Unavailable,
    UnknownClient,
    Unsupported,
)
from flotilla_client.losses import Losses
from flotilla_client.protocol import ACK, SETTLE_ROWS_MAX, TAKE, Reply, Request, pack
from flotilla_client.reading import Owner, this_thread
from flotilla_client.work import (
    SHORT_WAIT_MS,
    GroupSettings,
    LeaseBook,
    WorkItem,
    WorkLoop,
    make_group,
    take,
)
from tests.unit.fake_node import FakeNode, client_of, impatient, nak
from tests.unit.interrupting import breaks_off, interrupted

LEASE_MS = 1_000


class WorkBench:
    """A book, the time, and a cluster that answers as it is told."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.told = set[int]()  # ids of which a TAKE has said what became of them
        self.numbers = dict[int, None]()  # of TAKEs
        self.book = LeaseBook(
            "t", "g", lambda: self.now_ms, lambda item, lease_ms: None, lambda: None
        )

    def answer(
        self,
        first: int = 1,
        count: int = 0,
        token: int = 1,
        lost: Any = (),
        left_ms: int = LEASE_MS,
    ) -> set[int]:
        body = {
            "token": token,
            "leases": [[first, count, 1]] if count else [],
            "left_ms": left_ms,
            "lease_ms": LEASE_MS,
            "lost": [list(run) for run in lost],
            "timestamps": [[count, None]] if count else [],
        }
        lengths, data = pack([b"%d" % id_ for id_ in range(first, first + count)])
        return self.book.answered(Reply(ACK, "r", "n", "n", 1, body, lengths, data))

    def take(self, count: int = 10) -> dict[str, Any]:
        body = self.book.body(count, None, 0)
        for _, first, last, *_ in (*body.get("acks", ()), *body.get("naks", ())):
            self.told |= {*range(first, last + 1)}
        self.numbers[body["number"]] = None
        self.book.sent()
        return body

    def items(self) -> list[WorkItem]:
        found = []
        while (item := self.book.next_item()) is not None:
            found.append(item)
        return found


@pytest.fixture
def bench() -> WorkBench:
    """A worker that was given 1 to 5."""
    bench = WorkBench()
    bench.take()
    bench.answer(1, 5)
    return bench


def test_what_is_settled_goes_in_runs_with_the_next_take(bench: WorkBench) -> None:
    one, two, three, four, five = bench.items()
    for item in (two, one, four):
        item.ack()
    three.nak(delay=2)
    body = bench.take()
    assert body["acks"] == [[1, 1, 2], [1, 4, 4]]
    assert body["naks"] == [[1, 3, 3, 2_000]]
    assert (body["number"], "extends" in body) == (2, False)
    assert (one.settled, three.settled, five.settled) == ("ack", "nak", "")


def test_neighbours_are_given_back_with_a_delay_each(bench: WorkBench) -> None:
    one, two, three, *_ = bench.items()
    for item, delay in ((one, 1), (two, 2), (three, 2)):
        item.nak(delay=delay)
    assert bench.take()["naks"] == [[1, 1, 1, 1_000], [1, 2, 3, 2_000]]


def test_an_item_is_shown_without_the_others(bench: WorkBench) -> None:
    [one, *_] = bench.items()
    assert repr(one.message) in repr(one)
    assert len(repr(one)) < len(repr(one.message)) + 100


def test_a_take_without_an_answer_is_said_again_before_anything_else(bench: WorkBench) -> None:
    one, two, *_ = bench.items()
    one.ack()
    said = bench.take()
    bench.book.failed(Unavailable("nobody answers", definite=False))
    two.ack()
    assert bench.take() == said
    bench.answer()
    assert bench.take() == {**said, "number": 3, "acks": [[1, 2, 2]]}


def test_who_leaves_waits_for_nothing_and_ends_what_may_wait_at_a_node(bench: WorkBench) -> None:
    waiting = bench.book.body(10, None, 5_000)
    bench.book.sent()
    assert bench.take(0) == {**waiting, "wait_ms": 0}
    bench.answer()
    bench.book.give_back()
    assert bench.take(0)["number"] > waiting["number"]
    bench.answer()
    assert not bench.book.is_left


def test_a_number_that_ends_what_may_wait_is_said_where_nothing_else_is(bench: WorkBench) -> None:
    for item in bench.items():
        item.ack()
    bench.book.body(10, None, 5_000)
    bench.take(0)
    bench.answer()
    assert bench.book.is_left
    bench.take(0)
    bench.answer()
    assert not bench.book.is_left


def test_what_was_certainly_not_carried_out_is_said_anew(bench: WorkBench) -> None:
    one, two, *_ = bench.items()
    one.ack()
    bench.take()
    two.ack()
    bench.book.failed(Unavailable("nothing was sent"))
    assert bench.take()["acks"] == [[1, 1, 2]]


def test_the_first_exchange_of_a_take_tells_its_fate(bench: WorkBench) -> None:
    one, *_ = bench.items()
    one.ack()

    def refused(*about: object) -> Iterator[Any]:
        raise Unavailable("nothing was sent")
        yield

    operations: Any = SimpleNamespace(
        opened=lambda: iter(()),
        invoke=lambda *about, **said: None,
        request=lambda *about: None,
        observed=refused,
    )
    numbers = []
    for _ in range(2):
        with pytest.raises(Unavailable):
            list(take(operations, bench.book, 10, None, 0))
        numbers.append(bench.book._number)
    assert numbers[1] == numbers[0] + 1


def test_who_waited_for_a_turn_asks_for_nothing_that_is_here_by_then(bench: WorkBench) -> None:
    said: list[dict[str, Any]] = []

    def refused(*about: object) -> Iterator[Any]:
        raise Unavailable("nothing was sent")
        yield

    operations: Any = SimpleNamespace(
        opened=lambda: iter(()),
        invoke=lambda *about, **said: None,
        request=lambda kind, topic, body: said.append(body),
        observed=refused,
    )
    assert list(take(operations, bench.book, 10, None, 5_000)) == [], (
        "2 to 5 wait to be handed over"
    )
    assert said == []
    one = bench.book.next_item()
    assert one is not None
    one.ack()
    with pytest.raises(Unavailable):
        list(take(operations, bench.book, 10, 500, 5_000))
    bench.items()
    with pytest.raises(Unavailable):
        list(take(operations, bench.book, 10, 500, 5_000))
    asked = [(body["max_count"], body["lease_ms"], body["wait_ms"]) for body in said]
    assert asked == [(0, None, 0), (10, 500, SHORT_WAIT_MS)], "bodies that end must not wait for it"


def test_a_refusal_says_nothing_of_what_an_exchange_before_it_came_to(bench: WorkBench) -> None:
    one, two, *_ = bench.items()
    one.ack()
    said = bench.take()
    bench.book.failed(Unavailable("nobody answers", definite=False))
    assert bench.take() == said
    bench.book.failed(Unavailable("nothing was sent"))
    two.ack()
    assert bench.take() == said  # it may have been carried out: under another number, one is lost
    bench.answer()
    assert one.settled == "ack"
    assert bench.take()["number"] == 3
    bench.book.failed(Unavailable("nothing was sent"))
    assert bench.take() == {**said, "number": 4, "acks": [[1, 2, 2]]}


def test_the_first_word_counts_and_what_is_lost_says_so(bench: WorkBench) -> None:
    one, *_ = bench.items()
    one.ack()
    one.nak()
    assert bench.take()["acks"] == [[1, 1, 1]]
    assert bench.answer(lost=[(1, 1)]) == {1}
    assert one.settled == "lost"


def test_what_is_given_anew_to_the_same_client_is_lost_under_its_older_lease(
    bench: WorkBench,
) -> None:
    one, two, three, *_ = bench.items()
    bench.take()
    two.ack()  # behind the body of the take that gives it anew
    assert bench.answer(1, 2, token=2) == {1, 2}
    assert not bench.book.is_unsaid
    one.ack()
    assert (one.settled, two.settled, three.settled) == ("lost", "lost", "")
    new_one, new_two = bench.items()
    new_one.nak()
    new_two.ack()
    body = bench.take()
    assert (body["acks"], body["naks"]) == ([[2, 2, 2]], [[2, 1, 1, 0]])


def test_what_was_lost_as_it_was_extended_is_in_hand_no_more(bench: WorkBench) -> None:
    one, *rest = bench.items()
    bench.book.extend(one, LEASE_MS)
    bench.take()
    assert bench.answer(lost=[(1, 1)]) == {1}
    for item in rest:
        item.ack()
    bench.take()
    bench.answer()
    assert not bench.book.is_left


def test_what_waits_is_extended_before_it_is_handed_over_unless_it_is_lost(
    bench: WorkBench,
) -> None:
    first = bench.book.next_item()
    assert first is not None
    bench.now_ms = LEASE_MS / 2 + 1
    assert bench.book.next_item() is None
    assert bench.take(0)["extends"] == [[1, 2, 5, LEASE_MS]]
    bench.answer(lost=[(3, 1)])
    found = bench.items()
    assert [item.id for item in found] == [2, 4, 5]
    assert found[0].left_s == LEASE_MS / 1000
    assert first.left_s < LEASE_MS / 2000


def test_an_answer_that_comes_late_has_all_of_it_extended_for_a_whole_lease() -> None:
    bench = WorkBench()
    bench.take()
    bench.answer(1, 2, left_ms=LEASE_MS // 4)
    assert bench.items() == []
    assert bench.take(0)["extends"] == [[1, 1, 2, LEASE_MS]]
    bench.now_ms = 300.0  # while its answer is on the way
    bench.answer()
    assert [item.left_s for item in bench.items()] == [0.7, 0.7]


def test_a_lease_counts_from_when_it_was_asked_for_however_late_its_answer_is_read() -> None:
    bench = WorkBench()
    bench.take()
    bench.now_ms = 0.6 * LEASE_MS  # stopped, with the answer in its socket
    bench.answer(1, 2)
    assert bench.items() == [], "who knows how long it lay there?"
    assert bench.take(0)["extends"] == [[1, 1, 2, LEASE_MS]]
    bench.answer(lost=[(1, 1)])
    assert [item.id for item in bench.items()] == [2]


def test_what_was_extended_is_handed_over_where_an_answer_takes_more_than_half_of_a_lease() -> None:
    bench = WorkBench()
    bench.take()
    bench.answer(1, 2, left_ms=LEASE_MS // 4)
    for id_ in (1, 2):
        assert bench.items() == []
        bench.take(0)
        bench.now_ms += 0.6 * LEASE_MS
        bench.answer()
        assert [(item.id, item.left_s) for item in bench.items()] == [(id_, 0.4)]


def test_what_is_over_when_it_was_extended_is_extended_once_more() -> None:
    bench = WorkBench()
    bench.take()
    bench.answer(1, 1, left_ms=LEASE_MS // 4)
    assert bench.items() == []
    bench.take(0)
    bench.now_ms += LEASE_MS
    bench.answer()
    assert bench.items() == []
    assert bench.take(0)["extends"] == [[1, 1, 1, LEASE_MS]]


def test_more_runs_than_one_request_takes_are_split() -> None:
    bench = WorkBench()
    bench.take()
    bench.answer(1, 2 * SETTLE_ROWS_MAX + 2)
    for item in bench.items()[::2]:
        item.ack()
    assert bench.book.is_crowded
    assert len(bench.take()["acks"]) == SETTLE_ROWS_MAX
    bench.answer()
    assert len(bench.take()["acks"]) == 1


def test_what_a_loop_has_left_is_given_back_by_the_next(bench: WorkBench) -> None:
    settings = GroupSettings()

    def loop() -> WorkLoop:
        return WorkLoop(bench.book, settings, "auto", 10, 100, None)

    first = loop()
    first.begin(this_thread())
    bench.take()
    bench.answer(1, 5, token=2)
    assert first.item() is not None
    second = loop()
    with pytest.raises(AlreadyReading, match="another loop"):
        second.begin(this_thread())
    assert first.leave(is_done=False)
    assert not first.leave(is_done=True), "it was left before"
    second.begin(this_thread())
    assert bench.take()["naks"] == [[2, 1, 5, 0]]


def test_behind_a_slow_body_its_acknowledgment_is_sent_at_once(bench: WorkBench) -> None:
    loop = WorkLoop(bench.book, GroupSettings(), "auto", 10, 100, None)
    loop.begin(this_thread())
    bench.take()
    bench.answer(1, 5, token=2)
    assert loop.item() is not None
    bench.now_ms = 10.0
    loop.come_back(this_thread())
    assert loop.item() is not None, "a quick body's waits for the next take"
    bench.now_ms = 300.0
    loop.come_back(this_thread())
    assert loop.item() is None
    assert loop.wish() == (0, None, 0)
    assert bench.take(0)["acks"] == [[2, 1, 2]]


# --- what a group's SUB says ----------------------------------------------------------------------


def made(settings: GroupSettings, **told: Any) -> dict[str, Any]:
    """Return the body of the SUB that makes a group; the leader answers with `told`."""
    sent: list[dict[str, Any]] = []
    operations = SimpleNamespace(
        opened=lambda: iter(()),
        state=SimpleNamespace(next_sequence=lambda: 1),
        invoke=lambda *args, **fields: None,
        request=lambda kind, topic, body: sent.append(body) or Request(kind, "", topic, body=body),
        complete=lambda *args, **fields: None,
    )

    def observed(operation: object, ask: object) -> Iterator[None]:
        yield from ()
        reply = Reply(ACK, "r", "n", "n", 1, {"last_id": 0, "resumed": False, **told}, b"", b"")
        return SimpleNamespace(reply=reply)  # type: ignore[return-value]

    operations.observed = observed
    for _ in make_group(operations, "t", "g", settings):  # type: ignore[arg-type]
        raise AssertionError("it asks by `observed` alone")
    return sent[0]


def test_a_group_says_what_it_chooses_and_nothing_more() -> None:
    assert made(GroupSettings()).keys().isdisjoint({"ordered_by_key", "start"})
    chosen = GroupSettings(ordered_by_key=True, start="earliest")
    body = made(chosen, ordered_by_key=True)
    assert (body["ordered_by_key"], body["start"]) == (True, "earliest")


@pytest.mark.parametrize("chosen", [{"ordered_by_key": True}, {"start": "earliest"}])
def test_a_leader_that_takes_no_notice_of_a_choice_is_no_success(chosen: Any) -> None:
    with pytest.raises(Unsupported, match="knows no groups that are ordered by key"):
        made(GroupSettings(**chosen))


def test_a_choice_is_true_false_or_none() -> None:
    with pytest.raises(TypeError, match="ordered_by_key is True, False or None"):
        GroupSettings.of(None, None, None, "yes", "new")  # type: ignore[arg-type]


def test_what_was_said_of_an_item_meanwhile_counts_more_than_what_was_refused(
    bench: WorkBench,
) -> None:
    [item, *_] = bench.items()
    bench.book.extend(item, LEASE_MS)
    bench.take()
    item.ack()
    bench.book.failed(Unavailable("nobody is there", "unavailable", True))
    body = bench.take()
    assert (body["acks"], "extends" in body) == ([[1, 1, 1]], False)


def test_what_waits_in_hand_and_is_given_anew_is_there_once(bench: WorkBench) -> None:
    bench.take()
    bench.answer(2, 1, token=2)
    found = [(item.id, item._token) for item in bench.items()]
    assert sorted(found) == [(1, 1), (2, 2), (3, 1), (4, 1), (5, 1)]


def test_nothing_is_handed_over_while_an_answer_may_say_that_it_is_lost(bench: WorkBench) -> None:
    for item in bench.book.hand:
        bench.book.extend(item, LEASE_MS)
    bench.take()
    assert bench.book.next_item() is None
    bench.answer(lost=[(1, 4)])
    assert [item.id for item in bench.items()] == [5]


def test_a_loop_that_is_left_keeps_nothing(bench: WorkBench) -> None:
    bench.items()[0].ack()
    bench.take()
    bench.answer(6, 2)
    loop = WorkLoop(bench.book, GroupSettings(), "auto", 5, 0, None)
    bench.book.loop = None
    loop.begin(this_thread())
    bench.take()
    bench.answer(8, 2)
    assert loop.item() is not None
    assert loop.leave(is_done=False)
    assert (list(bench.book.hand), bench.book.given, bench.book.loop) == ([], {}, None)


def test_threads_may_begin_a_loop_together_and_no_other_one(bench: WorkBench) -> None:
    first, second = (WorkLoop(bench.book, GroupSettings(), "auto", 5, 0, None) for _ in range(2))
    first.begin(this_thread())
    first.begin(Owner(object(), "other", lambda: False))
    with pytest.raises(AlreadyReading):
        second.begin(this_thread())
    first.come_back(this_thread())  # it is whose it was before the other thread came


def test_another_thread_does_not_acknowledge_what_a_loop_s_own_thread_works_on(
    bench: WorkBench,
) -> None:
    loop = WorkLoop(bench.book, GroupSettings(), "auto", 10, 100, None)
    loop.begin(this_thread())
    loop.come_back(this_thread())
    bench.take()
    bench.answer(1, 5, token=2)
    item = loop.item()
    assert item is not None
    is_over = False
    other, later = Owner(object(), "other", lambda: is_over), Owner(object(), "later", bool)
    with pytest.raises(AlreadyReading, match="MainThread runs this loop"):
        loop.come_back(other)
    assert not item.settled
    loop._owner = other
    is_over = True  # as a task of asyncio.wait_for, one for each item
    loop.come_back(later)
    assert item.settled == "ack"
    with pytest.raises(AlreadyReading, match="later runs this loop"):
        loop.come_back(this_thread())
    loop._is_manual = True  # then nothing is acknowledged by coming back
    loop.come_back(this_thread())


@pytest.mark.parametrize("error", [Forgotten, UnknownClient])
def test_who_is_known_no_more_has_no_leases(error: type[FlotillaError], bench: WorkBench) -> None:
    one, two = bench.book.next_item(), bench.book.next_item()
    assert one is not None
    assert two is not None
    one.ack()
    bench.take()
    waits = list(bench.book.hand)
    bench.book.failed(error("who is that?", "unknown_client", True))
    assert bench.items() == []
    assert {each.settled for each in (one, two, *waits)} == {"lost"}
    assert not bench.book.is_left
    two.ack()
    body = bench.take()
    assert (body["number"], "acks" in body) == (3, False)


def test_an_adoption_ends_all_leases() -> None:
    told: list[str] = []

    def adopted() -> Iterator[Any]:
        told.append("adopted")
        return Losses({}, {}, ())
        yield

    bench = WorkBench()
    bench.take()
    bench.answer(1, 5)
    client = Client("127.0.0.1:1")
    session = client._session
    session.books["t", "g"] = bench.book
    session.operations.adopt = adopted  # type: ignore[method-assign]
    with pytest.raises(StopIteration):
        next(session.adopt())
    assert (told, bench.items(), bench.book.is_left) == (["adopted"], [], False)
    client.close()


def test_an_answer_that_comes_behind_an_adoption_brings_nothing(bench: WorkBench) -> None:
    bench.take()
    bench.book.lose()
    assert bench.answer(6, 2) == set()
    assert bench.items() == []


@breaks_off
def test_ctrl_c_anywhere_leaves_nothing_leased_that_nobody_has_or_speaks_of() -> None:
    def work(bench: WorkBench) -> None:
        bench.take()
        bench.answer(1, 3)
        one, two = bench.book.next_item(), bench.book.next_item()
        assert one is not None
        assert two is not None
        one.ack()
        two.nak()
        bench.take()
        bench.answer(4, 1)
        bench.book.next_item()

    def end(bench: WorkBench) -> None:
        """Answer what has no answer, as a node does, and what says that all is given back."""
        given = [(1, 3), (4, 1)]
        while bench.book.is_left or len(bench.numbers) < len(given):
            bench.book.give_back()
            bench.take(0)
            if len(bench.numbers) <= len(given):
                bench.answer(*given[len(bench.numbers) - 1])
            else:
                bench.answer()

    for place in itertools.count(1):
        bench = WorkBench()
        is_broken_off = interrupted(partial(work, bench), place)
        end(bench)
        assert bench.told == {1, 2, 3, 4}, place
        if not is_broken_off:
            return


def test_ctrl_c_as_a_loop_is_left_keeps_no_other_one_from_the_group(
    bench: WorkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = WorkLoop(bench.book, GroupSettings(), "auto", 1, 0, None)
    loop.begin(this_thread())

    def broken_off() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bench.book, "give_back", broken_off)
        with pytest.raises(KeyboardInterrupt):
            loop.leave(is_done=False)
    WorkLoop(bench.book, GroupSettings(), "auto", 1, 0, None).begin(this_thread())


def test_a_new_epoch_has_none_of_the_leases_of_the_one_before(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["1", "2", "3", "4"])
        items = client.work("t", "g", ack="manual", prefetch=3, idle=0)
        one, two = next(items), next(items)
        one.ack()
        client._operations.reopen()
        client.topics()
        assert [item.id for item in items] == [4]
        two.ack()
        assert [item.settled for item in (one, two)] == ["lost", "lost"]
    assert {id_ for request in node.of_type(TAKE) for id_ in _said(request, "acks")} == set()


def test_a_take_that_is_asked_again_by_a_new_epoch_brings_what_is_its_own(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["1", "2"])
        node.script(TAKE, nak("recovered"))
        assert [item.id for item in client.work("t", "g", idle=0)] == [1, 2]


class TakesOfNobody(AsyncClient):
    """An AsyncClient whose TAKEs the bench answers: `lost` to what they say first."""

    def __init__(self, bench: WorkBench, lost: Any = ()) -> None:
        self.bench, self.lost = bench, lost
        self.said: list[dict[str, Any]] = []

    def _end_ms(self) -> float:
        return float("inf")

    async def _take(self, book: LeaseBook, *_: Any) -> None:
        self.said.append(self.bench.take(0))
        self.bench.answer(lost=self.lost)


def test_a_task_hears_that_what_it_extends_is_somebody_else_s(bench: WorkBench) -> None:
    one, two, *_ = bench.items()
    client = TakesOfNobody(bench, lost=[[1, 1]])
    with pytest.raises(LeaseLost, match="given it to somebody else"):
        asyncio.run(client._extend(one, LEASE_MS))
    asyncio.run(client._extend(two, LEASE_MS))
    assert [said["extends"] for said in client.said] == [
        [[1, id_, id_, LEASE_MS]] for id_ in (1, 2)
    ]


def test_what_a_task_has_in_hand_is_given_back_where_nobody_works_any_more(
    bench: WorkBench,
) -> None:
    client = TakesOfNobody(bench)
    asyncio.run(client._give_back(bench.book, float("inf")))
    assert [said["naks"] for said in client.said] == [[[1, 1, 5, 0]]]
    assert not bench.book.is_left


def test_who_works_on_what_a_loop_gave_goes_on_behind_its_end(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["1", "2", "3"])
        one, two, three = client.work("t", "g", ack="manual", idle=0)
        one.ack()
        assert list(client.work("t", "g", ack="manual", idle=0)) == []
        with client.work("t", "g", ack="manual", idle=0) as items:
            assert list(items) == []
            two.ack()
        assert [item.settled for item in (one, two, three)] == ["ack", "ack", "nak"]
    assert [_said(request, "acks") for request in node.of_type(TAKE)] == [[], [], [1], [], [2]]
    assert [_said(request, "naks") for request in node.of_type(TAKE)] == [[], [], [], [], [3]]


def test_what_comes_for_a_thread_whose_loop_another_one_has_ended_is_given_back(
    node: FakeNode,
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["1", "2"])
        items = client.work("t", "g", ack="manual")
        run = client._run

        def ended_meanwhile(*about: Any) -> Any:
            answer = run(*about)
            items._loop.is_over = True
            return answer

        client._run = ended_meanwhile  # type: ignore[method-assign, assignment]
        assert next(items, None) is None
        assert [_said(request, "naks") for request in node.of_type(TAKE)] == [[], [1, 2]]
        assert not items._loop.book.is_left


def test_a_loop_whose_take_says_again_what_got_no_answer_asks_for_more_before_it_ends(
    node: FakeNode,
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["1", "2"])
        items = client.work("t", "g", prefetch=1, idle=0)
        one = next(items)
        node.script(TAKE, *["deaf"] * 3)
        with impatient(client), pytest.raises(Unavailable):
            one.extend()
        assert [item.id for item in items] == [2]


def test_tasks_go_on_with_what_a_loop_gave_behind_its_end(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            await client.publish("t", "1")
            [item] = [item async for item in client.work("t", "g", ack="manual", idle=0)]
            item.ack()

    asyncio.run(work())
    assert [_said(request, "acks") for request in node.of_type(TAKE)] == [[], [], [1]]


def test_what_is_said_of_an_item_behind_the_end_of_its_client_raises(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish("t", "1")
        [item] = client.work("t", "g", ack="manual", idle=0)
    for say in (item.ack, item.nak, item.extend):
        with pytest.raises(Closed):
            say()


def test_a_close_is_held_up_by_no_task_that_waits_for_work(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        client = AsyncClient(node.endpoint, state_dir=node.new_directory(), timeout=60)
        await client.subscribe("t")
        node.script(TAKE, "deaf")
        waiting = asyncio.ensure_future(anext(client.work("t", "g")))
        await asyncio.to_thread(node.await_requests, TAKE, 1)
        await client.close()
        with pytest.raises(Unavailable, match="closed"):
            await waiting

    asyncio.run(work())
    assert not caplog.text, "what it has said is told"
    first, again, last = node.of_type(TAKE)
    assert again.body["number"] == first.body["number"] < last.body["number"]
    assert last.body["max_count"] == 0


def test_what_is_said_of_an_item_that_a_close_gives_back_raises(node: FakeNode) -> None:
    client = client_of(node)
    client.subscribe("t")
    client.publish("t", "1")
    [item] = client.work("t", "g", ack="manual", idle=0)
    run, said = client._run, list[type[BaseException]]()

    def meanwhile(*about: Any) -> Any:
        for say in (item.ack, item.nak, item.extend):
            with pytest.raises(Closed) as raised:
                say()
            said.append(raised.type)
        return run(*about)

    client._run = meanwhile  # type: ignore[method-assign, assignment]
    client.close()
    assert (said, item.settled) == ([Closed] * 3, "nak")


def test_what_is_said_of_an_item_that_an_asynchronous_close_gives_back_raises(
    node: FakeNode,
) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            await client.publish("t", "1")
            [item] = [item async for item in client.work("t", "g", ack="manual", idle=0)]
            node.script(TAKE, "deaf")
            closing = asyncio.create_task(client.close())
            await asyncio.to_thread(node.await_requests, TAKE, 2)
            for say in (item.ack, item.nak, item.extend):
                with pytest.raises(Closed):
                    say()
            await closing

    asyncio.run(work())


def test_what_is_said_of_an_item_behind_the_end_of_its_asynchronous_client_raises(
    node: FakeNode,
) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint, state_dir=node.new_directory()) as client:
            await client.subscribe("t")
            await client.publish("t", "1")
            [item] = [item async for item in client.work("t", "g", ack="manual", idle=0)]
        for say in (item.ack, item.nak, item.extend):
            with pytest.raises(Closed):
                say()

    asyncio.run(work())


def _said(request: Request, how: str) -> list[int]:
    """Return the ids of which a TAKE says so."""
    rows = request.body.get(how, [])
    return [id_ for _, first, last, *_ in rows for id_ in range(first, last + 1)]
