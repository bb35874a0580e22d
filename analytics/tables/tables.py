"""The tables that all checks share, made from events once. No rule about right and wrong here.

puts           one row a PUT: producer, first and last counter, outcome, first id
gets           one row a GET: subscriber, cursor it asked with, first and last id that came
several        one row a run of the answers that are not just one run of sound publications
deliveries     one row a run of a GET's answer: ids `first`..`last`, counter = id + `shift`
asides         the events that are of no PUT or GET, nor of what was handed over: few
told           the ends that say when publications were stored, or which have keys and headers, or
               are dead letters
expiring       the topics to which something was put that expires, or which are compacted
led            by which node in which term PUTs, GETs and TAKEs of such topics were answered
collected      up to where a node has collected a topic, above what is gone of it otherwise
lanes          one row a PUT with a delay, with the `delays` that it asked for (delays.py)
comings        one row a run of what came and had been put with a delay
moments        where something was: until when any operation was recorded on a host
arrivals       what came with a delay, and dead letters: behind which moment (arrivals.py)
worked         one row a `group`, `ungroup` or `take`: what it says and was answered (groups.py)
ends           one row a run: `end_ns`, when its last event was
ticks          one row a millisecond in which PUTs were acknowledged: when first, when last
handlings      one row a step between a client and its application: what is handed over (`hand`),
               acknowledged (`ack`), given back (`release`), as runs of ids
controls       one row a SUB or UNSUB, with what the broker said of the cursor
acts           the SUBs and UNSUBs that may have acted, from when to when (lives.py)
lives          when a client surely was subscribed to a topic (lives.py)
refused        the operations that were told that their client, its epoch or a feature level is not
               there: by its own words few
forgotten      the clients that were told that the cluster has forgotten them: they have no lives
absences       when a client that got answers of a topic surely was not (lives.py)
subscriptions  one row from the SUB that made it to the UNSUB that (perhaps) ended it
applications   the runs that applications recorded themselves: run.json says so, or some line of
               them has digests
drains         one row a subscriber that reached a topic's tombstone
leaders        one row a (term, node) that answered as the leader of the term, first operation
late_terms     answers of a term that were sent after an answer of a higher one
truth, nodes   what the nodes have left on their disks and in their logs, and which there were
uncollected    the acknowledged PUTs that some node has to hold: it has not collected them
held           the places on the nodes' disks, split at buckets and merged
journaled      what nodes hold in their journals alone, under no id yet, as runs of counters, split
places         which publication stands under which id, as anyone saw it, split at buckets:
               acknowledgments, and in doubtful buckets deliveries and disks too, merged into runs
doubts         where the checks have to look closely (suspects.py); most of a history is not in it
unclear_gets   the GETs of the sessions in doubt, with `had_id` and `due_id`
unclear_acks   what was acknowledged, and
unclear_given  what was given, split, in the buckets in which anything is in doubt: read instead of
               all PUTs and all answers
seen_places    the places of the buckets in doubt, as operations saw them
unclear_places the same with what the disks hold
loose_places   those of them that no acknowledgment names
tried          the PUTs of the buckets of counters of which anything is in doubt, as runs of
               counters, split: all that can have made `unclear_places`
untried        the counters between two that were taken, and that no PUT held (counters.py)
said_again     the answers of what may have been stored nowhere and acknowledged once more
late           the publications whose topic had reached their id before they were first tried
missing, tails, below, unplaced, cleared   what may have been lost by lives (owed.py)
apart, alone   bound parts of batches that stand or came apart (batches.py)
producers      the producers in doubt, and all their places: `suspects`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial, reduce
from operator import or_
from typing import Final, ParamSpec

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as W

from analytics.common import intervals
from analytics.common.progress import Keep
from analytics.common.schema import DIGEST_DIGITS, HANDLINGS, KEY, LANE, OPERATION, operation
from analytics.common.session import Later
from analytics.common.table_store import few, is_never_any, none_of, settled
from analytics.intake.truth import Truth, sound
from analytics.tables.arrivals import arrivals_of
from analytics.tables.batches import alone_of, apart_of, bound_of, standing_of
from analytics.tables.counters import denied_of, said_again_of, torn_of, untried_of
from analytics.tables.delays import delays_of, nothing_delayed
from analytics.tables.garbage import uncollected_of
from analytics.tables.groups import GROUP, missed_of, worked_of
from analytics.tables.lives import absences_of, acts_of, collected_of, lives_of, with_floors
from analytics.tables.order import (
    late_terms_of,
    maybe_late_of,
    out_of_time_of,
    sent_late_of,
    with_above,
)
from analytics.tables.owed import (
    below_of,
    cleared_of,
    missing_of,
    nowhere_of,
    tails_of,
    tried_after_of,
    unplaced_of,
    unsaid_of,
)
from analytics.tables.pairs import is_told_of_purge, joined, operations, unpaired_of
from analytics.tables.runs import (
    LETTER,
    PLACE,
    acknowledged_runs,
    counters_of_places,
    counters_of_puts,
    one_host,
    tries_of_puts,
)
from analytics.tables.suspects import (
    OWNER,
    PRODUCER,
    SESSION,
    TOPIC_BUCKET,
    Doubts,
    doubts_of,
    only,
    producers_of,
    spans_of,
    without,
)
from analytics.tables.undone import without_idle

P = ParamSpec("P")

TICK_NS: Final = 1_000_000
# Of an answer: it is one run and nothing else, and whose that is; else the array of its runs.
OF_RUNS: Final = ("is_single", "producer", "shift", "pieces")
COUNTER_GAP: Final = "counter_gap"  # of a PUT: the broker lacks a counter before it
FORGOTTEN: Final = "forgotten"
OVER: Final = ("fenced", "recovered", FORGOTTEN)  # told of an epoch
UNKNOWN: Final = ("unknown_client", "unsupported")
NO_ROOM: Final = "too_many"  # of a GET of any topic: a pattern has missed one
NO_TOPIC: Final = "unknown_topic"
# Of a GET: by its cursor, or as nobody subscribes to its topic.
REFUSALS: Final = ("already_acknowledged", "moved", "bad_request", NO_TOPIC)
DENIALS: Final = ("not_subscribed", NO_TOPIC)  # of a GET, by who may have lost its name


@dataclass(frozen=True, slots=True)
class WhatIsSaid:
    """What some event says, and mostly none does: then they are not read once more to look for it.

    `times`: times or properties of ids. `delays`: that something was put with a delay, or came so.
    """

    times: bool = True
    delays: bool = True


@dataclass(frozen=True, slots=True)
class Tables:
    """The shared tables; the module's docstring says what a row of each is."""

    puts: DataFrame
    gets: DataFrame
    asides: DataFrame
    told: DataFrame
    expiring: DataFrame
    led: DataFrame
    collected: DataFrame
    worked: DataFrame
    lanes: DataFrame
    comings: DataFrame
    moments: DataFrame
    arrivals: DataFrame
    ends: DataFrame
    ticks: DataFrame
    deliveries: DataFrame
    handlings: DataFrame
    subscriptions: DataFrame
    drains: DataFrame
    applications: DataFrame
    acts: DataFrame
    lives: DataFrame
    forgotten: DataFrame
    refused: DataFrame
    absences: DataFrame
    places: DataFrame
    controls: DataFrame
    leaders: DataFrame
    late_terms: DataFrame
    truth: DataFrame
    nodes: DataFrame
    uncollected: DataFrame
    held: DataFrame
    journaled: DataFrame
    unclear_gets: DataFrame
    unclear_acks: DataFrame
    seen_places: DataFrame
    unclear_places: DataFrame
    loose_places: DataFrame
    tried: DataFrame
    untried: DataFrame
    said_again: DataFrame
    late: DataFrame
    missing: DataFrame
    tails: DataFrame
    below: DataFrame
    unplaced: DataFrame
    cleared: DataFrame
    apart: DataFrame
    alone: DataFrame
    producers: DataFrame
    suspects: DataFrame
    doubts: Doubts


def build(
    events: DataFrame,
    tallies: DataFrame,
    truth: Truth,
    keep: Keep,
    said: WhatIsSaid = WhatIsSaid(),
    application: str | None = None,
    later: Later = partial,
) -> Tables:
    """Return the tables of a run. `keep(name, table)` stores one and returns what was stored.

    `tallies`: of `events` (tallies.py). `application`: the run's id, if run.json says that an
    application recorded itself. `later` takes what no other table waits for.
    """

    def aside(
        name: str, make: Callable[P, DataFrame], *sources: P.args, **named: P.kwargs
    ) -> Callable[[], DataFrame]:
        return later(lambda: keep(name, make(*sources, **named)))

    unpaired = keep("unpaired", unpaired_of(tallies))
    ends = aside("ends", ends_of, tallies)
    leaders = aside("leaders", leaders_of, tallies)
    late_terms = aside("late_terms", late_terms_of, tallies, events)
    handlings = aside("handlings", handlings_of, events)
    puts = keep("puts", puts_of(operations(events, "put", unpaired)))
    ticks = aside("ticks", ticks_of, puts.where(F.col("outcome") == "ok"))
    untried = aside("untried", lambda: untried_of(puts, keep("torn_counters", torn_of(puts))))
    asides = keep("asides", events.where(~F.col("f").isin("put", "get", *HANDLINGS)))
    drains = aside("drains", drains_of, asides)
    worked = worked_of(asides)
    worked = keep("worked", without_idle(worked, "group", GROUP, missed_of(worked)))
    answers = keep("answers", answers_of(operations(events, "get", unpaired)))
    denied_gets = answers.where("is_denied")
    controls = keep("controls", without_idle(controls_of(asides), "sub", OWNER, denied_gets))
    subscriptions = aside("subscriptions", subscriptions_of, controls)
    deliveries = settled(deliveries_of(answers, keep("several", several_of(answers))))
    truth_rows = keep("truth", sound(truth.rows))
    nodes = keep("nodes", truth.nodes)
    applications = keep("applications", applications_of(puts, answers, application))
    held = keep("held", held_of(truth_rows))
    journaled = keep("journaled", journaled_of(truth_rows))
    acts = keep("acts", acts_of(controls))
    spans = keep("spans", spans_of(answers))
    absences = aside("absences", absences_of, acts, spans)
    refused = keep("refused", refused_of(events))
    forgotten = keep("forgotten", forgotten_of(refused))
    lived = lives_of(acts, answers, spans, _drained_rows(asides))
    lived = without(lived, forgotten, ("run_id", "client_id"))
    expiring = expiring_of(events)
    expiring = keep("expiring", expiring if said.times else none_of(expiring))
    led = aside("led", led_of, events, expiring)
    of_delays = delays_of(puts, events) if said.delays else nothing_delayed(puts, events)
    lanes, comings, moments = (keep(name, table) for name, table in of_delays.items())
    told = keep("told", told_of(events) if said.times else none_of(told_of(events)))
    arrivals = aside("arrivals", arrivals_of, lanes, comings, told, worked)
    collected = keep("collected", collected_of(truth_rows, asides, expiring))
    lives = keep("lives", with_floors(lived, collected))
    doubts = doubts_of(puts, answers, deliveries, controls, worked, told, held, spans, lives, keep)
    in_doubt = only(answers, doubts.sessions, SESSION)
    unclear_gets = aside("unclear_gets", with_had_ids, in_doubt, acts)
    uncollected = aside(
        "uncollected", uncollected_of, puts, doubts.stored, truth_rows, nodes, asides
    )
    acks = keep("unclear_acks", _unclear_acks(puts, doubts))
    given = keep("unclear_given", _unclear_given(deliveries, doubts))
    seen = keep("seen_places", _seen_places(acks, given, doubts))
    on_disks = only(held, doubts.buckets, TOPIC_BUCKET)
    unclear = keep("unclear_places", intervals.merged(seen.unionByName(on_disks), PLACE))
    places_of_acks = acks.select(*PLACE, "bucket", "first", "last")
    loose = keep("loose_places", intervals.uncovered(unclear, places_of_acks, PLACE))
    acknowledged = settled(_acknowledged_places(puts))
    places = settled(without(acknowledged, doubts.buckets, TOPIC_BUCKET).unionByName(unclear))
    cleared = aside("cleared", cleared_of, collected, lives, places, deliveries)
    near = without(places_of_acks, doubts.buckets, TOPIC_BUCKET).unionByName(unclear)
    clear = without(doubts.stored, doubts.buckets, TOPIC_BUCKET)
    producers = keep("unclear_producers", producers_of(clear, unclear))
    suspects = aside("suspects", only, places, producers, PRODUCER)
    seen_in = (puts, answers, deliveries)
    missing = keep("missing", missing_of(doubts.watches, near, given))
    tails = aside("tails", tails_of, missing, asides, *seen_in)
    below = keep("tried_after", tried_after_of(puts, loose, lives, doubts))
    below_seen = aside("below", below_of, below, *seen_in)
    unsaid = keep("unsaid", unsaid_of(puts, applications, lives))
    out_of_time = settled(out_of_time_of(acks, doubts))
    tried = keep("tried", _tried(puts, unclear, out_of_time, journaled, unsaid))
    nowhere = keep("nowhere", nowhere_of(unsaid, tried, unclear))
    unplaced = aside("unplaced", unplaced_of, nowhere, puts, deliveries, places, lives)
    maybe_late = keep("maybe_late", maybe_late_of(out_of_time, loose, tried))
    late = keep("sent_late", sent_late_of(maybe_late, acks, given, doubts))
    late_above = aside("late", with_above, late, puts, answers, doubts.claims)
    denied = keep("denied_counters", denied_of(puts, forgotten))
    said_again = aside("said_again", said_again_of, puts, denied)
    standing = keep("standing", standing_of(puts, places, doubts))
    bound = keep("bound", bound_of(standing, puts))
    apart = aside("apart", apart_of, bound, standing, puts)
    alone = aside("alone", alone_of, bound, deliveries, lives)
    return Tables(
        puts=puts,
        gets=answers.drop(*OF_RUNS),
        asides=asides,
        told=told,
        arrivals=arrivals(),
        expiring=expiring,
        led=led(),
        collected=collected,
        worked=worked,
        lanes=lanes,
        comings=comings,
        moments=moments,
        ends=ends(),
        ticks=ticks(),
        deliveries=deliveries,
        handlings=handlings(),
        subscriptions=subscriptions(),
        drains=drains(),
        applications=applications,
        acts=acts,
        lives=lives,
        forgotten=forgotten,
        refused=refused,
        absences=absences(),
        places=places,
        controls=controls,
        leaders=leaders(),
        late_terms=late_terms(),
        truth=truth_rows,
        nodes=nodes,
        uncollected=uncollected(),
        held=held,
        journaled=journaled,
        unclear_gets=unclear_gets(),
        unclear_acks=acks,
        seen_places=seen,
        unclear_places=unclear,
        loose_places=loose,
        tried=tried,
        untried=untried(),
        said_again=said_again(),
        late=late_above(),
        missing=missing,
        tails=tails(),
        below=below_seen(),
        unplaced=unplaced(),
        cleared=cleared(),
        apart=apart(),
        alone=alone(),
        producers=producers,
        suspects=suspects(),
        doubts=doubts,
    )


def names() -> tuple[str, ...]:
    """Return the names of the tables that are kept: no views, and none of `doubts`."""
    derived = {"asides", "ends", "ticks", "deliveries", "places", "doubts", "tried", "unclear_acks"}
    return tuple(field.name for field in fields(Tables) if field.name not in derived)


def told_of(events: DataFrame) -> DataFrame:
    """Return the ends that say times or properties of ids, or which are dead letters.

    An answer that brought nothing says nothing of ids, whatever topic it names.
    """
    names = ("times", "marked", "keyed", "letters")
    said = reduce(or_, (F.col(name).isNotNull() for name in names))
    is_answer = (F.col("f") == "get") & (F.col("count") > 0)
    is_end = (F.col("type") == "ok") & ((F.col("f") == "put") | is_answer)
    columns = (*KEY, "f", "topic", "times", "marked", "properties", "keyed", "keys", "letters")
    return events.where(is_end & said).select(*columns, "host", F.col("t_ns").alias("end_ns"))


def refused_of(events: DataFrame) -> DataFrame:
    """Return `refused`: few. `start`, `expires`: as their invokes say."""
    ends = few(
        events.where(F.col("error").isin(*OVER, *UNKNOWN) & (F.col("type") != "invoke")).select(
            *(*KEY, "f", "client_id", "topic", "host", "epoch", "invoke_ns", "error"),
            F.col("type").alias("outcome"),
            F.col("t_ns").alias("end_ns"),
        )
    )
    said = ("topic", "host", "epoch", "start", "expires")
    invokes = only(events.where(F.col("type") == "invoke"), ends, KEY).select(
        *KEY,
        *(F.col(name).alias(f"its_{name}") for name in said),
        F.col("t_ns").alias("sent_ns"),
    )
    return ends.join(invokes, list(KEY), "left").select(
        *(*KEY, "f", "client_id", "error", "outcome", "end_ns"),
        F.coalesce("its_topic", "topic").alias("topic"),
        F.coalesce("its_epoch", "epoch").alias("epoch"),
        F.coalesce("sent_ns", "invoke_ns").alias("invoke_ns"),
        F.coalesce("host", "its_host").alias("host"),
        F.col("its_start").alias("start"),
        F.col("its_expires").isNotNull().alias("expires"),
    )


def forgotten_of(refused: DataFrame) -> DataFrame:
    """Return (run_id, client_id) of the clients that were told that they are forgotten."""
    return refused.where(F.col("error") == FORGOTTEN).select("run_id", "client_id").distinct()


def expiring_of(events: DataFrame) -> DataFrame:
    """Return (run_id, topic, is_compacted, has_expiry) of the topics to which something was put
    that expires, and of those that are compacted, as somebody was told.
    """
    is_put = (F.col("f") == "put") & F.col("expires").isNotNull()
    is_told = is_told_of_purge() & (F.col("error") == "compacted")
    is_compacted = is_told | ((F.col("f") == "group") & F.col("compacted"))
    is_compacted = F.coalesce(is_compacted, F.lit(False))
    # What has a delay expires in the topic that it comes into.
    topic = F.regexp_replace("topic", f"{LANE}$", "").alias("topic")
    return (
        events.where(is_put | is_compacted)
        .groupBy("run_id", topic)
        .agg(F.bool_or(is_compacted).alias("is_compacted"), F.bool_or(is_put).alias("has_expiry"))
    )


def led_of(events: DataFrame, expiring: DataFrame) -> DataFrame:
    """Return (KEY, node, term) of the PUTs, GETs and TAKEs that were answered in those topics:
    mostly none are.
    """
    is_answer = F.col("f").isin("put", "get", "take") & (F.col("type") == "ok")
    is_answer = is_answer & F.col("node").isNotNull()
    answered = only(events.where(is_answer), expiring, ("run_id", "topic"))
    return answered.where(F.col("term").isNotNull()).select(*KEY, "node", "term")


def puts_of(pairs: DataFrame) -> DataFrame:
    """Return `puts` of the PUTs with both their ends."""
    return pairs.select(
        *KEY,
        F.col("client_id").alias("producer"),
        "session",
        "topic",
        "host",
        "epoch",
        F.col("counter").alias("first_counter"),
        (F.col("counter") + F.coalesce("count", F.lit(1)) - 1).alias("last_counter"),
        "outcome",
        F.coalesce("first_id", F.lit(0)).alias("first_id"),
        F.coalesce("duplicate", F.lit(False)).alias("duplicate"),
        ((F.col("outcome") == "fail") & F.col("error").eqNullSafe(COUNTER_GAP)).alias("is_gapped"),
        "expires",
        "invoke_ns",
        "end_ns",
        "digests",
    )


def answers_of(pairs: DataFrame) -> DataFrame:
    """Return `gets` of the GETs with both their ends, and with what came (`OF_RUNS`).

    Most answers are one run of sound publications, which needs no array: to write one, and to read
    it, costs more than all the rest of a row. `first`, `last` are null when nothing came; `sent_id`
    then says from where on the broker sent what the client had by then, null if it sent nothing.
    `is_plain`: all is sound, and each run goes on where the one before it ends. `digests`: it was
    recorded by an application, whose publications do not say who put them: its runs have no
    producer. `tells_of_purge`: it says that its one run, which has none either, is purged: who was
    told so is owed it no more than what it has; `gone_as`: by which error it was told so.
    """
    told = pairs.withColumn("tells_of_purge", is_told_of_purge("outcome"))
    answered = F.when(F.col("tells_of_purge"), F.lit("ok")).otherwise(F.col("outcome"))
    ends = told.withColumn("outcome", answered)
    runs = F.when(~F.col("is_single"), _all_pieces())
    answers = ends.withColumn("is_single", _is_single()).withColumn("pieces", runs)
    only_item = _only_item()
    return answers.select(
        *KEY,
        "client_id",
        "topic",
        "session",
        "host",
        "epoch",
        "asked",
        F.col("first_id").alias("sent_id"),
        "outcome",
        "invoke_ns",
        "end_ns",
        "digests",
        "unsaid",
        F.coalesce("handed_apart", F.lit(False)).alias("handed_apart"),
        "asked_topic",
        F.coalesce(_is_denied(), F.lit(False)).alias("is_denied"),
        F.coalesce(F.col("error") == NO_ROOM, F.lit(False)).alias("is_full"),
        F.when(_is_refused(), F.col("error")).alias("refused_as"),
        _is_excessive().alias("is_excessive"),
        "tells_of_purge",
        F.when(F.col("tells_of_purge"), F.col("error")).alias("gone_as"),
        "is_single",
        F.when(F.col("is_single"), only_item["producer"]).alias("producer"),
        F.when(F.col("is_single"), only_item["shift"]).alias("shift"),
        "pieces",
        _of_pieces("first", F.array_min).alias("first"),
        _of_pieces("last", F.array_max).alias("last"),
        _is_plain().alias("is_plain"),
    )


def _is_refused() -> Column:
    return (F.col("outcome") == "fail") & F.col("error").isin(*REFUSALS)


def _is_denied() -> Column:
    return (F.col("outcome") == "fail") & F.col("error").isin(*DENIALS)


def _is_excessive() -> Column:
    return ~F.col("tells_of_purge") & F.coalesce(_brought() > F.col("max_count"), F.lit(False))


def _brought() -> Column:
    """Return how many publications came."""
    total = F.aggregate(
        "pieces",
        F.lit(0).cast("bigint"),
        lambda sum_, piece: sum_ + piece["last"] - piece["first"] + 1,
    )
    return F.when(F.col("is_single"), F.get("items", F.lit(0))["count"]).otherwise(total)


def _of_pieces(name: str, least_or_most: Callable[[Column], Column]) -> Column:
    many = least_or_most(F.transform("pieces", lambda piece: piece[name]))
    return F.when(F.col("is_single"), _only_item()[name]).otherwise(many)


def _is_plain() -> Column:
    pieces, size = F.col("pieces"), F.size("pieces")
    sound = F.forall(pieces, lambda piece: piece["reason"].isNull())
    goes_on = F.zip_with(
        F.slice(pieces, 1, F.greatest(size - 1, F.lit(0))),
        F.slice(pieces, 2, F.greatest(size - 1, F.lit(0))),
        lambda left, right: right["first"] == left["last"] + 1,
    )
    forward = F.forall(pieces, lambda piece: piece["first"] <= piece["last"])
    whole = sound & forward & ((size < 2) | F.forall(goes_on, lambda one: one))
    return F.when(F.col("is_single"), F.get("items", F.lit(0))["count"] > 0).otherwise(whole)


def with_had_ids(answers: DataFrame, acts: DataFrame) -> DataFrame:
    """Add `had_id`: the highest id that the same session was given before; and `due_id`: the same
    since its client last left the topic. A GET that was under way when it left has none.
    """
    if is_never_any(answers):
        nothing = F.lit(None).cast("bigint")
        return answers.withColumns({"had_id": nothing, "due_id": nothing})
    left = (
        acts.where(F.col("f") == "unsub")
        .groupBy("run_id", "client_id", "topic", "at")
        .agg(F.collect_set("from_ns").alias("left_ns"))
    )

    def times_before(moment: str) -> Column:
        return F.coalesce(F.size(F.filter("left_ns", lambda ns: ns < F.col(moment))), F.lit(0))

    rows = (
        answers.select(*answers.columns, one_host())
        .join(F.broadcast(left), ["run_id", "client_id", "topic", "at"], "left")
        .withColumn("era", times_before("invoke_ns"))
        .withColumn("last_era", times_before("end_ns"))
    )
    with_had = _with_highest_before(rows, SESSION, "had_id")
    with_due = _with_highest_before(with_had, (*SESSION, "era"), "due_id")
    due_id = F.when(F.col("era") == F.col("last_era"), F.col("due_id"))
    return with_due.withColumn("due_id", due_id).select(*answers.columns, "had_id", "due_id")


def _with_highest_before(answers: DataFrame, keys: Sequence[str], name: str) -> DataFrame:
    """Add `name`: the greatest `last` among the rows of the same `keys` with a lower op_id."""
    rows = answers.withColumn("bucket", intervals.bucket_of(F.col("op_id")))
    prior = intervals.highest_in_buckets_before(rows, keys, prior=F.col("last"))
    had_id = F.greatest(intervals.highest_before(keys, "op_id", F.col("last")), "prior")
    renamed = prior.withColumnsRenamed({key: f"prior_{key}" for key in (*keys, "bucket")})
    same = [F.col(key).eqNullSafe(F.col(f"prior_{key}")) for key in (*keys, "bucket")]
    return rows.join(renamed, same, "left").withColumn(name, had_id).select(*answers.columns, name)


def deliveries_of(answers: DataFrame, several: DataFrame) -> DataFrame:
    """Return `deliveries`. `place` counts within the answer; a corrupt payload has a `reason`.

    Columns of `answers` stay, such as `is_plain`: that of the whole answer. `is_nameless`: recorded
    by an application, or purged.
    """
    single = answers.where(F.col("is_single")).select(
        *_of_answer(answers),
        F.lit(False).alias("is_nameless"),
        *("first", "last", "producer", "shift"),
        F.lit(0).alias("place"),
        F.lit(None).cast("string").alias("reason"),
    )
    return single if is_never_any(several) else single.unionByName(several)


def several_of(answers: DataFrame) -> DataFrame:
    """Return `several`, with the columns of `deliveries`."""
    of_answer = _of_answer(answers)
    rows = answers.where(~F.col("is_single")).select(
        *of_answer,
        (F.col("digests").isNotNull() | F.col("tells_of_purge")).alias("is_nameless"),
        F.explode("pieces").alias("piece"),
    )
    return rows.select(*of_answer, "is_nameless", "piece.*")


def _of_answer(answers: DataFrame) -> list[str]:
    """Return the columns that each of an answer's runs has as well."""
    of_whole = ("first", "last", "outcome", "digests", *OF_RUNS)
    return [name for name in answers.columns if name not in of_whole]


def handlings_of(events: DataFrame) -> DataFrame:
    """Return `handlings`. An `ack` has no `first` but of what is handed over at most once."""
    return events.where(F.col("f").isin(*HANDLINGS)).select(
        *KEY,
        "f",
        "client_id",
        "topic",
        "session",
        one_host(),
        "t_ns",
        F.col("first_id").alias("first"),
        F.col("last_id").alias("last"),
        "cursor",
        F.when(F.col("f") == "hand", F.col("first_id") + F.coalesce("redelivered", F.lit(0))).alias(
            "unmarked"
        ),
    )


def controls_of(events: DataFrame) -> DataFrame:
    """Return `controls`. `start_id`: only later ids come; `cursor`: where the broker has it;
    `start`: where it was to begin, if it says so.
    """
    columns = ("client_id", "session", "topic", "host", "epoch", "outcome", "invoke_ns", "end_ns")
    answered = (F.col("last_id").alias("start_id"), "resumed", "attempt", "cursor")
    made = [
        joined(events, f).select(*KEY, F.lit(f).alias("f"), *columns, *answered)
        for f in ("sub", "unsub")
    ]
    said = events.where((F.col("f") == "sub") & (F.col("type") == "invoke"))
    starts = said.where(F.col("start").isNotNull()).select(*KEY, "start")
    return made[0].unionByName(made[1]).join(F.broadcast(starts), list(KEY), "left")


def subscriptions_of(controls: DataFrame) -> DataFrame:
    """Return `subscriptions`. An UNSUB that may have happened ends one; a repeated SUB does not."""
    subs = controls.where((F.col("f") == "sub") & (F.col("outcome") == "ok"))
    unsubs = controls.where((F.col("f") == "unsub") & (F.col("outcome") != "fail"))
    steps = _steps(subs, is_end=False).unionByName(_steps(unsubs, is_end=True))
    owner = ("run_id", "client_id", "topic")
    # A client's control requests are few, so this window is bounded by its nature.
    before = (
        W.partitionBy(*owner).orderBy("invoke_ns", "op_id").rowsBetween(W.unboundedPreceding, -1)
    )
    ends_before = F.coalesce(F.sum(F.col("is_end").cast("int")).over(before), F.lit(0))
    step = F.struct(
        "invoke_ns", "op_id", operation().alias("made_by"), "start_id", "begun_ns", "host"
    )
    return (
        steps.withColumn("era", ends_before)
        .groupBy(*owner, "era")
        .agg(F.min(F.when(~F.col("is_end"), step)).alias("first"), F.max("is_end").alias("ended"))
        .where(F.col("first").isNotNull())
        .select(*owner, "first.start_id", "first.begun_ns", "first.host", "first.made_by", "ended")
    )


def drains_of(events: DataFrame) -> DataFrame:
    """Return `drains`: (run_id, client_id, topic), once each."""
    drained = (F.col("f") == "phase") & (F.col("phase") == "drained")
    return events.where(drained).select("run_id", "client_id", "topic").distinct()


def _drained_rows(asides: DataFrame) -> DataFrame:
    drained = (F.col("f") == "phase") & (F.col("phase") == "drained")
    columns = ("run_id", "client_id", "topic", "t_ns", "last_id")
    return asides.where(drained).select(*columns, one_host())


def held_of(truth: DataFrame) -> DataFrame:
    """Return `held`: what nodes hold under an id."""
    runs = truth.where((F.col("kind") == "held") & (F.col("first_id") > 0)).select(
        "run_id",
        "topic",
        "producer",
        (F.col("first_counter") - F.col("first_id")).alias("shift"),
        F.col("first_id").alias("first"),
        (F.col("first_id") + F.col("count") - 1).alias("last"),
    )
    return intervals.merged(intervals.split(runs), PLACE)


def journaled_of(truth: DataFrame) -> DataFrame:
    """Return `journaled`."""
    no_id = F.coalesce(F.col("first_id"), F.lit(0)) <= 0
    runs = truth.where((F.col("kind") == "held") & no_id).select(
        *PRODUCER,
        F.col("first_counter").alias("first"),
        (F.col("first_counter") + F.col("count") - 1).alias("last"),
    )
    return intervals.merged(intervals.split(runs), PRODUCER)


def ends_of(tallies: DataFrame) -> DataFrame:
    """Return `ends`."""
    return tallies.groupBy("run_id").agg(F.max("last_ns").alias("end_ns"))


def applications_of(puts: DataFrame, gets: DataFrame, named: str | None) -> DataFrame:
    """Return `applications`: (run_id, is_application). `named`: one of which run.json says so."""
    found = [table.where(F.col("digests").isNotNull()).select("run_id") for table in (puts, gets)]
    runs = found[0].unionByName(found[1])
    if named is not None:  # who works in groups alone writes no digests
        runs = puts.sparkSession.range(1).select(F.lit(named).alias("run_id"))
    return runs.distinct().withColumn("is_application", F.lit(True))


def with_application(rows: DataFrame, tables: Tables) -> DataFrame:
    """Add `is_application`: whether the row's run was recorded by an application."""
    named = rows.join(F.broadcast(tables.applications), "run_id", "left")
    return named.withColumn("is_application", F.coalesce("is_application", F.lit(False)))


def ticks_of(acks: DataFrame) -> DataFrame:
    """Return `ticks`: (run_id, first_ns, last_ns). Silences that matter are longer than one.

    `acks`: (run_id, end_ns) of the PUTs that were acknowledged.
    """
    return (
        acks.groupBy("run_id", F.floor(F.col("end_ns") / TICK_NS).alias("tick"))
        .agg(F.min("end_ns").alias("first_ns"), F.max("end_ns").alias("last_ns"))
        .drop("tick")
    )


def leaders_of(tallies: DataFrame) -> DataFrame:
    """Return `leaders`: (run_id, term, node, seen), `seen` the smallest operation it answered.

    An acknowledgment bears the name and the term of the node that made it, which it makes while it
    leads; a refusal may come from any node, and name whom that one takes for the leader.
    """
    answered = F.col("node").isNotNull() & F.col("term").isNotNull()
    return (
        tallies.where(answered & F.col("answered_by").isNotNull())
        .groupBy("run_id", "term", "node")
        .agg(F.min(operation(op_id="answered_by")).alias("seen"))
    )


def _acknowledged_places(puts: DataFrame) -> DataFrame:
    runs = acknowledged_runs(puts).select(*PLACE, "first", "last")
    return intervals.split(runs).select(*PLACE, "bucket", "first", "last")


def _unclear_buckets(doubts: Doubts) -> DataFrame:
    """Return the buckets in which a bucket itself, a life, or a time line is in doubt."""
    tables = (doubts.buckets, doubts.watches, doubts.timelines)
    named = (table.select(*TOPIC_BUCKET) for table in tables)
    return reduce(DataFrame.unionByName, named).distinct()


def _unclear_acks(puts: DataFrame, doubts: Doubts) -> DataFrame:
    runs = acknowledged_runs(puts).select(*KEY, *PLACE[1:], "host", "first", "last", "end_ns")
    return only(intervals.split(runs), _unclear_buckets(doubts), TOPIC_BUCKET)


def _unclear_given(deliveries: DataFrame, doubts: Doubts) -> DataFrame:
    times = ("host", "invoke_ns", "end_ns")
    runs = deliveries.select(*KEY, "client_id", *PLACE[1:], "first", "last", *times)
    return only(intervals.split(runs), _unclear_buckets(doubts), TOPIC_BUCKET)


def _seen_places(acks: DataFrame, given: DataFrame, doubts: Doubts) -> DataFrame:
    columns = (*PLACE, "bucket", "first", "last")
    named = given.where(F.col("producer").isNotNull())
    seen = acks.select(*columns).unionByName(named.select(*columns))
    return intervals.merged(only(seen, doubts.buckets, TOPIC_BUCKET), PLACE)


def _tried(
    puts: DataFrame,
    unclear: DataFrame,
    out_of_time: DataFrame,
    journaled: DataFrame,
    unsaid: DataFrame,
) -> DataFrame:
    columns = ("bucket", "first", "last", "outcome", "first_id", "duplicate", "up")
    own = tries_of_puts(puts).select(*(*KEY, *PRODUCER[1:], *columns, "host", "invoke_ns"))
    where = (*PRODUCER, "bucket")
    named = (
        counters_of_places(unclear),
        counters_of_places(out_of_time),
        journaled,
        counters_of_puts(unsaid),
    )
    return only(own, reduce(DataFrame.unionByName, (one.select(*where) for one in named)), where)


def sightings_of(puts: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return every run of ids that an operation saw a producer's publications under, unmerged."""
    columns = (*KEY, "topic", "producer", "shift", "first", "last")
    acknowledged = acknowledged_runs(puts).select(*columns)
    delivered = deliveries.where(F.col("producer").isNotNull()).select(*columns)
    return acknowledged.unionByName(delivered)


def contents_of(puts: DataFrame, gets: DataFrame) -> DataFrame:
    """Return (run_id, process, op_id, topic, id, digest): what applications saw under which id.

    A row a publication and sighting: digests can't be folded into runs.
    """
    acknowledged = acknowledged_runs(puts).where(F.col("digests").isNotNull())
    delivered = gets.where(F.col("digests").isNotNull())
    columns = (*KEY, "topic", "first", "digests")
    each = F.regexp_extract_all("digests", F.lit(f".{{{DIGEST_DIGITS}}}"), F.lit(0))
    return (
        acknowledged.select(*columns)
        .unionByName(delivered.select(*columns))
        .select(*KEY, "topic", "first", F.posexplode(each).alias("place", "digest"))
        .select(*KEY, "topic", (F.col("first") + F.col("place")).alias("id"), "digest")
    )


def seen_by(rows: DataFrame, tables: Tables, id_: str, counter: str, name: str) -> DataFrame:
    """Add `name`: the smallest operation that saw the row's publication under the row's id; null if
    only a node has it.

    `rows` has run_id, topic, producer and the columns called `id_` and `counter`. For evidence:
    few rows, joined back to the operations only now.
    """
    if is_never_any(rows) or rows.isEmpty():  # mostly: then no PUT or GET is read for it
        return none_of(rows).withColumn(name, F.lit(None).cast(OPERATION))
    keyed = rows.withColumn("bucket", intervals.bucket_of(F.col(id_))).withColumn(
        "shift", F.col(counter) - F.col(id_)
    )
    sightings = intervals.split(sightings_of(tables.puts, tables.deliveries)).select(
        *PLACE, "bucket", "first", "last", operation().alias("seen")
    )
    inside = F.col(id_).between(F.col("first"), F.col("last"))
    return (
        keyed.join(only(sightings, keyed, TOPIC_BUCKET), [*PLACE, "bucket"], "left")
        .groupBy(*rows.columns)
        .agg(F.min(F.when(inside, F.col("seen"))).alias(name))
    )


def _steps(operations: DataFrame, is_end: bool) -> DataFrame:
    nothing = F.lit(None).cast("bigint")
    return operations.select(
        *KEY,
        "client_id",
        "topic",
        "host",
        "invoke_ns",
        F.lit(is_end).alias("is_end"),
        (nothing if is_end else F.col("start_id")).alias("start_id"),
        (nothing if is_end else F.col("end_ns")).alias("begun_ns"),
    )


def _is_single() -> Column:
    """Return whether an answer is one run and nothing else: most are, and need no loops."""
    size = F.coalesce(F.size("items"), F.lit(0))
    names = ("corrupt", "letters", "delayed")
    others = reduce(or_, (F.coalesce(F.size(name), F.lit(0)) > 0 for name in names))
    return (size == 1) & ~others & F.col("digests").isNull()


def _only_item() -> Column:
    return _good_piece(F.get("items", F.lit(0)), F.lit(0))


def _all_pieces() -> Column:
    nobodys = _letter_pieces(), _delayed_pieces()
    return F.concat(_good_pieces(), _bad_pieces(), *nobodys, _nameless_pieces())


def _good_piece(item: Column, place: Column) -> Column:
    return F.struct(
        item["first_id"].alias("first"),
        (item["first_id"] + item["count"] - 1).alias("last"),
        item["producer"].alias("producer"),
        (item["counter"] - item["first_id"]).alias("shift"),
        place.alias("place"),
        F.lit(None).cast("string").alias("reason"),
    )


def _good_pieces() -> Column:
    return F.coalesce(F.transform("items", _good_piece), F.array())


def _bad_pieces() -> Column:
    def piece(bad: Column, place: Column) -> Column:
        return F.struct(
            bad["id"].alias("first"),
            bad["id"].alias("last"),
            F.lit(None).cast("string").alias("producer"),
            F.lit(None).cast("bigint").alias("shift"),
            (F.size("items") + place).alias("place"),
            bad["reason"].alias("reason"),
        )

    return F.coalesce(F.transform("corrupt", piece), F.array())


def _letter_pieces() -> Column:
    def piece(letter: Column, place: Column) -> Column:
        return F.struct(
            letter["id"].alias("first"),
            letter["id"].alias("last"),
            F.lit(None).cast("string").alias("producer"),
            F.lit(None).cast("bigint").alias("shift"),
            place.alias("place"),
            F.lit(LETTER).alias("reason"),
        )

    # Of an application's the digests say which ids came.
    letters = F.when(F.col("digests").isNull(), F.transform("letters", piece))
    return F.coalesce(letters, F.array())


def _delayed_pieces() -> Column:
    """Return what was put with a delay: its ids are not those of its PUT's answer."""

    def piece(item: Column, place: Column) -> Column:
        return F.struct(
            item["first_id"].alias("first"),
            (item["first_id"] + item["count"] - 1).alias("last"),
            F.lit(None).cast("string").alias("producer"),
            F.lit(None).cast("bigint").alias("shift"),
            place.alias("place"),
            F.lit(LETTER).alias("reason"),
        )

    delayed = F.when(F.col("digests").isNull(), F.transform("delayed", piece))
    return F.coalesce(delayed, F.array())


def _nameless_pieces() -> Column:
    piece = F.struct(
        F.col("first_id").alias("first"),
        F.col("last_id").alias("last"),
        F.lit(None).cast("string").alias("producer"),
        F.lit(None).cast("bigint").alias("shift"),
        F.lit(0).alias("place"),
        F.lit(None).cast("string").alias("reason"),
    )
    is_run = F.col("tells_of_purge") | (F.length("digests") > 0)
    return F.when(is_run, F.array(piece)).otherwise(F.array())


def successes_of(tables: Tables) -> DataFrame:
    """Return every operation that succeeded, and the feature level that it `needed`."""
    nothing = F.lit(None).cast("string").alias("start")
    puts = tables.puts.withColumnRenamed("producer", "client_id").select(
        "*", F.lit("put").alias("f"), nothing
    )
    gets = tables.gets.select("*", F.lit("get").alias("f"), nothing)
    columns = (*KEY, "client_id", "session", "topic", "f", "epoch", "invoke_ns", "end_ns")
    no = F.lit(False)
    parts = [
        table.where(F.col("outcome") == "ok").select(
            *columns, one_host(), needed_level(expires).alias("needed")
        )
        for table, expires in (
            (puts, F.coalesce(F.size("expires") > 0, no)),
            (gets, no),
            (tables.controls, no),
            (tables.worked, no),
        )
    ]
    return reduce(DataFrame.unionByName, parts)


def needed_level(expires: Column) -> Column:
    """Return which feature level an operation surely needs, 0: any. `expires`: some of it does."""
    f, topic = F.col("f"), F.col("topic")
    is_of_five = (f == "put") & (expires | topic.endswith(LANE))
    begins = F.col("start").isNotNull() | topic.rlike("[*>]")
    is_of_four = (f == "take") | ((f == "sub") & begins)
    return F.when(is_of_five, 5).when(is_of_four, 4).otherwise(0)
