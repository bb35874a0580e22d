"""Both judges over the same rows: of legal histories, and of those sabotaged several times over.

What lives here: which histories are compared, many runs at once, and by what rows are told apart.
What must not: a rule. Spark looks at all runs of a batch in one job a check, as every row says of
which run it is; so a comparison begins behind the intake, with rows that are whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analytics.differences import Difference, Found, Judgement, differences, identity
from analytics.twins import Evidence, find_all
from tests.judges.detection import SOURCES
from tests.judges.history import RAW, History, Row
from tests.judges.kinds import KINDS
from tests.judges.world import legal

CHANGES_MAX = 3
ROWS_MAX = 120  # of a legal history: Spark's plans grow with what a batch holds in the driver
LEGAL_SHARE = 0.25
assert SOURCES  # they register their kinds

# rows, truth, (run id, node, whether its disk was read) -> run id -> check -> evidence
Find = Callable[..., Mapping[str, Mapping[str, list[Evidence]]]]


@dataclass(frozen=True)
class Case:
    """A history with what was done to it."""

    name: str
    history: History

    @property
    def rows(self) -> list[Row]:
        """Return its events, without torn lines."""
        return [row for row in self.history.rows if RAW not in row]

    @property
    def truth(self) -> list[Row]:
        """Return what its nodes left."""
        return [row for rows in self.history.truth.values() for row in rows]

    @property
    def nodes(self) -> dict[str, bool]:
        """Return of each node whether its disk was read."""
        named = self.history.document.get("nodes", ())
        return {node: node in self.history.truth for node in named}


def case_of(seed: int) -> Case:
    """Return a legal history, or one that breaks up to three sentences at once."""
    rng = random.Random(f"agreement {seed}")
    history = legal(rng.randrange(2**32))
    while len(history.rows) > ROWS_MAX:
        history = legal(rng.randrange(2**32))
    done: list[str] = []
    if rng.random() >= LEGAL_SHARE:
        fit = [kind for kind in KINDS.values() if kind.check and kind.change]
        for kind in rng.sample(fit, rng.randint(1, CHANGES_MAX)):
            before = len(history.scenes)
            if kind.change is not None and kind.change(history, rng):
                done.append(kind.name)
            for number, scene in enumerate(history.scenes[before:], before):
                scene.on_disks()
                apart(history, scene, number)
    name = f"{seed}"
    for row in (*history.rows, *(row for rows in history.truth.values() for row in rows)):
        if RAW not in row:
            row["run_id"] = name
    return Case(f"{name} {'+'.join(done) or 'legal'}", history)


def apart(history: History, scene: Any, number: int) -> None:
    """Let a scene's topic, clients and processes be its own: two of a kind would be one."""
    for row in history.rows:
        if RAW not in row and row["process"].startswith("x-"):
            row["process"] = f"scene{number}-{row['process']}"
            if "client_id" in row:
                row["client_id"] = f"scene{number}-{row['client_id']}"
            for name in ("topic",):
                if str(row.get(name, "")).startswith("x-topic"):
                    row[name] = f"scene{number}-{row[name]}"
            if row.get("host") == "x-host":
                row["host"] = f"scene{number}-host"
            for item in row.get("items", ()):
                item[1] = f"scene{number}-{item[1]}"
    for rows in history.truth.values():
        for row in rows:
            if row.get("topic") == "x-topic":
                row["topic"] = f"scene{number}-{row['topic']}"
                if "producer" in row:
                    row["producer"] = f"scene{number}-{row['producer']}"


def compared(find: Find, seeds: Iterable[int]) -> Iterator[Difference]:
    """Yield where the judges differ, over one batch. `second` is the judge in plain Python."""
    cases = [case_of(seed) for seed in seeds]
    rows = [row for case in cases for row in case.rows]
    truth = [row for case in cases for row in case.truth]
    nodes = [
        (run_id(case), node, is_read) for case in cases for node, is_read in case.nodes.items()
    ]
    by_spark = find(rows, truth, nodes)
    for case in cases:
        first = judgement(by_spark[run_id(case)])
        second = judgement(find_all(case.rows, case.truth, case.nodes))
        yield from differences(case.name, first, second)


def run_id(case: Case) -> str:
    """Return the id that its rows have."""
    return case.name.partition(" ")[0]


def judgement(found: Mapping[str, list[Evidence]]) -> Judgement:
    """Return evidence in the form in which it is compared. No verdict: there is no intake."""
    checks = {}
    for name, rows in found.items():
        identities = frozenset(identity(name, as_witness(row)) for row in rows)
        checks[name] = Found("", len(identities), identities)
    return Judgement("", checks)


def as_witness(row: Evidence) -> dict[str, Any]:
    """Return a row as a witness stands in a report."""
    operations = [{"process": process, "op_id": op_id} for process, op_id in row.operations]
    return {**row._asdict(), "operations": operations}
