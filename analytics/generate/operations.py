"""The operations of a correct cluster's clients, from numbers alone; and operations as events.

An operation is a row with both its ends (`OPERATION`). Everything is a Spark expression over the
publications' numbers: no state, no UDF, no shuffle. No violation here.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.common.schema import BAD_ITEM, ITEM, LETTER
from analytics.generate.shape import Number, Shape

STEP_NS: Final = 100_000  # between two publications: 10,000 a second
LATENCY_NS_MIN: Final = STEP_NS // 4
BEGIN_NS: Final = 1_000_000_000  # the first publication's, after the SUBs
WALL_NS: Final = 1_767_225_600_000_000_000  # wall clock at monotonic 0: 1 January 2026
HOST: Final = "generated"
NODES: Final = 3
FAULTS: Final = 4
TERM_FIRST: Final = 1_000  # of a history: plants have lower ones
PUBLICATIONS_A_FAULT_MIN: Final = 200  # of each producer; shorter histories have no fault

OPERATION: Final = (
    *((name, "STRING") for name in ("process", "client_id", "f", "topic", "outcome", "node")),
    *((name, "BIGINT") for name in ("op_id", "session", "invoke_ns", "end_ns", "term", "n")),
    *((name, "BIGINT") for name in ("counter", "count", "first_id", "asked")),
    ("items", f"ARRAY<{ITEM}>"),
    ("corrupt", f"ARRAY<{BAD_ITEM}>"),
    ("error", "STRING"),
    ("duplicate", "BOOLEAN"),  # of a PUT; null: no
    ("answered", "STRING"),  # the topic that a GET's answer names; null: the one asked for
    ("phase", "STRING"),  # of a single event; null: an operation
    *((name, "BIGINT") for name in ("epoch", "cursor")),
    ("resumed", "BOOLEAN"),
    ("times", "ARRAY<ARRAY<BIGINT>>"),  # of a GET's answer; null: it says none
    ("group", "STRING"),  # of what is about one
    *((name, "BIGINT") for name in ("number", "max_attempts")),  # of its invoke
    ("acks", "ARRAY<ARRAY<BIGINT>>"),
    *((name, "BIGINT") for name in ("token", "left_ms")),  # of a TAKE's answer
    *((name, "ARRAY<ARRAY<BIGINT>>") for name in ("leases", "lost")),
    ("letters", f"ARRAY<{LETTER}>"),
    ("ordered_by_key", "BOOLEAN"),  # of a group's invoke
    ("keyed", "ARRAY<BIGINT>"),  # of a TAKE's answer
    ("keys", "STRING"),
    *((name, "STRING") for name in ("start", "dead_letter")),  # of an invoke
    *((name, "ARRAY<ARRAY<BIGINT>>") for name in ("naks", "extends")),
    ("most", "BIGINT"),  # `max_count`, where it is not one of a GET, nine of a TAKE
    ("delay_ms", "BIGINT"),  # of a PUT to a lane
    ("delayed", f"ARRAY<{ITEM}>"),  # of a GET's answer
    ("marked", "ARRAY<BIGINT>"),
    ("properties", "STRING"),
    ("last_id", "BIGINT"),  # where it does not follow from the rest: of an end, or a single event
    ("handed_apart", "BOOLEAN"),  # of a GET's answer
    ("expires_ms", "BIGINT"),  # of a PUT
    ("compacted", "BOOLEAN"),  # of a group's answer: its topic is
)
OF_INVOKE: Final = (
    *("group", "number", "max_attempts", "acks", "ordered_by_key", "start", "dead_letter"),
    *("naks", "extends"),
)
OF_ANSWER: Final = (
    *("resumed", "times", "token", "left_ms", "leases", "lost", "letters"),
    *("keyed", "keys", "marked", "properties", "handed_apart", "compacted"),
)


def fault_numbers(shape: Shape) -> list[int]:
    """Return the publications at which the leader was killed."""
    if shape.publications < PUBLICATIONS_A_FAULT_MIN * shape.producers:
        return []
    return [shape.publications * (place + 1) // (FAULTS + 1) for place in range(FAULTS)]


def unknown_count(shape: Shape) -> int:
    """Return how many PUTs from a fault on are of unknown outcome (all were stored)."""
    return 2 * shape.producers


def is_unknown(shape: Shape, number: int) -> bool:
    """Return whether the PUT of publication `number` was cut off by a fault."""
    return any(0 <= number - fault < unknown_count(shape) for fault in fault_numbers(shape))


def time_ns(number: Number) -> Number:
    """Return when publication `number` is put."""
    return number * STEP_NS + BEGIN_NS


def delay_ns(shape: Shape) -> int:
    """Return how long after its PUT's invoke a publication is fetched: its ACK came before."""
    return shape.producers * STEP_NS


def acknowledged_ns(number: Number, shape: Shape) -> Number:
    """Return when the PUT of publication `number` is answered: before anybody fetches it."""
    spread_ns = delay_ns(shape) * 3 // 4 - LATENCY_NS_MIN
    return time_ns(number) + LATENCY_NS_MIN + shape.scrambled(number) % spread_ns


def end_ns(shape: Shape) -> int:
    """Return when all has been delivered."""
    return int(time_ns(shape.publications)) + delay_ns(shape) + STEP_NS


def name_of(role: str, index: int, shape: Shape) -> tuple[str, str]:
    """Return (process, client id) of a client."""
    digest = hashlib.blake2b(f"{shape.seed} {role} {index}".encode(), digest_size=16)
    return f"{role}-{index:04}", digest.hexdigest()


def topic_of(index: Number) -> Number:
    """Return a topic's name."""
    if isinstance(index, int):
        return f"topic-{index}"
    return F.concat(F.lit("topic-"), index.cast("string"))


def node_names() -> list[str]:
    """Return the nodes' names."""
    return [f"n{index + 1}" for index in range(NODES)]


def leader(term: Number) -> Number:
    """Return the node that leads in `term`."""
    if isinstance(term, int):
        return f"n{term % NODES + 1}"
    return F.concat(F.lit("n"), (term % NODES + 1).cast("string"))


def puts(numbers: DataFrame, shape: Shape) -> DataFrame:
    """Return the PUT of each publication in `numbers` (column `n`)."""
    placed, place, n = _placed(numbers, shape)
    unknown = _any(
        n.between(fault, fault + unknown_count(shape) - 1) for fault in fault_numbers(shape)
    )
    made = placed.select(
        *_client("producer", place["producer"], shape.producers, shape),
        ((place["put_place"] + 1) * 2).alias("op_id"),
        F.lit(1).cast("bigint").alias("session"),
        F.lit("put").alias("f"),
        topic_of(place["topic"]).alias("topic"),
        time_ns(n).alias("invoke_ns"),
        acknowledged_ns(n, shape).alias("end_ns"),
        F.when(unknown, "info").otherwise("ok").alias("outcome"),
        *_leader(n, shape),
        place["counter"].alias("counter"),
        F.when(~unknown, place["id"]).alias("first_id"),
        F.when(unknown, "timeout").alias("error"),
        n.alias("n"),
    )
    return typed(made)


def gets(numbers: DataFrame, shape: Shape, resumed: Column) -> DataFrame:
    """Return every subscriber's GET of each publication in `numbers` (column `n`).

    `resumed`: how often the `subscriber` (index) had been restarted before publication `n`.
    """
    placed, place, n = _placed(numbers, shape)
    subscriber = F.col("subscriber")
    producers = _names("producer", shape.producers, shape, 1)
    item = F.struct(
        place["id"].alias("first_id"),
        F.get(producers, place["producer"].cast("int")).alias("producer"),
        place["counter"].alias("counter"),
        F.lit(1).cast("bigint").alias("count"),
    )
    begun_ns = time_ns(n) + delay_ns(shape)
    everyone = F.explode(F.sequence(F.lit(0), F.lit(shape.subscribers - 1)))
    made = placed.withColumn("subscriber", everyone).select(
        *_client("subscriber", subscriber, shape.subscribers, shape),
        ((n + shape.topics + 1) * 2).alias("op_id"),
        (resumed + 1).cast("bigint").alias("session"),
        F.lit("get").alias("f"),
        topic_of(place["topic"]).alias("topic"),
        begun_ns.alias("invoke_ns"),
        (begun_ns + STEP_NS // 4).alias("end_ns"),
        F.lit("ok").alias("outcome"),
        *_leader(n, shape),
        place["id"].alias("first_id"),
        (place["id"] - 1).alias("asked"),
        F.array(item).alias("items"),
        n.alias("n"),
    )
    return typed(made)


def subs(spark: SparkSession, shape: Shape) -> DataFrame:
    """Return every subscriber's SUB to every topic, before the first publication."""
    pairs = spark.range(0, shape.subscribers * shape.topics, 1, 1)
    topic, subscriber = F.col("id") % shape.topics, F.floor(F.col("id") / shape.topics)
    begun_ns = BEGIN_NS // 2 + topic * 1_000
    known = {
        "op_id": (topic + 1) * 2,
        "session": F.lit(1),
        "f": F.lit("sub"),
        "topic": topic_of(topic),
        "invoke_ns": begun_ns,
        "end_ns": begun_ns + 500,
        "outcome": F.lit("ok"),
        "node": F.lit(leader(TERM_FIRST)),
        "term": F.lit(TERM_FIRST),
    }
    client = _client("subscriber", subscriber, shape.subscribers, shape)
    return typed(pairs.select(*client, *(value.alias(name) for name, value in known.items())))


def typed(rows: DataFrame) -> DataFrame:
    """Return `rows` with the columns of an operation; what they lack is null."""
    return rows.select(
        *(
            (F.col(name) if name in rows.columns else F.lit(None)).cast(kind).alias(name)
            for name, kind in OPERATION
        )
    )


def events(operations: DataFrame, run_id: str) -> DataFrame:
    """Return the two events of each operation, and single ones, with what a client records."""
    f, is_single = F.col("f"), F.col("phase").isNotNull()
    is_end = (F.col("type") != "invoke") & ~is_single
    put, ok = f == "put", is_end & (F.col("outcome") == "ok")
    brought = ("items", "corrupt", "delayed")
    counted = (*brought, "letters")
    came = sum((F.size(F.coalesce(name, F.array())) for name in counted), start=F.lit(0))
    delivered, took = ok & (f == "get"), ok & (f == "take")
    both = F.array(F.lit("invoke"), F.col("outcome"))
    types = F.when(is_single, F.array("outcome")).otherwise(both)
    t_ns = F.when(is_end, F.col("end_ns")).otherwise(F.col("invoke_ns"))
    some = delivered & (came > 0)
    is_told = (is_end | is_single) & F.col("last_id").isNotNull()
    last_id = (
        F.when(is_told, F.col("last_id"))
        .when(~is_end & (f == "get"), F.col("asked"))
        .when(some, F.col("first_id") + came - 1)
        .when(ok & ~f.isin("get", "take"), F.coalesce("first_id", F.lit(0)))
        .when(f.isin("purge", "purged"), F.col("first_id"))
        .cast("bigint")
    )
    return operations.withColumn("type", F.explode(types)).select(
        F.lit(run_id).alias("run_id"),
        *("process", "client_id", "op_id", "session", "type", "f"),
        F.when(is_end, F.coalesce("answered", "topic")).otherwise(F.col("topic")).alias("topic"),
        t_ns.alias("t_ns"),
        (t_ns + WALL_NS).alias("wall_ns"),
        F.lit(HOST).alias("host"),
        F.when(ok, F.col("node")).alias("node"),
        F.when(ok, F.col("term")).alias("term"),
        F.when(put, F.col("counter")).alias("counter"),
        F.when(put, F.coalesce("count", F.lit(1)))
        .when(delivered, came)
        .when(took, _leased())
        .cast("bigint")
        .alias("count"),
        F.when(ok & put | some | is_told, F.col("first_id")).alias("first_id"),
        last_id.alias("last_id"),
        *(
            F.when((delivered | took) & (F.size(name) > 0), F.col(name)).alias(name)
            for name in brought
        ),
        F.when(put & ~is_end & F.col("delay_ms").isNotNull(), _runs("counter", "delay_ms")).alias(
            "delays"
        ),
        F.when(
            put & F.col("expires_ms").isNotNull(),
            F.when(~is_end, _runs("counter", "expires_ms")).when(
                ok, _runs("first_id", "expires_ms")
            ),
        ).alias("expires"),
        F.when(is_end, F.col("error")).alias("error"),
        F.when(is_end, 1).cast("bigint").alias("attempt"),
        F.when(ok & put, F.coalesce("duplicate", F.lit(False))).alias("duplicate"),
        F.coalesce("phase", F.lit("steady")).alias("phase"),
        F.when(is_end, F.col("invoke_ns")).alias("invoke_ns"),
        F.when(is_end, F.col("asked")).alias("asked"),
        F.when(f == "get", F.coalesce("most", F.lit(1)))
        .when(f == "take", F.coalesce("most", F.lit(9)))
        .cast("bigint")
        .alias("max_count"),
        "epoch",
        F.when(ok | is_single, F.col("cursor")).alias("cursor"),
        *(F.when(~is_end, F.col(name)).alias(name) for name in OF_INVOKE),
        *(F.when(ok, F.col(name)).alias(name) for name in OF_ANSWER),
    )


def _runs(first: str, ms: str) -> Column:
    """Return what is said of all that a PUT has: the first of them, the last, how many ms."""
    return F.array(F.array(first, F.col(first) + F.coalesce("count", F.lit(1)) - 1, ms))


def _leased() -> Column:
    return F.aggregate(
        F.coalesce("leases", F.array()),
        F.lit(0).cast("bigint"),
        lambda total, run: total + run[1] + 1 - run[0],
    )


def single_events(shape: Shape, run_id: str) -> Iterator[dict[str, Any]]:
    """Yield the runner's events (phases, faults) and every subscriber's drained topics."""
    ends_ns = end_ns(shape)
    common = {"run_id": run_id, "host": HOST, "type": "info", "session": 1}
    begin = {**common, "process": "runner", "f": "phase"}
    marks: list[tuple[int, dict[str, Any]]] = [(1, {**begin, "phase": "steady"})]
    for term, number in enumerate(fault_numbers(shape), start=TERM_FIRST):
        detail = {"name": "kill-leader", "targets": [leader(term)]}
        healed = number + unknown_count(shape)
        for action, at in (("inject", number), ("heal", healed)):
            error = json.dumps({**detail, "action": action})
            fault = {**common, "process": "runner", "f": "fault", "error": error}
            marks.append((int(time_ns(at)), fault))
    marks += [(ends_ns, {**begin, "phase": "heal"}), (ends_ns + 1, {**begin, "phase": "drain"})]
    for op_id, (t_ns, row) in enumerate(marks, start=1):
        yield {**row, "op_id": op_id, "t_ns": t_ns, "wall_ns": t_ns + WALL_NS}
    for subscriber in range(shape.subscribers):
        process, client_id = name_of("subscriber", subscriber, shape)
        own = {**common, "process": process, "client_id": client_id, "f": "phase"}
        for topic in range(shape.topics):
            t_ns = ends_ns + 2 + topic
            yield {
                **own,
                "phase": "drained",
                "topic": topic_of(topic),
                "op_id": (shape.publications + shape.topics + 2 + topic) * 2,
                "t_ns": t_ns,
                "wall_ns": t_ns + WALL_NS,
            }


def _placed(numbers: DataFrame, shape: Shape) -> tuple[DataFrame, dict[str, Column], Column]:
    """Return `numbers` with where each publication stands, and those columns by name."""
    place = shape.place_of(F.col("n"))
    placed = numbers.select(
        "n", F.struct(*(at.alias(name) for name, at in place.items())).alias("at")
    )
    return placed, {name: F.col("at")[name] for name in place}, F.col("n")


def _client(role: str, index: Column, count: int, shape: Shape) -> list[Column]:
    place = index.cast("int")
    return [
        F.get(_names(role, count, shape, 0), place).alias("process"),
        F.get(_names(role, count, shape, 1), place).alias("client_id"),
    ]


def _names(role: str, count: int, shape: Shape, which: int) -> Column:
    return F.array(*(F.lit(name_of(role, index, shape)[which]) for index in range(count)))


def _leader(n: Column, shape: Shape) -> list[Column]:
    faults: Sequence[int] = fault_numbers(shape)
    first = F.lit(TERM_FIRST).cast("bigint")
    term = sum(((n >= fault).cast("bigint") for fault in faults), start=first)
    return [leader(term).alias("node"), term.alias("term")]


def _any(conditions: Iterator[Column]) -> Column:
    either = F.lit(False)
    for condition in conditions:
        either = either | condition
    return either
