"""What an entry of the log is: in the journal, on the wire and in Raft.

What lives here: the type byte, where a payload begins. What must not: what a payload means
(commands.py), the bytes of a record (segments.py).
"""

from __future__ import annotations

from typing import Final, TypeAlias

Entry: TypeAlias = tuple[bytes, int, int]
"""Command, index, term: the shape in which pysyncobj's core compares entries.

A command is a type byte and a payload (rule 29). A payload begins with the lowest feature level
that can read it (rule 30).
"""
REGULAR: Final = b"\0"  # the type byte of an entry with a payload
NO_OP: Final = b"\1"  # the whole command of the entry that a new leader begins with
TYPE_BYTES: Final = 1
LEVEL: Final = slice(TYPE_BYTES, TYPE_BYTES + 1)  # of a command; b"" in a no-op
FIRST_INDEX: Final = 1  # the entry that every log begins with; it has no payload
# The highest index and term. A million elections a second reach it in nine years, and what is
# above it the journal does not find behind a torn write (segments.py).
PLACE_MAX: Final = 2**48 - 1


def payload_of(entry: Entry) -> bytes:
    """Return what an entry brings to the state machine: b"" for a no-op."""
    command, index, _ = entry
    kind = command[:TYPE_BYTES]
    assert kind in (REGULAR, NO_OP), f"entry {index} has type {kind!r}"
    return command[TYPE_BYTES:] if kind == REGULAR else b""
