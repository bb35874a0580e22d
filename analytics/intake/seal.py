"""`flotilla-check seal DIR`: says in a run's run.json what its history is, file by file.

What lives here: writing `history`, and `truth.files` where disks were read, for a directory of
which its owner knows that it is whole: one that was put together of several machines' files, or
recorded by an earlier version. What must not: finding out whether it is whole: that is load.py's,
which believes what is written here.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from pyspark.sql import functions as F

from analytics.common.session import opened
from analytics.common.storage import files_in, to_read
from analytics.intake.cache import HistoryError
from analytics.intake.files import (
    HIDDEN,
    LINES,
    PARQUET,
    PARQUET_ASIDE,
    TRUTH,
    Described,
    content_of,
    contents_of,
    strictly,
)
from analytics.intake.truth import ENDING

RUN_FILE: Final = "run.json"
LOCK: Final = "run.json.lock"  # that of clients which record themselves into the same directory


def seal(directory: Path) -> dict[str, int]:
    """Write what each file of the history in `directory` is, and of the truth; return their lines
    by name.

    The files are closed then: nobody may write into them any more. Of Parquet, `lines` is rows.
    Raises HistoryError where something stands that would not be read, or no history at all.
    """
    with _held(directory):
        document = _document(directory / RUN_FILE)
        files = _files(directory)
        parts = [name for name in files if name.startswith(f"{PARQUET}/")]
        rows = _rows_of([str(files[name]) for name in parts]) if parts else {}
        described = {
            name: contents_of(file, is_lines=name not in parts).described
            for name, file in files.items()
        }
        for name in parts:
            described[name] = replace(described[name], lines=rows.get(files[name].name, 0))
        said = document.get(TRUTH)
        truth = _truth(directory, said)
        history = {name: asdict(one) for name, one in described.items()}
        sealed = document | {"history": history}
        if isinstance(said, dict):
            sealed[TRUTH] = said | {"files": {name: asdict(one) for name, one in truth.items()}}
        _write(directory / RUN_FILE, sealed)
    of_truth = {f"{TRUTH}/{name}": one.lines for name, one in truth.items()}
    return {name: one.lines for name, one in described.items()} | of_truth


def _truth(directory: Path, said: object) -> dict[str, Described]:
    """Return what each file of the truth is, where `said` (`truth` in run.json) expects one."""
    nodes = said.get("nodes") if isinstance(said, dict) else None
    due = {f"{node}{ENDING}" for node in nodes} if isinstance(nodes, list) else set()
    described = {}
    for file in sorted((directory / TRUTH).glob("*")):
        if file.name not in due or not file.is_file():
            raise HistoryError(f"{file} is of no node's disk, and would not be read: remove it")
        described[file.name] = contents_of(file, is_lines=False).described
    return described


def _files(directory: Path) -> dict[str, Path]:
    parts, lines = files_in(directory / PARQUET, "*"), files_in(directory / LINES, "*")
    if parts and lines:
        raise HistoryError(f"{directory} has both {LINES} and {PARQUET}: remove one of them")
    ending, prefix = (".parquet", f"{PARQUET}/") if parts else (".jsonl", "")
    entries = [one for one in parts or lines if not (parts and one.name.endswith(PARQUET_ASIDE))]
    for entry in entries:
        if entry.name.startswith(HIDDEN) or not entry.name.endswith(ending) or not entry.is_file():
            raise HistoryError(f"{entry} is no file of a history, and would not be read: remove it")
    if not entries:
        raise HistoryError(f"no history to seal in {directory / LINES}")
    return {f"{prefix}{entry.name}": Path(str(entry)) for entry in entries}


def _rows_of(parts: Iterable[str]) -> dict[str, int]:
    """Return the rows of each part of a history that is kept as Parquet."""
    with opened() as spark:
        read = spark.read.parquet(*(to_read(Path(part)) for part in parts))
        counts = read.groupBy(F.col("_metadata.file_name").alias("name")).count().collect()
    return {row["name"]: row["count"] for row in counts}


def _document(path: Path) -> dict[str, object]:
    try:
        document = strictly(content_of(path))
    except OSError as error:
        raise HistoryError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise HistoryError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("run_id"), str):
        raise HistoryError(f"{path} names no run: `run_id` is due")
    return document


def _write(path: Path, document: dict[str, object]) -> None:
    """Replace the file, durably: it is there whole, before or after."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        file.write(json.dumps(document, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Keep clients that record into the same directory from writing its run.json meanwhile."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise HistoryError(f"{directory} can't be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HistoryError(f"a client is writing {directory / RUN_FILE}: try again") from error
        yield
    finally:
        os.close(descriptor)
