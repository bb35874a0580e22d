"""A fake broker for the client's tests: one node, in memory, on a real ROUTER socket in a thread.

What lives here: the wire protocol's rules that a client can notice (counters, duplicates, epochs,
sequences, cursors), and a script for misbehaving: `node.script(...)` says what happens to the next
requests of a type. What must not: Raft, disks, anything that a real node is tested for.

Faults, one a request, in order: a NAK ("nak", code, details), "silent" (carried out, no reply),
"deaf" (not carried out, no reply), "late" (the reply is sent after the next request's), "twice"
(two replies), "garbage" (bytes that are no reply).
"""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from flotilla_client import Client, protocol
from flotilla_client.protocol import ACK, NAK, ProtocolError, Reply, Request

Fault = str | tuple[str, str, dict[str, Any]]
TIMEOUT_S = 3.0  # an attempt is a third of it: tests of silence last that long
IMPATIENT_S = 0.3
POLL_MS = 20  # how often parked GETs and stop() are looked at


def nak(code: str, **details: Any) -> Fault:
    """Return the fault that answers NAK without carrying the request out."""
    return ("nak", code, details)


def client_of(node: FakeNode, state_dir: Path | None = None, **more: Any) -> Client:
    """Return a client of the node, with a state of its own, and TIMEOUT_S if not told."""
    state_dir = state_dir or node.new_directory()
    return Client(node.endpoint, state_dir=state_dir, **({"timeout": TIMEOUT_S} | more))


@contextmanager
def impatient(client: Client, timeout_s: float = IMPATIENT_S) -> Iterator[None]:
    """Give the client's calls a short deadline, for those that nobody answers.

    What has to succeed keeps its deadline: a busy machine takes its time.
    """
    session = client._session
    patient_ms, session.deadline_ms = session.deadline_ms, 1000 * timeout_s
    try:
        yield
    finally:
        session.deadline_ms = patient_ms


def texts_of(client: Client, topic: str | None = None) -> list[bytes]:
    """Return the publications that there are now for the client."""
    return [message.publication for message in client.messages(topic, idle=0)]


@dataclass
class KnownClient:
    """What the broker knows of a client."""

    epoch: int = 1
    sequence: int = 0
    nonce: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    ids: dict[tuple[str, int], int] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)


class FakeCluster:
    """The state behind one or several fake nodes (they share it, as if replicated at once)."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clients: dict[str, KnownClient] = {}
        self.topics: dict[str, list[bytes]] = defaultdict(list)
        self.leader = ""
        self.level = 1
        self.recovery = ""
        self.ends: dict[str, int] = {}  # of the topics that were put back
        self.settled: dict[str, int] = {}  # by the last recovery
        self.full: set[str] = set()  # topics
        self.forgets = False  # clients that are silent for long
        self.refused = b""  # a PUT with that in it is a bad request
        self.leased: dict[tuple[str, str], int] = defaultdict(int)  # up to which id, by group

    def carry_out(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        """Return (body, lengths, data) of the ACK. Raises ProtocolError."""
        with self.lock:
            return getattr(self, f"_{request.type.lower()}")(request)

    def _client(self, request: Request) -> KnownClient:
        client = self.clients.get(request.client_id)
        if client is None:
            code = "forgotten" if self.forgets else "unknown_client"
            raise ProtocolError(code, f"unknown client {request.client_id}")
        if request.epoch is not None and request.epoch < client.epoch:
            raise ProtocolError("fenced", "a newer process", epoch=client.epoch)
        return client

    def _check_sequence(self, client: KnownClient, request: Request) -> None:
        sequence = request.body["sequence"]
        if sequence is None:
            return
        nonce = request.body.get("nonce", "")
        is_retry = sequence == client.sequence and nonce == client.nonce
        if sequence <= client.sequence and not is_retry:
            raise ProtocolError("stale_request", "stale", expected=client.sequence + 1)
        client.sequence, client.nonce = sequence, nonce

    def _upgrade(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        before, self.level = self.level, request.body["level"] or 2
        if self.level > 2:
            self.level = before
            raise ProtocolError("not_upgraded", "n2 runs version 0.2", level=before)
        return {"level": self.level, "before": before}, b"", b""

    def _request_id(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        client_id = request.client_id
        is_new = "create" in request.body and client_id not in self.clients
        if is_new:
            named = KnownClient(0, 0)
            self.clients[client_id] = named
        if not client_id:
            client_id = str(uuid.uuid4())
            self.clients[client_id] = KnownClient()
        client = self._client(request) if request.client_id else self.clients[client_id]
        if request.client_id:
            before = client.sequence
            self._check_sequence(client, request)
            client.epoch += client.sequence != before
        body = {"client_id": client_id, "epoch": client.epoch, "sequence": client.sequence}
        is_told = request.body.get("recovery") in (None, self.recovery)
        body |= {"recovery": self.recovery}
        body |= {"ends": self.ends} if is_told else {"settled": self.settled}
        return body | {"counters": client.counters, "subscriptions": client.cursors}, b"", b""

    def _sub(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        client = self._client(request)
        self._check_sequence(client, request)
        resumed = request.topic in client.cursors
        last_id = client.cursors.setdefault(request.topic, len(self.topics[request.topic]))
        return {"last_id": last_id, "resumed": resumed}, b"", b""

    def _unsub(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        client = self._client(request)
        self._check_sequence(client, request)
        return {"was_subscribed": client.cursors.pop(request.topic, None) is not None}, b"", b""

    def _put(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        client, topic = self._client(request), request.topic
        if topic in self.full:
            raise ProtocolError("backlog_full", f"{topic} is full", limit=1)
        if self.refused and self.refused in request.data:
            raise ProtocolError("bad_request", "refused")
        counter, count = request.body["counter"], request.body["count"]
        last = client.counters.get(topic)
        if last is not None and counter <= last:
            id_ = client.ids.get((topic, counter))
            body = {"id": id_ or 0, "count": count, "duplicate": True}
            return body | {"stored": None if id_ is None else id_ > 0}, b"", b""
        if last is not None and counter > last + 1:
            raise ProtocolError("counter_gap", "a gap", expected=last + 1)
        client.counters[topic] = counter + count - 1
        id_ = 0
        if any(topic in other.cursors for other in self.clients.values()):
            id_ = len(self.topics[topic]) + 1
            self.topics[topic] += protocol.unpack(request.lengths, request.data)
        client.ids[topic, counter] = id_
        return {"id": id_, "count": count, "duplicate": False, "stored": id_ > 0}, b"", b""

    def _get(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        client, body = self._client(request), request.body
        if request.topic and request.topic not in client.cursors:
            raise ProtocolError("not_subscribed", f"no subscription to {request.topic}")
        known = {request.topic: body.get("last_id")} if request.topic else body["last_ids"]
        for topic, last_id in known.items():
            if topic in client.cursors and last_id is not None:
                client.cursors[topic] = max(client.cursors[topic], last_id)
        for topic in [request.topic] if request.topic else sorted(client.cursors):
            after = known.get(topic)
            start = client.cursors[topic] if after is None else after
            news = self.topics[topic][start : start + body["max_count"]]
            if news:
                lengths, data = protocol.pack(news)
                return {"topic": topic, "id": start + 1, "count": len(news)}, lengths, data
        return {"topic": request.topic, "id": 0, "count": 0}, b"", b""

    def _take(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        """Lease what was not leased before, for a minute; nothing is given twice."""
        self._client(request)
        topic, count = request.topic, request.body["max_count"]
        start = self.leased[topic, request.body["group"]]
        news = self.topics[topic][start : start + count]
        self.leased[topic, request.body["group"]] += len(news)
        body: dict[str, Any] = {"token": 1, "left_ms": 60_000, "lease_ms": 60_000, "lost": []}
        body["leases"] = [[start + 1, len(news), 1]] if news else []
        body["timestamps"] = [[len(news), None]] if news else []
        return body, *protocol.pack(news)

    def _read(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        body = request.body
        start = body["from_id"] - 1
        news = self.topics[request.topic][start : start + body["max_count"]]
        answer = {"topic": request.topic, "id": start + 1 if news else 0, "count": len(news)}
        return answer, *protocol.pack(news)

    def _topics(self, request: Request) -> tuple[dict[str, Any], bytes, bytes]:
        if request.client_id:
            self._client(request)
        if request.body["all"]:
            return {"topics": [self._any_row(topic) for topic in sorted(self.topics)]}, b"", b""
        client, rows = self._client(request), []
        for topic, cursor in sorted(client.cursors.items()):
            last_id = len(self.topics[topic])
            row = {"topic": topic, "last_id": last_id, "cursor": cursor}
            rows.append(row | {"backlog": last_id - cursor})
        return {"topics": rows}, b"", b""

    def _any_row(self, topic: str) -> dict[str, Any]:
        subscribers = sum(topic in client.cursors for client in self.clients.values())
        size_bytes = sum(map(len, self.topics[topic]))
        row = {"topic": topic, "last_id": len(self.topics[topic]), "subscribers": subscribers}
        return row | {"backlog_bytes": size_bytes}


class FakeNode:
    """One node of a fake cluster; `with FakeNode() as node: Client(node.endpoint)`."""

    def __init__(self, name: str = "a", cluster: FakeCluster | None = None) -> None:
        self.name = name
        self.cluster = cluster or FakeCluster()
        self.cluster.leader = self.cluster.leader or name
        self.about: dict[str, Any] = {}  # what STATUS says besides
        self.requests: list[Request] = []
        self.seen = threading.Condition()
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._always: dict[str, Fault] = {}
        self._held: list[list[bytes]] = []
        self._parked: list[tuple[bytes, Request, float]] = []
        self._stop = threading.Event()
        self._directories = tempfile.TemporaryDirectory(prefix="flotilla-test-")
        self._router = zmq.Context.instance().socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"127.0.0.1:{port}"
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the socket: connections to this node break."""
        self._stop.set()
        self._thread.join()
        self._directories.cleanup()

    def new_directory(self) -> Path:
        """Return a state directory for a client, gone with the node."""
        return Path(self._directories.name) / str(uuid.uuid4())

    def script(self, kind: str, *faults: Fault) -> None:
        """Let the next requests of a type meet these faults, in order."""
        self._faults[kind].extend(faults)

    def always(self, kind: str, fault: Fault | None) -> None:
        """Let every request of a type meet a fault (after the script), or none any more."""
        self._always.pop(kind, None)
        if fault is not None:
            self._always[kind] = fault

    def of_type(self, kind: str) -> list[Request]:
        """Return the requests of a type that came."""
        with self.seen:
            return [request for request in self.requests if request.type == kind]

    def await_requests(self, kind: str, count: int, timeout_s: float = 10) -> list[Request]:
        """Wait until so many requests of a type have come; return them."""
        with self.seen:
            assert self.seen.wait_for(lambda: len(self.of_type(kind)) >= count, timeout_s), (
                f"{len(self.of_type(kind))} of {count} {kind}"
            )
            return self.of_type(kind)

    # --- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.is_set():
            if self._router.poll(POLL_MS):
                sender, _, *frames = self._router.recv_multipart()
                self._receive(sender, frames)
            self._serve_parked()
        self._router.close(linger=0)

    def _receive(self, sender: bytes, frames: list[bytes]) -> None:
        request = protocol.decode_request(frames)
        with self.seen:
            self.requests.append(request)
            self.seen.notify_all()
        script = self._faults[request.type]
        fault = script.popleft() if script else self._always.get(request.type)
        if fault == "deaf":
            return
        if isinstance(fault, tuple):
            _, code, details = fault
            body = protocol.nak_body(code, f"scripted {code}", **details)
            self._send(sender, self._reply(NAK, request, body))
            return
        if request.type == protocol.GET and request.body["wait_ms"] and fault is None:
            self._parked.append((sender, request, _now_ms() + request.body["wait_ms"]))
            return
        self._answer(sender, request, fault)

    def _answer(self, sender: bytes, request: Request, fault: Fault | None) -> None:
        reply = self._carry_out(request)
        if fault == "silent":
            return
        if fault == "late":
            self._held.append([sender, b"", *protocol.encode_reply(reply)])
            return
        if fault == "garbage":
            self._router.send_multipart([sender, b"", b"{not json"])
            return
        for _ in range(2 if fault == "twice" else 1):
            self._send(sender, reply)
        for held in self._held:
            self._router.send_multipart(held)
        self._held.clear()

    def _carry_out(self, request: Request) -> Reply:
        if request.type == protocol.STATUS:
            own = {"node": self.name, "role": self._role(), "term": 1}
            return self._reply(ACK, request, own | self.about)
        try:
            body, lengths, data = self.cluster.carry_out(request)
        except ProtocolError as error:
            body = protocol.nak_body(error.code, error.message, **error.details)
            return self._reply(NAK, request, body)
        return self._reply(ACK, request, body, lengths, data)

    def _role(self) -> str:
        return "leader" if self.cluster.leader == self.name else "follower"

    def _serve_parked(self) -> None:
        parked, self._parked = self._parked, []
        for sender, request, until_ms in parked:
            reply = self._carry_out(request)
            if reply.body.get("count") == 0 and _now_ms() < until_ms:
                self._parked.append((sender, request, until_ms))
            else:
                self._send(sender, reply)

    def _reply(
        self,
        kind: str,
        request: Request,
        body: dict[str, Any],
        lengths: bytes = b"",
        data: bytes = b"",
    ) -> Reply:
        leader = self.cluster.leader
        return Reply(kind, request.request_id, self.name, leader, 1, body, lengths, data)

    def _send(self, sender: bytes, reply: Reply) -> None:
        self._router.send_multipart([sender, b"", *protocol.encode_reply(reply)])


def _now_ms() -> float:
    return time.monotonic() * 1000
