"""How every client process is recorded, and how it dies at a chosen point.

What lives here: the observer between the library and the recorder. What must not: what a client
does, or which of them dies when (the runner's random numbers).

The points are those at which a process that vanishes could leave the two sides in disagreement:
`invoked`: the operation is recorded and stands in the outbox, nothing was sent. `answered`: the
cluster has done it, nobody here knows. `recorded`: the history knows, outbox and cursor do not; or
it knows what is handed over next, and who reads does not have it.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import warnings
from typing import Final, NoReturn

from chaos.workloads import ClientConfig
from chaos.workloads.history import ProcessRecorder, WorkloadObserver
from flotilla_client import Client, Handling, Operation, Outcome, UnheardWarning

CRASH_POINTS: Final = ("invoked", "answered", "recorded")


class MortalObserver:
    """Records operations; once armed, ends the process at a point, as SIGKILL does.

    A lock: the library's producers call from threads of their own.
    """

    def __init__(self, recorder: ProcessRecorder) -> None:
        self._observer = WorkloadObserver(recorder)
        self._lock = threading.Lock()
        self._point = ""
        self._passes = 0

    def arm(self, point: str, passes: int) -> None:
        """Die when `point` is reached, after it was passed `passes` times."""
        assert point in CRASH_POINTS, point
        self._point, self._passes = point, passes

    def on_invoke(self, operation: Operation) -> None:
        """Record an operation that is about to be sent."""
        with self._lock:
            self._observer.on_invoke(operation)
            self._reach("invoked")

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        """Record how it ended."""
        with self._lock:
            self._reach("answered")
            self._observer.on_complete(operation, outcome)
            self._reach("recorded")

    def on_handling(self, handling: Handling) -> None:
        """Record a step between the library and what reads."""
        with self._lock:
            self._observer.on_handling(handling)
            self._reach("recorded")

    def _reach(self, point: str) -> None:
        if point != self._point:
            return
        if self._passes == 0:
            die()
        self._passes -= 1


def die() -> NoReturn:
    """End this process as a machine that loses power ends it: nothing is flushed or told."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")


def open_client(config: ClientConfig, observer: MortalObserver) -> Client:
    """Return the recorded client of this process, with its durable state.

    Experiments publish where nobody subscribes on purpose; the record says what was stored.
    """
    warnings.simplefilter("ignore", UnheardWarning)
    return Client(
        config.endpoints,
        state_dir=config.state,
        timeout=config.deadline_ms / 1000,
        observer=observer,
        rng=random.Random(config.seed),
    )
