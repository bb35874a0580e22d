"""Sabotage that testers of other brokers would think of: sessions, hosts and counts that contradict
themselves, disks that do, ends that never acted.

What lives here: these changes. What must not: damage of other files (broken_files.py).
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.judges.broken_files import about, say
from tests.judges.broken_rows import Op, ended, one
from tests.judges.broken_scenes import opening
from tests.judges.groups import GROUP
from tests.judges.history import MadeHistory
from tests.judges.kinds import breaks, damages, hides, need
from tests.judges.scene import SceneWriter

# --- lines that no process writes -----------------------------------------------------------------


@hides("session-on-two-hosts", "a session is of one host")
def session_on_two_hosts(history: MadeHistory, rng: random.Random) -> None:
    """What is of another host is compared with nothing: so a lie is best told there."""
    ops = ended(history)
    rng.shuffle(ops)
    op = one(rng, [op for op in ops if any(_is_of_its_session(op, other) for other in ops)])
    assert op.end is not None
    for row in (op.invoke, op.end):
        row["host"] = "elsewhere"


def _is_of_its_session(op: Op, other: Op) -> bool:
    names = ("process", "session")
    return op is not other and all(op.invoke[name] == other.invoke[name] for name in names)


@hides("end-on-another-host", "an end repeats its invoke's host")
def end_on_another_host(history: MadeHistory, rng: random.Random) -> None:
    end = one(rng, ended(history)).end
    assert end is not None
    end["host"] = "elsewhere"


@hides("session-goes-back", "sessions of a process go up")
def session_goes_back(history: MadeHistory, rng: random.Random) -> None:
    """An operation is said to be of an earlier session; without an epoch nothing else shows it."""
    op = one(rng, [op for op in ended(history) if op.invoke["op_id"] > 1 and op.invoke["session"]])
    assert op.end is not None
    for row in (op.invoke, op.end):
        row["session"] = 0
        row.pop("epoch", None)


# --- what run.json says ---------------------------------------------------------------------------


@damages("more-counted-than-recorded", "what a run has counted is on record")
def more_counted(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    """As if a file had been taken away, and the rest sealed anew."""
    need(not history.is_application)
    document = about(directory)
    document["outcome"][rng.choice(("acknowledged", "delivered"))] = 2**40
    say(directory, document)


@damages("node-that-is-not-named", "run.json names each node that answers")
def node_not_named(directory: Path, history: MadeHistory, rng: random.Random) -> None:
    """A node that is not named lacks nothing: the disks of the others are a majority."""
    need(history.truth)
    answered = {
        row["node"]
        for row in history.rows
        if row.get("type") == "ok" and None not in (row.get("node"), row.get("term"))
    }
    node = one(rng, sorted(answered))
    document = about(directory)
    document["nodes"] = [name for name in document["nodes"] if name != node]
    truth = document["truth"]
    truth["nodes"] = [name for name in truth["nodes"] if name != node]
    del truth["files"][f"{node}.jsonl"]
    (directory / "truth" / f"{node}.jsonl").unlink()
    need(truth["nodes"])
    say(directory, document)


# --- what never acted, and was never moved --------------------------------------------------------


@breaks("lost-though-its-unsub-never-acted", "lost", "what stood lacks nothing", "prefix")
def _(history: MadeHistory, rng: random.Random) -> None:
    """An UNSUB has no answer, and the subscription is found at once: it had stood all the time."""
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unsub("s", "info")
    for number in (1, 2):
        scene.put("p", number, number)
    scene.sub("s", 1, resumed=True)
    scene.get("s", 1, 2, ("p", 2))


@breaks("settled-though-its-end-never-acted", "group_lost", "an end that never acted ends nothing")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    made = {"last_id": scene.base, "resumed": False}
    scene.end(scene.invoke("v", "group", group=GROUP), "ok", **made)
    scene.put("p", 1, 1)
    scene.end(scene.invoke("v", "ungroup", group=GROUP), "info")
    found = {"last_id": scene.id(1), "resumed": True}
    scene.end(scene.invoke("v", "group", group=GROUP), "ok", **found)
    scene.get("s", 0, 1, ("p", 1))


@breaks("moved-though-it-never-was", "subscription", "nobody is moved who has not sought", "denied")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("y", 0)  # nobody else in a history has that name
    scene.end(scene.invoke("y", "get", "", max_count=9), "fail", error="moved")


@breaks("half-of-a-batch-taken", "torn_batch", "nodes take a batch as one", "taken")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    scene = SceneWriter(history, rng)
    count = rng.randint(2, 5)
    scene.unclear("p", 1, count)
    node, last = rng.choice(sorted(history.truth)), rng.randint(1, count - 1)
    row = {"kind": "counter", "topic": scene.topic, "producer": "p", "counter": last}
    history.truth[node].append({"run_id": history.run_id, "node": node, **row})
