"""One Spark session for all tests of the checks, and the way from rows to evidence."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics import session
from analytics.anomalies import CHECKS, Check
from analytics.load import parse
from analytics.schema import EVIDENCE, NODES
from analytics.tables import build
from analytics.truth import Truth, parsed
from analytics.twins import Evidence
from tests.spark.histories import Row

# run id -> check -> its evidence, sorted
Found = dict[str, dict[str, list[Evidence]]]
Node = tuple[str, str, bool]  # run id, name, whether its disk was read
Find = Callable[..., Found]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session.opened() as opened:
        for name, value in session.INTERPRETED.items():  # from the reading on: no file is large
            opened.conf.set(name, value)
        yield opened


# The compiled plans are tested where histories are big (test_generate.py).
@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in session.INTERPRETED}
    for name, value in session.INTERPRETED.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            spark.conf.set(name, str(kept))


@pytest.fixture(scope="session")
def find(spark: SparkSession) -> Find:
    """Run every check over rows of any number of runs at once: a job a check, not one a run."""

    def lines_of(rows: Iterable[Row]) -> DataFrame:
        return spark.createDataFrame([(json.dumps(row),) for row in rows], "value STRING")

    def find_in(
        rows: list[Row],
        truth: Iterable[Row] = (),
        nodes: Iterable[Node] = (),
        checks: Iterable[Check] = CHECKS,
    ) -> Found:
        with interpreted(spark):
            return evidence_of(rows, truth, nodes, checks)

    def evidence_of(
        rows: list[Row], truth: Iterable[Row], nodes: Iterable[Node], checks: Iterable[Check]
    ) -> Found:
        disks = Truth(parsed(lines_of(truth)), spark.createDataFrame(list(nodes), NODES))
        events = parse(lines_of(rows)).localCheckpoint()
        # As load.py's files do, this cuts the plan, which would grow with every table.
        tables = build(events, disks, lambda _name, table: table.localCheckpoint())
        found: Found = defaultdict(lambda: {check.name: [] for check in CHECKS})
        for check in checks:
            evidence = check.find(tables)
            assert evidence.columns == [name for name, _ in EVIDENCE]
            for row in evidence.collect():
                *fields, operations = row
                key = tuple((one.process, one.op_id) for one in operations)
                found[row.run_id][check.name].append(Evidence._make([*fields, key]))
        spark.catalog.clearCache()
        for checks in found.values():
            for evidence_rows in checks.values():
                evidence_rows.sort(key=repr)
        return found

    return find_in
