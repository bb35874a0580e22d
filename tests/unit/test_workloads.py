"""What chaos/workloads and chaos/crew.py promise: orders are followed, ends are bounded."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from chaos import crew as crew_module
from chaos.crew import Crew, CrewError
from chaos.history import Recorder, read
from chaos.workloads import ClientConfig, decode_config
from chaos.workloads.control import Control
from chaos.workloads.publisher import BEHIND_S_MAX, Pace, PublisherProcess
from chaos.workloads.subscriber import SubscriberProcess
from flotilla import Delivery, PutResult, SubscribeResult, Unavailable


def config(directory: Path, process: str = "client-1", deadline_ms: int = 100) -> ClientConfig:
    return ClientConfig(
        process=process,
        run_id="r",
        directory=str(directory),
        endpoints=("tcp://127.0.0.1:1",),
        topics=("a", "b"),
        seed=3,
        deadline_ms=deadline_ms,
        rate_per_s=0,
        get_count_max=10,
        get_wait_ms=0,
    )


def test_a_configuration_survives_its_way_into_the_process(tmp_path: Path) -> None:
    assert decode_config(config(tmp_path).encode()) == config(tmp_path)


# --- control --------------------------------------------------------------------------------------


class Line:
    """Both ends of a control line."""

    def __init__(self) -> None:
        self.orders_read, self.orders = os.pipe()
        self.reports, self.reports_write = os.pipe()
        self.control = Control(self.orders_read, self.reports_write)

    def order(self, *orders: dict[str, Any]) -> None:
        os.write(self.orders, b"".join(orjson.dumps(order) + b"\n" for order in orders))

    def reported(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in os.read(self.reports, 65_536).splitlines()]

    def close(self) -> None:
        for descriptor in (self.orders_read, self.orders, self.reports, self.reports_write):
            os.close(descriptor)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def test_orders_are_taken_one_by_one_even_when_a_line_comes_in_two_pieces(line: Line) -> None:
    os.write(line.orders, b'{"order":"phase","phase":"steady"}\n{"order":')
    assert line.control.order(0) == {"order": "phase", "phase": "steady"}
    assert line.control.order(0) is None
    os.write(line.orders, b'"stop"}\n')
    assert line.control.order(0) == {"order": "stop"}


def test_the_end_of_the_line_is_an_order_to_stop(line: Line) -> None:
    os.close(line.orders)
    line.orders = os.dup(line.orders_read)
    assert line.control.order(1) == {"order": "stop"}


# --- publisher ------------------------------------------------------------------------------------


class FakeClient:
    """A client whose puts follow a script: an id, or an error; then the run is stopped."""

    client_id = "c"

    def __init__(self, line: Line, outcomes: list[Any]) -> None:
        self.line = line
        self.outcomes = outcomes
        self.puts: list[tuple[str, str]] = []
        self.counters: dict[str, int] = {}
        self.flushed = 0

    def open(self) -> None: ...

    def next_counter(self, topic: str) -> int:
        return self.counters.get(topic, 0) + 1

    def put(self, topic: str, publication: str) -> PutResult:
        self.puts.append((topic, publication))
        self.counters[topic] = self.next_counter(topic)
        outcome = self.outcomes.pop(0)
        if not self.outcomes:
            self.line.order({"order": "stop"})
        if isinstance(outcome, Exception):
            raise outcome
        return PutResult(outcome, 1, False)

    def flush(self) -> None:
        self.flushed += 1


def publish(line: Line, directory: Path, outcomes: list[Any]) -> FakeClient:
    client = FakeClient(line, outcomes)
    line.order({"order": "phase", "phase": "warmup"})
    with Recorder(directory, "p", "r") as recorder:
        process = PublisherProcess(
            ("a", "b"),
            client,
            iter(["x"] * 9),
            line.control,  # type: ignore[arg-type]
        )
        process.run(recorder, 0)
    return client


def test_a_publisher_goes_on_after_errors_and_counts_them_as_what_they_are(
    line: Line, tmp_path: Path
) -> None:
    unknown, refused = Unavailable("late", definite=False), Unavailable("never", definite=True)
    client = publish(line, tmp_path, [1, unknown, refused, 2])
    assert [topic for topic, _ in client.puts] == ["a", "b", "a", "b"]
    counts = {"acknowledged": 2, "unknown": 1, "failed": 1}
    assert line.reported()[-1] == {"report": "progress", **counts}


def test_a_publishers_payload_carries_its_id_topic_and_counter(line: Line, tmp_path: Path) -> None:
    client = publish(line, tmp_path, [1, 2, 3])
    assert [text.split()[:3] for _, text in client.puts] == [
        ["c", "a", "1"],
        ["c", "b", "1"],
        ["c", "a", "2"],
    ]


def test_a_publisher_sends_its_outbox_before_it_stops(line: Line, tmp_path: Path) -> None:
    assert publish(line, tmp_path, [1]).flushed == 1


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


# --- subscriber -----------------------------------------------------------------------------------


class Topics:
    """A client with two topics; each GET hands over the next delivery of the script, if any."""

    def __init__(self, line: Line, deliveries: dict[str, list[Delivery | Exception]]) -> None:
        self.line = line
        self.deliveries = deliveries
        self.asked = 0

    def subscribe(self, topic: str) -> SubscribeResult:
        return SubscribeResult(0, False)

    def get(self, topic: str, wait_ms: int, max_count: int) -> Delivery | None:
        self.asked += 1
        assert self.asked < 100, "it reads for ever"
        script = self.deliveries[topic]
        next_one = script.pop(0) if script else None
        if isinstance(next_one, Exception):
            raise next_one
        return next_one


def drained_rows(directory: Path) -> list[tuple[str, int]]:
    rows = read(directory / "s.jsonl")
    return [(row["topic"], row["last_id"]) for row in rows if row.get("phase") == "drained"]


def subscribe(line: Line, directory: Path, client: Topics) -> None:
    with Recorder(directory, "s", "r") as recorder:
        SubscriberProcess(
            config(directory),
            client,
            recorder,
            line.control,  # type: ignore[arg-type]
        ).run()


def test_a_subscriber_reads_on_through_errors_to_every_tombstone_and_says_so_once(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Topics(
        line,
        {
            "a": [Delivery("a", 1, (b"1", b"2")), Delivery("a", 3, (b"3",))],
            "b": [Unavailable("late"), Delivery("b", 1, (b"1",))],
        },
    )
    report = line.control.report

    def stop_when_drained(name: str, **fields: Any) -> None:
        report(name, **fields)
        if name == "drained":
            line.order({"order": "stop"})

    monkeypatch.setattr(line.control, "report", stop_when_drained)
    line.order({"order": "drain", "last_ids": {"a": 3, "b": 1}})
    subscribe(line, tmp_path, client)
    assert sorted(drained_rows(tmp_path)) == [("a", 3), ("b", 1)]
    reports = line.reported()
    assert [one["report"] for one in reports].count("drained") == 1
    assert reports[-1] == {"report": "progress", "delivered": 4}


def test_a_subscriber_that_is_not_at_the_tombstone_does_not_claim_to_have_drained(
    line: Line, tmp_path: Path
) -> None:
    client = Topics(line, {"a": [Delivery("a", 1, (b"1",))], "b": []})
    line.order({"order": "drain", "last_ids": {"a": 1, "b": 5}}, {"order": "phase", "phase": "x"})
    line.order({"order": "stop"})
    subscribe(line, tmp_path, client)
    assert ("b", 5) not in drained_rows(tmp_path)
    assert "drained" not in [one["report"] for one in line.reported()]


# --- crew -----------------------------------------------------------------------------------------

FOLLOWS = """
import sys
from chaos.workloads.control import Control
control = Control()
control.report("ready")
while (order := control.order(10)) and order["order"] != "stop":
    control.report("heard", acknowledged=2)
"""
IGNORES = 'import sys, signal; print(\'{"report": "ready"}\', flush=True); signal.pause()'
CRASHES = "import sys; sys.exit('out of luck')"


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    monkeypatch.setattr(crew_module, "STOP_MARGIN_S", 0.2)
    made = Crew()
    yield made
    made.close()


def start(crew: Crew, directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(
        crew_module, "client_command", lambda role, config: [sys.executable, "-c", script]
    )
    crew.start("publisher", [config(directory)])


def poll_until_ready(crew: Crew) -> None:
    deadline_s = time.monotonic() + 20
    while not crew.all_have("ready"):
        assert time.monotonic() < deadline_s, crew.lacking("ready")
        crew.poll(0.02)


def test_a_crew_hears_reports_gives_orders_and_dismisses(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(crew, tmp_path, monkeypatch, FOLLOWS)
    poll_until_ready(crew)
    crew.order("phase", phase="steady")
    deadline_s = time.monotonic() + 20
    while crew.lacking("heard"):
        assert time.monotonic() < deadline_s
        crew.poll(0.02)
    assert crew.count("acknowledged") == 2
    assert crew.dismiss("publisher") == []


def test_a_client_that_ends_by_itself_ends_the_run_with_its_last_words(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(crew, tmp_path, monkeypatch, CRASHES)
    with pytest.raises(CrewError, match=r"client-1 ended with 1(?s:.*)out of luck"):
        poll_until_ready(crew)


def test_a_client_that_does_not_stop_is_killed_at_its_bound_and_named(
    crew: Crew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(crew, tmp_path, monkeypatch, IGNORES)
    poll_until_ready(crew)
    assert crew.dismiss("publisher") == ["client-1"]
