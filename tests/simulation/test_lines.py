"""Lines of the product that simulated runs go through."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.simulation.search.campaign import Recipe
from chaos.simulation.search.lines import OUTSIDE, Tracer, merged, modules, ranges, total
from chaos.simulation.search.run import run


@pytest.fixture(scope="module")
def traced() -> tuple[Tracer, str, str]:
    plan = replace(Recipe().plan(3), duration_s=4.0)
    tracer = Tracer()
    return tracer, run(plan).hash, run(plan, tracer=tracer).hash


@pytest.mark.slow
def test_tracing_changes_nothing(traced: tuple[Tracer, str, str]) -> None:
    _, without, traced_hash = traced
    assert without == traced_hash


@pytest.mark.slow
def test_what_ran_and_what_did_not_are_all_that_can(traced: tuple[Tracer, str, str]) -> None:
    tracer, _, _ = traced
    found = {module.file: module for module in modules(tracer.lines)}
    assert found["cluster/raft/raft.py"].share > 0.6
    assert found["flotilla_client/shell.py"].share < 0.4, "no run goes through it"
    for file, lines in tracer.lines.items():
        assert not lines & set(found[file].missing), file
    every = total(found.values())
    assert every.lines == sum(module.lines for module in found.values())
    assert 0.3 < every.share < 1.0


@pytest.mark.slow
def test_what_is_outside_is_named_with_the_tests_that_go_through_it() -> None:
    root = Path(__file__).parents[2]
    files = {module.file for module in modules({})}
    assert OUTSIDE.keys() <= files
    for test in {test for tests in OUTSIDE.values() for test in tests}:
        assert (root / test).is_file(), test
    inside = total(modules({}), OUTSIDE)
    assert inside.lines < total(modules({})).lines


def test_lines_of_two_runs_are_taken_together() -> None:
    one = {"a.py": frozenset({1, 2}), "b.py": frozenset({5})}
    other = {"a.py": frozenset({2, 3})}
    assert merged(one, other) == {"a.py": frozenset({1, 2, 3}), "b.py": frozenset({5})}


def test_ranges_are_written_as_a_person_would() -> None:
    lines = [9, 3, 4, 5, 11]
    random.Random(1).shuffle(lines)
    assert ranges(lines) == "3-5, 9, 11"
    assert ranges([]) == ""
