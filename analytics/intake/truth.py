"""What the nodes left at a run's end: `DIR/truth/<node>.jsonl`, as rows for the checks.

What lives here: reading those files, and saying what is missing of them. What must not: comparing
nodes, or holding acknowledgments against them (anomalies/).

`run.json` says which nodes there were (`nodes`), whose disks were to be read (`truth.nodes`) and
what was written of them (`truth.files`). A run that was never to collect any is judged without; one
that was, and has not, is in doubt. What else stands in `truth/` is not read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.common import schema
from analytics.common.storage import Place, files_in
from analytics.common.table_store import made_of, settled
from analytics.common.verdict import NOT_COLLECTED
from analytics.intake.files import (
    TRUTH,
    against_run_file,
    content_of,
    is_names,
    legible,
    strictly,
)
from analytics.intake.strict import BLOCK, FILE, STRICTLY, VALUE, is_one_object, lines_of, no_lines

# kind -> the fields without which a row of it says nothing.
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "entry": ("index", "term", "digest"),
    "state": ("index", "digest"),
    "held": ("topic", "producer", "first_counter", "count"),
    "topic": ("topic", "last_id", "floor_id"),
    "counter": ("topic", "producer", "counter"),
    "leadership": ("term",),
}
# The least that each of the numbers can be.
NUMBERS: Final[Mapping[str, int]] = {
    "index": 0,
    "term": 0,
    "first_id": 1,
    "first_counter": 1,
    "count": 1,
    "last_id": 0,
    "floor_id": 0,
    "counter": 1,
}
ENDING: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of a run: `rows` as in `schema.TRUTH`, `nodes` as in `schema.NODES`.

    `members`: all nodes by name, as far as run.json says. `missing`: nodes whose disks were to be
    read and have no file. `is_there`: any has one. `unread`: what else stands there. `files`: the
    names of those that were read. `holes`: what is missing of them, or not to be believed, beside
    rows. `unvouched`: why nothing says that all of them is there.
    """

    rows: DataFrame
    nodes: DataFrame
    members: tuple[str, ...] = ()
    is_there: bool = False
    missing: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    holes: tuple[str, ...] = ()
    unvouched: tuple[str, ...] = ()

    @property
    def not_judged(self) -> str | None:
        """Why the checks that rest on the truth can't judge this run; None if they can."""
        return None if self.is_there else NOT_COLLECTED

    def reasons(self) -> tuple[str, ...]:
        """Return why the run can't be called valid; empty if all that was due is there.

        `ack_not_durable` takes a node without a truth to have all, so this makes no evidence up.
        """
        missing = (f"truth of {node} is missing: its disk was to be read" for node in self.missing)
        return (*missing, *self.unvouched)

    def damage(self) -> tuple[str, ...]:
        """Return what is missing, or is not to be believed, of what is there; empty if nothing."""
        is_sound = ~F.col("malformed") & ~F.col("foreign")
        counts = self.rows.groupBy("file").agg(
            F.count_if("malformed").alias("malformed"),
            F.count_if("foreign").alias("foreign"),
            F.count_if(is_sound & (F.col("kind") == "state")).alias("states"),
        )
        of_file = {row["file"]: row for row in counts.collect()} if self.files else {}
        why = "it is of no node whose disk was to be read"
        found = [f"truth/{name} is not read: {why}" for name in self.unread]
        found += self.holes
        for name in self.files:
            row = of_file.get(name)
            said = f"truth/{name}"
            if row is None:
                found.append(f"{said} has no row")
                continue
            if row.malformed:
                found.append(f"{said}: {row.malformed} malformed lines")
            if row.foreign:
                found.append(f"{said}: {row.foreign} rows are of another run or node")
            if not row.states:
                found.append(f"{said} has no state")
        return tuple(found)


def none(spark: SparkSession, members: Iterable[str] = ()) -> Truth:
    """Return the truth of a run that has none."""
    return Truth(parsed(no_lines(spark)), _nodes(spark, []), tuple(sorted(members)))


def truth_of(spark: SparkSession, directory: Place) -> Truth:
    """Return the truth of the run in `directory`."""
    run_id, members, expected, unsaid, said = _announced(directory / "run.json")
    entries = files_of(directory)
    files = [one for one in entries if _node_of(one.name) in expected and one.is_file()]
    due = {f"{node}{ENDING}" for node in expected}
    holes, unvouched = against_run_file(files, said, due)
    holes = (*unsaid, *holes)
    unread = tuple(legible(one.name) for one in entries if one not in files)
    collected = {_node_of(one.name) for one in files}
    lines = lines_of(spark, files) if files else no_lines(spark)
    rows = parsed(lines)
    if run_id:
        is_foreign = F.col("run_id") != run_id
        rows = rows.withColumn("foreign", ~F.col("malformed") & (is_foreign | F.col("foreign")))
    names = tuple(sorted(members | expected))
    nodes = [(run_id, node, node in collected) for node in names]
    missing = tuple(sorted(expected - collected))
    kept = tuple(one.name for one in files)
    every = (settled(rows), _nodes(spark, nodes), names, bool(collected), missing, unread, kept)
    return Truth(*every, holes, unvouched)


def files_of(directory: Place) -> tuple[Place, ...]:
    """Return all that stands where a run's truth is: a file a node, and what does not belong."""
    return files_in(directory / TRUTH, "*")


def _node_of(name: str) -> str:
    """Return whose truth a file of this name is, "" if nobody's."""
    return name.removesuffix(ENDING) if name.endswith(ENDING) else ""


def parsed(lines: DataFrame) -> DataFrame:
    """Return `lines` (`value`: a line's text) as rows of `schema.TRUTH`, with `malformed`.

    `foreign`: of another node than its file, if `lines` have the name of that.
    """
    line = F.from_json("value", f"{schema.TRUTH}, unparsed STRING", STRICTLY)
    strict = is_one_object(schema.texts(schema.TRUTH))
    rows = lines.select(*lines.columns, line.alias("line"), strict.alias("strict")).select(
        *lines.columns, "strict", "line.*"
    )
    bad = F.col("unparsed").isNotNull() | F.col("run_id").isNull() | F.col("node").isNull()
    bad = bad | ~F.coalesce("strict", F.lit(False)) | ~_is_whole() | _is_beyond()
    bad = bad | F.coalesce(_is_impossible(), F.lit(False))
    is_foreign = F.lit(False)
    if FILE in lines.columns:
        is_foreign = F.concat("node", F.lit(ENDING)) != F.col(FILE)
    return (
        rows.withColumn("malformed", F.coalesce(bad, F.lit(True)))
        .withColumn("foreign", ~F.col("malformed") & is_foreign)
        .drop("unparsed", "strict", VALUE, BLOCK)
    )


def sound(rows: DataFrame) -> DataFrame:
    """Return the rows that are to be believed, with the columns of `schema.TRUTH`."""
    kept = rows.where(~F.col("malformed") & ~F.col("foreign"))
    return kept.drop("malformed", "foreign", FILE)


def _is_beyond() -> Column:
    beyond = (~F.col(name).between(least, schema.NUMBER_MAX) for name, least in NUMBERS.items())
    return reduce(
        lambda left, right: left | right, (F.coalesce(one, F.lit(False)) for one in beyond)
    )


def _is_impossible() -> Column:
    """Return whether a row says what no node does: a floor above all ids, a digest of nothing."""
    has_digest = F.col("kind").isin("entry", "state")
    is_topic = F.col("kind") == "topic"
    return (has_digest & (F.col("digest") == "")) | (
        is_topic & (F.col("floor_id") > F.col("last_id"))
    )


def _is_whole() -> Column:
    """Return whether a row has all that its kind needs."""

    def of(kind: str, names: tuple[str, ...]) -> Column:
        there = (F.col(name).isNotNull() for name in names)
        return (F.col("kind") == kind) & reduce(lambda left, right: left & right, there)

    kinds = (of(*item) for item in NEEDED.items())
    return F.coalesce(reduce(lambda left, right: left | right, kinds), F.lit(False))


def _nodes(spark: SparkSession, nodes: list[tuple[str, str, bool]]) -> DataFrame:
    """Return the table `nodes`."""
    rows = [dict(zip(("run_id", "node", "is_collected"), node, strict=True)) for node in nodes]
    return made_of(spark, rows, schema.NODES)


def _announced(run_file: Place) -> tuple[str, set[str], set[str], list[str], object]:
    """Return run id, members, and nodes whose truth was to be collected, as run.json has them;
    what it says of these that can't be read; and what it says of the truth's files.

    Nothing of a file that can't be read: load.py says so, and that is a reason for doubt already.
    """
    try:
        document: dict[str, Any] = strictly(content_of(run_file))
        run_id = str(document["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", set(), set(), [], None
    truth, members = document.get("truth"), document.get("nodes")
    named = truth.get("nodes") if isinstance(truth, dict) else None
    unsaid = []
    if members is not None and not is_names(members):
        unsaid.append("run.json does not say which nodes there were")
    if truth is not None and not is_names(named):
        unsaid.append("run.json does not say whose disks were to be read")
    every = set(members) if is_names(members) else set[str]()
    expected = set(named) if is_names(named) else set[str]()
    files = truth.get("files") if isinstance(truth, dict) else None
    return run_id, every, expected, unsaid, files
