"""Where the checks look closely: an orderly history leaves nothing in doubt, a broken one does.

That too little is in doubt would show in test_twins.py and test_checks.py: they compare the whole.
"""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.common import intervals
from analytics.generate.scripts import EVERY_PLANT
from analytics.generate.shape import Shape
from analytics.generate.writing import generate
from analytics.judge.load import load
from analytics.tables import suspects
from analytics.tables.tables import Tables

pytestmark = pytest.mark.spark

SHAPE = Shape(operations=8_000, topics=2, producers=2, subscribers=2)


def doubtful(tables: Tables) -> dict[str, int]:
    """Return how many rows each table of doubts has, those without any left out."""
    names = ("sessions", "owners", "buckets", "watches", "timelines")
    counts = {name: getattr(tables.doubts, name).count() for name in names}
    counts["producers"] = tables.producers.count()
    return {name: count for name, count in counts.items() if count}


@pytest.mark.slow
def test_orderly_history_leaves_doubt_only_where_a_leader_died(
    spark: SparkSession, tmp_path: Path
) -> None:
    generate(spark, tmp_path, SHAPE, {})
    tables = load(spark, tmp_path).tables
    # All ids are in one bucket a topic, and in it stand PUTs of unknown outcome.
    assert doubtful(tables) == {"buckets": 2, "watches": 4}


@pytest.mark.slow
def test_history_without_any_fault_leaves_nothing_in_doubt(
    spark: SparkSession, tmp_path: Path
) -> None:
    generate(spark, tmp_path, Shape(operations=600, topics=2, producers=2, subscribers=2), {})
    tables = load(spark, tmp_path).tables
    assert doubtful(tables) == {}
    assert tables.unclear_gets.count() == tables.unclear_places.count() == 0
    assert tables.places.count() == 200


@pytest.mark.slow
def test_violations_are_in_doubt(spark: SparkSession, tmp_path: Path) -> None:
    generate(spark, tmp_path, replace(SHAPE, operations=25_000), dict.fromkeys(EVERY_PLANT, 1))
    found = doubtful(load(spark, tmp_path).tables)
    assert found.keys() == {"sessions", "owners", "buckets", "watches", "timelines", "producers"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_marks_tell_sets_apart_and_not_how_they_were_cut(spark: SparkSession, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    runs = [(rng.choice("pq"), rng.randrange(3), first, first + 9) for first in range(0, 90, 10)]
    cut = [
        piece
        for producer, shift, first, last in runs
        for middle in [rng.randrange(first, last)]
        for piece in ((producer, shift, first, middle), (producer, shift, middle + 1, last))
    ]
    rng.shuffle(cut)
    twice = [*cut, cut[0]]
    moved = [*cut[1:], (cut[0][0], cut[0][1] + 1, *cut[0][2:])]
    whole, same, *others = (marks(spark, rows) for rows in (runs, cut, twice, moved, cut[1:]))
    assert whole == same
    assert whole not in others


def marks(spark: SparkSession, rows: list[tuple[str, int, int, int]]) -> str:
    frame: DataFrame = spark.createDataFrame(
        [("t", *row) for row in rows],
        "topic STRING, producer STRING, shift LONG, first LONG, last LONG",
    )
    split = intervals.split(frame).groupBy("topic", "bucket")
    (row,) = split.agg(suspects.marks().alias("marks")).collect()
    return json.dumps(row.marks.asDict())


@pytest.mark.slow
def test_position_stands_beside_each_run_that_holds_it(spark: SparkSession) -> None:
    runs = [("a", 1, 1), ("a", 60, 200), ("a", 128, 128), ("a", 8_100, 8_300), ("b", 1, 500)]
    pieces = intervals.split(spark.createDataFrame(runs, "topic STRING, first BIGINT, last BIGINT"))
    held = (1, 2, 59, 60, 63, 64, 128, 200, 201, 8_191, 8_192, 8_300, 8_301)
    positions = spark.createDataFrame([("a", id_) for id_ in held], "topic STRING, id BIGINT")
    found = intervals.inside(positions, "id", pieces, ["topic"]).select("topic", "id", "first")
    assert sorted(map(tuple, found.collect())) == [
        *(("a", 1, 1), ("a", 60, 60), ("a", 63, 60), ("a", 64, 60), ("a", 128, 60)),
        *(("a", 128, 128), ("a", 200, 60)),
        *(("a", 8_191, 8_100), ("a", 8_192, 8_192), ("a", 8_300, 8_192)),
    ]
