"""Who begins elsewhere, seeks, follows patterns, asks for any topic: legal ones, and sabotage.

What lives here: two small models of what docs/protocol.md says of them, under a random schedule, in
topics of their own that keep all there ever was; and what breaks one sentence of it. What must not:
any rule of a judge.
"""

from __future__ import annotations

import random
from typing import Final

from tests.judges.history import MadeHistory, Row
from tests.judges.kinds import breaks, need
from tests.judges.scene import SceneWriter

STEPS: Final = 40
CAME_MAX: Final = 4
EARLIEST: Final = "earliest"


def begin_at(scene: SceneWriter, client: str, start: str, number: int, **fields: object) -> Row:
    """Write an acknowledged SUB with a start, that stands at the id of that number."""
    invoke = scene.invoke(client, "sub", start=start)
    return scene.subscribed(invoke, number, **fields)


def seek(scene: SceneWriter, client: str, start: str | None, number: int, outcome: str) -> None:
    """Write a seek to behind the id of that number: an UNSUB and a SUB at once."""
    said = {} if start is None else {"start": start}
    leaves, comes = scene.invoke(client, "unsub"), scene.invoke(client, "sub", **said)
    if outcome == "ok":
        scene.end(leaves, "ok")
        scene.subscribed(comes, number)
    else:
        scene.end(leaves, "info")
        scene.end(comes, "info")


class Roamer:
    """A subscriber that seeks, leaves and begins elsewhere, and a publisher to its topic."""

    def __init__(self, history: MadeHistory, rng: random.Random) -> None:
        self.scene, self.rng = SceneWriter(history, rng, "roam"), rng
        self.stored = 0
        self.cursor = self.told = 0  # what it has, and what the broker knows of that
        self.moved: int | None = None  # where a seek without an answer has put it
        self.session = 1

    def roam(self) -> None:
        """Do what chance has it do, then read to the end."""
        self.put()
        begin_at(self.scene, "s", EARLIEST, 0)
        for _ in range(STEPS):
            step = self.rng.choice((self.put, self.get, self.get, self.seek, self.come_back))
            step()
        while self.cursor < self.stored or self.moved is not None:
            self.get()
        self.scene.drained("s", self.stored)

    def put(self) -> None:
        """Publish one."""
        self.stored += 1
        self.scene.put("p", self.stored, self.stored)

    def get(self) -> None:
        """Read on; who was moved meanwhile is told so, and goes on from there."""
        invoke = self.scene.begin_get("s", self.cursor, session=self.session)
        if self.moved is not None:
            self.scene.end(invoke, "fail", error="moved")
            self.cursor = self.told = self.moved
            self.moved = None
        elif self.rng.random() < 0.2:
            self.scene.end(invoke, "info")
            self.told = self.rng.choice((self.told, self.cursor))
        else:
            came = self.rng.randint(1, CAME_MAX)
            first, last = self.cursor + 1, min(self.cursor + came, self.stored)
            self.told = self.cursor
            if first > last:
                self.scene.end(invoke, "ok", count=0, topic=self.scene.topic, bytes=0)
            else:
                places = [("p", number) for number in range(first, last + 1)]
                self.scene.brought(invoke, first, *places)
                self.cursor = last

    def seek(self) -> None:
        """Go elsewhere: to an id, to the earliest, to the end."""
        if self.moved is not None:
            return
        start, number = self.choice()
        if self.rng.random() < 0.8:
            seek(self.scene, "s", start, number, "ok")
            self.cursor = self.told = number
            return
        seek(self.scene, "s", start, number, "info")
        if start is not None and self.rng.random() < 0.5:
            self.moved = number

    def choice(self) -> tuple[str | None, int]:
        """Return a start, and behind which id that is."""
        number = self.rng.randint(0, self.stored)
        at_id = str(self.scene.id(number) + 1), number
        # Below the topic's base there was nothing, or it is gone: what is kept begins there.
        return self.rng.choice((at_id, at_id, (EARLIEST, 0), (None, self.stored)))

    def come_back(self) -> None:
        """Leave and begin at an id, or go on in another session."""
        if self.moved is not None:
            return
        if self.rng.random() < 0.5:
            start, number = self.choice()
            self.scene.unsub("s")
            begin_at(self.scene, "s", start or str(self.scene.id(number) + 1), number)
            self.cursor = self.told = number
            return
        self.session += 1
        invoke = self.scene.invoke("s", "sub", session=self.session)
        own = {"cursor": self.scene.id(self.told), "session": self.session}
        self.scene.subscribed(invoke, self.cursor, resumed=True, **own)


class PatternReader:
    """A subscriber to a pattern, and a publisher to topics of it and to another one."""

    def __init__(self, history: MadeHistory, rng: random.Random) -> None:
        self.scene, self.rng = SceneWriter(history, rng, "follow"), rng
        self.pattern = f"{self.scene.topic}.{rng.choice('*>')}"
        self.stored: dict[str, int] = {}
        self.had: dict[str, int] = {}
        self.begun: dict[str, int] = {}  # of topics not heard of yet: where it began there
        self.follows = False

    def read(self) -> None:
        """Do what chance has it do."""
        for _ in range(STEPS):
            step = self.rng.choice((self.put, self.put, self.get, self.get, self.come_or_go))
            step()
        if self.follows:
            for topic, last in self.stored.items():
                while self.place(topic) < last:
                    self.brought(topic)
            self.leave()

    def put(self) -> None:
        """Publish one, to nobody if nobody follows."""
        topic = f"{self.scene.topic}.{self.rng.choice('ab')}"
        if self.rng.random() < 0.2:
            topic = f"{self.scene.topic}-else"
        invoke = self.scene.invoke("p", "put", topic, counter=self.count(topic), count=1)
        is_heard = self.follows and topic.startswith(f"{self.scene.topic}.")
        if is_heard:
            self.stored[topic] = self.stored.get(topic, 0) + 1
        id_ = self.stored[topic] if is_heard else 0
        ids = {"first_id": id_, "last_id": id_, "duplicate": False}
        self.scene.end(invoke, "ok", **ids)

    def place(self, topic: str) -> int:
        """Return what the reader of the pattern has of a topic."""
        return self.had.get(topic, self.begun.get(topic, 0))

    def count(self, topic: str) -> int:
        """Return the publisher's next counter in a topic."""
        rows = self.scene.history.rows
        own = [row for row in rows if row.get("topic") == topic and row.get("f") == "put"]
        return 1 + sum(row["type"] == "invoke" for row in own)

    def come_or_go(self) -> None:
        """Subscribe to the pattern, or leave it with all topics that it has brought."""
        if not self.follows:
            invoke = self.scene.invoke("r", "sub", self.pattern)
            self.scene.end(invoke, "ok", last_id=0, cursor=0, resumed=False)
            self.follows, self.had, self.begun = True, {}, dict(self.stored)
            for topic, last in self.stored.items():
                if self.rng.random() < 0.5:
                    self.hear(topic, last)
        elif self.rng.random() < 0.3:
            self.leave()

    def leave(self) -> None:
        """End the pattern, and with it what it has brought."""
        names = (self.pattern, *self.had)
        for invoke in [self.scene.invoke("r", "unsub", name) for name in names]:
            self.scene.end(invoke, "ok")
        self.follows = False

    def hear(self, topic: str, cursor: int) -> None:
        """Write what a library writes of a topic that a pattern has brought."""
        invoke = self.scene.invoke("r", "sub", topic)
        self.scene.end(invoke, "ok", last_id=cursor, cursor=cursor, resumed=True)
        self.had[topic] = cursor

    def get(self) -> None:
        """Ask for any topic."""
        waiting = [name for name, last in self.stored.items() if self.place(name) < last]
        if not self.follows:
            return
        if waiting:
            self.brought(self.rng.choice(waiting))
            return
        invoke = self.scene.invoke("r", "get", "", max_count=9)
        self.scene.end(invoke, "ok", count=0, topic="", bytes=0)

    def brought(self, topic: str) -> int:
        """Let a GET of any topic bring the next one of this topic; return its id."""
        invoke = self.scene.invoke("r", "get", "", max_count=9)
        if topic not in self.had:
            self.hear(topic, self.place(topic))
        cursor = self.had[topic]
        id_ = self.had[topic] = cursor + 1
        # Counters of what nobody heard are taken as well, and stand nowhere.
        counter = self.counter_of(topic, id_)
        row = {"topic": topic, "first_id": id_, "last_id": id_, "count": 1, "bytes": 9}
        content = {"items": [[id_, "p", counter, 1]], "cursor": cursor}
        self.scene.end(invoke, "ok", **row, **content)
        return id_

    def counter_of(self, topic: str, id_: int) -> int:
        """Return the counter of what stands under an id."""
        rows = self.scene.history.rows
        own = (row for row in rows if row.get("topic") == topic and row.get("f") == "put")
        return next(row["counter"] for row in own if row.get("first_id") == id_)


def wander(history: MadeHistory, rng: random.Random) -> None:
    """Write legal readers that begin elsewhere, or follow patterns, into a history."""
    before = len(history.scenes)
    if rng.random() < 0.5:
        Roamer(history, rng).roam()
    elif not history.is_application and not history.truth:
        PatternReader(history, rng).read()
    for scene in history.scenes[before:]:
        scene.on_disks()
    del history.scenes[before:]  # they are no sabotage


# --- sabotage: starts and seeks -------------------------------------------------------------------


@breaks("lost-behind-a-start", "lost", "who begins elsewhere is owed what comes behind it")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = SceneWriter(history, rng)
    begin_at(scene, "s", EARLIEST, 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    scene.get("s", 0, 1, ("p", 1))
    scene.get("s", 2, 3, ("p", 3))


@breaks("start-lands-elsewhere", "subscription", "a subscription begins where it is said", "start")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = SceneWriter(history, rng)
    scene.sub("r", 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    said, stands = rng.sample((0, 1, 2, 3), 2)
    begin_at(scene, "s", str(scene.id(said) + 1), stands)


@breaks("lost-behind-a-seek", "lost", "who has sought is owed what comes behind it", "prefix")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    seek(scene, "s", str(scene.id(2)), 1, "ok")
    scene.get("s", 2, 3, ("p", 3))


@breaks("lost-to-the-second-reading", "lost", "a reading is owed what one before it had", "middle")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    all_of_it = [("p", number) for number in (1, 2, 3)]
    for _, number in all_of_it:
        scene.put("p", number, number)
    scene.get("s", 0, 1, *all_of_it)
    if rng.random() < 0.5:
        seek(scene, "s", EARLIEST, 0, "ok")
    else:
        scene.unsub("s")
        begin_at(scene, "s", EARLIEST, 0)
    scene.get("s", 0, 1, ("p", 1))
    scene.put("p", 4, 4)
    scene.get("s", 3, 4, ("p", 4), session=2)


@breaks(
    "denied-below-where-it-began", "stale_read", "who has sought back has what is there", "nothing"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = SceneWriter(history, rng)
    scene.sub("r", 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    scene.sub("s", 3)
    seek(scene, "s", EARLIEST, 0, "ok")
    scene.nothing("s", 0)


@breaks("back-without-a-seek", "cursor_regression", "a reading goes on from its cursor", "asked")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = SceneWriter(history, rng)
    begin_at(scene, "s", EARLIEST, 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    scene.get("s", 0, 1, ("p", 1), ("p", 2))
    scene.get("s", 2, 3, ("p", 3))
    scene.get("s", 1, 2, ("p", 2), ("p", 3))


# --- sabotage: gaps, any topic, garbage -----------------------------------------------------------


def operate(scene: SceneWriter, last_id: int) -> None:
    """Write that a topic may lose all up to an id."""
    scene.single("operator", "purge", process=f"{scene.name}-operator", last_id=last_id)


@breaks(
    "told-gone-and-given", "purge", "what somebody was told is gone is given to nobody", "alive"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.sub("r", 0)
    for number in (1, 2, 3):
        scene.put("p", number, number)
    operate(scene, 2**53 - 1)
    invoke = scene.begin_get("s", 0)
    ids = {"first_id": scene.id(1), "last_id": scene.id(2)}
    scene.end(invoke, "fail", error="gap", **ids)
    scene.get("r", 0, 1, *(("p", number) for number in (1, 2, 3)))


@breaks(
    "any-topic-denied", "stale_read", "a GET of any topic brings what one of them has", "nothing"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    invoke = scene.invoke("s", "get", "", max_count=9)
    scene.end(invoke, "ok", count=0, topic="", bytes=0)


@breaks("collected-unread", "lost", "nodes keep what somebody has not read")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    scene = SceneWriter(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    collect(history, rng, scene, 2)


def collect(history: MadeHistory, rng: random.Random, scene: SceneWriter, number: int) -> None:
    """Let a node say that it has collected a topic up to the id of that number."""
    node = rng.choice(sorted(history.truth))
    floor = {"kind": "topic", "topic": scene.topic, "floor_id": scene.id(number)}
    own = {"run_id": history.run_id, "node": node, "last_id": scene.id(number)}
    history.truth[node].append({**own, **floor})


# --- sabotage: patterns ---------------------------------------------------------------------------


def followed(history: MadeHistory, rng: random.Random) -> SceneWriter:
    """Return a scene in whose topic nothing was put before `s` followed a pattern of it."""
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.topic, scene.base = f"{scene.topic}.a", 0
    scene.end(
        scene.invoke("s", "sub", f"{scene.topic[:-1]}{rng.choice('*>')}"),
        *("ok",),
        last_id=0,
        cursor=0,
        resumed=False,
    )
    return scene


@breaks("pattern-misses-a-topic", "subscription", "a pattern has each topic that fits", "missed")
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = followed(history, rng)
    if rng.random() < 0.5:
        scene.put("p", 1, 0)
    else:
        scene.sub("r", 0)
        scene.put("p", 1, 1)
    invoke = scene.invoke("s", "get", "", max_count=9)
    scene.end(invoke, "ok", count=0, topic="", bytes=0)


@breaks(
    "pattern-without-its-first", "subscription", "a pattern has a topic from its first", "missed"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = followed(history, rng)
    for number in (1, 2):
        scene.put("p", number, number)
    scene.sub("s", 1, resumed=True)
    scene.get("s", 1, 2, ("p", 2))


def _followed_later(history: MadeHistory, rng: random.Random) -> SceneWriter:
    """Return a scene in whose topic one publication stood before `s` followed a pattern of it."""
    need(not history.is_application)
    scene = SceneWriter(history, rng)
    scene.topic, scene.base = f"{scene.topic}.a", 0
    scene.sub("r", 0)
    scene.put("p", 1, 1)
    invoke = scene.invoke("s", "sub", f"{scene.topic[:-1]}{rng.choice('*>')}")
    scene.end(invoke, "ok", last_id=0, cursor=0, resumed=False)
    return scene


@breaks(
    "pattern-misses-what-was-there", "subscription", "a pattern has what was there before", "missed"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = _followed_later(history, rng)
    scene.put("p", 2, 2)
    invoke = scene.invoke("s", "get", "", max_count=9)
    scene.end(invoke, "ok", count=0, topic="", bytes=0)


@breaks(
    "pattern-behind-what-was-put", "subscription", "a pattern begins at its SUB's end", "missed"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    scene = _followed_later(history, rng)
    count = rng.randint(1, 3)
    scene.put("p", 2, 2, count)
    scene.sub("s", 1 + rng.randint(1, count), resumed=True)


@breaks(
    "pattern-misses-what-is-delayed", "subscription", "a pattern is owed what is delayed", "missed"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.truth)
    scene = followed(history, rng)
    said = {"delays": [[1, 1, 60_000]], "counter": 1, "count": 1}
    invoke = scene.invoke("p", "put", f"{scene.topic}\x1fdelayed", **said)
    scene.end(invoke, "ok", first_id=0, last_id=0, duplicate=False)
    invoke = scene.invoke("s", "get", "", max_count=9)
    scene.end(invoke, "ok", count=0, topic="", bytes=0)
