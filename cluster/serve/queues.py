"""Requests that wait at the leader to be answered, by whose they are.

What lives here: whose request is the next. What must not: how much of a turn somebody has
(shares.py), what an answer is (broker.py).

Some answers are long, and some are made in steps. So principals take turns, and of each principal
those who ask: however many answers one of them waits for, another one's next answer stands behind
one of his. Where nobody has a key all are one, in the order in which they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar


class Owned(Protocol):
    """What has an owner: whose it is, and which of his programs asks, as far as that is known."""

    @property
    def principal(self) -> str | None: ...

    @property
    def asker(self) -> Hashable: ...


Each = TypeVar("Each", bound=Owned)
Skipped = Callable[[str | None], bool]


class QueueByPrincipal(Generic[Each]):
    """What waits to be answered, taken from one principal after another."""

    def __init__(self) -> None:
        # None of these is empty, on either level; whose turn is next is the first.
        self._of: dict[str | None, dict[Hashable, deque[Each]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Each]:
        return (each for own in self._of.values() for queue in own.values() for each in queue)

    def append(self, each: Each) -> None:
        """Add one behind the others of who asks."""
        principal = each.principal
        asker = None if principal is None else each.asker
        self._of.setdefault(principal, {}).setdefault(asker, deque()).append(each)
        self._count += 1

    def extend(self, several: Iterable[Each]) -> None:
        """Add several, in order."""
        for each in several:
            self.append(each)

    def count_of(self, principal: str | None) -> int:
        """Return how many of a principal's wait."""
        return sum(map(len, self._of.get(principal, {}).values()))

    def has_any(self, is_skipped: Skipped) -> bool:
        """Return whether `take` would find one."""
        return not all(map(is_skipped, self._of))

    def take(self, is_skipped: Skipped) -> Each | None:
        """Return the next one whose principal is not skipped; None if there is none."""
        for principal in self._of:
            if not is_skipped(principal):
                return self._take_of(principal)
        return None

    def _take_of(self, principal: str | None) -> Each:
        own = self._of.pop(principal)
        asker = next(iter(own))
        queue = own.pop(asker)
        taken = queue.popleft()
        if queue:
            own[asker] = queue
        if own:
            self._of[principal] = own
        self._count -= 1
        return taken

    def clear(self) -> None:
        """Forget all of them."""
        self._of.clear()
        self._count = 0
