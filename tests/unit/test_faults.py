"""What chaos/faults promises: each hits whom it says, and healing undoes it."""

from __future__ import annotations

import random

import pytest

from chaos.faults import FAULTS
from chaos.targets import TargetError, await_leader

DICE = random.Random(1)


class Nodes:
    """A target of three names; `leads` is what STATUS will say next, one answer a question."""

    name = "names"
    nodes = ("n1", "n2", "n3")

    def __init__(self, *leads: str | None) -> None:
        self.leads = list(leads)
        self.living = set(self.nodes)

    def up(self) -> None: ...
    def down(self) -> None: ...
    def endpoints(self) -> dict[str, str]:
        return {}

    def leader(self) -> str | None:
        return self.leads.pop(0) if len(self.leads) > 1 else self.leads[0]

    def kill(self, nodes: list[str]) -> None:
        self.living -= set(nodes)

    def start(self, nodes: list[str]) -> None:
        self.living |= set(nodes)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_known_by_its_name_and_undone_by_its_heal(name: str) -> None:
    target = Nodes("n2")
    fault = FAULTS[name]
    assert fault.name == name
    hit = fault.choose(target, DICE)
    assert target.living == set(target.nodes)  # choosing does nothing yet
    fault.inject(target, hit)
    assert target.living == set(target.nodes) - set(hit) != set(target.nodes)
    fault.heal(target, hit)
    assert target.living == set(target.nodes)


def test_kill_leader_hits_the_leader_alone_and_waits_for_one_to_be_elected() -> None:
    assert FAULTS["kill-leader"].choose(Nodes(None, None, "n3"), DICE) == ["n3"]


def test_kill_all_hits_every_node() -> None:
    assert FAULTS["kill-all"].choose(Nodes(None), DICE) == ["n1", "n2", "n3"]


def test_waiting_for_a_leader_that_never_comes_ends_at_its_bound() -> None:
    with pytest.raises(TargetError, match=r"no leader within 0\.1 s"):
        await_leader(Nodes(None), 0.1)
