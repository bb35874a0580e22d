"""Histories for both judges: legal ones, and such with up to three sentences broken at once.

What lives here: which histories are compared, and how scenes of one history are kept apart. What
must not: a rule, or a judge's run (together.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from analytics.command.differences import CheckFindings, JudgedRun, identity
from analytics.twins import Evidence
from tests.judges.detection import SOURCES
from tests.judges.history import RAW, MadeHistory
from tests.judges.kinds import KINDS, NoRoom
from tests.judges.merging import MergedPart
from tests.judges.world import legal

CHANGES_MAX = 3
ROWS_MAX = 120  # of a legal history: more of the same says little
LEGAL_SHARE = 0.25
assert SOURCES  # they register their kinds


@dataclass(frozen=True)
class Case:
    """A history; `name` says what was done to it."""

    name: str
    history: MadeHistory


def case_of(seed: int) -> Case:
    """Return a legal history, or one that breaks up to three sentences at once."""
    rng = random.Random(f"agreement {seed}")
    history = legal(rng.randrange(2**32))
    while len(history.rows) > ROWS_MAX:
        history = legal(rng.randrange(2**32))
    done: list[str] = []
    if rng.random() >= LEGAL_SHARE:
        fit = [(kind.name, kind.change) for kind in KINDS.values() if kind.check and kind.change]
        for name, change in rng.sample(fit, rng.randint(1, CHANGES_MAX)):
            before = len(history.scenes)
            with suppress(NoRoom):
                change(history, rng)
                done.append(name)
            for number, scene in enumerate(history.scenes[before:], before):
                scene.on_disks()
                apart(history, scene, number)
    return Case(f"{seed} {'+'.join(done) or 'legal'}", history)


def apart(history: MadeHistory, scene: Any, number: int) -> None:
    """Let a scene's topic, clients and processes be its own: two of a kind would be one."""
    for row in history.rows:
        if RAW not in row and row["process"].startswith("x-"):
            row["process"] = f"scene{number}-{row['process']}"
            if "client_id" in row:
                row["client_id"] = f"scene{number}-{row['client_id']}"
            if str(row.get("topic", "")).startswith("x-topic"):
                row["topic"] = f"scene{number}-{row['topic']}"
            if row.get("host") == "x-host":
                row["host"] = f"scene{number}-host"
            for item in (*row.get("items", ()), *row.get("delayed", ())):
                item[1] = f"scene{number}-{item[1]}"
    for rows in history.truth.values():
        for row in rows:
            if row.get("topic") == "x-topic":
                row["topic"] = f"scene{number}-{row['topic']}"
                if "producer" in row:
                    row["producer"] = f"scene{number}-{row['producer']}"


def parts(seeds: Iterable[int]) -> Iterator[MergedPart]:
    """Yield the histories of these seeds, to be merged."""
    for seed in seeds:
        case = case_of(seed)
        yield MergedPart.of(seed, case.name, case.history)


def judgement(found: Mapping[str, list[Evidence]]) -> JudgedRun:
    """Return evidence in the form in which it is compared. No verdict: there is no intake."""
    checks = {}
    for name, rows in found.items():
        identities = frozenset(identity(name, as_witness(row)) for row in rows)
        checks[name] = CheckFindings("", len(identities), identities)
    return JudgedRun("", checks)


def as_witness(row: Evidence) -> dict[str, Any]:
    """Return a row as a witness stands in a report."""
    operations = [{"process": process, "op_id": op_id} for process, op_id in row.operations]
    return {**row._asdict(), "operations": operations}
