"""What nodes say, held against what they have: how fresh, how certain, and as what member."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.simulation.checks.message_rules import MessageRules
from chaos.simulation.checks.reads import ReadChecks
from cluster.store import commands
from cluster.store.commands import Put, Subscribe, Unsubscribe
from flotilla_client.protocol import ACK, NAK, SUB, Reply, Request, encode_reply

REGULAR = b"\0"


class AnswerScene:
    """A node `a` that has applied 4 of 5 entries. `failures`: (check, text)."""

    def __init__(self, last: bytes = b"") -> None:
        self.failures: list[tuple[str, str]] = []
        entries = [(REGULAR, 3, 1), (REGULAR, 4, 1), (REGULAR + last, 5, 1)]
        journal = SimpleNamespace(
            first_index=3, last_index=5, entry=lambda index: entries[index - 3]
        )
        member = SimpleNamespace(journal=journal, store=SimpleNamespace(applied_index=4))
        self.node: Any = SimpleNamespace(
            name="a", member="a", disk_faults=[], as_member=member, opened=member
        )
        world: Any = SimpleNamespace(
            nodes={"a": self.node},
            reply_taps=[],
            observers=[],
            net=SimpleNamespace(taps=[], doubled=0),
            doubles={},
            machine=lambda name: self.node,
        )
        invariants: Any = SimpleNamespace(
            fail=lambda check, text: self.failures.append((check, text))
        )
        self.reads, self.rules = (
            ReadChecks(world, invariants),
            MessageRules(world, invariants),
        )
        self.world = world

    def answer(self, request_id: str, by: str = "a", kind: str = ACK, node: str = "a") -> None:
        body = {"error": "electing"} if kind == NAK else {}
        for tap in self.world.reply_taps:
            tap(node, "way", encode_reply(Reply(kind, request_id, by, by, 1, body)))

    def deny(self, code: str, sequence: int = 7, **body: Any) -> None:
        request = Request(SUB, "one.1", "t", "me", 1, {"sequence": sequence})
        self.rules.denied(request, Reply(NAK, "one.1", "a", "a", 1, {"error": code, **body}))


def entry(*operations: Any) -> bytes:
    return commands.encode(0, list(operations))


MINE = Subscribe("me", 1, "t", 7)
OTHERS = Subscribe("you", 1, "t", 7)
A_PUT = Put("me", 1, "t", 7, b"\1\0\0\0", b"x")


def test_an_answer_from_behind_an_acknowledgment_is_stale() -> None:
    scene = AnswerScene()
    scene.reads.acknowledged(5)
    scene.reads.asked("one.1")
    scene.answer("one.1")
    [(check, text)] = scene.failures
    assert (check, "at 4, 5 was acknowledged before" in text) == ("stale_read", True)


def test_what_was_acknowledged_after_the_question_need_not_be_in_the_answer() -> None:
    scene = AnswerScene()
    scene.reads.acknowledged(4)
    scene.reads.asked("one.1")
    scene.reads.acknowledged(5)
    scene.answer("one.1")
    assert not scene.failures


@pytest.mark.parametrize(("kind", "by"), [(NAK, "a"), (ACK, "b")], ids=["refusal", "relayed"])
def test_a_refusal_and_a_relayed_answer_say_nothing_of_the_node(kind: str, by: str) -> None:
    scene = AnswerScene()
    scene.reads.acknowledged(5)
    scene.reads.asked("one.1")
    scene.answer("one.1", by, kind)
    assert not scene.failures


def test_what_is_refused_for_certain_must_not_wait_in_the_log() -> None:
    scene = AnswerScene(entry(A_PUT, OTHERS, MINE))
    scene.deny("electing")
    [(check, text)] = scene.failures
    assert check == "definite"
    assert "stands in the log of a, at 5" in text


def test_what_a_process_before_asked_for_under_the_same_number_is_another_request() -> None:
    scene = AnswerScene(entry(Unsubscribe("me", 1, "t", 7), Subscribe("me", 1, "u", 7)))
    scene.deny("electing")
    assert not scene.failures


def test_one_of_two_requests_that_the_network_made_of_one_may_be_refused() -> None:
    scene = AnswerScene(entry(MINE))
    scene.world.net.doubled = 1
    scene.deny("overloaded")
    assert not scene.failures


@pytest.mark.parametrize("fault", ["unreadable", "flip"])
def test_a_log_that_cannot_be_read_is_not_looked_into(fault: str) -> None:
    scene = AnswerScene(entry(MINE))
    scene.node.disk_faults.append(fault)
    scene.deny("electing")
    assert not scene.failures


@pytest.mark.parametrize(
    ("last", "code", "body"),
    [
        (entry(MINE), "uncertain", {}),
        (entry(MINE), "electing", {"definite": False}),
        (entry(MINE), "stale_request", {}),
        (entry(A_PUT, OTHERS), "electing", {}),
        (b"", "electing", {}),
    ],
    ids=["uncertain", "not definite", "by applying it", "of others", "a no-op"],
)
def test_other_refusals_are_true(last: bytes, code: str, body: dict[str, Any]) -> None:
    scene = AnswerScene(last)
    scene.deny(code, **body)
    assert not scene.failures


@pytest.mark.parametrize(("admitted", "checks"), [("new", []), ("old", ["admitted"])])
def test_who_is_a_member_again_has_the_entry_that_says_so(admitted: str, checks: list[str]) -> None:
    scene = AnswerScene()
    scene.node.opened.identity = SimpleNamespace(incarnation="new")
    scene.node.opened.store.members = {"a": admitted}
    for observer in scene.world.observers:
        observer("readmitted", {"node": "a"})
    assert [check for check, _ in scene.failures] == checks
