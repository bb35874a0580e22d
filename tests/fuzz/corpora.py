"""The corpora: inputs that reach what random bytes do not, kept in corpus/TARGET/.

What lives here: where they are, and those that our own encoders make. The others are what the
fuzzer found (fuzzer.py): each runs something that no other does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cluster.log.segments import (
    BASE,
    COMMIT_HINT,
    ENTRY,
    HARD_STATE,
    commit_hint_payload,
    entry_fixed,
    hard_state_payload,
)
from cluster.serve import zmtp
from cluster.store import commands
from cluster.store.commands import Advance, Put, Register, Subscribe, Take
from cluster.wire import frames, messages
from flotilla_client import properties
from flotilla_client.properties import Properties
from flotilla_client.protocol import ACK, Reply, encode_reply, encode_request, pack
from tests.fuzz.targets import TARGETS
from tests.unit.client.test_protocol import REQUESTS
from tests.unit.cluster.wire.test_messages import EXAMPLES

CORPUS: Final = Path(__file__).parent / "corpus"
BATCH: Final = pack([b"one", b"", b"three"])
CUT: Final = b"\x03"  # a stream in four pieces
RIGHT: Final = b"\x01"  # a journal whose checksums are made right


def kept() -> Iterator[tuple[str, Path]]:
    """Yield target and file of each input in the corpora."""
    for target in TARGETS:
        for file in sorted((CORPUS / target).iterdir()):
            yield target, file


def made(target: str) -> Iterator[bytes]:
    """Yield what our own encoders make for a target."""
    yield from {
        "peer_stream": _peer_stream,
        "peer_message": _peer_message,
        "client_stream": _client_stream,
        "request": lambda: (framed(encode_request(each)) for each in REQUESTS),
        "reply": _reply,
        "publication": _publication,
        "entry": _entry,
        "journal": _journal,
    }[target]()


def framed(frames: list[bytes]) -> bytes:
    """Return an input that `targets.frames_of` cuts into about these frames."""
    if not frames:
        return b""
    rest = framed(frames[1:])
    size = len(frames[0]) + len(rest)
    return bytes([max(0, -(-16 * len(frames[0]) // max(1, size)) - 1)]) + frames[0] + rest


def _peer_stream() -> Iterator[bytes]:
    yield CUT + b"".join(map(frames.framed, EXAMPLES[:6]))
    yield CUT + frames.framed(EXAMPLES[0])[:-1] + b"\0"


def _peer_message() -> Iterator[bytes]:
    for message in EXAMPLES:
        yield b"".join(messages.encode(message))


def _client_stream() -> Iterator[bytes]:
    said = [b"", b"{}"], [b"", b"x" * 300]
    yield CUT + zmtp.greeting() + zmtp.ping(b"here") + b"".join(map(zmtp.encode, said))
    yield CUT + zmtp.greeting(curve=True)


def _reply() -> Iterator[bytes]:
    yield framed(encode_reply(Reply(ACK, "1", "n1", "n2", 3, {"ids": [1, 3]}, *BATCH)))
    yield framed(encode_reply(Reply("NAK", "1", "n1", "", 0, {"code": "not_leader"})))


def _publication() -> Iterator[bytes]:
    yield properties.encode(Properties("key", {"name": "text", "other": b"\xff"})) + b"said"
    yield properties.encode(Properties(b"\xff"))


def _entry() -> Iterator[bytes]:
    yield commands.encode(5, [Register("c", True, 1, "n"), Subscribe("c", 1, "t", 2)])
    yield commands.encode(5, [Put("c", 1, "t", 1, *BATCH), Advance("c", 1, {"t": 3})], 99)
    yield commands.encode(5, [Take("c", 1, "t", "g", 10, 1, 1, 5, [[1, 2, 3]], [], [], None)], 99)


def _journal() -> Iterator[bytes]:
    command = b"\0entry"
    rows = [
        (HARD_STATE, hard_state_payload(3, "n1")),
        (ENTRY, entry_fixed(1, 3, command) + command),
        (COMMIT_HINT, commit_hint_payload(1)),
        (BASE, entry_fixed(7, 3, command) + command),
    ]
    yield RIGHT + b"".join(struct.pack("<BB", kind, len(body)) + body for kind, body in rows)
    yield b"\0" + bytes(40)
