"""What chaos/simulation/cli.py promises: exit codes, how to see it again, comparisons, hunts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Answer

from chaos.simulation import cli
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.plan.result import BROKEN, LOST, Failure, Result
from chaos.simulation.search import determinism
from chaos.simulation.search.campaign import FAILURES_MAX, Recipe
from chaos.simulation.search.run import PLANTABLE

SCHEDULE = tuple(Action(float(number), f"fault-{number}") for number in range(5))
Judge = Callable[[Plan], tuple[Failure, ...]]


def _nothing(plan: Plan) -> tuple[Failure, ...]:
    return ()


def _loses(plan: Plan) -> tuple[Failure, ...]:
    """Fail where seeds 3, 6, … meet their third action."""
    guilty = any(action.name == "fault-2" for action in plan.schedule)
    return (Failure("lost", "id 7 of alpha", 12.5),) if plan.seed % 3 == 0 and guilty else ()


def _breaks(plan: Plan) -> tuple[Failure, ...]:
    return (Failure(BROKEN, "KeyError: 7"),)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Answer]:
    """Call the command with runs whose failures `judge` decides, all in this process."""

    def call(*arguments: str, judge: Judge = _nothing) -> Answer:
        def run(plan: Plan, bug: str | None = None, *rest: Any, **options: Any) -> Result:
            return Result(
                plan, judge(plan), f"{plan.seed:x}", {"ack": 3}, {"snapshot": 1}, 60.0, 0.1
            )

        def results(
            plans: Iterable[Plan], jobs: int, work: Recipe
        ) -> Generator[Result, None, None]:
            return (run(plan, work.bug) for plan in plans)

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(cli, "run", run)
        monkeypatch.setattr(cli, "results", results)
        monkeypatch.setattr(Recipe, "plan", lambda recipe, seed: _plan(recipe, seed))
        return CliRunner().invoke(cli.command, arguments)

    return call


def _plan(recipe: Recipe, seed: int) -> Plan:
    knobs = {"load": {"roles": ["one", "two", "three", "four"]}}
    return Plan(seed, mode=recipe.mode or "safety", knobs=knobs, schedule=SCHEDULE)


@pytest.mark.parametrize(
    ("judge", "code"), [(_nothing, 0), (_loses, 1), (_breaks, 2)], ids=["clean", "fails", "breaks"]
)
def test_the_exit_code_tells_clean_from_failed_from_broken(
    ask: Callable[..., Answer], judge: Judge, code: int
) -> None:
    assert ask("--seed", "3", "--no-shrink", judge=judge).exit_code == code
    assert ask("--seeds", "1..4", "--no-shrink", judge=judge).exit_code == code


def test_a_finding_outweighs_a_broken_run(ask: Callable[..., Answer]) -> None:
    def both(plan: Plan) -> tuple[Failure, ...]:
        return _loses(plan) or _breaks(plan)

    assert ask("--seeds", "1..4", "--no-shrink", judge=both).exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--seed", "1", "--seeds", "1..2"),
        ("--seeds", "2..1"),
        ("--seeds", "1-2"),
        ("--seed", "1", "--bug", "no-such-bug"),
        ("--seed", "1", "--without", "no such rule"),
        ("--seed", "1", "--nodes", "8"),
    ],
)
def test_a_wrong_call_is_refused(ask: Callable[..., Answer], arguments: tuple[str, ...]) -> None:
    assert ask(*arguments).exit_code == 2


def test_a_crash_is_not_taken_for_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "command", crash)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2


def test_a_failure_prints_the_command_that_shows_it_again(ask: Callable[..., Answer]) -> None:
    bug = next(iter(PLANTABLE))
    answer = ask("--seeds", "1..3", "--bug", bug, "--nodes", "5", "--no-shrink", judge=_loses)
    command = f"flotilla-simulate --seed 3 --mode safety --nodes 5 --bug {bug} -v"
    assert command in answer.output
    assert "lost at 12.500 s: id 7 of alpha" in answer.output


def test_a_failure_is_made_small_and_its_plan_can_be_run(ask: Callable[..., Answer]) -> None:
    answer = ask("--seed", "3", judge=_loses)
    file = Path("runs/simulation/seed-3-safety.json")
    assert [action.name for action in Plan.from_json(file.read_text()).schedule] == ["fault-2"]
    assert f"flotilla-simulate --plan {file} -v" in answer.output
    again = ask("--plan", str(file), "--no-shrink", judge=_loses)
    assert (again.exit_code, f"--plan {file} -v" in again.output) == (1, True)
    file.write_text("{}")
    assert ask("--plan", str(file)).exit_code == 2


def test_a_run_whose_process_died_is_not_run_again_in_this_one(ask: Callable[..., Answer]) -> None:
    asked = []

    def lost(plan: Plan) -> tuple[Failure, ...]:
        asked.append(plan)
        return (Failure(LOST, "the worker died"),)

    assert ask("--seeds", "1..1", judge=lost).exit_code == 2
    assert len(asked) == 1


def test_a_campaign_ends_when_enough_has_failed(ask: Callable[..., Answer]) -> None:
    answer = ask("--seeds", "1..1000", "--json", "--no-shrink", judge=_loses)
    *runs, summary = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(summary["failed_seeds"]) == FAILURES_MAX
    assert len(runs) == summary["runs"] == 3 * FAILURES_MAX


def test_a_campaign_out_of_time_begins_no_run(ask: Callable[..., Answer]) -> None:
    answer = ask("--seeds", "1..1000", "--minutes", "0", "--json")
    assert json.loads(answer.stdout)["runs"] == 0
    assert answer.exit_code == 2


def test_json_has_a_line_for_each_run_and_one_for_all(ask: Callable[..., Answer]) -> None:
    answer = ask("--seeds", "4..6", "--json", judge=_loses)
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [(line["seed"], line["verdict"]) for line in lines[:3]] == [
        (4, "clean"),
        (5, "clean"),
        (6, "failed"),
    ]
    assert (lines[3]["reached"], lines[3]["failed_seeds"]) == ({"snapshot": 3}, [6])
    assert len(lines[4]["shrunk"]["schedule"]) == 1


def test_a_bug_is_found_by_the_checks_that_are_meant_to_see_it_alone(
    ask: Callable[..., Answer],
) -> None:
    name, bug = next(iter(PLANTABLE.items()))

    def meant(plan: Plan) -> tuple[Failure, ...]:
        return (Failure(min(bug.caught_by), "seen"),) if plan.seed == 2 else ()

    def another(plan: Plan) -> tuple[Failure, ...]:
        return (Failure("by chance", "seen"),)

    assert ask("--hunt", name, judge=meant).exit_code == 0
    missed = ask("--hunt", name, judge=another)
    assert missed.exit_code == 1
    assert "by chance" in missed.output


def test_a_hunt_out_of_time_has_missed_what_it_did_not_look_for(ask: Callable[..., Answer]) -> None:
    answer = ask("--hunt", "all", "--minutes", "0")
    assert answer.exit_code == 1
    assert f"0 of {len(PLANTABLE)} bugs found" in answer.output


def test_a_hunt_says_in_json_what_it_came_to(ask: Callable[..., Answer]) -> None:
    name, bug = next(iter(PLANTABLE.items()))

    def judge(plan: Plan) -> tuple[Failure, ...]:
        return (Failure("by chance" if plan.seed < 3 else min(bug.caught_by), "seen"),)

    told = json.loads(ask("--hunt", name, "--json", judge=judge).stdout)
    assert (told["bug"], told["seed"], told["runs"]) == (name, 3, 3)
    assert (told["checks"], told["others"]) == ([min(bug.caught_by)], ["by chance"])


def test_bugs_are_listed_with_their_rules(ask: Callable[..., Answer]) -> None:
    output = ask("--bugs").output
    assert all(name in output for name in PLANTABLE)


def test_listed_bugs_keep_their_columns_in_a_pipe(
    ask: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # parallel workers of the tests have it
    head, *rows = ask("--bugs").output.splitlines()
    assert len(rows) == len(PLANTABLE)
    starts = [head.index(title) for title in ("bug", "rule", "what", "seen by")]
    for row, bug in zip(rows, PLANTABLE.values(), strict=True):
        cells = (bug.name, bug.rule, bug.what, ", ".join(sorted(bug.caught_by)))
        assert all(row[start:].startswith(cell) for cell, start in zip(cells, starts, strict=True))


# --- comparisons ------------------------------------------------------------------------------

CHILD = """
import json, os, sys
same = "same" in sys.argv
text = "a" if same else "a" + os.environ["PYTHONHASHSEED"]
if "-vv" in sys.argv:
    print("first"); print(text)
else:
    for seed in (1, 2):
        print(json.dumps({"seed": seed, "hash": "b" if seed == 1 else text}))
sys.exit(3 if "dies" in sys.argv else 0)
"""


def _child(how: str) -> list[str]:
    return [sys.executable, "-c", CHILD, how]


def test_runs_are_compared_between_processes_that_hash_strings_differently() -> None:
    assert [pair.is_same for pair in determinism.pairs([], _child("same"))] == [True, True]
    assert [pair.is_same for pair in determinism.pairs([], _child("other"))] == [True, False]


def test_where_two_runs_part_is_found() -> None:
    assert determinism.first_difference([], _child("other")) == (2, "a1", "a2")
    assert determinism.first_difference([], _child("same")) is None


def test_a_child_that_fails_is_no_comparison() -> None:
    with pytest.raises(determinism.ChildFailed, match="ended with 3"):
        list(determinism.pairs([], _child("dies")))
