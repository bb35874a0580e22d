"""Whose answer is made next: principals take turns, have a share of a turn, and rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.serve import broker
from cluster.serve.broker import RESTING_READS_MAX
from cluster.serve.queues import QueueByPrincipal
from cluster.serve.shares import PAYER_SHARE, REST_TURNS, WEIGHT_ANSWER_BYTES, WEIGHT_ROWS, WEIGHT_S
from cluster.store.commands import Raise, encode
from cluster.wire.levels import LEVEL_OF_TOPICS
from flotilla_client.protocol import GET, PUT, READ, REQUEST_ID, SUB, TOPICS
from tests.unit.cluster.serve.test_broker import code_of
from tests.unit.cluster.store.test_holdings import Leading

LARGE = PAYER_SHARE * WEIGHT_ANSWER_BYTES  # an answer of it is a share
LARGE_REST_S = REST_TURNS * PAYER_SHARE * WEIGHT_S


@dataclass(frozen=True)
class Each:
    principal: str | None
    asker: str
    number: int


def test_principals_take_turns_and_of_each_those_who_ask() -> None:
    queue = QueueByPrincipal[Each]()
    queue.extend(Each("a", "one", number) for number in range(3))
    queue.extend(Each("a", "two", number) for number in range(2))
    queue.append(Each("b", "one", 0))
    assert (len(queue), queue.count_of("a"), queue.count_of("c")) == (6, 5, 0)
    taken = [queue.take(lambda _: False) for _ in range(6)]
    assert [(each.principal, each.asker, each.number) for each in taken if each] == [
        ("a", "one", 0), ("b", "one", 0), ("a", "two", 0), ("a", "one", 1), ("a", "two", 1),
        ("a", "one", 2),
    ]  # fmt: skip
    assert not queue
    assert queue.take(lambda _: False) is None


def test_who_is_skipped_stays_and_without_keys_all_are_one() -> None:
    queue = QueueByPrincipal[Each]()
    queue.extend(Each(None, asker, number) for number, asker in enumerate("xyx"))
    queue.append(Each("a", "x", 9))
    assert queue.has_any({"a"}.__contains__)
    assert not queue.has_any({"a", None}.__contains__)
    taken = [queue.take({"a"}.__contains__) for _ in range(4)]
    assert [each.number for each in taken if each] == [0, 1, 2]
    assert [each.number for each in queue] == [9]
    queue.clear()
    assert not queue.has_any(lambda _: False)


# --- at the leader --------------------------------------------------------------------------------


class Turning(Leading):
    """A leader that is asked by `shop` and `board`, and ends its turns."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        raised = encode(1, [Raise(LEVEL_OF_TOPICS)])
        self.store.apply(self.store.applied_index + 1, 1, raised)
        for by in ("shop", "board"):
            self.answered(REQUEST_ID, by=by)
        self.answered(SUB, "t", "id-1")
        for counter in range(1, LARGE // 100_000 + 2):
            self.answered(PUT, "t", "id-1", counter=counter, publication="x" * 100_000)

    def meet(self) -> None:
        """Have both ask, as their ports note it."""
        for by in ("shop", "board"):
            self.broker.payers.note(by, self.now_ms / 1000)

    def read(self, by: str, max_bytes: int = LARGE + 200_000) -> None:
        body = {"from_id": 1, "max_count": 1000, "max_bytes": max_bytes}
        self.say(READ, "t", by=by, **body)

    def answers(self, turn_s: float = 0.0) -> list[str | None]:
        """Serve a turn; return whose answers it has made."""
        now_s = self.now_ms / 1000
        self.broker.end_rests(now_s)
        self.serve(self.barrier, self.store.applied_index)
        self.broker.end_turn(turn_s, now_s)
        return [answer.principal for answer in self.taken()]


@pytest.fixture
def lead(tmp_path: Path) -> Turning:
    return Turning(tmp_path)


def test_beside_others_a_turn_makes_one_large_answer_of_a_principal_which_then_rests(
    lead: Turning,
) -> None:
    lead.meet()
    for by in ("shop", "shop", "shop", "board"):
        lead.read(by, LARGE + 200_000 if by == "shop" else 100_100)
    assert lead.answers() == ["shop", "board"]
    lead.now_ms = 1000 * LARGE_REST_S - 1
    assert not lead.broker.may_serve(lead.now_ms), "no turn is due for who rests"
    lead.read("board", 100_100)
    assert lead.broker.may_serve(lead.now_ms), "that waits for its barrier"
    assert not lead.broker.has_more(lead.now_ms), "and no turn is due until it has passed"
    assert lead.answers() == ["board"]
    assert lead.answers() == []
    assert lead.broker.next_deadline() == pytest.approx(LARGE_REST_S, rel=0.3)
    lead.now_ms = 1000 * lead.broker.next_deadline()
    assert lead.answers() == ["shop"]


def test_a_rest_is_as_long_as_so_many_turns(lead: Turning) -> None:
    lead.meet()
    for _ in range(2):
        lead.read("shop")
    assert lead.answers(turn_s=0.015) == ["shop"]
    assert lead.broker.next_deadline() == pytest.approx(REST_TURNS * 0.015)


def test_who_is_alone_has_all_answers_at_once(lead: Turning) -> None:
    for _ in range(3):
        lead.read("shop")
    assert lead.answers(turn_s=0.05) == ["shop"] * 3
    assert lead.broker.next_deadline() == float("inf")


def test_lists_weigh_what_is_looked_up(lead: Turning) -> None:
    for number in range(PAYER_SHARE * WEIGHT_ROWS):
        lead.say(SUB, f"u{number}", "id-1")
    lead.turn()
    lead.meet()
    for _ in range(3):
        lead.say(TOPICS, by="shop", all=True)
    lead.say(TOPICS, by="board", all=False, client_id="id-2")
    assert lead.answers() == ["shop", "board"]
    assert lead.broker.next_deadline() < float("inf")


def test_answers_that_are_made_in_steps_hold_nobody_else_up(
    lead: Turning, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4 * 16):
        lead.say(PUT, f"p{number}", "id-1", counter=1, publication="x")
    lead.turn()
    monkeypatch.setattr(broker, "COUNTERS_PER_STEP", 16)
    lead.meet()
    for _ in range(20):
        lead.say(REQUEST_ID, client_id="id-1", by="shop")
    lead.say(GET, "t", "id-2", by="board", last_id=None)  # it does not subscribe: a NAK
    for index, payload in lead.submit():
        lead.broker.applied(index, 1, lead.store.apply(index, 1, payload))
    steps = iter(range(1000))
    lead.serve(lead.barrier, lead.store.applied_index, lambda: next(steps) >= 2)
    assert [answer.principal for answer in lead.taken()] == ["board"], "within two steps"
    said: list[str | None] = []
    while lead.broker.may_serve(lead.now_ms):
        said += lead.answers()
    assert said == ["shop"] * 20


def test_a_turn_serves_a_share_of_a_principal_s_gets_that_are_woken(lead: Turning) -> None:
    lead.answered(SUB, "w", "id-1")
    lead.answered(SUB, "w", "id-2", by="board")
    for _ in range(3 * PAYER_SHARE):
        lead.say(GET, "w", "id-1", wait_ms=1000, last_id=None)
    lead.say(GET, "w", "id-2", by="board", wait_ms=1000, last_id=None)
    assert lead.turn() == []
    lead.meet()
    lead.say(PUT, "w", "id-1", counter=1, publication="x")
    for index, payload in lead.submit():
        lead.broker.applied(index, 1, lead.store.apply(index, 1, payload))
    turns = [lead.answers() for _ in range(4)]
    assert [turn.count("shop") for turn in turns] == [PAYER_SHARE + 1, PAYER_SHARE, PAYER_SHARE, 0]
    assert [turn.count("board") for turn in turns] == [1, 0, 0, 0], "and the PUT is one more"


def test_whose_wait_is_over_while_he_rests_is_answered_behind_that(lead: Turning) -> None:
    lead.answered(SUB, "w", "id-1")
    lead.say(GET, "w", "id-1", wait_ms=1, last_id=None)
    assert lead.turn() == []
    lead.meet()
    lead.read("shop")
    assert lead.answers() == ["shop"]
    lead.now_ms += 2
    assert lead.answers() == []
    assert lead.broker.load()["publication"] == 0
    lead.now_ms = 1000 * lead.broker.next_deadline()
    assert lead.answers() == ["shop"]


def test_what_a_resting_principal_reads_waits_only_so_far(lead: Turning) -> None:
    lead.meet()
    for _ in range(2):
        lead.read("shop")
    assert lead.answers() == ["shop"]
    for _ in range(RESTING_READS_MAX + 5):
        lead.read("shop")
        lead.answers()
    lead.read("board", 100_100)
    lead.say(PUT, "t", "id-1", counter=LARGE // 100_000 + 2, publication="x")
    for index, payload in lead.submit():
        lead.broker.applied(index, 1, lead.store.apply(index, 1, payload))
    assert [code_of(answer) for answer in lead.taken()] == ["ACK"], "a PUT is no read"
    assert lead.answers() == ["board"]
    assert lead.broker.load()["turn"] == RESTING_READS_MAX


def test_who_rests_when_a_leadership_ends_is_told(lead: Turning) -> None:
    lead.meet()
    for _ in range(3):
        lead.read("shop")
    assert lead.answers() == ["shop"]
    assert not lead.broker.is_idle()
    lead.broker.abdicate("b")
    assert [code_of(answer) for answer in lead.taken()] == ["not_leader"] * 2
    assert lead.broker.is_idle()
    assert lead.broker.next_deadline() == float("inf")
