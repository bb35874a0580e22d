"""Bugs of upgrades: what is written before every member can read it (rule 30 of docs/raft.md).

What must not live here: what finds them.
"""

from __future__ import annotations

from chaos.simulation.bugs.registry import Patches, bug
from chaos.simulation.world import node
from chaos.simulation.world.builds import NEXT, as_written_by
from cluster.node import linked, member
from cluster.node.member import Member
from cluster.wire.levels import Build


@bug("30: nothing is written above the cluster's level", {"level", "ended"})
def newer_entries_are_written_before_the_raise(patches: Patches) -> None:
    """Write what the leader's program can read, whatever the others' can."""

    def newest(build: Build, payload: bytes, level: int) -> bytes:
        return as_written_by(build, payload, NEXT.level_max)

    patches.attribute(node, "as_written_by", newest)
    patches.attribute(Member, "_raises_to", lambda member, level, operations: True)


@bug("30: who can't read all of a log gets none of it", {"level", "ended"})
def a_log_is_sent_to_who_cannot_read_it(patches: Patches) -> None:
    """Take a member for one whatever its program, while a raise of the level is not applied."""
    patches.attribute(linked, "can_read", lambda hello, log_level: hello is not None)


@bug("30: the level is raised while every member is there", {"level"})
def level_is_raised_without_a_member(patches: Patches) -> None:
    """Raise the level without a look at who is connected, and with which program."""
    patches.attribute(member, "objections", lambda *arguments: [])
