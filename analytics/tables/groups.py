"""What operations of groups say and were answered, and what follows of it. No rule about right and
wrong here.

worked    one row a `group`, `ungroup` or `take`: its invoke with its end
leases    one row an id that a TAKE was given
settled   one row an id that an ack, a nak or an extension names
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import DIGEST_DIGITS, KEY, OF_GROUPS, operation
from analytics.tables.lives import EVER
from analytics.tables.runs import one_host
from analytics.tables.times import in_ns

GROUP: Final = ("run_id", "topic", "group")
ID: Final = (*GROUP, "id")
LEASE: Final = (*ID, "token")
NO_TOPIC: Final = "unknown_topic"
NO_GROUP: Final = ("not_subscribed", NO_TOPIC)
OF_INVOKE: Final = (
    *("group", "number", "max_count", "max_attempts", "lease_ms", "acks", "naks", "extends"),
    *("start", "ordered_by_key", "dead_letter"),
)
LEASE_MS: Final = 30_000  # of a group that says none
OF_END: Final = (
    *("error", "attempt", "token", "leases", "lost", "left_ms", "last_id", "resumed", "letters"),
    *("keyed", "keys", "items", "corrupt"),
)
BOTH: Final = ("client_id", "session", "topic", "host", "epoch", "f")


def worked_of(asides: DataFrame) -> DataFrame:
    """Return `worked`. Without an end the outcome is `info`; without an invoke `group` is null."""
    rows = asides.where(F.col("f").isin(*OF_GROUPS))
    invokes = rows.where(F.col("type") == "invoke").select(
        *KEY,
        *(F.col(name).alias(f"begun_{name}") for name in BOTH),
        *OF_INVOKE,
        F.col("t_ns").alias("begun_ns"),
    )
    ends = rows.where(F.col("type") != "invoke").select(
        *KEY, *BOTH, *OF_END, "type", F.col("t_ns").alias("end_ns"), "invoke_ns"
    )
    return invokes.join(ends, list(KEY), "full").select(
        *KEY,
        *(F.coalesce(f"begun_{name}", name).alias(name) for name in BOTH),
        *OF_INVOKE,
        *OF_END,
        F.coalesce("type", F.lit("info")).alias("outcome"),
        F.coalesce("begun_ns", "invoke_ns").alias("invoke_ns"),
        "end_ns",
    )


def _has_stood() -> Column:
    """Return, of a group's rows, whether it was never ended, so that its tokens are one row."""
    f, failed = F.col("f"), F.col("outcome") == "fail"
    was_missed = failed & F.coalesce(F.col("error").isin(*NO_GROUP), F.lit(False))
    was_ended = ((f == "ungroup") & ~failed) | ((f == "take") & was_missed)
    was_made = (f == "group") & (F.col("outcome") == "ok")
    is_new = was_made & F.coalesce(~F.col("resumed"), F.lit(False))
    return (F.count_if(was_ended) == 0) & (F.count_if(is_new) <= 1)


def missed_of(worked: DataFrame) -> DataFrame:
    """Return the TAKEs that were told that there is no such group."""
    takes = worked.where((F.col("f") == "take") & (F.col("outcome") == "fail"))
    return takes.where(F.col("error").isin(*NO_GROUP))


def moved_of(worked: DataFrame) -> DataFrame:
    """Return the groups that may have begun anew elsewhere, and given again what was done."""
    is_placed = F.col("start").isNotNull() & (F.col("outcome") != "fail")
    found = worked.where(F.col("group").isNotNull()).groupBy(*GROUP)
    stood = found.agg(_has_stood().alias("stood"), F.count_if(is_placed).alias("places"))
    return stood.where(~F.col("stood") & (F.col("places") > 0)).select(*GROUP)


def steady_of(worked: DataFrame) -> DataFrame:
    """Return the groups that stood."""
    own = worked.where(F.col("group").isNotNull())
    stood = own.groupBy(*GROUP).agg(_has_stood().alias("stood"))
    return stood.where("stood").select(*GROUP)


def unsteady_of(worked: DataFrame) -> DataFrame:
    """Return the groups that did not stand."""
    stood = worked.groupBy(*GROUP).agg(_has_stood().alias("stood"))
    return stood.where(~F.col("stood")).select(*GROUP)


def unmoved(worked: DataFrame) -> DataFrame:
    """Return the rows of groups of which something can be said."""
    return worked.join(F.broadcast(moved_of(worked)), list(GROUP), "leftanti")


def takes_of(worked: DataFrame) -> DataFrame:
    """Return the TAKEs of known groups that were not moved, as `every_take_of`."""
    return every_take_of(unmoved(worked.where(F.col("group").isNotNull())))


def every_take_of(worked: DataFrame) -> DataFrame:
    """Return the TAKEs of known groups, with `at`, `step`, `seen`, the operation, and of their step
    when it was first sent (`begun_ns`) and how often (`sendings`).
    """
    is_alone = F.col("number").isNull()
    step = F.struct(
        F.when(is_alone, F.col("process")).alias("process"),
        F.when(is_alone, F.col("op_id")).alias("op_id"),
        F.when(~is_alone, F.col("client_id")).alias("client_id"),
        F.when(~is_alone, F.coalesce("epoch", F.lit(-1))).alias("epoch"),
        F.col("number"),
    ).alias("step")
    takes = worked.where((F.col("f") == "take") & F.col("group").isNotNull())
    of_step = W.partitionBy(*GROUP, "step")
    sent_ns = F.coalesce("invoke_ns", F.lit(EVER))
    return takes.select("*", one_host(), step, operation().alias("seen")).withColumns(
        {
            "begun_ns": F.min(sent_ns).over(of_step),
            "sendings": F.count(F.lit(1)).over(of_step),
        }
    )


def leases_of(takes: DataFrame) -> DataFrame:
    """Return `leases`: `token` and `attempt` of an id, with the TAKE."""
    runs = takes.where(F.col("outcome") == "ok").withColumn("run", F.explode("leases"))
    runs = runs.withColumns({"first": F.col("run")[0], "last": F.col("run")[1]})
    columns = ("client_id", "epoch", "at", "step", "seen", "invoke_ns", "end_ns", "left_ms")
    attempt = F.col("run")[2].alias("attempt")
    rows = runs.select(*GROUP, *columns, "begun_ns", "token", attempt, "first", "last")
    return intervals.exploded(rows, "id")


def said_keys_of(takes: DataFrame) -> DataFrame:
    """Return `key`, its digest, of each id that an answer leases, and `seen`. Of an answer that
    names keys of others, "" where it names none.
    """
    rows = takes.where((F.col("outcome") == "ok") & (F.size("keyed") > 0))
    runs = rows.select(*GROUP, "seen", "keyed", "keys", F.explode("leases").alias("run"))
    bounds = {"first": F.col("run")[0], "last": F.col("run")[1]}
    ids = intervals.exploded(runs.withColumns(bounds).drop("run"), "id")
    place = F.array_position("keyed", F.col("id"))
    start = (place - 1) * DIGEST_DIGITS + 1
    key = F.when(place > 0, F.substr("keys", start, F.lit(DIGEST_DIGITS))).otherwise("")
    return ids.select(*ID, "seen", key.alias("key"))


def keys_of(said: DataFrame) -> DataFrame:
    """Return the key of each id that has one, of `said_keys_of`; the lowest that is said."""
    return said.where(F.col("key") != "").groupBy(*ID).agg(F.min("key").alias("key"))


def ordered_of(worked: DataFrame) -> DataFrame:
    """Return the groups that stood, and that somebody was told to be ordered by key."""
    is_so = (F.col("f") == "group") & (F.col("outcome") == "ok") & F.col("ordered_by_key")
    named = unmoved(worked.where(F.col("group").isNotNull())).groupBy(*GROUP)
    found = named.agg(_has_stood().alias("stood"), F.count_if(is_so).alias("told"))
    return found.where(F.col("stood") & (F.col("told") > 0)).select(*GROUP)


def acks_of(takes: DataFrame) -> DataFrame:
    """Return (group, token, first, last, …): what acks name that did not fail, as runs."""
    return _said(takes, "acks")


def accepted_of(takes: DataFrame) -> DataFrame:
    """Return a row an id whose ack was accepted: it is in no run of its answer's `lost`."""
    acks = intervals.exploded(_said(takes.where(F.col("outcome") == "ok"), "acks"), "id")
    is_lost = F.exists("lost", lambda run: F.col("id").between(run[0], run[1]))
    return acks.where(~F.coalesce(is_lost, F.lit(False)))


def settlements_of(takes: DataFrame) -> DataFrame:
    """Return a row an id that an ack, a nak or an extension (`word`) names that did not fail, with
    its `ms`; `is_lost`: it was answered that this was in vain.
    """
    runs = [_said(takes, name) for name in ("acks", "naks", "extends")]
    said = intervals.exploded(runs[0].unionByName(runs[1]).unionByName(runs[2]), "id")
    is_lost = F.exists("lost", lambda run: F.col("id").between(run[0], run[1]))
    answered = F.col("outcome") == "ok"
    return said.withColumn("is_lost", answered & F.coalesce(is_lost, F.lit(False))).drop("lost")


def is_accepted() -> Column:
    """Return, of rows of `settlements_of`, whether it was answered that it was carried out."""
    return (F.col("outcome") == "ok") & ~F.col("is_lost")


def in_vain() -> Column:
    """Return, of rows of `settlements_of`, whether it was surely not carried out: it was refused,
    and is all that its TAKE says of the id, which was sent once.
    """
    is_all = F.count(F.lit(1)).over(W.partitionBy(*ID, "seen")) == 1
    is_once = (F.col("attempt") == 1) & (F.col("sendings") == 1) & F.col("number").isNotNull()
    return F.coalesce(F.col("is_lost") & is_all & is_once, F.lit(False))


def _said(takes: DataFrame, name: str) -> DataFrame:
    rows = takes.where(F.col("outcome") != "fail").withColumn("run", F.explode(name))
    columns = ("client_id", "epoch", "at", "step", "seen", "invoke_ns", "end_ns", "lost")
    of_step = ("outcome", "attempt", "number", "begun_ns", "sendings")
    token, first, last = (F.col("run")[place] for place in range(3))
    ms = F.lit(0).cast("bigint") if name == "acks" else F.col("run")[3]
    return rows.select(
        *(*GROUP, *columns, *of_step),
        *(token.alias("token"), first.alias("first"), last.alias("last")),
        *(F.lit(name).alias("word"), ms.alias("ms")),
    )


def groups_of(worked: DataFrame) -> DataFrame:
    """Return a row a group: whether it `stood`, from where to where it is settled, …

    `start`, `until`: the least and the greatest id of which somebody was told that all up to it is
    settled; `made_by`: who was told the greatest. `attempts_max`: after how many attempts at the
    least a publication may become a dead letter. `hidden`: TAKEs that may have been given what no
    answer shows.
    """
    f, ok, failed = F.col("f"), F.col("outcome") == "ok", F.col("outcome") == "fail"
    made = (f == "group") & ok
    told = F.struct("last_id", "process", "op_id")
    limits = (f == "group") & ~failed & (F.col("max_attempts") > 0)
    may_be_ordered = (f == "group") & ~failed & F.coalesce("ordered_by_key", F.lit(False))
    named = unmoved(worked.where(F.col("group").isNotNull()))
    found = named.select("*", may_hide()).groupBy(*GROUP).agg(
        _has_stood().alias("stood"),
        F.min(F.when(made, F.col("last_id"))).alias("start"),
        F.max(F.when(made, told)).alias("told"),
        F.min(F.when(limits, F.col("max_attempts"))).alias("attempts_max"),
        F.count_if("may_hide").alias("hidden"),
        (F.count_if(may_be_ordered) > 0).alias("may_be_ordered"),
    )  # fmt: skip
    return found.select(
        *GROUP,
        "stood",
        "start",
        F.col("told.last_id").alias("until"),
        F.when(F.col("told").isNotNull(), operation("told.process", "told.op_id")).alias("made_by"),
        "attempts_max",
        "hidden",
        "may_be_ordered",
    )


def may_hide() -> Column:
    """Return `may_hide`, of a group's rows: whether it may have been given what no answer shows."""
    ok, failed = F.col("outcome") == "ok", F.col("outcome") == "fail"
    least_ms = F.min("lease_ms").over(W.partitionBy(*GROUP))
    least_ns = in_ns(F.coalesce(least_ms, F.lit(LEASE_MS)))
    is_slow = F.coalesce(F.col("end_ns") - F.col("invoke_ns") >= least_ns, F.lit(True))
    took = (F.col("f") == "take") & F.col("max_count").isNotNull() & ~failed
    return (took & (~ok | ~F.col("attempt").eqNullSafe(F.lit(1)) | is_slow)).alias("may_hide")


def letters_of(told: DataFrame, worked: DataFrame) -> DataFrame:
    """Return a row a dead letter and answer, of groups that were not moved."""
    letters = every_letter_of(told, worked)
    return letters.join(F.broadcast(moved_of(worked)), list(GROUP), "leftanti")


def every_letter_of(told: DataFrame, worked: DataFrame) -> DataFrame:
    """Return a row a dead letter and answer: `topic`, `group`, `id` are those that it is from;
    `stands_in`, `stands_at`: where it stands.
    """
    columns = (*KEY, "topic", "end_ns", "host", "letters")
    gets = told.where(F.col("f") == "get").select(*columns)
    takes = worked.where((F.col("f") == "take") & (F.col("outcome") == "ok")).select(*columns)
    rows = gets.unionByName(takes).withColumn("letter", F.explode("letters"))
    return rows.select(
        "run_id",
        F.col("letter.topic").alias("topic"),
        F.col("letter.group").alias("group"),
        F.col("letter.from_id").alias("id"),
        F.col("topic").alias("stands_in"),
        F.col("letter.id").alias("stands_at"),
        one_host(),
        "end_ns",
        operation().alias("seen"),
    )


def named(word: str | Column) -> dict[str, Column]:
    """Return the columns by which evidence of a group's id is known."""
    return {
        "run_id": F.col("run_id"),
        "topic": F.col("topic"),
        "client_id": F.col("group"),
        "id": F.col("id"),
        "detail": F.lit(word) if isinstance(word, str) else word,
    }
