"""What one payer may use up a second, and who has met which quota."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.serve import quotas
from cluster.serve.quotas import (
    HOUR_MS,
    OTHERS,
    PAYERS_MAX,
    REPORT_S,
    NewNames,
    Quotas,
    Rates,
    Refusals,
)


def test_without_a_quota_nothing_is_refused() -> None:
    rates = Rates(Quotas())
    assert all(rates.take("shop", 1 << 20, 0.0) is None for _ in range(10_000))


def test_a_rate_is_spent_and_comes_back_with_the_time() -> None:
    rates = Rates(Quotas(requests_per_s_max=10))
    assert [rates.take("shop", 1, 0.0) for _ in range(10)] == [None] * 10
    refusal = rates.take("shop", 1, 0.0)
    assert refusal is not None
    assert refusal.code == "quota"
    assert refusal.details["quota"] == "requests_per_s_max"
    assert refusal.details["limit"] == 10
    wait_ms = refusal.details["retry_after_ms"]
    assert 100 <= wait_ms <= 101
    assert rates.take("shop", 1, wait_ms - 2) is not None
    assert rates.take("shop", 1, wait_ms) is None
    assert rates.take("shop", 1, wait_ms) is not None


def test_the_others_have_their_own_rates() -> None:
    rates = Rates(Quotas(requests_per_s_max=1))
    assert rates.take("shop", 1, 0.0) is None
    assert rates.take("shop", 1, 0.0) is not None
    assert rates.take("orders", 1, 0.0) is None


def test_what_is_larger_than_all_of_a_second_s_bytes_passes_and_is_paid_for_afterwards() -> None:
    rates = Rates(Quotas(bytes_per_s_max=1000))
    assert rates.take("shop", 5000, 0.0) is None
    refusal = rates.take("shop", 1, 0.0)
    assert refusal is not None
    assert refusal.details == {"quota": "bytes_per_s_max", "limit": 1000, "retry_after_ms": 4001}
    assert rates.take("shop", 1, 3999.0) is not None
    assert rates.take("shop", 1, 4001.0) is None


def test_replies_are_paid_for() -> None:
    rates = Rates(Quotas(bytes_per_s_max=1000))
    assert rates.take("shop", 10, 0.0) is None
    rates.spend("shop", 2000, 0.0)
    assert rates.take("shop", 10, 0.0) is not None
    assert rates.take("shop", 10, 1011.0) is None


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3000)), min_size=1, max_size=60))
def test_nobody_has_more_than_its_rates_and_a_burst(asked: list[tuple[int, int]]) -> None:
    """Of a request that passes the whole size counts, of bytes one request more at most."""
    rates = Rates(Quotas(requests_per_s_max=20, bytes_per_s_max=4000))
    now_ms, passed, passed_bytes, last = 0, 0, 0, 0
    for wait_ms, size_bytes in asked:
        now_ms += wait_ms
        refusal = rates.take("shop", size_bytes, now_ms)
        if refusal is None:
            passed, passed_bytes, last = passed + 1, passed_bytes + size_bytes, size_bytes
        else:
            assert refusal.details["retry_after_ms"] > 0
        seconds = now_ms / 1000 + quotas.BURST_S
        assert passed <= 20 * seconds + 1e-6
        assert passed_bytes - last <= 4000 * seconds + 1e-6


def test_a_payer_that_is_refused_gets_through_if_it_waits_as_long_as_it_was_told() -> None:
    rates, now_ms = Rates(Quotas(requests_per_s_max=7, bytes_per_s_max=900)), 0.0
    for number in range(200):
        refusal = rates.take("shop", number, now_ms)
        if refusal is not None:
            now_ms += refusal.details["retry_after_ms"]
            assert rates.take("shop", number, now_ms) is None


def test_the_payers_that_are_kept_in_mind_are_bounded() -> None:
    rates = Rates(Quotas(requests_per_s_max=1))
    for number in range(PAYERS_MAX + 10):
        assert rates.take(f"10.0.0.{number}", 1, float(number)) is None
    assert len(rates._buckets) == PAYERS_MAX
    assert rates.take(f"10.0.0.{PAYERS_MAX + 9}", 1, PAYERS_MAX + 9.0) is not None


def test_of_so_many_payers_who_has_spent_longest_ago_is_forgotten() -> None:
    rates = Rates(Quotas(requests_per_s_max=1))
    now_ms = 0.0
    for number in range(PAYERS_MAX):
        rates.take(f"10.0.0.{number}", 1, now_ms)
        now_ms += 0.01
    for number in range(100):  # a flood of strangers refills nobody's rate
        assert rates.take("busy", 1, now_ms) is None or number
        assert rates.take(f"10.1.0.{number}", 1, now_ms) is None
    assert rates.take("busy", 1, now_ms) is not None
    assert "10.0.0.0" not in rates._buckets


def test_refusals_are_reported_once_in_a_while_and_counted_for_good() -> None:
    refusals = Refusals()
    assert refusals.report(0.0) == {}
    for _ in range(3):
        refusals.note("shop", "requests_per_s_max")
    assert refusals.report(0.0) == {"shop requests_per_s_max": 3}
    refusals.note("shop", "requests_per_s_max")
    assert refusals.report(REPORT_S * 1000 - 1) == {}
    assert refusals.report(REPORT_S * 1000) == {"shop requests_per_s_max": 1}
    assert refusals.total == {("shop", "requests_per_s_max"): 4}


def test_a_thousand_addresses_are_counted_in_bounded_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "REPORTED_MAX", 3)
    refusals = Refusals()
    for number in range(1000):
        refusals.note(f"10.0.0.{number}", "bytes_per_s_max")
    assert len(refusals.total) == 4
    assert refusals.total[OTHERS, "bytes_per_s_max"] == 997


def test_what_was_not_spent_for_long_is_not_saved_up() -> None:
    rates = Rates(Quotas(bytes_per_s_max=1000))
    assert rates.take("shop", 1, 0.0) is None
    assert rates.take("shop", 5000, 60_000.0) is None
    assert rates.take("shop", 1, 60_000.0) is not None
    assert rates.take("shop", 1, 64_001.0) is None


def test_an_hour_s_names_may_be_made_at_once_and_then_so_many_an_hour() -> None:
    names = NewNames()
    assert [names.take("shop", 3_600, 0.0) for _ in range(3_600)] == [0] * 3_600
    assert names.take("shop", 3_600, 0.0) == 1_001
    assert names.take("orders", 3_600, 0.0) == 0
    assert names.take("shop", 3_600, 1_001.0) == 0
    assert names.take("shop", 3_600, 1_001.0) > 0
    later = 10.0 * HOUR_MS
    assert [names.take("shop", 3_600, later) for _ in range(3_600)] == [0] * 3_600
    assert names.take("shop", 3_600, later) > 0, "no more than an hour's worth is saved up"


def test_of_so_many_who_make_names_who_did_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "PAYERS_MAX", 2)
    names = NewNames()
    assert [names.take(who, 1, at) for at, who in enumerate("abc")] == [0, 0, 0]
    assert names.take("b", 1, 3.0) > 0
    assert names.take("a", 1, 3.0) == 0, "and begins anew"
