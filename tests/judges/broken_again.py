"""What breaks one sentence of docs/checks.md in a reading that is not the first, or beside a purge.

What lives here: the kinds, each a scene written behind a legal history. What must not: any rule of
a judge.
"""

from __future__ import annotations

import random

from tests.judges.groups import ModelGroup, broken, work
from tests.judges.history import MadeHistory
from tests.judges.kinds import breaks, need
from tests.judges.readings import EARLIEST, begin_at, collect, followed, operate, seek
from tests.judges.scene import Place, SceneWriter

# --- readings -------------------------------------------------------------------------------------


def _comes_back(scene: SceneWriter, rng: random.Random) -> None:
    """Let `s` begin once more at the earliest: by a seek, or as it leaves and comes."""
    if rng.random() < 0.5:
        seek(scene, "s", EARLIEST, 0, "ok")
    else:
        scene.unsub("s")
        begin_at(scene, "s", EARLIEST, 0)


@breaks("lost-between-two-readings", "lost", "what must stand is owed to each reading", "unplaced")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.unclear("p", 2)
    scene.put("p", 3, 3)
    _comes_back(scene, rng)
    scene.get("s", 0, 1, ("p", 1))
    scene.nothing("s", 3, session=2)


@breaks("torn-in-the-second-reading", "torn_batch", "a batch comes whole to each reading", "half")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, count=2)
    scene.get("s", 0, 1, ("p", 1), ("p", 2))
    _comes_back(scene, rng)
    scene.get("s", 0, 1, ("p", 1))
    scene.nothing("s", 2, session=2)


@breaks("any-topic-denied-again", "stale_read", "each reading has all that is there", "nothing")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.get("s", 0, 1, ("p", 1))
    _comes_back(scene, rng)
    _told_nothing(scene)


@breaks("cursor-ahead-of-its-reading", "cursor_regression", "a reading has its own cursor", "ahead")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    for number in (1, 2):
        scene.put("p", number, number)
    scene.get("s", 0, 1, ("p", 1), ("p", 2))
    scene.nothing("s", 2)
    _comes_back(scene, rng)
    scene.sub("s", 2, resumed=True, session=2)


def _told_nothing(scene: SceneWriter) -> None:
    invoke = scene.invoke("s", "get", "", max_count=9)
    scene.end(invoke, "ok", count=0, topic="", bytes=0)


@breaks(
    "any-topic-refused", "subscription", "who has a subscription may ask for any topic", "denied"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("y", 0)  # nobody else in a history has that name
    invoke = scene.invoke("y", "get", "", max_count=9)
    scene.end(invoke, "fail", error=rng.choice(("not_subscribed", "unknown_topic")))


@breaks("pattern-misses-once-more", "subscription", "each reading of a pattern has all", "missed")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = followed(history, rng)
    pattern = next(row["topic"] for row in reversed(history.rows) if row["f"] == "sub")
    scene.put("p", 1, 1)
    scene.sub("s", 0, resumed=True)
    scene.get("s", 0, 1, ("p", 1))
    left = scene.invoke("s", "unsub", pattern), scene.invoke("s", "unsub")
    for one in left:
        scene.end(one, "ok")
    begins = scene.invoke("s", "sub", pattern)
    scene.end(begins, "ok", last_id=0, cursor=0, resumed=False)
    if rng.random() < 0.5:
        scene.put("p", 2, 0)
    else:
        scene.sub("r", 1)
        scene.put("p", 2, 2)
    _told_nothing(scene)


# --- disks, and purges ----------------------------------------------------------------------------


@breaks("collected-beyond-a-purge", "lost", "a purge takes no more than it names")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    operate(scene, scene.id(rng.choice((1, 2))))
    collect(history, rng, scene, 3)


@breaks("settled-and-read-afterwards", "group_lost", "what is there no purge has settled")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    scene, before = group.scene, group.stored
    scene.sub("s", before)
    group.fresh()
    operate(scene, rng.choice((2**53 - 1, scene.id(before + 1))))
    group.open, group.head = {}, group.stored
    group.make(group.workers[0])
    scene.get("s", before, before + 1, *_fresh(group, before))


def _fresh(group: ModelGroup, before: int) -> list[Place]:
    """Return what was put to a group's topic behind the id of a number."""
    return [("p", number) for number in range(before + 1, group.stored + 1)]


# --- dead letters ---------------------------------------------------------------------------------


@breaks("letter-before-its-publication", "realtime_order", "times go up", "clock")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = work(history, rng, 1)
    scene, before = group.scene, group.stored
    scene.sub("s", before)
    id_ = group.fresh()
    scene.get("s", before, before + 1, *_fresh(group, before)).update(times=[[id_, id_, 1_000]])
    group.took("v", [id_, id_, 1])
    group.letters.append(group.stored)
    group.look()
    last_id = history.rows[-1]["last_id"]
    history.rows[-1]["times"] = [[last_id, last_id, rng.randint(1, 999)]]
