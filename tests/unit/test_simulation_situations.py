"""Situations that single rules are for: the swarm's kinds of faults bring them about.

Each is run with the rule and without it: the check that is meant to see the difference does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from chaos.simulation.plan import Action
from chaos.simulation.run import run
from chaos.simulation.swarm import KINDS, Draw, plan_for

BEGIN_S, END_S = 4.0, 14.0
LONG = {"fallback_s": 6.0}  # a leader that leads on for long, though it hears no majority


@pytest.mark.parametrize(
    ("bug", "kind", "seed", "knobs", "check"),
    [
        ("a-log-is-sent-to-who-cannot-read-it", "way_back_meanwhile", 5, LONG, "level"),
        ("an-admission-counts-once-it-is-applied", "replaced_unheard", 1, {}, "replaced"),
        ("a-majority-need-not-remain", "lonely_leaders", 1, LONG, "majority"),
        ("nothing-is-said-without-a-look", "", 1, {"full_share": 0.1}, "stale_read"),
    ],
)
def test_a_situation_comes_about_and_is_judged(
    bug: str, kind: str, seed: int, knobs: Mapping[str, Any], check: str
) -> None:
    base = plan_for(4, "safety", nodes=3)
    draw = Draw(random.Random(seed), base.members, ["client-1"])
    faults = KINDS[kind](draw) if kind else ()
    schedule = tuple(Action(BEGIN_S + later_s, name, args) for later_s, name, args in faults)
    plan = replace(
        base, seed=seed, duration_s=END_S, schedule=schedule, knobs={**base.knobs, **knobs}
    )
    assert run(plan).failures == ()
    assert check in run(plan, bug).checks
