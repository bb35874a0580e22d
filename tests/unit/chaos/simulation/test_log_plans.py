"""Plans of the mode `log`: what their scenes are for comes about, often, and nothing is wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from chaos.simulation.plan.plan import SCHEDULE_MAX, Plan
from chaos.simulation.search import log_plans
from chaos.simulation.search.campaign import LIVE_EVERY, LOG_EVERY, Recipe
from chaos.simulation.search.log_plans import SCENES, log_plan_for
from chaos.simulation.search.run import run
from cluster.members.membership import PendingAdmissions, PendingRaises

PLANS = [log_plan_for(seed) for seed in range(1, 101)]


def test_a_seed_is_a_plan_for_ever_and_survives_json() -> None:
    for plan in PLANS[:20]:
        assert log_plan_for(plan.seed) == plan
        assert Plan.from_json(plan.to_json()) == plan


def test_without_a_mode_one_seed_in_five_is_of_the_log_and_none_of_both() -> None:
    modes = Counter(Recipe().plan(seed).mode for seed in range(1, 51))

    assert modes["log"] == 50 // LOG_EVERY
    assert modes["live"] == 50 // LIVE_EVERY
    assert Recipe("log").plan(7) == log_plan_for(7)
    assert log_plan_for(7, 5).nodes == 5


def test_every_scene_is_in_many_plans_and_in_no_way_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: Counter[str] = Counter()
    for name, scene in SCENES.items():

        def counted(
            draw: log_plans.Draw, name: str = name, scene: log_plans.Scene = scene
        ) -> object:
            made[name] += 1
            return scene(draw)

        monkeypatch.setitem(SCENES, name, counted)  # type: ignore[arg-type]
    for plan in PLANS:
        assert log_plan_for(plan.seed) == plan
    assert min(made[name] for name in SCENES) > 2, dict(made)
    assert min(made[name] for name in log_plans.MAIN) > len(PLANS) // 4, made


def test_nothing_happens_behind_the_end() -> None:
    for plan in PLANS:
        assert all(0 <= action.at_s < plan.duration_s for action in plan.schedule)
        assert len(plan.schedule) < SCHEDULE_MAX


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "kept"), [("admissions", PendingAdmissions), ("raises", PendingRaises)]
)
def test_what_a_scene_is_for_comes_about(
    monkeypatch: pytest.MonkeyPatch, scene: str, kept: type
) -> None:
    """An entry that was noted as pending is replaced by another leader's."""
    replaced = 0

    def note(own: PendingAdmissions, index: int, *rest: object) -> bool:
        nonlocal replaced
        replaced += any(at >= index for at in own._entries)
        return _note(own, index, *rest)  # type: ignore[arg-type]

    def log_level(own: PendingRaises, level: int, applied: int, term_at: object) -> int:
        nonlocal replaced
        gone = [at for at, term, _ in own._entries if at > applied and term_at(at) != term]  # type: ignore[operator]
        replaced += bool(gone)
        return _log_level(own, level, applied, term_at)  # type: ignore[arg-type]

    _note, _log_level = PendingAdmissions.note, PendingRaises.log_level
    if kept is PendingAdmissions:
        monkeypatch.setattr(PendingAdmissions, "note", note)
    else:
        monkeypatch.setattr(PendingRaises, "log_level", log_level)
    monkeypatch.setattr(log_plans, "SCENES", {scene: SCENES[scene]})
    monkeypatch.setattr(log_plans, "_names", lambda rng: [scene])
    for seed in range(1, 6):
        result = run(log_plan_for(seed, 5))
        assert result.failures == ()
        if replaced:
            return
    pytest.fail(f"no {scene} were replaced")
