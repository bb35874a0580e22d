"""Legal histories: clients of a correct broker under a random schedule, and what they record.

What lives here: a network that delays, drops and delivers late; clients that time out, ask again,
crash, come back, are taken over by others and overlap with them; hosts whose clocks have nothing
to do with one another; and the record of it all. What must not: any rule of a judge, and any bug.
Everything is decided by the seed.
"""

from __future__ import annotations

import copy
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.judges.broker import DUPLICATES_REMEMBERED, PUBLICATION_BYTES, ReplicatedBroker, runs_of
from tests.judges.fading import lose_some
from tests.judges.groups import employ
from tests.judges.history import CAN, RAW, MadeHistory, Row, digest
from tests.judges.lanes import postpone
from tests.judges.properties import dress
from tests.judges.readings import wander

CLOCK_NS_MAX = 2**52
UNCLEAR = ("timeout", "uncertain", "unavailable")
REFUSED = ("electing", "backlog_full", "overloaded", "disk_full", "shutting_down")
PIPELINED_MAX = 3
COUNT_MAX = 5
DRESSED_SHARE = 0.4  # of the histories are of feature level 4
EMPLOYED_SHARE = 0.5  # of these have a group
WANDERED_SHARE = 0.3  # in which somebody begins elsewhere, or follows a pattern
POSTPONED_SHARE = 0.2  # in which something is put with a delay
FADED_SHARE = 0.2  # in which something expires, is purged, dropped or compacted away


@dataclass
class RunShape:
    """What a run is made of, drawn once."""

    steps: int
    topics: list[str]
    publishers: int
    subscribers: int
    nodes: list[str]
    is_application: bool
    has_phases: bool
    has_truth: bool
    has_epochs: bool
    has_handling: bool
    has_partial: bool  # an application leaves loops, and acknowledges part of what it was handed
    is_terse: bool  # ends repeat nothing of their invokes
    has_limits: bool  # GETs say max_count, max_bytes
    trouble: float  # how often messages are lost, clients crash, ...
    remembered: int


def drawn(rng: random.Random) -> RunShape:
    """Return a shape."""
    is_application = rng.random() < 0.15
    return RunShape(
        steps=rng.choice((40, 100, 200, 400)),
        topics=[f"t{number}" for number in range(rng.choice((1, 1, 2, 3)))],
        publishers=rng.choice((1, 2, 3)),
        subscribers=rng.choice((1, 2, 3)),
        nodes=["a", "b", "c", "d", "e"][: rng.choice((1, 3, 3, 3, 5))],
        is_application=is_application,
        has_phases=not is_application and rng.random() < 0.85,
        has_truth=not is_application and rng.random() < 0.5,
        has_epochs=rng.random() < 0.9,
        has_handling=is_application or rng.random() < 0.7,
        has_partial=is_application and rng.random() < 0.7,
        is_terse=rng.random() < 0.1,
        has_limits=rng.random() < 0.8,
        trouble=rng.choice((0.0, 0.03, 0.1, 0.25)),
        remembered=rng.choice((3, DUPLICATES_REMEMBERED, DUPLICATES_REMEMBERED)),
    )


@dataclass
class Outbound:
    """A batch that waits for its acknowledgment."""

    topic: str
    counter: int
    count: int


@dataclass
class StoredState:
    """What a client keeps on its disk: it survives a crash, and can be copied."""

    client: str
    sequence: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    outbox: list[Outbound] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)
    handed: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class PendingOperation:
    """An operation under way. `told`: what its request says beside the common fields."""

    process: RecordingProcess
    session: int
    invoke: Row
    told: dict[str, Any]
    done: Callable[[str, dict[str, Any]], None]  # outcome, the answer
    attempts: int = 1
    is_unclear: bool = False  # an attempt of it may have happened without an answer
    is_over: bool = False


@dataclass(eq=False)
class InTransit:
    """A request or an answer on its way."""

    operation: PendingOperation
    attempt: int
    request: dict[str, Any] | None
    answer: dict[str, Any] | None = None


@dataclass
class TopicReader:
    """How a process reads a topic. `brought`: what a GET has brought and nobody was handed yet."""

    mode: str  # get, loop, once, manual, plain
    brought: deque[int] = field(default_factory=deque)
    hand: tuple[int, int] | None = None
    is_left: bool = False  # what is in hand comes again


@dataclass(eq=False)
class RecordingProcess:
    """A recording process and the client in it."""

    name: str
    host: int
    stored: StoredState
    publishes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    session: int = 0
    op_id: int = 0
    epoch: int | None = None
    is_alive: bool = False
    is_fenced: bool = False
    is_recorded: bool = True
    under_way: list[PendingOperation] = field(default_factory=list)
    readers: dict[str, TopicReader] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)  # topics whose first PUT is through
    read_out: set[str] = field(default_factory=set)  # topics whose last GET brought nothing

    @property
    def may_act(self) -> bool:
        """Whether it lives, and does not know that it was taken over."""
        return self.is_alive and not self.is_fenced

    def busy(self, f: str, topic: str) -> list[PendingOperation]:
        """Return its operations of that function on that topic."""
        return [
            one
            for one in self.under_way
            if one.invoke["f"] == f and one.invoke["topic"] in (topic, "")
        ]


class MadeRun:
    """A run. `history` is whole once `run()` has returned."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"legal {seed}")
        rng = self.rng
        self.shape = shape = drawn(rng)
        self.broker = ReplicatedBroker(rng, shape.nodes, shape.remembered)
        self.history = MadeHistory(f"run-{seed}")
        self.now_ns = 0
        names = rng.sample(("h1", "h2", "h3", None), rng.choice((1, 1, 2, 3)))
        self.hosts = [(name, rng.randrange(CLOCK_NS_MAX)) for name in names]
        self.phase: str | None = None
        self.net: list[InTransit] = []
        self.processes: list[RecordingProcess] = []
        self.tombstones: dict[str, int] = {}
        self.copies = 0
        self.tries: list[tuple[str, Outbound]] = []  # that did not fail
        self._people()

    def _people(self) -> None:
        rng, shape = self.rng, self.shape
        every = [*shape.topics, "void"]
        for number in range(shape.publishers):
            process = self._process(f"p{number}", f"producer-{number}")
            process.publishes = rng.sample(every, rng.randint(1, len(every)))
            if rng.random() < 0.2:
                process.reads = rng.sample(shape.topics, 1)
        for number in range(shape.subscribers):
            process = self._process(f"s{number}", f"subscriber-{number}")
            process.reads = rng.sample(shape.topics, rng.randint(1, len(shape.topics)))
        if shape.is_application and shape.publishers > 1 and rng.random() < 0.3:
            self.processes[0].is_recorded = False
        self.runner = RecordingProcess(
            "runner", rng.randrange(len(self.hosts)), StoredState("runner-client")
        )
        self.faults = RecordingProcess("faults", self.runner.host, StoredState("nobody"))

    def _process(self, name: str, client: str) -> RecordingProcess:
        process = RecordingProcess(name, self.rng.randrange(len(self.hosts)), StoredState(client))
        self.processes.append(process)
        return process

    # --- the record ------------------------------------------------------------------------------

    def write(self, process: RecordingProcess, row: Row) -> Row:
        """Record an event of a process; return it."""
        name, offset_ns = self.hosts[process.host]
        stamp = {
            "run_id": self.history.run_id,
            "process": process.name,
            "host": name,
            "session": process.session,
            "client_id": row.pop("client_id", process.stored.client),
            "phase": row.pop("phase", self.phase if self.shape.has_phases else None),
            "t_ns": offset_ns + self.now_ns,
            "wall_ns": 1_700_000_000 + self.now_ns,
        }
        event = {name: value for name, value in (stamp | row).items() if value is not None}
        if process.is_recorded:
            self.history.rows.append(event)
        return event

    def single(self, process: RecordingProcess, f: str, **fields: Any) -> None:
        """Record an event that has no end."""
        process.op_id += 1
        self.write(process, {"op_id": process.op_id, "f": f, "type": "info", **fields})

    def mark(self, phase: str) -> None:
        """Record that a phase begins."""
        self.phase = phase
        if self.shape.has_phases:
            self.single(self.runner, "phase", phase=phase, client_id=None)

    def pass_time(self) -> None:
        """Let some time go by: mostly little, sometimes none that a clock would show."""
        kind = self.rng.random()
        if kind < 0.03:
            return
        if kind < 0.9:
            self.now_ns += self.rng.randint(1_000, 5_000_000)
        else:
            self.now_ns += self.rng.randint(5_000_000, 400_000_000)

    # --- operations ------------------------------------------------------------------------------

    def ask(
        self,
        process: RecordingProcess,
        f: str,
        topic: str,
        done: Callable[[str, dict[str, Any]], None],
        invoke: Row,
        request: dict[str, Any],
    ) -> PendingOperation:
        """Record an invoke and send its request."""
        process.op_id += 1
        fields = {"op_id": process.op_id, "f": f, "topic": topic, "type": "invoke"}
        row = self.write(process, {**fields, "epoch": process.epoch, **invoke})
        told = {"f": f, "topic": topic, "client": process.stored.client, "epoch": process.epoch}
        operation = PendingOperation(process, process.session, row, {**told, **request}, done)
        process.under_way.append(operation)
        self.send(operation)
        return operation

    def send(self, operation: PendingOperation) -> None:
        """Send a request, for the first time or again."""
        self.net.append(InTransit(operation, operation.attempts, dict(operation.told)))

    def end(self, operation: PendingOperation, outcome: str, **fields: Any) -> None:
        """Record an operation's end."""
        invoke = operation.invoke
        repeated: Row = {}
        if not self.shape.is_terse:
            names = ("counter", "count", "epoch", "max_count")
            repeated = {name: invoke.get(name) for name in names}
            repeated |= {"invoke_ns": invoke["t_ns"], "asked": invoke.get("last_id")}
        common = {name: invoke[name] for name in ("op_id", "f", "topic")}
        fields = {"type": outcome, "attempt": operation.attempts, **fields}
        self.write(operation.process, {**common, **repeated, **fields})
        self.finish(operation)

    def finish(self, operation: PendingOperation) -> None:
        """Take an operation off its process's list."""
        operation.is_over = True
        if operation in operation.process.under_way:
            operation.process.under_way.remove(operation)

    def deliver(self, message: InTransit) -> None:
        """Let a request be carried out, or an answer arrive."""
        operation = message.operation
        if message.request is not None:
            self.carry_out(message)
            return
        answer = message.answer
        assert answer is not None
        if operation.is_over or message.attempt != operation.attempts:
            return
        error = answer.get("error")
        common = {"node": answer["node"], "term": answer["term"]}
        if error is None:
            operation.done("ok", answer)
            return
        if error in UNCLEAR:
            operation.is_unclear = True
        again = error in (*REFUSED, "uncertain") and self.rng.random() < 0.5
        if again:
            operation.attempts += 1
            self.send(operation)
            return
        outcome = "info" if operation.is_unclear else "fail"
        if error == "fenced":
            operation.process.is_fenced = True
        self.end(operation, outcome, error=error, **common)
        operation.done(outcome, answer)

    def carry_out(self, message: InTransit) -> None:
        """Let the leader handle a request; its answer may be lost, or say less than it knows."""
        rng, request = self.rng, message.request
        assert request is not None
        stamp = {"node": self.broker.leader, "term": self.broker.term}
        kind = rng.random() if rng.random() < self.shape.trouble else 1.0
        if kind < 0.25:  # refused before anything was done
            errors = REFUSED if request["f"] == "put" else ("electing", "overloaded")
            answer: dict[str, Any] = {"error": rng.choice(errors)}
        elif kind < 0.35:  # the leader has lost its term with the entry under way
            answer = {"error": "uncertain"}
            fate = rng.choice(("done", "later", "never"))
            if fate == "done":
                self.broker.handle(request)
            elif fate == "later":
                self.net.append(InTransit(message.operation, 0, request))
        else:
            answer = self.broker.handle(request)
            if kind < 0.6:
                return  # the answer is lost
        self.net.append(InTransit(message.operation, message.attempt, None, answer | stamp))

    def time_out(self, operation: PendingOperation) -> None:
        """Let the client wait no longer: it asks again, or gives up."""
        operation.is_unclear = True
        if self.rng.random() < 0.4:
            operation.attempts += 1
            self.send(operation)
            return
        error = self.rng.choice(("timeout", "unavailable"))
        self.end(operation, "info", error=error)
        operation.done("info", {})

    # --- sessions --------------------------------------------------------------------------------

    def start(self, process: RecordingProcess) -> None:
        """Let a process begin a session: the broker tells it what it knows of the client."""
        stored, state = process.stored, self.broker.state
        process.session += 1
        process.is_alive, process.is_fenced = True, False
        process.under_way, process.readers, process.acknowledged = [], {}, set()
        epoch = self.broker.commit(("open", stored.client))
        process.epoch = epoch if self.shape.has_epochs else None
        stored.sequence = max(stored.sequence, state.sequences.get(stored.client, 0))
        for (client, topic), counter in state.counters.items():
            if client == stored.client:
                stored.counters[topic] = max(stored.counters.get(topic, 0), counter)
                process.acknowledged.add(topic)
        for name, topic in state.topics.items():
            if stored.client in topic.cursors and name in stored.cursors:
                stored.cursors[name] = max(stored.cursors[name], topic.cursors[stored.client])

    def crash(self, process: RecordingProcess) -> None:
        """Let a process die at once, maybe in the middle of a line."""
        for operation in list(process.under_way):
            self.finish(operation)
        process.is_alive = False
        if process.is_recorded and self.rng.random() < 0.3:
            line = json.dumps({"run_id": self.history.run_id, "process": process.name}).encode()
            torn = line[: self.rng.randint(1, len(line) - 1)]
            self.history.rows.append({"process": process.name, RAW: torn})

    def come_back(self, process: RecordingProcess) -> None:
        """Let the next session of a process begin in the same file."""
        own = [row for row in self.history.rows if row["process"] == process.name]
        if own and RAW in own[-1]:
            own[-1][RAW] += CAN
        self.start(process)

    def take_over(self, process: RecordingProcess) -> None:
        """Let another process have the client: with its directory if it is dead, else a copy."""
        self.copies += 1
        stored = copy.deepcopy(process.stored) if process.is_alive else process.stored
        name = f"{process.name.partition('-')[0]}-copy-{self.copies}"
        other = RecordingProcess(name, process.host, stored, process.publishes, process.reads)
        other.is_recorded = process.is_recorded
        if self.rng.random() < 0.3:
            other.host = self.rng.randrange(len(self.hosts))
        self.processes.append(other)
        if not process.is_alive:
            process.is_fenced = True  # it never comes back
        self.start(other)

    # --- publishing ------------------------------------------------------------------------------

    def put(self, process: RecordingProcess, topic: str, is_new: bool = True) -> None:
        """Send the next batch of a topic: what waits in the outbox first, in order."""
        stored, rng = process.stored, self.rng
        busy = {one.invoke["counter"] for one in process.busy("put", topic)}
        waiting = [one for one in stored.outbox if one.topic == topic]
        unsent = [one for one in waiting if one.counter not in busy]
        pipelined = PIPELINED_MAX if topic in process.acknowledged else 1
        if len(busy) >= pipelined:
            return
        if unsent and busy and unsent[0].counter < max(busy):
            return  # everything is sent again from the first one, once all have ended
        if unsent:
            entry = unsent[0]
        elif is_new:
            count = rng.choice((1, 1, 1, rng.randint(2, COUNT_MAX)))
            entry = Outbound(topic, stored.counters.get(topic, 0) + 1, count)
            stored.counters[topic] = entry.counter + count - 1
            stored.outbox.append(entry)
        else:
            return
        self.put_entry(process, entry)

    def put_entry(self, process: RecordingProcess, entry: Outbound) -> None:
        """Send one entry of the outbox."""
        topic, stored = entry.topic, process.stored
        operation: PendingOperation

        def done(outcome: str, answer: dict[str, Any]) -> None:
            if outcome == "ok":
                first_id = answer["id"]
                last_id = first_id + entry.count - 1 if first_id else 0
                ids = {"first_id": first_id, "last_id": last_id, "duplicate": answer["duplicate"]}
                stamp = {name: answer[name] for name in ("node", "term")}
                self.end(operation, "ok", **{"count": entry.count, **ids, **stamp})
                process.acknowledged.add(topic)
                if entry in stored.outbox:
                    stored.outbox.remove(entry)
            elif outcome == "fail":
                self.tries.remove(tried)
                is_last = stored.counters.get(topic) == entry.counter + entry.count - 1
                is_withdrawn = is_last and answer["error"] not in ("fenced", "counter_gap")
                is_withdrawn &= entry in stored.outbox and self.rng.random() < 0.5
                if is_withdrawn and not self.may_happen(stored.client, entry):
                    stored.outbox.remove(entry)
                    stored.counters[topic] -= entry.count

        content = {"counter": entry.counter, "count": entry.count}
        tried = (stored.client, copy.copy(entry))
        self.tries.append(tried)
        digests: Row = {}
        if self.shape.is_application:
            every = range(entry.counter, entry.counter + entry.count)
            digests = {"digests": "".join(digest(stored.client, topic, one) for one in every)}
        operation = self.ask(process, "put", topic, done, {**content, **digests}, content)

    def may_happen(self, client: str, entry: Outbound) -> bool:
        """Return whether an earlier try of what an entry holds may have happened."""
        end = entry.counter + entry.count
        return any(
            (who, one.topic) == (client, entry.topic)
            and one.counter < end
            and entry.counter < one.counter + one.count
            for who, one in self.tries
        )

    # --- subscribing -----------------------------------------------------------------------------

    def control(self, process: RecordingProcess, f: str, topic: str) -> None:
        """SUB or UNSUB."""
        stored = process.stored
        stored.sequence += 1
        operation: PendingOperation

        def done(outcome: str, answer: dict[str, Any]) -> None:
            if outcome != "ok":
                return
            stamp = {name: answer[name] for name in ("node", "term")}
            if f == "sub":
                last_id = max(answer["last_id"], stored.cursors.get(topic, 0))
                own = {"last_id": last_id, "resumed": answer["resumed"]}
                self.end(operation, "ok", **own, cursor=answer["last_id"], **stamp)
                stored.cursors[topic] = last_id
            else:
                self.end(operation, "ok", **stamp)
                stored.cursors.pop(topic, None)
                stored.handed.pop(topic, None)
                process.readers.pop(topic, None)

        operation = self.ask(process, f, topic, done, {}, {"sequence": stored.sequence})

    def reader(self, process: RecordingProcess, topic: str) -> TopicReader:
        """Return how a process reads a topic."""
        if topic not in process.readers:
            modes = ("get", "get", "loop", "once", "manual")[: 5 if self.shape.has_partial else 4]
            mode = self.rng.choice(modes) if self.shape.has_handling else "plain"
            process.readers[topic] = TopicReader(mode)
        return process.readers[topic]

    def read(self, process: RecordingProcess, topic: str) -> None:
        """Take a reader's next step: hand over, acknowledge, leave, or ask for more."""
        rng, reader, stored = self.rng, self.reader(process, topic), process.stored
        cursor = stored.cursors.get(topic)
        if reader.mode == "manual" and reader.hand and rng.random() < 0.4:
            self.acknowledge(process, topic, rng.randint(*reader.hand))
            return
        if process.busy("get", topic):
            return
        if reader.brought:
            if cursor is None:
                reader.brought.clear()
            elif reader.hand and self.shape.has_partial and rng.random() < 0.05:
                reader.is_left = True
                reader.brought.clear()
            else:
                self.hand_over(process, topic, reader)
            return
        if reader.hand and reader.mode in ("get", "loop"):
            if self.shape.has_partial and rng.random() < 0.05:
                reader.is_left = True
            if not reader.is_left:
                self.acknowledge(process, topic, reader.hand[1])
                return
        self.get(process, topic)

    def acknowledge(self, process: RecordingProcess, topic: str, last_id: int) -> None:
        """Let the application be done with all up to an id."""
        stored, reader = process.stored, process.readers[topic]
        cursor = stored.cursors.get(topic)
        if cursor is None or last_id <= cursor:
            return
        self.single(process, "ack", topic=topic, last_id=last_id, cursor=cursor)
        stored.cursors[topic] = last_id
        if reader.hand and reader.hand[1] <= last_id:
            reader.hand = None

    def hand_over(self, process: RecordingProcess, topic: str, reader: TopicReader) -> None:
        """Hand over what a GET has brought: all of it, or a loop's next one."""
        stored = process.stored
        cursor = stored.cursors[topic]
        while reader.brought and reader.brought[0] <= cursor:
            reader.brought.popleft()
        if not reader.brought:
            return
        first_id = reader.brought[0]
        last_id = first_id if reader.mode == "loop" else reader.brought[-1]
        before = reader.hand
        goes_on = before is not None and not reader.is_left and reader.mode == "loop"
        if before is not None and not goes_on:
            ids = {"first_id": before[0], "last_id": before[1]}
            self.single(process, "release", topic=topic, cursor=cursor, **ids)
            reader.hand, reader.is_left = None, False
        redelivered = max(0, min(stored.handed.get(topic, 0), last_id) + 1 - first_id)
        if reader.mode == "once":
            ids = {"first_id": first_id, "last_id": last_id}
            self.single(process, "ack", topic=topic, cursor=cursor, **ids)
            stored.cursors[topic] = last_id
        else:
            if before is not None and goes_on:
                self.single(process, "ack", topic=topic, last_id=before[1], cursor=cursor)
                stored.cursors[topic] = max(cursor, before[1])
            reader.hand = (first_id, last_id)
        stored.handed[topic] = max(stored.handed.get(topic, 0), last_id)
        fields = {"first_id": first_id, "last_id": last_id, "cursor": stored.cursors[topic]}
        self.single(process, "hand", topic=topic, redelivered=redelivered or None, **fields)
        while reader.brought and reader.brought[0] <= last_id:
            reader.brought.popleft()

    def get(self, process: RecordingProcess, topic: str, is_any: bool = False) -> None:
        """Ask for what follows: of a topic, or of any."""
        rng, stored = self.rng, process.stored
        asked = None if is_any else stored.cursors.get(topic)
        had = dict(stored.cursors)
        limits = {"max_count": rng.choice((1, 2, 5, 50)), "max_bytes": rng.choice((100, 2**20))}
        told = {"last_id": asked, "last_ids": had, **limits}
        own = {"last_id": asked, **(limits if self.shape.has_limits else {})}
        operation: PendingOperation

        def done(outcome: str, answer: dict[str, Any]) -> None:
            if outcome != "ok":
                return
            stamp = {name: answer[name] for name in ("node", "term")}
            name, first_id, items = answer["topic"], answer["id"], answer["items"]
            (process.read_out.discard if items else process.read_out.add)(name)
            known = max(0, stored.cursors.get(name, 0) + 1 - first_id)
            if known >= len(items):
                begin = first_id if items else None
                if self.shape.has_limits:
                    stamp |= {"bytes": 0, "topic": name}
                elif items:
                    stamp |= {"topic": name}
                self.end(operation, "ok", **{"count": 0, "first_id": begin, **stamp})
                return
            first_id, items = first_id + known, items[known:]
            last_id = first_id + len(items) - 1
            brought = {"first_id": first_id, "last_id": last_id, "count": len(items)}
            brought |= {"topic": name, **self.content(name, first_id, items), **stamp}
            if self.shape.has_limits:
                brought["bytes"] = PUBLICATION_BYTES * len(items)
            if is_any:
                brought["cursor"] = had.get(name)
            if self.shape.has_handling:
                brought["handed_apart"] = True
            self.end(operation, "ok", **brought)
            if name not in stored.cursors:
                return
            if self.shape.has_handling:
                self.reader(process, name).brought = deque(range(first_id, last_id + 1))
            elif rng.random() < 0.95:  # else it dies before it is stored
                stored.cursors[name] = max(stored.cursors[name], last_id)
            else:
                self.crash(process)

        operation = self.ask(process, "get", "" if is_any else topic, done, own, told)

    def content(self, topic: str, first_id: int, items: list[tuple[str, int]]) -> Row:
        """Return what a record says of delivered publications."""
        if self.shape.is_application:
            return {"digests": "".join(digest(who, topic, counter) for who, counter in items)}
        return {"items": runs_of(dict(enumerate(items, first_id)))}

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> MadeHistory:
        """Let it all happen; return the record."""
        rng, shape = self.rng, self.shape
        self.mark("warmup")
        for process in self.processes:
            self.start(process)
            for topic in process.reads:
                if rng.random() < 0.8:
                    self.control(process, "sub", topic)
        self.mark("steady")
        for _ in range(shape.steps):
            self.step()
        self.finish_run()
        self.about()
        return self.history

    def step(self, is_calm: bool = False) -> None:
        """Let anything happen that can."""
        rng, trouble = self.rng, 0.0 if is_calm else self.shape.trouble
        self.pass_time()
        if self.net and rng.random() < 0.6:
            message = self.net.pop(rng.randrange(len(self.net)))
            if rng.random() >= trouble:
                self.deliver(message)
            return
        waiting = [one for process in self.processes for one in process.under_way]
        lost = [one for one in waiting if not any(m.operation is one for m in self.net)]
        if waiting and rng.random() < 0.3 * trouble:
            self.time_out(rng.choice(waiting))
            return
        if lost and rng.random() < 0.3:
            self.time_out(rng.choice(lost))
            return
        if rng.random() < 0.15 * trouble:
            self.broker.elect()
            return
        process = rng.choice(self.processes)
        if rng.random() < 0.2 * trouble:
            self.disturb(process)
        elif process.may_act:
            self.act(process)
        elif not process.is_fenced and rng.random() < 0.5:
            self.come_back(process)

    def disturb(self, process: RecordingProcess) -> None:
        """Kill a client, or let another process take it over."""
        if process.is_fenced:
            return
        kind = self.rng.random()
        if kind < 0.3 and self.shape.has_epochs:
            if not (self.shape.is_application and process.is_alive):  # docs/recording.md: no copies
                self.take_over(process)
        elif process.is_alive:
            self.crash(process)

    def act(self, process: RecordingProcess) -> None:
        """Let a client do something of its own."""
        rng = self.rng
        kinds = ["put"] * 3 * bool(process.publishes) + ["read"] * 4 * bool(process.reads)
        if not kinds:
            return
        kind = rng.choice(kinds)
        if kind == "put":
            self.put(process, rng.choice(process.publishes))
            return
        topic = rng.choice(process.reads)
        chance = rng.random()
        is_leaving = bool(process.busy("unsub", topic) or process.busy("sub", topic))
        if chance < 0.04 and not is_leaving:
            self.control(process, "unsub", topic)
        elif (chance < 0.08 or topic not in process.stored.cursors) and not is_leaving:
            if topic in process.stored.cursors or rng.random() < 0.5:
                self.control(process, "sub", topic)
            elif rng.random() < 0.3:
                self.read(process, topic)
        elif chance < 0.15:
            is_free = not any(one.invoke["f"] == "get" for one in process.under_way)
            readers = process.readers.values()
            if is_free and not any(one.hand or one.brought for one in readers):
                self.get(process, topic, is_any=True)
        else:
            self.read(process, topic)

    def settle(self, wanted: Callable[[], bool], steps_max: int = 400) -> None:
        """Go on until something is so, or for a while."""
        for _ in range(steps_max):
            if wanted():
                return
            self.step(is_calm=True)

    def finish_run(self) -> None:
        """Heal, let tombstones be written and drain to them, with latecomers in between."""
        rng, shape = self.rng, self.shape
        self.heal()
        late = {one.name: one.publishes for one in self.processes if rng.random() < 0.4}
        for process in self.processes:
            process.publishes = []
        for _ in range(rng.randint(0, 40)):
            self.step(is_calm=True)
        if not shape.is_application:
            self.mark("tombstone")
            for topic in shape.topics:
                self.bury(topic)
            self.mark("drain")
        for process in self.processes:
            process.publishes = late.get(process.name, [])
        for process, topic in [(one, topic) for one in self.processes for topic in one.reads]:
            if process.may_act and rng.random() < 0.97:
                self.drain(process, topic)
        for process in [one for one in self.processes if one.name in late]:
            self.come_late(process)
        for _ in range(rng.choice((0, 0, 30, 80))):
            self.step(is_calm=True)
        if not shape.is_application:
            self.mark("done")

    def heal(self) -> None:
        """Let who has crashed come back, mostly."""
        self.mark("heal")
        for process in self.processes:
            if not (process.is_alive or process.is_fenced) and self.rng.random() < 0.9:
                self.come_back(process)

    def come_late(self, process: RecordingProcess) -> None:
        """Send again, behind the drain, what waits in the outbox."""
        for entry in process.stored.outbox[:3]:
            if process.may_act and not process.busy("put", entry.topic):
                self.put_entry(process, entry)

    def bury(self, topic: str) -> None:
        """Write a topic's tombstone; ask again until it is acknowledged."""
        runner = self.runner
        if runner.epoch is None:
            epoch = self.broker.commit(("open", runner.stored.client))
            runner.epoch = epoch if self.shape.has_epochs else None
            runner.is_alive = True
        counter = runner.stored.counters.get(topic, 0) + 1
        runner.stored.counters[topic] = counter
        first_try = True
        self.pass_time()
        while topic not in runner.acknowledged or first_try:
            entry = Outbound(topic, counter, 1)
            if not runner.busy("put", topic):
                self.put_entry(runner, entry)
            first_try = False
            for _ in range(20):
                self.step(is_calm=True)
            if runner.busy("put", topic):
                self.time_out(runner.busy("put", topic)[0])

    def drain(self, process: RecordingProcess, topic: str) -> None:
        """Let a subscriber read up to the tombstone, and say so."""
        stored, name, shape = process.stored, process.stored.client, self.shape
        buried = self.broker.state.puts.get(("runner-client", topic), {}).get(1, 0)
        if topic not in stored.cursors and self.rng.random() < 0.5:
            return

        def has_it() -> bool:
            """In a run without phases nobody knows of a tombstone: it reads until there is none."""
            is_at_end = shape.has_phases or topic in process.read_out
            return is_at_end and bool(buried) and stored.cursors.get(topic, 0) >= buried

        def is_over() -> bool:
            has_left = name not in self.broker.state.topic(topic).cursors
            return has_it() or has_left or process.is_fenced or not process.is_alive

        for _ in range(60):
            if is_over():
                break
            if not process.busy("get", topic):
                self.read(process, topic)
            for _ in range(4):
                self.step(is_calm=True)
        is_subscribed = name in self.broker.state.topic(topic).cursors
        if self.shape.is_application or not (is_subscribed and has_it()):
            return
        if process.may_act:
            last_id = stored.cursors[topic]
            self.single(process, "phase", phase="drained", topic=topic, last_id=last_id)

    # --- run.json, truth -------------------------------------------------------------------------

    def about(self) -> None:
        """Write down what run.json and the nodes say."""
        rng, shape, history = self.rng, self.shape, self.history
        for process in self.processes:
            own = [row for row in history.rows if row["process"] == process.name]
            is_cut = bool(own) and RAW in own[-1] and not own[-1][RAW].endswith(b"\n")
            if own and (is_cut or rng.random() < 0.03):
                history.open[process.name] = rng.randint(0, len(own) - is_cut)
        if shape.is_application:
            history.document = {"recorded_by": "application", "start": "2026-01-01T00:00:00+00:00"}
            return
        outcome = {"finished": True, "problems": [], "reasons": [], "violations": []}
        outcome |= {"acknowledged": 1, "delivered": 1, "injections": []}
        history.document = {"seed": 1, "nodes": shape.nodes, "outcome": outcome}
        if shape.has_truth:
            history.document["truth"] = {"nodes": shape.nodes}
            history.truth = self.broker.truth(history.run_id, rng)


def legal(seed: int) -> MadeHistory:
    """Return the legal history of a seed."""
    history = MadeRun(seed).run()
    rng = random.Random(f"times {seed}")
    if rng.random() < DRESSED_SHARE:
        dress(history, rng)
        if rng.random() < EMPLOYED_SHARE:
            employ(history, rng)
    rng = random.Random(f"delays {seed}")
    if rng.random() < POSTPONED_SHARE:
        postpone(history, rng)
    rng = random.Random(f"readings {seed}")
    if rng.random() < WANDERED_SHARE:
        wander(history, rng)
    rng = random.Random(f"fading {seed}")
    if rng.random() < FADED_SHARE:
        lose_some(history, rng)
    return history
