"""The loop's side of what is shown of a node: a sample a second, a survey, and what has happened.

What lives here: plain values, made in the loop's thread and handed over whole. What must not: the
thread that shows them (server.py), formats.

The two threads share three things, each by one assignment or one append: `sample`, `survey` and
`happened`. What was handed over is never changed again. What the page reads is in reading.py.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cluster.log.files import Files
from cluster.observe.reading import PublicationReader
from cluster.observe.survey import Survey, walk
from cluster.serve.client_port import ClientPort
from cluster.serve.frontend import Frontend
from cluster.serve.meters import Histogram

SAMPLE_PERIOD_S: Final = 1.0  # how old what is shown may be; a sample takes 26 µs
SURVEY_PERIOD_S: Final = 5.0  # a walk over 10,000 topics and 100,000 subscriptions takes 40 ms
HAPPENED_MAX: Final = 1_000  # events that wait for the HTTP thread, which looks every second


class TimedFiles(Files):
    """The disk, with a count of how long it takes to make something durable."""

    def __init__(self, fsync: Histogram) -> None:
        def timed(fd: Any) -> None:
            began = time.monotonic()
            os.fdatasync(fd)
            fsync.observe(time.monotonic() - began)

        self.fdatasync = timed


@dataclass(frozen=True)
class Distribution:
    """A histogram as it was: (upper bound, how many values up to it), the last one unbounded."""

    buckets: tuple[tuple[float, int], ...]
    sum_s: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return self.buckets[-1][1]


@dataclass(frozen=True)
class Happened:
    """Something that the log was told. `at`: seconds since 1970."""

    at: float
    event: str
    level: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """A node as it was at one moment. `at`: monotonic seconds, `wall_s`: since 1970.

    `status`: the body of STATUS. `waiting`: requests that wait, by what for; `relays` of them at
    the leader. `quota_refused`: by principal and quota; `unauthorized`: by principal and what
    it lacked. `added`: publications and bytes that this
    node's store has taken. `keys_unusable`: as the observer has it.
    """

    at: float
    wall_s: float
    status: Mapping[str, Any]
    stopping: bool
    turn: Distribution
    fsync: Distribution
    put: Distribution
    requests: Mapping[str, int]
    refused: Mapping[str, int]
    delivered: tuple[int, int]
    added: tuple[int, int]
    waiting: Mapping[str, int]
    relays: int
    connections: int
    unread_bytes: int
    disk_free_bytes: int
    disk_size_bytes: int
    quota_refused: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unauthorized: Mapping[tuple[str, str], int] = field(default_factory=dict)
    keys_unusable: bool | None = None

    @property
    def leader(self) -> str:
        """The leader that this node knows and can reach, "" for none."""
        leader: str = self.status["leader"]
        return leader


class NodeObserver:
    """Makes the samples of one node. `note` each line of its log, `tick` after each turn.

    `reads_as`: the user whose permissions the page has to show publications, "" for none.
    `keys_unusable`: the files of keys can't be used now, so older ones count; None: there are none.
    """

    def __init__(
        self,
        frontend: Frontend,
        clients: ClientPort,
        fsync: Histogram,
        data_dir: Path,
        reads_as: str = "",
        keys_unusable: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.reader = PublicationReader(frontend, reads_as) if reads_as else None
        self._frontend, self._clients, self._fsync = frontend, clients, fsync
        self._data_dir, self._clock = data_dir, clock
        self.keys_unusable = keys_unusable
        self._next_sample_s = self._next_survey_s = 0.0
        self._walk: Iterator[None] | None = None
        self._walked = Survey()
        self.survey = Survey()
        self.happened: deque[Happened] = deque(maxlen=HAPPENED_MAX)
        self.sample = self._take(time.monotonic())

    def note(self, event: str, level: str, fields: Mapping[str, Any]) -> None:
        """Hand over what the log is told; the oldest gives way where nobody looks."""
        self.happened.append(Happened(self._clock(), event, level, fields))
        if event == "role":  # whether this node is any use to a client may be another answer now
            self._next_sample_s = 0.0

    def tick(self, now: float) -> None:
        """Do what is due."""
        if now >= self._next_sample_s:
            self._next_sample_s = now + SAMPLE_PERIOD_S
            self.sample = self._take(now)
        if self.reader is not None:
            self.reader.tick(now)
        if self._walk is not None:
            self._step(now)
        elif now >= self._next_survey_s:
            lead = self._frontend.lead
            if lead is not None:
                self._walked = Survey()
                self._walk = walk(lead.broker.store, self._walked)

    def _step(self, now: float) -> None:
        assert self._walk is not None
        if next(self._walk, self) is self:  # it has come to its end
            self.survey, self._walk = self._walked, None
            self._next_survey_s = now + SURVEY_PERIOD_S

    def _take(self, now: float) -> Sample:
        frontend, clients = self._frontend, self._clients
        meters = frontend.meters
        broker = None if frontend.lead is None else frontend.lead.broker
        room = os.statvfs(self._data_dir)
        return Sample(
            at=now,
            wall_s=self._clock(),
            status=frontend.status(),
            stopping=frontend.stopping,
            turn=_distribution(meters.turn),
            fsync=_distribution(self._fsync),
            put=_distribution(meters.put),
            requests=dict(meters.requests),
            refused=dict(meters.refused),
            delivered=(0, 0)
            if broker is None
            else (broker.delivered_count, broker.delivered_bytes),
            added=(0, 0) if broker is None else broker.store.added(),
            waiting={} if broker is None else broker.load(),
            relays=frontend.relays_waiting,
            connections=len(clients),
            unread_bytes=clients.unread_bytes,
            disk_free_bytes=room.f_bavail * room.f_frsize,
            disk_size_bytes=room.f_blocks * room.f_frsize,
            quota_refused=dict(frontend.refusals.total),
            unauthorized={} if broker is None else dict(broker.denied.total),
            keys_unusable=self.keys_unusable,
        )


def _distribution(histogram: Histogram) -> Distribution:
    total, buckets = 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return Distribution(tuple(buckets), histogram.sum_s)
