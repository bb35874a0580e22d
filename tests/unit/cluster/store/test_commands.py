"""Claims about cluster/store/commands.py."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.store import commands
from cluster.store.commands import (
    ENTRY_BYTES_MAX,
    Admit,
    Advance,
    ChangeUser,
    Checkpoint,
    DamagedEntry,
    DeleteTopic,
    DropClient,
    DropGroup,
    DropSubscription,
    EndGroup,
    Forget,
    Hear,
    MakeGroup,
    Operation,
    Purge,
    Put,
    Raise,
    Register,
    Seek,
    SeekGroup,
    SetTopic,
    Stamp,
    Subscribe,
    SubscribePattern,
    Take,
    TransferLeader,
    Unsubscribe,
    UnsubscribePattern,
    decode,
    encode,
    fits,
    level_of,
    size_bytes,
)
from cluster.wire.levels import BUILD, LEVEL_OF_LEVELS, LEVEL_OF_PROPERTIES, LEVEL_OF_USERS
from flotilla_client import properties
from flotilla_client.policies import AMOUNT_MAX, WHEN_FULL, check_parts
from flotilla_client.properties import EXPIRES_MS_MAX, Enveloped, Properties
from flotilla_client.protocol import (
    ANY_TOPIC_COUNT_MAX,
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    EARLIEST,
    HEADER_BYTES_MAX,
    INTEGER_MAX,
    NAME_BYTES_MAX,
    NEW,
    SETTLE_ROWS_MAX,
    TOPIC_BYTES_MAX,
    USER_CHANGES,
    ProtocolError,
    pack,
)
from tests.unit.model_store import random_payloads

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
number = st.integers(0, INTEGER_MAX)
optional = st.none() | number
principal = st.none() | text


def _put(
    client: str,
    epoch: int | None,
    topic: str,
    counter: int,
    batch: list[bytes],
    principal: str | None = None,
) -> Put:
    return Put(client, epoch, topic, counter, *pack(batch), principal)


def _of_lane(is_delayed: bool, expires_ms: int, texts: list[bytes], who: str | None) -> Put:
    """Return a PUT of publications with properties: all of them delayed, or none."""
    envelope = properties.encode(Properties("key", {}, expires_ms, 1_000 * is_delayed))
    lengths, data = pack([Enveloped(envelope + each) for each in texts])
    asked = True, bool(expires_ms), is_delayed
    return Put("id", 1, "t", 2, lengths, data, who, *asked)


starts = st.sampled_from((NEW, EARLIEST, "@1700000000000")) | st.integers(1, INTEGER_MAX)
texts = st.lists(st.binary(max_size=9), min_size=1)
numbers = st.dictionaries(text, number, max_size=5)
rights = st.lists(text, max_size=5)
signature = st.booleans(), principal, text, number
parts = st.fixed_dictionaries(
    {},
    optional={
        "max_bytes": st.integers(0, AMOUNT_MAX),
        "when_full": st.sampled_from(WHEN_FULL),
        "dead_letter": st.just("") | st.text('abc.\u00e9"\\', max_size=30),
        "compact": st.booleans(),
    },
)
OF_EACH: dict[type[Operation], st.SearchStrategy[Operation]] = {
    Register: st.builds(Register, text, st.booleans(), optional, text, principal),
    Subscribe: st.builds(Subscribe, text, optional, text, optional, principal, starts),
    Unsubscribe: st.builds(Unsubscribe, text, optional, text, optional, principal),
    Seek: st.builds(Seek, text, optional, text, optional, starts, principal),
    SubscribePattern: st.builds(
        SubscribePattern,
        *(text, optional, text, optional, st.sampled_from((NEW, EARLIEST)), number, number),
        principal,
    ),
    UnsubscribePattern: st.builds(UnsubscribePattern, text, optional, text, optional, principal),
    Put: st.builds(_put, text, optional, text, number, texts, principal)
    | st.builds(_of_lane, st.booleans(), st.sampled_from((0, 1, EXPIRES_MS_MAX)), texts, principal),
    Advance: st.builds(Advance, text, optional, numbers, principal, numbers),
    MakeGroup: st.builds(
        MakeGroup,
        *(text, optional, text, optional, text, optional, optional, st.none() | text, principal),
        *(st.none() | st.booleans(), starts),
    ),
    EndGroup: st.builds(EndGroup, text, optional, text, optional, text, principal),
    Take: st.builds(
        Take,
        *(text, optional, text, text, optional, number, number, optional),
        *(st.lists(st.lists(number, min_size=n, max_size=n), max_size=4) for n in (3, 4, 4)),
        principal,
    ),
    ChangeUser: st.builds(
        ChangeUser,
        *(st.sampled_from(sorted(USER_CHANGES)), text, rights, rights),
        *(st.booleans(), st.booleans(), *signature),
    ),
    DropSubscription: st.builds(DropSubscription, text, text, *signature),
    DropClient: st.builds(DropClient, text, *signature),
    DropGroup: st.builds(DropGroup, text, text, *signature),
    SeekGroup: st.builds(SeekGroup, text, text, starts, *signature),
    Purge: st.builds(Purge, text, number, *signature),
    TransferLeader: st.builds(TransferLeader, text, text, *signature),
    Checkpoint: st.builds(Checkpoint, *signature),
    SetTopic: st.builds(SetTopic, text, parts, st.booleans(), *signature),
    DeleteTopic: st.builds(DeleteTopic, text, st.booleans(), *signature),
    Hear: st.builds(Hear, st.lists(text, max_size=5)),
    Forget: st.builds(Forget, st.lists(text, max_size=5), number),
    Admit: st.builds(Admit, text, text),
    Raise: st.builds(Raise, st.integers(LEVEL_OF_LEVELS, LEVEL_OF_USERS - 1))
    | st.builds(Raise, st.integers(LEVEL_OF_USERS, BUILD.level_max), *signature),
}
operation_strategy = st.one_of(*OF_EACH.values())


def test_each_operation_is_among_those_that_are_tried() -> None:
    assert OF_EACH.keys() == set(get_args(Operation))


@given(number, number, st.lists(operation_strategy, max_size=8))
def test_what_was_encoded_is_decoded(
    stamp_ms: int, wall_ms: int, operations: list[Operation]
) -> None:
    encoded = encode(stamp_ms, operations, wall_ms)
    assert decode(encoded) == (Stamp(stamp_ms, wall_ms), operations)
    assert level_of(encoded) >= (LEVEL_OF_PROPERTIES if wall_ms else 1)


@given(st.lists(operation_strategy, max_size=8))
def test_size_of_operations_bounds_the_entry(operations: list[Operation]) -> None:
    estimate = sum(map(size_bytes, operations))
    assert len(encode(INTEGER_MAX, operations)) <= estimate + commands._ENTRY_OVERHEAD_BYTES


def test_a_name_that_another_python_took_for_printable_is_read_from_an_entry() -> None:
    """Or a node of an older Python would end at it, and again at each start."""
    unassigned = "\u0378"  # to this one, and perhaps to no later one
    parts = {"dead_letter": unassigned}
    with pytest.raises(ProtocolError):
        check_parts(parts)
    setting = SetTopic("t", parts, is_new=True, is_root=False)
    assert commands.decode(commands.encode(0, [setting]))[1] == [setting]


def test_the_largest_operation_of_each_kind_fits_alone() -> None:
    client, topic = "\x01" * NAME_BYTES_MAX, "\x01" * TOPIC_BYTES_MAX
    lengths, data = pack([b"x" * (BATCH_BYTES_MAX // BATCH_COUNT_MAX)] * BATCH_COUNT_MAX)
    cursors = {f"{i:x>{TOPIC_BYTES_MAX}}": INTEGER_MAX for i in range(ANY_TOPIC_COUNT_MAX)}
    # A header has room for so many, and for where they were placed.
    moved = {"\x01" * (TOPIC_BYTES_MAX - n): INTEGER_MAX for n in range(HEADER_BYTES_MAX // 512)}
    rows = [[INTEGER_MAX] * 4] * SETTLE_ROWS_MAX
    largest: list[Operation] = [
        Put(client, INTEGER_MAX, topic, INTEGER_MAX, lengths, data),
        Advance(client, INTEGER_MAX, cursors),
        Advance(client, INTEGER_MAX, moved, placed=moved),
        Subscribe(client, INTEGER_MAX, topic, INTEGER_MAX),
        Register(client, False, INTEGER_MAX, client),
        Take(client, *(INTEGER_MAX, topic, client), *[INTEGER_MAX] * 4, [], rows, []),
        MakeGroup(client, INTEGER_MAX, topic, *(INTEGER_MAX, client), *[INTEGER_MAX] * 2, topic),
    ]
    for operation in largest:
        assert fits(size_bytes(operation)), type(operation)
        entry_bytes = len(encode(INTEGER_MAX, [operation]))
        assert entry_bytes <= size_bytes(operation) + commands._ENTRY_OVERHEAD_BYTES
        assert entry_bytes <= ENTRY_BYTES_MAX


def test_an_entry_over_its_limit_is_a_programmers_error() -> None:
    lengths, data = pack([b"x" * BATCH_BYTES_MAX])
    put = Put("c", 1, "t", 0, lengths, data)
    assert not fits(2 * size_bytes(put))
    with pytest.raises(AssertionError, match="entry of"):
        encode(1, [put, put, put])


@pytest.mark.parametrize(
    "meta",
    [
        b"{}",
        b"[1]",
        b"[-1,[]]",
        b"[true,[]]",
        b"[1,{}]",
        b"[1,[3]]",
        b"[1,[[]]]",
        b'[1,[["X"]]]',
        b'[1,[[["R"]]]]',
        b'[1,[["R","c",true,null]]]',
        b'[1,[["R","c",1,null,""]]]',
        b'[1,[["R","c",true,-1,""]]]',
        b'[1,[["R","c",true,9007199254740992,""]]]',
        b'[1,[["S","c",true,"t",1]]]',
        b'[1,[["A","c",1,[]]]]',
        b'[1,[["A","c",1,{"t":"1"}]]]',
        b'[1,[["M","n",null]]]',
        b'[1,[["W","c",1,"t","g",1,1,1,1,[[1,2]],[],[]]]]',
        b'[1,[["W","c",1,"t","g",1,1,1,1,[],[[1,2,true,4]],[]]]]',
        b'[1,[["G","c",1,"t",1,"g",1,1,7]]]',
        b'[1,[["P","c",1,"t",0,1]]]',
        b'[1,[["P","c",1,"t",0,0,0]]]',
        b'[1,[["P","c",1,"t",-1,1,0]]]',
        b'[1,[["P","c",1,"t",0,1,-1]]]',
        b'[1,[["P","c",1,"t",0,1,0]]]',
        b'[1,[["P","c",1,"t",0,99999999999,0]]]',
        b"nonsense",
    ],
)
def test_metas_of_a_wrong_shape_are_refused(meta: bytes) -> None:
    with pytest.raises(DamagedEntry):
        decode(commands._HEAD.pack(1, len(meta)) + meta)


def test_lengths_that_do_not_add_up_are_refused() -> None:
    for batch in ([b"abc"], [b"ab", b"c"]):
        payload = encode(1, [_put("c", 1, "t", 0, batch)])
        at = payload.index(pack(batch)[0])
        with pytest.raises(DamagedEntry, match="add up"):
            decode(payload[:at] + b"\x07" + payload[at + 1 :])


def test_another_level_and_surplus_bytes_are_refused() -> None:
    payload = encode(1, [Admit("n", "i")])
    above = BUILD.level_max + 1
    with pytest.raises(DamagedEntry, match=f"level {above}"):
        decode(bytes((above,)) + payload[1:])
    with pytest.raises(DamagedEntry, match="operations end"):
        decode(payload + b"x")


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_entry_raises_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    for payload in random_payloads(seed, 40):
        for _ in range(20 if payload else 0):
            damaged = bytearray(payload)
            damaged[rng.randrange(len(payload))] = rng.randrange(256)
            for candidate in (bytes(damaged), payload[: rng.randrange(len(payload))]):
                try:
                    decode(candidate)
                except DamagedEntry:
                    continue
