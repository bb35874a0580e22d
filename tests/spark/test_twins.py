"""Both judges find the same in histories that nobody thought of: by what identifies a row."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.anomalies import CHECKS
from analytics.command.differences import differences
from analytics.command.judging import by_spark, by_twins
from analytics.common import session
from analytics.judge.load import parse
from analytics.twins import TWINS, find_all
from analytics.twins.intake import Malformed, checked, parsed
from analytics.twins.run import read
from tests.judges.agreement import judgement, parts
from tests.judges.chance import RandomRun, random_parts
from tests.judges.detection import sabotaged
from tests.judges.directories import DIRECTORIES, came_to
from tests.judges.history import MadeHistory
from tests.judges.kinds import KINDS, UNKNOWN, Kind
from tests.judges.lines import changed_lines
from tests.judges.together import judged_together
from tests.judges.world import legal
from tests.spark.conftest import Find
from tests.spark.histories import Row

BATCH = 200  # histories of a form; judging one more costs less than starting to
DAMAGED = 100
SIZE = 400


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("is_damaged", [False, True], ids=["as recorded", "damaged"])
def test_spark_and_python_find_the_same_in_random_histories(
    tmp_path: Path, spark: SparkSession, is_damaged: bool
) -> None:
    """From their files, as users judge them: lines that no recorder writes are for the intakes."""
    parts = random_parts(range(DAMAGED if is_damaged else BATCH), is_damaged=is_damaged)
    found = [told.differing for told in judged_together(parts, SIZE, tmp_path / "run")]
    assert [one for differing in found for one in differing] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_long_histories_plans_find_the_same_too(find_as_if_long: Find) -> None:
    histories = [RandomRun(seed).history() for seed in range(BATCH)]
    nodes = [
        (one.run_id, node, node in one.truth)
        for one in histories
        for node in one.document.get("nodes", ())
    ]
    rows = [row for one in histories for row in one.rows]
    found = find_as_if_long(rows, [row for one in histories for row in truth_of(one)], nodes)
    for one in histories:
        disks = {node: was_read for run_id, node, was_read in nodes if run_id == one.run_id}
        expected = judgement(find_all(one.rows, truth_of(one), disks))
        name = f"RandomRun({one.run_id})"
        assert list(differences(name, judgement(found[one.run_id]), expected)) == []


def truth_of(history: MadeHistory) -> list[Row]:
    return [row for rows in history.truth.values() for row in rows]


# --- legal and sabotaged histories ----------------------------------------------------------------

SEED, AGREEMENT_MANY = 1, 400


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_judges_agree_on_legal_and_sabotaged_histories(tmp_path: Path, spark: SparkSession) -> None:
    made = parts(range(SEED, SEED + AGREEMENT_MANY))
    found = [told.differing for told in judged_together(made, AGREEMENT_MANY, tmp_path / "run")]
    assert [one for differing in found for one in differing] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_judges_agree_on_the_directory_of_a_legal_history(
    tmp_path: Path, find: Find, seed: int
) -> None:
    legal(seed).write(tmp_path / "run")
    agree(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind", [one for one in KINDS.values() if one.verdict == UNKNOWN], ids=lambda kind: kind.name
)
def test_judges_agree_on_lines_and_files_that_no_recorder_writes(
    tmp_path: Path, find: Find, kind: Kind
) -> None:
    """Second ends, ends that contradict, nulls, cut files: what is left of them, and the verdict.

    `find` is asked for so that one session is open for all.
    """
    is_fit: Callable[[int], bool] = lambda seed: True  # noqa: E731
    sabotaged(kind, 1, tmp_path / "run", is_fit)
    agree(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DIRECTORIES)
def test_both_judges_come_to_what_a_directory_is_made_for(
    tmp_path: Path, find: Find, name: str
) -> None:
    made = DIRECTORIES[name]()
    made.write(tmp_path)
    assert came_to(by_spark(tmp_path)) == made.expected
    agree(tmp_path)


def agree(directory: Path) -> None:
    found = differences(directory.name, by_spark(directory), by_twins(directory))
    assert list(found) == []


@pytest.mark.slow
def test_both_intakes_call_the_same_lines_malformed(tmp_path: Path, spark: SparkSession) -> None:
    """Each kind of line with one field changed."""
    lines = dict((line, what) for what, line in changed_lines())
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    session.fit(spark, 1, 1)
    read = spark.read.text(str(tmp_path / "lines"), lineSep="\n").coalesce(1)
    by_spark_ = [row.malformed for row in parse(read).select("malformed").collect()]
    pairs = zip(lines.items(), by_spark_, strict=True)
    assert [(what, said) for (line, what), said in pairs if said != is_malformed(line)] == []


def is_malformed(line: bytes) -> bool:
    try:
        checked(parsed(line))
    except Malformed:
        return True
    return False


def test_every_check_has_a_twin_and_is_explained() -> None:
    names = [check.name for check in CHECKS]
    assert names == list(TWINS)
    explained = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
    assert [name for name in names if f"\n| `{name}`" not in explained] == []


def test_random_histories_break_every_promise() -> None:
    """A check that finds nothing in them was not compared with its twin."""
    runs = [RandomRun(seed).history() for seed in range(BATCH)]
    found = [find_all(one.rows, truth_of(one), dict.fromkeys(one.truth, True)) for one in runs]
    counts = {name: sum(bool(each[name]) for each in found) for name in found[0]}
    assert min(counts.values()) >= 5, counts


def test_random_histories_are_of_lines_that_a_recorder_writes() -> None:
    """Else the intakes leave them out, and nothing is compared."""
    for part in random_parts(range(BATCH)):
        assert [row for row in part.history.rows if is_malformed(json.dumps(row).encode())] == []
        assert read(part.history.rows).holes == []
