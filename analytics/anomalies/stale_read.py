"""An answer that is older than its question."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, LANE, evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables import as_of
from analytics.tables.following import known_of, silent_of
from analytics.tables.idle import idle_of
from analytics.tables.lives import EVER, FOREVER, with_gone
from analytics.tables.runs import one_host
from analytics.tables.suspects import only
from analytics.tables.tables import (
    UNKNOWN,
    Tables,
    needed_level,
    successes_of,
    with_application,
)

TIMELINE = ("run_id", "topic", "at")


def stale_read(tables: Tables) -> DataFrame:
    """Find answers that ignore what was known before they were asked for: acknowledged, or given to
    anybody.

    `nothing`: a GET was told that there is nothing above its cursor, though its topic was known to
    have reached more. `start`: a new subscription begins below that. `idle`: a TAKE was told
    nothing, though it could have been given something. `id` is the highest id known before,
    `other_id` the cursor or the start. A GET need not know of what lies below its subscription.
    Clocks are compared, so only on one host.
    """
    known = settled(known_of(tables.puts, tables.gets, tables.worked))
    reached = known.unionByName(_claimed(tables.doubts.claims))
    nothing = _above_starts(as_of.overtaken(_empty_answers(tables), reached, TIMELINE), tables.acts)
    below = as_of.overtaken(_new_starts(tables), reached, TIMELINE)
    silent = silent_of(tables.lives, reached, TIMELINE, tables.gets, tables.acts)
    silent = with_application(silent, tables).where(~F.col("is_application"))
    nothing = nothing.unionByName(
        silent.withColumns(
            {"known": F.lit(None).cast("bigint"), "detail": F.lit("nothing")}
        ).select(*nothing.columns)
    )
    idle = idle_of(tables, reached).withColumns(
        {"known": F.lit(None).cast("bigint"), "detail": F.lit("idle")}
    )
    counters = _counters_denied(tables)
    unknown = _unknown(tables)
    return (
        nothing.unionByName(below)
        .unionByName(idle.select(*nothing.columns))
        .unionByName(counters.select(*nothing.columns))
        .unionByName(unknown.select(*nothing.columns))
        .select(
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
    )


def _counters_denied(tables: Tables) -> DataFrame:
    """Return the PUTs that were told of a gap before them, though what is there was acknowledged
    before, or given to anybody, or though nothing was tried that leaves one: as a rule none.
    """
    puts, keys = tables.puts, ("run_id", "topic", "producer", "at")
    told = few(puts.where("is_gapped").select(*puts.columns, one_host()))
    taken = _taken(tables, told).select(
        *keys[:3],
        one_host(),
        F.col("end_ns").alias("done_ns"),
        F.struct(F.col("last_counter").alias("value"), "process", "op_id").alias("mark"),
    )
    is_before = F.col("done_ns") < F.col("invoke_ns")
    is_there = F.col("mark.value") >= F.col("first_counter") - 1
    columns = ("process", "op_id", "first_counter", "invoke_ns")
    own = (*keys, *columns)
    found = settled(
        told.select(*own)
        .join(taken, list(keys))
        .where(is_before & is_there)
        .groupBy(*own)
        .agg(F.max("mark").alias("mark"))
    )
    lower = only(puts.where(F.col("outcome") != "fail"), told, keys[:3]).select(
        *(F.col(name).alias(f"its_{name}") for name in (*keys[:3], "first_counter")),
        one_host().alias("its_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("its_ns"),
    )
    same = [F.col(name) == F.col(f"its_{name}") for name in keys[:3]]
    may_be_before = (F.col("its_at") != F.col("at")) | (F.col("its_ns") < F.col("end_ns"))
    leaves_one = F.col("its_first_counter") < F.col("first_counter") - 1
    no_id = F.lit(None).cast("bigint").alias("value")
    without = (
        told.where(F.col("first_counter").isNotNull())
        .join(found.select("run_id", "process", "op_id"), list(KEY), "leftanti")
        .join(lower, [*same, may_be_before & leaves_one], "leftanti")
        .select(*own, F.struct(no_id, "process", "op_id").alias("mark"))
    )
    return (
        found.unionByName(without)
        .withColumnsRenamed(
            {"producer": "client_id", "first_counter": "known", "invoke_ns": "t_ns"}
        )
        .withColumn("detail", F.lit("counter"))
    )


def _unknown(tables: Tables) -> DataFrame:
    """Return what was told that there is no such client, though it had been answered (`client`), or
    that its feature level is not reached, though another one had needed it (`level`): mostly none.
    """
    told = tables.refused.where((F.col("outcome") == "fail") & F.col("error").isin(*UNKNOWN))
    is_client = F.col("error") == UNKNOWN[0]
    told = few(
        told.select(
            *(*KEY, "client_id", "topic", F.col("invoke_ns").alias("t_ns"), one_host()),
            F.when(is_client, F.lit("client")).otherwise(F.lit("level")).alias("detail"),
            F.when(~is_client, needed_level(F.col("expires"))).alias("needed"),
        )
    )
    done = only(successes_of(tables), told, ("run_id", "at")).select(
        *("run_id", "at"),
        F.col("client_id").alias("its_client_id"),
        F.col("end_ns").alias("done_ns"),
        F.col("needed").alias("its_needed"),
        F.struct(F.lit(None).cast("bigint").alias("value"), "process", "op_id").alias("mark"),
    )
    of_client = F.col("needed").isNull() & (F.col("its_client_id") == F.col("client_id"))
    of_level = (F.col("needed") > 0) & (F.col("its_needed") >= F.col("needed"))
    is_before = F.col("done_ns") < F.col("t_ns")
    columns = ("run_id", "topic", "at", "client_id", "process", "op_id", "t_ns", "detail")
    return (
        done.join(F.broadcast(told), ["run_id", "at"])
        .where(is_before & (of_client | of_level))
        .groupBy(*columns)
        .agg(F.min("mark").alias("mark"))
        .withColumn("known", F.lit(None).cast("bigint"))
    )


def _taken(tables: Tables, told: DataFrame) -> DataFrame:
    """Return what shows up to which counter (`last_counter`) the broker has taken, of those
    producers.
    """
    whose, own = ("run_id", "topic", "producer"), ("process", "op_id", "host", "end_ns")
    columns = (*whose, *own, "last_counter")
    counter = (F.col("last") + F.col("shift")).alias("last_counter")
    given = tables.deliveries.where(F.col("producer").isNotNull())
    takes = tables.worked.where((F.col("f") == "take") & (F.col("outcome") == "ok"))
    items = takes.select(*whose[:2], *own, F.explode("items").alias("item")).select(
        *(*whose[:2], *own),
        F.col("item.producer").alias("producer"),
        (F.col("item.counter") + F.col("item.count") - 1).alias("last_counter"),
    )
    lane = F.concat("topic", F.lit(LANE)).alias("topic")
    came = tables.comings.withColumn("host", F.col("at"))
    return (
        only(tables.puts.where(F.col("outcome") == "ok"), told, whose)
        .select(*columns)
        .unionByName(only(given.select(*whose, *own, counter), told, whose))
        .unionByName(only(items, told, whose).select(*columns))
        .unionByName(only(came.select("run_id", lane, "producer", *own, counter), told, whose))
    )


def _claimed(claims: DataFrame) -> DataFrame:
    mark = F.struct("value", "process", "op_id").alias("mark")
    return claims.select(*TIMELINE, F.col("end_ns").alias("t_ns"), mark)


def _above_starts(behind: DataFrame, acts: DataFrame) -> DataFrame:
    """Return the answers whose mark is above all that their client had subscribed above by then.

    A SUB on another host may have been sent before. One of unknown outcome may have begun anywhere,
    as long as it may act. What a SUB made that an UNSUB has ended since begins nothing. Few rows:
    none in a clean history.
    """
    if is_never_any(behind):
        return behind.drop("end_ns")
    starts = with_gone(acts.where(F.col("f") == "sub"), acts).select(
        *(F.col(name).alias(f"sub_{name}") for name in ("run_id", "client_id", "topic")),
        F.col("at").alias("sub_at"),
        F.col("from_ns").alias("sub_ns"),
        "latest_ns",
        F.when(F.col("outcome") == "ok", F.col("start_id")).alias("start_id"),
        "gone_ns",
    )
    same = [F.col(name) == F.col(f"sub_{name}") for name in ("run_id", "client_id", "topic")]
    elsewhere = F.col("sub_at") != F.col("at")
    above = F.col("start_id") >= F.col("mark.value")
    unknown = F.col("start_id").isNull() & (elsewhere | (F.col("latest_ns") >= F.col("t_ns")))
    stands = elsewhere | (F.coalesce("gone_ns", F.lit(FOREVER)) >= F.col("t_ns"))
    was_sent = elsewhere | (F.col("sub_ns") < F.col("end_ns"))
    excused = [*same, was_sent & stands, unknown | above]
    return behind.join(starts, excused, "leftanti").drop("end_ns")


def _empty_answers(tables: Tables) -> DataFrame:
    nothing = F.col("last").isNull() & F.col("sent_id").isNull()
    return tables.gets.where(
        (F.col("outcome") == "ok") & nothing & F.col("asked").isNotNull()
    ).select(*_ask("asked", "nothing"), "end_ns")


def _new_starts(tables: Tables) -> DataFrame:
    begun = (F.col("outcome") == "ok") & ~F.col("resumed") & F.col("start").isNull()
    subs = tables.controls.where((F.col("f") == "sub") & begun).select(*_ask("start_id", "start"))
    groups = tables.worked.where((F.col("f") == "group") & begun).select(*_ask("last_id", "start"))
    return subs.unionByName(groups)


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
