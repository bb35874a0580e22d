"""What applications record is judged by ids and contents: no false alarms, and nothing missed.

Their histories are the clean runs of `histories.py`, as `record=DIR` writes them: digests in place
of who put what, no phases, no tombstones. The twins judge them here; that Spark finds the same is
shown on random histories (test_twins.py) and on a real cluster (tests/cluster/test_recording.py).
"""

import copy
import json
from collections.abc import Callable
from hashlib import blake2b

import pytest
from pyspark.sql import SparkSession

from analytics.anomalies import CHECKS
from analytics.judge.load import parse
from analytics.twins import Evidence, find_all
from tests.spark.histories import Row, RunRecorder, clean_run

NAMED = {check.name for check in CHECKS if check.claim.needs_names}
SEEDS = (1, 2)


def digest(content: object) -> str:
    return blake2b(repr(content).encode(), digest_size=8).hexdigest()


def recorded(
    rows: list[Row], content: Callable[[str, int], object] = lambda *who: who
) -> list[Row]:
    """Return a run as an application would have recorded it; `content`: of (producer, counter)."""
    made = [recorded_row(copy.deepcopy(row), content) for row in rows]
    return [row for row in made if row["f"] not in ("phase", "fault")]


def recorded_row(row: Row, content: Callable[[str, int], object]) -> Row:
    items = row.pop("items", None)
    if row["f"] == "put" and row["type"] == "invoke":
        counters = range(row["counter"], row["counter"] + row["count"])
        row["digests"] = "".join(digest(content(row["client_id"], one)) for one in counters)
    if items:
        whose = [(producer, counter + n) for _, producer, counter, k in items for n in range(k)]
        row["digests"] = "".join(digest(content(*who)) for who in whose)
        row |= {"first_id": items[0][0], "last_id": items[0][0] + row["count"] - 1}
    return row


def answers(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["f"] == "get" and row.get("digests")]


def other_content(rows: list[Row]) -> None:
    """Let one answer bring something else under an id that others saw as well."""
    row = answers(rows)[4]
    row["digests"] = digest("else") + row["digests"][16:]


def delivery_removed(rows: list[Row]) -> None:
    """Take an answer away whose publications were acknowledged, and which the client went past."""
    rows.remove(answers(rows)[2])


def delivered_again(rows: list[Row]) -> None:
    """Let a subscriber that asks from where it is get what it has."""
    owner = answers(rows)[0]["client_id"]
    earlier, later = [row for row in answers(rows) if row["client_id"] == owner][:2]
    for name in ("first_id", "last_id", "count", "digests"):
        later[name] = earlier[name]


PLANTS: dict[str, tuple[Callable[[list[Row]], None], set[str]]] = {
    "inconsistent_id": (other_content, {"inconsistent_id"}),
    "lost": (delivery_removed, {"lost"}),
    "duplicate_delivered": (delivered_again, {"duplicate_delivered", "reordered", "lost"}),
}


def same_contents(*_: object) -> object:
    return "tick"


def histories() -> dict[str, list[Row]]:
    """Return every history of these tests by its run's id."""
    made: dict[str, list[Row]] = {}
    for seed in SEEDS:
        clean = clean_run(seed, 80, "")
        made[f"clean-{seed}"] = recorded(clean)
        made[f"same-{seed}"] = recorded(clean, same_contents)
        for name, (plant, _) in PLANTS.items():
            made[f"{name}-{seed}"] = recorded(clean)
            plant(made[f"{name}-{seed}"])
    made |= {"partly": moved_partly(), "behind": acknowledged_while_asking()}
    return {run_id: [row | {"run_id": run_id} for row in rows] for run_id, rows in made.items()}


def moved_partly() -> list[Row]:
    """Return an application that acknowledges half of an answer and asks on from there."""
    run = RunRecorder()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 4, first_id=1, last_id=4)
    run.get("s", "t", 0, [[1, "p", 1, 4]])
    run.get("s", "t", 2, [[3, "p", 3, 2]])
    return recorded(run.rows)


def acknowledged_while_asking() -> list[Row]:
    """Return an application one thread of which acknowledges while another one's GET is out."""
    run = RunRecorder()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", 4, first_id=1, last_id=4)
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    run.get("s", "t", 0, [[3, "p", 3, 2]])
    return recorded(run.rows)


def judged(evidence: dict[str, list[Evidence]]) -> set[str]:
    """Return the checks that found something, without those that don't judge applications."""
    return {name for name, rows in evidence.items() if rows} - NAMED


def test_a_clean_application_raises_no_alarm_and_equal_contents_neither() -> None:
    for seed in range(50):
        for content in (lambda *who: who, same_contents):
            assert judged(find_all(recorded(clean_run(seed, 150), content))) == set(), seed


@pytest.mark.parametrize("made", [moved_partly, acknowledged_while_asking])
def test_what_an_application_may_do_with_its_cursor_is_no_evidence(
    made: Callable[[], list[Row]],
) -> None:
    assert judged(find_all(made())) == set()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_violation_is_found(name: str, seed: int) -> None:
    _, possible = PLANTS[name]
    kinds = judged(find_all(histories()[f"{name}-{seed}"]))
    assert name in kinds
    assert kinds <= possible


@pytest.mark.slow
@pytest.mark.spark
def test_digests_that_do_not_add_up_make_a_line_malformed(spark: SparkSession) -> None:
    rows = histories()["clean-1"]
    answers(rows)[0]["digests"] += "0"
    answers(rows)[1]["last_id"] += 1
    lines = spark.createDataFrame([(json.dumps(row),) for row in rows], "value STRING")
    assert parse(lines).where("malformed").count() == 2
