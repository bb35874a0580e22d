"""What chaos/workloads promises: orders are followed, payloads prove their origin, all drains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from chaos.workloads import ClientConfig, decode_config, kinds, payload
from chaos.workloads.gatherer import GathererProcess
from chaos.workloads.history import ProcessRecorder, read
from chaos.workloads.pipeliner import PipelinerProcess
from chaos.workloads.process import ClientWorkload, Kit
from chaos.workloads.publisher import BEHIND_S_MAX, Pace, PublisherProcess, Texts
from chaos.workloads.recording import MortalObserver
from chaos.workloads.subscriber import SubscriberProcess
from chaos.workloads.visitor import VisitorProcess
from flotilla_client import (
    Delivery,
    Fenced,
    Operation,
    Overloaded,
    PutResult,
    Unavailable,
)
from flotilla_client.protocol import PUBLICATION_BYTES_MAX
from tests.unit.fake_client import ControlLine, FakeClient, FakeProducer

TOPICS = ("a", "b")


def config(directory: Path, parameters: kinds.Parameters) -> ClientConfig:
    return ClientConfig(
        process="client-1",
        run_id="r",
        directory=str(directory),
        endpoints=("tcp://127.0.0.1:1",),
        topics=TOPICS,
        seed=3,
        deadline_ms=100,
        parameters=parameters,
    )


@pytest.mark.parametrize("kind", kinds.KINDS.values())
def test_a_configuration_survives_its_way_into_the_process(
    tmp_path: Path, kind: type[kinds.Parameters]
) -> None:
    made = config(tmp_path, kind())
    assert decode_config(made.encode()) == made


# --- control --------------------------------------------------------------------------------------


@pytest.fixture
def line() -> Iterator[ControlLine]:
    made = ControlLine()
    yield made
    made.close()


def test_a_wait_that_no_clock_of_the_system_takes_is_a_wait_for_an_order(line: ControlLine) -> None:
    line.stop()
    assert line.control.order(1e300) == {"order": "stop"}
    line.stop()
    assert line.control.order(float("inf")) == {"order": "stop"}


def test_orders_are_taken_one_by_one_even_when_a_line_comes_in_two_pieces(
    line: ControlLine,
) -> None:
    os.write(line.orders, b'{"order":"phase","phase":"steady"}\n{"order":')
    assert line.control.order(0) == {"order": "phase", "phase": "steady"}
    assert line.control.order(0) is None
    os.write(line.orders, b'"stop"}\n')
    assert line.control.order(0) == {"order": "stop"}


def test_the_end_of_the_line_is_an_order_to_stop(line: ControlLine) -> None:
    os.close(line.orders)
    line.orders = os.dup(line.orders_read)
    assert line.control.order(1) == {"order": "stop"}


# --- the process ----------------------------------------------------------------------------------


def work(
    line: ControlLine,
    directory: Path,
    kind: Callable[[Kit], ClientWorkload],
    parameters: kinds.Parameters,
    client: FakeClient,
) -> list[tuple[Any, ...]]:
    with ProcessRecorder(directory, "p", "r") as recorder:
        kit = Kit(
            config(directory, parameters),
            client,  # type: ignore[arg-type]
            recorder,
            MortalObserver(recorder),
            line.control,
        )
        kind(kit).run()
    return client.asked


def begin(line: ControlLine) -> None:
    line.order({"order": "phase", "phase": "warmup"})


def test_a_client_that_cannot_be_opened_yet_tries_again_before_it_is_ready(
    line: ControlLine, tmp_path: Path
) -> None:
    begin(line)
    client = FakeClient(line, open=[Unavailable("no leader"), None], publish_many=[1])
    work(line, tmp_path, PublisherProcess, kinds.Publisher(rate_per_s=0), client)
    reports = [report["report"] for report in line.reported()]
    assert reports.index("ready") > 0
    assert reports.count("ready") == 1


def test_a_fenced_client_stops_at_once_and_sends_nothing_more(
    line: ControlLine, tmp_path: Path
) -> None:
    begin(line)
    client = FakeClient(line, publish_many=[1, Fenced("a newer process"), 1])
    with pytest.raises(Fenced):
        work(line, tmp_path, PublisherProcess, kinds.Publisher(rate_per_s=0), client)
    assert [asked[0] for asked in client.asked] == ["put", "put"]


# --- publishers -----------------------------------------------------------------------------------


def puts(asked: list[tuple[Any, ...]]) -> list[tuple[str, list[list[str]]]]:
    """Return topic and (producer, topic, counter) of each payload of each put."""
    return [(one[1], [text.split()[:3] for text in one[2]]) for one in asked if one[0] == "put"]


def test_a_publisher_goes_on_after_errors_and_counts_them_as_what_they_are(
    line: ControlLine, tmp_path: Path
) -> None:
    begin(line)
    unknown, refused = Unavailable("late", definite=False), Unavailable("never", definite=True)
    client = FakeClient(line, publish_many=[1, unknown, refused, 2])
    asked = work(line, tmp_path, PublisherProcess, kinds.Publisher(rate_per_s=0), client)
    assert [topic for topic, _ in puts(asked)] == ["a", "b", "a", "b"]
    assert asked[-1] == ("flush",)
    counts = {"acknowledged": 2, "delivered": 0, "unknown": 1, "failed": 1}
    assert line.reported()[-1] == {"report": "progress", **counts}


def test_a_publishers_payloads_carry_its_id_topic_and_counters(
    line: ControlLine, tmp_path: Path
) -> None:
    begin(line)
    parameters = kinds.Publisher(rate_per_s=0, batch_count=2)
    client = FakeClient(line, publish_many=[1, 1, 3])
    assert puts(work(line, tmp_path, PublisherProcess, parameters, client)) == [
        ("a", [["c", "a", "1"], ["c", "a", "2"]]),
        ("b", [["c", "b", "1"], ["c", "b", "2"]]),
        ("a", [["c", "a", "3"], ["c", "a", "4"]]),
    ]


def test_a_hot_topic_gets_its_share(line: ControlLine, tmp_path: Path) -> None:
    begin(line)
    parameters = kinds.Publisher(rate_per_s=0, hot_share=0.8)
    client = FakeClient(line, publish_many=[1] * 200)
    topics = [
        topic for topic, _ in puts(work(line, tmp_path, PublisherProcess, parameters, client))
    ]
    assert 0.8 < topics.count("a") / len(topics) < 1


def test_large_publications_reach_the_limit_exactly_and_prove_their_origin() -> None:
    texts = Texts(PUBLICATION_BYTES_MAX, 5)
    made = [texts.make("c", "a", counter).encode() for counter in range(1, 30)]
    sizes = [len(data) for data in made]
    assert max(sizes) == PUBLICATION_BYTES_MAX
    assert sizes.count(PUBLICATION_BYTES_MAX) > 2
    assert min(sizes) < PUBLICATION_BYTES_MAX / 2
    assert [payload.check(data, "a") for data in made] == [("c", n) for n in range(1, 30)]


def test_a_pace_keeps_its_rate_but_makes_up_for_a_second_at_most() -> None:
    pace = Pace(10, 100.0)
    pace.took(100.0)
    assert pace.wait_s(100.0) == pytest.approx(0.1)
    pace.took(160.0)  # an outage of a minute
    behind = 0
    while pace.wait_s(160.0) <= 0:
        pace.took(160.0)
        behind += 1
    assert behind == pytest.approx(10 * BEHIND_S_MAX, abs=1)


def test_a_pipeliner_sends_everything_again_before_the_burst_after_an_error(
    line: ControlLine, tmp_path: Path
) -> None:
    begin(line)
    unknown = Unavailable("late", definite=False)
    client = FakeClient(line, send_a=[1, unknown, 2, 3], send_b=[1, 2, 3, 4])
    parameters = kinds.Pipeliner(burst_count=2)
    asked = work(line, tmp_path, PipelinerProcess, parameters, client)
    opening = [("producer", "a"), ("producer", "b")]
    steps = [one[:2] if one[0] == "send" else one for one in asked]
    burst = [("send", "a")] * 2 + [("send", "b")] * 2
    closing = [("close", "a"), ("close", "b")]
    assert steps == [
        ("flush",),
        *opening,
        *burst,
        *closing,
        ("flush",),
        *opening,
        *burst,
        *closing,
        ("flush",),
    ]
    counts = {"acknowledged": 7, "delivered": 0, "unknown": 1, "failed": 0}
    assert line.reported()[-1] == {"report": "progress", **counts}


def test_a_pipeliner_whose_queue_is_full_closes_its_producers_before_it_goes_on(
    line: ControlLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(line)
    client = FakeClient(line, send_a=[1, 2, 3], send_b=[1, 2, 3, 4])
    send, refusals = FakeProducer.send, [Overloaded("the queue is full")]

    def refusing(producer: FakeProducer, text: str) -> Future[PutResult]:
        if producer.topic == "a" and len(client.answers["send_a"]) == 2 and refusals:
            raise refusals.pop()
        return send(producer, text)

    monkeypatch.setattr(FakeProducer, "send", refusing)
    asked = work(line, tmp_path, PipelinerProcess, kinds.Pipeliner(burst_count=2), client)
    first_close = asked.index(("close", "a"))
    assert [one[0] for one in asked[:first_close]].count("send") == 1
    counters = [text.split()[2] for kind, topic, text in _sends(asked) if topic == "a"]
    assert counters == ["1", "2", "3"]  # none twice, none left out


def _sends(asked: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [one for one in asked if one[0] == "send"]


def test_a_fenced_pipeliner_stops(line: ControlLine, tmp_path: Path) -> None:
    begin(line)
    client = FakeClient(line, send_a=[Fenced("a newer process")] * 2, send_b=[1, 1, 1])
    with pytest.raises(Fenced):
        work(line, tmp_path, PipelinerProcess, kinds.Pipeliner(burst_count=2), client)


# --- those that read ------------------------------------------------------------------------------


def delivery(topic: str, first_id: int, count: int) -> Delivery:
    return Delivery(topic, first_id, tuple(b"x" for _ in range(count)))


def drained_rows(directory: Path) -> list[tuple[str, int]]:
    rows = read(directory / "p.jsonl")
    return [(row["topic"], row["last_id"]) for row in rows if row.get("phase") == "drained"]


def when_reported(
    line: ControlLine, monkeypatch: pytest.MonkeyPatch, **then: Callable[[], None]
) -> None:
    """Give orders when a client makes a report."""
    report = line.control.report

    def reporting(name: str, **fields: Any) -> None:
        report(name, **fields)
        if name in then:
            then[name]()

    monkeypatch.setattr(line.control, "report", reporting)


def draining(line: ControlLine, **last_ids: int) -> Callable[[], None]:
    return lambda: line.order({"order": "drain", "last_ids": last_ids})


@pytest.mark.parametrize("pause_s", [0, 3600])
def test_a_subscriber_reads_on_through_errors_to_every_tombstone_and_says_so_once(
    line: ControlLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    client = FakeClient(
        line,
        get_a=[delivery("a", 1, 2), delivery("a", 3, 1)],
        get_b=[Unavailable("late"), delivery("b", 1, 1)],
        never=[None],
    )
    when_reported(line, monkeypatch, ready=draining(line, a=3, b=1), drained=line.stop)
    parameters = kinds.Subscriber(get_wait_ms=0, pause_s=pause_s)
    work(line, tmp_path, SubscriberProcess, parameters, client)
    assert sorted(drained_rows(tmp_path)) == [("a", 3), ("b", 1)]
    reports = line.reported()
    assert [one["report"] for one in reports].count("drained") == 1
    assert reports[-1]["delivered"] == 4


def test_a_subscriber_that_is_not_at_the_tombstone_does_not_claim_to_have_drained(
    line: ControlLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient(line, get_a=[delivery("a", 1, 1)], get_b=[delivery("b", 1, 4)])
    when_reported(line, monkeypatch, ready=draining(line, a=1, b=5))
    work(line, tmp_path, SubscriberProcess, kinds.Subscriber(), client)
    assert drained_rows(tmp_path) == [("a", 1)]
    assert "drained" not in [one["report"] for one in line.reported()]


def test_a_gatherer_notes_what_comes_from_whatever_topic(
    line: ControlLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = [delivery("b", 1, 2), None, Unavailable("late"), delivery("a", 1, 1)]
    client = FakeClient(line, get_None=brought, never=[None])
    when_reported(line, monkeypatch, ready=draining(line, a=1, b=2), drained=line.stop)
    asked = work(line, tmp_path, GathererProcess, kinds.Gatherer(), client)
    assert {one for one in asked if one[0] == "get"} == {("get", None)}
    assert sorted(drained_rows(tmp_path)) == [("a", 1), ("b", 2)]


def test_a_visitor_comes_and_goes_and_asks_again_until_it_has_left(
    line: ControlLine, tmp_path: Path
) -> None:
    client = FakeClient(line, unsubscribe=[Unavailable("late"), *[True] * 8], subscribe=[0] * 10)
    parameters = kinds.Visitor(stay_s=0.001, away_s=0.001, get_wait_ms=0)
    asked = work(line, tmp_path, VisitorProcess, parameters, client)
    controls = [one for one in asked if one[0] != "get"]
    first = controls.index(("unsubscribe", "a"))
    assert controls[first : first + 3] == [
        ("unsubscribe", "a"),
        ("unsubscribe", "a"),
        ("unsubscribe", "b"),
    ]
    standing: set[str] = set()
    for method, topic in asked:
        if method == "subscribe":
            standing.add(topic)
        elif method == "unsubscribe":
            standing.discard(topic)
        else:
            assert topic in standing


def test_a_visitor_that_is_away_at_the_drain_has_nothing_to_drain(
    line: ControlLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient(line, never=[None])
    parameters = kinds.Visitor(stay_s=0, away_s=3600, get_wait_ms=0)
    unsubscribe = client.unsubscribe

    def then_drain(topic: str) -> bool:
        if topic == TOPICS[-1]:
            draining(line, a=9, b=9)()
        return unsubscribe(topic)

    monkeypatch.setattr(client, "unsubscribe", then_drain)
    when_reported(line, monkeypatch, drained=line.stop)
    work(line, tmp_path, VisitorProcess, parameters, client)
    assert drained_rows(tmp_path) == []
    assert [one["report"] for one in line.reported()].count("drained") == 1


# --- death at a chosen point ----------------------------------------------------------------------

DIES = """
import sys
from pathlib import Path
from chaos.workloads.history import ProcessRecorder
from chaos.workloads.recording import MortalObserver
from flotilla_client import Operation, Outcome
with ProcessRecorder(Path(sys.argv[1]), "p", "r") as recorder:
    observer = MortalObserver(recorder)
    observer.arm(sys.argv[2], int(sys.argv[3]))
    for number in range(1, 4):
        operation = Operation(number, "c", "put", "a", counter=number, count=1)
        observer.on_invoke(operation)
        observer.on_complete(operation, Outcome(1, first_id=number, count=1, duplicate=False))
"""


@pytest.mark.parametrize(
    ("point", "passes", "left"),
    [
        ("invoked", 0, ["invoke"]),
        ("answered", 0, ["invoke"]),
        ("recorded", 0, ["invoke", "ok"]),
        ("answered", 1, ["invoke", "ok", "invoke"]),
        ("recorded", 2, ["invoke", "ok"] * 3),
    ],
)
def test_a_client_dies_at_its_point_and_the_history_has_what_came_before(
    tmp_path: Path, point: str, passes: int, left: list[str]
) -> None:
    arguments = [sys.executable, "-c", DIES, str(tmp_path), point, str(passes)]
    packages = os.pathsep.join(path or "." for path in sys.path)
    done = subprocess.run(arguments, env={**os.environ, "PYTHONPATH": packages}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [event["type"] for event in read(tmp_path / "p.jsonl")] == left


def test_a_client_that_nobody_armed_lives_on(tmp_path: Path) -> None:
    with ProcessRecorder(tmp_path, "p", "r") as recorder:
        MortalObserver(recorder).on_invoke(Operation(1, "c", "put", "a", counter=1, count=1))
    assert [event["type"] for event in read(tmp_path / "p.jsonl")] == ["invoke"]
