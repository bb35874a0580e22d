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
from tests.judges.readings import EARLIEST, begin_at, operate
from tests.judges.scene import SceneWriter

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


# --- what was told to be gone ---------------------------------------------------------------------


def _change_leader(scene: SceneWriter) -> None:
    """Let another node lead from now on, whose clock nobody compares with the one before."""
    terms = [row["term"] for row in scene.history.rows if "term" in row]
    scene.node, scene.term = "later", max((*terms, scene.term)) + 1


def _told_gone(scene: SceneWriter, error: str, last: int, **put: object) -> None:
    """Let `s` be told that all of a PUT of `p`, up to the id of that number, is gone."""
    scene.sub("s", 0)
    scene.stored(scene.begin_put("p", 1, last), 1, **put)
    _change_leader(scene)
    ids = {"first_id": scene.id(1), "last_id": scene.id(last)}
    scene.end(scene.begin_get("s", 0), "fail", error=error, **ids)


@breaks("told-expired-and-given", "purge", "what has expired comes to nobody any more", "alive")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene, last = opening(history, rng), rng.randint(1, 3)
    _told_gone(scene, "expired", last, expires=[[scene.id(1), scene.id(last), 1]])
    whose = rng.choice("sr")
    if whose == "r":
        begin_at(scene, "r", EARLIEST, 0)
    places = [("p", counter) for counter in range(1, last + 1)]
    scene.get(whose, 0, 1, *places, session=2)


@breaks("told-compacted-and-given", "purge", "what is compacted away comes to nobody", "alive")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    begin_at(scene, "r", EARLIEST, 0)
    marked = {"properties": "a" * 16, "keys": "b" * 16}
    for number in (1, 2):
        id_ = scene.id(number)
        scene.put("p", number, number, marked=[id_], keyed=[id_], **marked)
    begin_at(scene, "s", EARLIEST, 0)
    ids = {"first_id": scene.id(1), "last_id": scene.id(1)}
    scene.end(scene.begin_get("s", 0), "fail", error="compacted", **ids)
    scene.get("r", 0, 1, ("p", 1), ("p", 2))


@breaks("told-gone-and-leased", "purge", "what is gone comes to no worker", "alive")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    scene, before = group.scene, group.stored
    scene.sub("s", before)
    id_ = group.fresh()
    operate(scene, 2**53 - 1)
    own = {"error": "gap", "first_id": scene.id(before + 1), "last_id": id_}
    scene.end(scene.begin_get("s", before), "fail", **own)
    group.took("w", [id_, id_, 1])


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


@breaks("ack-of-what-was-given-back", "group_lease", "a nak ends a lease", "over")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_, token = _leased(history, rng)
    group.took("v", naks=[[token, id_, id_, rng.choice((0, LONG_MS))]])
    group.took("v", acks=[[token, id_, id_]])


@breaks("given-back-though-done", "group_lease", "what is done is not given back", "over")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_, token = _leased(history, rng)
    group.took("v", acks=[[token, id_, id_]])
    group.took("v", naks=[[token, id_, id_, 0]])


@breaks("extended-though-done", "group_lease", "what is settled is not extended", "over")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_, token = _leased(history, rng)
    said: Row = {"acks": [[token, id_, id_]], "naks": [[token, id_, id_, LONG_MS]]}
    fate = rng.choice(("acks", "naks"))
    group.took("v", **{fate: said[fate]})
    group.took("v", extends=[[token, id_, id_, LONG_MS]])


@breaks("nak-of-what-another-has", "group_lease", "the next lease ends the one before", "over")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_, token = _leased(history, rng)
    group.scene.pause(LONG_MS * 1_000_000)
    group.took("w", [id_, id_, 2])
    said: Row = {"naks": [[token, id_, id_, 0]], "extends": [[token, id_, id_, 1]]}
    fate = rng.choice(("naks", "extends"))
    group.took("v", **{fate: said[fate]})


@breaks("nak-of-a-stranger", "group_lease", "who has no lease gives nothing back", "foreign")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_, token = _leased(history, rng)
    own: Row = rng.choice(({"session": 1}, {"session": 2}))
    client = "w" if own["session"] == 1 else "v"
    group.took(client, naks=[[token, id_, id_, 0]], **own)


@breaks("extension-of-a-stranger", "group_lease", "who has no lease extends nothing", "foreign")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_, token = _leased(history, rng)
    extended = token + rng.randint(0, 1)
    client = "w" if extended == token else "v"
    group.took(client, extends=[[extended, id_, id_, LONG_MS]])


@breaks("letter-while-leased", "group_lease", "what is in hand is no dead letter", "shared")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = work(history, rng, 1)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    group.letters.append(group.stored)
    group.look()
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


@breaks("key-of-what-has-none", "key_order", "what was put without a key has none", "changed")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    group = broken(history, rng)
    first, scene = group.stored + 1, group.scene
    marked = {"marked": [scene.id(first)], "properties": "a" * 16}
    keyed = {"keyed": [scene.id(first)], "keys": "b" * 16}
    scene.put("q", 1, first, 2, **marked, **keyed)
    group.keys |= {first: "b" * 16, first + 1: "b" * 16}
    group.took("v", [scene.id(first), scene.id(first + 1), 1])


# --- groups: what they are told -------------------------------------------------------------------


@breaks("denied-what-a-worker-has", "stale_read", "what a worker was leased is known", "nothing")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    scene, asked = group.scene, group.stored
    scene.sub("s", asked)
    scene.unclear("q", 1)
    id_ = scene.id(asked + 1)
    group.took("v", [id_, id_, 1])
    if rng.random() < 0.5:
        scene.nothing("s", asked)
    else:
        invoke = scene.invoke("s", "get", "", max_count=9)
        scene.end(invoke, "ok", count=0, topic="", bytes=0)


@breaks(
    "worker-given-what-is-nowhere",
    "group_content",
    "what is nowhere is given to no worker",
    "aborted",
)
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.put("p", 1, 0)
    own = {"group": GROUP, "epoch": scene.epoch + 1}
    scene.end(scene.invoke("v", "group", **own), "ok", last_id=scene.base, resumed=False)
    take = scene.invoke("v", "take", **own, max_count=9, number=1)
    lease = {"token": 1, "leases": [[scene.id(1), scene.id(1), 1]], "left_ms": 5, "lease_ms": 5}
    scene.end(take, "ok", count=1, items=[[scene.id(1), "p", 1, 1]], **lease)


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


@breaks("letter-lost-to-one", "dead_letter", "a dead letter is owed to all who subscribed", "lost")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = work(history, rng, 1)
    scene, before = group.scene, len(group.letters)
    group.look()
    stands = {"last_id": before, "cursor": before, "resumed": False}
    scene.end(scene.invoke("q", "sub", group.dead), "ok", **stands)
    for _ in range(2):
        id_ = group.fresh()
        group.took("v", [id_, id_, 1])
        group.letters.append(group.stored)
    group.look()
    invoke = scene.invoke("q", "get", group.dead, last_id=before + 2)
    scene.end(invoke, "ok", count=0, topic=group.dead, bytes=0)


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
