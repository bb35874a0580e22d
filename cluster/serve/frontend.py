"""Clients' requests at any node: served as the leader, passed on as a follower, STATUS answered.

What lives here: where a request goes and how its reply is addressed. What must not: sockets, the
meaning of requests (broker.py, store.py), the turn's order (replica.py).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.log.journal import Journal
from cluster.members.about import ADMINS
from cluster.members.peers import BULK_BYTES_LONG_REPLIES, BULK_BYTES_SERVED, Peers
from cluster.raft.raft import Raft
from cluster.serve.broker import RETRY_AFTER_MS, Answer, Broker, Route
from cluster.serve.intake import RELAYS_WAITING_MAX
from cluster.serve.meters import Meters
from cluster.serve.quotas import QUOTA, Quotas, Rates, Refusals, exceeded
from cluster.serve.relays import RELAY_ID_BITS, Relays
from cluster.serve.shares import PAYER_SHARE, Shares
from cluster.wire.levels import LEVEL_OF_USERS, Build, Sighting
from cluster.wire.messages import Health, Relay, RelayReply
from flotilla_client.protocol import (
    ACK,
    CLIENTS,
    INSPECT,
    NAK,
    PROTOCOL_VERSION,
    SETTINGS,
    STATUS,
    ProtocolError,
    Reply,
    Request,
    decode_request,
    encode_reply,
    nak_body,
    request_id_of,
)

ELECTING_RETRY_MS: Final = 100  # a fraction of an election
SHORT_REPLY_BYTES: Final = 4 * 1024  # of its data: every error, and every answer to a PUT

Outgoing = list[tuple[bytes, list[bytes]]]


@dataclass(frozen=True)
class MemberServices:
    """What serving requests takes, once the node is a member.

    `linked`: the members that can be reached now (a live view).
    """

    raft: Raft
    broker: Broker
    journal: Journal
    uncommitted_entries_max: int
    linked: AbstractSet[str]
    sightings: Callable[[], Mapping[str, Sighting]]


@dataclass(frozen=True)
class ClientRoutes:
    """What a node knows of its clients' connections, by their routes.

    `room_bytes(route)`: how many bytes of replies may still wait for a client. `payer_of(route)`:
    who pays for its requests, and whether the connection is one more than it may have.
    `principal_of(route)`: whose key it has; None where clients have no keys. `payers`: who has sent
    requests lately.
    """

    room_bytes: Callable[[bytes], int]
    payer_of: Callable[[bytes], tuple[str, bool]] = lambda route: ("", False)
    principal_of: Callable[[bytes], str] | None = None
    payers: Shares = field(default_factory=lambda: Shares(PAYER_SHARE))


class Frontend:
    """The clients' side of one node.

    `rng`: where relays' ids begin. `describe()`: what the status says of the node beside its part
    in Raft. `settings`: this node's, as `INSPECT` tells them. `quotas`: what one payer may have.
    `lead` is None until the node is a member. `stopping`: no more requests are taken.
    """

    def __init__(
        self,
        name: str,
        relays_max: int,
        rng: random.Random,
        peers: Peers,
        build: Build,
        routes: ClientRoutes,
        describe: Callable[[], dict[str, Any]],
        settings: Mapping[str, Any],
        quotas: Quotas,
    ) -> None:
        self.lead: MemberServices | None = None
        self.stopping = False
        self.describe, self.settings = describe, settings
        self.meters = Meters()
        self.rates = Rates(quotas)
        self.refusals = Refusals()
        self.principal_of, self.payer_of = routes.principal_of, routes.payer_of
        self.payers = routes.payers
        self._name, self._peers, self._build = name, peers, build
        self._client_room_bytes = routes.room_bytes
        self._relays = Relays(relays_max, rng.getrandbits(RELAY_ID_BITS))
        self._answers: deque[Answer] = deque()
        self._answered: Counter[tuple[str, str | None]] = Counter()
        self._relayed: Outgoing = []
        self._health: Mapping[str, Health] = {}
        self._now_ms = 0.0

    def serve_as(self, services: MemberServices) -> None:
        """Serve clients with what a member has; until then the node joins."""
        self.lead = services

    def stop(self) -> None:
        """Take no more requests but STATUS."""
        self.stopping = True

    def begin_turn(self, now_ms: float, health: Mapping[str, Health]) -> None:
        """Set the time, and what the other members last said of themselves."""
        self._now_ms, self._health = now_ms, health
        for relayed in self._relays.expire(now_ms):
            message = f"{relayed.leader} did not answer in time"
            self._refuse(relayed.route, relayed.request_id, "uncertain", message)

    def room_bytes(self, route: Route) -> int:
        """Return how many bytes of replies may still wait on the way to a client."""
        if isinstance(route, bytes):
            return self._client_room_bytes(route)
        return self._peers.room_bytes(route[0])

    def is_idle(self) -> bool:
        """True when no client waits for a relayed reply, or for one that is made."""
        return len(self._relays) == 0 and not self.has_answers

    @property
    def has_answers(self) -> bool:
        """True while there are answers that `take_replies` left for another turn."""
        return bool(self._answers)

    # --- requests -----------------------------------------------------------------------------

    def take_request(self, route: bytes, frames: Sequence[bytes]) -> None:
        """Take what a client sent to this node: every request gets exactly one reply."""
        refusal = self._over_quota(route, frames)
        if refusal is not None:
            self._refuse(
                route, request_id_of(frames), refusal.code, refusal.message, **refusal.details
            )
            return
        request = self._decode(route, frames)
        if request is None:
            return
        principal = None if self.principal_of is None else self.principal_of(route)
        if request.type == STATUS:
            body = self._status_for(principal)
            self._answers.append(Answer(route, request.request_id, ACK, body))
        elif request.type == INSPECT and request.body["what"] == SETTINGS:
            self._tell_settings(route, request, principal)
        elif not self._serve(route, request, principal):
            self._relay(route, request.request_id, frames, principal)

    def _status_for(self, principal: str | None) -> dict[str, Any]:
        """Return the status, without names of others for who may not see what belongs to others."""
        body = self.status()
        if principal is None or self._may_observe(principal):
            return body
        if "damage" in body:
            body["damage"] = [_without(each, "row") for each in body["damage"]]
        if "settings_differ" in body:
            shown = {peer: _without(each, ADMINS) for peer, each in body["settings_differ"].items()}
            body["settings_differ"] = {peer: each for peer, each in shown.items() if each}
        return body

    def _may_observe(self, principal: str) -> bool:
        """Return whether this node's own state lets somebody see what belongs to others."""
        everything = Request(INSPECT, "", body={"what": CLIENTS})
        return self.lead is not None and not self.lead.broker.forbidden(principal, everything)

    def _tell_settings(self, route: bytes, request: Request, principal: str | None) -> None:
        """Answer with this node's settings whom its own state lets observe, as STATUS does."""
        if self.lead is None and principal is not None:
            message = f"{self._name} does not know yet who may see that"
            details = {"retry_after_ms": ELECTING_RETRY_MS}
            self._refuse(route, request.request_id, "electing", message, **details)
            return
        broker = None if self.lead is None else self.lead.broker
        refused = None if broker is None else broker.forbidden(principal, request)
        if broker is not None and refused is not None:
            assert principal is not None, "who has no key may everything"
            broker.denied.note(principal, refused.details["needs"])
            self._refuse(
                route, request.request_id, refused.code, refused.message, **refused.details
            )
            return
        body = {"settings": self.settings}
        self._answers.append(Answer(route, request.request_id, ACK, body))

    def _over_quota(self, route: bytes, frames: Sequence[bytes]) -> ProtocolError | None:
        payer, is_surplus = self.payer_of(route)
        if is_surplus:
            limit = self.rates.quotas.connections_max
            refusal = exceeded("connections_max", limit, f"{payer} has as many connections")
        else:
            size_bytes = sum(map(len, frames))
            refused = self.rates.take(payer, size_bytes, self._now_ms)
            if refused is None:
                return None
            refusal = refused
        self.refusals.note(payer, refusal.details["quota"])
        return refusal

    def take_relay(self, name: str, message: Relay) -> None:
        """Take a request that another node has passed on; it is not passed on again."""
        route = (name, message.relay_id)
        request = self._decode(route, message.frames)
        if request is None:
            return
        reason = "no leader yet"
        if self._needs_principal and message.principal is None:
            reason = f"{name} did not say who asks"
        elif self._serve(route, request, message.principal):
            return
        details = {"retry_after_ms": ELECTING_RETRY_MS, "leader": self._leader}
        self._refuse(route, request.request_id, "electing", reason, **details)

    @property
    def _needs_principal(self) -> bool:
        """Whether nothing may be carried out of which it is not known who asks.

        A node of an older version does not say it; there is none in a cluster of that level.
        """
        lead = self.lead
        has_keys = self.principal_of is not None
        return has_keys and lead is not None and lead.broker.store.level >= LEVEL_OF_USERS

    def _decode(self, route: Route, frames: Sequence[bytes]) -> Request | None:
        try:
            request = decode_request(frames)
            self.meters.requests[request.type] += 1
            return request
        except ProtocolError as error:
            request_id = request_id_of(frames)
            self._refuse(route, request_id, error.code, error.message, **error.details)
            return None

    def _serve(self, route: Route, request: Request, principal: str | None) -> bool:
        """Serve the request as the leader, or refuse it; False if this node does not serve."""
        if self.stopping:
            self._refuse(route, request.request_id, "shutting_down", "the node is stopping")
            return True
        lead = self.lead
        if lead is None or not lead.raft.serving:
            return False
        waiting_entries = lead.raft.uncommitted_entries
        if waiting_entries >= lead.uncommitted_entries_max:
            message = f"{waiting_entries} entries wait for a majority"
            self._overloaded(route, request.request_id, message, lead.uncommitted_entries_max)
            return True
        reading = lead.broker.request(route, request, self._now_ms, principal)
        if reading is not None:
            lead.broker.await_barrier(reading, lead.raft.ask_barrier(), lead.raft.commit_index)
        return True

    def refuse_relay(self, name: str, message: Relay) -> None:
        """Refuse a request that another node has passed on: too many wait to be looked at."""
        request_id = request_id_of(message.frames)
        what = "too many requests wait at the leader"
        self._overloaded((name, message.relay_id), request_id, what, RELAYS_WAITING_MAX)

    # --- relays -------------------------------------------------------------------------------

    @property
    def _leader(self) -> str:
        return "" if self.lead is None else self.lead.raft.leader

    def _relay(
        self, route: bytes, request_id: str, frames: Sequence[bytes], principal: str | None
    ) -> None:
        leader = self._leader
        if self.lead is None or leader not in self.lead.linked:
            message = f"no connection to the leader {leader}" if leader else "no leader is known"
            details = {"retry_after_ms": ELECTING_RETRY_MS}
            self._refuse(route, request_id, "electing", message, **details)
            return
        if self._peers.room_bytes(leader) <= 0 or self.room_bytes(route) <= 0:
            message = f"too much is under way to {leader} or to this client"
            self._overloaded(route, request_id, message, BULK_BYTES_SERVED)
            return
        relay_id = self._relays.add(route, request_id, leader, self._now_ms, principal)
        if relay_id is None:
            limit = self._relays.limit(principal)
            self._overloaded(route, request_id, "too many relays", limit)
        else:
            if principal is not None and not self._understands_principals(leader):
                principal = None  # nor does it ask who may
            self._peers.send(leader, Relay(relay_id, list(frames), principal))

    def _understands_principals(self, name: str) -> bool:
        hello = self._peers.hello_of(name)
        return hello is not None and hello.extension.build.understands(LEVEL_OF_USERS)

    def take_relay_reply(self, message: RelayReply) -> None:
        """Take the leader's reply to a request that was passed on."""
        relayed = self._relays.finish(message.relay_id)
        if relayed is not None:
            self._relayed.append((relayed.route, list(message.frames)))

    def abandon_relays(self, leader: str) -> None:
        """Answer whoever waits for a leader that is gone."""
        for relayed in self._relays.abandon(leader):
            message = f"{leader} was lost while it held this request"
            self._refuse(relayed.route, relayed.request_id, "uncertain", message)

    # --- replies ------------------------------------------------------------------------------

    def _overloaded(self, route: Route, request_id: str, message: str, limit: int) -> None:
        details = {"limit": limit, "retry_after_ms": RETRY_AFTER_MS}
        self._refuse(route, request_id, "overloaded", message, **details)

    def _refuse(
        self, route: Route, request_id: str, code: str, message: str, **details: Any
    ) -> None:
        self._answers.append(Answer(route, request_id, NAK, nak_body(code, message, **details)))

    def take_replies(self, enough: Callable[[], bool]) -> Outgoing:
        """Return the replies to this node's clients; send the others to the nodes that asked.

        Answers are encoded until `enough()`; the others stay for another turn.
        """
        answers = self._answers
        replies, self._relayed = self._relayed, []
        is_paid = bool(self.rates.quotas.bytes_per_s_max)
        if is_paid:
            for relayed in replies:
                self._spend(*relayed)
        if self.lead is not None:
            answers.extend(self.lead.broker.take_answers())
        meters = self.meters
        meters.leaving.clear()
        if not answers:
            return replies
        leader = self._leader
        term = 0 if self.lead is None else self.lead.raft.term
        while answers:
            answer = answers.popleft()
            route = answer.route
            if answer.type == NAK:
                meters.refused[answer.body["error"]] += 1
            elif answer.put_taken_ms:
                meters.leaving.append(answer.put_taken_ms)
            node = self._name if isinstance(route, bytes) else route[0]
            frames = encode_reply(_reply(answer, node, leader, term))
            if not isinstance(route, bytes):
                self._send_back(answer, *route, frames)
            else:
                replies.append((route, frames))
                # Who is refused for a quota pays nothing: refusals would use up what he waits for.
                if is_paid and answer.body.get("error") != QUOTA:
                    self._spend(route, frames)
            if enough():
                break
        return replies

    def _send_back(self, answer: Answer, node: str, relay_id: int, frames: list[bytes]) -> None:
        """Send a reply to the node that has passed its request on, if that takes replies at all."""
        if sum(map(len, frames)) > SHORT_REPLY_BYTES and self._is_far_behind(node):
            message = f"too many replies wait on the way from {self._name} to {node}"
            self._refuse(answer.route, answer.request_id, "uncertain", message)
        else:
            self._peers.send(node, RelayReply(relay_id, frames))
            self._answered[node, answer.principal] += sum(map(len, frames))

    def take_answered(self) -> Counter[tuple[str, str | None]]:
        """Return how many bytes other nodes were answered since the last call, by principal."""
        answered, self._answered = self._answered, Counter()
        return answered

    def _spend(self, route: bytes, frames: Sequence[bytes]) -> None:
        """Have who asked pay for the bytes of a reply."""
        payer, _ = self.payer_of(route)
        self.rates.spend(payer, sum(map(len, frames)), self._now_ms)

    def _is_far_behind(self, node: str) -> bool:
        return self._peers.room_bytes(node) < BULK_BYTES_SERVED - BULK_BYTES_LONG_REPLIES

    @property
    def relays_waiting(self) -> int:
        """How many requests of this node's clients the leader has not answered yet."""
        return len(self._relays)

    # --- status -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return this node's own view, the body of STATUS."""
        versions = {
            "flotilla": self._build.version,
            "protocol": PROTOCOL_VERSION,
            "levels": _levels(self._build),
        }
        lead = self.lead
        if lead is None:
            return {
                "node": self._name,
                "role": "joining",
                "term": 0,
                "leader": "",
                "versions": versions,
                **self.describe(),
            }
        raft = lead.raft
        # Raft goes on naming a leader that died, as a node without a majority begins no new term.
        is_there = raft.is_leader or raft.leader in lead.linked
        return {
            "node": self._name,
            "role": raft.role,
            "serving": raft.serving,
            "term": raft.term,
            "leader": raft.leader if is_there else "",
            "commit_index": raft.commit_index,
            "applied_index": raft.applied_index,
            "last_index": lead.journal.last_index,
            "first_index": lead.journal.first_index,
            "journal_bytes": lead.journal.size_bytes,
            "disk_low": lead.broker.disk_low,
            "level": lead.broker.store.level,
            "members": {
                name: self._member(lead, name, sighting)
                for name, sighting in sorted(lead.sightings().items())
            },
            "store": lead.broker.store.statistics(),
            "versions": versions,
            **self.describe(),
        }

    def _member(self, lead: MemberServices, name: str, sighting: Sighting) -> dict[str, Any]:
        health = self._health.get(name)
        member: dict[str, Any] = {
            "connected": name in lead.linked,
            "applied_index": None if health is None else health.applied_index,
            "version": None if sighting.build is None else sighting.build.version,
            "levels": None if sighting.build is None else _levels(sighting.build),
            "silent_ms": round(sighting.silent_s * 1000),
        }
        if lead.raft.is_leader:
            match_index = lead.raft.match_index(name)
            member |= {"match_index": match_index, "lag": lead.journal.last_index - match_index}
        return member


def _reply(answer: Answer, node: str, leader: str, term: int) -> Reply:
    body, data = answer.body, answer.data
    return Reply(answer.type, answer.request_id, node, leader, term, body, answer.lengths, data)


def _without(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def _levels(build: Build) -> list[int]:
    return [build.level_min, build.level_max]
