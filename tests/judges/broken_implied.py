"""What breaks one sentence of docs/checks.md that says what one thing implies for another.

What lives here: the kinds, each a scene written behind a legal history: what an answer says of when
it was carried out, of what was there, and of what is over for good. What must not: any rule of a
judge.
"""

from __future__ import annotations

import random

from tests.judges.broken_scenes import opening
from tests.judges.groups import GROUP, ModelGroup, broken
from tests.judges.history import MadeHistory
from tests.judges.kinds import breaks, need
from tests.judges.lanes import opened
from tests.judges.readings import EARLIEST, begin_at, operate
from tests.judges.scene import SceneWriter

HOUR_MS = 3_600_000

# --- producers ------------------------------------------------------------------------------------


@breaks("counter-denied-though-given", "stale_read", "what came was taken before it", "counter")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.end(scene.begin_put("p", rng.randint(1, 2)), "fail", error="counter_gap")


@breaks("counter-denied-behind-none", "stale_read", "the first counter may be any", "counter")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    counter = rng.randint(1, 5)
    if rng.random() < 0.5:
        scene.unclear("p", counter)
    scene.end(scene.begin_put("p", counter + 1), "fail", error="counter_gap")


@breaks("stored-anew-and-below", "realtime_order", "what is no duplicate was stored just then")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1)
    if rng.random() < 0.5:
        scene.put("q", 1, 2)
    else:
        scene.sub("r", 2)
    scene.put("p", 1, 1)


@breaks("stored-anew-though-given", "future_read", "what came is a duplicate from then on")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.put("p", 1, 1)


# --- delays ---------------------------------------------------------------------------------------


@breaks("shorter-delay-comes-later", "delayed", "the shorter of two delays is over first", "order")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    lane.ms = rng.randint(1, 50)
    lane.put(1, 1)
    lane.ms += rng.randint(1, 5_000)
    lane.put(2, 2)
    lane.due()
    lane.got("s", 0, 2, 1)


@breaks("delayed-below-what-was-known", "realtime_order", "what waits is behind what is there")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    lane.ms = HOUR_MS
    lane.put(1, 1)
    if rng.random() < 0.5:
        lane.scene.put("q", 1, 2)
    else:
        lane.scene.sub("r", rng.choice((1, 2)))
    lane.due()
    lane.got("s", 0, 1)


# --- groups ---------------------------------------------------------------------------------------


def _leased(history: MadeHistory, rng: random.Random) -> tuple[ModelGroup, int]:
    """Return a group, and an id that it has given `v` under its newest token."""
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    return group, id_


@breaks("accepted-though-refused", "group_lease", "what is lost stays lost", "over")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_ = _leased(history, rng)
    run = [group.token, id_, id_]
    said = {"extends": [[*run, 60_000]]} if rng.random() < 0.5 else {"acks": [run]}
    group.took("v", **said, lost=[[id_, id_]])
    group.took("v", acks=[run])


@breaks("extended-though-settled", "group_lease", "what is settled is nobody's", "over")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    for resumed in (False, True):
        invoke = scene.invoke("v", "group", group=GROUP)
        scene.end(invoke, "ok", last_id=scene.id(int(resumed)), resumed=resumed)
        if not resumed:
            scene.put("p", 1, 1)
            given = {"leases": [[scene.id(1), scene.id(1), 1]], "left_ms": 9, "lease_ms": 9}
            own = {"group": GROUP, "number": 1, "max_count": 9}
            scene.end(scene.invoke("v", "take", **own), "ok", count=1, token=1, **given)
            ack = {"group": GROUP, "number": 2, "acks": [[1, scene.id(1), scene.id(1)]]}
            scene.end(scene.invoke("v", "take", **ack), "info")
    word = rng.choice(("naks", "extends"))
    said = {"group": GROUP, "number": 3, word: [[1, scene.id(1), scene.id(1), 60_000]]}
    scene.end(scene.invoke("v", "take", **said), "ok", count=0)


@breaks("lost-and-never-said", "group_lease", "an answer speaks of what was asked", "unsaid")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_ = _leased(history, rng)
    group.took("v", lost=[[id_, id_]])


@breaks("lease-of-an-ended-group", "group_lease", "a group made anew has no old leases", "foreign")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_ = _leased(history, rng)
    group.scene.end(group.scene.invoke("w", "ungroup", group=GROUP), "ok")
    if rng.random() < 0.5:
        invoke = group.scene.invoke("w", "group", group=GROUP)
        group.scene.end(invoke, "ok", last_id=group.scene.id(group.stored), resumed=False)
    group.took("v", acks=[[group.token, id_, id_]])


@breaks("leased-to-two-as-one-publishes", "group_lease", "who goes on has its lease", "shared")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_ = _leased(history, rng)
    group.took("w", [id_, id_, 2])
    if rng.random() < 0.5:
        group.scene.put("v", 1, group.stored + 1)
    else:
        group.scene.sub("v", group.stored)


def _alone(history: MadeHistory, rng: random.Random) -> SceneWriter:
    """Return a scene in which `v` made a group, in a history without any."""
    is_of_groups = any(row["f"] == "take" for row in history.rows if "f" in row)
    need(not (history.is_application or is_of_groups))
    scene = opening(history, rng)
    invoke = scene.invoke("v", "group", group=GROUP)
    scene.end(invoke, "ok", last_id=scene.base, resumed=False)
    return scene


@breaks("told-nothing-though-given-back", "stale_read", "what was given back is there", "idle")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = _alone(history, rng)
    scene.put("p", 1, 1)
    given = {"leases": [[scene.id(1), scene.id(1), 1]], "left_ms": 9_000, "lease_ms": 9_000}
    own = {"group": GROUP, "number": 1, "max_count": 9}
    scene.end(scene.invoke("v", "take", **own), "ok", count=1, token=1, **given)
    nak = {"group": GROUP, "number": 2, "naks": [[1, scene.id(1), scene.id(1), 0]]}
    scene.end(scene.invoke("v", "take", **nak), "ok", count=0)
    asked = rng.choice(({"client": "v", "number": 3}, {"client": "w", "number": 1}))
    own = {"group": GROUP, "number": asked["number"], "max_count": 9}
    scene.end(scene.invoke(str(asked["client"]), "take", **own), "ok", count=0)


@breaks("told-nothing-of-what-is-there", "stale_read", "a group has what its topic has", "idle")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = _alone(history, rng)
    scene.unclear("p", 1)
    scene.sub("s", 1)
    own = {"group": GROUP, "max_count": 9, "number": 1}
    scene.end(scene.invoke("v", "take", **own), "ok", count=0)


# --- subscribers ----------------------------------------------------------------------------------


@breaks("no-topic-though-one-has-it", "subscription", "a topic is there for everybody", "denied")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    if rng.random() < 0.5:
        invoke = scene.begin_get("r", 0)
    else:
        invoke = scene.invoke("r", "take", group=GROUP, number=1, max_count=9)
    scene.end(invoke, "fail", error="unknown_topic")


@breaks("earliest-in-what-is-gone", "subscription", "the earliest is kept for everybody", "start")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    operate(scene, scene.id(2))
    if rng.random() < 0.5:
        own = {"process": f"{scene.name}-operator", "last_id": scene.id(2)}
        scene.single("operator", "purged", **own)
    else:
        ids = {"first_id": scene.id(1), "last_id": scene.id(2)}
        scene.end(scene.begin_get("s", 0), "fail", error="purged", **ids)
    if rng.random() < 0.5:
        begin_at(scene, "r", EARLIEST, rng.choice((0, 1)))
    else:
        invoke = scene.invoke("v", "group", group=GROUP, start=EARLIEST)
        scene.end(invoke, "ok", last_id=scene.id(1), resumed=False)
