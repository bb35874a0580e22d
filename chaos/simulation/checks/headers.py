"""What a reply says of itself, read once for all who watch it.

What lives here: the header of a reply by its first frame. What must not: judging it (replies.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

READ_MAX: Final = 256  # more than a turn answers, as a rule: the last look is at its end


def header_of(frames: Sequence[bytes]) -> Mapping[str, Any]:
    """Return the header of a reply. It is shared by all who ask for it: nobody changes it."""
    return _read(bytes(frames[0]))


@lru_cache(READ_MAX)
def _read(frame: bytes) -> Mapping[str, Any]:
    header: Mapping[str, Any] = orjson.loads(frame)
    return header
