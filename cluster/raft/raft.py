"""One member's Raft: the guarded core, driven turn by turn.

What lives here: the loop's rules 8 to 13 of docs/raft.md, pre-vote, flow control towards slow
followers, and the read barrier. What must not: pysyncobj's private names (core.py), what entries
mean (store.py), which messages may be believed (transport.py), the order of a turn (replica.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from cluster.log.journal import Journal
from cluster.raft.core import NEVER_S, NO_OP, REGULAR, Core, CoreClock, Timing
from cluster.raft.transport import NO_TERM, RaftTransport
from cluster.wire.messages import (
    AppendEntries,
    Barrier,
    BarrierAck,
    Message,
    PreVote,
    PreVoteGranted,
    RequestVote,
    TimeoutNow,
)

# After a leader's connection closed its followers wait this long, at random, before they ask for
# votes: apart enough that one of them is usually first, short against an election time-out.
LEADER_GONE_DELAY_S: Final = (0.01, 0.08)

Apply = Callable[[int, int, bytes], None]


class Snapshots(Protocol):
    """What the core's snapshot calls end in; catchup.py implements it (rules 24 and 25)."""

    def position(self) -> tuple[int, int]:
        """Return the store's applied (index, term)."""

    def install(self, name: str) -> bool:
        """Return True after a verified, newer snapshot has replaced the store.

        Called for each offer of the leader; if no download is finished, one from `name` is begun.
        """


class Raft:
    """One member's Raft.

    `name`, `transport`: this node and the way to the others. `journal`: the log. `snapshots`: the
    store's side of snapshots; its position must not be above the journal unless it was just
    installed. `apply(index, term, payload)`: called once for each committed entry, in order,
    payload b"" for a no-op; an exception ends the process (rule 10). `rng`: election time-outs.

    Use: messages in by `deliver`, then `submit`, then `tick`, then `queue_appends`; the transport's
    `appends` may leave, then journal.sync(), then its `held` may. Nothing here reads a clock: `now`
    comes in by `begin_turn` and stands still until the next.
    """

    def __init__(
        self,
        name: str,
        transport: RaftTransport,
        journal: Journal,
        snapshots: Snapshots,
        apply: Apply,
        timing: Timing,
        rng: random.Random,
        now: float,
        marker: Path,
    ) -> None:
        self.name = name
        self.journal = journal
        self.others = tuple(transport.nodes)
        self.installed_index = 0
        self._apply = apply
        self._timing = timing
        self._rng = rng
        self._transport = transport
        self._snapshots = snapshots
        self._now = now
        self._leader_heard_s = -NEVER_S
        self._pre_vote_started_s = -NEVER_S
        self._pre_votes: set[str] = set()
        self._sending_term = 0
        self._asked_s: dict[str, float] = {}  # when a member with a full window had a heartbeat
        self._barrier_sequence = 0
        self._barrier_sent = 0
        self._barrier_acks: dict[str, int] = {}
        self._barrier_term = 0
        self._offering = ""
        self._checked_start = False
        self.may_campaign = True
        transport.core = self
        self._majority = (len(self.others) + 1) // 2 + 1
        CoreClock.now_s = now
        self._core = Core(name, transport, journal, self, self._on_apply, timing, rng, marker)

    def position(self) -> tuple[int, int]:
        """Return the store's applied (index, term): the core asks when it loads a snapshot."""
        return self._snapshots.position()

    def install_offered(self) -> bool:
        """Install the snapshot that the leader offers, if it is at hand: the core asks."""
        if not self._snapshots.install(self._offering):
            return False
        self.installed_index = self._snapshots.position()[0]
        return True

    # --- what is known ------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The current term."""
        return int(self._core.raftCurrentTerm)

    @property
    def is_leader(self) -> bool:
        """True if this node believes that it leads; another one may lead a newer term already."""
        return self._core.is_leader

    @property
    def standing(self) -> object:
        """Something that is equal as long as role, term and leader are the same."""
        return self._core.standing

    @property
    def role(self) -> str:
        """`leader`, `candidate` or `follower`."""
        return self._core.role

    @property
    def leader(self) -> str:
        """The name of the last known leader of this term, "" if none."""
        return self._core.leader

    @property
    def commit_index(self) -> int:
        """The highest index known to be committed."""
        return int(self._core.raftCommitIndex)

    @property
    def applied_index(self) -> int:
        """The highest index that was applied."""
        return int(self._core.raftLastApplied)

    @property
    def settled_index(self) -> int:
        """The highest index that is certainly right here."""
        return max(self.commit_index, self.applied_index)

    @property
    def serving(self) -> bool:
        """True on a leader that has applied the no-op of its own term (rule 12)."""
        core = self._core
        if not core.is_leader:
            return False
        no_op = core.no_op_index
        return no_op is not None and self.applied_index >= no_op

    @property
    def term_start_index(self) -> int:
        """On a leader: the index of its term's first entry, the no-op."""
        return self._core.no_op_index or 0

    @property
    def uncommitted_entries(self) -> int:
        """How many entries are in the log and not committed."""
        return self.journal.last_index - self.commit_index

    @property
    def deadline_s(self) -> float:
        """When this node has to send a heartbeat, or may campaign, by the turns' clock."""
        core = self._core
        return core.heartbeat_deadline_s() if core.is_leader else core.election_deadline_s

    def match_index(self, name: str) -> int:
        """On a leader: the highest index known to be on the other node's disk."""
        return self._core.match_indexes.get(self._transport.nodes[name], 0)

    def next_index(self, name: str) -> int | None:
        """On a leader: the index that the other node will be sent next."""
        return self._core.next_indexes.get(self._transport.nodes[name])

    def raise_next_index(self, name: str, index: int) -> None:
        """Put a next index back that an acknowledgment has lowered (rule 22)."""
        table = self._core.next_indexes
        node = self._transport.nodes[name]
        table[node] = max(table[node], min(index, self.journal.last_index + 1))

    # --- the turn -----------------------------------------------------------------------------

    def begin_turn(self, now: float) -> None:
        """Set the time that this turn happens at, in seconds of a monotonic clock."""
        self._now = now
        CoreClock.now_s = now

    def deliver(self, name: str, message: Message) -> None:
        """Take a message of an admitted member."""
        if isinstance(message, TimeoutNow) and not self.may_campaign:
            return
        handler = _OWN_MESSAGES.get(type(message))
        if handler is not None:
            handler(self, name, message)
            return
        term_before, deadline_before = self.term, self._core.election_deadline_s
        self._offering = name
        self._transport.deliver(name, message)
        if self.leader == name and (
            self.term > term_before or self._core.election_deadline_s != deadline_before
        ):
            self._leader_heard_s = self._now

    def submit(self, payload: bytes) -> int:
        """Append an entry and return its index. Only while `serving`."""
        assert self.serving, "submit on a node that does not serve"
        self._core.append(payload)
        index = self.journal.last_index
        assert self.journal.term_at(index) == self.term, (index, self.term)
        return index

    @property
    def tick_is_due(self) -> bool:
        """True if `tick` has something to do: an election, a commit, an entry, a heartbeat.

        With its heartbeats a leader also looks whether a majority still answers. Who has asked for
        pre-votes ticks until it has heard of a leader: what was granted must not count later.
        """
        core, now = self._core, self._now
        commit_index = core.raftCommitIndex
        if core.raftLastApplied < commit_index or self._pre_vote_started_s != -NEVER_S:
            return True
        if core.is_leader:
            return self.journal.last_index > commit_index or core.heartbeat_deadline_s() < now
        return core.election_deadline_s < now or not self._checked_start

    def tick(self, applied_enough: Callable[[], bool]) -> None:
        """Hold or allow an election, commit what a majority has, apply what is committed.

        At least one entry is applied, then more until `applied_enough()`.
        """
        self._core.applied_enough = applied_enough
        self._pre_vote()
        self._core.doTick(0.0)
        if not self._checked_start:
            self._check_start()

    def _check_start(self) -> None:
        # Rule 13: the core swallows whatever goes wrong while it loads a dump.
        position = self._snapshots.position()[0]
        applied, first = self.applied_index, self.journal.first_index
        assert applied >= first, f"applied index {applied} is below the log's first index {first}"
        assert applied >= position, f"the core stands at {applied}, the store at {position}"
        self._checked_start = True

    def _on_apply(self, command: bytes) -> None:
        index = self.applied_index + 1
        term = self.journal.term_at(index)
        assert term is not None, f"entry {index} is applied but not in the log"
        kind, payload = command[:1], command[1:]
        assert kind in (REGULAR, NO_OP), f"entry {index} has type {kind!r}"
        self._apply(index, term, payload if kind == REGULAR else b"")

    def queue_appends(self) -> None:
        """Let one round of append_entries into the transport, if there is anything to say.

        The core wants a round after each apply too, only to spread the commit index; that may ride
        on the next entry or heartbeat (measured: half the messages of a lone client's PUT).
        """
        core = self._core
        if not core.append_due:
            return
        if not core.is_leader:
            core.append_due = False
        elif core.heartbeat_deadline_s() < self._now or any(map(self._has_news, self.others)):
            self._send_appends()

    def _has_news(self, name: str) -> bool:
        next_index = self.next_index(name)
        return next_index is not None and next_index <= self.journal.last_index

    def _send_appends(self) -> None:
        transport = self._transport
        connected = self._core.connected_nodes
        for name, node in transport.nodes.items():
            if self._sending_term != self.term:
                transport.forget(name)  # rule 15: nobody acknowledges what an earlier term sent
            if node in connected and transport.window_is_full(name):
                self._ask_behind_window(name)
        self._sending_term = self.term
        self._core.send_appends()
        transport.resume_paused()

    def _ask_behind_window(self, name: str) -> None:
        """Send a member whose window is full its heartbeat, behind all that is in flight to it.

        Where that was lost, or dropped by one that did not hear its leader yet, nothing would ever
        be acknowledged, and so nothing be said any more: the answer to this is a refusal, and
        empties the window. It is emptied at once where the journal holds its end no more: then the
        member is to be offered a copy, and has the core's next word.
        """
        next_index = self.next_index(name)
        assert next_index is not None, name
        previous = next_index - 1
        term = self.journal.term_at(previous)
        if term is None:
            self._transport.forget(name)
            return
        self._transport.pause(name)
        if self._now - self._asked_s.get(name, -NEVER_S) < self._timing.heartbeat_s:
            return
        self._asked_s[name] = self._now
        heartbeat = AppendEntries(self.term, self.commit_index, previous, term, [])
        self._transport.appends.append((name, heartbeat))

    # --- elections ----------------------------------------------------------------------------

    def _pre_vote(self) -> None:
        """Rule 9: campaign only when a majority would vote; a lone node never raises its term.

        Without `may_campaign` (rule 26) it goes on as a follower, whoever would vote for it.
        """
        if not self.may_campaign and not self.is_leader:
            self._core.election_deadline_s = max(self._core.election_deadline_s, self._now)
            return
        if self.is_leader or self._core.transfer_in_progress:
            return
        if self._core.election_deadline_s >= self._now:
            self._pre_votes.clear()
            self._pre_vote_started_s = -NEVER_S
            return
        if len(self._pre_votes) + 1 >= self._majority:
            self._pre_votes.clear()
            self._pre_vote_started_s = -NEVER_S
            return  # the deadline stays in the past: this tick campaigns
        if (
            self._now - self._pre_vote_started_s
            > self._rng.uniform(0.5, 1) * self._timing.election_min_s
        ):
            self._ask_for_pre_votes()
        self._core.election_deadline_s = self._now  # the core campaigns strictly below now

    def _ask_for_pre_votes(self) -> None:
        self._pre_votes.clear()
        self._pre_vote_started_s = self._now
        last = self.journal.last_index, self.journal.last_term
        for name in self._transport.nodes:
            self._transport.held.append((name, PreVote(self.term, *last)))

    def _receive_pre_vote(self, name: str, message: PreVote) -> None:
        heard = self._now - self._leader_heard_s < self._timing.election_min_s
        newest = (message.last_term, message.last_index) >= (
            self.journal.last_term,
            self.journal.last_index,
        )
        if message.term < self.term:
            # Its campaigns would lag behind: let it learn the term, by a request it can't grant.
            self._transport.held.append((name, RequestVote(self.term, 0, NO_TERM)))
        elif newest and not heard and not self.is_leader:
            self._transport.held.append((name, PreVoteGranted(message.term)))

    def _receive_pre_vote_granted(self, name: str, message: PreVoteGranted) -> None:
        if message.term == self.term and self._pre_vote_started_s != -NEVER_S:
            self._pre_votes.add(name)

    def transfer_leadership(self) -> bool:
        """Ask the most caught-up follower to take over; False if none is. Submit nothing after."""
        denied: list[bool] = []
        self._core.transferLeadership(None, lambda result, reason: denied.append(bool(reason)))
        return denied == [False]

    # --- peers come and go --------------------------------------------------------------------

    def connected(self, name: str) -> None:
        """Note that an admitted member can be reached."""
        self._transport.connect(name)

    def disconnected(self, name: str) -> None:
        """Note that a member is gone; a follower that lost its leader need not wait long."""
        self._transport.disconnect(name)
        self._restart_sending(name)
        if self.leader == name and not self.is_leader:
            self._leader_heard_s = -NEVER_S
            soon = self._now + self._rng.uniform(*LEADER_GONE_DELAY_S)
            self._core.election_deadline_s = min(self._core.election_deadline_s, soon)

    def _restart_sending(self, name: str) -> None:
        """What was in flight is lost: go on behind what the node has acknowledged."""
        match = self.match_index(name)
        table, node = self._core.next_indexes, self._transport.nodes[name]
        if match > 0 and node in table:
            table[node] = match + 1

    def forget(self, name: str) -> None:
        """Rule 26: what an earlier incarnation of the node has acknowledged counts no more."""
        node = self._transport.nodes[name]
        table = self._core.match_indexes
        if node in table:
            table[node] = 0

    # --- reads --------------------------------------------------------------------------------

    def ask_barrier(self) -> int:
        """Return the number of a barrier whose answers will have been given after this call."""
        if self._barrier_term != self.term:
            self._barrier_acks.clear()
            self._barrier_term = self.term
        if self._barrier_sent == self._barrier_sequence:
            self._barrier_sequence += 1
        return self._barrier_sequence

    def queue_barrier(self) -> None:
        """Send the question of all barriers that were asked for since the last one."""
        if self._barrier_sent < self._barrier_sequence:
            self.repeat_barrier()

    def repeat_barrier(self) -> None:
        """Send the newest barrier's question again: its messages may have been lost."""
        self._barrier_sent = self._barrier_sequence
        for name in self._transport.nodes:
            self._transport.held.append((name, Barrier(self.term, self._barrier_sequence)))

    def barrier_passed(self) -> int:
        """Return the newest barrier that a majority has answered in this term (rule 28)."""
        if not self.serving or self._barrier_term != self.term:
            return 0
        acks = sorted((*self._barrier_acks.values(), self._barrier_sequence), reverse=True)
        return acks[self._majority - 1] if len(acks) >= self._majority else 0

    def _receive_barrier(self, name: str, message: Barrier) -> None:
        if message.term == self.term and not self.is_leader:
            self._transport.held.append((name, BarrierAck(message.term, message.sequence)))

    def _receive_barrier_ack(self, name: str, message: BarrierAck) -> None:
        if self.is_leader and message.term == self.term == self._barrier_term:
            before = self._barrier_acks.get(name, 0)
            self._barrier_acks[name] = max(before, message.sequence)


def reason_of_change(before: tuple[str, int, str], after: tuple[str, int, str]) -> str:
    """Return why a node's (role, term, leader) changed, as far as it can know."""
    (old_role, old_term, old_leader), (role, term, leader) = before, after
    if role == "leader":
        return "a majority voted for this node"
    if role == "candidate":
        return f"no word from the leader {old_leader}" if old_leader else "no leader is known"
    if old_role == "leader" and term == old_term:
        return "no majority has answered"
    if term > old_term:
        return f"a newer term{f', led by {leader}' if leader else ''}"
    return f"{leader} leads" if leader else "the leader is unknown"


_OWN_MESSAGES: Final[dict[type, Callable[[Raft, str, Any], None]]] = {
    PreVote: Raft._receive_pre_vote,
    PreVoteGranted: Raft._receive_pre_vote_granted,
    Barrier: Raft._receive_barrier,
    BarrierAck: Raft._receive_barrier_ack,
}
