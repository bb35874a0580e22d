"""Plans from seeds."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from functools import partial

import pytest

from chaos.simulation.checks.watch import Attached
from chaos.simulation.clients.clients import CRASH_POINTS
from chaos.simulation.clients.scripts import Role
from chaos.simulation.plan.limits import (
    CONSTANTS,
    DEFAULTS,
    OF_COMPACTION,
    OF_GROUPS,
    OF_IDLE,
    OF_KEY_ORDER,
    OF_LEVELS,
    OF_MANY,
    OF_PATTERNS,
    OF_SCRUB,
    OF_THE_STORE,
)
from chaos.simulation.plan.plan import Plan
from chaos.simulation.search import swarm
from chaos.simulation.search.quiet_window import DISTURBING
from chaos.simulation.search.scenes import WAIT_MS
from chaos.simulation.search.swarm import KINDS, Draw, plan_for
from chaos.simulation.world.administrator import Administrator
from chaos.simulation.world.operator import BROKEN_HOWS, Operator
from chaos.simulation.world.world import KNOBS, World
from flotilla_client.properties import Properties, encode

OF_OPERATOR = (
    *("wipe", "damage", "double", "install", "restart", "restart_all"),
    *("raise_level", "let_users", "change_user"),
)


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    return [plan_for(seed, "safety") for seed in range(200)]


@pytest.fixture(scope="module")
def live_plans() -> list[Plan]:
    return [plan_for(seed, "live") for seed in range(200)]


def test_a_seed_is_a_plan_for_ever() -> None:
    assert plan_for(7, "live") == plan_for(7, "live")
    assert plan_for(7, "live") != plan_for(7, "safety")


def test_a_plan_survives_json(plans: list[Plan]) -> None:
    for plan in plans[:50]:
        assert Plan.from_json(plan.to_json()) == plan


def test_the_number_of_nodes_can_be_asked_for(plans: list[Plan]) -> None:
    assert {plan_for(seed, "safety", 5).nodes for seed in range(20)} == {5}
    drawn = Counter(plan.nodes for plan in plans)
    assert drawn[3] > drawn[5] > drawn[1] + drawn[7] > 0


def test_every_kind_of_fault_is_in_many_plans_and_in_no_way_in_all(plans: list[Plan]) -> None:
    names = Counter(name for plan in plans for name in {a.name for a in plan.schedule})
    for name, count in names.items() - {("weather", len(plans))}:
        assert count > 20, name
    draw = Draw(random.Random(1), plans[0].members, ["client-1"])
    assert names.keys() >= {name for kind in KINDS.values() for _, name, _ in kind(draw)}
    sizes = Counter(len({a.name for a in plan.schedule}) for plan in plans)
    assert max(sizes) - min(sizes) > 10


def test_one_kind_of_fault_more_leaves_the_rest_of_every_plan_as_it_was(
    monkeypatch: pytest.MonkeyPatch, plans: list[Plan]
) -> None:
    kinds = {name: kind for name, kind in KINDS.items() if name != "stops"}
    monkeypatch.setattr(swarm, "KINDS", kinds)
    for seed in range(50):
        plan, before = plan_for(seed, "safety"), plans[seed]
        rest = [action for action in before.schedule if action.name != "stop"]
        assert list(plan.schedule) == rest
        assert plan.knobs == before.knobs


def test_a_fault_of_several_steps_has_a_quiet_window_in_about_half_of_the_plans(
    plans: list[Plan],
) -> None:
    with_room = 0
    for plan in plans:
        window = swarm._quiet_window(partial(_draw, plan), plan.duration_s)
        span = [each for each in plan.schedule if window.begin_s <= each.at_s < window.end_s]
        own = [*window.steps, *(each for each in span if each.args.get("target") in _clients(plan))]
        others = [each for each in span if each.name in DISTURBING and each not in own]
        assert {each.at_s for each in others} <= {window.begin_s}, "what is mended, and no more"
        assert window.end_s < plan.duration_s
        with_room += bool(window.steps)
    assert 0.4 < with_room / len(plans) < 0.8


def _draw(plan: Plan, purpose: str) -> Draw:
    return Draw(swarm._stream(plan.seed, "safety", purpose), plan.members, _clients(plan))


def _clients(plan: Plan) -> list[str]:
    return [f"client-{number}" for number in range(1, plan.clients + 1)]


def _has_workers_alone(plan: Plan) -> bool:
    return any("take_waits_ms" in role for role in plan.knobs["load"]["roles"])


def test_who_only_lists_and_who_comes_and_goes_are_in_about_half_of_the_plans_each(
    plans: list[Plan],
) -> None:
    plans = [plan for plan in plans if not _has_workers_alone(plan)]
    second = [Role.of(plan.knobs["load"]["roles"][1]) for plan in plans]
    listers = [role for role in second if role.lists and not (role.puts or role.gets)]
    leavers = [role for role in second if role.churns]
    assert len(listers) + len(leavers) == len(plans)
    assert 0.3 < len(leavers) / len(plans) < 0.7


def test_tight_limits_come_together_and_not_in_most_plans(plans: list[Plan]) -> None:
    names = {name for name in KNOBS if name.endswith("_max")}
    tight = [len(names & plan.knobs.keys()) for plan in plans]
    assert 0.2 < sum(count > 0 for count in tight) / len(plans) < 0.5
    assert sum(count > 1 for count in tight) > 20


def test_every_action_can_be_performed(plans: list[Plan]) -> None:
    own = {
        "client_crash": Attached._client_crash,
        "client_restart": Attached._client_restart,
        "client_copy": Attached._client_copy,
        "client_power_loss": Attached._client_power_loss,
        "client_fsync_error": Attached._client_fsync_error,
        "intrude": Attached._intrude,
        "inspect": Attached._inspect,
        "purge": Administrator._purge,
        "seek_group": Administrator._seek_group,
        "set_topic": Administrator._set_topic,
        "delete_topic": Administrator._delete_topic,
        "read_topic": Administrator._read_topic,
        "replay": Attached._replay,
        "compact_by_key": Attached._compact_by_key,
        "follow": Attached._follow,
        "drop_client": Administrator._drop_client,
        "transfer_leader": Administrator._transfer_leader,
        "checkpoint": Administrator._checkpoint,
        **{name: getattr(Operator, name) for name in OF_OPERATOR},
    }
    for action in {(a.name, tuple(sorted(a.args))) for plan in plans for a in plan.schedule}:
        name, arguments = action
        perform = own.get(name) or getattr(World, name)
        inspect.signature(perform).bind(None, **dict.fromkeys(arguments))


def test_actions_come_in_order_before_the_end(plans: list[Plan]) -> None:
    for plan in plans:
        times = [action.at_s for action in plan.schedule]
        assert times == sorted(times)
        assert times[-1] < plan.duration_s


def test_roles_and_knobs_are_what_the_clients_and_the_world_take(plans: list[Plan]) -> None:
    for plan in plans:
        roles = [Role.of(role) for role in plan.knobs["load"]["roles"]]
        assert len(roles) == plan.clients
        assert any(role.puts for role in roles)
        assert any(role.gets for role in roles) or _has_workers_alone(plan)
        assert plan.knobs.keys() - {"load"} <= {
                *KNOBS, *CONSTANTS, *OF_LEVELS, *OF_IDLE, *OF_SCRUB, *DEFAULTS, *OF_COMPACTION,
                *OF_THE_STORE, *OF_PATTERNS, *OF_GROUPS, *OF_KEY_ORDER, *OF_MANY, "chunk_puts",
            }  # fmt: skip


def test_only_a_minority_stays_broken_and_only_where_progress_is_the_point(
    plans: list[Plan], live_plans: list[Plan]
) -> None:
    assert not any(plan.knobs["load"]["broken"] for plan in plans)
    hows: set[str] = set()
    for plan in live_plans:
        broken = plan.knobs["load"]["broken"]
        assert len(broken) <= (plan.nodes - 1) // 2
        hows |= set(broken.values())
    assert hows == set(BROKEN_HOWS)


def test_clients_crash_at_every_point(plans: list[Plan]) -> None:
    points = {a.args["at"] for plan in plans for a in plan.schedule if a.name == "client_crash"}
    assert points == set(CRASH_POINTS)


@pytest.mark.parametrize("seed", range(50))
def test_nobody_waits_for_room_that_a_fenced_client_will_never_make(
    seed: int, plans: list[Plan]
) -> None:
    plan = plans[seed]
    copied = any(action.name == "client_copy" for action in plan.schedule)
    assert not (copied and "backlog_bytes_max" in plan.knobs)


def test_nobody_waits_for_room_that_a_group_keeps(plans: list[Plan]) -> None:
    for plan in plans:
        if any(role.get("works") for role in plan.knobs["load"]["roles"]):
            assert "backlog_bytes_max" not in plan.knobs, plan.seed


def test_who_reads_at_a_rate_comes_to_the_end(plans: list[Plan]) -> None:
    with_rates = [plan for plan in plans if "quota_requests_per_s" in plan.knobs]
    assert len(with_rates) >= 5
    for plan in with_rates:
        assert {role["get_count"] for role in plan.knobs["load"]["roles"]} == {100}, plan.seed


def test_some_plans_are_of_one_scene(plans: list[Plan]) -> None:
    scenes = Counter[str]()
    for plan in plans:
        roles = plan.knobs["load"]["roles"]
        workers = [role for role in roles if "own_letters" in role]
        scenes["workshop"] += bool(workers)
        scenes["by key"] += any(role["is_ordered"] for role in workers)
        scenes["letters of topics"] += any(role["own_letters"] == 0.0 for role in workers)
        scenes["short steps"] += plan.knobs.get("scrub_step_rows", 99) <= 3
        replays = [action.at_s for action in plan.schedule if action.name == "replay"]
        deaf = [each for each in plan.schedule if each.args.get("target") == _clients(plan)[-1]]
        scenes["waiting pair"] += roles[-1].get("take_waits_ms") == [WAIT_MS] and bool(deaf)
        scenes["rover"] += len(replays) > plan.duration_s * 5
        ends = [each for each in plan.schedule if each.args.get("ends") and "kind" in each.args]
        scenes["lost syncs"] += bool(ends)
        if workers:
            made = [role for role in roles if role.get("has_properties") and role["puts"]]
            assert made, "nobody fills the topic of a workshop"
            assert {role["topics"][0] for role in workers} == {made[0]["topics"][0]}
    assert min(scenes.values()) >= 8, scenes
    assert scenes["workshop"] <= 80, scenes


def test_a_level_that_could_not_be_raised_is_asked_for_again(plans: list[Plan]) -> None:
    for plan in plans:
        if swarm.at_level_of_users(plan.schedule):
            asked = [each.at_s for each in plan.schedule if each.name == "let_users"]
            assert max(asked) > plan.duration_s - 8.0, plan.seed


def test_a_batch_has_room_for_a_dead_letter(plans: list[Plan]) -> None:
    """A worker never takes an answer with a larger one, and asks for it for ever (seed 85)."""
    headers = {
        "dead-letter-topic": "xdelayed",
        "dead-letter-id": str(10**6),
        "dead-letter-group": "by hand",
        "dead-letter-reason": "given 10000 times, never acknowledged",
    }
    letter_bytes = len(encode(Properties(None, headers))) + swarm.PUBLICATION_OVERHEAD_BYTES
    small = [plan for plan in plans if "batch_bytes_max" in plan.knobs]
    assert len(small) > 10
    for plan in small:
        sizes = [role["size_bytes"] for role in plan.knobs["load"]["roles"]]
        assert max(sizes) + letter_bytes <= plan.knobs["batch_bytes_max"], plan.seed
