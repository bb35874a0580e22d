"""What Raft and docs/raft.md demand of messages, checked on each of them when it is sent.

What lives here: an observer of all messages and of what every disk durably holds, and the rules on
votes, appends, commit indexes, acknowledgments, reads, hand-overs and copies that follow from these
two alone. What must not: the product's own tables and helpers, as far as a rule is about them;
outcomes (invariants.py, replies.py).

A message that no rule allows is damage long before an entry is lost by it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final
from zlib import crc32

import orjson

from chaos.simulation.checks.invariants import ADMIT_MARK, NEVER_S, Invariants
from chaos.simulation.checks.mirror import Mirror
from chaos.simulation.world.network import member_of
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from cluster.log import journal
from cluster.log.entries import LEVEL
from cluster.node.member import Member
from cluster.store.commands import Operation, Stamp, TransferLeader, level_of
from cluster.wire.messages import (
    AppendEntries,
    AppendEntriesResponse,
    Message,
    PreVote,
    PreVoteGranted,
    ReadIndex,
    ReadIndexResponse,
    RequestVote,
    RequestVoteResponse,
    SnapshotChunk,
    SnapshotOffer,
    TimeoutNow,
)

UNGRANTABLE: Final = -1  # the last term of a vote request that only tells the term
CLOCK_S: Final = 1e-6
REFUSED_TURNS_MAX: Final = 50  # from when nothing waits any more until a refusal is looked at

Last = tuple[int, int]  # term and index of a log's last entry
Voter = tuple[str, str]  # a member and its incarnation


@dataclass(slots=True)
class Life:
    """What one process was told, and where it stood at the end of its last turn."""

    number: int
    last: Last | None = None
    term: int = 0
    settled_index: int = 0
    votes: dict[int, set[Voter]] = field(default_factory=lambda: defaultdict(set))
    incarnations: dict[str, str] = field(default_factory=dict)  # of whom it has heard
    # Whose, in which term, of those that it asks for now; when it has asked; None: it does not.
    pre_votes: set[tuple[str, int]] = field(default_factory=set)
    asks_s: float | None = None
    leading: int | None = None  # the term that it led at the end of its last turn
    campaigns: dict[int, bool] = field(default_factory=dict)
    handed_over: set[int] = field(default_factory=set)
    asked_votes: dict[tuple[str, int], Last] = field(default_factory=dict)
    asked_pre_votes: dict[tuple[str, int], Last] = field(default_factory=dict)
    heard: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    heard_before: dict[str, list[dict[str, tuple[int, float, float]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    # By leader and term: up to where each append has shown its log, of those that wait for a word.
    shown: dict[tuple[str, int], deque[int]] = field(default_factory=lambda: defaultdict(deque))
    installed_index: int = 0
    # Up to where a follower may commit; by what it was shown since its last turn it may be further:
    # an entry that it has to have, as (index, term), and how far that goes.
    proved_index: int | None = None
    claims: list[tuple[int, int, int]] = field(default_factory=list)
    reset_s: dict[str, float] = field(default_factory=dict)
    acknowledged: dict[int, dict[Voter, int]] = field(default_factory=lambda: defaultdict(dict))
    questions: set[tuple[str, int, int]] = field(default_factory=set)
    answers_s: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    digests: dict[str, bytes] = field(default_factory=dict)
    led: list[int] = field(default_factory=list)
    matches: tuple[int, list[tuple[str, int]]] | None = None  # as a leader: term, who has what
    # As a leader, by follower: the term and the last entry that it was sent, until that was lost.
    sent: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    parted_s: dict[str, float] = field(default_factory=dict)  # when it has heard of that, by whom
    refused: set[str] = field(default_factory=set)  # who has, and it may not know yet
    turns: int = 0
    refused_at: dict[str, int] = field(default_factory=dict)  # by who has: at which turn, last
    asked_for: dict[str, tuple[int, int]] = field(default_factory=dict)  # in a refusal, in a term
    question_s: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    passed: tuple[int, int] = (0, 0)  # the newest barrier that a majority has answered in a term
    copies: int = 0  # of the store that it has begun
    transferred_index: int | None = None  # the last entry when it was told to hand over
    turned_s: float = 0.0  # when its last turn was


class RaftRules:
    """Watches the messages of a world; tells `invariants` of those that no rule allows."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world, self._invariants = world, invariants
        self._majority = world.plan.nodes // 2 + 1
        self._mirrors: dict[str, Mirror] = {}
        self._lives: dict[str, Life] = {}
        self._leaders: dict[int, str] = {}  # term -> the machine that won it
        self._granted: dict[tuple[str, int], str] = {}  # (voter's incarnation, term)
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}  # -> checksum, term before
        self._admitted: dict[tuple[int, int], Voter] = {}  # by (index, term) of its entry
        self._admitted_at: dict[Voter, int] = {}
        self._committed = 1
        self._first_of_term: dict[int, int] = {}
        self._wishes: set[tuple[int, str]] = set()  # (term, who is to lead next) of entries
        self._answered_s: dict[tuple[str, int, int], float] = {}  # a barrier, by whom, first
        self._lives_read: dict[str, int] = {}  # by machine: whose log was compared with its disk
        world.net.taps.append(self._delivered)
        world.net.send_taps.append(self._sent)
        world.observers.append(self._observe)
        world.watchers.append(self._turned)
        invariants.on_entry.append(self._applied)

    # --- what is seen -----------------------------------------------------------------------------

    def _mirror(self, name: str) -> Mirror:
        return self._mirror_of(self._world.machine(name))

    def _mirror_of(self, node: SimNode) -> Mirror:
        mirror = self._mirrors.get(node.name)
        if mirror is None or mirror.node is not node:
            mirror = self._mirrors[node.name] = Mirror(node)
        return mirror.look()

    def _life(self, name: str) -> Life:
        return self._life_of(self._world.machine(name))

    def _life_of(self, node: SimNode) -> Life:
        life = self._lives.get(node.name)
        if life is None or life.number != node.life:
            life = self._lives[node.name] = Life(node.life)
        return life

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "role" and fields["role"] == "leader":
            self._won(fields["node"], fields["term"])
        elif kind == "snapshot_installed":
            life = self._life(fields["node"])
            life.installed_index = max(life.installed_index, fields["index"])
            if self._world.machine(fields["node"]).has_job:
                text = f"{fields['node']} installs a copy while a job has the database open"
                self._fail("snapshot", text)
        elif kind == "ended":
            self._note_end(fields["node"])
        elif kind == "double_gone":
            self._lives.pop(fields["node"], None)
        elif kind == "peer_disconnected":
            self._life(fields["node"]).parted_s[fields["name"]] = self._world.now
        elif kind == "transferring":
            self._life(fields["node"]).transferred_index = fields["index"]

    def _applied(
        self, index: int, term: int, stamp: Stamp | None, operations: Sequence[Operation]
    ) -> None:
        self._first_of_term.setdefault(term, index)
        wishes = (each for each in operations if isinstance(each, TransferLeader))
        self._wishes.update((term, wish.chosen) for wish in wishes)

    def _turned(self, node: SimNode) -> None:
        member = node.as_member
        if member is None:
            return
        raft, mirror, life = member.raft, self._mirror_of(node), self._life_of(node)
        life.turns += 1
        committed = max(raft.commit_index, raft.applied_index)
        if committed > self._committed:
            self._only_committed(node, committed)
        if node.disk.is_synced and not node.disk_faults:
            self._knows_its_disk(node, member, mirror)
        if self._admitted:
            self._knows_who_is_admitted(node, member)
        is_leader = raft.is_leader
        if is_leader:
            self._counts_rightly(node, member, life)
            self._forgets_no_answer(node, member, life)
            self._counts_what_is_in_flight(node, member, life)
        self._copies_what_is_committed(node, member, life)
        if life.sent:
            gone = life.sent.keys() - member.linked.names
            life.sent = {name: each for name, each in life.sent.items() if name not in gone}
        if is_leader or life.leading is not None or life.proved_index is None:
            life.proved_index = committed  # what it led, or began with
        elif committed > life.proved_index:
            self._was_proved(node, mirror, life, committed)
        life.last = (mirror.last_term, mirror.last_index)
        life.term, life.settled_index = mirror.term, raft.settled_index
        life.leading, life.turned_s = raft.term if is_leader else None, self._world.now
        if self._world.net.has_untaken(node.name):  # a refusal may be among it
            life.refused_at = dict.fromkeys(life.refused_at, life.turns)
        else:
            life.heard_before.clear()  # whatever was asked is answered by now, or never
            life.claims.clear()
            if life.asks_s is not None or life.pre_votes:
                self._forget_promises(node, member, life)

    @staticmethod
    def _forget_promises(node: SimNode, member: Member, life: Life) -> None:
        """What was granted is over once a node has heard of a leader."""
        if member.raft._core.election_deadline_s > node.clock():
            life.asks_s = None
            life.pre_votes.clear()

    def _was_proved(self, node: SimNode, mirror: Mirror, life: Life, committed: int) -> None:
        """Check that a follower takes no more for committed than an append has proved to it.

        What is in its log behind that may be an earlier leader's, and gone everywhere else.
        """
        proved = [reach for index, term, reach in life.claims if mirror.holds(index, term)]
        most = max([life.proved_index or 0, life.installed_index, *proved])
        if committed > most:
            text = f"{node.name} follows, and takes entry {committed} for committed"
            self._fail("commit", f"{text}; what it was shown proves {most}")
        life.proved_index = committed

    def _counts_rightly(self, node: SimNode, member: Member, life: Life) -> None:
        """Check what a leader believes that the others have, if it may have changed.

        What they have said only grows; but it counts no more once somebody else is admitted.
        """
        raft = member.raft
        matches = [(name, raft.match_index(name)) for name in member.settings.others]
        if (raft.term, matches) == life.matches and not self._admitted:
            return
        life.matches = (raft.term, matches)
        said = self._counted(node.name, raft.term)
        for name, index in matches:
            most = said.get(name, 0)
            if index > most:
                text = f"{node.name} believes that {name} has {index} in term {raft.term}"
                self._fail("commit", f"{text}, it has said {most}")

    def _knows_its_disk(self, node: SimNode, member: Member, mirror: Mirror) -> None:
        """Check that a node takes its log to end, and itself to have voted, as its disk says."""
        journal = member.journal
        known = journal.term, journal.vote, journal.last_index, journal.last_term
        there = mirror.term, mirror.vote, mirror.last_index, mirror.last_term
        if known != there:
            what = "(term, vote, last entry, its term)"
            text = f"{node.name} takes its {what} for {known}, and {there} is on its disk"
            self._fail("hard_state", text)
        store = member.store
        term = self._invariants.term_of(store.applied_index)
        if term not in (None, store.applied_term):
            text = f"{node.name} takes entry {store.applied_index} for one of {store.applied_term}"
            self._fail("prefix", f"{text}, it is of term {term}")

    def _knows_who_is_admitted(self, node: SimNode, member: Member) -> None:
        """Check that the admissions which a node takes to be pending stand in its log, and all do.

        Of one that no leader has sent yet nothing is known.
        """
        applied, term_at = member.store.applied_index, member.journal.term_at
        pending = {
            at: (each.node, each.incarnation) for at, each in member._pending._entries.items()
        }
        there = {
            index: voter
            for (index, term), voter in self._admitted.items()
            if index > applied and term_at(index) == term
        }
        sent = {at: (at, term_at(at)) in self._entries for at in pending}
        known = {at: each for at, each in pending.items() if sent[at] or term_at(at) is None}
        if known != there:
            text = f"{node.name} takes {known} for admitted, of its log, which has {there}"
            self._fail("replaced", text)

    def _counts_what_is_in_flight(self, node: SimNode, member: Member, life: Life) -> None:
        """Check that what was sent counts until it is acknowledged, refused or lost, no longer."""
        raft = member.raft
        for name, window in raft._sender.windows.items():
            term, last, at_s = life.sent.get(name, (-1, 0, 0.0))
            if term != raft.term:
                continue
            is_open = life.parted_s.get(name, NEVER_S) <= at_s
            if window.bytes and not is_open:
                text = f"{node.name} takes {window.bytes} bytes to {name} for in flight"
                self._fail("append", f"{text}, on a connection that has ended")
            since = life.turns - life.refused_at.get(name, -REFUSED_TURNS_MAX)
            is_awaited = is_open and since >= REFUSED_TURNS_MAX and raft._core.is_reachable(name)
            is_awaited = is_awaited and raft.match_index(name) < last
            if is_awaited and not window.bytes and member.journal.term_at(last) is not None:
                text = f"{node.name} takes nothing to {name} for in flight, has sent up to {last}"
                self._fail("append", f"{text}, and has answers up to {raft.match_index(name)}")

    def _copies_what_is_committed(self, node: SimNode, member: Member, life: Life) -> None:
        """Check that a copy which is begun has the admissions that its source knows."""
        server = member._server
        if server._number == life.copies:
            return
        life.copies = server._number
        if member.store._committed_index < server.members_index:
            text = f"{node.name} begins a copy of entry {member.store._committed_index}"
            self._fail("snapshot", f"{text}, and members have changed at {server.members_index}")

    def _forgets_no_answer(self, node: SimNode, member: Member, life: Life) -> None:
        """Check that what a majority has answered to a leader stays answered."""
        term = member.raft.term
        passed = member.raft._reads.passed(term)
        if life.passed[0] == term and passed < life.passed[1]:
            text = f"{node.name} took barrier {life.passed[1]} for passed in term {term}"
            self._fail("barrier", f"{text}, and takes {passed} for it now")
        life.passed = term, passed

    # --- delivered --------------------------------------------------------------------------------

    def _delivered(self, source: str, target: str, message: Message) -> None:
        take = _TAKE.get(type(message))
        if take is not None:
            take(self, member_of(source), target, message)

    def _take_append(self, source: str, target: str, message: AppendEntries) -> None:
        node = self._world.machine(target)
        life, shown = self._life_of(node), message.previous_index
        if message.entries:
            level_max = node.build.level_max
            shown += sum(
                1
                for _ in takewhile(
                    lambda entry: level_of(entry[0][LEVEL]) <= level_max, message.entries
                )
            )
        life.shown[source, message.term].append(shown)
        reach = min(shown, message.commit_index)
        if reach > (life.proved_index or 0):
            life.claims.append((message.previous_index, message.previous_term, reach))
        life.heard[source] = message.term, node.clock(), self._world.now

    def _take_append_entries_response(
        self, source: str, target: str, message: AppendEntriesResponse
    ) -> None:
        if message.success:
            said = self._life(target).acknowledged[message.term]
            voter = self._voter(source, target)
            said[voter] = max(message.next_index - 1, said.get(voter, 0))
        else:  # what was in flight was not taken
            life = self._life(target)
            life.refused_at[source] = life.turns
            term, least = life.asked_for.get(source, (message.term, message.next_index))
            if message.term >= term:  # one from an earlier leadership is not looked at
                life.sent.pop(source, None)
                life.refused.add(source)
                newer = message.term > term
                least = message.next_index if newer else min(least, message.next_index)
                life.asked_for[source] = message.term, least

    def _take_request_vote_response(
        self, source: str, target: str, message: RequestVoteResponse
    ) -> None:
        self._life(target).votes[message.term].add(self._voter(source, target))

    def _take_vote_request(self, source: str, target: str, message: RequestVote) -> None:
        last = message.last_term, message.last_index
        asked, key = self._life(target).asked_votes, (source, message.term)
        asked[key] = max(last, asked.get(key, last))

    def _take_pre_vote(self, source: str, target: str, message: PreVote) -> None:
        life, key = self._life(target), (source, message.term)
        last = message.last_term, message.last_index
        life.asked_pre_votes[key] = max(last, life.asked_pre_votes.get(key, last))
        life.heard_before[source].append(dict(life.heard))

    def _take_pre_vote_granted(self, source: str, target: str, message: PreVoteGranted) -> None:
        life = self._life(target)
        if life.asks_s is not None:
            life.pre_votes.add((source, message.term))

    def _take_timeout_now(self, source: str, target: str, message: TimeoutNow) -> None:
        self._life(target).handed_over.add(message.term)

    def _take_read_index(self, source: str, target: str, message: ReadIndex) -> None:
        self._life(target).questions.add((source, message.term, message.sequence))

    def _take_read_index_response(
        self, source: str, target: str, message: ReadIndexResponse
    ) -> None:
        answers = self._life(target).answers_s[message.term]
        key = (source, message.term, message.sequence)
        sent_s = self._answered_s.get(key, self._world.now)
        answers[source] = max(sent_s, answers.get(source, 0.0))

    def _voter(self, source: str, target: str) -> Voter:
        """Return who says something; the last words of a connection come when it has ended."""
        hello, known = self._world.net.hello_of(target, source), self._life(target).incarnations
        if hello is not None:
            known[source] = hello.incarnation
        return source, known.get(source, "")

    # --- sent -------------------------------------------------------------------------------------

    def _sent(self, source: str, target: str, message: Message) -> None:
        judge = _JUDGES.get(type(message))
        if judge is not None:
            judge(self, self._world.machine(source), target, message)

    def _append(self, node: SimNode, target: str, message: AppendEntries) -> None:
        self._by_its_leader(node, message.term, "appends")
        self._only_committed(node, message.commit_index)
        if message.entries:
            self._within_limits(node, message)
            self._sends_once(node, target, message)
        before = message.previous_term
        index = message.previous_index
        for command, at, term in message.entries:
            index += 1
            wrong = at != index or not before <= term <= message.term
            entry = (crc32(command), before)
            known = self._entries.setdefault((at, term), entry)
            if wrong or known != entry:
                text = f"{node.name} sends entry {at} of term {term} behind one of term {before}"
                self._fail("append", f"{text} at {index - 1}, it was {known} before {entry}")
                return
            if known is entry and ADMIT_MARK in command:
                self._note_admission(at, term, command)
            before = term
        own = self._mirror_of(node).terms.get(message.previous_index)
        if own is not None and own != message.previous_term and node.disk.is_synced:
            what = f"entry {message.previous_index} is of term {message.previous_term}"
            self._fail("append", f"{node.name} says that {what}, it has {own}")

    def _within_limits(self, node: SimNode, message: AppendEntries) -> None:
        """Check that an append is no longer than a slice of the log: two entries always are one."""
        count = len(message.entries)
        size_bytes = sum(len(entry[0]) for entry in message.entries)
        if count > journal.SLICE_ENTRIES_MAX or (
            count > journal.SLICE_ENTRIES_MIN and size_bytes > journal.SLICE_BYTES_MAX
        ):
            text = f"{node.name} sends {count} entries of {size_bytes} bytes in one append"
            self._fail("limit", text)

    def _sends_once(self, node: SimNode, target: str, message: AppendEntries) -> None:
        """Check that what is in flight is not sent again (rule 22).

        It is lost with its connection, and by a refusal: once that is looked at, the next message
        begins anew.
        """
        life, first, last = self._life_of(node), message.entries[0][1], message.entries[-1][1]
        term, known, at_s = life.sent.get(target, (0, 0, 0.0))
        is_open = self._world.net.closed_s(node.name, target) < at_s
        is_taken = is_open and target not in life.refused
        if is_taken and term == message.term and first <= known:
            text = f"{node.name} sends {target} entry {first} again in term {term}"
            self._fail("append", f"{text}: up to {known} are in flight")
        if not self._world.net.has_untaken(node.name):
            life.refused.discard(target)
        life.sent[target] = message.term, last, self._world.now

    def _note_admission(self, index: int, term: int, command: bytes) -> None:
        size = int.from_bytes(command[2:6], "little")
        for kind, *rest in orjson.loads(command[6 : 6 + size])[1]:
            if kind == "M":
                self._admitted[index, term] = (rest[0], rest[1])
                self._admitted_at[rest[0], rest[1]] = index

    def _by_its_leader(self, node: SimNode, term: int, what: str) -> None:
        if self._leaders.get(term) != node.name:
            text = f"{node.name} {what} in term {term}, which {self._leaders.get(term)} has won"
            self._fail("append", text)

    def _only_committed(self, node: SimNode, index: int) -> None:
        """Check that what a node calls committed is durable on a majority, in its leader's term."""
        if index <= self._committed:
            return
        life = self._life_of(node)
        mirror = self._mirror_of(node)
        for term in reversed(life.led):
            said = [*self._counted(node.name, term).values(), mirror.last_index]
            reached = sorted(said, reverse=True)[: self._majority]
            if len(reached) < self._majority or reached[-1] < index:
                continue
            if mirror.terms.get(min(reached[-1], mirror.last_index), term) == term:
                self._committed = index
                return
        text = f"{node.name} takes entry {index} for committed; of what it leads"
        known = {term: self._counted(node.name, term) for term in life.led}
        self._fail("commit", f"{text} {known} is known, {self._committed} was committed before")

    def _note_end(self, name: str) -> None:
        """Note what a leader could take for committed in a turn that had no end.

        That is committed, and the head of a segment that it began then may say so to the next one.
        """
        life = self._lives.get(name)
        if life is None or not life.led:
            return
        mirror = self._mirror(name)
        for term in life.led:
            said: dict[str, int] = {}
            for voter, index in life.acknowledged[term].items():
                said[voter[0]] = max(index, said.get(voter[0], 0))
            reached = sorted([*said.values(), mirror.last_index], reverse=True)[: self._majority]
            least = min(reached[-1], mirror.last_index)
            if len(reached) == self._majority and mirror.terms.get(least) == term:
                self._committed = max(self._committed, least)

    def _counted(self, name: str, term: int) -> dict[str, int]:
        """Return what members have acknowledged to a leader, of those that count by its log."""
        said: dict[str, int] = {}
        for voter, index in self._life(name).acknowledged[term].items():
            if not self._is_replaced(name, voter):
                said[voter[0]] = max(index, said.get(voter[0], 0))
        return said

    def _is_replaced(self, name: str, voter: Voter) -> bool:
        """Return whether a node has on its disk the entry that admits another incarnation."""
        if not self._admitted:
            return False
        life, mirror = self._life(name), self._mirror(name)
        known_to = 0 if life.last is None else life.last[1]
        own = self._admitted_at.get(voter, 0)
        return any(
            own < index <= known_to and mirror.terms.get(index) == term
            for (index, term), (member, incarnation) in self._admitted.items()
            if member == voter[0] and incarnation != voter[1]
        )

    def _acknowledgment(self, node: SimNode, target: str, message: AppendEntriesResponse) -> None:
        index = message.next_index - 1
        if not message.success:
            self._reset(node, target, message)
            return
        life, mirror = self._life_of(node), self._mirror_of(node)
        if index != life.installed_index and not self._was_shown(life, target, message):
            text = f"{node.name} acknowledges {index} to {target} of term {message.term}"
            self._fail("acknowledged", f"{text}: no append that waits for its word has shown that")
        if mirror.term != message.term:
            return  # in a later one it may have been told to drop what it acknowledges in this
        if not (index <= mirror.last_index or index < mirror.base_index):
            text = f"{node.name} acknowledges {index}, on its disk are {mirror.last_index}"
            self._fail("acknowledged", text)
        leader = self._leaders.get(message.term)
        if leader is None or not self._world.machine_is_up(leader):
            return
        leaders = self._mirror(leader)
        if leaders.term != message.term:
            return  # deposed since, and its own entries may be replaced (seed 202611230133)
        theirs, own = leaders.terms.get(index), mirror.terms.get(index)
        if None not in (theirs, own) and theirs != own:
            text = f"{node.name} acknowledges {index} to {target}: it has term {own}"
            self._fail("acknowledged", f"{text} there, and {leader} {theirs}")

    @staticmethod
    def _was_shown(life: Life, target: str, message: AppendEntriesResponse) -> bool:
        """Return whether it answers the next of the appends that were shown, in their order.

        Not only one of them: what the next message proves is not known before it is looked at, and
        a leader that hears the answer to the first one alone would count what nobody has.
        """
        shown = life.shown[target, message.term]
        while shown:
            if shown.popleft() == message.next_index - 1:
                return True
        return False

    def _reset(self, node: SimNode, target: str, message: AppendEntriesResponse) -> None:
        if not message.reset:
            return
        life, member = self._life_of(node), node.as_member
        assert member is not None, node.name
        low, high = life.settled_index + 1, member.raft.settled_index + 1
        if not low <= message.next_index <= high:
            text = f"{node.name} asks {target} for entry {message.next_index}"
            self._fail("acknowledged", f"{text}, it has {high - 1} for certain")
        now, period_s = node.clock(), self._world.knob("heartbeat_s")
        if now - life.reset_s.get(target, -period_s) < period_s - CLOCK_S:
            self._fail("acknowledged", f"{node.name} asks {target} twice within a heartbeat")
        life.reset_s[target] = now

    # --- elections --------------------------------------------------------------------------------

    def _won(self, name: str, term: int) -> None:
        self._leaders.setdefault(term, name)
        life = self._life(name)
        life.led.append(term)
        voters = {member_of(name)}
        voters |= {voter[0] for voter in life.votes[term] if not self._is_replaced(name, voter)}
        if len(voters) < self._majority:
            self._fail("vote", f"{name} leads term {term} by the votes of {sorted(voters)}")

    def _vote(self, node: SimNode, target: str, message: RequestVoteResponse) -> None:
        life, mirror = self._life_of(node), self._mirror_of(node)
        what = f"{node.name} votes for {target} in term {message.term}"
        asked = life.asked_votes.get((target, message.term))
        if asked is None:
            self._fail("vote", f"{what}, which has not asked it")
        elif not self._is_as_new(asked, life, mirror):
            has = (mirror.last_term, mirror.last_index)
            self._fail("vote", f"{what}, whose log ends at {asked}, its own at {has}")
        if (mirror.term, mirror.vote) != (message.term, target) and mirror.term <= message.term:
            self._fail("vote", f"{what}; on its disk: {mirror.vote} in {mirror.term}")
        member = node.as_member
        assert member is not None, node.name
        voter = member.identity.incarnation, message.term
        if self._granted.setdefault(voter, target) != target:
            self._fail("vote", f"{what}, and for {self._granted[voter]}")

    def _is_as_new(self, asked: Last, life: Life, mirror: Mirror) -> bool:
        """Return whether a log is as new as a node's was, at the turn's begin or at its end."""
        now = (mirror.last_term, mirror.last_index)
        return asked >= min(now, life.last or now)

    def _vote_request(self, node: SimNode, target: str, message: RequestVote) -> None:
        if message.last_term == UNGRANTABLE:
            return
        life, mirror, term = self._life_of(node), self._mirror_of(node), message.term
        what = f"{node.name} asks for votes in term {term}"
        if mirror.term < term or (mirror.term == term and mirror.vote != node.member):
            self._fail("vote", f"{what}; on its disk: {mirror.vote} in {mirror.term}")
        now = (mirror.last_term, mirror.last_index)
        if (message.last_term, message.last_index) > max(now, life.last or now):
            claimed = message.last_term, message.last_index
            self._fail("vote", f"{what} with a log up to {claimed}, it has {now}")
        if term not in life.campaigns:
            is_wished = term - 1 in life.handed_over
            # A promise is of the term in which it was asked for: the one before the campaign's.
            promised = {member for member, asked in life.pre_votes if asked == term - 1}
            enough = len(promised | {node.member}) >= self._majority
            life.campaigns[term] = is_wished or enough
            if not (is_wished or enough):
                self._fail("vote", f"{what}, only {sorted(promised)} would vote for it")
            life.pre_votes.clear()

    def _asks(self, node: SimNode, target: str, message: PreVote) -> None:
        """Note that a node asks anew: what was granted before counts no more."""
        life, now = self._life_of(node), self._world.now
        # What has come in this turn may be looked at in the next one.
        if life.asks_s != now and not self._world.net.has_untaken(node.name):
            life.pre_votes.clear()
        life.asks_s = now

    def _pre_vote(self, node: SimNode, target: str, message: PreVoteGranted) -> None:
        life, mirror, member = self._life_of(node), self._mirror_of(node), node.as_member
        assert member is not None, node.name
        what = f"{node.name} would vote for {target} in term {message.term}"
        asked = life.asked_pre_votes.get((target, message.term))
        if asked is None:
            self._fail("vote", f"{what}, which has not asked it")
        elif not self._is_as_new(asked, life, mirror):
            self._fail("vote", f"{what}, whose log ends at {asked}")
        if life.term > message.term:
            self._fail("vote", f"{what}, and is in term {life.term}")
        if life.leading == message.term:
            self._fail("vote", f"{what}, and leads it")
        # Of several that ask in a row it may have looked at the first alone.
        first = next(iter(life.heard_before[target]), {})
        for leader, (term, clock_s, at_s) in first.items():
            silent_s = node.clock() - clock_s
            is_linked = leader in member.linked.names and leader == member.raft.leader
            is_linked = is_linked and self._world.net.closed_s(node.name, leader) < at_s
            is_lately = silent_s < self._world.knob("election_min_s") - CLOCK_S
            # A leader of a later term was heard behind the promise: it is none in a term gone by.
            is_known = term == member.raft.term and term <= message.term
            if is_linked and is_lately and is_known:
                text = f"{what}, and has heard {leader} of that term {silent_s:.3f} s ago"
                self._fail("vote", text)

    def _was_connected(self, node: SimNode, target: str, turned_s: float) -> bool:
        """Return whether a node was connected with another one at the end of its last turn.

        Then who stops may have asked it to lead (seed 29110015).
        """
        net = self._world.net
        return net.hello_of(node.name, target) is not None or (
            net.closed_s(node.name, target) >= turned_s
        )

    def _timeout_now(self, node: SimNode, target: str, message: TimeoutNow) -> None:
        self._by_its_leader(node, message.term, "hands over")
        life, last_index = self._life_of(node), self._mirror_of(node).last_index
        if life.transferred_index is not None:
            last_index = min(last_index, life.transferred_index)
        elif not self._was_connected(node, target, life.turned_s):
            text = f"{node.name} hands term {message.term} over to {target}"
            self._fail("handover", f"{text}, and was not connected with it")
        if self._mirror_of(node).last_term > message.term and life.last is not None:
            # A newer leader's entries came in the turn in which the word left.
            last_index = min(last_index, life.last[1])
        said = self._counted(node.name, message.term).get(target, 0)
        if said < last_index:
            text = f"{node.name} hands term {message.term} over to {target}, which has {said}"
            self._fail("handover", f"{text} of {last_index}")
        if life.transferred_index is None and not self._is_own_wish(node, target, message.term):
            text = f"{node.name} hands term {message.term} over to {target}"
            self._fail("handover", f"{text}: nobody has asked it for that in this term")

    def _is_own_wish(self, node: SimNode, target: str, term: int) -> bool:
        """Return whether a leader stops, or an entry of its own term asks for that successor."""
        member = node.as_member
        assert member is not None, node.name
        return member._frontend.stopping or (term, target) in self._wishes

    # --- reads ------------------------------------------------------------------------------------

    def _read_index(self, node: SimNode, target: str, message: ReadIndex) -> None:
        self._by_its_leader(node, message.term, "asks whether it leads")
        life, now = self._life_of(node), node.clock()
        term, sequence, asked_s = life.question_s.get(target, (0, 0, 0.0))
        is_same = (term, sequence) == (message.term, message.sequence)
        if is_same and now - asked_s < self._world.knob("heartbeat_s") - CLOCK_S:
            self._fail("barrier", f"{node.name} asks {target} {sequence} twice within a heartbeat")
        life.question_s[target] = message.term, message.sequence, now

    def _read_index_response(self, node: SimNode, target: str, message: ReadIndexResponse) -> None:
        life = self._life_of(node)
        self._answered_s.setdefault((node.member, message.term, message.sequence), self._world.now)
        what = f"{node.name} says that {target} leads term {message.term}"
        if (target, message.term, message.sequence) not in life.questions:
            self._fail("barrier", f"{what} ({message.sequence}), which has not asked that")
        if life.term > message.term:
            self._fail("barrier", f"{what}, and is in term {life.term}")

    def served(self, node: SimNode, since_s: float, applied_index: int) -> str:
        """Return why a node may not answer a read that came at `since_s`, "" if it may.

        A majority has told it that it led, each after the read had come, in a term of which it has
        applied an entry.
        """
        life = self._life_of(node)
        for term in reversed(life.led):
            first = self._first_of_term.get(term, applied_index + 1)
            answers = life.answers_s[term]
            told = {name for name, sent_s in answers.items() if sent_s >= since_s}
            if first <= applied_index and len(told | {node.member}) >= self._majority:
                return ""
        answers_s = {term: dict(life.answers_s[term]) for term in life.led}
        return f"served since {since_s:.4f}, with answers of {answers_s}"

    # --- copies -----------------------------------------------------------------------------------

    def _offer(self, node: SimNode, target: str, message: SnapshotOffer) -> None:
        self._by_its_leader(node, message.term, "offers a copy")
        member, life = node.as_member, self._life_of(node)
        assert member is not None, node.name
        first = member.journal.first_index
        asked_term, asked = life.asked_for.get(target, (0, 0))
        sent_term, sent, _ = life.sent.pop(target, (0, 0, 0.0))
        # It wants what the log has no more; or was to be sent that next, since it was heard last.
        wants = [asked] if asked_term == message.term else []
        wants += [sent + 1] if sent_term == message.term else []
        wants += [self._counted(node.name, message.term).get(target, 0) + 1]
        wants += [member.raft.term_start_index]
        wants = [index for index in wants if index > 1]
        if min(wants) > first:
            text = f"{node.name} offers {target} a copy, and has its log from {first} on"
            self._fail("snapshot", f"{text}: it wants none before {min(wants)}")

    def _chunk(self, node: SimNode, target: str, message: SnapshotChunk) -> None:
        member, life = node.as_member, self._life_of(node)
        assert member is not None, node.name
        what = f"{node.name} gives {target} a copy of entry {message.index}"
        if message.index > member.store.applied_index:
            self._fail("snapshot", f"{what}, and has applied {member.store.applied_index}")
        term = self._invariants.term_of(message.index)
        if term not in (None, message.term):
            self._fail("snapshot", f"{what} as of term {message.term}, it is of {term}")
        if life.digests.setdefault(message.snapshot_id, message.digest) != message.digest:
            self._fail("snapshot", f"{what}, {message.snapshot_id}, with two digests")

    def _fail(self, check: str, text: str) -> None:
        self._invariants.fail(check, text)


_TAKE: Final[dict[type, Callable[[RaftRules, str, str, Any], None]]] = {
    AppendEntries: RaftRules._take_append,
    AppendEntriesResponse: RaftRules._take_append_entries_response,
    RequestVoteResponse: RaftRules._take_request_vote_response,
    RequestVote: RaftRules._take_vote_request,
    PreVote: RaftRules._take_pre_vote,
    PreVoteGranted: RaftRules._take_pre_vote_granted,
    TimeoutNow: RaftRules._take_timeout_now,
    ReadIndex: RaftRules._take_read_index,
    ReadIndexResponse: RaftRules._take_read_index_response,
}
_JUDGES: Final[dict[type, Callable[[RaftRules, SimNode, str, Any], None]]] = {
    AppendEntries: RaftRules._append,
    AppendEntriesResponse: RaftRules._acknowledgment,
    RequestVoteResponse: RaftRules._vote,
    RequestVote: RaftRules._vote_request,
    PreVote: RaftRules._asks,
    PreVoteGranted: RaftRules._pre_vote,
    TimeoutNow: RaftRules._timeout_now,
    ReadIndex: RaftRules._read_index,
    ReadIndexResponse: RaftRules._read_index_response,
    SnapshotOffer: RaftRules._offer,
    SnapshotChunk: RaftRules._chunk,
}
