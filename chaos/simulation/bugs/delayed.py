"""Bugs in what is delayed: when it comes, whether, how often, and what becomes of it meanwhile.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.store.delayed import Delayed, Due
from cluster.store.store import Store
from cluster.store.tables import TOPIC_SHIFT, Database, row_crc
from cluster.store.topics import Topic

_take: Final = Delayed._take
_take_due: Final = Delayed.take_due
_init: Final = Delayed.__init__
_add: Final = Delayed.add
_let_in: Final = Store._let_in

FOUND: Final = {"answered", "rebuilt", "digest", "properties", "ended"}


@bug("what is delayed comes when it is due", FOUND, seeds_max=150)
def what_is_delayed_comes_with_the_next_entry(patches: Patches) -> None:
    """Let in whatever waits, due or not."""
    patches.attribute(
        Delayed, "take_due", lambda delayed, log_ms: _take_due(delayed, log_ms + (1 << 40))
    )


@bug("what is delayed comes once", FOUND, seeds_max=150)
def what_is_due_stays_in_its_place(patches: Patches) -> None:
    """Let in what is due, and have it wait once more."""

    def take(delayed: Delayed, key: int) -> Due | None:
        [row] = delayed._database.query("SELECT * FROM delayed WHERE key = ?", (key,))
        due = _take(delayed, key)
        if due is not None and row[1] % 2 == 0:
            later, blobs = (row[0], row[1] + 101, *row[2:5]), row[6:]
            crc = row_crc(later, b"".join(blobs))
            sql = "INSERT INTO delayed VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
            delayed._database.write(sql, [(*later, crc, *blobs)])
            delayed._count(delayed._lanes[key >> TOPIC_SHIFT], later[3], later[2], later[4])
        return due

    patches.attribute(Delayed, "_take", take)


@bug("what is delayed stands on the disk", FOUND, seeds_max=150)
def what_waits_is_forgotten_at_a_start(patches: Patches) -> None:
    """Take it that nothing waits, whatever the disk says."""

    def init(delayed: Delayed, database: Database) -> None:
        _init(delayed, database)
        if delayed.count:
            database.write("DELETE FROM delayed", [()])
            delayed._lanes.clear()
            delayed.count = delayed.size_bytes = 0
            delayed.bytes_of = Counter()
            delayed._find_due()

    patches.attribute(Delayed, "__init__", init)


@bug("what is due comes in the order of due times", FOUND, seeds_max=150)
def what_is_due_comes_in_the_order_of_places(patches: Patches) -> None:
    """Let in what came first, whatever is due first."""

    def take_due(delayed: Delayed, log_ms: int) -> list[Due]:
        return _take_due(delayed, log_ms)[::-1]

    patches.attribute(Delayed, "take_due", take_due)


@bug("all of a batch comes that was delayed", FOUND, seeds_max=150)
def a_batch_loses_what_is_behind_the_first(patches: Patches) -> None:
    """Let in the first publication of each row alone."""

    def let_in(store: Store, due: Due) -> None:
        size = int.from_bytes(due.lengths[:4], "little") & 0x7FFFFFFF
        _let_in(store, Due(due.topic, 1, due.principal, due.lengths[:4], due.data[:size]))

    patches.attribute(Store, "_let_in", let_in)


@bug("counters of what is delayed are apart", FOUND | {"asked", "own_answer"}, seeds_max=150)
def what_is_delayed_takes_a_place_twice(patches: Patches) -> None:
    """Say a place that another publication has."""

    def add(
        delayed: Delayed, topic: Topic, principal: str | None, lengths: bytes, data: bytes, at: int
    ) -> int:
        return max(1, _add(delayed, topic, principal, lengths, data, at) - 1)

    patches.attribute(Delayed, "add", add)
