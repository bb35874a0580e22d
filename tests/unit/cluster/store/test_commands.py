"""Claims about cluster/store/commands.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.store import commands
from cluster.store.commands import (
    ENTRY_BYTES_MAX,
    Admit,
    Advance,
    ChangeUser,
    DamagedEntry,
    DropGroup,
    EndGroup,
    Forget,
    Hear,
    MakeGroup,
    Operation,
    Put,
    Raise,
    Register,
    SeekGroup,
    Stamp,
    Subscribe,
    Take,
    Unsubscribe,
    decode,
    encode,
    fits,
    level_of,
    size_bytes,
)
from cluster.wire.levels import BUILD, LEVEL_OF_PROPERTIES
from flotilla_client.protocol import (
    ANY_TOPIC_COUNT_MAX,
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    EARLIEST,
    INTEGER_MAX,
    NAME_BYTES_MAX,
    NEW,
    SETTLE_ROWS_MAX,
    TOPIC_BYTES_MAX,
    USER_CHANGES,
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


starts = st.sampled_from((NEW, EARLIEST, "@1700000000000")) | st.integers(1, INTEGER_MAX)
operation_strategy = st.one_of(
    st.builds(Register, text, st.booleans(), optional, text, principal),
    st.builds(Subscribe, text, optional, text, optional, principal),
    st.builds(Unsubscribe, text, optional, text, optional, principal),
    st.builds(
        _put, text, optional, text, number, st.lists(st.binary(max_size=9), min_size=1), principal
    ),
    st.builds(Advance, text, optional, st.dictionaries(text, number, max_size=5), principal),
    st.builds(
        ChangeUser,
        st.sampled_from(sorted(USER_CHANGES)),
        text,
        st.lists(text, max_size=5),
        st.lists(text, max_size=5),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        principal,
    ),
    st.builds(Hear, st.lists(text, max_size=5)),
    st.builds(
        MakeGroup,
        *(text, optional, text, optional, text, optional, optional, st.none() | text, principal),
        *(st.none() | st.booleans(), starts),
    ),
    st.builds(EndGroup, text, optional, text, optional, text, principal),
    st.builds(
        Take,
        *(text, optional, text, text, optional, number, number, optional),
        *(st.lists(st.lists(number, min_size=n, max_size=n), max_size=4) for n in (3, 4, 4)),
        principal,
    ),
    st.builds(DropGroup, text, text, st.booleans(), principal, text, number),
    st.builds(SeekGroup, text, text, starts, st.booleans(), principal, text, number),
    st.builds(Forget, st.lists(text, max_size=5), number),
    st.builds(Admit, text, text),
    st.just(Raise(BUILD.level_max)),
)


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


def test_the_largest_operation_of_each_kind_fits_alone() -> None:
    client, topic = "\x01" * NAME_BYTES_MAX, "\x01" * TOPIC_BYTES_MAX
    lengths, data = pack([b"x" * (BATCH_BYTES_MAX // BATCH_COUNT_MAX)] * BATCH_COUNT_MAX)
    cursors = {f"{i:x>{TOPIC_BYTES_MAX}}": INTEGER_MAX for i in range(ANY_TOPIC_COUNT_MAX)}
    rows = [[INTEGER_MAX] * 4] * SETTLE_ROWS_MAX
    largest: list[Operation] = [
        Put(client, INTEGER_MAX, topic, INTEGER_MAX, lengths, data),
        Advance(client, INTEGER_MAX, cursors),
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
