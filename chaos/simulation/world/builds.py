"""The programs that simulated nodes run: version 0.1, this tree, and a version to come.

What lives here: the builds by name, and what the one to come writes. What must not: who runs which
(operator.py), and anything that a replica decides.

Version 0.1 is this tree's code that names no levels and screens nothing: it acknowledges whatever
it is sent, and ends when an entry that it can't read is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cluster.wire.levels import BUILD, BUILD_0_1, Build

NEXT: Final = Build("next", 1, BUILD.level_max + 1)
BUILDS: Final[Mapping[str, Build]] = MappingProxyType(
    {"0.1": BUILD_0_1, "this": BUILD, "next": NEXT}
)


def as_written_by(build: Build, payload: bytes, level: int) -> bytes:
    """Return an entry as the build writes it in a cluster of that level.

    The encoding of the one to come is this tree's, but for the byte that says who can read it.
    """
    if build == NEXT and level >= NEXT.level_max:
        return bytes((NEXT.level_max,)) + payload[1:]
    return payload
