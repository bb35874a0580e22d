"""An answer that is older than its question."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics import moments
from analytics.runs import acknowledged_runs, one_host
from analytics.schema import evidence, operation
from analytics.tables import Tables

TIMELINE = ("run_id", "topic", "at")


def stale_read(tables: Tables) -> DataFrame:
    """Find answers that ignore a PUT which was acknowledged before they were asked for.

    `nothing`: a GET was told that there is nothing above its cursor. `start`: a new subscription
    begins below it. `id` is the highest id acknowledged before, `other_id` the cursor or the start.
    Clocks are compared, so only on one host.
    """
    value = F.struct(F.col("last").alias("value"), "process", "op_id")
    marks = acknowledged_runs(tables.puts).select(
        "run_id", "topic", one_host(), F.col("end_ns").alias("t_ns"), value.alias("mark")
    )
    asks = _empty_answers(tables).unionByName(_new_starts(tables))
    return moments.overtaken(asks, marks, TIMELINE).select(
        *evidence(
            run_id=F.col("run_id"),
            topic=F.col("topic"),
            client_id=F.col("client_id"),
            id=F.col("mark.value"),
            other_id=F.col("known"),
            detail=F.col("detail"),
            operations=F.array(operation("mark.process", "mark.op_id"), operation()),
        )
    )


def _empty_answers(tables: Tables) -> DataFrame:
    nothing = F.col("last").isNull() & F.col("sent_id").isNull()
    return tables.gets.where(
        (F.col("outcome") == "ok") & nothing & F.col("asked").isNotNull()
    ).select(*_ask("asked", "nothing"))


def _new_starts(tables: Tables) -> DataFrame:
    begun = (F.col("f") == "sub") & (F.col("outcome") == "ok") & ~F.col("resumed")
    subs = tables.controls.where(begun).withColumn("start", F.coalesce("cursor", "start_id"))
    return subs.select(*_ask("start", "start"))


def _ask(known: str, detail: str) -> list[Column]:
    return [
        F.col("run_id"),
        F.col("topic"),
        one_host(),
        F.col("client_id"),
        F.col("process"),
        F.col("op_id"),
        F.col("invoke_ns").alias("t_ns"),
        F.col(known).alias("known"),
        F.lit(detail).alias("detail"),
    ]
