"""Who may notice a mutant: the simulation, then the nearest tests.

What lives here: the two commands, how their output is read, and their bounds of time. What must
not: which mutants, in which order, or what is kept of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from chaos.mutation.mutants import MutationError
from chaos.mutation.project import Project
from chaos.mutation.tree import Copy

POLL_S: Final = 0.2  # how late a bound of time, or a wish to stop, may be noticed
READ_BYTES: Final = 1024 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024  # a failing seed's line has its plan in it
DETAIL_CHARACTERS_MAX: Final = 300
# Of pytest: interrupted (as by an error while it collects), an internal error. A file that is not
# there, or has no tests, is an error of the table: see `test`.
TESTS_BREAK: Final = frozenset({2, 3})
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)")
HANGS: Final = "hangs"
BREAKS: Final = "breaks"

IsStopped = Callable[[], bool]


class Stopped(Exception):
    """The runner was told to stop: what was under way counts for nothing."""


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """What a stage says of a mutant.

    `what` noticed it: a check of the simulation, a test, HANGS or BREAKS; "": nothing did. `seed`:
    where, of the simulation; `seeds`: how many of them ran. `detail`: in its own words.
    """

    what: str = ""
    seed: int | None = None
    seeds: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StageBounds:
    """How much is done for a mutant.

    `seeds` of the simulation (0: none), none begun after so many `seconds`. `tests`: whether the
    nearest tests run.
    """

    seeds: int
    seconds: float
    tests: bool


def simulate(
    project: Project, copy: Copy, bounds: StageBounds, is_stopped: IsStopped
) -> StageVerdict:
    """Run seeds from 1 on until one notices something, or the bounds are reached."""
    filled = {"python": sys.executable, "seeds": f"1..{bounds.seeds}"}
    command = [part.format(**filled) for part in project.simulation_command]
    seeds, until_s = 0, time.monotonic() + bounds.seconds
    with _CommandProcess(command, copy, is_stopped) as process:
        for line in process.lines(project.silence_s_max, float("inf")):
            row = _row_of_a_seed(line)
            if row is None:
                continue
            seeds += 1
            if row["failures"]:
                first = row["failures"][0]
                detail = str(first.get("text", ""))[:DETAIL_CHARACTERS_MAX]
                return StageVerdict(str(first["check"]), row["seed"], seeds, detail)
            if time.monotonic() >= until_s:
                return StageVerdict(seeds=seeds)
        if process.is_over_time:
            return StageVerdict(HANGS, None, seeds)
        if process.status() != 0:
            return StageVerdict(BREAKS, None, seeds, process.last_words())
    return StageVerdict(seeds=seeds)


def _row_of_a_seed(line: str) -> dict[str, Any] | None:
    """Return what a line says of a seed, None if it says something else."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) and "seed" in row and "failures" in row else None


def test(project: Project, copy: Copy, file: str, is_stopped: IsStopped) -> StageVerdict:
    """Run the tests that are nearest to a file until one fails. Raises MutationError: none are."""
    files = project.nearest.get(file, ())
    if not files:
        raise MutationError(f"no tests are nearest to {file}")
    command = [part.format(python=sys.executable) for part in project.tests_command]
    failed = ""
    with _CommandProcess([*command, *files], copy, is_stopped) as process:
        until_s = time.monotonic() + project.tests_seconds_max
        for line in process.lines(float("inf"), until_s):
            match = _FAILED.match(line)
            failed = failed or (match[1] if match else "")
        if process.is_over_time:
            return StageVerdict(HANGS)
        status = process.status()
        if status == 0:
            return StageVerdict()
        if status == 1 or status in TESTS_BREAK or status < 0:
            return StageVerdict(failed or BREAKS, detail="" if failed else process.last_words())
        raise MutationError(f"the tests of {file} could not be run: {process.last_words()}")


class _CommandProcess:
    """A command in a copy, in a group of its own that ends with the context.

    Use: `lines`, then `is_over_time`, then `status`.
    """

    def __init__(self, command: Sequence[str], copy: Copy, is_stopped: IsStopped) -> None:
        self._command, self._copy, self._is_stopped = command, copy, is_stopped
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the context
        self._last_line = ""
        self.is_over_time = False

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=self._copy.path,
            env=self._copy.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and all that it started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None, self._command
        self._process.stdout.close()
        self._errors.close()

    def lines(self, silence_s_max: float, until_s: float) -> Iterator[str]:
        """Yield the lines of its output; end when it does, or set `is_over_time`.

        Raises Stopped.
        """
        stdout = self._process.stdout
        assert stdout is not None, self._command
        buffer, heard_s = bytearray(), time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                if self._is_stopped():
                    raise Stopped
                now_s = time.monotonic()
                if now_s >= until_s or now_s >= heard_s + silence_s_max:
                    self.is_over_time = True
                    return
                if not selector.select(POLL_S):
                    continue
                data = os.read(stdout.fileno(), READ_BYTES)
                if not data:
                    return
                buffer += data
                if len(buffer) > LINE_BYTES_MAX:
                    raise MutationError(f"{self._command} wrote a line without an end")
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                for line in lines:
                    heard_s = time.monotonic()
                    self._last_line = line.decode(errors="replace")
                    yield self._last_line

    def status(self) -> int:
        """Return its exit status, below 0 for a signal."""
        return self._process.wait()

    def last_words(self) -> str:
        """Return the last line that it wrote, of errors if there are any."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return (lines or [self._last_line])[-1][:DETAIL_CHARACTERS_MAX]
