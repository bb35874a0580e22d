"""Who belongs to the cluster: founding, and the readmission of wiped nodes (rule 26).

What lives here: decisions from what the peers' hellos say. What must not: sockets, files, Raft.
The reasoning is in docs/decisions/0003-wiped-nodes.md.

A node with an empty directory is *fresh*: it neither votes nor acknowledges. It becomes a member in
one of three ways: as the founder, which has seen every other member fresh; by a founding set that
names its incarnation; or by a copy of the store in which an Admit entry names its incarnation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cluster.identity import Identity
from cluster.messages import PROTOCOL_VERSION, Hello

Hellos = Mapping[str, Hello | None]


def hello_of(identity: Identity, members: Sequence[str]) -> Hello:
    """Return what a node with this identity says of itself to its peers."""
    founding = None if identity.founding is None else dict(identity.founding)
    return Hello(
        PROTOCOL_VERSION,
        identity.cluster_id,
        identity.node,
        identity.incarnation,
        tuple(sorted(members)),
        not identity.started,
        founding,
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


def is_member(hello: Hello | None) -> bool:
    """Return whether a peer runs Raft: it is connected and not fresh."""
    return hello is not None and not hello.fresh


def is_linked(hello: Hello | None, admitted: str | None) -> bool:
    """Return whether a peer's votes and acknowledgments count: its incarnation is admitted."""
    return hello is not None and not hello.fresh and hello.incarnation == admitted


def to_admit(hellos: Hellos, admitted: Mapping[str, str]) -> dict[str, str]:
    """Return the incarnations of members that came back with an empty directory."""
    return {
        name: hello.incarnation
        for name, hello in hellos.items()
        if hello is not None and hello.fresh and hello.incarnation != admitted.get(name)
    }
