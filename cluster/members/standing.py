"""Whether a process may take part: what others of its name, and members, say against it (rule 26).

What lives here: for how long what was said counts, and what follows. What must not: sockets, clocks
(`now` comes in, monotonic seconds), who is admitted (membership.py).
"""

from __future__ import annotations

from typing import Final

from cluster.members.membership import ReplacedError
from cluster.members.neighbours import REFUSAL_S
from cluster.members.peers import Event, RefusedBy, Unfit
from cluster.wire.levels import Build, UnsupportedLevel
from cluster.wire.messages import Refusal

BEYOND_S: Final = 15.0  # a peer's word on the level counts so long; it is repeated every 10 s


class Seniority:
    """Whether this process takes part, or leaves its place to another one of its name.

    A directory that was copied must not vote twice, and of two processes with one directory the
    older has the right: one that is refused in its first moments takes no part for now.
    """

    def __init__(self, takeover_s: float, now: float) -> None:
        self._takeover_s, self._aside_until_s, self._is_settled = takeover_s, now, False

    def takes_part(self, now: float) -> bool:
        """Return whether this process may be heard, and hear."""
        return now >= self._aside_until_s or self._is_settled

    def yields(self, is_refused: bool, has_majority: bool, now: float) -> bool:
        """Return whether this process has to leave its place now.

        `is_refused`: a peer says that another process of its name lives. Once a majority has had it
        for long enough nobody's word moves it.
        """
        if self._is_settled:
            return False
        if is_refused:
            self._aside_until_s = now + self._takeover_s
        elif has_majority and now >= self._aside_until_s + self._takeover_s:
            self._is_settled = True
        return is_refused


class Verdicts:
    """What members say against a member's being one, while it counts.

    Evicted, or left behind by the cluster's level: it ends, once it is of no use here either.
    No single peer's word ends a node that a majority takes for a member, and nobody's word
    does who is no member by this node's own log: anybody can connect and say anything. So a
    node with an empty directory, which knows no members, is not ended by what it is told.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self._beyond: tuple[Unfit, float] | None = None
        self._evicted: tuple[RefusedBy, float] | None = None

    def take(self, event: Event, now: float) -> None:
        """Take a member's word, if this is one."""
        if isinstance(event, Unfit) and event.feature_level > self._build.level_max:
            self._beyond = event, now
        elif isinstance(event, RefusedBy) and event.refusal == Refusal.EVICTED:
            self._evicted = event, now

    def heed(self, has_majority: bool, now: float) -> None:
        """Raise ReplacedError or UnsupportedLevel if this node has to end."""
        if self._evicted is not None and now - self._evicted[1] > REFUSAL_S:
            self._evicted = None
        if self._evicted is not None and not has_majority:
            raise ReplacedError(self._evicted[0].reason)
        if self._beyond is not None and now - self._beyond[1] > BEYOND_S:
            self._beyond = None
        if self._beyond is not None and not has_majority:
            peer = self._beyond[0]
            what = f"{peer.name} says that the cluster is at"
            raise UnsupportedLevel(what, peer.feature_level, self._build)
