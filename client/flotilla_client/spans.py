"""What a client says of its publications to OpenTelemetry: nothing, or a span of each.

What lives here: the span of one call, and how its context goes with what is published. What must
not: OpenTelemetry itself (tracing.py). Only a client that was given a tracer imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from flotilla_client.batches import Publishable

if TYPE_CHECKING:
    import asyncio

    from opentelemetry import trace

    from flotilla_client.operations import PutResult

    Tracer = trace.Tracer
else:
    Tracer = object  # for annotations: an extra


class Spans(Protocol):
    """Makes the span of each call that publishes."""

    def publishing(self, topic: str) -> PublishSpan:
        """Begin the span of a call; it ends with the block, or with the future it follows."""
        ...


class PublishSpan:
    """The span of a call that publishes, if nobody traces: it does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def carried(self, publication: Publishable) -> Publishable:
        """Return the publication with the span's context among its headers."""
        return publication

    def all_carried(self, publications: Sequence[Publishable]) -> Sequence[Publishable]:
        """Return them all so."""
        return publications

    def stored(self, result: PutResult) -> None:
        """Note where it was stored."""

    def follow(self, future: Future[PutResult] | asyncio.Future[PutResult]) -> None:
        """End with the future, not with the block."""


class Untraced:
    """The spans of a client without a tracer."""

    def __init__(self) -> None:
        self._none = PublishSpan()

    def publishing(self, topic: str) -> PublishSpan:
        """Return what does nothing."""
        return self._none


def spans_of(tracer: Tracer | None) -> Spans:
    """Return what makes a client's spans. Raises TypeError for what is no tracer."""
    if tracer is None:
        return Untraced()
    try:
        from flotilla_client.tracing import Traced
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        what = "tracer is a Tracer of OpenTelemetry, which is not installed"
        raise TypeError(f"{what}: pip install './client[otel]', in a checkout") from error
    return Traced(tracer)
