"""A store under a test's hands."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from cluster.store.commands import Operation, Put, Register, Subscribe, encode
from cluster.store.store import Delivery, Limits, Store
from cluster.store.tables import PAGE_BYTES
from flotilla_client.protocol import pack, unpack
from tests.unit.model_store import MEMBERS, SMALL, Answer, answer_of

ROWS = 1_000  # of each view: more than any test has


def lose_the_last_of_three_rows(path: Path, table: str) -> int:
    """Flip a bit of the number of rows of a table's one page, which is returned.

    Those are bytes 3 and 4 of its head; the rest looks whole.
    """
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        [(page,)] = connection.execute(sql, (table,)).fetchall()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    data = bytearray(path.read_bytes())
    at = (page - 1) * PAGE_BYTES + 4
    assert data[at] == 3
    data[at] = 2
    path.write_bytes(data)
    return int(page)


def views(store: Store) -> dict[str, Any]:
    """Return all that a node tells people of its state."""
    topics, clients = store.all_topics("", ROWS), store.clients_page("", ROWS)
    ids = [row["client_id"] for row in clients]
    return {
        "statistics": store.statistics(),
        "topics": topics,
        "policies": [store.topic_row(row["topic"]) for row in topics],
        "holders": [store.holders(row["topic"], ROWS) for row in topics],
        "clients": clients,
        "rows": [store.client_row(client_id) for client_id in ids],
        "own": [store.topics_of(client_id, "", ROWS) for client_id in ids],
        "counters": [store.counters(client_id, "", ROWS) for client_id in ids],
        "placed": [store.placed(client_id) for client_id in ids],
        "subscriptions": store.subscriptions_page("", "", ROWS),
        "groups": store.groups.page("", "", ROWS),
        "patterns": store.patterns.page("", "", ROWS),
        "users": store.users.page("", ROWS),
        "acts": store.acts.page(0),
    }


class Bench:
    """A store under a test's hands: each call is one entry of one operation, committed.

    `now_ms`: the time that the next entry is stamped with.
    """

    now_ms = 1

    def __init__(self, path: Path, limits: Limits = SMALL) -> None:
        self.path, self._limits = path, limits
        self.store = Store.open(path, MEMBERS, limits)

    @classmethod
    def started(cls, path: Path) -> Bench:
        """Return a cluster with the client p, and s subscribed to t."""
        bench = cls(path)
        for client in "ps":
            bench.ok(Register(client, True, None, ""))
        bench.ok(Subscribe("s", None, "t", None))
        return bench

    def reopen(self, limits: Limits | None = None) -> None:
        """Close the store and open it again, as a restart does."""
        self.store.close()
        self.store = Store.open(self.path, {}, limits or self._limits)

    def restart(self, limits: Limits | None = None) -> None:
        """Do the same in order: behind it the store says the same of all that it has."""
        self.store.commit()
        said = views(self.store)
        self.reopen(limits)
        now = views(self.store)
        assert {each: now[each] for each in said if now[each] != said[each]} == {}

    def apply(self, *operations: Operation) -> list[Answer]:
        payload = encode(self.now_ms, operations)
        outcomes = self.store.apply(self.store.applied_index + 1, 1, payload)
        self.store.commit()
        return [answer_of(outcome) for outcome in outcomes]

    def one(self, operation: Operation) -> Answer:
        return self.apply(operation)[0]

    def ok(self, operation: Operation) -> dict[str, Any]:
        code, body = self.one(operation)
        assert code == "ok", (operation, code, body)
        return body

    def put(self, counter: int, *batch: bytes, client: str = "p", topic: str = "t") -> Answer:
        return self.one(Put(client, None, topic, counter, *pack(list(batch or [b"x"]))))

    def get(self, client: str, last_id: int | None = None, topic: str = "t") -> list[bytes]:
        delivery = self.store.read(client, topic, last_id, 1000, 1_000_000)
        assert isinstance(delivery, Delivery), delivery
        return unpack(delivery.lengths, delivery.data)


def replay(store: Store, payloads: list[bytes], collects: Callable[[int], bool]) -> Store:
    """Apply and commit all payloads; collect garbage after those that `collects` says."""
    for index, payload in enumerate(payloads, 1):
        store.apply(index, 1, payload)
        store.commit()
        if collects(index):
            store.collect_garbage(100)
    return store
