"""The properties that simulated clients publish with: of each text by the text alone.

What lives here: which texts have properties, and which those are, so that whoever reads one knows
whether it is as it was published. What must not: clients, checks.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from chaos.workloads.payload import FIELDS_BEFORE_FILLER
from flotilla_client import Publication
from flotilla_client.properties import Properties
from flotilla_client.protocol import topic_of

MARK: Final = "@"  # a filler begins with it, or with a caller's number before: it has properties
EXPIRING: Final = "%"  # the same, and it expires
SOON: Final = "!"  # the same, within a fraction of a second
_MARKED: Final = re.compile(rf"(\d+-)?([{MARK}{EXPIRING}{SOON}])")
DELAYS_MS: Final = (1, 10, 10, 60, 250, 1_000)  # of what is put to a topic's lane: the same
SOON_MS: Final = (1, 5, 40, 150)  # of runs of some seconds, to parked readers
EXPIRES_MS: Final = (*SOON_MS, 1_000, 3_600_000)


def dressed(text: str) -> str | Publication:
    """Return what is published of a text: it alone, or with its properties."""
    own = properties_of(text)
    return text if own == Properties() else own.of(text)


def properties_of(text: str) -> Properties:
    """Return what properties a text is published with."""
    fields = text.split(" ", FIELDS_BEFORE_FILLER)
    if len(fields) <= FIELDS_BEFORE_FILLER:
        return Properties()
    marked, chance, topic = _MARKED.match(fields[-1]), crc32(text.encode()), fields[1]
    is_delayed = topic != topic_of(topic)
    delay_ms = DELAYS_MS[chance // 16 % len(DELAYS_MS)] if is_delayed else 0
    if marked is None:
        return Properties(None, {}, 0, delay_ms)
    some = None, "hot", f"key-{chance // 4 % 3}", chance.to_bytes(4, "little")
    key: str | bytes | None = some[chance % 4]
    headers: dict[str, str | bytes] = {"of": fields[2]}
    if chance % 7 < 3:
        headers["größe"] = bytes(chance % 11)
    those = {EXPIRING: EXPIRES_MS, SOON: SOON_MS}.get(marked[2], (0,))
    expires_ms = those[chance % len(those)]
    if expires_ms and chance % 3 == 0:
        key, headers = None, {}
    return Properties(key, headers, expires_ms, delay_ms)
