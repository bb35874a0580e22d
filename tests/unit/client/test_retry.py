"""The retry machine, driven by hand: no socket, no clock, jitter from a seed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flotilla_client.errors import (
    BacklogFull,
    FlotillaError,
    QuotaExceeded,
    TooLarge,
    Unavailable,
)
from flotilla_client.operations import slices
from flotilla_client.protocol import ACK, ERRORS, NAK, Reply, nak_body
from flotilla_client.retry import (
    ATTEMPT_MS,
    ATTEMPTS_MIN,
    BACKOFF_MS_MAX,
    DEADLINE_MS,
    JITTER,
    NO_ANSWER_YET,
    ON_NAK,
    RETRY_AFTER_MS_MAX,
    SHUN_MS,
    Action,
    Close,
    Done,
    Exchange,
    Failed,
    Listen,
    Pause,
    Routes,
    Send,
    attempt_timeout_ms,
    exchange_deadline_ms,
)

SEED = 1


class Driver:
    """Carries out an exchange's actions against a scripted world; time is what it says."""

    def __init__(
        self, routes: Routes, deadline_ms: float = DEADLINE_MS, sent: int = 0, seed: int = SEED
    ) -> None:
        self.now_ms = 0.0
        self.sends: list[tuple[float, int, str]] = []
        self.closed: list[int] = []
        self.pauses: list[float] = []
        timeout_ms = attempt_timeout_ms(deadline_ms, 0)
        self.exchange = Exchange(
            routes, "op", deadline_ms, timeout_ms, random.Random(seed), sent=sent
        )

    def run(self, *world: Any) -> Done | FlotillaError:
        """Give each attempt the next of `world` ("silent", "unsent", or a reply); then silence."""
        answers = iter(world)
        actions: list[Action] = self.exchange.started(self.now_ms)
        while True:
            self.closed += [action.endpoint for action in actions if isinstance(action, Close)]
            match actions[-1]:
                case Done() as done:
                    return done
                case Failed(error):
                    return error
                case Pause(wait_ms):
                    self.pauses.append(wait_ms)
                    self.now_ms += wait_ms
                    actions = self.exchange.resumed(self.now_ms)
                case Send(endpoint, request_id, timeout_ms):
                    self.sends.append((self.now_ms, endpoint, request_id))
                    actions = self._answer(next(answers, "silent"), request_id, timeout_ms)
                case Listen(_, timeout_ms):
                    actions = self._answer(next(answers, "silent"), "op.1", timeout_ms)
                case other:
                    raise AssertionError(other)

    def _answer(self, answer: Any, request_id: str, timeout_ms: float) -> list[Action]:
        if answer == "silent":
            self.now_ms += timeout_ms
            return self.exchange.silent(self.now_ms)
        if answer == "unsent":
            return self.exchange.unsent(self.now_ms)
        answer.request_id = answer.request_id or request_id
        return self.exchange.replied(answer, self.now_ms)

    @property
    def endpoints(self) -> list[int]:
        return [endpoint for _, endpoint, _ in self.sends]


def ack(node: str = "a", leader: str = "a", request_id: str = "") -> Reply:
    return Reply(ACK, request_id, node, leader, 1, {})


def nak(code: str, node: str = "a", leader: str = "", request_id: str = "", **more: Any) -> Reply:
    return Reply(NAK, request_id, node, leader, 1, nak_body(code, code, **more))


def test_an_answer_ends_it_after_one_attempt() -> None:
    reply = ack()
    driver = Driver(Routes(range(3)))
    assert driver.run(reply) == Done(reply, 1)
    assert driver.sends == [(0.0, 0, "op.1")]
    assert driver.closed == []


def test_silence_closes_the_socket_and_asks_the_next_endpoint_under_a_new_name() -> None:
    driver = Driver(Routes(range(3)))
    assert isinstance(driver.run("silent", ack("b", "b")), Done)
    assert driver.sends == [(0.0, 0, "op.1"), (ATTEMPT_MS, 1, "op.2")]
    assert driver.closed == [0]


@pytest.mark.parametrize("deadline_ms", [30, 1_000, 7_500, DEADLINE_MS])
def test_three_silent_attempts_at_least_fit_into_any_deadline(deadline_ms: float) -> None:
    driver = Driver(Routes(range(3)), deadline_ms)
    error = driver.run()
    assert isinstance(error, Unavailable)
    assert len(driver.sends) >= ATTEMPTS_MIN
    assert driver.now_ms <= deadline_ms


@pytest.mark.parametrize("deadline_ms", [30, 1_000, 7_500, DEADLINE_MS])
def test_a_waiting_get_has_its_attempts_within_the_deadline_and_one_wait(
    deadline_ms: float,
) -> None:
    for wait_ms in set(slices(60_000, deadline_ms)):
        timeout_ms = attempt_timeout_ms(deadline_ms, wait_ms)
        assert wait_ms < timeout_ms <= ATTEMPT_MS + wait_ms
        end_ms = exchange_deadline_ms(deadline_ms, wait_ms)
        assert ATTEMPTS_MIN * timeout_ms <= end_ms + 1e-6
        assert end_ms == deadline_ms + wait_ms
    assert sum(slices(60_000, deadline_ms)) == 60_000


def test_unavailable_is_indefinite_once_an_attempt_went_unanswered() -> None:
    error = Driver(Routes(range(3))).run("silent", *[nak("electing")] * 200)
    assert isinstance(error, Unavailable)
    assert not error.definite


def test_unavailable_is_definite_if_nothing_was_ever_sent() -> None:
    error = Driver(Routes(range(3)), 1_000).run(*["unsent"] * 1_000)
    assert isinstance(error, Unavailable)
    assert error.definite


def test_unavailable_is_definite_if_every_attempt_was_refused_for_certain() -> None:
    refusals = [nak("electing") for _ in range(1_000)]
    error = Driver(Routes(range(3)), 1_000).run(*refusals)
    assert isinstance(error, Unavailable)
    assert (error.definite, error.details["last"]) == (True, "electing")


def test_an_uncertain_attempt_makes_a_later_definite_refusal_indefinite() -> None:
    error = Driver(Routes(range(3))).run(nak("uncertain"), nak("too_large", limit=9))
    assert isinstance(error, TooLarge)
    assert (error.definite, error.details["attempts"]) == (False, 2)


@pytest.mark.parametrize("cut_off", ["silent", "unsent"])
def test_an_attempt_that_the_deadline_cuts_off_does_not_hide_what_the_endpoint_did_before(
    cut_off: str,
) -> None:
    exchange = Exchange(Routes([0]), "op", 1_000, 500, random.Random(SEED))
    exchange.started(0)
    exchange.silent(100, "answers as no node does")
    exchange.resumed(999)
    [*_, last] = getattr(exchange, cut_off)(1_000)
    assert isinstance(last, Failed)
    assert last.error.details["causes"] == {0: "answers as no node does"}


def test_who_can_wait_no_longer_hears_of_the_endpoint_that_is_asked_and_of_no_other() -> None:
    exchange = Exchange(Routes((0, 1)), "op", 15_000, 2_500, random.Random(SEED))
    [send] = exchange.started(0)
    assert isinstance(send, Send)
    assert exchange.out_of_time().details["causes"] == {0: NO_ANSWER_YET}
    body = nak_body("electing", "no leader", retry_after_ms=4_000)
    [pause] = exchange.replied(Reply(NAK, send.request_id, "a", "", 1, body), 1)
    assert isinstance(pause, Pause)
    assert exchange.out_of_time().details["causes"] == {0: "electing"}
    [send] = exchange.resumed(4_000)
    assert isinstance(send, Send)
    assert exchange.out_of_time().details["causes"] == {0: "electing", 1: NO_ANSWER_YET}


def test_a_deadline_that_has_passed_sends_nothing() -> None:
    driver = Driver(Routes(range(3)))
    driver.now_ms = DEADLINE_MS
    error = driver.run()
    assert isinstance(error, Unavailable)
    assert error.definite
    assert driver.sends == []


@pytest.mark.parametrize(
    "code", sorted(code for code, row in ERRORS.items() if row.retry == "never")
)
def test_a_final_code_ends_it_at_once(code: str) -> None:
    driver = Driver(Routes(range(3)))
    error = driver.run(nak(code))
    assert isinstance(error, FlotillaError)
    assert (error.code, error.definite) == (code, ERRORS[code].definite)
    assert len(driver.sends) == 1


def test_the_table_holds_exactly_the_codes_that_are_to_be_retried() -> None:
    assert set(ON_NAK) == {code for code, row in ERRORS.items() if row.retry != "never"}
    for code, row in ERRORS.items():
        assert (row.retry == "leader") == (code in ON_NAK and ON_NAK[code].where == "leader"), code


@pytest.mark.parametrize("code", sorted(ON_NAK))
def test_a_retryable_code_is_asked_again_where_the_table_says(code: str) -> None:
    driver = Driver(Routes(range(3)))
    assert isinstance(driver.run(nak(code, retry_after_ms=10), ack()), Done)
    expected = {"leader": 1, "next": 1, "stay": 0}[ON_NAK[code].where]
    assert driver.endpoints == [0, expected]


def test_not_leader_goes_to_the_endpoint_that_hosts_the_leader() -> None:
    routes = Routes(range(3))
    for endpoint, node in enumerate("abc"):
        routes.answered(endpoint, ack(node, node), 0)
    routes.answered(0, ack("a", "a"), 0)
    driver = Driver(routes)
    driver.run(nak("not_leader", "a", leader="c"), ack("c", "c"))
    assert driver.endpoints == [0, 2]


def test_a_wish_to_be_left_alone_is_honoured_up_to_a_bound() -> None:
    driver = Driver(Routes(range(3)), 60_000)
    driver.run(nak("overloaded", retry_after_ms=4 * RETRY_AFTER_MS_MAX), ack())
    [pause_ms] = driver.pauses
    assert RETRY_AFTER_MS_MAX * JITTER[0] <= pause_ms <= RETRY_AFTER_MS_MAX * JITTER[1]


def test_who_is_refused_again_and_again_asks_less_and_less_often() -> None:
    driver = Driver(Routes(range(3)))
    refusals = [nak("electing") for _ in range(30)]
    assert isinstance(driver.run(*refusals, ack()), Done)
    assert max(driver.pauses[:2]) < BACKOFF_MS_MAX * JITTER[0]
    assert min(driver.pauses[-3:]) >= BACKOFF_MS_MAX * JITTER[0]


def test_an_adopted_attempt_is_waited_for_until_the_deadline_at_most() -> None:
    exchange = Exchange(Routes(range(3)), "op", 1_000, ATTEMPT_MS, random.Random(SEED), sent=1)
    assert exchange.adopted(0, 400.0) == [Listen(0, 600.0)]


def test_retry_after_is_honoured_with_jitter() -> None:
    low, high = JITTER
    pauses = set()
    for seed in range(20):
        driver = Driver(Routes(range(3)), seed=seed)
        driver.run(nak("electing", retry_after_ms=400), ack())
        pauses.add(driver.pauses[0])
        assert 400 * low <= driver.pauses[0] <= 400 * high, f"seed {seed}"
    assert len(pauses) == 20


def test_refused_connections_are_not_asked_in_a_tight_loop() -> None:
    driver = Driver(Routes(range(3)))
    driver.run(*["unsent"] * 100_000)
    assert max(driver.pauses) <= BACKOFF_MS_MAX * JITTER[1]
    assert len(driver.sends) < 2 * 3 * DEADLINE_MS / BACKOFF_MS_MAX


def test_a_late_ack_of_an_earlier_attempt_answers_the_operation() -> None:
    driver = Driver(Routes(range(1)))
    done = driver.run(nak("uncertain"), ack(request_id="op.1"))
    assert isinstance(done, Done)
    assert done.attempts == 2


def test_a_late_nak_of_an_earlier_attempt_settles_that_attempt_alone() -> None:
    driver = Driver(Routes(range(1)), 100)
    late = nak("too_large", request_id="op.1")
    assert isinstance(driver.run(nak("uncertain"), late, ack(request_id="op.2")), Done)


def test_a_reply_to_another_operation_is_never_taken_for_an_answer() -> None:
    driver = Driver(Routes(range(3)))
    own = ack("b", "b", request_id="op.1")
    done = driver.run(ack(request_id="other.1"), own)
    assert done == Done(own, 1)
    assert len(driver.sends) == 1


def test_backlog_full_until_the_deadline_is_reported_as_such() -> None:
    error = Driver(Routes(range(3)), 500).run(*[nak("backlog_full", limit=7) for _ in range(500)])
    assert isinstance(error, BacklogFull)
    assert (error.definite, error.details["limit"]) == (True, 7)


def test_a_code_in_final_is_not_retried() -> None:
    exchange = Exchange(
        Routes(range(3)), "op", 1e9, 100, random.Random(SEED), frozenset({"backlog_full"})
    )
    exchange.started(0)
    [failed] = exchange.replied(nak("backlog_full", request_id="op.1"), 1)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, BacklogFull)


def test_attempts_that_left_before_count_as_unsettled() -> None:
    driver = Driver(Routes(range(3)), sent=2)
    error = driver.run(nak("too_large"))
    assert isinstance(error, TooLarge)
    assert not error.definite
    assert [request_id for _, _, request_id in driver.sends] == ["op.3"]


def test_the_next_request_goes_where_the_leader_is_known_to_be() -> None:
    routes = Routes(range(3))
    routes.answered(1, ack("b", "b"), 0)
    routes.answered(0, ack("a", "b"), 0)
    assert routes.current == 1


def test_an_unknown_leader_is_looked_for_on_endpoints_not_yet_asked() -> None:
    routes = Routes(range(3))
    routes.answered(0, ack("a", "c"), 0)
    assert routes.current == 1
    routes.answered(1, ack("b", "c"), 0)
    assert routes.current == 2


def test_a_leader_that_this_client_cannot_reach_is_left_to_the_relay_for_a_while() -> None:
    routes = Routes(range(2))
    routes.answered(1, ack("b", "b"), 0)
    routes.silent(1, 0)
    routes.answered(0, ack("a", "b"), 1)
    assert routes.current == 0
    routes.answered(0, ack("a", "b"), SHUN_MS)
    assert routes.current == 1


def test_a_node_that_moved_is_no_longer_looked_for_at_its_old_endpoint() -> None:
    routes = Routes(range(2))
    routes.answered(0, ack("a", "a"), 0)
    routes.answered(0, ack("b", "b"), 0)
    routes.answered(0, ack("b", "a"), 0)
    assert routes.current == 1


_ANSWERS = st.sampled_from(["silent", "unsent", "ack", *sorted(ERRORS)])


@given(st.lists(_ANSWERS, max_size=40), st.integers(1, 5), st.integers(0, 2**32))
def test_whatever_the_world_does_it_ends_by_its_deadline_and_never_lies(
    world: list[str], endpoints: int, seed: int
) -> None:
    answers = [a if a in ("silent", "unsent") else ack() if a == "ack" else nak(a) for a in world]
    driver = Driver(Routes(range(endpoints)), 2_000, seed=seed)
    end = driver.run(*answers)
    assert driver.now_ms <= 2_000
    met = world[: len(driver.sends)] + ["silent"] * (len(driver.sends) - len(world))
    if isinstance(end, Done):
        assert met[-1] == "ack"
        return
    doubtful = {"silent", "uncertain", "internal"}
    assert end.definite == (not doubtful & set(met)), (met, end)


def test_a_rate_that_is_used_up_is_waited_for_at_the_same_node() -> None:
    driver = Driver(Routes(range(3)))
    used_up = nak("quota", quota="requests_per_s_max", limit=10, retry_after_ms=400)
    assert isinstance(driver.run(used_up, ack()), Done)
    assert driver.endpoints == [0, 0]
    [pause_ms] = driver.pauses
    assert JITTER[0] * 400 <= pause_ms <= JITTER[1] * 400


def test_a_rate_that_is_used_up_until_the_deadline_is_told_as_what_it_is() -> None:
    used_up = {"quota": "requests_per_s_max", "limit": 10, "retry_after_ms": 400}
    world = [nak("quota", **used_up) for _ in range(10)]
    error = Driver(Routes(range(3)), 1_000).run(*world)
    assert isinstance(error, QuotaExceeded)
    assert error.definite
    assert error.details["quota"] == "requests_per_s_max"


def test_a_quota_that_does_not_free_itself_is_told_at_once() -> None:
    driver = Driver(Routes(range(3)))
    error = driver.run(nak("quota", quota="topics_max", limit=5), ack())
    assert isinstance(error, QuotaExceeded)
    assert (error.details["limit"], len(driver.sends)) == (5, 1)
