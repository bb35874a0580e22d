"""Claims about what the simulator sees of a client library that remembers what is not so."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson

from chaos.simulation.checks import clients_upkeep
from chaos.simulation.checks.clients_upkeep import ClientsUpkeep
from chaos.simulation.checks.message_rules import MessageRules
from flotilla_client import Overloaded
from flotilla_client.protocol import pack
from flotilla_client.state import State
from flotilla_client.window import Queue


def test_a_state_that_remembers_what_its_database_does_not_is_seen(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.raise_cursor("t", 3)
    assert [*clients_upkeep._out_of_date(state)] == []
    known = state._known
    assert known is not None
    for name, wrong in (("epoch", 9), ("outbox_bytes", 1), ("cursors", {"t": 4})):
        right = getattr(known, name)
        setattr(known, name, wrong)
        assert len([*clients_upkeep._out_of_date(state)]) == 1, name
        setattr(known, name, right)
    state.close()
    assert [*clients_upkeep._out_of_date(state)] == []


def test_what_is_refused_for_certain_and_stands_in_the_outbox_is_seen(tmp_path: Path) -> None:
    state, failures = State(tmp_path), list[str]()
    process = cast("Any", SimpleNamespace(name="c", session=SimpleNamespace(state=state)))
    [entry] = state.enqueue("t", [pack([b"one", b"two"])])
    watch = ClientsUpkeep(failures.append)
    watch.refused(process, "t", b"three")
    assert failures == []
    watch.refused(process, "t", b"two")
    assert len(failures) == 1
    state.acknowledged(entry)
    watch.refused(process, "t", b"two")
    assert len(failures) == 1
    state.close()


def test_a_producer_that_counts_wrongly_or_sends_what_it_does_not_keep_is_seen(
    tmp_path: Path,
) -> None:
    state, queue = State(tmp_path), Queue(100)
    [entry] = state.enqueue("t", [pack([b"one"])])
    batch = SimpleNamespace(entry=entry, parcel=None)
    operations = SimpleNamespace(state=state)
    pipeline = SimpleNamespace(_window=deque([batch]), _operations=operations, topic="t")
    pipe = cast("Any", SimpleNamespace(name="c+t", _queue=queue, _pipeline=pipeline))
    queue.put(b"two", lambda: 0.0)
    assert [*clients_upkeep._miscounted(pipe)] == []
    queue.size_bytes -= 1
    queue.answered += 1
    assert len([*clients_upkeep._miscounted(pipe)]) == 2
    queue.size_bytes += 1
    queue.answered -= 1
    state.acknowledged(entry)
    assert len([*clients_upkeep._miscounted(pipe)]) == 1
    state.close()


def test_an_exchange_that_is_surer_than_its_attempts_is_seen() -> None:
    failures: list[str] = []
    net = SimpleNamespace(taps=[], doubled=0)
    world = SimpleNamespace(net=net, reply_taps=[], observers=[])
    invariants = SimpleNamespace(fail=lambda check, text: failures.append(check))
    rules = MessageRules(cast("Any", world), cast("Any", invariants))

    def refused(request_id: str, definite: bool) -> None:
        body = {"error": "overloaded", "definite": definite}
        rules._replied("a", "c", [orjson.dumps(_nak(request_id, body))])

    for attempt in ("x.1", "x.2"):
        rules.asked(attempt)
        refused(attempt, definite=True)
    rules.failed("x", Overloaded("full", "", definite=True))
    assert failures == []
    rules.asked("y.1")
    rules.asked("y.2")
    refused("y.2", definite=True)
    refused("y.1", definite=False)
    rules.failed("y", Overloaded("full", "", definite=True))
    assert failures == ["definite"]


def _nak(request_id: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"type": "NAK", "request_id": request_id, "body": body}
