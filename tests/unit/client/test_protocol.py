"""The wire contract: what is encoded is decoded, and what is wrong is refused by its code."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flotilla_client.protocol import (
    ACK,
    ANY_TOPIC_COUNT_MAX,
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    ERRORS,
    GET,
    GET_WAIT_MS_MAX,
    HEADER_BYTES_MAX,
    INSPECT,
    INTEGER_MAX,
    NAK,
    NAME_BYTES_MAX,
    PUBLICATION_BYTES_MAX,
    PUT,
    READ,
    REQUEST_ID,
    REQUEST_TYPES,
    SEEK,
    STATUS,
    SUB,
    TOPIC_BYTES_MAX,
    TOPICS,
    UNSUB,
    UPGRADE,
    ProtocolError,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    nak_body,
    pack,
    request_id_of,
    unpack,
)


def _frames(kind: Any = STATUS, *batch: bytes, **header: Any) -> list[bytes]:
    return [orjson.dumps({"type": kind, "request_id": "r"} | header), *batch]


def _owned(kind: str, *batch: bytes, topic: str = "t", **body: Any) -> list[bytes]:
    return _frames(kind, *batch, topic=topic, client_id="c", body=body)


def _refusal(frames: list[bytes]) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode_request(frames)
    return caught.value


# --- round trips --------------------------------------------------------------------------------

BATCH = pack([b"a", b"", b"ccc"])

REQUESTS = [
    Request(REQUEST_ID, "r.1", "", "", None, {"sequence": None, "nonce": ""}),
    Request(REQUEST_ID, "r.1", "", "c", None, {"sequence": 3, "nonce": "n"}),
    Request(SUB, "r.1", "größe", "c", 1, {"sequence": 4, "start": "new"}),
    Request(SUB, "r.1", "größe", "c", 1, {"sequence": 4, "start": "earliest"}),
    Request(SEEK, "r.1", "t", "c", 1, {"sequence": 4, "start": 17}),
    Request(
        READ,
        "r.1",
        "t",
        body={
            "from_id": 3,
            "max_count": 2,
            "max_bytes": 9,
            "text": False,
            "properties": False,
            "expiry": False,
            "runs": False,
        },
    ),
    Request(UNSUB, "r.1", "t", "c", 2, {"sequence": INTEGER_MAX}),
    Request(PUT, "r.1", "t", "c", 2, {"counter": 0, "count": 3}, *BATCH),
    Request(TOPICS, "r.1", "", "c", None, {"all": False, "after": ""}),
    Request(TOPICS, "r.1", "", "", None, {"all": True, "after": ""}),
    Request(TOPICS, "r.1", "t", "", None, {"all": True, "subscribers": True, "after": "c"}),
    Request(STATUS, "r.1"),
    Request(UPGRADE, "r.1", body={"level": None}),
    Request(INSPECT, "r.1", body={"what": "clients", "after": "c"}),
    Request(INSPECT, "r.1", "", "c", body={"what": "client", "after": "t"}),
    Request(UPGRADE, "r.1", body={"level": 255}),
    Request(
        GET,
        "r.1",
        "t",
        "c",
        1,
        {
            "max_count": 5,
            "max_bytes": 9,
            "wait_ms": 7,
            "text": False,
            "properties": True,
            "expiry": False,
            "runs": True,
            "last_id": 4,
            "placed": 9,
        },
    ),
    Request(
        GET,
        "r.1",
        "",
        "c",
        1,
        {
            "max_count": 1,
            "max_bytes": 9,
            "wait_ms": 0,
            "text": True,
            "properties": False,
            "expiry": False,
            "runs": False,
            "last_ids": {"t": 4},
            "placed": {"t": 2},
        },
    ),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.type)
def test_a_request_is_decoded_as_it_was_encoded(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize(
    "reply",
    [
        Reply(ACK, "r.1", "a", "b", 7, {"id": 1, "count": 3}, *BATCH),
        Reply(NAK, "r.1", "a", "", 0, nak_body("electing", "wait", retry_after_ms=5)),
    ],
)
def test_a_reply_is_decoded_as_it_was_encoded(reply: Reply) -> None:
    assert decode_reply(encode_reply(reply)) == reply
    assert reply.ok == (reply.type == ACK)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=50))
def test_a_batch_is_unpacked_as_it_was_packed(publications: list[bytes]) -> None:
    assert unpack(*pack(publications)) == publications


def test_a_header_written_by_hand_needs_neither_version_nor_body() -> None:
    assert decode_request([b'{"type": "STATUS"}']) == Request(STATUS, "")
    assert decode_request([b'{"type": "STATUS", "body": null, "request_id": "r"}']).body == {}


def test_a_publication_as_text_becomes_a_batch_of_one() -> None:
    request = decode_request(_owned(PUT, counter=1, publication="ü"))
    assert unpack(request.lengths, request.data) == ["ü".encode()]
    assert request.body == {"counter": 1, "count": 1}


def test_what_a_get_leaves_out_has_its_default_and_what_it_overdoes_is_cut() -> None:
    body = decode_request(_owned(GET)).body
    assert body == {
        "max_count": 1,
        "max_bytes": BATCH_BYTES_MAX,
        "wait_ms": 0,
        "text": False,
        "properties": False,
        "expiry": False,
        "runs": False,
        "last_id": None,
        "placed": 0,
    }
    greedy = {"max_count": 10**9, "max_bytes": 10**9, "wait_ms": 10**9}
    body = decode_request(_owned(GET, **greedy)).body
    assert (body["max_count"], body["max_bytes"]) == (BATCH_COUNT_MAX, BATCH_BYTES_MAX)
    assert body["wait_ms"] == GET_WAIT_MS_MAX


def test_fields_that_a_type_does_not_know_are_dropped() -> None:
    assert decode_request(_owned(SUB, sequence=1, surprise=2)).body == {
        "sequence": 1,
        "start": "new",
    }


# --- refusals -----------------------------------------------------------------------------------

_LONG_LAST_IDS = {str(number): 0 for number in range(ANY_TOPIC_COUNT_MAX + 1)}
_TEXT_MAX = "x" * PUBLICATION_BYTES_MAX

BAD_REQUESTS = {
    "no frame": [],
    "two frames": [b"{}", b""],
    "four frames": [b"{}"] * 4,
    "no JSON": [b"{"],
    "no UTF-8": [b'{"type": "\xff"}'],
    "no object": [b"[]"],
    "another version": _frames(v=2),
    "no type": [b"{}"],
    "unknown type": _frames("EXPLODE"),
    "a type that is a number": _frames(7),
    "a type that is a list": _frames([]),
    "a topic that is a number": _frames(topic=1),
    "a request id that is a list": _frames(request_id=[]),
    "an epoch of zero": _frames(epoch=0),
    "an epoch that is text": _frames(epoch="1"),
    "a body that is a list": _frames(body=[1]),
    "SUB without a client": _frames(SUB, topic="t"),
    "SUB without a topic": _owned(SUB, topic=""),
    "a topic with a line break": _owned(SUB, topic="a\nb"),
    "a sequence of zero": _owned(SUB, sequence=0),
    "a sequence that is true": _owned(SUB, sequence=True),
    "a sequence above what JSON readers agree on": _owned(SUB, sequence=INTEGER_MAX + 1),
    "a nonce that is a number": _owned(REQUEST_ID, nonce=1),
    "a client of its own name with what a terminal obeys": _frames(
        REQUEST_ID, client_id="c\x1b[2J", body={"create": True}
    ),
    "PUT without a counter": _owned(PUT, publication="x"),
    "PUT with a counter below zero": _owned(PUT, counter=-1, publication="x"),
    "PUT of nothing": _owned(PUT, counter=1),
    "PUT of a number": _owned(PUT, counter=1, publication=5),
    "PUT of another count": _owned(PUT, *BATCH, counter=1, count=2),
    "PUT with an empty batch": _owned(PUT, b"", b"", counter=1),
    "lengths that are no uint32": _owned(PUT, b"123", b"", counter=1),
    "lengths that don't add up": _owned(PUT, BATCH[0], BATCH[1] + b"x", counter=1),
    "GET with a batch": _owned(GET, *BATCH),
    "SUB with a batch": _owned(SUB, *BATCH),
    "REQUEST_ID with a batch": _owned(REQUEST_ID, *BATCH),
    "TOPICS with a batch": _owned(TOPICS, *BATCH),
    "STATUS with a batch": _owned(STATUS, *BATCH),
    "UPGRADE with a batch": _owned(UPGRADE, *BATCH),
    "UPGRADE to level 0": _owned(UPGRADE, level=0),
    "UPGRADE to a level that no entry can name": _owned(UPGRADE, level=256),
    "UPGRADE to a text": _owned(UPGRADE, level="2"),
    "GET with a last_id below zero": _owned(GET, last_id=-1),
    "GET with a last_id of any topic that is text": _owned(GET, topic="", last_ids={"t": "1"}),
    "GET with last_ids that are a list": _owned(GET, topic="", last_ids=[1]),
    "GET of many as text": _owned(GET, max_count=2, text=True),
    "GET without a client": _frames(GET, topic="t"),
    "TOPICS without a client": _frames(TOPICS),
    "subscribers of no topic": _frames(TOPICS, body={"subscribers": True}),
}

TOO_LARGE = {
    "a header": ([b" " * (HEADER_BYTES_MAX + 1)], HEADER_BYTES_MAX),
    "a header with a text": (_owned(PUT, counter=1, publication="x" * 2**21), HEADER_BYTES_MAX),
    "a header with much besides a text": (
        _owned(PUT, counter=1, publication="x" * 2**20, more=[1] * HEADER_BYTES_MAX),
        HEADER_BYTES_MAX,
    ),
    "a header with a text that ends early": (
        [b'{"publication":"x\\\\","more":[' + b"1," * HEADER_BYTES_MAX + b"1]}"],
        HEADER_BYTES_MAX,
    ),
    "a header of names": (
        [b'{"publication":' + b'{"a\\\\":1},' * HEADER_BYTES_MAX + b"1]}"],
        HEADER_BYTES_MAX,
    ),
    "a topic": (_owned(SUB, topic="ü" * (TOPIC_BYTES_MAX // 2 + 1)), TOPIC_BYTES_MAX),
    "a request id": (_frames(request_id="x" * (NAME_BYTES_MAX + 1)), NAME_BYTES_MAX),
    "a nonce": (_owned(REQUEST_ID, nonce="x" * (NAME_BYTES_MAX + 1)), NAME_BYTES_MAX),
    "a text": (_owned(PUT, counter=1, publication=_TEXT_MAX + "x"), PUBLICATION_BYTES_MAX),
    "a batch's count": (_owned(PUT, bytes(4 * BATCH_COUNT_MAX + 4), b""), BATCH_COUNT_MAX),
    "a batch's bytes": (_owned(PUT, b"", bytes(BATCH_BYTES_MAX + 1)), BATCH_BYTES_MAX),
    "last_ids": (_owned(GET, topic="", last_ids=_LONG_LAST_IDS), ANY_TOPIC_COUNT_MAX),
}


@pytest.mark.parametrize("text", ["x", '"', "\\", '\\"', '"\\\\"', "\u00fc\n", '{"a":[1,"b\\\\"]}'])
def test_a_header_may_be_large_for_its_publication_s_text_alone(text: str) -> None:
    publication = text * (PUBLICATION_BYTES_MAX // 6 // len(text.encode()))
    request = decode_request(_owned(PUT, counter=1, publication=publication))
    assert request.data == publication.encode()


def test_a_header_that_is_too_large_is_refused_by_its_request_id_without_parsing_it() -> None:
    for header in (
        b'{"request_id":"r 1","body":[' + b"1," * HEADER_BYTES_MAX + b"1]}",
        b'{"body":[' + b"1," * HEADER_BYTES_MAX + b'1],"request_id" : "r 1"}',
        b'{"request_id":"r 1", not JSON at all' + b" " * HEADER_BYTES_MAX,
    ):
        assert _refusal([header]).code == "too_large"
        assert request_id_of([header]) == "r 1"
    assert request_id_of([b" " * (HEADER_BYTES_MAX + 1)]) == ""


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_it_is_a_bad_request(name: str) -> None:
    assert _refusal(BAD_REQUESTS[name]).code == "bad_request"


@pytest.mark.parametrize("name", TOO_LARGE)
def test_it_is_too_large_and_the_limit_is_named(name: str) -> None:
    frames, limit = TOO_LARGE[name]
    error = _refusal(frames)
    assert (error.code, error.details) == ("too_large", {"limit": limit})


@pytest.mark.parametrize(
    "header",
    [
        '{"type":"STATUS","v":%s}',
        '{"type":%s}',
        '{"type":"PUT","topic":"t","client_id":"c",'
        '"body":{"counter":1,"publication":"","count":%s}}',
    ],
)
@pytest.mark.parametrize("value", ["[" * 1000 + "]" * 1000, '"' + "\x7f" * 10_000 + '"'])
def test_a_value_that_is_deep_or_long_gets_a_short_refusal(header: str, value: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_request([(header % value).encode()])
    assert caught.value.code == "bad_request"
    assert len(caught.value.message) < 200


def test_a_name_in_last_ids_is_bounded_like_any_topic() -> None:
    header = {"type": GET, "client_id": "c", "body": {"last_ids": {"x" * 256: 1}}}
    with pytest.raises(ProtocolError) as caught:
        decode_request([orjson.dumps(header)])
    assert (caught.value.code, caught.value.details["limit"]) == ("too_large", TOPIC_BYTES_MAX)


def test_the_largest_publication_that_is_allowed_is_taken() -> None:
    assert decode_request(_owned(PUT, counter=1, publication=_TEXT_MAX)).body["count"] == 1


def test_a_reply_of_another_type_is_refused() -> None:
    with pytest.raises(ProtocolError, match="ACK or NAK"):
        decode_reply(_frames("MAYBE"))


def test_the_id_of_a_refused_request_is_found_where_there_is_one() -> None:
    assert request_id_of(_frames("EXPLODE", request_id="mine")) == "mine"
    assert request_id_of([b"{"]) == ""
    assert request_id_of([]) == ""
    assert request_id_of([b"[]"]) == ""
    assert request_id_of(_frames(request_id=["mine"])) == ""
    assert request_id_of(_frames(request_id="x" * (NAME_BYTES_MAX + 1))) == ""


@pytest.mark.parametrize("version", [2, 0, -1, 1.5, "2", None, [2], {"major": 2}])
def test_a_request_of_another_version_is_refused_under_its_own_id(version: Any) -> None:
    frames = _frames("SPLICE", b"one", b"two", b"three", v=version, body=7, request_id="mine")
    assert _refusal(frames).code == "bad_request"
    assert request_id_of(frames) == "mine"


def test_the_refusal_of_another_version_names_the_one_that_is_spoken() -> None:
    refusal = _refusal(_frames(v=2))
    assert refusal.details == {"version": 1}
    assert "2" in refusal.message


def test_every_row_of_the_error_table_says_what_a_client_does() -> None:
    for code, row in ERRORS.items():
        assert (row.code, row.retry in ("same", "leader", "never")) == (code, True)
        assert nak_body(code, "m", limit=1) == {
            "error": code,
            "message": "m",
            "definite": row.definite,
            "limit": 1,
        }


# --- fuzz ---------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_FIELDS = ["sequence", "nonce", "counter", "count", "publication", "last_id", "last_ids", "text"]
_BODIES = st.dictionaries(st.sampled_from([*_FIELDS, "max_count", "wait_ms", "all"]), _JSON)
_HEADERS = st.fixed_dictionaries(
    {"type": st.sampled_from(sorted(REQUEST_TYPES)) | _JSON},
    optional={
        "v": st.just(1) | _JSON,
        "topic": st.just("t") | _JSON,
        "client_id": st.just("c") | _JSON,
        "request_id": _JSON,
        "epoch": _JSON,
        "body": _BODIES | _JSON,
    },
)


def _encoded(header: Any) -> bytes:
    return orjson.dumps(header) if _fits(header) else b"{}"


def _fits(header: Any) -> bool:
    try:
        orjson.dumps(header)
    except orjson.JSONEncodeError:  # integers above 64 bits
        return False
    return True


@given(_HEADERS.map(_encoded) | st.binary(), st.lists(st.binary(max_size=16), max_size=3))
def test_whatever_comes_is_decoded_or_refused_with_a_protocol_error(
    header: bytes, batch: list[bytes]
) -> None:
    found = _decoded_or_refused([header, *batch])
    if isinstance(found, Request):
        assert decode_request(encode_request(found)) == found
        return
    assert found.code in ("bad_request", "too_large")
    body = nak_body(found.code, found.message, **found.details)
    assert decode_reply(encode_reply(Reply(NAK, "r", "a", "", 0, body))).body == body


def _decoded_or_refused(frames: list[bytes]) -> Request | ProtocolError:
    try:
        return decode_request(frames)
    except ProtocolError as error:
        return error
