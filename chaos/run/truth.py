"""The ground truth of a run: what every node has left when all is over (docs/history.md).

What lives here: reading a stopped node's data directory with the node's own readers, and its log,
and writing `truth/<node>.jsonl` from them; each node in a process of its own, as a backlog may be
large. What must not: comparing the nodes, or judging anything (analytics does).

Nothing in a data directory is changed: the journal is read through files that cannot be written,
the store from a copy. So the evidence stays as the nodes left it.

`python -m chaos.run.truth RUN_ID NODE DATA_DIRECTORY LOG FILE` writes one node's file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from chaos.targets import Remains
from chaos.workloads import payload
from chaos.workloads.children import child_environment
from cluster.log.entries import NO_OP, payload_of
from cluster.log.files import Files
from cluster.log.journal import Journal
from cluster.store import commands, tables
from cluster.store.commands import Put
from cluster.store.rows import check_rows
from cluster.store.tables import ID_MAX, TOPIC_SHIFT, Database
from flotilla_client import Client, FlotillaError
from flotilla_client.protocol import lane_of, text_of, unpack

DIRECTORY: Final = "truth"  # below the run's
STATUS_MS_MAX: Final = 500  # a node that lives answers at the end of its turn
READ_S_MAX: Final = 1_800.0  # of all nodes at once: backlogs of some GB
DIGEST_BYTES: Final = 16
ERROR_CHARACTERS_MAX: Final = 2_000

Row = dict[str, Any]


class TruthError(Exception):
    """What a node has left could not be read: it is not known."""


class MuteLog(Exception):
    """A node's log does not tell what it has to."""


# --- all nodes ------------------------------------------------------------------------------------


class Disks:
    """The runner's Auditor of nodes that are processes somewhere."""

    def is_settled(self, endpoints: Mapping[str, str]) -> bool:
        """Return whether every node answers and all have applied the same entries."""
        return is_settled(endpoints)

    def collect(self, run_id: str, remains: Mapping[str, Remains], directory: Path) -> None:
        """Write `truth/<node>.jsonl` for each node. Raises TruthError."""
        collect(run_id, remains, directory)


def is_settled(endpoints: Mapping[str, str]) -> bool:
    """Return whether every node answers and all have applied the same entries."""
    with ThreadPoolExecutor(len(endpoints)) as pool:
        applied = set(pool.map(_applied_index, endpoints.values()))
    return len(applied) == 1 and None not in applied


def _applied_index(endpoint: str) -> int | None:
    with Client([endpoint], timeout=STATUS_MS_MAX / 1000) as client:
        try:
            status = client.status()
        except FlotillaError:
            return None  # not up yet; whoever waits has a bound
    applied = status.get("applied_index")  # a node that is being readmitted has none
    return None if applied is None else int(applied)


def collect(run_id: str, remains: Mapping[str, Remains], directory: Path) -> None:
    """Write `truth/<node>.jsonl` below the run's `directory` for each node.

    Every node must have ended. Raises TruthError; what could be read is there all the same.
    """
    target = directory / DIRECTORY
    target.mkdir(exist_ok=True)
    deadline_s = time.monotonic() + READ_S_MAX
    with ExitStack() as stack:
        readers: dict[str, subprocess.Popen[str]] = {}
        for node, left in remains.items():
            file = target / f"{node}.jsonl"
            stack.callback(_clear, file)  # behind a reader's end, whatever that was
            readers[node] = stack.enter_context(_reader(run_id, node, left, file))
            stack.callback(readers[node].kill)  # whom an interrupt has left at work
        complaints = [_complaint(node, reader, deadline_s) for node, reader in readers.items()]
    if found := [complaint for complaint in complaints if complaint]:
        raise TruthError("; ".join(found))


def _reader(run_id: str, node: str, left: Remains, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "chaos.run.truth", run_id, node, *map(str, left), str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )


def _clear(file: Path) -> None:
    """Remove what a reader of this file leaves if it is killed."""
    _unfinished(file).unlink(missing_ok=True)
    if _copies(file).exists():
        shutil.rmtree(_copies(file))


def _unfinished(file: Path) -> Path:
    return file.with_suffix(".unfinished")


def _copies(file: Path) -> Path:
    return file.with_suffix(".copies")


def _complaint(node: str, reader: subprocess.Popen[str], deadline_s: float) -> str:
    """Return what a reader that has failed said last, "" for one that has not."""
    try:
        _, errors = reader.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        reader.kill()
        return f"the disk of {node} was not read within {READ_S_MAX:g} s"
    if reader.returncode == 0:
        return ""
    return f"the disk of {node} could not be read: {errors.strip()[-ERROR_CHARACTERS_MAX:]}"


# --- one node -------------------------------------------------------------------------------------


def write(run_id: str, node: str, left: Remains, file: Path) -> None:
    """Write one node's truth; the file is there whole or not at all.

    Meanwhile a copy of the store stands beside it: of some GB maybe, and if this process is killed,
    `collect` knows where.
    """
    common = {"run_id": run_id, "node": node}
    _copies(file).mkdir()
    try:
        with _unfinished(file).open("wb") as out:
            for row in chain(rows(left.data, _copies(file)), leaderships(left.log)):
                out.write(orjson.dumps(common | row) + b"\n")
        _unfinished(file).replace(file)
    finally:
        shutil.rmtree(_copies(file))


def rows(data: Path, copies: Path) -> Iterator[Row]:
    """Yield what a data directory holds, as docs/history.md has it, but for run and node.

    The store is copied into `copies`, an empty directory. Raises what the node's own readers raise
    for a damaged file (JournalError, CorruptStore).
    """
    with _journal(data / "journal") as log:
        database = _copied(data / "store" / "store.db", copies)
        with closing(Database(database, {})) as store:
            applied_index, _ = store.position()
            yield from _entries(log.journal, applied_index)
            yield {"kind": "state", "index": applied_index, "digest": _shortened(store)}
        with closing(tables.connect(database, 0)) as connection:
            check_rows(database, connection, lambda size_bytes: None)
            yield from _state(connection, list(_behind(log.journal, applied_index)))


def _entries(journal: Journal, applied_index: int) -> Iterator[Row]:
    """Yield the entries that the node knows to be committed, by its hint or by its store."""
    last = min(journal.last_index, max(journal.commit_index, applied_index))
    for index in range(journal.first_index, last + 1):
        command, _, term = journal.entry(index)
        if index == journal.first_index and command == NO_OP:
            continue  # may stand there for another entry, which a copy of the store covers
        digest = hashlib.blake2b(command, digest_size=DIGEST_BYTES).hexdigest()
        yield {"kind": "entry", "index": index, "term": term, "digest": digest}


def _behind(journal: Journal, applied_index: int) -> Iterator[Put]:
    """Yield the PUTs in the journal that the store has not seen, committed or not."""
    for index in range(max(applied_index + 1, journal.first_index), journal.last_index + 1):
        if content := payload_of(journal.entry(index)):
            _, operations = commands.decode(content)
            yield from (operation for operation in operations if isinstance(operation, Put))


def _shortened(store: Database) -> str:
    return tables.digest(store)[: 2 * DIGEST_BYTES]


def leaderships(log: Path) -> Iterator[Row]:
    """Yield the terms that the node has led by its own log, over all of its processes.

    Raises MuteLog if it says nothing of any role: every member names its own when it starts.
    """
    roles = {(event["role"], event["term"]) for event in _events(log) if event["event"] == "role"}
    if not roles:
        raise MuteLog(f"{log} does not say what role the node ever had")
    for term in sorted(term for role, term in roles if role == "leader"):
        yield {"kind": "leadership", "term": term}


def _events(log: Path) -> Iterator[Row]:
    """Yield a log's events. A kill can tear a line, and a dying interpreter writes no events."""
    with log.open("rb") as lines:
        for line in lines:
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event


# --- the store ------------------------------------------------------------------------------------


def _state(connection: Any, behind: Iterable[Put]) -> Iterator[Row]:
    """Yield topics, publications and counters: the store's, then the journal's behind it."""
    is_compacted = bool(connection.execute(_HAS_COMPACTIONS).fetchall())
    compacted = dict(connection.execute(_COMPACTIONS).fetchall()) if is_compacted else {}
    for topic, last_id, floor in connection.execute(_TOPICS):
        floor_id = max(floor, compacted.get(topic, 0))  # below that only some are left
        yield {"kind": "topic", "topic": topic, "last_id": last_id, "floor_id": floor_id}
    for topic, key, lengths, data in connection.execute(_PUBLICATIONS):
        yield from _held(topic, key & ID_MAX, lengths, data)
    counters = {(producer, topic): last for producer, topic, last in connection.execute(_COUNTERS)}
    for put in behind:
        count, lane = len(put.lengths) // 4, lane_of(put.topic, put.is_delayed)
        yield _run(lane, None, put.client_id, put.counter, count)
        producer, last = (put.client_id, lane), put.counter + count - 1
        counters[producer] = max(last, counters.get(producer, 0))
    for (client_id, topic), last in counters.items():
        yield {"kind": "counter", "producer": client_id, "topic": topic, "counter": last}


def _held(topic: str, first_id: int, lengths: bytes, data: bytes) -> Iterator[Row]:
    publications = list(map(text_of, unpack(lengths, data)))
    for id_, producer, counter, count in payload.runs(topic, first_id, publications)[0]:
        yield _run(topic, id_, producer, counter, count)


def _run(topic: str, first_id: int | None, producer: str, first_counter: int, count: int) -> Row:
    return {
        "kind": "held",
        "topic": topic,
        "first_id": first_id,
        "producer": producer,
        "first_counter": first_counter,
        "count": count,
    }


# Up to where all have read, groups too; or where it was purged, a policy keeps nothing, or all has
# expired and no group has still to look at it.
_TOPICS: Final = """
    WITH cursors AS (SELECT topic, cursor FROM subscriptions
        UNION ALL SELECT topic, cursor FROM groups)
    SELECT name, end.last_id, max(
        ifnull((SELECT min(cursor) FROM cursors WHERE topic = number), end.last_id),
        ifnull((SELECT last_id FROM purged WHERE topic = number), 0),
        ifnull((SELECT floor_id FROM policies WHERE topic = number), 0),
        min(ifnull((SELECT json_extract(text, '$[1]') FROM expiries WHERE topic = number), 0),
            ifnull((SELECT min(cursor) FROM groups WHERE topic = number), end.last_id)))
    FROM topics AS end ORDER BY name
"""
_PUBLICATIONS: Final = (
    "SELECT name, key, lengths, data FROM publications"
    f" JOIN topics ON number = key >> {TOPIC_SHIFT} ORDER BY key"
)
_HAS_COMPACTIONS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'compactions'"
_COMPACTIONS: Final = "SELECT name, compacted_id FROM compactions JOIN topics ON number = topic"
_COUNTERS: Final = (
    "SELECT client_id, topic, counter FROM producers"
    " JOIN clients ON clients.number = client ORDER BY client_id, topic"
)


def _copied(database: Path, directory: Path) -> Path:
    """Copy a database with what its process had not moved into it; return the copy."""
    copy = directory / database.name
    shutil.copyfile(database, copy)
    log = tables.side_file(database, "-wal")
    if log.exists():
        shutil.copyfile(log, tables.side_file(copy, "-wal"))
    return copy


# --- the journal ----------------------------------------------------------------------------------


class ReadOnlyFiles(Files):
    """A disk on which nothing is changed. A torn tail is left out by the reader, not cut off."""

    def __init__(self) -> None:
        self.opened: list[int] = []

    def open_append(self, path: Path) -> int:  # type: ignore[override]
        """Open `path` for reads."""
        self.opened.append(os.open(path, os.O_RDONLY))
        return self.opened[-1]

    def truncate(self, fd: int, size: int) -> None:
        """Leave the tail where it is."""

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        """Nothing was written."""


@dataclass
class _ReadJournal:
    """A journal that is read, and what is to be closed behind it: its own way out writes."""

    journal: Journal
    files: ReadOnlyFiles

    def __enter__(self) -> _ReadJournal:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.files.opened:
            os.close(descriptor)


def _journal(directory: Path) -> _ReadJournal:
    files = ReadOnlyFiles()
    return _ReadJournal(Journal.open(directory, files=files, on_failure=_unreadable), files)


def _unreadable(error: Exception) -> NoReturn:
    raise error


def main(arguments: list[str]) -> None:
    """Write the file of one node. Exit code 1, with the reason, when it could not be read."""
    run_id, node, data, log, file = arguments
    try:
        write(run_id, node, Remains(Path(data), Path(log)), Path(file))
    except Exception as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
