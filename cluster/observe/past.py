"""What the HTTP thread remembers of a node: an hour in steps, the last events, counts of both.

What lives here: ring buffers with their limits, and rates. What must not: the loop's state, which
comes in as samples that never change; formats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.observe.observer import Distribution, Happened, Sample
from cluster.observe.survey import Survey

STEP_S: Final = 5.0  # one point; finer is nothing that a person sees in an hour
POINTS_MAX: Final = 720  # an hour of them: 100 KB
EVENTS_MAX: Final = 500  # of the timeline: a cluster that elects every ten seconds for an hour


@dataclass(frozen=True)
class Point:
    """One step of the past. Rates are per second; a latency is None where nothing was measured.

    `put_ms`, `fsync_ms`: median and 99th percentile, as the histogram's buckets allow.
    """

    wall_s: float
    stored_rate: float
    delivered_rate: float
    requests_rate: float
    refused_rate: float
    put_ms: tuple[float | None, float | None]
    fsync_ms: tuple[float | None, float | None]
    backlog_bytes: int
    has_leader: bool
    role: str


@dataclass
class Past:
    """What was seen of the node `node` of a cluster, in order."""

    cluster_id: str
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    events: deque[Happened] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    topic_rates: Mapping[str, float] = field(default_factory=dict)
    elections: int = 0
    leader_changes: int = 0
    closed: int = 0
    _leader: str = ""  # the last one
    _leads: str = ""  # "" while there is none
    _wall_s: float = 0.0
    _without_since: float | None = None
    _without_s: float = 0.0  # until then
    _last: Sample | None = None
    _step_began: Sample | None = None
    _survey: Survey | None = None
    _surveyed_at: float = 0.0

    def take(self, sample: Sample) -> Point | None:
        """Take a sample; return a point once a step is over."""
        last, self._last = self._last, sample
        self._wall_s = sample.wall_s
        if sample.leader != self._leads:
            self._note_leader(sample.leader, sample.wall_s)
        if last is None or sample.at <= last.at:
            self._step_began = self._step_began or sample
            return None
        assert self._step_began is not None
        if sample.at - self._step_began.at < STEP_S:
            return None
        point = between(self._step_began, sample)
        self._step_began = sample
        self.points.append(point)
        return point

    def note(self, happened: Iterable[Happened]) -> None:
        """Take what the log was told."""
        for each in happened:
            self.events.append(each)
            if each.event == "role":
                self._note_role(each.fields)
                self._note_leader(each.fields.get("leader") or "", each.at)
            elif each.event == "peer_disconnected" and each.fields.get("name") == self._leads:
                self._note_leader("", each.at)  # Raft names it until there is another one
            elif each.event == "clients_closed":
                self.closed += sum(each.fields.get("reasons", {}).values())

    @property
    def leaderless_s(self) -> float:
        """How long the node has known no leader that it could reach."""
        since = self._without_since
        return self._without_s + (0.0 if since is None else max(0.0, self._wall_s - since))

    def _note_leader(self, leader: str, wall_s: float) -> None:
        self._leads = leader
        if not leader and self._without_since is None:
            self._without_since = wall_s
        elif leader and self._without_since is not None:
            self._without_s += max(0.0, wall_s - self._without_since)
            self._without_since = None

    def _note_role(self, fields: Mapping[str, Any]) -> None:
        leader = fields.get("leader") or ""
        if fields.get("role") == "leader":
            self.elections += 1
        if leader and leader != self._leader:
            self.leader_changes += self._leader != ""
            self._leader = leader

    def survey(self, survey: Survey, now: float) -> None:
        """Take the newest survey; from two that follow come the topics' rates."""
        before = self._survey
        if survey is before:
            return
        if before is not None and now > self._surveyed_at:
            seconds = now - self._surveyed_at
            ids = {row.name: row.last_id for row in before.topics}
            self.topic_rates = {
                row.name: max(0, row.last_id - ids[row.name]) / seconds
                for row in survey.topics
                if row.name in ids
            }
        self._survey, self._surveyed_at = survey, now


def between(first: Sample, second: Sample) -> Point:
    """Return the point that two samples make."""
    seconds = second.at - first.at
    refused = sum(second.refused.values()) - sum(first.refused.values())
    requests = sum(second.requests.values()) - sum(first.requests.values())
    return Point(
        second.wall_s,
        # Below 0 where a copy of another's store was installed: it counts from 0 again.
        max(0, second.added[0] - first.added[0]) / seconds,
        (second.delivered[0] - first.delivered[0]) / seconds,
        requests / seconds,
        refused / seconds,
        _percentiles(first.put, second.put),
        _percentiles(first.fsync, second.fsync),
        second.status.get("store", {}).get("backlog_bytes", 0),
        bool(second.leader),
        second.status["role"],
    )


def _percentiles(first: Distribution, second: Distribution) -> tuple[float | None, float | None]:
    return quantile_ms(first, second, 0.5), quantile_ms(first, second, 0.99)


def quantile_ms(first: Distribution, second: Distribution, share: float) -> float | None:
    """Return the quantile of what came between, in ms, linear within its bucket."""
    total = second.count - first.count
    if total <= 0:
        return None
    rank, low_s, below = share * total, 0.0, 0
    for (bound_s, before), (_, after) in zip(first.buckets, second.buckets, strict=True):
        count = after - before
        if count >= rank:
            if bound_s == float("inf"):
                return low_s * 1000
            inside = (rank - below) / (count - below)
            return (low_s + (bound_s - low_s) * inside) * 1000
        low_s, below = bound_s, count
    raise AssertionError((first, second))
