"""Random histories: few operations over few clients, ids and counters. Most break some promise.

What lives here: records as a recorder could write them, each line of which an intake takes. What
they say is left to chance. `damaged` breaks a record's lines as well. What must not: a rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from tests.judges.chance_groups import RandomGroup
from tests.judges.history import MadeHistory, Row
from tests.judges.merging import MergedPart
from tests.spark.histories import RunRecorder

BORDER: Final = 65_533  # ids and counters from here on cross a bucket
HOSTS: Final = ("h", "h", "h", "other", None)
NODES: Final = "abc"
CLIENTS: Final = "pqsr"
DELAYED_SHARE: Final = 0.25  # of PUTs go to the lane, of answers bring something from it
LANE: Final = "\x1fdelayed"
GROUPS: Final = (("t", "g"), ("t", "g"), ("t", "g"), ("t", "h"), ("u", "g"))


@dataclass(frozen=True)
class Form:
    """What is the same in all parts of one merged record. `disks`: of each node whether its disk
    was read.
    """

    is_application: bool = False
    has_tombstones: bool = False
    disks: tuple[bool, ...] = ()


FORMS: Final = (
    Form(),
    Form(disks=(True, True, True)),
    Form(has_tombstones=True, disks=(True, False)),
    Form(is_application=True, disks=(True,)),
)


class RandomRun:
    """Up to 16 operations. They overlap in time, and some never end."""

    def __init__(self, seed: int, form: Form | None = None) -> None:
        self.rng = random.Random(seed)
        self.form = self.rng.choice(FORMS) if form is None else form
        self.run = RunRecorder(str(seed))
        self.base = self.rng.choice((0, BORDER))
        self._waiting: list[tuple[str, int]] = []  # producer, counter of what has a delay
        self._sessions: dict[str, int] = {}  # of each process; a new one begins now and then
        names = [*CLIENTS, *(f"{name}-twin" for name in CLIENTS)]
        self.run.hosts = {name: self.rng.choice(HOSTS) for name in names}
        if self.rng.random() < 0.5:
            self.run.hosts = dict.fromkeys(names, "h")
        self._open: list[tuple[Row, str, Row]] = []
        self._groups = {key: RandomGroup(self.rng, *key, self.base) for key in GROUPS}
        if self.form.has_tombstones:
            self.run.hosts["runner"] = self.rng.choice(HOSTS)
        length = self.rng.randint(1, 16)
        for step in range(length):
            if self.form.has_tombstones and step == length // 2:
                self.run.phase("tombstone")
            self.rng.choice((self.put, self.put, self.get, self.get, self.control))()
            if self.rng.random() < 0.2:
                self.handle()
            if self.rng.random() < 0.17:
                self.work()
            if self.rng.random() < 0.05:
                self.run.purge(self.rng.choice("ttu"), self.id(), self.rng.random() < 0.9)
            self.pass_time()
        self.disks()

    def history(self) -> MadeHistory:
        """Return it as a run's directory has it."""
        run = self.run
        document: Row = {}
        if self.form.is_application:
            document["recorded_by"] = "application"
        if run.nodes:
            read = [node for node, was_read in run.nodes.items() if was_read]
            document |= {"nodes": [*run.nodes], "truth": {"nodes": read}}
        truth = {
            node: [row for row in run.truth if row["node"] == node]
            for node, was_read in run.nodes.items()
            if was_read
        }
        return MadeHistory(run.run_id, document, run.rows, truth)

    def pass_time(self) -> None:
        """Let operations end, mostly at once; now and then a tick or two goes by."""
        while self._open and self.rng.random() < 0.6:
            place = self.rng.randrange(len(self._open))
            invoke, outcome, fields = self._open.pop(place)
            self.run.complete(invoke, outcome, **{**self.untold(invoke), **fields})
        if self.rng.random() < 0.2:
            self.run.wait(self.rng.randint(1, 250))

    def untold(self, invoke: Row) -> Row:
        """Return what an end does not repeat of its invoke."""
        told = ["counter", "count", "epoch", "asked", "invoke_ns", "max_count"]
        if self.rng.random() < 0.7:
            return {}
        return dict.fromkeys(self.rng.sample(told, self.rng.randint(1, len(told))))

    def id(self) -> int:
        """Return an id or a counter."""
        return self.base + self.rng.randint(1, 6)

    def ids(self) -> list[int]:
        """Return some ids."""
        return [self.id() for _ in range(self.rng.randint(1, 3))]

    def marks(self, *among: int) -> Row:
        """Return which ids, of all or of some, have properties, and what digests these have."""
        ids = sorted({self.rng.choice(among) for _ in self.ids()} if among else set(self.ids()))
        return {"marked": ids, "properties": self.digests(len(ids))}

    def maybe(self, *values: object) -> Any:
        """Return one of them, or None."""
        return self.rng.choice((None, *values))

    def process(self, client_id: str) -> Row:
        """Return which process of a client does something, and in which of its sessions."""
        process = self.rng.choice((client_id, client_id, f"{client_id}-twin"))
        if self.rng.random() < 0.15:
            self._sessions[process] = self._sessions.get(process, 0) + 1
        return {"process": process, "session": self._sessions.get(process, 0)}

    def begin(self, client_id: str, f: str, topic: str, outcome: str, own: Row, end: Row) -> None:
        """Write an invoke; its end comes later, or never."""
        common = {**self.process(client_id), "epoch": self.maybe(1, 1, 2)}
        invoke = self.run.invoke(client_id, f, topic, **common, **own)
        if outcome == "ok":
            end |= {"node": self.maybe("a", "a", "b"), "term": self.maybe(1, 2)}
        self._open.append((invoke, outcome, end))

    def put(self) -> None:
        """Begin a PUT."""
        rng, outcome = self.rng, self.rng.choice(("ok", "ok", "ok", "fail", "info"))
        end: Row = {}
        own: Row = {"counter": self.id(), "count": rng.choice((1, 1, 2, 3))}
        if outcome == "ok":
            first_id = rng.choice((0, *range(self.base + 1, self.base + 7)))
            end = {"first_id": first_id, "duplicate": rng.choice((True, False, None))}
            if rng.random() < 0.2 and first_id:
                end |= self.marks(*range(first_id, first_id + own["count"]))
            if rng.random() < 0.7:
                end["last_id"] = first_id + own["count"] - 1 if first_id else 0
        if self.form.is_application:
            own["digests"] = self.digests(own["count"])
        producer, topic = rng.choice("pq"), rng.choice("tu")
        if rng.random() < DELAYED_SHARE:
            self._waiting.append((producer, own["counter"]))
            topic += LANE
            if rng.random() < 0.7:  # an older recorder does not say it
                last = own["counter"] + own["count"] - 1
                own["delays"] = [[own["counter"], last, rng.choice((1, 1, 2, 300))]]
        self.begin(producer, "put", topic, outcome, own, end)

    def get(self) -> None:
        """Begin a GET."""
        rng, topic = self.rng, self.rng.choice("ttu")
        asked = self.maybe(*range(self.base, self.base + 7))
        outcome = rng.choice(("ok", "ok", "ok", "ok", "info", "fail"))
        question = topic if asked is not None and rng.random() < 0.9 else rng.choice((topic, ""))
        own = {"last_id": asked, "max_count": self.maybe(2, 4, 100)}
        end: Row = {}
        if outcome == "fail":
            end = {"error": rng.choice(("not_subscribed", "unknown_topic", "electing"))}
        elif outcome == "ok":
            end = self.answer(rng.choice((topic, topic, topic, "u")))
            if not question:
                end["cursor"] = self.maybe(self.base, self.id())
        self.begin(rng.choice("sr"), "get", question, outcome, own, end)

    def answer(self, topic: str) -> Row:
        """Return what a GET brings."""
        rng = self.rng
        end: Row = {"topic": topic, "handed_apart": rng.choice((True, True, None))}
        if self.form.is_application and rng.random() < 0.7:
            first_id, count = self.id(), rng.randint(1, 3)
            ids = {"first_id": first_id, "last_id": first_id + count - 1, "count": count}
            return {**end, **ids, "digests": self.digests(count)}
        sizes = () if self.form.is_application else rng.choice(((), (), (1,), (1, 2), (3, 1, 1)))
        items = [[self.id(), rng.choice("pq"), self.id(), size] for size in sizes]
        corrupt = [[self.id(), "checksum"]] if rng.random() < 0.15 else []
        if rng.random() < 0.4:  # in the order in which they stand
            items.sort()
        letters = self.letters()
        count = sum(sizes) + len(corrupt) + len(letters)
        if not self.form.is_application and rng.random() < DELAYED_SHARE:
            some = [*self._waiting, (rng.choice("pq"), self.id())]  # mostly what was put so
            end["delayed"] = [
                [self.id(), *rng.choice(some), rng.choice((1, 1, 2))]
                for _ in range(rng.randint(1, 2))
            ]
            count += sum(run[3] for run in end["delayed"])
        if letters:
            end["letters"] = letters
        end |= {"items": items or self.maybe([]), "corrupt": corrupt or self.maybe([])}
        end["count"] = count or self.maybe(0)
        if rng.random() < 0.2:
            end["times"] = [[one, one + rng.randint(0, 2), rng.randint(5, 7)] for one in self.ids()]
        if rng.random() < 0.2:
            end |= self.marks()
        says_nothing = not count and end.keys().isdisjoint({"times", "marked"})
        if says_nothing and rng.random() < 0.3:
            end["first_id"] = self.id()
        return end

    def letters(self) -> list[list[object]]:
        """Return dead letters, mostly none."""
        ids = self.ids() if self.rng.random() < 0.15 else []
        return [self.group().letter(id_) for id_ in ids]

    def handle(self) -> None:
        """Hand over, acknowledge or give back something, a few steps of one client in a row."""
        rng, client_id, topic = self.rng, self.rng.choice("sr"), self.rng.choice("ttu")
        own = self.process(client_id)
        for _ in range(rng.randint(1, 4)):
            f, first_id = rng.choice(("hand", "hand", "hand", "ack", "release")), self.id()
            last_id = first_id + rng.randint(0, 2)
            begin = first_id if f != "ack" or rng.random() < 0.3 else None
            cursor = self.maybe(self.base, self.base, self.id())
            self.run.handle(client_id, f, topic, begin, last_id, cursor=cursor, **own)

    def group(self) -> RandomGroup:
        """Return a group, mostly the same one."""
        return self._groups[self.rng.choice(GROUPS)]

    def work(self) -> None:
        """Let workers make a group, take, settle; a few steps in a row."""
        group = self.group()
        for _ in range(self.rng.randint(2, 8)):
            self.rng.choice((self.join, self.take, self.take))(group)
            self.pass_time()

    def join(self, group: RandomGroup) -> None:
        """Make a group, or find it; end it; or say that all is settled."""
        rng, client_id = self.rng, self.rng.choice("srq")
        outcome = rng.choice(("ok", "ok", "ok", "ok", "info", "fail"))
        if rng.random() < 0.1:
            own = {"process": self.process(client_id)["process"], "group": group.name}
            self.run.drained(client_id, group.topic, group.settled(), **own)
        elif rng.random() < 0.07:
            self.begin(client_id, "ungroup", group.topic, outcome, {"group": group.name}, {})
        else:
            end: Row = {}
            if outcome == "ok":
                end = {"last_id": group.settled(), "resumed": self.maybe(True, True, False)}
            self.begin(client_id, "group", group.topic, outcome, group.sets(), end)

    def take(self, group: RandomGroup) -> None:
        """Begin a TAKE."""
        rng, client_id = self.rng, self.rng.choice("srq")
        outcome = rng.choice(("ok", "ok", "ok", "ok", "ok", "ok", "info", "fail"))
        own, end = group.asks(client_id), {}
        if outcome == "ok":
            end = group.answers(client_id, own, "" if self.form.is_application else "pq")
        elif outcome == "fail":
            end = {"error": rng.choice(("not_subscribed", "unknown_topic", *["electing"] * 6))}
        self.begin(client_id, "take", group.topic, outcome, own, end)

    def digests(self, count: int) -> str:
        """Return the contents of so many publications."""
        return "".join(self.rng.choice("ab") * 16 for _ in range(count))

    def control(self) -> None:
        """Subscribe, leave, or say that all was read."""
        rng = self.rng
        client_id, topic = rng.choice("sr"), rng.choice("ttu")
        f = rng.choice(("sub", "sub", "sub", "unsub", "drained"))
        if f == "drained":
            process = self.process(client_id)["process"]
            last_id = self.base + rng.randint(0, 7)
            self.run.drained(client_id, topic, last_id, process=process)
            return
        outcome = rng.choice(("ok", "ok", "ok", "info", "fail"))
        end: Row = {}
        if f == "sub" and outcome == "ok":
            last_id = self.base + rng.randint(0, 4)
            end = {"last_id": last_id, "cursor": self.maybe(rng.randint(self.base, last_id))}
            end |= {"resumed": self.maybe(True, False), "attempt": self.maybe(1, 1, 2)}
        self.begin(client_id, f, topic, outcome, {}, end)

    def disks(self) -> None:
        """Let nodes hold this and that."""
        rng, run = self.rng, self.run
        for node, was_read in zip(NODES, self.form.disks, strict=False):
            run.disk(node, is_read=was_read)
        for node in run.nodes:
            for index in range(1, 4):
                content = {
                    "term": rng.choice((1, 1, 1, 2)),
                    "digest": rng.choice(("aa", "aa", "bb")),
                }
                run.found_on(node, "entry", index=index, **content)
            for term in rng.sample((1, 2, 3), rng.randint(0, 2)):
                run.found_on(node, "leadership", term=term)
            run.found_on(node, "state", index=rng.randint(1, 2), digest=rng.choice(("aa", "bb")))
            for topic in "tu":
                ids = {"last_id": self.base + rng.choice((3, 9, 9))}
                floor_id = self.base + rng.choice((0, 0, rng.randint(0, 6)))
                ids["floor_id"] = min(floor_id, ids["last_id"])  # above it no intake believes one
                run.found_on(node, "topic", topic=topic, **ids)
                for producer in "pq":
                    for _ in range(rng.randint(0, 2)):
                        own = {"topic": topic, "producer": producer, "count": rng.randint(1, 4)}
                        own |= {"first_id": self.maybe(self.id(), self.id())}
                        run.found_on(node, "held", first_counter=self.id(), **own)
                    if rng.random() < 0.5:
                        counter = {"topic": topic, "producer": producer, "counter": self.id()}
                        run.found_on(node, "counter", **counter)


def random_parts(
    seeds: Iterable[int], *forms: Form, is_damaged: bool = False
) -> Iterator[MergedPart]:
    """Yield random histories of each of the forms, to be merged."""
    for seed in seeds:
        for number, form in enumerate(forms or FORMS):
            history = RandomRun(seed, form).history()
            name = f"RandomRun({seed}, FORMS[{FORMS.index(form)}])"
            if is_damaged:
                name += f", damaged by {damage(history, random.Random(seed))}"
            yield MergedPart.of(seed * len(FORMS) + number + 1, name, history)


# --- lines that no recorder writes ----------------------------------------------------------------


def _place(history: MadeHistory, row: Row) -> int:
    """Return where this very line stands: another one may say the same."""
    return next(place for place, one in enumerate(history.rows) if one is row)


Damage = Callable[[MadeHistory, Row, random.Random], None]


def damage(history: MadeHistory, rng: random.Random) -> str:
    """Break a few lines of a record; return in which ways. An intake has to see each of them."""
    done = []
    for _ in range(rng.randint(1, 3)):
        if history.rows:
            break_line = rng.choice(DAMAGES)
            break_line(history, rng.choice(history.rows), rng)
            done.append(break_line.__name__)
    return "+".join(done)


def lose(history: MadeHistory, row: Row, rng: random.Random) -> None:
    """Let a line be gone."""
    del history.rows[_place(history, row)]


def write_twice(history: MadeHistory, row: Row, rng: random.Random) -> None:
    """Write a line again, at any place behind it."""
    place = rng.randint(_place(history, row) + 1, len(history.rows))
    history.rows.insert(place, deepcopy(row))


def move(history: MadeHistory, row: Row, rng: random.Random) -> None:
    """Let a line stand at another place."""
    del history.rows[_place(history, row)]
    history.rows.insert(rng.randint(0, len(history.rows)), row)


def contradict(history: MadeHistory, row: Row, rng: random.Random) -> None:
    """Let a number be another one."""
    names = ("asked", "invoke_ns", "epoch", "counter", "count", "session", "op_id", "max_count")
    name = rng.choice([name for name in names if row.get(name) is not None])
    row[name] += rng.choice((-1, 1))


def answer_another(history: MadeHistory, row: Row, rng: random.Random) -> None:
    """Let a line be of another client or topic."""
    name = rng.choice(("client_id", "topic"))
    if row.get(name):
        row[name] = {"client_id": "s", "topic": "u"}[name]


def say_nothing(history: MadeHistory, row: Row, rng: random.Random) -> None:
    """Let a field be null."""
    row[rng.choice([name for name in row if name not in ("process", "f", "run_id")])] = None


DAMAGES: Final[tuple[Damage, ...]] = (
    *(lose, write_twice, move, contradict, answer_another, say_nothing),
)
