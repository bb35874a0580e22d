"""Keys, headers and timestamps of publications: how they travel, are kept, and read by the old."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.serve.broker import Answer, Broker, BrokerLimits
from cluster.store import commands, tables
from cluster.store.commands import DamagedEntry, Put, Raise, Register, Stamp, Subscribe
from cluster.store.rows import check_rows
from cluster.store.store import Delivery, Done, Store
from cluster.wire.levels import LEVEL_OF_PROPERTIES
from flotilla_client import BadRequest, Publication, TooLarge, protocol
from flotilla_client.batches import as_bytes, batch_of, batches_of, lane_for, publication_of
from flotilla_client.properties import (
    HEADERS_MAX,
    KEY_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    Enveloped,
    Properties,
    decode,
    delay_of,
    encode,
    expiry_of,
    key_field,
)
from flotilla_client.protocol import (
    ACK,
    GET,
    HAS_PROPERTIES,
    PUT,
    ProtocolError,
    Reply,
    Request,
    decode_request,
    encode_request,
    pack,
    stripped,
    text_of,
    unpack,
)
from flotilla_client.reading import Message
from tests.unit.model_store import MEMBERS

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
values = texts | st.binary(max_size=20)
names = texts.filter(lambda name: bool(name) and name.isprintable())
made_properties = st.builds(
    Properties, st.none() | values, st.dictionaries(names, values, max_size=5)
)

# --- the envelope ---------------------------------------------------------------------------------


@given(made_properties, st.binary(max_size=20))
def test_properties_are_read_as_they_were_written(properties: Properties, text: bytes) -> None:
    envelope = encode(properties)
    if not envelope:
        assert properties == Properties()
        return
    assert decode(envelope + text) == (properties, len(envelope))
    assert encode(decode(envelope + text)[0]) == envelope


@given(st.binary(max_size=40))
def test_whatever_is_read_has_one_encoding(garbage: bytes) -> None:
    envelope = b"\x01" + len(garbage).to_bytes(2, "little") + garbage
    try:
        properties, end = decode(envelope)
    except ProtocolError:
        return
    assert (encode(properties), end) == (envelope, len(envelope))


def test_a_changed_byte_is_refused_or_means_something_else() -> None:
    rng = random.Random(1)
    properties = Properties("k", {"trace": b"\x00\x01", "kind": "new"})
    envelope = encode(properties)
    for _ in range(500):
        changed = bytearray(envelope)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        with suppress(ProtocolError):
            assert decode(bytes(changed))[0] != properties


def field(tag: int, *sized: tuple[int, bytes]) -> bytes:
    return bytes((tag,)) + b"".join(
        len(value).to_bytes(size_bytes, "little") + value for size_bytes, value in sized
    )


def enveloped(*fields: bytes, version: int = 1) -> bytes:
    whole = b"".join(fields)
    return bytes((version,)) + len(whole).to_bytes(2, "little") + whole


HEADER = field(3, (1, b"a"), (2, b"x"))


@pytest.mark.parametrize(
    ("envelope", "what"),
    [
        (b"", "do not begin with 1"),
        (enveloped(HEADER, version=2), "do not begin with 1"),
        (enveloped(), "3 bytes of a publication of 3"),
        (enveloped(HEADER)[:-1], "bytes of a publication"),
        (enveloped(HEADER, HEADER), "'a' is there twice"),
        (enveloped(HEADER, field(1, (2, b"k"))), "no field begins with 1"),
        (enveloped(field(1, (2, b"k")), field(2, (2, b"k"))), "no field begins with 2"),
        (enveloped(field(9, (2, b"k"))), "no field begins with 9"),
        (enveloped(field(1, (2, b"\xff"))), "not UTF-8"),
        (enveloped(field(3, (1, b"\xff"), (2, b""))), "not UTF-8"),
        (enveloped(field(3, (1, b"a"), (2, b"\xff"))), "not UTF-8"),
        (enveloped(b"\x05" + bytes(7)), "the expiry goes beyond their end"),
        (enveloped(b"\x06" + bytes(7)), "the delay goes beyond their end"),
        (enveloped(HEADER, b"\x05" + bytes(8)), "no field begins with 5"),
        (enveloped(field(3, (1, b""), (2, b""))), "printable text"),
        (enveloped(b"\x01\x05\x00k"), "goes beyond their end"),
        (enveloped(b"\x03\x01a\x01"), "goes beyond their end"),
    ],
)
def test_malformed_properties_are_refused_at_the_door(envelope: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what) as caught:
        decode(envelope)
    assert caught.value.code == "bad_request"
    lengths = (len(envelope) | HAS_PROPERTIES).to_bytes(4, "little")
    put = Request(PUT, "r", "t", "c", None, {"counter": 0, "count": 1}, lengths, envelope)
    with pytest.raises(ProtocolError, match=what):
        decode_request(encode_request(put))


def test_a_name_that_another_python_has_taken_for_printable_is_read_and_stays() -> None:
    unassigned = "\u0378"  # to this one, and perhaps to no later one
    named = unassigned.encode()
    envelope = enveloped(b"\x05" + (1).to_bytes(8, "little"), field(3, (1, named), (2, b"x")))
    assert decode(envelope)[0].headers == {unassigned: "x"}
    assert protocol.lasting(Enveloped(envelope)) == enveloped(field(3, (1, named), (2, b"x")))
    lengths, data = pack([Enveloped(envelope)])
    reply = Reply(ACK, "r", "n", "n", 1, {}, lengths, data)
    assert protocol.decode_reply(protocol.encode_reply(reply)).properties[0].expires_ms == 1
    put = Request(PUT, "r", "t", "c", None, {"counter": 0, "count": 1}, lengths, data)
    with pytest.raises(ProtocolError, match="printable text"):
        decode_request(encode_request(put))


alphabet = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 9, 0x61, 0xC3, 0xA4, 0xFF])
garbage_envelopes = st.lists(alphabet, max_size=30).map(lambda fields: enveloped(bytes(fields)))


@given(st.lists(st.one_of(made_properties.map(encode).filter(bool), garbage_envelopes), min_size=1))
def test_a_node_takes_a_batch_if_each_of_its_publications_can_be_read(batch: list[bytes]) -> None:
    try:
        each = [decode(envelope)[0] for envelope in batch]
    except ProtocolError:
        each = []
    if not all(name.isprintable() for own in each for name in own.headers):
        each = []
    lengths, data = pack([Enveloped(envelope) for envelope in batch])
    put = Request(PUT, "r", "t", "c", None, {"counter": 0, "count": len(batch)}, lengths, data)
    delays = {own.deliver_after_ms > 0 for own in each}
    if not each or len(delays) == 2:  # a batch is delayed as a whole
        with pytest.raises(ProtocolError):
            decode_request(encode_request(put))
        return
    taken = decode_request(encode_request(put))
    assert len(each) == len(batch)
    assert taken.has_expiry == any(own.expires_ms for own in each)
    assert taken.is_delayed == any(own.deliver_after_ms for own in each)


def test_a_node_makes_no_objects_of_what_it_only_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 65,536 publications that took 0.2 s of a turn, in which nobody else was heard."""
    monkeypatch.setattr(protocol, "decode_properties", None)
    lengths, data = pack([Enveloped(encode(Properties("k", {"a": "b"})))] * 3)
    put = Request(PUT, "r", "t", "c", None, {"counter": 0, "count": 3}, lengths, data)
    assert decode_request(encode_request(put)).has_properties


def too_large(properties: Properties) -> int:
    with pytest.raises(ProtocolError) as caught:
        encode(properties)
    assert caught.value.code == "too_large"
    limit = caught.value.details["limit"]
    assert isinstance(limit, int)
    return limit


def test_properties_have_limits_on_both_sides() -> None:
    assert too_large(Properties("k" * (KEY_BYTES_MAX + 1))) == KEY_BYTES_MAX
    headers: dict[str, str | bytes] = {f"h{n}": "" for n in range(HEADERS_MAX)}
    assert decode(encode(Properties(headers=headers)))[0].headers == headers
    assert too_large(Properties(headers=headers | {"more": ""})) == HEADERS_MAX
    assert too_large(Properties(headers={"n" * 256: ""})) == 255
    assert too_large(Properties(headers={"a": bytes(PROPERTIES_BYTES_MAX)})) == PROPERTIES_BYTES_MAX
    largest = Properties(headers={"a": bytes(PROPERTIES_BYTES_MAX - 3 - 5)})
    assert len(encode(largest)) == PROPERTIES_BYTES_MAX
    many = enveloped(*(field(3, (1, b"%d" % n), (2, b"")) for n in range(HEADERS_MAX + 1)))
    long_key = enveloped(field(2, (2, bytes(KEY_BYTES_MAX + 1))))
    for envelope in (many, long_key, b"\x01\xff\xff" + bytes(65535)):
        with pytest.raises(ProtocolError) as caught:
            decode(envelope)
        assert caught.value.code == "too_large"


@pytest.mark.parametrize(
    "properties",
    [
        Properties(key=1),  # type: ignore[arg-type]
        Properties(headers={"a": 1}),  # type: ignore[dict-item]
        Properties(headers={1: "a"}),  # type: ignore[dict-item]
        Properties(headers=["a"]),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_property_is_a_type_error(properties: Properties) -> None:
    with pytest.raises(TypeError):
        encode(properties)


# --- batches --------------------------------------------------------------------------------------

ORDER = Publication(b"42 apples", "customer-7", {"trace": b"\x00", "kind": "order"})


def test_a_batch_says_which_of_its_publications_have_properties() -> None:
    [(lengths, data)] = batches_of([b"plain", ORDER, "größe", Publication(b"none")])
    sent = unpack(lengths, data)
    assert list(map(type, sent)) == [bytes, Enveloped, bytes, bytes]
    assert list(map(text_of, sent)) == [b"plain", b"42 apples", "größe".encode(), b"none"]
    request = Request(PUT, "r", "t", "c", 1, {"counter": 3, "count": 4}, lengths, data)
    request.has_properties = True
    assert decode_request(encode_request(request)) == request
    reply = protocol.Reply(protocol.ACK, "r", "n", "n", 1, {}, lengths, data)
    found = protocol.decode_reply(protocol.encode_reply(reply)).properties
    assert found == {1: Properties("customer-7", {"trace": b"\x00", "kind": "order"})}
    assert stripped(lengths, data) == pack([b"plain", b"42 apples", "größe".encode(), b"none"])


def test_what_was_encoded_once_stays_what_it_is() -> None:
    once = as_bytes(ORDER)
    assert as_bytes(once) is once
    assert batches_of([once]) == batches_of([ORDER])


def test_a_batch_of_one_is_packed_as_any_other() -> None:
    for publication in (b"x", "x", ORDER, Publication("x")):
        assert [batch_of(publication)] == batches_of([publication])


def test_what_a_publication_may_not_be_is_said_before_it_is_stored() -> None:
    with pytest.raises(BadRequest, match="printable"):
        as_bytes(Publication(b"", headers={"": ""}))
    with pytest.raises(BadRequest, match="UTF-8"):
        as_bytes(Publication(b"", key="\ud800"))
    with pytest.raises(TooLarge) as caught:
        as_bytes(Publication(bytes(protocol.PUBLICATION_BYTES_MAX), key="k"))
    assert caught.value.details == {"limit": protocol.PUBLICATION_BYTES_MAX}
    with pytest.raises(TypeError):
        as_bytes(Publication(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="another one"):
        as_bytes(Publication(ORDER, "k"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has its key"):
        publication_of(ORDER, "k", None)


# --- entries --------------------------------------------------------------------------------------


def put(counter: int, *publications: Any, topic: str = "t") -> Put:
    [(lengths, data)] = batches_of(publications)
    has_properties = any(isinstance(each, Publication) for each in publications)
    return Put("p", None, topic, counter, lengths, data, has_properties=has_properties)


def test_an_entry_with_properties_needs_their_level() -> None:
    plain, marked = commands.encode(1, [put(0, b"x")]), commands.encode(1, [put(0, b"x", ORDER)])
    assert commands.level_of(plain) == 1
    assert commands.level_of(marked) == LEVEL_OF_PROPERTIES
    assert commands.decode(marked) == (Stamp(1), [put(0, b"x", ORDER)])
    with pytest.raises(DamagedEntry, match="lengths add up"):
        commands.decode(b"\x03" + marked[1:])


@pytest.mark.parametrize("metas", ["[1, [], null]", "[1, [], null, -1]", "[1, [], 3, 4]"])
def test_an_entry_with_a_strange_time_of_day_is_damaged(metas: str) -> None:
    payload = bytes((LEVEL_OF_PROPERTIES,)) + len(metas).to_bytes(4, "little") + metas.encode()
    with pytest.raises(DamagedEntry):
        commands.decode(payload)


# --- the store ------------------------------------------------------------------------------------


class StampedLog:
    """A store with a publisher `p` and a subscriber `s` to `t`; `wall_ms` is its leader's clock."""

    def __init__(self, path: Path, level: int = LEVEL_OF_PROPERTIES) -> None:
        self.path, self.wall_ms = path, 1_000
        self.store = Store.open(path, MEMBERS)
        self.apply(Register("p", True, None, ""), Register("s", True, None, ""))
        self.apply(Subscribe("s", None, "t", None))
        if level > 1:
            self.apply(Raise(level), wall=False)

    def apply(self, *operations: Any, wall: bool | None = None) -> list[Any]:
        said = self.store.level >= LEVEL_OF_PROPERTIES if wall is None else wall
        payload = commands.encode(1, operations, self.wall_ms if said else 0)
        outcomes = self.store.apply(self.store.applied_index + 1, 1, payload)
        assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes
        return outcomes

    def read(self, last_id: int = 0, count: int = 100, size_bytes: int = 10**6) -> Delivery:
        delivery = self.store.read("s", "t", last_id, count, size_bytes)
        assert isinstance(delivery, Delivery)
        return delivery

    def reopen(self) -> None:
        self.store.commit()
        self.store.close()
        self.store = Store.open(self.path, {})


@pytest.fixture
def log(tmp_path: Path) -> StampedLog:
    return StampedLog(tmp_path / "db")


def test_publications_are_stamped_with_a_time_that_never_goes_back(log: StampedLog) -> None:
    due = []
    for counter, wall_ms in enumerate((5_000, 4_000, 4_500, 6_000)):  # the second leader is behind
        log.wall_ms = wall_ms
        log.apply(put(counter, b"x"))
        due.append((1, max([wall_ms, *(at_ms for _, at_ms in due)])))
    assert log.read().times == tuple(due) == ((1, 5_000), (1, 5_000), (1, 5_000), (1, 6_000))
    log.reopen()
    assert log.read().times == tuple(due)
    assert log.store.timestamp_ms == 6_000
    log.wall_ms = 10
    log.apply(put(4, b"x"))
    assert log.read(4).times == ((1, 6_000),)


def test_time_is_the_same_for_all_topics_and_outlives_what_was_stamped(log: StampedLog) -> None:
    log.wall_ms = 9_000
    log.apply(Subscribe("s", None, "u", None))
    log.apply(put(0, b"x", topic="u"))
    log.apply(commands.Unsubscribe("s", None, "u", None))
    log.store.collect_garbage(10)
    log.reopen()
    log.wall_ms = 8_000
    log.apply(put(0, b"x"))
    assert log.read().times == ((1, 9_000),)


def test_what_was_stored_before_the_level_has_no_time_and_is_read_on(tmp_path: Path) -> None:
    log = StampedLog(tmp_path / "db", level=3)
    log.apply(put(0, b"old", b"older"))
    log.store.commit()
    assert not log.store._database.has_times
    log.apply(Raise(LEVEL_OF_PROPERTIES), wall=False)
    log.apply(put(2, b"new"), put(3, ORDER))
    for _ in range(2):
        delivery = log.read()
        assert (delivery.count, delivery.times) == (4, ((2, 0), (2, 1_000)))
        assert delivery.has_properties
        assert text_of(unpack(delivery.lengths, delivery.data)[3]) == b"42 apples"
        log.reopen()
    with tables.connect(log.path, 100) as connection:
        check_rows(log.path, connection, lambda size: None)


def test_a_flipped_time_is_found(log: StampedLog) -> None:
    log.apply(put(0, b"x"))
    log.reopen()
    digest = log.store.digest()
    log.store._database.write("UPDATE publications SET timestamp_ms = 1001", [()])
    log.store._database.commit()
    assert log.store.digest() != digest
    with (
        tables.connect(log.path, 100) as connection,
        pytest.raises(tables.CorruptStore, match="publications"),
    ):
        check_rows(log.path, connection, lambda size: None)
    with pytest.raises(tables.CorruptStore, match="checksum"):
        log.read()


def test_rows_with_properties_are_cut_as_others(log: StampedLog) -> None:
    log.apply(put(0, b"a", ORDER, b"c"), put(3, ORDER))
    sizes = [len(as_bytes(each)) for each in (b"a", ORDER, b"c", ORDER)]
    for last_id in range(4):
        for count in range(1, 5):
            delivery = log.read(last_id, count)
            found = unpack(delivery.lengths, delivery.data)
            assert list(map(len, found)) == sizes[last_id : last_id + count]
    assert log.read(0, 9, sizes[0] + sizes[1]).count == 2
    assert log.read(0, 9, sizes[0] + sizes[1] - 1).count == 1
    assert log.read(1, 9, 1).count == 1


# --- the broker -----------------------------------------------------------------------------------


class Desk:
    """A broker on a log, asked as a client does."""

    def __init__(self, log: StampedLog) -> None:
        self.log = log
        self.broker = Broker(log.store, BrokerLimits(), lambda: "id", lambda route: 10**9)

    def ask(self, kind: str, **request: Any) -> Answer:
        frames = encode_request(Request(kind, "r", "t", **request))
        waiting = self.broker.request(b"route", decode_request(frames), 0.0)
        if waiting is not None:
            self.broker.await_barrier(waiting, 0, 0)
        for operations, authors in self.broker.take_entries():
            index = self.log.store.applied_index + 1
            self.broker.submitted(index, 1, authors)
            self.broker.applied(index, 1, self.log.apply(*operations))
        self.broker.serve(0, 0, 0.0, lambda: False)
        [answer] = self.broker.take_answers()
        return answer

    def put(self, counter: int, *publications: Any) -> Answer:
        [(lengths, data)] = batches_of(publications)
        return self.ask(PUT, client_id="p", body={"counter": counter}, lengths=lengths, data=data)

    def get(self, **body: Any) -> Answer:
        return self.ask(GET, client_id="s", body={"last_id": 0, "max_count": 9, **body})


def test_who_knows_of_no_properties_gets_the_text_alone(log: StampedLog) -> None:
    desk = Desk(log)
    assert desk.put(0, b"a", ORDER).type == "ACK"
    log.wall_ms = 2_000
    desk.put(2, b"c")
    old = desk.get()
    assert (old.lengths, old.data) == pack([b"a", b"42 apples", b"c"])
    assert old.body == {"topic": "t", "id": 1, "count": 3}
    new = desk.get(properties=True)
    [(lengths, data)] = batches_of([b"a", ORDER, b"c"])
    assert (new.lengths, new.data) == (lengths, data)
    assert new.body["timestamps"] == [[2, 1_000], [1, 2_000]]
    text = desk.get(properties=True, text=True, max_count=1, last_id=1)
    assert (text.body["publication"], text.data) == ("42 apples", b"")


def test_a_cluster_below_the_level_takes_none_and_repeats_what_it_took(tmp_path: Path) -> None:
    desk = Desk(StampedLog(tmp_path / "db", level=3))
    desk.put(0, b"a")
    refused = desk.put(1, ORDER)
    assert (refused.type, refused.body["error"]) == ("NAK", "unsupported")
    assert (refused.body["level"], refused.body["needs"]) == (3, LEVEL_OF_PROPERTIES)
    assert desk.put(0, ORDER).body["duplicate"]  # under that counter something is stored
    assert desk.get(properties=True).body["timestamps"] == [[1, None]]


# --- messages -------------------------------------------------------------------------------------


def test_a_message_says_its_time_as_a_date() -> None:
    message = Message("t", 1, b"x", False, 1_700_000_000_123)
    assert message.timestamp is not None
    assert message.timestamp.isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert Message("t", 1, b"x").timestamp is None


# --- delays -------------------------------------------------------------------------------------


def test_a_delay_is_read_as_it_was_written_beside_all_else() -> None:
    own = Properties("k", {"h": b"v"}, 5, 7)
    publication = encode(own) + b"text"
    assert decode(publication)[0] == own
    assert (expiry_of(publication), delay_of(publication)) == (5, 7)
    assert key_field(publication) == key_field(encode(Properties("k")))
    assert delay_of(encode(Properties("k"))) == delay_of(encode(Properties(None, {}, 5))) == 0
    assert key_field(encode(Properties(None, {}, 0, 7))) is None
    assert own.of(b"text").properties == own
    assert own.lasting() == Properties("k", {"h": b"v"})


@pytest.mark.parametrize("deliver_after", [0, -1, 31_536_001.0, float("nan")])
def test_a_delay_has_limits(deliver_after: float) -> None:
    with pytest.raises(ProtocolError, match="a year"):
        Publication(b"x", deliver_after=deliver_after).properties  # noqa: B018


def test_a_part_of_a_millisecond_counts_as_one() -> None:
    own = Publication(b"x", expires=1e-6, deliver_after=0.0004).properties
    assert (own.expires_ms, own.deliver_after_ms) == (1, 1)


def test_a_batch_is_delayed_as_a_whole_or_refused_by_either_side() -> None:
    later, now = Publication(b"a", deliver_after=1), b"b"
    assert lane_for("t", batches_of([now, now])) == "t"
    assert lane_for("t", batches_of([later, later])) == protocol.lane_of("t", is_delayed=True)
    with pytest.raises(BadRequest, match="some of it has a delay"):
        lane_for("t", batches_of([later, now]))
    lengths, data = pack([as_bytes(later), now])
    request = Request(PUT, "r", "t", "c", None, {"counter": 1}, lengths, data)
    with pytest.raises(ProtocolError, match="delayed as a whole"):
        decode_request(encode_request(request))


def test_a_batch_has_few_runs_of_one_delay_and_the_library_splits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run is a row of its own on every node."""
    monkeypatch.setattr(protocol, "DELAYS_MAX", 2)
    waiting = [Publication(b"x", deliver_after=each) for each in (1, 1, 2, 3, 3, 1)]
    batches = batches_of(waiting)
    assert [protocol.delays(*each) for each in batches] == [[1000, 1000, 2000], [3000, 3000, 1000]]
    for batch in (*batches, pack([as_bytes(each) for each in waiting])):
        frames = encode_request(Request(PUT, "r", "t", "c", None, {"counter": 1}, *batch))
        if batch in batches:
            assert decode_request(frames).is_delayed
            continue
        with pytest.raises(ProtocolError, match="4 runs") as refused:
            decode_request(frames)
        assert (refused.value.code, refused.value.details) == ("too_large", {"limit": 2})
