"""Ids that jump."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import is_never_any, settled
from analytics.tables.lives import EVER, FOREVER, HOME
from analytics.tables.moves import moves_of, with_eras
from analytics.tables.runs import one_host
from analytics.tables.suspects import OWNER, only
from analytics.tables.tables import Tables, with_application

SESSION = (*OWNER, "process", "session")


def gap(tables: Tables) -> DataFrame:
    """Find answers that begin too high, or jump inside, and what was handed over too late.

    An answer is due to begin after the cursor that the GET asked with; within a session not above
    what it got since its client last left either (a client that skips ahead loses what is between;
    an application may, so in its record it is the higher of the two). A new subscription's start
    may be higher: nothing below it is owed, and anything may be its start if its SUB was not
    answered. `other_id` is the id after which the answer should have gone on; of what was handed
    over (`handed`), the higher one.
    """
    found = _between_answers(tables).unionByName(_inside_answers(tables))
    if is_never_any(tables.handlings):
        return found
    return found.unionByName(_handed_behind(tables))


def _between_answers(tables: Tables) -> DataFrame:
    lower, higher = F.least("asked", "due_id"), F.greatest("asked", "due_id")
    base = F.when(F.col("is_application"), higher).otherwise(lower)
    asked = with_application(tables.unclear_gets.where(F.col("asked").isNotNull()), tables)
    ahead = asked.withColumn("base", base).where(F.col("first") > F.col("base") + 1)
    place = (*KEY, "client_id", "topic", one_host(), "first", "invoke_ns", "end_ns")
    jumps = settled(
        _behind_acknowledged(ahead.select(*place, "base", "is_application"), tables)
        .where(F.col("first") > F.col("base") + 1)
        .select(*ahead.select(*place).columns, "base")
    )
    if is_never_any(jumps):
        return jumps.select(*evidence())
    starts = _starts(tables.acts).withColumnsRenamed({name: f"sub_{name}" for name in HOME})
    same = [F.col(name) == F.col(f"sub_{name}") for name in OWNER]
    elsewhere = F.col("at") != F.col("sub_at")
    begun = jumps.join(
        F.broadcast(starts), [*same, elsewhere | (F.col("sub_ns") <= F.col("end_ns"))]
    )
    known = begun.where(F.col("start_id").isNotNull())
    excused = _unsettled(begun.where(F.col("start_id").isNull()), tables)
    return (
        jumps.join(excused, list(KEY), "leftanti")
        .join(known.select(*KEY, "start_id"), list(KEY), "left")
        .groupBy(*KEY, "client_id", "topic", "first", "base")
        .agg(F.max("start_id").alias("start"))
        .withColumn("after", F.greatest("base", "start"))
        .where(F.col("first") > F.col("after") + 1)
        .select(*_evidence())
    )


def _behind_acknowledged(ahead: DataFrame, tables: Tables) -> DataFrame:
    """Raise `base` to what an application had acknowledged before the answer's end, on its host."""
    acks = (
        only(tables.handlings.where(F.col("f") == "ack"), ahead, OWNER)
        .select(*HOME, "t_ns", F.col("last").alias("acknowledged"))
        .withColumnsRenamed({name: f"ack_{name}" for name in HOME})
    )
    same = [F.col(name).eqNullSafe(F.col(f"ack_{name}")) for name in HOME]
    before = F.col("is_application") & (F.col("t_ns") <= F.col("end_ns"))
    return (
        ahead.join(acks, [*same, before], "left")
        .groupBy(*ahead.columns)
        .agg(F.max("acknowledged").alias("acknowledged"))
        .withColumn("base", F.greatest("base", "acknowledged"))
    )


def _starts(acts: DataFrame) -> DataFrame:
    """Return the SUBs that may have begun a subscription anew: an UNSUB was sent before it, or on
    another host, or none was answered before it was sent. `start_id` null: where is not known.
    """
    subs, unsubs = acts.where(F.col("f") == "sub"), acts.where(F.col("f") == "unsub")
    first_left = unsubs.groupBy(*HOME).agg(F.min("from_ns").alias("left_ns"))
    first_ok = (
        subs.where(F.col("outcome") == "ok").groupBy(*HOME).agg(F.min("end_ns").alias("ok_ns"))
    )
    elsewhere = unsubs.groupBy(*OWNER).agg(
        F.min("at").alias("left_at"), F.max("at").alias("left_other_at")
    )
    anew = (
        (F.col("from_ns") >= F.col("left_ns"))
        | (F.col("left_at") != F.col("at"))
        | (F.col("left_other_at") != F.col("at"))
        | F.coalesce(F.col("from_ns") <= F.col("ok_ns"), F.lit(True))
    )
    return (
        subs.join(first_left, list(HOME), "left")
        .join(first_ok, list(HOME), "left")
        .join(elsewhere, list(OWNER), "left")
        .where(anew)
        .select(
            *HOME,
            F.col("from_ns").alias("sub_ns"),
            F.when(F.col("outcome") == "ok", F.col("start_id")).alias("start_id"),
        )
    )


def _unsettled(begun: DataFrame, tables: Tables) -> DataFrame:
    """Return the answers after a SUB of unknown outcome that may be of another subscription than
    all that was given before: no GET before it gave something, or an UNSUB may have acted since.
    """
    begun = begun.select(*KEY, *HOME[1:], "invoke_ns", "end_ns").distinct()
    left = (
        tables.acts.where(F.col("f") == "unsub")
        .select(*HOME, "from_ns", "latest_ns")
        .withColumnsRenamed({name: f"left_{name}" for name in HOME})
    )
    elsewhere = F.col("left_at") != F.col("at")
    acted_ns = F.max(F.when(elsewhere, FOREVER).otherwise(F.col("latest_ns")))
    same = [F.col(name) == F.col(f"left_{name}") for name in OWNER]
    acted = (
        begun.join(left, [*same, elsewhere | (F.col("from_ns") <= F.col("end_ns"))], "left")
        .groupBy(*begun.columns)
        .agg(F.coalesce(acted_ns, F.lit(EVER)).alias("acted_ns"))
    )
    given = (
        only(tables.gets.where(F.col("last").isNotNull()), begun, OWNER)
        .select(*OWNER, one_host(), F.col("invoke_ns").alias("sent_ns"), "end_ns")
        .withColumnsRenamed({name: f"got_{name}" for name in (*HOME, "end_ns")})
    )
    same = [F.col(name) == F.col(f"got_{name}") for name in HOME]
    settled = (F.col("sent_ns") > F.col("acted_ns")) & (F.col("got_end_ns") < F.col("invoke_ns"))
    return acted.join(given, [*same, settled], "leftanti").select(*KEY)


def _inside_answers(tables: Tables) -> DataFrame:
    answer = W.partitionBy(*KEY).orderBy("first", "last")
    reach = F.max("last").over(answer.rowsBetween(W.unboundedPreceding, -1))
    return (
        tables.deliveries.where(~F.col("is_plain"))
        .withColumn("after", reach)
        .where(F.col("first") > F.col("after") + 1)
        .select(*_evidence())
    )


def _handed_behind(tables: Tables) -> DataFrame:
    steps = tables.handlings.withColumn("bucket", intervals.bucket_of(F.col("op_id")))
    released = F.when(F.col("f") == "release", F.col("op_id"))
    steps = _with_highest(steps, SESSION, "since", released, including=0)
    since = (*SESSION, "since")
    hands = steps.where(F.col("f") == "hand").withColumn("since", F.coalesce("since", F.lit(0)))
    hands = _with_highest(hands, since, "reached", F.col("last"), including=-1)
    own = ("op_id", "at", "t_ns", "first", "last")
    late = settled(hands.where(F.col("first") < F.col("reached")).select(*since, *own))
    if is_never_any(late):
        return late.select(*evidence())
    earlier = only(hands, late, OWNER).select(
        *since, *(F.col(name).alias(f"earlier_{name}") for name in own if name != "at")
    )
    pairs = late.join(earlier, list(since)).where(F.col("earlier_op_id") < F.col("op_id"))
    moves = moves_of(tables.acts)
    read = with_eras(pairs, moves, F.col("earlier_t_ns"), F.col("t_ns"))
    read = settled(read.where(F.col("era_over") == F.col("era_begun")))
    step = (*SESSION, "op_id", "first", "last")
    highest = F.max(F.struct("earlier_last", "earlier_op_id")).alias("highest")
    below = F.least(F.col("last"), F.col("highest.earlier_last") - 1)
    ids = read.groupBy(*step).agg(highest).withColumn("below", below)
    ids = ids.where(F.col("first") <= F.col("below")).withColumn(
        "id", F.explode(F.sequence("first", "below"))
    )
    named = read.select(*step, "earlier_first", "earlier_last")
    is_named = F.col("id").between(F.col("earlier_first"), F.col("earlier_last"))
    same = [ids[name] == named[name] for name in step]
    return (
        ids.join(named, [*same, is_named], "leftanti")
        .groupBy(*step, "highest")
        .agg(F.min("id").alias("id"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                client_id=F.col("client_id"),
                id=F.col("id"),
                other_id=F.col("highest.earlier_last"),
                detail=F.lit("handed"),
                operations=F.array(operation(op_id="highest.earlier_op_id"), operation()),
            )
        )
    )


def _with_highest(
    steps: DataFrame, keys: Sequence[str], name: str, value: Column, including: int
) -> DataFrame:
    """Add `name`: the greatest `value` of the same `keys` and a lower `op_id`, or (`including` 0)
    the same one.
    """
    prior = intervals.highest_in_buckets_before(steps, keys, prior=value)
    within = W.partitionBy(*keys, "bucket").orderBy("op_id")
    so_far = F.max(value).over(within.rangeBetween(W.unboundedPreceding, including))
    return (
        steps.join(prior, [*keys, "bucket"], "left")
        .withColumn(name, F.greatest(so_far, "prior"))
        .drop("prior")
    )


def _evidence() -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        id=F.col("first"),
        other_id=F.col("after"),
        operations=F.array(operation()),
    )
