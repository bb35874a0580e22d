"""A publication is followed from the call that publishes it, through the leader, to its reader."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from cluster.local.local import LocalCluster
from flotilla_client import AsyncClient, Client
from flotilla_client.errors import NoSubscribers
from flotilla_client.tracing import processing

EXPORTED_S_MAX = 15.0  # the SDK sends each 5 s, and when a node stops


class Collector(ThreadingHTTPServer):
    """Takes what nodes export. `spans` {span id of the parent: (node, span)}."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Export)
        self.spans: dict[str, tuple[str, Any]] = {}
        self.came = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class _Export(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        with self.server.came:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                named = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        node = named["service.instance.id"]
                        self.server.spans[span.parent_span_id.hex()] = node, span
            self.server.came.notify_all()
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def cluster(tmp_path: Path, collector: Collector) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster") as made:
        made.create(3, settings={"otlp_endpoint": collector.url})
        made.start_all()
        made.wait_for_leader()
        made.begin_at_newest_level()  # the context of a span is a header
        yield made


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(kept: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(kept))
    return made


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None, span
    return f"{span.context.span_id:016x}"


def until(condition: Callable[[], bool], collector: Collector) -> None:
    with collector.came:
        assert collector.came.wait_for(condition, EXPORTED_S_MAX), collector.spans


def test_spans_of_publisher_leader_and_reader_are_one_trace(
    cluster: LocalCluster,
    collector: Collector,
    kept: InMemorySpanExporter,
    provider: TracerProvider,
    tmp_path: Path,
) -> None:
    tracer = provider.get_tracer("test")
    endpoints = list(cluster.endpoints().values())
    with (
        Client(endpoints, state_dir=tmp_path / "reader") as reader,
        Client(endpoints, tracer=tracer) as client,
    ):
        reader.subscribe("orders")
        with tracer.start_as_current_span("request"):
            client.publish("orders", "a", headers={"of": "one"})
        client.publish_many("orders", ["b", "c"])
        client.publish_soon("orders", "d").result()

        async def publish() -> None:
            async with AsyncClient(endpoints, tracer=tracer) as tasks:
                await tasks.publish("orders", "e")
                await (await tasks.publish_soon("orders", "f"))

        asyncio.run(publish())
        with pytest.raises(NoSubscribers):
            client.publish("nobody", "g")
        for message in reader.messages("orders", idle=0):
            with processing(tracer, message):
                pass
    finished = kept.get_finished_spans()
    [request] = [each for each in finished if each.name == "request"]
    published = [each for each in finished if each.name == "publish orders"]
    assert [dict(each.attributes or {}).get("messaging.message.id") for each in published] == (
        ["1", None, "4", "5", "6"]
    )
    assert all(each.kind == SpanKind.PRODUCER for each in published)
    assert published[0].parent is not None
    assert f"{published[0].parent.span_id:016x}" == id_of(request)
    # Each message is processed beneath the call that published it.
    beneath = {
        (each.attributes or {})["messaging.message.id"]: f"{each.parent.span_id:016x}"
        for each in finished
        if each.kind == SpanKind.CONSUMER and each.parent is not None
    }
    calls = [0, 1, 1, 2, 3, 4]
    assert beneath == {
        str(number): id_of(published[call]) for number, call in enumerate(calls, start=1)
    }
    [refused] = [each for each in finished if each.name == "publish nobody"]
    assert refused.status.status_code == StatusCode.ERROR
    assert (refused.attributes or {})["error.type"] == "no_subscribers"
    # So does the leader what it did for each, within the time that the call took.
    until(lambda: {*map(id_of, published)} <= {*collector.spans}, collector)
    for each in published:
        node, span = collector.spans[id_of(each)]
        assert (node, span.name) == (cluster.leader(), "store orders")
        assert each.context is not None
        assert span.trace_id.hex() == f"{each.context.trace_id:032x}"
        assert span.start_time_unix_nano < span.end_time_unix_nano


def test_a_node_makes_no_span_of_what_its_publisher_does_not_keep(
    cluster: LocalCluster, collector: Collector, tmp_path: Path
) -> None:
    endpoints = list(cluster.endpoints().values())
    off, on = TracerProvider(sampler=ALWAYS_OFF), TracerProvider()
    with Client(endpoints, state_dir=tmp_path / "reader") as reader:
        reader.subscribe("orders")
        for provider in (off, on):
            with Client(endpoints, tracer=provider.get_tracer("test")) as client:
                client.publish("orders", "a")
        until(lambda: bool(collector.spans), collector)
        read = [message.headers for message in reader.messages("orders", idle=0)]
    kept = [int(str(headers["traceparent"])[-2:], 16) & 1 for headers in read]
    assert (kept, len(collector.spans)) == ([0, 1], 1)


def test_a_collector_that_is_gone_costs_spans_and_nothing_else(
    cluster: LocalCluster, collector: Collector, provider: TracerProvider, tmp_path: Path
) -> None:
    endpoints = list(cluster.endpoints().values())
    collector.server_close()
    with (
        Client(endpoints, state_dir=tmp_path / "reader") as reader,
        Client(endpoints, tracer=provider.get_tracer("test")) as client,
    ):
        reader.subscribe("orders")
        for number in range(50):
            client.publish("orders", str(number))
        read = [int(message.publication) for message in reader.messages("orders", idle=0)]
    assert read == [*range(50)]
    began = time.monotonic()
    assert cluster.down() == [], "a node had to be killed"
    print(f"stopped after {time.monotonic() - began:.1f} s")
