"""What the nodes left at a run's end: `DIR/truth/<node>.jsonl`, as rows for the checks.

What lives here: reading those files, and saying what is missing of them. What must not: comparing
nodes, or holding acknowledgments against them (anomalies/).

`run.json` says which nodes there were (`nodes`) and whose disks were to be read (`truth.nodes`). A
run that was never to collect any is judged without; one that was, and has not, is in doubt.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics import schema
from analytics.storage import Place, for_spark
from analytics.verdict import NOT_COLLECTED

# kind -> the fields without which a row of it says nothing.
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "entry": ("index", "term", "digest"),
    "state": ("index", "digest"),
    "held": ("topic", "producer", "first_counter", "count"),
    "topic": ("topic", "last_id", "floor_id"),
    "counter": ("topic", "producer", "counter"),
    "leadership": ("term",),
}


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of a run: `rows` as in `schema.TRUTH`, `nodes` as in `schema.NODES`.

    `members`: all nodes by name, as far as run.json says. `missing`: nodes whose disks were to be
    read and have no file. `is_there`: any has one.
    """

    rows: DataFrame
    nodes: DataFrame
    members: tuple[str, ...] = ()
    is_there: bool = False
    missing: tuple[str, ...] = ()

    @property
    def not_judged(self) -> str | None:
        """Why the checks that rest on the truth can't judge this run; None if they can."""
        return None if self.is_there else NOT_COLLECTED

    def reasons(self) -> tuple[str, ...]:
        """Return why the run can't be called valid; empty if all that was due is there.

        `ack_not_durable` takes a node without a truth to have all, so this makes no evidence up.
        """
        return tuple(
            f"truth of {node} is missing: its disk was to be read" for node in self.missing
        )

    def damage(self) -> tuple[str, ...]:
        """Return what can't be read of what is there; empty if all of it could be."""
        malformed = self.rows.where("malformed").count() if self.is_there else 0
        return (f"{malformed} malformed lines in truth",) if malformed else ()


def none(spark: SparkSession, members: Iterable[str] = ()) -> Truth:
    """Return the truth of a run that has none."""
    return Truth(parsed(_no_lines(spark)), _nodes(spark, []), tuple(sorted(members)))


def truth_of(spark: SparkSession, directory: Place) -> Truth:
    """Return the truth of the run in `directory`."""
    files = files_of(directory)
    run_id, members, expected = _announced(directory / "run.json")
    collected = {file.stem for file in files}
    if not collected and not expected:
        return none(spark, members)
    uris = [for_spark(file) for file in files]
    lines = spark.read.text(uris) if uris else _no_lines(spark)
    names = tuple(sorted(members | collected | expected))
    nodes = [(run_id, node, node in collected) for node in names]
    missing = tuple(sorted(expected - collected))
    return Truth(parsed(lines), _nodes(spark, nodes), names, bool(collected), missing)


def files_of(directory: Place) -> tuple[Place, ...]:
    """Return the files of a run's truth, one a node."""
    return tuple(sorted((directory / "truth").glob("*.jsonl")))


def parsed(lines: DataFrame) -> DataFrame:
    """Return `lines` (`value`: a line's text) as rows of `schema.TRUTH`, with `malformed`."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "unparsed"}
    line = F.from_json("value", f"{schema.TRUTH}, unparsed STRING", options)
    rows = lines.where(F.trim("value") != "").select(line.alias("line")).select("line.*")
    bad = F.col("unparsed").isNotNull() | F.col("run_id").isNull() | F.col("node").isNull()
    return rows.withColumn("malformed", bad | ~_is_whole()).drop("unparsed")


def _is_whole() -> Column:
    """Return whether a row has all that its kind needs."""

    def of(kind: str, names: tuple[str, ...]) -> Column:
        there = (F.col(name).isNotNull() for name in names)
        return (F.col("kind") == kind) & reduce(lambda left, right: left & right, there)

    kinds = (of(*item) for item in NEEDED.items())
    return F.coalesce(reduce(lambda left, right: left | right, kinds), F.lit(False))


def _nodes(spark: SparkSession, nodes: list[tuple[str, str, bool]]) -> DataFrame:
    """Return the table `nodes`, made in the JVM: a worker in Python takes seconds to start."""
    rows = [dict(zip(("run_id", "node", "is_collected"), node, strict=True)) for node in nodes]
    text = F.lit(json.dumps(rows))
    return spark.range(1).select(F.inline(F.from_json(text, f"ARRAY<STRUCT<{schema.NODES}>>")))


def _no_lines(spark: SparkSession) -> DataFrame:
    return spark.range(0).select(F.lit("").alias("value"))


def _announced(run_file: Place) -> tuple[str, set[str], set[str]]:
    """Return run id, members, and nodes whose truth was to be collected, as run.json has them.

    Nothing of a file that can't be read: load.py says so, and that is a reason for doubt already.
    """
    try:
        document: dict[str, Any] = json.loads(run_file.read_bytes())
        members = {str(node) for node in document.get("nodes") or ()}
        truth = document.get("truth") or {}
        return str(document["run_id"]), members, {str(node) for node in truth.get("nodes") or ()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", set(), set()
