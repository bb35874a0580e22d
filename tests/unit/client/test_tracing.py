"""What a client without a tracer, or with a wrong one, does about spans."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from opentelemetry.trace import NoOpTracer

from flotilla_client import Client
from flotilla_client.properties import Publication
from flotilla_client.spans import Untraced, spans_of


def test_without_a_tracer_publications_are_left_as_they_are() -> None:
    with spans_of(None).publishing("t") as span:
        assert span.carried(b"x") == b"x"
        assert span.all_carried(["x", b"y"]) == ["x", b"y"]


def test_with_a_tracer_that_keeps_nothing_publications_are_left_as_they_are() -> None:
    with spans_of(NoOpTracer()).publishing("t") as span:
        own = Publication("x", "key", {"a": "b"})
        assert span.carried(own) is own


def test_what_is_no_tracer_is_refused_at_once() -> None:
    wrong: Any = "tracer"
    with pytest.raises(TypeError, match="not str"):
        Client("127.0.0.1:1", tracer=wrong)


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "flotilla_client.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    wanted: Any = object()
    assert isinstance(spans_of(None), Untraced)
    with pytest.raises(TypeError, match=r"pip install './client\[otel\]'"):
        spans_of(wanted)
