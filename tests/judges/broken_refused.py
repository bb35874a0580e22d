"""What breaks one sentence of docs/checks.md that says what a refusal means for what comes after
it, or of docs/limits.md.

What lives here: the kinds, each a scene written behind a legal history: who is told that it is not
there and is answered all the same, who was there and is told that it is not, and what nobody may be
granted. What must not: any rule of a judge.
"""

from __future__ import annotations

import random

from tests.judges.broken_scenes import opening
from tests.judges.groups import GROUP
from tests.judges.history import MadeHistory, Row
from tests.judges.kinds import breaks, need
from tests.judges.readings import begin_at, followed, operate
from tests.judges.scene import SceneWriter

HOUR_MS = 3_600_000
DENIALS = ("not_subscribed", "unknown_topic")

# --- who is not there -----------------------------------------------------------------------------


def _denied(history: MadeHistory, rng: random.Random) -> SceneWriter:
    """Return a scene in which `s` left, was not answered, and was told that it is not there."""
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unsub("s", "info")
    scene.end(scene.begin_get("s", 0), "fail", error=rng.choice(DENIALS))
    return scene


@breaks("denied-and-answered", "subscription", "who is not there is told nothing", "unsubscribed")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = _denied(history, rng)
    if rng.random() < 0.5:
        scene.nothing("s", 0)
    else:
        scene.put("p", 1, 1)
        scene.get("s", 0, 1, ("p", 1))


@breaks("denied-and-found", "subscription", "what is not there is not found", "kept")
def _(history: MadeHistory, rng: random.Random) -> None:
    _denied(history, rng).sub("s", 0, resumed=True)


def _take(scene: SceneWriter, number: int) -> Row:
    return scene.invoke("v", "take", group=GROUP, number=number, max_count=9)


def _group_denied(history: MadeHistory, rng: random.Random) -> SceneWriter:
    """Return a scene with the same of a group."""
    need(not history.is_application)
    scene = opening(history, rng)
    made = {"last_id": scene.base, "resumed": False}
    scene.end(scene.invoke("v", "group", group=GROUP), "ok", **made)
    scene.end(scene.invoke("w", "ungroup", group=GROUP), "info")
    scene.end(_take(scene, 1), "fail", error=rng.choice(DENIALS))
    return scene


@breaks("group-denied-and-taken", "subscription", "no group gives nothing", "unsubscribed")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = _group_denied(history, rng)
    scene.end(_take(scene, 2), "ok", count=0)


@breaks("group-denied-and-found", "subscription", "no group is not found", "kept")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = _group_denied(history, rng)
    found = {"last_id": scene.base, "resumed": True}
    scene.end(scene.invoke("w", "group", group=GROUP), "ok", **found)


@breaks("refused-epoch-goes-on", "fencing", "an epoch that is over stays over")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    error = rng.choice(("fenced", "recovered", "forgotten"))
    scene.end(scene.begin_get("s", 0), "fail", error=error)
    scene.nothing("s", 0)


# --- who is there ---------------------------------------------------------------------------------


@breaks("no-topic-though-a-group-has-it", "subscription", "a group has its topic", "denied")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    made = {"last_id": scene.base, "resumed": False}
    scene.end(scene.invoke("v", "group", group=GROUP), "ok", **made)
    if rng.random() < 0.5:
        invoke = scene.begin_get("r", 0)
    else:
        invoke = scene.invoke("w", "take", group="another", number=1, max_count=9)
    scene.end(invoke, "fail", error="unknown_topic")


@breaks("known-client-is-unknown", "stale_read", "a client stays known", "client")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    invoke = scene.invoke("s", "unsub") if rng.random() < 0.5 else scene.begin_get("s", 0)
    scene.end(invoke, "fail", error="unknown_client")


@breaks("level-goes-back", "stale_read", "a feature level has no way back", "level")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    expires = {"expires": [[1, 1, HOUR_MS]]}
    put = scene.begin_put("p", 1, **expires)
    scene.stored(put, 1, expires=[[scene.id(1), scene.id(1), HOUR_MS]])
    if rng.random() < 0.5:
        invoke = scene.begin_put("p", 2, expires=[[2, 2, HOUR_MS]])
    else:
        invoke = scene.invoke("r", "sub", f"{scene.topic}.*")
    scene.end(invoke, "fail", error="unsupported")


# --- what nobody is granted -----------------------------------------------------------------------


@breaks("left-by-its-name", "subscription", "a pattern's topic is left with it", "left")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = followed(history, rng)
    scene.put("p", 1, 1)
    scene.sub("s", 0, resumed=True)
    scene.unsub("s")


@breaks("id-in-what-is-gone", "subscription", "who begins at an id finds it there", "start")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    operate(scene, scene.id(2))
    ids = {"first_id": scene.id(1), "last_id": scene.id(2)}
    scene.end(scene.begin_get("s", 0), "fail", error="purged", **ids)
    begin_at(scene, "r", str(scene.id(2)), 1)


@breaks("over-a-limit-of-all", "subscription", "nobody is granted more than the protocol", "limit")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    own: Row = {"group": GROUP}
    own |= rng.choice(({"lease_ms": 12 * HOUR_MS + 1}, {"max_attempts": 10_001}))
    made = {"last_id": scene.base, "resumed": False}
    scene.end(scene.invoke("v", "group", **own), "ok", **made)


@breaks("too-much-in-a-put", "subscription", "a batch, and an expiry, has a limit", "limit")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    if rng.random() < 0.5:
        scene.put("p", 1, 1, count=65_536 + rng.randint(1, 9))
    else:
        ms = 87_600 * HOUR_MS + rng.randint(1, 9)
        put = scene.begin_put("p", 1, expires=[[1, 1, ms]])
        scene.stored(put, 1, expires=[[scene.id(1), scene.id(1), ms]])
