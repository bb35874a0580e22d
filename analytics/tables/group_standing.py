"""When a group surely stood, and what its workers were answered that contradicts it.

What lives here: the rows of `subscription` and `lost` that are of groups. What must not: leases and
settlements (groups.py). Who works in the groups of an application, and makes and ends them, need
not record: of its record only what single answers say is judged.
"""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import few, is_never_any, none_of, settled
from analytics.tables.groups import GROUP, NO_GROUP, NO_TOPIC, steady_of
from analytics.tables.lives import EVER
from analytics.tables.runs import acknowledged_runs, one_host
from analytics.tables.suspects import only
from analytics.tables.tables import Tables, with_application
from analytics.tables.times import SURELY, in_ns

ROW = (*KEY, "topic", "client_id")
LEASES_MAX = 4_096
RUNS_MAX, SETTLED_MAX = 256, 8_192  # runs of ids, and these, that a TAKE settles
LEASE_MS_MAX, DELAY_MS_MAX = 12 * 3_600_000, 24 * 3_600_000
ATTEMPTS_MAX = 10_000
DENIAL = "denial"  # among controls: a TAKE that was rightly told that there is no such group


def controls_of(worked: DataFrame) -> DataFrame:
    """Return what makes groups and ends them, but for what failed: few."""
    named = worked.where(F.col("group").isNotNull() & F.col("f").isin("group", "ungroup"))
    return settled(
        named.where(F.col("outcome") != "fail").select(
            *(*GROUP, "f", "outcome", "end_ns", "process", "op_id", "client_id"),
            F.coalesce("invoke_ns", F.lit(EVER)).alias("from_ns"),
            one_host(),
            *("resumed", "start", "last_id", "attempt"),
        )
    )


def _theirs(controls: DataFrame) -> DataFrame:
    return controls.select(*(F.col(name).alias(f"its_{name}") for name in controls.columns))


def standing(rows: DataFrame, controls: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Return `rows` during which a group surely stood: with `group` and `made`, who was told so
    first. `rows` have `keys`, a topic, `at`, `invoke_ns`, `end_ns`.
    """
    theirs = _theirs(controls)
    same = [F.col(name) == F.col(f"its_{name}") for name in keys]
    made = theirs.where((F.col("its_f") == "group") & (F.col("its_outcome") == "ok"))
    told = (F.col("its_at") == F.col("at")) & (F.col("its_end_ns") < F.col("invoke_ns"))
    first = F.min(F.struct("its_end_ns", "its_process", "its_op_id")).alias("first")
    columns = [name for name in rows.columns if name != "group"]
    stood = rows.join(F.broadcast(made), [*same, told])
    found = stood.groupBy(*columns, F.col("its_group").alias("group")).agg(first)
    ended = _theirs(controls.where(F.col("f") == "ungroup"))
    of_group = [F.col(name) == F.col(f"its_{name}") for name in GROUP]
    may_end = (F.col("its_at") != F.col("at")) | (F.col("its_from_ns") < F.col("end_ns"))
    return found.join(F.broadcast(ended), [*of_group, may_end], "leftanti").withColumn(
        "made", operation("first.its_process", "first.its_op_id")
    )


def of_groups(tables: Tables) -> DataFrame:
    """Return the evidence of `subscription` that is of groups."""
    worked = tables.worked
    if is_never_any(worked):
        return worked.select(*evidence())
    controls = controls_of(worked)
    takes = worked.where((F.col("f") == "take") & F.col("group").isNotNull()).select(
        *(*ROW, "group", "outcome", "error", "max_count", "leases", "end_ns"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("invoke_ns"),
        one_host(),
    )
    news = controls.where((F.col("f") == "group") & (F.col("outcome") == "ok") & ~F.col("resumed"))
    news = news.withColumnRenamed("from_ns", "invoke_ns")
    others = news.where(F.col("start").rlike("^[0-9]+$")).where(
        F.col("start").cast("bigint") - 1 != F.col("last_id")
    )
    answered = takes.where(F.col("outcome") == "ok")
    ours = _of_ours(takes, tables)
    is_denied = (F.col("outcome") == "fail") & F.col("error").isin(*NO_GROUP)
    refused = few(ours.where(is_denied).drop("leases"))
    denied = settled(standing(refused, controls, GROUP))
    lost = refused.where(F.col("error") == NO_TOPIC)
    lost = settled(
        _in_topic(lost.join(denied.select(*KEY), list(KEY), "leftanti"), controls, tables)
    )
    wrong = denied.select(*KEY).unionByName(lost.select(*KEY))
    denials = refused.join(wrong, list(KEY), "leftanti")
    controls = controls.unionByName(_as_ends(denials, controls))
    forgotten = standing(_of_ours(news, tables), controls, GROUP)
    gone = _gone(ours.where(F.col("outcome") == "ok"), controls)
    found = (F.col("f") == "group") & (F.col("outcome") == "ok") & F.col("resumed")
    first = controls.where(found & (F.col("attempt") == 1)).withColumnRenamed(
        "from_ns", "invoke_ns"
    )
    kept = _gone(_of_ours(first, tables), controls)
    return (
        answered.where(is_excessive()).select(*_row("limit"))
        .unionByName(others.select(*_row("start")))
        .unionByName(gone.select(*_row("unsubscribed")))
        .unionByName(kept.select(*_row("kept")))
        .unionByName(denied.select(*_row("denied", "made")))
        .unionByName(lost.select(*_row("denied", "made")))
        .unionByName(forgotten.select(*_row("forgotten", "made")))
    )  # fmt: skip


def is_excessive() -> Column:
    """Return whether a TAKE was leased more than it asked for."""
    most = F.coalesce("max_count", F.lit(0))  # without one it settles alone
    is_take = F.col("group").isNotNull() & F.col("leases").isNotNull()
    return is_take & (_sum_of("leases", 0) > most)


def over_a_limit() -> Column:
    """Return whether a `group` or a TAKE is over a limit of the protocol."""
    words = ("acks", "naks", "extends")
    runs = sum((F.coalesce(F.size(word), F.lit(0)) for word in words), F.lit(0))
    ids = sum((_sum_of(word, 1) for word in words), F.lit(0))
    is_over = [
        _sum_of("leases", 0) > LEASES_MAX,
        runs > RUNS_MAX,
        ids > SETTLED_MAX,
        F.coalesce("lease_ms", F.lit(0)) > LEASE_MS_MAX,
        F.exists("extends", lambda run: run[3] > LEASE_MS_MAX),
        F.exists("naks", lambda run: run[3] > DELAY_MS_MAX),
        F.coalesce("max_attempts", F.lit(0)) > ATTEMPTS_MAX,
    ]
    return reduce(or_, (F.coalesce(one, F.lit(False)) for one in is_over))


def _sum_of(name: str, place: int) -> Column:
    """Return how many ids runs have, whose first one stands at a place."""
    nothing = F.lit(0).cast("bigint")
    total = F.aggregate(name, nothing, lambda sum_, run: sum_ + run[place + 1] - run[place] + 1)
    return F.coalesce(total, nothing)


def _as_ends(denials: DataFrame, controls: DataFrame) -> DataFrame:
    """Return the TAKEs that were rightly told that there is no group as what had ended it."""
    nothing = F.lit(None)
    return denials.select(
        *GROUP,
        F.lit(DENIAL).alias("f"),
        *("outcome", "end_ns", "process", "op_id", "client_id"),
        F.col("invoke_ns").alias("from_ns"),
        "at",
        nothing.cast("boolean").alias("resumed"),
        nothing.cast("string").alias("start"),
        *(nothing.cast("bigint").alias(name) for name in ("last_id", "attempt")),
    )


def beside_groups(rows: DataFrame, tables: Tables) -> DataFrame:
    """Return `rows` (KEY, topic, at, invoke_ns, end_ns) during which some group of their topic
    surely stood, with `made`; none of an application.
    """
    if is_never_any(rows) or is_never_any(tables.worked):
        return none_of(rows.withColumn("made", operation()))
    return standing(_of_ours(rows, tables), controls_of(tables.worked), ("run_id", "topic"))


def _in_topic(takes: DataFrame, controls: DataFrame, tables: Tables) -> DataFrame:
    """Return the TAKEs during which a subscriber's life, or a group, stood in their topic, with its
    `made`.
    """
    own = (*ROW, "at", "invoke_ns", "end_ns")
    lives = tables.lives.select("run_id", "topic", "at", "begun_ns", "until_ns", "made_by")
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    met = takes.select(*own).join(F.broadcast(lives), ["run_id", "topic", "at"]).where(stood)
    groups = standing(takes.select(*own), controls, ("run_id", "topic"))
    by_life = met.select(*own, F.col("made_by").alias("made"))
    proofs = by_life.unionByName(groups.select(*own, "made"))
    return proofs.groupBy(*own).agg(F.min("made").alias("made"))


def _of_ours(rows: DataFrame, tables: Tables) -> DataFrame:
    return with_application(rows, tables).where(~F.col("is_application")).drop("is_application")


def _gone(takes: DataFrame, controls: DataFrame) -> DataFrame:
    """Return the TAKEs, or who found a group, during which else it surely did not stand."""
    theirs = _theirs(controls)
    same = [F.col(name) == F.col(f"its_{name}") for name in GROUP]
    is_end = (F.col("its_f") == "ungroup") & (F.col("its_outcome") == "ok")
    ended = theirs.where(is_end | (F.col("its_f") == DENIAL))
    before = (F.col("its_at") == F.col("at")) & (F.col("its_end_ns") < F.col("invoke_ns"))
    left = (
        takes.join(F.broadcast(ended), [*same, before])
        .groupBy(*KEY)
        .agg(F.max("its_from_ns").alias("left_ns"))
    )
    known = takes.join(left, list(KEY), "left")
    is_over = (F.col("its_outcome") == "ok") & (F.col("its_end_ns") < F.col("left_ns"))
    is_away = (F.col("its_from_ns") > F.col("end_ns")) | F.coalesce(is_over, F.lit(False))
    may_stand = (F.col("its_at") != F.col("at")) | ~is_away
    is_own = [F.col(name) == F.col(f"its_{name}") for name in ("process", "op_id")]
    makes = theirs.where(F.col("its_f") == "group")
    stood = [*same, may_stand & ~(is_own[0] & is_own[1])]
    return known.join(F.broadcast(makes), stood, "leftanti")


def unstored_of(tables: Tables) -> DataFrame:
    """Return the PUTs (`put`, with a `producer`) that found nobody though a group stood."""
    refused = (F.col("outcome") == "ok") & (F.col("first_id") == 0) & ~F.col("duplicate")
    puts = tables.puts.where(refused).select(
        *("run_id", "topic", "producer", "first_counter", "last_counter", "end_ns"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("invoke_ns"),
        one_host(),
        operation().alias("put"),
    )
    return standing(_of_ours(puts, tables), controls_of(tables.worked), ("run_id", "topic"))


def still_there(rows: DataFrame, tables: Tables) -> DataFrame:
    """Return those `rows` (GROUP, id) that can't have expired by one of their `moments` (at, ns),
    nor have been compacted away: nothing is, that a group has not settled which stood before it was
    put.
    """
    kept = lasting(rows, tables)
    topics = F.broadcast(tables.expiring)
    others = few(rows.join(topics, ["run_id", "topic"]))
    if is_never_any(others):
        return kept.drop("moments")
    own = ("run_id", "topic", "id", "put_at", "put_ns", "ms", "is_marked")
    puts = only(
        acknowledged_runs(tables.puts).where(~F.col("duplicate")), others, ("run_id", "topic")
    )
    marks = tables.told.where(F.col("f") == "put").select(*KEY, "marked")
    named = puts.join(marks, list(KEY), "left").withColumn(
        "id", F.explode(F.sequence("first", "last"))
    )
    its = F.filter("expires", lambda run: F.col("id").between(run[0], run[1]))
    stored = named.withColumns(
        {
            "put_at": one_host(),
            "put_ns": F.col("invoke_ns"),
            "ms": F.get(its, F.lit(0))[2],
            "is_marked": F.coalesce(F.array_contains("marked", F.col("id")), F.lit(False)),
        }
    ).select(*own)
    made = (
        controls_of(tables.worked)
        .where((F.col("f") == "group") & (F.col("outcome") == "ok"))
        .groupBy(*GROUP, F.col("at").alias("put_at"))
        .agg(F.min("end_ns").alias("made_ns"))
        .join(steady_of(tables.worked), list(GROUP), "leftsemi")
    )
    is_in_time = F.exists(
        "moments",
        lambda moment: (
            (moment["at"] == F.col("put_at"))
            & (moment["ns"] - F.col("put_ns") < in_ns(F.col("ms"), SURELY))
        ),
    )
    lasts = F.col("ms").isNull() | F.coalesce(is_in_time, F.lit(False))
    is_fresh = F.coalesce(F.col("made_ns") < F.col("put_ns"), F.lit(False))
    stays = ~F.col("is_compacted") | ~F.col("is_marked") | is_fresh
    found = (
        others.join(stored, ["run_id", "topic", "id"])
        .join(made, [*GROUP, "put_at"], "left")
        .where(lasts & stays)
        .select(*rows.columns)
    )
    return kept.unionByName(found).drop("moments").distinct()


def lasting(missing: DataFrame, tables: Tables) -> DataFrame:
    """Return the ids that can't have expired: in a topic in which some do, those known not to.

    Nor have been compacted away, where that is done: what has no properties has no key.
    """
    topics = F.broadcast(tables.expiring)
    stored = acknowledged_runs(tables.puts).join(topics, ["run_id", "topic"])
    if is_never_any(stored):
        return missing.join(topics, ["run_id", "topic"], "leftanti")
    marks = tables.told.where(F.col("f") == "put").select(*KEY, "marked")
    ids = stored.join(marks, list(KEY), "left").withColumn(
        "id", F.explode(F.sequence("first", "last"))
    )
    is_its = F.exists("expires", lambda run: F.col("id").between(run[0], run[1]))
    is_marked = F.col("is_compacted") & F.array_contains("marked", F.col("id"))
    may_go = F.coalesce(is_its, F.lit(False)) | F.coalesce(is_marked, F.lit(False))
    known = ids.where(~may_go).select("run_id", "topic", "id").distinct()
    others = missing.join(topics, ["run_id", "topic"], "leftanti")
    return others.unionByName(missing.join(known, ["run_id", "topic", "id"], "leftsemi"))


def _row(word: str, *others: str) -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        detail=F.lit(word),
        operations=F.array(*others, operation()),
    )
