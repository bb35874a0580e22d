"""What administrators have done: a bounded history in the replicated state.

What lives here: the rows of acts, and what a repeated act was answered. What must not: what an act
does, and who may (store.py).

An act that its administrator has named (`act_id`) is carried out once, however often its request
comes: the history knows it and what it came to. What took no effect, as it was refused, is not in
it. Decision: docs/decisions/0019-acts.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from cluster.store.commands import Administration, Admit, ChangeUser, Raise, SetTopic
from cluster.store.outcomes import Done, Outcome, Refused
from cluster.store.tables import CorruptStore, Database, row_crc
from cluster.wire.levels import LEVEL_OF_ACTS

# Years of an operator's work, or minutes of a script that runs in a loop. A repeated request comes
# seconds after the first, so it meets its act.
ACTS_MAX: Final = 10_000
ACTS_BYTES_MAX: Final = 16 * 1024 * 1024  # of all of them: a change of a user may be 64 KiB
PAGE_ACTS: Final = 100  # of one answer
PAGE_BYTES_MAX: Final = 1024 * 1024  # of one answer, whose header has TEXT_HEADER_BYTES_MAX

_ADMIT: Final = "admit"
_RAISE: Final = "raise-level"
_NAMES: Final = {
    "DropSubscription": "drop-subscription",
    "DropClient": "drop-client",
    "DropGroup": "drop-group",
    "SeekGroup": "seek-group",
    "Purge": "purge",
    "TransferLeader": "transfer-leader",
    "Checkpoint": "checkpoint",
    "DeleteTopic": "topic-delete",
}
_NOT_TOLD: Final = frozenset(
    {"is_root", "principal", "act_id", "at_ms", "change", "chosen", "is_new"}
)

Act = Administration | Raise | Admit


class Acts:
    """The history, on disk alone: acts are rare."""

    def __init__(self, database: Database, level: int) -> None:
        self._database = database
        self.is_on = level >= LEVEL_OF_ACTS
        sql = "SELECT ifnull(max(number), 0), count(*), ifnull(sum(length(text)), 0) FROM acts"
        [(self.last_number, self._count, self._size)] = database.query(sql)

    def raise_level(self, level: int) -> None:
        """Begin, from the entry on that raises the cluster's level so far."""
        self.is_on = level >= LEVEL_OF_ACTS

    def answered(self, asked: Administration) -> Outcome | None:
        """Return what the same act came to when it was carried out, None if it was not.

        A name that stands for another act already is refused: it would not be known again.
        """
        row = self._named(asked.act_id)
        if row is None:
            return None
        before = row["principal"], row["act"], row["about"]
        if before != (asked.principal, name_of(asked), _about(asked)):
            return Refused("bad_request", f"`act_id` {asked.act_id!r} stands for another act")
        return Done(row["result"])

    def is_known(self, act_id: str, principal: str | None) -> bool:
        """Return whether that principal has done an act of that name."""
        row = self._named(act_id)
        return row is not None and row["principal"] == principal

    def note(self, entry: int, log_ms: int, asked: Act, body: Mapping[str, Any]) -> None:
        """Keep what was done by the entry; the oldest go."""
        by = None if isinstance(asked, Admit) else asked  # the cluster's own: nobody asked for it
        text = orjson.dumps(
            {
                "principal": by.principal if by else None,
                "act": name_of(asked),
                "about": _about(asked),
                "result": body,
                "log_ms": log_ms,
                "at_ms": by.at_ms if by else 0,
            }
        ).decode()
        self.last_number += 1
        row = (self.last_number, entry, by.act_id if by else "", text)
        self._database.write("INSERT INTO acts VALUES(?, ?, ?, ?, ?)", [(*row, row_crc(row))])
        self._count += 1
        self._size += len(text)
        while self._count > ACTS_MAX or (self._size > ACTS_BYTES_MAX and self._count > 1):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        sql = "SELECT number, length(text) FROM acts ORDER BY number LIMIT 1"
        [(number, size)] = self._database.query(sql)
        self._database.write("DELETE FROM acts WHERE number = ?", [(number,)])
        self._count -= 1
        self._size -= size

    def page(self, after: int, count_max: int = PAGE_ACTS) -> tuple[list[dict[str, Any]], bool]:
        """Return acts behind the number `after`, as INSPECT lists them, and whether there are more.

        The oldest first, as many as an answer has room for.
        """
        found = self._rows("number > ?", (after,), count_max + 1)
        rows: list[dict[str, Any]] = []
        left_bytes = PAGE_BYTES_MAX
        for row, size in found[:count_max]:
            left_bytes -= size
            if rows and left_bytes < 0:
                break
            rows.append(row)
        return rows, len(rows) < len(found)

    def _rows(
        self, where: str, values: tuple[Any, ...], count_max: int
    ) -> list[tuple[dict[str, Any], int]]:
        """Return acts, and how long the text of each is."""
        found = []
        sql = f"SELECT number, entry, act_id, text, crc FROM acts WHERE {where} ORDER BY number"
        for *row, crc in self._database.query(f"{sql} LIMIT ?", (*values, count_max)):
            number, entry, _, text = row
            self._database.verify(crc, tuple(row))
            try:
                said = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise CorruptStore(self._database.path, f"act {number}: {error}") from None
            found.append(({"number": number, "index": entry, **said}, len(text.encode())))
        return found

    def _named(self, act_id: str) -> dict[str, Any] | None:
        rows = self._rows("act_id = ?", (act_id,), 1) if act_id else []
        return rows[0][0] if rows else None


def name_of(asked: Act) -> str:
    """Return what an act is called."""
    if isinstance(asked, ChangeUser):
        return asked.change
    if isinstance(asked, Raise):
        return _RAISE
    if isinstance(asked, SetTopic):
        return "topic-create" if asked.is_new else "topic-alter"
    return _ADMIT if isinstance(asked, Admit) else _NAMES[type(asked).__name__]


def _about(asked: Act) -> dict[str, Any]:
    """Return what an act was told, but for who asked and when."""
    names = (name for name in type(asked).__slots__ if name not in _NOT_TOLD)
    return {name: getattr(asked, name) for name in names}
