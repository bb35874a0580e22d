"""Which of a client's topics have something for it, in the order in which it is given them.

What lives here: of one client, the topics of which it has not read all, those of which something is
gone, and those that it may not read. What must not: what is delivered (store.py), cursors and
floors (topics.py).

Who asks for any topic would else have all of its topics looked at, a thousand perhaps, and most of
them idle. So a name is looked at when something has happened to it: it is *stirred*. An idle topic
keeps whom it has to stir with its next publication (`Topic.watchers`), once; so a topic that nobody
puts to costs nothing, and one that is put to no more than it is read. None of this is state: it
follows from the topics, and is made when the client asks first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cluster.store.topics import Subscription, Topic

    Place = tuple[Topic, Subscription, int]  # the last: behind which id

# Of fewer topics it is made anew each time, so that a hundred thousand clients of one topic each
# need no memory for it.
KEPT_MIN: Final = 16
STALE_MIN: Final = 16  # places in the queue that are given up: fewer are not worth sweeping

_Key = tuple[int, int, str]  # served, age, name


class Unread:
    """One client's; `own`: its topics. Call `look` before the rest.

    `is_kept`: it is asked again, and its `stirred` is told what happens meanwhile.

    Of a topic with something unread `_queued` has its place in the order. `_queue` has all of these
    and perhaps some that were given up.
    """

    def __init__(self, client_id: str, own: Mapping[str, Topic], is_kept: bool) -> None:
        self._client_id, self._own, self._is_kept = client_id, own, is_kept
        self._who: object = ...  # nobody yet
        self._queued: dict[str, _Key] = {}
        self._queue: list[_Key] = []
        self._gone: dict[str, None] = {}
        self.stirred: dict[str, None] = {}
        self.hidden: dict[str, None] = {}
        self.losses = 0  # up to which one of `Topics.lost_since` it has looked

    def look(
        self,
        who: object,
        is_hidden: Callable[[str], bool],
        age: Callable[[Place], tuple[int, str]],
        lost: Iterable[str],
    ) -> None:
        """Look at the topics to which something has happened.

        `who`: for whom that is, by what rights: while it is the same, so is `is_hidden` of each.
        `age`: see `Store._age`. `lost`: topics of which something is gone since the last call.
        """
        if who != self._who:
            self._who = who
            self._queued, self._queue, self._gone, self.hidden = {}, [], {}, {}
            self.stirred.update(dict.fromkeys(self._own))
        else:
            self.stirred.update((name, None) for name in lost if name in self._own)
        for name in self.stirred:
            self._look_at(name, is_hidden, age)
        self.stirred.clear()
        if len(self._queue) > 2 * len(self._queued) + STALE_MIN:
            self._queue = sorted(self._queued.values())

    def _look_at(
        self, name: str, is_hidden: Callable[[str], bool], age: Callable[[Place], tuple[int, str]]
    ) -> None:
        topic = self._own[name]
        before = self._queued.pop(name, None)
        self._gone.pop(name, None)
        self.hidden.pop(name, None)
        if is_hidden(name):
            self.hidden[name] = None
            return
        subscription = topic.subscribers[self._client_id]
        if subscription.cursor < topic.floor_id:
            self._gone[name] = None
        elif subscription.cursor < topic.last_id:
            # Of two that were served at different times their ages don't matter: they are queries.
            place = topic, subscription, subscription.cursor
            key = (subscription.served, *((0, name) if subscription.served else age(place)))
            self._queued[name] = key
            if key != before:
                heapq.heappush(self._queue, key)
        elif self._is_kept:
            topic.watchers[self._client_id] = self.stirred

    def leave(self, name: str) -> None:
        """Forget a topic that the client has left: it may never ask for any topic again."""
        for kept in (self.stirred, self._queued, self._gone, self.hidden):
            kept.pop(name, None)

    def gone(self, apart_from: Container[str]) -> list[Place]:
        """Return the client's topics of which it has not read what is gone, in their order."""
        if not self._gone:
            return []
        names = (name for name in self._own if name in self._gone and name not in apart_from)
        places = ((self._own[name], self._own[name].subscribers[self._client_id]) for name in names)
        return [(topic, subscription, subscription.cursor) for topic, subscription in places]

    def first(self, apart_from: Container[str]) -> Place | None:
        """Return whose turn it is of the topics that have something unread."""
        queue, passed = self._queue, []
        found: Place | None = None
        while queue and found is None:
            key = queue[0]
            name = key[-1]
            if self._queued.get(name) != key:
                heapq.heappop(queue)
            elif name in apart_from:
                passed.append(heapq.heappop(queue))
            else:
                topic = self._own[name]
                subscription = topic.subscribers[self._client_id]
                found = topic, subscription, subscription.cursor
        for key in passed:
            heapq.heappush(queue, key)
        return found
