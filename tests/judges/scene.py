"""A few operations of clients and a topic of their own, written into a history.

What lives here: rows as a recorder writes them, one after the other or overlapping, on one host and
with a clock of its own, so that they contradict nothing else in the history. What must not: what
they prove (sabotage.py).
"""

from __future__ import annotations

import random
from typing import Any

from tests.judges.history import MadeHistory, Row, digest

Place = tuple[str, int]  # producer, counter


class SceneWriter:
    """Writes into `history`. Ids of `topic` begin above `base`, which is random."""

    def __init__(self, history: MadeHistory, rng: random.Random, name: str = "x") -> None:
        self.history, self.rng = history, rng
        self.name, self.topic = name, f"{name}-topic"
        self.host: str | None = f"{name}-host"
        self.base = rng.choice((0, 0, rng.randint(1, 9), 65_533))
        self.t_ns = rng.randrange(2**50)
        answers = [row for row in history.rows if "term" in row and row["type"] == "ok"]
        stamp = rng.choice(answers) if answers else {"node": "a", "term": 1}
        self.node, self.term = stamp["node"], stamp["term"]
        self.op_ids: dict[str, int] = {}
        self.sessions: dict[str, int] = {}  # of each process
        # A name that two scenes have is one client to a judge: each of its sessions has an epoch.
        self.epoch = max((row.get("epoch") or 0 for row in history.rows), default=0)
        self.acknowledged: list[
            tuple[str, int, int, int]
        ] = []  # producer, counter, count, first id
        history.scenes.append(self)

    def id(self, number: int) -> int:
        """Return the topic's id of that number, from 1 on."""
        return self.base + number

    def pause(self, least_ns: int = 0) -> None:
        """Let some time go by."""
        self.t_ns += least_ns + self.rng.choice((1_000, 250_000, 3_000_000, 150_000_000))

    def invoke(self, client: str, f: str, topic: str | None = None, **fields: Any) -> Row:
        """Write an invoke; `process` and `session` as the fields say, else the last one."""
        process = fields.pop("process", f"{self.name}-{client}")
        self.op_ids[process] = self.op_ids.get(process, 0) + 1
        row = {"op_id": self.op_ids[process], "f": f, "topic": self.topic, "type": "invoke"}
        if topic is not None:
            row["topic"] = topic
        session = self.sessions[process] = fields.get("session", self.sessions.get(process, 1))
        own = {"client_id": client, "session": session, "epoch": self.epoch + session}
        return self.write(process, {**row, **own, **fields})

    def end(self, invoke: Row, outcome: str, **fields: Any) -> Row:
        """Write an operation's end."""
        kept = ("op_id", "f", "topic", "client_id", "session", "counter", "count", "epoch")
        row = {name: invoke[name] for name in (*kept, "max_count") if name in invoke}
        row |= {"type": outcome, "attempt": 1, "invoke_ns": invoke["t_ns"]}
        if "last_id" in invoke:
            row["asked"] = invoke["last_id"]
        if outcome == "ok":
            row |= {"node": self.node, "term": self.term}
        elif "error" not in fields:
            row["error"] = "timeout" if outcome == "info" else "backlog_full"
        return self.write(invoke["process"], {**row, **fields})

    def write(self, process: str, row: Row) -> Row:
        """Write a row."""
        self.pause()
        stamp: Row = {"run_id": self.history.run_id, "process": process, "host": self.host}
        stamp |= {"session": 1, "t_ns": self.t_ns, "wall_ns": self.t_ns, **row}
        event = {name: value for name, value in stamp.items() if value is not None}
        self.history.rows.append(event)
        return event

    def single(self, client: str, f: str, **fields: Any) -> Row:
        """Write an event without an end."""
        process = fields.pop("process", f"{self.name}-{client}")
        self.op_ids[process] = self.op_ids.get(process, 0) + 1
        row = {"op_id": self.op_ids[process], "f": f, "topic": self.topic, "type": "info"}
        own = {"client_id": client, "session": self.sessions.get(process, 1)}
        return self.write(process, {**row, **own, **fields})

    # --- whole operations ------------------------------------------------------------------------

    def begin_put(self, client: str, counter: int, count: int = 1, **fields: Any) -> Row:
        """Begin a PUT."""
        if self.history.is_application:
            every = range(counter, counter + count)
            fields["digests"] = "".join(digest(client, self.topic, one) for one in every)
        return self.invoke(client, "put", counter=counter, count=count, **fields)

    def stored(self, invoke: Row, number: int, **fields: Any) -> Row:
        """Acknowledge a PUT; its first id has that number, 0: there is none."""
        first_id = self.id(number) if number else 0
        last_id = first_id + invoke["count"] - 1 if number else 0
        ids = {"first_id": first_id, "last_id": last_id, "duplicate": False}
        put = (invoke["client_id"], invoke["counter"], invoke["count"], first_id)
        self.acknowledged.append(put)
        return self.end(invoke, "ok", **{**ids, **fields})

    def on_disks(self) -> None:
        """Let every node have what was acknowledged, if nodes' disks were read."""
        for node, rows in self.history.truth.items():
            common = {"run_id": self.history.run_id, "node": node, "topic": self.topic}
            last_id, taken, held = self.base, dict[str, int](), dict[int, Row]()
            for producer, counter, count, first_id in self.acknowledged:
                taken[producer] = max(taken.get(producer, 0), counter + count - 1)
                last_id = max(last_id, first_id + count - 1)
                content = {"producer": producer, "first_counter": counter, "count": count}
                if first_id:
                    held.setdefault(first_id, {"first_id": first_id, **content})
            rows.append({**common, "kind": "topic", "last_id": last_id, "floor_id": self.base})
            rows += [{**common, "kind": "held", **row} for row in held.values()]
            for producer, counter in taken.items():
                rows.append({**common, "kind": "counter", "producer": producer, "counter": counter})

    def put(self, client: str, counter: int, number: int, count: int = 1, **fields: Any) -> Row:
        """Write an acknowledged PUT; return its invoke."""
        own = {name: fields.pop(name) for name in ("process", "session", "epoch") if name in fields}
        invoke = self.begin_put(client, counter, count, **own)
        self.stored(invoke, number, **fields)
        return invoke

    def unclear(self, client: str, counter: int, count: int = 1) -> Row:
        """Write a PUT whose outcome is not known: with an end that says so, or without one."""
        invoke = self.begin_put(client, counter, count)
        if self.rng.random() < 0.7:
            self.end(invoke, "info")
        return invoke

    def sub(self, client: str, number: int, resumed: bool = False, **fields: Any) -> Row:
        """Write an acknowledged SUB that stands at the id of that number; return its end."""
        own = {name: fields.pop(name) for name in ("process", "session", "epoch") if name in fields}
        invoke = self.invoke(client, "sub", **own)
        return self.subscribed(invoke, number, resumed, **fields)

    def subscribed(self, invoke: Row, number: int, resumed: bool = False, **fields: Any) -> Row:
        """Acknowledge a SUB."""
        stands = {"last_id": self.id(number), "resumed": resumed, "cursor": self.id(number)}
        return self.end(invoke, "ok", **{**stands, **fields})

    def unsub(self, client: str, outcome: str = "ok") -> Row:
        """Write an UNSUB."""
        return self.end(self.invoke(client, "unsub"), outcome)

    def begin_get(self, client: str, asked: int | None, **fields: Any) -> Row:
        """Begin a GET that has up to the id of that number."""
        if asked is not None:
            fields = {"last_id": self.id(asked), **fields}
        return self.invoke(client, "get", **{"max_count": 50, "max_bytes": 2**20, **fields})

    def brought(self, invoke: Row, number: int, *places: Place, **fields: Any) -> Row:
        """Answer a GET with publications from the id of that number on."""
        count = len(places)
        ids = {"first_id": self.id(number), "last_id": self.id(number) + count - 1, "count": count}
        if self.history.is_application:
            content: Row = {"digests": "".join(digest(who, self.topic, one) for who, one in places)}
        else:
            content = {"items": [[self.id(number + n), *one, 1] for n, one in enumerate(places)]}
        row = {"topic": self.topic, "bytes": 40 * count, **ids, **content}
        return self.end(invoke, "ok", **{**row, **fields})

    def get(self, client: str, asked: int | None, number: int, *places: Place, **own: Any) -> Row:
        """Write a GET and its answer; return the answer. Delivered counts as handed over."""
        return self.brought(self.begin_get(client, asked, **own), number, *places)

    def nothing(self, client: str, asked: int | None, **own: Any) -> Row:
        """Write a GET that was told that there is nothing new."""
        invoke = self.begin_get(client, asked, **own)
        return self.end(invoke, "ok", count=0, topic=self.topic, bytes=0)

    def drained(self, client: str, number: int) -> Row:
        """Let a subscriber say that it has drained the topic."""
        return self.single(client, "phase", phase="drained", last_id=self.id(number))
