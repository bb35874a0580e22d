"""One node's turn. What a cluster of them does is proved in tests/simulation."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.schedules import Stage


def test_a_node_wiped_twice_in_a_row_pulls_no_copy_from_before_its_admission(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, "abc")
    for _ in range(4):
        stage.lab.crash("c")
        stage.lab.wipe("c")
        stage.lab.start("c")
        stage.lab.until(lambda: stage.node("c").raft is not None)
    assert [event for name, event, _ in stage.lab.log if event == "copy_too_old"] == []
