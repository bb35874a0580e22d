"""How long a pass over a disk may take, for the check that asks for its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos.simulation.checks.scrubbing import PASS_S_MAX, Scrubbing
from cluster.node.scrub import STEP_BYTES

KNOBS = {"scrub_bytes_per_s": 1, "scrub_period_s": 2.0, "job_ms": 1000.0}


def test_what_a_pass_has_read_counts_in_its_time_though_it_has_gone_since(tmp_path: Path) -> None:
    failed: list[tuple[str, str]] = []
    world: Any = SimpleNamespace(now=0.0, knob=KNOBS.get, observers=[], watchers=[])
    invariants: Any = SimpleNamespace(fail=lambda *what: failed.append(what))
    database = tmp_path / "store.db"
    database.write_bytes(bytes(STEP_BYTES))
    under_way = SimpleNamespace(segments=[], offset=0, place=None, size_bytes=4 * STEP_BYTES)
    node: Any = SimpleNamespace(name="a", paused=False, slow_sync_ms=0, clock_rate=1.0)
    node.as_member = SimpleNamespace(
        scrub=SimpleNamespace(_pass=under_way, _database=database),
        journal=SimpleNamespace(sealed=list),
        awaits_worker=False,
    )
    scrubbing = Scrubbing(world, invariants)
    world.now = PASS_S_MAX + KNOBS["scrub_period_s"] + 5.0  # four steps were read, one is left
    scrubbing._turned(node)
    assert not failed
    world.now += 0.1
    scrubbing._turned(node)
    assert failed == [("scrub", "a has read nothing to its end")]
