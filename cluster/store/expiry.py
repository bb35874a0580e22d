"""What of a topic has expired: its oldest publications, in stretches, by the log's time.

What lives here: up to where all has expired, and when what follows will have. What must not: single
publications (publications.py), cursors and the floor (topics.py), clocks: time is the log's
(idle.py).

Of each publication its row says when it expires, so who reads is given exactly what has not. What
lets the floor go on is kept of stretches of batches, STRETCHES_MAX of them at most: a stretch has
expired when the last of it has, and never if one of it never does. All of this follows from the
entries, so it is the same on every node. Decision: docs/decisions/0027-expiry.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from flotilla_client.protocol import INTEGER_MAX

NEVER: Final = INTEGER_MAX
STRETCHES_MAX: Final = 64  # of a topic: then the older half is joined in pairs


@dataclass(slots=True, eq=False)
class Expiry:
    """Up to which id all has expired, and `stretches` [last id, when] of what is behind."""

    expired_id: int = 0
    stretches: list[list[int]] = field(default_factory=list)

    def added(self, last_id: int, at_ms: int) -> None:
        """Take note of a batch that ends there, and has expired then."""
        stretches = self.stretches
        if stretches and stretches[-1][1] == at_ms:
            stretches[-1][0] = last_id
            return
        stretches.append([last_id, at_ms])
        if len(stretches) > STRETCHES_MAX:
            half = STRETCHES_MAX // 2
            pairs = zip(stretches[:half:2], stretches[1:half:2], strict=True)
            stretches[:half] = [[later[0], max(one[1], later[1])] for one, later in pairs]

    def pass_to(self, log_ms: int) -> bool:
        """Let the log's time pass; return whether more has expired."""
        before_id = self.expired_id
        while self.stretches and self.stretches[0][1] <= log_ms:
            self.expired_id = self.stretches.pop(0)[0]
        return self.expired_id > before_id

    def floor_moved(self, floor_id: int) -> None:
        """Forget the stretches that are wholly below the floor."""
        while self.stretches and self.stretches[0][0] <= floor_id:
            self.stretches.pop(0)

    @property
    def due_ms(self) -> int | None:
        """When the oldest stretch will have expired; None: never, or there is none."""
        at_ms = self.stretches[0][1] if self.stretches else NEVER
        return None if at_ms >= NEVER else at_ms

    # --- on disk --------------------------------------------------------------------------------

    def text(self) -> str:
        """Return all of it as its row has it: versioned, and the same on every node."""
        return orjson.dumps([1, self.expired_id, self.stretches]).decode()

    @classmethod
    def of(cls, text: str) -> Expiry:
        """Return what `text` has said. Raises ValueError: it is of another version."""
        version, expired_id, stretches = orjson.loads(text)
        if version != 1:
            raise ValueError(f"an expiry of version {version}; this node reads 1")
        return cls(expired_id, stretches)


def over_ms(log_ms: int, expiries: Sequence[int]) -> int:
    """Return when a batch that comes now has expired as a whole; `expiries`: in ms, 0 for never."""
    return log_ms + max(expiries) if expiries and all(expiries) else NEVER
