"""Delays in made histories: a correct cluster lets in what is due, in a topic of its own; sabotage.

What lives here: a small model of a lane (docs/decisions/0029-delay.md), who puts to it and who
reads the topic under a random schedule, and what they record; and what breaks one sentence of it.
What must not: any rule of a judge.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from tests.judges.history import MadeHistory, Row
from tests.judges.kinds import breaks, need
from tests.judges.scene import SceneWriter

NS_OF_MS: Final = 1_000_000
DELAYS_MS: Final = (1, 100, 100, 1_000, 5_000)
STEPS: Final = 50
LONG_NS: Final = 10_000 * NS_OF_MS  # all that waits is due by then
SUFFIX: Final = "\x1fdelayed"

Stood = tuple[str, str, int]  # kind of its run, producer, counter


@dataclass
class WaitingOne:
    """A publication that waits."""

    due_ns: int
    place: int
    producer: str
    counter: int


@dataclass
class LaneReader:
    """A subscriber: what it has, and how often it was restarted."""

    name: str
    had: int = 0
    session: int = 1


class ModelLane:
    """A topic with its lane, producers of both, readers, and a group with one worker."""

    def __init__(self, history: MadeHistory, rng: random.Random, name: str) -> None:
        self.scene = SceneWriter(history, rng, name)
        self.rng = rng
        self.lane = f"{self.scene.topic}{SUFFIX}"
        self.stood: list[Stood] = []
        self.waiting: list[WaitingOne] = []
        self.places = 0
        self.says_delays = rng.random() < 0.8
        self.counters: dict[tuple[str, str], int] = {}
        self.readers = [LaneReader(f"{name}-r{n}") for n in range(rng.randint(1, 2))]
        self.number = self.token = self.worked = self.acked = 0
        self.has_group = rng.random() < 0.5

    # --- the cluster ------------------------------------------------------------------------------

    def enter(self) -> None:
        """Let in what is due by now, as any entry does first."""
        due = [one for one in self.waiting if one.due_ns <= self.scene.t_ns]
        for one in sorted(due, key=lambda each: (each.due_ns, each.place)):
            self.stood.append(("delayed", one.producer, one.counter))
            self.waiting.remove(one)

    def brings(self, after: int, count: int) -> Row:
        """Return what an answer says that brings so many from behind a number on."""
        rows: dict[str, list[list[Any]]] = {"items": [], "delayed": []}
        last = min(after + count, len(self.stood))
        for number in range(after + 1, last + 1):
            kind, producer, counter = self.stood[number - 1]
            runs, id_ = rows[kind], self.scene.id(number)
            first, whose, begun, length = runs[-1] if runs else (0, "", 0, 0)
            if (first + length, whose, begun + length) == (id_, producer, counter):
                runs[-1][3] += 1
            else:
                runs.append([id_, producer, counter, 1])
        found: Row = {"count": last - after, "items": rows["items"]}
        return found | ({"delayed": rows["delayed"]} if rows["delayed"] else {})

    # --- clients ----------------------------------------------------------------------------------

    def work(self) -> ModelLane:
        """Do everything at random."""
        for reader in self.readers:
            self.scene.sub(reader.name, 0)
        if self.has_group:
            self.asks_group(0, resumed=False)
        for _ in range(STEPS):
            steps = (self.delays, self.delays, self.puts, self.reads, self.reads, self.rests)
            self.rng.choice((*steps, self.crashes, self.works))()
        return self

    def rests(self) -> None:
        """Let some time go by."""
        self.scene.t_ns += self.rng.choice((1, 50, 500)) * NS_OF_MS

    def next_counter(self, producer: str, topic: str, count: int) -> int:
        """Return the first of a run of counters."""
        taken = self.counters.get((producer, topic), 0)
        self.counters[producer, topic] = taken + count
        return taken + 1

    def puts(self) -> None:
        """Put at once."""
        producer, count = self.rng.choice(("p", "q")), self.rng.choice((1, 1, 3))
        counter = self.next_counter(producer, self.scene.topic, count)
        invoke = self.scene.begin_put(producer, counter, count)
        self.enter()
        number = len(self.stood) + 1
        self.stood += [("items", producer, counter + n) for n in range(count)]
        self.scene.stored(invoke, number)

    def delays(self) -> None:
        """Put with a delay: sometimes without an answer, and again."""
        producer, count = self.rng.choice(("p", "q")), self.rng.choice((1, 1, 2))
        counter = self.next_counter(producer, self.lane, count)
        ms = self.rng.choice(DELAYS_MS)
        if self.rng.random() < 0.2:
            refused = self.invoked(producer, counter, count, ms)
            self.scene.end(refused, "fail")
        invoke = self.invoked(producer, counter, count, ms)
        self.enter()
        first = self.stored(producer, counter, count, ms)
        told = {"first_id": first, "last_id": first + count - 1, "duplicate": False}
        chance = self.rng.random()
        if chance < 0.6:
            self.scene.end(invoke, "ok", **told)
            return
        if chance < 0.8:
            self.scene.end(invoke, "info")
        if chance < 0.9:
            again = self.invoked(producer, counter, count, ms)
            self.scene.end(again, "ok", **told | {"duplicate": True})

    def invoked(self, producer: str, counter: int, count: int, ms: int) -> Row:
        """Begin a PUT with a delay."""
        said = {"delays": [[counter, counter + count - 1, ms]]} if self.says_delays else {}
        own = {"counter": counter, "count": count, **said}
        return self.scene.invoke(producer, "put", self.lane, **own)

    def stored(self, producer: str, counter: int, count: int, ms: int) -> int:
        """Have it wait; return its first place."""
        first = self.places + 1
        due_ns = self.scene.t_ns + ms * NS_OF_MS
        for n in range(count):
            self.waiting.append(WaitingOne(due_ns, first + n, producer, counter + n))
        self.places += count
        return first

    def reads(self) -> None:
        """Let a reader ask once."""
        self.read(self.rng.choice(self.readers), self.rng.choice((1, 3, 50)))

    def read(self, reader: LaneReader, count: int) -> None:
        """Ask for up to so many."""
        own = {"session": reader.session, "max_count": count}
        invoke = self.scene.begin_get(reader.name, reader.had, **own)
        self.enter()
        brought = self.brings(reader.had, count)
        topic = {"topic": self.scene.topic, "bytes": 9}
        if brought["count"]:
            first = self.scene.id(reader.had + 1)
            topic |= {"first_id": first, "last_id": first + brought["count"] - 1}
        self.scene.end(invoke, "ok", **topic, **brought)
        reader.had += brought["count"]

    def crashes(self) -> None:
        """Let a reader come back, with what it had."""
        reader = self.rng.choice(self.readers)
        reader.session += 1

    def works(self) -> None:
        """Let the worker take, and acknowledge what it had."""
        if not self.has_group:
            return
        acks = []
        if self.worked > self.acked:
            run = self.scene.id(self.acked + 1), self.scene.id(self.worked)
            acks = [[self.token, *run]]
        self.number += 1
        said = {"group": "g", "number": self.number, "max_count": 9, "acks": acks}
        invoke = self.scene.invoke(f"{self.scene.name}-w", "take", **said)
        self.enter()
        self.acked = self.worked
        brought = self.brings(self.worked, 9)
        if brought["count"]:
            self.token += 1
            run = self.scene.id(self.worked + 1), self.scene.id(self.worked + brought["count"])
            brought |= {"token": self.token, "leases": [[*run, 1]], "left_ms": 60_000}
        self.scene.end(invoke, "ok", **brought)
        self.worked += brought["count"]

    def asks_group(self, number: int, resumed: bool) -> None:
        """Make the group, or ask up to where it is settled."""
        invoke = self.scene.invoke(f"{self.scene.name}-w", "group", group="g")
        self.scene.end(invoke, "ok", last_id=self.scene.id(number), resumed=resumed)

    def drain(self) -> None:
        """Let all that waits come, and everybody have it."""
        self.scene.t_ns += LONG_NS
        for reader in self.readers:
            while True:
                self.read(reader, 50)
                if reader.had == len(self.stood):
                    break
            self.scene.drained(reader.name, reader.had)
        while self.has_group and self.acked < len(self.stood):
            self.works()
        if self.has_group:
            self.asks_group(self.acked, resumed=True)
            last_id = self.scene.id(self.acked)
            name = f"{self.scene.name}-w"
            self.scene.single(name, "phase", phase="settled", group="g", last_id=last_id)

    def on_disks(self) -> None:
        """Let every node have all of it."""
        for node, rows in self.scene.history.truth.items():
            common = {"run_id": self.scene.history.run_id, "node": node}
            last_id, base = self.scene.id(len(self.stood)), self.scene.base
            ends = {"kind": "topic", "topic": self.scene.topic}
            rows.append({**common, **ends, "last_id": last_id, "floor_id": base})
            for number, (kind, producer, counter) in enumerate(self.stood, start=1):
                if kind == "items":
                    held = {"kind": "held", "topic": self.scene.topic, "producer": producer}
                    place = {"first_id": self.scene.id(number), "first_counter": counter}
                    rows.append({**common, **held, **place, "count": 1})
            for (producer, topic), counter in self.counters.items():
                taken = {"kind": "counter", "producer": producer, "topic": topic}
                rows.append({**common, **taken, "counter": counter})


def postpone(history: MadeHistory, rng: random.Random) -> None:
    """Write a legal topic with what was delayed into a history, and into nodes' disks."""
    if history.is_application:
        return
    lane = ModelLane(history, rng, "later").work()
    if rng.random() < 0.8:
        lane.drain()
    lane.on_disks()
    history.scenes.remove(lane.scene)  # it is no sabotage
    history.finished |= {lane.scene.topic, lane.lane}  # an answer has runs of two kinds there


# --- sabotage -------------------------------------------------------------------------------------


class BrokenLane:
    """A few steps in a topic of its own, for what breaks one sentence."""

    def __init__(self, history: MadeHistory, rng: random.Random) -> None:
        self.scene = SceneWriter(history, rng)
        self.lane = f"{self.scene.topic}{SUFFIX}"
        self.ms = rng.choice(DELAYS_MS[1:])

    def put(self, counter: int, place: int, outcome: str = "ok", **told: Any) -> Row:
        """Let `p` put with a delay; its place 0: nobody subscribes."""
        said = {"delays": [[counter, counter, self.ms]], "counter": counter, "count": 1}
        invoke = self.scene.invoke("p", "put", self.lane, **said)
        ids = {"first_id": place, "last_id": place, "duplicate": False}
        return self.scene.end(invoke, outcome, **((ids if outcome == "ok" else {}) | told))

    def due(self) -> None:
        """Let all that was put be due."""
        self.scene.t_ns += 2 * self.ms * NS_OF_MS

    def got(self, client: str, asked: int, *counters: int, **told: Any) -> Row:
        """Let a subscriber be given these of `p`'s lane behind a number."""
        first = self.scene.id(asked + 1)
        runs = [[first + n, "p", counter, 1] for n, counter in enumerate(counters)]
        ids = {"first_id": first, "last_id": first + len(runs) - 1, "count": len(runs)}
        own = {"session": told.pop("session", 1)}
        invoke = self.scene.begin_get(client, asked, **own)
        row = {"topic": self.scene.topic, "bytes": 9, "items": [], "delayed": runs}
        return self.scene.end(invoke, "ok", **row, **ids, **told)


def opened(history: MadeHistory, rng: random.Random, *clients: str) -> BrokenLane:
    """Return a topic with these subscribers. Raises NoRoom if nobody is named in the history."""
    need(not history.is_application)
    lane = BrokenLane(history, rng)
    for client in clients:
        lane.scene.sub(client, 0)
    return lane


@breaks("delayed-too-early", "delayed", "what is delayed comes when that is over", "early")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    lane.ms = 60_000
    lane.put(1, 1)
    lane.got("s", 0, 1)


@breaks("delayed-and-given-twice", "delayed", "what was delayed comes once", "twice")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    lane.put(1, 1)
    lane.due()
    lane.got("s", 0, 1)
    lane.got("s", 1, 1)


@breaks("delayed-and-overtaken", "delayed", "what is due comes in the order of places", "order")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    outcome = rng.choice(("ok", "info"))
    lane.put(1, 1, outcome)
    lane.put(2, 2)
    lane.due()
    lane.got("s", 0, 2, 1)


@breaks("delayed-and-lost", "delayed", "what is ahead of what came has come", "lost")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    outcome = rng.choice(("ok", "info"))
    lane.put(1, 1, outcome)
    lane.put(2, 2)
    lane.due()
    lane.got("s", 0, 2)


@breaks("delayed-and-lost-to-one", "delayed", "what came is owed to all who subscribed", "lost")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s", "r")
    lane.put(1, 1)
    lane.put(2, 2)
    lane.due()
    lane.got("s", 0, 1, 2)
    lane.got("r", 1, 2)


@breaks("delayed-and-stored-nowhere", "delayed", "what is delayed is stored for all", "unstored")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    lane.put(1, 0)


@breaks("delayed-by-nobody", "delayed", "what came with a delay was put with one", "phantom")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    lane.put(1, 1)
    lane.due()
    lane.got("s", 0, 1, 2)


@breaks("delayed-though-it-failed", "delayed", "what failed does not come later", "aborted")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng)
    if rng.random() < 0.5:
        lane.put(1, 1, "fail")
    else:
        lane.put(1, 0)
    lane.due()
    lane.scene.sub("s", 0)
    lane.got("s", 0, 1)


@breaks("delayed-and-not-yet-put", "delayed", "nothing comes before it was put", "future")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    lane.got("s", 0, 1)
    lane.put(1, 1)


@breaks("delayed-under-another-s-id", "delayed", "what comes has an id of its own", "other")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s", "r")
    lane.put(1, 1)
    lane.due()
    lane.scene.put("q", 1, 1)
    lane.got("s", 0, 1)


@breaks("delayed-with-another-key", "delayed", "what comes has the key it was put with", "content")
def _(history: MadeHistory, rng: random.Random) -> None:
    lane = opened(history, rng, "s")
    lane.put(1, 1, marked=[1], properties="a" * 16)
    lane.due()
    id_ = lane.scene.id(1)
    said: Row = {"times": [[id_, id_, 1_700_000_000_000]]}
    if rng.random() < 0.5:
        said |= {"marked": [id_], "properties": "b" * 16}
    lane.got("s", 0, 1, **said)
