"""Groups in made histories: workers of a correct cluster in a topic of their own, and sabotage.

What lives here: a small model of a group (docs/decisions/0022-groups.md), its workers under a
random schedule, who are slow, crash, come back and ask again, and what they record; and what breaks
one sentence of it. What must not: any rule of a judge.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

from tests.judges.history import MadeHistory, Row
from tests.judges.kinds import breaks, hides, need
from tests.judges.scene import SceneWriter

GROUP: Final = "g"
NS_OF_MS: Final = 1_000_000
LEASES_MS: Final = (300, 1_000, 5_000)  # of a group: some run out, some do not
STEPS: Final = 60
LONG_MS: Final = 3_600_000


@dataclass
class ModelLease:
    """An open publication: whose it is until when ("": nobody's, and due then)."""

    client: str
    token: int
    until_ns: int
    attempt: int


@dataclass
class ModelTake:
    """A TAKE on its way. `answer`: what it came to, once it was carried out."""

    invoke: Row
    answer: Row | None = None


@dataclass
class ModelWorker:
    """A client's process: `has` are ids with their tokens; `asked` is what it says again."""

    name: str
    epoch: int = 1
    session: int = 1
    number: int = 0
    has: dict[int, int] = field(default_factory=dict)
    asked: Row | None = None
    under_way: ModelTake | None = None


@dataclass
class ModelReader:
    """Who reads the group's topic beside it. `answer`: of the GET under way, as it is carried out
    at once.
    """

    had: int = 0
    invoke: Row | None = None
    answer: int = 0


class ModelGroup:
    """A group, its workers, who publishes to it, and who reads its dead letters. `is_watched`:
    somebody reads its topic beside it, a second one its dead letters, and what is put says its key.
    """

    def __init__(
        self,
        history: MadeHistory,
        rng: random.Random,
        attempts_max: int | None,
        name: str,
        is_ordered: bool,
        is_watched: bool = False,
    ) -> None:
        self.scene = SceneWriter(history, rng, name)
        self.watcher = ModelReader() if is_watched else None
        self.rng, self.lease_ms = rng, rng.choice(LEASES_MS)
        self.attempts_max, self.dead = attempts_max, f"{name}-dead"
        self.is_ordered, self.keys = is_ordered, dict[int, str]()
        self.open: dict[int, ModelLease] = {}
        self.head, self.token, self.stored = 0, 0, 0
        self.seen: dict[tuple[str, int, int], Row] = {}  # carried out, by client, epoch, number
        self.letters: list[int] = []
        self.read = {"r": 0, "r2": 0} if is_watched else {"r": 0}
        self.settled_to = 0
        self.workers = [ModelWorker(name) for name in ("a", "b", "c")]

    def work(self) -> ModelGroup:
        """Let everybody do what chance has them do."""
        for reader in self.read:
            stands = {"last_id": 0, "resumed": False}
            self.scene.end(self.scene.invoke(reader, "sub", self.dead), "ok", **stands)
        steps = [self.put, self.step, self.step, self.step, self.look]
        if self.watcher is not None:
            self.scene.put("early", 1, 0)  # nobody has it: it is stored nowhere
            self.scene.sub("watcher", 0)
            steps += [self.watch, self.watch]
        self.make(self.workers[0])
        for _ in range(STEPS):
            self.rng.choice(steps)()
        for worker in self.workers:
            if worker.under_way is not None:
                self.finish(worker, is_lost=False)
        return self

    def drain(self) -> None:
        """Settle all that is left, and have it said."""
        worker = self.workers[0]
        while self.open or self.head < self.stored:
            self.scene.pause(max((self.lease_ms + 2_000) * NS_OF_MS, 1))
            self.begin(worker, {id_: "acks" for id_ in worker.has})
            self.carry_out(worker)
            self.finish(worker, is_lost=False)
        for reader in self.read:
            self.look(reader)
        self.make(worker)
        told = {"phase": "settled", "group": GROUP, "last_id": self.scene.id(self.stored)}
        self.scene.single(worker.name, "phase", process=self.process(worker), **told)
        for reader, read in self.read.items():
            self.scene.single(reader, "phase", topic=self.dead, phase="drained", last_id=read)
        if self.watcher is not None:
            while self.watcher.had < self.stored or self.watcher.invoke is not None:
                self.watch()
            self.scene.drained("watcher", self.stored)

    # --- what they do ----------------------------------------------------------------------------

    def process(self, worker: ModelWorker) -> str:
        """Return the process that a worker records in: one for all of its sessions."""
        return f"{self.scene.name}-{worker.name}"

    def make(self, worker: ModelWorker) -> None:
        """Make the group, or see how far it is."""
        said: Row = {"group": GROUP, "lease_ms": self.lease_ms}
        if self.is_ordered:
            said["ordered_by_key"] = True
        if self.attempts_max:
            said |= {"max_attempts": self.attempts_max, "dead_letter": self.dead}
        cursor = min(self.open, default=self.head + 1) - 1
        invoke = self.scene.invoke(worker.name, "group", **self.own(worker), **said)
        is_new = not any(row.get("f") == "group" and row["type"] == "ok" for row in self.rows())
        self.scene.end(invoke, "ok", last_id=self.scene.id(cursor), resumed=not is_new)

    def rows(self) -> list[Row]:
        """Return what was recorded of the group."""
        own = (row for row in self.scene.history.rows if row.get("topic") == self.scene.topic)
        return list(own)

    def own(self, worker: ModelWorker) -> Row:
        """Return what all of a worker's rows say."""
        own = {"epoch": self.scene.epoch + worker.epoch, "session": worker.session}
        return own | {"process": self.process(worker)}

    def put(self) -> None:
        """Publish some."""
        for _ in range(self.rng.choice((1, 1, 4))):
            self.stored += 1
            if self.is_ordered and self.rng.random() < 0.8:
                self.keys[self.stored] = self.rng.choice("cd") * 16
            said = {} if self.watcher is None else self.said_of_keys([self.stored])
            if self.watcher is None or said or self.rng.random() < 0.7:
                self.scene.put("p", self.stored, self.stored, **said)
            else:  # it is stored, and nobody is told so
                self.scene.unclear("p", self.stored)
                place = "p", self.stored, 1, self.scene.id(self.stored)
                self.scene.acknowledged.append(place)

    def watch(self) -> None:
        """Let who reads the topic beside the group ask, or be answered, with what there was."""
        reader, scene = self.watcher, self.scene
        assert reader is not None
        if reader.invoke is None:
            reader.invoke = scene.begin_get("watcher", reader.had)
            reader.answer = self.stored
            return
        invoke, reader.invoke = reader.invoke, None
        places = [("p", number) for number in range(reader.had + 1, reader.answer + 1)]
        if places:
            scene.brought(invoke, reader.had + 1, *places)
        else:
            scene.end(invoke, "ok", count=0, topic=scene.topic, bytes=0)
        reader.had = reader.answer

    def look(self, reader: str | None = None) -> None:
        """Let a reader of dead letters have what is there."""
        reader = self.rng.choice(list(self.read)) if reader is None else reader
        read = self.read[reader]
        letters = self.letters[read:]
        if not letters:
            return
        invoke = self.scene.invoke(reader, "get", self.dead, last_id=read, max_count=500)
        first, last = read + 1, len(self.letters)
        named = [
            [first + place, self.scene.topic, GROUP, self.scene.id(id_)]
            for place, id_ in enumerate(letters)
        ]
        brought: Row = {"topic": self.dead, "count": len(letters), "letters": named, "bytes": 9}
        if self.scene.history.is_application:
            brought["digests"] = "".join(f"{id_:016x}" for id_ in letters)
        self.scene.end(invoke, "ok", first_id=first, last_id=last, **brought)
        self.read[reader] = last

    def step(self) -> None:
        """Let one worker go on: ask, be answered, wait in vain, or crash."""
        worker, chance = self.rng.choice(self.workers), self.rng.random()
        if chance < 0.08:
            self.crash(worker)
        elif worker.under_way is None:
            self.begin(worker, {id_: self.rng.choice(FATES) for id_ in worker.has})
            if self.rng.random() < 0.7:
                self.carry_out(worker)
        elif chance < 0.2:
            self.finish(worker, is_lost=True)
        else:
            self.carry_out(worker)
            self.finish(worker, is_lost=False)
        if self.rng.random() < 0.2:
            self.scene.pause(self.lease_ms * NS_OF_MS // 2)

    def crash(self, worker: ModelWorker) -> None:
        """Let a process die and another one begin: what it held is due at once."""
        worker.under_way, worker.asked, worker.has = None, None, {}
        worker.epoch, worker.session, worker.number = worker.epoch + 1, worker.session + 1, 0
        for lease in self.open.values():
            if lease.client == worker.name and lease.until_ns > self.scene.t_ns:
                lease.client, lease.token, lease.until_ns = "", 0, self.scene.t_ns

    def begin(self, worker: ModelWorker, fates: dict[int, str]) -> ModelTake:
        """Begin a TAKE: the one without an answer again, or the next one."""
        if worker.asked is None:
            worker.number += 1
            said: Row = {"number": worker.number, "group": GROUP}
            for id_, fate in fates.items():
                ms = {"acks": [], "naks": [0], "extends": [self.lease_ms]}.get(fate)
                if ms is not None:
                    run = [worker.has[id_], self.scene.id(id_), self.scene.id(id_)]
                    said.setdefault(fate, []).append([*run, *ms])
                if fate in ("acks", "naks"):
                    del worker.has[id_]
            count = self.rng.choice((None, 1, 3, 9)) if self.settled_to == 0 else 9
            worker.asked = said | ({"max_count": count} if count else {})
        invoke = self.scene.invoke(worker.name, "take", **self.own(worker), **worker.asked)
        worker.under_way = ModelTake(invoke)
        return worker.under_way

    def finish(self, worker: ModelWorker, is_lost: bool) -> None:
        """End a worker's TAKE: with its answer, or without one."""
        take, worker.under_way = worker.under_way, None
        assert take is not None, worker
        if is_lost or take.answer is None:
            if self.rng.random() < 0.7:
                self.scene.end(take.invoke, "info", attempt=self.rng.choice((1, 2)))
            return
        told = {name: value for name, value in take.answer.items() if value != []}
        for first, last, _ in told.get("leases", ()):
            for id_ in range(first, last + 1):
                worker.has[id_ - self.scene.base] = told["token"]
        if told.get("leases") and not self.scene.history.is_application:
            told["items"] = [
                [id_, "p", id_ - self.scene.base, 1]
                for first, last, _ in told["leases"]
                for id_ in range(first, last + 1)
            ]
        for first, last in told.get("lost", ()):
            for id_ in range(first, last + 1):
                worker.has.pop(id_ - self.scene.base, None)
        self.scene.end(take.invoke, "ok", **told)
        worker.asked = None

    # --- what the cluster does -------------------------------------------------------------------

    def carry_out(self, worker: ModelWorker) -> None:
        """Carry out a worker's TAKE, once for its number."""
        take = worker.under_way
        assert take is not None, worker
        self.scene.pause()
        said, key = take.invoke, (worker.name, worker.epoch, worker.number)
        if key not in self.seen:
            self.seen[key] = {"lost": self.settle(worker, said), "leases": [], "token": 0}
        known = self.seen[key]
        if not known["leases"] and said.get("max_count"):
            known |= self.give(worker, said["max_count"])
        standing = [
            [self.scene.id(id_), self.scene.id(id_), self.open[id_].attempt]
            for id_ in known["leases"]
            if id_ in self.open
            and (self.open[id_].client, self.open[id_].token) == (worker.name, known["token"])
        ]
        ends = [self.open[first - self.scene.base].until_ns for first, *_ in standing]
        left_ms = max(0, (min(ends, default=0) - self.scene.t_ns) // NS_OF_MS)
        answer: Row = {"lost": known["lost"], "count": len(standing), "leases": standing}
        if standing:
            answer |= {"token": known["token"], "left_ms": left_ms, "lease_ms": self.lease_ms}
            answer |= self.said_of_keys([first - self.scene.base for first, *_ in standing])
        take.answer = answer

    def settle(self, worker: ModelWorker, said: Row) -> list[list[int]]:
        lost = []
        for fate in ("acks", "naks", "extends"):
            for token, at, _, *ms in said.get(fate, ()):
                id_ = at - self.scene.base
                lease = self.open.get(id_)
                if lease is None or (lease.client, lease.token) != (worker.name, token):
                    lost.append([at, at])
                elif fate == "acks":
                    del self.open[id_]
                elif fate == "naks":
                    self.open[id_] = ModelLease("", 0, self.scene.t_ns, lease.attempt)
                else:
                    lease.until_ns = self.scene.t_ns + ms[0] * NS_OF_MS
        return lost

    def give(self, worker: ModelWorker, count: int) -> Row:
        now_ns, given = self.scene.t_ns, []
        until_ns = now_ns + self.lease_ms * NS_OF_MS
        for id_ in sorted(self.open):
            if self.open[id_].until_ns > now_ns or self.is_behind(id_):
                continue
            attempt = self.open[id_].attempt + 1
            if self.attempts_max and attempt > self.attempts_max:
                self.letters.append(id_)
                del self.open[id_]
            elif len(given) < count:
                self.open[id_] = ModelLease(worker.name, self.token + 1, until_ns, attempt)
                given.append(id_)
        while len(given) < count and self.head < self.stored:
            self.head += 1
            if self.is_behind(self.head):
                self.open[self.head] = ModelLease("", 0, 0, 0)
                continue
            self.open[self.head] = ModelLease(worker.name, self.token + 1, until_ns, 1)
            given.append(self.head)
        self.token += bool(given)
        return {"leases": given, "token": self.token if given else 0}

    def is_behind(self, id_: int) -> bool:
        """Return whether another one of its key, before it, is open."""
        key = self.keys.get(id_)
        return key is not None and any(
            other < id_ and self.keys.get(other) == key for other in self.open
        )

    def said_of_keys(self, ids: list[int]) -> Row:
        """Return what an answer that leases these says of their keys."""
        keyed = [id_ for id_ in ids if id_ in self.keys]
        if not keyed:
            return {}
        told = "".join(self.keys[id_] for id_ in keyed)
        return {"keyed": [self.scene.id(id_) for id_ in keyed], "keys": told}

    # --- for sabotage ----------------------------------------------------------------------------

    def took(self, client: str, *leases: list[int], **said: Any) -> Row:
        """Write a TAKE of a client that nobody else is, and its answer: what it says is so."""
        told = {name: said.pop(name) for name in ("lost", "token") if name in said}
        own = {"group": GROUP, "max_count": 9, "number": next_of(self, client)}
        invoke = self.scene.invoke(client, "take", **own, **said)
        count = sum(last + 1 - first for first, last, _ in leases)
        if leases:
            self.token = told.setdefault("token", self.token + 1)
            told |= {"leases": list(leases), "left_ms": LONG_MS, "lease_ms": LONG_MS}
            runs = (range(first, last + 1) for first, last, _ in leases)
            told |= self.said_of_keys([id_ - self.scene.base for run in runs for id_ in run])
        return self.scene.end(invoke, "ok", count=count, **told)

    def fresh(self) -> int:
        """Publish one more, that nobody has been given; return its id in the topic."""
        self.put()
        self.head = self.stored
        return self.scene.id(self.stored)


FATES: Final = ("acks", "acks", "acks", "naks", "extends", "none", "none")


def next_of(group: ModelGroup, client: str) -> int:
    """Return the next number of a client that a sabotage needs."""
    own = f"{group.scene.name}-{client}"
    return 1 + sum(
        row["process"] == own and row["type"] == "invoke" for row in group.scene.history.rows
    )


def work(
    history: MadeHistory,
    rng: random.Random,
    attempts_max: int | None = None,
    name: str | None = None,
    is_ordered: bool = False,
    is_watched: bool = False,
) -> ModelGroup:
    """Write a legal group into a history; without a name under one that no other scene has."""
    own = f"work{len(history.scenes)}" if name is None else name
    return ModelGroup(history, rng, attempts_max, own, is_ordered, is_watched).work()


def employ(history: MadeHistory, rng: random.Random) -> None:
    """Write a legal group that is worked off into a history, and into nodes' disks."""
    attempts_max, is_ordered = rng.choice((None, 1, 2, 3)), rng.random() < 0.4
    group = work(history, rng, attempts_max, "job", is_ordered, rng.random() < 0.5)
    if rng.random() < 0.8:
        group.settled_to = 1
        group.drain()
    group.scene.on_disks()
    history.scenes.remove(group.scene)  # it is no sabotage


# --- sabotage -------------------------------------------------------------------------------------


def broken(history: MadeHistory, rng: random.Random) -> ModelGroup:
    """Return a group that worked legally so far, without dead letters."""
    return work(history, rng)


@breaks("leased-after-its-ack", "group_order", "an accepted ack is the last of an id", "again")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    group.took("v", acks=[[group.token, id_, id_]])
    group.took("w", [id_, id_, 2])


@breaks("late-ack-accepted", "group_order", "an ack of a lost lease is refused", "late")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    token = group.token
    group.took("w", [id_, id_, 2])
    group.took("v", acks=[[token, id_, id_]])


@breaks("acknowledged-by-two-takes", "group_order", "an id is acknowledged once", "twice")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    for _ in range(2):
        group.took("v", acks=[[group.token, id_, id_]])


@breaks("attempt-goes-back", "group_order", "each lease of an id has a higher attempt", "attempt")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    attempt = rng.randint(1, 3)
    group.took("v", [id_, id_, attempt])
    group.took("w", [id_, id_, rng.randint(1, attempt)])


@breaks("token-goes-back", "group_order", "a later take has a higher token", "token")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    group.token += 5
    for lower, client in ((0, "v"), (rng.randint(1, 4), "w")):
        id_ = group.fresh()
        group.took(client, [id_, id_, 1], token=group.token + 1 - lower)


@breaks("token-of-two-takes", "group_order", "each take has a token of its own", "token")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    for client in ("v", "w"):
        id_ = group.fresh()
        token = group.token + (client == "v")
        group.took(client, [id_, id_, 1], token=token)


@breaks("leased-to-two", "group_lease", "a lease that holds is one client's", "shared")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    group.took("w", [id_, id_, 2])
    group.took("v")


@breaks("attempts-jump", "group_lease", "each attempt was somebody's", "jump")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    id_ = group.fresh()
    takes = sum(row.get("f") == "take" and row["type"] == "invoke" for row in history.rows)
    group.took("v", [id_, id_, takes + 3])


@breaks("settled-by-nobody", "group_lost", "what is settled was acknowledged, or is dead")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    if rng.random() < 0.5:
        id_ = group.fresh()
        group.took("v", [id_, id_, 1])
    group.put()
    group.open, group.head = {}, group.stored
    group.make(group.workers[0])


def _two_of_a_key(history: MadeHistory, rng: random.Random) -> tuple[ModelGroup, int, int]:
    """Return a group that is ordered by key, and two publications of one key, never given."""
    group = work(history, rng, is_ordered=True)
    ids = [group.fresh(), group.fresh()]
    group.keys |= {id_ - group.scene.base: "e" * 16 for id_ in ids}
    return group, ids[0], ids[1]


@breaks("two-of-a-key-at-once", "key_order", "one of a key is given at a time", "together")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, one, other = _two_of_a_key(history, rng)
    group.took("v", [one, one, 1], [other, other, 1])


@breaks("given-behind-the-next-of-its-key", "key_order", "keys are given in order", "again")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, one, other = _two_of_a_key(history, rng)
    if rng.random() < 0.5:
        group.took("v", [one, one, 1])
        group.took("v", naks=[[group.token, one, one, 0]])
        group.took("w", [other, other, 1])
        group.took("v", [one, one, 2])
    else:
        group.took("w", [other, other, 1])
        group.took("v", [one, one, 1])


@breaks("next-of-a-key-before-the-ack", "key_order", "a key waits for the ack", "held")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, one, other = _two_of_a_key(history, rng)
    group.took("v", [one, one, 1])
    token = group.token
    group.took("w", [other, other, 1])
    group.took("v", acks=[[token, one, one]])


@hides("key-without-a-digest", "a TAKE says a digest of each key")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, one, _ = _two_of_a_key(history, rng)
    group.took("v", [one, one, 1])["keys"] = "e" * 15


def _dead(history: MadeHistory, rng: random.Random) -> tuple[ModelGroup, int]:
    """Return a group that gives up what was given once, and a publication that it has given up."""
    group = work(history, rng, 1)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    group.letters.append(group.stored)
    return group, id_


@breaks("letter-twice", "dead_letter", "a dead letter stands once", "twice")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, _ = _dead(history, rng)
    group.letters.append(group.stored)
    group.look()


@breaks("letter-of-what-was-done", "dead_letter", "what was done is not given up", "acknowledged")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_ = _dead(history, rng)
    group.took("v", acks=[[group.token, id_, id_]])
    group.look()


@breaks("leased-though-dead", "dead_letter", "what was given up is not given again", "leased")
def _(history: MadeHistory, rng: random.Random) -> None:
    group, id_ = _dead(history, rng)
    group.look()
    group.took("w", [id_, id_, 2])


@breaks("letter-too-early", "dead_letter", "a dead letter has had its attempts", "early")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = work(history, rng, None)
    group.attempts_max = 10_000  # more than any TAKE can have hidden
    group.make(group.workers[0])
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    group.letters.append(group.stored)
    group.look()


# --- sabotage: what stands, and what is brought ---------------------------------------------------


@breaks("given-though-settled", "group_order", "what is settled is not given", "settled")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    group.took("v", acks=[[group.token, id_, id_]])
    say_settled(group, id_)
    group.took("w", [id_, id_, 2])


def say_settled(group: ModelGroup, last_id: int) -> None:
    """Let a worker be told up to where all is settled, whatever is open."""
    invoke = group.scene.invoke("v", "group", group=GROUP)
    group.scene.end(invoke, "ok", last_id=last_id, resumed=True)


@breaks("settled-goes-back", "group_order", "a group's cursor never goes back", "back")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", acks=[[1, id_, id_]], lost=[[id_, id_]])
    say_settled(group, id_)
    say_settled(group, id_ - 1)


@breaks("ack-of-a-stranger", "group_lease", "who has no lease settles nothing", "foreign")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])
    group.took("w", acks=[[group.token, id_, id_]])


@breaks("group-forgotten", "subscription", "a group stands until it is ended", "forgotten")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    invoke = group.scene.invoke("v", "group", group=GROUP)
    group.scene.end(invoke, "ok", last_id=group.scene.id(group.stored), resumed=False)


@breaks("group-denied", "subscription", "who works in a group that stands is not denied", "denied")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    own = {"group": GROUP, "max_count": 9, "number": 1}
    invoke = group.scene.invoke("v", "take", **own)
    group.scene.end(invoke, "fail", error=rng.choice(("not_subscribed", "unknown_topic")))


@breaks("unstored-beside-a-group", "lost", "a group is owed what is published", "unstored")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    group = broken(history, rng)
    group.scene.put("q", 1, 0)


@breaks("collected-unsettled", "group_lost", "nodes keep what a group has not settled")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(history.truth)
    group = broken(history, rng)
    id_ = group.fresh()
    for node in history.truth:
        own = {"run_id": history.run_id, "node": node, "kind": "topic"}
        row = {"topic": group.scene.topic, "last_id": id_, "floor_id": id_}
        history.truth[node].append({**own, **row})


def _given(history: MadeHistory, rng: random.Random, *items: list[Any], **told: Any) -> None:
    """Let a worker be given what `items` say, each (place, producer, counter) behind the last."""
    need(not history.is_application)
    group = broken(history, rng)
    ids = [group.fresh() for _ in range(2)]
    end = group.took("v", *([id_, id_, 1] for id_ in ids))
    end["items"] = [[ids[place], producer, counter, 1] for place, producer, counter in items]
    end["corrupt"] = [[id_, "checksum"] for id_ in ids[len(items) :]]
    if not end["corrupt"]:
        del end["corrupt"]


@breaks("worker-given-a-ghost", "group_content", "a worker is given what was put", "phantom")
def _(history: MadeHistory, rng: random.Random) -> None:
    _given(history, rng, [0, "ghost", 1], [1, "ghost", 2])


@breaks("worker-given-another", "group_content", "a worker is given what has that id", "other")
def _(history: MadeHistory, rng: random.Random) -> None:
    _given(history, rng, [0, "p", 1_000], [1, "p", 1_001])


@breaks("worker-given-one-twice", "group_content", "a worker is given one under one id", "twice")
def _(history: MadeHistory, rng: random.Random) -> None:
    _given(history, rng, [0, "p", 1], [1, "p", 1])


@breaks(
    "worker-given-what-is-broken", "group_content", "what a worker is given checks out", "corrupt"
)
def _(history: MadeHistory, rng: random.Random) -> None:
    _given(history, rng)


@hides("take-of-another-count", "a TAKE's count is what it leases")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", [id_, id_, 1])["count"] = 2


@hides("lease-without-an-end", "a TAKE that leases something says for how long")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    del group.took("v", [id_, id_, 1])["left_ms"]


@hides("ack-that-goes-backwards", "a run of what is acknowledged has a first id and a last one")
def _(history: MadeHistory, rng: random.Random) -> None:
    group = broken(history, rng)
    id_ = group.fresh()
    group.took("v", acks=[[1, id_, id_ - 1]])


@hides("work-left", "a group that nobody saw settled may have lost what it has")
def _(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    broken(history, rng)
