"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere.

What lives here: showing. What must not: deciding anything; a run is the same without it.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Display(Protocol):
    """Where a run shows how far it is."""

    def stage(self, title: str, expected_s: float) -> None:
        """Say that the stage before has ended and `title` begins, expected to take this long."""
        ...

    def tick(self, status: str) -> None:
        """Show `status` beside the stage; called several times a second."""
        ...

    def say(self, line: str) -> None:
        """Show a line that stays."""
        ...


class Lines:
    """Plain lines, for logs and pipes: stages and what is said; ticks are left out."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def stage(self, title: str, expected_s: float) -> None:
        """Print the stage's title."""
        self._console.print(f"· {title}", highlight=False, soft_wrap=True)

    def tick(self, status: str) -> None:
        """Print nothing: a log needs no ticking."""

    def say(self, line: str) -> None:
        """Print the line."""
        self._console.print(f"  {line}", highlight=False, soft_wrap=True)


class Bar:
    """One bar over all stages; each stage has the share of it that its expected time has."""

    def __init__(self, console: Console, total_s: float) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=total_s, status="")
        self._before_s = self._expected_s = 0.0
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def stage(self, title: str, expected_s: float) -> None:
        """Move the bar to the stage's begin."""
        self._before_s += self._expected_s
        self._expected_s = expected_s
        self._began_s = time.monotonic()
        self._progress.update(self._task, description=title, completed=self._before_s)

    def tick(self, status: str) -> None:
        """Move the bar on inside the stage, never past its end."""
        inside_s = min(time.monotonic() - self._began_s, self._expected_s)
        self._progress.update(self._task, completed=self._before_s + inside_s, status=status)

    def say(self, line: str) -> None:
        """Print the line above the bar."""
        self._progress.console.print(f"  {line}", highlight=False)


def display(console: Console, total_s: float) -> Bar | Lines:
    """Return the bar for a terminal, lines for anything else."""
    return Bar(console, total_s) if console.is_terminal else Lines(console)
