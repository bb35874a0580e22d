"""What nodes say to each other: message types and their strict, versioned, bounded encoding.

What lives here: the messages, `encode` and `decode`. What must not: sockets, clocks, what a message
makes a node do, or how a stream of bytes is cut into messages (frames.py).

A message is `type u8 | body`, little-endian. Every other version of a body is refused by the Hello
that opens a connection. Nothing is unpickled, ever: a log entry travels as the bytes that rest in
the journal.

Version 0.1 takes no Hello with a byte more and no type that it doesn't know. So what later versions
say of themselves is an `Extension`, a message of its own right behind the Hello, in a form that 0.1
ignores: a RelayReply to a request that nobody relayed. Its body is a JSON object. To say something
new, add a field with a default to `Extension` and its key to `_EXTENSION_KEYS`: who does not know
the key ignores it, who does not hear it takes the default.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, TypeAlias

import orjson

from cluster.log.entries import PLACE_MAX, Entry
from cluster.wire.levels import BUILD_0_1, LEVEL_FIRST, LEVEL_MAX, Build

PROTOCOL_VERSION: Final = 1  # of this encoding; nodes of different versions don't talk

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024  # a 4 MiB run of entries and one more, with room
HELLO_BYTES_MAX: Final = 64 * 1024  # what a stranger can make us hold before we know its name
NAME_BYTES_MAX: Final = 128  # names of nodes, clusters, snapshots; incarnations (UUIDs)
REASON_BYTES_MAX: Final = 1024  # a sentence for the log, not a document
ABOUT_BYTES_MAX: Final = 32 * 1024  # every setting of a node and a line on each member, with room
DIGEST_BYTES_MAX: Final = 64  # SHA-512, the longest in use
MEMBER_COUNT_MAX: Final = 32  # far above any sensible Raft group; bounds a Hello
ENTRY_COUNT_MAX: Final = 65_536  # bounds the objects that one frame of tiny entries becomes
EXTENSION_BYTES_MAX: Final = 16 * 1024  # of its JSON; well within HELLO_BYTES_MAX
RELAY_FRAME_COUNT_MAX: Final = 8  # a client's request has three frames and its route
ABOUT_RELAY_ID: Final = 0  # relays are numbered from 1 on
INTEGER_MAX: Final = 2**63 - 1  # offsets, ids of relays: what SQLite and C readers hold


class MessageError(Exception):
    """Bytes from a peer that are no message; `str` of it is the reason. Its connection closes."""


@dataclass(frozen=True, slots=True)
class Extension:
    """What a Hello says beyond version 0.1's; the defaults are what 0.1 leaves unsaid.

    `build`: the sender's program. `level`: the cluster's level, as far as the sender has applied
    the log (LEVEL_FIRST while it is fresh).
    """

    build: Build = BUILD_0_1
    level: int = LEVEL_FIRST


UNSAID: Final = Extension()


@dataclass(frozen=True, slots=True)
class Hello:
    """Say who I am: the first message on a connection, and again when something in it changes.

    `members` is sorted. `fresh`: my data directory is empty. `founding`: the incarnation of every
    member at the cluster's foundation, by name, None while I don't know it. `admitted_index`: an
    applied index at which my incarnation was admitted (0: a founder, or fresh). `extension`
    travels behind the rest; decoding a Hello alone leaves it unsaid.
    """

    version: int
    cluster_id: str
    node: str
    incarnation: str
    members: tuple[str, ...]
    fresh: bool
    founding: dict[str, str] | None
    admitted_index: int = 0
    extension: Extension = UNSAID


@dataclass(frozen=True, slots=True)
class RequestVote:
    """Ask for a vote in `term`. `last_term` -1 with `last_index` 0 can't be granted."""

    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class RequestVoteResponse:
    """Grant the vote of `term`."""

    term: int


@dataclass(frozen=True, slots=True)
class PreVote:
    """Ask whether a vote in `term` would be granted; nobody's term changes by it."""

    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteGranted:
    """Answer that a vote in `term` would be granted."""

    term: int


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """Replicate entries whose indexes follow `previous_index` without a hole; empty = heartbeat."""

    term: int
    commit_index: int
    previous_index: int
    previous_term: int
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class AppendEntriesResponse:
    """Answer AppendEntries or a snapshot: the index that the sender of this wants next."""

    term: int
    next_index: int
    reset: bool
    success: bool


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """Tell a follower that the entries it lacks are gone: it has to fetch a snapshot."""

    term: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Hand leadership over: the receiver starts an election at once."""

    term: int


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """Ask whether the sender still leads `term`; `sequence` numbers its questions."""

    term: int
    sequence: int


@dataclass(frozen=True, slots=True)
class ReadIndexResponse:
    """Confirm question `sequence`: the sender of this still follows the leader of `term`."""

    term: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass a client's request on to the leader; `relay_id` comes back with the reply.

    `principal`: whose key the client has; None: nobody has one here, or the receiver is too old to
    hear it. One that is said travels as another type, which such a receiver does not know.
    """

    relay_id: int
    frames: Sequence[bytes]
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class RelayReply:
    """Return the reply to a relayed request."""

    relay_id: int
    frames: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Ask for the chunk of a snapshot at `offset`; `snapshot_id` "" asks for a new snapshot."""

    snapshot_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Carry `data` at `offset` of a snapshot of `size_bytes` at (index, term); `digest` of all."""

    snapshot_id: str
    index: int
    term: int
    size_bytes: int
    digest: bytes
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotRefused:
    """Refuse a snapshot request; `reason` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Health:
    """Report how far the sender has applied the log, and whether its disk is nearly full."""

    applied_index: int
    disk_low: bool


class Refusal(IntEnum):
    """Why a connection is refused by a peer that knows who asks."""

    FOREIGN = 1  # another cluster, other members, no member
    DOUBLED = 2  # the name is taken by another process, which lives
    EVICTED = 3  # another data directory was admitted under the name


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """Say why the connection is closed now; the last message on it. `reason` is for the log."""

    kind: int
    reason: str


@dataclass(frozen=True, slots=True)
class About:
    """Tell a peer what this node knows (about.py); nothing that Raft rests on.

    On the wire it is a RelayReply to the relay 0, which no node has ever asked for: version 0.1
    drops it, and would close the connection over a type that it does not know.
    """

    facts: bytes


Message: TypeAlias = (
    Hello
    | Extension
    | RequestVote
    | RequestVoteResponse
    | PreVote
    | PreVoteGranted
    | AppendEntries
    | AppendEntriesResponse
    | SnapshotOffer
    | TimeoutNow
    | ReadIndex
    | ReadIndexResponse
    | Relay
    | RelayReply
    | SnapshotRequest
    | SnapshotChunk
    | SnapshotRefused
    | Health
    | PeerRefused
    | About
)


# --- both ways ----------------------------------------------------------------------------------


def encode(message: Message) -> list[bytes]:
    """Return the pieces of a message: its type and body. A Hello's extension is another message.

    Fields out of bounds are the caller's error (assert).
    """
    code, encode_body = _ENCODERS[type(message)]
    if type(message) is Relay and message.principal is not None:
        code, encode_body = _RELAY_OF_PRINCIPAL, _encode_relay_of_principal
    return [code, *encode_body(message)]


def decode(payload: memoryview) -> Message:
    """Return the message of a type and body. Raises MessageError on anything off."""
    decode_body = _DECODERS.get(payload[0])
    if decode_body is None:
        raise MessageError(f"unknown message type {payload[0]}")
    return decode_body(payload[1:])


# --- bodies of fixed size -----------------------------------------------------------------------


class _Fixed:
    """Encodes and decodes a message of numbers and booleans, in the order of its fields."""

    def __init__(self, kind: type[Any], layout: str) -> None:
        self._kind = kind
        self._struct = struct.Struct(layout)
        self._names = [item.name for item in fields(kind)]

    def encode(self, message: Any) -> list[bytes]:
        return [self._struct.pack(*[getattr(message, name) for name in self._names])]

    def decode(self, body: memoryview) -> Message:
        if len(body) != self._struct.size:
            raise MessageError(
                f"{self._kind.__name__} of {len(body)} bytes, not {self._struct.size}"
            )
        values = self._struct.unpack(body)
        if self._struct.pack(*values) != body:  # a boolean that is neither 0 nor 1
            raise MessageError(f"{self._kind.__name__} is not in its canonical form")
        _check_places(*values)
        return self._kind(*values)  # type: ignore[no-any-return]


def _check_places(*values: int) -> None:
    """Raise MessageError unless these may be indexes and terms."""
    if max(values) > PLACE_MAX or min(values) < -1:
        raise MessageError(f"index or term out of bounds in {values}")


# --- bodies of variable size --------------------------------------------------------------------

_APPEND: Final = struct.Struct("<QQQQI")
_ENTRY_HEAD_BYTES: Final = 12  # size u32, term u64
_CHUNK: Final = struct.Struct("<QQQQ")
_RELAY: Final = struct.Struct("<QB")


def _encode_append(message: AppendEntries) -> list[bytes]:
    entries, before = message.entries, message.previous_index
    count = len(entries)
    head = _APPEND.pack(message.term, message.commit_index, before, message.previous_term, count)
    if not count:
        return [head]
    assert count <= ENTRY_COUNT_MAX, count
    commands, indexes, terms = zip(*entries, strict=True)
    assert indexes == tuple(range(before + 1, before + 1 + count)), (before, indexes[0], count)
    return [head, struct.pack(f"<{count}I{count}Q", *map(len, commands), *terms), *commands]


def _decode_append(body: memoryview) -> AppendEntries:
    if len(body) < _APPEND.size:
        raise MessageError(f"AppendEntries of {len(body)} bytes")
    term, commit_index, before, previous_term, count = _APPEND.unpack_from(body)
    start = _APPEND.size + count * _ENTRY_HEAD_BYTES
    if count > ENTRY_COUNT_MAX or start > len(body):
        raise MessageError(f"AppendEntries of {count} entries in {len(body)} bytes")
    heads = struct.unpack_from(f"<{count}I{count}Q", body, _APPEND.size)
    _check_places(term, commit_index, before + count, previous_term, *heads[count:])
    if start + sum(heads[:count]) != len(body):
        raise MessageError(f"sizes of {count} entries don't add up to {len(body) - start} bytes")
    entries = []
    for position in range(count):
        end = start + heads[position]
        if end == start or body[start] > 1:
            raise MessageError(f"entry {before + 1 + position} starts with neither 0 nor 1")
        entries.append((body[start:end].tobytes(), before + 1 + position, heads[count + position]))
        start = end
    return AppendEntries(term, commit_index, before, previous_term, entries)


def _encode_relay(message: Relay | RelayReply) -> list[bytes]:
    count = len(message.frames)
    assert count <= RELAY_FRAME_COUNT_MAX, count
    assert message.relay_id != INTEGER_MAX, "that one says that an Extension follows"
    head = _RELAY.pack(message.relay_id, count)
    return [head, struct.pack(f"<{count}I", *map(len, message.frames)), *message.frames]


def _encode_relay_of_principal(message: Relay) -> list[bytes]:
    assert message.principal, message.relay_id
    return [_text(message.principal, NAME_BYTES_MAX), *_encode_relay(message)]


def _decode_relay_of_principal(body: memoryview) -> Relay:
    reader = _BodyReader(body)
    principal = reader.text(NAME_BYTES_MAX)
    if not principal:
        raise MessageError("Relay of a principal without a name")
    relay = _decode_relay_as(Relay)(reader.left())
    assert isinstance(relay, Relay), relay
    return Relay(relay.relay_id, relay.frames, principal)


def _encode_about(message: About) -> list[bytes]:
    assert len(message.facts) <= ABOUT_BYTES_MAX, len(message.facts)
    return _encode_relay(RelayReply(ABOUT_RELAY_ID, [message.facts]))


def _decode_relay_reply(body: memoryview) -> Message:
    message = _decode_relay_as(RelayReply)(body)
    if not isinstance(message, RelayReply) or message.relay_id != ABOUT_RELAY_ID:
        return message
    if len(message.frames) != 1 or len(message.frames[0]) > ABOUT_BYTES_MAX:
        raise MessageError(f"About of {len(message.frames)} frames, or of too many bytes")
    return About(message.frames[0])


def _decode_relay_as(kind: type[Relay] | type[RelayReply]) -> Callable[[memoryview], Message]:
    def decode_relay(body: memoryview) -> Message:
        if kind is RelayReply and body[: _OFFSET.size] == _EXTENSION_ID:
            return _decode_extension(body)
        reader = _BodyReader(body)
        relay_id, count = reader.numbers(_RELAY)
        if kind is Relay and relay_id in (ABOUT_RELAY_ID, INTEGER_MAX):
            raise MessageError(f"Relay {relay_id}: an answer to it would be no RelayReply")
        if count > RELAY_FRAME_COUNT_MAX:
            raise MessageError(f"{kind.__name__} of {count} frames")
        sizes = reader.numbers(struct.Struct(f"<{count}I"))
        frames = [reader.take(size).tobytes() for size in sizes]
        reader.finish()
        return kind(relay_id, frames)

    return decode_relay


def _encode_snapshot_request(message: SnapshotRequest) -> list[bytes]:
    return [_text(message.snapshot_id, NAME_BYTES_MAX), _OFFSET.pack(message.offset)]


def _decode_snapshot_request(body: memoryview) -> SnapshotRequest:
    reader = _BodyReader(body)
    message = SnapshotRequest(reader.text(NAME_BYTES_MAX), reader.numbers(_OFFSET)[0])
    reader.finish()
    return message


def _encode_chunk(message: SnapshotChunk) -> list[bytes]:
    assert len(message.digest) <= DIGEST_BYTES_MAX, len(message.digest)
    return [
        _text(message.snapshot_id, NAME_BYTES_MAX),
        _CHUNK.pack(message.index, message.term, message.size_bytes, message.offset),
        bytes((len(message.digest),)),
        message.digest,
        message.data,
    ]


def _decode_chunk(body: memoryview) -> SnapshotChunk:
    reader = _BodyReader(body)
    snapshot_id = reader.text(NAME_BYTES_MAX)
    index, term, size_bytes, offset = reader.numbers(_CHUNK)
    _check_places(index, term)
    digest_bytes = reader.take(1)[0]
    if digest_bytes > DIGEST_BYTES_MAX:
        raise MessageError(f"digest of {digest_bytes} bytes")
    digest, data = reader.take(digest_bytes).tobytes(), reader.rest()
    if offset + len(data) > size_bytes:
        raise MessageError(f"{len(data)} bytes at {offset} of a snapshot of {size_bytes} bytes")
    return SnapshotChunk(snapshot_id, index, term, size_bytes, digest, offset, data)


def _encode_refusal(message: PeerRefused) -> list[bytes]:
    return [_COUNT.pack(message.kind), _text(message.reason, REASON_BYTES_MAX)]


def _decode_refusal(body: memoryview) -> Message:
    reader = _BodyReader(body)
    (kind,) = reader.numbers(_COUNT)
    message = PeerRefused(kind, reader.text(REASON_BYTES_MAX))
    reader.finish()
    return message


def _encode_refused(message: SnapshotRefused) -> list[bytes]:
    return [_text(message.reason, REASON_BYTES_MAX)]


def _decode_refused(body: memoryview) -> SnapshotRefused:
    reader = _BodyReader(body)
    message = SnapshotRefused(reader.text(REASON_BYTES_MAX))
    reader.finish()
    return message


_VERSION: Final = struct.Struct("<H")
_INDEX: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<B")
_FLAGS: Final = struct.Struct("<??")  # fresh, founding known
_OFFSET: Final = struct.Struct("<Q")


def _encode_hello(message: Hello) -> list[bytes]:
    assert list(message.members) == sorted(set(message.members)), message.members
    founding = sorted((message.founding or {}).items())
    names = [message.cluster_id, message.node, message.incarnation, *message.members]
    names += [text for pair in founding for text in pair]
    return [
        _VERSION.pack(message.version),
        _FLAGS.pack(message.fresh, message.founding is not None),
        _COUNT.pack(len(message.members)),
        _COUNT.pack(len(founding)),
        _INDEX.pack(message.admitted_index),
        *(_text(name, NAME_BYTES_MAX) for name in names),
    ]


def _decode_hello(body: memoryview) -> Hello:
    reader = _BodyReader(body)
    (version,) = reader.numbers(_VERSION)
    if version != PROTOCOL_VERSION:  # the rest of its body is not ours to read
        raise MessageError(f"speaks protocol version {version}, this side {PROTOCOL_VERSION}")
    flags = reader.take(_FLAGS.size).tobytes()
    member_count, founding_count = reader.take(1)[0], reader.take(1)[0]
    if max(flags) > 1 or max(member_count, founding_count) > MEMBER_COUNT_MAX:
        raise MessageError(f"Hello of {member_count} members, {founding_count} founders, {flags!r}")
    (admitted_index,) = reader.numbers(_INDEX)
    _check_places(admitted_index)
    cluster_id, node, incarnation = (reader.text(NAME_BYTES_MAX) for _ in range(3))
    members = tuple(reader.text(NAME_BYTES_MAX) for _ in range(member_count))
    pairs = [
        (reader.text(NAME_BYTES_MAX), reader.text(NAME_BYTES_MAX)) for _ in range(founding_count)
    ]
    reader.finish()
    founding = dict(pairs) if flags[1] else None
    if list(members) != sorted(set(members)) or pairs != sorted((founding or {}).items()):
        raise MessageError("Hello is not in its canonical form")
    return Hello(
        version, cluster_id, node, incarnation, members, flags[0] == 1, founding, admitted_index
    )


# --- the extension ------------------------------------------------------------------------------

# Relays' ids stay below 2**62 or a little above: no request has this one (relays.py).
_EXTENSION_ID: Final = _OFFSET.pack(INTEGER_MAX)
_EXTENSION_HEAD: Final = bytes((13,)) + _EXTENSION_ID  # a RelayReply's type, and the id
EXTENSION_HEAD_BYTES: Final = len(_EXTENSION_HEAD)


def begins_extension(payload: bytes) -> bool | None:
    """Return whether a frame whose payload begins so is an Extension; None: too short to tell."""
    if len(payload) < len(_EXTENSION_HEAD):
        return None if _EXTENSION_HEAD.startswith(payload) else False
    return payload.startswith(_EXTENSION_HEAD)


def _encode_extension(message: Extension) -> list[bytes]:
    fields = {key: read(message) for key, read in _EXTENSION_KEYS.items()}
    text = orjson.dumps(fields)
    assert len(text) <= EXTENSION_BYTES_MAX, fields
    return [_EXTENSION_ID, _COUNT.pack(1), struct.pack("<I", len(text)), text]


_EXTENSION_KEYS: Final[dict[str, Callable[[Extension], Any]]] = {
    "version": lambda extension: extension.build.version,
    "levels": lambda extension: [extension.build.level_min, extension.build.level_max],
    "level": lambda extension: extension.level,
}


def _decode_extension(body: memoryview) -> Extension:
    reader = _BodyReader(body)
    _, count = reader.numbers(_RELAY)
    if count != 1:
        raise MessageError(f"Extension of {count} frames")
    (size,) = reader.numbers(struct.Struct("<I"))
    if size > EXTENSION_BYTES_MAX:
        raise MessageError(f"Extension of {size} bytes; the limit is {EXTENSION_BYTES_MAX}")
    text = reader.take(size).tobytes()
    reader.finish()
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"Extension is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise MessageError("Extension is no JSON object")
    version = fields.get("version", UNSAID.build.version)
    if type(version) is not str or len(version.encode()) > NAME_BYTES_MAX:
        raise MessageError("Extension's `version` is no short text")
    levels = fields.get("levels", [UNSAID.build.level_min, UNSAID.build.level_max])
    level = fields.get("level", UNSAID.level)
    if type(levels) is not list or len(levels) != 2 or not all(map(_is_level, [*levels, level])):
        raise MessageError(f"Extension's levels are {levels!r} and {level!r}")
    if levels[0] > levels[1]:
        raise MessageError(f"Extension's levels {levels} are in the wrong order")
    return Extension(Build(version, *levels), level)


def _is_level(value: Any) -> bool:
    return type(value) is int and LEVEL_FIRST <= value <= LEVEL_MAX


def _text(text: str, bytes_max: int) -> bytes:
    encoded = text.encode()
    assert len(encoded) <= bytes_max, (text, bytes_max)
    return _VERSION.pack(len(encoded)) + encoded


class _BodyReader:
    """Takes a body apart from the front; every step checks what is left."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def take(self, size_bytes: int) -> memoryview:
        end = self._at + size_bytes
        if end > len(self._body):
            raise MessageError(f"body of {len(self._body)} bytes ends before byte {end}")
        taken = self._body[self._at : end]
        self._at = end
        return taken

    def numbers(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack(self.take(layout.size))
        if max(values, default=0) > INTEGER_MAX:
            raise MessageError(f"number out of bounds in {values}")
        return values

    def text(self, bytes_max: int) -> str:
        (size,) = self.numbers(_VERSION)
        if size > bytes_max:
            raise MessageError(f"text of {size} bytes; the limit is {bytes_max}")
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise MessageError(f"text is not UTF-8: {error}") from None

    def left(self) -> memoryview:
        return self.take(len(self._body) - self._at)

    def rest(self) -> bytes:
        return self.left().tobytes()

    def finish(self) -> None:
        if self._at != len(self._body):
            raise MessageError(f"{len(self._body) - self._at} bytes too many in a body")


# --- the table of types -------------------------------------------------------------------------

_BodyEncoder: TypeAlias = Callable[[Any], list[bytes]]
_BodyDecoder: TypeAlias = Callable[[memoryview], Message]


def _fixed(kind: type[Any], layout: str) -> tuple[type[Any], _BodyEncoder, _BodyDecoder]:
    codec = _Fixed(kind, layout)
    return kind, codec.encode, codec.decode


# The numbers are on the wire: a new type takes a new one, none is ever given twice.
_TYPES: Final[dict[int, tuple[type[Any], _BodyEncoder, _BodyDecoder]]] = {
    1: (Hello, _encode_hello, _decode_hello),
    2: _fixed(RequestVote, "<QQq"),
    3: _fixed(RequestVoteResponse, "<Q"),
    4: _fixed(PreVote, "<QQq"),
    5: _fixed(PreVoteGranted, "<Q"),
    6: (AppendEntries, _encode_append, _decode_append),
    7: _fixed(AppendEntriesResponse, "<QQ??"),
    8: _fixed(SnapshotOffer, "<Q"),
    9: _fixed(TimeoutNow, "<Q"),
    10: _fixed(ReadIndex, "<QQ"),
    11: _fixed(ReadIndexResponse, "<QQ"),
    12: (Relay, _encode_relay, _decode_relay_as(Relay)),
    13: (RelayReply, _encode_relay, _decode_relay_reply),
    14: (SnapshotRequest, _encode_snapshot_request, _decode_snapshot_request),
    15: (SnapshotChunk, _encode_chunk, _decode_chunk),
    16: (SnapshotRefused, _encode_refused, _decode_refused),
    17: _fixed(Health, "<Q?"),
    # A node of version 0.1 does not know it, and closes the connection: so does who sent it.
    18: (PeerRefused, _encode_refusal, _decode_refusal),
}
# Also a Relay, sent to nodes alone that say that they understand LEVEL_OF_USERS.
_RELAY_OF_PRINCIPAL: Final = bytes((19,))
_ENCODERS: Final = {kind: (bytes((code,)), encoder) for code, (kind, encoder, _) in _TYPES.items()}
_ENCODERS[Extension] = (_ENCODERS[RelayReply][0], _encode_extension)
_ENCODERS[About] = _ENCODERS[RelayReply][0], _encode_about
_DECODERS: Final = {code: decoder for code, (_, _, decoder) in _TYPES.items()}
_DECODERS[_RELAY_OF_PRINCIPAL[0]] = _decode_relay_of_principal
