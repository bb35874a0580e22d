"""The producer without its thread: what leaves when, and which answers count."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from flotilla_client import (
    CounterGap,
    Fenced,
    OutboxFull,
    QuotaExceeded,
    StateUnusable,
    TooLarge,
    Unavailable,
)
from flotilla_client.observer import Silent
from flotilla_client.operations import Operations, PutResult
from flotilla_client.pipeline import IDLE_MS, OUTBOX_RETRY_MS, Pipeline
from flotilla_client.protocol import ACK, NAK, Reply, Request, decode_request
from flotilla_client.retry import Done, Routes
from flotilla_client.state import State
from flotilla_client.window import Queue

DEADLINE_MS = 3_000.0


class OpenWire:
    """A wire that takes everything, or nothing. `sent`: the requests since the last look."""

    def __init__(self) -> None:
        self.cause = "down"
        self.is_up = True
        self.sent: list[Request] = []
        self.closed: list[int] = []

    def send(self, endpoint: int, frames: Sequence[bytes], timeout_ms: float) -> bool:
        if self.is_up:
            self.sent.append(decode_request(list(frames)))
        return self.is_up

    def close(self, endpoint: int) -> None:
        self.closed.append(endpoint)


class PipelineBench:
    """A pipeline of one publication a batch, and the time."""

    def __init__(self) -> None:
        self.now_ms, self.line, self.queue = 0.0, OpenWire(), Queue(batch_bytes=1)
        self.state = State(None, 1 << 20)
        self.state.resumed("me", 1, 0, {}, {})
        self.pipeline = Pipeline(
            Operations(self.state, Silent()),
            "t",
            ["a", "b"],
            Routes((0, 1)),
            self.line,
            self.queue,
            DEADLINE_MS,
            random.Random(7),
            lambda: self.now_ms,
            linger_ms=0.0,
            in_flight_max=4,
        )

    def publish(self, *texts: str) -> list[Future[PutResult]]:
        futures = [self.queue.put(text.encode(), lambda: self.now_ms) for text in texts]
        self.pipeline.turn()
        return futures

    def wait(self, wait_ms: float) -> None:
        self.now_ms += wait_ms
        self.pipeline.expire()
        self.pipeline.turn()

    def take(self) -> list[Request]:
        """Return what was sent since the last time."""
        sent, self.line.sent = self.line.sent, []
        return sent

    def answer(self, request: Request, **error: Any) -> None:
        kind, body = (NAK, error) if error else (ACK, {"id": request.body["counter"]})
        self.pipeline.replied(Reply(kind, request.request_id, "n", "n", 1, body))
        self.pipeline.turn()


@pytest.fixture
def bench() -> PipelineBench:
    return PipelineBench()


def counters(requests: list[Request]) -> list[int]:
    return [request.body["counter"] for request in requests]


def known(bench: PipelineBench) -> None:
    """Let the first publication be acknowledged, so that others may overtake each other."""
    bench.publish("zero")
    bench.answer(*bench.take())


def test_nothing_overtakes_the_first_until_the_broker_knows_the_producer(
    bench: PipelineBench,
) -> None:
    bench.publish("one", "two", "three")
    [first] = bench.take()
    bench.answer(first)
    assert counters(bench.take()) == [2, 3]


def test_what_is_behind_a_silent_batch_is_sent_again_after_it(bench: PipelineBench) -> None:
    known(bench)
    bench.publish("one", "two")
    assert counters(bench.take()) == [2, 3]
    bench.wait(DEADLINE_MS / 3)
    assert counters(bench.take()) == [2, 3]
    assert bench.line.closed == [0]


def test_a_gap_said_before_the_batch_in_front_came_is_no_refusal(bench: PipelineBench) -> None:
    known(bench)
    _, future = bench.publish("one", "two")
    one, two = bench.take()
    bench.answer(one)  # overtakes what was said of the second, when the first was not there
    bench.answer(two, error="counter_gap", definite=True, expected=2)
    [again] = bench.take()
    assert (again.body["counter"], again.request_id) == (3, two.request_id[:-1] + "2")
    bench.answer(again)
    assert future.result(0).id == 3


def test_a_gap_before_the_leading_batch_stops_the_producer(bench: PipelineBench) -> None:
    known(bench)
    [future] = bench.publish("one")
    with pytest.raises(CounterGap):
        bench.answer(*bench.take(), error="counter_gap", definite=True, expected=9)
    assert isinstance(future.exception(0), CounterGap)


def test_what_nobody_took_in_time_stands_in_the_outbox_and_is_sent_later(
    bench: PipelineBench,
) -> None:
    bench.line.is_up = False
    [future] = bench.publish("one")
    while not future.done():
        bench.wait(100.0)
    error = future.exception(0)
    assert isinstance(error, Unavailable)
    assert not error.definite
    assert [entry.counter for entry in bench.state.outbox("t")] == [1]
    bench.line.is_up = True
    bench.wait(1_000.0)
    assert counters(bench.take()) == [1]


def test_a_producer_that_stops_denies_nothing_that_stands_in_its_outbox(
    bench: PipelineBench,
) -> None:
    known(bench)
    futures = bench.publish("one", "two")
    bench.pipeline.stop(Fenced("a newer process has taken over", "fenced", True))
    errors = [future.exception(0) for future in futures]
    assert [isinstance(error, Fenced) and error.definite for error in errors] == [False, False]
    assert [entry.counter for entry in bench.state.outbox("t")] == [2, 3]


def test_callbacks_that_end_the_thread_leave_nobody_waiting(bench: PipelineBench) -> None:
    known(bench)
    futures = bench.publish(*"abcdef")  # four in the window, two behind it
    for future in futures:
        future.add_done_callback(lambda _: sys.exit())
    with pytest.raises(SystemExit):
        bench.pipeline.stop(Fenced("a newer process has taken over"))
    assert [type(future.exception(0)) for future in futures] == [Fenced] * 6


def test_the_first_of_a_window_alone_is_refused_and_the_rest_stands_in_the_outbox(
    bench: PipelineBench,
) -> None:
    known(bench)
    futures = bench.publish("one", "two", "three")
    one, *_ = bench.take()
    with pytest.raises(TooLarge):
        bench.answer(one, error="too_large", definite=True, limit=1)
    errors = [future.exception(0) for future in futures]
    assert [isinstance(error, TooLarge) and error.definite for error in errors] == [
        True,
        False,
        False,
    ]
    assert (bench.queue.lost, bench.queue.kept) == (1, 2)


def test_who_was_answered_behind_a_silent_one_is_told_when_the_producer_ends(
    bench: PipelineBench,
) -> None:
    known(bench)
    silent, answered = bench.publish("one", "two")
    bench.answer(bench.take()[1])
    assert not answered.done(), "what is before it may be sent again"
    bench.pipeline.abandon()
    assert isinstance(silent.exception(0), Unavailable)
    assert answered.result(0).id == 3
    assert [entry.counter for entry in bench.state.outbox("t")] == [2]


def test_who_was_answered_behind_a_silent_one_is_told_when_the_time_of_that_is_over(
    bench: PipelineBench,
) -> None:
    known(bench)
    silent, answered, last = bench.publish("one", "two", "three")
    bench.answer(bench.take()[1])
    bench.wait(DEADLINE_MS)
    assert isinstance(silent.exception(0), Unavailable)
    assert answered.result(0).id == 3
    assert isinstance(last.exception(0), Unavailable)
    bench.wait(DEADLINE_MS)
    assert set(counters(bench.take())) == {2, 4}, "what was answered is not sent again"
    assert [entry.counter for entry in bench.state.outbox("t")] == [2, 4]


def test_what_was_kept_at_deadlines_is_sent_again_no_faster_than_it_may_be_in_flight(
    bench: PipelineBench,
) -> None:
    known(bench)
    for _ in range(3):
        bench.publish("one", "two", "three", "four")
        bench.wait(DEADLINE_MS)
    assert len(bench.state.outbox("t")) == 12
    bench.take()
    bench.wait(DEADLINE_MS / 3)
    assert counters(bench.take()) == [2, 3, 4, 5]


def test_a_listing_of_several_pages_is_whole(bench: PipelineBench) -> None:
    steps = Operations(bench.state, Silent()).topics(True)

    def page(names: str, more: bool) -> Done:
        body = {"topics": [{"topic": name} for name in names], "more": more}
        return Done(Reply(ACK, "r", "n", "n", 1, body), 1)

    assert next(steps).request.body["after"] == ""
    assert steps.send(page("ab", True)).request.body["after"] == "b"
    with pytest.raises(StopIteration) as end:
        steps.send(page("c", False))
    assert [row["topic"] for row in end.value.value] == ["a", "b", "c"]


def test_what_finds_no_room_in_the_outbox_for_as_long_as_it_may_wait_is_refused(
    bench: PipelineBench,
) -> None:
    bench.state = bench.pipeline._operations.state = State(None, 1)  # other topics have the rest
    bench.now_ms = since_ms = 1.0
    [future] = bench.publish("one")
    while bench.now_ms < since_ms + DEADLINE_MS:
        assert not future.done()
        bench.wait(OUTBOX_RETRY_MS)
    assert isinstance(future.exception(0), OutboxFull)
    assert not bench.take()


def test_what_was_due_finds_its_room_in_the_outbox_whatever_it_would_linger(
    bench: PipelineBench,
) -> None:
    known(bench)
    bench.pipeline._linger_ms = 100 * DEADLINE_MS
    bench.queue.batch_bytes = 100
    full, bench.state._outbox_bytes_max = bench.state._outbox_bytes_max, 1
    bench.queue.put(b"one", lambda: bench.now_ms)
    bench.queue.is_hurried = True  # by a flush
    bench.pipeline.turn()
    assert not bench.take()
    bench.state._outbox_bytes_max = full
    bench.wait(OUTBOX_RETRY_MS)
    assert counters(bench.take()) == [2]


def test_a_quota_that_does_not_free_itself_is_not_asked_for_all_the_time(
    bench: PipelineBench,
) -> None:
    known(bench)
    [future] = bench.publish("one")
    bench.answer(*bench.take(), error="quota", definite=True)
    assert isinstance(future.exception(0), QuotaExceeded)
    assert not bench.take()
    bench.wait(IDLE_MS)
    assert counters(bench.take()) == [2]


def test_who_finds_the_disk_broken_behind_a_window_whose_time_is_over_hears_so(
    bench: PipelineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StateUnusable("the disk is broken")

    bench.line.is_up = False
    futures = bench.publish(*"abcdef")
    monkeypatch.setattr(bench.state, "enqueue", fail)
    bench.now_ms = DEADLINE_MS
    with pytest.raises(StateUnusable) as caught:
        bench.pipeline.expire()
    bench.pipeline.stop(caught.value)
    errors = [type(future.exception(0)) for future in futures]
    assert errors == [Unavailable] * 4 + [StateUnusable] * 2
    assert bench.queue.answered == bench.queue.sent


def test_what_waits_behind_a_window_whose_time_is_over_is_kept_and_hears_so(
    bench: PipelineBench,
) -> None:
    bench.line.is_up = False
    futures = bench.publish(*"abcdef")
    while not futures[0].done():
        bench.wait(100.0)
    errors = [future.exception(0) for future in futures]
    assert [isinstance(error, Unavailable) and error.definite for error in errors] == [False] * 6
    assert [entry.counter for entry in bench.state.outbox("t")] == [1, 2, 3, 4, 5, 6]
    assert (bench.queue.kept, bench.queue.answered) == (6, 6)
