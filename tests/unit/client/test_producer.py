"""The background producer: batches, order over fail-overs, back-pressure, being stuck."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    BacklogFull,
    Client,
    Closed,
    Fenced,
    OutboxFull,
    Overloaded,
    TooLarge,
    TopicInUse,
    Unavailable,
    producer,
)
from flotilla_client.producer import Producer
from flotilla_client.protocol import GET, PUT
from tests.unit.fake_node import FakeCluster, FakeNode, client_of, impatient, nak

IMPATIENT_S = 0.3
MANY_FILES = 1_100  # more than FD_SETSIZE, 1,024
SMALL_BATCH_BYTES = 10  # two publications of five bytes


def _client(node: FakeNode, state_dir: Path | None = None, **more: Any) -> Client:
    state_dir = state_dir or node.new_directory()
    return Client(node.endpoint, state_dir=state_dir, **({"timeout": 3} | more))


def _numbered(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def _stored(node: FakeNode) -> list[bytes]:
    return node.cluster.topics["t"]


def _make_known(out: Producer) -> None:
    """Have one publication acknowledged: before that, nothing follows the first batch."""
    assert out.send("first").result(5).id == 1


def test_every_publication_gets_its_own_id_and_they_travel_in_batches(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        with client.producer("t") as out:
            futures = [out.send(text) for text in _numbered(500)]
            out.flush()
        assert [future.result(0).id for future in futures] == list(range(1, 501))
        assert len(node.of_type(PUT)) < 50
        assert _stored(node) == _numbered(500)


def test_a_lonely_publication_leaves_after_the_linger_without_a_flush(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        with client.producer("t") as out:
            assert out.send("x").result(5).id == 1


@pytest.fixture
def many_files() -> Iterator[None]:
    """Have more descriptors open than select() can count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY_FILES * 2:
        pytest.skip(f"no more than {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY_FILES * 2), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY_FILES)]
    try:
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_it_works_in_an_application_with_many_open_files(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        with client.producer("t") as out:
            assert out.send("x").result(5)


def test_many_batches_are_in_flight_but_never_more_than_allowed(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        out = client.producer("t", batch_bytes=SMALL_BATCH_BYTES, in_flight_max=4)
        _make_known(out)
        node.always(PUT, "deaf")
        for text in _numbered(100):
            out.send(text)
        puts = node.await_requests(PUT, 5)
        assert [put.body["counter"] for put in puts] == [1, 2, 4, 6, 8]
        assert len(client._session.state.outbox()) == 4
        node.always(PUT, None)
        out.close()
        assert _stored(node) == [b"first", *_numbered(100)]


def test_nothing_overtakes_a_topics_first_batch_which_would_then_pass_for_a_duplicate(
    node: FakeNode,
) -> None:
    node.script(PUT, nak("overloaded"))
    with _client(node) as client:
        client.subscribe("t")
        with client.producer("t", batch_bytes=SMALL_BATCH_BYTES) as out:
            futures = [out.send(text) for text in _numbered(8)]
        assert _stored(node) == _numbered(8)
        assert [future.result(0).id for future in futures] == list(range(1, 9))


@pytest.mark.parametrize("fault", ["silent", "deaf", nak("uncertain"), nak("overloaded")])
def test_order_is_kept_when_one_in_the_middle_goes_wrong(node: FakeNode, fault: Any) -> None:
    with _client(node) as client:
        client.subscribe("t")
        node.script(PUT, "twice", "twice", fault)
        with client.producer("t", batch_bytes=SMALL_BATCH_BYTES, in_flight_max=8) as out:
            futures = [out.send(text) for text in _numbered(40)]
        assert _stored(node) == _numbered(40)
        assert [future.result(0).id for future in futures] == list(range(1, 41))


def test_a_silent_first_batch_is_sent_again_with_all_behind_it(node: FakeNode) -> None:
    with _client(node, timeout=0.6) as client:
        client.subscribe("t")
        out = client.producer("t", batch_bytes=SMALL_BATCH_BYTES, in_flight_max=4)
        _make_known(out)
        node.always(PUT, "deaf")
        for text in _numbered(8):
            out.send(text)
        puts = node.await_requests(PUT, 9)
        assert [put.body["counter"] for put in puts[1:9]] == [2, 4, 6, 8, 2, 4, 6, 8]
        node.always(PUT, None)
        out.close()


def test_one_that_was_refused_behind_the_first_is_sent_again_as_soon_as_it_is_the_first(
    node: FakeNode,
) -> None:
    with _client(node, timeout=60) as client:
        client.subscribe("t")
        with client.producer("t", batch_bytes=SMALL_BATCH_BYTES) as out:
            _make_known(out)
            node.script(PUT, "late", nak("overloaded"))
            futures = [out.send(text) for text in _numbered(6)]
            assert [future.result(2).id for future in futures] == [2, 3, 4, 5, 6, 7]


def test_order_is_kept_when_the_node_dies_under_load() -> None:
    cluster = FakeCluster()
    with (
        FakeNode("a", cluster) as a,
        FakeNode("b", cluster) as b,
        Client([a.endpoint, b.endpoint], state_dir=b.new_directory()) as client,
    ):
        client.subscribe("t")
        with client.producer("t", batch_bytes=SMALL_BATCH_BYTES) as out:
            for number, text in enumerate(_numbered(400)):
                out.send(text)
                if number == 200:
                    a.await_requests(PUT, 3)
                    a.stop()
        assert cluster.topics["t"] == _numbered(400)
        assert b.of_type(PUT)


def test_a_full_queue_blocks_and_then_refuses(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "QUEUE_COUNT_MAX", 3)
    with _client(node, timeout=IMPATIENT_S) as client:
        client.subscribe("t")
        with client.producer("t", linger_ms=60_000) as out:
            for text in _numbered(3):
                out.send(text)
            with pytest.raises(Overloaded) as caught:
                out.send("one too many")
            assert caught.value.definite
        assert _stored(node) == _numbered(3)


def test_after_the_deadline_futures_say_unknown_and_the_producer_goes_on_trying(
    node: FakeNode,
) -> None:
    node.always(PUT, "deaf")
    with _client(node, timeout=IMPATIENT_S) as client:
        client.subscribe("t")
        with client.producer("t", batch_bytes=SMALL_BATCH_BYTES, in_flight_max=1) as out:
            sent, not_sent = out.send("sent"), out.send("not yet sent, too long to share a batch")
            errors = [sent.exception(5), not_sent.exception(5)]
            out.flush()
            assert [type(error) for error in errors] == [Unavailable, Unavailable]
            assert not any(isinstance(e, Unavailable) and e.definite for e in errors)
            node.always(PUT, None)
            out.send("later").result(5)
        assert _stored(node) == [b"sent", b"not yet sent, too long to share a batch", b"later"]


def test_a_full_outbox_holds_the_queue_back_and_ends_nothing(node: FakeNode) -> None:
    with _client(node, outbox_bytes_max=20) as client:
        client.subscribe("t")
        with client.producer("t", batch_bytes=SMALL_BATCH_BYTES) as out:
            _make_known(out)
            node.script(PUT, "late")
            futures = [out.send(text) for text in _numbered(10)]
            assert [future.result(10).id for future in futures] == list(range(2, 12))


def test_an_outbox_that_others_fill_is_reported_after_the_deadline_and_the_producer_goes_on(
    node: FakeNode,
) -> None:
    with _client(node, timeout=IMPATIENT_S, outbox_bytes_max=16) as client:
        client.subscribe("t")
        client.subscribe("other")
        node.always(PUT, nak("backlog_full", limit=1))
        node.script(PUT, "deaf")
        with pytest.raises(BacklogFull):
            client.publish("other", "ten bytes!")
        node.always(PUT, None)
        with client.producer("t") as out:
            error = out.send("five5").exception(5)
            assert isinstance(error, OutboxFull)
            assert error.definite
            client.flush()
            assert out.send("after").result(5).id == 1


def test_what_was_queued_when_the_deadline_passed_is_sent_by_the_next_session(
    node: FakeNode, tmp_path: Path
) -> None:
    with _client(node, tmp_path, timeout=IMPATIENT_S) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        with client.producer("t", batch_bytes=SMALL_BATCH_BYTES, in_flight_max=1) as out:
            futures = [out.send(text) for text in _numbered(9)]
        errors = [future.exception(0) for future in futures]
        assert not any(isinstance(error, Unavailable) and error.definite for error in errors)
    node.always(PUT, None)
    with _client(node, tmp_path) as client:
        client.flush()
    assert _stored(node) == _numbered(9)


def test_what_it_could_not_send_is_sent_by_the_next_session(node: FakeNode, tmp_path: Path) -> None:
    with _client(node, tmp_path, timeout=IMPATIENT_S) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        with client.producer("t") as out:
            out.send("kept")
    node.always(PUT, None)
    with _client(node, tmp_path) as client:
        client.publish("t", "next")
    assert _stored(node) == [b"kept", b"next"]


def test_one_that_has_no_time_left_puts_what_it_has_into_the_outbox(
    node: FakeNode, tmp_path: Path
) -> None:
    with _client(node, tmp_path) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        out = client.producer("t", batch_bytes=SMALL_BATCH_BYTES, in_flight_max=1)
        futures = [out.send(text) for text in _numbered(9)]

        out.finish(0.0)

        errors = [future.exception(0) for future in futures]
        assert [(type(error), getattr(error, "definite", None)) for error in errors] == [
            (Unavailable, False)
        ] * 9
    node.always(PUT, None)
    with _client(node, tmp_path) as client:
        client.flush()
    assert _stored(node) == _numbered(9)


def test_nobody_overtakes_what_a_closed_one_still_writes_to_a_slow_disk(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        out = client.producer("t")
        enqueue, is_writing, disk = out._pipeline._enqueue, threading.Event(), threading.Event()

        def written_late(*taken: Any) -> Any:
            is_writing.set()
            disk.wait(60)
            return enqueue(*taken)

        out._pipeline._enqueue = written_late  # type: ignore[method-assign]
        sooner = out.send("sooner")
        out.begin_flushing()
        assert is_writing.wait(30)
        out.finish(0.0)
        try:
            with pytest.raises(TopicInUse):
                client.publish("t", "later")
        finally:
            disk.set()
        error = sooner.exception(30)
        assert error is None or isinstance(error, Unavailable)  # its answer may come in time
        out._thread.join()
        client.publish("t", "later")
        assert _stored(node) == [b"sooner", b"later"]


def test_nothing_is_taken_by_one_that_was_closed(node: FakeNode) -> None:
    with _client(node) as client:
        out = client.producer("t")
        out.close()
        with pytest.raises(Closed):
            out.send("lost")


def test_a_producer_first_sends_what_an_earlier_one_left(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "left")
        node.always(PUT, None)
        with client.producer("t") as out:
            out.send("new")
        assert _stored(node) == [b"left", b"new"]


def test_a_refused_batch_stops_it_and_the_client_takes_the_window_back_under_a_new_epoch(
    node: FakeNode,
) -> None:
    with _client(node) as client:
        client.subscribe("t")
        node.script(PUT, *[nak("too_large", limit=1)] * 50)
        out = client.producer("t")
        future = out.send("refused")
        assert isinstance(future.exception(5), TooLarge)
        with pytest.raises(TooLarge):
            out.send("after it").result(5)
        out.close()
        with pytest.raises(TooLarge):
            client.publish("t", "tells of it once")
        node._faults[PUT].clear()
        assert client.publish("t", "then goes on").id == 1
        assert node.of_type(PUT)[-1].epoch == 2
        assert _stored(node) == [b"then goes on"]


def test_a_fenced_producer_stops_for_good(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        out = client.producer("t")
        node.cluster.clients[client.client_id].epoch += 1
        assert isinstance(out.send("x").exception(5), Fenced)
        with pytest.raises(Fenced) as caught:
            out.send("y").result(5)
        assert isinstance(caught.value, Fenced)
        out.close()


def test_while_it_is_open_it_alone_publishes_to_the_topic(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        with client.producer("t") as out:
            with pytest.raises(TopicInUse, match="open producer"):
                client.publish("t", "between")
            with pytest.raises(TopicInUse, match="open producer"):
                client.producer("t")
            out.send("x")
        assert client.publish("t", "after").id == 2


def test_a_producer_whose_close_ctrl_c_ends_lets_others_publish(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        out = client.producer("t")
        future = out.send("x")
        node.await_requests(PUT, 1)
        with monkeypatch.context() as patched:
            waits = iter([KeyboardInterrupt])
            wait_for = out._queue.changed.wait_for

            def broken_off(*about: Any) -> bool:
                for error in waits:
                    raise error
                return wait_for(*about)

            patched.setattr(out._queue.changed, "wait_for", broken_off)
            with pytest.raises(KeyboardInterrupt):
                out.close()
        assert isinstance(future.exception(), Unavailable)
        node.always(PUT, None)
        assert client.publish("t", "y").id == 2


def test_several_threads_may_send(node: FakeNode) -> None:
    with _client(node) as client:
        client.subscribe("t")
        with client.producer("t") as out:

            def work(number: int) -> None:
                for text in range(100):
                    out.send(b"%d-%d" % (number, text))

            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for number in range(4):
            mine = [text for text in _stored(node) if text.startswith(b"%d-" % number)]
            assert mine == [b"%d-%d" % (number, text) for text in range(100)]
    assert not node.of_type(GET)
