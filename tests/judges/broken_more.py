"""Sabotage of what only several lines together show: counters, clocks, settlements, letters, disks.

What lives here: kinds whose scenes need a certain order, as in broken_scenes.py and groups.py, of
the sentences that came after those. What must not: changes of what is there already.
"""

from __future__ import annotations

import random

from tests.judges.broken_scenes import names, opening
from tests.judges.groups import GROUP, LONG_MS, ModelGroup, broken, work
from tests.judges.history import MadeHistory, Row
from tests.judges.kinds import breaks, hides, need

# --- counters, places, expiry ---------------------------------------------------------------------


@breaks("counter-of-nobody", "phantom", "between two counters that are taken all were tried")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    count, hole = rng.randint(1, 4), rng.choice((1, 2, 9_000))
    scene.put("p", 1, 1, count)
    scene.put("p", count + hole + 1, count + 1)
    need(names(history))


@breaks("taken-though-it-failed", "aborted_read", "between two that are taken none failed for good")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    for _ in range(rng.randint(1, 2)):
        scene.end(scene.begin_put("p", 2), "fail")
    scene.put("p", 3, 2)
    need(names(history))


@breaks(
    "given-and-on-no-disk", "ack_not_durable", "what anybody was given is on a majority's disks"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth and names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.on_disks()


@breaks(
    "given-though-expired", "purge", "what has expired by its leader's clock is not given", "late"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    ms = rng.randint(1, 900)
    invoke = scene.begin_put("p", 1, expires=[[1, 1, ms]])
    scene.stored(invoke, 1, expires=[[scene.id(1), scene.id(1), ms]])
    scene.pause(1_100_000 * ms)
    scene.get("s", 0, 1, ("p", 1))


@breaks("drained-and-never-handed", "lost", "who says that it drained was handed all", "unhanded")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, 2)
    invoke = scene.begin_get("s", 0)
    scene.brought(invoke, 1, ("p", 1), ("p", 2), handed_apart=True)
    ids = {"first_id": scene.id(1), "last_id": scene.id(1), "cursor": scene.id(0)}
    scene.single("s", "hand", session=1, **ids)
    scene.drained("s", 2)


# --- groups: settlements --------------------------------------------------------------------------


def _leased(history: MadeHistory, rng: random.Random) -> tuple[ModelGroup, int, int]:
    """Return a group, and a publication that `v` has, with its token."""
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    return group, id_, group.token


@breaks("ack-refused", "group_lease", "who has a lease settles", "refused")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group, id_, token = _leased(history, rng)
    said: Row = rng.choice(
        ({"acks": [[token, id_, id_]]}, {"extends": [[token, id_, id_, 9_000]]}),
    )
    group.took("v", lost=[[id_, id_]], **said)


@breaks("given-before-its-delay", "group_lease", "what is given back for later waits", "soon")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_, token = _leased(history, rng)
    group.took("v", naks=[[token, id_, id_, LONG_MS]])
    group.took("w", [id_, id_, 2])


@breaks("extended-and-given", "group_lease", "an extension holds", "shared")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_, token = _leased(history, rng)
    group.took("v", extends=[[token, id_, id_, 2 * LONG_MS]])
    group.took("w", [id_, id_, 2])
    group.took("v")


@breaks("leased-twice-in-a-take", "group_order", "an answer leases an id once", "doubled")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1], [id_, id_, 1])


@breaks("higher-ones-first", "group_order", "what was never given is given in order", "overtaken")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    one, other = group.fresh(), group.fresh()
    group.took("v", [other, other, 1])
    group.took(rng.choice("vw"), [one, one, 1])


@breaks("another-key", "key_order", "a publication has one key", "changed")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    said = [group.took("v", [id_, id_, 1]), group.took("w", [id_, id_, 2])]
    for end, digit in zip(said, "ab", strict=True):
        end |= {"keyed": [id_], "keys": digit * 16}


# --- groups: what they are told -------------------------------------------------------------------


@breaks("group-told-nothing", "stale_read", "a TAKE is given what there is", "idle")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(
        not (
            history.is_application or any(row["f"] == "take" for row in history.rows if "f" in row)
        )
    )
    scene = opening(history, rng)
    invoke = scene.invoke("v", "group", group=GROUP)
    scene.end(invoke, "ok", last_id=scene.base, resumed=False)
    scene.put("p", 1, 1, rng.randint(1, 3))
    own = {"group": GROUP, "max_count": 9, "number": 1}
    scene.end(scene.invoke("v", "take", **own), "ok", count=0)


@breaks("group-of-nobody-found", "subscription", "a group stands when it was made", "kept")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    if rng.random() < 0.5:
        invoke = scene.invoke("v", "group", group=GROUP)
        scene.end(invoke, "ok", last_id=scene.base, resumed=False)
        scene.end(scene.invoke("v", "ungroup", group=GROUP), "ok")
    invoke = scene.invoke("w", "group", group=GROUP)
    scene.end(invoke, "ok", last_id=scene.base, resumed=True)


@breaks("letter-never-came", "group_lost", "what is given up becomes a dead letter")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene, dead = opening(history, rng), "never-dead"
    scene.end(scene.invoke("r", "sub", dead), "ok", last_id=0, resumed=False, cursor=0)
    own = {"group": GROUP, "max_attempts": 1, "dead_letter": dead}
    scene.end(scene.invoke("v", "group", **own), "ok", last_id=scene.base, resumed=False)
    scene.put("p", 1, 1)
    take = scene.invoke("v", "take", group=GROUP, max_count=9, number=1)
    lease = {"token": 1, "leases": [[scene.id(1), scene.id(1), 1]], "left_ms": 5, "lease_ms": 5}
    scene.end(take, "ok", count=1, **lease)
    scene.pause(10_000_000)
    scene.end(scene.invoke("v", "group", group=GROUP), "ok", last_id=scene.id(1), resumed=True)
    get = scene.invoke("r", "get", dead, last_id=0)
    scene.end(get, "ok", count=0)


@breaks("letter-on-a-publication", "inconsistent_id", "a dead letter has an id of its own")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, 2)
    letters = [[scene.id(2), "elsewhere", "h", rng.randint(1, 9)]]
    scene.get("s", 0, 1, ("p", 1))
    end = scene.get("s", 1, 2, ("p", 2))
    end |= {"items": [], "letters": letters}


@hides("settled-beyond-what-was-told", "who says that all is settled was told so")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = work(history, rng)
    id_ = group.fresh()
    group.scene.single("v", "phase", phase="settled", group=GROUP, last_id=id_)
