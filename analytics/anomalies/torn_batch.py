"""A batch that was not stored as one."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables.batches import PAIR
from analytics.tables.garbage import HOLDER, taken_of
from analytics.tables.lives import HOME, may_have_had
from analytics.tables.owed import came_of, with_cut, with_known
from analytics.tables.suspects import OWNER, PRODUCER, only
from analytics.tables.tables import Tables, seen_by


def torn_batch(tables: Tables) -> DataFrame:
    """Find neighbouring counters that all tries which may have succeeded hold both of, and that do
    not stand beside each other (`split`), or of which a life got one alone (`half`), or a node has
    taken one alone (`taken`).
    """
    apart, beside = tables.apart.where(~F.col("is_beside")), tables.apart.where("is_beside")
    half = settled(_half(tables).join(apart, list(PAIR), "leftanti"))
    split = apart.unionByName(beside.join(half, list(PAIR), "leftanti"))
    shown = seen_by(split, tables, "id", "counter", "sighting")
    near = F.col("counter") + F.col("other_id") - F.col("id")
    next_counter = F.when(F.col("is_beside"), near).otherwise(F.col("counter") + 1)
    shown = shown.withColumn("next_counter", next_counter)
    shown = seen_by(shown, tables, "other_id", "next_counter", "other_sighting")
    both = F.array_compact(F.array("sighting", "other_sighting"))
    return (
        shown.select(*_evidence("split", both))
        .unionByName(half.select(*_evidence("half", F.array("get", "made_by"))))
        .unionByName(_half_taken(tables))
    )


def _half_taken(tables: Tables) -> DataFrame:
    """Return the evidence of counters at which a node stopped, and that are bound to the next."""
    taken = few(taken_of(tables.truth))
    if is_never_any(taken):
        return taken.select(*evidence())
    its = (*HOLDER, F.col("taken").alias("counter"))
    first, last = F.col("first_counter"), F.col("last_counter")
    near = (first <= F.col("taken") + 1) & (last >= F.col("taken"))
    tries = tables.puts.where(F.col("outcome") != "fail").join(taken, list(PRODUCER))
    return (
        tries.where(near)
        .groupBy(*its)
        .agg(F.bool_and((first <= F.col("taken")) & (last > F.col("taken"))).alias("is_bound"))
        .where("is_bound")
        .groupBy(*PAIR)
        .agg(F.min("node").alias("node"))
        .select(
            *evidence(
                **{name: F.col(name) for name in PAIR},
                detail=F.concat(F.lit("taken "), "node"),
                operations=F.array(),
            )
        )
    )


def _evidence(word: str, operations: Column) -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        id=F.col("id"),
        other_id=F.col("other_id"),
        producer=F.col("producer"),
        counter=F.col("counter"),
        detail=F.lit(word),
        operations=operations,
    )


def _half(tables: Tables) -> DataFrame:
    """Return (PAIR's columns, other_id, id, get, made_by): `counter` is missing to some life that
    was given its neighbour at `other_id`, and should have been given it at `id`.
    """
    inside = (F.col("since_ns") <= F.col("invoke_ns")) & (F.col("end_ns") <= F.col("until_ns"))
    rows = (
        tables.alone.join(F.broadcast(tables.lives), [*HOME, "begun_ns"])
        .where(inside)
        .withColumn("near_id", F.col("id") + F.col("counter") - F.col("given_counter"))
        .where(F.col("near_id") > F.col("start_id"))
        .drop("invoke_ns", "end_ns", "since_ns")
    )
    nameless = came_of(only(tables.deliveries.where(F.col("producer").isNull()), rows, OWNER))
    nameless = nameless.withColumnsRenamed({name: f"unread_{name}" for name in OWNER})
    same = [F.col(name) == F.col(f"unread_{name}") for name in OWNER]
    is_there = F.col("near_id").between(F.col("first"), F.col("last")) & may_have_had()
    rows = rows.join(nameless, [*same, is_there], "leftanti")
    is_passed = F.coalesce(F.col("near_id") <= F.col("passed"), F.lit(False))
    drained = rows.where(~is_passed & F.col("drained_ns").isNotNull())
    cut = with_cut(drained, tables.puts, tables.gets, tables.asides)
    known = with_known(cut, tables.puts, tables.deliveries)
    late = known.where(F.col("known_ns") < F.col("cut_ns")).drop("cut_ns", "known_ns")
    proof = F.struct(F.col("id").alias("other_id"), F.col("near_id").alias("id"), "get", "made_by")
    return (
        rows.where(is_passed)
        .unionByName(late)
        .groupBy(*PAIR)
        .agg(F.min(proof).alias("proof"))
        .select(*PAIR, "proof.*")
    )
