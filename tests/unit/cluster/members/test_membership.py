"""What membership.py notes of entries; the rest is tests/simulation/test_membership.py."""

from __future__ import annotations

import pytest

from cluster.members.membership import PendingAdmissions
from cluster.store import commands
from cluster.store.commands import Admit
from cluster.wire.levels import BUILD


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
