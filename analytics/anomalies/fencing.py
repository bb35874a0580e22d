"""A process that went on after another one had taken over its client, or that did not take over."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.schema import evidence, operation
from analytics.common.table_store import few, is_never_any, none_of, settled
from analytics.tables.runs import one_host
from analytics.tables.suspects import only
from analytics.tables.tables import OVER, Tables, successes_of

CLIENT = ("run_id", "client_id", "at")


def fencing(tables: Tables) -> DataFrame:
    """Find operations of an old epoch, sent after a newer one's first success, that succeeded; and
    sessions that had success under the epoch of another one; and those that succeeded under an
    epoch of which their client had been told that it is over.

    Operations without an epoch are not judged.
    """
    done = settled(successes_of(tables).where(F.col("epoch").isNotNull()))
    late = settled(_late(done))
    return late.unionByName(_shared(done)).unionByName(_after_a_refusal(done, late, tables))


def _shared(done: DataFrame) -> DataFrame:
    """Find what a session did first under an epoch that was another one's, too: each takes up its
    client, and that raises the epoch. No clock is looked at.
    """
    sessions = done.groupBy(*CLIENT[:2], "epoch", "process", "session").agg(
        F.min(F.struct("op_id", "topic")).alias("own")
    )
    sessions = sessions.select("*", "own.*")
    own = W.partitionBy(*CLIENT[:2], "epoch")
    least = F.min(F.struct("process", "session", "op_id")).over(own)
    is_another = F.struct("process", "session") > F.struct("least.process", "least.session")
    other = F.struct(F.col("least.process"), F.col("least.op_id"))
    return (
        sessions.withColumn("least", least)
        .where(is_another)
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                client_id=F.col("client_id"),
                detail=F.concat_ws(" ", F.lit("shared: epoch"), "epoch"),
                operations=F.array(other, operation()),
            )
        )
    )


def _late(done: DataFrame) -> DataFrame:
    """Find operations of an old epoch, sent after a newer one's first success, that succeeded.

    Sent, not acknowledged: the answer to one that was done before the takeover may come late.
    Clocks are compared, so only on one host.
    """
    done = settled(_in_question(done))
    epochs = done.groupBy(*CLIENT, "epoch").agg(
        F.min(F.struct("end_ns", operation().alias("by"), "epoch")).alias("first"),
        F.max("invoke_ns").alias("last_ns"),
    )
    # A row an epoch of a client: as many as it had processes.
    newer = W.partitionBy(*CLIENT).orderBy(F.col("epoch").desc())
    fenced = (
        epochs.withColumn("newer", F.min("first").over(newer.rowsBetween(W.unboundedPreceding, -1)))
        .where(F.col("newer.end_ns") < F.col("last_ns"))
        .select(*CLIENT, "epoch", "newer")
    )
    late = done.join(fenced, [*CLIENT, "epoch"])
    words = (F.col("f"), F.lit("of epoch"), F.col("epoch"), F.lit("after epoch"), "newer.epoch")
    return late.where(F.col("newer.end_ns") < F.col("invoke_ns")).select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            client_id=F.col("client_id"),
            detail=F.concat_ws(" ", *words),
            operations=F.array("newer.by", operation()),
        )
    )


def _after_a_refusal(done: DataFrame, late: DataFrame, tables: Tables) -> DataFrame:
    """Find operations that succeeded, and were sent after one of their epoch, or of a newer one,
    was told that the epoch is over. `late`: what is found already.
    """
    is_told = (F.col("outcome") == "fail") & F.col("error").isin(*OVER)
    told = few(
        tables.refused.where(is_told & F.col("epoch").isNotNull()).select(
            *(CLIENT[0], CLIENT[1], one_host(), "error"),
            F.col("epoch").alias("over"),
            F.col("end_ns").alias("told_ns"),
            operation().alias("by"),
        )
    )
    if is_never_any(told):
        return none_of(late)
    is_late = (F.col("told_ns") < F.col("invoke_ns")) & (F.col("epoch") <= F.col("over"))
    columns = (*CLIENT, "process", "op_id", "topic", "f", "epoch")
    found = only(done, told, CLIENT).join(F.broadcast(told), list(CLIENT)).where(is_late)
    first = F.min(F.struct("by", "error")).alias("first")
    words = (F.col("f"), F.lit("of epoch"), F.col("epoch"), F.lit("after"), "first.error")
    again = late.select(
        F.col("run_id").alias("its_run_id"), F.element_at("operations", -1).alias("own")
    )
    is_same = (F.col("run_id") == F.col("its_run_id")) & (operation() == F.col("own"))
    return (
        found.groupBy(*columns)
        .agg(first)
        .join(again, is_same, "leftanti")
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                client_id=F.col("client_id"),
                detail=F.concat_ws(" ", *words),
                operations=F.array("first.by", operation()),
            )
        )
    )


def _in_question(done: DataFrame) -> DataFrame:
    """Return the operations of clients that had several epochs: a count, which needs no sort."""
    epochs = done.groupBy(*CLIENT, "epoch").agg(F.count(F.lit(1)).alias("operations"))
    several = epochs.groupBy(*CLIENT).agg(F.count(F.lit(1)).alias("epochs"))
    return only(done, settled(several.where(F.col("epochs") > 1)), CLIENT)
