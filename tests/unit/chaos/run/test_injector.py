"""What chaos/run/injector.py promises: faults of one window hit different victims if they can."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chaos.run.injector import Injector, everybody


class Nodes:
    """A target that only has names and a leader."""

    name = "names"
    nodes = ("n1", "n2", "n3")

    def leader(self) -> str:
        return "n2"


def chosen(seed: int, *names: str) -> dict[str, list[str]]:
    target: Any = Nodes()
    pool: Any = None
    return Injector(target, pool, random.Random(seed)).choose(names)


@pytest.mark.parametrize("seed", range(20))
def test_two_faults_of_a_window_hit_two_nodes(seed: int) -> None:
    hit = chosen(seed, "kill-follower", "pause-follower")
    assert len(everybody(hit)) == 2
    assert "n2" not in everybody(hit)


def test_two_faults_of_the_leader_have_no_choice() -> None:
    assert chosen(1, "kill-leader", "pause-leader") == {
        "kill-leader": ["n2"],
        "pause-leader": ["n2"],
    }


def test_the_same_dice_choose_the_same() -> None:
    assert chosen(7, "kill-minority", "pause-follower") == chosen(
        7, "kill-minority", "pause-follower"
    )
