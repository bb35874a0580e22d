"""A subscription that the broker forgot, or that answered though there was none."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common import intervals
from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import few, is_never_any, settled
from analytics.tables import as_of, keys
from analytics.tables.arrivals import brought_of, letter_topics_of
from analytics.tables.following import (
    DURING,
    WILD,
    arrived_of,
    asked_of_any,
    base_topic,
    followed_of,
    fresh_of,
    has,
    kept_for,
    known_of,
    silent_of,
)
from analytics.tables.group_standing import beside_groups, is_excessive, of_groups, over_a_limit
from analytics.tables.lives import EVER, FOREVER, may_have_had
from analytics.tables.owed import came_of
from analytics.tables.runs import acknowledged_runs, one_host
from analytics.tables.suspects import only
from analytics.tables.tables import NO_TOPIC, Tables, with_application

OWNER = ("run_id", "client_id", "topic")
HOME = (*OWNER, "at")
PUBLICATIONS_MAX = 65_536  # in a PUT
EXPIRY_MS_MAX = 87_600 * 3_600_000


def subscription(tables: Tables) -> DataFrame:
    """Find answers that contradict what the client had subscribed to, or had asked for.

    `forgotten`: a SUB was answered as a new one though a life stood. `kept`: one that was sent once
    resumed though its client surely had none. `denied`: a GET failed for want of a subscription
    though one stood; of any topic, though one of each did. `unsubscribed`: a GET was answered
    though its client surely had none. `topic`: asked for one topic (the row's), answered with
    another one. `limit`: an answer brought more than it was asked for.
    """
    news = (F.col("f") == "sub") & (F.col("outcome") == "ok") & ~F.col("resumed")
    forgotten = _during_lives(tables.controls.where(news), tables, "forgotten")
    denied = settled(
        _during_lives(tables.gets.where("is_denied"), tables, "denied").unionByName(
            _denied_their_topic(tables)
        )
    )
    patterns = _patterns_of(tables)
    denials = _denials(denied, patterns, tables)
    is_other = (F.col("outcome") == "ok") & F.col("asked_topic").isNotNull()
    others = tables.gets.where(is_other).drop("topic")
    other = others.withColumnRenamed("asked_topic", "topic").select(*_evidence("topic"))
    excessive = tables.gets.where("is_excessive").select(*_evidence("limit"))
    return (
        forgotten.unionByName(denied)
        .unionByName(_denied_all(tables))
        .unionByName(_refused(tables))
        .unionByName(_moved_nowhere(tables))
        .unionByName(_kept(denials, patterns, tables))
        .unionByName(_unsubscribed(denials, tables))
        .unionByName(other)
        .unionByName(excessive)
        .unionByName(_over_a_limit(tables))
        .unionByName(_left_by_name(patterns, tables))
        .unionByName(_begun_elsewhere(tables))
        .unionByName(_missed(tables))
        .unionByName(of_groups(tables))
    )


def _during_lives(operations: DataFrame, tables: Tables, word: str) -> DataFrame:
    """Return the evidence of operations during all of which a life of their client stood."""
    own = operations.select(*KEY, "client_id", "topic", one_host(), "invoke_ns", "end_ns")
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    lives = tables.lives.select(*HOME, "begun_ns", "until_ns", "made_by")
    return own.join(F.broadcast(lives), list(HOME)).where(stood).select(*_evidence(word, "made_by"))


def _refused(tables: Tables) -> DataFrame:
    """Return the evidence of GETs that were refused, during a life, for a reason that was none:
    that more was acknowledged, though nobody had asked with more in that reading; that the
    subscription was moved, though nobody has; that the topic has not reached a cursor that it had.
    """
    own = (*KEY, "client_id", "topic", one_host(), "invoke_ns", "end_ns", "asked", "refused_as")
    refused = tables.gets.where(F.col("refused_as").isNotNull() & F.col("asked").isNotNull())
    refused = refused.where(F.coalesce("topic", F.lit("")) != "").select(*own)
    gets = few(refused.join(F.broadcast(tables.applications), "run_id", "leftanti"))
    if is_never_any(gets):
        return gets.select(*_evidence("denied"))
    of_life = ("begun_ns", "until_ns", "start_id", "fresh_ns", "over_ns")
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    met = gets.join(F.broadcast(tables.lives.select(*HOME, *of_life)), list(HOME)).where(stood)
    others = only(tables.gets, gets, OWNER).select(
        *(F.col(name).alias(f"its_{name}") for name in OWNER),
        one_host().alias("came_at"),
        F.coalesce("invoke_ns", F.lit(EVER)).alias("came_from_ns"),
        F.coalesce("end_ns", F.lit(FOREVER)).alias("came_ns"),
        F.col("asked").alias("its_asked"),
    )
    same = [F.col(name) == F.col(f"its_{name}") for name in OWNER]
    may_precede = (F.col("came_at") != F.col("at")) | (F.col("came_from_ns") < F.col("end_ns"))
    is_more = F.col("its_asked") > F.col("asked")
    unmoved = met.where(F.col("refused_as") == "already_acknowledged").where(
        F.col("start_id") <= F.col("asked")
    )
    behind = unmoved.join(others, [*same, may_precede & may_have_had() & is_more], "leftanti")
    subs = tables.acts.where(F.col("f") == "sub")
    moves = subs.where(F.col("start").isNotNull()).select(
        *(F.col(name).alias(f"its_{name}") for name in OWNER)
    )
    patterns = subs.where(F.col("topic").rlike(WILD)).select(
        F.col("run_id").alias("p_run_id"),
        F.col("client_id").alias("p_client_id"),
        F.col("topic").alias("pattern"),
    )
    followed = [
        F.col("run_id") == F.col("p_run_id"),
        F.col("client_id") == F.col("p_client_id"),
        has(F.col("pattern"), F.col("topic")),
    ]
    still = met.where(F.col("refused_as") == "moved").join(moves, same, "leftanti")
    still = still.join(patterns.distinct(), followed, "leftanti")
    asks = met.where(F.col("refused_as") == "bad_request").withColumns(
        {"t_ns": F.col("invoke_ns"), "known": F.col("asked") - 1}
    )
    timeline = ("run_id", "topic", "at")
    mark = F.struct("value", "process", "op_id").alias("mark")
    claims = tables.doubts.claims.select(*timeline, F.col("end_ns").alias("t_ns"), mark)
    known = known_of(tables.puts, tables.gets, tables.worked).unionByName(claims)
    reached = as_of.overtaken(settled(asks), only(known, gets, timeline), timeline)
    columns = gets.columns
    rows = behind.select(*columns).unionByName(still.select(*columns))
    return rows.unionByName(reached.select(*columns)).distinct().select(*_evidence("denied"))


def _moved_nowhere(tables: Tables) -> DataFrame:
    """Return the evidence of GETs of any topic that were told that one was moved, of clients that
    can have no such: none of their SUBs has a start, or is to a pattern.
    """
    is_any = F.coalesce("topic", F.lit("")) == ""
    own = (*KEY, "client_id", "topic")
    gets = tables.gets.where((F.col("refused_as") == "moved") & is_any).select(*own)
    gets = few(gets.join(F.broadcast(tables.applications), "run_id", "leftanti"))
    if is_never_any(gets):
        return gets.select(*_evidence("denied"))
    subs = tables.acts.where(F.col("f") == "sub")
    placed = subs.where(F.col("start").isNotNull() | F.col("topic").rlike(WILD))
    found = gets.join(placed.select("run_id", "client_id"), ["run_id", "client_id"], "leftanti")
    return found.withColumn("topic", F.lit("")).select(*_evidence("denied"))


def _denied_their_topic(tables: Tables) -> DataFrame:
    """Return the evidence of GETs that were told that there is no topic, though a life of another
    client's, or a group, stood in it, and no life of their own.
    """
    own = (*KEY, "client_id", "topic", one_host(), "invoke_ns", "end_ns")
    gets = few(tables.gets.where(F.col("refused_as") == NO_TOPIC).select(*own))
    if is_never_any(gets):
        return gets.select(*_evidence("denied"))
    its = F.col("client_id").alias("its_client_id")
    lives = tables.lives.select("run_id", "topic", "at", "begun_ns", "until_ns", its)
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    met = settled(gets.join(F.broadcast(lives), ["run_id", "topic", "at"]).where(stood))
    is_own = F.col("its_client_id") == F.col("client_id")
    found = met.groupBy(*gets.columns).agg(F.count_if(is_own).alias("own"))
    others = gets.join(met.select(*KEY), list(KEY), "leftanti")
    worked_on = beside_groups(others, tables).select(*gets.columns).distinct()
    rows = found.where(F.col("own") == 0).select(*gets.columns).unionByName(worked_on)
    return rows.select(*_evidence("denied"))


def _left_by_name(patterns: DataFrame, tables: Tables) -> DataFrame:
    """Return the evidence of UNSUBs that ended a life of what a pattern of their client's has, and
    that stood.
    """
    lives = tables.lives.where(F.col("topic").rlike(WILD)).select(
        *(F.col(name).alias(f"its_{name}") for name in HOME), "begun_ns", "until_ns", "made_by"
    )
    acts = only(
        tables.acts,
        patterns.select(
            F.col("their_run_id").alias("run_id"), F.col("their_client_id").alias("client_id")
        ),
        OWNER[:2],
    )
    unsubs = acts.where((F.col("f") == "unsub") & (F.col("outcome") == "ok"))
    ended = tables.lives.select(*HOME, F.col("until_ns").alias("from_ns")).distinct()
    left = few(unsubs.join(F.broadcast(ended), [*HOME, "from_ns"]))
    same = [F.col(name) == F.col(f"its_{name}") for name in ("run_id", "client_id", "at")]
    stood = (F.col("begun_ns") < F.col("from_ns")) & (F.col("end_ns") < F.col("until_ns"))
    met = left.join(F.broadcast(lives), [*same, has(F.col("its_topic"), F.col("topic")), stood])
    found = met.groupBy(*KEY, "client_id", "topic").agg(F.min("made_by").alias("made_by"))
    return found.select(*_evidence("left", "made_by"))


def _over_a_limit(tables: Tables) -> DataFrame:
    """Return the evidence of what succeeded though it is over a limit of the protocol.

    A TAKE that brought more than it was asked for has its row already.
    """
    done = F.col("outcome") == "ok"
    size = F.col("last_counter") - F.col("first_counter") + 1
    lasts = F.exists("expires", lambda run: run[2] > EXPIRY_MS_MAX)
    puts = tables.puts.where(done & ((size > PUBLICATIONS_MAX) | F.coalesce(lasts, F.lit(False))))
    puts = puts.withColumnRenamed("producer", "client_id").select(*KEY, "client_id", "topic")
    worked = tables.worked.where(done & over_a_limit() & ~is_excessive()).select(
        *KEY, "client_id", "topic"
    )
    return puts.unionByName(worked).select(*_evidence("limit"))


def _patterns_of(tables: Tables) -> DataFrame:
    """Return the patterns that clients may have subscribed to (their_run_id, their_client_id,
    pattern).
    """
    subs = tables.acts.where((F.col("f") == "sub") & F.col("topic").rlike(WILD))
    return settled(
        subs.select(
            F.col("run_id").alias("their_run_id"),
            F.col("client_id").alias("their_client_id"),
            F.col("topic").alias("pattern"),
        ).distinct()
    )


def _followed(patterns: DataFrame) -> tuple[DataFrame, list[Column]]:
    """Return what to join to find the clients that follow a pattern of a topic."""
    return F.broadcast(patterns), [
        F.col("run_id") == F.col("their_run_id"),
        F.col("client_id") == F.col("their_client_id"),
        has(F.col("pattern"), F.col("topic")),
    ]


def _denials(denied: DataFrame, patterns: DataFrame, tables: Tables) -> DataFrame:
    """Return when clients were rightly told that they are not subscribed (HOME, from_ns, gone_ns):
    few. A pattern brings topics without a SUB, so who follows one is left out.
    """
    gets = few(
        tables.gets.where(F.col("is_denied") & (F.coalesce("topic", F.lit("")) != "")).select(
            *(*KEY, "client_id", "topic", one_host()),
            F.coalesce("invoke_ns", F.lit(EVER)).alias("from_ns"),
            F.col("end_ns").alias("gone_ns"),
        )
    )
    wrong = denied.select("run_id", F.element_at("operations", -1).alias("own")).select(
        "run_id", "own.*"
    )
    right = gets.join(wrong, list(KEY), "leftanti").join(*_followed(patterns), "leftanti")
    return few(right.select(*HOME, "from_ns", "gone_ns"))


def _denied_all(tables: Tables) -> DataFrame:
    """Return the evidence of GETs of any topic that were told that there is no subscription, though
    a life stood of each topic that their client can have asked for.
    """
    is_any = F.coalesce("topic", F.lit("")) == ""
    own = (*KEY, "client_id", one_host(), "invoke_ns", "end_ns")
    gets = few(tables.gets.where(F.col("is_denied") & is_any).select(*own))
    gets = gets.join(F.broadcast(tables.applications), "run_id", "leftanti")
    if is_never_any(gets):
        return gets.withColumn("topic", F.lit("")).select(*_evidence("denied"))
    subs = tables.acts.where((F.col("f") == "sub") & ~F.col("topic").rlike(WILD)).select(
        "run_id", "client_id", "topic", F.col("at").alias("sub_at"), "from_ns"
    )
    may_know = (F.col("sub_at") != F.col("at")) | (F.col("from_ns") < F.col("end_ns"))
    asked = gets.join(subs, ["run_id", "client_id"]).where(may_know)
    lives = tables.lives.select(*HOME, "begun_ns", "until_ns")
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    return (
        asked.select(*gets.columns, "topic")
        .distinct()
        .join(F.broadcast(lives), list(HOME), "left")
        .groupBy(*gets.columns, "topic")
        .agg(F.max(F.coalesce(stood, F.lit(False))).alias("stood"))
        .groupBy(*gets.columns)
        .agg(F.bool_and("stood").alias("all_stood"))
        .where("all_stood")
        .withColumn("topic", F.lit(""))
        .select(*_evidence("denied"))
    )


def _kept(denials: DataFrame, patterns: DataFrame, tables: Tables) -> DataFrame:
    """Return the evidence of SUBs that resumed, at their first attempt, what can't have stood: each
    other SUB was sent after they were answered, or had acted before an UNSUB that was answered, or
    before a denial, before they were sent.
    """
    once = (F.col("f") == "sub") & (F.col("outcome") == "ok") & (F.col("attempt") == 1)
    subs = settled(
        tables.controls.where(once & F.col("resumed")).select(
            *(*KEY, "client_id", "topic", "end_ns"),
            one_host(),
            F.coalesce("invoke_ns", F.lit(EVER)).alias("invoke_ns"),
        )
    )
    subs = subs.join(*_followed(patterns), "leftanti")
    gone = tables.acts.where((F.col("f") == "unsub") & (F.col("outcome") == "ok")).select(
        *HOME, "from_ns", F.col("end_ns").alias("gone_ns")
    )
    left = _left_before(subs, gone.unionByName(denials))
    known = settled(subs.join(left, list(KEY), "left"))
    return _without_a_sub(known, tables).select(*_evidence("kept"))


def _left_before(operations: DataFrame, gone: DataFrame) -> DataFrame:
    """Return (KEY, left_ns) of those before which their client was `gone`, and from when on."""
    return (
        operations.join(gone, list(HOME))
        .where(F.col("gone_ns") < F.col("invoke_ns"))
        .groupBy(*KEY)
        .agg(F.max("from_ns").alias("left_ns"))
    )


def _without_a_sub(operations: DataFrame, tables: Tables) -> DataFrame:
    """Return those during which no SUB but their own may stand. `left_ns`: who acted before that
    does not.
    """
    others = tables.acts.where(F.col("f") == "sub").select(
        *(F.col(name).alias(f"other_{name}") for name in (*HOME, "process", "op_id")),
        F.col("from_ns").alias("other_ns"),
        "latest_ns",
    )
    same = [F.col(name) == F.col(f"other_{name}") for name in ("run_id", "client_id", "topic")]
    is_another = (F.col("process") != F.col("other_process")) | (
        F.col("op_id") != F.col("other_op_id")
    )
    is_later = F.col("other_ns") > F.col("end_ns")
    is_over = F.coalesce(F.col("latest_ns") < F.col("left_ns"), F.lit(False))
    may_stand = (F.col("at") != F.col("other_at")) | ~(is_later | is_over)
    return operations.join(others, [*same, is_another, may_stand], "leftanti")


def _begun_elsewhere(tables: Tables) -> DataFrame:
    """Return the evidence of new subscriptions that do not begin where their SUB said."""
    new = (F.col("outcome") == "ok") & ~F.col("resumed") & F.col("start_id").isNotNull()
    subs = few(
        tables.controls.where(F.col("start").isNotNull() & new).select(
            *(*KEY, "client_id", "topic", "start", "start_id", "invoke_ns", "end_ns"), one_host()
        )
    )
    of_groups_ = (F.col("f") == "group") & F.col("start").isNotNull() & F.col("group").isNotNull()
    new_group = of_groups_ & (F.col("outcome") == "ok") & ~F.col("resumed")
    groups = few(
        tables.worked.where(new_group & F.col("last_id").isNotNull()).select(
            *(*KEY, "client_id", "topic", "start", F.col("last_id").alias("start_id")),
            *("invoke_ns", "end_ns", one_host()),
        )
    )
    if is_never_any(subs) and is_never_any(groups):
        return subs.select(*_evidence("start"))
    every = subs.unionByName(groups)
    at_id = subs.where(F.col("start").rlike("^[0-9]+$"))
    wrong = at_id.where(F.col("start").cast("bigint") - 1 != F.col("start_id"))
    columns = subs.columns
    gets = tables.gets.where(F.col("first").isNotNull() & ~F.col("tells_of_purge")).select(
        "run_id", "topic", one_host(), F.col("first").alias("given"), F.col("invoke_ns").alias("ns")
    )
    kept = (F.col("ns") > F.col("end_ns")) & (F.col("given") <= F.col("start_id"))
    too_late = (
        gets.join(F.broadcast(every.where(F.col("start") == "earliest")), ["run_id", "topic", "at"])
        .where(kept)
        .select(*columns)
        .distinct()
    )
    at_time = every.where(F.col("start").rlike("^@[0-9]+$")).withColumn(
        "from_ms", F.substring("start", 2, 20).cast("bigint")
    )
    runs = tables.told.select("run_id", "topic", F.explode("times").alias("run"))
    ends = runs.select(
        *("run_id", "topic"), F.explode(F.array(F.col("run")[0], F.col("run")[1])).alias("id"),
        F.col("run")[2].alias("at_ms"),
    )  # fmt: skip
    ends = ends.groupBy("run_id", "topic", "id").agg(F.min("at_ms").alias("at_ms"))
    older = (F.col("id") > F.col("start_id")) & (F.col("at_ms") < F.col("from_ms"))
    timed = few(ends.join(F.broadcast(at_time), ["run_id", "topic"]).where(older))
    known = (
        acknowledged_runs(tables.puts)
        .select("run_id", "topic", "host", "first", "last", "end_ns")
        .unionByName(tables.deliveries.select("run_id", "topic", "host", "first", "last", "end_ns"))
        .select("run_id", "topic", one_host(), "first", "last", F.col("end_ns").alias("known_ns"))
    )
    inside = F.col("id").between(F.col("first"), F.col("last"))
    too_early = (
        timed.join(known, ["run_id", "topic", "at"])
        .where(inside & (F.col("known_ns") < F.col("invoke_ns")))
        .select(*columns, "id")
        .distinct()
    )
    if not is_never_any(timed):
        too_early = _were_there(settled(too_early), tables)
    too_early = too_early.select(*columns).distinct()
    below = (F.col("id") <= F.col("start_id")) & (F.col("at_ms") >= F.col("from_ms"))
    passed = few(ends.join(F.broadcast(at_time), ["run_id", "topic"]).where(below))
    skipped = _given_later(passed.select(*columns, "id"), tables).select(*columns).distinct()
    rows = wrong.unionByName(too_late).unionByName(too_early).unionByName(skipped)
    rows = rows.unionByName(_below_what_is_gone(every, tables)).distinct()
    return rows.select(*_evidence("start"))


def _below_what_is_gone(starts: DataFrame, tables: Tables) -> DataFrame:
    """Return those that begin at the earliest, or at an id, below what was purged, or somebody had
    been told to be gone for good, before they were sent. A gap may be of what expired, or was
    replaced.
    """
    names = ["run_id", "topic"]
    asked = few(starts.where(F.col("start").rlike("^(earliest|[0-9]+)$")))
    if is_never_any(asked):
        return asked
    done = tables.asides.where(F.col("f") == "purged").select(
        *names, one_host(), F.col("last_id").alias("gone"), F.col("t_ns").alias("gone_ns")
    )
    answers = only(tables.gets.where(F.col("gone_as").isin("purged", "gap")), asked, names)
    keyed = tables.told.where((F.col("f") == "put") & (F.size("keyed") > 0)).select(*names)
    unclear = keyed.unionByName(tables.expiring.select(*names)).distinct()
    gaps = with_application(answers.where(F.col("gone_as") == "gap"), tables)
    gaps = gaps.where(~F.col("is_application")).drop("is_application")
    told = answers.where(F.col("gone_as") == "purged").unionByName(
        gaps.join(F.broadcast(unclear), names, "leftanti")
    )
    told = told.select(
        *names, one_host(), F.col("last").alias("gone"), F.col("end_ns").alias("gone_ns")
    )
    gone = settled(done.unionByName(told))
    below = (F.col("start_id") < F.col("gone")) & (F.col("gone_ns") < F.col("invoke_ns"))
    met = asked.join(F.broadcast(gone), [*names, "at"]).where(below)
    return met.select(*starts.columns).distinct()


def _were_there(older: DataFrame, tables: Tables) -> DataFrame:
    """Return those of the ids behind a start at a time that were surely there when it was found:
    what is compacted away has no time.
    """
    if is_never_any(older):
        return older
    spans = older.withColumns({"first": F.col("id"), "last": F.col("id")}).drop("id")
    same = [*KEY, "id"]
    of_keys = keys.of_ids(spans, tables).select(*same, "is_keyless", "is_latest", "is_replaced")
    later = _given_later(older, tables).select(*same, F.lit(True).alias("is_given")).distinct()
    kinds = F.broadcast(tables.expiring.select("run_id", "topic", "is_compacted"))
    no = F.lit(False)
    is_of_compacted = F.coalesce(F.col("is_keyless") | F.col("is_latest"), no)
    is_kept = F.when(F.coalesce("is_compacted", no), is_of_compacted).otherwise(
        ~F.coalesce("is_replaced", no)
    )
    return (
        older.join(kinds, ["run_id", "topic"], "left")
        .join(of_keys, same, "left")
        .join(later, same, "left")
        .where(is_kept | F.coalesce("is_given", no))
        .select(*older.columns)
    )


def _given_later(ids: DataFrame, tables: Tables) -> DataFrame:
    """Return the `ids` of SUBs that somebody was given who asked after the SUB's end."""
    if is_never_any(ids):
        return ids
    inside = F.col("id").between(F.col("given_first"), F.col("given_last"))
    given = tables.deliveries.where(~F.col("tells_of_purge")).select(
        *("run_id", "topic"),
        one_host(),
        F.col("first").alias("given_first"),
        F.col("last").alias("given_last"),
        F.col("invoke_ns").alias("asked_ns"),
    )
    return (
        given.join(F.broadcast(ids), ["run_id", "topic", "at"])
        .where(inside & (F.col("asked_ns") > F.col("end_ns")))
        .select(*ids.columns)
    )


def _missed(tables: Tables) -> DataFrame:
    """Return the evidence of what a pattern has, and its subscriber was not given."""
    said = (tables.told, tables.worked)
    followed = followed_of(
        tables.lives,
        tables.puts,
        letter_topics_of(*said),
        tables.gets,
        tables.acts,
        tables.applications,
    )
    if is_never_any(followed):
        return (
            followed.select(*KEY[:1], *OWNER[1:])
            .withColumns({"process": F.lit(""), "op_id": F.lit(0)})
            .select(*_evidence("missed"))
        )
    brought = settled(brought_of(tables.comings, *said))
    arrived = few(arrived_of(followed, tables.arrivals, brought))
    kept = kept_for(followed, tables.controls, tables.acts, tables.puts, tables.deliveries)
    fresh = settled(fresh_of(followed, tables.puts).unionByName(arrived).unionByName(kept))
    marks = fresh.where(F.col("t_ns").isNotNull())
    silent = silent_of(followed, marks, DURING, tables.gets, tables.acts)
    rows = _unheard(followed, tables).unionByName(_begun_above(followed, fresh, tables))
    return rows.unionByName(silent.select(*rows.columns)).distinct().select(*_evidence("missed"))


def _unheard(followed: DataFrame, tables: Tables) -> DataFrame:
    """Return the PUTs that found nobody, though a pattern has their topic and its subscriber asked
    afterwards, and was told of no lack of room.
    """
    nowhere = (F.col("outcome") == "ok") & (F.col("first_id") == 0) & ~F.col("duplicate")
    puts = tables.puts.where(nowhere).select(
        *KEY, base_topic(), one_host(), "invoke_ns", F.col("end_ns").alias("put_ns")
    )
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("put_ns") < F.col("until_ns"))
    unheard = few(puts.join(F.broadcast(followed), ["run_id", "topic", "at"]).where(stood))
    asked = asked_of_any(tables.gets).select(
        *("run_id", "client_id"), one_host(), F.col("invoke_ns").alias("ask_ns"),
        F.col("end_ns").alias("told_ns"),
    )  # fmt: skip
    later = (F.col("ask_ns") > F.col("put_ns")) & (F.col("told_ns") < F.col("until_ns"))
    answered = (
        unheard.join(asked, ["run_id", "client_id", "at"])
        .where(later)
        .groupBy(*unheard.columns)
        .agg(F.max("told_ns").alias("told_ns"))
    )
    again = tables.acts.where((F.col("f") == "sub") & F.col("topic").rlike(WILD)).select(
        F.col("run_id").alias("its_run_id"),
        F.col("client_id").alias("its_client_id"),
        F.col("at").alias("its_at"),
        F.col("from_ns").alias("its_ns"),
        F.coalesce("end_ns", F.lit(FOREVER)).alias("its_end_ns"),
    )
    meets = (F.col("its_ns") < F.col("told_ns")) & (F.col("its_end_ns") > F.col("invoke_ns"))
    same = [F.col(name) == F.col(f"its_{name}") for name in ("run_id", "client_id")]
    excused = [*same, (F.col("its_at") != F.col("at")) | meets]
    return answered.join(again, excused, "leftanti").select(*KEY, *OWNER[1:])


def _begun_above(followed: DataFrame, fresh: DataFrame, tables: Tables) -> DataFrame:
    """Return the SUBs that a pattern brought, and that begin above what was put since, and was
    never given to that reading.
    """
    brought = (F.col("f") == "sub") & (F.col("outcome") == "ok") & F.col("resumed")
    subs = tables.controls.where(brought & F.col("start_id").isNotNull()).select(
        *(*KEY, "client_id", "topic", "start_id", "invoke_ns", "end_ns"), one_host()
    )
    stood = (F.col("begun_ns") < F.col("invoke_ns")) & (F.col("end_ns") < F.col("until_ns"))
    lives = followed.select(*DURING, "until_ns", "fresh_ns", "over_ns")
    heard = few(subs.join(F.broadcast(lives), [*OWNER, "at"]).where(stood))
    keys = (*DURING, "process", "op_id")
    wanted = (
        fresh.select(*DURING, "first", "last")
        .join(F.broadcast(heard.select(*DURING, *KEY[1:], "start_id")), list(DURING))
        .withColumn("last", F.least("last", "start_id"))
        .where(F.col("first") <= F.col("last"))
        .select(*keys, "first", "last")
    )
    own = F.broadcast(heard.select(*keys, "fresh_ns", "over_ns"))
    came = came_of(only(tables.deliveries, heard, OWNER)).join(own, list(OWNER))
    cover = came.where(may_have_had()).select(*keys, "first", "last")
    lacking = intervals.uncovered(
        settled(intervals.split(wanted)), settled(intervals.split(cover)), keys
    )
    return lacking.select(*KEY, *OWNER[1:]).distinct()


def _unsubscribed(denials: DataFrame, tables: Tables) -> DataFrame:
    """Return the evidence of answers to who was gone: of the clients that may have been, each GET
    is looked at.
    """
    absences = tables.absences
    answered = F.col("outcome") == "ok"
    names_it = F.col("topic") != ""  # one of any topic that brought nothing names none
    gets = tables.gets.where(answered & names_it).select(
        *KEY, "client_id", "topic", one_host(), "invoke_ns", "end_ns"
    )
    sent_ns = F.coalesce("invoke_ns", F.lit(EVER))
    away = (F.col("after_ns") < sent_ns) & (F.col("end_ns") < F.col("before_ns"))
    met = only(gets, absences, HOME).join(F.broadcast(absences), list(HOME))
    told = only(gets, denials, HOME)
    since = told.join(_left_before(told, F.broadcast(denials)), list(KEY))
    rows = (
        met.where(away)
        .select(*gets.columns)
        .unionByName(_without_a_sub(since, tables).select(*gets.columns))
    )
    return rows.distinct().select(*_evidence("unsubscribed"))


def _evidence(word: str, *others: str) -> list[Column]:
    return evidence(
        run_id=F.col("run_id"),
        topic=F.col("topic"),
        client_id=F.col("client_id"),
        detail=F.lit(word),
        operations=F.array(*others, operation()),
    )
