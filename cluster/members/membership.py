"""Who belongs to the cluster: founding, and the readmission of wiped nodes (rule 26).

What lives here: decisions from what the peers' hellos say, from who is heard, and from what stands
in the log. What must not: sockets, files, clocks, Raft.
The reasoning is in docs/decisions/0003-wiped-nodes.md.

A node with an empty directory is *fresh*: it neither votes nor acknowledges. It becomes a member in
one of three ways: as the founder, which has seen every other member fresh; by a founding set that
names its incarnation; or by a copy of the store in which an Admit entry names its incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cluster.members.identity import Identity
from cluster.store import commands
from cluster.store.commands import Admit, DamagedEntry, Operation, Stamp
from cluster.wire.levels import LEVEL_FIRST, Build
from cluster.wire.messages import PROTOCOL_VERSION, Extension, Hello

UNNAMED: Final = ""
"""The incarnation of a member that a recovered cluster has not named yet; no directory has it."""

Hellos = Mapping[str, Hello | None]
ADMIT_BYTES_MAX: Final = 512  # an Admit stands alone in its entry: two names and its frame
_ADMIT_MARK: Final = b'["M",'  # looked for before an entry is decoded: most have none


class ReplacedError(Exception):
    """Another data directory was admitted under this node's name; this one must not go on."""


def check_not_replaced(identity: Identity, members: Mapping[str, str]) -> None:
    """Raise ReplacedError if `members` admits another incarnation under this node's name."""
    admitted = members[identity.node]
    if admitted != identity.incarnation:
        raise ReplacedError(
            f"another data directory ({admitted}) was admitted as {identity.node}; "
            f"this one ({identity.incarnation}) must not take part any more"
        )


def hello_of(
    identity: Identity, members: Sequence[str], build: Build, level: int = LEVEL_FIRST
) -> Hello:
    """Return what a node with this identity and program, at that level, says to its peers."""
    founding = None if identity.founding is None else dict(identity.founding)
    return Hello(
        PROTOCOL_VERSION,
        identity.cluster_id,
        identity.node,
        identity.incarnation,
        tuple(sorted(members)),
        not identity.started,
        founding,
        identity.admitted_index,
        Extension(build, level),
    )


def founding_set(name: str, incarnation: str, hellos: Hellos) -> dict[str, str] | None:
    """Return the founding incarnations that make this fresh node a member, None if there are none.

    `hellos`: what each other member said on its present connection, None without one. Only the
    node with the smallest name founds, so that there is never more than one founding set.
    """
    for hello in hellos.values():
        if hello is not None and hello.founding and hello.founding.get(name) == incarnation:
            return dict(hello.founding)
    if any(name > other for other in hellos):
        return None
    founding = {name: incarnation}
    for other, hello in hellos.items():
        if hello is None or not hello.fresh:
            return None
        founding[other] = hello.incarnation
    return founding


def waited_for(members: Mapping[str, str], hellos: Hellos) -> dict[str, str]:
    """Return the members that a recovered cluster has not named and can't name yet, and why.

    `members`: as they stand in the one node that was recovered. It names the others at once, when
    each is connected and fresh: to name fewer would leave those who come later to a majority that
    one more loss ends.
    """
    return {
        name: "not connected" if hello is None else "its data directory is not empty"
        for name, hello in ((name, hellos.get(name)) for name in members)
        if members[name] == UNNAMED and (hello is None or not hello.fresh)
    }


def named_members(members: Mapping[str, str], hellos: Hellos) -> dict[str, str] | None:
    """Return a recovered cluster's members once all can be named, None before and after.

    There is one node that was recovered, and it does so once: from then on members change by
    entries of the log. Nobody is a member by it before that is on this node's disk.
    """
    if UNNAMED not in members.values() or waited_for(members, hellos):
        return None
    return {
        name: incarnation if hello is None or incarnation != UNNAMED else hello.incarnation
        for name, incarnation, hello in ((*pair, hellos.get(pair[0])) for pair in members.items())
    }


def is_linked(hello: Hello | None, admitted: str | None, known_index: int) -> bool:
    """Return whether a peer is a member to this node, which knows the log up to `known_index`.

    `admitted`: the incarnation that stands there. A started node whose admission is later than
    that is a member too: it could not have started had the entry not been committed.
    """
    if hello is None or hello.fresh:
        return False
    return hello.incarnation == admitted or hello.admitted_index > known_index


@dataclass(frozen=True, slots=True)
class Roll:
    """Who the members are to one node.

    `newest`: by the newest entries of its log, applied or not. `applied`: at `index`, which is
    committed, so that nothing takes it back.
    """

    newest: Mapping[str, str] = field(default_factory=dict)
    applied: Mapping[str, str] = field(default_factory=dict)
    index: int = 0

    def eviction(self, hello: Hello) -> str:
        """Return why who says this is a member no more, "" if it is, or never was one."""
        admitted = self.applied.get(hello.node)
        if not admitted or hello.fresh or is_linked(hello, admitted, self.index):
            return ""
        return (
            f"evicted: readmitted as incarnation {admitted} was another data directory of "
            f"{hello.node}; this one, incarnation {hello.incarnation}, must not take part any more"
        )


def to_admit(hellos: Hellos, admitted: Mapping[str, str]) -> dict[str, str]:
    """Return the incarnations of members that came back with an empty directory."""
    return {
        name: hello.incarnation
        for name, hello in hellos.items()
        if hello is not None and hello.fresh and hello.incarnation != admitted.get(name)
    }


def obstacle(
    name: str,
    admitted: str,
    silent_s: float,
    takeover_s: float,
    holders: Collection[str],
    majority: int,
) -> str:
    """Return why a leader must not readmit `name` under a new incarnation yet, "" if it may.

    `silent_s`: for how long neither the leader nor anybody it hears has heard the incarnation
    `admitted`. `holders`: the members, the leader included, that are heard and hold the log. An
    admitted incarnation counts no more, and its successor not yet: a majority must remain.
    """
    if silent_s < takeover_s:
        return (
            f"{name} (incarnation {admitted}) was heard {silent_s:.1f} s ago; it has to be silent "
            f"for {takeover_s:.1f} s"
        )
    left = sorted(set(holders) - {name})
    if len(left) < majority:
        return (
            f"without {name} only {', '.join(left)} can be reached and have caught up; the "
            f"cluster needs {majority}"
        )
    return ""


@dataclass
class PendingAdmissions:
    """The admissions that stand in this node's log and are not applied yet.

    A new member list counts from the entry on, as in the Raft thesis (4.1), not from its
    application: whoever has the entry neither counts the old incarnation's votes and
    acknowledgments, nor campaigns as it. Else a leader could be elected, or an entry committed, by
    an incarnation that a majority has replaced.

    `level_max`: of the entries that this node's program reads.
    """

    level_max: int
    _entries: dict[int, Admit] = field(default_factory=dict)

    def note(
        self, index: int, command: bytes, made_of: tuple[Stamp, Sequence[Operation]] | None = None
    ) -> bool:
        """Take note of an entry that was appended; True if what is pending changed by it.

        `command`: type byte and payload; `made_of`: the stamp and the operations that this was made
        of, where they are at hand. An entry at `index` replaces all from there on.
        """
        replaced = [each for each in self._entries if each >= index]
        for each in replaced:
            del self._entries[each]
        admit = _admit_in(command, made_of, self.level_max)
        if admit is not None:
            self._entries[index] = admit
        return admit is not None or bool(replaced)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def applied(self, index: int) -> None:
        """Forget what is applied up to `index`."""
        if self._entries:
            self._entries = {at: each for at, each in self._entries.items() if at > index}

    def newest(self, name: str, last_index: int) -> tuple[int, str] | None:
        """Return (index, incarnation) of the newest admission of `name` up to `last_index`."""
        found = [at for at, each in self._entries.items() if each.node == name and at <= last_index]
        return (max(found), self._entries[max(found)].incarnation) if found else None


@dataclass
class PendingRaises:
    """The entries of this node's log that need a higher level than its store's (rule 30)."""

    _entries: list[tuple[int, int, int]] = field(default_factory=list)  # index, term, level

    def note(self, index: int, term: int, level: int) -> None:
        """Take note of an entry that needs a higher level than any before it."""
        self._entries.append((index, term, level))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def log_level(
        self, level: int, applied_index: int, term_at: Callable[[int], int | None]
    ) -> int:
        """Return the lowest level whose builds can read all of this node's log.

        `level`: the store's, which has applied all up to `applied_index`. `term_at(index)`: the
        log's, None where it has no entry: what was replaced or applied is forgotten.
        """
        if self._entries:
            self._entries = [
                each
                for each in self._entries
                if each[0] > applied_index and term_at(each[0]) == each[1]
            ]
        return max([level, *(needed for _, _, needed in self._entries)])


def _admit_in(
    command: bytes, made_of: tuple[Stamp, Sequence[Operation]] | None, level_max: int
) -> Admit | None:
    if len(command) > ADMIT_BYTES_MAX or _ADMIT_MARK not in command:
        return None
    try:
        _, operations = made_of or commands.decode(command[1:], level_max)
    except DamagedEntry:  # whoever applies it says so
        return None
    return next((each for each in operations if isinstance(each, Admit)), None)
