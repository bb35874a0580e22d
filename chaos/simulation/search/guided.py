"""Plans that learn from runs: the ones that reached something new are kept, and varied.

What lives here: the corpus, how a plan is varied, and which plan comes next. What must not: what a
run reaches (features.py, lines.py), running plans (campaign.py).

The manner is that of coverage-guided fuzzers (AFL, libFuzzer): a plan whose run has a feature that
no run had before joins the corpus; half of all plans are variations of its members, of those with
rare features more often, and the other half comes from fresh seeds as in any campaign. The random
numbers are the seed's; which plan is varied depends on the results that have come by then. So with
one job a search is the same every time, with several it is not, and a plan that fails is kept.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

from chaos.simulation.plan.plan import SCHEDULE_MAX, Action, Plan
from chaos.simulation.plan.result import Result

FRESH_SHARE: Final = 0.5  # of the plans; a corpus alone goes round in circles
MEMBERS_MAX: Final = 500  # plans; then the one whose rarest feature is most common goes
VARIATIONS_MAX: Final = 3  # of one plan at once
SHIFT_S: Final = 2.0
WINDOW_S: Final = (0.5, 6.0)  # of a schedule that is taken over, repeated or left out
SEED_BITS: Final = 48  # of a varied plan: far above the seeds that people type
# What the nodes are set to. Limits and load belong together (swarm.py), so that they stay.
EXCHANGED: Final = (
    "segment_bytes", "keep_bytes", "fsync_ms", "job_ms", "fallback_s", "share_ends",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """A plan of the corpus with the features that its run had."""

    plan: Plan
    features: frozenset[str]


class Corpus:
    """Plans whose runs had something that no run before had.

    `seen`: how many runs had each feature. A file of plans, one a line, makes a corpus last.
    """

    def __init__(self, rng: random.Random) -> None:
        self.seen: Counter[str] = Counter()
        self.members: list[CorpusPlan] = []
        self._rng = rng

    def add(self, result: Result) -> bool:
        """Count a run's features; return whether it is kept, for one that is new."""
        features = _features(result)
        is_new = any(feature not in self.seen for feature in features)
        self.seen.update(features)
        if is_new:
            self.members.append(CorpusPlan(result.plan, features))
            if len(self.members) > MEMBERS_MAX:
                self.members.remove(min(self.members, key=self._worth))
        return is_new

    def plan(self) -> Plan:
        """Return a variation of a member, of one with rare features more often than of others."""
        weights = [self._worth(member) for member in self.members]
        [member] = self._rng.choices(self.members, weights)
        other = self._rng.choice(self.members)
        return varied(member.plan, other.plan, self._rng)

    def _worth(self, member: CorpusPlan) -> float:
        return 1.0 / min(self.seen[feature] for feature in member.features)

    def save(self, file: Path) -> None:
        """Write the plans, replacing the file at once."""
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(".new")
        lines = "".join(f"{member.plan.to_json()}\n" for member in self.members)
        written.write_text(lines, encoding="utf-8")
        written.replace(file)


class Search:
    """A campaign's plans in their order, those of its seeds alone. `first`: what comes before."""

    first: Sequence[Plan] = ()

    def plans(
        self, seeds: Sequence[int], fresh: Callable[[int], Plan], end_s: float | None
    ) -> Iterator[Plan]:
        """Yield a plan for each seed until it is later than `end_s` on the monotonic clock.

        `fresh`: the plan of a seed.
        """
        for plan in chain(self.first, self._next(seeds, fresh)):
            if end_s is not None and time.monotonic() >= end_s:
                return
            yield plan

    def add(self, result: Result) -> None:
        """Take what a run has come to into account."""

    def _next(self, seeds: Sequence[int], fresh: Callable[[int], Plan]) -> Iterator[Plan]:
        return map(fresh, seeds)


class GuidedSearch(Search):
    """The `first` plans, then as many as there are seeds, about half of them varied.

    The others are those of the first seeds, without a gap: a plain search that long runs them too.
    """

    def __init__(self, first: Sequence[Plan] = ()) -> None:
        self.first = first
        self._rng = random.Random(f"guided {len(first)}")
        self.corpus = Corpus(self._rng)

    def add(self, result: Result) -> None:
        """Let the corpus have the result."""
        self.corpus.add(result)

    def _next(self, seeds: Sequence[int], fresh: Callable[[int], Plan]) -> Iterator[Plan]:
        unused = iter(seeds)
        for _ in seeds:
            is_fresh = not self.corpus.members or self._rng.random() < FRESH_SHARE
            yield fresh(next(unused)) if is_fresh else self.corpus.plan()


def load(file: Path) -> list[Plan]:
    """Return the plans of a corpus's file. Raises OSError, ValueError, KeyError, TypeError."""
    return [Plan.from_json(line) for line in file.read_text(encoding="utf-8").splitlines()]


def varied(plan: Plan, other: Plan, rng: random.Random) -> Plan:
    """Return the plan with up to VARIATIONS_MAX changes, some with the help of the other one."""
    for _ in range(rng.randint(1, VARIATIONS_MAX)):
        plan = rng.choice(_VARIATIONS)(plan, other, rng)
    schedule = sorted(plan.schedule[:SCHEDULE_MAX], key=lambda action: action.at_s)
    knobs = dict(plan.knobs)
    if any(action.name == "client_copy" for action in schedule):
        knobs.pop("backlog_bytes_max", None)  # as in swarm.py: who was fenced reads no more
    return replace(plan, schedule=tuple(schedule), knobs=knobs)


def _with_other_luck(plan: Plan, other: Plan, rng: random.Random) -> Plan:
    return replace(plan, seed=rng.getrandbits(SEED_BITS))


def _without_window(plan: Plan, other: Plan, rng: random.Random) -> Plan:
    begin, end = _window(plan, rng)
    kept = (action for action in plan.schedule if not begin <= action.at_s < end)
    return replace(plan, schedule=tuple(kept))


def _shifted(plan: Plan, other: Plan, rng: random.Random) -> Plan:
    begin, end = _window(plan, rng)
    by_s = rng.uniform(-SHIFT_S, SHIFT_S)
    return replace(
        plan,
        schedule=tuple(
            _at(action, action.at_s + by_s, plan) if begin <= action.at_s < end else action
            for action in plan.schedule
        ),
    )


def _repeated(plan: Plan, other: Plan, rng: random.Random) -> Plan:
    begin, end = _window(plan, rng)
    by_s = rng.uniform(0.0, plan.duration_s - begin)
    again = (_at(a, a.at_s + by_s, plan) for a in plan.schedule if begin <= a.at_s < end)
    return replace(plan, schedule=(*plan.schedule, *again))


def _spliced(plan: Plan, other: Plan, rng: random.Random) -> Plan:
    """Take over what happens in a window of the other plan, as far as it has the same names."""
    begin, end = _window(other, rng)
    by_s = rng.uniform(0.0, plan.duration_s) - begin
    gone = _names(other) - _names(plan)
    taken = (
        _at(action, action.at_s + by_s, plan)
        for action in other.schedule
        if begin <= action.at_s < end and not gone & _named(action)
    )
    return replace(plan, schedule=(*plan.schedule, *taken))


def _with_knob(plan: Plan, other: Plan, rng: random.Random) -> Plan:
    name = rng.choice(EXCHANGED)
    if name not in other.knobs:
        return plan
    return replace(plan, knobs={**plan.knobs, name: other.knobs[name]})


_VARIATIONS: Final = (
    _with_other_luck,
    _without_window,
    _shifted,
    _repeated,
    _spliced,
    _with_knob,
)


def _features(result: Result) -> frozenset[str]:
    lines = (f"{file}:{line}" for file, lines in result.lines.items() for line in lines)
    return result.features.union(lines)


def _window(plan: Plan, rng: random.Random) -> tuple[float, float]:
    begin = rng.uniform(0.0, plan.duration_s)
    return begin, begin + rng.uniform(*WINDOW_S)


def _at(action: Action, at_s: float, plan: Plan) -> Action:
    return replace(action, at_s=round(min(max(at_s, 0.0), plan.duration_s), 4))


def _names(plan: Plan) -> set[str]:
    return {*plan.members, *(f"client-{number}" for number in range(1, plan.clients + 1))}


def _named(action: Action) -> set[str]:
    """Return the names in an action's arguments, those in lists included."""
    named = set[str]()
    for value in action.args.values():
        named.update(value if isinstance(value, list | tuple) else [str(value)])
    return named
