"""How long clients have been silent, by the log's own time, and what is left of those forgotten.

What lives here: the log's time, when each client was heard last, and the rows of both. What must
not: clocks, when somebody is to be forgotten (the leader proposes it: node/reaper.py), what else a
client has (clients.py, topics.py).

The log's time is what passed between entries of one leader, by the stamps that it gave them: clocks
of two leaders need not agree. A long gap counts as STEP_MS_MAX: while no leader was there nobody
could be heard, and a clock that jumps must not make everybody look silent. All of that stands in
the log, so every node has the same time and forgets the same clients at the same index. It begins
with LEVEL_OF_IDLE; who was there before counts as heard then.
"""

from __future__ import annotations

from typing import Any, Final

from cluster.store.tables import Database, row_crc
from cluster.wire.levels import LEVEL_OF_IDLE

STEP_MS_MAX: Final = 3_600_000  # an hour; a leader sees to an entry far more often
HEARD_MS: Final = 3_600_000  # a client's time is noted so finely: a row an hour, not one a PUT
GARBAGE_PRODUCERS: Final = 16  # collected in a step; each may have 64 rows of earlier PUTs


class Idle:
    """The log's time, and who was forgotten by it.

    `forgotten`: how many clients, ever. `has_garbage`: something is left to collect.
    """

    def __init__(self, database: Database, level: int) -> None:
        self._database = database
        self.raise_level(level)
        self.log_ms = self._term = self._stamp_ms = self.forgotten = 0
        self._dirty_clients: dict[int, int] = {}  # by number; when they were heard
        self.has_garbage = bool(database.query("SELECT 1 FROM forgotten LIMIT 1"))
        running = database.running()
        if running is not None:
            self.log_ms, self._term, self._stamp_ms, self.forgotten = running[: len(self.row())]

    def raise_level(self, level: int) -> None:
        """Begin with the level of the cluster that brings it."""
        self.is_on = level >= LEVEL_OF_IDLE

    def pass_to(self, term: int, stamp_ms: int) -> None:
        """Let the time pass that is between an entry's stamp and that of the one before it."""
        if term == self._term:
            self.log_ms += min(max(stamp_ms - self._stamp_ms, 0), STEP_MS_MAX)
        self._term, self._stamp_ms = term, stamp_ms

    def at(self, term: int, now_ms: float) -> int:
        """Return which time of the log an entry of that term would have that is made now."""
        if term != self._term:
            return self.log_ms
        return self.log_ms + min(max(int(now_ms) - self._stamp_ms, 0), STEP_MS_MAX)

    def is_running(self, term: int, now_ms: float) -> bool:
        """Return whether the log's time goes on: an entry of that term was made not long ago."""
        return term == self._term and now_ms - self._stamp_ms < STEP_MS_MAX / 2

    @property
    def now(self) -> int:
        """The log's time as it is noted of clients, in units of HEARD_MS."""
        return self.log_ms // HEARD_MS

    def silent_ms(self, heard: int) -> int:
        """Return for how long one was silent that was heard then, as far as that is noted."""
        return self.log_ms - (heard + 1) * HEARD_MS

    def heard_of(self, number: int) -> int:
        """Return when the client of that number was heard last."""
        rows = self._database.query("SELECT at, crc FROM heard WHERE client = ?", (number,))
        if not rows:
            return 0
        at, crc = rows[0]
        self._database.verify(crc, (number, at))
        heard: int = at
        return heard

    def note(self, number: int) -> None:
        """Have it written with the next flush that a client is heard now."""
        self._dirty_clients[number] = self.now

    def forget(self, number: int, has_producers: bool) -> None:
        """Have a client's row deleted with the next flush; the producers' in steps (`collect`)."""
        self.forgotten += 1
        self._dirty_clients.pop(number, None)
        self._database.write("DELETE FROM heard WHERE client = ?", [(number,)])
        if has_producers:
            self._database.write("INSERT INTO forgotten VALUES(?)", [(number,)])
            self.has_garbage = True

    def flush(self) -> None:
        """Write what changed but for `row`, in the open transaction."""
        if self._dirty_clients:
            rows = [(*row, row_crc(row)) for row in self._dirty_clients.items()]
            self._database.write("INSERT OR REPLACE INTO heard VALUES(?, ?, ?)", rows)
            self._dirty_clients.clear()

    def row(self) -> tuple[int, int, int, int]:
        """Return what changes with each entry: its part of `Database.write_running`."""
        return self.log_ms, self._term, self._stamp_ms, self.forgotten

    def page(self, after: int, count_max: int) -> list[tuple[int, str, int, int]]:
        """Return (number, client id, heard, producers) of clients behind the number `after`."""
        sql = (
            "SELECT number, client_id, ifnull(at, 0), producers FROM clients LEFT JOIN heard"
            " ON heard.client = number WHERE number > ? ORDER BY number LIMIT ?"
        )
        return self._database.query(sql, (after, count_max))

    def collect(self) -> None:
        """Delete some rows of producers whose client was forgotten: nobody sees them any more.

        The next commit commits it.
        """
        query, write = self._database.query, self._database.write
        [(client,)] = query("SELECT client FROM forgotten ORDER BY client LIMIT 1")
        sql = "SELECT number FROM producers WHERE client = ? LIMIT ?"
        numbers: list[Any] = query(sql, (client, GARBAGE_PRODUCERS))
        # First the earlier PUTs: a number may be given again once its row is gone.
        slots = [(number << 6, number << 6 | 63) for (number,) in numbers]
        write("DELETE FROM earlier_puts WHERE slot BETWEEN ? AND ?", slots)
        write("DELETE FROM producers WHERE number = ?", numbers)
        if len(numbers) < GARBAGE_PRODUCERS:
            write("DELETE FROM forgotten WHERE client = ?", [(client,)])
            self.has_garbage = bool(query("SELECT 1 FROM forgotten LIMIT 1"))
