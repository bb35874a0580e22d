"""What a check does when it is told to end: SIGINT (ctrl-C) and SIGTERM. No Spark here.

A signal becomes an exception in the main thread, so that all that is open is closed on the way
out; that takes seconds. Whoever can't be closed by then is ended by force (session.py). What comes
right behind is the same request (of a terminal, of a parent that passes it on); what comes later
is an exception again: somebody insists, or Python has swallowed the first, as in a finalizer.
"""

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SAME_REQUEST_S: Final = 2.0  # closing takes less, but for a session that is just being started
EXIT_CODE_BASE: Final = 128  # of a shell: a process that a signal has ended


class Interrupted(BaseException):
    """A signal has come. Nothing but who asked for the check may catch it."""


@dataclass(slots=True)
class SignalWatch:
    """`number`: of the signal that has come; None as long as none has."""

    number: int | None = None
    deaf_until_s: float = -math.inf

    @property
    def exit_code(self) -> int:
        """The exit code of what a signal has ended."""
        assert self.number is not None, "no signal has come"
        return EXIT_CODE_BASE + self.number


@contextmanager
def interruptible() -> Iterator[SignalWatch]:
    """Let a signal raise Interrupted here. Only for the main thread of a process that ends then.

    Libraries may make another exception of it on the way: `Watch.number` tells what it was.
    """
    watch = SignalWatch()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if time.monotonic() < watch.deaf_until_s:
            return
        watch.deaf_until_s = time.monotonic() + SAME_REQUEST_S
        logging.disable()  # of what is cut off now each would have its say
        watch.number = number
        raise Interrupted(signal.Signals(number).name)

    before = {one: signal.signal(one, interrupt) for one in SIGNALS}
    try:
        yield watch
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
