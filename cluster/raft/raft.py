"""One member's Raft: messages, proposals and the time go in, a value comes out.

What lives here: the loop's rules 8 to 13 of docs/raft.md, pre-vote, and what a step does in which
order. What must not: pysyncobj's private names (core.py), what entries mean (store.py), which
messages may be believed, windows (transport.py), and the order of a turn (replica.py;
from its entry on member.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cluster.log.entries import FIRST_INDEX
from cluster.raft.core import Core
from cluster.raft.log import Log
from cluster.raft.reads import Reads
from cluster.raft.ready import NEVER_S, NOTHING, Ready, SoftState, Storage, Timing
from cluster.raft.transport import NO_TERM, Guard, Sender
from cluster.wire.messages import (
    AppendEntriesResponse,
    Message,
    PreVote,
    PreVoteGranted,
    ReadIndex,
    ReadIndexResponse,
    RequestVote,
    TimeoutNow,
)

# After a leader's connection closed its followers wait this long, at random, before they ask for
# votes: apart enough that one of them is usually first, short against an election time-out.
LEADER_GONE_DELAY_S: Final = (0.01, 0.08)


class Raft:
    """One member's Raft, driven by `step`; nothing in it calls the caller, or reads a clock.

    `name`, `others`: this member and the others. `storage`: the log as it was written. `position`:
    the (index, term) that the store has applied. `level_max`: the highest feature level that this
    build can apply. `rng`: election time-outs. `may_campaign`: False on one that is replaced.

    Storage is only read; the caller writes what each Ready says before the next step.
    """

    def __init__(
        self,
        name: str,
        others: Sequence[str],
        storage: Storage,
        position: tuple[int, int],
        timing: Timing,
        level_max: int,
        rng: random.Random,
        now: float,
    ) -> None:
        self.name = name
        self.others = tuple(others)
        self.may_campaign = True
        self._timing = timing
        self._rng = rng
        self._now = now
        self._majority = (len(self.others) + 1) // 2 + 1
        self._leader_heard_s = -NEVER_S
        self._pre_vote_started_s = -NEVER_S
        self._pre_vote_term = 0  # in which they were asked for: they count in no other
        self._pre_votes: set[str] = set()
        self._log = Log(storage)
        self._check_position(position[0])
        if position[0] > FIRST_INDEX:
            self._log.begin_anew(*position)
        self._core = Core(name, self.others, self._log, position[0], timing, rng, now)
        self._guard = Guard(self._core, level_max, timing.heartbeat_s)
        self._sender = Sender(self._core, self.others, timing.heartbeat_s)
        self._reads = Reads(self.others, self._majority, timing.heartbeat_s)
        self._after_sync = self._guard.said
        self._standing: object = None  # as the last Ready said
        self._was_answered = False  # since the last tick

    def _check_position(self, applied: int) -> None:
        """Rule 13: a store that does not reach the log has lost what it had applied."""
        first = self._log.first_index
        assert applied >= first, f"applied index {applied} is below the log's first index {first}"

    # --- what is known ------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The current term."""
        return self._core.term

    @property
    def is_leader(self) -> bool:
        """True if this node believes that it leads; another one may lead a newer term already."""
        return self._core.is_leader

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
        return self._core.commit_index

    @property
    def applied_index(self) -> int:
        """The highest index that was applied."""
        return self._core.applied_index

    @property
    def settled_index(self) -> int:
        """The highest index that is certainly right here."""
        return self._core.settled_index

    @property
    def serving(self) -> bool:
        """True on a leader that has applied the no-op of its own term (rule 12)."""
        return self._core.is_serving

    @property
    def term_start_index(self) -> int:
        """On a leader: the index of its term's first entry, the no-op."""
        return self._core.no_op_index or 0

    @property
    def uncommitted_entries(self) -> int:
        """How many entries are in the log and not committed."""
        return self._log.last_index - self._core.commit_index

    @property
    def deadline_s(self) -> float:
        """When this node has to send a heartbeat, or may campaign, by the steps' clock."""
        core = self._core
        return core.heartbeat_deadline_s() if core.is_leader else core.election_deadline_s

    def match_index(self, name: str) -> int:
        """On a leader: the highest index known to be on the other node's disk."""
        return self._core.match_index(name)

    def in_flight(self) -> dict[str, int]:
        """On a leader: how many bytes are under way to each other node."""
        return {name: window.bytes for name, window in self._sender.windows.items()}

    # --- a step -------------------------------------------------------------------------------

    def step(
        self,
        now: float,
        messages: Iterable[tuple[str, Message]] = (),
        proposals: Sequence[bytes] = (),
        *,
        tick: bool = False,
        may_rest: bool = False,
    ) -> Ready:
        """Take messages of admitted members, then proposals; return what is to be done.

        `now`: monotonic seconds. `proposals`: payloads, only while `serving`; `entries` begins with
        them, in order, if there were no messages. `tick`: hold or allow an election, commit what a
        majority has, send what is due. Once a turn: a second tick before what the first one
        appended is durable would commit it (rule 8). `may_rest`: unless this node leads, let what
        is committed wait for a later tick.
        """
        self._now = now
        self._core.begin(now)
        self._core.may_rest = may_rest
        for name, message in messages:
            self._receive(name, message)
        if proposals:
            assert self.serving, "a proposal to a node that does not serve"
            for payload in proposals:
                self._core.append(payload)
        if tick:
            if self.tick_is_due:
                self._tick()
            if self._core.is_leader:
                self._after_sync += self._reads.questions(self._core.term, now)
            self._send_if_due()
        return self._take()

    def advance(self, applied_index: int) -> None:
        """Note that the store has applied what was committed up to there."""
        self._core.advance(applied_index)

    def restore(self, leader: str, index: int, term: int) -> None:
        """Note that the store was replaced by a newer copy, which ends at (index, term).

        `leader` has offered it, and is told so (rules 18 and 24).
        """
        self._log.begin_anew(index, term)
        self._core.advance(index)
        answer = AppendEntriesResponse(self._core.term, index + 1, False, True)
        self._after_sync.append((leader, answer))

    def _receive(self, name: str, message: Message) -> None:
        if isinstance(message, TimeoutNow) and not self.may_campaign:
            return
        handler = _OWN_MESSAGES.get(type(message))
        if handler is not None:
            handler(self, name, message)
            return
        core = self._core
        if isinstance(message, AppendEntriesResponse):
            self._guard.receive(name, message, self._now)
            if message.term == core.term:
                self._sender.answered(name, message)
                self._was_answered = True
            return
        term_before, deadline_before = core.term, core.election_deadline_s
        self._guard.receive(name, message, self._now)
        if core.leader == name and (
            core.term > term_before or core.election_deadline_s != deadline_before
        ):
            self._leader_heard_s = self._now

    @property
    def tick_is_due(self) -> bool:
        """True if a tick has something to do: an election, a commit, an entry, a heartbeat.

        What others have not acknowledged since the last tick was not committed then and is not now;
        a lone node has nobody to ask. With its heartbeats a leader also looks whether a majority
        still answers. Who has asked for pre-votes ticks until it has heard of a leader: what was
        granted must not count later.
        """
        core, now = self._core, self._now
        commit_index = core.commit_index
        if core.has_to_apply or self._pre_vote_started_s != -NEVER_S:
            return True
        if core.is_leader:
            has_news = self._was_answered or not self.others
            is_waiting = has_news and self._log.last_index > commit_index
            return is_waiting or core.heartbeat_deadline_s() < now
        return core.election_deadline_s < now

    def _tick(self) -> None:
        self._was_answered = False
        self._pre_vote()
        self._core.tick()
        if self._core.sent:
            self._guard.translate()

    def _send_if_due(self) -> None:
        """Send one round of append_entries, if there is anything to say.

        pysyncobj wants a round after each apply too, only to spread the commit index; that may ride
        on the next entry or heartbeat (measured: half the messages of a lone client's PUT).
        """
        core = self._core
        if not core.append_due:
            return
        if not core.is_leader:
            core.append_due = False
        elif core.heartbeat_deadline_s() < self._now or any(
            map(self._sender.has_news, self.others)
        ):
            self._sender.send_round(self._now)

    def _take(self) -> Ready:
        """Return what has come up since the last Ready."""
        core, guard, sender = self._core, self._guard, self._sender
        soft_state = None
        standing = core.standing
        if standing != self._standing:
            self._standing = standing
            soft_state = SoftState(core.role, core.term, core.leader)
        reset, hard_state, entries = self._log.take()
        committed, after_sync, before_sync = core.committed, self._after_sync, sender.sent
        if not (entries or committed or after_sync or before_sync) and (
            (reset, hard_state, soft_state, guard.refused) == (None, None, None, None)
            and not guard.offer
        ):
            return NOTHING
        ready = Ready(
            reset,
            hard_state,
            entries,
            before_sync,
            after_sync,
            committed,
            soft_state,
            guard.offer,
            guard.refused,
        )
        core.committed = ()
        self._after_sync = guard.said = []
        sender.sent = []
        guard.offer, guard.refused = "", None
        return ready

    # --- elections ----------------------------------------------------------------------------

    def _pre_vote(self) -> None:
        """Rule 9: campaign only when a majority would vote; a lone node never raises its term.

        Without `may_campaign` (rule 26) it goes on as a follower, whoever would vote for it.
        """
        core, now = self._core, self._now
        if not self.may_campaign and not core.is_leader:
            core.election_deadline_s = max(core.election_deadline_s, now)
            return
        if core.is_leader or core.transfer_in_progress or core.election_deadline_s >= now:
            self._forget_pre_votes()
            return
        is_of_this_term = self._pre_vote_term == core.term
        if is_of_this_term and len(self._pre_votes) + 1 >= self._majority:
            self._forget_pre_votes()
            return  # the deadline stays in the past: this tick campaigns
        if not is_of_this_term or now - self._pre_vote_started_s > (
            self._rng.uniform(0.5, 1) * self._timing.election_min_s
        ):
            self._ask_for_pre_votes()
        core.election_deadline_s = now  # pysyncobj campaigns strictly below now

    def _forget_pre_votes(self) -> None:
        self._pre_votes.clear()
        self._pre_vote_started_s = -NEVER_S

    def _ask_for_pre_votes(self) -> None:
        self._pre_votes.clear()
        self._pre_vote_started_s, self._pre_vote_term = self._now, self.term
        last = self._log.last_index, self._log.last_term
        for name in self.others:
            self._after_sync.append((name, PreVote(self.term, *last)))

    def _receive_pre_vote(self, name: str, message: PreVote) -> None:
        heard = self._now - self._leader_heard_s < self._timing.election_min_s
        newest = (message.last_term, message.last_index) >= (
            self._log.last_term,
            self._log.last_index,
        )
        if message.term < self.term:
            # Its campaigns would lag behind: let it learn the term, by a request it can't grant.
            self._after_sync.append((name, RequestVote(self.term, 0, NO_TERM)))
        elif newest and not heard and not self.is_leader:
            self._after_sync.append((name, PreVoteGranted(message.term)))

    def _receive_pre_vote_granted(self, name: str, message: PreVoteGranted) -> None:
        if message.term == self.term and self._pre_vote_started_s != -NEVER_S:
            self._pre_votes.add(name)

    def transfer_leadership(self, name: str = "") -> bool:
        """Ask a follower to take over, "": the most caught-up one. Propose nothing after.

        False if it can't be reached, or has not all of the log.
        """
        asked = self._core.ask_to_take_over(name)
        self._guard.translate()
        return asked

    # --- peers come and go --------------------------------------------------------------------

    def let_campaign(self, may: bool) -> None:
        """Rule 26: campaign no more, as another incarnation took this one's place; or do again."""
        self.may_campaign = may

    def connected(self, name: str) -> None:
        """Note that an admitted member can be reached."""
        self._sender.windows[name].forget()
        self._core.set_reachable(name, True)

    def disconnected(self, name: str, now: float) -> None:
        """Note that a member is gone; a follower that lost its leader need not wait long."""
        self._core.set_reachable(name, False)
        self._sender.lost(name)
        if self.leader == name and not self.is_leader:
            self._leader_heard_s = -NEVER_S
            soon = now + self._rng.uniform(*LEADER_GONE_DELAY_S)
            self._core.election_deadline_s = min(self._core.election_deadline_s, soon)

    def forget(self, name: str) -> None:
        """Rule 26: what an earlier incarnation of the node has acknowledged counts no more."""
        self._core.forget_match(name)

    # --- reads --------------------------------------------------------------------------------

    def ask_barrier(self) -> int:
        """Return the number of a barrier whose answers will have been given after this call."""
        return self._reads.ask(self.term)

    def barrier_passed(self) -> int:
        """Return the newest barrier that a majority has answered in this term (rule 28)."""
        return self._reads.passed(self.term) if self.serving else 0

    def _receive_read_index(self, name: str, message: ReadIndex) -> None:
        if message.term == self.term and not self.is_leader:
            self._after_sync.append((name, ReadIndexResponse(message.term, message.sequence)))

    def _receive_read_index_response(self, name: str, message: ReadIndexResponse) -> None:
        if self.is_leader:
            self._reads.take_answer(name, message, self.term)


_OWN_MESSAGES: Final[dict[type, Callable[[Raft, str, Any], None]]] = {
    PreVote: Raft._receive_pre_vote,
    PreVoteGranted: Raft._receive_pre_vote_granted,
    ReadIndex: Raft._receive_read_index,
    ReadIndexResponse: Raft._receive_read_index_response,
}
