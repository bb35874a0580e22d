"""Guided search: plans whose runs had something new are kept and varied."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.simulation import cli
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.plan.result import Failure, Result
from chaos.simulation.search.campaign import Recipe
from chaos.simulation.search.guided import MEMBERS_MAX, Corpus, GuidedSearch, Search, load, varied
from chaos.simulation.search.run import run

SEED = 20261122
PLANS = [Recipe().plan(seed) for seed in range(1, 13)]


def result_of(plan: Plan, *features: str) -> Result:
    return Result(plan, features=frozenset(features))


@pytest.mark.slow
def test_a_varied_plan_names_nobody_whom_it_has_not_and_ends_in_its_time() -> None:
    rng = random.Random(SEED)
    print("seed", SEED)
    for _ in range(500):
        plan, other = rng.choice(PLANS), rng.choice(PLANS)
        new = varied(plan, other, rng)
        assert (new.nodes, new.clients, new.mode) == (plan.nodes, plan.clients, plan.mode)
        assert [a.at_s for a in new.schedule] == sorted(a.at_s for a in new.schedule)
        assert all(0 <= action.at_s <= new.duration_s for action in new.schedule)
        clients = {f"client-{number}" for number in range(1, new.clients + 1)}
        for action in new.schedule:
            named = str(action.args.get("client", "client-1"))
            assert named in clients, action
            node = str(action.args.get("node", "all"))
            assert node.rstrip("+") in {*new.members, "leader", "follower", "all"}, action
        if any(action.name == "client_copy" for action in new.schedule):
            assert "backlog_bytes_max" not in new.knobs
        assert Plan.from_json(new.to_json()) == new


def test_variations_differ_from_what_they_vary() -> None:
    rng = random.Random(SEED)
    changed = sum(varied(PLANS[0], PLANS[1], rng) != PLANS[0] for _ in range(200))
    assert changed > 150


@pytest.mark.slow
def test_a_varied_plan_runs_and_is_the_same_run_twice() -> None:
    early = tuple(action for action in PLANS[2].schedule if action.at_s < 6.0)
    short = replace(PLANS[2], duration_s=6.0, schedule=early)
    plan = varied(short, PLANS[4], random.Random(SEED))
    first, second = run(plan), run(plan)
    assert first.hash == second.hash
    assert first.features == second.features
    assert not first.failures


def test_a_plan_stays_in_the_corpus_only_for_something_new() -> None:
    corpus = Corpus(random.Random(SEED))
    assert corpus.add(result_of(PLANS[0], "a", "b"))
    assert not corpus.add(result_of(PLANS[1], "b", "a"))
    assert corpus.add(result_of(PLANS[2], "b", "c"))
    assert [member.plan for member in corpus.members] == [PLANS[0], PLANS[2]]
    assert corpus.seen == {"a": 2, "b": 3, "c": 1}


def test_a_full_corpus_loses_the_plan_with_nothing_rare() -> None:
    corpus = Corpus(random.Random(SEED))
    plans = [Plan(seed) for seed in range(MEMBERS_MAX + 1)]
    for plan in plans[:-1]:
        corpus.add(result_of(plan, "common", f"only {plan.seed}"))
    corpus.add(result_of(plans[-1], "common"))
    for _ in range(5):  # the first one's feature is rare no more
        corpus.add(result_of(plans[-1], "only 0"))
    corpus.add(result_of(plans[-1], "another"))
    assert len(corpus.members) == MEMBERS_MAX
    assert plans[0] not in [member.plan for member in corpus.members]


def test_plans_with_rare_features_are_varied_more_often() -> None:
    corpus = Corpus(random.Random(SEED))
    corpus.add(result_of(Plan(1, nodes=5), "common"))
    for _ in range(50):
        corpus.add(result_of(Plan(1, nodes=5), "common"))
    corpus.add(result_of(Plan(2, nodes=3), "rare"))
    chosen = [corpus.plan().nodes for _ in range(100)]
    assert chosen.count(3) > 90


def _brief(seed: int) -> Plan:
    return Plan(seed, duration_s=5.0)


def test_a_search_runs_the_kept_plans_first_and_then_half_fresh_ones() -> None:
    search = GuidedSearch(PLANS[:2])
    seeds = range(1000, 1200)
    given = []
    for number, plan in enumerate(search.plans(seeds, _brief, None)):
        given.append(plan)
        search.add(result_of(plan, f"feature {number % 40}"))
    assert given[:2] == PLANS[:2]
    assert len(given) == 2 + len(seeds)
    own = (plan.seed for plan in given if plan.seed in seeds and plan == _brief(plan.seed))
    fresh = list(dict.fromkeys(own))
    assert 70 < len(fresh) < 130
    assert fresh == list(seeds[: len(fresh)]), "a seed was left out"


def test_a_search_begins_no_run_after_its_time() -> None:
    assert list(Search().plans(range(3), _brief, end_s=0.0)) == []
    assert list(Search().plans(range(3), _brief, end_s=None)) == list(map(_brief, range(3)))


def test_a_corpus_lasts_in_its_file(tmp_path: Path) -> None:
    corpus = Corpus(random.Random(SEED))
    corpus.add(result_of(PLANS[0], "a"))
    corpus.add(result_of(PLANS[1], "b"))
    corpus.save(tmp_path / "deep" / "corpus.jsonl")
    assert load(tmp_path / "deep" / "corpus.jsonl") == PLANS[:2]


def invoke(*words: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(cli.command, words)
    return outcome.exit_code, outcome.output


def test_the_command_keeps_a_corpus_and_begins_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def fake(plans, jobs, work):  # type: ignore[no-untyped-def]
        for plan in plans:
            ran.append(plan)
            yield result_of(plan, f"feature {len(ran)}")

    monkeypatch.setattr(cli, "results", fake)
    file = tmp_path / "corpus.jsonl"
    words = ("--seeds", "1..2", "--guided", "--corpus", str(file), "--json")
    code, output = invoke(*words)
    assert code == 0, output
    assert json.loads(output.splitlines()[-1])["runs"] == 2
    kept = load(file)
    assert kept == ran
    code, output = invoke(*words)
    assert code == 0, output
    assert ran[2:4] == kept
    assert len(ran) == 6


def test_a_failing_plan_that_no_seed_leads_to_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLANS[0], schedule=(Action(1.0, "transfer"),))

    def fake(plans, jobs, work):  # type: ignore[no-untyped-def]
        yield Result(plan, (Failure("durable", "planted by this test"),))

    monkeypatch.setattr(cli, "results", fake)
    monkeypatch.setattr(cli, "PLANS", tmp_path)
    code, output = invoke("--seeds", "1..1", "--guided", "--no-shrink")
    assert code == cli.EXIT_FAILED
    [file] = tmp_path.iterdir()
    assert Plan.from_json(file.read_text()) == plan
    assert f"--plan {file}" in output


def test_options_that_do_not_go_together_are_usage_errors(tmp_path: Path) -> None:
    assert invoke("--seeds", "1..2", "--corpus", "x")[0] == cli.EXIT_BROKEN
    assert invoke("--seed", "1", "--guided")[0] == cli.EXIT_BROKEN
    torn = tmp_path / "torn"
    torn.write_text('{"seed": 1')
    code, output = invoke("--seeds", "1..2", "--guided", "--corpus", str(torn))
    assert code == cli.EXIT_BROKEN
    assert "holds no plans" in output
