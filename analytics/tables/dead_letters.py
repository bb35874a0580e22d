"""Groups all of whose dead letters somebody has read. No rule about right and wrong here."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.table_store import is_never_any, none_of, settled
from analytics.tables.groups import GROUP, every_take_of
from analytics.tables.lives import EVER, may_have_had
from analytics.tables.owed import came_of
from analytics.tables.runs import LETTER, one_host
from analytics.tables.suspects import only
from analytics.tables.tables import Tables

TOPIC = ("run_id", "topic")
OF_LIFE = ("since_ns", "until_ns", "fresh_ns", "over_ns")
LIFE = ("run_id", "client_id", "topic", "at", "begun_ns")


def read_of(groups: DataFrame, tables: Tables) -> DataFrame:
    """Return (GROUP): those of `groups` (`groups_of`, with `floor`) whose letters can only stand in
    topics that each somebody, subscribed from before the group was made, has read to the end, after
    the group was said to be settled as far as it is.
    """
    named = settled(_named(groups, tables))
    if is_never_any(named):
        return none_of(named.select(*GROUP))
    lives = only(
        tables.lives.withColumnRenamed("topic", "letters_in"), named, ("run_id", "letters_in")
    )
    stood = settled(
        named.join(
            lives.select("run_id", "letters_in", "client_id", "at", *LIFE[4:], *OF_LIFE),
            ["run_id", "letters_in", "at"],
        )
        .where(F.col("begun_ns") < F.col("made_ns"))
        .withColumnRenamed("topic", "of_topic")
        .withColumnRenamed("letters_in", "topic")
    )
    owner = ("run_id", "client_id", "topic")
    bad = tables.deliveries.where(F.col("reason").isNotNull() & (F.col("reason") != LETTER))
    unclear = came_of(only(bad, stood, owner)).drop("first", "last").distinct()
    unclear = unclear.withColumnsRenamed({name: f"its_{name}" for name in owner})
    same = [F.col(name) == F.col(f"its_{name}") for name in owner]
    nothing = F.col("last").isNull() & F.col("sent_id").isNull() & F.col("asked_topic").isNull()
    empty = only(tables.gets.where((F.col("outcome") == "ok") & nothing), stood, owner).select(
        *owner, one_host(), "invoke_ns", "end_ns"
    )
    inside = (F.col("since_ns") <= F.coalesce("invoke_ns", F.lit(EVER))) & (
        F.col("end_ns") <= F.col("until_ns")
    )
    read = (
        stood.join(unclear, [*same, may_have_had()], "leftanti")
        .join(empty, [*owner, "at"])
        .where(inside & (F.col("invoke_ns") > F.col("told_ns")))
        .select("run_id", "of_topic", "group", "topics", "topic")
        .distinct()
    )
    whole = read.groupBy("run_id", "of_topic", "group", "topics").agg(
        F.count(F.lit(1)).alias("read")
    )
    return whole.where(F.col("read") == F.col("topics")).select(
        "run_id", F.col("of_topic").alias("topic"), "group"
    )


def _named(groups: DataFrame, tables: Tables) -> DataFrame:
    """Return a row a group and topic (`letters_in`) in which its letters stand: `topics`, how many
    there are, `made_ns`, before which nobody asked for the group, `told_ns`, when somebody was told
    as far as it is settled, and `at`, the one host of all that.
    """
    worked = tables.worked.where(F.col("group").isNotNull())
    controls = worked.where(F.col("f").isin("group", "ungroup")).select(
        "*", one_host(), F.coalesce("invoke_ns", F.lit(EVER)).alias("sent_ns")
    )
    own = controls.where((F.col("f") == "group") & (F.col("outcome") != "fail"))
    names_one = F.coalesce(F.col("dead_letter") != "", F.lit(False))
    is_sure = (F.col("outcome") == "ok") & names_one
    said = own.groupBy(*GROUP).agg(
        F.collect_set("dead_letter").alias("said"),
        F.coalesce(F.min(F.when(is_sure, F.col("end_ns"))), F.lit(0)).alias("first_ns"),
        F.min(F.when(~names_one, F.col("sent_ns"))).alias("unsaid_ns"),
        F.max(
            F.when(
                F.col("outcome") == "ok", F.struct("last_id", "process", "op_id", "end_ns", "at")
            )
        ).alias("told"),
    )
    begun = controls.groupBy(*GROUP).agg(F.min("sent_ns").alias("made_ns"))
    hosts = (
        controls.select(*GROUP, "at")
        .unionByName(every_take_of(worked).select(*GROUP, "at"))
        .groupBy(*GROUP)
        .agg(F.count_distinct("at").alias("hosts"))
    )
    is_said = F.coalesce(F.col("unsaid_ns") > F.col("first_ns"), F.lit(True))
    is_one = ~F.array_contains("said", "") & (F.size("said") > 0) & (F.col("hosts") == 1)
    known = (
        groups.select(*GROUP, "floor")
        .join(said, list(GROUP))
        .join(begun, list(GROUP))
        .join(hosts, list(GROUP))
        .where(is_said & is_one)
        .where(F.coalesce("told.last_id", F.lit(0)) >= F.coalesce("floor", F.lit(0)))
        .select(
            *GROUP,
            F.size("said").alias("topics"),
            F.explode("said").alias("letters_in"),
            "made_ns",
            F.col("told.end_ns").alias("told_ns"),
            F.col("told.at").alias("at"),
        )
    )
    gone = (
        tables.asides.where(F.col("f").isin("purge", "purged"))
        .select(*TOPIC)
        .unionByName(tables.gets.where("tells_of_purge").select(*TOPIC))
        .unionByName(tables.expiring.select(*TOPIC))
        .distinct()
    )
    unclear = (
        known.join(gone.withColumnRenamed("topic", "letters_in"), ["run_id", "letters_in"])
        .select(*GROUP)
        .distinct()
    )
    return known.join(unclear, list(GROUP), "leftanti")
