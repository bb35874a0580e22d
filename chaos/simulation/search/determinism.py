"""Whether the same seed is the same run: in two processes whose strings hash differently.

What lives here: running seeds twice, comparing, finding where two runs part. What must not: the
run itself; a child is this package's own command line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from chaos.workloads.children import child_environment

COMMAND: Final = (sys.executable, "-m", "chaos.simulation")
HASH_SEEDS: Final = ("1", "2")  # of PYTHONHASHSEED: the order of sets of strings differs
END_S_MAX: Final = 30.0  # a child that has closed its output only has to exit


class ChildFailed(Exception):
    """A child process ended without saying what it was asked for."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One seed, run twice."""

    seed: int
    hashes: tuple[str, str]

    @property
    def is_same(self) -> bool:
        """Whether the two runs were one and the same."""
        return self.hashes[0] == self.hashes[1]


def pairs(arguments: Sequence[str], command: Sequence[str] = COMMAND) -> Iterator[Pair]:
    """Yield each seed that `arguments` ask for with the hashes of its two runs.

    Raises ChildFailed when a child does not come to its end.
    """
    asked = [*command, *arguments, "--json", "--jobs", "1", "--no-shrink"]
    with ExitStack() as stack:
        first, second = (_runs(_lines(stack, asked, hash_seed)) for hash_seed in HASH_SEEDS)
        for one, other in zip_longest(first, second):
            if one is None or other is None or one[0] != other[0]:
                raise ChildFailed(f"one child ran {one}, the other {other}")
            yield Pair(one[0], (one[1], other[1]))


def _runs(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for line in lines:
        fields = json.loads(line)
        if "hash" in fields:
            yield fields["seed"], fields["hash"]


def first_difference(
    arguments: Sequence[str], command: Sequence[str] = COMMAND
) -> tuple[int, str, str] | None:
    """Return where the two traces of a seed part: line number and lines; None when they do not."""
    asked = [*command, *arguments, "-vv", "--no-shrink"]
    with ExitStack() as stack:
        first, second = (_lines(stack, asked, hash_seed) for hash_seed in HASH_SEEDS)
        for number, (one, other) in enumerate(zip_longest(first, second, fillvalue=""), 1):
            if one != other:
                return number, one.rstrip(), other.rstrip()
    return None


def _lines(stack: ExitStack, command: Sequence[str], hash_seed: str) -> Iterator[str]:
    """Start a child and yield the lines of its output; it is ended with the stack at the latest."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**child_environment(), **os.environ, "PYTHONHASHSEED": hash_seed},
    )
    stack.callback(_end, process)
    assert process.stdout is not None
    return _until_end(process, process.stdout)


def _until_end(process: subprocess.Popen[str], lines: Iterable[str]) -> Iterator[str]:
    yield from lines
    if process.wait(END_S_MAX) not in (0, 1):  # 1: a failure was found, which is no concern here
        raise ChildFailed(f"{process.args!r} ended with {process.returncode}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(END_S_MAX)
    assert process.stdout is not None
    process.stdout.close()
