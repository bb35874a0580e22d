"""What stands in the Raft log: operations, and their strict, versioned encoding.

What lives here: one dataclass an operation, and the bytes of an entry (a batch of operations).
What must not: what an operation does (`store.py`), and clocks: the leader's time comes in as
`stamp_ms`.

An entry is `level` (uint8), `size` (uint32 little-endian) of the metas, the metas (JSON:
`[stamp_ms, [[kind, ...], ...]]`), then for each PUT, in order, its `lengths` and its `data`. From
LEVEL_OF_USERS on the metas may have a third part: of each operation who asked for it, a principal's
name or null. From LEVEL_OF_PROPERTIES on they may have a fourth: the time of day of the leader; the
third is then null where nobody is known.

`level` is the lowest feature level whose builds can read the entry (`cluster/wire/levels.py`), so
that a node knows before it takes an entry whether it will be able to apply it. What is new in an
encoding is written only in a cluster of that level: let `level_needed` say so, and `encode` writes
it down.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import orjson

from cluster.wire.levels import (
    BUILD,
    LEVEL_FIRST,
    LEVEL_MAX,
    LEVEL_OF_COMPACTION,
    LEVEL_OF_DEAD_LETTERS,
    LEVEL_OF_DELAY,
    LEVEL_OF_EXPIRY,
    LEVEL_OF_GROUP_STARTS,
    LEVEL_OF_GROUPS,
    LEVEL_OF_IDLE,
    LEVEL_OF_LEVELS,
    LEVEL_OF_PATTERNS,
    LEVEL_OF_PROPERTIES,
    LEVEL_OF_TOPICS,
    LEVEL_OF_USERS,
)
from flotilla_client.policies import check_parts
from flotilla_client.protocol import (
    EARLIEST,
    INTEGER_MAX,
    NEW,
    USER_CHANGES,
    ProtocolError,
    check_start,
    delays,
    has_expiry,
    total_bytes,
)

ENTRY_BYTES_MAX: Final = 2 * 1024 * 1024  # twice the largest batch: any one operation fits
_ENTRY_OVERHEAD_BYTES: Final = 64  # level, size, stamp, brackets
_NUMBER_BYTES: Final = 22  # up to 20 digits, a bracket and a comma
_META_OVERHEAD_BYTES: Final = 128  # kind, five numbers of up to 20 digits, brackets and commas
OPERATIONS_PER_ENTRY: Final = ENTRY_BYTES_MAX // _META_OVERHEAD_BYTES  # at most
_ESCAPED_BYTES_MAX: Final = 6  # JSON writes a control character as \u00XX; all others are shorter
_HEAD: Final = struct.Struct("<BI")


# Of every operation that somebody asked for: `principal` is whose key that was. None: nobody has
# one (a cluster without keys), or the cluster's level was too low to say it; then anybody may.


@dataclass(slots=True)
class Register:
    """Issue `client_id` (fresh) or take it up again; `sequence` None: by hand."""

    client_id: str
    fresh: bool
    sequence: int | None
    nonce: str
    principal: str | None = None


@dataclass(slots=True)
class Subscribe:
    """Subscribe the client to the topic; `epoch` and `sequence` None: by hand, not checked.

    `start`: NEW, EARLIEST or the first id to be read. NEW is all that builds before LEVEL_OF_TOPICS
    know.
    """

    client_id: str
    epoch: int | None
    topic: str
    sequence: int | None
    principal: str | None = None
    start: str | int = NEW


@dataclass(slots=True)
class Seek:
    """Move the client's cursor, to either side; fields as in `Subscribe`."""

    client_id: str
    epoch: int | None
    topic: str
    sequence: int | None
    start: str | int
    principal: str | None = None


@dataclass(slots=True)
class Unsubscribe:
    """End the client's subscription; fields as in `Subscribe`."""

    client_id: str
    epoch: int | None
    topic: str
    sequence: int | None
    principal: str | None = None


@dataclass(slots=True)
class SubscribePattern:
    """Subscribe the client to all topics of a pattern, `topic`, also to those that come later.

    `start`: of those that there are, NEW or EARLIEST. `topics_max`, `subscriptions_max`: how many
    topics its principal may subscribe to, and how many subscriptions its clients may have, by the
    settings of the leader; 0: any number. Other fields as in `Subscribe`.
    """

    client_id: str
    epoch: int | None
    topic: str
    sequence: int | None
    start: str
    topics_max: int
    subscriptions_max: int = 0
    principal: str | None = None


@dataclass(slots=True)
class UnsubscribePattern:
    """End the client's subscription to a pattern, `topic`, and to all topics that it brought."""

    client_id: str
    epoch: int | None
    topic: str
    sequence: int | None
    principal: str | None = None


@dataclass(slots=True)
class Put:
    """Publish a packed batch under the counters from `counter` on (`protocol.pack`).

    `has_properties`: of any publication in it; `has_expiry`: any of them expires. `is_delayed`: all
    of them are, so the counters are those of what the client publishes there with a delay.
    """

    client_id: str
    epoch: int | None
    topic: str
    counter: int
    lengths: bytes
    data: bytes
    principal: str | None = None
    has_properties: bool = False
    has_expiry: bool = False
    is_delayed: bool = False


@dataclass(slots=True)
class Advance:
    """Acknowledge everything up to the given id of each topic: `cursors` {topic: id}.

    `placed` {topic: the entry that placed the subscription}, of those that one has placed: who
    acknowledges what he read before it was moved must not move it.
    """

    client_id: str
    epoch: int | None
    cursors: dict[str, int]
    principal: str | None = None
    placed: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class MakeGroup:
    """Make a group of the topic, or change the settings of the one that stands.

    None: a setting that is not said; of `epoch` and `sequence` as in `Subscribe`. `ordered_by_key`
    is chosen when it is made; `start` (as in `Subscribe`) is of one that is made.
    """

    client_id: str
    epoch: int | None
    topic: str
    sequence: int | None
    group: str
    lease_ms: int | None
    max_attempts: int | None
    dead_letter: str | None
    principal: str | None = None
    ordered_by_key: bool | None = None
    start: str | int = NEW


@dataclass(slots=True)
class EndGroup:
    """End a group of the topic, whoever works in it; fields as in `MakeGroup`."""

    client_id: str
    epoch: int | None
    topic: str
    sequence: int | None
    group: str
    principal: str | None = None


@dataclass(slots=True)
class Take:
    """Settle leases of a group's publications, then lease up to `max_count` more to the client.

    `number`: of the client's takes in this group, so that a repeated one is recognized; None: by
    hand. `acks`: rows of [token, first id, last id]; of `naks` with a delay in ms besides, of
    `extends` with the lease's time from now on.
    """

    client_id: str
    epoch: int | None
    topic: str
    group: str
    number: int | None
    max_count: int
    max_bytes: int
    lease_ms: int | None
    acks: list[list[int]]
    naks: list[list[int]]
    extends: list[list[int]]
    principal: str | None = None


@dataclass(slots=True)
class Admit:
    """Let the member `node` take part under its new incarnation."""

    node: str
    incarnation: str


# Of every act of an administrator: `is_root`: the leader's settings name who asks among the
# `admins`, so he may. `act_id`: what he calls this act, so that a repeated request is recognized;
# "": nothing, by hand. `at_ms`: the leader's wall clock, for people; nothing follows from it.


@dataclass(slots=True)
class Raise:
    """Raise the cluster's feature level to `level`.

    Below LEVEL_OF_USERS it says nothing else, as version 0.2 reads it.
    """

    level: int
    is_root: bool = False
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class ChangeUser:
    """Change what a principal may do: `change` is one of USER_CHANGES."""

    change: str
    user: str
    publish: list[str]
    subscribe: list[str]
    observe: bool
    admin: bool
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class DropSubscription:
    """End a client's subscription in its place."""

    client_id: str
    topic: str
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class DropClient:
    """Forget a client at once, with its subscriptions and counters."""

    client_id: str
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class DropGroup:
    """End a group of a topic."""

    topic: str
    group: str
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class SeekGroup:
    """Have a group of a topic begin anew at `start`, as in `Seek`; its leases are nobody's."""

    topic: str
    group: str
    start: str | int
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class Purge:
    """Remove what a topic holds up to `last_id`, whoever has not read it."""

    topic: str
    last_id: int
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class SetTopic:
    """Give a topic a policy (`is_new`), or change the one it has.

    `parts`: what is said of it (`policies.PARTS`); the rest is as it was, or as it is by default.
    """

    topic: str
    parts: dict[str, Any]
    is_new: bool
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class DeleteTopic:
    """Let a topic, and all that it holds, be gone. `ends`: though somebody subscribes to it."""

    topic: str
    ends: bool
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class TransferLeader:
    """Note that the leader was asked to hand over to `node` ("": to anybody) and has `chosen`.

    It hands over once it has applied this.
    """

    node: str
    chosen: str
    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class Checkpoint:
    """Have every node move its store's log into the database, and cut its own."""

    is_root: bool
    principal: str | None = None
    act_id: str = ""
    at_ms: int = 0


@dataclass(slots=True)
class Hear:
    """Note that the clients were heard, though nothing else of them stands in the log; or nobody:
    then the log's time goes on."""

    client_ids: list[str]


@dataclass(slots=True)
class Forget:
    """Forget those of the clients that were silent for `silent_ms`, with their subscriptions."""

    client_ids: list[str]
    silent_ms: int


OfGroups = MakeGroup | EndGroup | Take
OfPatterns = SubscribePattern | UnsubscribePattern
ClientOperation = Register | Subscribe | Unsubscribe | Put | Advance | Seek | OfGroups | OfPatterns
Administration = (
    ChangeUser
    | DropSubscription
    | DropClient
    | DropGroup
    | SeekGroup
    | Purge
    | TransferLeader
    | Checkpoint
    | SetTopic
    | DeleteTopic
)
OwnOperation = Admit | Hear | Forget  # of the cluster itself: nobody asks for them
AskedOperation = ClientOperation | Administration | Raise
Operation = AskedOperation | OwnOperation


class Stamp(NamedTuple):
    """When its leader made an entry, by its own clocks, which no other node's agree with.

    `ms`: its monotonic one. `wall_ms`: the time of day, since 1970; 0: it was not said, below
    LEVEL_OF_PROPERTIES.
    """

    ms: int
    wall_ms: int = 0


class DamagedEntry(Exception):
    """An entry's payload is not what any build writes that this one knows: stop, don't guess."""


def level_needed(operations: Sequence[Operation]) -> int:
    """Return the lowest feature level whose builds can read and carry out the operations.

    A `Raise` needs the level that it raises to: whoever takes it will have to live with that one.
    """
    level = LEVEL_FIRST
    for operation in operations:
        if type(operation) is Put and operation.is_delayed:
            level = max(level, LEVEL_OF_DELAY)
        elif type(operation) is Put and operation.has_properties:
            level = max(level, LEVEL_OF_EXPIRY if operation.has_expiry else LEVEL_OF_PROPERTIES)
        elif type(operation) is Raise:
            level = max(level, operation.level)
        elif type(operation) in (Hear, Forget):
            level = max(level, LEVEL_OF_IDLE)
        elif type(operation) is SeekGroup or _is_of_key_order(operation):
            level = max(level, LEVEL_OF_GROUP_STARTS)
        elif type(operation) is SetTopic and _LATER_PARTS & operation.parts.keys():
            level = max(level, LEVEL_OF_DEAD_LETTERS, LEVEL_OF_COMPACTION)
        elif isinstance(operation, OfGroups | DropGroup):
            level = max(level, LEVEL_OF_GROUPS)
        elif isinstance(operation, OfPatterns):
            level = max(level, LEVEL_OF_PATTERNS)
        elif _is_of_topics(operation):
            level = max(level, LEVEL_OF_TOPICS)
        elif isinstance(operation, Administration) or principal_of(operation) is not None:
            level = max(level, LEVEL_OF_USERS)
    return level


_LATER_PARTS: Final = frozenset({"dead_letter", "compact"})


def _is_of_topics(operation: Operation) -> bool:
    """Return whether builds before LEVEL_OF_TOPICS can't read an operation."""
    return (
        isinstance(operation, Seek | SetTopic | DeleteTopic)
        or (type(operation) is Subscribe and operation.start != NEW)
        or (type(operation) is Advance and bool(operation.placed))
    )


def _is_of_key_order(operation: Operation) -> bool:
    """Return whether it makes a group that builds before LEVEL_OF_GROUP_STARTS do not know."""
    return type(operation) is MakeGroup and (
        operation.ordered_by_key is not None
        or operation.start != NEW
        or bool(operation.max_attempts and not operation.dead_letter)
    )


def principal_of(operation: Operation) -> str | None:
    """Return who asked for an operation; None: nobody of whom it is known."""
    return None if isinstance(operation, OwnOperation) else operation.principal


def level_of(payload: bytes) -> int:
    """Return the lowest feature level whose builds can read the entry; b"" is Raft's own no-op."""
    return payload[0] if payload else LEVEL_FIRST


def size_bytes(operation: Operation) -> int:
    """Return an upper bound of what the operation adds to an entry, for cutting entries."""
    if type(operation) is Put:
        names = len(operation.client_id) + len(operation.topic) + len(operation.principal or "")
        blobs = len(operation.lengths) + len(operation.data)
        return _META_OVERHEAD_BYTES + _ESCAPED_BYTES_MAX * names + blobs
    if type(operation) is Advance:
        names = len(operation.client_id) + sum(map(len, operation.cursors))
        names += len(operation.principal or "") + sum(map(len, operation.placed))
        # Quotes, colon, comma and up to 20 digits.
        numbers = 24 * (len(operation.cursors) + len(operation.placed))
        return _META_OVERHEAD_BYTES + _ESCAPED_BYTES_MAX * names + numbers
    texts = [getattr(operation, name) for name in operation.__slots__]
    if type(operation) is ChangeUser:
        texts += [*operation.publish, *operation.subscribe]
    elif isinstance(operation, Hear | Forget):
        texts += operation.client_ids
    elif type(operation) is SetTopic:
        texts.append(orjson.dumps(operation.parts).decode())
    sizes = [len(text) for text in texts if isinstance(text, str)]
    punctuation = 3 * len(sizes)
    if type(operation) is MakeGroup:
        punctuation += 2 * _NUMBER_BYTES  # seven of them, where others have five
    if type(operation) is Take:
        numbers = sum(map(len, chain(operation.acks, operation.naks, operation.extends)))
        punctuation += _NUMBER_BYTES * (numbers + 1)
    return _META_OVERHEAD_BYTES + _ESCAPED_BYTES_MAX * sum(sizes) + punctuation


def fits(total_bytes: int) -> bool:
    """Return whether operations of that size together may stand in one entry."""
    return total_bytes <= ENTRY_BYTES_MAX - _ENTRY_OVERHEAD_BYTES


# --- encoding -----------------------------------------------------------------------------------


def misfit(operation: Operation) -> str:
    """Return why no node would read the operation back from an entry, "" if all will.

    A leader applies what it has made an entry of without decoding it. So what the decoding refuses
    would end every other node, and each again after its restart.
    """
    if type(operation) is Put:  # its numbers are checked where they are read
        return ""
    try:
        read = _operation(orjson.loads(orjson.dumps(_meta(operation))))
    except (DamagedEntry, TypeError) as error:  # of orjson: a number that is too large
        return str(error)
    return "" if type(read) is type(operation) else f"it is read as {type(read).__name__}"


def encode(stamp_ms: int, operations: Sequence[Operation], wall_ms: int = 0) -> bytes:
    """Return the payload of one entry. The caller has kept it under ENTRY_BYTES_MAX (`fits`).

    `wall_ms` is for a cluster of LEVEL_OF_PROPERTIES: see `Stamp`.
    """
    metas: list[Any] = []
    blobs: list[bytes] = [b"", b""]
    for operation in operations:
        if type(operation) is Put:
            lengths, data = operation.lengths, operation.data
            metas.append(
                (
                    _DELAYED_PUT if operation.is_delayed else _PUT,
                    operation.client_id,
                    operation.epoch,
                    operation.topic,
                    operation.counter,
                    len(lengths) >> 2,
                    len(data),
                )
            )
            blobs += (lengths, data)
        else:
            metas.append(_meta(operation))
    principals = [principal_of(operation) for operation in operations]
    is_known = any(principal is not None for principal in principals)
    level = level_needed(operations)
    if wall_ms:
        level = max(level, LEVEL_OF_PROPERTIES)
        blobs[1] = orjson.dumps((stamp_ms, metas, principals if is_known else None, wall_ms))
    else:
        blobs[1] = orjson.dumps((stamp_ms, metas, principals) if is_known else (stamp_ms, metas))
    blobs[0] = _HEAD.pack(level, len(blobs[1]))
    payload = b"".join(blobs)
    assert len(payload) <= ENTRY_BYTES_MAX, f"entry of {len(payload)} bytes > {ENTRY_BYTES_MAX}"
    return payload


def _meta(operation: Operation) -> tuple[Any, ...]:
    kind = _KINDS[type(operation)]
    if type(operation) is Raise and operation.level < LEVEL_OF_USERS:
        assert operation.principal is None, operation
        return (_PLAIN_RAISE, operation.level)
    if not _is_of_topics(operation):
        if type(operation) is Subscribe:
            return ("S", operation.client_id, operation.epoch, operation.topic, operation.sequence)
        if type(operation) is Advance:
            return ("A", operation.client_id, operation.epoch, operation.cursors)
    if type(operation) is MakeGroup and not _is_of_key_order(operation):
        kind = _PLAIN_GROUP
    names = _FIELDS[kind]
    return (kind, *(getattr(operation, name) for name in names))


def _names(build: type[Any]) -> list[str]:
    """Return what stands in an operation's meta: its principal stands beside all metas."""
    return [name for name in build.__slots__ if name != "principal"]


# --- decoding -----------------------------------------------------------------------------------


def decode(payload: bytes, level_max: int = BUILD.level_max) -> tuple[Stamp, list[Operation]]:
    """Return the stamp and the operations of an entry that needs `level_max` at most.

    Raises DamagedEntry.
    """
    if len(payload) < _HEAD.size:
        raise DamagedEntry(f"entry of {len(payload)} bytes")
    level, metas_bytes = _HEAD.unpack_from(payload)
    if not LEVEL_FIRST <= level <= level_max:
        raise DamagedEntry(f"entry of level {level}; this node reads up to {level_max}")
    position = _HEAD.size + metas_bytes
    stamp, metas, principals = _document(payload[_HEAD.size : position], level)
    operations: list[Operation] = []
    for meta in metas:
        if type(meta) is list and meta and meta[0] in (_PUT, _DELAYED_PUT):
            operation, position = _put(meta, payload, position, level)
            operations.append(operation)
        else:
            operations.append(_operation(meta))
    for each, principal in zip(operations, principals, strict=False):
        if principal is not None:
            is_plain = isinstance(each, Raise) and each.level < LEVEL_OF_USERS
            if isinstance(each, OwnOperation) or is_plain:
                raise DamagedEntry(f"{type(each).__name__} of principal {principal!r}")
            each.principal = principal
    if position != len(payload):
        raise DamagedEntry(f"entry of {len(payload)} bytes, its operations end at {position}")
    return stamp, operations


def _document(text: bytes, level: int) -> tuple[Stamp, list[Any], list[Any]]:
    """Return the stamp, the operations' metas and, if they are said, their principals."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DamagedEntry(f"metas are not JSON: {error}") from None
    parts_max = 4 if level >= LEVEL_OF_PROPERTIES else 3 if level >= LEVEL_OF_USERS else 2
    if type(document) is not list or not 2 <= len(document) <= parts_max:
        raise DamagedEntry("metas are not [stamp_ms, [...]]")
    stamp_ms, metas = document[0], document[1]
    principals = document[2] if len(document) > 2 else None
    wall_ms = document[3] if len(document) > 3 else 0
    if not _is_count(stamp_ms) or type(metas) is not list:
        raise DamagedEntry("metas are not [stamp_ms, [...]]")
    if not _is_count(wall_ms):
        raise DamagedEntry(f"the time of day is {wall_ms!r}")
    if principals is None and len(document) != 3:
        principals = []
    elif not (
        type(principals) is list
        and len(principals) == len(metas)
        and all(each is None or _is_text(each) for each in principals)
    ):
        raise DamagedEntry(f"metas of {len(metas)} operations, principals {principals!r}")
    return Stamp(stamp_ms, wall_ms), metas, principals


def _put(meta: list[Any], payload: bytes, start: int, level: int) -> tuple[Put, int]:
    if len(meta) != 7:
        raise DamagedEntry(f"PUT of {len(meta)} fields")
    kind, client_id, epoch, topic, counter, count, data_bytes = meta
    if not (
        type(client_id) is str
        and type(topic) is str
        and type(counter) is int
        and type(count) is int
        and type(data_bytes) is int
        and (epoch is None or (type(epoch) is int and 0 <= epoch <= INTEGER_MAX))
        and 0 <= counter <= INTEGER_MAX
        and count > 0
        and data_bytes >= 0
    ):
        raise DamagedEntry(f"PUT's fields are wrong: {meta!r}")
    middle = start + 4 * count
    end = middle + data_bytes
    if end > len(payload):
        raise DamagedEntry(f"PUT's batch ends at {end}, the entry at {len(payload)}")
    lengths = payload[start:middle]
    if count == 1:
        total = int.from_bytes(lengths, "little")
    else:
        total = sum(struct.unpack(f"<{count}I", lengths))
    put = Put(client_id, epoch, topic, counter, lengths, payload[middle:end])
    if total != data_bytes:
        total = total_bytes(struct.unpack(f"<{count}I", lengths))
        if total != data_bytes or level < LEVEL_OF_PROPERTIES:
            raise DamagedEntry(f"PUT's lengths add up to {total}, its data has {data_bytes} bytes")
        put.has_properties = True
        put.has_expiry = level >= LEVEL_OF_EXPIRY and has_expiry(lengths, put.data)
    if kind == _DELAYED_PUT:
        # Without its data, one that is stored already is repeated.
        if level < LEVEL_OF_DELAY or (put.data and not all(delays(lengths, put.data))):
            raise DamagedEntry(f"PUT with a delay of which some publications have none: {meta!r}")
        put.is_delayed = True
    return put, end


def _operation(meta: Any) -> Operation:
    if type(meta) is not list or not meta or type(meta[0]) is not str or meta[0] not in _SHAPES:
        raise DamagedEntry(f"no operation: {meta!r}")
    build, checks = _SHAPES[meta[0]]
    fields = meta[1:]
    if len(fields) != len(checks):
        raise DamagedEntry(f"{build.__name__} of {len(fields)} fields")
    for value, check in zip(fields, checks, strict=True):
        if not check(value):
            raise DamagedEntry(f"{build.__name__}'s fields are wrong: {meta!r}")
    operation: Operation = build(**dict(zip(_FIELDS[meta[0]], fields, strict=True)))
    return operation


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_bool_or_none(value: Any) -> bool:
    return value is None or _is_bool(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= INTEGER_MAX  # a bool is no number here


def _is_count_or_none(value: Any) -> bool:
    return value is None or _is_count(value)


def _is_level(value: Any) -> bool:
    return type(value) is int and LEVEL_OF_LEVELS <= value <= LEVEL_MAX


def _is_change(value: Any) -> bool:
    return type(value) is str and value in USER_CHANGES


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _is_cursors(value: Any) -> bool:
    return type(value) is dict and all(map(_is_count, value.values()))


def _is_text_or_none(value: Any) -> bool:
    return value is None or _is_text(value)


def _rows_of(columns: int) -> Callable[[Any], bool]:
    """Return the check of a list of rows of so many numbers."""

    def check(value: Any) -> bool:
        return type(value) is list and all(
            type(row) is list and len(row) == columns and all(map(_is_count, row)) for row in value
        )

    return check


def _is_start(value: Any) -> bool:
    try:
        return value is not None and check_start(value) == value and type(value) in (int, str)
    except ProtocolError:
        return False


def _is_start_of_pattern(value: Any) -> bool:
    return value in (NEW, EARLIEST)


def _is_parts(value: Any) -> bool:
    try:
        return type(value) is dict and check_parts(value, were_read=True) == value
    except ProtocolError:
        return False


def _is_level_of_users(value: Any) -> bool:
    return type(value) is int and LEVEL_OF_USERS <= value <= LEVEL_MAX


_SUBSCRIPTION: Final = (_is_text, _is_count_or_none, _is_text, _is_count_or_none)
_GROUP: Final = (
    *(*_SUBSCRIPTION, _is_text),
    *(_is_count_or_none, _is_count_or_none, _is_text_or_none),
)
_ACT: Final = (_is_bool, _is_text, _is_count)
_RIGHTS: Final = (_is_texts, _is_texts, _is_bool, _is_bool)
_TAKE: Final = (
    *(_is_text, _is_count_or_none, _is_text, _is_text, _is_count_or_none),
    *(_is_count, _is_count, _is_count_or_none),
    *(_rows_of(3), _rows_of(4), _rows_of(4)),
)
_PUT: Final = "P"
_DELAYED_PUT: Final = "p"  # the same of what waits
_PLAIN_RAISE: Final = "L"  # as version 0.2 writes and reads it
_PLAIN_GROUP: Final = "G"  # as builds before LEVEL_OF_GROUP_STARTS do
_SHAPES: Final[dict[str, tuple[type[Any], tuple[Any, ...]]]] = {
    "R": (Register, (_is_text, _is_bool, _is_count_or_none, _is_text)),
    "S": (Subscribe, _SUBSCRIPTION),
    "B": (Subscribe, (*_SUBSCRIPTION, _is_start)),
    "J": (Seek, (*_SUBSCRIPTION, _is_start)),
    "U": (Unsubscribe, _SUBSCRIPTION),
    "s": (SubscribePattern, (*_SUBSCRIPTION, _is_start_of_pattern, _is_count, _is_count)),
    "u": (UnsubscribePattern, _SUBSCRIPTION),
    _PLAIN_GROUP: (MakeGroup, _GROUP),
    "g": (MakeGroup, (*_GROUP, _is_bool_or_none, _is_start)),
    "Q": (EndGroup, (*_SUBSCRIPTION, _is_text)),
    "W": (Take, _TAKE),
    "Y": (DropGroup, (_is_text, _is_text, *_ACT)),
    "y": (SeekGroup, (_is_text, _is_text, _is_start, *_ACT)),
    "A": (Advance, (_is_text, _is_count_or_none, _is_cursors)),
    "V": (Advance, (_is_text, _is_count_or_none, _is_cursors, _is_cursors)),
    "M": (Admit, (_is_text, _is_text)),
    _PLAIN_RAISE: (Raise, (_is_level,)),
    "E": (Raise, (_is_level_of_users, *_ACT)),
    "D": (DropSubscription, (_is_text, _is_text, *_ACT)),
    "C": (ChangeUser, (_is_change, _is_text, *_RIGHTS, *_ACT)),
    "O": (DropClient, (_is_text, *_ACT)),
    "X": (Purge, (_is_text, _is_count, *_ACT)),
    "Z": (SetTopic, (_is_text, _is_parts, _is_bool, *_ACT)),
    "N": (DeleteTopic, (_is_text, _is_bool, *_ACT)),
    "T": (TransferLeader, (_is_text, _is_text, *_ACT)),
    "K": (Checkpoint, _ACT),
    "H": (Hear, (_is_texts,)),
    "F": (Forget, (_is_texts, _is_count)),
}
_KINDS: Final = {build: kind for kind, (build, _) in _SHAPES.items()}
_FIELDS: Final = {kind: _names(build)[: len(checks)] for kind, (build, checks) in _SHAPES.items()}
