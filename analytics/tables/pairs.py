"""An operation's invoke and completion as one row. No rule about right and wrong here.

A completion repeats what its invoke said. Where the two are proven to say the same, it is the whole
operation by itself, and nothing has to be moved to bring them together: the `tallies`
prove it of all operations of a process in a bucket of their numbers. Where it is not proven (an
operation without an end, a recorder that repeats nothing, a GET of any topic) they are joined.
"""

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY
from analytics.tables.suspects import only, without
from analytics.tables.tallies import bucket_of, summed

BUCKET: Final = ("run_id", "process", "bucket")
# What both ends may say. Where they differ the invoke is believed of what it was about to do, the
# completion of the rest: a GET of any topic learns only there which one.
OF_INVOKE: Final = ("counter", "count", "max_count")
BOTH: Final = ("client_id", "session", "topic", "host", "digests", *OF_INVOKE)
TOLD: Final = ("epoch", "invoke_ns", "asked")  # by an end, of an invoke that may be gone
ANSWER: Final = (
    "first_id",
    "last_id",
    "items",
    "corrupt",
    "duplicate",
    "resumed",
    "attempt",
    "cursor",
    "handed_apart",
    "error",
    "letters",
    "expires",
    "delayed",
)


def unpaired_of(tallies: DataFrame) -> DataFrame:
    """Return (run_id, process, bucket) of the operations whose ends are not proven to agree."""
    return (
        tallies.groupBy(*BUCKET)
        .agg(summed("told").alias("told"))
        .where(F.exists("told", lambda value: value != 0))
        .select(*BUCKET)
    )


def operations(events: DataFrame, function: str, unpaired: DataFrame) -> DataFrame:
    """Return the operations of `function`, of which there are many, as `joined` would."""
    rows = events.where(F.col("f") == function).withColumn("bucket", bucket_of(F.col("op_id")))
    ends = without(rows, unpaired, BUCKET).where(F.col("type") != "invoke")
    whole = ends.select(
        *KEY,
        *BOTH,
        *ANSWER,
        "epoch",
        "invoke_ns",
        F.col("t_ns").alias("end_ns"),
        F.col("type").alias("outcome"),
        F.coalesce("asked", "cursor").alias("asked"),
        _is_unsaid(F.col("asked")),
        F.lit(None).cast("string").alias("asked_topic"),
    )
    return whole.unionByName(joined(only(rows, unpaired, BUCKET), function))


def joined(events: DataFrame, function: str) -> DataFrame:
    """Return each invoke of `function` with its completion; a side that is missing leaves nulls.

    An operation without a completion has the outcome `info`. An answer that brought something is of
    the topic that it names, any other one of that which was asked for. `asked_topic`: the one that
    was asked for, if the answer names another one: then `asked` is no cursor of what came.
    """
    rows = events.where(F.col("f") == function)
    invokes = rows.where(F.col("type") == "invoke").select(
        *KEY,
        *(F.col(name).alias(f"invoke_{name}") for name in BOTH),
        "epoch",
        F.col("last_id").alias("asked"),
        F.col("t_ns").alias("invoke_ns"),
    )
    ends = rows.where(F.col("type") != "invoke").select(
        *KEY,
        *(F.col(name).alias(f"end_{name}") for name in BOTH),
        *ANSWER,
        F.col("type").alias("end_type"),
        F.col("t_ns").alias("end_ns"),
        *(F.col(name).alias(f"told_{name}") for name in TOLD),
        "unsaid",
    )
    # Hashing a side beats sorting both: partitions are small by design (session.fit).
    pairs = invokes.join(ends.hint("shuffle_hash"), list(KEY), "full")
    named = F.nullif("invoke_topic", F.lit(""))
    is_other = F.coalesce(named != F.col("end_topic"), F.lit(False))
    has_come, asked = _has_come(), F.coalesce("asked", "told_asked")
    believed = {name: _believed(name) for name in BOTH}
    believed["topic"] = F.when(has_come, believed["topic"]).otherwise(
        F.coalesce("invoke_topic", "end_topic")
    )
    return pairs.select(
        *KEY,
        *(column.alias(name) for name, column in believed.items()),
        *ANSWER,
        F.coalesce("epoch", "told_epoch").alias("epoch"),
        F.coalesce("invoke_ns", "told_invoke_ns").alias("invoke_ns"),
        "end_ns",
        F.coalesce("end_type", F.lit("info")).alias("outcome"),
        F.coalesce(F.when(~(is_other & has_come), asked), "cursor").alias("asked"),
        _is_unsaid(asked),
        F.when(is_other, named).alias("asked_topic"),
    )


def _is_unsaid(asked: Column) -> Column:
    """Return whether a request did not say the cursor that its end names: it says none."""
    return (F.coalesce("unsaid", F.lit(False)) & asked.isNull()).alias("unsaid")


def _has_come() -> Column:
    """Return whether a GET brought anything, or was told of what is purged."""
    names = ("items", "corrupt", "letters", "delayed")
    of_runs = (F.coalesce(F.size(name), F.lit(0)) > 0 for name in names)
    of_digests = F.coalesce(F.length("end_digests"), F.lit(0)) > 0
    return reduce(or_, of_runs, of_digests | is_told_of_purge("end_type"))


def is_told_of_purge(outcome: str = "type") -> Column:
    """Return whether an end says which ids are purged; only a GET's does."""
    is_so = (F.col(outcome) == "fail") & F.col("error").isin(
        "purged", "gap", "expired", "compacted"
    )
    return F.coalesce(is_so, F.lit(False)) & F.col("first_id").isNotNull()


def _believed(name: str) -> Column:
    sides = (f"end_{name}", f"invoke_{name}")
    return F.coalesce(*(sides[::-1] if name in OF_INVOKE else sides))
