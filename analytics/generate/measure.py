"""`python -m analytics.generate.measure`: how long a check takes, and in how much memory.

Makes a history of each size, checks it with the command `flotilla-check` in a process of its own,
and prints a row each: wall clock and processor time from start to verdict, the greatest resident
memory of all its processes together. Judges nothing; reads Linux' /proc.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

SAMPLE_S: Final = 1.0  # between two looks at the processes
CHECK_ENDS_S: Final = 60.0  # a check that is told to end stops its session first
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
GIB: Final = 1024**3
WIDTH: Final = 100  # characters of the table
COMMAND: Final = (sys.executable, "-m", "analytics")


@dataclass(frozen=True, slots=True)
class Measured:
    """What one check took. `others_share`: of the processors, used by other processes."""

    operations: int
    verdict: str
    wall_s: float
    cpu_s: float
    peak_bytes: int
    others_share: float


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--sizes", default="1000000,10000000", show_default=True, help="Operations.")
@click.option("--topics", default="64", show_default=True, help="Numbers of topics to compare.")
@click.option("--memory", default="4g", show_default=True, help="Heap of Spark's driver.")
@click.option("--jsonl", is_flag=True, help="Histories of JSON lines, not Parquet.")
@click.option(
    "--dir",
    "base",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where the histories are made. Default: the directory for such things.",
)
@click.option("--keep", is_flag=True, help="Leave the histories there, and use them again.")
def main(sizes: str, topics: str, memory: str, jsonl: bool, base: Path | None, keep: bool) -> None:
    """Measure checks of made-up histories."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    table = Table(
        "operations", "topics", "verdict", "s", "operations/s", "processor s", "peak GiB", "others"
    )
    for size in map(int, sizes.split(",")):
        for count in map(int, topics.split(",")):
            name = f"{size}-{count}-{'lines' if jsonl else 'parquet'}"
            with _directory(base, name if keep else None) as directory:
                extra = ["--topics", str(count), *(["--jsonl"] if jsonl else [])]
                if not directory.exists():
                    make(directory, ["--generate", str(size), "--memory", memory, *extra])
                one = measured(directory, size, memory)
            table.add_row(f"{size:,}", str(count), *cells(one))
    Console(width=WIDTH).print(table)  # into a file as well


def make(directory: Path, options: Sequence[str]) -> None:
    """Make up a history. It has its name when it is whole: one that is ended before is no history,
    and the next one begins anew.
    """
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    subprocess.run([*COMMAND, str(partial), *options], check=True)
    partial.rename(directory)


@contextmanager
def _directory(base: Path | None, name: str | None) -> Iterator[Path]:
    """Yield the directory of a history, there or not: under its name, without the cache of an
    earlier check; or, without a name, one that is removed at the end.
    """
    if name is None:
        with tempfile.TemporaryDirectory(prefix="flotilla-scale-", dir=base) as directory:
            yield Path(directory) / "run"
    else:
        kept = (base or Path(tempfile.gettempdir())) / name
        shutil.rmtree(kept / "parquet", ignore_errors=True)
        yield kept


def cells(one: Measured) -> Iterator[str]:
    """Yield the figures of a row, from the verdict on."""
    yield one.verdict
    yield f"{one.wall_s:.0f}"
    yield f"{one.operations / one.wall_s:,.0f}"
    yield f"{one.cpu_s:.0f}"
    yield f"{one.peak_bytes / GIB:.1f}"
    yield f"{one.others_share:.0%}"


def measured(directory: Path, operations: int, memory: str) -> Measured:
    """Check the history in `directory`, which must be valid, and return what that took."""
    report = directory / "measured.json"
    report.unlink(missing_ok=True)
    command = [*COMMAND, str(directory), "--memory", memory, "--json", str(report), "--no-report"]
    begun_s, busy_s = time.monotonic(), _busy_s()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak_bytes = 0
    spent_s: dict[int, float] = {}
    try:
        while process.poll() is None:
            family = list(_family(process.pid))
            peak_bytes = max(peak_bytes, sum(one.resident_bytes for one in family))
            spent_s |= {one.pid: one.cpu_s for one in family}
            time.sleep(SAMPLE_S)
    finally:  # whoever ends this ends the check, which takes a few seconds for it
        process.terminate()
        process.wait(CHECK_ENDS_S)
    wall_s, cpu_s = time.monotonic() - begun_s, sum(spent_s.values())
    others_s = _busy_s() - busy_s - cpu_s
    verdict = json.loads(report.read_text())["verdict"]
    others_share = max(0.0, others_s / (wall_s * (os.cpu_count() or 1)))
    return Measured(operations, verdict, wall_s, cpu_s, peak_bytes, others_share)


@dataclass(frozen=True, slots=True)
class _MeasuredProcess:
    pid: int
    parent: int
    cpu_s: float
    resident_bytes: int


def _family(root: int) -> Iterator[_MeasuredProcess]:
    """Yield the process `root` and all that descend from it."""
    everyone = [one for entry in Path("/proc").glob("[0-9]*") if (one := _read(entry))]
    members = {root}
    while more := {one.pid for one in everyone if one.parent in members} - members:
        members |= more
    yield from (one for one in everyone if one.pid in members)


# chaos/bench and cluster/local read /proc too; analytics imports nothing of theirs.
def _read(entry: Path) -> _MeasuredProcess | None:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # it has ended since the directory was listed
    ticks = int(fields[11]) + int(fields[12])
    resident = int(fields[21]) * PAGE_BYTES
    return _MeasuredProcess(int(entry.name), int(fields[1]), ticks / TICKS_A_SECOND, resident)


def _busy_s() -> float:
    """Return the time that all processors together have worked since the machine started."""
    user, nice, system, _idle, _wait, *interrupts = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    )
    return (user + nice + system + sum(interrupts)) / TICKS_A_SECOND


if __name__ == "__main__":
    main()
