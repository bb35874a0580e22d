"""Upgrades in the simulator: its programs, its operator's part, and its own check of the rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.simulation.plan.plan import Action
from chaos.simulation.plan.result import Result
from chaos.simulation.search.run import run
from chaos.simulation.search.swarm import plan_for
from chaos.simulation.world.builds import BUILDS, NEXT, as_written_by
from cluster.store import commands
from cluster.wire.levels import BUILD, BUILD_0_1

LEVEL = NEXT.level_max
SEED = 4


def installed(at_s: float, node: str, build: str) -> Action:
    return Action(at_s, "install", {"node": node, "build": build})


def raised(at_s: float, build: str = "next") -> Action:
    return Action(at_s, "raise_level", {"node": "leader", "build": build})


def run_of(*schedule: Action, bug: str | None = None) -> tuple[Result, list[str]]:
    """Run three nodes and their clients through a schedule; return what was told of levels."""
    told: list[str] = []
    plan = replace(plan_for(SEED, "safety", nodes=3), duration_s=12.0, schedule=schedule)
    result = run(plan, bug, told.append, is_full=True)
    words = ("level_raised", "raising", "node_failed", "peer_unfit")
    return result, [line for line in told if any(word in line for word in words)]


def events(lines: list[str], name: str) -> list[str]:
    return [line for line in lines if name in line]


def test_program_to_come_writes_what_others_cannot_read_once_the_level_allows_it() -> None:
    payload = commands.encode(1, [commands.Admit("a", "i")])
    assert as_written_by(NEXT, payload, LEVEL - 1) == payload
    assert as_written_by(BUILD, payload, LEVEL) == payload
    newer = as_written_by(NEXT, payload, LEVEL)
    assert commands.level_of(newer) == LEVEL
    assert commands.decode(newer, LEVEL) == commands.decode(payload)
    assert BUILDS == {"0.1": BUILD_0_1, "this": BUILD, "next": NEXT}


@pytest.mark.slow
def test_rolling_upgrade_raises_the_level_and_breaks_nothing() -> None:
    programs = [installed(2.0 + number, node, "next") for number, node in enumerate("abc")]
    result, lines = run_of(*programs, raised(3.5), raised(6.0))
    assert result.failures == ()
    assert len(events(lines, "raising")) == 1
    assert len(events(lines, "level_raised")) == 3


@pytest.mark.slow
def test_member_that_goes_back_is_turned_away_and_gets_the_newest_program() -> None:
    result, lines = run_of(raised(2.0, "this"), installed(5.0, "b", "0.1"))
    assert result.failures == ()
    [refused] = events(lines, "node_failed")
    assert "UnsupportedLevel" in refused
    assert f"this node's store, is at level {BUILD.level_max}" in refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "schedule", "evidence"),
    [
        (
            "newer-entries-are-written-before-the-raise",
            (installed(2.0, "a", "next"), Action(3.0, "transfer", {}), Action(4.0, "transfer", {})),
            f"needs level {LEVEL}, the cluster is at 1",
        ),
        (
            "level-is-raised-without-a-member",
            (installed(2.0, "a", "0.1"), installed(2.0, "b", "0.1"), raised(4.0, "this")),
            f"raises the level to {BUILD.level_max} without",
        ),
    ],
)
def test_check_of_levels_sees_a_rule_broken(
    bug: str, schedule: tuple[Action, ...], evidence: str
) -> None:
    result, _ = run_of(*schedule, bug=bug)
    found = [failure for failure in result.failures if failure.check == "level"]
    assert any(evidence in failure.text for failure in found), result.failures
    assert run_of(*schedule)[0].failures == ()
