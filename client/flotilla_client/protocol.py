"""The wire contract between clients and nodes: requests, replies, errors, batches.

What lives here: names, limits, encoding and strict decoding of every frame that a client and a
node exchange, and the one table of errors. What must not: sockets, clocks, randomness, or any
knowledge of how a request is carried out. Both sides import this module and no other shares it.

A message is a ZeroMQ multipart message; after the empty delimiter that REQ sends come
`header` (UTF-8 JSON) and, where publications travel packed, `lengths` (uint32 little-endian, one
a publication) and `data` (the publications, end to end). HAS_PROPERTIES in a length says that this
publication begins with its properties (properties.py).
"""

from __future__ import annotations

import re
import reprlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import orjson

from flotilla_client.error_table import ERRORS as ERRORS
from flotilla_client.error_table import ErrorRow as ErrorRow
from flotilla_client.error_table import ProtocolError as ProtocolError
from flotilla_client.error_table import nak_body as nak_body
from flotilla_client.policies import check_parts
from flotilla_client.properties import DELIVER_AFTER_MS_MAX as DELIVER_AFTER_MS_MAX
from flotilla_client.properties import EXPIRES_MS_MAX as EXPIRES_MS_MAX
from flotilla_client.properties import HEADER_NAME_BYTES_MAX as HEADER_NAME_BYTES_MAX
from flotilla_client.properties import HEADERS_MAX as HEADERS_MAX
from flotilla_client.properties import KEY_BYTES_MAX as KEY_BYTES_MAX
from flotilla_client.properties import PROPERTIES_BYTES_MAX as PROPERTIES_BYTES_MAX
from flotilla_client.properties import (
    Enveloped,
    Properties,
    delay_of,
    envelope_bytes,
    expiry_of,
)
from flotilla_client.properties import check as check_properties
from flotilla_client.properties import decode as decode_properties
from flotilla_client.properties import encode as encode_properties

PROTOCOL_VERSION: Final = 1

# Request types.
REQUEST_ID: Final = "REQUEST_ID"
SUB: Final = "SUB"
UNSUB: Final = "UNSUB"
PUT: Final = "PUT"
GET: Final = "GET"
TAKE: Final = "TAKE"
TOPICS: Final = "TOPICS"
STATUS: Final = "STATUS"
UPGRADE: Final = "UPGRADE"
INSPECT: Final = "INSPECT"
ADMIN: Final = "ADMIN"
SEEK: Final = "SEEK"
READ: Final = "READ"
REQUEST_TYPES: Final = frozenset(
    {
        *(REQUEST_ID, SUB, UNSUB, PUT, GET, TAKE, TOPICS, STATUS, UPGRADE, INSPECT, ADMIN),
        *(SEEK, READ),
    }
)

# Where a subscription starts, besides an id: behind all there is, or at the first that is kept.
NEW: Final = "new"
EARLIEST: Final = "earliest"

# What INSPECT may ask for; SETTINGS of the node that is asked, the rest of the leader.
CLIENTS: Final = "clients"
CLIENT: Final = "client"
SUBSCRIPTIONS: Final = "subscriptions"
GROUPS: Final = "groups"
PATTERNS: Final = "patterns"
SETTINGS: Final = "settings"
USERS: Final = "users"
AUDIT: Final = "audit"
TOPIC: Final = "topic"
INSPECTED: Final = frozenset(
    {CLIENTS, CLIENT, SUBSCRIPTIONS, GROUPS, PATTERNS, SETTINGS, USERS, AUDIT, TOPIC}
)

# What ADMIN may do: change what a principal may, end what belongs to others, steer the nodes.
ADD_USER: Final = "user-add"
ALLOW_USER: Final = "user-allow"
DENY_USER: Final = "user-deny"
REMOVE_USER: Final = "user-remove"
USER_CHANGES: Final = frozenset({ADD_USER, ALLOW_USER, DENY_USER, REMOVE_USER})
DROP_SUBSCRIPTION: Final = "drop-subscription"
DROP_CLIENT: Final = "drop-client"
DROP_GROUP: Final = "drop-group"
SEEK_GROUP: Final = "seek-group"
OF_GROUPS: Final = frozenset({DROP_GROUP, SEEK_GROUP})
PURGE: Final = "purge"
TRANSFER_LEADER: Final = "transfer-leader"
CHECKPOINT: Final = "checkpoint"
CREATE_TOPIC: Final = "topic-create"
ALTER_TOPIC: Final = "topic-alter"
DELETE_TOPIC: Final = "topic-delete"
OF_TOPICS: Final = frozenset({CREATE_TOPIC, ALTER_TOPIC, DELETE_TOPIC})
ACTS: Final = (
    USER_CHANGES
    | OF_GROUPS
    | OF_TOPICS
    | {
        DROP_SUBSCRIPTION,
        DROP_CLIENT,
        PURGE,
        TRANSFER_LEADER,
        CHECKPOINT,
    }
)
EVERYBODY_ELSE: Final = "*"  # as a user: every principal that is none itself

# Reply types.
ACK: Final = "ACK"
NAK: Final = "NAK"

# Limits. Each bounds what one client can make a node hold.
HEADER_BYTES_MAX: Final = 16 * 1024  # of a request, besides a publication's text: 0.5 ms of JSON
TEXT_HEADER_BYTES_MAX: Final = 2 * 1024 * 1024  # with it; and of a reply, see decode_reply
TOPIC_BYTES_MAX: Final = 255  # as in NATS and Kafka (249): a name, not a document
NAME_BYTES_MAX: Final = 128  # client ids and request ids: UUIDs with room for a prefix
PUBLICATION_BYTES_MAX: Final = 1024 * 1024  # NATS' and Kafka's default: 1 MiB
BATCH_BYTES_MAX: Final = 1024 * 1024  # a batch must fit into one Raft entry
HAS_PROPERTIES: Final = 1 << 31  # in a publication's length, of which 21 bits are a size
_SIZE: Final = HAS_PROPERTIES - 1
BATCH_COUNT_MAX: Final = 65_536  # publications in a batch: bounds the work of one request
DELAYS_MAX: Final = 1_024  # runs of one delay in a batch: each is a row of a node's, 12 ms in all
GET_WAIT_MS_MAX: Final = 60_000  # a parked GET holds memory at the leader
ANY_TOPIC_COUNT_MAX: Final = 1_000  # topics in `last_ids` of one GET
TOPICS_COUNT_MAX: Final = 1_000  # rows in one answer of TOPICS or INSPECT: below a header's size
LEVEL_MAX: Final = 255  # of a cluster: one byte of an entry names it
PATTERNS_MAX: Final = 64  # of one kind of a user: each is tried for a topic that is new
PATTERN_WORDS_MAX: Final = 16  # of a SUB's pattern: what looking for a new topic's patterns costs
LEASE_MS: Final = 30_000  # of a group whose SUB says none
LEASE_MS_MIN: Final = 100  # below that a slow fsync would look like a dead client
LEASE_MS_MAX: Final = 43_200_000  # 12 hours; what takes longer extends it
DELAY_MS_MAX: Final = 86_400_000  # a day until what a NAK has given back is given again
ATTEMPTS_MAX: Final = 10_000  # of `max_attempts`
TAKE_COUNT_MAX: Final = 4_096  # publications leased by one TAKE
SETTLE_ROWS_MAX: Final = 256  # runs of ids in one TAKE: below a header's size
SETTLED_MAX: Final = 8_192  # ids in these runs: some ms to apply
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024  # all parts; who sends more is closed, not answered
INTEGER_MAX: Final = 2**53 - 1  # what JSON readers of every language agree on
_REQUEST_ID_SAID: Final = re.compile(rb'"request_id"\s*:\s*"([ !#-\[\]-~]{1,%d})"' % NAME_BYTES_MAX)
_TIME: Final = re.compile(r"@[0-9]{1,15}")  # where a subscription starts: the time of day in ms
_NUMBER: Final = re.compile(r"[0-9]{0,15}")
_USER: Final = re.compile(r"[a-z0-9-]{1,32}")
# Behind a topic's name, which is printable: what is published there with a delay has counters of
# its own, as if it were another topic's.
_LANE: Final = "\x1fdelayed"
EPOCHS_A_RECOVERY: Final = 2**32  # a recovery raises every client's epoch by this: 2 million fit


@dataclass(slots=True)
class Request:
    """A request as decoded from the wire; every field checked by `decode_request`.

    `epoch` None: sent by hand, not fenced. `body` holds the checked fields of the type.
    `lengths` and `data` are empty unless the request carried a batch. `has_properties`: of any
    publication in it; `has_expiry`: any of them expires; `is_delayed`: all of them are.
    """

    type: str
    request_id: str
    topic: str = ""
    client_id: str = ""
    epoch: int | None = None
    body: dict[str, Any] = field(default_factory=dict)
    lengths: bytes = b""
    data: bytes = b""
    has_properties: bool = False
    has_expiry: bool = False
    is_delayed: bool = False


@dataclass(slots=True)
class Reply:
    """A reply as decoded from the wire. `leader` is "" while no leader is known.

    `properties`: of those publications in it that have some, by their place from 0 on.
    """

    type: str
    request_id: str
    node: str
    leader: str
    term: int
    body: dict[str, Any]
    lengths: bytes = b""
    data: bytes = b""
    properties: Mapping[int, Properties] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True for an ACK."""
        return self.type == ACK


def has_wildcard(topic: str) -> bool:
    """Tell if a SUB to that name means many topics: `orders.*`, `orders.>`."""
    return "*" in topic or ">" in topic


def is_pattern(topic: str) -> bool:
    """Tell if a topic's name is a pattern, here or elsewhere: `orders.*`, `orders.>`, `orders/#`.

    Whoever means many topics by one of elsewhere would wait for ever for the one that is called so.
    """
    words = re.split(r"[./]", topic)
    return has_wildcard(topic) or "#" in words or "+" in words


def lane_of(topic: str, is_delayed: bool) -> str:
    """Return under which name a client counts what it publishes to a topic, delayed or at once."""
    return topic + _LANE if is_delayed else topic


def topic_of(lane: str) -> str:
    """Return which topic's a lane is."""
    return lane.removesuffix(_LANE)


def lane_said(lane: str) -> str:
    """Return a lane as people read it."""
    return f"{topic_of(lane)} (with a delay)" if lane.endswith(_LANE) else lane


def no_pattern(topic: str) -> str:
    """Return what is said where a pattern is of no use, or is none."""
    if has_wildcard(topic):
        return f"`{topic}` is a pattern of topics, and what is due here is one topic"
    return (
        f"`{topic}` is no pattern of topics: in `orders.*` a `*` stands for one word between dots,"
        " in `orders.>` the `>` for one or more at the end"
    )


def check_pattern(pattern: str) -> None:
    """Refuse what is no pattern of topics: `orders.new`, `orders.*`, `orders.>`. As in NATS.

    `*` stands for one word between dots, `>`, at the end, for one or more. Raises ProtocolError.
    """
    _within("a pattern", pattern, TOPIC_BYTES_MAX)
    if not pattern or not pattern.isprintable():
        raise ProtocolError("bad_request", "a pattern of topics is printable text, and not empty")
    words = pattern.split(".")
    if any(len(word) > 1 and ("*" in word or ">" in word) for word in words):
        message = f"`{pattern}`: `*` and `>` stand for whole words between dots"
        raise ProtocolError("bad_request", message)
    if ">" in words[:-1]:
        raise ProtocolError("bad_request", f"`{pattern}`: `>` may only be the last word")


def check_followed(pattern: str) -> None:
    """Refuse what nobody may subscribe to as a pattern. Raises ProtocolError."""
    check_pattern(pattern)
    if pattern.count(".") >= PATTERN_WORDS_MAX:
        message = f"`{pattern}` has more than {PATTERN_WORDS_MAX} words"
        raise ProtocolError("too_large", message, limit=PATTERN_WORDS_MAX)


def matches(pattern: str, topic: str) -> bool:
    """Return whether a topic is of a pattern: `*` is any word, `>` the last one and all behind."""
    words, names = pattern.split("."), topic.split(".")
    if words[-1] == ">":
        words = words[:-1]
        if len(names) <= len(words):
            return False
        names = names[: len(words)]
    if len(words) != len(names):
        return False
    return all(word in ("*", name) for word, name in zip(words, names, strict=True))


def check_user(name: str) -> None:
    """Refuse what is no user: a key's name, or EVERYBODY_ELSE. Raises ProtocolError."""
    if name != EVERYBODY_ELSE and not _USER.fullmatch(name):
        message = f"a user is a key's name, 1 to 32 of a-z, 0-9 and -, or `{EVERYBODY_ELSE}`"
        raise ProtocolError("bad_request", message)


# --- batches ------------------------------------------------------------------------------------


def pack(publications: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return (lengths, data) of a batch: uint32 little-endian a publication, and all end to end."""
    sizes = list(map(len, publications))
    if Enveloped in set(map(type, publications)):
        for place, publication in enumerate(publications):
            if type(publication) is Enveloped:
                sizes[place] |= HAS_PROPERTIES
    return struct.pack(f"<{len(sizes)}I", *sizes), b"".join(publications)


def unpack(lengths: bytes, data: bytes) -> list[bytes]:
    """Return the publications of a batch, those with properties as Enveloped.

    Raises ProtocolError bad_request if they don't add up.
    """
    publications: list[bytes] = []
    start = 0
    for size in batch_sizes(lengths, len(data)):
        if size & HAS_PROPERTIES:
            end = start + (size & _SIZE)
            publications.append(Enveloped(data[start:end]))
        else:
            end = start + size
            publications.append(data[start:end])
        start = end
    return publications


def text_of(publication: bytes) -> bytes:
    """Return what is published in a publication of `unpack`, whose properties were read before."""
    if type(publication) is Enveloped:
        return publication[envelope_bytes(publication) :]
    return publication


def envelopes(lengths: bytes, data: bytes) -> dict[int, bytes]:
    """Return those of a batch's publications that have properties, by place: these as they stand.

    Raises ProtocolError bad_request if they don't add up.
    """
    if sum(batch_sizes(lengths, len(data))) == len(data):
        return {}  # as a rule
    return {
        place: publication[: envelope_bytes(publication)]
        for place, publication in enumerate(unpack(lengths, data))
        if type(publication) is Enveloped
    }


def batch_sizes(lengths: bytes, data_bytes: int) -> tuple[int, ...]:
    """Return the sizes in `lengths`; raise bad_request unless they add up to `data_bytes`.

    With the bit HAS_PROPERTIES, where it is set: if it is nowhere, they add up as they are.
    """
    if len(lengths) % 4:
        raise ProtocolError(
            "bad_request", f"lengths frame of {len(lengths)} bytes is not a row of uint32"
        )
    sizes = struct.unpack(f"<{len(lengths) // 4}I", lengths)
    if sum(sizes) != data_bytes and (total := total_bytes(sizes)) != data_bytes:
        raise ProtocolError(
            "bad_request", f"lengths add up to {total} bytes, data has {data_bytes}"
        )
    return sizes


def total_bytes(sizes: Sequence[int]) -> int:
    """Return what sizes add up to, without the bit HAS_PROPERTIES."""
    return sum(size & _SIZE for size in sizes)


def stripped(lengths: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return a batch without its properties, for who knows of none; they were read before."""
    return pack(list(map(text_of, unpack(lengths, data))))


def batch_without_expiry(lengths: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Return a batch without expiries and delays, for who knows of none; they were read before."""
    if sum(batch_sizes(lengths, len(data))) == len(data):
        return lengths, data  # as a rule: none has properties
    return pack(list(map(lasting, unpack(lengths, data))))


def lasting(publication: bytes) -> bytes:
    """Return a publication of `unpack` without its expiry and its delay."""
    if type(publication) is not Enveloped:
        return publication
    if not expiry_of(publication) and not delay_of(publication):
        return publication
    properties, end = decode_properties(publication)
    envelope, text = encode_properties(properties.lasting(), were_read=True), publication[end:]
    return Enveloped(envelope + text) if envelope else text


def expiries(lengths: bytes, data: bytes) -> list[int]:
    """Return each publication's `expires_ms`, 0 for none, of a batch that was read before."""
    return list(_of_each(expiry_of, lengths, data))


def has_expiry(lengths: bytes, data: bytes) -> bool:
    """Return whether any publication of a batch that was read before expires."""
    return any(_of_each(expiry_of, lengths, data))


def delays(lengths: bytes, data: bytes) -> list[int]:
    """Return each publication's `deliver_after_ms`, 0 for none, of a batch that was read before."""
    return list(_of_each(delay_of, lengths, data))


def _of_each(read: Callable[[bytes, int], int], lengths: bytes, data: bytes) -> Iterator[int]:
    start = 0
    for size in struct.unpack(f"<{len(lengths) >> 2}I", lengths):
        yield read(data, start) if size >= HAS_PROPERTIES else 0
        start += size & _SIZE


# --- encoding -----------------------------------------------------------------------------------


def encode_request(request: Request) -> list[bytes]:
    """Return the frames of a request, without the empty delimiter."""
    header: dict[str, Any] = {
        "v": PROTOCOL_VERSION,
        "type": request.type,
        "topic": request.topic,
        "client_id": request.client_id,
        "request_id": request.request_id,
        "body": request.body,
    }
    if request.epoch is not None:
        header["epoch"] = request.epoch
    return _frames(header, request.lengths, request.data)


def encode_reply(reply: Reply) -> list[bytes]:
    """Return the frames of a reply, without the empty delimiter."""
    header = {
        "v": PROTOCOL_VERSION,
        "type": reply.type,
        "request_id": reply.request_id,
        "node": reply.node,
        "leader": reply.leader,
        "term": reply.term,
        "body": reply.body,
    }
    return _frames(header, reply.lengths, reply.data)


def _frames(header: dict[str, Any], lengths: bytes, data: bytes) -> list[bytes]:
    encoded = orjson.dumps(header)
    return [encoded, lengths, data] if lengths else [encoded]


# --- decoding -----------------------------------------------------------------------------------


def decode_reply(frames: Sequence[bytes]) -> Reply:
    """Return the reply in `frames` (delimiter removed). Raises ProtocolError.

    A node keeps its headers within TEXT_HEADER_BYTES_MAX, but for a REQUEST_ID's of a client whose
    thousand topics have long names of quotes: each is two bytes of JSON.
    """
    header = _header(frames, MESSAGE_BYTES_MAX)
    kind = header.get("type")
    if kind not in (ACK, NAK):
        raise ProtocolError("bad_request", f"a reply's type is ACK or NAK, not {_shown(kind)}")
    reply = Reply(
        kind,
        _text(header, "request_id", NAME_BYTES_MAX),
        _text(header, "node", NAME_BYTES_MAX),
        _text(header, "leader", NAME_BYTES_MAX),
        _integer(header, "term", 0) or 0,
        _mapping(header, "body"),
    )
    if len(frames) > 1:
        reply.lengths, reply.data, sizes = _batch_frames(frames)
        reply.properties = _properties(sizes, reply.data)
    return reply


def decode_request(frames: Sequence[bytes]) -> Request:
    """Return the request in `frames` (delimiter removed), with every field of its type checked.

    Raises ProtocolError with `bad_request`, `too_large`; the node's state is never involved.
    """
    header = _header(frames, HEADER_BYTES_MAX)
    kind = header.get("type")
    if not isinstance(kind, str) or kind not in REQUEST_TYPES:
        raise ProtocolError(
            "bad_request",
            f"unknown request type {_shown(kind)}; known: {', '.join(sorted(REQUEST_TYPES))}",
        )
    lengths, data, sizes = _batch_frames(frames)
    request = Request(
        kind,
        _text(header, "request_id", NAME_BYTES_MAX),
        _text(header, "topic", TOPIC_BYTES_MAX),
        _text(header, "client_id", NAME_BYTES_MAX),
        _integer(header, "epoch", 1),
        _mapping(header, "body"),
        lengths,
        data,
    )
    if sizes:
        request.has_properties = True
        request.has_expiry, request.is_delayed = _check_properties(sizes, data)
    _CHECKS[kind](request)
    return request


def request_id_of(frames: Sequence[bytes]) -> str:
    """Return the request id of frames that `decode_request` refused, "" if they have none.

    Whatever else is wrong with them: who speaks another version waits for its own request's NAK.
    All versions keep this much: the first frame is a JSON object with `v` and `request_id`.
    """
    if not frames:
        return ""
    if _is_too_large(frames[0], HEADER_BYTES_MAX):  # not parsed: most likely at either end
        ends = frames[0][:HEADER_BYTES_MAX], frames[0][-HEADER_BYTES_MAX:]
        found = next(filter(None, map(_REQUEST_ID_SAID.search, ends)), None)
        return found[1].decode() if found else ""
    try:
        return _text(_object(frames[0]), "request_id", NAME_BYTES_MAX)
    except ProtocolError:
        return ""


def _header(frames: Sequence[bytes], bytes_max: int) -> dict[str, Any]:
    if frames and len(frames[0]) > bytes_max and _is_too_large(frames[0], bytes_max):
        raise ProtocolError("too_large", f"header of {len(frames[0])} bytes", limit=bytes_max)
    header = _object(frames[0]) if frames else {}
    if header.get("v", PROTOCOL_VERSION) != PROTOCOL_VERSION:
        theirs = _shown(header["v"])
        message = f"protocol version {theirs}; this side speaks {PROTOCOL_VERSION}"
        raise ProtocolError("bad_request", message, version=PROTOCOL_VERSION)
    if len(frames) not in (1, 3):
        raise ProtocolError(
            "bad_request",
            f"{len(frames)} frames; a header alone or header, lengths and data are due",
        )
    return header


def _is_too_large(frame: bytes, bytes_max: int) -> bool:
    """Return whether a header is over its limit, before any of it is parsed.

    Parsing 2 MB of small things takes a second and forty times their memory; of a header that is
    large for its publication's text alone, it takes some milliseconds.
    """
    if len(frame) <= bytes_max:
        return False
    return len(frame) > TEXT_HEADER_BYTES_MAX or not _is_text_but(frame, bytes_max)


def _is_text_but(frame: bytes, rest_bytes: int) -> bool:
    """Return whether a header is one JSON string but for `rest_bytes` before and behind it."""
    key = frame.find(b'"publication"', 0, rest_bytes)
    if key < 0:
        return False
    start = frame.find(b'"', key + len(b'"publication"'), rest_bytes)
    if start < 0:
        return False
    inside = frame[start + 1 : len(frame) - rest_bytes].replace(rb"\\", b"")
    return inside.count(b'"') == inside.count(rb"\"")  # none of them ends the string


def _object(frame: bytes) -> dict[str, Any]:
    try:
        header = orjson.loads(frame)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("bad_request", f"header is not JSON: {error}") from None
    if type(header) is not dict:
        raise ProtocolError("bad_request", "header is not a JSON object")
    return header


def _batch_frames(frames: Sequence[bytes]) -> tuple[bytes, bytes, Sequence[int]]:
    """Return lengths, data, and the sizes if any publication has properties."""
    if len(frames) == 1:
        return b"", b"", ()
    lengths, data = frames[1], frames[2]
    if len(lengths) == 4 and int.from_bytes(lengths, "little") == len(data) <= BATCH_BYTES_MAX:
        return bytes(lengths), bytes(data), ()  # as a rule: one, without properties
    if len(lengths) > 4 * BATCH_COUNT_MAX:
        raise ProtocolError(
            "too_large", f"batch of {len(lengths) // 4} publications", limit=BATCH_COUNT_MAX
        )
    if len(data) > BATCH_BYTES_MAX:
        raise ProtocolError("too_large", f"batch of {len(data)} bytes", limit=BATCH_BYTES_MAX)
    sizes = batch_sizes(lengths, len(data))
    if not sizes or max(sizes) < HAS_PROPERTIES:  # as a rule
        return bytes(lengths), bytes(data), ()
    return bytes(lengths), bytes(data), sizes


def _properties(sizes: Sequence[int], data: bytes) -> dict[int, Properties]:
    """Return the properties of those publications that have some, by place."""
    properties: dict[int, Properties] = {}
    start = 0
    for place, size in enumerate(sizes):
        end = start + (size & _SIZE)
        if size & HAS_PROPERTIES:
            properties[place], _ = decode_properties(data[start:end])
        start = end
    return properties


def _check_properties(sizes: Sequence[int], data: bytes) -> tuple[bool, bool]:
    """Check the properties in a batch; return whether any expires, and is delayed."""
    has_expiry = is_delayed = False
    are_texts = not data.isascii()  # what is ASCII is text
    names: set[bytes] = set()
    start = 0
    for size in sizes:
        end = start + (size & _SIZE)
        if size >= HAS_PROPERTIES:
            expires, delayed = check_properties(data, start, end, names, are_texts=are_texts)
            has_expiry, is_delayed = has_expiry or expires, is_delayed or delayed
        start = end
    return has_expiry, is_delayed


def _text(fields: Mapping[str, Any], name: str, bytes_max: int) -> str:
    value: Any = fields.get(name, "")
    if type(value) is not str:  # JSON brings no other kinds of it
        raise ProtocolError("bad_request", f"`{name}` is not a string")
    size = len(value)
    if 4 * size > bytes_max and not (size <= bytes_max and value.isascii()):
        _within(name, value, bytes_max)
    return value


def _within(name: str, text: str, bytes_max: int) -> None:
    if len(text) > bytes_max or len(text.encode()) > bytes_max:
        raise ProtocolError("too_large", f"`{name}` is over {bytes_max} bytes", limit=bytes_max)


def _integer(fields: Mapping[str, Any], name: str, low: int, high: int = INTEGER_MAX) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:  # a bool is no number here
        raise ProtocolError("bad_request", f"`{name}` is not an integer from {low} to {high}")
    return value


def _mapping(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value: Any = fields.get(name, {})
    if value is None:
        return {}
    if type(value) is not dict:
        raise ProtocolError("bad_request", f"`{name}` is not a JSON object")
    return value


def _shown(value: Any) -> str:
    """Return a stranger's value for a message: short, and never deeper than Python's stack."""
    return "a list or an object" if isinstance(value, dict | list) else reprlib.repr(value)


def _needs_client(request: Request) -> None:
    if not request.client_id:
        raise ProtocolError(
            "bad_request", f"{request.type} needs a client_id; REQUEST_ID issues one"
        )


def _needs_topic(request: Request) -> None:
    if not request.topic:
        raise ProtocolError("bad_request", f"{request.type} needs a topic")
    if not request.topic.isprintable():
        raise ProtocolError("bad_request", "a topic's name is printable text")


def _no_batch(request: Request) -> None:
    if request.lengths or request.data:
        raise ProtocolError("bad_request", f"{request.type} takes no batch frames")


def _check_request_id(request: Request) -> None:
    _no_batch(request)
    sequence = _integer(request.body, "sequence", 1)
    checked = {"sequence": sequence, "nonce": _text(request.body, "nonce", NAME_BYTES_MAX)}
    if request.body.get("recovery") is not None:  # "" is an answer: there was none
        checked["recovery"] = _text(request.body, "recovery", NAME_BYTES_MAX)
    if request.body.get("create", False) is not False:
        if request.body["create"] is not True or not request.client_id:
            message = "`create` is true or false, of a client that names itself in `client_id`"
            raise ProtocolError("bad_request", message)
        if not request.client_id.isprintable():  # operators see it, and have to be able to name it
            raise ProtocolError("bad_request", "a client's id is printable text")
        checked["create"] = True
    request.body = checked


def _check_subscription(request: Request) -> None:
    _needs_client(request)
    _needs_topic(request)
    _no_batch(request)
    body = request.body
    request.body = {"sequence": _integer(body, "sequence", 1)}
    if body.get("group") is not None:
        request.body |= _group_settings(request.topic, body)


def _group_settings(topic: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a SUB or UNSUB says of a group; None: what it does not say."""
    dead_letter, max_attempts = None, _integer(body, "max_attempts", 0, ATTEMPTS_MAX)
    if body.get("dead_letter") is not None:
        dead_letter = _text(body, "dead_letter", TOPIC_BYTES_MAX)
        if dead_letter and not dead_letter.isprintable():
            raise ProtocolError("bad_request", "a topic's name is printable text")
    _check_dead_letter(topic, dead_letter, "a group's")
    if dead_letter and not max_attempts:
        message = "`dead_letter` goes with `max_attempts`: nothing is given up without"
        raise ProtocolError("bad_request", message)
    ordered_by_key = body.get("ordered_by_key")
    if ordered_by_key is not None and type(ordered_by_key) is not bool:  # 0.0 == False
        raise ProtocolError("bad_request", "`ordered_by_key` is true or false")
    return {
        "group": _group(body),
        "lease_ms": _integer(body, "lease_ms", LEASE_MS_MIN, LEASE_MS_MAX),
        "max_attempts": max_attempts,
        "dead_letter": dead_letter,
        "ordered_by_key": ordered_by_key,
    }


def _check_dead_letter(topic: str, dead_letter: str | None, whose: str) -> None:
    if dead_letter and dead_letter == topic:
        raise ProtocolError("bad_request", f"{whose} dead letters can't go to its own topic")
    if dead_letter and is_pattern(dead_letter):
        raise ProtocolError("bad_request", no_pattern(dead_letter))


def _group(body: Mapping[str, Any]) -> str:
    group = _text(body, "group", NAME_BYTES_MAX)
    if not group or not group.isprintable():
        raise ProtocolError("bad_request", "a group's name is printable text, and not empty")
    return group


def _check_sub(request: Request) -> None:
    start = check_start(request.body.get("start"))
    _check_subscription(request)
    request.body["start"] = start


def _check_seek(request: Request) -> None:
    _start_said(request.body, SEEK)
    _check_sub(request)


def _start_said(body: Mapping[str, Any], what: str) -> str | int:
    """Return the `start` that has to be said."""
    if body.get("start") is None:
        message = f"{what} needs a `start`: `{NEW}`, `{EARLIEST}` or an id"
        raise ProtocolError("bad_request", message)
    return check_start(body["start"])


def check_start(start: Any) -> str | int:
    """Return where a subscription is to start, NEW if that is not said. Raises ProtocolError."""
    if start is None:
        return NEW
    if type(start) is int and 1 <= start <= INTEGER_MAX:
        return start
    if isinstance(start, str) and (start in (NEW, EARLIEST) or _TIME.fullmatch(start)):
        return start
    message = (
        f"`start` is {_shown(start)}: `{NEW}`, `{EARLIEST}`, an id, the first to be read, or `@`"
        " and a time of day in ms since 1970"
    )
    raise ProtocolError("bad_request", message)


def _check_read(request: Request) -> None:
    _needs_topic(request)
    _no_batch(request)
    from_id = _integer(request.body, "from_id", 1)
    if from_id is None:
        raise ProtocolError("bad_request", "READ needs a `from_id`, the first to be read")
    request.body = {"from_id": from_id, **_bounds(request.body)}


def _check_put(request: Request) -> None:
    _needs_client(request)
    _needs_topic(request)
    counter = _integer(request.body, "counter", 0)
    if counter is None:
        raise ProtocolError("bad_request", "PUT needs a `counter`")
    if not request.lengths:
        _take_text_publication(request)
    count = len(request.lengths) // 4
    if request.body.get("count", count) != count:
        said = _shown(request.body["count"])
        raise ProtocolError("bad_request", f"`count` is {said}, the batch has {count}")
    if request.is_delayed:
        _check_delays(delays(request.lengths, request.data))
    request.body = {"counter": counter, "count": count}


def _check_delays(asked: Sequence[int]) -> None:
    if not all(asked):
        message = "a batch is delayed as a whole: some of its publications have a delay, some none"
        raise ProtocolError("bad_request", message)
    runs = sum(1 for _ in groupby(asked))
    if runs > DELAYS_MAX:
        raise ProtocolError("too_large", f"batch of {runs} runs of one delay", limit=DELAYS_MAX)


def _take_text_publication(request: Request) -> None:
    publication = request.body.get("publication")
    if not isinstance(publication, str):
        raise ProtocolError(
            "bad_request", "PUT needs a `publication` (text) or the two batch frames"
        )
    data = publication.encode()
    if len(data) > PUBLICATION_BYTES_MAX:
        raise ProtocolError(
            "too_large", f"publication of {len(data)} bytes", limit=PUBLICATION_BYTES_MAX
        )
    request.lengths, request.data = pack([data])


def _check_get(request: Request) -> None:
    _needs_client(request)
    _no_batch(request)
    body = request.body
    checked = _bounds(body)
    checked["wait_ms"] = min(_integer(body, "wait_ms", 0) or 0, GET_WAIT_MS_MAX)
    if request.topic:
        _needs_topic(request)
        checked["last_id"] = _integer(body, "last_id", 0)
        checked["placed"] = _integer(body, "placed", 0) or 0
    else:
        checked["last_ids"] = _by_topic(body, "last_ids")
        checked["placed"] = _by_topic(body, "placed")
    request.body = checked


def _check_take(request: Request) -> None:
    _needs_client(request)
    _needs_topic(request)
    _no_batch(request)
    body = request.body
    max_count, most = _integer(body, "max_count", 0), min(TAKE_COUNT_MAX, BATCH_COUNT_MAX)
    checked: dict[str, Any] = {
        "group": _group(body),
        "number": _integer(body, "number", 1),
        "max_count": min(1 if max_count is None else max_count, most),
        "max_bytes": min(_integer(body, "max_bytes", 1) or BATCH_BYTES_MAX, BATCH_BYTES_MAX),
        "lease_ms": _integer(body, "lease_ms", LEASE_MS_MIN, LEASE_MS_MAX),
        "expiry": body.get("expiry") is True,
        "wait_ms": min(_integer(body, "wait_ms", 0) or 0, GET_WAIT_MS_MAX),
        "acks": _settlements(body, "acks", 0, 0),
        "naks": _settlements(body, "naks", 0, DELAY_MS_MAX),
        "extends": _settlements(body, "extends", LEASE_MS_MIN, LEASE_MS_MAX),
    }
    rows = [*checked["acks"], *checked["naks"], *checked["extends"]]
    if len(rows) > SETTLE_ROWS_MAX:
        raise ProtocolError("too_large", f"{len(rows)} runs to settle", limit=SETTLE_ROWS_MAX)
    count = sum(row[2] + 1 - row[1] for row in rows)
    if count > SETTLED_MAX:
        raise ProtocolError("too_large", f"{count} ids to settle", limit=SETTLED_MAX)
    request.body = checked


def _settlements(body: Mapping[str, Any], name: str, ms_min: int, ms_max: int) -> list[list[int]]:
    """Return rows of [token, first id, last id], with milliseconds besides if there may be any."""
    rows = body.get(name) or []
    columns = 4 if ms_max else 3
    if not isinstance(rows, list) or not all(
        isinstance(row, list)
        and len(row) == columns
        and all(type(each) is int and 0 <= each <= INTEGER_MAX for each in row)
        and 1 <= row[1] <= row[2]
        and (columns == 3 or ms_min <= row[3] <= ms_max)
        for row in rows
    ):
        ms = f", {ms_min} to {ms_max} ms" if ms_max else ""
        message = f"`{name}` is not a list of [token, first id, last id{ms}]"
        raise ProtocolError("bad_request", message)
    return rows


def _bounds(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much whoever reads wants at once."""
    bounds = {
        "max_count": min(_integer(body, "max_count", 1) or 1, BATCH_COUNT_MAX),
        "max_bytes": min(_integer(body, "max_bytes", 1) or BATCH_BYTES_MAX, BATCH_BYTES_MAX),
        "text": body.get("text") is True,
        "properties": body.get("properties") is True,
        "expiry": body.get("expiry") is True,
        "runs": body.get("runs") is True,
    }
    if bounds["text"] and bounds["max_count"] != 1:
        raise ProtocolError("bad_request", "`text` is for one publication: leave `max_count` at 1")
    return bounds


def _by_topic(body: Mapping[str, Any], name: str) -> dict[str, int]:
    """Return numbers of topics."""
    found = _mapping(body, name)
    if len(found) > ANY_TOPIC_COUNT_MAX:
        raise ProtocolError(
            "too_large", f"`{name}` of {len(found)} topics", limit=ANY_TOPIC_COUNT_MAX
        )
    for topic in found:
        _within(name, topic, TOPIC_BYTES_MAX)
    return {topic: _integer(found, topic, 0) or 0 for topic in found}


def _check_topics(request: Request) -> None:
    _no_batch(request)
    if request.body.get("subscribers") is True:
        _needs_topic(request)
        after = _text(request.body, "after", NAME_BYTES_MAX)
        request.body = {"all": True, "subscribers": True, "after": after}
        return
    everything = request.body.get("all") is True
    if not everything:
        _needs_client(request)
    request.body = {"all": everything, "after": _text(request.body, "after", TOPIC_BYTES_MAX)}


def _check_status(request: Request) -> None:
    _no_batch(request)
    request.body = {}


def _check_inspect(request: Request) -> None:
    _no_batch(request)
    what = _text(request.body, "what", NAME_BYTES_MAX)
    if what not in INSPECTED:
        known = ", ".join(sorted(INSPECTED))
        raise ProtocolError("bad_request", f"`what` is {_shown(what)}; known: {known}")
    if what == CLIENT:
        _needs_client(request)
    if what == TOPIC:
        _needs_topic(request)
    after = _text(request.body, "after", TOPIC_BYTES_MAX)
    if what == AUDIT and not _NUMBER.fullmatch(after):
        raise ProtocolError("bad_request", "`after` is the number of an act")
    request.body = {"what": what, "after": after}


def _check_admin(request: Request) -> None:
    _no_batch(request)
    body = request.body
    act = _text(body, "act", NAME_BYTES_MAX)
    if act not in ACTS:
        known = ", ".join(sorted(ACTS))
        raise ProtocolError("bad_request", f"`act` is {_shown(act)}; known: {known}")
    told: dict[str, Any] = {"act": act, "act_id": _text(body, "act_id", NAME_BYTES_MAX)}
    if act in (DROP_SUBSCRIPTION, DROP_CLIENT):
        _needs_client(request)
    if act in (DROP_SUBSCRIPTION, PURGE) or act in OF_GROUPS or act in OF_TOPICS:
        _needs_topic(request)
    if act in OF_GROUPS:
        told["group"] = _group(body)
        told |= {"start": _start_said(body, act)} if act == SEEK_GROUP else {}
    elif act == PURGE:
        told["last_id"] = _integer(body, "last_id", 0)
        if told["last_id"] is None:
            message = "purge needs a `last_id`: up to which id; TOPICS says where a topic ends"
            raise ProtocolError("bad_request", message)
    elif act == DELETE_TOPIC:
        told["ends"] = _flag(body, "ends")
    elif act in OF_TOPICS:
        told["policy"] = _policy_said(request.topic, act, body)
    elif act == TRANSFER_LEADER:
        told["node"] = _text(body, "node", NAME_BYTES_MAX)
    elif act in USER_CHANGES:
        told |= _change_of_user(act, body)
    request.body = told


def _policy_said(topic: str, act: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a policy that a topic is made with, or is to have from now on."""
    if act == CREATE_TOPIC and is_pattern(topic):
        raise ProtocolError("bad_request", no_pattern(topic))
    parts = check_parts(_mapping(body, "policy"))
    if "dead_letter" in parts:
        _check_dead_letter(topic, _text(parts, "dead_letter", TOPIC_BYTES_MAX), "a topic's")
    return parts


def _change_of_user(act: str, body: Mapping[str, Any]) -> dict[str, Any]:
    user = _text(body, "user", NAME_BYTES_MAX)
    check_user(user)
    rights: dict[str, Any] = {name: _patterns(body, name) for name in ("publish", "subscribe")}
    rights |= {name: _flag(body, name) for name in ("observe", "admin")}
    if act in (ALLOW_USER, DENY_USER) and not any(rights.values()):
        message = "say what: `publish`, `subscribe` (patterns of topics), `observe` or `admin`"
        raise ProtocolError("bad_request", message)
    return {"user": user, **rights}


def _flag(body: Mapping[str, Any], name: str) -> bool:
    """Return whether an act is told so: what is meant as a yes must not pass for a no."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ProtocolError("bad_request", f"`{name}` is true or false")
    return value is True


def _patterns(body: Mapping[str, Any], name: str) -> list[str]:
    patterns = body.get(name) or []
    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
        raise ProtocolError("bad_request", f"`{name}` is not a list of patterns of topics")
    if len(patterns) > PATTERNS_MAX:
        raise ProtocolError("too_large", f"`{name}`: {len(patterns)} patterns", limit=PATTERNS_MAX)
    for pattern in patterns:
        check_pattern(pattern)
    return sorted(set(patterns))


def _check_upgrade(request: Request) -> None:
    _no_batch(request)
    request.body = {"level": _integer(request.body, "level", 1, LEVEL_MAX)}


_CHECKS: Final = {
    REQUEST_ID: _check_request_id,
    SUB: _check_sub,
    UNSUB: _check_subscription,
    PUT: _check_put,
    GET: _check_get,
    TAKE: _check_take,
    TOPICS: _check_topics,
    STATUS: _check_status,
    UPGRADE: _check_upgrade,
    INSPECT: _check_inspect,
    ADMIN: _check_admin,
    SEEK: _check_seek,
    READ: _check_read,
}
