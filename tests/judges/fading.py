"""What goes in made histories: expired, purged, dropped, compacted away, in a topic of its own.

What lives here: a small model of a topic that loses things, its readers, who are told so, and a
worker, under a random schedule. What must not: any rule of a judge; sabotage (broken_more.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from tests.judges.groups import GROUP, NS_OF_MS
from tests.judges.history import MadeHistory, Row
from tests.judges.readings import EARLIEST, begin_at, operate
from tests.judges.scene import SceneWriter

STEPS: Final = 60
READERS_MAX: Final = 4
COMING_SHARE: Final = 0.3
EXPIRE_MS: Final = (1, 200, 2_000)
ANY_ID: Final = 2**53 - 1
EXPIRED, PURGED, DROPPED, COMPACTED = "expired", "purged", "gap", "compacted"


@dataclass
class FadingReader:
    """A subscriber: what it has, and the GET that is under way with its answer, if it has one."""

    name: str
    had: int = 0
    invoke: Row | None = None
    answer: Row | None = None


class FadingTopic:
    """A topic of one manner of losing things, who puts to it, who reads it, who works in it."""

    def __init__(self, history: MadeHistory, rng: random.Random) -> None:
        self.scene, self.rng = SceneWriter(history, rng, "fade"), rng
        self.is_named = not history.is_application
        self.has_phases = any(row.get("f") == "phase" for row in history.rows)
        manners = (EXPIRED, COMPACTED, PURGED, DROPPED)
        self.manner = rng.choice(manners if self.is_named else manners[:2])
        self.stored = 0
        self.due_ns: dict[int, int] = {}  # by number: when it expires
        self.keys: dict[int, str] = {}
        self.gone: set[int] = set()
        self.readers: list[FadingReader] = []
        self.worked = self.acked = self.takes = self.token = 0
        self.leased: list[int] = []  # of the last TAKE

    # --- the cluster ------------------------------------------------------------------------------

    def fade(self) -> None:
        """Lose what is due by now."""
        self.scene.pause()
        now_ns = self.scene.t_ns
        self.gone |= {number for number, due_ns in self.due_ns.items() if due_ns <= now_ns}
        if self.manner == COMPACTED:
            read = min((reader.had for reader in self.readers), default=self.stored)
            latest = {key: number for number, key in self.keys.items()}
            own = range(1, min(read, self.worked) + 1)
            self.gone |= {n for n in own if n in self.keys and latest[self.keys[n]] != n}

    def run_of(self, first: int, is_gone: bool) -> int:
        """Return the last number of a run that is gone, or is there."""
        last = first
        while last < self.stored and (last + 1 in self.gone) == is_gone:
            last += 1
        return last

    # --- clients ----------------------------------------------------------------------------------

    def live(self) -> None:
        """Do what chance has everybody do, then let all read to the end."""
        self.come()
        if self.manner == DROPPED:
            operate(self.scene, ANY_ID)
        self.ask_group(resumed=False)
        for _ in range(STEPS):
            steps = (self.put, self.put, self.read, self.read, self.read, self.work, self.lose)
            self.rng.choice((*steps, self.come))()
        self.finish()

    def come(self) -> None:
        """Let somebody subscribe, now and then, from the earliest on."""
        count = len(self.readers)
        if count == 0 or (count < READERS_MAX and self.rng.random() < COMING_SHARE):
            # What was purged or dropped is gone for good. Of the rest it is told.
            is_for_good = self.manner in (PURGED, DROPPED)
            kept_behind = max(self.gone, default=0) if is_for_good else 0
            self.readers.append(FadingReader(f"fader{len(self.readers)}", kept_behind))
            begin_at(self.scene, self.readers[-1].name, EARLIEST, kept_behind)

    def put(self) -> None:
        """Publish some: to expire, or with a key."""
        first, count = self.stored + 1, self.rng.choice((1, 1, 3))
        numbers = range(first, first + count)
        ids = {number: self.scene.id(number) for number in numbers}
        ms = self.rng.choice(EXPIRE_MS)
        expires = self.manner == EXPIRED and self.rng.random() < 0.7
        said = {"expires": [[first, first + count - 1, ms]]} if expires else {}
        invoke = self.scene.begin_put("p", first, count, **said)
        self.scene.pause()
        self.stored += count
        told: Row = {}
        if expires:
            self.due_ns |= dict.fromkeys(numbers, self.scene.t_ns + ms * NS_OF_MS)
            told = {"expires": [[ids[first], ids[first + count - 1], ms]]}
        if self.manner == COMPACTED:
            keys = {number: self.rng.choice("abc") * 16 for number in numbers}
            keys = {number: key for number, key in keys.items() if self.rng.random() < 0.8}
            self.keys |= keys
            if keys:
                marked, every = [ids[number] for number in keys], "".join(keys.values())
                told = {"marked": marked, "properties": every, "keyed": marked, "keys": every}
        self.scene.stored(invoke, first, **told)

    def lose(self) -> None:
        """Let some time go by, or an operator purge, or a policy drop the oldest."""
        if self.manner == EXPIRED:
            self.scene.pause(self.rng.choice(EXPIRE_MS) * NS_OF_MS)
        last = self.rng.randint(0, self.stored)
        if self.manner == DROPPED:
            self.gone |= set(range(1, last + 1))
        if self.manner == PURGED and last:
            row = {"process": f"{self.scene.name}-operator", "last_id": self.scene.id(last)}
            self.scene.single("operator", "purge", **row)
            self.gone |= set(range(1, last + 1))
            self.scene.single("operator", "purged", **row)

    def read(self) -> None:
        """Let a reader ask, have that carried out, or be answered."""
        reader = self.rng.choice(self.readers)
        if reader.invoke is None:
            reader.invoke = self.scene.begin_get(reader.name, reader.had)
        elif reader.answer is None:
            reader.answer = self.answered(reader)
        else:
            self.tell(reader)

    def answered(self, reader: FadingReader) -> Row:
        """Return what a GET comes to now: from where, up to where, and whether that is gone."""
        self.fade()
        first = reader.had + 1
        is_gone = first in self.gone
        last = self.run_of(first, is_gone) if first <= self.stored else reader.had
        if not is_gone:
            last = min(last, reader.had + self.rng.choice((1, 3, 50)))
        return {"first": first, "last": last, "is_gone": is_gone}

    def tell(self, reader: FadingReader) -> None:
        """End a reader's GET."""
        invoke, answer = reader.invoke, reader.answer
        assert invoke is not None, reader
        assert answer is not None, reader
        reader.invoke = reader.answer = None
        first, last = answer["first"], answer["last"]
        if answer["is_gone"]:
            knows = reader.name != "fader1"  # who knows no expiry is told of a gap
            error = self.manner if knows or self.manner != EXPIRED else DROPPED
            ids = {"first_id": self.scene.id(first), "last_id": self.scene.id(last)}
            self.scene.end(invoke, "fail", error=error, **ids)
        elif last < first:
            self.scene.end(invoke, "ok", count=0, topic=self.scene.topic, bytes=0)
        else:
            places = [("p", number) for number in range(first, last + 1)]
            self.scene.brought(invoke, first, *places)
        reader.had = last

    # --- the worker -------------------------------------------------------------------------------

    def ask_group(self, resumed: bool) -> None:
        """Make the group, or ask up to where it is settled."""
        own: Row = {"compacted": True} if self.manner == COMPACTED else {}
        own |= {"last_id": self.scene.id(self.acked), "resumed": resumed}
        self.scene.end(self.scene.invoke("v", "group", group=GROUP), "ok", **own)

    def work(self) -> None:
        """Let the worker acknowledge what it has, and take what is there."""
        self.takes += 1
        said: Row = {"group": GROUP, "number": self.takes, "max_count": 9}
        said["acks"] = [
            [self.token, self.scene.id(number), self.scene.id(number)] for number in self.leased
        ]
        invoke = self.scene.invoke("v", "take", **said)
        self.fade()
        self.acked = self.worked
        numbers = range(self.worked + 1, min(self.stored, self.worked + 9) + 1)
        self.leased = [number for number in numbers if number not in self.gone]
        self.worked = max(numbers, default=self.worked)
        if not self.leased:
            self.acked = self.worked
        self.token += bool(self.leased)
        self.scene.end(invoke, "ok", count=len(self.leased), **self.brought())

    def brought(self) -> Row:
        """Return what an answer says of what it leases."""
        if not self.leased:
            return {}
        ids = {number: self.scene.id(number) for number in self.leased}
        told: dict[str, Any] = {"token": self.token, "left_ms": 60_000, "lease_ms": 60_000}
        told["leases"] = [[id_, id_, 1] for id_ in ids.values()]
        if self.is_named:
            told["items"] = [[id_, "p", number, 1] for number, id_ in ids.items()]
        if keyed := [number for number in self.leased if number in self.keys]:
            told["keyed"] = [ids[number] for number in keyed]
            told["keys"] = "".join(self.keys[number] for number in keyed)
        return told

    def finish(self) -> None:
        """Let everybody have what is left, and say so in a run that has phases."""
        for reader in self.readers:
            while reader.had < self.stored or reader.invoke is not None:
                if reader.invoke is None:
                    reader.invoke = self.scene.begin_get(reader.name, reader.had)
                reader.answer = reader.answer or self.answered(reader)
                self.tell(reader)
            if self.has_phases:
                self.scene.drained(reader.name, self.stored)
        while self.acked < self.stored:
            self.work()
        self.ask_group(resumed=True)
        if self.has_phases:
            told = {"phase": "settled", "group": GROUP, "last_id": self.scene.id(self.acked)}
            self.scene.single("v", "phase", **told)


def lose_some(history: MadeHistory, rng: random.Random) -> None:
    """Write a legal topic that loses things into a history, and into nodes' disks."""
    topic = FadingTopic(history, rng)
    topic.live()
    topic.scene.on_disks()
    history.scenes.remove(topic.scene)  # it is no sabotage
    history.finished.add(topic.scene.topic)  # what one is told of it rests on all of it
