"""Who belongs to the cluster: founding, and the readmission of wiped nodes (rule 26).

What lives here: decisions from what the peers' hellos say. What must not: sockets, files, Raft.
The reasoning is in docs/decisions/0003-wiped-nodes.md.

A node with an empty directory is *fresh*: it neither votes nor acknowledges. It becomes a member in
one of three ways: as the founder, which has seen every other member fresh; by a founding set that
names its incarnation; or by a copy of the store in which an Admit entry names its incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cluster.identity import Identity
from cluster.levels import LEVEL_FIRST, Build
from cluster.messages import PROTOCOL_VERSION, Extension, Hello

UNNAMED: Final = ""
"""The incarnation of a member that a recovered cluster has not named yet; no directory has it."""

Hellos = Mapping[str, Hello | None]


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


def is_linked(hello: Hello | None, admitted: str | None, applied_index: int) -> bool:
    """Return whether a peer is a member to this node, which has applied up to `applied_index`.

    `admitted`: the incarnation admitted at that index. A started node whose admission is later than
    that is a member too: it could not have started had the entry not been committed.
    """
    if hello is None or hello.fresh:
        return False
    return hello.incarnation == admitted or hello.admitted_index > applied_index


def to_admit(hellos: Hellos, admitted: Mapping[str, str]) -> dict[str, str]:
    """Return the incarnations of members that came back with an empty directory."""
    return {
        name: hello.incarnation
        for name, hello in hellos.items()
        if hello is not None and hello.fresh and hello.incarnation != admitted.get(name)
    }
