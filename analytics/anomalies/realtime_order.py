"""Two publications whose ids, or whose times, contradict the order in which they were made."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import evidence, operation
from analytics.common.table_store import few, is_never_any, none_of, settled
from analytics.tables import as_of
from analytics.tables.groups import letters_of
from analytics.tables.order import extents_of, with_first_try
from analytics.tables.runs import one_host, tries_of_puts
from analytics.tables.suspects import PRODUCER, TIMELINE, TOPIC_BUCKET, only
from analytics.tables.tables import Tables, seen_by
from analytics.tables.times import TOPIC, runs_of, times_of

SPOT = (*PRODUCER, "id", "counter")


def realtime_order(tables: Tables) -> DataFrame:
    """Find publications at an id that their topic was known to have reached before they were tried.

    One row a publication: its `id`, and as `other_id` what was known first of those at or above it.
    Or at one that is said to have a smaller time than somebody was told by then, of any topic, or,
    of a dead letter, than what it is of: no `other_id`. A publication counts as sent when it was
    first tried: an earlier try may have stored it. Clocks are compared, so only on one host.
    """
    late = seen_by(tables.late, tables, "id", "counter", "sighting").select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            other_id=F.col("above.value"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            operations=F.array_compact(
                F.array(operation("above.process", "above.op_id"), "sighting")
            ),
        )
    )
    others = _behind_the_clock(tables).unionByName(_older_letters(tables))
    if not is_never_any(tables.arrivals):  # a publication is late once: by its id, or by its time
        both = _arrived_late(tables).unionByName(others)
        row = F.max_by(F.struct(*both.columns), F.coalesce("other_id", F.lit(0))).alias("row")
        others = both.groupBy(*SPOT).agg(row).select("row.*")
    return late.unionByName(others)


def _arrivals(tables: Tables) -> DataFrame:
    """Return what came with a delay, and dead letters, as SPOT (of a letter without producer and
    counter), at, since_ns, due_ns, seen.
    """
    is_letter = F.col("what.producer") == ""
    return tables.arrivals.select(
        *(*TOPIC, "id", "at", "since_ns", "due_ns", "seen"),
        F.when(~is_letter, F.col("what.producer")).alias("producer"),
        F.when(~is_letter, F.col("what.number")).alias("counter"),
    )


def _arrived_late(tables: Tables) -> DataFrame:
    """Find what came with a delay, and dead letters, at an id that their topic had reached: before
    they were put, or (`due`) before their delay was over.
    """
    asks = _arrivals(tables).select(
        *(*SPOT, "seen", "at", "since_ns"),
        *(F.col("due_ns").alias("t_ns"), (F.col("id") - 1).alias("known")),
    )
    marks = only(extents_of(tables.puts, tables.gets, tables.doubts.claims), asks, TOPIC)
    by_then = few(as_of.overtaken(asks, marks, TIMELINE))
    if is_never_any(by_then):
        return by_then.select(*evidence())
    again = by_then.select(*asks.columns).withColumn("t_ns", F.col("since_ns")).distinct()
    before = settled(as_of.overtaken(settled(again), only(marks, again, TOPIC), TIMELINE))
    spots = before.select(*SPOT).distinct()
    same = [F.col(name).eqNullSafe(F.col(f"its_{name}")) for name in SPOT]
    put = spots.select(*(F.col(name).alias(f"its_{name}") for name in SPOT))
    late = before.withColumn("detail", F.lit(""))
    early = by_then.join(put, same, "leftanti").withColumn("detail", F.lit("due"))
    both = late.unionByName(early.select(*late.columns))
    proof = F.max(F.struct("mark", "seen", "detail")).alias("proof")
    found = both.groupBy(*SPOT).agg(proof).select(*SPOT, "proof.*")
    return found.join(tables.late.select(*SPOT), list(SPOT), "leftanti").select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            other_id=F.col("mark.value"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            detail=F.when(F.col("detail") != "", F.col("detail")),
            operations=F.array(operation("mark.process", "mark.op_id"), "seen"),
        )
    )


def _older_letters(tables: Tables) -> DataFrame:
    """Find dead letters that are said to have a smaller time than what they are of."""
    if is_never_any(tables.told):
        return none_of(tables.told.select(*evidence(run_id=F.col("run_id"))))
    letters = letters_of(tables.told, tables.worked)
    times = settled(times_of(runs_of(tables.told)))
    its = times.select(*TOPIC, "id", F.col("most").alias("its"))
    own = times.select(
        *("run_id", F.col("topic").alias("stands_in"), F.col("id").alias("stands_at"), "least")
    )
    older = (
        letters.select(*TOPIC, "id", "stands_in", "stands_at")
        .distinct()
        .join(its, [*TOPIC, "id"])
        .join(own, ["run_id", "stands_in", "stands_at"])
        .where(F.col("least.at_ms") < F.col("its.at_ms"))
        .groupBy("run_id", "stands_in", "stands_at")
        .agg(F.max(F.struct("its", "least")).alias("proof"))
    )
    times_ms = (F.col(f"proof.{name}.at_ms").cast("string") for name in ("its", "least"))
    return older.select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("stands_in"),
            id=F.col("stands_at"),
            detail=F.concat_ws(" ", F.lit("clock"), *times_ms),
            operations=F.array("proof.its.seen", "proof.least.seen"),
        )
    )


def _behind_the_clock(tables: Tables) -> DataFrame:
    late = tables.late.select(*SPOT)
    times = few(times_of(runs_of(tables.told)))
    if is_never_any(times):
        return times.select(*evidence())
    ids = settled(times.withColumn("bucket", intervals.bucket_of(F.col("id"))))
    placed = settled(
        intervals.inside(ids.drop("bucket"), "id", only(tables.places, ids, TOPIC_BUCKET), TOPIC)
        .select(*PRODUCER, "id", (F.col("id") + F.col("shift")).alias("counter"), "least")
        .join(late, list(SPOT), "leftanti")
    )
    arrived = times.join(_arrivals(tables).where(F.col("producer").isNotNull()), [*TOPIC, "id"])
    arrived = arrived.join(late, list(SPOT), "leftanti")
    tried = with_first_try(placed, tries_of_puts(tables.puts)).unionByName(
        arrived.select(*SPOT, "least", F.col("since_ns").alias("tried_ns"), "at")
    )
    asks = tried.select(
        *SPOT, "at", "least", F.col("tried_ns").alias("t_ns"), F.col("least.at_ms").alias("known")
    )
    latest = F.array_max(F.transform("times", lambda run: run[2]))
    mark = F.struct(latest.alias("value"), "process", "op_id").alias("mark")
    marks = tables.told.where(F.size("times") > 0).select(
        "run_id", one_host(), F.col("end_ns").alias("t_ns"), mark
    )
    behind = as_of.overtaken(asks, marks, ("run_id", "at"))
    proof = F.max(F.struct("mark", "least")).alias("proof")
    behind = behind.groupBy(*SPOT).agg(proof).select(*SPOT, "proof.*")
    detail = F.concat_ws(
        " ",
        F.lit("clock"),
        F.col("mark.value").cast("string"),
        F.col("least.at_ms").cast("string"),
    )
    return behind.select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            id=F.col("id"),
            producer=F.col("producer"),
            counter=F.col("counter"),
            detail=detail,
            operations=F.array(operation("mark.process", "mark.op_id"), "least.seen"),
        )
    )
