"""A process that judges one run after the other in one Spark session.

What lives here: `python -m chaos.run.judging`, that is `flotilla-check` for each directory that
comes in on stdin, and what it came to on stdout. What must not: which runs there are (suite.py), or
any check (analytics).

A line in: a run's directory. A line out: the exit code of `flotilla-check`. What it prints goes
to `analytics.log` in that directory. With arguments, FILE DIRECTORY…, it writes the index of these
runs to FILE instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from analytics.cli import main as check
from analytics.command.choice import SPARK
from analytics.command.interruption import EXIT_CODE_BASE
from analytics.common import session
from analytics.report.index import write_index

LOG: Final = "analytics.log"
REPORT: Final = "report.json"
EXIT_CRASHED: Final = 2  # as flotilla-check has it: not known, and never a pass


def judged(directory: Path) -> int:
    """Check one run; return the exit code."""
    with (directory / LOG).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        named = ["--judge", SPARK, "--json", str(directory / REPORT)]
        check([str(directory), *named], standalone_mode=False)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else EXIT_CRASHED
        if code > EXIT_CODE_BASE:  # told to end, and not only this check
            raise
        return code
    return EXIT_CRASHED  # it has a verdict for an exit code, always


def main(arguments: list[str]) -> None:
    """Write an index, or judge until stdin ends."""
    if arguments:
        target, *directories = map(Path, arguments)
        write_index(directories, target)
        return
    answers = os.dup(1)
    with session.opened(is_for_short=True):
        os.write(answers, b"ready\n")
        for line in sys.stdin:
            code = judged(Path(line.rstrip("\n")))
            sys.stdout.flush()
            os.write(answers, f"{code}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
