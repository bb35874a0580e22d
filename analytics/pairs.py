"""An operation's invoke and completion as one row. No rule about right and wrong here.

A completion repeats what its invoke said. Where the two are proven to say the same, it is the whole
operation by itself, and nothing has to be moved to bring them together: one aggregation, `tallies`,
proves it of all operations of a process in a bucket of their numbers. Where it is not proven (an
operation without an end, a recorder that repeats nothing, a GET of any topic) they are joined.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics import intervals
from analytics.doubts import halves, only, without
from analytics.schema import KEY

BUCKET: Final = ("run_id", "process", "bucket")
PROVEN: Final = ("put", "get")  # the others are few: they are always joined
# What both ends may say. Where they differ the invoke is believed of what it was about to do, the
# completion of the rest: a GET of any topic learns only there which one.
OF_INVOKE: Final = ("counter", "count", "max_count")
OF_PUT: Final = ("counter", "count", "digests")
BOTH: Final = ("client_id", "session", "topic", "host", "digests", *OF_INVOKE)
TOLD: Final = ("epoch", "invoke_ns", "asked")  # by an end, of an invoke that may be gone
TEXTS: Final = ("f", "client_id", "topic", "host", "digests")
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
)


def tallies_of(events: DataFrame) -> DataFrame:
    """Return what all events of a bucket of a process' operations come to: one reading of them all.

    (run_id, process, bucket, host, node, term, last_ns, answered_by, answered_ns, sent_ns, sums).
    `answered_by`: the lowest operation that this node acknowledged in this term; `answered_ns`:
    when the first was, `sent_ns`: when the last was sent, or later. `sums` are 0 where each invoke
    has one end that repeats it: an invoke adds the hash of all that it says, an end takes off that
    of what it repeats.
    """
    is_invoke, is_proven = F.col("type") == "invoke", F.col("f").isin(*PROVEN)
    is_answer = (F.col("type") == "ok") & F.col("f").isin(*PROVEN, "sub", "unsub")
    one = F.when(is_proven, F.when(is_invoke, 1).otherwise(-1)).otherwise(0)
    sums = [F.sum(one * part) for part in (F.lit(1), *halves(_said(is_invoke)))]
    groups = ("run_id", "process", _bucket().alias("bucket"), "host", "node", "term")
    return events.groupBy(*groups).agg(
        F.max("t_ns").alias("last_ns"),
        F.min(F.when(is_answer, F.col("op_id"))).alias("answered_by"),
        F.min(F.when(is_answer, F.col("t_ns"))).alias("answered_ns"),
        F.max(F.when(is_answer, F.coalesce("invoke_ns", "t_ns"))).alias("sent_ns"),
        F.array(*sums).alias("sums"),
    )


def unpaired_of(tallies: DataFrame) -> DataFrame:
    """Return (run_id, process, bucket) of the operations whose ends are not proven to agree."""
    sums = (F.sum(F.get("sums", F.lit(place))) for place in range(3))
    return (
        tallies.groupBy(*BUCKET)
        .agg(F.array(*sums).alias("sums"))
        .where(F.exists("sums", lambda value: value != 0))
        .select(*BUCKET)
    )


def operations(events: DataFrame, function: str, unpaired: DataFrame) -> DataFrame:
    """Return the operations of `function`, of which there are many, as `joined` would."""
    rows = events.where(F.col("f") == function).withColumn("bucket", _bucket())
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
        F.when(is_other, named).alias("asked_topic"),
    )


def _has_come() -> Column:
    """Return whether a GET brought anything."""
    of_runs = [F.coalesce(F.size(name), F.lit(0)) > 0 for name in ("items", "corrupt")]
    return of_runs[0] | of_runs[1] | (F.coalesce(F.length("end_digests"), F.lit(0)) > 0)


def _believed(name: str) -> Column:
    sides = (f"end_{name}", f"invoke_{name}")
    return F.coalesce(*(sides[::-1] if name in OF_INVOKE else sides))


def _said(is_invoke: Column) -> Column:
    """Return the hash of what an invoke says, or an end repeats of it."""
    # Count and digests of a GET's end are of its answer; of its invoke they would be its own.
    of_put = {name: F.when(is_invoke | (F.col("f") == "put"), F.col(name)) for name in OF_PUT}
    other = {
        "t_ns": F.when(is_invoke, F.col("t_ns")).otherwise(F.col("invoke_ns")),
        "asked": F.when(is_invoke, F.col("last_id")).otherwise(F.col("asked")),
    }
    names = ("f", "op_id", "t_ns", "asked", "epoch", *BOTH)
    values = {name: F.col(name) for name in names} | of_put | other
    return F.xxhash64(*(_never_null(name, value) for name, value in values.items()))


def _bucket() -> Column:
    return intervals.bucket_of(F.col("op_id"))


def _never_null(name: str, value: Column) -> Column:
    # A hash leaves nulls out, whichever of its columns they stand in.
    return F.coalesce(value, F.lit("") if name in TEXTS else F.lit(-1))
