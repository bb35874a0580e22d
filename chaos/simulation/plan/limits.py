"""The limits of nodes and clients that a run may have small, so that they are met.

What lives here: their names as knobs of a plan, and where the product has them. What must not: when
they are drawn (swarm.py), whether they are kept (books.py).

A limit of the product is a named constant, the same in every process; a run has its own value of it
from its beginning to its end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

from cluster.log import journal
from cluster.members import catchup, links
from cluster.node import member, reaper, scrub
from cluster.raft import transport
from cluster.serve import broker, client_port, intake, leases
from cluster.store import (
    audit,
    clients,
    commands,
    compaction,
    delayed,
    groups,
    idle,
    patterns,
    publications,
    retention,
    topics,
    unread,
    users,
)
from cluster.store import store as stores
from cluster.store.store import Limits, Store
from flotilla_client import operations, protocol, window

# By the knob: the modules that have it, the constant, and the small values that the swarm draws.
CONSTANTS: Final[Mapping[str, tuple[tuple[ModuleType, ...], str, tuple[int, ...]]]] = {
    "put_bytes_max": ((broker,), "PUT_BYTES_MAX", ()),
    "read_bytes_per_turn_max": ((broker,), "READ_BYTES_PER_TURN_MAX", (1, 300, 5_000)),
    "stale_deadlines_min": ((broker,), "STALE_DEADLINES_MIN", (0, 3)),
    "counters_per_step": ((broker,), "COUNTERS_PER_STEP", (1, 2)),
    "topics_count_max": ((broker,), "TOPICS_COUNT_MAX", (1, 2)),
    "entry_bytes_max": ((commands,), "ENTRY_BYTES_MAX", ()),
    "slice_entries_max": ((journal,), "SLICE_ENTRIES_MAX", (2, 3, 8)),
    "slice_bytes_max": ((journal,), "SLICE_BYTES_MAX", (100, 2_000)),
    "journal_buffer_bytes_max": ((journal,), "BUFFER_BYTES_MAX", (100, 2_000)),
    "in_flight_bytes_max": ((transport,), "IN_FLIGHT_BYTES_MAX", (200, 3_000, 30_000)),
    "collect_bytes_max": ((publications,), "COLLECT_BYTES_MAX", (1, 500)),
    "rows_cached_bytes_max": ((publications,), "ROWS_CACHED_BYTES_MAX", (1, 500, 5_000)),
    "rows_cached_max": ((publications,), "ROWS_CACHED_MAX", (1, 2, 5)),
    "read_rows_max": ((publications,), "READ_ROWS_MAX", (1, 2, 4)),
    "clients_cached_max": ((clients,), "CLIENTS_CACHED_MAX", (1, 2)),
    "producers_cached_max": ((clients,), "PRODUCERS_CACHED_MAX", (1, 2)),
    "store_buffer_bytes_max": ((stores,), "BUFFER_BYTES_MAX", (1, 2_000)),
    "garbage_rows_per_step": ((member,), "GARBAGE_ROWS_PER_STEP", (1, 2)),
    "copy_chunk_bytes": ((catchup,), "CHUNK_BYTES", (8_192, 32_768)),
    "relays_waiting_max": ((intake,), "RELAYS_WAITING_MAX", (1, 3)),
    "relays_waiting_bytes_max": ((intake,), "RELAYS_WAITING_BYTES_MAX", ()),
    "stale_cursors_min": ((topics,), "STALE_CURSORS_MIN", (0, 2)),
    "batch_count_max": ((protocol, window), "BATCH_COUNT_MAX", (1, 2, 5)),
    "batch_bytes_max": ((protocol,), "BATCH_BYTES_MAX", ()),
    "last_ids_bytes_max": ((operations,), "LAST_IDS_BYTES_MAX", (8, 20)),
}
# The same of runs in which the cluster has raised its level: they draw apart from the others.
OF_LEVELS: Final[Mapping[str, tuple[tuple[ModuleType, ...], str, tuple[int, ...]]]] = {
    "audit_every": ((audit,), "EVERY", (1, 3, 16)),
    "stretches_max": ((retention,), "STRETCHES_MAX", (2, 4, 96)),
    "names_cached_max": ((patterns,), "NAMES_CACHED_MAX", (1, 3, 16_384)),
    "answers_cached_max": ((users,), "ANSWERS_CACHED_MAX", (1, 3, 65_536)),
}
# The same of runs in which silent clients are forgotten, within seconds and not months: all of
# these, or none. A dozen readers have to be noted in time. `client_idle_ms`: the nodes' setting.
OF_IDLE: Final[Mapping[str, tuple[tuple[ModuleType, ...], str, tuple[float, ...]]]] = {
    "heard_ms": ((idle,), "HEARD_MS", (50, 300)),
    "idle_step_ms_max": ((idle,), "STEP_MS_MAX", (500, 3_000)),
    "garbage_producers": ((idle,), "GARBAGE_PRODUCERS", (1, 2)),
    "reaper_period_s": ((reaper,), "PERIOD_S", (0.05, 0.2)),
    "reaper_tick_s": ((reaper,), "TICK_S", (0.1, 0.3)),
    "page_clients": ((reaper,), "PAGE_CLIENTS", (1, 3, 256)),
    "forgotten_per_entry_max": ((reaper,), "FORGOTTEN_PER_ENTRY_MAX", (1, 2, 64)),
    "subscriptions_per_entry_max": ((reaper,), "SUBSCRIPTIONS_PER_ENTRY_MAX", (1, 1_000)),
    "heard_per_entry_max": ((reaper, member), "HEARD_PER_ENTRY_MAX", (12, 1_000)),
    "heard_max": ((broker,), "HEARD_MAX", (12, 10_000)),
}
# The same of runs in which what is on the disk is read back: so that a pass has many steps.
OF_SCRUB: Final[Mapping[str, tuple[tuple[ModuleType, ...], str, tuple[int, ...]]]] = {
    "scrub_step_rows": ((scrub,), "STEP_ROWS", (7, 64, 256)),
    "scrub_step_bytes": ((scrub,), "STEP_BYTES", (1_000, 20_000, 262_144)),
}
# The same of runs in which a topic is compacted: so that it takes several steps.
OF_COMPACTION: Final[Mapping[str, tuple[tuple[ModuleType, ...], str, tuple[int, ...]]]] = {
    "looked_max": ((compaction,), "LOOKED_MAX", (1, 5, 2_048)),
    "kept_max": ((compaction,), "KEPT_MAX", (1, 3, 256)),
    "swept_max": ((compaction,), "SWEPT_MAX", (1, 256)),
    "compacted_bytes_max": ((compaction,), "BYTES_MAX", (50, 1_048_576)),
}
# The same of what is kept only for many of a thing, of how much one step does, and of what is put
# together: a run has few of anything. They draw apart from the others.
OF_MANY: Final[Mapping[str, tuple[tuple[ModuleType, ...], str, tuple[int, ...]]]] = {
    "unread_kept_min": ((topics,), "KEPT_MIN", (1, 1, 2)),
    "unread_stale_min": ((unread,), "STALE_MIN", (0, 2)),
    "stale_times_min": ((topics,), "STALE_TIMES_MIN", (0, 2)),
    "due_rows_max": ((delayed,), "DUE_ROWS_MAX", (1, 3, 256)),
    "dropped_rows_max": ((delayed,), "DROPPED_ROWS_MAX", (1, 3)),
    "takes_of_one_max": ((leases,), "TAKES_OF_ONE_MAX", (1, 2, 8)),
    "gather_frames_max": ((links,), "GATHER_FRAMES_MAX", (1, 2)),
    "gather_replies_max": ((client_port,), "GATHER_REPLIES_MAX", (1, 2)),
}
CLIENT_IDLE_MS: Final = (1_200, 2_500, 5_000)
# So many PUTs are in a chunk of a producer's window, of CHUNKS chunks: so that it is soon full.
CHUNK_PUTS: Final = (1, 2, 4)
# What a function has as a default: the function, the parameter, and the small values.
DEFAULTS: Final[Mapping[str, tuple[Callable[..., Any], str, tuple[int, ...]]]] = {
    "journal_cache_bytes": (journal.Journal.open.__func__, "cache_bytes", (0, 300, 3_000)),  # type: ignore[attr-defined]
}
# Fields of store.Limits: part of the state machine.
OF_THE_STORE: Final[dict[str, tuple[int, ...]]] = {
    "topics_max": (1, 2),
    "subscriptions_max": (2, 5),
    "subscriptions_per_client_max": (1, 2),
}
# The same of runs in which somebody subscribes to patterns: more topics than the crowd's have.
OF_PATTERNS: Final[dict[str, tuple[int, ...]]] = {
    "patterns_max": (2, 3, 1_000),
    "patterns_per_client_max": (1, 2, 16),
    "subscriptions_per_client_max": (5, 6, 1_000),
}
# The same of groups that are ordered by key: a field of store.GroupLimits, and a constant.
OF_KEY_ORDER: Final[dict[str, tuple[int, ...]]] = {
    "behind_per_group_max": (1, 3, 10_000),
    "take_look_max": (1, 4, 1_024),
}
# The same of all groups: fields of store.GroupLimits, and constants.
OF_GROUPS: Final[dict[str, tuple[int, ...]]] = {
    "open_max": (5, 20),
    "open_per_group_max": (2, 8),
    "leases_per_client_max": (1, 4),
    "workers_max": (1, 2),
    "take_rows_max": (1, 3),
    "take_again_max": (1, 3),
    "dead_count_max": (1, 2),
    "dead_bytes_max": (1, 500),
    "chunk_shift": (0, 2),
    "stale_timers_min": (0, 3),
    "offered_max": (1, 2),
}
_GROUP_FIELDS: Final = frozenset(
    {
        "behind_per_group_max",
        "open_max",
        "open_per_group_max",
        "leases_per_client_max",
        "workers_max",
    }
)
# A PUT has to fit at all, or it is refused for ever; the seed's largest is so many times in it.
OF_PUTS: Final[Mapping[str, tuple[int, ...]]] = {
    "put_bytes_max": (1, 2),
    "relays_waiting_bytes_max": (2, 4),
    "entry_bytes_max": (1, 2),
    "batch_bytes_max": (1,),
}


def store_limits(knobs: Mapping[str, Any]) -> Limits:
    """Return the limits of a run's state machine."""
    names = (OF_THE_STORE | OF_PATTERNS).keys() & knobs.keys()
    own: dict[str, Any] = {name: int(knobs[name]) for name in names}
    if of_groups := {name: int(knobs[name]) for name in _GROUP_FIELDS & knobs.keys()}:
        own["groups"] = replace(Limits().groups, **of_groups)
    return replace(Limits(), **own)


def value_of(knob: str) -> int:
    """Return what one of CONSTANTS is at present."""
    modules, name, _ = CONSTANTS[knob]
    return int(vars(modules[0])[name])


def of_limits(knobs: Mapping[str, Any]) -> frozenset[str]:
    """Return the errors that a run's limits explain, besides those that faults explain."""
    are_met = "workers_max" in knobs or not OF_THE_STORE.keys().isdisjoint(knobs)
    return frozenset({"too_many"} if are_met else ())


@contextmanager
def limited(knobs: Mapping[str, Any]) -> Iterator[None]:
    """Let the product have a plan's limits while the context lasts."""
    with ExitStack() as stack:
        constants = {**CONSTANTS, **OF_LEVELS, **OF_IDLE, **OF_SCRUB, **OF_COMPACTION, **OF_MANY}
        for knob in constants.keys() & knobs.keys():
            modules, name, _ = constants[knob]
            for module in modules:
                value = type(vars(module)[name])(knobs[knob])
                stack.enter_context(patch.object(module, name, value))
        if "chunk_puts" in knobs:
            for name, value in _window(int(knobs["chunk_puts"])).items():
                stack.enter_context(patch.object(clients, name, value))
        for knob in DEFAULTS.keys() & knobs.keys():
            function, name, _ = DEFAULTS[knob]
            _default(stack, function, name, int(knobs[knob]))
        for knob in ((OF_KEY_ORDER | OF_GROUPS).keys() - _GROUP_FIELDS) & knobs.keys():
            module = leases if knob == "offered_max" else groups
            stack.enter_context(patch.object(module, knob.upper(), int(knobs[knob])))
        if store_limits(knobs) != Limits():
            _default(stack, Store.open.__func__, "limits", store_limits(knobs))  # type: ignore[attr-defined]
        yield


def _window(chunk_puts: int) -> dict[str, int]:
    """Return the constants of a producer's window whose chunks hold so many PUTs."""
    chunk_bytes = clients._CHUNK_BYTES // clients.CHUNK_PUTS * chunk_puts
    kept = chunk_puts * clients.CHUNKS
    return {"CHUNK_PUTS": chunk_puts, "PUTS_KEPT": kept, "_CHUNK_BYTES": chunk_bytes}


def _default(stack: ExitStack, function: Callable[..., Any], name: str, value: object) -> None:
    """Give a parameter another default: where a constant is taken when a function is defined."""
    parameters = inspect.signature(function).parameters.values()
    defaults = [each for each in parameters if each.default is not inspect.Parameter.empty]
    assert name in [each.name for each in defaults], (function, name)
    values = tuple(value if each.name == name else each.default for each in defaults)
    stack.enter_context(patch.object(function, "__defaults__", values))
