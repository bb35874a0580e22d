"""An id that a subscriber was handed twice without having asked for it twice."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.schema import KEY, evidence, operation
from analytics.common.table_store import settled
from analytics.tables.lives import EVER
from analytics.tables.moves import moves_of, with_eras
from analytics.tables.suspects import SHARE, only
from analytics.tables.tables import Tables, deliveries_of, several_of, with_application

OWNER = ("run_id", "client_id", "topic")


def duplicate_delivered(tables: Tables) -> DataFrame:
    """Find ids handed over again, each once with the smallest pair of operations.

    Asking again from the same cursor or an older one is legal, so is any cursor below the id after
    a crash (a new session) or a GET without an answer. Not legal: an id at or below the cursor
    that was asked with; one inside what the same session got already, when it has moved its cursor
    only part of the way there; one twice in one answer. An application may move its cursor as it
    likes, so what it recorded is judged by the cursor alone.

    Of what an application was handed: an id twice in a session, not given back in between; one that
    it had acknowledged before. To hand over again what a crash left unacknowledged is legal. What
    different processes were handed is compared only where an application recorded itself: in runs
    of ours one may go on with a copy of another one's state.
    """
    pairs = _again(tables).unionByName(_twice_in_one(tables)).unionByName(_handed_again(tables))
    return (
        pairs.groupBy(*OWNER, "id")
        .agg(F.min("pair").alias("pair"))
        .select(
            *evidence(
                run_id=F.col("run_id"),
                topic=F.col("topic"),
                client_id=F.col("client_id"),
                id=F.col("id"),
                operations=F.array("pair.earlier", "pair.later"),
            )
        )
    )


def _again(tables: Tables) -> DataFrame:
    """Return (owner, id, pair) of two GETs that both delivered an id, the second unasked."""
    # Within a session more than the cursor counts, but not where hand-overs are recorded.
    apart = F.col("handed_apart") | F.col("is_application")
    reach = F.when(apart, F.col("asked")).otherwise(F.greatest("asked", "had_id"))
    here = F.coalesce("host", F.lit(""))
    own = ("process", "session", "op_id", "asked", "handed_apart", "at", "end_ns")
    columns = (*OWNER, *own, "invoke_ns", "first", "last")
    unclear = tables.unclear_gets
    # In a chain of GETs each begins above all that its session had: only the others can repeat.
    repeats = settled(
        intervals.split(
            with_application(deliveries_of(unclear, several_of(unclear)), tables)
            .withColumn("at", here)
            .where(F.col("first") <= reach)
            .withColumn("last", F.least("last", reach))
            .select(*columns)
        )
    )
    every = tables.deliveries.withColumn("at", here).select(*columns)
    pieces = only(intervals.split(every), repeats, SHARE)
    moves = moves_of(tables.acts)
    eras = (F.coalesce("invoke_ns", F.lit(EVER)), F.col("end_ns"))
    pieces = with_eras(pieces, moves, *eras).drop("era_begun", "invoke_ns")
    repeats = settled(with_eras(repeats, moves, *eras).drop("era_over"))
    earlier = pieces.withColumnsRenamed({name: f"earlier_{name}" for name in own})
    before = (F.col("earlier_at") == F.col("at")) & (F.col("earlier_end_ns") < F.col("invoke_ns"))
    pairs = intervals.common(repeats, earlier, OWNER)
    is_one_reading = F.col("era_over") == F.col("era_begun")
    ids = settled(intervals.exploded(pairs.where(before & is_one_reading), "id"))
    below = F.col("id") <= F.col("asked")
    pair = F.struct(
        operation("earlier_process", "earlier_op_id").alias("earlier"),
        operation().alias("later"),
    ).alias("pair")
    unasked = ids.where(below).unionByName(_moved_partly(ids.where(~below), tables))
    return unasked.select(*OWNER, "id", pair)


def _moved_partly(ids: DataFrame, tables: Tables) -> DataFrame:
    """Return the pairs of one session, the second from a later cursor, no silence in between."""
    same_session = (F.col("process") == F.col("earlier_process")) & (
        F.col("session") == F.col("earlier_session")
    )
    silences = only(tables.gets.where(F.col("outcome") != "ok"), ids, OWNER[:2]).select(
        *(F.col(name).alias(f"silent_{name}") for name in (*OWNER, "process", "op_id"))
    )
    between = F.col("silent_op_id").between(F.col("earlier_op_id"), F.col("op_id"))
    handed = F.col("handed_apart") | F.col("earlier_handed_apart")
    pairs = ids.where(same_session & (F.col("earlier_asked") < F.col("asked")) & ~handed)
    same = [F.col(name) == F.col(f"silent_{name}") for name in (*OWNER[:2], "process")]
    silent_topic = F.coalesce("silent_topic", F.lit(""))  # empty: of any topic
    of_topic = (silent_topic == "") | silent_topic.eqNullSafe(F.col("topic"))
    return pairs.join(silences, [*same, of_topic, between], "leftanti")


def _handed_again(tables: Tables) -> DataFrame:
    own = ("process", "session", "op_id", "at", "t_ns", "cursor", "unmarked")
    columns = (*OWNER, *own, "first", "last")
    hands = tables.handlings.where(F.col("f") == "hand")
    pieces = settled(intervals.split(hands.select(*columns)))
    pairs = _both_ways(settled(intervals.overlapping(pieces, OWNER)), pieces)
    moves = moves_of(tables.acts)
    judged = with_eras(
        with_application(pairs, tables), moves, F.col("earlier_t_ns"), F.col("t_ns")
    ).where(_is_before("earlier_", "") & (F.col("era_over") == F.col("era_begun")))
    judged = judged.drop("era_over")
    ids = settled(intervals.exploded(judged, "id"))
    pair = F.struct(
        operation("earlier_process", "earlier_op_id").alias("earlier"),
        operation().alias("later"),
    ).alias("pair")
    found = _not_given_back(ids, tables).unionByName(_acknowledged_before(ids, tables))
    found = found.unionByName(_not_said_to_come_again(ids, tables))
    return found.select(*OWNER, "id", pair)


def _both_ways(some: DataFrame, pieces: DataFrame) -> DataFrame:
    """Return the parts that two hand-overs have in common, either of them as the `earlier_` one."""
    own = ("process", "session", "op_id", "at", "t_ns", "cursor", "unmarked")
    names = {name: f"earlier_{name}" for name in own}
    few = only(pieces, some, SHARE)
    one = intervals.common(some, few.withColumnsRenamed(names), OWNER)
    other = intervals.common(few, some.withColumnsRenamed(names), OWNER)
    return one.unionByName(other)


def _is_before(earlier: str, later: str) -> Column:
    """Return whether one step came before another one, as far as that is known."""
    same = F.col(f"{earlier}process") == F.col(f"{later}process")
    in_order = F.col(f"{earlier}op_id") < F.col(f"{later}op_id")
    one_clock = F.col(f"{earlier}at") == F.col(f"{later}at")
    in_time = F.col(f"{earlier}t_ns") < F.col(f"{later}t_ns")
    return F.when(same, in_order).otherwise(F.col("is_application") & one_clock & in_time)


def _not_given_back(ids: DataFrame, tables: Tables) -> DataFrame:
    same_session = (F.col("process") == F.col("earlier_process")) & (
        F.col("session") == F.col("earlier_session")
    )
    releases = only(tables.handlings.where(F.col("f") == "release"), ids, OWNER).select(
        *(F.col(name).alias(f"back_{name}") for name in (*OWNER, "process", "session")),
        F.col("op_id").alias("back_op_id"),
        F.col("first").alias("back_first"),
        F.col("last").alias("back_last"),
    )
    same = [F.col(name) == F.col(f"back_{name}") for name in (*OWNER, "process", "session")]
    between = (F.col("back_op_id") > F.col("earlier_op_id")) & (
        F.col("back_op_id") < F.col("op_id")
    )
    inside = F.col("id").between(F.col("back_first"), F.col("back_last"))
    return ids.where(same_session).join(releases, [*same, between, inside], "leftanti")


def _not_said_to_come_again(ids: DataFrame, tables: Tables) -> DataFrame:
    """Return the pairs whose later one is not said to be handed over again.

    By the same process, or by one of an application's that began to hand over after the earlier
    row; and the client had not left the topic in between, as far as that is known.
    """
    begun = tables.handlings.groupBy(*OWNER, "process").agg(F.min("t_ns").alias("begun_ns"))
    plain = settled(ids.where(F.col("id") >= F.col("unmarked")))
    is_one = F.col("earlier_process") == F.col("process")
    known = plain.join(only(begun, plain, OWNER), [*OWNER, "process"]).where(
        is_one | (F.col("earlier_t_ns") < F.col("begun_ns"))
    )
    left = only(tables.acts.where(F.col("f") == "unsub"), plain, OWNER).select(
        *(F.col(name).alias(f"left_{name}") for name in (*OWNER, "at", "from_ns", "latest_ns"))
    )
    same = [F.col(name) == F.col(f"left_{name}") for name in OWNER]
    between = (F.col("left_from_ns") < F.col("t_ns")) & (
        F.col("left_latest_ns") > F.col("earlier_t_ns")
    )
    may_have_left = (F.col("left_at") != F.col("at")) | between
    return known.join(left, [*same, may_have_left], "leftanti").drop("begun_ns")


def _acknowledged_before(ids: DataFrame, tables: Tables) -> DataFrame:
    """Return the pairs whose later one hands over what was stored as acknowledged by then: as an
    earlier row says, or itself. It may say so of what it was to hand over at most once.
    """
    steps = tables.handlings
    known = only(steps.where(F.col("cursor").isNotNull()), ids, OWNER).select(
        *(F.col(name).alias(f"known_{name}") for name in OWNER),
        *(F.col(name).alias(f"known_{name}") for name in ("process", "op_id", "at", "t_ns")),
        F.col("cursor").alias("known_cursor"),
    )
    known = with_eras(
        known.withColumnsRenamed({f"known_{name}": name for name in OWNER}),
        moves_of(tables.acts),
        F.col("known_t_ns"),
        F.col("known_t_ns"),
        "known_at",
    ).drop("era_begun")
    known = known.withColumnsRenamed({name: f"known_{name}" for name in OWNER})
    same = [F.col(name) == F.col(f"known_{name}") for name in OWNER]
    above = F.col("known_cursor") >= F.col("id")
    is_one_reading = F.col("era_over") == F.col("era_begun")
    met = [*same, above, is_one_reading, _is_before("known_", "")]
    before = ids.join(known, met, "leftsemi")
    ahead = only(steps.where((F.col("f") == "ack") & F.col("first").isNotNull()), ids, OWNER)
    names = (*OWNER, "process", "session", "op_id", "first", "last")
    ahead = ahead.select(*(F.col(name).alias(f"ahead_{name}") for name in names))
    same = [F.col(name) == F.col(f"ahead_{name}") for name in (*OWNER, "process", "session")]
    inside = F.col("id").between(F.col("ahead_first"), F.col("ahead_last"))
    between = (F.col("ahead_op_id") < F.col("op_id")) & (
        (F.col("earlier_process") != F.col("process"))
        | (F.col("ahead_op_id") > F.col("earlier_op_id"))
    )
    itself = ids.where(F.col("cursor") >= F.col("id"))
    return before.unionByName(itself.join(ahead, [*same, inside, between], "leftanti"))


def _twice_in_one(tables: Tables) -> DataFrame:
    answer = W.partitionBy(*KEY).orderBy("first", "last")
    reach = F.max("last").over(answer.rowsBetween(W.unboundedPreceding, -1))
    doubled = settled(
        tables.deliveries.where(~F.col("is_plain"))
        .withColumn("reach", reach)
        .where(F.col("first") <= F.col("reach"))
        .withColumn("last", F.least("last", "reach"))
        .select(*KEY, "client_id", "topic", "first", "last")
    )
    pair = F.struct(operation().alias("earlier"), operation().alias("later")).alias("pair")
    return intervals.exploded(doubled, "id").select(*OWNER, "id", pair)
