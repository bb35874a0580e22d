"""Who has a key of his own and other clients' ids: he asks for what is theirs, by hand.

What lives here: his requests. What must not: what they come to (checks/replies.py).

He may publish and read what everybody may, so nothing but the owner of a client id keeps him out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from chaos.workloads import payload
from flotilla_client.protocol import (
    GET,
    PUT,
    REQUEST_ID,
    SUB,
    TOPICS,
    UNSUB,
    Request,
    encode_request,
)

INTRUDER: Final = "intruder"
FAR: Final = 2**40  # a sequence that no client comes to: it would fence its owner for good
CRIMES: Final = (PUT, GET, GET, UNSUB, SUB, REQUEST_ID, TOPICS)


# Of each client that belongs to somebody: its topics, and the last counter that it used there.
Victims = Mapping[str, Mapping[str, int]]


class Intruder:
    """Asks in others' names. `send(frames)` carries a request to a node."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._asked = 0

    def intrude(self, victims: Victims, send: Callable[[list[bytes]], None]) -> None:
        """Ask for something in the name of some client."""
        rng = self._rng
        if not victims:
            return  # what is nobody's yet is not protected
        client_id, kind = rng.choice(sorted(victims)), rng.choice(CRIMES)
        topics = victims[client_id]
        topic = rng.choice(sorted(topics) or ["x"])
        body: dict[str, Any] = {}
        if kind == PUT:
            counter = topics.get(topic, 0) + 1
            body = {"counter": counter, "publication": payload.make(client_id, topic, counter, "")}
        elif kind == GET:
            topic = rng.choice((topic, ""))
            body = {"wait_ms": rng.choice((0, 2_000)), "text": True}
        elif kind == REQUEST_ID:
            topic, body = "", {"sequence": FAR, "nonce": "theft"}
        elif kind == TOPICS:
            topic = ""
        self._asked += 1
        request = Request(kind, f"{INTRUDER} {self._asked}", topic, client_id, body=body)
        send(encode_request(request))
