"""When a client surely was subscribed, and when it surely was not. No rule about right and wrong.

docs/checks.md ("Standing", "Passed, drained") defines every word here; this file computes them.

acts    the SUBs and UNSUBs that may have acted: `from_ns` (the invoke), `latest_ns`
lives   one row a life: (run, client, topic, at), `begun_ns`, `until_ns`, `start_id` (null: not
        known), `passed`, `drained_ns` (of its last `drained` row), `made_by` (its first proof);
        `since_ns`: when its span began; `fresh_ns`, `over_ns`: after the one, and by the other,
        its subscription surely began, and was over (null: not known)
absences  the times in which a client surely was not subscribed, and may have got answers:
        `after_ns`, `before_ns`

Most clients subscribe once and never leave: their life follows from their SUB and from what is
known of each of their sessions (`spans`). Only of the others every GET is looked at.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common.schema import KEY, PURGES, operation
from analytics.common.table_store import is_never_any, settled
from analytics.tables.runs import one_host
from analytics.tables.suspects import OWNER, only, without

HOME: Final = (*OWNER, "at")  # times are compared on one host
FOREVER: Final = 2**62  # later than any time
EVER: Final = -1  # earlier than any time
PROOF: Final = ("end_ns", "process", "op_id")


def acts_of(controls: DataFrame) -> DataFrame:
    """Return `acts`."""
    rows = controls.where(F.col("outcome") != "fail").select(
        *(*KEY, "client_id", "topic", "f", "outcome", "epoch", "end_ns", "start_id", "resumed"),
        "start",
        one_host(),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("from_ns"),
    )
    done = rows.where(F.col("outcome") == "ok").select(
        *(F.col(name).alias(f"done_{name}") for name in (*HOME, "process", "epoch", "from_ns")),
        F.col("end_ns").alias("done_ns"),
    )
    superseded = (F.col("done_process") == F.col("process")) | (
        F.col("done_epoch") > F.col("epoch")
    )
    # Of unknown outcome are few; each meets the requests of one client for one topic.
    later = (
        rows.where(F.col("outcome") != "ok")
        .join(done, [F.col(name) == F.col(f"done_{name}") for name in HOME])
        .where(superseded & (F.col("done_from_ns") > F.col("from_ns")))
        .groupBy(*KEY)
        .agg(F.min("done_ns").alias("superseded_ns"))
    )
    own = F.when(F.col("outcome") == "ok", F.col("end_ns"))
    latest = F.coalesce(own, "superseded_ns", F.lit(FOREVER))
    return rows.join(later, list(KEY), "left").withColumn("latest_ns", latest).drop("superseded_ns")


def lives_of(acts: DataFrame, gets: DataFrame, spans: DataFrame, drained: DataFrame) -> DataFrame:
    """Return `lives`. `drained`: (run, client, topic, at, t_ns, last_id), the rows of that name."""
    subs = acts.where((F.col("f") == "sub") & (F.col("outcome") == "ok"))
    unsubs = settled(acts.where(F.col("f") == "unsub"))
    first = F.min(F.struct(*PROOF)).alias("first")
    made = settled(subs.groupBy(*HOME).agg(first, F.min("start_id").alias("start_id")))
    heard = settled(
        spans.where(F.col("topic") != "")  # of any topic: one that brought nothing proves none
        .groupBy(*HOME)
        .agg(
            F.min("begin_ns").alias("begin_ns"),
            F.greatest(F.max("top"), F.max("high_known")).alias("passed"),
        )
    )
    follows = F.col("begin_ns").isNull() | (F.col("begin_ns") >= F.col("first.end_ns"))
    calm = settled(without(made.join(heard, list(HOME), "left").where(follows), unsubs, OWNER))
    homes = made.select(*HOME).unionByName(heard.select(*HOME)).distinct()
    restless = settled(homes.join(calm.select(*HOME), list(HOME), "leftanti"))
    lived = calm.select(
        *HOME,
        F.col("first.end_ns").alias("begun_ns"),
        F.lit(EVER).cast("bigint").alias("since_ns"),
        F.lit(FOREVER).alias("until_ns"),
        "start_id",
        "passed",
        _made_by(),
        F.lit(None).cast("bigint").alias("fresh_ns"),
        F.lit(None).cast("bigint").alias("over_ns"),
    )
    if not is_never_any(restless):
        lived = settled(lived.unionByName(_looked_at(restless, subs, unsubs, gets)))
    return _with_drains(lived, drained)


def _made_by() -> Column:
    return operation("first.process", "first.op_id").alias("made_by")


def _looked_at(homes: DataFrame, subs: DataFrame, unsubs: DataFrame, gets: DataFrame) -> DataFrame:
    """Return the lives of the clients in `homes`, GET by GET."""
    answered = gets.where((F.col("outcome") == "ok") & F.col("topic").isNotNull())
    visits = only(
        answered.select(
            *(*KEY, "client_id", "topic", "end_ns"),
            one_host(),
            F.coalesce("invoke_ns", F.lit(EVER)).alias("from_ns"),
            F.col("first").alias("given"),
            F.greatest("last", "asked").alias("reach"),
        ),
        homes,
        HOME,
    )
    controls = _acting_last(only(subs, homes, HOME), unsubs)
    proofs = visits.unionByName(
        controls.select(*KEY, *HOME[1:], "end_ns", "from_ns", "start_id"),
        allowMissingColumns=True,
    )
    stretches = settled(_stretches(homes, unsubs))
    turns = settled(_turns(homes, subs, unsubs))
    begun = F.filter("turns", lambda turn: turn["from_ns"] < F.col("begun_ns"))
    ended = F.filter("turns", lambda turn: turn["from_ns"] >= F.col("until_ns"))
    fresh_ns = F.array_max(F.transform(begun, lambda turn: turn["from_ns"]))
    over_ns = F.array_min(F.transform(ended, lambda turn: turn["end_ns"]))
    inside = (F.col("from_ns") >= F.col("since_ns")) & (F.col("end_ns") <= F.col("until_ns"))
    return (
        proofs.join(F.broadcast(stretches), list(HOME))
        .where(inside)
        .groupBy(*HOME, "since_ns", "until_ns")
        .agg(
            F.min(F.struct(*PROOF)).alias("first"),
            F.coalesce(F.min("start_id"), F.min("given") - 1).alias("start_id"),
            F.max("reach").alias("passed"),
        )
        .select(
            *HOME,
            F.col("first.end_ns").alias("begun_ns"),
            "since_ns",
            "until_ns",
            "start_id",
            "passed",
            _made_by(),
        )
        .join(F.broadcast(turns), list(HOME), "left")
        .withColumns({"fresh_ns": fresh_ns, "over_ns": over_ns})
        .drop("turns")
    )


def _turns(homes: DataFrame, subs: DataFrame, unsubs: DataFrame) -> DataFrame:
    """Return (home, turns): the UNSUBs that were answered, and the SUBs that were told that no
    subscription stood. At a moment of each there was none.
    """
    left = unsubs.where(F.col("outcome") == "ok")
    found = subs.where(~F.col("resumed")).unionByName(left)
    turn = F.struct("from_ns", "end_ns")
    return only(found, homes, HOME).groupBy(*HOME).agg(F.collect_list(turn).alias("turns"))


def may_have_had() -> Column:
    """Return whether what came between `came_from_ns` and `came_ns`, at `came_at`, may have been
    given to the life of the row.
    """
    came_before = F.coalesce(F.col("came_ns") < F.col("fresh_ns"), F.lit(False))
    came_after = F.coalesce(F.col("came_from_ns") > F.col("over_ns"), F.lit(False))
    return (F.col("came_at") != F.col("at")) | ~(came_before | came_after)


def _acting_last(subs: DataFrame, unsubs: DataFrame) -> DataFrame:
    """Return `subs`; of one that supersedes each UNSUB that may act during it, or is one seek with
    it, `from_ns` is its end: they act before it, so none may act since.
    """
    names = (*HOME, "process", "op_id", "epoch", "outcome", "from_ns", "latest_ns", "end_ns")
    left = only(unsubs, subs, HOME).select(*(F.col(name).alias(f"left_{name}") for name in names))
    same = [F.col(name) == F.col(f"left_{name}") for name in HOME]
    during = (F.col("left_from_ns") < F.col("end_ns")) & (
        F.col("left_latest_ns") > F.col("from_ns")
    )
    superseded = (
        (F.col("left_outcome") != "ok")
        & (F.col("left_latest_ns") == F.col("end_ns"))
        & (F.col("left_from_ns") < F.col("from_ns"))
        & ((F.col("left_process") == F.col("process")) | (F.col("left_epoch") < F.col("epoch")))
    )
    is_next = (F.col("left_process") == F.col("process")) & (
        F.col("left_op_id") + 1 == F.col("op_id")
    )
    overlaps = F.col("from_ns").between(
        F.col("left_from_ns"), F.coalesce("left_end_ns", F.lit(FOREVER))
    )
    is_seek = F.col("start").isNotNull() & is_next & overlaps
    is_before = F.coalesce(superseded, F.lit(False)) | F.coalesce(is_seek, F.lit(False))
    last = (
        subs.join(left, [*same, during]).groupBy(*KEY).agg(F.bool_and(is_before).alias("is_last"))
    )
    from_ns = F.when(F.col("is_last"), F.col("end_ns")).otherwise(F.col("from_ns"))
    return subs.join(last, list(KEY), "left").withColumn("from_ns", from_ns)


def _stretches(homes: DataFrame, unsubs: DataFrame) -> DataFrame:
    """Return (home, since_ns, until_ns): the times in which no UNSUB may act.

    Of a client that may have left on another host there is none: times there are not compared.
    """
    left_at = unsubs.select(*(F.col(name).alias(f"left_{name}") for name in HOME)).distinct()
    same_owner = [F.col(name) == F.col(f"left_{name}") for name in OWNER]
    elsewhere = [*same_owner, F.col("at") != F.col("left_at")]
    known = homes.join(left_at, elsewhere, "leftanti")
    # A client's control requests are few, so this window is bounded by its nature.
    before = W.partitionBy(*HOME).orderBy("from_ns").rowsBetween(W.unboundedPreceding, -1)
    since_ns = F.coalesce(F.max("latest_ns").over(before), F.lit(EVER))
    until_cut = unsubs.select(
        *HOME, since_ns.alias("since_ns"), F.col("from_ns").alias("until_ns")
    ).where(F.col("since_ns") < F.col("until_ns"))
    behind = (
        unsubs.groupBy(*HOME)
        .agg(F.max("latest_ns").alias("since_ns"))
        .where(F.col("since_ns") < FOREVER)
        .withColumn("until_ns", F.lit(FOREVER))
    )
    cut = until_cut.unionByName(behind)
    whole = known.join(unsubs.select(*HOME).distinct(), list(HOME), "leftanti").select(
        *HOME, F.lit(EVER).cast("bigint").alias("since_ns"), F.lit(FOREVER).alias("until_ns")
    )
    return cut.join(known, list(HOME), "leftsemi").unionByName(whole)


def _with_drains(lived: DataFrame, drained: DataFrame) -> DataFrame:
    marks = drained.select(
        *HOME, F.col("t_ns").alias("drained_ns"), F.col("last_id").alias("drained_id")
    )
    inside = F.col("drained_ns").between(F.col("begun_ns"), F.col("until_ns"))
    found = (
        lived.select(*HOME, "begun_ns", "until_ns")
        .join(marks, list(HOME))
        .where(inside)
        .groupBy(*HOME, "begun_ns")
        .agg(F.max("drained_ns").alias("drained_ns"), F.max("drained_id").alias("drained_id"))
    )
    return (
        lived.join(found, [*HOME, "begun_ns"], "left")
        .withColumn("passed", F.greatest("passed", "drained_id"))
        .drop("drained_id")
    )


def collected_of(truth: DataFrame, asides: DataFrame, expiring: DataFrame) -> DataFrame:
    """Return (run_id, topic, purged_id, floor, is_plain): up to where a node has collected a topic,
    above what was to be purged of it, or dropped. `is_plain`: nothing was, and nothing expires.

    Not those that are compacted: below their floor some are left.
    """
    topic = ["run_id", "topic"]
    purged = (
        asides.where(F.col("f").isin(*PURGES))
        .groupBy(*topic)
        .agg(F.max("last_id").alias("purged_id"))
    )
    floors = (
        truth.where(F.col("kind") == "topic")
        .groupBy(*topic)
        .agg(F.max("floor_id").alias("floor"))
        .join(F.broadcast(purged), topic, "left")
        .join(F.broadcast(expiring.select(*topic, "is_compacted")), topic, "left")
    )
    plain = F.col("purged_id").isNull() & F.col("is_compacted").isNull()
    named = floors.withColumns(
        {"is_plain": plain, "purged_id": F.coalesce("purged_id", F.lit(0).cast("bigint"))}
    )
    above = F.col("floor") > F.col("purged_id")
    kept = named.where(above & ~F.coalesce("is_compacted", F.lit(False)))
    return settled(kept.drop("is_compacted"))


def with_floors(lives: DataFrame, floors: DataFrame) -> DataFrame:
    """Return `lives`; one without an end has passed what was `collected_of` its topic as well, if
    that is plain.
    """
    if is_never_any(floors):
        return lives
    floors = floors.where("is_plain")
    floor = F.when((F.col("until_ns") == FOREVER) & (F.col("floor") > 0), F.col("floor"))
    known = lives.join(F.broadcast(floors), ["run_id", "topic"], "left")
    return known.withColumn("passed", F.greatest("passed", floor)).select(*lives.columns)


def with_gone(subs: DataFrame, acts: DataFrame) -> DataFrame:
    """Add `gone_ns` to `subs` of `acts`: since when what each made has surely ended; null: never.

    A SUB may stand from its invoke until an UNSUB that was sent after its latest was answered.
    """
    gone = acts.where((F.col("f") == "unsub") & (F.col("outcome") == "ok")).select(
        *HOME, F.col("from_ns").alias("gone_from_ns"), F.col("end_ns").alias("gone_ns")
    )
    ended = (
        subs.join(gone, list(HOME))
        .where(F.col("latest_ns") < F.col("gone_from_ns"))
        .groupBy(*KEY)
        .agg(F.min("gone_ns").alias("gone_ns"))
    )
    return subs.join(ended, list(KEY), "left")


def absences_of(acts: DataFrame, spans: DataFrame) -> DataFrame:
    """Return `absences`. `spans`: from when to when each session asked."""
    subs = acts.where(F.col("f") == "sub")
    standing = with_gone(subs, acts).select(
        *HOME, "from_ns", F.coalesce("gone_ns", F.lit(FOREVER)).alias("to_ns")
    )
    before = W.partitionBy(*HOME).orderBy("from_ns").rowsBetween(W.unboundedPreceding, -1)
    after_ns = F.coalesce(F.max("to_ns").over(before), F.lit(EVER - 1))
    until = standing.select(
        *HOME, after_ns.alias("after_ns"), F.col("from_ns").alias("before_ns")
    ).where(F.col("after_ns") < F.col("before_ns"))
    behind = (
        standing.groupBy(*HOME)
        .agg(F.max("to_ns").alias("after_ns"))
        .where(F.col("after_ns") < FOREVER)
        .withColumn("before_ns", F.lit(FOREVER))
    )
    # A SUB on another host may stand at any time.
    homes = spans.where(F.col("topic").isNotNull()).select(*HOME).distinct()
    never = homes.join(subs.select(*OWNER).distinct(), list(OWNER), "leftanti").select(
        *HOME,
        F.lit(EVER - 1).cast("bigint").alias("after_ns"),
        F.lit(FOREVER).alias("before_ns"),
    )
    hosts = subs.groupBy(*OWNER).agg(F.min("at").alias("one"), F.max("at").alias("other"))
    alone = hosts.where(F.col("one") == F.col("other")).select(*OWNER, F.col("one").alias("at"))
    away = until.unionByName(behind).join(alone, list(HOME), "leftsemi").unionByName(never)
    asked = spans.select(*HOME, "begin_ns", "end_ns")
    meets = (F.col("end_ns") > F.col("after_ns")) & (F.col("begin_ns") < F.col("before_ns"))
    return asked.join(F.broadcast(away), list(HOME)).where(meets).select(*away.columns).distinct()
