"""A node's metrics: their names, units and labels, and how they are written for Prometheus.

What lives here: the one table of metrics, which the documentation is made from, and what each is
in a sample. What must not: sockets, the loop. Only the HTTP thread imports this: the library takes
50 ms to import.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cluster.observe.observer import Distribution, Sample
from cluster.observe.past import Past
from cluster.observe.survey import Survey, TopicRow

# A series costs a Prometheus some KiB; a cluster may have 10,000 topics and 100,000 subscriptions.
TOPICS_SHOWN_MAX: Final = 100  # half of them with most backlog, half with most publications of late
SUBSCRIPTIONS_SHOWN_MAX: Final = 100  # those furthest behind
ROLES: Final = ("joining", "follower", "candidate", "leader")

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


@dataclass(frozen=True)
class MetricRow:
    """One metric. The name of a counter is without the `_total` that it is shown with."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        """The name as queries have it."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


@dataclass(frozen=True)
class View:
    """What the metrics are made of: the newest sample, survey and what was seen before."""

    sample: Sample
    survey: Survey
    past: Past


Value = float | Distribution
Series = Iterable[tuple[tuple[str, ...], Value]]
_TABLE: dict[str, tuple[MetricRow, Callable[[View], Series]]] = {}


def _metric(
    name: str, kind: str, help_: str, *labels: str
) -> Callable[[Callable[[View], Series]], Callable[[View], Series]]:
    def add(values: Callable[[View], Series]) -> Callable[[View], Series]:
        _TABLE[name] = MetricRow(f"flotilla_{name}", kind, help_, labels), values
        return values

    return add


def _plain(name: str, kind: str, help_: str, value: Callable[[View], Value | None]) -> None:
    """Add a metric without labels; None: it has no value now."""

    def values(view: View) -> Series:
        found = value(view)
        return [] if found is None else [((), found)]

    _TABLE[name] = MetricRow(f"flotilla_{name}", kind, help_), values


def _status(key: str) -> Callable[[View], float | None]:
    return lambda view: view.sample.status.get(key)


def _store(key: str) -> Callable[[View], float | None]:
    return lambda view: view.sample.status.get("store", {}).get(key)


# --- the node -----------------------------------------------------------------------------------


@_metric("build_info", GAUGE, "1; the program that runs.", "version", "protocol", "levels")
def _build(view: View) -> Series:
    versions = view.sample.status["versions"]
    levels = "-".join(map(str, versions["levels"]))
    return [((versions["flotilla"], str(versions["protocol"]), levels), 1)]


@_metric("node_info", GAUGE, "1; which node of which cluster this is.", "cluster", "node")
def _node(view: View) -> Series:
    return [((view.past.cluster_id, view.sample.status["node"]), 1)]


_plain(
    "turn_seconds",
    HISTOGRAM,
    "Turns of the node's loop, from the first look at what came in to the end of its chores.",
    lambda view: view.sample.turn,
)
_plain(
    "journal_fsync_seconds",
    HISTOGRAM,
    "Calls of fdatasync for the Raft log; each turn that appends to it waits for one.",
    lambda view: view.sample.fsync,
)
_plain(
    "put_seconds",
    HISTOGRAM,
    "Acknowledged PUTs at the node that led, from the turn that took the request to the moment "
    "its reply had left.",
    lambda view: view.sample.put,
)
_plain("disk_free_bytes", GAUGE, "Free space on the data directory's file system.",
       lambda view: view.sample.disk_free_bytes)  # fmt: skip
_plain("disk_size_bytes", GAUGE, "Size of the data directory's file system.",
       lambda view: view.sample.disk_size_bytes)  # fmt: skip
_plain("disk_low", GAUGE, "1 while PUT is refused because this node or a majority lacks space.",
       lambda view: view.sample.status.get("disk_low"))  # fmt: skip
_plain("journal_bytes", GAUGE, "Size of the Raft log on disk.", _status("journal_bytes"))


def _scrub(key: str) -> Callable[[View], float | None]:
    return lambda view: view.sample.status.get("scrub", {}).get(key)


_plain("damage_found", GAUGE, "Places on this node's disk that were found damaged.",
       _scrub("damaged"))  # fmt: skip
_plain("scrub_passes", COUNTER, "Passes over all that is on the disk, since the start.",
       _scrub("passes"))  # fmt: skip
_plain("scrub_bytes", COUNTER, "Bytes that were read back from the disk, since the start.",
       _scrub("bytes"))  # fmt: skip
_plain("scrub_last_pass_timestamp_seconds", GAUGE, "When the last pass ended; 0: none did yet.",
       lambda view: (_scrub("last_pass_ended_ms")(view) or 0) / 1000)  # fmt: skip

_plain("keys_unusable", GAUGE,
       "1 while the files of `keys_dir` can't be used, so that older keys count.",
       lambda view: view.sample.keys_unusable)  # fmt: skip

# --- Raft ---------------------------------------------------------------------------------------


@_metric("raft_role", GAUGE, "1 for what the node is now, 0 for the others.", "role")
def _role(view: View) -> Series:
    return [((role,), int(view.sample.status["role"] == role)) for role in ROLES]


_plain("raft_term", GAUGE, "The current term.", _status("term"))
_plain("raft_has_leader", GAUGE, "1 while the node knows a leader that it can reach.",
       lambda view: int(bool(view.sample.leader)))  # fmt: skip
_plain("raft_serving", GAUGE, "1 on a leader that has applied its term's first entry.",
       lambda view: int(bool(view.sample.status.get("serving"))))  # fmt: skip
_plain("raft_commit_index", GAUGE, "The highest index known to be committed.",
       _status("commit_index"))  # fmt: skip
_plain("raft_applied_index", GAUGE, "The highest index that was applied.",
       _status("applied_index"))  # fmt: skip
_plain("raft_last_index", GAUGE, "The highest index in the log.", _status("last_index"))
_plain("raft_first_index", GAUGE, "The lowest index that is still in the log.",
       _status("first_index"))  # fmt: skip
_plain("raft_feature_level", GAUGE, "The cluster's feature level.", _status("level"))
_plain("raft_elections", COUNTER, "How often the node has begun to lead.",
       lambda view: view.past.elections)  # fmt: skip
_plain("raft_leader_changes", COUNTER, "How often the node has seen another leader than before.",
       lambda view: view.past.leader_changes)  # fmt: skip
_plain("raft_leaderless_seconds", COUNTER, "How long the node has had no leader that it reaches.",
       lambda view: view.past.leaderless_s)  # fmt: skip


def _members(view: View, value: Callable[[Mapping[str, Any]], float | None]) -> Series:
    for name, member in view.sample.status.get("members", {}).items():
        found = value(member)
        if found is not None:
            yield (name,), found


@_metric("peer_connected", GAUGE, "1 while the other member is connected and takes part.", "peer")
def _peer_connected(view: View) -> Series:
    return _members(view, lambda member: int(member["connected"]))


@_metric("peer_silent_seconds", GAUGE, "How long the other member was not connected.", "peer")
def _peer_silent(view: View) -> Series:
    return _members(view, lambda member: member["silent_ms"] / 1000)


@_metric("peer_lag_entries", GAUGE, "On a leader: entries that the other has not on disk.", "peer")
def _peer_lag(view: View) -> Series:
    return _members(view, lambda member: member.get("lag"))


# --- clients ------------------------------------------------------------------------------------


@_metric("requests", COUNTER, "Requests of clients that came in, relayed ones included.", "type")
def _requests(view: View) -> Series:
    return [((kind,), count) for kind, count in view.sample.requests.items()]


@_metric("refused", COUNTER, "Requests that this node has refused (NAK), by error code.", "code")
def _refused(view: View) -> Series:
    return [((code,), count) for code, count in view.sample.refused.items()]


@_metric(
    "quota_refused",
    COUNTER,
    "Requests that this node has refused because a quota was used up.",
    "principal",
    "quota",
)
def _quota_refused(view: View) -> Series:
    return list(view.sample.quota_refused.items())


@_metric(
    "unauthorized",
    COUNTER,
    "Requests that this node has refused because the principal may not do that.",
    "principal",
    "needs",
)
def _unauthorized(view: View) -> Series:
    return list(view.sample.unauthorized.items())


@_metric("requests_waiting", GAUGE, "Requests that wait here, by what for.", "for")
def _waiting(view: View) -> Series:
    rows = [*view.sample.waiting.items(), ("leader", view.sample.relays)]
    return [((what,), count) for what, count in rows]


_plain("client_connections", GAUGE, "Connections of clients.",
       lambda view: view.sample.connections)  # fmt: skip
_plain("client_connections_closed", COUNTER, "Connections of clients that the node has closed.",
       lambda view: view.past.closed)  # fmt: skip
_plain("client_unread_bytes", GAUGE, "Replies that clients have not taken yet.",
       lambda view: view.sample.unread_bytes)  # fmt: skip
_plain("clients", GAUGE, "Clients that the cluster knows.", _store("clients"))
_plain("clients_silent", GAUGE, "Clients that are forgotten soon; on the leader.",
       _status("clients_silent"))  # fmt: skip
_plain("clients_forgotten", COUNTER, "Clients that were forgotten because they were silent.",
       _store("clients_forgotten"))  # fmt: skip
_plain("producers", GAUGE, "Pairs of a client and a topic that it has put to.",
       _store("producers"))  # fmt: skip

# --- topics -------------------------------------------------------------------------------------

_plain("publications_stored", COUNTER, "Publications that this node has stored, as any member.",
       lambda view: view.sample.added[0])  # fmt: skip
_plain("publications_stored_bytes", COUNTER, "Their bytes.",
       lambda view: view.sample.added[1])  # fmt: skip
_plain("publications_delivered", COUNTER, "Publications that this node has read for a client.",
       lambda view: view.sample.delivered[0])  # fmt: skip
_plain("publications_delivered_bytes", COUNTER, "Their bytes.",
       lambda view: view.sample.delivered[1])  # fmt: skip
_plain("topics", GAUGE, "Topics that have a subscriber or a policy.", _store("topics"))
_plain("topics_ever", GAUGE, "Names of topics ever used, of 8,388,607 that there may be.",
       _store("topic_names"))  # fmt: skip
_plain("topics_full", GAUGE, "Topics to which PUTs were refused in the last 10 s (backlog_full).",
       _status("full_topics"))  # fmt: skip
_plain("subscriptions", GAUGE, "Clients' own subscriptions.", _store("subscriptions"))
_plain("groups", GAUGE, "Groups, each a subscription that its workers share.", _store("groups"))
_plain("backlog_bytes", GAUGE, "Publications of all topics on this node's disk.",
       _store("backlog_bytes"))  # fmt: skip
_plain("delayed_publications", GAUGE, "Publications that wait until they are due.",
       _store("delayed"))  # fmt: skip
_plain("compacted_bytes", GAUGE, "What stays of the topics that are compacted, if anything.",
       _store("compacted_bytes"))  # fmt: skip


def shown_topics(view: View) -> list[TopicRow]:
    """Return the topics that have series of their own, on the leader alone.

    Each node knows all topics; if all showed them, a sum would count each three times.
    """
    if view.sample.status["role"] != "leader":
        return []
    half, rates = TOPICS_SHOWN_MAX // 2, view.past.topic_rates
    topics = view.survey.topics
    largest = heapq.nlargest(half, topics, key=lambda row: (row.backlog_bytes, row.name))
    busiest = heapq.nlargest(half, topics, key=lambda row: (rates.get(row.name, 0.0), row.name))
    return sorted({row.name: row for row in (*largest, *busiest)}.values())


def _topics(view: View, value: Callable[[TopicRow], float]) -> Series:
    return [((row.name,), value(row)) for row in shown_topics(view)]


@_metric("topic_backlog_bytes", GAUGE, "Bytes of the topic's publications on disk.", "topic")
def _topic_bytes(view: View) -> Series:
    return _topics(view, lambda row: row.backlog_bytes)


@_metric(
    "topic_backlog_publications",
    GAUGE,
    "Publications of the topic that its slowest subscriber has not acknowledged.",
    "topic",
)
def _topic_backlog(view: View) -> Series:
    return _topics(view, lambda row: row.backlog_count)


@_metric("topic_publications", COUNTER, "Publications of the topic, ever.", "topic")
def _topic_last_id(view: View) -> Series:
    return _topics(view, lambda row: row.last_id)


@_metric("topic_subscribers", GAUGE, "Clients and groups that subscribe to the topic.", "topic")
def _topic_subscribers(view: View) -> Series:
    return _topics(view, lambda row: row.subscribers)


def _other_topics(view: View, value: Callable[[TopicRow], float]) -> float | None:
    if view.sample.status["role"] != "leader":
        return None
    all_of_them = sum(value(row) for row in view.survey.topics)
    return max(0.0, all_of_them - sum(value(row) for row in shown_topics(view)))


_plain("other_topics", GAUGE, "Topics that have no series of their own.",
       lambda view: _other_topics(view, lambda _: 1))  # fmt: skip
_plain("other_topics_backlog_bytes", GAUGE, "Bytes of their publications on disk.",
       lambda view: _other_topics(view, lambda row: row.backlog_bytes))  # fmt: skip
_plain(
    "other_topics_publications_per_second",
    GAUGE,
    "What is published to them. Not a counter: which topics these are changes.",
    lambda view: _other_topics(view, lambda row: view.past.topic_rates.get(row.name, 0.0)),
)


def _subscriptions(view: View, value: Callable[[Any], float]) -> Series:
    if view.sample.status["role"] != "leader":
        return []
    shown = view.survey.subscriptions[:SUBSCRIPTIONS_SHOWN_MAX]
    return [((row.topic, row.client_id, row.group), value(row)) for row in shown]


@_metric(
    "subscription_lag_publications",
    GAUGE,
    "Publications of the topic behind the cursor of the client's subscription, or of the group.",
    "topic",
    "client",
    "group",
)
def _subscription_lag(view: View) -> Series:
    return _subscriptions(view, lambda row: row.lag)


@_metric(
    "subscription_cursor",
    GAUGE,
    "The last id that the client has, or that the group has settled with all before it.",
    "topic",
    "client",
    "group",
)
def _subscription_cursor(view: View) -> Series:
    return _subscriptions(view, lambda row: row.cursor)


def _other_lag(view: View) -> float | None:
    if view.sample.status["role"] != "leader":
        return None
    shown = view.survey.subscriptions[:SUBSCRIPTIONS_SHOWN_MAX]
    return max(0, view.survey.lag - sum(row.lag for row in shown))


_plain("other_subscriptions_lag_publications", GAUGE,
       "The sum of that over the subscriptions without series of their own.",
       _other_lag)  # fmt: skip

METRICS: Final[tuple[MetricRow, ...]] = tuple(row for row, _ in _TABLE.values())


# --- writing ------------------------------------------------------------------------------------


class NodeCollector(Collector):
    """All metrics of the table, as `look` sees them now."""

    def __init__(self, look: Callable[[], View]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Yield each metric of the table that has a value."""
        view = self._look()
        for row, values in _TABLE.values():
            yield _family(row, values(view))

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry need not collect in order to know the names."""
        return []


def _family(row: MetricRow, series: Series) -> Metric:
    if row.kind == HISTOGRAM:
        histogram = HistogramMetricFamily(row.name, row.help, labels=row.labels)
        for labels, value in series:
            assert isinstance(value, Distribution), row
            buckets = [(_bound(bound), count) for bound, count in value.buckets]
            histogram.add_metric(labels, buckets, value.sum_s)
        return histogram
    family_type = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
    family = family_type(row.name, row.help, labels=row.labels)
    for labels, value in series:
        assert not isinstance(value, Distribution), row
        family.add_metric(labels, value)
    return family


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


def registry(look: Callable[[], View]) -> CollectorRegistry:
    """Return a registry of a node's metrics and its process's (memory, descriptors, start)."""
    made = CollectorRegistry(auto_describe=False)
    made.register(NodeCollector(look))
    ProcessCollector(registry=made)
    return made


def exposition(made: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """Return (content type, text) of a registry's metrics, in the form that a reader accepts.

    The plain one if that names a version that is none, of which the library makes an error.
    """
    try:
        encode, content_type = choose_encoder(accept)
        content_type.encode("ascii")  # it has the version in it
    except (TypeError, ValueError):
        encode, content_type = choose_encoder("")
    return content_type, encode(made)


def metrics_table() -> str:
    """Return the metrics as a Markdown table."""
    lines = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    for row in METRICS:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(f"| `{row.shown_name}` | {row.kind} | {labels} | {row.help} |")
    return "\n".join(lines) + "\n"
