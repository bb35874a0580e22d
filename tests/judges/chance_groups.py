"""What chance has the workers of a group say, and has them answered.

What lives here: fields of `group` and `take`, mostly such as a group could have, at times not. What
must not: when they are sent, and who records them (chance.py).
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Final

from tests.judges.history import Row

WRONG_SHARE: Final = 0.12  # of tokens, attempts and settlements
DELAYED_SHARE: Final = 0.15  # of what a worker is given was put with a delay
FATES: Final = ("acks", "acks", "acks", "naks", "extends", "none")
LEFT_MS: Final = (0, 50, 1_000, 1_000)


class RandomGroup:
    """A group: what it has leased, to whom, how often. `base`: its ids are the six above it."""

    def __init__(self, rng: random.Random, topic: str, name: str, base: int) -> None:
        self._rng = rng
        self.topic, self.name = topic, name
        self._base = base
        self._token = 0
        self._attempts: dict[int, int] = defaultdict(int)
        self._held: dict[str, list[tuple[int, int]]] = defaultdict(list)  # client: (token, id)
        self._numbers: dict[str, int] = defaultdict(int)
        self._done: set[int] = set()

    def sets(self) -> Row:
        """Return what a `group` sets."""
        lease_ms, limit = self._rng.choice((None, 3, 50)), self._rng.choice((None, None, 2, 3))
        dead = {} if limit is None else {"max_attempts": limit, "dead_letter": "u"}
        ordered = {"ordered_by_key": True} if self._rng.random() < 0.6 else {}
        return {"group": self.name, "lease_ms": lease_ms, **dead, **ordered}

    def settled(self) -> int:
        """Return up to where all is settled."""
        if self._rng.random() < 0.4:  # two such, and nobody who may have been told it is gone
            return self._base + self._rng.randint(0, 6)
        up_to = self._base
        while up_to + 1 in self._done:
            up_to += 1
        return up_to

    def asks(self, client: str) -> Row:
        """Return what a client's next TAKE says, mostly of what it has."""
        rng = self._rng
        self._numbers[client] += 0 if self._is_wrong() else 1
        said: Row = {"group": self.name, "number": max(1, self._numbers[client])}
        if rng.random() < 0.1:
            del said["number"]
        held = self._held.pop(client, [])
        if self._is_wrong():
            held.append((rng.randint(1, self._token + 1), self._id()))
        for token, id_ in held:
            fate = rng.choice(FATES)
            if fate != "none":
                ms = {"acks": [], "naks": [0], "extends": [rng.choice(LEFT_MS)]}[fate]
                said.setdefault(fate, []).append([token, id_, id_, *ms])
            if fate in ("extends", "none") or self._is_wrong():
                self._held[client].append((token, id_))
            if fate == "acks":
                self._done.add(id_)
        return said | {"max_count": rng.choice((None, 1, 3, 9)), "lease_ms": rng.choice((None, 9))}

    def answers(self, client: str, said: Row, producers: str) -> Row:
        """Return what that TAKE is answered; `producers`: of what is named in `items`."""
        rng = self._rng
        told: Row = {"count": 0, "attempt": rng.choice((1, 1, 1, 1, 2))}
        if rng.random() < 0.2:
            told["lost"] = [[first, last] for _, first, last in said.get("acks", ())]
        ids = sorted({self._id() for _ in range(rng.randint(1, 3))})
        ids = [id_ for id_ in ids if id_ not in self._done or self._is_wrong()]
        if said["max_count"] is None or not ids:
            return told
        self._token += 1
        token = rng.randint(1, self._token) if self._is_wrong() else self._token
        leases = [[id_, id_, self._next_attempt(id_)] for id_ in ids]
        self._held[client] += [(token, id_) for id_ in ids]
        told |= {"count": len(ids), "token": token, "leases": leases}
        told |= {"left_ms": rng.choice(LEFT_MS), "lease_ms": 50}
        keyed = [id_ for id_ in ids if rng.random() < 0.8]
        if keyed:
            keys = [("c" if self._is_wrong() else "cd"[id_ % 2]) * 16 for id_ in keyed]
            told |= {"keyed": keyed, "keys": "".join(keys)}
        if producers:
            named = ids[rng.randint(0, 1) :]  # the others are dead letters
            for id_ in named:
                kind = "delayed" if rng.random() < DELAYED_SHARE else "items"
                told.setdefault(kind, []).append([id_, rng.choice(producers), id_, 1])
            told["letters"] = [self.letter(id_) for id_ in ids[: len(ids) - len(named)]]
        return told

    def letter(self, stands_at: int) -> list[object]:
        """Return a dead letter of this group."""
        return [stands_at, self.topic, self.name, self._id()]

    def _next_attempt(self, id_: int) -> int:
        self._attempts[id_] += self._rng.choice((1, 2)) if self._is_wrong() else 1
        return self._rng.randint(1, 3) if self._is_wrong() else self._attempts[id_]

    def _id(self) -> int:
        return self._base + self._rng.randint(1, 6)

    def _is_wrong(self) -> bool:
        return self._rng.random() < WRONG_SHARE
