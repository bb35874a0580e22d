"""A node's worker: jobs that go on step by step, with the node's turns between.

What lives here: the handing over of control between the world and a job, and when a job goes on.
What must not: what a job does, what a step does to a disk (stored.py), any parallelism: of a
world's threads one runs at a time, and who is next is decided by the seed.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from chaos.simulation.disks.disk import OWN_SYNC

PAUSED_S: Final = 0.05  # between looks at whether a stopped process goes on
STEP_SHARE: Final = 0.25  # of `job_ms`, the longest that a job waits at a pause
LONG_SHARE: Final = 0.4  # of pauses at a sync are as long as a busy disk's, so that much happens
LONG_S: Final = 1.0
# Where a job may be overtaken by turns, and how often it is: between a sync and what follows it
# things go wrong; a copy's or a checkpoint's pages are many.
PAUSES: Final = {
    "store_sync": 0.7,
    OWN_SYNC: 0.7,
    "store_synced": 0.7,
    "store": 0.5,
    "store_open": 0.5,
    "store_read": 0.2,
    "store_rename": 0.5,
    "store_unlink": 0.5,
    "store_truncate": 0.5,
    "store_write": 0.05,
    "store_pause": 0.1,
    "store_wait": 1.0,
    "journal_read": 0.5,
}


SYNCS: Final = ("store_sync", OWN_SYNC, "store_synced", "store")


class Stepped:
    """A call that runs in a thread of its own, and only while its caller waits."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.is_over = False
        self.is_stepping = False
        self._call = call
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        """Let it go on until it pauses or is over."""
        self.is_stepping = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        self.is_stepping = False
        if self.is_over:
            self._thread.join()

    def pause(self) -> None:
        """Hand control back, from inside of the call, until the next step."""
        self._back.release()
        self._go.acquire()

    def _run(self) -> None:
        try:
            self._call()
        finally:
            self.is_over = True
            self._back.release()


@dataclass(slots=True, eq=False)
class Job:
    """A worker's job and where its outcome goes."""

    run: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


class WorkerWorld(Protocol):
    """The time of a run, its random numbers and its settings: the world, as a worker knows it."""

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after a time."""

    def stream(self, name: str) -> Random:
        """Return the random numbers of one purpose."""

    def knob(self, name: str) -> float:
        """Return one of the plan's settings."""


class WorkerNode(Protocol):
    """The node, as its worker knows it. `life`: which of its processes this is."""

    life: int
    paused: bool

    @property
    def world(self) -> WorkerWorld:
        """Where it lives."""

    def during(self, life: int, action: Callable[[], None]) -> None:
        """Call if that process lives."""

    def wake(self) -> None:
        """Have a turn soon."""


class SimWorker:
    """Does one job after the other; results come between turns, as `node.ThreadWorker`'s do."""

    def __init__(self, node: WorkerNode) -> None:
        self._node = node
        self._life = node.life
        self._rng = node.world.stream("jobs")
        self._longest_s = node.world.knob("job_ms") * STEP_SHARE / 1000
        self._jobs: deque[Job] = deque()
        self._under_way: Stepped | None = None
        self._finished: deque[Callable[[], None]] = deque()
        self._is_abandoned = False
        self._is_long = False

    def submit(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Queue a job; see catchup.Worker."""
        self._jobs.append(Job(job, done, failed))
        if len(self._jobs) == 1:
            self._begin()

    def _begin(self) -> None:
        job = self._jobs[0]
        self._under_way = Stepped(lambda: self._finished.append(_outcome(job)))
        self._later()

    def _later(self) -> None:
        longest_s = LONG_S if self._is_long else self._longest_s
        delay_s = PAUSED_S if self._node.paused else longest_s * self._rng.random()
        self._node.world.after(delay_s, lambda: self._node.during(self._life, self._go_on))

    def _go_on(self) -> None:
        stepped = self._under_way
        if stepped is not None and not self._node.paused:
            self.step()
        if self._under_way is stepped and stepped is not None:
            self._later()

    def step(self) -> None:
        """Let the job under way go on until its next pause."""
        stepped = self._under_way
        assert stepped is not None, "no job is under way"
        stepped.step()
        if stepped.is_over:
            self._under_way = None
            self._jobs.popleft()
            if self._jobs and not self._is_abandoned:
                self._begin()
            self._node.wake()

    @property
    def is_stepping(self) -> bool:
        """True while a job has control, and not the node's loop."""
        return self._under_way is not None and self._under_way.is_stepping

    @property
    def is_under_way(self) -> bool:
        """True while a job has begun and is not over."""
        return self._under_way is not None

    def pause(self, kind: str) -> None:
        """Let turns run before an operation of this kind, by chance; called by the job."""
        if not self._is_abandoned and self._rng.random() < PAUSES.get(kind, 0.0):
            assert self._under_way is not None
            self._is_long = kind in SYNCS and self._rng.random() < LONG_SHARE
            self._under_way.pause()

    def abandon(self) -> None:
        """End with the process: the job under way meets an error at its next operation."""
        self._is_abandoned = True
        if self._under_way is not None:
            self.step()
        assert self._under_way is None, "a job that was abandoned goes on"

    def deliver(self) -> None:
        """Call back for every finished job."""
        while self._finished:
            self._finished.popleft()()

    @property
    def idle(self) -> bool:
        """True when no job is under way."""
        return not self._jobs and not self._finished


def _outcome(job: Job) -> Callable[[], None]:
    """Run a job and return what the loop is to do; what is no expected error ends the node."""
    try:
        result = job.run()
    except (OSError, sqlite3.Error) as error:
        expected = error
        return lambda: job.failed(expected)
    except Exception as error:  # noqa: BLE001  (a defect or a damaged store: the loop ends)
        return _raiser(error)
    return lambda: job.done(result)


def _raiser(error: Exception) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it
