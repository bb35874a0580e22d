"""Bugs that show more often than the simulator's of the same rule, and defences that are out.

What lives here: sabotages that the simulator does not need. What must not: what finds them.

A defence is out beside a bug that it would stop before a check of the histories sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pysyncobj import SyncObj

from chaos.simulation.bugs import Bug
from chaos.simulation.bugs.registry import Patches
from cluster.members.membership import Roll
from cluster.node.audit import StateComparison
from cluster.store import clients
from cluster.store.clients import Client, Clients
from cluster.wire.messages import Hello

_client_row: Final = clients._client_row
_flush_clients: Final = Clients.flush
_set_term: Final = SyncObj._SyncObj__setCurrentTerm


def votes_are_forgotten(patches: Patches) -> None:
    """Forget at once who got the vote: the next one that asks in the same term gets it as well."""

    def set_term(core: Any, term: int, vote: str | None) -> None:
        _set_term(core, term, None)

    patches.attribute(SyncObj, "_SyncObj__setCurrentTerm", set_term)


def producers_leave_no_trace(patches: Patches) -> None:
    """Write down neither which counters a producer has used nor that there is a producer.

    The simulator's bug (`producers-live-in-memory`) still counts them: a node refuses such a disk.
    """

    def flush(of: Clients) -> None:
        of._dirty_producers.clear()
        _flush_clients(of)

    def row(client: Client) -> tuple[Any, ...]:
        return _client_row(replace(client, producers=0))

    patches.attribute(Clients, "flush", flush)
    patches.attribute(clients, "_client_row", row)


def states_are_not_compared(patches: Patches) -> None:
    """Go on whatever the others' digests say."""

    def judge(
        comparison: StateComparison,
        mine: Mapping[int, str],
        members: Mapping[str, str],
        majority: int,
    ) -> tuple[int, list[str]]:
        return 0, []

    patches.attribute(StateComparison, "judge", judge)


def the_evicted_are_welcome(patches: Patches) -> None:
    """Refuse no data directory because another one was admitted under its node's name."""

    def eviction(roll: Roll, hello: Hello) -> str:
        return ""

    patches.attribute(Roll, "eviction", eviction)


def _bug(plant: Callable[[Patches], None], rule: str) -> Bug:
    name = plant.__name__.replace("_", "-")
    what = " ".join((plant.__doc__ or "").split())
    return Bug(name, rule, what, frozenset({"leaders"}), 1, "safety", None, plant)


SHARPER: Final[Mapping[str, Bug]] = {
    found.name: found
    for found in (
        _bug(votes_are_forgotten, "5: one vote a term"),
        _bug(states_are_not_compared, "a node whose state differs from the majority's stops"),
        _bug(producers_leave_no_trace, "counters outlive a restart"),
        _bug(the_evicted_are_welcome, "26: who was replaced takes part no more"),
    )
}
