"""What there is at an endpoint that no connection was had to: for the words of an error.

What lives here: a look by a plain TCP connection, which hears of the reasons that ZeroMQ keeps to
itself. What must not: decisions; what is found here is said, and nothing else.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from typing import Final

from flotilla_client.errors import FlotillaError
from flotilla_client.names import Address

PROBE_MS_MAX: Final = 200  # in all, behind a deadline: one round trip to anywhere
UNCONNECTED: Final = frozenset({"connection refused", "connection lost", "no connection"})
GREETING: Final = b"\xff"  # the first byte of every ZeroMQ peer, which says it unasked
GREETING_BYTES: Final = 32  # of it, up to the mechanism's end
MECHANISM: Final = slice(12, 32)
NO_ANSWER: Final = "no answer to a connection: a wrong address, a firewall, a host that is down"
SAYS_NOTHING: Final = "takes connections and says nothing: a stopped node, or no node's client port"
HANGS_UP: Final = "ends connections at once: no node's client port, or a node that has too many"
ASKS_FOR_A_KEY: Final = (
    "lets clients in by their keys alone, and this one has none: name the key's file by --key, the"
    " argument `key` or FLOTILLA_KEY"
)
KNOWS_NO_KEY: Final = (
    "lets clients in by their keys alone, and has not let this one in: it does not know its key, or"
    " had too little time"
)
HAS_NO_KEYS: Final = (
    "has no keys, and this client has one: it speaks to nobody who can't prove who he is"
)
OTHER: Final = "speaks another protocol: no node's client port"
_TCP: Final = re.compile(r"tcp://([0-9.]+):([0-9]+)")


def explained(
    error: FlotillaError, endpoints: Sequence[str], has_key: bool = False
) -> FlotillaError:
    """Return the error with closer causes where there was no connection. `has_key`: the client.

    Looks at them one after the other, for `PROBE_MS_MAX` in all.
    """
    until_s = time.monotonic() + PROBE_MS_MAX / 1000
    causes = dict(error.details.get("causes", {}))
    for number, cause in causes.items():
        if cause in UNCONNECTED:
            causes[number] = _seen_at(endpoints[number], has_key, until_s) or cause
    details = error.details | ({"causes": causes} if causes else {})
    return type(error)(error.message, error.code, error.definite, details)


def _seen_at(endpoint: str, has_key: bool, until_s: float) -> str:
    """Return what there is at an endpoint; "" if the time does not suffice, or a peer is there."""
    address = Address(endpoint)
    address.wait(until_s - time.monotonic())
    match = _TCP.fullmatch(str(address))
    left_s = until_s - time.monotonic()
    if match is None or left_s <= 0:
        return ""
    try:
        with socket.create_connection((match[1], int(match[2])), left_s) as probe:
            return _said_on(probe, has_key, max(0.001, until_s - time.monotonic()))
    except TimeoutError:
        return NO_ANSWER
    except ConnectionRefusedError:
        return "connection refused"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _said_on(probe: socket.socket, has_key: bool, wait_s: float) -> str:
    probe.settimeout(wait_s)
    try:
        said = probe.recv(GREETING_BYTES)
    except TimeoutError:
        return SAYS_NOTHING
    except OSError:
        return HANGS_UP
    if not said:
        return HANGS_UP
    if not said.startswith(GREETING):
        return OTHER
    mechanism = said[MECHANISM].rstrip(b"\0")
    if mechanism == b"CURVE":
        return KNOWS_NO_KEY if has_key else ASKS_FOR_A_KEY
    return HAS_NO_KEYS if has_key and mechanism == b"NULL" else ""
