"""Claims about the encoding of peers' messages: what goes in comes out, all else is refused."""

from __future__ import annotations

import random
import struct
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.log.entries import PLACE_MAX
from cluster.wire import messages
from cluster.wire.frames import FrameReader, framed
from cluster.wire.levels import LEVEL_MAX, Build
from cluster.wire.messages import (
    AppendEntries,
    AppendEntriesResponse,
    Extension,
    Health,
    Hello,
    Message,
    MessageError,
    PreVote,
    PreVoteGranted,
    ReadIndex,
    ReadIndexResponse,
    Relay,
    RelayReply,
    RequestVote,
    RequestVoteResponse,
    SnapshotChunk,
    SnapshotOffer,
    SnapshotRefused,
    SnapshotRequest,
    TimeoutNow,
    decode,
    encode,
)

places = st.integers(0, PLACE_MAX)
offsets = st.integers(0, messages.INTEGER_MAX)
# The first one says that it is an About, the last one that it is an Extension.
relay_ids = st.integers(1, messages.INTEGER_MAX - 1)
names = st.text(max_size=30).filter(lambda name: len(name.encode()) <= messages.NAME_BYTES_MAX)
frames = st.lists(st.binary(max_size=50), max_size=messages.RELAY_FRAME_COUNT_MAX)
last_terms = st.integers(-1, PLACE_MAX)
levels = st.integers(1, LEVEL_MAX)
builds = st.tuples(names, st.tuples(levels, levels).map(sorted)).map(
    lambda drawn: Build(drawn[0], *drawn[1])
)
founders = st.none() | st.dictionaries(names, names, max_size=4)


@st.composite
def appends(draw: st.DrawFn) -> AppendEntries:
    before = draw(st.integers(0, 2**40))
    pairs = draw(st.lists(st.tuples(st.sampled_from([b"\0", b"\1"]), st.binary(), places)))
    entries = [(kind + rest, before + 1 + i, term) for i, (kind, rest, term) in enumerate(pairs)]
    return AppendEntries(draw(places), draw(places), before, draw(places), entries)


@st.composite
def chunks(draw: st.DrawFn) -> SnapshotChunk:
    data, offset, rest = draw(st.binary()), draw(st.integers(0, 2**60)), draw(st.integers(0, 9))
    digest = draw(st.binary(max_size=messages.DIGEST_BYTES_MAX))
    size = offset + len(data) + rest
    return SnapshotChunk(draw(names), draw(places), draw(places), size, digest, offset, data)


any_message = st.one_of(
    st.builds(
        Hello,
        st.just(messages.PROTOCOL_VERSION),
        names,
        names,
        names,
        st.sets(names, max_size=5).map(lambda members: tuple(sorted(members))),
        st.booleans(),
        founders,
        places,
    ),
    st.builds(Extension, builds, levels),
    st.builds(RequestVote, places, places, last_terms),
    st.builds(PreVote, places, places, last_terms),
    st.builds(AppendEntriesResponse, places, places, st.booleans(), st.booleans()),
    st.builds(Health, places, st.booleans()),
    st.builds(SnapshotRequest, names, offsets),
    st.builds(SnapshotRefused, names),
    *(
        st.builds(kind, places)
        for kind in (RequestVoteResponse, PreVoteGranted, SnapshotOffer, TimeoutNow)
    ),
    *(st.builds(kind, places, places) for kind in (ReadIndex, ReadIndexResponse)),
    *(st.builds(kind, relay_ids, frames) for kind in (Relay, RelayReply)),
    st.builds(Relay, relay_ids, frames, st.none() | names.filter(bool)),
    st.builds(messages.About, st.binary(max_size=100)),
    st.builds(messages.PeerRefused, st.integers(0, 255), names),
    appends(),
    chunks(),
)


def body_of(message: Message) -> bytearray:
    return bytearray(b"".join(encode(message)))


@settings(max_examples=1000, deadline=None)
@given(any_message)
def test_every_message_comes_out_as_it_went_in(message: Message) -> None:
    assert decode(memoryview(body_of(message))) == message


@settings(max_examples=300, deadline=None)
@given(any_message, st.binary(min_size=1, max_size=3))
def test_no_body_has_a_byte_too_many_or_too_few(message: Message, tail: bytes) -> None:
    payload = bytes(body_of(message))
    if not isinstance(message, SnapshotChunk):  # its data is whatever is left, within its size
        with pytest.raises(MessageError):
            decode(memoryview(payload + tail))
        with pytest.raises(MessageError):
            decode(memoryview(payload[:-1]))


def test_all_types_are_covered_here() -> None:
    built = {type(message) for message in EXAMPLES}
    assert built == {kind for kind, _, _ in messages._TYPES.values()}


EXAMPLES: list[Message] = [
    Hello(1, "c", "a", "i", ("a", "b"), True, {"a": "i", "b": "j"}),
    Hello(1, "c", "a", "i", ("a", "b"), False, None, 2**40),
    RequestVote(1, 2, -1),
    RequestVoteResponse(1),
    PreVote(1, 2, 3),
    PreVoteGranted(1),
    AppendEntries(3, 6, 4, 2, [(b"\0abc", 5, 3), (b"\1", 6, 3)]),
    AppendEntriesResponse(1, 2, True, False),
    SnapshotOffer(1),
    TimeoutNow(1),
    ReadIndex(1, 2),
    ReadIndexResponse(1, 2),
    Relay(1, [b"x", b"", b"yz"]),
    RelayReply(1, []),
    SnapshotRequest("", 0),
    SnapshotChunk("s", 1, 2, 10, b"d" * 32, 4, b"data"),
    SnapshotRefused("busy"),
    Health(1, True),
    messages.PeerRefused(2, "another one lives"),
]


def test_20_000_mutated_bodies_raise_nothing_but_message_error() -> None:
    seed = 20_240_611
    rng, refused = random.Random(seed), 0
    for number in range(20_000):
        payload = body_of(rng.choice(EXAMPLES))
        for _ in range(rng.randint(1, 4)):
            payload[rng.randrange(len(payload))] = rng.choice((0, 1, 2, 0x7F, 0xFF, number & 0xFF))
        payload = payload[: rng.randint(1, len(payload))] + rng.randbytes(rng.choice((0, 0, 0, 5)))
        try:
            message = decode(memoryview(payload))
        except MessageError:
            refused += 1
        else:  # what is believed can only be what our own encoder would have said
            assert body_of(message) == payload, (seed, number, message)
    assert 10_000 < refused < 20_000, (seed, refused)


def test_extension_is_a_frame_of_its_own_behind_the_hello() -> None:
    hello = replace(EXAMPLES[0], extension=Extension(Build("0.2.0", 1, 3), 2))
    reader = FrameReader(messages.HELLO_BYTES_MAX)
    reader.feed(framed(hello))
    assert (reader.next(), reader.next()) == (EXAMPLES[0], hello.extension)
    assert reader.buffered_bytes == 0


def test_version_0_1_takes_an_extension_for_a_reply_that_nobody_waits_for() -> None:
    body = body_of(Extension(Build("0.2.0", 1, 3), 2))[1:]
    relay_id, count, size = struct.unpack_from("<QBI", body)
    assert (relay_id, count, len(body)) == (messages.INTEGER_MAX, 1, 13 + size)


def extension_of(fields: bytes) -> Message:
    head = struct.pack("<BQBI", 13, messages.INTEGER_MAX, 1, len(fields))
    return decode(memoryview(head + fields))


def test_extension_ignores_unknown_keys_and_takes_defaults_for_missing_ones() -> None:
    assert extension_of(b"{}") == Extension()
    said = b'{"levels": [2, 5], "from_the_future": {"a": [1]}}'
    assert extension_of(said) == Extension(Build("", 2, 5), 1)


@pytest.mark.parametrize(
    "fields",
    [
        b"[]",
        b"{",
        b'{"version": 7}',
        b'{"version": "%s"}' % (b"9" * 129),
        b'{"levels": [1]}',
        b'{"levels": [0, 1]}',
        b'{"levels": [2, 1]}',
        b'{"levels": [1, true]}',
        b'{"levels": "12"}',
        b'{"level": 256}',
        b'{"level": null}',
        b"[" * 5_000,
        b'{"x": "%s"}' % (b"x" * messages.EXTENSION_BYTES_MAX),
    ],
)
def test_extension_whose_known_keys_are_wrong_is_refused(fields: bytes) -> None:
    with pytest.raises(MessageError, match="Extension"):
        extension_of(fields)


def test_extension_of_other_than_one_frame_is_refused() -> None:
    with pytest.raises(MessageError, match="Extension of 2 frames"):
        decode(memoryview(struct.pack("<BQBII", 13, messages.INTEGER_MAX, 2, 0, 0)))


def test_unknown_type_is_refused() -> None:
    with pytest.raises(MessageError, match="unknown message type 99"):
        decode(memoryview(bytes((99, 0, 0))))


@pytest.mark.parametrize("command", [b"", b"\2pickle", b"\xffx"])
def test_entry_that_is_neither_regular_nor_no_op_is_refused(command: bytes) -> None:
    payload = body_of(AppendEntries(1, 0, 0, 0, [(command, 1, 1), (b"\0tail", 2, 1)]))
    with pytest.raises(MessageError, match="entry 1 starts with neither 0 nor 1"):
        decode(memoryview(payload))


def test_entries_with_a_hole_are_never_encoded() -> None:
    with pytest.raises(AssertionError):
        encode(AppendEntries(1, 0, 4, 1, [(b"\0", 5, 1), (b"\0", 7, 1)]))
    with pytest.raises(AssertionError):
        encode(AppendEntries(1, 0, 4, 1, [(b"\0", 6, 1)]))


def test_entry_sizes_that_do_not_add_up_are_refused() -> None:
    payload = body_of(AppendEntries(1, 0, 4, 1, [(b"\0abc", 5, 1)]))
    struct.pack_into("<I", payload, 1 + 36, 5)
    with pytest.raises(MessageError, match="don't add up"):
        decode(memoryview(payload))


def test_entry_count_beyond_the_body_is_refused_before_anything_is_allocated() -> None:
    payload = body_of(AppendEntries(1, 0, 4, 1, []))
    struct.pack_into("<I", payload, 1 + 32, 2**32 - 1)
    with pytest.raises(MessageError, match="4294967295 entries"):
        decode(memoryview(payload))


PLACES = {"admitted_index", "applied_index", "commit_index", "index", "last_index", "last_term"}
PLACES |= {"next_index", "previous_index", "previous_term", "sequence", "term"}


@pytest.mark.parametrize("place", [PLACE_MAX + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_no_message_has_an_index_or_a_term_that_the_journal_does_not_hold(place: int) -> None:
    tried = 0
    for example in EXAMPLES:
        for name in PLACES & {item.name for item in fields(example)}:
            if name == "last_term" and place >= 2**63:
                continue  # it has a sign
            changes: dict[str, Any] = {name: place}
            if name == "previous_index":
                changes["entries"] = []
            payload = memoryview(body_of(replace(example, **changes)))
            with pytest.raises(MessageError, match="out of bounds"):
                decode(payload)
            tried += 1
    assert tried > len(PLACES)


def test_no_entry_has_an_index_or_a_term_that_the_journal_does_not_hold() -> None:
    for before, term in ((PLACE_MAX, 1), (1, PLACE_MAX + 1)):
        append = AppendEntries(1, 0, before, 1, [(b"\1", before + 1, term)])
        with pytest.raises(MessageError, match="out of bounds"):
            decode(memoryview(body_of(append)))


@pytest.mark.parametrize(
    "message", [SnapshotRequest("", 2**63), SnapshotChunk("s", 1, 2, 2**63, b"", 0, b"")]
)
def test_numbers_that_sqlite_cannot_hold_are_refused(message: Message) -> None:
    with pytest.raises(MessageError, match="out of bounds"):
        decode(memoryview(body_of(message)))


def test_last_term_below_minus_one_is_refused() -> None:
    payload = body_of(RequestVote(1, 2, 3))
    struct.pack_into("<q", payload, 17, -2)
    with pytest.raises(MessageError, match="out of bounds"):
        decode(memoryview(payload))


def test_boolean_that_is_neither_0_nor_1_is_refused() -> None:
    for message in (Health(1, True), EXAMPLES[0]):
        payload = body_of(message)
        payload[9 if isinstance(message, Health) else 3] = 2
        with pytest.raises(MessageError):
            decode(memoryview(payload))


def test_another_protocol_version_is_refused_by_name() -> None:
    payload = body_of(EXAMPLES[0])
    struct.pack_into("<H", payload, 1, 7)
    with pytest.raises(MessageError, match="speaks protocol version 7, this side 1"):
        decode(memoryview(payload))


def test_members_out_of_order_are_refused() -> None:
    payload = body_of(Hello(1, "c", "n", "i", ("a", "b"), False, None))
    swapped = payload.replace(b"\1\0a\1\0b", b"\1\0b\1\0a")
    with pytest.raises(MessageError, match="canonical"):
        decode(memoryview(swapped))


def test_chunk_beyond_its_snapshot_is_refused() -> None:
    payload = body_of(SnapshotChunk("s", 1, 2, 10, b"d", 7, b"data"))
    with pytest.raises(MessageError, match="4 bytes at 7 of a snapshot of 10 bytes"):
        decode(memoryview(payload))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (SnapshotRefused("x" * messages.REASON_BYTES_MAX), "the limit is 1024"),
        (SnapshotRequest("x" * messages.NAME_BYTES_MAX, 1), "the limit is 128"),
    ],
)
def test_text_over_its_limit_is_refused(message: Any, reason: str) -> None:
    payload = body_of(message)
    (size,) = struct.unpack_from("<H", payload, 1)
    struct.pack_into("<H", payload, 1, size + 1)
    payload.insert(3, ord("x"))
    with pytest.raises(MessageError, match=reason):
        decode(memoryview(payload))


def test_text_that_is_not_utf_8_is_refused() -> None:
    payload = body_of(SnapshotRefused("abc"))
    payload[4] = 0xFF
    with pytest.raises(MessageError, match="not UTF-8"):
        decode(memoryview(payload))


def test_too_many_relayed_frames_or_too_long_a_digest_are_refused() -> None:
    relay = body_of(Relay(1, [b""] * 8))
    relay[9] = 9
    with pytest.raises(MessageError, match="Relay of 9 frames"):
        decode(memoryview(relay))
    chunk = body_of(SnapshotChunk("", 1, 2, 10, b"d" * 64, 0, b"data"))
    chunk[1 + 2 + 32] = 65
    with pytest.raises(MessageError, match="digest of 65 bytes"):
        decode(memoryview(chunk))


@pytest.mark.parametrize("relay_id", [messages.ABOUT_RELAY_ID, messages.INTEGER_MAX])
@pytest.mark.parametrize("principal", [None, "somebody"])
def test_a_relay_whose_answer_would_say_something_else_is_refused(
    relay_id: int, principal: str | None
) -> None:
    """The fuzzer's: whoever answered the last one ended by an assertion of its own."""
    payload = body_of(Relay(1, [b"frame"], principal))
    place = payload.index(_id(1))
    payload[place : place + 8] = _id(relay_id)
    with pytest.raises(MessageError, match=f"Relay {relay_id}"):
        decode(memoryview(payload))


def _id(relay_id: int) -> bytes:
    return relay_id.to_bytes(8, "little")
