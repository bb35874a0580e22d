"""Which of a group's open publications wait behind others of their key.

What lives here: the open ones with a key, by key, in the order of their ids. What must not: leases,
and who is given what (groups.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _KeyQueue:
    key: bytes
    ids: deque[int] = field(default_factory=deque)


class KeyOrder:
    """The open publications that have a key: the first of each may be given, the others are behind.

    A key is as `properties.key_field` has it. Follows from what is open, so it is kept nowhere.
    """

    def __init__(self) -> None:
        self._queues: dict[bytes, _KeyQueue] = {}
        self._queue_of: dict[int, _KeyQueue] = {}

    @property
    def behind_count(self) -> int:
        """How many wait behind others."""
        return len(self._queue_of) - len(self._queues)

    def is_taken(self, key: bytes | None) -> bool:
        """Return whether a publication of the key is open, so that a later one has to wait."""
        return key in self._queues

    def is_behind(self, id_: int) -> bool:
        """Return whether an open one waits behind another."""
        queue = self._queue_of.get(id_)
        return queue is not None and queue.ids[0] != id_

    def add(self, id_: int, key: bytes | None) -> None:
        """Note one that is open now, above all that were noted."""
        if key is None:
            return
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _KeyQueue(key)
        assert not queue.ids or queue.ids[-1] < id_, (queue.ids[-1], id_)
        queue.ids.append(id_)
        self._queue_of[id_] = queue

    def settle(self, id_: int) -> int | None:
        """Let go one that is not open any more; return which one of its key is the first now."""
        queue = self._queue_of.pop(id_, None)
        if queue is None:
            return None
        assert queue.ids[0] == id_, f"{id_} is settled before {queue.ids[0]} of its key"
        queue.ids.popleft()
        if queue.ids:
            return queue.ids[0]
        del self._queues[queue.key]
        return None
