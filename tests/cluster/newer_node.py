"""A node of a version to come: `newer_node.py … --config FILE`, whatever stands between.

It understands one level more than this tree, and in a cluster of that level it writes entries in an
encoding that this tree can't read. Everything else is this tree's.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence

from cluster.wire import levels

VERSION = "9.0.0"
LEVEL = levels.BUILD.level_max + 1
MARK = bytes((LEVEL,)) + b"Z"  # an entry of before has a small size in its second byte

levels.BUILD = levels.Build(VERSION, 1, LEVEL)  # type: ignore[misc]  # before anybody looks

from cluster.store import commands  # noqa: E402

_decode = commands.decode


def decode(
    payload: bytes, level_max: int = LEVEL
) -> tuple[commands.Stamp, list[commands.Operation]]:
    if payload.startswith(MARK):
        payload = zlib.decompress(payload[len(MARK) :])
    return _decode(payload, level_max)


commands.decode = decode

from cluster.node.member import Member  # noqa: E402
from cluster.node.node import commands  # noqa: E402

_encode = Member._encode


def encode(member: Member, operations: Sequence[commands.Operation]) -> bytes:
    payload = _encode(member, operations)
    return MARK + zlib.compress(payload) if member.store.level >= LEVEL else payload


Member._encode = encode  # type: ignore[method-assign]


def _options(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[arguments.index("--config") :]


if __name__ == "__main__":
    commands(_options(sys.argv))
