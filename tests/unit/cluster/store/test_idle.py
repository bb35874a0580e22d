"""The log's time, and clients that are silent for too long by it: forgotten by all alike."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cluster.node.reaper import AGE_TICK_S, PERIOD_S, TICK_S, WARNED_PERIOD_S, Reaper
from cluster.store import commands, idle
from cluster.store.commands import (
    Advance,
    DropClient,
    Forget,
    Hear,
    Operation,
    Put,
    Raise,
    Register,
    SetTopic,
    Subscribe,
)
from cluster.store.idle import HEARD_MS, STEP_MS_MAX
from cluster.store.store import Delivery, Done, Refused, Store
from cluster.wire.levels import LEVEL_OF_IDLE, LEVEL_OF_TOPICS, LEVEL_OF_USERS
from flotilla_client.protocol import pack
from tests.unit.model_store import MEMBERS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class TimedLog:
    """A store, and the entries that were applied to it; `stamp_ms` is its leader's clock."""

    def __init__(self, path: Path, level: int = LEVEL_OF_IDLE) -> None:
        self.path, self.stamp_ms, self.term = path, 5_000, 1
        self.payloads: list[tuple[int, bytes]] = []
        self.store = Store.open(path, MEMBERS)
        if level > 1:
            self.apply(Raise(level))

    def apply(self, *operations: Operation) -> list[Any]:
        payload = commands.encode(self.stamp_ms, operations)
        self.payloads.append((self.term, payload))
        outcomes = self.store.apply(self.store.applied_index + 1, self.term, payload)
        self.store.commit()
        return outcomes

    def one(self, operation: Operation) -> dict[str, Any]:
        [outcome] = self.apply(operation)
        assert isinstance(outcome, Done), outcome
        return outcome.body

    def refused(self, operation: Operation) -> str:
        [outcome] = self.apply(operation)
        assert isinstance(outcome, Refused), outcome
        return outcome.code

    def put(self, client: str, counter: int, text: bytes = b"x", topic: str = "t") -> Any:
        return self.apply(Put(client, None, topic, counter, *pack([text])))[0]

    def passes(self, hours: int, *heard: str) -> None:
        """Let so many hours pass, an entry in each."""
        for _ in range(hours):
            self.stamp_ms += HOUR_MS
            self.apply(Hear(list(heard)))

    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path, {})

    def replayed(
        self, path: Path, reopens: bool, commits: Callable[[int], bool] = lambda index: False
    ) -> Store:
        """Return a store of the same entries, which was perhaps closed and opened behind each, or
        has written what it had behind some of them.
        """
        store = Store.open(path, MEMBERS)
        for index, (term, payload) in enumerate(self.payloads, 1):
            store.apply(index, term, payload)
            if commits(index):
                store.commit()
            if reopens:
                store.commit()
                store.collect_garbage(1)
                store.commit()
                store.close()
                store = Store.open(path, {})
        return store


@pytest.fixture
def log(tmp_path: Path) -> TimedLog:
    log = TimedLog(tmp_path / "store.db")
    for client in ("p", "s"):
        log.one(Register(client, True, None, ""))
    log.one(Subscribe("s", None, "t", None))
    return log


def test_a_client_that_is_silent_is_forgotten_with_its_subscriptions_and_one_that_is_not_stays(
    log: TimedLog,
) -> None:
    log.put("p", 1)
    log.passes(25, "p")
    body = log.one(Forget(["p", "s"], DAY_MS))
    assert body == {"forgotten": ["s"], "left": ["t"]}
    assert log.store.statistics()["clients"] == 1
    assert log.store.topic_ends() == {}
    assert log.store.subscriptions("s") == {}
    assert log.put("p", 2).body["stored"] is False
    while log.store.collect_garbage(10):
        pass
    assert log.store.total_backlog_bytes() == 0


def test_it_is_told_so_whatever_it_asks_when_it_comes_back(log: TimedLog) -> None:
    assert log.refused(Register("nobody", False, 1, "")) == "unknown_client"
    log.passes(25, "p")
    log.one(Forget(["s"], DAY_MS))
    for operation in (
        Register("s", False, 1, ""),
        Subscribe("s", None, "t", None),
        Put("s", None, "t", 1, *pack([b"x"])),
        Advance("s", None, {"t": 1}),
    ):
        assert log.refused(operation) == "forgotten"
    refused = log.store.check_client("s", None)
    assert refused is not None
    assert refused.code == "forgotten"
    assert "client_idle_days" in refused.message


def test_who_was_heard_since_it_was_proposed_is_not_forgotten(log: TimedLog) -> None:
    log.passes(25)
    log.put("p", 1)
    assert log.one(Forget(["p"], DAY_MS))["forgotten"] == []


@pytest.mark.parametrize("hours", [22, 23])
def test_nobody_is_forgotten_before_his_time(log: TimedLog, hours: int) -> None:
    """The hour in which he was heard last doesn't count: nobody knows its minute."""
    log.passes(hours)
    assert log.one(Forget(["p", "s"], DAY_MS))["forgotten"] == []


def test_every_sign_of_life_in_the_log_counts(log: TimedLog) -> None:
    log.one(Subscribe("p", None, "u", None))
    for number, sign in enumerate((
        Register("p", False, None, ""),
        Subscribe("p", None, "v", None),
        Put("p", None, "t", 1, *pack([b"x"])),
        Advance("p", None, {"u": 0}),
        Hear(["p"]),
    )):  # fmt: skip
        log.passes(30)
        log.one(sign)
        log.passes(20)
        assert log.one(Forget(["p"], DAY_MS))["forgotten"] == [], (number, sign)


def test_what_a_fenced_process_asks_is_no_sign_of_life(log: TimedLog) -> None:
    log.one(Register("p", False, 1, "a"))
    log.passes(30)
    assert log.refused(Put("p", 1, "t", 1, *pack([b"x"]))) == "fenced"
    assert log.one(Forget(["p"], DAY_MS))["forgotten"] == ["p"]


def test_a_leader_s_clock_that_jumps_makes_nobody_look_silent(log: TimedLog) -> None:
    log.stamp_ms += 400 * DAY_MS
    log.one(Hear([]))
    assert log.store.idle.log_ms == STEP_MS_MAX
    log.stamp_ms -= 300 * DAY_MS
    log.one(Hear([]))
    assert log.store.idle.log_ms == STEP_MS_MAX


def test_between_two_leaders_no_time_passes_as_their_clocks_need_not_agree(log: TimedLog) -> None:
    before = log.store.idle.log_ms
    for _ in range(50):
        log.term += 1
        log.stamp_ms = 10_000_000_000 if log.term % 2 else 5
        log.one(Hear([]))
    assert log.store.idle.log_ms == before


def test_all_nodes_forget_alike_whenever_they_were_started_or_wrote(
    log: TimedLog, tmp_path: Path
) -> None:
    log.put("p", 1)
    log.put("s", 1, topic="u")
    log.passes(25, "p")
    log.one(Forget(["p", "s"], DAY_MS))
    forgotten_at = log.store.applied_index
    # A node that has written nothing since must not find it either, wherever it looks.
    for late in (Put("s", None, "u", 2, *pack([b"x"])), Register("s", False, 1, "")):
        assert log.refused(late) == "forgotten"
    assert log.one(Forget(["s"], DAY_MS))["forgotten"] == []
    log.one(Register("new", True, None, ""))
    log.put("new", 1, topic="u")
    log.passes(3)
    expected = log.store.digest()
    for number, reopens in enumerate((False, True)):
        store = log.replayed(tmp_path / f"{number}.db", reopens)
        assert store.digest() == expected
        store.close()
    for late in range(forgotten_at - 1, forgotten_at + 4):
        path = tmp_path / f"late-{late}.db"
        store = log.replayed(path, reopens=False, commits=lambda index, late=late: index < late)
        assert store.digest() == expected, late
        store.close()


def test_who_comes_behind_a_forgotten_one_has_nothing_of_its_counters(
    log: TimedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "GARBAGE_PRODUCERS", 2)
    log.one(Register("last", True, None, ""))
    for topic in "abcde":
        for counter in range(1, 40):
            log.put("last", counter, topic=topic)
    log.passes(25, "p", "s")
    assert log.one(Forget(["last"], DAY_MS))["forgotten"] == ["last"]
    log.reopen()
    log.one(Register("new", True, None, ""))
    assert log.store.counters("new", "", 10) == {}
    assert log.put("new", 1, topic="a").body["duplicate"] is False
    collected = 0
    while log.store.collect_garbage(10):
        collected += 1
    assert collected > 2
    query = log.store._database.query
    assert query("SELECT count(*) FROM producers") == [(1,)]
    assert query("SELECT count(*) FROM earlier_puts") == [(0,)]
    log.reopen()
    assert log.store.statistics()["producers"] == 1
    assert log.put("new", 2, topic="a").body["duplicate"] is False
    assert log.put("p", 1).body["id"] == 1
    delivery = log.store.read("s", "t", None, 10, 1000)
    assert isinstance(delivery, Delivery)
    assert delivery.count == 1


def test_a_million_clients_are_no_wall_any_more(tmp_path: Path) -> None:
    log = TimedLog(tmp_path / "store.db")
    log.store._limits = type(log.store._limits)(clients_max=3)
    for round_ in range(5):
        for number in range(3):
            log.one(Register(f"{round_} {number}", True, None, ""))
        assert log.refused(Register("more", True, None, "")) == "too_many"
        log.passes(25)
        ids = [f"{round_} {number}" for number in range(3)]
        assert log.one(Forget(ids, DAY_MS))["forgotten"] == ids
    assert log.store.idle.forgotten == 15


def test_below_the_level_no_time_passes_and_the_entries_say_what_they_need(tmp_path: Path) -> None:
    log = TimedLog(tmp_path / "store.db", level=1)
    log.one(Register("p", True, None, ""))
    log.stamp_ms += 10 * HOUR_MS
    log.put("p", 1)
    assert log.store.idle.log_ms == 0
    assert commands.level_needed([Hear([])]) == LEVEL_OF_IDLE
    assert commands.level_needed([Forget([], 1)]) == LEVEL_OF_IDLE
    log.one(Raise(LEVEL_OF_IDLE))
    log.passes(24)
    assert log.one(Forget(["p"], DAY_MS))["forgotten"] == []
    log.passes(2)
    assert log.one(Forget(["p"], DAY_MS))["forgotten"] == ["p"]


# --- the leader's part ---------------------------------------------------------------------------


class ReaperBench:
    """A reaper and the log that it proposes to; each call of `step` is one of its periods."""

    def __init__(self, log: TimedLog, days: int = 10) -> None:
        self.log, self.now = log, 0.0
        self.lines: list[dict[str, Any]] = []
        self.heard: list[str] = []
        self.reaper = Reaper(days * DAY_MS, self._note)

    def _note(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})

    def step(self) -> list[str]:
        """Return who was forgotten."""
        self.now += PERIOD_S
        gone: list[str] = []
        operations = self.reaper.operations(self.log.store, lambda: self.heard, 1, self.now)
        for operation in operations:
            gone += self.log.one(operation).get("forgotten", [])
        return gone


def test_a_leader_has_the_silent_forgotten_and_warns_before(log: TimedLog) -> None:
    led = ReaperBench(log)
    log.passes(8 * 24, "p")
    assert led.step() == []
    assert led.lines == []
    assert led.reaper.warned == 0
    log.passes(30, "p")
    assert led.step() == []
    assert [(line["event"], line["count"], line["some"]) for line in led.lines] == [
        ("clients_silent", 1, ["s"])
    ]
    assert led.reaper.warned == 1
    assert led.step() == []
    assert len(led.lines) == 1  # once in a while
    log.passes(24, "p")
    assert led.step() == ["s"]
    led.now += WARNED_PERIOD_S
    assert led.step() == []
    assert led.reaper.warned == 0
    assert len(led.lines) == 1


def test_a_leader_that_has_nobody_to_forget_lets_the_log_s_time_pass(log: TimedLog) -> None:
    led = ReaperBench(log)
    led.step()
    before = log.store.idle.log_ms
    for _ in range(3):
        log.stamp_ms += int(TICK_S * 1000)
        led.now += TICK_S
        led.step()
    assert log.store.idle.log_ms == before + 3 * int(TICK_S * 1000)
    assert TICK_S * 1000 < STEP_MS_MAX


def test_all_clients_are_looked_at_a_page_at_a_time_and_an_entry_stays_short(
    log: TimedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.node.reaper.PAGE_CLIENTS", 3)
    monkeypatch.setattr("cluster.node.reaper.FORGOTTEN_PER_ENTRY_MAX", 2)
    log.apply(*(Register(f"c{number}", True, None, "") for number in range(20)))
    log.passes(11 * 24)
    led = ReaperBench(log)
    gone = [led.step() for _ in range(30)]
    assert max(map(len, gone)) == 2
    names = {"p", "s", *(f"c{number}" for number in range(20))}
    assert sorted(chain(*gone)) == sorted(names)
    assert log.store.statistics()["clients"] == 0


def test_nobody_is_forgotten_who_was_not_told_the_days(log: TimedLog) -> None:
    led = ReaperBench(log, days=0)
    log.passes(500)
    assert led.step() == []
    assert log.store.idle.forgotten == 0


def test_who_only_reads_is_heard(log: TimedLog) -> None:
    assert not log.store.is_to_be_heard("s", HOUR_MS)
    log.passes(2)
    assert log.store.is_to_be_heard("s", HOUR_MS)
    led = ReaperBench(log)
    led.heard = ["s", "gone meanwhile"]
    led.step()
    assert not log.store.is_to_be_heard("s", HOUR_MS)
    assert not log.store.is_to_be_heard("gone meanwhile", HOUR_MS)
    assert HEARD_MS <= HOUR_MS


def test_of_a_client_that_is_dropped_before_it_was_written_nothing_is_left(tmp_path: Path) -> None:
    log = TimedLog(tmp_path / "store.db", LEVEL_OF_USERS)
    log.passes(2)
    store = log.store
    for operation in (
        Register("a", True, None, "", principal="shop"),
        DropClient("a", True),
    ):
        store.apply(store.applied_index + 1, 1, commands.encode(log.stamp_ms, [operation]))
    store.commit()
    for table in ("clients", "owners", "heard"):
        assert store._database.query(f"SELECT * FROM {table}") == [], table


def test_while_a_topic_keeps_what_gets_too_old_the_log_s_time_passes_sooner(
    tmp_path: Path,
) -> None:
    log = TimedLog(tmp_path / "store.db", LEVEL_OF_TOPICS)
    led = ReaperBench(log, days=0)
    before = log.store.applied_index
    led.step()
    assert log.store.applied_index == before, "nothing will be too old"
    log.one(Register("a", True, None, ""))
    log.one(SetTopic("t", {"keep": "ms", "amount": 1_000}, True, True))
    log.put("a", 1)
    before = log.store.applied_index
    for _ in range(round(AGE_TICK_S / PERIOD_S) * 3):
        led.step()
    assert log.store.applied_index - before >= 3
