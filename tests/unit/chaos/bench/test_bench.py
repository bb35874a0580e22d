"""The benchmark's arithmetic and arguments, and one short run on real processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import orjson
import pytest
from click.testing import CliRunner, Result

from chaos.bench import broker_clients, broker_loads, brokers, curve_loads, curves
from chaos.bench.broker_clients import CLIENTS
from chaos.bench.brokers import BROKERS
from chaos.bench.cli import bench
from chaos.bench.curve_loads import at_rate
from chaos.bench.figures import BenchError, Curve, Figure, SampleSpread, quantile, timed
from chaos.bench.loads import END, PUBLICATION
from chaos.bench.machine import Machine, Processors
from chaos.bench.measures import MEASURES, PEERS
from chaos.bench.page import page
from chaos.bench.plan import BenchPlan
from chaos.bench.report import BenchReport, document
from chaos.bench.stage import BenchStage
from flotilla_client.keys import VARIABLE


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)


def test_a_quantile_is_a_value_of_the_sample() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, share) for share in (0.2, 0.21, 0.5, 0.99, 1.0)] == [1, 2, 3, 5, 5]
    assert quantile([7.0], 0.01) == 7
    assert quantile([float(n) for n in range(1, 1001)], 0.99) == 990


def test_an_empty_sample_is_no_figure() -> None:
    with pytest.raises(BenchError, match="--seconds"):
        SampleSpread.of([])


def test_a_small_sample_has_no_p99() -> None:
    assert SampleSpread.of([1.0] * 99).p99 is None
    assert SampleSpread.of([1.0] * 98 + [2.0, 3.0], 10).p99 == 20


def test_a_duration_is_told_in_ms_against_the_others_median() -> None:
    figure = timed("name", "title", [0.004, 0.002, 0.009], {"echo": [0.001, 0.002, 0.5]})
    assert (figure.value, figure.unit, figure.against) == (4.0, "ms", {"echo": 2.0})
    assert figure.ratio("echo") == 2.0
    assert figure.spread == SampleSpread(4.0, None, 9.0, 3)


def test_a_figure_s_json_holds_its_ratios() -> None:
    row = Figure("rate", "a rate", 10.0, "/s", {"echo": 40.0}).as_json()
    assert row["against"] == {"echo": {"value": 40.0, "ratio": 0.25}}
    assert "p99" not in row, "a rate has no spread"


def test_the_share_of_others_leaves_out_our_own_time_and_idling() -> None:
    before, after = Processors(100.0, 50.0, 10.0), Processors(120.0, 65.0, 13.0)
    assert after.others_share(before) == pytest.approx((15 - 3) / 20)
    assert before.others_share(before) == 0.0


def test_publications_are_100_bytes_and_the_last_one_is_told_apart() -> None:
    assert len(PUBLICATION) == len(END) == 100
    assert PUBLICATION != END


@pytest.mark.parametrize(
    "arguments",
    [
        ("--seconds", "0"),
        ("--seconds", "31"),
        ("--kills", "0"),
        ("--only", "nothing"),
        ("extra",),
        ("--backlogs", "-1"),
        ("--backlogs", "some"),
        ("--backlogs", "0,32769"),
    ],
    ids=" ".join,
)
def test_arguments_out_of_bounds_are_refused_before_anything_starts(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    # Should one be let through, what then runs is short and elsewhere.
    result = run("--only=memory", f"--dir={tmp_path}", *arguments)
    assert result.exit_code == 2
    assert "Error" in result.output


def test_help_names_every_measure() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in MEASURES)


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_whose_program_is_missing_is_told_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(brokers, "SYSTEM_PATHS", str(tmp_path))
    monkeypatch.setattr(brokers.Rabbit, "program", str(tmp_path / "rabbitmq-server"))
    result = run("--only=memory", f"--dir={tmp_path / 'runs'}", f"--peers={name}")
    assert result.exit_code == 2
    assert f"apt-get install {BROKERS[name].package}" in result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("name", "module"), [("nats", "nats"), ("rabbitmq", "aio_pika")])
def test_a_broker_whose_client_is_missing_is_told_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    async def connect() -> None:
        async with CLIENTS[name](["127.0.0.1:1"], "topic"):
            raise AssertionError("it connects")

    with pytest.raises(BenchError, match=f"pip install {module.replace('_', '-')}"):
        asyncio.run(connect())


def test_a_broker_of_no_known_name_and_peers_that_nobody_named_are_refused(tmp_path: Path) -> None:
    result = run("--only=memory", f"--dir={tmp_path}", "--peers=kafka", "--peers=nats")
    assert result.exit_code == 2
    assert "there are nats, rabbitmq, etcd" in result.output
    result = run("--only=peers", f"--dir={tmp_path}")
    assert result.exit_code == 2
    assert "--peers" in result.output


def test_a_broker_that_does_not_start_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho no such option\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with (
        pytest.raises(BenchError, match=r"nats does not start.*no such option"),
        brokers.RunningBroker("nats", tmp_path / "nats"),
    ):
        raise AssertionError("it runs")


@pytest.mark.needs("nats-server")
def test_a_broker_may_run_again_in_the_same_run(tmp_path: Path) -> None:
    for _ in range(2):  # as for `peers` and for `rates`
        with brokers.RunningBroker("nats", tmp_path / "peers" / "nats") as broker:
            assert len(broker.endpoints) == 3
        assert list((tmp_path / "peers").iterdir()) == []
        assert processes_below(tmp_path) == set()


def test_a_young_cluster_s_lost_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_clients, "ATTEMPT_S_MAX", 0.01)
    monkeypatch.setattr(broker_clients, "LEADER_LOOK_S", 0.001)
    asked = 0

    async def attempt() -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()  # its request was lost: no answer will come
        if asked == 2:
            raise KeyError("no leader yet")
        return asked

    assert asyncio.run(broker_clients.await_taken("nats", attempt, (KeyError,))) == 3


def test_a_cluster_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_clients, "ATTEMPT_S_MAX", 0.01)
    monkeypatch.setattr(broker_clients, "LEADER_S_MAX", 0.05)
    monkeypatch.setattr(broker_clients, "LEADER_LOOK_S", 0.001)

    async def attempt() -> bool:
        return await asyncio.Event().wait()

    with pytest.raises(BenchError, match="nats has no leader"):
        asyncio.run(broker_clients.await_taken("nats", attempt, ()))


def test_what_a_kill_lost_is_attempted_again_and_only_what_began_after_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first attempt after the kill is lost with the leader; the second is refused."""
    monkeypatch.setattr(broker_loads, "KILL_DELAY_S", (0.0, 0.0))
    monkeypatch.setattr(broker_loads, "ATTEMPT_EVERY_S", 0.01)
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    class Client(FakeBroker):
        async def publish(self) -> None:
            self.published += 1
            if self.published == 2:
                assert sleeper.wait(60) == -signal.SIGKILL
                await asyncio.Event().wait()
            if self.published == 3:
                raise BenchError("no leader")

    client = Client()
    try:
        gap_s = asyncio.run(
            broker_loads._measure_killed(FakeBroker(), client, FakeBroker.LEADER, sleeper.pid, 1)
        )
    finally:
        sleeper.kill()
        sleeper.wait()
    assert client.published == 4
    assert gap_s > 0


def test_a_node_that_leads_no_more_is_not_killed_for_a_leader() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with pytest.raises(BenchError, match="lost its leadership"):
            asyncio.run(
                broker_loads._measure_killed(FakeBroker(), FakeBroker(), "another", sleeper.pid, 1)
            )
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("before", ["outer", None])
def test_a_stage_leaves_the_key_of_the_one_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    stage = BenchStage(tmp_path, Unseen(), keys=True)
    monkeypatch.setenv(VARIABLE, "inner")  # as it has when its cluster has started
    stage.__exit__(None, None, None)
    assert os.environ.get(VARIABLE) == before


class Unseen:
    """A display that shows nothing."""

    def stage(self, title: str, expected_s: float) -> None: ...

    def tick(self, status: str) -> None: ...

    def say(self, line: str) -> None: ...


def test_a_reader_who_misses_a_publication_is_no_rate() -> None:
    class Reader(FakeBroker):
        async def read(self) -> AsyncIterator[int]:
            yield self.published - 1

    with pytest.raises(BenchError, match="publications waited"):
        asyncio.run(broker_loads._read(Reader(), 0.01))


def test_a_late_answer_counts_for_all_that_were_scheduled_behind_it() -> None:
    """50 at 1,000/s of a broker that stands still for 100 ms: each waits for 50 ms or more."""

    class Standing(FakeBroker):
        async def publish(self) -> None:
            self.published += 1
            if self.published == 1:
                time.sleep(0.1)  # nobody sends in the meantime: what others call no latency

    step = asyncio.run(at_rate(Standing(), 1_000, 0.05))
    assert step.spread.samples == 50
    assert step.spread.median >= 0.06
    assert not step.keeps_up
    assert sum(step.classes.values()) == 50


def test_a_rate_that_nobody_answers_in_time_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_loads, "OUTSTANDING_MAX", 5)
    waits = asyncio.Event()

    class Silent(FakeBroker):
        async def publish(self) -> None:
            self.published += 1
            if self.published == 5:
                waits.set()
            await waits.wait()

    step = asyncio.run(at_rate(Silent(), 100_000, 1.0))
    assert step.spread.samples < 100_000
    assert not step.keeps_up


@pytest.mark.parametrize("seconds", [1e-6, 1e-4, 0.001, 0.0011, 0.5, 1.0, 7.3])
def test_a_duration_s_class_ends_at_it_or_a_fifth_above(seconds: float) -> None:
    end_s = curve_loads.class_end_s(curve_loads.duration_class(seconds))
    assert seconds <= end_s * (1 + 1e-9)
    assert end_s < seconds * 2 ** (1 / curve_loads.CLASSES_TO_A_DOUBLING) * (1 + 1e-9)


def test_sizes_are_compared_with_one_of_them_figure_by_figure() -> None:
    found = {
        1: [Figure("rate", "PUT", 30.0, "/s")],
        3: [Figure("rate", "PUT", 20.0, "/s"), Figure("cpu", "CPU", 5.0, "µs")],
        5: [Figure("rate", "PUT", 10.0, "/s"), Figure("cpu", "CPU", 7.0, "µs")],
    }
    rows = curves.of_sizes(found, 3, "node", "nodes")
    assert [(row.name, row.title, row.ratio("3 nodes")) for row in rows] == [
        ("nodes_1_rate", "1 node: PUT", 1.5),
        ("nodes_5_rate", "5 nodes: PUT", 0.5),
        ("nodes_5_cpu", "5 nodes: CPU", 1.4),
    ]
    by_unit = {each.y: each.lines for each in curves.cost_curves(found, "nodes", "nodes", "Cost")}
    assert by_unit == {
        "/s": {"PUT": [(1, 30.0), (3, 20.0), (5, 10.0)]},
        "µs": {"CPU": [(3, 5.0), (5, 7.0)]},
    }


def test_a_page_stands_alone_and_escapes_what_is_in_it() -> None:
    machine = Machine(2, "<cpu>", "Linux", "CPython", {}, (0.0, 0.0, 0.0))
    points = [(1.0, 2.0), (3.0, 4.0)]
    drawn = [
        Curve("first", "<b>first</b>", "x", "y", {"<i>one</i>": points}, is_log=True),
        Curve("second", "second", "x", "y", {"two": points}, is_bars=True),
    ]
    figure = Figure("rate", "a <rate>", 1234.5, "/s", {"nats": 2469.0})
    report = BenchReport(machine, BenchPlan(1.0, 1, 7, ("nats",)), [figure], drawn, 1.0, 0.0)
    text = page(report)
    assert text.count("plotly.js v") == 1, "its script is in the page, once"
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    assert 'id="first"' in text
    assert 'id="second"' in text
    own = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<b>" not in own
    assert "<rate>" not in own
    assert "<cpu>" not in own
    assert "<td>nats</td><td>2,469 /s</td><td>0.50×</td>" in own
    assert "nats: an answer says" in own
    assert [each["lines"] for each in document(report)["curves"]] == [
        {"<i>one</i>": [[1.0, 2.0], [3.0, 4.0]]},
        {"two": [[1.0, 2.0], [3.0, 4.0]]},
    ]


def test_a_page_without_plotly_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    result = run("--only=memory", f"--dir={tmp_path / 'runs'}", f"--html={tmp_path / 'page'}")
    assert result.exit_code == 1
    assert "plotly is missing" in result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)  # 15 nodes, started one cluster after the other
def test_costs_at_several_sizes_are_figures_curves_and_a_page(tmp_path: Path) -> None:
    report, parent, drawn = tmp_path / "figures.json", tmp_path / "runs", tmp_path / "page.html"
    names = ("rates", "topics", "fanout", "nodes", "backlogs")
    result = run("--seconds=0.5", "--backlogs=0,1", f"--json={report}", f"--html={drawn}",
                 f"--dir={parent}", *(f"--only={name}" for name in names))  # fmt: skip
    assert result.exit_code == 0, result.output
    found = orjson.loads(report.read_bytes())
    figures = {each["name"]: each for each in found["figures"]}
    assert {"rate_latency", "topics_1000_put_rate", "fanout_100_rate", "nodes_1_put_rate"} < {
        *figures
    }
    assert {"nodes_5_cpu_leader", "backlog_1_restart", "backlog_1_get"} < {*figures}
    for figure in figures.values():
        assert figure["value"] > 0, figure
    text = drawn.read_text()
    for curve in found["curves"]:
        assert f'id="{curve["name"]}"' in text
        assert all(len(line) > 0 for label, line in curve["lines"].items() if "p99" not in label)
    assert list(parent.iterdir()) == []


class FakeBroker:
    """A broker's client of a broker that takes all at once."""

    LEADER = "tcp://127.0.0.1:1"
    published = 0

    async def prepare(self) -> None: ...

    async def leader(self) -> str:
        return self.LEADER

    async def publish(self) -> None:
        self.published += 1
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None: ...


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nats", marks=pytest.mark.needs("nats-server")),
        pytest.param("rabbitmq", marks=pytest.mark.needs("rabbitmq-server")),
        pytest.param("etcd", marks=pytest.mark.needs("etcd")),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(300)  # three of Erlang's nodes, started and one of them again, beside others
def test_each_broker_is_measured_beside_ours_and_ended(tmp_path: Path, name: str) -> None:
    report, parent = tmp_path / "figures.json", tmp_path / "runs"
    result = run("--only=peers", f"--peers={name}", "--seconds=1", "--kills=1", "--seed=1",
                 f"--json={report}", f"--dir={parent}")  # fmt: skip
    assert result.exit_code == 0, result.output
    document = orjson.loads(report.read_bytes())
    figures = {each["name"]: each for each in document["figures"]}
    rows = {"beside_latency", "beside_rate", "beside_rate_many", "beside_connections",
            "beside_producer", "beside_killed"}  # fmt: skip
    reading = {"beside_read", "beside_group"}
    assert rows | reading == set(figures)
    for figure in figures.values():
        assert figure["value"] > 0, figure
        compared = set() if name == "etcd" and figure["name"] in reading else {name}
        assert set(figure["against"]) == compared, figure
        assert all(other["value"] > 0 for other in figure["against"].values()), figure
    assert "disk" in document["promises"]["flotilla"]
    assert "fsync" in document["promises"][name]
    assert list(parent.iterdir()) == []
    assert processes_below(parent) == set()


BROKERS_PROCESSES = {"nats-server", "etcd", "beam.smp", "epmd", "erl_child_setup", "inet_gethost"}


def processes_below(directory: Path) -> set[str]:
    """Return the brokers' processes whose arguments or environment name `directory`."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "comm").read_text().strip()
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if name in BROKERS_PROCESSES and str(directory).encode() in said:
            found.add(f"{process.name} {name}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)  # eight loads: two minutes where others use the processors too
def test_a_short_run_measures_a_real_cluster_and_leaves_nothing_behind(tmp_path: Path) -> None:
    report, parent = tmp_path / "figures.json", tmp_path / "runs"
    elsewhere = {"restart", PEERS, "rates", "topics", "fanout", "nodes", "backlogs"}
    only = [f"--only={name}" for name in MEASURES if name not in elsewhere]
    result = run("--seconds=1", "--kills=1", "--seed=1", f"--json={report}", f"--dir={parent}",
                 *only)  # fmt: skip
    assert result.exit_code == 0, result.output
    document = orjson.loads(report.read_bytes())
    figures = {figure["name"]: figure for figure in document["figures"]}
    assert {"put_latency", "put_rate", "batch_rate", "delivery", "failover"} <= figures.keys()
    for figure in figures.values():
        assert figure["value"] > 0, figure
        assert all(other["ratio"] > 0 for other in figure["against"].values()), figure
    assert set(figures["put_latency"]["against"]) == {"ZeroMQ echo", "fdatasync"}
    assert document["seed"] == 1
    assert document["machine"]["cores"] >= 1
    assert list(parent.iterdir()) == []
