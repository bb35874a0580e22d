"""The walk over a store's topics: all are seen, in small steps, and only the worst are kept."""

from __future__ import annotations

from cluster.observe import survey as module
from cluster.observe.survey import STEP, SubscriptionRow, Survey, walk
from cluster.store.topics import Subscription, Topic


class StoreTopics:
    """A store's topics, by name."""

    def __init__(self, *topics: Topic) -> None:
        self.topics = sorted(topics, key=lambda topic: topic.name)

    def topics_page(self, after: str, count_max: int) -> list[Topic]:
        return [topic for topic in self.topics if topic.name > after][:count_max]


def topic(name: str, cursors: list[int], last_id: int = 100) -> Topic:
    made = Topic(1, name, last_id, added_bytes=1000, dropped_bytes=400)
    for number, cursor in enumerate(cursors):
        made.join(f"c{number}", Subscription(number, cursor))
    return made


def test_every_topic_and_subscription_is_seen() -> None:
    found = Survey()
    topics = [topic(f"t{number:04}", [number % 100, 100]) for number in range(500)]

    list(walk(StoreTopics(*topics), found))

    assert [row.name for row in found.topics] == [each.name for each in topics]
    first = found.topics[0]
    assert (first.subscribers, first.backlog_count, first.backlog_bytes) == (2, 100, 600)
    assert (found.subscriptions_count, len(found.subscriptions)) == (1000, 1000)
    assert found.subscriptions[0].lag == 100
    assert found.lag == sum(row.lag for row in found.subscriptions)


def test_groups_are_seen_as_subscriptions_are() -> None:
    found, shared = Survey(), topic("t", [90])
    shared.place_group("workers", 40)

    list(walk(StoreTopics(shared), found))

    [row] = found.topics
    assert (row.subscribers, row.backlog_count) == (2, 60)
    assert found.subscriptions == [
        SubscriptionRow(lag=60, topic="t", client_id="", cursor=40, group="workers"),
        SubscriptionRow(lag=10, topic="t", client_id="c0", cursor=90, group=""),
    ]
    assert (found.subscriptions_count, found.lag) == (2, 70)


def test_a_step_is_short_also_where_one_topic_has_all_the_subscribers() -> None:
    found, many = Survey(), topic("a", [0] * (10 * STEP))
    steps = walk(StoreTopics(many), found)

    next(steps)

    assert found.subscriptions_count <= STEP
    assert sum(1 for _ in steps) >= 9


def test_only_those_furthest_behind_are_kept(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "SUBSCRIPTIONS_KEPT_MAX", 3)
    found = Survey()

    list(walk(StoreTopics(topic("a", [90, 10, 50, 20, 100, 30])), found))

    assert [row.lag for row in found.subscriptions] == [90, 80, 70]
    assert (found.subscriptions_count, found.lag) == (6, 300)


def test_a_subscriber_that_comes_between_two_steps_is_no_error() -> None:
    found, many = Survey(), topic("a", [0] * (2 * STEP))
    steps = walk(StoreTopics(many, topic("b", [1])), found)
    next(steps)

    many.join("late", Subscription(9999, 5))
    list(steps)

    assert found.subscriptions_count == 2 * STEP + 1
