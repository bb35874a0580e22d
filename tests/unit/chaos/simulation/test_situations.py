"""Situations that single rules are for: the swarm's kinds of faults bring them about.

Each is run with the rule and without it: the check that is meant to see the difference does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pytest

from chaos.simulation.bugs import BUGS
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.search.run import run
from chaos.simulation.search.swarm import KINDS, Draw, plan_for

BEGIN_S, END_S = 4.0, 14.0
Knobs = Mapping[str, Any]
SEEDS_MAX = 30  # each change of the product changes what a seed meets
LONG = {"fallback_s": 6.0}  # a leader that leads on for long, though it hears no majority


@pytest.mark.slow
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
    bug: str, kind: str, seed: int, knobs: Knobs, check: str
) -> None:
    plan = _plan(seed, [(BEGIN_S, kind)] if kind else [], knobs)
    assert run(plan).failures == ()
    assert check in run(plan, bug).checks


ROOMY: Final = {"segment_bytes": 1024, "keep_bytes": 0, "job_ms": 300.0}
# Of the load's clients, by their places: what they do otherwise.
WAITS: Final = {-1: {"get_wait_ms": 2_000, "pause_s": 0.05}}
SLEEPS: Final = {
    0: {"puts": 1.0, "topics": ["x"], "pause_s": 0.05, "size_bytes": 200, "batch_count": 3},
    -1: {"pause_s": 5.0, "topics": ["x"]},
}
LISTS: Final = {
    0: {"topics": ["x", "y"], "gets": 1.0},
    1: {"lists": 1.0, "gets": 0.0, "puts": 0.0, "churns": 0.0, "pause_s": 0.1},
}


@pytest.mark.slow
@pytest.mark.timeout(300)  # of some seeds, beside other tests
@pytest.mark.parametrize(
    ("bug", "seed", "kinds", "knobs", "roles", "check"),
    [
        ("what-is-stored-is-refused", 1, {"late_retries": (4, 8, 11)}, {}, {}, "answered"),
        ("carried-out-and-denied", 1, {"transfers": range(3, 14)}, {}, WAITS, "definite"),
        (
            "backlogs-grow-to-twice-their-limit",
            1,
            {},
            {"backlog_bytes_max": 3_600},
            SLEEPS,
            "limit",
        ),
        ("one-full-disk-stops-all", 1, {}, {}, {}, "books"),
        ("a-full-majority-stops-nobody", 1, {}, {}, {}, "books"),
        (
            "lost-pieces-are-not-asked-for-again",
            1,
            {"lost_pieces": (4, 9)},
            {"copy_chunk_bytes": 8_192},
            {},
            "progress",
        ),
        ("listings-end-with-a-page", 1, {}, {"topics_count_max": 1}, LISTS, "answered"),
        (
            "failed-checkpoints-sync-again",
            1,
            {"lost_checkpoints": range(3, 12)},
            ROOMY,
            {},
            "vouched",
        ),
        ("installs-do-not-wait-for-the-worker", 1, {}, ROOMY, {}, "snapshot"),
    ],
)
def test_what_had_escaped_is_met_and_judged(
    bug: str,
    seed: int,
    kinds: Mapping[str, Sequence[float]],
    knobs: Knobs,
    roles: Mapping[int, Mapping[str, Any]],
    check: str,
) -> None:
    actions = {
        "one-full-disk-stops-all": (Action(4.0, "disk_low", {"node": "follower"}),),
        "a-full-majority-stops-nobody": (
            *(Action(4.0, "disk_low", {"node": name}) for name in "abc"),
            Action(4.1, "disk_free", {"node": "leader"}),
            *(Action(10.0, "disk_free", {"node": name}) for name in "abc"),
        ),
        "installs-do-not-wait-for-the-worker": tuple(_installs_beside_jobs()),
    }
    times = [(at_s, kind) for kind, often in kinds.items() for at_s in often]
    for tried in range(seed, seed + SEEDS_MAX):
        plan = _plan(tried, times, knobs, roles, actions.get(bug, ()))
        if check in run(plan, bug).checks:
            assert run(plan).failures == ()
            return
    pytest.fail(f"seeds {seed}..{tried} have not shown {check}")


def _plan(
    seed: int,
    kinds: Sequence[tuple[float, str]],
    knobs: Knobs,
    roles: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    more: Sequence[Action] = (),
) -> Plan:
    """Return a plan of three nodes with faults of these kinds, and this load otherwise."""
    base = plan_for(4, "safety", nodes=3)
    clients = [f"client-{number}" for number in range(1, base.clients + 1)]
    draw = Draw(random.Random(seed), base.members, clients)
    actions = [
        Action(round(at_s + later_s, 4), name, args)
        for at_s, kind in kinds
        for later_s, name, args in KINDS[kind](draw)
    ]
    load = dict(base.knobs["load"])
    load["roles"] = [dict(role) for role in load["roles"]]
    for place, role in roles.items():
        load["roles"][place] |= role
    if roles:
        load["deadline_ms"] = 15_000  # a quarter of it is how long a GET waits at most
    schedule = sorted((*actions, *more), key=lambda one: one.at_s)
    return replace(
        base,
        seed=seed,
        duration_s=END_S,
        schedule=tuple(one for one in schedule if one.at_s < END_S),
        knobs={**base.knobs, **knobs, "load": load},
    )


def _installs_beside_jobs() -> Iterator[Action]:
    """Have a member fall behind what the others keep, and checkpoint all the time behind that."""
    for at_s in (3.0, 6.0, 9.0):
        yield Action(at_s, "pause", {"node": "c"})
        for later_s in (0.5, 0.9, 1.3):
            for node in ("a", "b"):
                yield Action(round(at_s + later_s, 4), "compact", {"node": node})
        yield Action(round(at_s + 1.6, 4), "resume", {"node": "c"})
        for step in range(20):
            yield Action(round(at_s + 1.7 + step * 0.05, 4), "compact", {"node": "c"})


@pytest.mark.parametrize("count", [1, 4])
def test_what_was_committed_in_a_turn_that_had_no_end_is_committed(count: int) -> None:
    """The head of a segment that is begun in that turn says so to the process that comes next."""
    roles = [
        {"puts": 1.0, "topics": ["x"], "size_bytes": 2_000, "pause_s": 0.02},
        {"gets": 1.0, "topics": ["x"], "pause_s": 0.05},
    ]
    loss = {"node": "a", "at": "fsync_directory", "count": count, "keep": "torn"}
    schedule = Action(2.0, "power_loss", loss), Action(2.6, "restart_all", {})
    knobs = {"segment_bytes": 1024, "load": {"roles": roles}}
    assert run(Plan(1, 1, 2, 4.0, "safety", knobs, schedule)).failures == ()


@pytest.mark.slow
def test_clients_that_are_forgotten_and_come_back_are_judged() -> None:
    """A node that had not flushed found them again, and others had forgotten them."""
    plans = (plan_for(seed, "safety") for seed in range(31, 100))
    forgetting = [plan for plan in plans if plan.knobs.get("client_idle_ms")]
    for plan in forgetting[:SEEDS_MAX]:
        result = run(plan)
        assert result.failures == ()
        if result.coverage["client_forgotten"]:
            found = run(plan, "forgotten-clients-stay-until-the-flush").checks
            if BUGS["forgotten-clients-stay-until-the-flush"].caught_by & found:
                return
    pytest.fail(f"none of {[plan.seed for plan in forgetting[:SEEDS_MAX]]} has shown it")


def test_a_topic_that_waits_for_a_groups_workers_is_emptied_at_the_end() -> None:
    """Workers that were through with their part kept others from storing what they still had."""
    made = {"puts": 1.0, "topics": ["x"], "size_bytes": 200, "batch_count": 5, "pause_s": 0.03}
    worker = {"works": 1.0, "topics": ["x"], "pause_s": 1.0, "take_waits_ms": (0, 0, 100, 100)}
    raises = {"node": "leader", "build": "this"}
    schedule = [Action(at_s, "raise_level", raises) for at_s in (0.5, 1.0, 2.0)]
    schedule += [Action(at_s, "let_users", {}) for at_s in (3.0, 4.0)]
    load = {"deadline_ms": 1500, "roles": [made, made, worker]}
    knobs = {"backlog_bytes_max": 3_000, "load": load}
    result = run(Plan(1, 1, 3, 8.0, "safety", knobs, tuple(schedule)))
    assert result.failures == ()
    assert result.coverage["backlog_refused"]
