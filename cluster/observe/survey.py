"""A walk over a store's topics and subscriptions, a few at a time, so that no turn waits for it.

What lives here: the walk, and the rows that it leaves. What must not: the rows' formats, clocks.

A row shows its topic as it was when the walk came by; two rows may be of different turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from cluster.store.topics import Topic

STEP: Final = 128  # topics and subscriptions: 0.1 ms of a turn
PAGE: Final = 64  # topics that are looked up at once
# Of the subscriptions those that are furthest behind: 100,000 there may be are 20 MB of rows.
SUBSCRIPTIONS_KEPT_MAX: Final = 10_000


class TopicRow(NamedTuple):
    """A topic. `backlog_count`: publications that its slowest subscriber has not acknowledged.

    `subscribers`: clients and groups.
    """

    name: str
    last_id: int
    added_bytes: int
    subscribers: int
    backlog_count: int
    backlog_bytes: int


class SubscriptionRow(NamedTuple):
    """A subscription; `lag` publications behind the end of its topic.

    `group`: who shares it, "" where it is a client's own; then `client_id` is "".
    """

    lag: int
    topic: str
    client_id: str
    cursor: int
    group: str = ""


@dataclass
class Survey:
    """What a walk has found: never changed once it is whole.

    `subscriptions`: those furthest behind, of `subscriptions_count`; `lag`: of all of them.
    """

    topics: list[TopicRow] = field(default_factory=list)
    subscriptions: list[SubscriptionRow] = field(default_factory=list)
    subscriptions_count: int = 0
    lag: int = 0


class Walkable(Protocol):
    """What the walk needs of a store."""

    def topics_page(self, after: str, count_max: int) -> list[Topic]:
        """Return topics by name, those behind `after`."""


def walk(store: Walkable, survey: Survey) -> Iterator[None]:
    """Fill `survey`, STEP rows from one `next` to the other."""
    after, done = "", 0
    worst = survey.subscriptions
    while page := store.topics_page(after, PAGE):
        for topic in page:
            survey.topics.append(
                TopicRow(
                    topic.name,
                    topic.last_id,
                    topic.added_bytes,
                    len(topic.subscribers) + len(topic.groups),
                    topic.last_id - topic.floor_id,
                    topic.added_bytes - topic.dropped_bytes,
                )
            )
            done += 1
            for row in _rows(topic):
                if len(worst) < SUBSCRIPTIONS_KEPT_MAX:
                    heapq.heappush(worst, row)
                elif row > worst[0]:
                    heapq.heapreplace(worst, row)
                survey.subscriptions_count += 1
                survey.lag += row.lag
                done += 1
                if done >= STEP:
                    done = 0
                    yield
        after = page[-1].name
        if done >= STEP:
            done = 0
            yield
    survey.subscriptions.sort(reverse=True)


def _rows(topic: Topic) -> Iterator[SubscriptionRow]:
    # Copies, as somebody may come or go before the next step.
    clients, groups = list(topic.subscribers.items()), list(topic.groups.items())
    for client_id, subscription in clients:
        cursor = subscription.cursor
        yield SubscriptionRow(topic.lag(cursor), topic.name, client_id, cursor)
    for group, cursor in groups:
        yield SubscriptionRow(topic.lag(cursor), topic.name, "", cursor, group)
