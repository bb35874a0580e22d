"""A subscription's cursor that is not where the subscriber has put it."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import few, settled
from analytics.tables import as_of
from analytics.tables.lives import EVER, may_have_had
from analytics.tables.moves import moves_of, with_eras
from analytics.tables.runs import one_host
from analytics.tables.suspects import only
from analytics.tables.tables import Tables, with_application

OWNER = ("run_id", "client_id", "topic")
TIMELINE = (*OWNER, "at")


def cursor_regression(tables: Tables) -> DataFrame:
    """Find cursors that went back, or are ahead of all that the subscriber was ever given.

    A cursor is taken when a GET that asks with it is answered, or a SUB that resumes; that of a new
    subscription only for the SUBs after it. One at the end of what the client was told is gone is
    not: told so beside what follows, it has passed that before the broker hears of it. One that
    the request did not say is not taken either.
    `asked`: a GET asks, and is answered, with a lower one than was taken before it was sent.
    `answered`: a SUB is answered with a lower one. `ahead`: a SUB resumes, during a
    life, at a higher one than the life's start, and all that was given or asked with by then; or
    one says that only ids above one come that its client never had, though its cursor is below.
    `other_id` is what the cursor is held against.
    """
    return _back(tables).unionByName(_ahead(tables)).unionByName(_begun_ahead(tables))


def _back(tables: Tables) -> DataFrame:
    answered = tables.gets.where((F.col("outcome") == "ok") & F.col("asked").isNotNull())
    doubtful = tables.doubts.owners
    gets = only(answered.select(*_step("asked"), "unsaid"), doubtful, OWNER)
    subs = only(_resumptions(tables).select(*_step("cursor"), "resumed"), doubtful, OWNER)
    asked, told = F.lit("asked").alias("detail"), F.lit("answered").alias("detail")
    own = gets.drop("unsaid").columns
    steps = gets.select(*own, asked).unionByName(subs.select(*own, told))
    # Nobody asked yet with the cursor of a new subscription, and by hand one may ask with less.
    resumed = subs.where("resumed").select(*own, asked)
    gone = tables.gets.where("tells_of_purge").select(*OWNER, F.col("last").alias("known"))
    gone = only(gone, doubtful, OWNER).distinct()
    taken = (
        gets.where(~F.col("unsaid"))
        .join(F.broadcast(gone), [*OWNER, "known"], "leftanti")
        .select(*own)
    )
    marks = taken.select("*", asked).unionByName(taken.select("*", told))
    marks = marks.unionByName(resumed).unionByName(subs.select(*own, told))
    value = F.struct(F.col("known").alias("value"), "process", "op_id")
    moves = moves_of(tables.acts)
    keys = (*TIMELINE, "detail", "era")
    eras = (F.coalesce("invoke_ns", F.lit(EVER)), F.col("end_ns"))
    # What was taken before its client may have gone elsewhere says nothing of what it asks then.
    marks = with_eras(marks, moves, *eras).withColumn("era", F.col("era_over"))
    marks = marks.select(*keys, F.col("end_ns").alias("t_ns"), value.alias("mark"))
    asks = with_eras(steps, moves, *eras).withColumn("era", F.col("era_begun"))
    asks = asks.drop("era_over", "era_begun").withColumn("t_ns", F.col("invoke_ns"))
    return as_of.overtaken(asks, marks, keys).select(
        *_evidence(
            other_id=F.col("mark.value"),
            detail=F.col("detail"),
            operations=F.array(operation("mark.process", "mark.op_id"), operation()),
        )
    )


def _ahead(tables: Tables) -> DataFrame:
    resumed = _resumptions(tables).where(F.col("resumed")).select(*_step("cursor"))
    of_life = ("begun_ns", "until_ns", "start_id", "fresh_ns", "over_ns")
    lives = F.broadcast(tables.lives.select(*TIMELINE, *of_life))
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    above = settled(
        resumed.join(lives, list(TIMELINE))
        .where(stood & (F.col("known") > F.col("start_id")))
        .drop("begun_ns", "until_ns")
    )
    # Only now the GETs: there are none of these in a clean history, or few.
    reach = F.greatest("last", "asked").alias("reach")
    gets = only(tables.gets, above, OWNER).select(
        *OWNER,
        one_host().alias("came_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("came_from_ns"),
        F.col("end_ns").alias("came_ns"),
        reach,
    )
    before = (F.col("came_from_ns") < F.col("end_ns")) | (F.col("at") != F.col("came_at"))
    had = F.when(before & may_have_had(), F.col("reach"))
    return (
        above.join(gets, list(OWNER), "left")
        .groupBy(*above.columns)
        .agg(F.greatest("start_id", F.max(had)).alias("other_id"))
        .where(F.col("known") > F.col("other_id"))
        .select(
            *_evidence(
                other_id=F.col("other_id"),
                detail=F.lit("ahead"),
                operations=F.array(operation()),
            )
        )
    )


def _begun_ahead(tables: Tables) -> DataFrame:
    """Find SUBs that begin above their cursor, and above all that their client had."""
    answered = with_application(_resumptions(tables), tables).where(~F.col("is_application"))
    above = few(
        answered.where(F.col("start_id") > F.col("cursor")).select(*_step("start_id"), "cursor")
    )
    gets = only(tables.gets, above, OWNER).select(
        *OWNER,
        one_host().alias("came_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("came_ns"),
        F.greatest("last", "asked").alias("reach"),
    )
    subs = only(
        tables.controls.where((F.col("f") == "sub") & (F.col("outcome") == "ok")), above, OWNER
    )
    subs = subs.select(
        *OWNER,
        one_host().alias("came_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("came_ns"),
        F.greatest("start_id", "cursor").alias("reach"),
        operation().alias("who"),
    )
    rows = only(tables.handlings, above, OWNER).select(
        *OWNER,
        F.col("at").alias("came_at"),
        F.col("t_ns").alias("came_ns"),
        F.greatest("last", "cursor").alias("reach"),
    )
    had = gets.unionByName(rows).withColumn("who", F.lit(None)).unionByName(subs)
    before = (F.col("came_ns") < F.col("end_ns")) | (F.col("at") != F.col("came_at"))
    is_own = F.coalesce(F.col("who") == operation(), F.lit(False))
    return (
        above.join(had, list(OWNER), "left")
        .groupBy(*above.columns)
        .agg(
            F.greatest("cursor", F.max(F.when(before & ~is_own, F.col("reach")))).alias("other_id")
        )
        .where(F.col("known") > F.col("other_id"))
        .select(
            *_evidence(
                other_id=F.col("other_id"),
                detail=F.lit("ahead"),
                operations=F.array(operation()),
            )
        )
    )


def _resumptions(tables: Tables) -> DataFrame:
    """Return the SUBs whose answer says where the broker has the cursor."""
    answered = (F.col("f") == "sub") & (F.col("outcome") == "ok")
    return tables.controls.where(answered & F.col("cursor").isNotNull())


def _step(cursor: str) -> list[Column]:
    own = [F.col(name) for name in (*KEY, "client_id", "topic", "session", "invoke_ns", "end_ns")]
    return [*own, one_host(), F.col(cursor).alias("known")]


def _evidence(**columns: Column) -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        id=F.col("known"),
        **columns,
    )
