"""A failing plan made small: delta debugging over its actions, then its time and its clients.

What lives here: which smaller plans are tried, and when to stop. What must not: runs and checks;
the caller says whether a plan still fails in the same way.

The manner is that of ddmin (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
Input", 2002), with complements alone, and each pass going on where a part could be left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from chaos.simulation.plan.plan import Plan

RUNS_MAX: Final = 150  # then what was reached has to do
DURATION_S_MIN: Final = 1.0  # below, no leader is elected yet
DURATION_FACTORS: Final = (0.5, 0.8)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest plan found. `is_minimal`: no action can be left out; False: it was cut short."""

    plan: Plan
    runs: int
    is_minimal: bool


class _Trials:
    """Asks whether plans fail, as long as it may; from then on nothing fails any more."""

    def __init__(
        self, fails: Callable[[Plan], bool], runs_max: int, may_go_on: Callable[[], bool]
    ) -> None:
        self._fails = fails
        self._runs_max = runs_max
        self._may_go_on = may_go_on
        self.runs = 0
        self.refused = False

    def fails(self, plan: Plan) -> bool:
        if self.runs == self._runs_max or not self._may_go_on():
            self.refused = True
            return False
        self.runs += 1
        return self._fails(plan)


def shrink(
    plan: Plan,
    fails: Callable[[Plan], bool],
    may_go_on: Callable[[], bool],
    runs_max: int = RUNS_MAX,
) -> Shrunk:
    """Return the smallest plan found that `fails` as `plan` does.

    Within `runs_max` runs, and as long as `may_go_on()`, which is asked before each.
    """
    trials = _Trials(fails, runs_max, may_go_on)
    plan = _with_fewer_actions(plan, trials)
    plan = _with_less_time(plan, trials)
    plan = _with_fewer_clients(plan, trials)
    return Shrunk(plan, trials.runs, not trials.refused)


def ddmin(items: Sequence[Item], fails: Callable[[tuple[Item, ...]], bool]) -> tuple[Item, ...]:
    """Return items in their order that still fail together, none of which can be left out.

    Parts of half the items are tried first, then of a quarter, at last single items until none of
    them can go. Asks O(log n) times for one item that matters, O(n²) times at worst.
    """
    left = tuple(items)
    if not left or fails(()):
        return ()
    size = math.ceil(len(left) / 2)
    while True:
        smaller = _without_parts(left, size, fails)
        if size == 1 and smaller == left:
            return left
        left, size = smaller, max(1, size // 2)


def _without_parts(
    items: tuple[Item, ...], size: int, fails: Callable[[tuple[Item, ...]], bool]
) -> tuple[Item, ...]:
    begin = 0
    while begin < len(items):
        rest = items[:begin] + items[begin + size :]
        if fails(rest):
            items = rest
        else:
            begin += size
    return items


def _with_fewer_actions(plan: Plan, trials: _Trials) -> Plan:
    schedule = ddmin(plan.schedule, lambda part: trials.fails(replace(plan, schedule=part)))
    return replace(plan, schedule=schedule)


def _with_less_time(plan: Plan, trials: _Trials) -> Plan:
    for factor in DURATION_FACTORS:
        while (shorter := _shortened(plan, factor)) is not None and trials.fails(shorter):
            plan = shorter
    return plan


def _shortened(plan: Plan, factor: float) -> Plan | None:
    """Return the plan with its end earlier; None when that is too short or cuts an action off."""
    duration_s = round(plan.duration_s * factor, 3)
    last_s = max((action.at_s for action in plan.schedule), default=0.0)
    if duration_s < max(DURATION_S_MIN, last_s):
        return None
    return replace(plan, duration_s=duration_s)


def _with_fewer_clients(plan: Plan, trials: _Trials) -> Plan:
    fewer = (_of_clients(plan, clients) for clients in range(1, plan.clients))
    return next((smaller for smaller in fewer if trials.fails(smaller)), plan)


def _of_clients(plan: Plan, clients: int) -> Plan:
    """Return the plan with the first so many clients, and nothing that names another."""
    gone = {f"client-{number}" for number in range(clients + 1, plan.clients + 1)}
    load = dict(plan.knobs["load"])
    load["roles"] = load["roles"][:clients]
    schedule = tuple(one for one in plan.schedule if not gone & set(map(str, one.args.values())))
    knobs = {**plan.knobs, "load": load}
    return replace(plan, clients=clients, knobs=knobs, schedule=schedule)
