"""A client by hand that reads as it likes: it starts anywhere, seeks to either side, and mixes up
what it has read where.

What lives here: its requests, and what it remembers of the answers. What must not: what they come
to (checks/replies.py).

It has no state directory, and often asks with what it had at another place: what was read before a
subscription was moved must not acknowledge anything behind it. In the end it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

import orjson

from flotilla_client.batches import as_bytes
from flotilla_client.properties import Properties
from flotilla_client.protocol import (
    ACK,
    EARLIEST,
    GET,
    NEW,
    PUT,
    READ,
    REQUEST_ID,
    SEEK,
    SUB,
    UNSUB,
    Request,
    encode_request,
    pack,
)

REPLAYER: Final = "replayer"
KEPT_TOPIC: Final = "kept"  # to which it alone publishes: no client of the crowd knows it
PUT_SHARE: Final = 0.4  # of what it asks about that topic
LATER_SHARE: Final = 0.7  # of the replayers publish with a delay too
DELAYED_SHARE: Final = 0.4  # of what these publish: it may wait when the topic is deleted
DELAYS_MS: Final = (10, 250, 1_000, 1_000)
TOGETHER_SHARE: Final = 0.2  # of the times it moves there it publishes too: often in one entry
AHEAD_MS: Final = (-1, 0, 1, 1, 100, 2_000)  # of a time that it has seen: some are still to come
STALE_SHARE: Final = 0.4  # of its GETs say what it had at another place
# What it asks for where it is subscribed, and elsewhere: who is not can't seek, but tries.
KINDS: Final = (SUB, SEEK, SEEK, SEEK, GET, GET, GET, GET, GET, GET, READ, UNSUB)
AWAY: Final = (SUB, SUB, SUB, SUB, SUB, SEEK, GET, READ)
UNKNOWN: Final = frozenset({"forgotten", "unknown_client"})
NOT_THERE: Final = frozenset({"not_subscribed", "unknown_topic"})
TELL_OF_GONE: Final = frozenset({"gap", "purged", "expired", "compacted"})


class Replayer:
    """Asks for one thing after the other; replies may come late, or never. `ids`: that it had.

    `delays`: random numbers of their own for what it publishes with a delay. `NAME`: its own,
    `TOPIC`: to which it publishes.
    """

    NAME = REPLAYER
    TOPIC = KEPT_TOPIC

    def __init__(self, rng: Random, ids: set[str], delays: Random) -> None:
        self._rng, self._ids, self._delays = rng, ids, delays
        self._delayed_share = DELAYED_SHARE if delays.random() < LATER_SHARE else 0.0
        self._asked = 0
        self._counters = {False: 1, True: 1}  # by whether it is of what is delayed
        self._at_ms = 0  # the time of some publication that it was given
        self._client_id = ""
        self._place: dict[str, tuple[int, int]] = {}  # by topic: cursor, and what placed it
        self._before: dict[str, tuple[int, int]] = {}  # the same, at another time
        self._topics: set[str] = set()  # to which it may be subscribed
        # By the request's number: kind, topic, and whether it publishes with a delay.
        self._about: dict[str, tuple[str, str, bool]] = {}

    def ask(self, topic: str, end: int, send: Callable[[list[bytes]], None]) -> None:
        """Ask for something about a topic, which ends there more or less."""
        rng = self._rng
        if not self._client_id:
            # By a name of its own first; where no level or limit lets it, the cluster names it.
            named = not self._asked % 2
            self._send(REQUEST_ID, "", {"create": True} if named else {}, send)
            return
        if topic == self.TOPIC and rng.random() < PUT_SHARE:
            self._put(send)
            return
        kind = rng.choice(KINDS if topic in self._place else AWAY)
        near = rng.randint(1, end + 2)
        body: dict[str, Any] = {}
        if kind in (SUB, SEEK):
            self._topics.add(topic)
            at = f"@{max(0, self._at_ms + rng.choice(AHEAD_MS))}"
            body = {"start": rng.choice((NEW, EARLIEST, near, near, at))}
        elif kind == GET:
            body = self._claims(topic)
        elif kind == READ:
            body = {"from_id": near, "max_count": rng.choice((1, 5, 100))}
        if topic == self.TOPIC and kind in (SUB, SEEK) and rng.random() < TOGETHER_SHARE:
            self._put(send)
        self._send(kind, topic, body, send)

    def _put(self, send: Callable[[list[bytes]], None]) -> None:
        if self._delays.random() >= self._delayed_share:
            counter = self._counters[False]
            body = {"counter": counter, "publication": f"{self.NAME} {counter}"}
            self._send(PUT, self.TOPIC, body, send)
            return
        counter = self._counters[True]
        own = Properties(deliver_after_ms=self._delays.choice(DELAYS_MS))
        batch = pack([as_bytes(own.of(f"{self.NAME} later {counter}"))])
        self._send(PUT, self.TOPIC, {"counter": counter}, send, *batch)

    def _claims(self, topic: str) -> dict[str, Any]:
        rng = self._rng
        known = self._before if rng.random() < STALE_SHARE else self._place
        bounds = {"max_count": rng.choice((1, 3, 50)), "wait_ms": rng.choice((0, 0, 300))}
        bounds["properties"] = rng.random() < 0.5
        bounds["expiry"] = rng.random() < 0.5
        if topic not in known:
            return bounds
        cursor, placed = known[topic]
        return {"last_id": cursor, "placed": placed, **bounds}

    def leave(self, send: Callable[[list[bytes]], None]) -> bool:
        """Ask for the end of its subscriptions; return whether there may be some left."""
        for topic in sorted(self._topics):
            self._send(UNSUB, topic, {}, send)
        return bool(self._topics)

    def _send(
        self,
        kind: str,
        topic: str,
        body: dict[str, Any],
        send: Callable[[list[bytes]], None],
        lengths: bytes = b"",
        data: bytes = b"",
    ) -> None:
        self._asked += 1
        name = f"{self.NAME} {self._asked}"
        self._about[name] = kind, topic, bool(lengths)
        client_id = self.NAME if "create" in body else "" if kind == READ else self._client_id
        request = Request(kind, name, topic, client_id, None, body, lengths, data)
        send(encode_request(request))

    def answered(self, frames: Sequence[bytes]) -> None:
        """Remember where an answer says that it stands."""
        header: Mapping[str, Any] = orjson.loads(frames[0])
        kind, topic, is_delayed = self._about.pop(str(header["request_id"]), ("", "", False))
        body = header["body"]
        if header["type"] != ACK:
            self._refused(kind, topic, is_delayed, body)
        elif kind == REQUEST_ID:
            self._client_id = body["client_id"]
            self._ids.add(self._client_id)
        elif kind in (SUB, SEEK):
            self._stand(topic, body["last_id"], body.get("placed", 0))
        elif kind == GET and body["count"] and topic in self._place:
            self._at_ms = (body.get("timestamps") or [[0, None]])[0][1] or self._at_ms
            cursor, placed = self._place[topic]
            cursor = body.get("passed", {}).get("last_id", cursor)
            if body["id"] == cursor + 1:
                self._place[topic] = cursor + body["count"], placed
        elif kind == PUT:
            self._counters[is_delayed] += self._taken(body)
        elif kind == UNSUB:
            self._topics.discard(topic)
            self._place.pop(topic, None)

    def _taken(self, body: Mapping[str, Any]) -> int:
        """Return how many counters the answer to a PUT has used up."""
        return 1

    def _refused(self, kind: str, topic: str, is_delayed: bool, body: Mapping[str, Any]) -> None:
        if body["error"] in UNKNOWN:
            self._client_id, self._place, self._topics = "", {}, set()
            self._counters = {False: 1, True: 1}
        elif body["error"] == "counter_gap":
            self._counters[is_delayed] = body["expected"]
        elif body["error"] in NOT_THERE:
            self._place.pop(topic, None)
        elif body["error"] == "moved" and kind == GET:
            self._stand(topic, body["cursor"], body["placed"])
        elif body["error"] in TELL_OF_GONE and kind == GET and topic in self._place:
            self._stand(topic, body["last_id"], self._place[topic][1])

    def _stand(self, topic: str, cursor: int, placed: int) -> None:
        if topic in self._place:
            self._before[topic] = self._place[topic]
        self._place[topic] = cursor, placed
