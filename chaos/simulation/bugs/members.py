"""Bugs of snapshots and of membership (rules 24 and 26 of docs/raft.md).

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.members import handshake, membership, peers
from cluster.members.membership import Hellos, PendingAdmissions, Roll
from cluster.members.neighbours import Neighbours
from cluster.node import joining, linked, member
from cluster.node.joining import Joining
from cluster.node.member import Member
from cluster.store.snapshots import Verified
from cluster.wire.messages import Hello, SnapshotRequest

_founding_set: Final = membership.founding_set
_obstacle: Final = membership.obstacle
_rejoin: Final = Joining._rejoin


@bug("24: an offer is accepted once the copy is installed", {"acknowledged", "append", "progress"})
def offers_are_accepted_at_once(patches: Patches) -> None:
    """Tell Raft that a copy was installed when it was only offered."""
    patches.attribute(Member, "_install", lambda node, leader: True)


@bug(
    "26: a wiped node is a new member",
    {"acknowledged", "commit", "digest", "durable", "leaders", "lost", "prefix", "vote"},
)
def wiped_nodes_count_at_once(patches: Patches) -> None:
    """Let an empty node in by the founding set of the others, and hear it whatever it is."""

    def founding_set(name: str, incarnation: str, hellos: Hellos) -> dict[str, str] | None:
        for hello in hellos.values():
            if hello is not None and hello.founding:
                return dict(hello.founding) | {name: incarnation}
        return _founding_set(name, incarnation, hellos)

    def is_linked(hello: Hello | None, *admission: object) -> bool:
        return hello is not None and not hello.fresh

    patches.attribute(joining, "founding_set", founding_set)
    patches.attribute(linked, "is_linked", is_linked)


@bug(
    "26: empty never means new",
    {
        "acknowledged",
        "append",
        "commit",
        "digest",
        "durable",
        "leaders",
        "lost",
        "prefix",
        "progress",
        "vote",
    },
)
def an_empty_founder_founds_again(patches: Patches) -> None:
    """Found a cluster although other members are no longer fresh."""

    def founding_set(name: str, incarnation: str, hellos: Hellos) -> dict[str, str] | None:
        fresh = {
            other: hello and replace(hello, fresh=True, founding=None)
            for other, hello in hellos.items()
        }
        given = _founding_set(name, incarnation, hellos)
        return given or _founding_set(name, incarnation, fresh)

    patches.attribute(joining, "founding_set", founding_set)


@bug("26: a wiped node is readmitted", {"progress"}, mode="live")
def nobody_is_readmitted(patches: Patches) -> None:
    """Propose no admission of a wiped node."""

    def to_admit(hellos: Hellos, admitted: Mapping[str, str]) -> dict[str, str]:
        return {}

    patches.attribute(member, "to_admit", to_admit)


@bug(
    "26: an admitted node has what it was admitted with",
    {"acknowledged", "admitted", "commit", "durable", "ended", "lost", "prefix", "progress"},
)
def admitted_before_it_has_caught_up(patches: Patches) -> None:
    """Take part with any copy of the store, even one from before the admission."""

    def rejoin(node: Joining, copy: Verified, now: float) -> Member | None:
        members = copy.members | {node.identity.node: node.identity.incarnation}
        return _rejoin(node, replace(copy, members=members), now)

    def serve(node: Member, name: str, message: SnapshotRequest) -> None:
        node._server.request(name, message, 0, node._now)

    patches.attribute(Joining, "_rejoin", rejoin)
    patches.attribute(Member, "_take_snapshot_request", serve)


@bug(
    "26: of two processes with one name the one that is heard stays",
    {
        "acknowledged",
        "commit",
        "doubled",
        "durable",
        "hard_state",
        "leaders",
        "lost",
        "prefix",
        "vote",
    },
)
def a_second_process_takes_the_place(patches: Patches) -> None:
    """Let the newest connection in a name have its place, whoever has it."""

    def contest(*_claims: object) -> str:
        return ""

    patches.attribute(handshake, "contest", contest)
    patches.attribute(peers, "contest", contest)


@bug("26: a member is replaced only when it is silent", {"silent"})
def whoever_is_empty_is_admitted_at_once(patches: Patches) -> None:
    """Propose the admission of an empty node whether or not its old incarnation was just heard."""
    patches.attribute(Neighbours, "silent_s", lambda *_arguments: float("inf"))


@bug("26: a member is replaced only while a majority without it holds the log", {"majority"})
def a_majority_need_not_remain(patches: Patches) -> None:
    """Propose the admission of an empty node whoever else can be reached."""

    def of_silence(
        name: str, old: str, silent_s: float, takeover_s: float, holders: object, majority: int
    ) -> str:
        return _obstacle(name, old, silent_s, takeover_s, (), majority=0)

    patches.attribute(member, "obstacle", of_silence)


@bug("26: an admission counts from its entry on", {"commit", "replaced", "vote"})
def an_admission_counts_once_it_is_applied(patches: Patches) -> None:
    """Hear the old incarnation of a member until the entry that replaces it is applied."""
    patches.attribute(PendingAdmissions, "newest", lambda *_arguments: None)


@bug("26: the evicted one learns it", {"evicted"})
def nobody_is_told_that_it_was_evicted(patches: Patches) -> None:
    """Leave a replaced process connected, and unheard."""
    patches.attribute(Roll, "eviction", lambda *_hello: "")
