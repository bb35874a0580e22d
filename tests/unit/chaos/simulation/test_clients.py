"""Simulated clients: the library's retry machine, operations and state, without a socket."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.simulation.clients.clients import ConnectionOwner, Process, Script, SimClient
from chaos.simulation.clients.crowd import Crowd
from chaos.simulation.clients.pipes import BATCH_BYTES, Pipe
from chaos.simulation.clients.scripts import ClientScript, Role
from chaos.simulation.disks.client_disk import ClientDisk
from chaos.workloads import history
from flotilla_client import FlotillaError, Operation, Outcome
from flotilla_client.pipeline import Pipeline
from flotilla_client.protocol import (
    ACK,
    GET,
    PUT,
    REQUEST_ID,
    SUB,
    Reply,
    Request,
    decode_request,
    encode_reply,
    pack,
)
from flotilla_client.reading import Delivery, Message

NODES = ("a", "b", "c")
RUN_ID = "00000000-0000-0000-0000-000000000001"
TRIP_S = 0.001


class FakeWire:
    """A scheduler, and nodes that answer as told: a broker of one topic is enough.

    `refusing`, `swallowing`: nodes that refuse connections, or can't be reached. `unanswered`:
    types of requests that are carried out in silence. Every node relays to the leader, `a`.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.refusing: set[str] = set()
        self.unanswered: set[str] = set()
        self.swallowing: set[str] = set()
        self.requests: list[tuple[float, str, Request]] = []
        self.epoch = 0
        self.stored: dict[int, tuple[bytes, bytes]] = {}  # counter -> batch
        self.ids: dict[int, int] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._open: set[tuple[str, str]] = set()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._number, action))

    def stream(self, name: str) -> random.Random:
        return random.Random(name)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until

    def client_send(self, caller: ConnectionOwner, node: str, frames: Sequence[bytes]) -> str:
        if node in self.refusing:
            return "refused"
        if node in self.swallowing:
            return "swallowed"
        self._open.add((caller.name, node))
        request = decode_request(frames)
        self.requests.append((self.now, node, request))
        reply = encode_reply(_HANDLERS[request.type](self, request))
        if request.type not in self.unanswered:
            self.after(TRIP_S, lambda: self._deliver(caller, node, reply))
        return "sent"

    def client_close(self, caller: ConnectionOwner, node: str) -> None:
        self._open.discard((caller.name, node))

    def disk(self, directory: Path) -> ClientDisk:
        return ClientDisk(directory)

    def _deliver(self, caller: ConnectionOwner, node: str, reply: list[bytes]) -> None:
        if (caller.name, node) in self._open:
            caller.replied(node, reply)

    def _ack(self, request: Request, **body: Any) -> Reply:
        return Reply(ACK, request.request_id, "a", "a", 1, body)

    def _register(self, request: Request) -> Reply:
        self.epoch += 1
        counters = {"t": max(self.stored)} if self.stored else {}
        cursors = {"subscriptions": {"t": 0}} if request.client_id else {}
        known = {"counters": counters} if request.client_id else {}
        return self._ack(request, client_id="me", epoch=self.epoch, sequence=1, **known, **cursors)

    def _put(self, request: Request) -> Reply:
        counter = request.body["counter"]
        known = counter in self.ids
        self.stored.setdefault(counter, (request.lengths, request.data))
        id_ = self.ids.setdefault(counter, len(self.ids) + 1)
        return self._ack(request, id=id_, count=1, duplicate=known)

    def _get(self, request: Request) -> Reply:
        last_id = request.body["last_id"] or 0
        found = [c for c, id_ in self.ids.items() if id_ == last_id + 1]
        if not found:
            return self._ack(request, count=0)
        reply = self._ack(request, topic="t", id=last_id + 1, count=1)
        reply.lengths, reply.data = self.stored[found[0]]
        return reply


_HANDLERS: dict[str, Callable[[FakeWire, Request], Reply]] = {
    REQUEST_ID: FakeWire._register,
    SUB: lambda wire, request: wire._ack(request, last_id=0, resumed=False),
    PUT: FakeWire._put,
    GET: FakeWire._get,
}


class Ear:
    """A witness that only remembers."""

    def __init__(self) -> None:
        self.lives: list[tuple[str, str]] = []
        self.outcomes: list[tuple[str, Outcome]] = []
        self.errors: list[str] = []
        self.denials: list[tuple[str, str]] = []
        self.handed: list[int] = []
        self.longest_s = 0.0

    def invoked(self, process: Process, operation: Operation) -> None:
        pass

    def completed(self, process: Process, operation: Operation, outcome: Outcome) -> None:
        self.outcomes.append((operation.f, outcome))

    def asked(self, request_id: str) -> None:
        pass

    def failed(self, name: str, error: FlotillaError) -> None:
        pass

    def denied(self, request: Request, reply: Reply) -> None:
        self.denials.append((request.type, str(reply.body["error"])))

    def gave_up(self, process: Process, error: FlotillaError, left_ms: float) -> None:
        pass

    def took(self, process: Process, seconds: float) -> None:
        self.longest_s = max(self.longest_s, seconds)

    def opened(self, process: Process) -> None:
        pass

    def life(self, client: str, what: str) -> None:
        self.lives.append((client, what))

    def refused(self, client: str, error: FlotillaError) -> None:
        self.errors.append(error.code)

    def made(self, process: Process, topic: str, counter: int, publications: Sequence[str]) -> None:
        pass

    def handed_over(self, client: str, delivery: Delivery) -> None:
        self.handed.append(delivery.last_id)


class ClientStage:
    def __init__(self, directory: Path, deadline_ms: int = 15_000) -> None:
        self.wire, self.ear, self.directory = FakeWire(), Ear(), directory
        self.results: list[Any] = []
        self.deadline_ms = deadline_ms

    def client(self, script: Callable[[Process], Script]) -> SimClient:
        place = (NODES, self.directory, RUN_ID, self.deadline_ms)
        make = lambda client, process: script(process)  # noqa: E731
        client = SimClient(self.wire, self.ear, "one", *place, make)
        client.start()
        return client

    def puts(self, process: Process, count: int = 1) -> Script:
        for number in range(count):
            try:
                result = yield from process.put("t", [f"p{number}"])
            except FlotillaError as error:
                self.results.append(error.code)
            else:
                self.results.append(result[0].id)

    def pours(self, process: Process, count: int = 6) -> Script:
        """Publish in the background, a batch each; then send what is left in the outbox."""
        counter = yield process.session.operations.next_counter("t")
        if counter == 1:
            pipe = Pipe(self.wire, process, "t", 3, random.Random(7))
            for number in range(count):
                future = pipe.publish(f"p{number} {'x' * BATCH_BYTES}".encode())
                future.add_done_callback(lambda done: self.results.append(done.result().id))
            while not pipe.is_answered:
                yield 0.1
            pipe.end()
        yield from process.flush()

    def rows(self, process: str = "one") -> list[tuple[str, str]]:
        events = history.read(self.directory / "history" / f"{process}.jsonl")
        return [(event["f"], event["type"]) for event in events]


@pytest.fixture
def stage(tmp_path: Path) -> ClientStage:
    return ClientStage(tmp_path)


def test_a_put_goes_to_the_leader_and_is_recorded_as_any_other(stage: ClientStage) -> None:
    client = stage.client(stage.puts)
    stage.wire.run(1.0)
    assert stage.results == [1]
    assert stage.rows() == [("put", "invoke"), ("put", "ok")]
    assert client.has_ended
    assert client.process is None


def test_a_refused_connection_is_known_at_once_and_a_swallowed_one_after_a_second(
    stage: ClientStage,
) -> None:
    stage.wire.refusing = {"a", "b", "c"}
    stage.client(stage.puts)
    stage.wire.run(0.5)
    stage.wire.refusing, stage.wire.swallowing = set(), {"b", "c"}
    stage.wire.run(5.0)
    assert stage.results == [1]
    assert {node for _, node, _ in stage.wire.requests} == {"a"}


def test_silence_is_an_unknown_outcome_that_stays_in_the_outbox(tmp_path: Path) -> None:
    stage = ClientStage(tmp_path, deadline_ms=1000)
    client = stage.client(lambda process: stage.puts(process, 2))
    stage.wire.unanswered = {PUT}
    stage.wire.run(1.5)
    assert stage.results == ["unavailable"]
    stage.wire.unanswered = set()
    stage.wire.run(15.0)
    assert stage.results[1:] == [2]
    assert stage.rows()[2:4] == [("put", "invoke"), ("put", "ok")]  # the outbox goes first
    assert sorted(stage.wire.stored) == [1, 2]
    assert client.has_ended


@pytest.mark.parametrize("point", ["now", "invoke", "complete"])
def test_a_client_that_crashes_resends_from_its_outbox_exactly_once(
    stage: ClientStage, point: str
) -> None:
    def script(process: Process) -> Script:
        yield process.session.operations.next_counter("t")
        if len(stage.ear.lives) == 1:
            process.observer.crash_at = point
        yield from stage.puts(process, 1)

    client = stage.client(script)
    stage.wire.run(0.0015)
    if point == "now":
        client.crash()
    stage.wire.run(1.0)
    assert stage.ear.lives == [("one", "started"), ("one", "crashed")]
    client.start()
    stage.wire.run(1.0)
    assert stage.ear.lives[2:] == [("one", "started"), ("one", "ended")]
    assert sorted(stage.wire.ids.values()) == list(range(1, len(stage.wire.ids) + 1))
    assert stage.rows()[-1] == ("put", "ok")


def test_what_a_dead_process_waited_for_never_comes(stage: ClientStage) -> None:
    client = stage.client(stage.puts)
    client.crash()
    stage.wire.run(30.0)
    assert stage.results == []
    assert not client.has_ended


def test_a_copy_is_the_client_and_has_its_outbox(stage: ClientStage) -> None:
    def script(process: Process) -> Script:
        yield from stage.puts(process, 3)
        yield 5.0

    client = stage.client(script)
    stage.wire.run(1.0)
    first = client.process
    client.take_over()
    assert client.process is not first
    assert client.process is not None
    assert client.process.session.state.client_id == "me"
    assert client.process.session.state.counter("t") == 3
    stage.wire.run(1.0)
    assert first is not None
    assert first.is_alive
    stage.wire.run(10.0)
    assert client.has_ended
    assert stage.rows("one-copy-1")[:2] == [("put", "invoke"), ("put", "ok")]


def test_ids_and_nonces_come_from_the_seed(tmp_path: Path) -> None:
    seen = []
    for number in (1, 2):
        stage = ClientStage(tmp_path / str(number))
        client = stage.client(stage.puts)
        stage.wire.run(1.0)
        client.has_ended = False
        client.start()
        stage.wire.run(1.0)
        seen.append([(r.request_id, r.body.get("nonce")) for _, _, r in stage.wire.requests])
    assert seen[0] == seen[1]
    assert any(nonce for _, nonce in seen[0])


def test_a_late_reply_is_no_answer_to_a_later_question(stage: ClientStage) -> None:
    client = stage.client(stage.puts)
    assert client.process is not None
    stray = Reply(ACK, "someone-1.1", "a", "a", 1, {"id": 77, "count": 1})
    client.process.replied("a", encode_reply(stray))
    client.process.replied("b", encode_reply(stray))
    stage.wire.run(1.0)
    assert stage.results == [1]


def test_the_crowd_heals_drains_and_comes_to_its_end(tmp_path: Path) -> None:
    stage = ClientStage(tmp_path)
    roles = [Role(topics=("t",), puts=1.0, gets=1.0, get_wait_ms=0)]
    crowd = Crowd(stage.wire, stage.ear, NODES, roles, 2.0, tmp_path, RUN_ID, 5_000)
    crowd.start()
    stage.wire.run(1.0)
    crowd.clients["client-1"].crash()
    assert crowd.lagging() == ["client-1"]
    stage.wire.run(20.0)
    assert crowd.is_done
    assert [*dict.fromkeys(stage.ear.handed)] == list(range(1, max(stage.ear.handed) + 1))
    assert len(stage.ear.handed) <= max(stage.ear.handed) + 1, "one was in hand at the crash"
    phases = [e["phase"] for e in history.read(tmp_path / "history" / "runner.jsonl")]
    assert [p for p in dict.fromkeys(phases)] == ["steady", "heal", "tombstone", "drain", "done"]
    drained = [
        e for e in history.read(tmp_path / "history" / "client-1.jsonl") if e["f"] == "phase"
    ]
    assert [(e["phase"], e["topic"]) for e in drained] == [("drained", "t")]


def test_nobody_is_slow_in_the_end_where_others_may_wait_for_room(stage: ClientStage) -> None:
    """A full topic takes more as fast as it is read: a pause for each look let 10 by in 7 s."""
    course = SimpleNamespace(is_publishing=False, tombstones=None, flushed=lambda *of: None)
    role = Role(topics=("t",), gets=1.0, pause_s=60.0, get_wait_ms=0)

    def script(process: Process) -> Script:
        rng = random.Random(7)
        return ClientScript("one", role, process, cast(Any, course), rng, stage.wire).run()

    client = stage.client(script)
    stage.wire.run(10.0)
    client.crash()
    assert sum(request.type == GET for _, _, request in stage.wire.requests) > 10


@pytest.mark.parametrize("is_publishing", [True, False])
def test_a_loop_is_left_early_but_in_the_end(stage: ClientStage, is_publishing: bool) -> None:
    """What was fetched is fetched again: a quota let 100 come in 3 s, of which it kept three."""
    role, taken = Role(topics=("t",), gets=1.0, is_manual=True), list[int]()
    course = SimpleNamespace(is_publishing=is_publishing, handed_over=lambda *of: None)

    def loop(topic: str, wait_ms: int, ack: str, take: Callable[[Message], str]) -> Script:
        while len(taken) < 100 and not take(Message(topic, len(taken) + 1, b"")):
            taken.append(len(taken) + 1)
        yield 0.0

    def script(process: Process) -> Script:
        rng = random.Random(7)
        process.loop = loop  # type: ignore[assignment,method-assign]
        reads = ClientScript("one", role, process, cast(Any, course), rng, stage.wire)
        reads._acknowledge = lambda topic, last_id: None  # type: ignore[method-assign]
        yield from reads._loop("t")

    stage.client(script)
    stage.wire.run(1.0)
    assert len(taken) < 6 if is_publishing else len(taken) == 100


def test_pack_of_the_fake_is_what_clients_send(stage: ClientStage) -> None:
    stage.client(stage.puts)
    stage.wire.run(1.0)
    assert stage.wire.stored[1] == pack([b"p0"])


def test_a_producer_that_hears_neither_an_answer_nor_an_error_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = ClientStage(tmp_path, deadline_ms=1000)
    stage.client(stage.pours)
    stage.wire.run(1.0)
    assert stage.ear.longest_s < 1.0
    stage = ClientStage(tmp_path / "another", deadline_ms=1000)
    stage.wire.unanswered = {PUT}
    monkeypatch.setattr(Pipeline, "_give_up", lambda pipeline, error: pipeline._begin())
    client = stage.client(stage.pours)
    stage.wire.run(8.0)
    client.crash("now")
    assert stage.ear.longest_s > 5.0


def test_a_background_producer_has_several_batches_in_flight_in_order(stage: ClientStage) -> None:
    client = stage.client(stage.pours)
    stage.wire.run(5.0)
    puts = [(at_s, r.body["counter"]) for at_s, _, r in stage.wire.requests if r.type == PUT]
    assert [counter for _, counter in puts] == [1, 2, 3, 4, 5, 6]
    assert puts[1][0] == puts[2][0] == puts[3][0]
    assert stage.results == [1, 2, 3, 4, 5, 6]
    assert client.has_ended


def test_a_background_producer_finds_another_node_and_sends_its_window_again(
    stage: ClientStage,
) -> None:
    stage.client(stage.pours)
    stage.wire.run(TRIP_S * 1.5)
    stage.wire.unanswered = {PUT}
    stage.wire.run(1.0)
    stage.wire.unanswered = set()
    stage.wire.run(10.0)
    assert stage.results == [1, 2, 3, 4, 5, 6]
    assert len({node for _, node, r in stage.wire.requests if r.type == PUT}) > 1


def test_a_crash_ends_a_background_producer_and_the_next_life_sends_the_rest(
    stage: ClientStage,
) -> None:
    client = stage.client(stage.pours)
    stage.wire.run(TRIP_S * 1.5)
    client.crash("complete")
    stage.wire.run(1.0)
    assert client.process is None
    kept = len(stage.results)
    client.start()
    stage.wire.run(5.0)
    assert client.has_ended
    assert len(stage.results) == kept
    assert sorted(stage.wire.ids) == list(range(1, len(stage.wire.ids) + 1))
    assert len(stage.wire.ids) > 1
