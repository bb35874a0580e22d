"""A node whose state differs from the majority's stops, says where, and stays stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.members.identity import CONDEMNED_NAME, CondemnedState
from cluster.node.member import Member
from cluster.store import audit
from cluster.wire.levels import LEVEL_OF_AUDIT
from flotilla_client.protocol import PUT, REQUEST_ID, SUB, UPGRADE, Request
from tests.simulation.lab import Lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(audit, "EVERY", 4)
    lab = Lab(tmp_path)
    lab.may_end = (CondemnedState,)
    lab.start()
    leader = lab.elect()
    lab.until(lambda: all(node.member is not None for node in lab.nodes.values()))
    assert lab.ask(leader, Request(UPGRADE, "", body={"level": LEVEL_OF_AUDIT})).ok
    yield lab
    lab.close()


def client(lab: Lab) -> str:
    reply = lab.ask(lab.elect(), Request(REQUEST_ID, ""))
    return str(reply.body["client_id"])


def put(lab: Lab, me: str, counters: range) -> None:
    for counter in counters:
        body = {"counter": counter, "publication": "x"}
        assert lab.ask(lab.elect(), Request(PUT, "", "t", me, body=body)).ok


def member_of(lab: Lab, name: str) -> Member:
    member = lab.nodes[name].member
    assert member is not None, name
    return member


def lower_a_cursor(lab: Lab, name: str) -> None:
    topic = member_of(lab, name).store._topics.active["t"]
    [subscription] = topic.subscribers.values()
    topic.cursors = {subscription.cursor + 1: 1}


def misapply(lab: Lab, name: str) -> None:
    member_of(lab, name).store._topics.active["t"].last_id += 1


@pytest.mark.parametrize("damage", [lower_a_cursor, misapply])
@pytest.mark.parametrize("leads", [False, True])
def test_the_node_that_differs_stops_the_others_go_on_and_it_is_readmitted_empty(
    lab: Lab, damage: Callable[[Lab, str], None], leads: bool
) -> None:
    me = client(lab)
    assert lab.ask(lab.elect(), Request(SUB, "", "t", me)).ok
    put(lab, me, range(1, 10))
    lab.run(1.0)
    assert not lab.ended
    leader = lab.elect()
    wrong = leader if leads else next(name for name in lab.names if name != leader)
    damage(lab, wrong)
    put(lab, me, range(10, 20))
    lab.until(lambda: bool(lab.ended))
    put(lab, me, range(20, 22))
    assert list(lab.ended) == [wrong]
    [fields] = [fields for _, event, fields in lab.log if event == "state_differs"]
    assert 0 < fields["agreed"] < fields["index"]
    assert {"store", "journal", "identity.json", CONDEMNED_NAME} <= {
        path.name for path in lab.data_dir(wrong).iterdir()
    }
    lab.ended.clear()
    lab.start(wrong)
    assert list(lab.ended) == [wrong]  # it does not take part again
    lab.ended.clear()
    lab.wipe(wrong)
    lab.start(wrong)
    lab.until(lambda: lab.nodes[wrong].member is not None)
    put(lab, me, range(22, 40))
    lab.run(2.0)
    assert not lab.ended


def test_of_two_that_differ_without_a_third_both_say_so_and_go_on(lab: Lab) -> None:
    me = client(lab)
    assert lab.ask(lab.elect(), Request(SUB, "", "t", me)).ok
    put(lab, me, range(1, 10))
    leader = lab.elect()
    wrong, away = (name for name in lab.names if name != leader)
    lab.crash(away)
    lower_a_cursor(lab, wrong)
    put(lab, me, range(10, 20))
    lab.until(lambda: len({name for name, event, _ in lab.log if event == "states_differ"}) == 2)
    assert not lab.ended
    lab.start(away)
    lab.until(lambda: bool(lab.ended))
    assert list(lab.ended) == [wrong]
