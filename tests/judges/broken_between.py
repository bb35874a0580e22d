"""What breaks one sentence of docs/checks.md between two things that are judged apart as a rule.

What lives here: the kinds, each a scene written behind a legal history: what one is told against
what another one was, workers against subscribers, disks against tries. What must not: any rule of
a judge.
"""

from __future__ import annotations

import random
from typing import Any, Final

from tests.judges.groups import GROUP, ModelGroup, broken, work
from tests.judges.history import MadeHistory, Row
from tests.judges.kinds import breaks, need
from tests.judges.readings import EARLIEST, operate
from tests.judges.scene import SceneWriter

HOUR_MS: Final = 3_600_000
KEYS: Final = ("1" * 16, "2" * 16)


# --- how far a topic has come ---------------------------------------------------------------------


@breaks("denied-below-a-start", "stale_read", "a start says how far a topic has come", "nothing")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.unclear("q", 1)
    if rng.random() < 0.5:
        scene.sub("r", 2)
    else:
        _made(scene, 2)
    scene.nothing("s", 1)


@breaks("letter-of-what-is-not-there", "realtime_order", "what dies has stood in its topic")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = work(history, rng, 1)
    group.letters.append(group.stored + rng.randint(1, 3))
    group.look("r")
    for _ in range(3):
        group.fresh()


@breaks("told-gone-before-it-was-put", "lost", "what is gone was there", "unplaced")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("q", 1, 1)
    scene.unclear("r", 1)
    operate(scene, scene.id(2))
    ids = {"first_id": scene.id(1), "last_id": scene.id(2)}
    scene.end(scene.begin_get("s", 0), "fail", error="purged", **ids)
    scene.put("p", 1, 0, duplicate=True)
    scene.put("p", 2, 3)
    scene.get("s", 2, 3, ("p", 2))


@breaks("batch-beside-another", "torn_batch", "a batch has its ids to itself", "split")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1, 2)
    begun = scene.begin_put("q", 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.stored(begun, 2)


@breaks("pattern-passes-what-is-kept", "subscription", "the earliest is what is kept", "missed")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.topic, scene.base = f"{scene.topic}.a", 0
    scene.sub("r", 0)
    for number in (1, 2):
        scene.put("p", number, number)
    invoke = scene.invoke("s", "sub", f"{scene.topic[:-1]}{rng.choice('*>')}", start=EARLIEST)
    scene.end(invoke, "ok", last_id=0, cursor=0, resumed=False)
    if rng.random() < 0.5:
        scene.sub("s", rng.choice((1, 2)), resumed=True)
    else:
        scene.end(scene.invoke("s", "get", "", max_count=9), "ok", count=0, topic="", bytes=0)
    scene.get("r", 0, 1, ("p", 1), ("p", 2))


@breaks("refused-by-its-cursor", "subscription", "a cursor is refused for a reason", "denied")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    for number in (1, 2):
        scene.put("p", number, number)
    scene.get("s", 0, 1, ("p", 1))
    error = rng.choice(("already_acknowledged", "moved", "bad_request"))
    scene.end(scene.begin_get("s", 1), "fail", error=error)


# --- groups ---------------------------------------------------------------------------------------


def _made(scene: SceneWriter, number: int, **fields: Any) -> None:
    """Let `v` make a group that begins there, or see that all up to there is settled."""
    said = {name: fields.pop(name) for name in ("max_attempts", "dead_letter") if name in fields}
    invoke = scene.invoke("v", "group", group=GROUP, **said)
    told = {"last_id": scene.id(number), "resumed": False}
    scene.end(invoke, "ok", **{**told, **fields})


def _two_of_a_key(history: MadeHistory, rng: random.Random) -> tuple[ModelGroup, int, int, int]:
    """Return a group that is ordered by key and has given two publications of one key, with the
    token of the first one.
    """
    group = work(history, rng, is_ordered=True)
    one, other = group.fresh(), group.fresh()
    group.keys |= {id_ - group.scene.base: "f" * 16 for id_ in (one, other)}
    group.took("v", [one, one, 1])
    token = group.token
    group.took("w", [other, other, 1])
    return group, one, other, token


@breaks("next-of-a-key-while-one-is-held", "key_order", "a key waits while one is held", "held")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, one, _, token = _two_of_a_key(history, rng)
    word = rng.choice(("naks", "extends"))
    group.took("v", **{word: [[token, one, one, 60_000]]})


@breaks("next-of-a-key-while-one-is-open", "key_order", "a key waits for what nobody did", "open")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    _two_of_a_key(history, rng)


def _asked_again(group: ModelGroup, client: str, token: int, *leases: list[int]) -> Row:
    """Write that a client's last TAKE was asked again, and its answer."""
    scene, process = group.scene, f"{group.scene.name}-{client}"
    last = next(
        row
        for row in reversed(group.scene.history.rows)
        if row["process"] == process and row["type"] == "invoke"
    )
    said = ("group", "max_count", "number", "acks")
    invoke = scene.invoke(client, "take", **{name: last[name] for name in said if name in last})
    told: Row = {"token": token, "leases": list(leases), "left_ms": 9, "lease_ms": 9}
    count = sum(run[1] + 1 - run[0] for run in leases)
    return scene.end(invoke, "ok", count=count, attempt=2, **(told if leases else {}))


@breaks("take-carried-out-twice", "group_order", "a TAKE is carried out once", "step")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    one, other = group.fresh(), group.fresh()
    group.took("v", [one, one, 1])
    if rng.random() < 0.5:
        _asked_again(group, "v", group.token + 1, [other, other, 1])
    else:
        _asked_again(group, "v", group.token, [one, one, 1], [other, other, 1])


@breaks("lost-and-not-lost", "group_order", "a TAKE asked again says the same", "step")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    group.took("v", acks=[[group.token, id_, id_]], lost=[[id_, id_]])
    _asked_again(group, "v", 0)


@breaks("moved-and-given-below", "group_order", "a group that was moved begins there", "settled")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    for _ in range(3):
        id_ = group.fresh()
    scene, process = group.scene, f"{group.scene.name}-operator"
    ends = scene.invoke("operator", "ungroup", process=process, group=GROUP)
    scene.end(ends, "ok")
    begins = scene.invoke("operator", "group", process=process, group=GROUP, start=str(id_))
    scene.end(begins, "ok", last_id=id_ - 1, resumed=False)
    group.took("v", [id_ - 1, id_, 1])


@breaks("settled-before-it-expires", "group_lost", "what has not expired is settled by who did it")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    _made(scene, 0)
    scene.put("p", 1, 1, expires=[[scene.id(1), scene.id(1), HOUR_MS]])
    _made(scene, 1, resumed=True)


@breaks("settled-and-never-compacted", "group_lost", "what a group has not had is not compacted")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    _made(scene, 0, compacted=True)
    for number in (1, 2):
        keys = {"keyed": [scene.id(number)], "keys": KEYS[0]}
        said = {"marked": [scene.id(number)], "properties": KEYS[1], **keys}
        scene.put("p", number, number, **said)
    _made(scene, 2, resumed=True, compacted=True)


@breaks("letter-before-it-expires", "dead_letter", "what has not expired has its attempts", "early")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    dead = f"{scene.name}-dead"
    scene.end(scene.invoke("r", "sub", dead), "ok", last_id=0, resumed=False)
    _made(scene, 0, max_attempts=5, dead_letter=dead)
    scene.put("p", 1, 1, expires=[[scene.id(1), scene.id(1), HOUR_MS]])
    invoke = scene.invoke("r", "get", dead, last_id=0, max_count=9)
    letters = [[1, scene.topic, GROUP, scene.id(1)]]
    ids = {"first_id": 1, "last_id": 1, "count": 1}
    scene.end(invoke, "ok", topic=dead, letters=letters, bytes=9, **ids)


# --- what workers alone were given ----------------------------------------------------------------


def _of_workers(
    history: MadeHistory, rng: random.Random, counters: tuple[int, ...]
) -> tuple[ModelGroup, int]:
    """Return a group with a publication of `q` for each counter, of unknown outcome, that a worker
    was given in that order; and the id of the first one.
    """
    need(not history.is_application)
    group = broken(history, rng)
    before = group.stored
    for counter in sorted(counters):
        group.scene.unclear("q", counter)
    ids = [group.scene.id(before + place) for place in range(1, len(counters) + 1)]
    answer = group.took("v", [ids[0], ids[-1], 1])
    answer["items"] = [[id_, "q", one, 1] for id_, one in zip(ids, counters, strict=True)]
    return group, ids[0]


@breaks("worker-given-in-another-order", "group_content", "a producer has one order", "order")
def _(history: MadeHistory, rng: random.Random) -> None:
    _of_workers(history, rng, rng.choice(((2, 1), (1, 3, 2))))


@breaks("worker-given-below-the-end", "group_content", "what is put later stands behind", "behind")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    id_ = group.scene.id(group.stored + 1)
    group.scene.put("p", group.stored + 1, group.stored + 2)
    group.scene.unclear("q", 1)
    group.took("v", [id_, id_, 1])["items"] = [[id_, "q", 1, 1]]


@breaks("lost-though-a-worker-has-it", "group_content", "what one has is owed to all", "lost")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    before = group.stored
    group.scene.sub("s", before)
    group.scene.unclear("q", 1)
    id_ = group.scene.id(before + 1)
    group.took("v", [id_, id_, 1])["items"] = [[id_, "q", 1, 1]]
    group.scene.nothing("s", before + 1)


# --- disks ----------------------------------------------------------------------------------------


def _on(history: MadeHistory, node: str, kind: str, **fields: Any) -> None:
    history.truth[node].append(
        {"run_id": history.run_id, "node": node, "kind": kind, **fields},
    )


@breaks("node-took-what-nobody-put", "phantom", "nodes take counters that somebody tried")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    producer, counter = rng.choice((("p", rng.randint(2, 9)), ("nobody", 1)))
    taken = {"topic": scene.topic, "producer": producer, "counter": counter}
    _on(history, rng.choice(sorted(history.truth)), "counter", **taken)


@breaks("node-took-what-failed", "aborted_read", "nodes take no counter that failed")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.end(scene.begin_put("p", 2), "fail")
    taken = {"topic": scene.topic, "producer": "p", "counter": 2}
    _on(history, rng.choice(sorted(history.truth)), "counter", **taken)


@breaks("term-goes-back-on-a-disk", "replica_divergence", "a journal's terms never fall", "term")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    node, index = rng.choice(sorted(history.truth)), 10**6
    for place, term in enumerate((10**6 + 1, 10**6)):
        _on(history, node, "entry", index=index + place, term=term, digest="0" * 32)
