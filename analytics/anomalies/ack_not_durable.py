"""A publication that was acknowledged, or given, and that a majority of nodes does not have."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import OPERATION, evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.garbage import HOLDER, excused, floors_of, taken_of
from analytics.tables.runs import counters_of_places
from analytics.tables.tables import Tables, seen_by

PRODUCER = ("run_id", "topic", "producer")


def ack_not_durable(tables: Tables) -> DataFrame:
    """Find what was acknowledged, or else given, and is not on a majority of the disks; `detail`:
    where not.

    A node has a publication when it has taken its counter, and holds it, under the acknowledged id,
    or has collected its id as garbage. One that was not stored, for nobody subscribed, must still
    have its counter taken. A node whose disk was not read may have all of them.
    """
    lacking = few(_lacking(tables))
    if is_never_any(lacking):
        return lacking.select(*evidence())
    wide = settled(_by_majorities(lacking, tables, [*PRODUCER, "bucket"]))
    id_ = F.when(F.col("first_id") > 0, F.col("counter") - F.col("shift"))
    single = intervals.exploded(lacking.join(wide, [*PRODUCER, "bucket"], "leftsemi"), "counter")
    found = _by_majorities(single.withColumn("id", id_), tables, [*PRODUCER, "counter", "id"])
    return seen_by(few(found), tables, "id", "counter", "sighting").select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            detail=F.concat_ws(" ", F.lit("not on"), F.concat_ws(" ", "absent")),
            operations=F.array(F.coalesce("put", "sighting")),
        )
    )


def _by_majorities(rows: DataFrame, tables: Tables, keys: list[str]) -> DataFrame:
    """Return the `keys` for which so many nodes have rows that the others are no majority."""
    size = tables.nodes.groupBy("run_id").agg(F.count(F.lit(1)).alias("members"))
    absent = rows.groupBy(*keys).agg(
        F.array_sort(F.collect_set("node")).alias("absent"), F.min("put").alias("put")
    )
    others = F.col("members") - F.size("absent")
    return absent.join(F.broadcast(size), "run_id").where(others * 2 <= F.col("members"))


def _wanted(tables: Tables) -> DataFrame:
    """Return the acknowledged counters that each node has to hold, split."""
    puts = tables.uncollected.select(
        *PRODUCER, "first_counter", "last_counter", "first_id",
        (F.col("first_counter") - F.col("first_id")).alias("shift"),
        operation().alias("put"),
    )  # fmt: skip
    puts = puts.unionByName(_given(tables))
    wanted = puts.join(settled(_excuses(puts, tables)), list(PRODUCER)).select(
        *HOLDER, "first_id", "shift", "put",
        F.greatest("first_counter", excused() + 1).alias("first"),
        F.col("last_counter").alias("last"),
    )  # fmt: skip
    return intervals.split(wanted)


def _given(tables: Tables) -> DataFrame:
    """Return what was given and never acknowledged, though somebody tried to put it, as `puts`."""
    seen = counters_of_places(tables.seen_places)
    tried = tables.tried.select(*PRODUCER, "bucket", "first", "last", "outcome")
    unsaid = settled(intervals.uncovered(seen, tried.where(F.col("outcome") == "ok"), PRODUCER))
    others = intervals.merged(tried.where(F.col("outcome") != "ok"), PRODUCER)
    return intervals.common(unsaid, others, PRODUCER).select(
        *PRODUCER,
        F.col("first").alias("first_counter"),
        F.col("last").alias("last_counter"),
        (F.col("first") - F.col("shift")).alias("first_id"),
        "shift",
        F.lit(None).cast(OPERATION).alias("put"),
    )


def _excuses(puts: DataFrame, tables: Tables) -> DataFrame:
    """Return (producer, node, floor, taken): ids collected, and counters taken, up to these."""
    nodes = tables.nodes.where("is_collected").drop("is_collected")
    return (
        puts.select(*PRODUCER).distinct()
        .join(nodes, "run_id")
        .join(floors_of(tables.truth, nodes, tables.asides), ["run_id", "node", "topic"], "left")
        .join(taken_of(tables.truth), list(HOLDER), "left")
        .select(
            *HOLDER,
            F.coalesce("floor", F.lit(0)).alias("floor"),
            F.coalesce("taken", F.lit(-1)).alias("taken"),
        )
    )  # fmt: skip


def _lacking(tables: Tables) -> DataFrame:
    """Return what each node has to hold and does not hold.

    It holds a publication that it has under another id than the acknowledged one as little as one
    above the last id that it has given. The id of what is only in its journal is not known.
    """
    wanted = few(_wanted(tables))
    if is_never_any(wanted):
        return wanted
    held = settled(_held(tables.truth))
    anyhow = held.where(F.col("shift").isNull())
    with_id, without_id = (wanted.where(one) for one in ("first_id > 0", "first_id <= 0"))
    placed = settled(
        intervals.uncovered(with_id, held.where(F.col("shift").isNotNull()), (*HOLDER, "shift"))
    )
    lacked = intervals.uncovered(placed, anyhow, HOLDER)
    return lacked.unionByName(
        intervals.uncovered(without_id, held, HOLDER), allowMissingColumns=True
    )


def _held(truth: DataFrame) -> DataFrame:
    """Return the runs of counters that nodes hold and have taken, split; `shift` null: under an
    unknown id.
    """
    given = (
        truth.where(F.col("kind") == "topic")
        .groupBy("run_id", "node", "topic")
        .agg(F.max("last_id").alias("given_id"))
    )
    id_ = F.when(F.col("first_id") > 0, F.col("first_id"))
    last = F.col("first_counter") + F.col("count") - 1
    held = (
        truth.where(F.col("kind") == "held")
        .drop("last_id")
        .join(given, ["run_id", "node", "topic"], "left")
        .join(taken_of(truth), list(HOLDER))  # what is not taken would be stored again
        .select(
            *HOLDER,
            (F.col("first_counter") - id_).alias("shift"),
            F.col("first_counter").alias("first"),
            F.least(last, "taken", F.col("given_id") + F.col("first_counter") - id_).alias("last"),
        )
    )
    return intervals.split(held)
