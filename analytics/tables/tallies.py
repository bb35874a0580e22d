"""One reading of all events: what a process' operations come to, by buckets of their numbers.

What lives here: that reading, and the hashes of what invokes say and ends repeat. What must not:
what it proves of the record (sequence.py) or of the operations (pairs.py, tables.py).
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.schema import OPERATIONS
from analytics.intake.strict import BLOCK
from analytics.tables.suspects import halves

BUCKET_BITS: Final = 16  # as of ids and counters (intervals.py)
BUCKET_SIZE: Final = 1 << BUCKET_BITS
GROUP: Final = ("run_id", "process", "bucket", "session", "host", "node", "term", BLOCK)
COLUMNS: Final = (
    "run_id STRING, process STRING, bucket BIGINT, session BIGINT, host STRING, node STRING,"
    f" term BIGINT, {BLOCK} BIGINT, last_ns BIGINT, answered_by BIGINT, answered_ns BIGINT,"
    " sent_ns BIGINT, begun BIGINT, low BIGINT, high BIGINT, mixed BIGINT, is_disordered BOOLEAN,"
    " early BIGINT, said ARRAY<BIGINT>, told ARRAY<BIGINT>"
)
PROVEN: Final = ("put", "get")  # of which an end may be the whole operation; the others are few
ROW: Final = "row"  # of events that were read from lines: their order in a `BLOCK` of the file
# Of a number's offset in its bucket: two sets of one size and other numbers have the same sum once
# in 2^31.
MIX_PRIME: Final = 2**31 - 1
MIX_FACTOR: Final = 1_103_515_245
# What an end says again, beside what its invoke calls otherwise.
SAME: Final = ("f", "client_id", "session", "epoch", "max_count", "host")
OF_PUT: Final = ("counter", "count")  # of a GET's end they are of its answer
TEXTS: Final = ("f", "client_id", "topic", "host", "digests")


def tallies_of(events: DataFrame) -> DataFrame:
    """Return a row for each of the groups that `GROUP` names.

    `last_ns`: when the last event was. `answered_by`: the lowest operation that this node
    acknowledged in this term; `answered_ns`: when the first was; `sent_ns`: when the last was sent,
    or later.

    `begun`, `low`, `high`, `mixed`: how many numbers were begun, the least and the greatest, and
    the sum of the mixed ones. `is_disordered`: in the block alone it is seen that something stands
    before what it has to stand behind. `early`: the greatest number that has ended there before any
    has begun. Both only of events that have `BLOCK` and `ROW`.

    `said`: three sums that are 0 where each invoke has one end that repeats what it says of the
    operation: an invoke adds the hash of that, an end takes it off. `told`: the same of `PROVEN`,
    and of all that both ends may say: where these are 0, an end is the whole operation.
    """
    is_invoke, is_operation = F.col("type") == "invoke", is_of_operation()
    is_answer = (F.col("type") == "ok") & is_operation
    step = F.when(is_operation, F.when(is_invoke, 1).otherwise(-1)).otherwise(0)
    said = _said(is_invoke)
    rows = events.withColumns(
        {
            "bucket": bucket_of(F.col("op_id")),
            BLOCK: F.col(BLOCK) if BLOCK in events.columns else F.lit(0).cast("bigint"),
            "is_begin": is_begin(),
            "answered": F.when(is_answer, F.col("t_ns")),
            "sent": F.when(is_answer, F.coalesce("invoke_ns", "t_ns")),
            "step": step,
            "said": said,
            "told": F.when(F.col("f").isin(*PROVEN), _told(said, is_invoke)),
        }
    )
    if ROW in events.columns:
        # Narrow before they are moved to be sorted.
        names = ("op_id", ROW, "t_ns", "is_begin", "answered", "sent", "step", "said", "told")
        rows = rows.select(*GROUP, *names).withColumn("begun_before", _begun_before())
    else:
        rows = rows.withColumn("begun_before", F.lit(None).cast("bigint"))
    number, before = F.when(F.col("is_begin"), F.col("op_id")), F.col("begun_before")
    wrong = F.when(F.col("is_begin"), F.col("op_id") != before + 1).otherwise(
        F.col("op_id") > before
    )
    early = F.when(~F.col("is_begin") & before.isNull(), F.col("op_id"))
    return rows.groupBy(*GROUP).agg(
        F.max("t_ns").alias("last_ns"),
        F.min(F.when(F.col("answered").isNotNull(), F.col("op_id"))).alias("answered_by"),
        F.min("answered").alias("answered_ns"),
        F.max("sent").alias("sent_ns"),
        F.count(number).alias("begun"),
        F.min(number).alias("low"),
        F.max(number).alias("high"),
        F.coalesce(F.sum(F.when(F.col("is_begin"), _mixed())), F.lit(0)).alias("mixed"),
        F.max(F.coalesce(wrong, F.lit(False))).alias("is_disordered"),
        F.max(early).alias("early"),
        _sums("said").alias("said"),
        _sums("told").alias("told"),
    )


def summed(name: str) -> Column:
    """Return the aggregate of three sums over rows that have such sums as `name`."""
    return F.array(*(F.sum(F.get(name, F.lit(place))) for place in range(3)))


def is_of_operation() -> Column:
    """Return whether an event is an invoke or an end."""
    return F.col("f").isin(*OPERATIONS)


def is_begin() -> Column:
    """Return whether an event takes a number: an invoke or a single event."""
    return (F.col("type") == "invoke") | ~is_of_operation()


def bucket_of(op_id: Column) -> Column:
    """Return the number of the bucket that an operation's number is in."""
    return F.shiftright(op_id, BUCKET_BITS)


def of_invoke() -> dict[str, Column]:
    """Return what an invoke says that its end has to repeat."""
    return _common() | {"invoke_ns": F.col("t_ns"), "asked": F.col("last_id")}


def of_end() -> dict[str, Column]:
    """Return what an end repeats of its invoke."""
    return _common() | {"invoke_ns": F.col("invoke_ns"), "asked": F.col("asked")}


def mixed(offset: int) -> int:
    """Return what an offset adds to `mixed`."""
    return int((offset * MIX_FACTOR % MIX_PRIME) ** 2 % MIX_PRIME)


def _mixed() -> Column:
    offset = F.col("op_id").bitwiseAND(F.lit(BUCKET_SIZE - 1))
    stretched = (offset * F.lit(MIX_FACTOR).cast("bigint")) % MIX_PRIME
    return (stretched * stretched) % MIX_PRIME


def _begun_before() -> Column:
    """Return the greatest number that was begun in the same block before the row."""
    so_far = W.partitionBy("process", BLOCK).orderBy(ROW).rowsBetween(W.unboundedPreceding, -1)
    return F.max(F.when(F.col("is_begin"), F.col("op_id"))).over(so_far)


def _sums(name: str) -> Column:
    low, high = halves(F.col(name))
    counted = F.when(F.col(name).isNotNull(), F.col("step"))
    parts = (counted, F.col("step") * low, F.col("step") * high)
    return F.array(*(F.coalesce(F.sum(part), F.lit(0)) for part in parts))


def _said(is_invoke: Column) -> Column:
    invoked, ended = of_invoke(), of_end()
    values = {name: F.when(is_invoke, invoked[name]).otherwise(ended[name]) for name in invoked}
    return F.xxhash64("op_id", *_never_null(values))


def _told(said: Column, is_invoke: Column) -> Column:
    """Return the hash of all that both ends may say: `said`, and what is believed of one end."""
    # Count and digests of a GET's end are of its answer; of its invoke they would be its own.
    names = (*OF_PUT, "digests")
    of_put = {name: F.when(is_invoke | (F.col("f") == "put"), F.col(name)) for name in names}
    return F.xxhash64(
        said, *_never_null({name: F.col(name) for name in ("topic", "host")} | of_put)
    )


def _common() -> dict[str, Column]:
    of_put = {name: F.when(F.col("f") == "put", F.col(name)) for name in OF_PUT}
    topic = {"topic": F.when(F.col("f") != "get", F.col("topic"))}
    return {name: F.col(name) for name in SAME} | of_put | topic


def _never_null(values: Mapping[str, Column]) -> list[Column]:
    # A hash leaves nulls out, whichever of its columns they stand in.
    nothing = {name: F.lit("") if name in TEXTS else F.lit(-1).cast("bigint") for name in values}
    return [F.coalesce(value, nothing[name]) for name, value in values.items()]
