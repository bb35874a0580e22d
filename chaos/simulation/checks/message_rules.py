"""What nodes say, held against what they have when it arrives (rules 7, 11 and 26 of docs/raft.md).

What lives here: the claims in messages: "I have everything up to here", "I am in this term",
"I am a member again"; and the one to a client that a log can contradict: "this has not happened".
What must not: claims that later answers contradict (promises.py), what nodes do in a turn
(invariants.py).

An acknowledgment that lies is damage long before a publication is lost by it: that takes one more
crash, at the right node and moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from chaos.simulation.checks.headers import header_of
from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.disks.durable import DurableLog
from chaos.simulation.world.builds import NEXT
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from cluster.log.entries import payload_of
from cluster.store import commands
from cluster.store.commands import Operation, Subscribe, Unsubscribe
from cluster.wire.messages import AppendEntriesResponse, Message, RequestVote, RequestVoteResponse
from flotilla_client.errors import FlotillaError
from flotilla_client.protocol import ACK, ERRORS, SUB, UNSUB, Reply, Request
from flotilla_client.retry import ON_NAK, is_definite


class MessageRules:
    """Watches the messages of a world; tells `invariants` of those that are not true."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world, self._invariants = world, invariants
        self._attempts: dict[str, set[str]] = {}  # by exchange: requests without a certain refusal
        world.net.taps.append(self._hear)
        world.reply_taps.append(self._replied)
        world.observers.append(self._observe)

    def asked(self, request_id: str) -> None:
        """Take note that an attempt of an exchange has left."""
        self._attempts.setdefault(_exchange_of(request_id), set()).add(request_id)

    def _replied(self, node: str, route: str, frames: Sequence[bytes]) -> None:
        header = header_of(frames)
        attempts = self._attempts.get(_exchange_of(header["request_id"]))
        if attempts and header["type"] != ACK and _is_certain(header["body"]):
            attempts.discard(header["request_id"])

    def failed(self, name: str, error: FlotillaError) -> None:
        """Check that an exchange's error is certain only if each of its attempts is.

        What a node has refused for certain counts, also if its client has not heard of it.
        """
        left = self._attempts.pop(name, set())
        if error.definite and left and not self._world.net.doubled:
            text = f"{name} is {error.code}, for certain, and nobody has refused {sorted(left)}"
            self._invariants.fail("definite", text)

    def denied(self, request: Request, reply: Reply) -> None:
        """Check that what is refused for certain waits for a majority in nobody's log.

        `reply`: to the first attempt of a request that has a sequence, which nothing else has. What
        comes of applying it is not meant: that is in the log, and refused. Nor is one of two
        requests that the network has made of one: a connection does not.
        """
        code = str(reply.body.get("error"))
        if code not in ON_NAK or not is_definite(reply) or self._world.net.doubled:
            return
        for node in self._world.nodes.values():
            if (index := _waiting_at(node, request)) is not None:
                text = f"{request.type} of {request.client_id} for {request.topic} is {code}"
                where = f"it stands in the log of {node.name}, at {index}"
                self._invariants.fail("definite", f"{text}, for certain, and {where}")

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "readmitted":
            self._readmitted(self._world.machine(fields["node"]))

    def _readmitted(self, node: SimNode) -> None:
        """Check that who says to be a member again has the entry that says so (rule 26)."""
        member = node.opened  # it says so while it begins
        assert member is not None, node.name
        own, admitted = member.identity.incarnation, member.store.members.get(node.member)
        if own != admitted:
            text = f"{node.name} takes part as {own}, its copy of the store knows it as {admitted}"
            self._invariants.fail("admitted", text)

    def _hear(self, source: str, target: str, message: Message) -> None:
        judge = _JUDGES.get(type(message))
        if judge is not None and (source in self._world.nodes or source in self._world.doubles):
            judge(self, self._world.machine(source), message)

    def _acknowledged(self, node: SimNode, message: AppendEntriesResponse) -> None:
        index = message.next_index - 1
        if not message.success or (node.up and node.durable_index >= index):
            return
        log = DurableLog(node.disk)
        last_index = max(log.terms, default=0)
        # In a later term it may have been told to drop what it has acknowledged in this one.
        if log.term == message.term and last_index < index:
            text = f"{node.name} acknowledges up to {index}, on its disk are {last_index}"
            self._invariants.fail("durable", text)

    def _in_term(self, node: SimNode, message: RequestVoteResponse | RequestVote) -> None:
        if node.up and node.disk.is_synced:
            return
        log = DurableLog(node.disk)
        if log.terms and log.term < message.term:
            text = f"{node.name} votes in term {message.term}, on its disk is {log.term}"
            self._invariants.fail("hard_state", text)


def _exchange_of(request_id: str) -> str:
    return request_id.rpartition(".")[0]


def _is_certain(body: Mapping[str, Any]) -> bool:
    """Return whether a refusal says that its request was not carried out, by itself or its code."""
    said, known = body.get("definite"), ERRORS.get(str(body.get("error")))
    return bool(said) if said is not None else known is not None and known.definite


# A process may take a sequence again that the one before it has used for something else.
_CONTROLS: Final[dict[str, type[Subscribe] | type[Unsubscribe]]] = {
    SUB: Subscribe,
    UNSUB: Unsubscribe,
}
_JUDGES: Final[dict[type, Any]] = {
    AppendEntriesResponse: MessageRules._acknowledged,
    RequestVoteResponse: MessageRules._in_term,
    RequestVote: MessageRules._in_term,
}


def _waiting_at(node: SimNode, request: Request) -> int | None:
    """Return the index of the entry, not yet applied, that holds the request's operation."""
    member = node.as_member
    # To read what is damaged would end the node, and only its own reads may.
    if member is None or node.disk_faults:
        return None
    journal = member.journal
    begin = max(member.store.applied_index + 1, journal.first_index)
    for index in range(begin, journal.last_index + 1):
        payload = payload_of(journal.entry(index))
        operations = commands.decode(payload, NEXT.level_max)[1] if payload else ()
        if any(_is_asked_by(operation, request) for operation in operations):
            return index
    return None


def _is_asked_by(operation: Operation, request: Request) -> bool:
    asked = _CONTROLS.get(request.type)
    return (
        asked is not None
        and isinstance(operation, asked)
        and operation.client_id == request.client_id
        and operation.topic == request.topic
        and operation.sequence == request.body.get("sequence")
    )
