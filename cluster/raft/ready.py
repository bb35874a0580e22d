"""What Raft gives its caller: values, and nothing that calls back.

What lives here: the types of what `Raft.step` takes and returns. What must not: any decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from cluster.log.entries import Entry
from cluster.settings.config import RaftSettings
from cluster.wire.messages import Message

NEVER_S: Final = 1e15


@dataclass(frozen=True)
class Timing:
    """Raft's time-outs in seconds. Invariant: election_min > 3 heartbeats, fallback > heartbeat."""

    election_min_s: float = RaftSettings.election_min_ms / 1000
    election_max_s: float = RaftSettings.election_max_ms / 1000
    heartbeat_s: float = RaftSettings.heartbeat_ms / 1000
    fallback_s: float = RaftSettings.fallback_ms / 1000


class SoftState(NamedTuple):
    """What a member takes for true and need not remember.

    `role`: `leader`, `candidate` or `follower`. `leader`: the last known one of the term, or "".
    """

    role: str
    term: int
    leader: str


class Ready(NamedTuple):
    """What the caller has to do, in this order, before the next step.

    `reset`: begin the log anew at this (index, term), which the store holds durably.
    `hard_state`: write down this (term, vote). `entries`: append them; the first may replace others
    from its index on. `before_sync`: messages that may leave at once. Then everything is made
    durable, and `after_sync` may leave. `committed`: apply them in order, as far as time allows but
    at least one, and tell `advance`; those that are left come again.

    `soft_state`: role, term and leader, if one of them has changed. `offer`: the leader that offers
    a copy of its store; once a newer one is installed, tell `restore`. `refused`: the first entry
    that this build can't apply; it and what followed was not taken (rule 30).
    """

    reset: tuple[int, int] | None = None
    hard_state: tuple[int, str | None] | None = None
    entries: Sequence[Entry] = ()
    before_sync: Sequence[tuple[str, Message]] = ()
    after_sync: Sequence[tuple[str, Message]] = ()
    committed: Sequence[Entry] = ()
    soft_state: SoftState | None = None
    offer: str = ""
    refused: Entry | None = None


NOTHING: Final = Ready()


class Storage(Protocol):
    """The durable log, which Raft reads; its owner writes what a Ready says."""

    @property
    def first_index(self) -> int:
        """The index of the first entry kept."""

    @property
    def last_index(self) -> int:
        """The index of the last entry."""

    @property
    def last_term(self) -> int:
        """The term of the last entry."""

    @property
    def term(self) -> int:
        """The recorded term."""

    @property
    def vote(self) -> str | None:
        """Whom this node voted for in the recorded term."""

    @property
    def commit_index(self) -> int:
        """What is certainly committed."""

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`, None when it is not held."""

    def entries(self, first_index: int, count: int) -> list[Entry]:
        """Return up to `count` entries from `first_index` on, at least one if there is one."""
