"""What run.py promises: a run is its plan and the code, and nothing else."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.simulation.checks.invariants import CHECKS
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.plan.result import BROKEN
from chaos.simulation.search import run as run_module
from chaos.simulation.search.run import run
from chaos.simulation.search.trace import VALUE_CHARACTERS_MAX, line
from chaos.simulation.world.world import World

PUBLISHER = {"topics": ["x"], "puts": 1.0, "pause_s": 0.05}
SUBSCRIBER = {"topics": ["x"], "gets": 1.0, "pause_s": 0.05}
SCHEDULE = (Action(1.5, "kill", {"node": "leader"}), Action(2.0, "restart_all"))
PLAN = Plan(
    seed=11,
    clients=2,
    duration_s=4.0,
    knobs={"load": {"roles": [PUBLISHER, SUBSCRIBER]}},
    schedule=SCHEDULE,
)


def test_a_run_is_clean_and_says_what_happened_in_it() -> None:
    result = run(PLAN)
    assert (result.verdict, result.failures) == ("clean", ())
    assert result.events["fault.kill"] == 1
    assert result.events["answered"] > 10
    assert result.coverage["drained"] == 1
    assert result.simulated_s >= PLAN.duration_s


def test_the_same_plan_is_the_same_run_and_another_seed_is_not() -> None:
    hashes = {run(PLAN).hash, run(Plan.from_json(PLAN.to_json())).hash}
    assert len(hashes) == 1
    assert run(replace(PLAN, seed=12)).hash not in hashes


def test_looking_on_changes_nothing() -> None:
    assert run(PLAN, write=lambda text: None, is_full=True).hash == run(PLAN).hash


def test_a_run_asks_neither_a_clock_nor_the_system_for_randomness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    callers: set[tuple[str, str]] = set()
    this_thread = threading.get_ident()

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if threading.get_ident() == this_thread:  # others are left from other tests
                callers.add((name, sys._getframe(1).f_globals["__name__"]))
            return real(*arguments)

        return call

    sources = [
        (time, "time time_ns monotonic monotonic_ns perf_counter sleep"),
        (os, "urandom getrandom"),
        (uuid, "uuid1 uuid4"),
        (random, "random randint choice shuffle uniform getrandbits"),
    ]
    for module, names in sources:
        for name in names.split():
            monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    assert run(PLAN).verdict == "clean"
    callers.discard(("time", "logging"))  # stamps the lines of the client's log, decides nothing
    assert callers == {("monotonic", "chaos.simulation.search.run")}  # how long it took, no more


def test_the_trace_has_a_line_for_each_event_and_frequent_ones_when_asked_for() -> None:
    short: list[str] = []
    full: list[str] = []
    run(PLAN, write=short.append)
    run(PLAN, write=full.append, is_full=True)
    assert any(" fault " in text and "name=kill" in text for text in short)
    assert any(" role " in text and "role=leader" in text for text in short)
    assert any(" answered " in text for text in short)
    assert not any(" apply " in text for text in short)
    assert [text for text in full if " apply " not in text] == short
    assert len(full) > len(short)


def test_a_line_of_the_trace_is_short_whatever_is_in_it() -> None:
    text = line(1.5, "apply", {"node": "a", "payload": b"x" * 1000, "reason": "y" * 1000})
    assert "payload=1000 bytes" in text
    assert len(text) < 2 * VALUE_CHARACTERS_MAX


def test_an_exception_of_the_simulator_is_neither_a_pass_nor_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(world: Any, watch: Any) -> None:
        raise KeyError("a defect of ours")

    monkeypatch.setattr(run_module, "let_pass", crash)
    result = run(PLAN)
    assert (result.verdict, result.checks) == ("broken", {BROKEN})
    assert "KeyError: 'a defect of ours' at test_run.py" in result.failures[0].text


def test_a_planted_bug_is_in_the_code_for_one_run_alone() -> None:
    found = run(PLAN, "sync-without-the-disk")
    assert found.verdict == "failed"
    assert found.simulated_s < PLAN.duration_s  # it is over with the first failure
    assert run(PLAN).verdict == "clean"


def test_garbage_is_collected_again_after_a_run() -> None:
    kept = gc.get_freeze_count()
    run(PLAN)
    assert gc.isenabled()
    # Fewer, where something ended that was kept before the run.
    assert gc.get_freeze_count() <= kept, "what a run leaves is kept from the collector"


@pytest.mark.slow
def test_no_run_outlives_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: weakref.WeakSet[World] = weakref.WeakSet()

    def noted(plan: Plan) -> World:
        world = World(plan)
        worlds.add(world)
        return world

    monkeypatch.setattr(run_module, "World", noted)
    for _ in range(3):
        run(PLAN)
    assert len(worlds) <= 1


def test_the_documentation_says_what_each_check_claims() -> None:
    text = (Path(__file__).parents[4] / "docs/simulation.md").read_text(encoding="utf-8")
    missing = [name for name, claim in CHECKS.items() if f"| `{name}` | {claim} |" not in text]
    assert not missing
