"""What a cluster says of what it keeps, of its nodes, and of acts: rows with named fields.

What lives here: their classes. What must not: how they are asked for (operations.py), or shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final, Self

from flotilla_client.policies import PARTS, Policy


@dataclass(frozen=True, eq=False)
class Info(Mapping[str, Any]):
    """What was said of one thing, in fields; a mapping as well, of all that a node has said.

    A newer node may say more than there are fields; an older one less: then a field is None.
    """

    said: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """Return a row with the fields of an answer."""
        read: dict[str, Any] = {"said": said}
        for each in fields(cls)[1:]:
            value = said.get(each.metadata.get("name", each.name))
            made = each.metadata.get("read")
            read[each.name] = value if made is None or value is None else made(value)
        return cls(**read)

    def __getitem__(self, name: str) -> Any:
        return self.said[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.said)

    def __len__(self) -> int:
        return len(self.said)


@dataclass(frozen=True, eq=False)
class TopicInfo(Info):
    """A topic. Of a subscription of one's own: `cursor` and `backlog` (publications behind it).

    Of every topic: `subscribers` (how many), `backlog_bytes` and `delayed`, how many publications
    wait until they are due; None: an older node does not say.
    """

    topic: str
    last_id: int
    cursor: int | None = None
    backlog: int | None = None
    subscribers: int | None = None
    backlog_bytes: int | None = None
    delayed: int | None = None


@dataclass(frozen=True, eq=False)
class SubscriberInfo(Info):
    """A subscriber of a topic: what it has acknowledged, and how many publications are behind."""

    client_id: str
    cursor: int
    backlog: int


@dataclass(frozen=True, eq=False)
class NodeStatus(Info):
    """A node's own view of itself; indexes None while it has none. The rest: docs/protocol.md."""

    node: str
    role: str
    term: int | None
    leader: str
    level: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None


@dataclass(frozen=True, eq=False)
class LevelRaised(Info):
    """The cluster's feature level now, and before."""

    level: int
    before: int


# --- what an operator asks for (admin.py) ---


def _policy_of(parts: Mapping[str, Any]) -> Policy:
    return Policy(**{name: value for name, value in parts.items() if name in PARTS})


_PATTERNS: Final = {"read": tuple}
_POLICY: Final = {"read": _policy_of}
_TOPICS: Final = {"read": lambda rows: tuple(map(TopicInfo.of, rows))}


@dataclass(frozen=True, eq=False)
class ClientInfo(Info):
    """A client: how many topics it subscribes to, and how many it has published to.

    `principal`: whose it is; None where it is nobody's, and of nodes of before 0.4.
    Asked for by its id it also has `sequence` (its last control request's) and `topics`, with the
    cursor and the backlog of each.
    """

    client_id: str
    epoch: int
    subscriptions: int
    producers: int
    sequence: int | None = None
    topics: tuple[TopicInfo, ...] | None = field(default=None, metadata=_TOPICS)
    principal: str | None = None


@dataclass(frozen=True, eq=False)
class SubscriptionInfo(Info):
    """A client's subscription: up to which id it has acknowledged, and how many are behind that."""

    topic: str
    client_id: str
    cursor: int
    backlog: int


@dataclass(frozen=True, eq=False)
class GroupInfo(Info):
    """A group: everything up to `cursor` is settled, and `backlog` publications are not.

    `leased` are in a client's hands; `waiting` were given back or passed over, and `behind` of
    these wait for another one of the same key. `attempts`: how often the publication behind the
    cursor was given. `max_attempts` 0: any number; `dead_letter` "": no topic.
    """

    topic: str
    group: str
    cursor: int
    backlog: int
    leased: int
    waiting: int
    attempts: int
    lease_ms: int
    max_attempts: int
    dead_letter: str
    ordered_by_key: bool | None = None
    behind: int | None = None


@dataclass(frozen=True, eq=False)
class PatternInfo(Info):
    """A client's subscription to a pattern.

    `topics_max`: to how many topics it may bring its principal, 0 for any number. `missed`: a topic
    for which there was no room, "" for none.
    """

    pattern: str
    client_id: str
    topics_max: int
    missed: str


@dataclass(frozen=True, eq=False)
class UserInfo(Info):
    """What a principal may, by patterns of topics; `*` is everybody who has no row."""

    user: str
    publish: tuple[str, ...] = field(metadata=_PATTERNS)
    subscribe: tuple[str, ...] = field(metadata=_PATTERNS)
    deny_publish: tuple[str, ...] = field(metadata=_PATTERNS)
    deny_subscribe: tuple[str, ...] = field(metadata=_PATTERNS)
    observe: bool
    admin: bool


@dataclass(frozen=True, eq=False)
class TopicDetails(Info):
    """A topic, asked for by its name.

    `first_id`: the first that is kept. `policy`: None if it has none. `held_bytes`: of what it
    keeps. `purged_id`, `dropped_id`: up to where publications were purged, or dropped as it was
    full; 0 for never. `delayed`: how many wait until they are due. `compacted_id`: up to there of
    each key the last is left; None: it is not compacted.
    """

    topic: str
    first_id: int
    last_id: int
    subscribers: int
    policy: Policy | None = field(metadata=_POLICY)
    held_bytes: int
    purged_id: int
    dropped_id: int
    delayed: int | None = None
    compacted_id: int | None = None


@dataclass(frozen=True, eq=False)
class TopicPolicySet(Info):
    """What creating or altering a topic came to: its policy now, and its last id.

    `created`: whether this act has made the topic, or given it its policy.
    """

    policy: Policy = field(metadata=_POLICY)
    created: bool
    last_id: int


@dataclass(frozen=True, eq=False)
class TopicDeleted(Info):
    """What deleting a topic came to: so many publications are gone, and subscriptions ended."""

    last_id: int
    deleted: int
    ended: int


@dataclass(frozen=True, eq=False)
class TopicPurged(Info):
    """What a purge came to: up to which id, and how many publications somebody had not read."""

    last_id: int
    purged: int


@dataclass(frozen=True, eq=False)
class ActDone(Info):
    """An act that the cluster remembers.

    `index`: of its entry. `principal`: None in a cluster without keys, and of what the cluster does
    itself. `about`, `result`: what was asked and what it came to, each act's own fields. `at_ms`:
    the leader's time of day, in ms since 1970. `log_ms`: the log's own time, which counts while a
    leader takes entries.
    """

    number: int
    index: int
    principal: str | None
    act: str
    about: Mapping[str, Any]
    result: Mapping[str, Any]
    at_ms: int
    log_ms: int

    @property
    def at(self) -> datetime:
        """The leader's time of day, in UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


@dataclass(frozen=True, eq=False)
class Checkpointed(Info):
    """How far a node's checkpoint reaches, and whether that is as far as it was asked for.

    Of a node that does not answer: its endpoint as `node`, no index, and the `error`'s code.
    """

    node: str
    checkpointed_index: int | None
    is_done: bool
    error: str | None = None


@dataclass(frozen=True, eq=False)
class SettingInfo(Info):
    """A setting in force on a node; `source`: a file, a variable, or `default` (`from` in JSON)."""

    node: str
    setting: str
    value: Any
    source: str = field(metadata={"name": "from"})
