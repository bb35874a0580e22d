"""A node whose state differs from the majority's stops, says where, and stays stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.members.identity import CONDEMNED_NAME, CondemnedState
from cluster.wire.levels import LEVEL_OF_AUDIT
from flotilla_client.protocol import PUT, REQUEST_ID, SUB, UPGRADE, Reply, Request
from tests.simulation.bench import WorldBench


@pytest.fixture
def bench(make_bench: Callable[..., WorldBench]) -> WorldBench:
    bench = make_bench(audit_every=4)
    bench.may_end = (CondemnedState,)
    leader = bench.wait_for_leader()
    bench.until(lambda: bench.members() == "abc")
    assert bench.ask(leader, Request(UPGRADE, "", body={"level": LEVEL_OF_AUDIT})).ok
    return bench


class SteadyPublisher:
    """A client with a subscription to a topic, to which it publishes; it asks whoever leads."""

    def __init__(self, bench: WorldBench) -> None:
        self._bench = bench
        self._counter = 0
        self._me = str(self._ask(Request(REQUEST_ID, "")).body["client_id"])
        self._ask(Request(SUB, "", "t", self._me))

    def _ask(self, request: Request) -> Reply:
        reply = self._bench.ask(self._bench.wait_for_leader(), request)
        assert reply.ok, reply
        return reply

    def put(self, count: int) -> None:
        for _ in range(count):
            self._counter += 1
            body = {"counter": self._counter, "publication": "x"}
            self._ask(Request(PUT, "", "t", self._me, body=body))


def lower_a_cursor(bench: WorldBench, name: str) -> None:
    topic = bench.member(name).store._topics.active["t"]
    [subscription] = topic.subscribers.values()
    topic.cursors = {subscription.cursor + 1: 1}


def misapply(bench: WorldBench, name: str) -> None:
    bench.member(name).store._topics.active["t"].last_id += 1


@pytest.mark.parametrize("damage", [lower_a_cursor, misapply])
@pytest.mark.parametrize("leads", [False, True])
def test_the_node_that_differs_stops_the_others_go_on_and_it_is_readmitted_empty(
    bench: WorldBench, damage: Callable[[WorldBench, str], None], leads: bool
) -> None:
    publisher = SteadyPublisher(bench)
    publisher.put(9)
    bench.run(1.0)
    assert not bench.ended()
    leader = bench.wait_for_leader()
    wrong = leader if leads else next(name for name in "abc" if name != leader)
    machine = bench.machine(wrong)
    machine.disk_faults.append("flip_store")  # so that nothing else complains
    damage(bench, wrong)
    publisher.put(10)
    bench.until(bench.ended)
    publisher.put(2)
    assert list(bench.ended()) == [wrong]
    [fields] = [fields for _, event, fields in bench.log if event == "state_differs"]
    assert 0 < fields["agreed"] < fields["index"]
    kept = {path.relative_to(machine.directory).parts[0] for path in machine.disk._names}
    assert {"journal", "identity.json", CONDEMNED_NAME} <= kept
    assert (machine.directory / "store" / "store.db").exists()
    bench.start(wrong)
    assert len(bench.world.failures) == 2, "it does not take part again"
    bench.start_anew(wrong)
    bench.until(lambda: bench.is_member(wrong))
    publisher.put(18)
    bench.run(2.0)
    assert len(bench.world.failures) == 2


def test_of_two_that_differ_without_a_third_both_say_so_and_go_on(bench: WorldBench) -> None:
    publisher = SteadyPublisher(bench)
    publisher.put(9)
    leader = bench.wait_for_leader()
    wrong, away = (name for name in "abc" if name != leader)
    bench.crash(away)
    bench.machine(wrong).disk_faults.append("flip_store")  # so that nothing else complains
    lower_a_cursor(bench, wrong)
    publisher.put(10)
    bench.until(
        lambda: len({name for name, event, _ in bench.log if event == "states_differ"}) == 2
    )
    assert not bench.ended()
    bench.start(away)
    bench.until(bench.ended)
    assert list(bench.ended()) == [wrong]


def test_nobody_gets_a_copy_of_a_state_in_dispute_until_one_of_the_two_is_stopped(
    bench: WorldBench,
) -> None:
    """With the copy of a wrong leader the wrong state would be the majority's."""
    publisher = SteadyPublisher(bench)
    publisher.put(9)
    wrong = bench.wait_for_leader()
    right, away = (name for name in "abc" if name != wrong)
    bench.crash(away)
    bench.machine(wrong).disk_faults.append("flip_store")  # so that nothing else complains
    lower_a_cursor(bench, wrong)
    publisher.put(10)
    bench.until(
        lambda: len({name for name, event, _ in bench.log if event == "states_differ"}) == 2
    )
    bench.start_anew(away)
    bench.until(lambda: {wrong, right} <= refused_for_a_dispute(bench, away))
    bench.run(5.0)
    assert not bench.is_member(away)
    bench.crash(wrong)
    bench.until(lambda: bench.is_member(away))
    bench.start_anew(wrong)
    bench.until(lambda: bench.is_member(wrong))
    publisher.put(18)
    bench.run(2.0)
    assert not bench.ended()


def refused_for_a_dispute(bench: WorldBench, asking: str) -> set[str]:
    return {
        fields["about"]
        for name, event, fields in bench.log
        if (name, event) == (asking, "copy_refused") and "differ" in fields["reason"]
    }
