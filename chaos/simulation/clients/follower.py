"""Clients by hand that subscribe to patterns, and publish to topics that only these make.

What lives here: the requests of one, and what it remembers of the answers. What must not: what they
come to (checks/replies.py).

It has no state directory: it hears of a topic when an answer brings something of it, and often
acknowledges only then. In the end it leaves. There are two, so that one makes what the other's
patterns bring: by a PUT, or as it subscribes by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

import orjson

from flotilla_client.protocol import (
    ACK,
    EARLIEST,
    GET,
    INSPECT,
    NEW,
    PATTERNS,
    PUT,
    REQUEST_ID,
    SUB,
    UNSUB,
    Request,
    encode_request,
)

FOLLOWER: Final = "follower"
FOLLOWERS: Final = (FOLLOWER, "follower-2")
# Topics of its own, which no client of the crowd knows, and patterns of them; `>` has all others.
FAR_TOPICS: Final = ("far.a", "far.b", "far.c", "far.a.x", "far.b.x", "far.c.x.y")
FAR_PATTERNS: Final = ("far.*", "far.>", "far.*.x", "far.a", "*.b", "far.a.>")
# Topics that a SUB makes, and no PUT: only who has subscribed to one by name publishes to it.
QUIET_TOPICS: Final = ("far.d", "far.e", "far.d.x")
BY_NAME_SHARE: Final = 0.3  # of its SUBs
EVERYTHING: Final = ">"
EVERYTHING_SHARE: Final = 0.03  # of its SUBs: it holds up what everybody publishes
# What it asks for, with its share.
KINDS: Final = {SUB: 0.2, UNSUB: 0.07, PUT: 0.35, GET: 0.33, REQUEST_ID: 0.03, INSPECT: 0.02}
CLAIMED_SHARE: Final = 0.7  # of the topics that it has read, in a GET
UNKNOWN: Final = frozenset({"forgotten", "unknown_client"})
TELL_OF_GONE: Final = frozenset({"gap", "purged", "expired", "compacted"})


class Follower:
    """Asks for one thing after the other; replies may come late, or never. `ids`: that it had."""

    def __init__(self, name: str, rng: Random, ids: set[str]) -> None:
        self._name, self._rng, self._ids = name, rng, ids
        self._asked = 0
        self._client_id = ""
        self._counters: dict[str, int] = {}  # by topic: the next
        self._read: dict[str, tuple[int, int]] = {}  # by topic: last id, and what placed it
        self._names: set[str] = set()  # topics and patterns that it may subscribe to
        self._about: dict[str, tuple[str, str]] = {}  # by the request's number: kind, topic

    def ask(self, send: Callable[[list[bytes]], None]) -> None:
        """Ask for something."""
        rng = self._rng
        [kind] = rng.choices(list(KINDS), list(KINDS.values()))
        if not self._client_id:
            self._send(REQUEST_ID, "", {}, send)
        elif kind == SUB:
            name = self._next_name()
            self._names.add(name)
            self._send(SUB, name, {"start": rng.choice((NEW, NEW, EARLIEST))}, send)
        elif kind == UNSUB:
            names = sorted({*self._names, *FAR_TOPICS[:2]})
            self._send(UNSUB, rng.choice(names), {}, send)
        elif kind == PUT:
            topic = rng.choice((*FAR_TOPICS, *sorted(self._names.intersection(QUIET_TOPICS))))
            counter = self._counters.setdefault(topic, 1)
            text = f"{self._name} {topic} {counter}"
            self._send(PUT, topic, {"counter": counter, "publication": text}, send)
        elif kind == GET:
            self._send(GET, "", self._claims(), send)
        elif kind == INSPECT:
            self._send(INSPECT, "", {"what": PATTERNS}, send)
        else:
            self._send(REQUEST_ID, "", {}, send)

    def _next_name(self) -> str:
        """Return to what it subscribes next."""
        rng = self._rng
        if rng.random() < EVERYTHING_SHARE:
            return EVERYTHING
        return rng.choice(QUIET_TOPICS if rng.random() < BY_NAME_SHARE else FAR_PATTERNS)

    def _claims(self) -> dict[str, Any]:
        rng = self._rng
        claimed = {
            topic: place for topic, place in self._read.items() if rng.random() < CLAIMED_SHARE
        }
        return {
            "last_ids": {topic: last_id for topic, (last_id, _) in claimed.items()},
            "placed": {topic: placed for topic, (_, placed) in claimed.items() if placed},
            "max_count": rng.choice((1, 3, 50)),
            "wait_ms": rng.choice((0, 0, 0, 300)),
        }

    def leave(self, send: Callable[[list[bytes]], None]) -> bool:
        """Ask for the end of its subscriptions; return whether there may be some left."""
        for name in sorted(self._names):
            self._send(UNSUB, name, {}, send)
        return bool(self._names)

    def _send(
        self, kind: str, topic: str, body: dict[str, Any], send: Callable[[list[bytes]], None]
    ) -> None:
        self._asked += 1
        name = f"{self._name} {self._asked}"
        self._about[name] = kind, topic
        client_id = "" if kind == INSPECT else self._client_id
        send(encode_request(Request(kind, name, topic, client_id, body=body)))

    def answered(self, frames: Sequence[bytes]) -> None:
        """Remember what an answer has brought, and where it says that it stands."""
        header: Mapping[str, Any] = orjson.loads(frames[0])
        kind, topic = self._about.pop(str(header["request_id"]), ("", ""))
        body = header["body"]
        if header["type"] != ACK:
            self._refused(kind, topic, body)
        elif kind == REQUEST_ID:
            self._client_id = body["client_id"]
            self._ids.add(self._client_id)
            placed = body.get("placed", {})
            own = body["subscriptions"].items()
            self._read = {name: (last_id, placed.get(name, 0)) for name, last_id in own}
        elif kind == SUB:
            placed = body.get("placed")
            for name, last_id in body.get("topics", {topic: body["last_id"]}).items():
                entry = placed.get(name, 0) if isinstance(placed, dict) else placed or 0
                self._read.setdefault(name, (last_id, entry))
        elif kind == GET and body["count"]:
            name, last_id = body["topic"], body["id"] + body["count"] - 1
            if "cursor" in body:
                self._read[name] = last_id, body["placed"]
        elif kind == PUT:
            self._counters[topic] += 1
        elif kind == UNSUB:
            self._names.discard(topic)
            self._read.clear()

    def _refused(self, kind: str, topic: str, body: Mapping[str, Any]) -> None:
        code = body["error"]
        if code in UNKNOWN:
            self._client_id, self._read, self._names = "", {}, set()
            self._counters.clear()
        elif code == "counter_gap":
            self._counters[topic] = body["expected"]
        elif code in TELL_OF_GONE and kind == GET:
            self._read[body["topic"]] = body["last_id"], self._read.get(body["topic"], (0, 0))[1]
        elif kind == GET:  # of a topic that it has left meanwhile
            self._read.clear()
        elif kind == UNSUB and "pattern" in body:  # that brings it, and has to be left first
            self._names.add(body["pattern"])
        elif kind == UNSUB and code == "unauthorized":
            self._names.discard(topic)
