"""A violation planted in a realistic run is found exactly, and a clean run raises no alarm."""

import random
from collections.abc import Callable, Iterable

import pytest

from tests.spark.conftest import Find, Found
from tests.spark.histories import CorrectBroker, clean_run

SEEDS = (1, 2)
Plant = Callable[[CorrectBroker], Iterable[tuple[str, int]]]
PLANTS: dict[str, Plant] = {}


def plant(act: Plant) -> Plant:
    """Register a plant: it acts before the drain and returns (check, rows it must find)."""
    PLANTS[act.__name__] = act
    return act


@plant
def acknowledged_before_replication(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    """Two publications vanish from the end; nobody sees their ids."""
    first_id = broker.last_id + 1
    broker.run.put("p3", broker.TOPIC, 1, "ok", 2, first_id=first_id, last_id=first_id + 1)
    return [("lost", 2 * len(broker.cursors))]


def _beside(broker: CorrectBroker, at: int) -> set[str]:
    return {broker.stored[at - 1][0], broker.stored[at + 1][0]}


@plant
def stored_twice(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    """One that no other one of its producer stands beside: it is no part of a batch, to be torn."""
    places = range(1, len(broker.stored) - 1)
    alone = next(at for at in places if broker.stored[at][0] not in _beside(broker, at))
    broker.stored.append(broker.stored[alone])
    return [("duplicate_stored", 1)]


@plant
def delivered_twice(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.answer("s1", 500)
    producer, counter = broker.stored[-1]
    again = [[broker.last_id, producer, counter, 1]]
    broker.run.get("s1", broker.TOPIC, broker.last_id, again, broker.sessions["s1"])
    return [("duplicate_delivered", 1), ("reordered", 1)]


@plant
def seen_differently(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    """The same id is one publication for s1 and another, of unknown outcome, for s2."""
    for counter in (1, 2):
        broker.run.put("p3", broker.TOPIC, counter, "info", error="timeout")
    for client_id in broker.cursors:
        broker.answer(client_id, 500)
    broker.stored.append(("p3", 1))
    broker.answer("s1", 1)
    broker.stored[-1] = ("p3", 2)
    broker.answer("s2", 1)
    return [("inconsistent_id", 1)]


@plant
def skipped(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    """s1's cursor jumps over three publications of unknown outcome, which s2 is given."""
    broker.answer("s1", 500)
    broker.run.put("p3", broker.TOPIC, 1, "info", 3, error="timeout")
    broker.store("p3", 1, 3)
    broker.cursors["s1"] += 3
    broker.run.put("p3", broker.TOPIC, 4, "info", error="timeout")
    broker.store("p3", 4, 1)
    return [("gap", 1), ("lost", 3)]


@plant
def given_before_it_was_sent(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.answer("s1", 500)
    id_ = broker.store("p3", 1, 1)
    broker.answer("s1", 1)
    broker.run.put("p3", broker.TOPIC, 1, "ok", first_id=id_, last_id=id_)
    return [("future_read", 1), ("realtime_order", 1)]


@plant
def torn_by_another_one(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.run.put("p3", broker.TOPIC, 1, "info", 2, error="timeout")
    broker.run.put("p4", broker.TOPIC, 1, "info", error="timeout")
    broker.stored += [("p3", 1), ("p4", 1), ("p3", 2)]
    return [("torn_batch", 1)]


@plant
def stored_by_half(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    """The other half is lost to both subscribers, without a place."""
    broker.run.put("p3", broker.TOPIC, 1, "info", 2, error="timeout")
    broker.stored.append(("p3", 2))
    return [("torn_batch", 1), ("lost", 2)]


@plant
def forgotten(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    last_id = broker.last_id
    begun = {"resumed": False, "cursor": last_id}
    broker.answer("s1", 500)
    broker.run.sub("s1", broker.TOPIC, last_id, broker.sessions["s1"], **begun)
    return [("subscription", 1)]


@plant
def answered_by_a_leader_of_long_ago(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    deposed = broker.leader
    broker.term += 1
    broker.answer("s1", 1)
    id_ = broker.store("p3", 1, 1)
    broker.run.put("p3", broker.TOPIC, 1, "ok", first_id=id_, last_id=id_, **deposed)
    return [("term_order", 1)]


@plant
def stored_out_of_order(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.run.put("p3", broker.TOPIC, 1, "info", error="timeout")
    broker.run.put("p3", broker.TOPIC, 2, "info", session=1, error="timeout")
    broker.stored += [("p3", 2), ("p3", 1)]
    return [("reordered", 1)]


@plant
def invented(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.stored.append(("p3", 1))
    return [("phantom", 1)]


@plant
def stored_though_refused(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.run.put("p3", broker.TOPIC, 1, "fail", 2, error="electing")
    broker.store("p3", 1, 2)
    return [("aborted_read", 2)]


@plant
def damaged(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.answer("s1", 500)
    broker.run.put("p3", broker.TOPIC, 1, "info", error="timeout")
    broker.store("p3", 1, 1)
    bad = [[broker.last_id, "checksum"]]
    asked = broker.cursors["s1"]
    broker.run.get("s1", broker.TOPIC, asked, [], broker.sessions["s1"], corrupt=bad)
    broker.cursors["s1"] += 1
    return [("corrupt", 1)]


@plant
def stored_below_what_was_acknowledged_before(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    first_id = broker.last_id + 1
    for producer, id_ in (("p3", first_id + 1), ("p4", first_id)):
        broker.run.put(producer, broker.TOPIC, 1, "ok", first_id=id_, last_id=id_)
    broker.stored += [("p4", 1), ("p3", 1)]
    return [("realtime_order", 1)]


@plant
def told_that_there_is_nothing(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.answer("s1", 500)
    id_ = broker.store("p3", 1, 1)
    broker.run.put("p3", broker.TOPIC, 1, "ok", first_id=id_, last_id=id_)
    broker.answer("s1", 0)
    return [("stale_read", 1)]


@plant
def resumed_behind_its_cursor(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    for count in (500, 0):
        broker.answer("s1", count)
    broker.resume("s1", broker.told["s1"] - 3)
    return [("cursor_regression", 1)]


@plant
def went_on_behind_its_successor(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    for counter, epoch, process in ((1, 2, "twin"), (2, 1, "p3")):
        id_ = broker.store("p3", counter, 1)
        fields = {"first_id": id_, "last_id": id_, "epoch": epoch, "process": process}
        broker.run.put("p3", broker.TOPIC, counter, "ok", **fields)
    return [("fencing", 1)]


@plant
def answered_by_a_second_leader(broker: CorrectBroker) -> Iterable[tuple[str, int]]:
    broker.answer("s1", 1)
    id_ = broker.store("p3", 1, 1)
    second = {"node": "n9", "term": broker.term}
    broker.run.put("p3", broker.TOPIC, 1, "ok", first_id=id_, last_id=id_, **second)
    return [("leaders_per_term", 1)]


def planted(name: str, seed: int) -> tuple[CorrectBroker, dict[str, int]]:
    broker = CorrectBroker(random.Random(seed), f"{name}-{seed}", 400)
    broker.work()
    expected = dict(PLANTS[name](broker))
    broker.drain()
    return broker, expected


@pytest.fixture(scope="module")
def found(find: Find) -> Found:
    rows = [row for seed in SEEDS for row in clean_run(seed, run_id=f"clean-{seed}")]
    rows += [row for seed in SEEDS for name in PLANTS for row in planted(name, seed)[0].run.rows]
    return find(rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PLANTS)
def test_planted_violation_is_found_and_nothing_else(name: str, seed: int, found: Found) -> None:
    _, expected = planted(name, seed)
    actual = found[f"{name}-{seed}"]
    assert {check: len(rows) for check, rows in actual.items() if rows} == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_clean_run_raises_no_alarm(seed: int, found: Found) -> None:
    assert not any(found.get(f"clean-{seed}", {}).values())
