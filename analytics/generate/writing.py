"""Writes a synthetic history into a run's directory, with the answers. Makes up nothing itself.

`DIR/history.parquet` (or `DIR/history/*.jsonl`), `DIR/truth/*.jsonl`, `DIR/run.json`, sealed, and
`DIR/planted.json`: `expected` {check: [[topic, id, word], …]}, and the true counts of what is only
observed.
"""

import json
import shutil
import uuid
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.common.schema import EVENT, PLAIN
from analytics.generate import operations as ops
from analytics.generate.numbers import Numbers, numbers_of, renumbered
from analytics.generate.plants import TOPICLESS, Operation, PlantedRow, Scene, victims_of
from analytics.generate.remains import truths
from analytics.generate.scripts import EVERY_PLANT
from analytics.generate.shape import BadShape, Shape
from analytics.intake.files import PARQUET
from analytics.intake.seal import seal

PUBLICATIONS_A_TASK: Final = 250_000  # half a million events of a GET and a PUT: tens of MB
COPY_BYTES: Final = 8 * 1024 * 1024


def generate(
    spark: SparkSession,
    directory: Path,
    shape: Shape,
    wanted: Mapping[str, int],
    as_jsonl: bool = False,
) -> Mapping[str, Any]:
    """Write the history of `shape` with the `wanted` violations; return what planted.json says.

    Raises BadShape when the directory holds a run already, or the history is too short.
    """
    if (directory / "run.json").exists():
        raise BadShape(f"there is a run in {directory} already")
    run_id = str(uuid.UUID(int=shape.seed << 64 | shape.operations))
    scene, expected, numbers = _planted(spark, shape, wanted)
    singles = spark.createDataFrame(_single_events(shape, scene, run_id, numbers), EVENT)
    clients = _clients_events(spark, shape, scene, run_id, numbers)
    events = singles.unionByName(clients, allowMissingColumns=True)
    directory.mkdir(parents=True, exist_ok=True)
    if as_jsonl:
        _write_lines(events, directory)
    else:
        events.write.options(compression="zstd", **PLAIN).parquet(str(directory / PARQUET))
    (directory / "truth").mkdir()
    for node, rows in truths(shape, scene).items():
        with (directory / "truth" / f"{node}.jsonl").open("w") as file:
            file.writelines(
                json.dumps({"run_id": run_id, "node": node, **row}) + "\n" for row in rows
            )
    answers = {"expected": expected, **_counts(shape, scene)}
    (directory / "planted.json").write_text(json.dumps(answers, indent=2) + "\n")
    about = {"run_id": run_id, "seed": shape.seed, "experiment": "generated"}
    about |= {"nodes": ops.node_names(), "truth": {"nodes": ops.node_names()}}
    about |= {"violations": wanted}
    (directory / "run.json").write_text(json.dumps(about, indent=2) + "\n")
    seal(directory)
    return answers


def _planted(
    spark: SparkSession, shape: Shape, wanted: Mapping[str, int]
) -> tuple[Scene, dict[str, list[list[Any]]], Numbers]:
    """Return the changed operations, [topic, id, word] of every evidence by check, and how
    operations' numbers move.
    """
    victims = victims_of(shape, wanted, EVERY_PLANT)
    touched = frozenset(number for _, victim in victims for number in victim.numbers())
    scene = Scene(shape, touched)
    near = spark.createDataFrame([(number,) for number in sorted(touched)], "n BIGINT")
    for row in ops.puts(near, shape).collect():
        scene.puts[row.n] = row.asDict()
    for row in ops.gets(near, shape, F.lit(0)).collect():
        get = row.asDict() | {"items": [tuple(item) for item in row["items"]]}
        scene.gets[row.n, _subscriber(get)] = get
    before = [_key(one) for one in scene.operations()]
    found: list[PlantedRow] = []
    for kind, victim in victims:
        plant = EVERY_PLANT[kind]
        id_ = plant.act(scene, victim)
        is_topicless = plant.check in TOPICLESS and victim.place not in scene.topics
        everyone_s = ops.topic_of(shape.place_of(victim.n)["topic"])
        topic = None if is_topicless else scene.topics.get(victim.place, everyone_s)
        one = PlantedRow(plant.check, topic, id_, plant.word)
        if not is_topicless or one not in found:  # a term is found once
            found.append(one)
    names = {ops.name_of("subscriber", one, shape)[0] for one in range(shape.subscribers)}
    ours = (one for one in scene.operations() if one["process"] in names)
    for own in ours:
        restarts = [n for subscriber, n in scene.restarts if subscriber == _subscriber(own)]
        behind = own["op_id"] / 2 - shape.topics - 1  # which GET, of what is none
        number = own["n"] if own["f"] == "get" else behind
        own["session"] = 1 + sum(number > n for n in restarts)
    roles = (("producer", shape.producers), ("subscriber", shape.subscribers))
    clients = (ops.name_of(role, one, shape)[0] for role, many in roles for one in range(many))
    numbers = numbers_of(before, map(_key, scene.operations()), clients)
    expected: dict[str, list[list[Any]]] = {}
    for check, *evidence in sorted((*found, *scene.besides), key=lambda one: repr(tuple(one))):
        expected.setdefault(check, []).append(evidence)
    return scene, expected, numbers


def _key(operation: Operation) -> tuple[str, int]:
    return operation["process"], operation["op_id"]


def _single_events(
    shape: Shape, scene: Scene, run_id: str, numbers: Numbers
) -> list[dict[str, Any]]:
    """Return the single events; a subscriber's are behind all of its operations, of its last
    session.
    """
    rows, next_numbers, sessions = [], {}, {}
    for index in range(shape.subscribers):
        process, _ = ops.name_of("subscriber", index, shape)
        last = 2 * (shape.topics + shape.publications)
        next_numbers[process] = count(numbers.of(process, last + 1) + 1)
        sessions[process] = 1 + sum(subscriber == index for subscriber, _ in scene.restarts)
    for row in ops.single_events(shape, run_id):
        own = next_numbers.get(row["process"])
        its = {} if own is None else {"op_id": next(own), "session": sessions[row["process"]]}
        rows.append(row | its)
    return rows


def _subscriber(get: Operation) -> int:
    return int(get["process"].rpartition("-")[2])


def _clients_events(
    spark: SparkSession, shape: Shape, scene: Scene, run_id: str, moved: Numbers
) -> DataFrame:
    tasks = max(1, shape.publications // PUBLICATIONS_A_TASK)
    numbers = spark.range(0, shape.publications, 1, tasks).withColumnRenamed("id", "n")
    untouched = numbers.where(~F.col("n").isin(*scene.touched)) if scene.touched else numbers
    after = ((F.col("subscriber") == one) & (F.col("n") > n) for one, n in scene.restarts)
    resumed = sum((one.cast("bigint") for one in after), start=F.lit(0).cast("bigint"))
    schema = ", ".join(f"{name} {kind}" for name, kind in ops.OPERATION)
    changed = [tuple(one[name] for name, _ in ops.OPERATION) for one in scene.operations()]
    operations = (
        ops.subs(spark, shape)
        .unionByName(ops.puts(untouched, shape))
        .unionByName(ops.gets(untouched, shape, resumed))
        .unionByName(spark.createDataFrame(changed, schema))
    )
    most = 2 * (shape.topics + shape.publications) + 1
    if moved.places:
        operations = renumbered(operations, moved, most)
    else:
        operations = operations.withColumn("op_id", F.floor(F.col("op_id") / 2))
    return ops.events(operations, run_id)


def _counts(shape: Shape, scene: Scene) -> dict[str, int]:
    """Return the publications acknowledged, each once, and delivered, each as often as it was."""
    unknown = ops.unknown_count(shape) * len(ops.fault_numbers(shape))
    untouched = shape.publications - len(scene.touched)
    changed = scene.operations()
    stored = [one for one in changed if one["f"] == "put" and one["outcome"] == "ok"]
    confirmed = {
        (one["client_id"], one["topic"], one["counter"] + place)
        for one in stored
        for place in range(one["count"] or 1)
    }
    gets = [one for one in changed if one["f"] == "get"]
    brought = ("items", "corrupt", "delayed", "letters")
    came = [len(one[name] or ()) for one in gets for name in brought]
    leases = [lease for one in changed for lease in one["leases"] or ()]
    came += [last - first + 1 for first, last, _attempt in leases]
    return {
        "acknowledged": untouched - unknown + len(confirmed),
        "delivered": untouched * shape.subscribers + sum(came),
    }


def _write_lines(events: DataFrame, directory: Path) -> None:
    """Write one JSON Lines file a process, as the clients would have written them."""
    parts = directory / "lines"
    # As a recorder would have: by number, and an invoke before its end.
    order = ("process", "op_id", F.col("type") != "invoke")
    ordered = events.repartition("process").sortWithinPartitions(*order)
    line = _line(events).alias("value")
    ordered.select("process", line).write.partitionBy("process").text(str(parts))
    (directory / "history").mkdir()
    for folder in sorted(parts.glob("process=*")):
        process = folder.name.partition("=")[2]
        with (directory / "history" / f"{process}.jsonl").open("wb") as whole:
            for part in sorted(folder.glob("part-*")):
                with part.open("rb") as lines:
                    shutil.copyfileobj(lines, whole, COPY_BYTES)
    shutil.rmtree(parts)


def _line(events: DataFrame) -> Column:
    """Return an event as JSON; arrays of mixed types are put together by hand."""
    arrays = {
        "items": F.transform("items", _mixed),
        "corrupt": F.transform("corrupt", _mixed_bad),
        "letters": F.transform("letters", _mixed_letter),
        "delayed": F.transform("delayed", _mixed),
    }
    plain = F.to_json(F.struct(*(name for name in events.columns if name not in arrays)))
    joined = [
        F.when(
            F.size(name) > 0,
            F.concat(F.lit(f',"{name}":['), F.concat_ws(",", texts), F.lit("]")),
        ).otherwise("")
        for name, texts in arrays.items()
    ]
    return F.concat(F.substring(plain, 1, F.length(plain) - 1), *joined, F.lit("}"))


def _mixed(item: Column) -> Column:
    numbers = [item[name].cast("string") for name in ("first_id", "counter", "count")]
    first_id, counter, count = numbers
    return F.concat(
        F.lit("["), first_id, F.lit(',"'), item["producer"],
        F.lit('",'), counter, F.lit(","), count, F.lit("]"),
    )  # fmt: skip


def _mixed_letter(letter: Column) -> Column:
    id_, from_id = (letter[name].cast("string") for name in ("id", "from_id"))
    return F.concat(
        F.lit("["), id_, F.lit(',"'), letter["topic"], F.lit('","'), letter["group"],
        F.lit('",'), from_id, F.lit("]"),
    )  # fmt: skip


def _mixed_bad(bad: Column) -> Column:
    return F.concat(F.lit("["), bad["id"].cast("string"), F.lit(',"'), bad["reason"], F.lit('"]'))
