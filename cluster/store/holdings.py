"""What each principal has of the replicated state: client ids, subscriptions, unread bytes.

What lives here: the counts. What must not: quotas, and what follows from them (serve/broker.py):
they are settings of a node, and must not decide what an entry does.

Client ids, topics and subscriptions are counted from the state itself, the same on every node.
Whose the unread bytes of a topic are, and who has made a group, stands nowhere in it: each node
keeps that in mind from its start on. What was there before counts for nobody.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from cluster.store.tables import Database

# Of one topic. What several have put there by turns is one span, given back in proportion: a topic
# with a long backlog must not hold an entry for each batch.
SPANS_MAX: Final = 16
SPAN_BYTES_MIN: Final = 1024 * 1024


class Holdings:
    """Counts by principal. A topic is held by each whose clients subscribe to it."""

    def __init__(self, database: Database) -> None:
        self.clients: Counter[str] = Counter()
        self.unread_bytes: Counter[str] = Counter()
        self.subscriptions: Counter[str] = Counter()
        self.groups: Counter[str] = Counter()
        self._makers: dict[tuple[str, str], str] = {}  # by topic and group
        self._topics: dict[str, Counter[str]] = {}
        self._spans: dict[str, deque[Counter[str]]] = {}  # by topic; the oldest first
        for owner, count in database.query(_CLIENTS):
            self.clients[owner] = count
        for owner, topic, count in database.query(_TOPICS):
            self._topics.setdefault(owner, Counter())[topic] = count
            self.subscriptions[owner] += count

    def topics(self, principal: str) -> int:
        """Return how many topics a principal holds."""
        return len(self._topics.get(principal, ()))

    def holds(self, principal: str, topic: str) -> bool:
        """Return whether a client of the principal subscribes to the topic."""
        return topic in self._topics.get(principal, ())

    def joined(self, owner: str | None, topic: str) -> None:
        """Count a subscription."""
        if owner is not None:
            self._topics.setdefault(owner, Counter())[topic] += 1
            self.subscriptions[owner] += 1

    def left(self, owner: str | None, topic: str) -> None:
        """Count one that has ended."""
        if owner is None:
            return
        self.subscriptions[owner] -= 1
        topics = self._topics[owner]
        topics[topic] -= 1
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._topics[owner]

    def made(self, principal: str | None, topic: str, group: str) -> None:
        """Count a group for who has made it."""
        if principal is not None:
            self._makers[topic, group] = principal
            self.groups[principal] += 1

    def maker(self, topic: str, group: str) -> str | None:
        """Return who has made a group, None if that is not known."""
        return self._makers.get((topic, group))

    def ended(self, topic: str, group: str) -> None:
        """Count a group that has ended, whoever ended it."""
        maker = self._makers.pop((topic, group), None)
        if maker is not None:
            self.groups[maker] -= 1

    def put(self, principal: str | None, topic: str, size_bytes: int) -> None:
        """Count what was stored in a topic."""
        if principal is None and topic not in self._spans:
            return  # nobody's bytes, with nobody's before them
        spans = self._spans.setdefault(topic, deque())
        if not spans or spans[-1].total() >= SPAN_BYTES_MIN:
            spans.append(Counter())
        owner = principal or ""
        spans[-1][owner] += size_bytes
        if owner:
            self.unread_bytes[owner] += size_bytes
        if len(spans) > SPANS_MAX:
            oldest = spans.popleft()
            spans[0].update(oldest)

    def before(self, topic: str, size_bytes: int) -> None:
        """Note that so much is unread in a topic of which nobody's share is known."""
        if size_bytes and topic not in self._spans:
            self._spans[topic] = deque([Counter({"": size_bytes})])

    def dropped(self, topic: str, size_bytes: int) -> None:
        """Count what was collected of a topic, the oldest first."""
        spans = self._spans.get(topic)
        while spans and size_bytes > 0:
            oldest = spans[0]
            total = oldest.total()
            gone = oldest if total <= size_bytes else _share(oldest, total, size_bytes)
            size_bytes -= total
            self.unread_bytes.subtract(gone)
            if gone is oldest:
                spans.popleft()
            else:
                oldest.subtract(gone)
        if not spans:
            self._spans.pop(topic, None)
        self.unread_bytes = +self.unread_bytes  # without those who have nothing, and nobody


def _share(span: Counter[str], total: int, size_bytes: int) -> Counter[str]:
    """Return whose so many bytes of a span are: of each in proportion."""
    gone = Counter({owner: count * size_bytes // total for owner, count in span.items()})
    largest = max(span, key=lambda owner: span[owner])
    gone[largest] += size_bytes - gone.total()
    return gone


_CLIENTS: Final = (
    "SELECT owner, count(*) FROM owners JOIN clients ON clients.number = owners.client"
    " GROUP BY owner"
)
_TOPICS: Final = (
    "SELECT owner, topics.name, count(*) FROM subscriptions"
    " JOIN owners ON owners.client = subscriptions.client"
    " JOIN topics ON topics.number = subscriptions.topic GROUP BY owner, topics.name"
)
