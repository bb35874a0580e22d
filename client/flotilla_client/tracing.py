"""OpenTelemetry: a span of each call that publishes, and of what is done with a message.

Needs the extra `otel`. `Client(…, tracer=…)` has a span of the kind PRODUCER of each call that
publishes. Its context goes with the publication, as the headers `traceparent` and `tracestate` of
W3C's Trace Context: they are stored and handed over as any other header is. A node that was told
where spans go (`otlp_endpoint`) adds one of its own, from the request to the answer. `processing`
is a span of the kind CONSUMER of what an application does with one message.

Names and attributes are those of OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from flotilla_client import checks
from flotilla_client.batches import Publishable
from flotilla_client.errors import FlotillaError
from flotilla_client.properties import Publication
from flotilla_client.reading import Message
from flotilla_client.spans import PublishSpan

if TYPE_CHECKING:
    import asyncio

    from flotilla_client.operations import PutResult

SYSTEM: Final = "flotilla"  # `messaging.system`
_TRACE_CONTEXT: Final = TraceContextTextMapPropagator()


def context_of(headers: Mapping[str, str | bytes]) -> Context:
    """Return the context that headers carry, an empty one if they carry none that is valid."""
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    return _TRACE_CONTEXT.extract(texts, Context())


def attributes_of(topic: str, operation: str, kind: str) -> dict[str, str | int]:
    """Return the attributes that a span of any operation on a topic has."""
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


@contextmanager
def processing(tracer: Tracer, message: Message) -> Iterator[Span]:
    """Have a span around what is done with a message; its parent is the one that published it.

    Of a group's items give the `message`. An exception that leaves the block is recorded.
    """
    attributes = attributes_of(message.topic, "process", "process")
    attributes["messaging.message.id"] = str(message.id)
    with tracer.start_as_current_span(
        f"process {message.topic}",
        context_of(message.headers),
        SpanKind.CONSUMER,
        attributes,
    ) as span:
        yield span


class Traced:
    """The spans of a client with a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        if not isinstance(tracer, Tracer):
            raise TypeError(f"tracer is a Tracer of OpenTelemetry, not {type(tracer).__name__}")
        self._tracer = tracer

    def publishing(self, topic: str) -> PublishSpan:
        """Begin the span of a call that publishes."""
        attributes = attributes_of(topic, "publish", "send")
        name = f"publish {topic}"
        return _TracedPublish(self._tracer.start_span(name, None, SpanKind.PRODUCER, attributes))


class _TracedPublish(PublishSpan):
    def __init__(self, span: Span) -> None:
        self._span, self._is_followed = span, False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None or not self._is_followed:
            self._end(error)

    def carried(self, publication: Publishable) -> Publishable:
        carrier: dict[str, str] = {}
        _TRACE_CONTEXT.inject(carrier, trace.set_span_in_context(self._span))
        if not carrier:
            return publication  # nobody collects spans
        if not isinstance(publication, Publication):
            return Publication(publication, None, carrier)
        headers = {**publication.headers, **carrier}
        return replace(publication, headers=headers)

    def all_carried(self, publications: Sequence[Publishable]) -> Sequence[Publishable]:
        checks.several("publications", publications)
        carried = [self.carried(each) for each in publications]
        self._span.set_attribute("messaging.batch.message_count", len(carried))
        return carried

    def stored(self, result: PutResult) -> None:
        if result.id:
            self._span.set_attribute("messaging.message.id", str(result.id))

    def follow(self, future: Future[PutResult] | asyncio.Future[PutResult]) -> None:
        self._is_followed = True
        future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        if future.cancelled():
            self._span.add_event("cancelled")
            self._end(None)
        elif (error := future.exception()) is not None:
            self._end(error)
        else:
            self.stored(future.result())
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            code = error.code if isinstance(error, FlotillaError) else type(error).__name__
            self._span.set_attribute("error.type", code)
            self._span.record_exception(error)
            self._span.set_status(StatusCode.ERROR, str(error))
        self._span.end()
