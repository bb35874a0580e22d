"""What a node counts, and where: buckets, PUTs, requests by type, refusals by code, fsyncs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.observe.observer import TimedFiles
from cluster.serve.meters import FSYNC_S, PUT_S, TURN_S, Histogram, Meters
from flotilla_client.protocol import GET, INSPECT, STATUS, Request, encode_request
from tests.unit.cluster.serve import test_broker, test_frontend


def test_a_value_on_a_bound_is_within_it_and_one_above_all_has_a_place() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.100001, 1.0, 7.0):
        histogram.observe(value)

    assert histogram.counts == [2, 2, 1]
    assert histogram.sum_s == pytest.approx(8.250001)


@pytest.mark.parametrize("bounds", [TURN_S, FSYNC_S, PUT_S])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert sorted(set(bounds)) == list(bounds)


def test_a_put_is_measured_from_its_turn_s_beginning_to_the_end_of_its_answer_s() -> None:
    meters = Meters()
    meters.leaving = [1000.0, 1010.0]  # ms of the turns' clock

    meters.turned(1.030, 1.040, 1.055)

    assert meters.put.sum_s == pytest.approx(0.040 + 0.030)
    assert meters.turn.sum_s == pytest.approx(0.025)
    assert sum(meters.turn.counts) == 1


def test_only_acknowledged_puts_are_measured(tmp_path: Path) -> None:
    bench = test_broker.BrokerBench(tmp_path)
    bench.now_ms = 500.0
    bench.put(0)
    bench.ask(GET, "t")
    bench.put(7)  # leaves a hole: refused
    answers = bench.turn()

    assert sorted(answer.put_taken_ms for answer in answers) == [0.0, 0.0, 500.0]
    assert (bench.broker.delivered_count, bench.broker.delivered_bytes) == (1, 1)
    assert bench.store.added() == (1, 5), "a publication of one byte, with its length"


def test_what_waits_is_counted_by_what_it_waits_for(tmp_path: Path) -> None:
    bench = test_broker.BrokerBench(tmp_path)
    bench.ask(GET, "t", wait_ms=1000)
    assert bench.broker.load()["barrier"] == 1
    bench.turn()
    assert bench.broker.load() == {"entry": 0, "barrier": 0, "turn": 0, "publication": 1}
    bench.put(0)
    assert bench.broker.load()["entry"] == 1


def test_requests_are_counted_by_type_and_refusals_by_code() -> None:
    bench = test_frontend.FrontendBench()
    bench.front.status = dict  # type: ignore[method-assign,assignment]
    bench.broker.forbidden = lambda principal, request: None
    meters = bench.front.meters
    bench.front.take_request(b"client", encode_request(Request(STATUS, "r1")))
    settings = Request(INSPECT, "r2", body={"what": "settings"})
    bench.front.settings = {"node": {"value": "b", "from": "default"}}
    bench.front.take_request(b"client", encode_request(settings))
    bench.front.take_request(b"client", [b"no JSON"])
    bench.linked.clear()
    bench.ask("r3")

    replies = bench.replies()

    assert (meters.requests[STATUS], meters.requests[INSPECT], meters.requests["TOPICS"]) == (
        1,
        1,
        1,
    )
    assert (meters.refused["bad_request"], meters.refused["electing"]) == (1, 1)
    assert [reply.body for reply in replies if "settings" in reply.body] == [
        {"settings": bench.front.settings}
    ]


def test_a_replicas_meters_do_not_grow_where_nobody_reads_them() -> None:
    bench = test_frontend.FrontendBench()
    for turn in range(3):
        bench.broker.take_answers = lambda: [
            test_frontend.Answer(b"client", "r", "ACK", {"id": 1}, put_taken_ms=1.0)
        ]
        bench.replies()
        assert len(bench.front.meters.leaving) == 1, turn


def test_fsyncs_are_timed_and_their_errors_are_not_swallowed(tmp_path: Path) -> None:
    fsync = Histogram(FSYNC_S)
    files = TimedFiles(fsync)
    with (tmp_path / "file").open("wb") as file:
        files.fdatasync(file.fileno())
    assert sum(fsync.counts) == 1

    closed = os.open(tmp_path / "file", os.O_RDONLY)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.fdatasync(closed)
    assert sum(fsync.counts) == 1
