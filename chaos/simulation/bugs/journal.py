"""Bugs of the journal and the disk under it (rules 1 to 6 of docs/raft.md).

What must not live here: what finds them.
"""

from __future__ import annotations

from typing import Any, Final
from unittest import mock

from chaos.simulation.bugs.registry import SEEDS_RARE_MAX, Patches, bug
from chaos.simulation.disks.disk import SimDisk
from chaos.simulation.disks.stored import StoredFiles
from cluster.log import segments
from cluster.log.files import FailStop, Files
from cluster.log.journal import Journal
from cluster.log.segments import Segment
from cluster.node.maintenance import Maintenance
from cluster.node.member import Member
from cluster.raft.log import Log

_load: Final = Journal._load
_open: Final = Journal.open
_sync: Final = Journal.sync


@bug(
    "1: add replaces only what conflicts",
    {"acknowledged", "applied", "commit", "durable", "ended", "lost", "prefix", "vote"},
)
def truncates_like_stock(patches: Patches) -> None:
    """Drop all entries behind the previous one of an append, as pysyncobj asks."""

    def delete_entries_from(log: Log, position: int) -> None:
        index = log.first_index + position
        log._added = [entry for entry in log._added if entry[1] < index]
        journal: Any = log._storage
        if journal.first_index <= index <= journal.last_index:
            journal._truncate(index - journal.first_index)
        log.last_index, log.last_term = index - 1, log.term_at(index - 1) or 0

    patches.attribute(Log, "deleteEntriesFrom", delete_entries_from)


@bug(
    "2: a log that holds the store's last entry stays",
    {"acknowledged", "commit", "durable", "ended", "lost", "vote"},
)
def restart_wipes_the_log(patches: Patches) -> None:
    """Begin the log anew at the store's position, whatever it holds."""

    def begin_anew(log: Log, index: int, term: int) -> None:
        log._added.clear()
        log._base = log.last_index, log.last_term = index, term

    patches.attribute(Log, "begin_anew", begin_anew)


@bug(
    "3: nothing is dropped that the database does not hold durably",
    {"acknowledged", "commit", "durable", "ended", "vote"},
)
def compacts_without_a_checkpoint(patches: Patches) -> None:
    """Drop segments up to the applied index, whatever of the database is on the disk."""

    def compact(maintenance: Maintenance, member: Member) -> None:
        member.journal.compact(member.store.applied_index)

    patches.attribute(Maintenance, "_checkpoint_if_due", compact)


@bug(
    "5: term and vote are in the log's stream",
    {"acknowledged", "commit", "hard_state", "leaders", "vote"},
)
def term_and_vote_stay_in_memory(patches: Patches) -> None:
    """Take a new term or vote without writing it down."""

    def set_term(journal: Journal, term: int, vote: str | None) -> None:
        journal._term, journal._vote = term, vote

    patches.attribute(Journal, "set_term", set_term)


@bug(
    "5: every record has a checksum",
    {"acknowledged", "commit", "corrupt", "digest", "ended", "prefix", "vote"},
)
def checksums_are_not_compared(patches: Patches) -> None:
    """Believe each record that looks like one."""

    def record_end(segment: Segment, data: bytes, at: int, offset: int) -> int:
        payload = at + segments._OVERHEAD_BYTES
        if payload > len(data):
            return 0
        length, _, kind = segments._HEAD.unpack_from(data, at + segments._CRC.size)
        end: int = payload + length
        return end if segments.ENTRY <= kind <= segments.BASE and end <= len(data) else 0

    patches.attribute(Segment, "_record_end", record_end)


@bug(
    "7: what a killed process left is synced before anything rests on it",
    {"acknowledged", "commit", "durable", "hard_state", "lost", "vote"},
)
def inherited_names_stay_unsynced(patches: Patches) -> None:
    """Open a journal whose newest file's name may be in no directory on the disk."""

    def open_journal(*args: Any, files: Files, **options: Any) -> Journal:
        with mock.patch.object(files, "fsync_directory", return_value=None):
            return _open(*args, files=files, **options)

    patches.attribute(Journal, "open", open_journal)


@bug(
    "5: a torn tail is cut off",
    {"acknowledged", "commit", "durable", "ended", "hard_state", "lost", "vote"},
)
def torn_tail_stays(patches: Patches) -> None:
    """Write on behind a torn record instead of cutting it off first."""

    def load(journal: Journal, name: str, *, is_last: bool) -> None:
        with mock.patch.object(journal._files, "truncate", return_value=None):
            _load(journal, name, is_last=is_last)

    patches.attribute(Journal, "_load", load)


@bug(
    "5: a bad record before good ones is corruption",
    {"acknowledged", "commit", "durable", "hard_state", "lost", "vote"},
)
def damage_counts_as_a_torn_tail(patches: Patches) -> None:
    """Cut off everything behind a bad record, however good it is."""
    patches.attribute(Segment, "check_torn", lambda segment, data: None)


@bug(
    "6: an error of the disk is the end",
    {"acknowledged", "commit", "durable", "hard_state", "lost", "vote"},
)
def failed_fsync_is_tried_again(patches: Patches) -> None:
    """Go on after an error of the disk and let the next sync make up for it."""
    patches.attribute(FailStop, "__exit__", lambda *arguments: True)


@bug(
    "7: acknowledged means on the disk",
    {"acknowledged", "commit", "durable", "hard_state", "lost", "vote"},
)
def sync_without_the_disk(patches: Patches) -> None:
    """Write, but call it durable without an fdatasync."""

    def sync(journal: Journal) -> None:
        with mock.patch.object(journal._files, "fdatasync", return_value=None):
            _sync(journal)

    patches.attribute(Journal, "sync", sync)


@bug(
    "6: an error of the disk is the end",
    {"durable", "ended", "hard_state", "lost", "prefix"},
    seeds_max=SEEDS_RARE_MAX,
)
def what_a_failed_fsync_lost_is_read(patches: Patches) -> None:
    """Take for durable what the kernel's cache has of bytes that a failed fsync has dropped."""
    patches.attribute(SimDisk, "forget_cached", lambda disk, fd: None)
    patches.attribute(StoredFiles, "forget_cached", lambda files, path: None)
