"""Which judge a run gets: the one in plain Python while it is small, else the one on Spark.

What lives here: the words, the limits, and how large a run is. What must not: a judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

AUTO, TWINS, SPARK = CHOICES = ("auto", "twins", "spark")

# The judge in plain Python holds all rows in memory, some 5 KB each, and takes a second for some
# ten thousand lines: up to here that is below 0.5 GB, and sooner done than a JVM has started.
LINES_TWINS_MAX: Final = 60_000
BYTES_TWINS_MAX: Final = 32 * 1024 * 1024
BLOCK_BYTES: Final = 1024 * 1024
PARQUET: Final = "history.parquet"


@dataclass(frozen=True, slots=True)
class Choice:
    """`judge`: twins or spark. `why`: in words; empty if the user has said so."""

    judge: str
    why: str


def chosen(directory: str, wanted: str) -> Choice:
    """Return the judge of the run in `directory`, a path or a URL."""
    assert wanted in CHOICES, wanted
    if wanted != AUTO:
        return Choice(wanted, "")
    path = Path(directory)
    if not path.is_dir():
        return Choice(SPARK, "the run is not on this machine's disks")
    if (path / PARQUET).exists():
        return Choice(SPARK, "its history is kept as Parquet")
    files = sorted([*(path / "history").glob("*"), *(path / "truth").glob("*")])
    size = sum(file.stat().st_size for file in files if file.is_file())
    if size > BYTES_TWINS_MAX:
        return Choice(SPARK, f"{size:,} bytes are more than {BYTES_TWINS_MAX:,}")
    lines = sum(block.count(b"\n") for file in files if file.is_file() for block in _blocks(file))
    if lines > LINES_TWINS_MAX:
        return Choice(SPARK, f"{lines:,} lines are more than {LINES_TWINS_MAX:,}")
    return Choice(TWINS, f"{lines:,} lines are no more than {LINES_TWINS_MAX:,}")


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block
    except OSError:  # its judge says what can't be read
        return
