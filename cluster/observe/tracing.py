"""Spans of what this node has done for publications that are traced, by OpenTelemetry's SDK.

What lives here: which PUT has a span, what stands in it, where it goes. What must not: anything
that a turn would wait for. The SDK's own thread sends the spans; those that it can't take it drops.

A publication is traced if its publisher has sent `traceparent` among its headers, and has decided
to keep that trace. Needs the extra `otel`. Its libraries are imported where spans are wanted.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from cluster.serve.broker import Ended
from flotilla_client.properties import Properties
from flotilla_client.properties import decode as decode_properties
from flotilla_client.protocol import HAS_PROPERTIES, NAK, Request
from flotilla_client.tracing import attributes_of, context_of

EXPORT_S_MAX: Final = 2.0  # for a batch of them; a node that stops waits for its last one
SPANS_PER_PUT_MAX: Final = 16  # a request joins many callers; a span costs a turn 50 microseconds
_PARENT: Final = b"traceparent"
_HEADER_BYTES: Final = len(_PARENT) + 2 + 55  # its name, its value's length, its value


class NodeSpans:
    """Sends this node's spans to `endpoint`; `clock()`: monotonic seconds, as of turns."""

    def __init__(
        self, endpoint: str, node: str, cluster_id: str, version: str, clock: Callable[[], float]
    ) -> None:
        resource = Resource.create(
            {
                "service.name": "flotilla",
                "service.version": version,
                "service.namespace": cluster_id,
                "service.instance.id": node,
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_S_MAX)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("flotilla", version)
        self._clock = clock

    def begin(self, request: Request) -> Ended | None:
        """Return what ends the spans of a PUT, from the turn that took it; None: it has none."""
        contexts = [*map(context_of, _traced(request))]
        kept = [each for each in contexts if _is_kept(each)]
        if not kept:
            return None
        attributes = attributes_of(request.topic, "store", "settle")
        attributes["messaging.batch.message_count"] = len(request.lengths) // 4
        return partial(self._end, f"store {request.topic}", attributes, kept)

    def _end(
        self,
        name: str,
        attributes: dict[str, str | int],
        parents: list[Context],
        taken_ms: float,
        kind: str,
        body: Mapping[str, Any],
    ) -> None:
        end_ns = time.time_ns()
        start_ns = end_ns - int((self._clock() * 1000 - taken_ms) * 1_000_000)
        if kind == NAK:
            attributes["error.type"] = body["error"]
        elif body["id"]:
            attributes["messaging.message.id"] = str(body["id"])
        for parent in parents:
            span = self._tracer.start_span(
                name, parent, SpanKind.SERVER, attributes, start_time=start_ns
            )
            if kind == NAK:
                span.set_status(StatusCode.ERROR, body["message"])
            span.end(end_ns)

    def close(self) -> None:
        """Send what is left, and end the thread."""
        self._provider.shutdown()


def _is_kept(context: Context) -> bool:
    return trace.get_current_span(context).get_span_context().trace_flags.sampled


def _traced(request: Request) -> Iterator[Mapping[str, str | bytes]]:
    """Yield the headers of those publications that are traced, of each trace once.

    What looks like a header that was looked at is not read again: a call puts one context on all
    that it publishes, thousands in a request.
    """
    start, seen = 0, set[bytes]()
    for (size,) in struct.iter_unpack("<I", request.lengths):
        end = start + (size & ~HAS_PROPERTIES)
        at = request.data.find(_PARENT, start, end) if size & HAS_PROPERTIES else -1
        header = request.data[at : at + _HEADER_BYTES]
        if at >= 0 and header not in seen:
            seen.add(header)
            properties: Properties = decode_properties(request.data[start:end])[0]
            if "traceparent" in properties.headers:
                yield properties.headers
            if len(seen) == SPANS_PER_PUT_MAX:
                return
        start = end
