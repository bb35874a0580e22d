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

MARK: Final = "@"  # a filler begins with it, or with a caller's number before: it has properties
EXPIRING: Final = "%"  # the same, and it expires
_MARKED: Final = re.compile(rf"(\d+-)?([{MARK}{EXPIRING}])")
EXPIRES_MS: Final = (1, 5, 40, 150, 1_000, 3_600_000)  # of runs of some seconds, to parked readers


def dressed(text: str) -> str | Publication:
    """Return what is published of a text: it alone, or with its properties."""
    own = properties_of(text)
    return text if own == Properties() else own.of(text)


def properties_of(text: str) -> Properties:
    """Return what properties a text is published with."""
    fields = text.split(" ", FIELDS_BEFORE_FILLER)
    marked = _MARKED.match(fields[-1]) if len(fields) > FIELDS_BEFORE_FILLER else None
    if marked is None:
        return Properties()
    chance = crc32(text.encode())
    some = None, "hot", f"key-{chance // 4 % 3}", chance.to_bytes(4, "little")
    key: str | bytes | None = some[chance % 4]
    headers: dict[str, str | bytes] = {"of": fields[2]}
    if chance % 7 < 3:
        headers["größe"] = bytes(chance % 11)
    expires_ms = EXPIRES_MS[chance % len(EXPIRES_MS)] if marked[2] == EXPIRING else 0
    if expires_ms and chance % 3 == 0:
        key, headers = None, {}
    return Properties(key, headers, expires_ms)
