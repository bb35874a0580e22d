"""What a node knows of the other members beside Raft: who is heard, who refuses it, what differs.

What lives here: times and texts, from events and from the peers' `About`. What must not: sockets,
clocks (`now` comes in, monotonic seconds), who is admitted (membership.py), Raft.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from cluster.members import about
from cluster.members.about import Facts, Heard, Value
from cluster.members.handshake import Reports
from cluster.members.peers import (
    Connected,
    DialFailed,
    Disconnected,
    Doubled,
    Event,
    HandshakeRefused,
    Peers,
    RefusedBy,
    Unfit,
)
from cluster.wire.messages import Health, Refusal

NEVER_S: Final = float("-inf")
REFUSAL_S: Final = 3.0  # a refusal counts for so long: who is refused asks again every second
_LEVELS: Final[Mapping[type[Event], str]] = {
    Connected: "info",
    Disconnected: "info",
    DialFailed: "info",
    HandshakeRefused: "warning",
    Doubled: "error",
    RefusedBy: "error",
    Unfit: "warning",
}


class Neighbours:
    """The other members as one node sees them.

    `settings`: what should be the same on all nodes. `http`: where this node's own page is, "" for
    none. `aware_since`: from when on this node would have heard a member that spoke. `advice`: what
    it tells others, by receiver. `health`: what those that are connected said last of themselves.
    """

    def __init__(
        self,
        others: Collection[str],
        settings: Mapping[str, Value],
        peers: Peers,
        now: float,
        http: str = "",
    ) -> None:
        self.aware_since = now
        self.advice: Mapping[str, str] = {}
        self.health: dict[str, Health] = {}
        self._others, self._settings, self._peers = tuple(others), settings, peers
        self._heard: dict[str, tuple[str, float]] = {}  # member -> incarnation, when
        self._seen: dict[str, tuple[float, Mapping[str, Heard]]] = {}  # by who says so
        self._refusals: dict[str, tuple[float, int, str]] = {}
        self._advised: dict[str, str] = {}
        self._differences: dict[str, dict[str, list[Value]]] = {}
        self._http = http
        self._pages: dict[str, str] = {}  # of the others, kept while they are away
        self._reports = Reports()

    def advise(self, advice: Mapping[str, str]) -> None:
        """Tell others why they are no members yet, by receiver; whoever is left out, nothing."""
        self.advice = advice

    # --- who is heard -------------------------------------------------------------------------

    def count_silence_from(self, now: float) -> None:
        """Take nobody for silent since before now: this node was away, or begins to lead."""
        self.aware_since = now

    def hear(self, name: str, incarnation: str, now: float) -> None:
        """Note that a member has spoken, or has just become one."""
        self._heard[name] = (incarnation, now)

    def heard_s(self, name: str, incarnation: str) -> float:
        """Return when this node itself has heard an incarnation last."""
        heard, at = self._heard.get(name, ("", NEVER_S))
        return at if heard == incarnation else NEVER_S

    def silent_s(
        self, name: str, incarnation: str, witnesses: Collection[str], now: float
    ) -> float:
        """Return for how long nobody has heard an incarnation: this node, or a witness's word."""
        last = max(self.aware_since, self.heard_s(name, incarnation))
        for witness in witnesses:
            told_at, seen = self._seen.get(witness, (NEVER_S, {}))
            heard = seen.get(name)
            if heard is not None and heard.incarnation == incarnation:
                last = max(last, told_at - heard.silent_ms / 1000)
        return now - last

    # --- what is said -------------------------------------------------------------------------

    def facts_for(self, name: str, now: float, digests: Mapping[int, str]) -> Facts:
        """Return what this node tells a peer."""
        seen = {
            other: Heard(incarnation, int(1000 * (now - at)))
            for other, (incarnation, at) in self._heard.items()
            if other != name
        }
        return Facts(self._settings, seen, "", self.advice.get(name, ""), self._http, digests)

    def take(self, name: str, facts: Facts, now: float) -> list[tuple[str, dict[str, Any]]]:
        """Take what a peer tells; return what is to be logged, as (event, fields)."""
        lines: list[tuple[str, dict[str, Any]]] = []
        if facts.double:
            lines.append(("doubled", {"level": "error", "told_by": name, "reason": facts.double}))
            return lines
        self._seen[name] = (now, facts.seen)
        self._advised[name] = facts.advice
        self._pages[name] = facts.http
        differences = about.differences(self._settings, facts.settings)
        if differences != self._differences.get(name, {}):
            level = "warning" if differences else "info"
            fields = {"level": level, "peer": name, "mine_and_theirs": differences}
            lines.append(("settings_differ", fields))
        self._differences[name] = differences
        return lines

    def take_health(self, name: str, health: Health) -> None:
        """Take what a peer says of itself."""
        self.health[name] = health

    # --- events -------------------------------------------------------------------------------

    def note(self, event: Event, now: float) -> str:
        """Take an event of the connections; return the level to log it at, "" not to.

        Who is refused asks every second, so what follows from it is logged once in a while.
        """
        level = _LEVELS[type(event)]
        if isinstance(event, RefusedBy):
            self._refusals[event.name] = (now, event.refusal, event.reason)
            return level if self._reports.due(event.name, now) else ""
        if isinstance(event, Disconnected):
            self._advised.pop(event.name, None)
            self._seen.pop(event.name, None)
            self.health.pop(event.name, None)
        if isinstance(event, (Connected, Disconnected)) and self._refuses(event.name, now):
            return ""
        return level

    def _refuses(self, name: str, now: float) -> bool:
        return now - self._refusals.get(name, (NEVER_S, 0, ""))[0] < REFUSAL_S

    def refused_as(self, kind: Refusal, now: float) -> str:
        """Return the reason of one who refuses this node as that, member or not, "" if none."""
        for at, each, reason in self._refusals.values():
            if each == kind and now - at < REFUSAL_S:
                return reason
        return ""

    # --- status -------------------------------------------------------------------------------

    def describe(self, now: float) -> dict[str, Any]:
        """Return what a member's status says of its peers."""
        refused = {
            name: reason
            for name, (_, _, reason) in self._refusals.items()
            if self._refuses(name, now)
        }
        # Of a peer that is gone they are known only so that the same is not logged again.
        known = {name: self._differences[name] for name in self._seen}
        differences = {name: each for name, each in known.items() if each}
        pages = {name: page for name, page in sorted(self._pages.items()) if page}
        return {
            "refused_by": refused,
            "settings_differ": differences,
            "http": self._http,
            "pages": pages,
        }

    def waiting_for(self, copying_from: str) -> list[str]:
        """Return what a node that is no member yet waits for, a line each."""
        if copying_from:
            return [f"a copy of the store from {copying_from}"]
        lines = []
        for name in self._others:
            hello = self._peers.hello_of(name)
            if hello is None:
                lines.append(f"{name}: {self._peers.trouble(name) or 'is not connected'}")
            elif hello.fresh:
                lines.append(f"{name}: is empty too; the first start needs all members")
            elif self._advised.get(name):
                lines.append(f"{name}: {self._advised[name]}")
        return lines or ["a leader, which admits this node"]
