"""Every reply held against the request that it answers, and against what the log says.

What lives here: who asked what by which way, what became of it in the log, and the claims that
follow: a reply answers a request that came by its way, once; it says what the log says at some
index since; an entry holds only what somebody asked for; what is refused for certain is never
carried out, nor was before; nobody waits long for what is there. What must not: how the state comes
about (reference.py), Raft's own messages (raft_rules.py).

A reply is judged where it is made, at the end of that turn: at the leader, also one that goes back
by way of another node.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import unpack
from typing import Any, Final
from zlib import crc32

import orjson

from chaos.simulation.checks.calm import CALM_S, Calm
from chaos.simulation.checks.headers import header_of
from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.checks.reference import (
    Reference,
    ReferenceTopic,
    Result,
    described,
    has_delay,
    lane_in,
)
from chaos.simulation.clients.replayer import TELL_OF_GONE
from chaos.simulation.plan.limits import value_of
from chaos.simulation.world.network import member_of
from chaos.simulation.world.node import SimNode, principal_of
from chaos.simulation.world.world import World
from cluster.serve import broker
from cluster.store import commands
from cluster.store.acts import PAGE_ACTS
from cluster.store.commands import (
    Administration,
    Advance,
    ChangeUser,
    Checkpoint,
    ClientOperation,
    DeleteTopic,
    DropClient,
    DropSubscription,
    EndGroup,
    Forget,
    MakeGroup,
    OfPatterns,
    Operation,
    Purge,
    Put,
    Register,
    Seek,
    SeekGroup,
    SetTopic,
    Stamp,
    Subscribe,
    SubscribePattern,
    Take,
    TransferLeader,
    Unsubscribe,
    UnsubscribePattern,
)
from cluster.store.store import Store
from cluster.wire.messages import Message, Relay, RelayReply
from flotilla_client.properties import Properties
from flotilla_client.properties import decode as decode_properties
from flotilla_client.properties import encode as encode_properties
from flotilla_client.protocol import (
    ACK,
    ADMIN,
    AUDIT,
    CLIENTS,
    GET,
    GET_WAIT_MS_MAX,
    GROUPS,
    HAS_PROPERTIES,
    INSPECT,
    PATTERNS,
    PUT,
    READ,
    REQUEST_ID,
    SEEK,
    STATUS,
    SUB,
    SUBSCRIPTIONS,
    TAKE,
    TOPIC,
    TOPICS,
    UNSUB,
    UPGRADE,
    USERS,
)

Key = tuple[Any, ...]  # what an operation is known by, in a request as in the log
WAIT_S_MAX: Final = 0.5  # from a commit to the answer of who waits for it, when nothing is broken
ANSWER_S_MAX: Final = 1.0  # from a request to its reply, when nothing is broken, but for its wait
LOOK_S: Final = 0.25  # between looks at what is not answered
CLOCK_MS: Final = 1.0  # a deadline is a number of milliseconds, a turn's time one of seconds
NOTED_MS_MAX: Final = 1_500  # by the log's time: until a leader has put into the log who has read
SERVED_MS_MAX: Final = 300  # the same: of a read that was answered as soon as it came
ASKED_AT_MOST: Final = 2_000  # indexes that an answer is looked for at
# Refused before anything is looked up: what they say of the node is judged apart.
OF_THE_NODE: Final = frozenset({"not_leader", "electing", "uncertain", "shutting_down"})
OF_A_LIMIT: Final = frozenset({"overloaded", "quota", "backlog_full", "disk_full"})
READS: Final = frozenset({GET, READ, TAKE, TOPICS, INSPECT})
CONTROLS: Final = {SUB: Subscribe, UNSUB: Unsubscribe, SEEK: Seek}


@dataclass(slots=True, eq=False)
class Asked:
    """A request at a node. `low`: what the node had applied when it came.

    `principal`: whose key the client has; None: nobody has one.
    """

    node: str
    header: dict[str, Any]
    lengths: bytes
    data_crc: int
    data_bytes: int
    keys: tuple[Key, ...]
    low: int
    came_s: float
    clock_s: float
    principal: str | None = None
    log_ms: int = 0  # the log's time when it came
    number: int = 0  # among all that came from clients
    relay: tuple[str, int] | None = None
    relayed_reply: Sequence[bytes] | None = None
    is_delayed: bool = False  # a PUT: what it brings has a delay

    @property
    def kind(self) -> str:
        return str(self.header.get("type"))

    @property
    def topic(self) -> str:
        return str(self.header.get("topic") or "")

    @property
    def client_id(self) -> str:
        return str(self.header.get("client_id") or "")

    @property
    def body(self) -> dict[str, Any]:
        return self.header.get("body") or {}

    @property
    def what(self) -> str:
        return f"{self.kind} {self.header.get('request_id')} for {self.topic!r} at {self.node}"


class Replies:
    """Watches requests, replies and entries; tells `invariants` of what can't be true.

    `why_not_served(node, since_s, applied_index)`: see `RaftRules.served`.
    """

    def __init__(
        self,
        world: World,
        invariants: Invariants,
        reference: Reference,
        calm: Calm,
        why_not_served: Callable[[SimNode, float, int], str],
    ) -> None:
        self._world, self._invariants, self._reference = world, invariants, reference
        self._calm, self._next_look_s = calm, 0.0
        self._why_not_served = why_not_served
        # By node, then by way and request id: what is not answered yet.
        self._open: dict[str, dict[tuple[str, str], deque[Asked]]] = defaultdict(dict)
        # By leader's machine, then by (who passed it on, relay id).
        self._passed_on: dict[str, dict[tuple[str, int], Asked]] = defaultdict(dict)
        self._by_relay: dict[tuple[str, int], Asked] = {}  # (follower, relay id)
        self._pending: list[tuple[str, Asked, Sequence[bytes]]] = []
        self._came: Counter[Key] = Counter()
        self._contents: dict[Key, set[int]] = defaultdict(set)
        self._askers: dict[Key, set[str | None]] = defaultdict(set)
        self._denied: Counter[Key] = Counter()
        self._carried_out: Counter[Key] = Counter()
        self._numbers = 0
        # Of what was carried out for the first time: how many requests had come for it by then,
        # the number of the last one, and how many of these were refused for certain.
        self._firsts: dict[Key, tuple[int, int]] = {}
        self._first_denied: Counter[Key] = Counter()
        self._results: dict[Key, list[tuple[int, Result]]] = defaultdict(list)
        self.applied_s: dict[int, float] = {}  # when each entry was first applied anywhere
        self._idle_ms = int(world.knob("client_idle_ms"))
        self._reads: dict[str, list[tuple[int, int]]] = defaultdict(list)  # term, the log's time
        self.waited_s: list[float] = []
        # Of GETs of any topic, by the process that gives and the client: of each topic which answer
        # brought it last, and behind which entry.
        self._rounds: dict[tuple[str, int, Store, str], dict[str, tuple[int, int, float]]] = {}
        self._servings = 0
        world.request_taps.append(self._came_in)
        world.reply_taps.append(self._replied)
        world.net.taps.append(self._delivered)
        world.net.send_taps.append(self._sent)
        world.observers.append(self._observe)
        world.watchers.append(self._turned)
        invariants.on_entry.append(self._applied)

    # --- requests ---------------------------------------------------------------------------------

    def _came_in(self, node: SimNode, route: str, frames: Sequence[bytes]) -> None:
        principal = principal_of(route.encode()) if self._world.knob("keys") else None
        asked = self._take(node, frames, principal)
        self._numbers += 1
        asked.number = self._numbers
        key = (route, str(asked.header.get("request_id", "")))
        self._open[node.name].setdefault(key, deque()).append(asked)
        for each in asked.keys:
            self._came[each] += 1
            self._contents[each].add(asked.data_crc)
            self._askers[each].add(principal)

    def _take(self, node: SimNode, frames: Sequence[bytes], principal: str | None) -> Asked:
        header = orjson.loads(frames[0])
        lengths, data = (frames[1], frames[2]) if len(frames) == 3 else (b"", b"")
        if "publication" in header["body"]:
            data = header["body"]["publication"].encode()
            lengths = len(data).to_bytes(4, "little")
        member = node.as_member
        low = 0 if member is None else member.store.applied_index
        is_delayed = has_delay(lengths, data)
        keys = tuple(_keys_of(header, len(lengths) // 4, is_delayed))
        now, clock_s = self._world.now, node.clock()
        return Asked(
            node.name,
            header,
            bytes(lengths),
            crc32(data),
            len(data),
            keys,
            low,
            now,
            clock_s,
            principal,
            self._reference.log_ms,
            is_delayed=is_delayed,
        )

    # --- the way over other nodes -----------------------------------------------------------------

    def _sent(self, source: str, target: str, message: Message) -> None:
        if isinstance(message, Relay):
            header = orjson.loads(message.frames[0])
            asked = self._relayed_from(source, header)
            if asked is None:
                self._fail("answered", f"{source} passes on what nobody asks it: {header}")
                return
            if message.principal not in (asked.principal, None):
                text = f"{source} passes on {asked.what} of {asked.principal}"
                self._fail("permission", f"{text} as {message.principal}'s")
            asked.relay = (target, message.relay_id)
            self._by_relay[source, message.relay_id] = asked
        elif isinstance(message, RelayReply) and message.relay_id:
            asked = self._passed_on[source].pop((target, message.relay_id), None)
            if asked is None:
                if not self._world.net.doubled:
                    text = f"{source} answers relay {message.relay_id} of {target}"
                    self._fail("answered", f"{text}, which it has not got, or has answered")
                return
            self._pending.append((source, asked, message.frames))

    def _relayed_from(self, source: str, header: Mapping[str, Any]) -> Asked | None:
        for (_, request_id), waiting in self._open[source].items():
            if request_id == header["request_id"]:
                for asked in waiting:
                    if asked.relay is None and asked.header == header:
                        return asked
        return None

    def _delivered(self, source: str, target: str, message: Message) -> None:
        if isinstance(message, Relay):
            found = self._by_relay.get((source, message.relay_id))
            # Of one that the network has doubled the first may have been answered by now.
            principal = message.principal if found is None else found.principal
            asked = self._take(self._world.machine(target), message.frames, principal)
            # The first, of two that the network has made of one.
            key = member_of(source), message.relay_id
            self._passed_on[target].setdefault(key, asked)
        elif isinstance(message, RelayReply):
            found = self._by_relay.get((target, message.relay_id))
            if found is not None and found.relayed_reply is None:
                found.relayed_reply = message.frames

    # --- replies ----------------------------------------------------------------------------------

    def _replied(self, node: str, route: str, frames: Sequence[bytes]) -> None:
        header = header_of(frames)
        waiting = self._open[node].get((route, header["request_id"]))
        if not waiting:
            text = f"{node} answers {header['request_id']!r} by {route}"
            self._fail("answered", f"{text}: nobody asked that there, or it was answered")
            return
        asked = waiting.popleft()
        if not waiting:
            del self._open[node][route, header["request_id"]]
        body = header["body"]
        if header["type"] != ACK and body.get("definite"):
            self._deny(asked, body)
        if asked.relay is None:
            self._pending.append((node, asked, frames))
            return
        self._by_relay.pop((node, asked.relay[1]), None)
        passed = asked.relayed_reply
        if passed is not None and [*map(bytes, passed)] == [*map(bytes, frames)]:
            return
        if header["type"] == ACK or body.get("error") != "uncertain":
            text = f"{node} answers {asked.what} itself, and had passed it on"
            self._fail("answered", f"{text}: {header['type']} {body}")

    def _deny(self, asked: Asked, body: Mapping[str, Any]) -> None:
        for key in asked.keys:
            self._denied[key] += 1
            if asked.number <= self._firsts.get(key, (0, 0))[1]:
                self._first_denied[key] += 1
            self._check_denied(key, str(body.get("error")))

    def _check_denied(self, key: Key, code: str) -> None:
        if self._world.net.doubled:
            return  # of one request on its way to the leader the network has made two
        left = self._came[key] - self._denied[key]
        first_came = self._firsts.get(key, (0, 0))[0]
        if 0 < first_came <= self._first_denied[key]:
            text = f"{key} is carried out, and all {first_came} requests for it that had come"
            self._fail("definite", f"{text} by then are refused for certain ({code})")
        if self._carried_out[key] > left:
            text = f"{key} is carried out {self._carried_out[key]} times: it came {self._came[key]}"
            denied = self._denied[key]
            self._fail("definite", f"{text} times and was refused for certain {denied} ({code})")

    # --- entries ----------------------------------------------------------------------------------

    def _applied(
        self, index: int, term: int, stamp: Stamp | None, operations: Sequence[Operation]
    ) -> None:
        """Carry the entry out in the reference, and see whether somebody asked for it."""
        if index != self._reference.applied_index + 1:
            return  # of a turn that had no end: what it applied is applied again
        self.applied_s[index] = self._world.now
        results = self._reference.apply(index, operations, term, stamp)
        for operation, result in zip(operations, results, strict=True):
            if result is None:
                continue
            for logged in _keys_in(operation):
                key = self._as_asked(logged, operation)
                self._results[key].append((index, result))
                self._was_asked(index, key, operation)
                # A take that gave nothing may stand in the log again, for one request.
                is_again = key[0] == TAKE and bool(self._carried_out[key])
                if not result[0] and not is_again:
                    self._carried_out[key] += 1
                    if key not in self._firsts:
                        self._firsts[key] = self._came[key], self._numbers
                        self._first_denied[key] = self._denied[key]
                    self._check_denied(key, "before")
            if isinstance(operation, Put) and not result[0]:
                self._within_backlog(operation.topic)
            if isinstance(operation, Forget):
                for client_id in result[1]["forgotten"]:
                    self._was_silent(term, client_id)

    def _as_asked(self, key: Key, operation: Operation) -> Key:
        """Return what the request is known by.

        A PUT by hand that repeats what is stored may stand in the log without its bytes. Then it is
        its client's, of the epoch that this has now.
        """
        if not isinstance(operation, Put) or operation.data or self._came[key]:
            return key
        by_hand = (*key[:2], None, *key[3:])
        return by_hand if self._came[by_hand] else key

    def _was_asked(self, index: int, key: Key, operation: Operation) -> None:
        if not self._came[key]:
            self._fail("asked", f"entry {index} holds {key}, for which nobody asked")
            return
        data = operation.data if isinstance(operation, Put) else b""
        if data and crc32(data) not in self._contents[key]:
            self._fail("asked", f"entry {index} has other publications for {key} than asked")
        principal = commands.principal_of(operation)
        if principal is not None and principal not in self._askers[key]:
            text = f"entry {index} holds {key} of {principal}, {self._askers[key]} asked for it"
            self._fail("permission", text)

    def _was_silent(self, term: int, client_id: str) -> None:
        """Check that a client is not forgotten which has read: the same leader has to know of it.

        What it has read lately it may not have put into the log yet.
        """
        latest_ms = self._reference.log_ms - NOTED_MS_MAX
        earliest_ms = self._reference.log_ms - (1 - broker.HEARD_SHARE) * self._idle_ms
        for led, read_ms in self._reads.pop(client_id, ()):
            if led == term and earliest_ms < read_ms < latest_ms:
                ago_ms = self._reference.log_ms - read_ms
                text = f"{client_id} is forgotten, and has read {ago_ms} ms ago in term {term}"
                self._fail("forgotten", text)

    def _proposed(self, node: str, operations: Sequence[Operation]) -> None:
        """Check that a leader says who asked, once the cluster's level lets it."""
        for operation in operations:
            is_somebodys = isinstance(operation, ClientOperation | Administration)
            if is_somebodys and commands.principal_of(operation) is None:
                self._fail("permission", f"{node} proposes {operation}, and not who asked for it")

    def _within_backlog(self, topic: str) -> None:
        found = self._reference.topics.get(topic)
        limit = self._world.knob("backlog_bytes_max")
        if found is None or found.sizes.put_bytes <= limit:
            return  # no more was ever put to it: what of it is unread need not be counted
        if self._reference.unread_bytes(topic) > limit:
            unread_bytes = self._reference.unread_bytes(topic)
            self._fail("limit", f"{topic} holds {unread_bytes} unread bytes, {limit:.0f} may be")

    # --- judgment ---------------------------------------------------------------------------------

    def _turned(self, node: SimNode) -> None:
        if self._world.now >= self._next_look_s:
            self._next_look_s = self._world.now + LOOK_S
            if self._calm.is_calm():
                self._are_answered()
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        member = node.as_member
        for name, asked, frames in pending:
            assert name == node.name, (name, node.name)
            if member is None:
                self._by_no_member(asked, frames)
            else:
                self._judge(node, asked, frames, member.store.applied_index)

    def _by_no_member(self, asked: Asked, frames: Sequence[bytes]) -> None:
        header = header_of(frames)
        if header["type"] == ACK and asked.kind != STATUS:
            self._fail("answered", f"{asked.what} is answered by no member: {header['body']}")

    def _judge(self, node: SimNode, asked: Asked, frames: Sequence[bytes], high: int) -> None:
        header = header_of(frames)
        body = header["body"]
        if high > self._reference.applied_index:
            return
        lengths, data = (bytes(frames[1]), bytes(frames[2])) if len(frames) == 3 else (b"", b"")
        if header["type"] == ACK:
            wrong = _JUDGES[asked.kind](self, node, asked, body, lengths, data, high)
            is_anothers = self._reference.is_anothers_at(
                asked.client_id, asked.principal, asked.low
            )
            if is_anothers and asked.kind not in broker.OF_OTHERS:
                owner = self._reference.owner_at(asked.client_id, asked.low)
                text = f"{asked.what} by {node.name}: it is done, for {asked.principal}"
                self._fail("permission", f"{text}; {asked.client_id} belongs to {owner}")
            if asked.kind in (GET, TOPICS) and node.as_member is not None:
                now_ms = self._reference.log_ms
                if self._idle_ms and now_ms - asked.log_ms < SERVED_MS_MAX:
                    self._reads[asked.client_id].append((node.as_member.raft.term, now_ms))
            if asked.kind in READS and not self._results_of(asked, high):
                why_not = self._why_not_served(node, asked.came_s, high)
                if why_not:
                    self._fail("barrier", f"{asked.what} by {node.name}: {why_not}")
        else:
            wrong = self._refusal(node, asked, body, high)
        if wrong:
            where = f"entries {asked.low} to {high}"
            self._fail("answered", f"{asked.what} by {node.name}, {where}: {wrong}")

    def _of_the_log(
        self, node: SimNode, asked: Asked, body: Any, lengths: bytes, data: bytes, high: int
    ) -> str:
        found = self._results_of(asked, high)
        for code, said in found:
            if not code and all(body.get(name) == value for name, value in said.items()):
                return ""
        return f"it says {body}, the log {found}"

    def _results_of(self, asked: Asked, high: int, keys_max: int | None = None) -> list[Result]:
        return [
            result
            for key in asked.keys[:keys_max]
            for index, result in self._results.get(key, ())
            if asked.low < index <= high
        ]

    def _registered(
        self, node: SimNode, asked: Asked, body: Any, lengths: bytes, data: bytes, high: int
    ) -> str:
        wrong = self._of_the_log(node, asked, body, lengths, data, high)
        client = self._reference.clients.get(body["client_id"])
        if wrong or client is None:
            return wrong or f"there is no {body['client_id']}"
        indexes = _indexes(asked.low, high)
        said = body["subscriptions"], body.get("placed", {}), body.get("patterns", {})
        known = [
            (
                client.topics_at(at),
                client.placed_at(at),
                {text: each.at for text, each in client.patterns.at(at).items()},
            )
            for at in indexes
        ]
        if said not in known:
            return f"subscriptions {said}, {known[0]}"
        for topic, producer in client.producers.items():
            counters = list(producer.counter.during(asked.low, high))
            if body["counters"].get(topic, -1) not in counters:
                return f"counter {body['counters'].get(topic)} of {topic}, {counters}"
        return ""

    def _got(
        self, node: SimNode, asked: Asked, body: Any, lengths: bytes, data: bytes, high: int
    ) -> str:
        count, first_id, topic = body["count"], body["id"], body["topic"]
        if not count:
            return self._got_nothing(node, asked, high)
        if asked.topic and topic != asked.topic:
            return f"publications of {topic}"
        runs = ((first_id, count), *body.get("runs", ()))
        ids = [first + place for first, most in runs for place in range(most)]
        passed = body.get("passed") or {}
        if wrong := self._begins_wrong(asked, topic, first_id, passed, high):
            return wrong
        said = unpack(f"<{len(lengths) // 4}I", lengths)
        if "publication" in body:
            data = body["publication"].encode()
            said = (len(data),)
        if wrong := self._other_contents(asked, topic, ids, said, data, high):
            return wrong
        known = self._reference.topics[topic].publications
        size_bytes = sum(len(known[each][1]) for each in ids)
        if wrong := self._badly_timed(asked, body, ids):
            return wrong
        if self._is_short(asked, topic, ids, size_bytes, high):
            return f"{topic} from {first_id} to {ids[-1]}, there are more"
        if gone := [each for each in ids if self._is_gone(topic, each, asked)]:
            return f"{topic} from {first_id} to {ids[-1]}, and {gone} had expired, or were replaced"
        entry = known[first_id][0]
        if not self._may(asked, "subscribe", topic, max(asked.low, entry), high):
            text = f"{asked.what} by {node.name}: {first_id} of {topic} for {asked.principal}"
            self._fail("permission", f"{text}, who may not read it")
        is_of_any = asked.kind == GET and not asked.topic
        if is_of_any and (wrong := self._misses_silently(asked, body, high)):
            return wrong
        if is_of_any:
            self._check_turn(node, asked, topic, entry, high)
        self._in_time(node, asked, entry)
        return ""

    def _misses_silently(self, asked: Asked, body: Any, high: int) -> str:
        """Return what an answer of any topic does not say of patterns, "" if all is said."""
        client = self._reference.clients[asked.client_id]
        indexes = list(_indexes(asked.low, high))
        if all(map(client.missed_at, indexes)):
            return f"{body}, and not that {client.missed_at(high)} was missed"
        has_patterns = any(map(client.patterns.at, indexes))
        if "cursor" not in body or not body["count"]:
            needs = body["count"] and all(map(client.patterns.at, indexes))
            return f"not where it stands in {body['topic']}" if needs else ""
        topic, place = body["topic"], (body["cursor"], body["placed"])
        past, placed = client.cursors[topic], client.placed[topic]
        if not has_patterns or place not in [(past.at(at), placed.at(at)) for at in indexes]:
            return f"it stands in {topic} at {place}, {past.at(high), placed.at(high)}"
        return ""

    def _told_of_missed(self, asked: Asked, body: Mapping[str, Any], high: int) -> str:
        client = self._reference.clients.get(asked.client_id)
        said = body.get("pattern"), body.get("topic")
        found = [] if client is None else map(client.missed_at, _indexes(asked.low, high))
        is_so = any(said in each.items() for each in found)
        return "" if is_so else f"it says that {said} was missed"

    def _took(
        self, node: SimNode, asked: Asked, body: Any, lengths: bytes, data: bytes, high: int
    ) -> str:
        """Hold what a TAKE brings against what its entries have given; some may be lost by then."""
        found = [said for code, said in self._results_of(asked, high) if not code]
        given = {
            (said["token"], id_, attempt)
            for said in found
            for first, last, attempt in said["given"]
            for id_ in range(first, last + 1)
        }
        brought = [
            (body["token"], first + place, attempt)
            for first, count, attempt in body["leases"]
            for place in range(count)
        ]
        if not given >= set(brought) or len(brought) != body["count"]:
            return f"it brings {brought}, of {given}"
        lost = [[first, first + count - 1] for first, count in body["lost"]]
        # The first key alone: the entry that settles.
        settled = [said["lost"] for code, said in self._results_of(asked, high, 1) if not code]
        if lost not in settled and (lost or settled):
            return f"it says that {lost} is lost, the log {settled}"
        if not brought:
            return ""
        ids = [id_ for _, id_, _ in brought]
        said = unpack(f"<{len(lengths) // 4}I", lengths)
        times = [at_ms for count, at_ms in body["timestamps"] for _ in range(count)]
        if times != [self._reference.timestamp_of(asked.topic, id_) for id_ in ids]:
            return f"{ids} at {times}"
        of_topic, at = self._reference.topics[asked.topic], 0
        for id_, length in zip(ids, said, strict=True):
            size = length % HAS_PROPERTIES
            content, envelope_bytes = self._sent_of(asked, of_topic, id_)
            is_whole = bool(envelope_bytes) == (length >= HAS_PROPERTIES)
            if content != data[at : at + size] or not is_whole:
                return f"id {id_} is another publication"
            at += size
        return "" if at == len(data) else f"{len(data)} bytes, {at} are due"

    def _other_holes(self, asked: Asked, topic: str, ids: Sequence[int], high: int) -> str:
        """Return why an answer may not leave out what it leaves out, "" if it may.

        That is what is compacted away, for who knows that there may be several runs.
        """
        missing = {*range(ids[0], ids[-1] + 1)} - {*ids}
        if len({*ids}) != len(ids) or [*ids] != sorted(ids):
            return f"{topic}: {ids}, which is no order"
        knows = asked.body.get("runs") is True and asked.body.get("expiry") is True
        if missing and not knows:
            return f"{topic} without {sorted(missing)}, to who knows of one run"
        there = {id_ for id_ in missing if not self._reference.is_compacted_at(topic, id_, high)}
        return f"{topic} without {sorted(there)}, which is there" if there else ""

    def _other_contents(
        self,
        asked: Asked,
        topic: str,
        ids: Sequence[int],
        lengths: Sequence[int],
        data: bytes,
        high: int,
    ) -> str:
        """Return why an answer is not of what the log has under its ids, "" if it is."""
        if wrong := self._other_holes(asked, topic, ids, high):
            return wrong
        count, sizes = len(ids), [length % HAS_PROPERTIES for length in lengths]
        if len(sizes) != count or sum(sizes) != len(data):
            return f"{count} publications, {len(sizes)} lengths of {len(data)} bytes"
        max_count, max_bytes = _bounds(asked)
        if count > max_count or (count > 1 and len(data) > max_bytes):
            return f"{count} publications of {len(data)} bytes, {max_count} of {max_bytes} may be"
        of_topic, at = self._reference.topics[topic], 0
        for id_, size, length in zip(ids, sizes, lengths, strict=True):
            entry, _ = of_topic.publications.get(id_, (high + 1, b""))
            content, envelope_bytes = self._sent_of(asked, of_topic, id_)
            is_whole = bool(envelope_bytes) and _takes_properties(asked)
            due = content if is_whole else content[envelope_bytes:]
            if entry > high or due != data[at : at + size]:
                return f"id {id_} of {topic} is another publication, or none"
            if is_whole != (length >= HAS_PROPERTIES):
                return f"id {id_} of {topic} begins with its properties: {is_whole}; said: {length}"
            at += size
        return ""

    def _is_gone(self, topic: str, id_: int, asked: Asked) -> bool:
        """Return whether a publication had expired, or was replaced, when it was asked for."""
        reference = self._reference
        is_over = reference.is_over_at(topic, id_, asked.low)
        return is_over or reference.is_compacted_at(topic, id_, asked.low)

    @staticmethod
    def _sent_of(asked: Asked, topic: ReferenceTopic, id_: int) -> tuple[bytes, int]:
        """Return a publication as who asks is sent it, and how much of it is its envelope.

        Who knows nothing of expiries is told of none.
        """
        _, content = topic.publications.get(id_, (0, b""))
        envelope_bytes = topic.enveloped.get(id_, 0)
        if not envelope_bytes or asked.body.get("expiry") is True:
            return content, envelope_bytes
        properties, _ = decode_properties(content)
        envelope = encode_properties(Properties(properties.key, properties.headers))
        return envelope + content[envelope_bytes:], len(envelope)

    def _badly_timed(self, asked: Asked, body: Any, ids: Sequence[int]) -> str:
        """Return what is wrong with the times that an answer says, "" if nothing is."""
        if asked.body.get("properties") is not True:
            return "times that were not asked for" if "timestamps" in body else ""
        times = [at_ms for count, at_ms in body["timestamps"] for _ in range(count)]
        topic = body["topic"]
        due = [self._reference.timestamp_of(topic, each) for each in ids]
        return "" if times == due else f"{topic} from {ids[0]} at {times}, they are of {due}"

    def _begins_wrong(
        self, asked: Asked, topic: str, first_id: int, passed: Mapping[str, Any], high: int
    ) -> str:
        """Return why an answer may not begin there, "" if it may.

        `passed`: what it says is gone in front of its first id.
        """
        if passed:
            is_said = passed["topic"] == topic and passed["last_id"] == first_id - 1
            if not (is_said and self._says_lapsed(asked, topic, passed, high)):
                return f"{topic} from {first_id} on, behind {dict(passed)}, which is not so"
        begin_id = passed.get("first_id", first_id)
        if asked.kind == READ:
            floors, from_id = self._reference.topics[topic].floor, asked.body["from_id"]
            is_kept = from_id > min(floors.during(asked.low, high))
            is_so = begin_id == from_id and is_kept
            return "" if is_so else f"{topic} from {begin_id} on, {from_id} was asked for"
        starts = self._starts(asked, topic, high)
        if not self._is_of_this_place(asked, topic, asked.low, high):
            return f"{topic} from {first_id} on, for who is at another place of it"
        if begin_id - 1 not in starts:
            return f"{topic} from {begin_id} on, behind {sorted(starts)} was asked for"
        gone = self._reference.gone_at(topic, asked.low)
        return f"{topic} from {first_id} on, gone up to {gone}" if first_id <= gone else ""

    def _is_of_this_place(self, asked: Asked, topic: str, low: int, high: int) -> bool:
        """Return whether a GET may claim what it claims, by where the subscription stood."""
        client = self._reference.clients.get(asked.client_id)
        past = None if client is None else client.placed.get(topic)
        places = {0} if past is None else {*past.during(low, high)}
        claims: Mapping[str, Any] = asked.body.get("last_ids") or {}
        placed: Mapping[str, int] = asked.body.get("placed") or {}
        if asked.topic:
            claims = {topic: asked.body.get("last_id")}
            placed = {topic: asked.body.get("placed") or 0}
        return claims.get(topic) is None or placed.get(topic, 0) in places

    def _may(self, asked: Asked, right: str, topic: str, low: int, high: int) -> bool:
        """Return whether who asks may do that behind any of these entries."""
        reference, principal = self._reference, asked.principal
        return any(
            reference.may_at(principal, right, topic, index)
            for index in reference.judged_at(low, high)
        )

    def _may_all_along(self, asked: Asked, topic: str, high: int) -> bool:
        """Return whether who asks may read a topic behind each entry since he asked."""
        reference, principal = self._reference, asked.principal
        return all(
            reference.may_at(principal, "subscribe", topic, index)
            for index in reference.judged_at(asked.low, high)
        )

    def _starts(self, asked: Asked, topic: str, high: int) -> set[int]:
        """Return the ids behind which a GET of a topic may begin."""
        client = self._reference.clients.get(asked.client_id)
        past = None if client is None else client.cursors.get(topic)
        cursors = () if past is None else past.during(asked.low, high)
        starts = {cursor for cursor in cursors if cursor is not None}
        if asked.topic:
            last_id = asked.body.get("last_id")
            return starts if last_id is None else {last_id}
        claimed = (asked.body.get("last_ids") or {}).get(topic)
        return starts if claimed is None else starts | {claimed}

    def _is_short(
        self, asked: Asked, topic: str, ids: Sequence[int], size_bytes: int, high: int
    ) -> bool:
        """Return whether more was there when it was asked for, and would have had room."""
        max_count, max_bytes = _bounds(asked)
        rows_max, last_id = value_of("read_rows_max"), ids[-1]
        if last_id >= self._reference.last_id_at(topic, asked.low):
            return False
        if len(ids) >= max_count or (last_id - ids[0] >= len(ids) >= rows_max):
            return False
        if self._reference.is_over_at(topic, last_id + 1, high):
            return False
        if self._reference.is_compacted_at(topic, last_id + 1, high):
            return False
        known = self._reference.topics[topic].publications
        rows = {self._reference.row_at(topic, each, high) for each in (*ids, last_id + 1)}
        if len(rows) > rows_max:
            return False
        return size_bytes + len(known[last_id + 1][1]) <= max_bytes

    def _check_turn(self, node: SimNode, asked: Asked, topic: str, entry: int, high: int) -> None:
        """Check that no other topic should have come first.

        That is one that this process has given longer ago; of those that it has not given, the one
        whose next publication has waited longer. Of several answers of one turn those by way of
        other nodes leave last, whichever was made first.
        """
        if self._world.net.doubled:  # of one GET there may be two answers, of which one is seen
            return
        client = self._reference.clients[asked.client_id]
        rounds, (before, _, before_at) = self._note_turn(node, asked, topic, high)
        entry = min([entry, *self._came_with(asked, topic, high)])
        for name in client.cursors:
            starts = self._starts(asked, name, high)
            gone = None in client.cursors[name].during(asked.low, high)
            gone = gone or not self._may_all_along(asked, name, high)
            if name == topic or len(starts) != 1 or gone:
                continue
            [start] = starts
            if (other := self._waits_since(asked, name, start, high)) is not None:
                its, _, at = rounds.get(name, (0, 0, 0.0))
                if at == before_at:  # which of the two was made first, nobody can tell (seed 10)
                    continue
                if (its, other, name) < (before, entry, topic):
                    text = f"{asked.what} by {node.name}: {topic} of entry {entry}, and {name} of"
                    text = f"{text} entry {other} waits longer"
                    self._world.after(0.0, partial(self._fail_unless_given, rounds, name, text))
                    return

    def _note_turn(
        self, node: SimNode, asked: Asked, topic: str, high: int
    ) -> tuple[dict[str, tuple[int, int, float]], tuple[int, int, float]]:
        """Note that a client's GET of any topic was given this one, or told what is gone of it.

        Return its rounds, and when that topic was given, or told of, before.
        """
        client = self._reference.clients[asked.client_id]
        assert node.as_member is not None, node.name
        process = node.name, node.life, node.as_member.store, asked.client_id
        rounds = self._rounds.setdefault(process, {})
        for name, (_, index, _) in list(rounds.items()):
            if client.has_left_between(name, index, high):
                del rounds[name]
        before = rounds.get(topic, (0, 0, -1.0))
        self._servings += 1
        rounds[topic] = self._servings, high, self._world.now
        return rounds, before

    def _came_with(self, asked: Asked, name: str, high: int) -> list[int]:
        """Return which entries may have brought what was next of a topic, had it expired or not."""
        topic = self._reference.topics[name]
        floors = topic.floor.during(asked.low, high)
        ids = {
            max(start, floor) + 1 for start in self._starts(asked, name, high) for floor in floors
        }
        known = topic.publications
        return [known[id_][0] for id_ in ids if id_ in known]

    def _waits_since(self, asked: Asked, name: str, start: int, high: int) -> int | None:
        """Return which entry brought what is next of a topic for who has it up to `start`.

        None: nothing that is there waits, or that is not sure. What has expired is as old as it
        was; what is compacted away, as what is kept behind it (seed 29110175).
        """
        reference, topic = self._reference, self._reference.topics[name]
        floor = topic.floor.at(asked.low)
        first, last = max(start, floor) + 1, reference.last_id_at(name, asked.low)
        if topic.floor.at(high) != floor:
            return None
        entry = None
        for id_ in range(first, last + 1):
            if reference.is_compacted_at(name, id_, asked.low):
                continue
            if reference.is_compacted_at(name, id_, high):
                return None
            entry = topic.publications[id_][0] if entry is None else entry
            if not reference.is_over_at(name, id_, high):
                return entry
        return None

    def _fail_unless_given(
        self, rounds: Mapping[str, tuple[int, int, float]], name: str, text: str
    ) -> None:
        """Fail if that topic was not given in this turn too."""
        if name not in rounds or rounds[name][2] != self._world.now:
            self._fail("answered", text)

    def _got_nothing(self, node: SimNode, asked: Asked, high: int) -> str:
        names: Iterable[str] = [asked.topic]
        if asked.kind == READ:
            end, from_id = self._reference.last_id_at(asked.topic, asked.low), asked.body["from_id"]
            return f"nothing from {from_id} on, it ends at {end}" if from_id <= end else ""
        if asked.topic and not self._may(asked, "subscribe", asked.topic, high, high):
            text = f"{asked.what} by {node.name}: that nothing is there, for {asked.principal}"
            self._fail("permission", f"{text}, who may not read it")
        client = self._reference.clients.get(asked.client_id)
        if not asked.topic:
            names = client.cursors if client is not None else ()
            if client is not None and (wrong := self._misses_silently(asked, {"count": 0}, high)):
                return wrong
        for name in names:
            starts = self._starts(asked, name, high)
            gone = client is None or None in client.cursors[name].during(asked.low, high)
            gone = gone or not self._may_all_along(asked, name, high)
            end = self._reference.last_id_at(name, asked.low)
            if starts and not gone and max(starts) < end:
                return f"nothing behind {max(starts)} of {name}, which ends at {end}"
        waited_ms = (node.clock() - asked.clock_s) * 1000
        wait_ms = min(asked.body.get("wait_ms") or 0, GET_WAIT_MS_MAX)
        has_room = self._world.knob("parked_gets_max") >= broker.BrokerLimits().parked_gets_max / 10
        has_room = has_room and not self._world.knob("quota_parked_gets")
        if has_room and waited_ms + CLOCK_MS < wait_ms:
            return f"nothing after {waited_ms:.0f} ms, {wait_ms} ms were to be waited"
        if self._calm.is_calm() and waited_ms > wait_ms + WAIT_S_MAX * 1000:
            self._fail("waits", f"{asked.what}: nothing after {waited_ms:.0f} of {wait_ms} ms")
        return ""

    def _in_time(self, node: SimNode, asked: Asked, entry: int) -> None:
        allowed = self._reference.users.since(0, self._reference.applied_index)
        since_s = max(
            asked.came_s,
            self.applied_s.get(entry, 0.0),
            self.applied_s.get(allowed[-1], 0.0) if allowed else 0.0,  # it may be hidden before
        )
        waited_s = self._world.now - since_s
        if self._calm.is_calm():
            self.waited_s.append(waited_s)
            if waited_s > WAIT_S_MAX:
                text = f"{asked.what}: entry {entry} was there for {waited_s:.2f} s"
                self._fail("waits", f"{text} before {node.name} gave it")

    def _listed(
        self, node: SimNode, asked: Asked, body: Any, lengths: bytes, data: bytes, high: int
    ) -> str:
        if "topics" not in body:
            return ""
        limit, after = value_of("topics_count_max"), str(asked.body.get("after") or "")
        client_id = "" if asked.body.get("all") else asked.client_id
        found: list[dict[str, Any]] = []
        for index in _indexes(asked.low, high):
            rows = self._reference.listing_at(client_id, index)
            found = [
                row
                for row in rows
                if row["topic"] > after and self._shows(asked, row["topic"], index)
            ]
            names = found[0].keys() if found else ()
            said = [{name: row[name] for name in names} for row in body["topics"]]
            if said == found[:limit] and body["more"] == (len(found) > limit):
                return ""
        return f"it lists {body['topics']}, there are {found}"

    def _shows(self, asked: Asked, topic: str, index: int) -> bool:
        """Return whether a topic is in a list: one's own have to be readable."""
        if asked.body.get("all"):
            return self._reference.may_see_at(asked.principal, topic, index)
        return self._reference.may_at(asked.principal, "subscribe", topic, index)

    def _inspected(
        self, node: SimNode, asked: Asked, body: Any, lengths: bytes, data: bytes, high: int
    ) -> str:
        if asked.body["what"] == AUDIT:
            return self._audited(asked, body, high)
        limit = value_of("topics_count_max")
        expected: dict[str, Any] = {}
        for index in _indexes(asked.low, high):
            rows, more = self._inspection(asked, index)
            expected = {"rows": rows[:limit], "more": len(rows) > limit, **more}
            if body == expected:
                return ""
        return f"it says {body}, there is {expected}"

    def _audited(self, asked: Asked, body: Any, high: int) -> str:
        """Hold a history of acts against those of the log; when they were is the leaders' word."""
        said = [(row["number"], row["index"], row["act"]) for row in body["rows"]]
        acts = [(number, *act) for number, act in enumerate(self._reference.acts, 1)]
        for index in _indexes(asked.low, high):
            due = [act for act in acts if act[1] <= index]
            if said == due[:PAGE_ACTS] and body["more"] == (len(due) > PAGE_ACTS):
                return ""
        return f"it says that {said} was done, there is {acts}"

    def _inspection(self, asked: Asked, index: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return all rows of an INSPECT behind an entry, and what it says besides."""
        reference, what = self._reference, asked.body["what"]
        after = str(asked.body.get("after") or "")
        if what == CLIENTS:
            rows: list[dict[str, Any]] = [
                {
                    "client_id": client_id,
                    "epoch": client.epoch.at(index),
                    "subscriptions": len(client.topics_at(index)),
                    "producers": client.producers_at(index),
                    "principal": client.owner.at(index),
                }
                for client_id, client in sorted(reference.clients.items())
                if client.epoch.at(index) and client_id > after
            ]
            return rows, {}
        if what == USERS:
            return [row for row in described(reference.users.at(index)) if row["user"] > after], {}
        if what == GROUPS:
            return reference.groups_at(asked.topic, after, index), {}
        if what == TOPIC:
            return reference.topic_rows_at(asked.topic, index), {}
        if what == PATTERNS:
            return reference.patterns_at(after, asked.topic, index), {}
        if what == SUBSCRIPTIONS:
            return reference.subscriptions_at(asked.topic, after, index), {}
        client = reference.clients.get(asked.client_id)
        if client is None or not client.epoch.at(index):
            return [], {}
        row: dict[str, Any] = {
            "client_id": asked.client_id,
            "epoch": client.epoch.at(index),
            "sequence": client.sequence.at(index),
            "producers": client.producers_at(index),
            "subscriptions": len(client.topics_at(index)),
            "principal": client.owner.at(index),
        }
        rows = reference.listing_at(asked.client_id, index)
        return [each for each in rows if each["topic"] > after], {"client": row}

    def _status(
        self, node: SimNode, asked: Asked, body: Any, lengths: bytes, data: bytes, high: int
    ) -> str:
        """Hold what a node says of itself against its log, up to where it says that it is."""
        reference, index = self._reference, body["store"]["applied_index"]
        clients = [each for each in reference.clients.values() if each.epoch.at(index)]
        expected = {
            "clients": len(clients),
            "clients_forgotten": reference.forgotten.at(index),
            "producers": sum(each.producers_at(index) for each in clients),
            "topics": sum(each.exists_at(index) for each in reference.topics.values()),
            "subscriptions": sum(len(each.topics_at(index)) for each in clients),
        }
        said = {name: body["store"][name] for name in expected}
        if said != expected or body["node"] != node.member:
            return f"{body['node']} says {said}, it is {node.member} and has {expected}"
        level = reference.level.at(index)
        if body["level"] != level:
            return f"it says level {body['level']}, it is {level}"
        return _status_of_raft(node, body)

    def _upgraded(
        self, node: SimNode, asked: Asked, body: Any, lengths: bytes, data: bytes, high: int
    ) -> str:
        return ""  # see `level`

    # --- refusals ---------------------------------------------------------------------------------

    def _refusal(self, node: SimNode, asked: Asked, body: Mapping[str, Any], high: int) -> str:
        code = body["error"]
        if code in OF_THE_NODE or code in ("too_large", "not_upgraded", "unsupported", "not_ready"):
            return ""
        if code in OF_A_LIMIT:
            if asked.kind == PUT and _is_of_room(body) and self._was_stored(asked):
                return f"refused as {code}, and it is stored"
            return "" if body.get("definite") else f"{code} is not said to be for certain"
        for found, details in self._results_of(asked, high):
            if found == code and all(body.get(name) == each for name, each in details.items()):
                return ""
        if code == "unauthorized":
            return self._unauthorized(node, asked, high)
        if code == "too_many" and asked.kind == GET and not asked.topic:
            return self._told_of_missed(asked, body, high)
        if code in TELL_OF_GONE and asked.kind == GET:
            return self._told_of_purge(node, asked, body, high)
        if asked.kind == READ:
            return self._read_refused(node, asked, body, high)
        # What was forbidden when it came is a read, and the client may be forgotten meanwhile.
        is_a_read = asked.kind in READS or asked.principal is not None
        if is_a_read and any(
            self._read_refusal(asked, code, index) for index in _indexes(asked.low, high)
        ):
            return ""
        if code == "bad_request" and asked.kind not in (PUT, GET):
            return ""
        return f"refused as {dict(body)}, the log says {self._results_of(asked, high)}"

    def _told_of_purge(
        self, node: SimNode, asked: Asked, body: Mapping[str, Any], high: int
    ) -> str:
        """Judge what a subscriber is told that it has not read and never will: a read as well."""
        topic, first_id, last_id = body["topic"], body["first_id"], body["last_id"]
        if asked.topic and asked.topic != topic:
            return f"{topic} is gone, it says, who asked for something else"
        why_not = self._why_not_served(node, asked.came_s, high)
        if why_not and not self._results_of(asked, high):
            self._fail("barrier", f"{asked.what} refused by {node.name}: {why_not}")
        starts = self._starts(asked, topic, high)
        if not asked.topic and asked.client_id in self._reference.clients:
            self._note_turn(node, asked, topic, high)
        if self._says_lapsed(asked, topic, body, high) and first_id - 1 in starts:
            return ""
        found = self._reference.topics.get(topic)
        past = None if found is None else found.purged
        if found is not None and body["error"] == "gap":
            past = found.dropped
        gone = set() if past is None else set(past.during(asked.low, high))
        is_counted = body.get("missed", last_id + 1 - first_id) == last_id + 1 - first_id
        if last_id in gone and first_id - 1 in starts and first_id <= last_id and is_counted:
            return ""
        return f"{first_id} to {last_id} of {topic} gone, behind {starts}; it is up to {gone}"

    def _says_lapsed(self, asked: Asked, topic: str, body: Mapping[str, Any], high: int) -> bool:
        """Return whether a refusal says truly, in words that who asks knows, what he is not given.

        That is what has expired, or what is compacted away.
        """
        first_id, last_id = body.get("first_id") or 0, body.get("last_id") or 0
        knows_expiry, code = asked.body.get("expiry") is True, body["error"]
        is_of_expiry = code == ("expired" if knows_expiry else "gap")
        is_of_compaction = code == ("compacted" if knows_expiry else "gap")
        if not 0 < first_id <= last_id or body.get("missed") != last_id + 1 - first_id:
            return False
        ids, reference = range(first_id, last_id + 1), self._reference
        if is_of_compaction and all(reference.is_compacted_at(topic, each, high) for each in ids):
            return True
        return is_of_expiry and all(reference.is_over_at(topic, each, high) for each in ids)

    def _read_refused(self, node: SimNode, asked: Asked, body: Mapping[str, Any], high: int) -> str:
        """Judge the refusal of a read that is nobody's."""
        why_not = self._why_not_served(node, asked.came_s, high)
        if why_not:
            self._fail("barrier", f"{asked.what} refused by {node.name}: {why_not}")
        found, from_id, code = (
            self._reference.topics.get(asked.topic),
            asked.body["from_id"],
            body["error"],
        )
        if body.get("first_id") == from_id and self._says_lapsed(asked, asked.topic, body, high):
            return ""
        for index in _indexes(asked.low, high):
            if found is None or not found.exists_at(index):
                told: dict[str, Any] = {"error": "unknown_topic"}
            elif from_id - 1 > found.last_id.at(index):
                told = {"error": "bad_request", "end": found.last_id.at(index)}
            else:
                floor = found.floor.at(index)
                gap = {"first_id": from_id, "last_id": floor, "missed": floor + 1 - from_id}
                told = {"error": "gap", **gap} if floor >= from_id else {"error": ""}
            if all(body.get(name) == value for name, value in told.items()):
                return ""
        return f"{asked.topic} from {from_id} on is refused as {code}"

    def _unauthorized(self, node: SimNode, asked: Asked, high: int) -> str:
        """Judge a refusal that is in no entry: it is a read, and as true as one."""
        reference = self._reference
        of_own = asked.kind == GET and not asked.topic  # what it subscribes to changes as well
        indexes = _indexes(asked.low, high) if of_own else reference.judged_at(asked.low, high)
        is_own = not any(  # somebody's who was forgotten is nobody's
            reference.is_anothers_at(asked.client_id, asked.principal, index)
            for index in (asked.low, high)
        )
        if asked.kind == PUT and is_own and self._was_stored(asked):
            return "refused as unauthorized, and it is stored"
        if not any(self._is_forbidden(asked, index) for index in indexes) and is_own:
            return f"{asked.principal} may do that all the time"
        why_not = self._why_not_served(node, asked.came_s, high)
        if why_not:
            self._fail("barrier", f"{asked.what} refused by {node.name}: {why_not}")
        return ""

    def _is_forbidden(self, asked: Asked, index: int) -> bool:
        """Return whether who asks may not do what he asks for behind the entry at `index`."""
        reference, principal, topic = self._reference, asked.principal, asked.topic
        user = reference.user_at(principal, index)
        if user is None:
            return False
        if asked.kind == PUT:
            return not user.has("publish", topic)
        if asked.kind == REQUEST_ID:
            return not asked.client_id and not user.may
        if asked.kind == TOPICS:
            return "subscribers" in asked.body and not (user.observe or user.admin)
        if asked.kind in (UPGRADE, ADMIN):
            return not user.admin
        if asked.kind == INSPECT:
            return not user.admin and (not user.observe or asked.body.get("what") in (USERS, AUDIT))
        if topic:
            of_topic = asked.kind in (SUB, SEEK, GET, READ, TAKE) or "group" in asked.body
            return of_topic and not user.has("subscribe", topic)
        client = reference.clients.get(asked.client_id)
        own = {} if client is None else client.topics_at(index)
        named = asked.body.get("last_ids") or {}
        unread = [each for each in (*own, *named) if not user.has("subscribe", each)]
        return asked.kind == GET and (set(unread) >= own.keys() > set() or bool({*unread} - {*own}))

    def _was_stored(self, asked: Asked) -> bool:
        """Return whether a PUT's first counter was taken before it came here, by any process."""
        client = self._reference.client(asked.client_id)
        lane = lane_in(asked.topic, asked.is_delayed)
        producer = None if client is None else client.producers.get(lane)
        return producer is not None and producer.counter.at(asked.low) >= asked.body["counter"]

    def _read_refusal(self, asked: Asked, code: str, index: int) -> bool:
        """Return whether a read is refused so behind the entry at `index`."""
        if asked.kind == INSPECT and asked.body.get("what") == TOPIC:
            found = self._reference.topics.get(asked.topic)
            return code == "unknown_topic" and not (found and found.exists_at(index))
        client, epoch = self._reference.clients.get(asked.client_id), asked.header.get("epoch")
        if client is None or not client.epoch.at(index):
            return code == self._reference.unknown_at(index)
        if epoch is not None and epoch != client.epoch.at(index):
            return code == self._reference.refusal_of(epoch, client.epoch.at(index))[0]
        if asked.kind == TAKE:
            return code == self._no_group(asked, index)
        if asked.kind != GET:
            return False
        claims = asked.body.get("last_ids") or {}
        if asked.topic:
            claims = {asked.topic: asked.body.get("last_id")}
        return any(
            self._claim_refused(asked, client, topic, last_id, code, index)
            for topic, last_id in claims.items()
        )

    def _no_group(self, asked: Asked, index: int) -> str:
        """Return how a TAKE is refused whose group is not there behind the entry at `index`."""
        past = self._reference.group_rows.get((asked.topic, asked.body["group"]))
        if past is not None and past.at(index) is not None:
            return ""
        topic = self._reference.topics.get(asked.topic)
        is_there = topic is not None and topic.exists_at(index)
        return "not_subscribed" if is_there else "unknown_topic"

    def _claim_refused(
        self, asked: Asked, client: Any, topic: str, last_id: int | None, code: str, index: int
    ) -> bool:
        found = self._reference.topics.get(topic)
        if found is None or not found.exists_at(index):
            return code == "unknown_topic"
        past = client.cursors.get(topic)
        if past is None or past.at(index) is None:
            return code == "not_subscribed"
        if last_id is None:
            return False
        if not self._is_of_this_place(asked, topic, index, index):
            return code == "moved"
        if last_id > found.last_id.at(index):
            return code == "bad_request"
        if code != "already_acknowledged":
            return False
        return last_id < min(found.floor.at(index), past.at(index) or 0)

    def _are_answered(self) -> None:
        """Check that nobody waits for long for whom nothing explains it."""
        since_s = self._calm.disturbed_s + CALM_S
        for node, ways in self._open.items():
            for (route, _), waiting in ways.items():
                for asked in waiting:
                    wait_s = min(asked.body.get("wait_ms") or 0, GET_WAIT_MS_MAX) / 1000
                    ago_s = self._world.now - asked.came_s
                    is_late = asked.came_s > since_s and ago_s > wait_s + ANSWER_S_MAX
                    if is_late and route in self._world.clients:
                        text = f"{asked.what} by {route} came to {node} {ago_s:.1f} s ago"
                        self._fail("waits", f"{text}, and has no answer")

    # --- the end ----------------------------------------------------------------------------------

    def unanswered(self, since_s: float, until_s: float) -> list[tuple[str, str]]:
        """Return (node, what) came to living nodes in that time, and got no answer."""
        return [
            (node, asked.what)
            for node, ways in self._open.items()
            for waiting in ways.values()
            for asked in waiting
            if since_s <= asked.came_s <= until_s and self._world.nodes[node].up
        ]

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "proposed":
            self._proposed(fields["node"], fields["operations"])
        if kind == "ended":
            name = fields["node"]
            self._open.pop(name, None)
            self._passed_on.pop(name, None)
            self._by_relay = {at: each for at, each in self._by_relay.items() if at[0] != name}
            self._pending = [one for one in self._pending if one[0] != name]

    def _fail(self, check: str, text: str) -> None:
        self._invariants.fail(check, text)


def _keys_of(header: Mapping[str, Any], count: int, is_delayed: bool) -> Iterable[Key]:
    kind, client_id, epoch = header["type"], header.get("client_id") or "", header.get("epoch")
    body, topic = header.get("body") or {}, header.get("topic") or ""
    if kind == PUT:
        yield PUT, client_id, epoch, lane_in(topic, is_delayed), body.get("counter"), count
    elif kind in CONTROLS:
        yield kind, client_id, epoch, topic, body.get("sequence")
    elif kind == TAKE:
        yield from _keys_of_take(client_id, epoch, topic, body)
    elif kind == REQUEST_ID:
        yield kind, client_id, body.get("sequence"), body.get("nonce") or ""
    elif kind == ADMIN and "user" in body:
        yield ADMIN, body["act"], body["user"], _said(body)
    elif kind == ADMIN:
        own = tuple(body.get(name) for name in ("act_id", "last_id", "node"))
        if body["act"] == "seek-group":
            own = tuple(body.get(name) for name in ("act_id", "group", "start"))
        if body["act"].startswith("topic-"):
            own = (
                body.get("act_id"),
                bool(body.get("ends")),
                *sorted((body.get("policy") or {}).items()),
            )
        yield ADMIN, body["act"], topic, client_id, *own
    elif kind == GET:
        claims = {topic: body.get("last_id")} if topic else body.get("last_ids") or {}
        for name, last_id in claims.items():
            if last_id is not None:
                yield GET, client_id, epoch, name, last_id


def _keys_of_take(
    client_id: str, epoch: int | None, topic: str, body: Mapping[str, Any]
) -> Iterable[Key]:
    """Yield what a TAKE is known by: first as it settles, then as it may stand in the log again."""
    settled = [body.get(name) or [] for name in ("acks", "naks", "extends")]
    of_group = client_id, epoch, topic, body["group"], body.get("number")
    yield _key_of_take(*of_group, settled)
    if body.get("number") is None and any(settled):
        yield _key_of_take(*of_group, [])


def _key_of_take(
    client_id: str, epoch: int | None, topic: str, group: str, number: int | None, settled: Any
) -> Key:
    """Return what a take is known by: its number, or by hand what it settles."""
    said = orjson.dumps(settled if any(settled) else []) if number is None else b""
    return TAKE, client_id, epoch, topic, group, number, said


def _keys_in(operation: Operation) -> Iterable[Key]:
    """Return what an operation of the log is known by: as `_keys_of` its request."""
    match operation:
        case Put(client_id, epoch, topic, counter, lengths, is_delayed=is_delayed):
            lane = lane_in(topic, is_delayed)
            yield PUT, client_id, epoch, lane, counter, len(lengths) // 4
        case Subscribe() | SubscribePattern() | MakeGroup():
            yield SUB, *_of_control(operation)
        case Unsubscribe() | UnsubscribePattern() | EndGroup():
            yield UNSUB, *_of_control(operation)
        case Seek():
            yield SEEK, *_of_control(operation)
        case Take(client_id, epoch, topic, group, number):
            settled = [operation.acks, operation.naks, operation.extends]
            yield _key_of_take(client_id, epoch, topic, group, number, settled)
        case Register(client_id, fresh, sequence, nonce):
            yield REQUEST_ID, "" if fresh and _is_given(client_id) else client_id, sequence, nonce
        case ChangeUser(change, user, publish, subscribe, observe, admin):
            rights = {"publish": publish, "subscribe": subscribe}
            yield ADMIN, change, user, _said({**rights, "observe": observe, "admin": admin})
        case Advance(client_id, epoch, cursors):
            for name, last_id in cursors.items():
                yield GET, client_id, epoch, name, last_id
        case _:
            yield from _keys_of_act(operation)


def _is_given(client_id: str) -> bool:
    """Return whether an id is one that the cluster gives: a client that names itself has a word."""
    return len(client_id) == len(str(uuid.UUID(int=0)))


def _of_control(asked: Subscribe | Unsubscribe | Seek | OfPatterns | MakeGroup | EndGroup) -> Key:
    return asked.client_id, asked.epoch, asked.topic, asked.sequence


def _keys_of_act(operation: Operation) -> Iterable[Key]:
    match operation:
        case Purge(topic, last_id):
            yield ADMIN, "purge", topic, "", operation.act_id, last_id, None
        case SeekGroup(topic, group, start):
            yield ADMIN, "seek-group", topic, "", operation.act_id, group, start
        case DropClient(client_id):
            yield ADMIN, "drop-client", "", client_id, operation.act_id, None, None
        case DropSubscription(client_id, topic):
            yield ADMIN, "drop-subscription", topic, client_id, operation.act_id, None, None
        case TransferLeader(node):
            yield ADMIN, "transfer-leader", "", "", operation.act_id, None, node
        case SetTopic(topic, parts, is_new):
            act = "topic-create" if is_new else "topic-alter"
            yield ADMIN, act, topic, "", operation.act_id, False, *sorted(parts.items())
        case DeleteTopic(topic, ends):
            yield ADMIN, "topic-delete", topic, "", operation.act_id, ends
        case Checkpoint():
            yield ADMIN, "checkpoint", "", "", operation.act_id, None, None


def _said(body: Mapping[str, Any]) -> Key:
    lists = [tuple(sorted(set(body.get(name) or ()))) for name in ("publish", "subscribe")]
    return (*lists, bool(body.get("observe")), bool(body.get("admin")))


def _status_of_raft(node: SimNode, body: Mapping[str, Any]) -> str:
    """Return what a member's status says of its part in Raft that is not so, "" if all is.

    It may have been made in an earlier turn, so that the log has come further.
    """
    member = node.as_member
    if member is None or "commit_index" not in body:
        return ""
    raft, leader, rows = member.raft, body["leader"], body["members"]
    settled = max(raft.commit_index, raft.applied_index)
    if not body["applied_index"] <= settled >= body["commit_index"]:
        return f"it says that {body['commit_index']} is committed, and {settled} is"
    if body["checkpointed_index"] > member.checkpointed_index:
        return f"it says that it has a checkpoint of {body['checkpointed_index']}"
    if leader not in ("", node.member) and not rows[leader]["connected"]:
        return f"it says that {leader} leads, and is not connected with it"
    if (body["role"] == "leader") != (leader == node.member):
        return f"it says that {leader!r} leads, and is {body['role']}"
    for name, row in rows.items():
        if row["connected"] and row["silent_ms"]:
            return f"it says that {name} is connected, and silent for {row['silent_ms']} ms"
        if row.get("lag", 0) != body["last_index"] - row.get("match_index", body["last_index"]):
            return (
                f"it says that {name} lacks {row['lag']} entries, and {row['match_index']} is there"
            )
    return ""


def _is_of_room(body: Mapping[str, Any]) -> bool:
    """Return whether a PUT is refused for what it takes: what is stored takes nothing more."""
    of_bytes = "bytes of publications" in str(body.get("message"))
    is_unread = body.get("quota") == "unread_bytes_max"
    return body["error"] in ("backlog_full", "disk_full") or of_bytes or is_unread


def _takes_properties(asked: Asked) -> bool:
    """Return whether who asks is given publications with their properties."""
    return asked.body.get("properties") is True and asked.body.get("text") is not True


def _bounds(asked: Asked) -> tuple[int, int]:
    body = asked.body
    most, most_bytes = value_of("batch_count_max"), value_of("batch_bytes_max")
    max_count = min(body.get("max_count") or 1, most)
    return max_count, min(body.get("max_bytes") or most_bytes, most_bytes)


def _indexes(low: int, high: int) -> Iterable[int]:
    """Return the indexes at which an answer may have been made, the newest first."""
    return range(high, max(low - 1, high - ASKED_AT_MOST), -1)


Judge = Callable[[Replies, SimNode, Asked, Any, bytes, bytes, int], str]
_JUDGES: Final[Mapping[str, Judge]] = {
    REQUEST_ID: Replies._registered,
    SUB: Replies._of_the_log,
    UNSUB: Replies._of_the_log,
    PUT: Replies._of_the_log,
    GET: Replies._got,
    READ: Replies._got,
    SEEK: Replies._of_the_log,
    TAKE: Replies._took,
    TOPICS: Replies._listed,
    UPGRADE: Replies._upgraded,
    ADMIN: Replies._of_the_log,
    STATUS: Replies._status,
    INSPECT: Replies._inspected,
}
