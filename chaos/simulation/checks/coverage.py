"""Which interesting states a run has reached: what a campaign must have seen to be worth much.

What lives here: the states by name, each a function of what happens, and their counts. What must
not: any claim that a state is wrong (invariants.py, promises.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from chaos.simulation.clients.clients import Process
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from flotilla_client import Expired, FlotillaError, Operation, Outcome

STATES: Final[Mapping[str, str]] = {
    "election_under_load": "a leader is elected while publications are under way",
    "two_leaders": "an old leader believes that it leads while a newer one does",
    "leader_alone": "a leader steps down because no majority answers",
    "tail_truncated": "a node drops entries that were never committed",
    "compacted": "a node drops segments of its journal",
    "snapshot_installed": "a node that is too far behind takes over a copy of the store",
    "readmitted": "a wiped node comes back as a new member",
    "all_down": "no node runs",
    "majority_down": "nodes run, and no majority",
    "disk_failed": "a node ends because its disk fails",
    "damage_refused": "a node refuses to start on damaged files",
    "damage_found": "a node that goes on says what has gone bad on its disk",
    "scrubbed": "a node has read back all that is on its disk",
    "double_refused": "a second process of a name is refused, because the first is heard",
    "evicted": "a process ends because another one was admitted under its name",
    "unknown_outcome": "a publication's outcome is unknown to its client",
    "duplicate_put": "a publication is acknowledged as one that was there already",
    "retried": "an operation takes more than one attempt",
    "resent_from_outbox": "a publication is sent again by a later process",
    "client_crashed": "a client's process ends in the middle of what it does",
    "client_copied": "a second process goes on with a copy of a client's state",
    "client_fenced": "a client's older process is refused",
    "client_forgotten": "a client comes back that was forgotten",
    "unsubscribed": "a subscription ends",
    "expired": "a subscriber is told of publications that have expired",
    "delayed": "a subscriber is given what was published with a delay",
    "parked_get": "a GET waits for its publication, and gets it",
    "disk_full_refused": "a publication is refused for want of space",
    "backlog_refused": "a publication is refused because its topic is full",
    "overload_refused": "a request is refused because a queue is full",
    "drained": "every subscriber comes to the end of its topics",
}
PARKED_S_MIN: Final = 0.05  # a GET that is answered later than that was waiting for something
_ENDS: Final = {"DiskFailed": "disk_failed", "ReplacedError": "evicted"}
_REFUSALS: Final = {
    "fenced": "client_fenced",
    "disk_full": "disk_full_refused",
    "backlog_full": "backlog_refused",
    "overloaded": "overload_refused",
}


class Coverage:
    """Counts how often a run reaches each of `STATES`: `counts`, a key for each."""

    def __init__(self, world: World) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(STATES, 0))
        self._world = world
        self._leading: dict[str, int] = {}  # node -> term
        self._tails: dict[str, tuple[int, int, int]] = {}  # node -> first, last index, its term
        self._puts_open: set[tuple[str, int]] = set()
        self._begun_s: dict[tuple[str, int], float] = {}
        self._puts_seen: dict[tuple[str, str, int], str] = {}
        world.observers.append(self._observe)
        world.watchers.append(self._turned)

    def reach(self, state: str) -> None:
        """Count a state."""
        assert state in STATES, state
        self.counts[state] += 1

    # --- nodes ------------------------------------------------------------------------------------

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        handler = _EVENTS.get(kind)
        if handler is not None:
            handler(self, fields)

    def _role(self, fields: Mapping[str, Any]) -> None:
        if fields["role"] != "leader":
            self._leading.pop(fields["node"], None)
            if "no majority" in fields["reason"]:
                self.reach("leader_alone")
            return
        self._leading[fields["node"]] = fields["term"]
        if len(self._leading) > 1:
            self.reach("two_leaders")
        if self._puts_open:
            self.reach("election_under_load")

    def _ended(self, fields: Mapping[str, Any]) -> None:
        self._leading.pop(fields["node"], None)
        self._tails.pop(fields["node"], None)
        up = sum(node.up for node in self._world.nodes.values())
        if not up:
            self.reach("all_down")
        elif up <= self._world.plan.nodes // 2:
            self.reach("majority_down")

    def _failed(self, fields: Mapping[str, Any]) -> None:
        self.reach(_ENDS.get(fields["error"], "damage_refused"))

    def _turned(self, node: SimNode) -> None:
        member = node.as_member
        if member is None:
            return
        journal = member.journal
        now = (journal.first_index, journal.last_index, journal.last_term)
        before = self._tails.get(node.name)
        if before == now:
            return
        self._tails[node.name] = now
        if before is None:
            return
        first, last, term = before
        if journal.first_index <= last and journal.term_at(last) != term:
            self.reach("tail_truncated")
        if first < journal.first_index <= last:
            self.reach("compacted")

    # --- clients ----------------------------------------------------------------------------------

    def invoked(self, process: Process, operation: Operation) -> None:
        """Note when an operation begins, and which publications are sent again."""
        key = (process.name, operation.number)
        began = None if operation.beside is None else (process.name, operation.beside)
        self._begun_s[key] = self._world.now if began is None else self._begun_s[began]
        if operation.f != "put":
            return
        assert operation.counter is not None, operation
        self._puts_open.add(key)
        counted = (operation.client_id, operation.topic, operation.counter)
        if self._puts_seen.setdefault(counted, process.name) != process.name:
            self.reach("resent_from_outbox")

    def completed(self, process: Process, operation: Operation, outcome: Outcome) -> None:
        """Count what an answer shows."""
        key = (process.name, operation.number)
        self._puts_open.discard(key)
        took_s = self._world.now - self._begun_s.pop(key)
        if outcome.attempts > 1:
            self.reach("retried")
        if operation.f == "put" and outcome.error and not outcome.definite:
            self.reach("unknown_outcome")
        if outcome.duplicate:
            self.reach("duplicate_put")
        if operation.f == "unsub" and not outcome.error:
            self.reach("unsubscribed")
        if outcome.error == Expired.CODE and outcome.last_id:
            self.reach("expired")
        if any(own.deliver_after_ms for own in outcome.properties.values()):
            self.reach("delayed")
        if outcome.publications and outcome.attempts == 1 and took_s > PARKED_S_MIN:
            self.reach("parked_get")

    def life(self, client: str, what: str) -> None:
        """Count crashes and copies; what a dead process had open is over."""
        if what == "crashed":
            self.reach("client_crashed")
            self._puts_open = {key for key in self._puts_open if not key[0].startswith(client)}
        elif what == "copied":
            self.reach("client_copied")

    def refused(self, client: str, error: FlotillaError) -> None:
        """Count refusals."""
        if error.code in _REFUSALS:
            self.reach(_REFUSALS[error.code])


def _counts(state: str) -> Callable[[Coverage, Mapping[str, Any]], None]:
    return lambda coverage, fields: coverage.reach(state)


_EVENTS: Final[Mapping[str, Callable[[Coverage, Mapping[str, Any]], None]]] = {
    "role": Coverage._role,
    "ended": Coverage._ended,
    "node_failed": Coverage._failed,
    "snapshot_installed": _counts("snapshot_installed"),
    "readmitted": _counts("readmitted"),
    "damage_found": _counts("damage_found"),
    "scrubbed": _counts("scrubbed"),
    "peer_doubled": _counts("double_refused"),
}
