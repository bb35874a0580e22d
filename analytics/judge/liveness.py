"""Which faults were to be outlived: whom they hit, when they were over, when service came back.

What lives here: putting injections, healings and acknowledgments together, a few rows in memory.
What must not: Spark, reading, the bounds that times are held against (verdict.py).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analytics.common.verdict import RECOVERY_MS_MAX, InjectedFault


@dataclass(frozen=True, slots=True)
class Healing:
    """A fault's end, as recorded."""

    t_ns: int
    name: str
    targets: tuple[str, ...]


def fields_of(error: str | None) -> dict[str, Any]:
    """Return what a fault's row says: nothing, if that can't be read."""
    try:
        fields = json.loads(error or "")
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def named(error: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the name and the targets of a fault's row."""
    fields = fields_of(error)
    targets = fields.get("targets")
    named_so = targets if isinstance(targets, list) else ()
    return str(fields.get("name", "")), tuple(map(str, named_so))


def with_healing(
    faults: Sequence[InjectedFault], healings: Sequence[Healing], nodes: Sequence[str]
) -> list[InjectedFault]:
    """Return `faults`, each with its end, and whether a minority of `nodes` was hit at that time.

    Both in the order of time. A healing ends the oldest open fault of its name and targets; one of
    which the targets are not told, or are other ones by then, the oldest of its name.
    """
    ends: dict[int, int] = {}
    for healing in healings:
        open_now = [
            place
            for place, fault in enumerate(faults)
            if place not in ends and fault.name == healing.name and fault.t_ns <= healing.t_ns
        ]
        same = [place for place in open_now if faults[place].targets == healing.targets]
        if open_now:
            ends[(same or open_now)[0]] = healing.t_ns
    healed = [replace(fault, healed_ns=ends.get(place)) for place, fault in enumerate(faults)]
    return [replace(fault, is_minority=_is_minority(fault, healed, nodes)) for fault in healed]


def _is_minority(
    fault: InjectedFault, faults: Sequence[InjectedFault], nodes: Sequence[str]
) -> bool | None:
    """Return whether all that was broken during `fault` was less than half of the nodes."""
    hit: set[str] = set()
    for other in faults:
        if _overlap(fault, other):
            if not nodes or not other.targets:
                return None
            hit |= set(other.targets) & set(nodes)
    return len(hit) * 2 < len(nodes)


def _overlap(one: InjectedFault, other: InjectedFault) -> bool:
    """Return whether two faults stood at the same time; one that was never healed stands on."""
    return _stands_at(one, other.t_ns) or _stands_at(other, one.t_ns)


def _stands_at(fault: InjectedFault, t_ns: int) -> bool:
    return fault.t_ns <= t_ns and (fault.healed_ns is None or t_ns < fault.healed_ns)


def with_recovery(
    faults: Sequence[InjectedFault], next_ack_ns: Mapping[int, int]
) -> tuple[InjectedFault, ...]:
    """Return `faults` with the time from each one's end to the next acknowledgment.

    `next_ack_ns`: {end: when a PUT was acknowledged next}.
    """
    return tuple(_recovered(fault, faults, next_ack_ns) for fault in faults)


def _recovered(
    fault: InjectedFault, faults: Sequence[InjectedFault], next_ack_ns: Mapping[int, int]
) -> InjectedFault:
    end_ns = fault.healed_ns
    if end_ns is None:
        return fault
    ack_ns = next_ack_ns.get(end_ns)
    recovery_ms = None if ack_ns is None else (ack_ns - end_ns) / 1e6
    until_ns = end_ns + round(RECOVERY_MS_MAX * 1e6)
    disturbed = any(
        not other.is_minority
        and other is not fault
        and (_stands_at(other, end_ns) or end_ns <= other.t_ns < until_ns)
        for other in faults
    )
    return replace(fault, recovery_ms=recovery_ms, is_recovery_due=not disturbed)
