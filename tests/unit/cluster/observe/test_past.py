"""What the HTTP thread remembers: rates, quantiles, elections, time without a leader, limits."""

from __future__ import annotations

import pytest

from cluster.observe.observer import Happened
from cluster.observe.past import EVENTS_MAX, POINTS_MAX, STEP_S, Past, quantile_ms
from cluster.observe.survey import Survey, TopicRow
from tests.unit.observed import NOTHING, SAMPLE, distribution, later


def test_a_quantile_is_linear_within_its_bucket() -> None:
    after = distribution(50, 50, 0)

    assert quantile_ms(NOTHING, after, 0.25) == pytest.approx(0.5)
    assert quantile_ms(NOTHING, after, 0.75) == pytest.approx(5.5)


def test_a_quantile_above_all_bounds_is_the_last_bound_and_one_of_nothing_is_none() -> None:
    assert quantile_ms(NOTHING, distribution(0, 0, 7), 0.5) == pytest.approx(10.0)
    assert quantile_ms(NOTHING, NOTHING, 0.5) is None


def test_a_step_makes_one_point_with_its_rates() -> None:
    past = Past("c")
    assert past.take(SAMPLE) is None
    assert past.take(later(SAMPLE, STEP_S / 2, added=(5, 500))) is None

    point = past.take(later(SAMPLE, STEP_S, added=(10, 1000), put=distribution(10, 0, 0)))

    assert point is not None
    assert point.stored_rate == pytest.approx(10 / STEP_S)
    assert point.put_ms[0] == pytest.approx(0.5)
    assert list(past.points) == [point]


def test_an_installed_copy_is_no_negative_rate() -> None:
    past = Past("c")
    past.take(later(SAMPLE, 0, added=(1000, 1000)))

    point = past.take(later(SAMPLE, STEP_S, added=(3, 3)))

    assert point is not None
    assert point.stored_rate == 0


def test_the_past_is_bounded() -> None:
    past = Past("c")
    for step in range(POINTS_MAX + 10):
        past.take(later(SAMPLE, STEP_S * step))
    past.note(Happened(float(number), "role", "info", {}) for number in range(EVENTS_MAX + 10))

    assert len(past.points) == POINTS_MAX
    assert [past.events[0].at, past.events[-1].at] == [10.0, EVENTS_MAX + 9.0]


def role(at: float, leader: str) -> Happened:
    return Happened(at, "role", "info", {"role": "follower", "leader": leader, "term": 1})


def test_time_without_a_leader_is_counted_also_between_two_samples() -> None:
    past = Past("c")
    past.note([role(10.0, ""), role(10.25, "n1")])
    past.note([Happened(20.0, "peer_disconnected", "info", {"name": "n2"})])  # who did not lead
    past.note([Happened(30.0, "peer_disconnected", "info", {"name": "n1"}), role(30.5, "n2")])

    assert past.leaderless_s == pytest.approx(0.75)


def test_a_sample_knows_better_and_goes_on_counting() -> None:
    past, wall_s = Past("c"), SAMPLE.wall_s
    past.note(
        [role(wall_s, "n1"), Happened(wall_s + 1, "peer_disconnected", "info", {"name": "n1"})]
    )
    past.take(later(SAMPLE, 2.0, status={"leader": "", "role": "follower"}))
    assert past.leaderless_s == pytest.approx(1.0)
    past.take(later(SAMPLE, 3.0, status={"leader": "", "role": "follower"}))
    assert past.leaderless_s == pytest.approx(2.0)
    past.take(later(SAMPLE, 4.0))  # the link is back, and nobody was elected
    past.take(later(SAMPLE, 9.0))
    assert past.leaderless_s == pytest.approx(3.0)


def test_elections_and_changes_of_the_leader_are_counted() -> None:
    past = Past("c")
    roles = [("follower", ""), ("leader", "n1"), ("follower", ""), ("follower", "n2"),
             ("candidate", ""), ("leader", "n1")]  # fmt: skip

    past.note(Happened(0.0, "role", "info", {"role": role, "leader": who}) for role, who in roles)
    past.note([Happened(0.0, "clients_closed", "warning", {"reasons": {"slow": 2, "silent": 1}})])

    assert (past.elections, past.leader_changes, past.closed) == (2, 2, 3)


def test_a_topic_s_rate_is_between_two_surveys() -> None:
    past = Past("c")
    past.survey(Survey([TopicRow("a", 10, 0, 1, 0, 0)]), 100.0)
    past.survey(Survey([TopicRow("a", 30, 0, 1, 0, 0), TopicRow("b", 5, 0, 1, 0, 0)]), 105.0)

    assert past.topic_rates == {"a": 4.0}


def test_a_survey_that_is_still_the_newest_changes_no_rate() -> None:
    past = Past("c")
    past.survey(Survey([TopicRow("a", 10, 0, 1, 0, 0)]), 100.0)
    newest = Survey([TopicRow("a", 30, 0, 1, 0, 0)])
    for now in (105.0, 106.0, 107.0):  # pages ask each second, and a survey takes longer
        past.survey(newest, now)

    assert past.topic_rates == {"a": 4.0}
