"""What a topic's policy keeps: how large the topic is, and how old, in stretches of publications.

What lives here: the stretches, and what follows from a policy and the log's time. What must not:
cursors and the floor (topics.py), rows (publications.py), clocks.

Where a publication stands in bytes and in time is kept of stretches of them alone: PARTS to what
the policy keeps, or to what the topic may hold, so that they need a kilobyte of memory and disk
however long the topic is. What a policy says of bytes and ages is therefore met to one part in
PARTS: a stretch goes as a whole, when all of it may go. All of this follows from the entries, so it
is the same on every node; what is collected, and when, does not touch it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import orjson

from flotilla_client.policies import BYTES, COUNT, FOREVER, MS, Policy

PARTS: Final = 32  # of what is kept, or may be held: so exact is a bound of bytes or an age
# Of a topic that holds far more than its policy keeps, as it is unread: then the older half is
# joined in pairs, and the newer ones stay as fine as they were.
STRETCHES_MAX: Final = 96


@dataclass(slots=True)
class Stretch:
    """Publications up to `last_id`; `end_bytes` of those ever added are up to there.

    `at_ms`: the log's time when the last of them came.
    """

    last_id: int
    end_bytes: int
    at_ms: int


@dataclass(slots=True, eq=False)
class Retention:
    """A topic's policy, and what it needs to know of the publications above the floor.

    `keep_id`: what is above it stays although everybody has read it. `dropped_id`: what is up to it
    was dropped, read or not. `base_bytes`: of those ever added, how many are in stretches that are
    wholly below the floor.
    """

    policy: Policy
    base_bytes: int
    dropped_id: int = 0
    keep_id: int = 0
    stretches: list[Stretch] = field(default_factory=list)

    @property
    def measures(self) -> bool:
        """Whether the policy asks for bytes or ages at all."""
        return bool(self.policy.max_bytes) or self.policy.keep in (BYTES, MS)

    def begin(self, last_id: int, end_bytes: int, log_ms: int) -> None:
        """Measure from here on: all that is there counts as one stretch, which has come now."""
        self.stretches = (
            [Stretch(last_id, end_bytes, log_ms)] if end_bytes > self.base_bytes else []
        )

    def added(self, last_id: int, end_bytes: int, log_ms: int) -> None:
        """Take note of a batch that ends there."""
        if not self.measures:
            return
        stretches = self.stretches
        if stretches and not self._is_full(log_ms):
            newest = stretches[-1]
            newest.last_id, newest.end_bytes, newest.at_ms = last_id, end_bytes, log_ms
            return
        stretches.append(Stretch(last_id, end_bytes, log_ms))
        if len(stretches) > STRETCHES_MAX:
            half = STRETCHES_MAX // 2
            stretches[:half] = stretches[1:half:2]  # of each pair the ends of the later one

    def _is_full(self, log_ms: int) -> bool:
        """Return whether the newest stretch has come to an end."""
        policy, newest = self.policy, self.stretches[-1]
        if policy.keep == MS:
            part_ms = max(1, policy.amount // PARTS)
            if newest.at_ms // part_ms != log_ms // part_ms:
                return True
        bounds = [policy.max_bytes] if policy.max_bytes else []
        bounds += [policy.amount] if policy.keep == BYTES else []
        before = self.stretches[-2].end_bytes if len(self.stretches) > 1 else self.base_bytes
        return bool(bounds) and newest.end_bytes - before >= max(1, min(bounds) // PARTS)

    def find_kept(self, last_id: int, added_bytes: int, log_ms: int) -> None:
        """Find `keep_id`, of a topic that ends there. It never goes down but with the policy."""
        policy = self.policy
        if policy.keep == FOREVER:
            self.keep_id = 0
        elif policy.keep == COUNT:
            self.keep_id = max(0, last_id - policy.amount)
        elif policy.keep == BYTES:
            self._keep_behind(lambda each: added_bytes - each.end_bytes >= policy.amount)
        elif policy.keep == MS:
            self._keep_behind(lambda each: each.at_ms + policy.amount <= log_ms)
        else:
            self.keep_id = last_id

    def _keep_behind(self, may_go: Callable[[Stretch], bool]) -> None:
        for stretch in self.stretches:
            if not may_go(stretch):
                return
            self.keep_id = max(self.keep_id, stretch.last_id)

    @property
    def due_ms(self) -> int | None:
        """When, by the log's time, the next stretch is too old to be kept; None: none will be."""
        behind = (each for each in self.stretches if each.last_id > self.keep_id)
        oldest = next(behind, None) if self.policy.keep == MS else None
        return None if oldest is None else oldest.at_ms + self.policy.amount

    def floor_moved(self, floor_id: int) -> None:
        """Forget the stretches that are wholly below the floor."""
        gone = 0
        for stretch in self.stretches:
            if stretch.last_id > floor_id:
                break
            self.base_bytes = stretch.end_bytes
            gone += 1
        del self.stretches[:gone]

    def held_bytes(self, added_bytes: int) -> int:
        """Return how much the topic holds, as its policy counts: to one part in PARTS."""
        return added_bytes - self.base_bytes if self.measures else 0

    def make_room(self, added_bytes: int, size_bytes: int) -> None:
        """Drop the oldest stretches until there is room for so many bytes more."""
        left = added_bytes + size_bytes - self.policy.max_bytes
        for stretch in self.stretches:
            if self.base_bytes >= left:
                break
            self.base_bytes, self.dropped_id = stretch.end_bytes, stretch.last_id
        self.stretches = [each for each in self.stretches if each.last_id > self.dropped_id]

    # --- on disk --------------------------------------------------------------------------------

    def text(self) -> str:
        """Return all of it as its row has it: versioned, and the same on every node."""
        rows = [[each.last_id, each.end_bytes, each.at_ms] for each in self.stretches]
        said = [1, self.policy.parts(), self.base_bytes, self.dropped_id, self.keep_id, rows]
        return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode()

    @classmethod
    def of(cls, text: str) -> Retention:
        """Return what `text` has said. Raises ValueError: it is of another version."""
        version, parts, base_bytes, dropped_id, keep_id, rows = orjson.loads(text)
        if version != 1:
            raise ValueError(f"a policy of version {version}; this node reads 1")
        stretches = [Stretch(*row) for row in rows]
        return cls(Policy(**parts), base_bytes, dropped_id, keep_id, stretches)
