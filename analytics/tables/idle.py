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
    is_accepted,
    leases_of,
    may_hide,
    settlements_of,
)
from analytics.tables.lives import EVER
from analytics.tables.runs import one_host
from analytics.tables.tables import Tables, with_application

TIMELINE = ("run_id", "topic", "at")


def idle_of(tables: Tables, known: DataFrame) -> DataFrame:
    """Return TAKEs with `mark`: the highest id that was known before, if nobody was given it, and
    none that anybody was given before was open.

    `known`: as `known_of` of following.py, and up to where a topic was known to have come.
    """
    worked = tables.worked.where(F.col("group").isNotNull())
    takes = settled(every_take_of(worked.select("*", may_hide())))
    asks = settled(_asks(tables, takes))
    behind = settled(as_of.overtaken(asks, known, TIMELINE))
    if is_never_any(behind):
        return behind
    leases = settled(leases_of(takes))
    said = settled(settlements_of(takes))
    is_back = (F.col("word") == "naks") & (F.col("ms") == 0) & is_accepted()
    backs = settled(
        said.where(is_back).select(
            *(*ID, "token"), F.col("at").alias("back_at"), F.col("end_ns").alias("back_ns")
        )
    )
    rest = settled(behind.join(_held(behind, leases, said, backs), list(KEY), "leftanti"))
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
    return settled(clear.join(_with_open(rest, leases, takes, backs), list(KEY), "leftanti"))


def _held(asks: DataFrame, leases: DataFrame, said: DataFrame, backs: DataFrame) -> DataFrame:
    """Return the asks whose mark may be leased to somebody: but if it was given back at once each
    time, before they were sent, and nobody said anything else of it.
    """
    own = asks.withColumn("id", F.col("mark.value"))
    given = leases.select(*ID, "token", F.col("at").alias("its_at"), _sent().alias("its_ns"))
    columns = (*KEY, *ID[1:], "token", "t_ns", "at")
    met = settled(own.join(given, list(ID)).where(_may_be_before()).select(*columns))
    is_back = (F.col("back_at") == F.col("at")) & (F.col("back_ns") < F.col("t_ns"))
    freed = met.join(backs, [*ID, "token"]).where(is_back).select(*columns).distinct()
    held = met.join(freed, list(columns), "leftanti").select(*KEY)
    others = said.where((F.col("word") != "naks") | (F.col("ms") > 0)).select(
        *ID, F.col("at").alias("its_at"), _sent().alias("its_ns")
    )
    leased = own.join(met.select(*KEY).distinct(), list(KEY), "leftsemi")
    spoken = leased.join(others, list(ID)).where(_may_be_before()).select(*KEY)
    return held.unionByName(spoken).distinct()


def _with_open(asks: DataFrame, leases: DataFrame, takes: DataFrame, backs: DataFrame) -> DataFrame:
    """Return the asks before which something was given that was not settled, nor given back at
    once, when they were sent.
    """
    whole = asks.select(
        "run_id", *(F.col(name).alias(f"ask_{name}") for name in (*KEY[1:], "at", "t_ns", "end_ns"))
    )
    sent = leases.select(
        *(*ID, "token"),
        *(F.col("at").alias("its_at"), _sent().alias("its_ns"), F.col("seen").alias("given_by")),
    )
    is_own = F.col("given_by") == operation("ask_process", "ask_op_id")
    before = (F.col("its_at") != F.col("ask_at")) | (F.col("its_ns") < F.col("ask_end_ns"))
    pairs = whole.join(sent, "run_id").where(before & ~is_own)
    pairs = settled(pairs.select(*whole.columns, *ID[1:], "token").distinct())
    acks = accepted_of(takes).select(
        *ID, F.col("at").alias("ack_at"), F.col("end_ns").alias("ack_ns"), F.col("seen").alias("by")
    )
    is_settled = (F.col("by") == operation("ask_process", "ask_op_id")) | (
        (F.col("ack_at") == F.col("ask_at")) & (F.col("ack_ns") < F.col("ask_t_ns"))
    )
    done = pairs.join(acks, list(ID)).where(is_settled).select(*pairs.columns).distinct()
    is_back = (F.col("back_at") == F.col("ask_at")) & (F.col("back_ns") < F.col("ask_t_ns"))
    freed = pairs.join(backs, [*ID, "token"]).where(is_back).select(*pairs.columns)
    left = pairs.join(done.unionByName(freed).distinct(), pairs.columns, "leftanti")
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
