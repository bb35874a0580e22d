"""Clients and their producers: epochs, sequences, counters and the original ids of recent PUTs.

What lives here: the rows, a bounded read-through cache over them, and the window of a producer's
last PUTS_KEPT PUTs. What must not: what a request may do (`store.py`).

A producer is one (client, topic); its row outlives the topic, or a late retry would be stored
twice. Its last few PUTs stand in the row itself, the earlier ones in chunks of CHUNK_PUTS, so
that a PUT touches one page of a table that stays small, not one page a producer.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from cluster.store.idle import Idle
from cluster.store.tables import CorruptStore, Database, in_order, row_crc

PUTS_KEPT: Final = 1024  # docs/protocol.md: a duplicate among these gets its original id
CHUNK_PUTS: Final = 16  # measured: fewest pages written; 256 bytes in the producer's row
CHUNKS: Final = PUTS_KEPT // CHUNK_PUTS
CLIENTS_CACHED_MAX: Final = 16_384  # a generation, 6 MB; what is not cached costs one read
PRODUCERS_CACHED_MAX: Final = 32_768  # a generation, 20 MB
_CHUNK_SHIFT: Final = CHUNKS.bit_length() - 1
_PAIR: Final = struct.Struct("<QQ")  # counter, id
_CHUNK_BYTES: Final = CHUNK_PUTS * _PAIR.size
assert 1 << _CHUNK_SHIFT == CHUNKS, CHUNKS

K = TypeVar("K")
V = TypeVar("V")


class Generations(Generic[K, V]):
    """A cache of the most recently used: two dicts, the older dropped when the younger is full.

    Holds at most twice `size_max` once `rotate` was called; nothing is dropped between two calls.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value, or None when it is not cached."""
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self._young[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        """Keep the value."""
        self._young[key] = value

    def drop(self, key: K) -> None:
        """Forget a value."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def rotate(self) -> None:
        """Drop what was not used for long, if there is too much. Only clean values may be there."""
        if len(self._young) >= self._size_max:
            self._old, self._young = self._young, {}


@dataclass(slots=True, eq=False)
class Client:
    """A row of `clients`. `nonce` is "" unless the last control request was a REQUEST_ID.

    `owner`: the principal who alone may use it, None while it is nobody's; in a table of its own.
    `heard`: when that was, as `Idle` notes it.
    """

    number: int
    client_id: str
    epoch: int
    sequence: int
    nonce: str
    producers: int
    names_bytes: int
    owner: str | None = None
    heard: int = 0


@dataclass(slots=True, eq=False)
class Producer:
    """A row of `producers`. `counter` is the last one taken; `puts` numbers the PUTs.

    Invariant: `recent` holds the last `puts % CHUNK_PUTS` PUTs, (counter, id) each.
    """

    number: int
    client: int
    topic: str
    counter: int
    puts: int
    recent: bytes


class Clients:
    """All clients and producers of the cluster, by a bounded cache over the database."""

    def __init__(self, database: Database, idle: Idle) -> None:
        self._database, self._idle = database, idle
        self._clients: Generations[str, Client] = Generations(CLIENTS_CACHED_MAX)
        self._producers: Generations[tuple[int, str], Producer] = Generations(PRODUCERS_CACHED_MAX)
        self._dirty_clients: set[Client] = set()
        self._dirty_owners: set[Client] = set()
        self._dirty_producers: set[Producer] = set()
        self._chunks: list[tuple[int, bytes, int]] = []
        self.count = self._one("SELECT count(*) FROM clients")
        self.producers_count = self._one("SELECT ifnull(sum(producers), 0) FROM clients")
        # A number of a client is not given again while rows of its producers are left.
        self._last_client = self._one(
            "SELECT max(ifnull((SELECT max(number) FROM clients), 0),"
            " ifnull((SELECT max(client) FROM forgotten), 0))"
        )
        self._last_producer = self._one("SELECT ifnull(max(number), 0) FROM producers")
        self.gone_epoch = 0  # the highest of clients that were forgotten
        for epoch, crc in database.query("SELECT epoch, crc FROM gone_epochs"):
            database.verify(crc, (epoch,))
            self.gone_epoch = epoch

    def _one(self, sql: str) -> int:
        number: int = self._database.query(sql)[0][0]
        return number

    # --- clients ---

    def get(self, client_id: str) -> Client | None:
        """Return the client, None when the cluster never issued that id."""
        client = self._clients.get(client_id)
        if client is None:
            rows = self._database.query(_CLIENT, (client_id,))
            if rows:
                *row, crc, owner, owner_crc = rows[0]
                self._database.verify(crc, tuple(row))
                if owner is not None:
                    self._database.verify(owner_crc, (row[0], owner))
                client = Client(*row)
                client.owner = owner
                if self._idle.is_on:
                    client.heard = self._idle.heard_of(client.number)
                self._clients.put(client_id, client)
        return client

    def page(self, after: str, count_max: int) -> list[tuple[str, int, int, str | None]]:
        """Return (client id, epoch, producers, owner) of clients behind `after`, by their ids."""
        self.flush()
        found = []
        for *row, crc, owner, owner_crc in self._database.query(_PAGE, (after, count_max)):
            self._database.verify(crc, tuple(row))
            if owner is not None:
                self._database.verify(owner_crc, (row[0], owner))
            client = Client(*row)
            found.append((client.client_id, client.epoch, client.producers, owner))
        return found

    def add(self, client_id: str, sequence: int, nonce: str, owner: str | None = None) -> Client:
        """Create a client, with an epoch above all that one of its name may have had."""
        self.count += 1
        self._last_client += 1
        epoch = self.gone_epoch + 1
        client = Client(self._last_client, client_id, epoch, sequence, nonce, 0, 0)
        self._clients.put(client_id, client)
        self.changed(client)
        if owner is not None:
            self.give(client, owner)
        return client

    def give(self, client: Client, owner: str) -> None:
        """Let a client that is nobody's belong to a principal from now on."""
        assert client.owner is None, client
        client.owner = owner
        self._dirty_owners.add(client)

    def hear(self, client: Client) -> None:
        """Note that something of the client stands in the log now."""
        if client.heard != self._idle.now:
            client.heard = self._idle.now
            self._idle.note(client.number)

    def forget(self, client: Client, may_come_again: bool) -> None:
        """Remove a client that has no subscription; its producers' rows are collected later.

        `may_come_again`: another one may be made under its id. What this one sent and comes late
        has to mean nothing to that, so its epoch is kept, with those of all others that are gone.

        Its own row goes now, not with the next flush: until then it would be read again, and nodes
        flush at different entries.
        """
        self.count -= 1
        self.producers_count -= client.producers
        self._clients.drop(client.client_id)
        self._dirty_clients.discard(client)
        self._dirty_owners.discard(client)
        number = [(client.number,)]
        self._database.write("DELETE FROM clients WHERE number = ?", number)
        self._database.write("DELETE FROM owners WHERE client = ?", number)
        self._idle.forget(client.number, client.producers > 0)
        if may_come_again and client.epoch > self.gone_epoch:
            self.gone_epoch = client.epoch
            row = (client.epoch,)
            sql = "INSERT OR REPLACE INTO gone_epochs VALUES(1, ?, ?)"
            self._database.write(sql, [(*row, row_crc(row))])

    def changed(self, client: Client) -> None:
        """Have the client's row written with the next flush."""
        self._dirty_clients.add(client)

    def counters(self, client: Client, after: str, count_max: int) -> dict[str, int]:
        """Return {topic: last counter} of what the client put to: topics behind `after`.

        A client goes on behind them, so a damaged one would leave a gap before all that it puts.
        """
        if not client.producers:
            return {}
        self.flush()
        sql = "SELECT * FROM producers WHERE client = ? AND topic > ? ORDER BY topic LIMIT ?"
        found = {}
        for *row, recent, crc in self._database.query(sql, (client.number, after, count_max)):
            self._database.verify(crc, tuple(row), recent)
            found[row[2]] = row[3]
        return found

    # --- producers ---

    def producer(self, client: Client, topic: str) -> Producer | None:
        """Return the client's producer for the topic, None before its first PUT."""
        key = (client.number, topic)
        producer = self._producers.get(key)
        if producer is None and client.producers:
            rows = self._database.query(
                "SELECT * FROM producers WHERE client = ? AND topic = ?", key
            )
            if rows:
                *row, recent, crc = rows[0]
                self._database.verify(crc, tuple(row), recent)
                producer = Producer(row[0], row[1], row[2], row[3], row[4], recent)
                self._producers.put(key, producer)
            else:
                self._check_producers(client)
        return producer

    def _check_producers(self, client: Client) -> None:
        """Count a client's producers: of one whose index has lost it all would be new again."""
        [[due, count]] = self._database.query(_PRODUCERS_DUE, (client.number,))
        if count != due:
            what = f"client {client.number} has {due} producers, of which {count} are found"
            raise CorruptStore(self._database.path, what)

    def add_producer(self, client: Client, topic: str, name_bytes: int) -> Producer:
        """Create a producer that has taken no counter yet; the caller records its first PUT."""
        self.producers_count += 1
        self._last_producer += 1
        producer = Producer(self._last_producer, client.number, topic, -1, 0, b"")
        self._producers.put((client.number, topic), producer)
        client.producers += 1
        client.names_bytes += name_bytes
        self.changed(client)
        return producer

    def record(self, producer: Producer, counter: int, count: int, first_id: int) -> None:
        """Take `count` counters from `counter` on, stored from `first_id` on (0: not stored)."""
        producer.counter = counter + count - 1
        recent = producer.recent + _PAIR.pack(counter, first_id)
        if len(recent) == _CHUNK_BYTES:
            chunk = producer.puts // CHUNK_PUTS % CHUNKS
            slot = producer.number << _CHUNK_SHIFT | chunk
            self._chunks.append((slot, recent, row_crc((slot,), recent)))
            recent = b""
        producer.recent = recent
        producer.puts += 1
        self._dirty_producers.add(producer)

    def original_id(self, producer: Producer, counter: int) -> int | None:
        """Return the id that `counter` was stored under; 0: not stored, None: too long ago."""
        puts = list(_PAIR.iter_unpack(producer.recent))
        if not puts or puts[0][0] > counter:
            puts = self._earlier(producer) + puts
        place = bisect_right(puts, counter, key=lambda put: put[0])
        if place == 0:
            return None
        start, first_id = puts[place - 1]
        return first_id + counter - start if first_id else 0

    def _earlier(self, producer: Producer) -> list[Any]:
        """Return the PUTs of the window that are no longer in the producer's row, oldest first."""
        self.flush()
        low = producer.number << _CHUNK_SHIFT
        rows = self._database.query(
            "SELECT slot, puts, crc FROM earlier_puts WHERE slot BETWEEN ? AND ?",
            (low, low | CHUNKS - 1),
        )
        for slot, chunk, crc in rows:
            self._database.verify(crc, (slot,), chunk)
        done = producer.puts // CHUNK_PUTS  # the chunk written next has this number
        due = min(done, CHUNKS)
        if len(rows) < due:
            what = f"of producer {producer.number} {len(rows)} of {due} chunks of PUTs are there"
            raise CorruptStore(self._database.path, what)
        rows.sort(key=lambda row: (row[0] - low - done) % CHUNKS)
        puts = [put for _, chunk, _ in rows for put in _PAIR.iter_unpack(chunk)]
        kept = PUTS_KEPT - producer.puts % CHUNK_PUTS
        return puts[-kept:]

    # --- writing ---

    def flush(self) -> None:
        """Write what changed, in the open transaction."""
        if self._dirty_owners:
            owners = [
                (client.number, client.owner or "") for client in in_order(self._dirty_owners)
            ]
            rows = [(*row, row_crc(row)) for row in owners]
            self._database.write("INSERT INTO owners VALUES(?, ?, ?)", rows)
            self._dirty_owners.clear()
        if self._dirty_clients:
            changed = [_client_row(client) for client in in_order(self._dirty_clients)]
            self._database.write(_UPSERT_CLIENT, changed)
            self._dirty_clients.clear()
            self._idle.flush()  # or who falls out would be read back as heard before
            self._clients.rotate()
        if self._dirty_producers:
            rows = [_producer_row(producer) for producer in in_order(self._dirty_producers)]
            self._database.write(_UPSERT_PRODUCER, rows)
            self._dirty_producers.clear()
            self._producers.rotate()
        if self._chunks:
            sql = "INSERT OR REPLACE INTO earlier_puts VALUES(?, ?, ?)"
            self._database.write(sql, self._chunks)
            self._chunks.clear()


def _client_row(client: Client) -> tuple[Any, ...]:
    row = (
        client.number,
        client.client_id,
        client.epoch,
        client.sequence,
        client.nonce,
        client.producers,
        client.names_bytes,
    )
    return (*row, row_crc(row))


def _producer_row(producer: Producer) -> tuple[Any, ...]:
    row = (producer.number, producer.client, producer.topic, producer.counter, producer.puts)
    return (*row, producer.recent, row_crc(row, producer.recent))


_CLIENT: Final = (
    "SELECT clients.*, owner, owners.crc FROM clients LEFT JOIN owners ON owners.client = number"
    " WHERE client_id = ?"
)
_PAGE: Final = (
    "SELECT clients.*, owner, owners.crc FROM clients LEFT JOIN owners ON owners.client = number"
    " WHERE client_id > ? ORDER BY client_id LIMIT ?"
)
_UPSERT_CLIENT: Final = (
    "INSERT INTO clients VALUES(?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(number) DO UPDATE SET"
    " epoch = excluded.epoch, sequence = excluded.sequence, nonce = excluded.nonce,"
    " producers = excluded.producers, names_bytes = excluded.names_bytes, crc = excluded.crc"
)
_UPSERT_PRODUCER: Final = (
    "INSERT INTO producers VALUES(?, ?, ?, ?, ?, ?, ?) ON CONFLICT(number) DO UPDATE SET"
    " counter = excluded.counter, puts = excluded.puts, recent = excluded.recent,"
    " crc = excluded.crc"
)
# As of the last flush, which writes both.
_PRODUCERS_DUE: Final = (
    "SELECT ifnull((SELECT producers FROM clients WHERE number = ?1), 0),"
    " (SELECT count(*) FROM producers WHERE client = ?1)"
)
