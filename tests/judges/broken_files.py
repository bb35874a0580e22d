"""Sabotage of files: of the record, of run.json, of what the nodes left.

What lives here: damage of a directory that a legal history was written to, and of the truth. What
must not: rows (broken_rows.py).
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from tests.judges.broken_rows import acknowledged, one
from tests.judges.history import MadeHistory, Row, sealed
from tests.judges.kinds import NoRoom, breaks, damages, hides, need


def files_of(directory: Path, lines_min: int = 1) -> list[Path]:
    """Return the record's files that have so many lines."""
    files = sorted((directory / "history").glob("*.jsonl"))
    return [file for file in files if file.read_bytes().count(b"\n") >= lines_min]


def closed(directory: Path, file: Path) -> bool:
    """Return whether run.json vouches for all of a file."""
    return bool(about(directory)["history"][file.name]["closed"])


def about(directory: Path) -> Any:
    """Return run.json."""
    return json.loads((directory / "run.json").read_bytes())


def say(directory: Path, document: object) -> None:
    """Write run.json."""
    (directory / "run.json").write_text(json.dumps(document) + "\n")


@damages("file-gone", "what run.json names is there")
def file_gone(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    rng.choice(files_of(directory)).unlink()


@damages("file-empty", "a file has as many bytes as run.json says")
def file_empty(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    files = [file for file in files_of(directory) if closed(directory, file)]
    file = one(rng, files)
    file.write_bytes(b"")


@damages("cut-at-a-line", "a file has as many lines as run.json says")
def cut_at_a_line(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    """Cut a closed file at the end of any line.

    A file that is not closed vouches for its first bytes only: what is cut behind them is truly
    unobservable, for its process may have died at any line.
    """
    file = one(rng, [file for file in files_of(directory, 2) if closed(directory, file)])
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: rng.randint(0, len(lines) - 1)]))


@damages("cut-in-a-line", "a file has as many bytes as run.json says: cut anywhere")
def cut_in_a_line(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    file = one(rng, [file for file in files_of(directory) if closed(directory, file)])
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data))])


@damages("grown", "a closed file is not longer than run.json says")
def grown(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    file = one(rng, [file for file in files_of(directory) if closed(directory, file)])
    last = json.loads(file.read_bytes().splitlines()[-1]) if is_whole(file) else None
    if last is None:
        raise NoRoom
    line = {**last, "op_id": 10**6, "f": "phase", "type": "info", "phase": "done"}
    file.write_bytes(file.read_bytes() + json.dumps(line).encode() + b"\n")


def is_whole(file: Path) -> bool:
    """Return whether the last line is an event."""
    try:
        json.loads(file.read_bytes().splitlines()[-1])
    except ValueError:
        return False
    return True


@damages("byte-flipped", "the bytes of a file have the digest that run.json says")
def byte_flipped(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    """One digit of a time becomes another: the line is as good as any."""
    file = one(rng, [file for file in files_of(directory) if closed(directory, file)])
    data = bytearray(file.read_bytes())
    place = data.index(b'"wall_ns":') + len(b'"wall_ns":')
    data[place] = data[place] ^ 1
    file.write_bytes(bytes(data))


@damages("no-digests", "run.json vouches for each file, or the verdict is not `valid`")
def no_digests(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    document = about(directory)
    if rng.random() < 0.5:
        document["history"] = sorted(document["history"])
    else:
        del document["history"]
    say(directory, document)


@damages("unnamed-file", "run.json names every file there is")
def unnamed_file(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    document = about(directory)
    del document["history"][rng.choice(files_of(directory)).name]
    say(directory, document)


@damages("hidden-file", "a file whose name begins with _ or . is one too many")
def hidden_file(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    file = rng.choice(files_of(directory))
    file.rename(file.with_name(rng.choice("_.") + file.name))


@damages("extra-entry", "nothing stands in history/ that run.json does not name")
def extra_entry(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    file, below = rng.choice(files_of(directory)), directory / "history"
    kind = rng.randrange(4)
    if kind == 0:
        (below / "more").mkdir()
        file.rename(below / "more" / file.name)
    elif kind == 1:
        (below / "notes.txt").write_text("nothing\n")
    elif kind == 2:
        shutil.copy(file, below / f"{rng.choice('_.x')}{file.name}")
    else:
        (directory / "history.parquet").mkdir()


@damages("copy-that-contradicts", "a file is of the process that its name says")
def copy_that_contradicts(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    """A copy of a file under another name, of which run.json knows."""
    file = rng.choice(files_of(directory))
    data, document = file.read_bytes(), about(directory)
    other = file.with_name(f"{file.stem}-2.jsonl")
    other.write_bytes(data)
    document["history"][other.name] = sealed(data)
    say(directory, document)


@damages("run-json-broken", "run.json is JSON")
def run_json_broken(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    file = directory / "run.json"
    kind = rng.randrange(3)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.write_bytes(file.read_bytes()[:-20])
    else:
        file.write_text("[]\n")


@damages("unfinished", "a run that did not finish proves nothing")
def unfinished(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    document = about(directory)
    document["outcome"]["finished"] = False
    say(directory, document)


@damages("names-in-other-order", "a digest is of a file's own bytes")
def digests_swapped(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    names = [file.name for file in files_of(directory) if closed(directory, file)]
    need(len(names) >= 2)
    first, second = rng.sample(names, 2)
    document = about(directory)
    files = document["history"]
    files[first], files[second] = files[second], files[first]
    say(directory, document)


# --- the truth ------------------------------------------------------------------------------------


@damages("truth-gone", "each node whose disk was to be read is there")
def truth_gone(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    files = sorted((directory / "truth").glob("*.jsonl"))
    need(files)
    rng.choice(files).unlink()


def write_truth(directory: Path, file: Path, data: bytes) -> None:
    """Write a file of the truth, with what run.json says of it."""
    file.write_bytes(data)
    document = about(directory)
    document["truth"]["files"][file.name] = sealed(data)
    say(directory, document)


@damages("truth-cut-at-a-line", "a node's truth is what run.json says of it: as long")
def truth_cut_at_a_line(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    """Its rows behind the state may be gone, and nothing else shows it."""
    files = sorted((directory / "truth").glob("*.jsonl"))
    need(files)
    file = rng.choice(files)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: rng.randint(0, len(lines) - 1)]))


@damages("truth-grown", "a node's truth is what run.json says of it: no longer")
def truth_grown(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    files = sorted((directory / "truth").glob("*.jsonl"))
    need(files)
    file = rng.choice(files)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines, rng.choice(lines)]))


@damages("truth-line-gone", "a node's truth is what run.json says of it: with its digest")
def truth_line_gone(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    """A row stands there twice, in the place of another one that is as long."""
    files = sorted((directory / "truth").glob("*.jsonl"))
    for file in rng.sample(files, len(files)):
        lines = file.read_bytes().splitlines(keepends=True)
        pairs = [
            (first, second)
            for first in range(len(lines))
            for second in range(len(lines))
            if lines[first] != lines[second] and len(lines[first]) == len(lines[second])
        ]
        if pairs:
            first, second = rng.choice(pairs)
            lines[first] = lines[second]
            file.write_bytes(b"".join(lines))
            return
    raise NoRoom


@damages("truth-of-unsaid-length", "run.json says what is in each file of the truth")
def truth_of_unsaid_length(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    files = sorted((directory / "truth").glob("*.jsonl"))
    need(files)
    document, file = about(directory), rng.choice(files)
    kind = rng.randrange(4)
    if kind == 0:
        del document["truth"]["files"]
    elif kind == 1:
        del document["truth"]["files"][file.name]
    elif kind == 2:
        document["truth"]["files"][file.name]["closed"] = False
    else:
        document["truth"]["files"][file.name]["lines"] = "all"
    say(directory, document)


@damages("truth-of-nobody-named", "run.json says of no other file what is in the truth")
def truth_of_nobody_named(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    document = about(directory)
    document["truth"]["files"]["stranger.jsonl"] = sealed(b"")
    say(directory, document)


@damages("truth-empty", "a node's truth has rows")
def truth_empty(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    files = sorted((directory / "truth").glob("*.jsonl"))
    need(files)
    write_truth(directory, rng.choice(files), b"")


@damages("truth-of-a-stranger", "a file of the truth is of an expected node")
def truth_of_a_stranger(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    files = sorted((directory / "truth").glob("*.jsonl"))
    need(files)
    (directory / "truth" / "stranger.jsonl").write_bytes(files[0].read_bytes())


@damages("truth-malformed", "rows of the truth are what a reader of disks writes")
def truth_malformed(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    files = sorted((directory / "truth").glob("*.jsonl"))
    need(files)
    file = rng.choice(files)
    common = {"run_id": history.run_id, "node": file.stem}
    bad = rng.choice(
        (
            "no JSON",
            json.dumps({**common, "kind": "held", "topic": "t0"}),
            json.dumps({**common, "kind": "leadership"}),
            json.dumps({**common, "kind": "something"}),
            json.dumps(
                {**common, "kind": "counter", "topic": "t0", "producer": "p", "counter": -1}
            ),
        )
    )
    write_truth(directory, file, file.read_bytes() + bad.encode() + b"\n")


@hides("truth-without-state", "a node's truth has a state")
def truth_without_state(history: MadeHistory, rng: random.Random) -> None:
    node = one(rng, sorted(history.truth))
    history.truth[node] = [row for row in history.truth[node] if row["kind"] != "state"]


@hides("truth-of-another-run", "rows of the truth are of this run")
def truth_of_another_run(history: MadeHistory, rng: random.Random) -> None:
    node = one(rng, sorted(history.truth))
    history.truth[node] = [{**row, "run_id": "another"} for row in history.truth[node]]


def rows_of(history: MadeHistory, node: str, kind: str) -> list[Row]:
    """Return a node's rows of a kind."""
    return [row for row in history.truth[node] if row["kind"] == kind]


@breaks("entries-differ", "replica_divergence", "nodes hold the same entry at an index", "entry")
def entries_differ(history: MadeHistory, rng: random.Random) -> None:
    shared = [
        row
        for node in history.truth
        for row in rows_of(history, node, "entry")
        for other in history.truth
        if other != node
        and any(row["index"] == one["index"] for one in rows_of(history, other, "entry"))
    ]
    row = one(rng, shared)
    row["digest"] = "0" * 32


@breaks("states-differ", "replica_divergence", "nodes have the same state at an index", "state")
def states_differ(history: MadeHistory, rng: random.Random) -> None:
    need(len(history.truth) >= 2)
    nodes = rng.sample(sorted(history.truth), 2)
    states = [rows_of(history, node, "state")[0] for node in nodes]
    states[0] |= {"index": states[1]["index"], "digest": "0" * 32}


@breaks("two-led-a-term", "leaders_per_term", "a term has one leader: by the nodes' own logs")
def two_led_a_term(history: MadeHistory, rng: random.Random) -> None:
    need(len(history.truth) >= 2)
    led = [row for node in history.truth for row in rows_of(history, node, "leadership")]
    row = one(rng, led)
    other = rng.choice([node for node in sorted(history.truth) if node != row["node"]])
    history.truth[other].append({**row, "node": other})


def publication(history: MadeHistory, rng: random.Random) -> tuple[str, str, int, int]:
    """Return (topic, producer, counter, id) of one that was acknowledged and is no garbage.

    Where every subscriber has passed its id, a disk without it is as good as one that has it: to
    take it away there is truly unobservable, as a node collects it at any time.
    """
    fit = []
    for op in acknowledged(history):
        topic, first_id = op.invoke["topic"], op.end["first_id"] if op.end else 0
        floors = [
            row["floor_id"]
            for node in history.truth
            for row in rows_of(history, node, "topic")
            if row["topic"] == topic
        ]
        for place in range(op.invoke["count"]):
            counter, id_ = op.invoke["counter"] + place, first_id + place
            if floors and id_ > max(floors):
                fit.append((topic, op.invoke["client_id"], counter, id_))
    chosen: tuple[str, str, int, int] = one(rng, fit)
    return chosen


def take_off(history: MadeHistory, node: str, topic: str, producer: str, counter: int) -> None:
    """Take a publication off a node's disk."""
    kept = []
    for row in history.truth[node]:
        own = (row.get("topic"), row.get("producer")) == (topic, producer)
        if row["kind"] == "held" and own:
            for place in range(row["count"]):
                first_id = None if row["first_id"] is None else row["first_id"] + place
                single = {**row, "first_counter": row["first_counter"] + place, "count": 1}
                if single["first_counter"] != counter:
                    kept.append({**single, "first_id": first_id})
        else:
            kept.append(row)
    history.truth[node] = kept


def hold(
    history: MadeHistory, node: str, topic: str, producer: str, counter: int, first_id: int | None
) -> None:
    """Put a publication on a node's disk; `first_id` None: in its journal alone."""
    row = {"run_id": history.run_id, "node": node, "kind": "held", "topic": topic}
    content = {"first_id": first_id, "producer": producer, "first_counter": counter, "count": 1}
    history.truth[node].append({**row, **content})


@breaks("not-on-disks", "ack_not_durable", "what is acknowledged is on a majority's disks")
def not_on_disks(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    chosen = publication(history, rng)
    topic, producer, counter, _ = chosen
    nodes = sorted(history.truth)
    for node in rng.sample(nodes, rng.randint(len(nodes) // 2 + 1, len(nodes))):
        take_off(history, node, topic, producer, counter)


@breaks("under-another-id", "inconsistent_id", "disks and acknowledgments agree on an id")
def under_another_id(history: MadeHistory, rng: random.Random) -> None:
    """Every node holds another publication in the place of an acknowledged one."""
    need(history.truth)
    chosen = publication(history, rng)
    topic, producer, counter, id_ = chosen
    for node in history.truth:
        take_off(history, node, topic, producer, counter)
        hold(history, node, topic, producer, counter + 50_000, id_)


@breaks("moved-on-disks", "duplicate_stored", "disks and acknowledgments agree on a place")
def moved_on_disks(history: MadeHistory, rng: random.Random) -> None:
    """Every node holds an acknowledged publication under another id."""
    need(history.truth)
    chosen = publication(history, rng)
    topic, producer, counter, id_ = chosen
    for node in history.truth:
        take_off(history, node, topic, producer, counter)
        hold(history, node, topic, producer, counter, id_ + 1_000)


@breaks("ghost-on-disks", "phantom", "what a node holds was put by somebody")
def ghost_on_disks(history: MadeHistory, rng: random.Random) -> None:
    topics = [row for node in sorted(history.truth) for row in rows_of(history, node, "topic")]
    topic = one(rng, [row for row in topics if row["last_id"] > row["floor_id"]])
    for node in rng.sample(sorted(history.truth), rng.randint(1, len(history.truth))):
        hold(history, node, topic["topic"], "nobody", 1, None)


@breaks("last-id-below", "ack_not_durable", "a topic's last id covers what was acknowledged")
def last_id_below(history: MadeHistory, rng: random.Random) -> None:
    """Every node says that the topic has not come as far as an acknowledged publication."""
    need(history.truth)
    chosen = publication(history, rng)
    topic, producer, counter, id_ = chosen
    for node in history.truth:
        for row in rows_of(history, node, "held"):
            own = (row["topic"], row["producer"]) == (topic, producer)
            is_held = row["first_counter"] <= counter < row["first_counter"] + row["count"]
            need(not (own and is_held and row["first_id"] is None))
    for node in history.truth:
        for row in rows_of(history, node, "topic"):
            if row["topic"] == topic:
                row["last_id"] = id_ - 1


@breaks("counter-not-taken", "ack_not_durable", "what is stored and not taken is stored again")
def counter_not_taken(history: MadeHistory, rng: random.Random) -> None:
    """A majority holds an acknowledged publication, and would take it once more."""
    need(history.truth)
    chosen = publication(history, rng)
    topic, producer, counter, _ = chosen
    nodes = sorted(history.truth)
    for node in rng.sample(nodes, rng.randint(len(nodes) // 2 + 1, len(nodes))):
        for row in rows_of(history, node, "counter"):
            if (row["topic"], row["producer"]) == (topic, producer):
                row["counter"] = min(row["counter"], counter - 1)
        history.truth[node] = [row for row in history.truth[node] if row.get("counter") != 0]


@breaks("two-in-one-place-on-disk", "inconsistent_id", "a node holds one publication under an id")
def two_in_one_place(history: MadeHistory, rng: random.Random) -> None:
    held = [
        row
        for node in sorted(history.truth)
        for row in rows_of(history, node, "held")
        if row["first_id"] is not None
    ]
    row = one(rng, held)
    others = {**row, "producer": f"{row['producer']}-2"}
    history.truth[row["node"]].append(others)
