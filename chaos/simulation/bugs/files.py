"""Bugs of the store's files: checkpoints, copies and their installation, what is synced and when.

What must not live here: what finds them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

from chaos.simulation.bugs.registry import SEEDS_RARE_MAX, Patches, bug
from cluster.node.member import Member
from cluster.store import tables

FOUND: Final = {"vouched", "durable", "ended", "hard_state"}  # of a checkpoint's word

_checkpoint: Final = tables.checkpoint
_install: Final = Member._install
_connect: Final = tables.connect


def _checkpoint_as(path: Path, sync: Callable[[int], None], reads_late: bool) -> int:
    with closing(_connect(path, tables.CHECKPOINT_BUSY_MS_MAX)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        applied_index, _ = tables.read_position(path, connection)
        with open(tables.side_file(path, "-wal"), "rb") as file:
            sync(file.fileno())
        if reads_late:
            applied_index, _ = tables.read_position(path, connection)
    return applied_index


@bug("3: a checkpoint vouches for what it has synced", FOUND)
def index_is_read_behind_the_sync(patches: Patches) -> None:
    """Take for durable what was committed while the WAL was synced."""
    patches.attribute(
        tables, "checkpoint", lambda path: _checkpoint_as(path, os.fsync, reads_late=True)
    )


@bug("3: a checkpoint vouches for what it has synced", FOUND)
def checkpoints_leave_the_wal_unsynced(patches: Patches) -> None:
    """Take for durable what was committed while the checkpoint was under way."""
    patches.attribute(
        tables, "checkpoint", lambda path: _checkpoint_as(path, lambda fd: None, reads_late=False)
    )


# What is lost is only what was committed between two syncs of one checkpoint.
@bug(
    "6: an error of the disk is the end",
    FOUND,
    seeds_max=SEEDS_RARE_MAX,
)
def failed_checkpoints_sync_again(patches: Patches) -> None:
    """Sync the WAL once more when that has failed."""

    def sync(descriptor: int) -> None:
        with suppress(OSError):
            os.fsync(descriptor)
            return
        os.fsync(descriptor)

    patches.attribute(tables, "checkpoint", lambda path: _checkpoint_as(path, sync, False))


@bug("24: a copy is the state as of one commit", {"digest", "ended", "progress", "prefix", "lost"})
def copies_have_no_read_transaction(patches: Patches) -> None:
    """Copy the tables one after the other, and the position last."""

    def copy_used(path: Path, connection: Any, target: Path) -> None:
        with closing(_connect(target, 0)) as copy:
            copy.execute(f"PRAGMA application_id={tables.APPLICATION_ID}")
            copy.execute(f"PRAGMA user_version={tables.read_level(path, connection)}")
            made = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            tables_made = connection.execute(made).fetchall()
            for _, sql in tables_made:
                copy.execute(sql)
            for name, _ in sorted(tables_made, key=lambda each: each[0] == "state"):
                rows = connection.execute(f"SELECT * FROM {name}").fetchall()
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    copy.executemany(f"INSERT INTO {name} VALUES({marks})", rows)
            copy.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    patches.attribute(tables, "copy_used", copy_used)


# A job has to begin between the end of a download and the next append of the leader.
@bug(
    "24: a copy is installed when no job has the database open",
    {"snapshot", "ended", "digest", "durable"},
    seeds_max=SEEDS_RARE_MAX,
)
def installs_do_not_wait_for_the_worker(patches: Patches) -> None:
    """Put the copy in the database's place while a checkpoint or a copy is under way."""

    def install(member: Member, name: str) -> bool:
        with mock.patch.object(type(member._context.worker), "idle", True):
            return _install(member, name)

    patches.attribute(Member, "_install", install)
