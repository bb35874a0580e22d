"""What membership.py notes of entries; the rest is tests/simulation/test_membership.py."""

from __future__ import annotations

import pytest

from cluster.members.identity import Identity
from cluster.members.membership import (
    UNNAMED,
    PendingAdmissions,
    PendingRaises,
    hello_of,
    named_members,
    waited_for,
)
from cluster.store import commands
from cluster.store.commands import Admit
from cluster.wire.levels import BUILD
from cluster.wire.messages import Hello


@pytest.mark.parametrize("level", [1, BUILD.level_max, BUILD.level_max + 1])
def test_an_admission_counts_from_its_entry_on_whatever_level_the_node_s_program_reads(
    level: int,
) -> None:
    """The simulator's, safety seed 102: a program to come noted no entry of its own level."""
    command = b"\0" + bytes([level]) + commands.encode(1, [Admit("c", "new")])[1:]
    pending = PendingAdmissions(level)
    assert pending.note(7, command)
    assert pending.newest("c", 7) == (7, "new")
    assert pending.newest("c", 6) is None
    pending.applied(7)
    assert not pending


def test_an_entry_that_another_leader_s_has_replaced_asks_for_no_level() -> None:
    raises = PendingRaises()
    raises.note(5, 2, 9)
    assert raises.log_level(1, 4, {5: 2}.get) == 9
    assert raises.log_level(1, 4, {5: 3}.get) == 1
    assert not raises


def test_a_recovered_node_names_nobody_while_a_directory_of_the_others_is_not_empty() -> None:
    """As when two nodes were recovered, each as the first of one new cluster."""
    members = {"a": "recovered", "b": UNNAMED, "c": UNNAMED}
    hellos: dict[str, Hello | None] = {
        "b": hello_of(Identity("new", "b", "two"), sorted(members), BUILD),
        "c": hello_of(Identity("new", "c", "three", started=True), sorted(members), BUILD),
    }
    assert waited_for(members, hellos) == {"c": "its data directory is not empty"}
    assert named_members(members, hellos) is None
    hellos["c"] = hello_of(Identity("new", "c", "four"), sorted(members), BUILD)
    assert named_members(members, hellos) == {"a": "recovered", "b": "two", "c": "four"}
