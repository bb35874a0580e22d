"""A client by hand that publishes with keys to a topic that is compacted, and reads it anywhere.

What lives here: what it publishes, and what it does in a group. What must not: what the answers
come to (checks/replies.py), how it reads by itself (replayer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

import orjson

from chaos.simulation.clients.replayer import Replayer
from flotilla_client.batches import as_bytes
from flotilla_client.properties import Properties
from flotilla_client.protocol import ACK, EARLIEST, NEW, PUT, READ, SUB, TAKE, UNSUB, pack

COMPACTOR: Final = "compactor"
COMPACTED_TOPIC: Final = "newest"  # to which it alone publishes
COMPACTED_GROUP: Final = "by hand"
KEYS: Final = ("a", "b", b"a", "c", None)  # a key of text and one of the same bytes are two
COUNTS: Final = (1, 1, 2, 5)  # of publications in a PUT
EXPIRES_MS: Final = (0, 0, 0, 0, 200, 60_000)
PUT_SHARE: Final = 0.4  # of what it asks for
READ_SHARE: Final = 0.15  # the same: of all that is there
WORK_SHARE: Final = 0.2  # the same: in a group
JOIN_SHARE: Final = 0.2  # of that: it makes the group, or takes it up
END_SHARE: Final = 0.2  # of that: it ends the group, so that it holds nothing up


class Compactor(Replayer):
    """The same, of a topic in which of each key the last publication stays."""

    NAME = COMPACTOR
    TOPIC = COMPACTED_TOPIC

    def __init__(self, rng: Random, ids: set[str]) -> None:
        super().__init__(rng, ids, Random(0))
        self._works = False  # it may have a group
        self._given: list[list[int]] = []  # [token, first id, last id] of what it has not settled
        self._of_group: dict[str, str] = {}  # by the request's number: the kind of what is about it

    def ask(self, topic: str, end: int, send: Callable[[list[bytes]], None]) -> None:
        """Ask for something about its topic, which ends there more or less."""
        rng, drawn = self._rng, self._rng.random()
        if not self._client_id or drawn >= PUT_SHARE + READ_SHARE + WORK_SHARE:
            super().ask(topic, end, send)
        elif drawn < PUT_SHARE:
            self._put(send)
        elif drawn < PUT_SHARE + READ_SHARE:
            bounds = {"max_count": rng.choice((1, 5, 100)), "expiry": rng.random() < 0.7}
            bounds["runs"] = self._asked % 2 == 0  # draws nothing: it changes nothing else
            from_id = rng.choice((1, rng.randint(1, end + 1)))
            self._send(READ, topic, {"from_id": from_id, "properties": True, **bounds}, send)
        else:
            self._work(topic, send)

    def _put(self, send: Callable[[list[bytes]], None]) -> None:
        """Publish what follows from the counter alone: it may be asked for twice."""
        counter = self._counters[True]  # of what it packs
        chances = Random(counter)
        texts = [f"{self.NAME} {counter + place}" for place in range(chances.choice(COUNTS))]
        own = [Properties(chances.choice(KEYS), {}, chances.choice(EXPIRES_MS)) for _ in texts]
        those = [as_bytes(each.of(text)) for each, text in zip(own, texts, strict=True)]
        self._send(PUT, self.TOPIC, {"counter": counter}, send, *pack(those))

    def _taken(self, body: Mapping[str, Any]) -> int:
        return 0 if body["duplicate"] else int(body["count"])

    def _work(self, topic: str, send: Callable[[list[bytes]], None]) -> None:
        rng, drawn = self._rng, self._rng.random()
        if not self._works or drawn < JOIN_SHARE:
            self._works = True
            said: dict[str, Any] = {"start": rng.choice((NEW, EARLIEST)), "lease_ms": 1_000}
            self._ask_group(SUB, topic, said, send)
        elif drawn < JOIN_SHARE + END_SHARE:
            self._ask_group(UNSUB, topic, {}, send)
        else:
            acks, self._given = self._given, []
            said = {"max_count": rng.choice((1, 5, 50)), "acks": acks, "expiry": True}
            self._ask_group(TAKE, topic, said, send)

    def _ask_group(
        self, kind: str, topic: str, said: dict[str, Any], send: Callable[[list[bytes]], None]
    ) -> None:
        self._send(kind, topic, {"group": COMPACTED_GROUP, **said}, send)
        self._of_group[f"{self.NAME} {self._asked}"] = kind

    def leave(self, send: Callable[[list[bytes]], None]) -> bool:
        """See `Replayer`; end the group as well."""
        if self._works:
            self._ask_group(UNSUB, self.TOPIC, {}, send)
        return super().leave(send) or self._works

    def answered(self, frames: Sequence[bytes]) -> None:
        """See `Replayer`; remember what the group has given."""
        header: Mapping[str, Any] = orjson.loads(frames[0])
        kind, body = self._of_group.pop(str(header["request_id"]), ""), header["body"]
        if not kind:
            super().answered(frames)
        elif header["type"] == ACK and kind == TAKE:
            leases = body["leases"]
            self._given += [[body["token"], first, first + n - 1] for first, n, _ in leases]
        elif kind == UNSUB or header["type"] != ACK:
            self._given = []
            self._works = self._works and kind != UNSUB
            if header["type"] != ACK:
                self._refused("", self.TOPIC, True, body)
        if not self._client_id:
            self._works, self._given = False, []
