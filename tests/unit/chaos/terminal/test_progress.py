"""What progress.py promises: a pace of the last seconds, and the longest silence so far."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from chaos.terminal.progress import PACE_S, Meter, PlainLines, display


def test_a_pace_is_that_of_the_last_seconds() -> None:
    meter = Meter()
    for tenth in range(101):  # ten seconds: 50 a second, in the last two 100
        now_s = tenth / 10
        count = 5 * tenth if tenth <= 80 else 400 + 10 * (tenth - 80)
        meter.take(now_s, count, 3 * count)
    assert PACE_S == 2
    assert str(meter).startswith("100 acknowledged/s, 300 delivered/s")


def test_a_blackout_is_the_longest_silence_since_its_window_began() -> None:
    meter = Meter()
    meter.take(0.0, 1, 0)
    meter.take(1.0, 2, 0)
    meter.take(4.0, 2, 0)
    assert meter.blackout_s == pytest.approx(3)
    meter.begin_window(4.0)
    meter.take(5.0, 2, 0)
    assert meter.blackout_s == pytest.approx(4)  # the silence was there when the fault came
    meter.take(5.5, 3, 0)
    meter.begin_window(6.0)
    meter.take(6.0, 3, 0)
    meter.take(6.2, 4, 0)
    assert meter.blackout_s == pytest.approx(0.5)


def test_before_the_first_acknowledgment_nothing_is_called_a_blackout() -> None:
    meter = Meter()
    meter.take(0.0, 0, 0)
    meter.take(9.0, 0, 0)
    assert "no service for 0.0 s" in str(meter)


def test_a_log_has_stages_and_what_is_said_and_a_tick_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("chaos.terminal.progress.time.monotonic", lambda: now_s)
    file = io.StringIO()
    shown = display(Console(file=file), 10)
    assert isinstance(shown, PlainLines)
    shown.stage("steady", 3)
    for now_s in (100.1, 102.0, 105.1, 105.2, 110.3):
        shown.tick(f"tick {now_s}")
    now_s = 130.0
    shown.tick("tick 110.3")  # a log gains nothing by the same line again
    shown.say("n1 leads")
    assert file.getvalue().split("\n") == [
        "· steady",
        "  tick 105.1",
        "  tick 110.3",
        "  n1 leads",
        "",
    ]
