"""`Client` against a fake node: answers, refusals, retries."""

from __future__ import annotations

import shutil
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    BacklogFull,
    BadRequest,
    Client,
    CounterGap,
    FlotillaError,
    NotSubscribed,
    OutboxFull,
    PutResult,
    TooLarge,
    TopicInUse,
    Unavailable,
    UnknownClient,
    protocol,
)
from flotilla_client.client import endpoints_of
from flotilla_client.protocol import (
    BATCH_BYTES_MAX,
    GET,
    HEADER_BYTES_MAX,
    PUBLICATION_BYTES_MAX,
    PUT,
    REQUEST_ID,
    TOPIC_BYTES_MAX,
    TOPICS,
)
from tests.unit.fake_node import (
    IMPATIENT_S,
    FakeCluster,
    FakeNode,
    client_of,
    impatient,
    nak,
    texts_of,
)

# --- the plain way ------------------------------------------------------------------------------


def test_what_is_put_is_got_once_and_in_order(node: FakeNode) -> None:
    with client_of(node) as client:
        assert client.subscribe("t").last_id == 0
        assert client.publish("t", "größe") == PutResult(1, 1, False, True)
        assert client.publish("t", b"\x00\xff") == PutResult(2, 1, False, True)
        delivery = client.get("t")
        assert delivery is not None
        assert (delivery.first_id, delivery.publications) == (1, ("größe".encode(),))
        assert texts_of(client, "t") == [b"\x00\xff"]
        assert client.get("t") is None


def test_a_get_without_a_topic_takes_from_any_subscription(node: FakeNode) -> None:
    with client_of(node) as client:
        for topic in "ab":
            client.subscribe(topic)
            client.publish(topic, topic * 2)
        assert sorted(texts_of(client)) == [b"aa", b"bb"]


def test_a_get_without_a_topic_fits_its_header_whatever_the_topics_names(node: FakeNode) -> None:
    names = [f"{number:03}" + "ü" * (TOPIC_BYTES_MAX // 2 - 2) for number in range(70)]
    assert sum(map(len, map(str.encode, names))) > HEADER_BYTES_MAX
    with client_of(node) as client:
        for name in names:
            client.subscribe(name)
            client.publish(name, name)
        got = [client.get() for _ in names]
        assert sorted(each.topic for each in got if each) == names
        assert client.get() is None


def test_a_waiting_get_returns_when_a_publication_comes(node: FakeNode) -> None:
    with client_of(node) as reader, client_of(node) as writer:
        reader.subscribe("t")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(reader.get("t", idle=20)))
        thread.start()
        node.await_requests(GET, 1)
        writer.publish("t", "now")
        thread.join(10)
        assert found[0].publications == (b"now",)


def test_manual_acknowledgment_brings_a_publication_again_until_it_is_said(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])
        first, again = client.get("t", ack="manual"), client.get("t", ack="manual")
        assert first == again
        assert first is not None
        client.acknowledge("t", first.last_id)
        assert texts_of(client, "t") == [b"b"]


def test_messages_moves_the_cursor_one_by_one(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b", "c"])
        messages = client.messages("t", idle=0)
        assert [next(messages).publication, next(messages).publication] == [b"a", b"b"]
    with client_of(node, tmp_path) as client:
        assert texts_of(client, "t") == [b"b", b"c"]


def test_many_publications_travel_in_as_few_batches_as_fit(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        third = b"x" * (BATCH_BYTES_MAX // 3)
        results = client.publish_many("t", [third] * 7)
        assert [(result.id, result.count) for result in results] == [(1, 3), (4, 3), (7, 1)]


def test_topics_count_what_this_client_has_though_the_broker_does_not_know_yet(
    node: FakeNode,
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])
        client.get("t", ack="at-most-once")
        assert client.topics() == [{"topic": "t", "last_id": 2, "cursor": 1, "backlog": 1}]
        [row] = client.topics(everything=True)
        assert (row["topic"], row["subscribers"]) == ("t", 1)


def test_subscribing_again_resumes_and_unsubscribing_is_idempotent(node: FakeNode) -> None:
    with client_of(node) as client:
        assert not client.subscribe("t").resumed
        client.publish("t", "a")
        client.get("t")
        client.acknowledge("t", 1)
        again = client.subscribe("t")
        assert (again.last_id, again.resumed) == (1, True)
        assert client.unsubscribe("t")
        assert not client.unsubscribe("t")
        with pytest.raises(NotSubscribed):
            client.get("t")


def test_status_asks_the_node_at_the_endpoint() -> None:
    cluster = FakeCluster()
    with (
        FakeNode("a", cluster) as a,
        FakeNode("b", cluster) as b,
        Client([a.endpoint, b.endpoint], state_dir=a.new_directory()) as client,
    ):
        assert [client.status(number)["node"] for number in (0, 1)] == ["a", "b"]


@pytest.mark.parametrize("wrong", ["", " , ", "localhost", "a:b", "a:1,b", "a:65536", "a:0"])
def test_endpoints_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        endpoints_of(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "http://a:7001",
        "foo://x:1",
        "udp://a:5",
        "tcp://",
        "tcp://a:*",
        "tcp://a",
        "tcp://a:99999",
        "ipc://",
        "a\x00:1",
    ],
)
def test_what_zeromq_would_refuse_at_the_first_call_is_refused_at_once(wrong: str) -> None:
    with pytest.raises(ValueError, match="is no endpoint"):
        endpoints_of(wrong)


def test_endpoints_may_be_zeromqs_own() -> None:
    given = ("tcp://a:7001", "tcp://[::1]:7001", "ipc:///run/n1", "[::1]:7001")
    assert endpoints_of(",".join(given)) == given


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "error"),
    [("", BadRequest), ("a\nb", BadRequest), ("\ud800", BadRequest), ("t" * 256, TooLarge)],
)
def test_a_name_that_no_node_takes_is_refused_before_anything_is_sent(
    node: FakeNode, topic: str, error: type[Exception]
) -> None:
    with client_of(node) as client:
        with pytest.raises(error):
            client.publish(topic, "x")
        assert node.requests == []


def test_a_publication_over_the_limit_is_refused_before_anything_is_sent(node: FakeNode) -> None:
    with client_of(node) as client, pytest.raises(TooLarge) as caught:
        client.publish("t", b"x" * (PUBLICATION_BYTES_MAX + 1))
    assert caught.value.details == {"limit": PUBLICATION_BYTES_MAX}
    assert node.requests == []


def test_a_definite_refusal_takes_the_publication_back_with_its_counter(node: FakeNode) -> None:
    node.script(PUT, nak("too_large", limit=1))
    with client_of(node) as client:
        client.subscribe("t")
        with pytest.raises(TooLarge) as caught:
            client.publish("t", "refused")
        assert (caught.value.definite, caught.value.details["limit"]) == (True, 1)
        client.publish("t", "taken")
        assert [put.body["counter"] for put in node.of_type(PUT)] == [1, 1]


def test_the_rest_of_publish_many_is_taken_back_with_a_refused_batch(node: FakeNode) -> None:
    half = b"x" * (BATCH_BYTES_MAX // 2)
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", [half] * 2)
        node.script(PUT, "twice", nak("too_large"))
        with pytest.raises(TooLarge) as caught:
            client.publish_many("t", [half] * 6)
        assert caught.value.details["stored"] == 2
        assert caught.value.details["withdrawn"] == 4
        assert client.next_counter("t") == 5


def test_a_counter_gap_is_reported_with_the_expected_counter(node: FakeNode) -> None:
    node.script(PUT, nak("counter_gap", expected=7))
    with client_of(node) as client, pytest.raises(CounterGap) as caught:
        client.publish("t", "x")
    assert caught.value.details["expected"] == 7


def test_a_full_backlog_is_retried_until_there_is_room(node: FakeNode) -> None:
    node.script(PUT, nak("backlog_full", limit=9), nak("backlog_full", limit=9))
    with client_of(node) as client:
        client.subscribe("t")
        assert client.publish("t", "x").id == 1


def test_a_backlog_that_stays_full_is_said_and_definite(node: FakeNode) -> None:
    node.always(PUT, nak("backlog_full", limit=9))
    with client_of(node) as client:
        with impatient(client), pytest.raises(BacklogFull) as caught:
            client.publish("t", "x")
        assert caught.value.definite
        assert client.next_counter("t") == 1


def test_all_batches_of_a_call_that_a_full_backlog_refuses_leave_the_outbox(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "BATCH_COUNT_MAX", 2)
    node.always(PUT, nak("backlog_full", limit=9))
    with client_of(node) as client:
        with impatient(client), pytest.raises(BacklogFull) as caught:
            client.publish_many("t", [*"abcdef"])
        assert (caught.value.definite, caught.value.details["withdrawn"]) == (True, 6)
        assert client._session.state.outbox() == []
        assert client.next_counter("t") == 1


# --- retries ------------------------------------------------------------------------------------


def test_a_put_whose_answer_is_lost_is_sent_again_and_stored_once(node: FakeNode) -> None:
    node.script(PUT, "silent")
    with client_of(node) as client:
        client.subscribe("t")
        assert client.publish("t", "x") == PutResult(1, 1, True, True)
        assert texts_of(client, "t") == [b"x"]


def test_late_and_doubled_replies_are_never_taken_for_answers_to_later_requests(
    node: FakeNode,
) -> None:
    node.script(PUT, "twice", "late", "garbage", "twice")
    with client_of(node) as client:
        client.subscribe("t")
        assert [client.publish("t", text).id for text in "abcde"] == [1, 2, 3, 4, 5]
        assert texts_of(client, "t") == [b"a", b"b", b"c", b"d", b"e"]


def test_a_dead_node_is_left_at_once_for_the_next_endpoint() -> None:
    cluster = FakeCluster()
    with (
        FakeNode("a", cluster) as a,
        FakeNode("b", cluster) as b,
        Client([a.endpoint, b.endpoint], state_dir=b.new_directory(), timeout=60) as client,
    ):
        client.subscribe("t")
        a.stop()
        assert client.publish("t", "x").id == 1
        assert len(b.of_type(PUT)) == 1


def test_a_client_finds_the_leader_and_stays_there() -> None:
    cluster = FakeCluster()
    cluster.leader = "c"
    with FakeNode("a", cluster) as a, FakeNode("b", cluster) as b, FakeNode("c", cluster) as c:
        with Client([a.endpoint, b.endpoint, c.endpoint], state_dir=a.new_directory()) as client:
            client.subscribe("t")
            for _ in range(5):
                client.publish("t", "x")
        assert len(c.of_type(PUT)) >= 4


def test_an_unanswered_put_stays_and_is_sent_before_the_next_one(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        with impatient(client), pytest.raises(Unavailable) as caught:
            client.publish("t", "first")
        assert not caught.value.definite
        with (
            impatient(client),
            pytest.raises(Unavailable, match="it stays in the outbox") as caught,
        ):
            client.publish("t", "behind it")
        assert (caught.value.definite, caught.value.details["kept"]) == (False, 1)
        node.always(PUT, None)
        client.publish("t", "second")
        assert texts_of(client, "t") == [b"first", b"behind it", b"second"]


def test_what_stays_is_bounded_by_the_outbox(node: FakeNode) -> None:
    with client_of(node, outbox_bytes_max=12) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "five5")
        with impatient(client), pytest.raises(OutboxFull) as caught:
            client.publish("t", "four")
        assert caught.value.definite
        node.always(PUT, None)
        client.flush()
        assert texts_of(client, "t") == [b"five5"]


@pytest.mark.parametrize("fault", ["deaf", nak("electing"), nak("uncertain")])
def test_publish_many_keeps_all_in_order_also_what_was_not_tried(
    node: FakeNode, fault: Any
) -> None:
    half = BATCH_BYTES_MAX // 2
    texts = [bytes([number]) * half for number in range(6)]
    with client_of(node) as client:
        client.subscribe("t")
        client.publish("t", "known")
        node.script(PUT, "twice")
        node.always(PUT, fault)
        # The first batches of 1 MB have to come through in time on a busy machine, too.
        impatience = impatient(client, 5 * IMPATIENT_S)
        with impatience, pytest.raises(Unavailable, match="4 stay in the outbox") as caught:
            client.publish_many("t", texts)
        assert not caught.value.definite
        assert (caught.value.details["stored"], caught.value.details["kept"]) == (2, 4)
        node.always(PUT, None)
        client.flush()
        assert node.cluster.topics["t"] == [b"known", *texts]


def test_a_refused_publication_of_the_outbox_takes_none_of_those_behind_it_along(
    node: FakeNode,
) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        for text in ("a", "too large for the node", "b"):
            with impatient(client), pytest.raises(Unavailable):
                client.publish("t", text)
        node.always(PUT, None)
        node.script(PUT, "twice", nak("too_large", limit=1))
        with pytest.raises(TooLarge) as caught:
            client.flush()
        assert (caught.value.definite, caught.value.details["withdrawn"]) == (True, 1)
        client.publish("t", "c")
        assert texts_of(client, "t") == [b"a", b"b", b"c"]


def test_what_was_put_without_any_node_goes_out_once_when_there_is_one(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with (
            Client("127.0.0.1:1", state_dir=tmp_path, timeout=IMPATIENT_S) as client,
            pytest.raises(Unavailable) as caught,
        ):
            client.publish("t", text)
        assert (caught.value.definite, caught.value.details["kept"]) == (False, 1)
    with FakeNode() as node, client_of(node) as reader:
        reader.subscribe("t")
        for _ in range(2):
            with client_of(node, tmp_path) as client:
                client.open()
        assert texts_of(reader, "t") == [b"first", b"second"]


def test_what_an_old_copy_put_without_any_node_is_never_taken_for_what_the_other_put(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path / "one") as client:
        client.subscribe("t")
        client.publish("t", "before")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    with client_of(node, tmp_path / "one") as client:
        client.publish("t", "by the other")
    with (
        Client("127.0.0.1:1", state_dir=tmp_path / "copy", timeout=IMPATIENT_S) as client,
        pytest.raises(Unavailable),
    ):
        client.publish("t", "by the copy")
    with client_of(node, tmp_path / "copy") as client:
        client.flush()
        assert texts_of(client, "t") == [b"before", b"by the other", b"by the copy"]


def test_what_is_enqueued_asks_nobody_and_is_sent_in_order_before_the_next_put(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node) as reader:
        reader.subscribe("t")
        with Client("127.0.0.1:1", state_dir=tmp_path, timeout=0.3) as client:
            assert client.enqueue("t", [b"a", "b"]) == 2
            assert client.enqueue("t", ["c"]) == 1
            with pytest.raises(TypeError):
                client.enqueue("t", "abc")
        with client_of(node, tmp_path) as client:
            client.publish("t", "d")
            assert client.enqueue("t", ["e"]) == 1
            assert len(node.of_type(PUT)) == 3
            with client.producer("t") as out:
                with pytest.raises(TopicInUse):
                    client.enqueue("t", ["x"])
                out.send("f")
        assert texts_of(reader, "t") == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_enqueue_takes_all_or_nothing(tmp_path: Path) -> None:
    with Client("127.0.0.1:1", state_dir=tmp_path, outbox_bytes_max=20) as client:
        with pytest.raises(OutboxFull):
            client.enqueue("t", ["12345", "1234567890123456"])
        assert client.enqueue("t", ["12345"]) == 1
        with pytest.raises(OutboxFull):
            client.enqueue("t", ["12345678901234567"])


def test_unavailable_names_each_endpoint_and_what_it_did(node: FakeNode) -> None:
    node.always(REQUEST_ID, "deaf")
    endpoints = [node.endpoint, "127.0.0.1:1", "no-such-host.invalid:7001"]
    with Client(endpoints, timeout=1.5) as client, pytest.raises(Unavailable) as caught:
        client.open()
    assert caught.value.details["causes"] == {
        node.endpoint: "no answer",
        "127.0.0.1:1": "connection refused",
        "no-such-host.invalid:7001": "name unknown",
    }
    assert f"{node.endpoint}: no answer, 127.0.0.1:1: connection" in caught.value.message


def test_the_state_of_another_cluster_is_refused_with_the_remedy(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.open()
    node.cluster.clients.clear()
    with (
        client_of(node, tmp_path) as client,
        pytest.raises(UnknownClient, match="belongs to another cluster") as caught,
    ):
        client.publish("t", "x")
    assert str(tmp_path) in caught.value.message
    assert "--state" in caught.value.message


@pytest.mark.parametrize("wrong", [5, None, ["text"], 1.5])
def test_what_is_neither_bytes_nor_text_is_no_publication(node: FakeNode, wrong: Any) -> None:
    with client_of(node) as client, pytest.raises(TypeError, match="bytes or text"):
        client.publish("t", wrong)


@pytest.mark.parametrize("right", [bytearray(b"ab"), memoryview(b"ab"), "ab", b"ab"])
def test_every_kind_of_bytes_is_a_publication(node: FakeNode, right: Any) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish("t", right)
        assert texts_of(client, "t") == [b"ab"]


def test_what_a_flush_has_not_sent_is_counted_without_being_loaded(node: FakeNode) -> None:
    with client_of(node) as client:
        client.enqueue("t", [bytes(100_000)] * 100)
        tracemalloc.start()
        error = client._session.not_flushed(Unavailable("nobody answers", definite=False))
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert error.details["kept"] == 100
    assert peak_bytes < 1_000_000


def test_flush_sends_what_stayed(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "x")
        node.always(PUT, None)
        client.flush()
        assert texts_of(client, "t") == [b"x"]


def test_a_call_under_way_when_its_client_is_closed_asks_nobody_any_more(node: FakeNode) -> None:
    node.always(TOPICS, "deaf")
    client = Client([node.endpoint] * 2, timeout=0.9)  # three attempts, the second at once
    ended: list[FlotillaError] = []

    def ask() -> None:
        with pytest.raises(Unavailable) as raised:
            client.topics(everything=True)
        ended.append(raised.value)

    asking = threading.Thread(target=ask)
    asking.start()
    while not node.of_type(TOPICS):
        time.sleep(0.001)
    client.close()
    asking.join(10)

    assert [error.message for error in ended] == ["the client was closed before an answer came"]
    assert len(node.of_type(TOPICS)) == 1
