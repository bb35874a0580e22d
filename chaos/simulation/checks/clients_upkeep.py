"""What a client library keeps in memory is what its state and its queues say.

What lives here: looks into the library behind an operation: the state's copy in memory against its
database, a producer's counts against its parcels, its window against the outbox, the outbox against
what was refused for certain. What must not: what clients were told (promises.py).

What a client believes of itself it tells no node until it asks for the next thing, which may be in
another process: by then nobody knows what was wrong.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Final

from chaos.simulation.clients.clients import Process
from chaos.simulation.clients.pipes import Pipe
from flotilla_client.state import State

ANSWERS_PER_LOOK: Final = 4  # of a run's clients
_TABLES: Final = ("cursors", "handed", "placed", "patterns", "counters")
_VALUES: Final = {"placed": "entry", "patterns": "entry", "counters": "counter"}


class ClientsUpkeep:
    """Looks into clients; `fail(text)` hears of what does not fit."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._answers = 0

    def answered(self, process: Process) -> None:
        """Look, now and then, behind an answer."""
        self._answers += 1
        if self._answers % ANSWERS_PER_LOOK:
            return
        found = [*_out_of_date(process.session.state)]
        for pipe in process.pipes:
            if isinstance(pipe, Pipe):
                found += _miscounted(pipe)
        for text in found:
            self._fail(f"{process.name}: {text}")

    def refused(self, process: Process, topic: str, publication: bytes) -> None:
        """Look for what was refused for certain: it must not be sent from the outbox any more."""
        for entry in process.session.state.outbox(topic):
            if publication in entry.data:
                text = f"{publication[:60]!r} is refused for certain, and stands in the outbox"
                self._fail(f"{process.name}: {text} of {topic}, at {entry.counter}")


def _out_of_date(state: State) -> Iterator[str]:
    """Yield what a state has in memory, and its database has not."""
    known = state._known
    if known is None or state.is_closed:
        return
    read = state._database.execute
    try:
        [who] = read("SELECT client_id, epoch, sequence FROM client")
        [(size_bytes,)] = read("SELECT ifnull(sum(length(lengths) + length(data)), 0) FROM outbox")
        tables = {
            table: dict(read(f"SELECT topic, {_VALUES.get(table, 'last_id')} FROM {table}"))
            for table in _TABLES
        }
    except sqlite3.Error:
        return  # of a disk that fails: the library's to notice
    if who != (known.client_id, known.epoch, known.sequence):
        yield f"it takes itself for {(known.client_id, known.epoch, known.sequence)}, and is {who}"
    if size_bytes != known.outbox_bytes:
        yield f"{known.outbox_bytes} bytes are in its outbox, and there are {size_bytes}"
    for table, rows in tables.items():
        if (kept := getattr(known, table)) != rows:
            yield f"it has {table} {kept} in memory, and {rows} on its disk"


def _miscounted(pipe: Pipe) -> Iterator[str]:
    """Yield what a producer's queue and window count in two ways and differs."""
    queue, pipeline = pipe._queue, pipe._pipeline
    parcels, window = [*queue.parcels], [*pipeline._window]
    publications = [each for parcel in parcels for each in parcel.publications]
    under_way = sum(each.parcel.count for each in window if each.parcel is not None)
    pairs = {
        "queued": (queue.count, len(publications)),
        "bytes queued": (queue.size_bytes, sum(map(len, publications))),
        "without an answer": (queue.sent - queue.answered, queue.count + under_way),
    }
    for what, (counted, found) in pairs.items():
        if counted != found:
            yield f"{pipe.name} counts {counted} {what}, and there are {found}"
    outbox = {each.counter for each in pipeline._operations.state.outbox(pipeline.topic)}
    if gone := [each.entry.counter for each in window if each.entry.counter not in outbox]:
        yield f"{pipe.name} has {gone} in its window, which do not stand in the outbox"
