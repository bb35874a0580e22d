"""What an experiment is: its TOML file as checked data, and the schedule that a seed makes of it.

What lives here: what stands in `experiments/*.toml` and has to fit together there, and planning the
fault windows of a run. What must not: carrying anything out, clocks, knowledge of what a fault or a
target does, or of TOML and of any one number's bounds (reading.py, bounds.py).
"""

from __future__ import annotations

import random
import reprlib
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final, TypeVar

from chaos.spec.bounds import (
    AT_ONCE_BYTES_MAX,
    CLIENTS_MAX,
    LINE_BYTES,
    TOPICS_BYTES_MAX,
    TOPICS_MAX,
    WINDOWS_MAX,
)
from chaos.spec.reading import (
    ExperimentError,
    Table,
    build,
    check_keys,
    check_number,
    keys_of,
    rows_of,
    table_of,
    tables_of,
    texts_of,
)
from chaos.spec.suggestions import no_such
from chaos.workloads.kinds import KINDS, Parameters, Pipeliner, Publisher, kind_of
from flotilla_client.protocol import SUB, ProtocolError, Request, decode_request, encode_request

EXPERIMENTS: Final = Path(__file__).parents[1] / "experiments"
SUFFIX: Final = ".toml"
JITTER: Final = 0.25  # windows differ by up to a quarter, so runs don't beat in time with timers


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
class FaultWindow:
    """One fault window of a run: inject `faults` in order, hold, heal, quiet. Seconds."""

    faults: tuple[str, ...]
    hold_s: float
    quiet_s: float


KEYS: Final = {"clients"} | keys_of(Experiment)  # of the file; [workload] and [[clients]] are one
WORKLOAD_KEYS: Final = keys_of(Workload) - {"groups"}
CLIENT_KEYS: Final = {"kind"} | keys_of(Group) - {"parameters"}  # besides those of its kind

Part = TypeVar("Part", Phases, Expect)


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
        raise ExperimentError(no_such("experiment", name, names()))
    return path


def parse(text: str, name: str, known_faults: Collection[str]) -> Experiment:
    """Return the experiment that `text` (TOML) describes. Raises ExperimentError."""
    tables = tables_of(text, name)
    check_keys(tables, KEYS, name)
    parts = {
        "name": name,
        **{key: value for key, value in tables.items() if key != "clients"},
        "workload": _workload(tables, name),
        "faults": _plans(tables, name, known_faults),
        "phases": _part(Phases, tables, "phases", name),
        "expect": _part(Expect, tables, "expect", name),
    }
    experiment = build(Experiment, parts, name)
    if experiment.name != name:
        raise ExperimentError(f"{name}: its name is given as {reprlib.repr(experiment.name)}")
    if not experiment.about.strip():
        raise ExperimentError(f"{name}: `about` has to say what it is after")
    return experiment


def _part(kind: type[Part], tables: Table, key: str, name: str) -> Part:
    where, table = f"{name}: [{key}]", table_of(tables, key, name)
    check_keys(table, keys_of(kind), where)
    return build(kind, table, where)


def _plans(tables: Table, name: str, known_faults: Collection[str]) -> tuple[FaultPlan, ...]:
    plans = tuple(_plan(row, where, known_faults) for where, row in rows_of(tables, "faults", name))
    if len(plans) > WINDOWS_MAX:
        raise ExperimentError(f"{name}: {len(plans)} [[faults]]; {WINDOWS_MAX} are the most")
    return plans


def _plan(table: Table, where: str, known_faults: Collection[str]) -> FaultPlan:
    check_keys(table, keys_of(FaultPlan), where)
    plan = build(FaultPlan, table | {"also": texts_of(table, "also", where)}, where)
    for fault in plan.names:
        if fault not in known_faults:
            raise ExperimentError(f"{where}: {no_such('fault', fault, sorted(known_faults))}")
    if twice := _repeated(plan.names):
        raise ExperimentError(f"{where}: {twice!r} is named twice for one window")
    return plan


# --- who publishes and reads ----------------------------------------------------------------------


def _workload(tables: Table, name: str) -> Workload:
    where, table = f"{name}: [workload]", table_of(tables, "workload", name)
    check_keys(table, WORKLOAD_KEYS, where)
    topics = _topics(table, where)
    groups = tuple(_group(row, topics, place) for place, row in rows_of(tables, "clients", name))
    workload = build(Workload, table | {"topics": topics, "groups": groups}, where)
    if (count := sum(group.count for group in groups)) > CLIENTS_MAX:
        raise ExperimentError(f"{name}: {count} clients in all; {CLIENTS_MAX} are the most")
    _check_roles(workload, name)
    return workload


def _topics(table: Table, where: str) -> tuple[str, ...]:
    """Return the topics' names; for a number of topics as many as it says."""
    count = table.get("topics")
    if type(count) is int:
        check_number("topics", count, where)
        return tuple(f"topic-{number}" for number in range(1, count + 1))
    topics = texts_of(table, "topics", where)
    _check_topics(topics, where)
    return topics


def _group(table: Table, all_topics: tuple[str, ...], place: str) -> Group:
    if "kind" not in table:
        raise ExperimentError(f"{place}: it lacks kind; there are {', '.join(KINDS)}")
    kind = table["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise ExperimentError(f"{place}: {no_such('kind', kind, KINDS)}")
    where, keys = f"{place} ({kind})", keys_of(KINDS[kind])
    check_keys(table, keys | CLIENT_KEYS, where)
    parameters: Any = build(KINDS[kind], {key: table[key] for key in keys & set(table)}, where)
    own = {key: table[key] for key in table if key == "count"}
    topics = texts_of(table, "topics", where)
    group = build(Group, {"parameters": parameters, **own, "topics": topics}, where)
    _check_topics(topics, where)
    for topic in topics:
        if topic not in all_topics:
            raise ExperimentError(f"{where}: {no_such('topic', topic, all_topics)}")
    _check_memory(parameters, len(topics or all_topics), where)
    return group


def _check_memory(parameters: Parameters, topic_count: int, where: str) -> None:
    """Refuse what is small by each of its numbers, and together more than a client can hold."""
    if isinstance(parameters, Publisher | Pipeliner):
        count, size_bytes = parameters.at_once(topic_count), parameters.size_bytes or LINE_BYTES
        if count * size_bytes > AT_ONCE_BYTES_MAX:
            raise ExperimentError(
                f"{where}: {count:,} publications of {size_bytes:,} bytes at once;"
                f" {AT_ONCE_BYTES_MAX:,} bytes are the most"
            )


def _check_topics(topics: tuple[str, ...], where: str) -> None:
    if len(topics) > TOPICS_MAX:
        raise ExperimentError(f"{where}: {len(topics)} topics; at most {TOPICS_MAX} there may be")
    if (size_bytes := sum(len(topic.encode()) for topic in topics)) > TOPICS_BYTES_MAX:
        raise ExperimentError(
            f"{where}: topics of {size_bytes:,} bytes together; {TOPICS_BYTES_MAX:,} are the most"
        )
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
        raise ExperimentError(f"{name}: nobody reads {reprlib.repr(sorted(unread))} all the time")


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


def schedule(experiment: Experiment, duration_s: float, seed: int) -> list[FaultWindow]:
    """Return the fault windows of a run, decided by `seed` alone.

    The experiment's faults come in their order (shuffled: in the seed's), each at least once, and
    then again in turn while the windows fit into `duration_s`.
    """
    rng = random.Random(seed)
    plans = list(experiment.faults)
    if experiment.shuffled:
        rng.shuffle(plans)
    windows: list[FaultWindow] = []
    used_s = 0.0
    for plan in cycle(plans):
        factor = rng.uniform(1 - JITTER, 1 + JITTER)
        window = FaultWindow(plan.names, plan.hold_s * factor, plan.quiet_s * factor)
        used_s += window.hold_s + window.quiet_s
        round_is_full = len(windows) >= len(plans)
        if round_is_full and (used_s > duration_s or len(windows) == WINDOWS_MAX):
            break
        windows.append(window)
    return windows
