"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere.

What lives here: showing. What must not: deciding anything; a run is the same without it.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PACE_S: Final = 2.0  # over which a pace is measured: clients report four times a second
LINES_EVERY_S: Final = 5.0


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


class Meter:
    """The pace of a run as it is now, from counts that only grow. Times: monotonic seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int]] = deque()
        self._heard_s: float | None = None
        self.blackout_s = 0.0  # the longest time without an acknowledgment since the window began

    def begin_window(self, now_s: float) -> None:
        """Begin to look for the longest silence anew."""
        self.blackout_s = 0.0
        self._heard_s = now_s if self._heard_s is None else self._heard_s

    def take(self, now_s: float, acknowledged: int, delivered: int) -> None:
        """Take the counts as they are now."""
        if self._points and acknowledged != self._points[-1][1]:
            self._heard_s = now_s
        self._points.append((now_s, acknowledged, delivered))
        while now_s - self._points[0][0] > PACE_S:
            self._points.popleft()
        if self._heard_s is not None:
            self.blackout_s = max(self.blackout_s, now_s - self._heard_s)

    def __str__(self) -> str:
        """Return the pace and the blackout for a person."""
        (begin_s, *before), (end_s, *now) = self._points[0], self._points[-1]
        seconds = max(end_s - begin_s, PACE_S / 2)
        acknowledged, delivered = (
            (later - earlier) / seconds for earlier, later in zip(before, now, strict=True)
        )
        return (
            f"{acknowledged:,.0f} acknowledged/s, {delivered:,.0f} delivered/s, "
            f"no service for {self.blackout_s:.1f} s so far"
        )


class PlainLines:
    """Plain lines, for logs and pipes: stages, what is said, and now and then a tick."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_tick_s = time.monotonic() + LINES_EVERY_S
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def stage(self, title: str, expected_s: float) -> None:
        """Print the stage's title."""
        self._console.print(f"· {title}", highlight=False, soft_wrap=True)

    def tick(self, status: str) -> None:
        """Print it if the last one was long ago, and said something else."""
        if time.monotonic() >= self._next_tick_s and status != self._shown:
            self._next_tick_s = time.monotonic() + LINES_EVERY_S
            self._shown = status
            self.say(status)

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


def display(console: Console, total_s: float) -> Bar | PlainLines:
    """Return the bar for a terminal, lines for anything else."""
    return Bar(console, total_s) if console.is_terminal else PlainLines(console)
