"""What client_pool.py promises: ends are bounded, deaths are noticed, clients come back."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.run import client_pool
from chaos.run.client_faults import CLIENT_FAULTS
from chaos.run.client_pool import ClientPool, ClientPoolError
from chaos.workloads import ClientConfig, kinds
from flotilla_client.directory import DATABASE_NAME
from flotilla_client.state import State

SECONDS_MAX = 30  # a Python process on a busy machine
FOLLOWS = """
from chaos.workloads.control import Control
control = Control()
control.report("ready")
while (order := control.order(30)) and order["order"] != "stop":
    control.report("heard", phase=order.get("phase"), acknowledged=2)
"""
IGNORES = 'import sys, signal; print(\'{"report": "ready"}\', flush=True); signal.pause()'
CRASHES = "import sys; sys.exit('out of luck')"
ENDS_FENCED = """
import sys
from chaos.workloads.control import Control
control = Control()
control.report("ready")
control.order(30)
control.report("fenced")
"""


def config(
    directory: Path, parameters: kinds.Parameters, process: str = "client-1"
) -> ClientConfig:
    return ClientConfig(
        process=process,
        run_id="r",
        directory=str(directory),
        endpoints=("tcp://127.0.0.1:1",),
        topics=("a",),
        seed=3,
        deadline_ms=100,
        parameters=parameters,
    )


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientPool]:
    monkeypatch.setattr(client_pool, "STOP_MARGIN_S", 0.2)
    made = ClientPool()
    yield made
    made.close()


Start = Callable[..., None]


@pytest.fixture
def start(pool: ClientPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    def starting(
        script: str, parameters: kinds.Parameters | None = None, process: str = "client-1"
    ) -> None:
        command = [sys.executable, "-c", script]
        monkeypatch.setattr(client_pool, "client_command", lambda config: command)
        pool.start([config(tmp_path, parameters or kinds.Publisher(), process)])

    return starting


def until(pool: ClientPool, condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline_s
        pool.poll(0.02)


def test_a_pool_hears_reports_gives_orders_and_dismisses(
    pool: ClientPool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(FOLLOWS)
    until(pool, lambda: not pool.lacking("ready"))
    pool.order("phase", phase="steady")
    until(pool, lambda: not pool.lacking("heard"))
    assert pool.count("acknowledged") == 2
    monkeypatch.setattr(client_pool, "STOP_MARGIN_S", SECONDS_MAX)
    assert pool.dismiss("publisher") == []


def test_a_role_is_those_who_publish_or_those_who_read(pool: ClientPool, start: Start) -> None:
    start(FOLLOWS, kinds.Pipeliner(), "pipeliner-1")
    start(FOLLOWS, kinds.Visitor(), "visitor-1")
    assert pool.lacking("drained", "subscriber") == ["visitor-1"]
    assert pool.lacking("drained", "publisher") == ["pipeliner-1"]


def test_a_client_that_ends_by_itself_ends_the_run_with_its_last_words(
    pool: ClientPool, start: Start
) -> None:
    start(CRASHES)
    with pytest.raises(ClientPoolError, match=r"client-1 ended with 1(?s:.*)out of luck"):
        until(pool, lambda: False)


def test_a_client_that_does_not_stop_is_killed_at_its_bound_and_named(
    pool: ClientPool, start: Start
) -> None:
    start(IGNORES)
    until(pool, lambda: not pool.lacking("ready"))
    assert pool.dismiss("publisher") == ["client-1"]


FAILS_AT_THE_END = """
import sys
from chaos.workloads.control import Control
control = Control()
control.report("ready")
while (order := control.order(30)) and order["order"] != "stop":
    pass
control.report("unflushed")
sys.exit("a defect in the last step")
"""


def test_a_client_that_fails_when_it_is_dismissed_ends_the_run_with_its_last_words(
    pool: ClientPool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(FAILS_AT_THE_END)
    until(pool, lambda: not pool.lacking("ready"))
    monkeypatch.setattr(client_pool, "STOP_MARGIN_S", SECONDS_MAX)
    with pytest.raises(
        ClientPoolError, match=r"client-1 ended with 1(?s:.*)a defect in the last step"
    ):
        pool.dismiss("publisher")
    assert pool.reporting("unflushed") == ["client-1"]


def test_a_client_that_has_failed_by_the_time_it_is_looked_at_is_heard_out(
    pool: ClientPool, start: Start
) -> None:
    start(FAILS_AT_THE_END)
    until(pool, lambda: not pool.lacking("ready"))
    pool.order("stop")
    [member] = pool._members
    member.dismissed = True
    member.process.wait(SECONDS_MAX)
    with pytest.raises(ClientPoolError, match="a defect in the last step"):
        pool.dismiss()


def test_a_doomed_client_may_be_killed_and_nothing_else(pool: ClientPool, start: Start) -> None:
    start("import sys\n" + FOLLOWS + "sys.exit('an assertion')")
    until(pool, lambda: not pool.lacking("ready"))
    pool.doom("client-1", "answered", 0)
    pool.order("stop")
    with pytest.raises(ClientPoolError, match=r"client-1 ended with 1(?s:.*)an assertion"):
        until(pool, lambda: False)


# --- harm -----------------------------------------------------------------------------------------


def test_a_doomed_client_may_end_and_comes_back_knowing_the_phase_its_counts_kept(
    pool: ClientPool, start: Start
) -> None:
    start(FOLLOWS)
    until(pool, lambda: not pool.lacking("ready"))
    pool.order("phase", phase="fault")
    until(pool, lambda: pool.count("acknowledged") == 2)
    [member] = pool._members
    first = member.process
    pool.doom("client-1", "answered", 0)
    first.kill()
    until(pool, lambda: first.poll() is not None)
    pool.poll(0.1)  # its death is no error
    pool.restart("client-1")
    assert member.process.pid != first.pid
    until(pool, lambda: member.facts.get("phase") == "fault")
    until(pool, lambda: pool.count("acknowledged") == 4)


def test_a_doomed_client_that_did_not_come_to_its_point_is_killed_and_comes_back(
    pool: ClientPool, start: Start
) -> None:
    start(IGNORES)
    until(pool, lambda: not pool.lacking("ready"))
    [member] = pool._members
    first = member.process
    pool.doom("client-1", "answered", 0)
    pool.restart("client-1")
    assert first.returncode == -9
    until(pool, lambda: not pool.lacking("ready"))


def test_a_twin_has_the_clients_state_and_the_first_process_may_end_fenced(
    pool: ClientPool, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(ENDS_FENCED)
    until(pool, lambda: not pool.lacking("ready"))
    state = State(tmp_path / "clients" / "client-1")
    state.resumed("its-id", 1, 0, {}, {"a": 7})
    command = [sys.executable, "-c", FOLLOWS]
    monkeypatch.setattr(client_pool, "client_command", lambda config: command)
    twin = pool.double("client-1")
    state.close()
    assert pool.clients() == [twin]
    assert (tmp_path / "clients" / twin / DATABASE_NAME).exists()
    copied = State(tmp_path / "clients" / twin)
    assert (copied.client_id, copied.cursors()) == ("its-id", {"a": 7})
    copied.close()
    assert pool.unfenced() == ["client-1"]
    pool.order("phase", phase="fault")
    until(pool, lambda: not pool.unfenced())
    pool.poll(0.1)
    until(pool, lambda: not pool.lacking("ready"))  # of the twin alone


def test_a_replaced_client_that_ends_without_being_fenced_ends_the_run(
    pool: ClientPool, start: Start, tmp_path: Path
) -> None:
    start(ENDS_FENCED.replace("fenced", "bored"))
    until(pool, lambda: not pool.lacking("ready"))
    State(tmp_path / "clients" / "client-1").close()
    pool.double("client-1")
    pool.order("phase", phase="fault")
    with pytest.raises(ClientPoolError, match="client-1 ended with 0"):
        until(pool, lambda: False)


# --- faults of clients ----------------------------------------------------------------------------


class QuietLog:
    """Clients to whom nothing happens."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def clients(self) -> list[str]:
        return ["a", "b", "c", "d", "e"]

    def doom(self, name: str, point: str, passes: int) -> None:
        self.done.append(("doom", name, point, passes))

    def restart(self, name: str) -> None:
        self.done.append(("restart", name))

    def double(self, name: str) -> str:
        self.done.append(("double", name))
        return f"{name}-twin1"


def test_crashes_hit_half_of_the_clients_each_at_a_point_of_the_dice_and_all_come_back() -> None:
    points = set()
    for seed in range(20):
        log, rng = QuietLog(), random.Random(seed)
        crash = CLIENT_FAULTS["client-crash"]
        victims = crash.choose(log, rng)
        crash.inject(log, victims, rng)
        crash.heal(log, victims)
        assert len(victims) == 3
        assert [one[1] for one in log.done if one[0] == "doom"] == victims
        assert log.done[3:] == [("restart", victim) for victim in victims]
        points |= {one[2] for one in log.done[:3]}
    assert points == {"invoked", "answered", "recorded"}
