"""A running digest of the replicated state, for nodes to compare: one that differs is found out.

What lives here: what goes into the digest, and its row. What must not: who compares it with whom,
and what follows (node/audit.py).

What an entry did goes into the digest when it is applied: what each operation came to, and the
checksum of each row of publications. Each EVERY entries some rows of the state itself go in, in
turn, so that a difference is found which no operation has met. So the cost is bounded, and what the
digest says holds of all entries up to an index: once it differs it differs for ever.

Nodes of several versions compare these, so what goes in is spelled out here, and changes only with
the cluster's level. Numbers of rows don't go in, nor what garbage is collected: a node may have
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from cluster.store.commands import OfPatterns, Operation, Put, Take
from cluster.store.outcomes import Done, Outcome, Refused
from cluster.store.tables import Database, plain
from cluster.store.topics import Topic, Topics
from cluster.wire.levels import LEVEL_OF_AUDIT

EVERY: Final = 256  # entries between two agreed indexes; about a percent of what they cost
ROWS: Final = 16  # of clients and of topics, looked at each time: about half a millisecond
PRODUCERS: Final = 16  # of each of these clients
CURSORS: Final = 256  # of each of these topics; of one with more its lowest alone
MARKS_MAX: Final = 1_024  # agreed indexes whose digests are kept: minutes of the busiest cluster
DIGEST_BYTES: Final = 16


class Audit:
    """The digest as of the applied entry. `marks`: what it was at agreed indexes, the last ones."""

    def __init__(self, database: Database, level: int) -> None:
        self._database = database
        self.raise_level(level)
        self.marks: dict[int, str] = {}
        self._digest, self._client, self._topic = "", "", ""
        running = database.running()
        if running is not None:
            self._digest, self._client, self._topic = running[-1 - len(self.row()) : -1]

    def raise_level(self, level: int) -> None:
        """Begin with the level of the cluster that brings it."""
        self.is_on = level >= LEVEL_OF_AUDIT

    def take(
        self,
        index: int,
        term: int,
        log_ms: int,
        operations: Sequence[Operation],
        outcomes: list[Outcome],
        row_crcs: list[int],
    ) -> None:
        """Take in what an entry did."""
        done = [_said(*each) for each in zip(operations, outcomes, strict=True)]
        self._add((index, term, log_ms, done, row_crcs))

    def _add(self, what: Any) -> None:
        text = self._digest + plain(repr(what))
        self._digest = blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()

    def look(self, index: int, topics: Topics) -> None:
        """Take in some rows of the state, and keep the digest of an agreed index.

        All that is buffered has been written.
        """
        self._look_at_clients()
        page = topics.page(self._topic, ROWS)
        for topic in page:
            self._add(_of_topic(topic))
        self._topic = page[-1].name if len(page) == ROWS else ""
        self.marks[index] = self._digest
        if len(self.marks) > MARKS_MAX:
            del self.marks[next(iter(self.marks))]

    def _look_at_clients(self) -> None:
        query = self._database.query
        clients = query(_CLIENTS, (self._client, ROWS))
        for number, *client in clients:
            produces = client[_PRODUCERS_COUNT]
            self._add((client, query(_PRODUCERS, (number, PRODUCERS)) if produces else []))
        self._client = clients[-1][1] if len(clients) == ROWS else ""

    def row(self) -> tuple[str, str, str]:
        """Return what changes with each entry: its part of `Database.write_running`."""
        return self._digest, self._client, self._topic


def is_agreed(index: int) -> bool:
    """Return whether nodes compare their digests at that index."""
    return index % EVERY == 0


def _said(operation: Operation, outcome: Outcome) -> Any:
    if isinstance(outcome, Refused):
        return outcome.code
    assert isinstance(outcome, Done)
    if type(operation) is Put:
        return outcome.body["id"], outcome.body["count"], outcome.body["duplicate"]
    body = outcome.body
    if isinstance(operation, OfPatterns):
        return body["resumed"] if "resumed" in body else body["was_subscribed"], body.get("topics")
    if type(operation) is Take:
        return body["token"], body["given"], body["lost"], body["dead"]
    return body.get("last_id"), body.get("epoch"), body.get("forgotten"), body.get("purged")


def _of_topic(topic: Topic) -> Any:
    cursors = topic.cursors
    kept = sorted(cursors.items()) if len(cursors) <= CURSORS else topic.floor_id
    counts = topic.last_id, topic.added_bytes, topic.purged_id
    groups = (sorted(topic.groups.items()),) if topic.groups else ()  # of a cluster of their level
    said = topic.name, *counts, len(topic.subscribers), kept, *groups
    if topic.retention is None:
        return said
    return *said, topic.floor_id, topic.retention.text()


_CLIENTS: Final = (
    "SELECT number, client_id, epoch, sequence, nonce, producers, owner FROM clients"
    " LEFT JOIN owners ON owners.client = number WHERE client_id > ? ORDER BY client_id LIMIT ?"
)
_PRODUCERS_COUNT: Final = 4  # of the columns behind the number
_PRODUCERS: Final = (
    "SELECT topic, counter, puts FROM producers WHERE client = ? ORDER BY topic LIMIT ?"
)
