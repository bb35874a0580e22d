"""An id that a subscriber was handed twice without having asked for it twice."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics import intervals
from analytics.doubts import SHARE, only
from analytics.schema import KEY, evidence, operation
from analytics.tables import Tables, deliveries_of

OWNER = ("run_id", "client_id", "topic")


def duplicate_delivered(tables: Tables) -> DataFrame:
    """Find ids handed over again, each once with the smallest pair of operations.

    Asking again from the same cursor or an older one is legal, so is any cursor below the id after
    a crash (a new session) or a GET without an answer. Not legal: an id at or below the cursor
    that was asked with; one inside what the same session got already, when it has moved its cursor
    only part of the way there; one twice in one answer. An application may move its cursor as it
    likes, so what it recorded is judged by the cursor alone.
    """
    pairs = _again(tables).unionByName(_twice_in_one(tables))
    return (
        pairs.groupBy(*OWNER, "id")
        .agg(F.min("pair").alias("pair"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                client_id=F.col("client_id"),
                id=F.col("id"),
                operations=F.array("pair.earlier", "pair.later"),
            )
        )
    )


def _again(tables: Tables) -> DataFrame:
    """Return (owner, id, pair) of two GETs that both delivered an id, the second unasked."""
    reach = F.when(F.col("is_nameless"), F.col("asked")).otherwise(F.greatest("asked", "had_id"))
    moment = F.struct("invoke_ns", "process", "op_id").alias("moment")
    columns = (*OWNER, "process", "session", "op_id", "asked", moment, "first", "last")
    # In a chain of GETs each begins above all that its session had: only the others can repeat.
    repeats = intervals.split(
        deliveries_of(tables.unclear_gets)
        .where(F.col("first") <= reach)
        .withColumn("last", F.least("last", reach))
        .select(*columns)
    )
    pieces = only(intervals.split(tables.deliveries.select(*columns)), repeats, SHARE)
    earlier = pieces.withColumnsRenamed(
        {name: f"earlier_{name}" for name in ("process", "session", "op_id", "asked", "moment")}
    )
    ids = intervals.exploded(
        intervals.common(repeats, earlier, OWNER).where(F.col("earlier_moment") < F.col("moment")),
        "id",
    )
    below = F.col("id") <= F.col("asked")
    pair = F.struct(
        operation("earlier_process", "earlier_op_id").alias("earlier"),
        operation().alias("later"),
    ).alias("pair")
    unasked = ids.where(below).unionByName(_moved_partly(ids.where(~below), tables))
    return unasked.select(*OWNER, "id", pair)


def _moved_partly(ids: DataFrame, tables: Tables) -> DataFrame:
    """Return the pairs of one session, the second from a later cursor, no silence in between."""
    same_session = (F.col("process") == F.col("earlier_process")) & (
        F.col("session") == F.col("earlier_session")
    )
    silences = only(tables.gets.where(F.col("outcome") == "info"), ids, OWNER).select(
        *OWNER, "process", F.col("op_id").alias("silent_op_id")
    )
    between = F.col("silent_op_id").between(F.col("earlier_op_id"), F.col("op_id"))
    pairs = ids.where(same_session & (F.col("earlier_asked") < F.col("asked")))
    same_client = [pairs[name].eqNullSafe(silences[name]) for name in (*OWNER, "process")]
    return pairs.join(silences, [*same_client, between], "leftanti")


def _twice_in_one(tables: Tables) -> DataFrame:
    answer = W.partitionBy(*KEY).orderBy("first", "last")
    reach = F.max("last").over(answer.rowsBetween(W.unboundedPreceding, -1))
    doubled = (
        tables.deliveries.where(~F.col("is_plain"))
        .withColumn("reach", reach)
        .where(F.col("first") <= F.col("reach"))
        .withColumn("last", F.least("last", "reach"))
        .select(*KEY, "client_id", "topic", "first", "last")
    )
    pair = F.struct(operation().alias("earlier"), operation().alias("later")).alias("pair")
    return intervals.exploded(doubled, "id").select(*OWNER, "id", pair)
