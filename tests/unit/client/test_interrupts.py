"""Ctrl-C anywhere in a call: what it has begun is ended or undone, and the client goes on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import Client, PutResult, RecordError, Unavailable
from flotilla_client.observer import Operation, Silent
from flotilla_client.protocol import PUT
from flotilla_client.state import State
from flotilla_client.turns import Ticket
from tests.unit.fake_node import FakeNode, client_of
from tests.unit.interrupting import COLLECTED_HERE, interrupted

WAIT_S = 10
PUBLISHER = "flotilla-publisher"
# The standard library's futures take their locks in these, in Python: ctrl-C can part that.
OF_CONDITIONS = frozenset({"__enter__", "__exit__"})

pytestmark = list(COLLECTED_HERE)


def _places(end: Callable[[int], bool]) -> Iterator[int]:
    """Yield each place in a call at which `end(place)` has broken it off, until it went through."""
    for place in itertools.count(1):
        if not end(place):
            return
        yield place


def _has_ended(name: str, but: threading.Thread | None = None) -> bool:
    """Wait until the threads of a name have ended, but for one; return whether they have."""
    others = [t for t in threading.enumerate() if t.name == name and t is not but and t.is_alive()]
    for thread in others:
        thread.join(WAIT_S)
    return not any(thread.is_alive() for thread in others)


def test_ctrl_c_anywhere_in_making_a_client_leaves_its_directory_free(
    node: FakeNode, tmp_path: Path
) -> None:
    made: list[Client] = []
    places = 0
    for place in _places(lambda n: interrupted(lambda: made.append(client_of(node, tmp_path)), n)):
        places = place
        while made:
            made.pop().close()
        client_of(node, tmp_path).close()
    made.pop().close()
    assert places > WAIT_S


def test_a_client_that_cannot_be_made_leaves_its_directory_free(
    node: FakeNode, tmp_path: Path
) -> None:
    (tmp_path / "record").write_text("a file")
    with pytest.raises(RecordError) as refused:
        client_of(node, tmp_path / "state", record=tmp_path / "record")
    client_of(node, tmp_path / "state").close()
    assert refused.value.definite


def test_ctrl_c_anywhere_in_closing_lets_it_be_closed_again(node: FakeNode, tmp_path: Path) -> None:
    def close_in_part(place: int) -> bool:
        client = client_of(node, tmp_path)
        client.subscribe("t")
        client.publish("t", "a")
        assert client.get("t") is not None
        is_broken = interrupted(client.close, place)
        client.close()
        client_of(node, tmp_path).close()
        return is_broken

    assert len(list(_places(close_in_part))) > WAIT_S


@pytest.mark.parametrize("has_producer", [False, True])
def test_a_close_that_ctrl_c_ends_closes_at_once_and_keeps_what_has_no_answer(
    has_producer: bool, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.always(PUT, "deaf")
    client = client_of(node, tmp_path)
    if has_producer:
        producer = client.producer("t")
        answer: Future[PutResult] = producer.send("x")
        waits_on = producer._queue.changed
    else:
        answer = client.publish_soon("t", "x")
        waits_on = client._parts.here().publisher._changed
    node.await_requests(PUT, 1)
    interrupts, wait_for = iter([KeyboardInterrupt]), waits_on.wait_for

    def broken_off(*about: Any) -> Any:
        for error in interrupts:
            raise error
        return wait_for(*about)

    monkeypatch.setattr(waits_on, "wait_for", broken_off)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert isinstance(answer.exception(WAIT_S), Unavailable)
    with closing(State(tmp_path)) as state:
        assert state.waiting() == 1


def test_ctrl_c_where_others_are_under_way_is_ctrl_c(node: FakeNode, tmp_path: Path) -> None:
    client = client_of(node, tmp_path)
    turns = client._parts.here().turns
    other = Ticket()
    other.thread = 0
    turns.add(other)

    def broken_off(end_ms: float) -> None:
        raise KeyboardInterrupt

    client._parts.here().publisher.finish = broken_off  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        client.close()
    turns.pop(other.place)
    del client._parts.here().publisher.finish
    client.close()
    State(tmp_path).close()


def test_ctrl_c_anywhere_in_a_loop_lets_the_thread_read_on(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")

        def read_in_part(place: int) -> bool:
            client.publish("t", str(place))
            messages = client.messages("t", idle=0)
            is_broken = interrupted(lambda: next(messages), place)
            if not is_broken:
                messages.close()
            assert [m.id for m in client.messages("t", idle=0)][-1:] == [place]
            messages.close()  # till then somebody has it: its end is not what frees the topic
            return is_broken

        assert len(list(_places(read_in_part))) > WAIT_S


def test_ctrl_c_anywhere_in_the_first_publish_soon_leaves_one_publisher_and_no_debt(
    node: FakeNode, tmp_path: Path
) -> None:
    stored = []

    def publish_in_part(place: int) -> bool:
        with client_of(node, tmp_path) as client:
            client.subscribe("t")
            is_broken = interrupted(
                lambda: client.publish_soon("t", f"soon {place}"), place, OF_CONDITIONS
            )
            assert client.publish_soon("t", f"after {place}").result(WAIT_S).stored
            publisher = client._parts.here().publisher
            with publisher._changed:
                assert publisher._changed.wait_for(lambda: not publisher._futures, WAIT_S), place
            assert (publisher._unanswered.count, publisher._unanswered.size_bytes) == (0, 0)
            assert _has_ended(PUBLISHER, but=publisher._thread), place
        stored.append(b"after %d" % place)
        return is_broken

    assert len(list(_places(publish_in_part))) > WAIT_S
    assert [text for text in node.cluster.topics["t"] if text.startswith(b"after")] == stored
    assert len(set(node.cluster.topics["t"])) == len(node.cluster.topics["t"])


def test_ctrl_c_anywhere_in_a_send_leaves_each_future_its_own_id(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        out = client.producer("t", linger_ms=60_000)
        futures = []

        def send_in_part(place: int) -> bool:
            is_broken = interrupted(lambda: out.send(f"send {place}"), place)
            futures.append(out.send(f"after {place}"))
            return is_broken

        assert len(list(_places(send_in_part))) > WAIT_S
        out.flush()
        stored = node.cluster.topics["t"]
        for number, future in enumerate(futures, 1):
            assert stored[future.result(0).id - 1] == b"after %d" % number
        assert out._queue.sent == out._queue.answered == len(stored)


def test_ctrl_c_in_a_send_to_an_idle_producer_holds_up_nothing_that_follows(
    node: FakeNode,
) -> None:
    with client_of(node) as client:
        client.subscribe("t")

        def send_in_part(place: int) -> bool:
            with client.producer("t", linger_ms=0) as out:
                is_broken = interrupted(lambda: out.send(f"send {place}"), place)
                assert out.send(f"after {place}").result(WAIT_S).stored, place
            return is_broken

        assert len(list(_places(send_in_part))) > WAIT_S


def test_ctrl_c_anywhere_in_making_a_producer_leaves_none_behind(node: FakeNode) -> None:
    with client_of(node) as client, ExitStack() as left:
        client.subscribe("t")

        def make_in_part(place: int) -> bool:
            is_broken = interrupted(lambda: left.enter_context(client.producer("t")), place)
            left.close()
            for out in list(client._session.producers.values()):
                out.close()  # ctrl-C came behind its making, before anybody had it
            with client.producer("t") as out:
                assert out.send(f"after {place}").result(WAIT_S).stored, place
            return is_broken

        assert len(list(_places(make_in_part))) > WAIT_S
    assert _has_ended("flotilla-t")


def test_an_observer_that_is_empty_hears_all_the_same(node: FakeNode) -> None:
    class Heard(Silent):
        def __init__(self) -> None:
            self.operations: list[str] = []

        def __len__(self) -> int:
            return len(self.operations)

        def on_invoke(self, operation: Operation) -> None:
            self.operations.append(operation.f)

    heard = Heard()
    with client_of(node, observer=heard) as client:
        client.subscribe("t")
    assert "sub" in heard.operations
