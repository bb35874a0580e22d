"""GETs of any topic, and topics that a pattern has. No rule about right and wrong here.

followed   one row a topic and a life of a subscription to a pattern that has it (`pattern`)
fresh      what has surely been stored since such a life began, as runs of ids: by PUTs, …
silent     GETs of any topic that were told nothing, during a life, with the highest id that was
           marked before (`mark`) and above all that their client can have had of the topic in that
           reading
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import KEY, LANE
from analytics.common.table_store import few, is_never_any, none_of, settled
from analytics.tables import as_of
from analytics.tables.lives import EVER, FOREVER, may_have_had, with_gone
from analytics.tables.runs import acknowledged_runs, one_host
from analytics.tables.suspects import only

OWNER: Final = ("run_id", "client_id", "topic")
TIMELINE: Final = ("run_id", "topic", "at")
DURING: Final = (*OWNER, "at", "begun_ns")  # of a life
WORDS_MAX: Final = 16
WILD: Final = "[*>]"


def has(pattern: Column, topic: Column) -> Column:
    """Return whether a pattern has a topic: word by word, `>` the rest."""
    own, words = F.split(pattern, r"\."), F.split(topic, r"\.")
    is_rest = F.element_at(own, -1) == ">"
    fixed = F.when(is_rest, F.slice(own, 1, F.greatest(F.size(own) - 1, F.lit(0)))).otherwise(own)
    fits = F.when(is_rest, F.size(words) >= F.size(own)).otherwise(F.size(words) == F.size(own))
    same = F.forall(
        F.zip_with(
            fixed,
            F.slice(words, 1, F.size(fixed)),
            lambda one, word: (one == "*") | one.eqNullSafe(word),
        ),
        lambda one: one,
    )
    return fits & same & ~topic.rlike(WILD) & (F.size(words) <= WORDS_MAX)


def followed_of(
    lives: DataFrame,
    puts: DataFrame,
    letter_topics: DataFrame,
    gets: DataFrame,
    acts: DataFrame,
    applications: DataFrame,
) -> DataFrame:
    """Return `followed`: as `lives`, with `pattern`.

    None of an application's record, of a life that was told that there is no room, or in which its
    client may have left the topic or begun it elsewhere.
    """
    patterns = few(lives.where(F.col("topic").rlike(WILD)))
    if is_never_any(patterns):
        return patterns.withColumn("pattern", F.col("topic"))
    full = gets.where("is_full").select(
        F.col("run_id").alias("full_run_id"),
        F.col("client_id").alias("full_client_id"),
        one_host().alias("came_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("came_from_ns"),
        F.col("end_ns").alias("came_ns"),
    )
    is_its = [F.col(name) == F.col(f"full_{name}") for name in ("run_id", "client_id")]
    left = acts.where((F.col("f") == "unsub") | F.col("start").isNotNull()).select(
        *(F.col(name).alias(f"left_{name}") for name in (*OWNER, "at", "from_ns", "latest_ns"))
    )
    same = [F.col(name) == F.col(f"left_{name}") for name in OWNER]
    in_it = (F.col("left_from_ns") < F.col("until_ns")) & (
        F.col("left_latest_ns") > F.col("begun_ns")
    )
    may_have_left = (F.col("left_at") != F.col("at")) | in_it
    topics = puts.where(F.col("outcome") != "fail").select("run_id", base_topic()).distinct()
    topics = topics.unionByName(letter_topics).distinct()
    return few(
        patterns.withColumnRenamed("topic", "pattern")
        .join(applications, "run_id", "leftanti")
        .join(full, [*is_its, may_have_had()], "leftanti")
        .join(topics, "run_id")
        .where(has(F.col("pattern"), F.col("topic")))
        .join(left, [*same, may_have_left], "leftanti")
    )


def base_topic() -> Column:
    """Return the topic of what is put to it, at once or with a delay."""
    return F.regexp_replace("topic", f"{LANE}$", "").alias("topic")


def fresh_of(followed: DataFrame, puts: DataFrame) -> DataFrame:
    """Return `fresh`: DURING, first, last, and `t_ns` and `mark` for as_of."""
    value = F.struct(F.col("last").alias("value"), "process", "op_id").alias("mark")
    stored = acknowledged_runs(puts).where(~F.col("duplicate"))
    own = stored.select(
        *("run_id", "topic", "first", "last", "invoke_ns"),
        *(one_host(), F.col("end_ns").alias("t_ns"), value),
    )
    lives = F.broadcast(followed.select(*DURING).distinct())
    met = own.join(lives, list(TIMELINE)).where(F.col("invoke_ns") > F.col("begun_ns"))
    return met.select(*DURING, "first", "last", "t_ns", "mark")


def arrived_of(followed: DataFrame, arrivals: DataFrame, brought: DataFrame) -> DataFrame:
    """Return the same of what came with a delay, and of dead letters (arrivals.py): `t_ns` and
    `mark` null where no answer of the life's host brought it.
    """
    lives = F.broadcast(followed.select(*DURING).distinct())
    met = arrivals.join(lives, list(TIMELINE)).where(F.col("since_ns") > F.col("begun_ns"))
    value = F.struct(F.col("id").alias("value"), "process", "op_id")
    rows = met.join(brought, ["run_id", "topic", "id", "what", "at"], "left").select(
        *DURING,
        *(F.col("id").alias("first"), F.col("id").alias("last"), F.col("end_ns").alias("t_ns")),
        F.when(F.col("end_ns").isNotNull(), value).alias("mark"),
    )
    return rows.distinct()


def kept_for(
    followed: DataFrame,
    controls: DataFrame,
    acts: DataFrame,
    puts: DataFrame,
    deliveries: DataFrame,
) -> DataFrame:
    """Return the same of what topics surely kept when a pattern began at the earliest: somebody was
    given it who asked for it later. Not of a topic to which the client may have had another
    subscription.
    """
    at_first = (F.col("f") == "sub") & (F.col("outcome") == "ok") & ~F.col("resumed")
    is_earliest = (F.col("start") == "earliest") & F.col("topic").rlike(WILD)
    begun = few(
        controls.where(at_first & is_earliest).select(
            "run_id", "client_id", F.col("topic").alias("pattern"), one_host(),
            F.col("end_ns").alias("begun_ns"),
        )
    )  # fmt: skip
    nothing = fresh_of(none_of(followed), puts)
    if is_never_any(begun):
        return nothing
    subs = acts.where(F.col("f") == "sub")
    own = ("run_id", "client_id", "pattern", "at", "begun_ns")
    # A life of which another SUB is as well: where that began is not known.
    again = subs.where(F.col("topic").rlike(WILD)).select(
        F.col("run_id").alias("its_run_id"),
        F.col("client_id").alias("its_client_id"),
        F.col("topic").alias("its_pattern"),
        F.col("at").alias("its_at"),
        F.col("end_ns").alias("its_end_ns"),
    )
    same = [F.col(name) == F.col(f"its_{name}") for name in own[:4]]
    is_in_it = (F.col("its_end_ns") > F.col("begun_ns")) & (
        F.col("its_end_ns") <= F.col("until_ns")
    )
    is_told = (F.col("outcome") == "ok") & F.coalesce("resumed", F.lit(False))
    others = subs.where(~is_told).select(*(F.col(name).alias(f"other_{name}") for name in OWNER))
    is_other = [F.col(name) == F.col(f"other_{name}") for name in OWNER]
    lives = few(
        followed.join(begun, list(own))
        .join(again, [*same, is_in_it], "leftanti")
        .join(others, is_other, "leftanti")
        .select(*DURING)
        .distinct()
    )
    if is_never_any(lives):
        return nothing
    topics = only(deliveries.where(~F.col("tells_of_purge")), lives, ("run_id", "topic"))
    later = topics.select(
        "run_id", "topic", one_host(), F.col("first").alias("from_id"),
        F.col("last").alias("to_id"), F.col("invoke_ns").alias("asked_ns"),
    )  # fmt: skip
    value = F.struct(F.col("last").alias("value"), "process", "op_id").alias("mark")
    stored = only(acknowledged_runs(puts).where(~F.col("duplicate")), lives, ("run_id", "topic"))
    return (
        stored.withColumns({"at": one_host(), "t_ns": F.col("end_ns")})
        .select("run_id", "topic", "at", "first", "last", "t_ns", "process", "op_id")
        .join(F.broadcast(lives), list(TIMELINE))
        .join(later, list(TIMELINE))
        .where(F.col("asked_ns") > F.col("begun_ns"))
        .withColumns({"first": F.greatest("first", "from_id"), "last": F.least("last", "to_id")})
        .where(F.col("first") <= F.col("last"))
        .select(*DURING, "first", "last", "t_ns", value)
        .distinct()
    )


def asked_of_any(gets: DataFrame) -> DataFrame:
    """Return the GETs of any topic that were told nothing: one that brought something names it."""
    unnamed = F.coalesce("topic", F.lit("")) == ""
    nothing = F.col("last").isNull() & F.col("sent_id").isNull()
    return gets.where((F.col("outcome") == "ok") & unnamed & nothing)


def known_of(puts: DataFrame, gets: DataFrame, worked: DataFrame) -> DataFrame:
    """Return (run_id, topic, at, t_ns, mark): ids that were acknowledged, or given to anybody, or
    leased.
    """
    value = F.struct(F.col("last").alias("value"), "process", "op_id").alias("mark")
    given = gets.where(F.col("last").isNotNull() & F.col("topic").isNotNull())
    leased = worked.where(F.col("f") == "take").where(F.col("outcome") == "ok")
    leased = leased.where(F.size("leases") > 0).withColumn(
        "last", F.array_max(F.transform("leases", lambda run: run[1]))
    )
    marks = [
        table.select("run_id", "topic", one_host(), F.col("end_ns").alias("t_ns"), value)
        for table in (acknowledged_runs(puts), given, leased)
    ]
    return marks[0].unionByName(marks[1]).unionByName(marks[2])


def silent_of(
    lives: DataFrame, marks: DataFrame, keys: Sequence[str], gets: DataFrame, acts: DataFrame
) -> DataFrame:
    """Return `silent`, with the columns of `lives` but `at`. `marks`: by `keys`, for as_of."""
    empty = few(asked_of_any(gets).select(*KEY, "client_id", one_host(), "invoke_ns", "end_ns"))
    if is_never_any(empty):
        met = empty.join(lives.select(*OWNER, "at", "made_by"), ["run_id", "client_id", "at"])
        mark = F.struct(F.lit(0).alias("value"), *KEY[1:])
        return met.withColumns({"t_ns": F.col("invoke_ns"), "mark": mark}).limit(0)
    during = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    named = lives.where(~F.col("topic").rlike(WILD))
    asks = settled(
        empty.join(F.broadcast(named), ["run_id", "client_id", "at"])
        .where(during)
        .withColumns({"t_ns": F.col("invoke_ns"), "known": F.lit(0).cast("bigint")})
    )
    behind = few(as_of.overtaken(asks, marks, keys))
    had = F.greatest("last", "asked").alias("had")
    visits = only(gets, behind, OWNER).select(
        *OWNER,
        F.coalesce("invoke_ns", F.lit(EVER)).alias("came_from_ns"),
        one_host().alias("came_at"),
        F.col("end_ns").alias("came_ns"),
        had,
    )
    visits = visits.withColumnsRenamed({name: f"its_{name}" for name in OWNER})
    is_sure = F.col("outcome") == "ok"
    made = only(acts.where(F.col("f") == "sub"), behind, OWNER)
    subs = with_gone(made, acts).select(
        *(F.col(name).alias(f"its_{name}") for name in (*OWNER, "at", "from_ns")),
        F.when(is_sure, F.coalesce("start_id", F.lit(0))).alias("had"),
        "gone_ns",
    )
    same = [F.col(name) == F.col(f"its_{name}") for name in OWNER]
    is_away = F.col("came_at") != F.col("at")
    may_precede = is_away | (F.col("came_from_ns") < F.col("end_ns"))
    had_it = F.col("had") >= F.col("mark.value")
    unread = behind.join(visits, [*same, may_precede & may_have_had(), had_it], "leftanti")
    # Of a SUB without an answer nobody knows where it began. What has surely ended begins nothing.
    is_there = F.coalesce("gone_ns", F.lit(FOREVER)) >= F.col("t_ns")
    may_stand = (F.col("its_from_ns") < F.col("end_ns")) & is_there
    may_stand = (F.col("its_at") != F.col("at")) | may_stand
    begun_above = F.col("had").isNull() | had_it
    return settled(unread.join(subs, [*same, may_stand, begun_above], "leftanti"))
