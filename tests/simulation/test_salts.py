"""SQLite draws a run's own numbers: what a power loss leaves of a WAL depends on its salts."""

from __future__ import annotations

import sqlite3

from chaos.simulation.world.database import patched


def drawn(salt: int) -> bytes:
    with patched(lambda: None, {}, salt):
        found: bytes = sqlite3.connect(":memory:").execute("SELECT randomblob(16)").fetchone()[0]
    return found


def test_sqlite_draws_the_same_in_worlds_of_one_salt_and_not_outside() -> None:
    assert drawn(5) == drawn(5) != drawn(6)
    outside = [sqlite3.connect(":memory:").execute("SELECT randomblob(16)").fetchone()[0]]
    assert drawn(5) != outside[0]
    again = sqlite3.connect(":memory:").execute("SELECT randomblob(16)").fetchone()[0]
    assert again not in (outside[0], drawn(5))
