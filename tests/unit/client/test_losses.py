"""What a client was told and its cluster does not know: found, said, and taken as it is."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from flotilla_client import (
    AsyncClient,
    Client,
    ClusterRecovered,
    CounterGap,
    Forgotten,
    Recovered,
    TopicInUse,
    Unavailable,
    UnknownClient,
)
from flotilla_client.losses import Losses, found
from flotilla_client.observer import Silent
from flotilla_client.operations import Ask, Operations, Turn
from flotilla_client.protocol import (
    ACK,
    EPOCHS_A_RECOVERY,
    GET,
    PUT,
    REQUEST_ID,
    SUB,
    TOPICS,
    Reply,
    pack,
)
from flotilla_client.retry import Done
from flotilla_client.state import State
from tests.unit.fake_node import (
    FakeNode,
    KnownClient,
    client_of,
    impatient,
    nak,
    texts_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::flotilla_client.UnheardWarning")
BATCH = pack([b"a", b"b"])


def body(**fields: Any) -> dict[str, Any]:
    """An answer to REQUEST_ID of a cluster that knows everything."""
    same: dict[str, Any] = {
        "counters": {"t": 5},
        "subscriptions": {"t": 4},
        "ends": {"t": 9},
        "recovery": "",
    }
    return same | fields


@pytest.mark.parametrize(
    "answer",
    [
        body(),
        body(counters={"t": 6}),  # of the outbox, its answer lost
        body(settled={"t": 7}),  # recovered: all that this client had is certain
        {},  # of a broker that says none of it
        {"counters": {"t": 5}, "subscriptions": {"t": 7}},  # of version 0.1
        body(subscriptions={}),  # an UNSUB was carried out and its answer lost
        body(subscriptions={"t": 4, "u": 0}),  # a SUB
    ],
)
def test_a_cluster_that_knows_all_has_lost_nothing(answer: dict[str, Any]) -> None:
    lost = found({"t": 5}, {"t": 7}, answer)
    assert not lost
    assert list(lost.sentences()) == []


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (body(counters={"t": 3}), Losses({"t": 2}, {})),
        (body(counters={}), Losses({"t": 5}, {})),
        (body(settled={"t": 6}), Losses({}, {"t": (6, 7)})),
        (body(ends={"t": 6}), Losses({}, {"t": (4, 7)})),  # restored: nothing is certain
        (body(ends={"t": 6}, settled={"t": 5}), Losses({}, {"t": (5, 7)})),
        (body(subscriptions={}, settled={}), Losses({}, {}, ("t",))),
        (
            body(subscriptions={"t": 7, "u": 0}, settled={"t": 7, "u": 0}),
            Losses({}, {}, (), ("u",)),
        ),
    ],
)
def test_what_a_cluster_has_lost_is_found(answer: dict[str, Any], lost: Losses) -> None:
    assert found({"t": 5}, {"t": 7}, answer) == lost
    assert lost
    assert len(list(lost.sentences())) == 1


def test_what_never_was_acknowledged_is_no_loss() -> None:
    assert not found({"t": 0}, {}, body(counters={}))


@pytest.fixture
def state(tmp_path: Path) -> State:
    """Two acknowledged publications to t, then two batches of two that wait; cursor at 7."""
    state = State(tmp_path)
    state.resumed("me", 1, 1, {}, {"t": 7})
    [first] = state.enqueue("t", [BATCH])
    state.acknowledged(first)
    state.enqueue("t", [BATCH, BATCH])
    return state


def test_what_waits_is_not_acknowledged(state: State) -> None:
    assert state.acknowledged_counters() == {"t": 2}
    for entry in state.outbox():
        state.acknowledged(entry)
    assert state.acknowledged_counters() == {"t": 6}


def test_what_waits_moves_into_the_place_of_what_was_lost(state: State, tmp_path: Path) -> None:
    state.lower({"t": 2}, {"t": 3}, [])
    state.close()
    again = State(tmp_path)
    assert [entry.counter for entry in again.outbox("t")] == [1, 3]
    assert again.counter("t") == 4
    assert again.acknowledged_counters() == {"t": 0}
    assert again.cursors() == {"t": 3}
    again.resumed("me", EPOCHS_A_RECOVERY + 1, 2, {}, {"t": 3})
    assert again.cursors() == {"t": 3}
    again.close()


def test_a_lost_subscription_is_forgotten(state: State) -> None:
    state.lower({}, {}, ["t"])
    assert state.cursors() == {}


def test_what_was_taken_offline_after_a_loss_gets_its_final_counter_behind_the_broker_s(
    tmp_path: Path,
) -> None:
    state = State(tmp_path)
    state.resumed("me", 1, 1, {"t": 10}, {})
    state.enqueue("t", [BATCH], provisional=True)  # 11 and 12, as far as this directory knows
    assert state.acknowledged_counters() == {"t": 10}
    state.lower({"t": 4}, {}, [])
    state.resumed("me", 2, 2, {"t": 6}, {})
    assert [entry.counter for entry in state.outbox("t")] == [7]
    assert state.counter("t") == 8


def test_a_client_that_becomes_a_new_one_keeps_what_waits(state: State) -> None:
    state.resumed("me", 3, 3, {}, state.cursors(), recovery="a recovery")
    state.renew()
    assert (state.client_id, state.epoch, state.sequence, state.recovery) == ("", 0, 0, None)
    assert state.cursors() == {}
    assert [entry.counter for entry in state.outbox("t")] == [1, 3]
    assert state.counter("t") == 4


def test_a_client_that_is_killed_while_it_becomes_a_new_one_is_the_old_or_the_new_one(
    state: State, tmp_path: Path
) -> None:
    def kept() -> tuple[str, list[int], dict[str, int]]:
        with sqlite3.connect(f"file:{next(tmp_path.glob('*.db'))}?mode=ro", uri=True) as database:
            [(client_id,)] = database.execute("SELECT client_id FROM client")
            counters = database.execute("SELECT counter FROM outbox ORDER BY counter")
            cursors = dict(database.execute("SELECT topic, last_id FROM cursors"))
        return client_id, [counter for (counter,) in counters], cursors

    before, seen, commit = kept(), [], state._commit

    def commit_and_look(*statements: Any, **options: Any) -> None:
        commit(*statements, **options)
        seen.append(kept())

    state._commit = commit_and_look  # type: ignore[method-assign]
    state.renew()
    assert before[0]
    assert before[1] != [1, 3]
    assert seen == [("", [1, 3], {})], "a kill behind any of these leaves it to the next process"


def test_the_recovery_that_a_client_has_met_outlives_the_process(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert state.recovery is None
    for name in ("", "one", "two"):
        state.resumed("me", 1, 1, {}, {}, recovery=name)
    state.close()
    again = State(tmp_path)
    assert again.recovery == "two"
    again.close()


def test_who_is_broken_off_behind_the_taking_up_of_his_id_has_met_the_recovery(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_on(client: Client) -> None:
        client.topics()
        client.subscribe("u")

    directory = node.new_directory()
    with client_of(node, directory) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])
        first = next(messages := client.messages("t", ack="manual"))
        node.cluster.recovery, node.cluster.settled = "one", {"t": 2}
        node.script(TOPICS, nak("recovered"))
        commit, has_resumed = State._commit, False

        def broken_off(state: State, *statements: Any, **how: Any) -> int:
            nonlocal has_resumed
            if has_resumed:
                raise KeyboardInterrupt
            has_resumed = any("client_id" in sql for sql, _ in statements)
            return commit(state, *statements, **how)

        with monkeypatch.context() as patched:
            patched.setattr(State, "_commit", broken_off)
            with pytest.raises(KeyboardInterrupt):
                go_on(client)
        assert client._session.state.recovery == "one"
        assert (first.id, client._readers._open[0].batch) == (1, deque())
        messages.close()
        client.publish("t", "c")
        assert texts_of(client, "t") == [b"a", b"b", b"c"]
    with client_of(node, directory) as client:
        client.open()


# --- a client whose cluster was put back under it -------------------------------------------------


def test_a_running_client_takes_up_its_id_anew_and_asks_the_same_again(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        for kind in (PUT, GET, SUB, TOPICS):
            node.script(kind, nak("recovered"))
        assert client.publish("t", "a").id == 1
        assert texts_of(client, "t") == [b"a"]
        client.subscribe("u")
        assert len(client.topics()) == 2
    assert len(node.of_type(REQUEST_ID)) == 5
    refused, again = node.of_type(PUT)
    assert (refused.body, refused.data) == (again.body, again.data)
    assert (refused.epoch, again.epoch) == (1, 2)
    assert node.of_type(SUB)[-1].body["sequence"] > node.of_type(REQUEST_ID)[-2].body["sequence"]


def test_operations_that_meet_one_recovery_take_up_the_id_once(node: FakeNode) -> None:
    async def work() -> None:
        async with AsyncClient(node.endpoint) as client:
            await client.topics()
            node.script(TOPICS, nak("recovered"), nak("recovered"))
            with node.cluster.lock:
                tasks = [asyncio.create_task(client.topics()) for _ in range(2)]
                await asyncio.to_thread(node.await_requests, TOPICS, 3)
            await asyncio.gather(*tasks)

    asyncio.run(work())
    assert [request.epoch for request in node.of_type(TOPICS)] == [1, 1, 1, 2, 2]
    assert len(node.of_type(REQUEST_ID)) == 2


@pytest.mark.parametrize("refusal", ["recovered", "counter_gap"])
def test_a_running_client_is_told_of_a_loss_and_what_it_puts_is_not_taken(
    node: FakeNode, refusal: str
) -> None:
    with client_of(node) as client:
        client.publish_many("t", ["a", "b"], allow_unheard=True)
        node.cluster.clients[client.client_id].counters["t"] = 1
        node.script(PUT, nak(refusal, expected=2))
        with pytest.raises(ClusterRecovered) as caught:
            client.publish("t", "c")
        assert caught.value.definite
        assert caught.value.details["publications"] == {"t": 1}
        with pytest.raises(ClusterRecovered):
            client.publish("t", "d")
        assert client.adopt() == Losses({"t": 1}, {})
        assert client.next_counter("t") == 2
        client.publish("t", "e", allow_unheard=True)
    assert node.cluster.clients[client.client_id].counters == {"t": 2}


def test_a_cursor_above_the_topic_s_end_is_told_and_adopted(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        client.publish_many("t", ["a", "b"])
        assert texts_of(client) == [b"a", b"b"]
        known = node.cluster.clients[client.client_id]
        known.cursors["t"] = 1
        node.cluster.ends = {"t": 1}
        del node.cluster.topics["t"][1:]
        node.script(GET, nak("bad_request", end=1))
        with pytest.raises(ClusterRecovered) as caught:
            client.get("t")
        assert caught.value.details["deliveries"] == {"t": (1, 2)}
        client.adopt()
        client.publish("u", "", allow_unheard=True)
        node.cluster.topics["t"].append(b"another b")
        assert texts_of(client) == [b"another b"]


def test_a_gap_that_is_no_loss_is_an_error_and_no_trap(node: FakeNode) -> None:
    with client_of(node) as client:
        client.publish("t", "a", allow_unheard=True)
        node.script(PUT, nak("counter_gap", expected=2))
        with pytest.raises(CounterGap):
            client.publish("t", "b")
        client.publish("t", "c", allow_unheard=True)
        assert node.cluster.clients[client.client_id].counters == {"t": 2}


def test_a_producer_stops_and_what_it_had_is_sent_by_the_next(node: FakeNode) -> None:
    with client_of(node) as client:
        client.subscribe("t")
        with client.producer("t") as producer:
            producer.send("a").result()
            node.script(PUT, nak("recovered"))
            with pytest.raises(Recovered) as caught:
                producer.send("b").result()
            assert not caught.value.definite
            with pytest.raises(TopicInUse):
                client.adopt()
        assert not client.adopt()
        assert texts_of(client) == [b"a", b"b"]


def test_a_client_says_which_recovery_it_has_met(node: FakeNode, tmp_path: Path) -> None:
    with client_of(node, tmp_path) as client:
        client.open()
        for name in ("one", "two"):
            node.cluster.recovery = name
            node.script(PUT, nak("recovered"))
            client.publish("t", "a", allow_unheard=True)
    with client_of(node, tmp_path) as client:
        client.open()
    assert [request.body.get("recovery") for request in node.of_type(REQUEST_ID)] == [
        None,
        "",
        "one",
        "two",
    ]


def test_a_directory_of_before_recoveries_were_stored_asks_for_no_trust_it_has_not(
    node: FakeNode, tmp_path: Path
) -> None:
    state = State(tmp_path)
    state.resumed("me", EPOCHS_A_RECOVERY + 1, 1, {}, {})
    state.close()
    node.cluster.clients["me"] = KnownClient(epoch=EPOCHS_A_RECOVERY + 1, sequence=1)
    with client_of(node, tmp_path) as client:
        client.open()
    assert node.of_type(REQUEST_ID)[0].body["recovery"] == "unknown"


def test_a_client_that_the_cluster_does_not_know_becomes_a_new_one_with_its_outbox(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish("t", "a")
        node.always(PUT, "deaf")
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "b")
        was = client.client_id
    node.always(PUT, None)
    node.cluster.clients.clear()
    node.cluster.topics.clear()
    with client_of(node) as reader, client_of(node, tmp_path) as client:
        reader.subscribe("t")
        with pytest.raises(UnknownClient, match="adopt"):
            client.open()
        assert client.adopt() == Losses({"t": 1}, {}, ("t",), is_unknown=True)
        assert client.client_id != was
        assert texts_of(reader) == [b"b"]


def test_a_client_that_was_forgotten_is_told_and_its_outbox_is_returned_and_not_sent_again(
    node: FakeNode, tmp_path: Path
) -> None:
    node.cluster.forgets = True
    with client_of(node) as reader, client_of(node, tmp_path) as client:
        reader.subscribe("t")
        client.subscribe("u")
        client.publish("t", "a")
        node.always(PUT, "silent")  # it is stored, and its answer is lost
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "b")
        was = client.client_id
        node.always(PUT, None)
        node.cluster.clients.pop(was)
    with client_of(node, tmp_path) as client:
        for _ in range(2):
            with pytest.raises(Forgotten, match="adopt"):
                client.publish("t", "c")
        lost = client.adopt()
        assert lost == Losses({}, {}, ("u",), is_unknown=True, unanswered={"t": (b"b",)})
        assert "1 publication to t without an answer" in "; ".join(lost.sentences())
        assert client.client_id != was
        client.publish("t", "d")
        assert client.adopt() == Losses({}, {})
    assert node.cluster.topics["t"] == [b"a", b"b", b"d"]


def test_what_a_forgotten_client_has_never_sent_it_sends_as_the_new_one(
    node: FakeNode, tmp_path: Path
) -> None:
    node.cluster.forgets = True
    with client_of(node) as reader:
        reader.subscribe("t")
        with client_of(node, tmp_path) as client:
            for number in range(3):
                client.publish("t", f"old {number}")
            node.always(PUT, "deaf")
            with impatient(client), pytest.raises(Unavailable):
                client.publish("t", "sent")
            node.always(PUT, None)
            node.cluster.clients.pop(client.client_id)
        with client_of(node, tmp_path) as client:
            client.enqueue("t", ["new 1", "new 2"])
            lost = client.adopt()
            assert lost.unanswered == {"t": (b"sent",)}
            client.flush()
            client.publish("t", "new 3")
    assert node.cluster.topics["t"][3:] == [b"new 1", b"new 2", b"new 3"]


@pytest.mark.parametrize("refusal", ["forgotten", "unknown_client"])
def test_who_is_given_no_new_id_has_let_go_of_nothing(
    node: FakeNode, tmp_path: Path, refusal: str
) -> None:
    with client_of(node) as reader, client_of(node, tmp_path) as client:
        reader.subscribe("t")
        client.subscribe("u")
        client.publish("t", "a")
        node.always(PUT, "silent")
        with impatient(client), pytest.raises(Unavailable):
            client.publish("t", "b")
        node.always(PUT, None)
        node.cluster.clients.pop(client.client_id)
        node.script(REQUEST_ID, nak(refusal))
        node.always(REQUEST_ID, "deaf")
        with impatient(client), pytest.raises(Unavailable):
            client.adopt()
        node.always(REQUEST_ID, None)
        node.cluster.forgets = refusal == "forgotten"
        lost = client.adopt()
        assert lost.subscriptions == ("u",)
        if refusal == "forgotten":
            assert lost.unanswered == {"t": (b"b",)}
        else:
            assert lost.publications == {"t": 1}


def test_losses_are_told_though_nobody_answers_what_is_sent_again(state: State) -> None:
    operations = Operations(state, Silent())
    adoption = operations.adopt()
    next(adoption)
    answer = {"client_id": "me", "epoch": 2, **body(counters={"t": 1}, subscriptions={"t": 7})}
    adoption.send(Done(Reply(ACK, "me.1", "a", "a", 1, answer), 1))  # asks to store what waits
    with pytest.raises(StopIteration) as told:
        adoption.throw(Unavailable("no answer"))
    assert told.value.value == Losses({"t": 1}, {})
    resend = operations.open()
    assert isinstance(next(resend), Turn)
    again = next(resend)
    assert isinstance(again, Ask)
    assert again.request.body == {"counter": 2, "count": 2}, "what waits goes first"


def test_an_asynchronous_client_adopts_too(node: FakeNode) -> None:
    async def work() -> Losses:
        async with AsyncClient(node.endpoint) as client:
            await client.publish("t", "a", allow_unheard=True)
            node.cluster.clients[client.client_id].counters.clear()
            node.script(PUT, nak("recovered"))
            with pytest.raises(ClusterRecovered):
                await client.publish("t", "b")
            return await client.adopt()

    assert asyncio.run(work()) == Losses({"t": 1}, {})


# --- what a reader has in hand, or has fetched, of the history before -----------------------------


def recover(node: FakeNode, settled: int, *texts: str) -> None:
    """Put the topic t back to its first `settled` publications, and others behind them."""
    del node.cluster.topics["t"][settled:]
    node.cluster.topics["t"] += [text.encode() for text in texts]
    node.cluster.recovery, node.cluster.settled = "one", {"t": settled}
    for client in node.cluster.clients.values():
        if "t" in client.cursors:
            client.cursors["t"] = min(client.cursors["t"], settled)
    for kind in (PUT, GET):
        node.script(kind, nak("recovered"))


@pytest.mark.parametrize("ack", ["auto", "manual", "at-most-once"])
def test_a_loop_hands_over_nothing_that_it_fetched_of_the_history_before(
    node: FakeNode, ack: Any
) -> None:
    with client_of(node) as client, client_of(node) as writer:
        client.subscribe("t")
        writer.publish_many("t", ["a", "b", "c"])
        loop = client.messages("t", ack=ack, idle=0)
        assert next(loop).publication == b"a"
        recover(node, 1, "B", "C")
        client.publish("u", "an operation that takes up the id anew", allow_unheard=True)
        news = itertools.islice((message for message in loop if message.id > 1), 2)
        assert [message.publication for message in news] == [b"B", b"C"]


@pytest.mark.parametrize("ack", ["auto", "manual", "at-most-once"])
def test_what_was_in_hand_at_a_recovery_is_not_acknowledged_in_the_new_history(
    node: FakeNode, ack: Any
) -> None:
    with client_of(node) as client, client_of(node) as writer:
        client.subscribe("t")
        writer.publish_many("t", ["a", "b", "c"])
        assert client.get("t", max_count=3, ack=ack) is not None
        recover(node, 1, "B", "C")
        with pytest.raises(ClusterRecovered) as caught:
            client.publish("u", "")
        assert caught.value.details["deliveries"] == {"t": (1, 3)}
        client.adopt()
        again = list(client.get("t", max_count=9) or ())
        assert [message.publication for message in again if message.id > 1] == [b"B", b"C"]
        assert not any(message.redelivered for message in again if message.id > 1)


def test_a_cursor_below_what_is_kept_is_not_raised_to_it(state: State) -> None:
    state.hand_over("t", 20)
    assert state.had() == {"t": 20}
    state.lower({}, {"t": 9}, [])
    assert state.cursors() == {"t": 7}
    assert state.had() == {"t": 9}
