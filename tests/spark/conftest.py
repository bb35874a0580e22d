"""One Spark session for all tests of the checks, and the way from rows to evidence."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.anomalies import CHECKS, Check
from analytics.common import session
from analytics.common.schema import EVIDENCE, NODES
from analytics.common.table_store import InDriver, OnDisk
from analytics.intake.truth import Truth, parsed
from analytics.judge.load import parse
from analytics.tables.tables import build
from analytics.tables.tallies import tallies_of
from tests.spark.cases import EvidenceRow
from tests.spark.histories import Row

# run id -> check -> its evidence, sorted
Found = dict[str, dict[str, list[EvidenceRow]]]
Node = tuple[str, str, bool]  # run id, name, whether its disk was read
Find = Callable[..., Found]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session.opened(is_for_short=True) as opened:
        yield opened


@pytest.fixture(scope="session")
def find(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Find:
    """Run every check over rows of any number of runs at once: a job a check, not one a run."""
    return _finder(spark, tmp_path_factory, lines=0)


@pytest.fixture(scope="session")
def find_as_if_long(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Find:
    """Do the same with compiled plans and tables on disk."""
    return _finder(spark, tmp_path_factory, lines=session.LINES_SHORT_MAX + 1)


def _finder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, lines: int) -> Find:
    def lines_of(rows: Iterable[Row]) -> DataFrame:
        return spark.createDataFrame([(json.dumps(row),) for row in rows], "value STRING")

    def find_in(
        rows: list[Row],
        truth: Iterable[Row] = (),
        nodes: Iterable[Node] = (),
        checks: Iterable[Check] = CHECKS,
    ) -> Found:
        cache = tmp_path_factory.mktemp("kept")
        is_short = session.fit(spark, lines, size_bytes=0)
        keeper = InDriver(spark, cache) if is_short else OnDisk(spark, cache, is_fresh=True)
        disks = Truth(parsed(lines_of(truth)), spark.createDataFrame(list(nodes), NODES))
        events = keeper.table("events", parse(lines_of(rows)))
        tables = build(events, keeper.table("tallies", tallies_of(events)), disks, keeper.table)
        found: Found = defaultdict(lambda: {check.name: [] for check in CHECKS})
        for check in checks:
            evidence = check.find(tables)
            assert evidence.columns == [name for name, _ in EVIDENCE]
            for row in evidence.collect():
                *fields, operations = row
                key = tuple((one.process, one.op_id) for one in operations)
                found[row.run_id][check.name].append(EvidenceRow._make([*fields, key]))
        for checks in found.values():
            for evidence_rows in checks.values():
                evidence_rows.sort(key=repr)
        return found

    return find_in
