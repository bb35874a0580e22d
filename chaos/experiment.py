"""What an experiment is: its TOML file as checked data, and the schedule that a seed makes of it.

What lives here: reading and checking `experiments/*.toml`, and planning the fault windows of a run.
What must not: carrying anything out, clocks, knowledge of what a fault or a target does.
"""

from __future__ import annotations

import math
import random
import reprlib
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import cycle
from pathlib import Path
from typing import Any, Final, TypeVar

from chaos.workloads.kinds import KINDS, Parameters, complaint, kind_of
from flotilla.protocol import (
    INTEGER_MAX,
    SUB,
    ProtocolError,
    Request,
    decode_request,
    encode_request,
)

EXPERIMENTS: Final = Path(__file__).parent / "experiments"
SUFFIX: Final = ".toml"
JITTER: Final = 0.25  # windows differ by up to a quarter, so runs don't beat in time with timers
WINDOWS_MAX: Final = 10_000  # an hour of the shortest useful windows; more is a typing error
TOPICS_MAX: Final = 1_000  # a client's subscriptions have this limit too
GROUP_MAX: Final = 100  # processes of one kind: this is one machine
SECONDS_MAX: Final = 86_400  # a day: nobody waits longer for a phase
DEADLINE_MS: Final = (1, 600_000)  # of an operation; a client takes a day, and a run waits for it
NESTING_MAX: Final = 8  # tables and lists in each other; an experiment has three

Table = TypeVar("Table")


class ExperimentError(Exception):
    """There is no such experiment, or its file is not what docs/chaos.md describes."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Clients that are all alike. `topics` empty = all of the workload's."""

    parameters: Parameters
    count: int = 1
    topics: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of client."""
        return kind_of(self.parameters)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Who publishes and subscribes to which topics, and how long an operation tries."""

    topics: tuple[str, ...]
    groups: tuple[Group, ...]
    deadline_ms: int = 15_000

    def topics_of(self, group: Group) -> tuple[str, ...]:
        """Return the topics of a group's clients."""
        return group.topics or self.topics


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """A fault, held for about `hold_s`, then healed and followed by quiet.

    `also`: others that are injected right behind it, and healed before it.
    """

    name: str
    also: tuple[str, ...] = ()
    hold_s: float = 1.5
    quiet_s: float = 2.0

    @property
    def names(self) -> tuple[str, ...]:
        """All of its faults, in the order in which they are injected."""
        return (self.name, *self.also)


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
    """What must hold at the end, beside the verdict of analytics.

    `acknowledged_per_s_min`: over the time from the warm-up's end to the health gate, everything
    that was down included. With less, or with fewer than `acknowledged_min` in all, the run has
    not looked at enough to prove anything: the verdict can't be `valid`.
    """

    acknowledged_min: int = 50
    acknowledged_per_s_min: float = 5.0
    blackout_s_max: float = 20.0


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment's file, checked. `shuffled`: the seed decides the order of the faults."""

    name: str
    about: str
    workload: Workload
    faults: tuple[FaultPlan, ...] = ()
    shuffled: bool = False
    phases: Phases = field(default_factory=Phases)
    expect: Expect = field(default_factory=Expect)

    @property
    def fault_names(self) -> list[str]:
        """Every fault that it injects, each once."""
        return sorted({name for plan in self.faults for name in plan.names})


@dataclass(frozen=True)
class Window:
    """One fault window of a run: inject `faults` in order, hold, heal, quiet. Seconds."""

    faults: tuple[str, ...]
    hold_s: float
    quiet_s: float


# --- reading --------------------------------------------------------------------------------------


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(path.stem for path in EXPERIMENTS.glob(f"*{SUFFIX}"))


def load(name: str, known_faults: Collection[str]) -> Experiment:
    """Return the experiment `name`: one that is shipped, or a file. Raises ExperimentError."""
    path = file_of(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path}: {error}") from None
    return parse(text, path.stem, known_faults)


def file_of(name: str) -> Path:
    """Return the file of the experiment `name`: a path if it ends in `.toml`, else one of ours.

    Raises ExperimentError.
    """
    if name.endswith(SUFFIX):
        return Path(name)
    path = EXPERIMENTS / f"{name}{SUFFIX}"
    if not path.is_file():
        raise ExperimentError(f"no experiment {name!r}; there are {', '.join(names())}")
    return path


def parse(text: str, name: str, known_faults: Collection[str]) -> Experiment:
    """Return the experiment that `text` (TOML) describes. Raises ExperimentError."""
    tables = _tables(text, name)
    plans = [_plan(table, name) for table in _rows(tables, "faults", name)]
    groups = [_group(table, name) for table in _rows(tables, "clients", name)]
    workload = _topics(_table(tables, "workload", name), f"{name}: workload")
    parts = {
        "workload": _build(Workload, workload | {"groups": tuple(groups)}, f"{name}: workload"),
        "faults": tuple(plans),
        "phases": _build(Phases, _table(tables, "phases", name), f"{name}: phases"),
        "expect": _build(Expect, _table(tables, "expect", name), f"{name}: expect"),
    }
    experiment = _build(Experiment, {"name": name, **tables, **parts}, name)
    _check(experiment, name, known_faults)
    return experiment


def _tables(text: str, name: str) -> dict[str, Any]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{name}: {error}") from None
    except RecursionError:
        raise ExperimentError(f"{name}: its tables or lists are nested too deeply") from None
    except ValueError:  # of int(), which takes some thousands of digits
        raise ExperimentError(f"{name}: a number has too many digits") from None
    _check_size(tables, name, NESTING_MAX)
    return tables


def _check_size(value: Any, name: str, nesting_max: int) -> None:
    """Refuse what can't be written into a history or a message, wherever it stands."""
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise ExperimentError(f"{name}: a whole number is beyond {INTEGER_MAX}")
    if isinstance(value, dict | list):
        if nesting_max == 0:
            raise ExperimentError(f"{name}: its tables or lists are nested too deeply")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_size(inner, name, nesting_max - 1)


def _table(tables: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    table = tables.pop(key, {})
    if not isinstance(table, dict):
        raise ExperimentError(f"{where}: {key} is {table!r}, it has to be a table")
    return table


def _rows(tables: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    rows = tables.pop(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ExperimentError(f"{where}: [[{key}]] has to be a list of tables")
    return rows


def _plan(table: dict[str, Any], name: str) -> FaultPlan:
    where = f"{name}: faults"
    plan = _build(FaultPlan, _tupled(table, "also", where), where)
    if twice := _repeated(plan.names):
        raise ExperimentError(f"{where}: {twice!r} is named twice for one window")
    return plan


def _group(table: dict[str, Any], name: str) -> Group:
    kind = table.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        shown = reprlib.repr(kind)
        raise ExperimentError(f"{name}: clients: kind is {shown}; there are {', '.join(KINDS)}")
    where = f"{name}: clients: {kind}"
    own: dict[str, Any] = {key: table.pop(key) for key in ("count", "topics") if key in table}
    parameters: Any = _build(KINDS[kind], table, where)
    if wrong := complaint(parameters):
        raise ExperimentError(f"{where}: {wrong}")
    group = _build(Group, {"parameters": parameters, **_tupled(own, "topics", where)}, where)
    _check_topics(group.topics, where)
    return group


def _topics(table: dict[str, Any], where: str) -> dict[str, Any]:
    """Replace a number of topics by as many names."""
    count = table.get("topics")
    if type(count) is not int:
        return _tupled(table, "topics", where)
    if not 1 <= count <= TOPICS_MAX:
        raise ExperimentError(f"{where}: {count} topics; from 1 to {TOPICS_MAX} there may be")
    return table | {"topics": tuple(f"topic-{number}" for number in range(1, count + 1))}


def _tupled(table: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        shown = reprlib.repr(texts)
        raise ExperimentError(f"{where}: {key} is {shown}, it has to be a list of names")
    return table | {key: tuple(texts)}


def _build(kind: type[Table], table: Mapping[str, Any], where: str) -> Table:
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    if strange := set(table) - set(known):
        raise ExperimentError(f"{where}: unknown {sorted(strange)}; known: {sorted(known)}")
    for name, value in table.items():
        _check_value(str(known[name].type), value, f"{where}: {name}")
        _check_bounds(name, value, where)
    required = (
        name
        for name, entry in known.items()
        if entry.default is MISSING and entry.default_factory is MISSING
    )
    if lacking := [name for name in required if name not in table]:
        raise ExperimentError(f"{where}: it lacks {', '.join(lacking)}")
    return kind(**table)


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}


def _check_value(annotation: str, value: Any, where: str) -> None:
    types = _TYPES.get(annotation)
    if types is not None and type(value) not in types:
        raise ExperimentError(f"{where} is {value!r}, it has to be of type {annotation}")
    if isinstance(value, int | float) and not 0 <= value < math.inf:
        raise ExperimentError(f"{where} is {value}, it has to be 0 or more")


def _check_bounds(name: str, value: Any, where: str) -> None:
    if name == "deadline_ms":
        low, most = DEADLINE_MS
    elif name.endswith(("_s", "_s_max")) and not name.endswith("_per_s"):
        low, most = 0, SECONDS_MAX
    else:
        return
    if not low <= value <= most:
        raise ExperimentError(f"{where}: {name} is {value}, it has to be from {low} to {most:,}")


def _check_topics(topics: tuple[str, ...], where: str) -> None:
    if len(topics) > TOPICS_MAX:
        raise ExperimentError(f"{where}: {len(topics)} topics; at most {TOPICS_MAX} there may be")
    if twice := _repeated(topics):
        raise ExperimentError(f"{where}: the topic {reprlib.repr(twice)} is named twice")
    for topic in topics:
        if " " in topic:
            raise ExperimentError(f"{where}: the topic {reprlib.repr(topic)} has a space in it")
        try:
            decode_request(encode_request(Request(SUB, "check", topic, "check")))
        except ProtocolError as error:
            raise ExperimentError(f"{where}: no topic {reprlib.repr(topic)}: {error}") from None


def _repeated(texts: tuple[str, ...]) -> str | None:
    """Return the first text that stands there more than once."""
    return next((text for text, count in Counter(texts).items() if count > 1), None)


def _check(experiment: Experiment, name: str, known_faults: Collection[str]) -> None:
    workload = experiment.workload
    if experiment.name != name:
        raise ExperimentError(f"{name}: its name is given as {experiment.name!r}")
    if not experiment.about.strip():
        raise ExperimentError(f"{name}: `about` has to say what it is after")
    _check_topics(workload.topics, f"{name}: workload")
    if strange := set(experiment.fault_names) - set(known_faults):
        raise ExperimentError(f"{name}: unknown faults {sorted(strange)}")
    for group in workload.groups:
        if foreign := set(group.topics) - set(workload.topics):
            raise ExperimentError(f"{name}: {group.kind}s of topics that are none: {foreign}")
        if not 1 <= group.count <= GROUP_MAX:
            raise ExperimentError(f"{name}: {group.count} {group.kind}s; 1 to {GROUP_MAX} are due")
    _check_roles(workload, name)


def _check_roles(workload: Workload, name: str) -> None:
    published = {
        topic
        for group in workload.groups
        if group.parameters.publishes
        for topic in workload.topics_of(group)
    }
    if not published or published != set(workload.topics):
        raise ExperimentError(f"{name}: a topic, and a publisher for each, are the least")
    if unread := published - steady_topics(workload):
        raise ExperimentError(f"{name}: nobody reads {sorted(unread)} all the time")


def steady_topics(workload: Workload) -> set[str]:
    """Return the topics that somebody subscribes to from the beginning to the end."""
    return {
        topic
        for group in workload.groups
        if group.parameters.reads and group.kind != "visitor"
        for topic in workload.topics_of(group)
    }


def as_document(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as JSON types; each group of clients says its kind."""
    document = asdict(experiment)
    groups = zip(document["workload"]["groups"], experiment.workload.groups, strict=True)
    for written, group in groups:
        written["kind"] = group.kind
    return document


# --- planning -------------------------------------------------------------------------------------


def schedule(experiment: Experiment, duration_s: float, seed: int) -> list[Window]:
    """Return the fault windows of a run, decided by `seed` alone.

    The experiment's faults come in their order (shuffled: in the seed's), each at least once, and
    then again in turn while the windows fit into `duration_s`.
    """
    dice = random.Random(seed)
    plans = list(experiment.faults)
    if experiment.shuffled:
        dice.shuffle(plans)
    windows: list[Window] = []
    used_s = 0.0
    for plan in cycle(plans):
        factor = dice.uniform(1 - JITTER, 1 + JITTER)
        window = Window(plan.names, plan.hold_s * factor, plan.quiet_s * factor)
        used_s += window.hold_s + window.quiet_s
        round_is_full = len(windows) >= len(plans)
        if round_is_full and (used_s > duration_s or len(windows) == WINDOWS_MAX):
            break
        windows.append(window)
    return windows
