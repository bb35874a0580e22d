"""Whether all operations of each process are there, once, in order, with ends that agree.

A process numbers what it begins (invokes and single events) 1, 2, 3, … in the order of its lines.
One aggregation over buckets of these numbers proves that of all of them at once, and that each end
repeats its invoke: count, least and greatest number, sums of mixed numbers against those that they
have to be, and hashes of what the invokes said less those of what the ends repeat. Where that is
not proven, be it for an operation without an end, the bucket is looked at number by number.

No file and no verdict: load.py reads, wholeness.py says what a hole means.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.doubts import halves
from analytics.keeping import made_of
from analytics.strict import BLOCK

BUCKET_BITS: Final = 16
BUCKET_SIZE: Final = 1 << BUCKET_BITS
# Of a number's offset in its bucket: two sets of one size and other numbers have the same sum once
# in 2^31.
MIX_PRIME: Final = 2**31 - 1
MIX_FACTOR: Final = 1_103_515_245
PROCESSES_SHOWN_MAX: Final = 20  # of which a sentence says what is wrong; the others are counted
FUNCTIONS: Final = ("put", "get", "sub", "unsub")
# What an end says again, beside what its invoke calls otherwise.
SAME: Final = ("f", "client_id", "session", "epoch", "max_count")
OF_PUT: Final = ("counter", "count")  # of a GET's end they are of its answer
TEXTS: Final = ("f", "client_id", "topic")
ROW: Final = "row"  # of events that were read from lines: their order in a `BLOCK` of the file
# What is wrong with an operation -> what is said of how many.
DOUBLED, CONTRADICTING, EARLY, ORPHANED = "doubled", "contradicting", "early", "orphaned"
SENTENCES: Final[Mapping[str, str]] = {
    DOUBLED: "operations with two invokes or two ends, left out",
    CONTRADICTING: "operations whose end contradicts the invoke, left out",
    EARLY: "operations whose end stands before the invoke, left out",
    ORPHANED: "ends without an invoke",
}

Target = tuple[str, int]  # a process and a bucket of its numbers


@dataclass(frozen=True, slots=True)
class Examined:
    """`holes`: what is missing, or not to be believed, a sentence each.

    `broken`: (process, op_id) of the operations that are to be left out; None without any.
    """

    holes: tuple[str, ...]
    broken: DataFrame | None


@dataclass(slots=True)
class _Bucket:
    """What the begins of a bucket come to, and whether all ends in it are proven to agree."""

    count: int = 0
    low: int = 0
    high: int = 0
    mixed: int = 0
    is_proven: bool = True


def examined(events: DataFrame, is_of_lines: bool) -> Examined:
    """Return what is wrong with the operations in `events`, of one run.

    `is_of_lines`: they have `block` and `row`, the order of their lines in the files; a history
    that is kept as Parquet has no order.
    """
    rows = _tallied(events, is_of_lines).collect()
    buckets, unordered = _buckets_of(rows), _unordered(rows) if is_of_lines else []
    unproven = [
        (process, number)
        for process, of_process in buckets.items()
        for number, bucket in of_process.items()
        if not bucket.is_proven or process in unordered
    ]
    gaps = {process: found for process in sorted(buckets) if (found := _gap(buckets[process]))}
    holes = [*_gap_sentences(events, gaps)]
    holes += [
        f"{process}: its operations do not begin in the order of their numbers"
        for process in unordered
        if process not in gaps
    ][:PROCESSES_SHOWN_MAX]
    if not unproven:
        return Examined(tuple(holes), None)
    wrong = _wrong(only_in(events, unproven), is_of_lines)
    kinds = (
        wrong.groupBy("kind")
        .agg(F.count(F.lit(1)).alias("count"), F.min(F.struct("process", "op_id")).alias("least"))
        .collect()
    )
    holes += [
        f"{row['count']} {SENTENCES[row.kind]}, such as {row.least.process} op {row.least.op_id}"
        for row in sorted(kinds)
    ]
    broken = wrong.where(F.col("kind") != ORPHANED).select("process", "op_id")
    return Examined(tuple(holes), broken if any(row.kind != ORPHANED for row in kinds) else None)


def leave_out(events: DataFrame, broken: DataFrame) -> DataFrame:
    """Return `events` without the operations in `broken`; single events stay."""
    marked = broken.select("process", "op_id", F.lit(True).alias("is_broken"))
    joined = events.join(F.broadcast(marked), ["process", "op_id"], "left")
    kept = joined.where(F.col("is_broken").isNull() | ~_is_operation())
    return kept.select(*events.columns)


def only_in(events: DataFrame, targets: Iterable[Target]) -> DataFrame:
    """Return the events of these buckets of processes."""
    named = [{"process": process, "bucket": bucket} for process, bucket in targets]
    wanted = made_of(events.sparkSession, named, "process STRING, bucket BIGINT")
    rows = events.withColumn("bucket", _bucket())
    return rows.join(F.broadcast(wanted), ["process", "bucket"], "left_semi")


# --- one reading of all events --------------------------------------------------------------------


def _tallied(events: DataFrame, is_of_lines: bool) -> DataFrame:
    """Return what the operations of a process come to, by block of the file and bucket.

    `first`, `last`: the least and greatest number begun in the block. `is_disordered`: in the
    block alone it is seen that something stands before what it has to stand behind. `early`: the
    greatest number that has ended there before any has begun.
    """
    is_begin = _is_begin()
    signed = F.when(_is_operation(), F.when(is_begin, 1).otherwise(-1)).otherwise(0)
    low, high = halves(_said())
    narrow = events.select(
        "process",
        "op_id",
        (F.col(BLOCK) if is_of_lines else F.lit(0).cast("bigint")).alias(BLOCK),
        *([ROW] if is_of_lines else []),
        is_begin.alias("is_begin"),
        F.array(signed, signed * low, signed * high).alias("sums"),
    )
    if is_of_lines:
        so_far = W.partitionBy("process", BLOCK).orderBy(ROW).rowsBetween(W.unboundedPreceding, -1)
        begun = F.max(F.when(F.col("is_begin"), F.col("op_id"))).over(so_far)
        narrow = narrow.withColumn("begun", begun)
    else:
        narrow = narrow.withColumn("begun", F.lit(None).cast("bigint"))
    begins, ends = F.col("is_begin"), ~F.col("is_begin")
    wrong = F.when(begins, F.col("op_id") != F.col("begun") + 1).otherwise(
        F.col("op_id") > F.col("begun")
    )
    number = F.when(begins, F.col("op_id"))
    return narrow.groupBy("process", BLOCK, _bucket().alias("bucket")).agg(
        F.count(number).alias("count"),
        F.min(number).alias("low"),
        F.max(number).alias("high"),
        F.coalesce(F.sum(F.when(begins, _mixed())), F.lit(0)).alias("mixed"),
        F.array(*(F.sum(F.get("sums", F.lit(place))) for place in range(3))).alias("sums"),
        F.max(F.coalesce(wrong, F.lit(False))).alias("is_disordered"),
        F.max(F.when(ends & F.col("begun").isNull(), F.col("op_id"))).alias("early"),
    )


def _buckets_of(rows: Sequence[Any]) -> dict[str, dict[int, _Bucket]]:
    """Return the buckets of each process, over all blocks of its file."""
    buckets: dict[str, dict[int, _Bucket]] = defaultdict(dict)
    sums: dict[Target, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        bucket = buckets[row.process].setdefault(row.bucket, _Bucket())
        if row["count"]:
            bucket.low = min(bucket.low or row.low, row.low)
            bucket.high = max(bucket.high, row.high)
        bucket.count += row["count"]
        bucket.mixed += row.mixed
        total = sums[row.process, row.bucket]
        total[:] = [left + right for left, right in zip(total, row.sums, strict=True)]
        bucket.is_proven = not any(total)
    return buckets


def _unordered(rows: Sequence[Any]) -> list[str]:
    """Return the processes whose lines do not stand in the order of their numbers."""
    blocks: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        blocks[row.process][row[BLOCK]].append(row)
    found = []
    for process, of_process in sorted(blocks.items()):
        last = 0
        for _, parts in sorted(of_process.items()):
            first = min((row.low for row in parts if row["count"]), default=last + 1)
            early = max((row.early or 0 for row in parts), default=0)
            if any(row.is_disordered for row in parts) or first != last + 1 or early > last:
                found.append(process)
                break
            last = max((row.high for row in parts if row["count"]), default=last)
    return found


# --- numbers that are missing ---------------------------------------------------------------------


def _gap(buckets: Mapping[int, _Bucket]) -> tuple[int, _Bucket] | None:
    """Return the first bucket in which a number is missing or comes twice; None without any."""
    begun = {number: bucket for number, bucket in sorted(buckets.items()) if bucket.count}
    last = max(begun, default=-1)
    for place, (number, bucket) in enumerate(begun.items()):
        if number != place:
            return place, _Bucket()
        base = number << BUCKET_BITS
        first = base or 1
        end = bucket.high if number == last else base + BUCKET_SIZE - 1
        mixed = _mixed_up_to()[end - base + 1] - _mixed_up_to()[first - base]
        seen = (bucket.low, bucket.high, bucket.count, bucket.mixed)
        if seen != (first, end, end - first + 1, mixed):
            return number, bucket
    return None


def _gap_sentences(events: DataFrame, gaps: Mapping[str, tuple[int, _Bucket]]) -> Iterable[str]:
    """Yield for each process which number is missing, or comes twice, first."""
    shown = dict(list(gaps.items())[:PROCESSES_SHOWN_MAX])
    if not shown:
        return
    targets = [(process, number) for process, (number, _) in shown.items()]
    begins = only_in(events.where(_is_begin()), targets).select("process", "bucket", "op_id")
    base = F.greatest(F.col("bucket") * BUCKET_SIZE, F.lit(1)) - 1
    before = F.coalesce(F.lag("op_id").over(W.partitionBy("process").orderBy("op_id")), base)
    rows = begins.withColumn("before", before).where(F.col("op_id") != F.col("before") + 1)
    first = {
        row.process: row.least
        for row in rows.groupBy("process")
        .agg(F.min(F.struct("op_id", "before")).alias("least"))
        .collect()
    }
    for process, (number, bucket) in shown.items():
        if process not in first:
            missing = max(bucket.high + 1, number << BUCKET_BITS, 1)
            yield f"{process}: op {missing} is missing"
        elif first[process].op_id <= first[process].before:
            yield f"{process}: two lines begin op {first[process].op_id}"
        else:
            missing = first[process].before + 1
            yield f"{process}: op {missing} is missing, op {first[process].op_id} is there"
    if len(gaps) > len(shown):
        yield f"and operations of {len(gaps) - len(shown)} more processes"


@lru_cache(maxsize=1)
def _mixed_up_to() -> tuple[int, ...]:
    """Return the sums of the mixed offsets below each offset of a bucket."""
    mixed = ((offset * MIX_FACTOR % MIX_PRIME) ** 2 % MIX_PRIME for offset in range(BUCKET_SIZE))
    return tuple(accumulate(mixed, initial=0))


def _mixed() -> Column:
    offset = F.col("op_id").bitwiseAND(F.lit(BUCKET_SIZE - 1))
    stretched = (offset * F.lit(MIX_FACTOR).cast("bigint")) % MIX_PRIME
    return (stretched * stretched) % MIX_PRIME


def _bucket() -> Column:
    return F.shiftright("op_id", BUCKET_BITS)


# --- invokes and their ends -----------------------------------------------------------------------


def _wrong(events: DataFrame, is_of_lines: bool) -> DataFrame:
    """Return (process, op_id, kind) of the operations that are not one invoke and its end."""
    is_invoke, is_end = _is_operation() & _is_begin(), _is_operation() & ~_is_begin()
    invoked, ended = _of_invoke(), _of_end()
    place = F.struct(BLOCK, ROW) if is_of_lines else F.lit(0)
    found = events.where(_is_operation()).groupBy("process", "op_id").agg(
        F.count_if(is_invoke).alias("invokes"),
        F.count_if(is_end).alias("ends"),
        F.max(F.when(is_invoke, F.struct(*_named(invoked)))).alias("invoke"),
        F.max(F.when(is_end, F.struct(*_named(ended)))).alias("end"),
        F.min(F.when(is_invoke, place)).alias("invoked_at"),
        F.min(F.when(is_end, place)).alias("ended_at"),
        F.min(F.when(is_end, F.col("t_ns"))).alias("ended_ns"),
    )  # fmt: skip
    contradicts = reduce(
        lambda left, right: left | right,
        (
            F.col("end")[name].isNotNull() & ~F.col("end")[name].eqNullSafe(F.col("invoke")[name])
            for name in invoked
        ),
    )
    kind = (
        F.when((F.col("invokes") > 1) | (F.col("ends") > 1), DOUBLED)
        .when(F.col("invokes") == 0, ORPHANED)
        .when((F.col("ends") == 1) & contradicts, CONTRADICTING)
        .when(F.col("ended_at") < F.col("invoked_at"), EARLY)
        .when(F.col("ended_ns") < F.col("invoke.invoke_ns"), EARLY)
    )
    return found.select("process", "op_id", kind.alias("kind")).where(F.col("kind").isNotNull())


def _said() -> Column:
    """Return the hash of what an invoke says, or an end repeats of it."""
    invoked, ended = _of_invoke(), _of_end()
    is_invoke = _is_begin()
    values = [
        F.coalesce(F.when(is_invoke, invoked[name]).otherwise(ended[name]), _nothing(name))
        for name in invoked
    ]
    # A hash leaves nulls out, whichever of its columns they stand in.
    return F.xxhash64("op_id", *values)


def _of_invoke() -> dict[str, Column]:
    return _common() | {"invoke_ns": F.col("t_ns"), "asked": F.col("last_id")}


def _of_end() -> dict[str, Column]:
    return _common() | {"invoke_ns": F.col("invoke_ns"), "asked": F.col("asked")}


def _common() -> dict[str, Column]:
    of_put = {name: F.when(F.col("f") == "put", F.col(name)) for name in OF_PUT}
    topic = {"topic": F.when(F.col("f") != "get", F.col("topic"))}
    return {name: F.col(name) for name in SAME} | of_put | topic


def _nothing(name: str) -> Column:
    return F.lit("") if name in TEXTS else F.lit(-1).cast("bigint")


def _named(values: Mapping[str, Column]) -> list[Column]:
    return [value.alias(name) for name, value in values.items()]


def _is_operation() -> Column:
    return F.col("f").isin(*FUNCTIONS)


def _is_begin() -> Column:
    return (F.col("type") == "invoke") | ~_is_operation()
