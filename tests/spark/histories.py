"""Histories for the tests: a realistic clean run from a seed, and violations planted in it.

Rows are dictionaries as docs/history.md has them, and runs are sealed: run.json says what each file
is. Nothing here knows how a check works.
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analytics.intake.seal import seal

Row = dict[str, Any]


class RunRecorder:
    """A recorder of rows: one clock, an operation number a process."""

    def __init__(self, run_id: str = "run") -> None:
        self.run_id = run_id
        self.rows: list[Row] = []
        self.truth: list[Row] = []
        self.nodes: dict[str, bool] = {}  # whether its disk was read
        self.hosts: dict[str, str | None] = {}  # process -> where it runs, if not on "h"
        self._clock_ms: Iterator[int] = itertools.count(1)
        self._op_ids: dict[str, Iterator[int]] = {}

    def invoke(self, client_id: str, f: str, topic: str, **fields: Any) -> Row:
        """Record an invoke, return it; `session` 0 unless given. The process is the client's."""
        row = {"client_id": client_id, "session": 0, "f": f, "topic": topic}
        return self._add({**row, "process": client_id, **fields}, "invoke")

    def complete(self, invoke: Row, outcome: str, **fields: Any) -> Row:
        """Record the completion of `invoke`, which repeats it as the recorder lets it."""
        kept = ("process", "client_id", "op_id", "session", "f", "topic")
        own = {name: invoke[name] for name in kept}
        repeated = {name: invoke.get(name) for name in ("counter", "count", "epoch", "max_count")}
        repeated |= {"invoke_ns": invoke["t_ns"], "asked": invoke.get("last_id")}
        return self._add({**own, **repeated, **fields}, outcome)

    def put(
        self, producer: str, topic: str, counter: int, outcome: str, count: int = 1, **fields: Any
    ) -> Row:
        """Record a PUT and its completion; `fields` are the completion's. Returns the invoke."""
        session, epoch = fields.pop("session", 0), fields.pop("epoch", None)
        own = {"session": session, "epoch": epoch, "process": fields.pop("process", producer)}
        invoke = self.invoke(producer, "put", topic, counter=counter, count=count, **own)
        self.complete(invoke, outcome, **fields)
        return invoke

    def get(
        self,
        client_id: str,
        topic: str,
        asked: int | None,
        items: list[list[Any]],
        session: int = 0,
        **fields: Any,
    ) -> Row:
        """Record a GET that was answered with `items`, of the topic `answered` if that is another
        one. Returns the completion.
        """
        if "answered" in fields:
            fields["topic"] = fields.pop("answered")
        own = {"epoch": fields.pop("epoch", None), "process": fields.pop("process", client_id)}
        own["max_count"] = fields.pop("max_count", None)
        if asked is not None:
            own["last_id"] = asked
        invoke = self.invoke(client_id, "get", topic, session=session, **own)
        count = sum(item[3] for item in items) + len(fields.get("corrupt") or ())
        return self.complete(invoke, "ok", **{"items": items, "count": count, **fields})

    def sub(
        self, client_id: str, topic: str, start_id: int = 0, session: int = 0, **fields: Any
    ) -> Row:
        """Record an acknowledged SUB; `fields` are the completion's. Returns the completion."""
        own = {"epoch": fields.pop("epoch", None), "process": fields.pop("process", client_id)}
        invoke = self.invoke(client_id, "sub", topic, session=session, **own)
        return self.complete(invoke, "ok", last_id=start_id, **fields)

    def handle(
        self, client_id: str, f: str, topic: str, first_id: int | None, last_id: int, **fields: Any
    ) -> Row:
        """Record a step between a client and its application: `hand`, `ack`, `release`."""
        process = fields.pop("process", client_id)
        row = {"client_id": client_id, "session": 0, "f": f, "topic": topic}
        ids = (
            {"last_id": last_id} if first_id is None else {"first_id": first_id, "last_id": last_id}
        )
        return self._add({**row, "process": process, **ids, **fields}, "info")

    def unsub(self, client_id: str, topic: str, outcome: str = "ok") -> None:
        """Record an UNSUB."""
        self.complete(self.invoke(client_id, "unsub", topic), outcome)

    def drained(
        self, client_id: str, topic: str, last_id: int, process: str | None = None, **fields: Any
    ) -> None:
        """Record that the subscriber reached the topic's tombstone; with a `group`, the worker."""
        row = {"process": process or client_id, "client_id": client_id, "f": "phase"}
        said = {"phase": "drained", "topic": topic, "last_id": last_id}
        self._add({**row, **said, **fields}, "info")

    def phase(self, name: str) -> None:
        """Record that a phase of the run begins."""
        self._add({"process": "runner", "f": "phase", "phase": name}, "info")

    def fault(self, name: str, action: str) -> None:
        """Record a fault's injection or its healing."""
        error = json.dumps({"name": name, "action": action, "targets": ["node-1"]})
        self._add({"process": "runner", "f": "fault", "error": error}, "info")

    def purge(self, topic: str, last_id: int, is_done: bool = True) -> None:
        """Record that a topic is to be purged up to an id, and was."""
        for f in ("purge", "purged") if is_done else ("purge",):
            self._add({"process": "operator", "f": f, "topic": topic, "last_id": last_id}, "info")

    def wait(self, ms: int) -> None:
        """Let that much time pass."""
        self._clock_ms = itertools.count(next(self._clock_ms) + ms)

    def disk(self, *nodes: str, is_read: bool = True) -> None:
        """Let the run have these nodes."""
        self.nodes |= dict.fromkeys(nodes, is_read)

    def found_on(self, nodes: str, kind: str, **fields: Any) -> None:
        """Record a row of truth on each of `nodes` (names of one letter)."""
        common = {"run_id": self.run_id, "kind": kind, **fields}
        self.truth += [{**common, "node": node} for node in nodes]

    def held(self, nodes: str, producer: str, topic: str, counter: int, count: int = 1) -> None:
        """Record publications that stand on the disks of `nodes`, with the counters they took."""
        fields = {"producer": producer, "topic": topic}
        self.found_on(nodes, "held", first_counter=counter, count=count, **fields)
        self.found_on(nodes, "counter", counter=counter + count - 1, **fields)

    def _add(self, row: Row, kind: str) -> Row:
        t_ns = next(self._clock_ms) * 1_000_000
        if "op_id" not in row:  # no end of an operation
            row["op_id"] = next(self._op_ids.setdefault(row["process"], itertools.count(1)))
        host = self.hosts.get(row["process"], "h")
        stamp = {"run_id": self.run_id, "type": kind, "t_ns": t_ns, "wall_ns": t_ns, "host": host}
        self.rows.append({**stamp, **row})
        return self.rows[-1]


def clean_run(seed: int, publications: int = 400, run_id: str = "run") -> list[Row]:
    """Return a correct cluster's history: batches, retries over sessions, crashes, time-outs,
    a subscriber that leaves and comes back, ids across a bucket's border, and a full drain.
    """
    broker = CorrectBroker(random.Random(seed), run_id, publications)
    broker.work()
    broker.drain()
    return broker.run.rows


class CorrectBroker:
    """One topic of a broker that keeps every promise, as its clients saw it."""

    TOPIC = "orders"
    START_ID = 65_400  # so that a few hundred ids cross a bucket of 65,536

    def __init__(self, rng: random.Random, run_id: str, publications: int) -> None:
        self.rng = rng
        self.run = RunRecorder(run_id)
        self.end_id = self.START_ID + publications
        self.stored: list[tuple[str, int]] = []  # of id START_ID + 1 + place
        self.counters = {"p1": 0, "p2": 0}
        self.cursors = {"s1": self.START_ID, "s2": self.START_ID}
        self.sessions = {"s1": 0, "s2": 0}
        self.told = dict(self.cursors)  # what each subscriber has told the broker that it has
        self.term = 1

    def work(self) -> None:
        """Subscribe, then do everything at random until enough is stored."""
        for client_id, cursor in self.cursors.items():
            self.run.sub(client_id, self.TOPIC, cursor, resumed=False, cursor=cursor, **self.leader)
        while self.last_id < self.end_id:
            self.rng.choice((self.put, self.put, self.get, self.trouble))()
        self.run.fault("kill", "heal")

    @property
    def last_id(self) -> int:
        """The highest id given."""
        return self.START_ID + len(self.stored)

    @property
    def leader(self) -> Row:
        """Who answers now."""
        return {"node": f"n{self.term % 3}", "term": self.term}

    def store(self, producer: str, counter: int, count: int) -> int:
        """Give ids to publications; return the first."""
        first_id = self.last_id + 1
        self.stored += [(producer, counter + place) for place in range(count)]
        return first_id

    def put(self) -> None:
        """A PUT: mostly plain; or unknown at first and repeated by a later session; or refused."""
        producer = self.rng.choice(list(self.counters))
        counter, count = self.counters[producer] + 1, self.rng.randint(1, 5)
        refused, unknown = self.rng.random() < 0.1, self.rng.random() < 0.2
        if refused:
            self.run.put(producer, self.TOPIC, counter, "fail", count, error="electing")
        self.counters[producer] += count
        ids = {"first_id": self.store(producer, counter, count)}
        ids["last_id"] = ids["first_id"] + count - 1
        if unknown:
            self.run.put(producer, self.TOPIC, counter, "info", count, error="timeout", epoch=2)
            if self.rng.random() < 0.5:
                return
        self.run.put(
            producer, self.TOPIC, counter, "ok", count, session=1, epoch=2, duplicate=unknown,
            **ids, **self.leader,
        )  # fmt: skip

    def get(self) -> None:
        """Let one subscriber read on."""
        self.answer(self.rng.choice(list(self.cursors)), self.rng.randint(1, 9))

    def answer(self, client_id: str, max_count: int, moves: bool = True) -> None:
        """Answer a GET from the cursor; `moves` False: the client crashes before it stores it."""
        asked = self.cursors[client_id]
        taken = self.stored[asked - self.START_ID :][:max_count]
        items = runs_of(asked + 1, taken)
        session = self.sessions[client_id]
        own = {"epoch": session + 1, **self.leader}
        self.run.get(client_id, self.TOPIC, asked, items, session, **own)
        self.told[client_id] = asked
        if moves:
            self.cursors[client_id] += len(taken)

    def trouble(self) -> None:
        """A crash before the cursor moved, an unanswered GET, a fault, or leaving and returning."""
        kind = self.rng.choice(("crash", "silence", "fault", "leave"))
        client_id = self.rng.choice(list(self.cursors))
        if kind == "crash":
            self.answer(client_id, 4, moves=False)
            self.resume(client_id, self.told[client_id])
        elif kind == "silence":
            cursor = self.cursors[client_id]
            self.run.invoke(
                client_id,
                "get",
                self.TOPIC,
                last_id=cursor,
                session=self.sessions[client_id],
            )
        elif kind == "fault":
            self.run.fault("kill", "inject")
            self.term += 1
        elif client_id == "s2" and self.rng.random() < 0.3:
            self.run.unsub("s2", self.TOPIC)
            self.cursors["s2"] = self.told["s2"] = self.last_id
            begun = {"resumed": False, "cursor": self.last_id, **self.leader}
            self.run.sub("s2", self.TOPIC, self.last_id, self.sessions["s2"], **begun)

    def resume(self, client_id: str, cursor: int) -> None:
        """Let a new process of the client subscribe again; the broker has it at `cursor`."""
        self.sessions[client_id] += 1
        session = self.sessions[client_id]
        found = {"resumed": True, "cursor": cursor, "epoch": session + 1, **self.leader}
        self.run.sub(client_id, self.TOPIC, self.cursors[client_id], session, **found)

    def drain(self) -> None:
        """Let every subscriber read to the end."""
        for client_id in self.cursors:
            while self.cursors[client_id] < self.last_id:
                self.answer(client_id, 50)
            self.run.drained(client_id, self.TOPIC, self.last_id)


def runs_of(first_id: int, contents: list[tuple[str, int]]) -> list[list[Any]]:
    """Return `contents`, standing from `first_id` on, as the runs that `items` holds."""
    runs: list[list[Any]] = []
    for position, (producer, counter) in enumerate(contents):
        if runs and runs[-1][1] == producer and runs[-1][2] + runs[-1][3] == counter:
            runs[-1][3] += 1
        else:
            runs.append([first_id + position, producer, counter, 1])
    return runs


def write(directory: Path, rows: list[Row], **about: Any) -> None:
    """Write `rows` as a run's directory, one file a process; `about` joins its run.json.

    What is changed afterwards has to be sealed again, or it is a hole.
    """
    (directory / "history").mkdir(parents=True, exist_ok=True)
    document = {"run_id": rows[0]["run_id"], "seed": 1, **about}
    (directory / "run.json").write_text(json.dumps(document))
    for process in {row["process"] for row in rows}:
        own = [row for row in rows if row["process"] == process]
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in own)
        (directory / "history" / f"{process}.jsonl").write_text(text)
    seal(directory)
