"""What a cluster says of its topics, subscribers and nodes: rows with named fields.

What lives here: their classes. What must not: how they are asked for (operations.py), or shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self


@dataclass(frozen=True, eq=False)
class Info(Mapping[str, Any]):
    """What was said of one thing, in fields; a mapping as well, of all that a node has said.

    A newer node may say more than there are fields; an older one less: then a field is None.
    """

    said: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """Return a row with the fields of an answer."""
        names = [each.name for each in fields(cls) if each.name != "said"]
        return cls(said, **{name: said.get(name) for name in names})

    def __getitem__(self, name: str) -> Any:
        return self.said[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.said)

    def __len__(self) -> int:
        return len(self.said)


@dataclass(frozen=True, eq=False)
class TopicInfo(Info):
    """A topic. Of a subscription of one's own: `cursor` and `backlog` (publications behind it).

    Of every topic: `subscribers` (how many) and `backlog_bytes`.
    """

    topic: str
    last_id: int
    cursor: int | None = None
    backlog: int | None = None
    subscribers: int | None = None
    backlog_bytes: int | None = None


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
