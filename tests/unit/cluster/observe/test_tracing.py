"""The spans that a node makes of a PUT: of which publications, how many, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cluster.observe import tracing
from cluster.observe.tracing import SPANS_PER_PUT_MAX, NodeSpans
from flotilla_client.properties import Enveloped, Properties, decode, encode
from flotilla_client.protocol import ACK, NAK, PUT, Request, pack

NOW_S = 100.0


class SpansInMemory:
    """A node's spans, kept instead of sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept = InMemorySpanExporter()
        monkeypatch.setattr(tracing, "OTLPSpanExporter", lambda *_, **__: self.kept)
        monkeypatch.setattr(tracing, "BatchSpanProcessor", SimpleSpanProcessor)
        self.spans = NodeSpans("http://127.0.0.1:1", "n1", "c", "0.4.0", lambda: NOW_S)

    def made(self, request: Request, kind: str, body: Mapping[str, Any]) -> Sequence[ReadableSpan]:
        """Return the spans of a request that was taken 20 ms ago."""
        end = self.spans.begin(request)
        if end is not None:
            end(NOW_S * 1000 - 20, kind, body)
        return self.kept.get_finished_spans()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> SpansInMemory:
    return SpansInMemory(monkeypatch)


def traced(trace: int, span: int = 1, sampled: bool = True) -> bytes:
    """Return a publication with the context of a span."""
    parent = f"00-{trace:032x}-{span:016x}-0{int(sampled)}"
    return Enveloped(encode(Properties(None, {"traceparent": parent})) + b"x")


def put(*publications: bytes) -> Request:
    lengths, data = pack(publications)
    body = {"counter": 1, "count": len(publications)}
    return Request(PUT, "r", "orders", "c", None, body, lengths, data)


def traces(spans: Sequence[ReadableSpan]) -> list[int]:
    return [span.context.trace_id for span in spans if span.context is not None]


def test_what_is_not_traced_has_no_span(node: SpansInMemory) -> None:
    own = Enveloped(encode(Properties("key", {"of": "one"})) + b"x")
    assert node.spans.begin(put(b"x", own, traced(7, sampled=False))) is None


def test_a_request_has_a_span_of_each_call_whose_publications_it_joins(node: SpansInMemory) -> None:
    request = put(traced(7, 1), b"x", traced(7, 1), traced(7, 2), traced(8), traced(9, 1, False))
    made = node.made(request, ACK, {"id": 3})
    parents = [(span.parent.trace_id, span.parent.span_id) for span in made if span.parent]
    assert parents == [(7, 1), (7, 2), (8, 1)]
    assert traces(made) == [7, 7, 8]
    for span in made:
        assert (span.name, span.kind) == ("store orders", SpanKind.SERVER)
        attributes = dict(span.attributes or {})
        assert attributes["messaging.batch.message_count"] == 6
        assert attributes["messaging.message.id"] == "3"
        assert span.end_time is not None
        assert span.start_time is not None
        assert (span.end_time - span.start_time) // 1_000_000 == 20
        assert span.status.status_code == StatusCode.UNSET


def test_a_request_of_many_calls_has_a_bounded_number_of_spans(node: SpansInMemory) -> None:
    count = SPANS_PER_PUT_MAX + 4
    made = node.made(put(*map(traced, range(1, count + 1))), ACK, {"id": 1})
    assert traces(made) == [*range(1, SPANS_PER_PUT_MAX + 1)]


def test_of_the_thousands_that_a_call_publishes_one_is_read(
    node: SpansInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def decoded(publication: bytes) -> tuple[Properties, int]:
        read.append(publication)
        return decode(publication)

    monkeypatch.setattr(tracing, "decode_properties", decoded)
    for is_kept in (True, False):
        made = node.made(put(*[traced(7, sampled=is_kept)] * 5_000), ACK, {"id": 1})
        assert traces(made) == [7]
    assert len(read) == 2


def test_the_span_of_a_refused_request_says_why(node: SpansInMemory) -> None:
    [span] = node.made(put(traced(7)), NAK, {"error": "backlog_full", "message": "it is full"})
    assert dict(span.attributes or {})["error.type"] == "backlog_full"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "it is full")
