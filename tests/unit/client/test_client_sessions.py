"""`Client` over sessions: resumed, fenced, observed, and killed at chosen points; a fake node."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flotilla_client import (
    AsyncClient,
    Client,
    Fenced,
    NotSubscribed,
    Operation,
    Outcome,
    StateRequired,
    StateUnusable,
    TooLarge,
    TooMany,
    Unavailable,
)
from flotilla_client.protocol import (
    GET,
    PUT,
    REQUEST_ID,
    STATUS,
    SUB,
    UNSUB,
)
from tests.unit.fake_node import FakeNode, client_of, impatient, nak, texts_of

# --- sessions -----------------------------------------------------------------------------------


def test_a_new_session_resumes_with_a_later_sequence_and_a_higher_epoch(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client_id = client.client_id
    with client_of(node, tmp_path) as client:
        client.open()
        assert client.client_id == client_id
    first, second = node.of_type(REQUEST_ID)
    assert (first.client_id, second.client_id) == ("", client_id)
    assert second.body["sequence"] == 2
    assert second.body["nonce"]
    assert node.cluster.clients[client_id].epoch == 2


def test_a_retried_resume_repeats_its_sequence_and_nonce(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path) as client:
        client.open()
    node.script(REQUEST_ID, "silent")
    with client_of(node, tmp_path) as client:
        client.open()
    _, lost, again = node.of_type(REQUEST_ID)
    assert lost.body == again.body
    assert node.cluster.clients[again.client_id].epoch == 2


def test_everybodys_topics_are_listed_also_when_a_resume_was_carried_out_and_not_answered(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
    with client_of(node, tmp_path, timeout=1.5) as client:
        node.always(REQUEST_ID, "silent")  # the broker has a newer epoch than the state directory
        with pytest.raises(Unavailable):
            client.open()
        assert [row["topic"] for row in client.topics(everything=True)] == ["t"]


def test_a_stale_resume_adopts_the_expected_sequence_under_a_new_nonce(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.open()
        node.cluster.clients[client.client_id].sequence = 40
    with client_of(node, tmp_path) as client:
        client.open()
        client.subscribe("t")
    _, stale, resumed = node.of_type(REQUEST_ID)
    assert resumed.body["sequence"] == 41
    assert resumed.body["nonce"] != stale.body["nonce"]
    assert node.of_type(SUB)[0].body["sequence"] == 42


def test_an_older_process_with_the_same_state_is_fenced(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        known = node.cluster.clients[client.client_id]
        known.epoch += 1
        with pytest.raises(Fenced):
            client.publish("t", "x")


def test_an_unsub_whose_answer_was_lost_with_the_process_is_noticed_at_the_next_open(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        node.always(UNSUB, "silent")
        with impatient(client), pytest.raises(Unavailable):
            client.unsubscribe("t")
    with client_of(node, tmp_path) as client:
        assert client.topics() == []
        with pytest.raises(NotSubscribed):
            client.get("t")


def test_opening_sends_what_an_earlier_process_left(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "left")
    node.always(PUT, None)
    with client_of(node, tmp_path) as client:
        client.open()
        assert node.cluster.topics["t"] == [b"left"]


def test_a_full_topic_in_the_outbox_does_not_keep_a_client_from_reading_it(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish("t", "a")
        node.always(PUT, "deaf")
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "b")
    node.always(PUT, nak("backlog_full", limit=1))
    with client_of(node, tmp_path) as client:
        assert texts_of(client, "t") == [b"a"]
        node.always(PUT, None)
        client.publish("t", "c")
        assert texts_of(client, "t") == [b"b", b"c"]


def test_what_is_refused_for_good_in_the_outbox_keeps_no_later_process_from_working(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        node.always(PUT, "deaf")
        for text in "ab":
            with impatient(client), pytest.raises(Unavailable):
                client.publish("u", text)
    node.always(PUT, nak("too_many", limit=10_000))
    with client_of(node, tmp_path) as client, pytest.raises(TooMany) as caught:
        client.get("t")
    assert caught.value.details["withdrawn"] == 2, "all that the topic takes no more"
    with client_of(node, tmp_path) as client:
        assert client.get("t") is None
        assert client.next_counter("u") == 1


def test_a_lost_state_directory_means_a_new_client(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path / "one") as one, client_of(node, tmp_path / "two") as two:
        one.open()
        two.open()
        assert one.client_id != two.client_id


def test_two_publishers_and_two_subscribers_work_side_by_side(
    node: FakeNode, tmp_path: Path
) -> None:
    writers = [client_of(node, tmp_path / f"w{n}") for n in range(2)]
    readers = [client_of(node, tmp_path / f"r{n}") for n in range(2)]
    for reader in readers:
        reader.subscribe("t")

    def publish(number: int) -> None:
        for text in range(20):
            writers[number].publish("t", f"{number}-{text}")

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = [texts_of(reader, "t") for reader in readers]
    assert got[0] == got[1]
    for number in range(2):
        mine = [text for text in got[0] if text.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, text) for text in range(20)]
    for client in (*writers, *readers):
        client.close()


# --- the observer -------------------------------------------------------------------------------


class NotingObserver:
    """Notes what it hears, and what the state was at that moment."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.events: list[tuple[str, Operation, Outcome | None, int | None]] = []

    def on_invoke(self, operation: Operation) -> None:
        self.events.append(("invoke", operation, None, self._cursor()))

    def on_complete(self, operation: Operation, outcome: Outcome) -> None:
        self.events.append(("complete", operation, outcome, self._cursor()))

    def _cursor(self) -> int | None:
        assert self.client is not None
        return self.client._session.state.cursor("t")


def test_an_observer_hears_of_a_delivery_before_the_cursor_moves(node: FakeNode) -> None:
    recorder = NotingObserver()
    with client_of(node, observer=recorder) as client:
        recorder.client = client
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])
        client.get("t", max_count=5)
        _, operation, outcome, cursor = recorder.events[-1]
        assert outcome is not None
        assert (operation.f, operation.last_id, cursor) == ("get", 0, 0)
        assert (outcome.first_id, outcome.publications) == (1, (b"a", b"b"))
        assert (outcome.node, outcome.leader, outcome.term, outcome.attempts) == ("a", "a", 1, 1)
        assert client._session.state.cursor("t") == 0
        client.get("t")
        assert [event[3] for event in recorder.events[-2:]] == [2, 2]


def test_an_observer_hears_of_a_put_before_it_is_sent_and_of_its_error(node: FakeNode) -> None:
    recorder = NotingObserver()
    node.script(PUT, nak("too_large"))
    with client_of(node, observer=recorder) as client:
        recorder.client = client
        with pytest.raises(TooLarge):
            client.publish("t", "x")
        invoke, complete = recorder.events
        assert (invoke[1].f, invoke[1].counter, invoke[1].count) == ("put", 1, 1)
        assert invoke[1].client_id == client.client_id
        assert complete[1].number == invoke[1].number
        assert complete[2] is not None
        assert (complete[2].error, complete[2].definite) == ("too_large", True)


# --- processes killed at chosen points ----------------------------------------------------------

_PUBLISHER = """
import sys; from flotilla_client import Client
client = Client(sys.argv[1], state_dir=sys.argv[2])
for text in sys.argv[3:]:
    client.publish("t", text)
"""

_SUBSCRIBER = """
import sys; from flotilla_client import Client
client = Client(sys.argv[1], state_dir=sys.argv[2])
while delivery := client.get("t"):
    [message] = delivery
    print(message.publication.decode(), message.redelivered, flush=True)
    sys.stdin.readline()
"""


def _process(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": "client"},
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("fault", ["silent", "deaf"])
def test_a_publisher_killed_between_send_and_reply_sends_the_same_again(
    node: FakeNode, tmp_path: Path, fault: str
) -> None:
    with client_of(node) as reader:
        reader.subscribe("t")
        node.script(PUT, "twice", fault)
        process = _process(_PUBLISHER, node.endpoint, tmp_path, "a", "b", "never reached")
        before = node.await_requests(PUT, 2)[1]
        _kill(process)
        with client_of(node, tmp_path) as client:
            client.publish("t", "c")
        again = node.of_type(PUT)[2]
        assert (again.body, again.data) == (before.body, before.data)
        assert again.epoch == 2
        assert texts_of(reader, "t") == [b"a", b"b", b"c"]


def test_a_subscriber_killed_before_the_answer_gets_it_after_its_return(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish("t", "a")
    node.script(GET, "silent")
    process = _process(_SUBSCRIBER, node.endpoint, tmp_path)
    node.await_requests(GET, 1)
    _kill(process)
    with client_of(node, tmp_path) as client:
        assert texts_of(client, "t") == [b"a"]


def test_a_subscriber_killed_over_every_single_delivery_gets_it_again_and_says_so(
    node: FakeNode, tmp_path: Path
) -> None:
    texts = [f"p{number}" for number in range(4)]
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish_many("t", texts)
    got = []
    for _ in texts:
        process = _process(_SUBSCRIBER, node.endpoint, tmp_path)
        assert process.stdin is not None
        assert process.stdout is not None
        got.append(process.stdout.readline().decode().strip())
        process.stdin.write(b"\n")
        process.stdin.flush()
        got.append(process.stdout.readline().decode().strip())
        _kill(process)
    redelivered = ["p1 True", "p2 True", "p3 True"]
    assert got == ["p0 False", "p1 False", *_each_and_the_next(redelivered, "p2 False", "p3 False")]
    with client_of(node, tmp_path) as client:
        assert client.get("t") is None


def _each_and_the_next(again: list[str], *new: str) -> list[str]:
    return [line for pair in zip(again, (*new, ""), strict=True) for line in pair]


def test_the_pinned_status_of_a_dead_node_is_unavailable(node: FakeNode) -> None:
    with Client([node.endpoint, "127.0.0.1:1"], state_dir=node.new_directory()) as client:
        with pytest.raises(Unavailable):
            client.status(1)
        assert client.status(0)["node"] == "a"
    assert len(node.of_type(STATUS)) == 1


# --- without a state directory ------------------------------------------------------------------


def test_a_subscription_that_nobody_could_go_on_with_is_refused_and_never_asked_for(
    node: FakeNode,
) -> None:
    async def awaited() -> None:
        async with AsyncClient(node.endpoint) as client:
            await client.subscribe("t")

    with (
        Client(node.endpoint) as client,
        pytest.raises(StateRequired, match="state_dir=") as caught,
    ):
        client.subscribe("t")
    with pytest.raises(StateRequired):
        asyncio.run(awaited())
    assert (caught.value.code, caught.value.definite) == ("state_required", True)
    assert node.requests == []


def test_without_a_directory_a_client_publishes_and_looks_about(node: FakeNode) -> None:
    with client_of(node) as reader, Client(node.endpoint) as client:
        reader.subscribe("t")
        assert client.publish("t", "a").id == 1
        with client.producer("t") as out:
            assert out.send("b").result(5).id == 2
        assert client.topics(everything=True)
        assert client.status()["node"] == "a"
        assert not client.unsubscribe("t")
        with pytest.raises(NotSubscribed):
            client.get("t")
        assert texts_of(reader) == [b"a", b"b"]


@pytest.mark.parametrize("f", ["subscribe", "unsubscribe"])
def test_what_the_cluster_has_carried_out_is_not_denied_as_the_disk_is_full(
    f: str, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StateUnusable("the disk is full")

    with client_of(node) as client:
        client.open()
        if f == "unsubscribe":
            client.subscribe("t")
        with monkeypatch.context() as patches:
            for change in ("raise_cursor", "drop_cursor"):
                patches.setattr(client._session.state, change, fail)
            with pytest.raises(StateUnusable) as caught:
                getattr(client, f)("t")
    assert not caught.value.definite
    [known] = node.cluster.clients.values()
    assert list(known.cursors) == (["t"] if f == "subscribe" else [])
