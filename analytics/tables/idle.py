"""TAKEs that were told nothing, though all that anybody had been given was settled. No rule about
right and wrong here: stale_read says what follows.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, operation
from analytics.common.table_store import is_never_any, none_of, settled
from analytics.tables import as_of
from analytics.tables.groups import (
    GROUP,
    ID,
    accepted_of,
    every_take_of,
    groups_of,
    leases_of,
    may_hide,
)
from analytics.tables.lives import EVER
from analytics.tables.runs import one_host
from analytics.tables.tables import Tables, with_application

TIMELINE = ("run_id", "topic", "at")


def idle_of(tables: Tables, known: DataFrame) -> DataFrame:
    """Return TAKEs with `mark`: the highest id that was known before, if nobody was given it, and
    none that anybody was given before was open.

    `known`: as `known_of` of following.py.
    """
    worked = tables.worked.where(F.col("group").isNotNull())
    takes = settled(every_take_of(worked.select("*", may_hide())))
    asks = settled(_asks(tables, takes))
    behind = settled(as_of.overtaken(asks, known, TIMELINE))
    if is_never_any(behind):
        return behind
    leases = settled(leases_of(takes))
    given = leases.select(*GROUP, "id", F.col("at").alias("its_at"), _sent().alias("its_ns"))
    same = [behind[name] == given[name] for name in GROUP]
    is_it = (F.col("mark.value") == F.col("id")) & _may_be_before()
    rest = settled(behind.join(given, [*same, is_it], "leftanti"))
    hiding = takes.where("may_hide").select(
        F.col("run_id").alias("its_run_id"),
        F.col("process").alias("its_process"),
        F.col("op_id").alias("its_op_id"),
        F.col("at").alias("its_at"),
        _sent().alias("its_ns"),
    )
    is_other = (F.col("process") != F.col("its_process")) | (F.col("op_id") != F.col("its_op_id"))
    of_run = F.col("run_id") == F.col("its_run_id")
    clear = rest.join(hiding, [of_run, is_other, _may_be_before()], "leftanti")
    return settled(clear.join(_with_open(rest, leases, takes), list(KEY), "leftanti"))


def _with_open(asks: DataFrame, leases: DataFrame, takes: DataFrame) -> DataFrame:
    """Return the asks before which something was given that was not settled when they were sent."""
    whole = asks.select(
        "run_id", *(F.col(name).alias(f"ask_{name}") for name in (*KEY[1:], "at", "t_ns", "end_ns"))
    )
    sent = leases.select(
        *ID, F.col("at").alias("its_at"), _sent().alias("its_ns"), F.col("seen").alias("given_by")
    )
    is_own = F.col("given_by") == operation("ask_process", "ask_op_id")
    before = (F.col("its_at") != F.col("ask_at")) | (F.col("its_ns") < F.col("ask_end_ns"))
    pairs = whole.join(sent, "run_id").where(before & ~is_own)
    pairs = settled(pairs.select(*whole.columns, *ID[1:]).distinct())
    acks = accepted_of(takes).select(
        *ID, F.col("at").alias("ack_at"), F.col("end_ns").alias("ack_ns"), F.col("seen").alias("by")
    )
    is_settled = (F.col("by") == operation("ask_process", "ask_op_id")) | (
        (F.col("ack_at") == F.col("ask_at")) & (F.col("ack_ns") < F.col("ask_t_ns"))
    )
    done = pairs.join(acks, list(ID)).where(is_settled).select(*pairs.columns).distinct()
    left = pairs.join(done, pairs.columns, "leftanti")
    return left.select(
        "run_id", F.col("ask_process").alias("process"), F.col("ask_op_id").alias("op_id")
    ).distinct()


def _asks(tables: Tables, takes: DataFrame) -> DataFrame:
    """Return the TAKEs that were told nothing, of groups that give what they have, with `known`: up
    to which id all may be settled.
    """
    nothing = F.coalesce(F.size("leases"), F.lit(0)) <= 0
    is_once = (F.col("attempt") == 1) & (F.col("sendings") == 1) & F.col("number").isNotNull()
    empty = takes.where((F.col("outcome") == "ok") & (F.col("max_count") > 0) & nothing & is_once)
    empty = settled(
        empty.where(F.col("invoke_ns").isNotNull()).select(
            *(*KEY, "topic", "group", "client_id", "at", "invoke_ns", "end_ns")
        )
    )
    if is_never_any(empty):
        return none_of(empty.select("*", *_asked(F.lit(0).cast("bigint"))).drop("invoke_ns"))
    gone = tables.asides.where(F.col("f").isin("purge", "purged")).select("run_id", "topic")
    groups = with_application(groups_of(tables.worked), tables)
    is_plain = F.col("stood") & ~F.col("may_be_ordered") & F.col("attempts_max").isNull()
    judged = (
        groups.where(is_plain & ~F.col("is_application"))
        .join(
            gone.unionByName(tables.expiring.select("run_id", "topic")),
            ["run_id", "topic"],
            "leftanti",
        )
        .select(*GROUP)
    )
    made = tables.worked.where((F.col("f") == "group") & (F.col("outcome") == "ok"))
    told = made.where(F.col("group").isNotNull()).select(
        *GROUP,
        one_host().alias("made_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("made_from_ns"),
        F.col("end_ns").alias("made_ns"),
        F.coalesce("last_id", F.lit(0)).alias("last_id"),
    )
    is_here = F.col("made_at") == F.col("at")
    columns = empty.columns
    behind = F.max(F.when(F.col("made_from_ns") < F.col("end_ns"), F.col("last_id")))
    known = (
        empty.join(F.broadcast(judged), list(GROUP), "leftsemi")
        .join(F.broadcast(told), list(GROUP))
        .groupBy(*columns)
        .agg(
            behind.alias("behind"),
            F.count_if(~is_here).alias("elsewhere"),
            F.count_if(is_here & (F.col("made_ns") < F.col("invoke_ns"))).alias("before"),
        )
        .where((F.col("elsewhere") == 0) & (F.col("before") > 0))
    )
    return known.select(*columns, *_asked(F.col("behind"))).drop("invoke_ns")


def _asked(known: Column) -> list[Column]:
    return [F.col("invoke_ns").alias("t_ns"), known.alias("known")]


def _sent() -> Column:
    return F.coalesce("invoke_ns", F.lit(EVER))


def _may_be_before() -> Column:
    return (F.col("its_at") != F.col("at")) | (F.col("its_ns") < F.col("end_ns"))
