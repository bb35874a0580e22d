"""What an experiment is: its TOML file as checked data, and the schedule that a seed makes of it.

What lives here: reading and checking `experiments/*.toml`, and planning the fault windows of a run.
What must not: carrying anything out, clocks, knowledge of what a fault or a target does.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from itertools import cycle
from pathlib import Path
from typing import Any, Final, TypeVar

EXPERIMENTS: Final = Path(__file__).parent / "experiments"
JITTER: Final = 0.25  # windows differ by up to a quarter, so runs don't beat in time with timers
WINDOWS_MAX: Final = 10_000  # an hour of the shortest useful windows; more is a typing error

Table = TypeVar("Table")


class ExperimentError(Exception):
    """There is no such experiment, or its file is not what docs/chaos.md describes."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Who publishes and subscribes. `rate_per_s` is each publisher's; 0 = as fast as possible."""

    topics: tuple[str, ...]
    publishers: int = 2
    subscribers: int = 2
    rate_per_s: float = 50.0
    get_count_max: int = 500
    get_wait_ms: int = 200
    deadline_ms: int = 15_000


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """One kind of fault: held for about `hold_s`, then healed and followed by quiet."""

    name: str
    hold_s: float = 1.5
    quiet_s: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Phases:
    """How long each phase takes or may take."""

    warmup_acknowledged: int = 20
    warmup_s_max: float = 30.0
    steady_s: float = 1.0
    health_s_max: float = 30.0
    drain_s_max: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What must hold at the end, beside the verdict of analytics."""

    acknowledged_min: int = 1
    blackout_s_max: float = 20.0


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment's file, checked."""

    name: str
    about: str
    workload: Workload
    faults: tuple[FaultPlan, ...] = ()
    phases: Phases = field(default_factory=Phases)
    expect: Expect = field(default_factory=Expect)


@dataclass(frozen=True)
class Window:
    """One fault window of a run: inject, hold, heal, quiet. Seconds."""

    fault: str
    hold_s: float
    quiet_s: float


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.toml"))


def load(name: str, known_faults: Collection[str]) -> Experiment:
    """Return the experiment `name`. Raises ExperimentError."""
    path = EXPERIMENTS / f"{name}.toml"
    if not path.is_file():
        raise ExperimentError(f"no experiment {name!r}; there are {', '.join(names())}")
    return parse(path.read_text(encoding="utf-8"), name, known_faults)


def parse(text: str, name: str, known_faults: Collection[str]) -> Experiment:
    """Return the experiment that `text` (TOML) describes. Raises ExperimentError."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{name}: {error}") from None
    workload = dict(tables.pop("workload", {}))
    workload["topics"] = tuple(workload.get("topics", ()))
    faults = tables.pop("faults", [])
    parts = {
        "workload": _build(Workload, workload, f"{name}: workload"),
        "faults": tuple(_build(FaultPlan, table, f"{name}: faults") for table in faults),
        "phases": _build(Phases, tables.pop("phases", {}), f"{name}: phases"),
        "expect": _build(Expect, tables.pop("expect", {}), f"{name}: expect"),
    }
    experiment = _build(Experiment, {"name": name, **tables, **parts}, name)
    _check(experiment, known_faults)
    return experiment


def _build(kind: type[Table], table: Mapping[str, Any], where: str) -> Table:
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    if strange := set(table) - known:
        raise ExperimentError(f"{where}: unknown {sorted(strange)}; known: {sorted(known)}")
    for name, value in table.items():
        if isinstance(value, int | float) and value < 0:
            raise ExperimentError(f"{where}: {name} is {value}, below 0")
    try:
        return kind(**table)
    except TypeError as error:
        raise ExperimentError(f"{where}: {error}") from None


def _check(experiment: Experiment, known_faults: Collection[str]) -> None:
    workload = experiment.workload
    if not (workload.topics and workload.publishers and workload.subscribers):
        raise ExperimentError(f"{experiment.name}: a topic, publisher and subscriber are the least")
    if spaced := [topic for topic in workload.topics if not topic or " " in topic]:
        raise ExperimentError(f"{experiment.name}: topics with spaces or empty: {spaced}")
    if strange := {fault.name for fault in experiment.faults} - set(known_faults):
        raise ExperimentError(f"{experiment.name}: unknown faults {sorted(strange)}")


def schedule(experiment: Experiment, duration_s: float, seed: int) -> list[Window]:
    """Return the fault windows of a run, decided by `seed` alone.

    The experiment's faults come in their order, each at least once, and then again in turn while
    the windows fit into `duration_s`.
    """
    jitter = random.Random(seed)
    windows: list[Window] = []
    used_s = 0.0
    for fault in cycle(experiment.faults):
        factor = jitter.uniform(1 - JITTER, 1 + JITTER)
        window = Window(fault.name, fault.hold_s * factor, fault.quiet_s * factor)
        used_s += window.hold_s + window.quiet_s
        round_is_full = len(windows) >= len(experiment.faults)
        if round_is_full and (used_s > duration_s or len(windows) == WINDOWS_MAX):
            break
        windows.append(window)
    return windows
