"""Three nodes, what is on its way between them, and every step that they may take.

What lives here: the state and its successors, by the rules of docs/raft.md. What must not: the
search (search.py).

A step is one atomic thing: a request reaches a node and is carried out there, durably, or its reply
reaches the other side. Replies wait in a set and may come in any order, late or never. Requests do
not wait: a late request of Raft's is one of an older term, or says what is known already. A step
that breaks an invariant raises Violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

NODES: Final = (0, 1, 2)
TWIN: Final = 3  # the place of a process whose name another one has
NAMES: Final = "ABC"
MAJORITY: Final = 2
NOBODY: Final = -1
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
NO_OP, WRITE, ADMIT = 0, 1, 2

RULES: Final = {
    "smallest-founds": "only the node with the smallest name founds (decision 0003)",
    "founders-are-fresh": "a founder has seen every other node fresh (decision 0003)",
    "fresh-is-silent": "a wiped node neither votes nor acknowledges before it is readmitted (26)",
    "copy-admits": "a wiped node begins with a copy that admits its incarnation (26)",
    "term-of-the-copy": "a readmitted node begins in the term of its copy (26)",
    "forget": "what a replaced incarnation has acknowledged counts no more (26)",
    "admitted-alone": "only messages of admitted incarnations count (14)",
    "from-the-entry-on": "an admission counts from its entry on, not from its application (26)",
    "own-no-op": "a leader serves behind the no-op of its own term (12)",
    "asked-after": "a read waits for answers to a question asked after it came (28)",
    "answer-own-term": "a node answers a leader's question in its own term alone (28)",
    "count-own-term": "a leader counts answers of its own term alone (28)",
    "answers-of-a-majority": "a read waits for a majority's answers (28)",
    "commit-proved": "a commit index is clamped to what the append proves (16)",
    "acknowledge-proved": "an acknowledgment is clamped to what was proved (18)",
    "copy-is-newer": "a copy is installed over an older store alone (24)",
    "copy-keeps-the-log": "a copy keeps the log behind it that agrees with it (2)",
}

Incarnations: TypeAlias = tuple[int, int, int]
Entry: TypeAlias = tuple[int, int, int, int]  # term, kind, and of an admission node, incarnation
Snapshot: TypeAlias = tuple[int, int, Incarnations]  # index, term, members
# Kind, term, receiver, sender, its incarnation and admitted index, number.
Message: TypeAlias = tuple[str, int, int, int, int, int, int]
Step: TypeAlias = tuple[str, "ModelState"]

EMPTY: Final[Snapshot] = (0, 0, (0, 0, 0))


class Violation(Exception):
    """A step has broken an invariant: which, and the step."""


class ModelNode(NamedTuple):
    """One node. What stands on its disk, then what it knows as long as it runs.

    `base`: what its store stands at, the log is behind it. `admitted_index`: of the copy that it
    began with. `founding`: who are the founders. `views`: of a fresh node, who it has heard that is
    fresh too. `copy`: pulled, not installed.
    """

    incarnation: int = 0
    started: bool = False
    term: int = 0
    vote: int = NOBODY
    base: Snapshot = EMPTY
    log: tuple[Entry, ...] = ()
    admitted_index: int = 0
    founding: Incarnations | None = None
    views: Incarnations = (NOBODY, NOBODY, NOBODY)
    commit: int = 0
    role: int = FOLLOWER
    votes: int = 0  # a bit a node
    match: tuple[int, int, int] = (0, 0, 0)
    asked: int = 0  # the newest question
    answers: tuple[int, int, int] = (0, 0, 0)
    answers_term: int = 0
    read: tuple[int, int] | None = None  # the index that it must see, the question
    copy: Snapshot | None = None

    @property
    def last(self) -> int:
        """The index of the last entry."""
        return self.base[0] + len(self.log)

    def term_at(self, index: int) -> int:
        """Return the term of an entry, NOBODY if it is not here (any more)."""
        at = index - self.base[0]
        if at == 0:
            return self.base[1]
        return self.log[at - 1][0] if 0 < at <= len(self.log) else NOBODY

    def members(self, index: int) -> Incarnations:
        """Return who are the members by the entries up to `index`."""
        members = list(self.base[2])
        for _, kind, node, incarnation in self.log[: index - self.base[0]]:
            if kind == ADMIT:
                members[node] = incarnation
        return members[0], members[1], members[2]

    def restarted(self) -> ModelNode:
        """Return what is left of it behind a crash."""
        return self._replace(
            commit=self.base[0],
            role=FOLLOWER,
            votes=0,
            match=(0, 0, 0),
            asked=0,
            answers=(0, 0, 0),
            answers_term=0,
            read=None,
            copy=None,
        )


class Left(NamedTuple):
    """What may still happen: each a bound of the search."""

    terms: int = 0
    writes: int = 0
    wipes: int = 0
    twins: int = 0
    crashes: int = 0
    reads: int = 0
    compactions: int = 0
    copies: int = 0


class ModelState(NamedTuple):
    """The whole state.

    `nodes`: at TWIN, if there is one, the old process whose name (`twin_of`) a new one has taken.
    `committed`: what was ever acknowledged, `committed_in`: in which terms. `leaders`: by term.
    """

    nodes: tuple[ModelNode, ...]
    replies: frozenset[Message] = frozenset()
    committed: tuple[Entry, ...] = ()
    committed_in: tuple[int, ...] = ()
    leaders: tuple[int, ...] = ()
    left: Left = Left()
    twin_of: int = NOBODY

    def name(self, place: int) -> int:
        """Return the name of the process at a place."""
        return self.twin_of if place == TWIN else place

    def called(self, place: int) -> str:
        """Return what a trace calls it."""
        return f"the old {NAMES[self.twin_of]}" if place == TWIN else NAMES[place]


def founded(left: Left) -> ModelState:
    """Return a cluster of three members whose logs are empty."""
    node = ModelNode(started=True, founding=(0, 0, 0))
    return ModelState((node, node, node), leaders=(NOBODY,) * left.terms, left=left)


def unfounded(left: Left) -> ModelState:
    """Return three empty nodes."""
    return ModelState(
        (ModelNode(), ModelNode(), ModelNode()), leaders=(NOBODY,) * left.terms, left=left
    )


@dataclass(frozen=True, slots=True)
class Model:
    """Every step by the rules but those that are switched `off`."""

    off: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        assert self.off <= RULES.keys(), self.off

    def _holds(self, rule: str) -> bool:
        return rule not in self.off

    def steps(self, world: ModelState) -> Iterator[Step]:
        """Yield every step from a state, with the state behind it. Raises Violation."""
        left = world.left
        for me, node in enumerate(world.nodes):
            called = world.called(me)
            if left.wipes and me != TWIN and _are_others_whole(world, me):
                wiped = ModelNode(node.incarnation + 1)
                after = left._replace(wipes=left.wipes - 1)
                yield f"{called} is wiped", _with(world, me, wiped, left=after)
            if left.twins and me != TWIN and node.started and _are_others_whole(world, me):
                yield f"a second {called} is started, empty", _doubled(world, me)
            if not node.started:
                yield from self._of_a_fresh_node(world, me)
                continue
            if left.crashes:
                after = left._replace(crashes=left.crashes - 1)
                yield f"{called} starts again", _with(world, me, node.restarted(), left=after)
            if left.compactions and node.commit > node.base[0]:
                after = left._replace(compactions=left.compactions - 1)
                yield f"{called} compacts", _with(world, me, _compacted(node), left=after)
            if (
                node.role != LEADER
                and node.term < len(world.leaders)
                and self._may_campaign(world.name(me), node)
            ):
                yield f"{called} campaigns", _with(world, me, _campaigning(world, me))
            for other in range(len(world.nodes)):
                if world.name(other) != world.name(me):
                    yield from self._between(world, me, other)
            if node.role == LEADER:
                yield from self._of_a_leader(world, me)
        for message in world.replies:
            yield self._taken(world, message)

    def without_what_is_too_late(self, world: ModelState) -> ModelState:
        """Leave out replies that can change nothing any more: terms grow, a role ends for good."""
        due = frozenset(reply for reply in world.replies if self._is_due(world, reply))
        return world if len(due) == len(world.replies) else world._replace(replies=due)

    def _is_due(self, world: ModelState, reply: Message) -> bool:
        kind, term, me, sender, _, _, number = reply
        node, sender = world.nodes[me], world.name(sender)
        if not node.started:
            return False
        if kind == "vote":
            return term == node.term and node.role == CANDIDATE and not node.votes & 1 << sender
        if kind == "acknowledgment":
            return term == node.term and node.role == LEADER and number > node.match[sender]
        if self._holds("count-own-term"):
            return term == node.term and node.role == LEADER and number > node.answers[sender]
        return True

    # --- becoming a member --------------------------------------------------------------------

    def _of_a_fresh_node(self, world: ModelState, me: int) -> Iterator[Step]:
        node, nodes = world.nodes[me], world.nodes
        others = [other for other in NODES if other != me]
        if not self._holds("fresh-is-silent") and node.incarnation:
            yield f"{NAMES[me]} takes part again", _with(world, me, node._replace(started=True))
        may_found = me == 0 or not self._holds("smallest-founds")
        views = _replaced(node.views, me, node.incarnation)
        if may_found and NOBODY not in views:
            yield f"{NAMES[me]} founds", _with(world, me, _founder(node, views))
        for other in others:
            peer = nodes[other]
            is_seen = not peer.started or not self._holds("founders-are-fresh")
            view = peer.incarnation if is_seen else NOBODY
            if may_found and node.views[other] != view:
                heard = node._replace(views=_replaced(node.views, other, view))
                yield f"{NAMES[me]} hears {NAMES[other]}", _with(world, me, heard)
            if peer.founding is not None and peer.founding[me] == node.incarnation:
                member = _founder(node, peer.founding)
                yield f"{NAMES[me]} is a founder, says {NAMES[other]}", _with(world, me, member)
            if peer.started:
                members = peer.members(peer.commit)
                if members[me] == node.incarnation or not self._holds("copy-admits"):
                    members = _replaced(members, me, node.incarnation)
                    base = (peer.commit, peer.term_at(peer.commit), members)
                    term = base[1] if self._holds("term-of-the-copy") else 0
                    member = ModelNode(node.incarnation, True, term, base=base)
                    member = member._replace(admitted_index=base[0], commit=base[0])
                    _check_has_its_admission(world, me, member)
                    yield (
                        f"{NAMES[me]} begins with a copy of {NAMES[other]}'s",
                        _with(world, me, member),
                    )

    def _admission(self, node: ModelNode, name: int) -> tuple[int, int]:
        """Return a member's incarnation as this node has it, and up to where that is known."""
        if self._holds("from-the-entry-on"):
            for at in range(len(node.log), node.commit - node.base[0], -1):
                _, kind, who, incarnation = node.log[at - 1]
                if kind == ADMIT and who == name:
                    return incarnation, node.base[0] + at
        return node.members(node.commit)[name], node.commit

    def _is_linked(self, node: ModelNode, name: int, incarnation: int, admitted_index: int) -> bool:
        if not self._holds("admitted-alone"):
            return True
        if not self._holds("fresh-is-silent"):
            return True  # the name alone counts
        admitted, known = self._admission(node, name)
        return incarnation == admitted or admitted_index > known

    def _are_linked(self, world: ModelState, one: int, other: int) -> bool:
        """Return whether each of two started nodes takes the other for a member."""
        first, second = world.nodes[one], world.nodes[other]
        return self._is_linked(
            first, world.name(other), second.incarnation, second.admitted_index
        ) and self._is_linked(second, world.name(one), first.incarnation, first.admitted_index)

    def _may_campaign(self, name: int, node: ModelNode) -> bool:
        return self._is_linked(node, name, node.incarnation, 0)

    # --- elections ----------------------------------------------------------------------------

    def _between(self, world: ModelState, me: int, other: int) -> Iterator[Step]:
        node, peer = world.nodes[me], world.nodes[other]
        if not peer.started or not self._are_linked(world, me, other):
            return
        who = f"{world.called(me)} -> {world.called(other)}"
        has_voted = bool(node.votes & 1 << world.name(other))
        if node.role == CANDIDATE and peer.term <= node.term and not has_voted:
            yield from self._asked_for_a_vote(world, me, other, who)
        if node.role == LEADER and peer.term <= node.term:
            assert peer.role != LEADER or peer.term < node.term, "seen when it was elected"
            yield from self._appended(world, me, other, node.log, f"{who}: appends all")
            if node.log:
                yield from self._appended(world, me, other, (), f"{who}: appends nothing")
            yield from self._copied(world, me, other, who)
        if node.role == LEADER and node.read is not None:
            yield from self._asked(world, me, other, who)

    def _asked_for_a_vote(self, world: ModelState, me: int, other: int, who: str) -> Iterator[Step]:
        node, peer = world.nodes[me], world.nodes[other]
        after = _in_term(peer, node.term)
        is_newest = (node.term_at(node.last), node.last) >= (peer.term_at(peer.last), peer.last)
        if is_newest and after.vote in (NOBODY, me):
            after = after._replace(vote=me)
            reply = ("vote", node.term, me, other, peer.incarnation, peer.admitted_index, 0)
            yield f"{who}: gets its vote", _with(world, other, after, reply)
        elif after != peer:
            yield f"{who}: gets no vote", _with(world, other, after)

    def _taken(self, world: ModelState, message: Message) -> Step:
        """Return the step in which a reply comes."""
        kind, term, me, sender, incarnation, admitted_index, number = message
        node = world.nodes[me]
        rest = world._replace(replies=world.replies - {message})
        what = f"{world.called(me)} takes {world.called(sender)}'s {kind} of term {term}"
        sender = world.name(sender)
        if not node.started or not self._is_linked(node, sender, incarnation, admitted_index):
            return f"{what}, from no member", rest
        if kind == "vote" and node.role == CANDIDATE and term == node.term:
            node = node._replace(votes=node.votes | 1 << sender)
            if node.votes.bit_count() >= MAJORITY:
                return f"{what}, and leads", self._elected(rest, me, node)
            return what, _with(rest, me, node)
        if kind == "acknowledgment" and node.role == LEADER and term == node.term:
            match = _replaced(node.match, sender, max(node.match[sender], number))
            return f"{what} up to {number}", self._advanced(rest, me, node._replace(match=match))
        is_counted = term == node.term or not self._holds("count-own-term")
        if kind == "answer" and node.role == LEADER and is_counted:
            answers = _replaced(node.answers, sender, max(node.answers[sender], number))
            return f"{what} to {number}", _with(rest, me, node._replace(answers=answers))
        return f"{what}, too late", rest

    def _elected(self, world: ModelState, me: int, node: ModelNode) -> ModelState:
        called = world.called(me)
        if world.leaders[node.term - 1] not in (NOBODY, me):
            raise Violation(f"{called} leads, and term {node.term} has two leaders")
        due = sum(term < node.term for term in world.committed_in)
        _check_holds(world.committed, node, due, f"{called} leads, and lacks a committed entry")
        leaders = (*world.leaders[: node.term - 1], me, *world.leaders[node.term :])
        node = node._replace(
            role=LEADER,
            votes=0,
            match=(0, 0, 0),
            read=None,
            log=(*node.log, (node.term, NO_OP, NOBODY, 0)),
        )
        return _with(world._replace(leaders=leaders), me, node)

    # --- appends ------------------------------------------------------------------------------

    def _appended(
        self, world: ModelState, me: int, other: int, entries: tuple[Entry, ...], what: str
    ) -> Iterator[Step]:
        """The leader's entries behind its base reach a follower, all or none of them."""
        node, peer = world.nodes[me], world.nodes[other]
        after = _in_term(peer, node.term)._replace(role=FOLLOWER)
        start = node.base[0]
        if peer.base[0] < start and peer.term_at(start) != node.base[1]:
            if after != peer:
                yield f"{what}, which do not fit", _with(world, other, after)
            return
        log = list(after.log)
        for number, entry in enumerate(entries):
            at = start + number - after.base[0]  # in its log
            if at < 0:
                continue  # its store has it
            if at < len(log) and log[at][0] != entry[0]:
                if start + number + 1 <= after.commit:
                    raise Violation(f"{world.called(other)} replaces a committed entry")
                del log[at:]
            if at == len(log):
                log.append(entry)
        proved = start + len(entries)
        after = after._replace(log=tuple(log))
        certain = proved if self._holds("commit-proved") else after.last
        after = after._replace(commit=max(after.commit, min(node.commit, certain)))
        _check_holds(
            world.committed, after, after.commit, f"{world.called(other)} applies another entry"
        )
        number = proved if self._holds("acknowledge-proved") else after.last
        reply = _reply("acknowledgment", node.term, me, other, peer, number)
        yield what, _with(world, other, after, reply)

    def _advanced(self, world: ModelState, me: int, node: ModelNode) -> ModelState:
        """Commit what a majority has, if it is of the leader's own term."""
        own = world.name(me)
        for index in range(node.last, node.commit, -1):
            holders = 1 + sum(node.match[other] >= index for other in NODES if other != own)
            if holders >= MAJORITY and node.term_at(index) == node.term:
                _check_holds(
                    world.committed, node, index, f"{world.called(me)} commits another entry"
                )
                if index > len(world.committed):
                    new = node.log[len(world.committed) - node.base[0] : index - node.base[0]]
                    world = world._replace(
                        committed=world.committed + new,
                        committed_in=world.committed_in + (node.term,) * len(new),
                    )
                return _with(world, me, node._replace(commit=index))
        return _with(world, me, node)

    def _serves(self, node: ModelNode) -> bool:
        if not self._holds("own-no-op"):
            return True
        return node.commit > 0 and node.term_at(node.commit) == node.term

    def _of_a_leader(self, world: ModelState, me: int) -> Iterator[Step]:
        node, left, called = world.nodes[me], world.left, world.called(me)
        if not self._serves(node):
            return
        if left.writes:
            entry = (node.term, WRITE, NOBODY, 0)
            after = left._replace(writes=left.writes - 1)
            appended = node._replace(log=(*node.log, entry))
            yield f"{called} takes a write", _with(world, me, appended, left=after)
        for other in NODES:
            if other != world.name(me) and not world.nodes[other].started:
                yield from self._admits(world, me, other)
        if left.reads and node.read is None:
            after = left._replace(reads=left.reads - 1)
            yield (
                f"{called} takes a read",
                _with(world, me, self._reading(world, node), left=after),
            )
        if node.read is not None and self._has_answers(world.name(me), node):
            if node.commit < node.read[0]:
                raise Violation(f"{called} serves a stale read")
            yield f"{called} serves its read", _with(world, me, node._replace(read=None))

    # --- readmission --------------------------------------------------------------------------

    def _admits(self, world: ModelState, me: int, other: int) -> Iterator[Step]:
        node, incarnation = world.nodes[me], world.nodes[other].incarnation
        admitted, _ = self._admission(node, other)
        is_settled = node.members(node.commit)[other] == admitted
        is_noted = (node.term, ADMIT, other, incarnation) in node.log
        if incarnation == admitted or not is_settled or is_noted:
            return
        start = next(
            at for at in range(node.base[0], node.last + 1) if node.term_at(at) == node.term
        )
        third = 3 - world.name(me) - other
        holds = world.nodes[third].started and self._are_linked(world, me, third)
        if not holds or node.match[third] < start:
            return
        match = _replaced(node.match, other, 0) if self._holds("forget") else node.match
        log = (*node.log, (node.term, ADMIT, other, incarnation))
        after = node._replace(log=log, match=match)
        yield f"{world.called(me)} admits {NAMES[other]} anew", self._advanced(world, me, after)

    # --- reads --------------------------------------------------------------------------------

    def _reading(self, world: ModelState, node: ModelNode) -> ModelNode:
        """Return a leader with a read, which has to see all that was acknowledged before."""
        answers = node.answers
        if node.answers_term != node.term and self._holds("count-own-term"):
            answers = (0, 0, 0)
        asked = node.asked + 1 if self._holds("asked-after") else max(1, node.asked)
        need = len(world.committed)
        return node._replace(
            answers=answers, answers_term=node.term, asked=asked, read=(need, asked)
        )

    def _asked(self, world: ModelState, me: int, other: int, who: str) -> Iterator[Step]:
        node, peer = world.nodes[me], world.nodes[other]
        is_in_term = peer.term == node.term or not self._holds("answer-own-term")
        if is_in_term and peer.role != LEADER and node.answers[world.name(other)] < node.asked:
            reply = _reply("answer", node.term, me, other, peer, node.asked)
            if reply not in world.replies:
                yield f"{who}: asks {node.asked}", _with(world, other, peer, reply)

    def _has_answers(self, name: int, node: ModelNode) -> bool:
        assert node.read is not None, node
        majority = MAJORITY if self._holds("answers-of-a-majority") else MAJORITY - 1
        answered = sum(node.answers[other] >= node.read[1] for other in NODES if other != name)
        return 1 + answered >= majority

    # --- copies -------------------------------------------------------------------------------

    def _copied(self, world: ModelState, me: int, other: int, who: str) -> Iterator[Step]:
        """A follower pulls a copy of the leader's store, or installs the one that it has."""
        node, peer, left = world.nodes[me], world.nodes[other], world.left
        if left.copies and node.commit > peer.commit:
            copy = (node.commit, node.term_at(node.commit), node.members(node.commit))
            if copy != peer.copy:
                after = left._replace(copies=left.copies - 1)
                pulled = peer._replace(copy=copy)
                yield f"{who}: is copied up to {copy[0]}", _with(world, other, pulled, left=after)
        copy_ = peer.copy
        if copy_ is None or (copy_[0] <= peer.commit and self._holds("copy-is-newer")):
            return
        after_ = _in_term(peer, node.term)._replace(role=FOLLOWER)
        agrees = peer.term_at(copy_[0]) == copy_[1] and self._holds("copy-keeps-the-log")
        log = after_.log[copy_[0] - after_.base[0] :] if agrees else ()
        if copy_[0] < peer.commit:
            raise Violation(f"{world.called(other)}'s store goes back")
        after_ = after_._replace(base=copy_, log=log, commit=copy_[0], copy=None)
        number = copy_[0] if self._holds("acknowledge-proved") else after_.last
        reply = _reply("acknowledgment", node.term, me, other, peer, number)
        yield f"{who}: installs its copy", _with(world, other, after_, reply)


# --- parts of states ----------------------------------------------------------------------------


def _with(
    world: ModelState,
    me: int,
    node: ModelNode,
    reply: Message | None = None,
    left: Left | None = None,
) -> ModelState:
    nodes = world.nodes
    replies = world.replies if reply is None else world.replies | {reply}
    if node is nodes[me] and left is None:
        return world._replace(replies=replies)
    return ModelState(
        (*nodes[:me], node, *nodes[me + 1 :]),
        replies,
        world.committed,
        world.committed_in,
        world.leaders,
        world.left if left is None else left,
        world.twin_of,
    )


def _doubled(world: ModelState, me: int) -> ModelState:
    """Return a second process, with an empty directory, in a node's place; the first one lives."""
    old = world.nodes[me]
    after = _with(world, me, ModelNode(old.incarnation + 1), left=world.left._replace(twins=0))
    return after._replace(nodes=(*after.nodes, old), twin_of=me)


def _reply(kind: str, term: int, me: int, sender: int, peer: ModelNode, number: int) -> Message:
    return kind, term, me, sender, peer.incarnation, peer.admitted_index, number


def _replaced(row: tuple[int, int, int], at: int, value: int) -> tuple[int, int, int]:
    if row[at] == value:
        return row
    return tuple(value if place == at else each for place, each in enumerate(row))  # type: ignore[return-value]


def _founder(node: ModelNode, founding: Incarnations) -> ModelNode:
    return ModelNode(node.incarnation, True, base=(0, 0, founding), founding=founding)


def _in_term(node: ModelNode, term: int) -> ModelNode:
    """Return the node once it has heard of a term."""
    if node.term >= term:
        return node
    return node._replace(term=term, vote=NOBODY, role=FOLLOWER, votes=0, match=(0, 0, 0), read=None)


def _campaigning(world: ModelState, me: int) -> ModelNode:
    node = world.nodes[me]
    own = 1 << world.name(me)
    return node._replace(term=node.term + 1, vote=me, role=CANDIDATE, votes=own)


def _compacted(node: ModelNode) -> ModelNode:
    base = (node.commit, node.term_at(node.commit), node.members(node.commit))
    return node._replace(base=base, log=node.log[node.commit - node.base[0] :])


def _are_others_whole(world: ModelState, me: int) -> bool:
    """Return whether no other node has lost its disk and is not back: one loss at a time."""
    nodes = (world.nodes[other] for other in NODES if other != me)
    return world.twin_of == NOBODY and all(node.started or node.incarnation == 0 for node in nodes)


# --- invariants ---------------------------------------------------------------------------------


def _check_holds(committed: tuple[Entry, ...], node: ModelNode, index: int, what: str) -> None:
    """Check that a node has what was committed up to `index`."""
    base = node.base[0]
    if base > len(committed) or node.last < min(index, len(committed)):
        raise Violation(what)
    known = committed[base : min(index, len(committed))]
    if node.log[: len(known)] != known:
        raise Violation(what)


def _check_has_its_admission(world: ModelState, me: int, node: ModelNode) -> None:
    """Check that a readmitted node has the entry that admits it, and all before."""
    for index, (_, kind, who, incarnation) in enumerate(world.committed, 1):
        is_its_own = kind == ADMIT and (who, incarnation) == (me, node.incarnation)
        if is_its_own and node.base[0] < index:
            raise Violation(f"{NAMES[me]} lacks the entry that admits it")
