"""The cache of a run, `DIR/parquet`: when it is believed, and who may write it at a time.

What lives here: its manifest, the lock on a run's directory, and how a damaged cache is told. What
must not: what the tables are (tables.py), or how they are written (table_store.py).

`manifest.json` is written last. It names the inputs and the kept files as they stood then; with any
difference, or if it can't be understood, there is no cache: all of it is made anew.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_origin, get_type_hints
from urllib.parse import unquote

from analytics.common.storage import Place, files_in, is_url
from analytics.common.table_store import OVERFLOW, make_tree

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LAYOUT: Final = 35  # of the cache; raise it with a table's columns, or what is a short history
DIRECTORY: Final = "parquet"  # in a run's directory
MANIFEST: Final = "manifest.json"
LOCK: Final = ".check.lock"  # stays: to remove it would take it from one that just opened it
WRITTEN_ANEW: Final = ("evidence", OVERFLOW)  # by each check, so that neither is believed
READ_BY_SPARK: Final = "[!._]*"  # other names are hidden to it
UNREADABLE: Final = "FAILED_READ_FILE"  # Spark's class of errors: a file that was listed, and broke

Intake = TypeVar("Intake", bound="DataclassInstance")


class HistoryError(Exception):
    """The run in a directory can't be checked; the message says why."""


def inputs_of(paths: Iterable[Place]) -> list[list[Any]]:
    """Return name, size in bytes and modification time in ns of each; only the name of one that
    is not there.

    On this machine also the time of its inode's last change, in ns, and the inode's number: whoever
    writes a file can set its modification time back, but not these.
    """
    return [[path.name, *_stamps(path)] for path in paths]


def _stamps(path: Place) -> list[int]:
    try:
        stat = path.stat()
    except OSError:
        return []
    of_inode = [stat.st_ctime_ns, stat.st_ino] if isinstance(stat, os.stat_result) else []
    return [stat.st_size, stat.st_mtime_ns, *of_inode]


def write_manifest(cache: Place, inputs: list[list[Any]], intake: "DataclassInstance") -> None:
    """Say that `cache` is whole, made from `inputs`; `intake` is what was learnt as they were read.

    It has to be of fields that JSON can hold, where sequences are tuples.
    """
    make_tree(cache)
    manifest = {
        "layout": LAYOUT,
        "inputs": inputs,
        "files": _files(cache),
        "intake": asdict(intake),
    }
    (cache / MANIFEST).write_text(json.dumps(manifest, indent=2))


def kept_intake(cache: Place, inputs: list[list[Any]], kind: type[Intake]) -> Intake | None:
    """Return the intake that was written with the manifest; None if the cache isn't to be believed.

    That is: not made from `inputs` as they are, or its files are not those that were kept.
    """
    try:
        manifest = json.loads((cache / MANIFEST).read_bytes())
        made_from = (manifest["layout"], manifest["inputs"])
        if made_from != (LAYOUT, inputs) or manifest["files"] != _files(cache):
            return None
        return _typed(kind, manifest["intake"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # none is there, its making was interrupted, or it is not one of ours


def _files(cache: Place) -> dict[str, int]:
    """Return the size in bytes of every file that Spark would read as a part of a kept table.

    Of a remote place each costs a request: thousands for a table of a billion lines, still far
    below what it takes to make the table anew.
    """
    tables = [table for table in files_in(cache, READ_BY_SPARK) if table.name not in WRITTEN_ANEW]
    return {
        f"{table.name}/{part.name}": part.stat().st_size
        for table in tables
        if table.name != MANIFEST
        for part in files_in(table, READ_BY_SPARK)
    }


def _typed(kind: type[Intake], document: dict[str, Any]) -> Intake:
    """Return `document` as a `kind`. Raises TypeError unless it has its fields and their types."""
    hints = get_type_hints(kind)
    fields = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
    if fields.keys() != hints.keys():
        raise TypeError(f"fields {sorted(fields)}")
    for name, hint in hints.items():
        origin = get_origin(hint)
        if not isinstance(fields[name], hint if origin in (None, UnionType) else origin):
            raise TypeError(f"{name} is {fields[name]!r}")
    return kind(**fields)


@contextmanager
def held(directory: Path | str) -> Iterator[None]:
    """Keep every other check out of the run in `directory`, which this one is to write into.

    Raises HistoryError at once if there is one, or if nothing can be written there. Behind a URL
    nothing is held: Hadoop's file systems have no locks.
    """
    if is_url(str(directory)):
        yield
        return
    try:
        file = (Path(directory) / LOCK).open("ab")
    except OSError as error:
        raise HistoryError(f"{directory} can't be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HistoryError(f"another check of {directory} is running") from error
        except OSError as error:
            raise HistoryError(f"{directory} can't be locked: {error.strerror}") from error
        yield


@contextmanager
def remedy_named(directory: Path | str) -> Iterator[None]:
    """Let an error that comes of a damaged cache of `directory` leave as a HistoryError."""
    try:
        yield
    except Exception as failure:
        remedy = remedy_of(f"{directory}/{DIRECTORY}", failure)
        if remedy is None:
            raise
        raise HistoryError(remedy) from failure


def remedy_of(cache: Place | str, failure: Exception) -> str | None:
    """Return what to do about `failure` if it is Spark's, of a file in `cache`; None otherwise."""
    text = unquote(str(failure))
    place = str(cache) if is_url(str(cache)) else os.path.abspath(str(cache))
    if UNREADABLE not in text or f"{place}/" not in text:
        return None
    return f"the kept tables in {cache} are damaged: remove that directory"
