"""What clients are answered, held against the log: TAKEs by hand, which have no number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chaos.simulation.checks.watch import Attached, attach
from chaos.simulation.plan.plan import Plan
from chaos.simulation.world.world import World
from cluster.serve import leases
from cluster.serve.leases import answer_of
from flotilla_client.protocol import (
    PUT,
    REQUEST_ID,
    SUB,
    TAKE,
    UPGRADE,
    Reply,
    Request,
    decode_reply,
    encode_request,
)

NEVER_LEASED = [[1, 7, 9]]  # a token, and ids


class AskingClient:
    """A client that asks for several things at once. `replies`: what it was answered, in order."""

    def __init__(self, world: World) -> None:
        self._world, self._number = world, 0
        self.replies: list[Reply] = []
        world.clients["hand"] = lambda node, frames: self.replies.append(decode_reply(frames))

    def ask(self, kind: str, body: dict[str, Any]) -> None:
        self._number += 1
        topic = "t" if kind in (PUT, SUB, TAKE) else ""
        client_id = "" if kind == UPGRADE else "hand"
        request = Request(kind, f"hand {self._number}", topic, client_id, body=body)
        self._world.request("hand", self._world.leader(), encode_request(request))

    def take(self, **body: Any) -> None:
        self.ask(TAKE, {"group": "g", "max_count": 5, **body})


@pytest.fixture
def world() -> Iterator[World]:
    with World(Plan(5, 3, 0, 60.0, knobs={"load": {"roles": []}})) as world:
        yield world


@pytest.fixture
def watch(world: World) -> Iterator[Attached]:
    watch = attach(world)
    world.run_until(2.0)
    yield watch
    watch.crowd.close()


@pytest.fixture
def hand(world: World, watch: Attached) -> AskingClient:
    hand = AskingClient(world)
    for kind, body in ((UPGRADE, {"level": 5}), (REQUEST_ID, {"create": True})):
        hand.ask(kind, body)
        world.run_until(world.now + 0.5)
    hand.ask(SUB, {"group": "g"})
    world.run_until(4.0)
    assert [reply.ok for reply in hand.replies] == [True] * 3, hand.replies
    hand.replies.clear()
    return hand


def test_two_takes_by_hand_are_told_apart_by_what_they_settle(
    world: World, watch: Attached, hand: AskingClient
) -> None:
    hand.take(acks=NEVER_LEASED)
    hand.take(wait_ms=200)  # it settles nothing, and is given nothing: no entry has it
    world.run_until(5.0)
    assert [reply.body["lost"] for reply in hand.replies] == [[[7, 3]], []]
    assert watch.failures == []


def test_what_a_take_by_hand_settled_in_vain_is_not_what_another_one_did(
    world: World, watch: Attached, hand: AskingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(*args: Any) -> dict[str, Any]:
        return answer_of(*args) | {"lost": []}

    monkeypatch.setattr(leases, "answer_of", forgetful)
    hand.ask(PUT, {"counter": 1, "publication": "one"})
    hand.take(acks=NEVER_LEASED)
    hand.take(max_count=0)  # which stands in the log, though it settles nothing
    world.run_until(5.0)
    assert [reply.body.get("lost") for reply in hand.replies] == [None, [], []]
    assert [failure.check for failure in watch.failures] == ["answered"]
    assert "it says that [] is lost, the log [[[7, 9]]]" in watch.failures[0].text
