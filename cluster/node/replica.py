"""One node without sockets: what a turn does, in the order that is the contract.

What lives here: the turn of a node, whether it joins (joining.py) or is a member, and its order;
from the turn's entry on that is member.py's. What must not: sockets, poll, signals, threads
(node.py), clocks and randomness (both come in). The simulator and the tests drive this class with
their own `Peers` and `Worker`.

The order of a turn (docs/design.md, section 4) is what the promises rest on: no vote, vote request,
acknowledgment or client's reply leaves before journal.sync() has returned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from cluster.members import about
from cluster.members.about import Facts
from cluster.members.catchup import SnapshotFetch, Worker
from cluster.members.handshake import Reports
from cluster.members.identity import Identity
from cluster.members.neighbours import Neighbours
from cluster.members.peers import Disconnected, Doubled, Event, Peers
from cluster.members.standing import Seniority
from cluster.node import budget
from cluster.node.audit import to_tell
from cluster.node.budget import Budget
from cluster.node.context import DiskRoom, LogEvent, NodeContext, ReplicaSettings
from cluster.node.joining import Joining, MakeMember, open_member
from cluster.node.member import Member
from cluster.serve.frontend import ClientRoutes, Frontend
from cluster.serve.intake import Intake
from cluster.wire.messages import (
    About,
    Health,
    Hello,
    Message,
    MessageError,
    Relay,
    RelayReply,
    SnapshotChunk,
    SnapshotRefused,
)

HEALTH_PERIOD_S: Final = 0.5


class Replica:
    """A node's whole state, moved forward by `turn` and `finish_turn`.

    `identity` is the data directory's; `peers`, `worker` its ways out; `rng` decides election
    time-outs; `new_client_id` makes unguessable ids; `log(event, **fields)` reports what an
    operator wants to know. `clock()`: monotonic seconds as `now`, for a turn's shares (budget.py).
    `routes`: the clients' connections. `make_member`: a simulator has members of its own.

    `frontend` is its clients' side. `part`: what the node is. A turn begins with the question
    whether it has become a member, and nothing else makes it one.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        identity: Identity,
        peers: Peers,
        worker: Worker,
        rng: random.Random,
        new_client_id: Callable[[], str],
        log: LogEvent,
        now: float,
        clock: Callable[[], float],
        routes: ClientRoutes,
        make_member: MakeMember = Member,
    ) -> None:
        self.clock, self.settings = clock, settings
        self.intake = Intake(routes.payers)
        self.frontend = Frontend(
            settings.name,
            settings.relays_max,
            rng,
            peers,
            settings.build,
            routes,
            lambda: self.part.describe(),
            settings.in_force,
            settings.quotas,
        )
        self._peers, self._log, self._now = peers, log, now
        self._neighbours = Neighbours(
            settings.others, settings.announced, peers, now, settings.http
        )
        self._fetch = SnapshotFetch(settings.database.parent, worker, peers.send, log)
        self._reports = Reports()
        self._next_health_s = now
        self._told_low = False
        self._room: DiskRoom | None = None  # that the member knows of
        self._more_messages = self._behind = False
        self._step_messages = max(1, len(settings.others))  # one of each, so that none waits long
        heartbeat_s = settings.timing.heartbeat_s
        self._hearing = Budget(clock, budget.PEERS_SHARE * heartbeat_s)
        self._requests = Budget(clock, budget.REQUESTS_SHARE * heartbeat_s)
        self._replies = Budget(clock, budget.REPLIES_SHARE * heartbeat_s)
        context = NodeContext(
            settings,
            peers,
            worker,
            rng,
            new_client_id,
            log,
            clock,
            self.frontend,
            self._neighbours,
            Seniority(settings.takeover_s, now),
            self._fetch,
            self._reports,
        )
        if identity.started:
            self._take_part(open_member(context, identity, now, make_member))
        else:
            joining = Joining(context, identity, make_member)
            self._take_part(joining.join(now) or joining)

    def _take_part(self, part: Joining | Member) -> None:
        self.part = part
        self.member = part if isinstance(part, Member) else None

    @property
    def identity(self) -> Identity:
        """The data directory's."""
        return self.part.identity

    def hello(self) -> Hello:
        """Return what this node says of itself to its peers."""
        return self.part.hello()

    # --- the turn -----------------------------------------------------------------------------

    def turn(
        self, now: float, requests: Sequence[tuple[bytes, Sequence[bytes]]]
    ) -> list[tuple[bytes, list[bytes]]]:
        """Take what has come in, and return the replies that may leave now.

        `now`: monotonic seconds. `requests`: (client's connection, frames without delimiter).
        """
        if now - self._now > self.settings.takeover_s / 2:
            self._neighbours.count_silence_from(now)  # this node was away and heard nobody
        self._now = now
        # Answers of earlier turns are encoded before new ones are made. This turn's don't count:
        # refusals that are made at once would keep everything else from being served.
        self._behind = self.frontend.has_answers
        self._hearing.begin()
        messages = self._peers.receive(self._step_messages)
        part = self.part.begin_turn(now, self._take_events())
        if part is not self.part:
            self._take_part(part)
        member = self.member
        self._take_messages(messages, member)
        if member is not None:
            member.watch_leadership()
        self.frontend.begin_turn(now * 1000, self._neighbours.health)
        self.intake.add_clients(requests, now)
        if not self._behind:
            self._take_requests()
        if member is not None:
            member.drive(may_answer=not self._behind)
        self._replies.begin()
        replies = self.frontend.take_replies(self._replies.spent)
        self._peers.flush(None)
        return replies

    def finish_turn(self, room: DiskRoom) -> None:
        """Do what nobody waits for: commit the store's transaction, collect garbage, tell peers.

        `room`: what this node's disk has room for.
        """
        self._fetch.tick(self._now)
        member = self.member
        if member is not None:
            member.finish_turn()
            if room is not self._room:  # the disk was looked at, or a peer has said how it is
                self._room = room
                member.note_room(room)
        # At once if its disk is short of room, or is no more: others publish on the word of this.
        if self._now >= self._next_health_s or room.is_low != self._told_low:
            self._told_low = room.is_low
            self._next_health_s = self._now + HEALTH_PERIOD_S
            digests = {} if member is None else to_tell(member.store.audit.marks)
            for name in self.settings.others:
                facts = self._neighbours.facts_for(name, self._now, digests)
                self._peers.send(name, about.encode(facts))
            if member is not None:
                member.tell_health(room.is_low)
        self._peers.flush(None)
        ended = self.clock()
        turn_s = ended - self._now
        self.intake.end_turn(turn_s, ended, self.frontend.take_answered())
        if member is not None:
            member.broker.end_turn(turn_s, ended)

    def next_deadline(self) -> float:
        """Return when the rest of somebody whose requests wait here ends; infinity: nobody's."""
        of_intake = self.intake.next_deadline()
        if self.member is None:
            return of_intake
        return min(of_intake, self.member.broker.next_deadline())

    @property
    def stored(self) -> int:
        """How many publications this node has stored since it opened its store."""
        return 0 if self.member is None else self.member.store.added()[0]

    @property
    def busy(self) -> bool:
        """True when a turn is due at once, whether or not anything comes in."""
        if self._more_messages or self.intake.is_due or self.frontend.has_answers:
            return True
        return self.member is not None and self.member.busy

    def may_stop(self) -> bool:
        """Return True when everything is answered and, if possible, another node leads.

        Call after `frontend.stop()`; each call on an idle leader offers leadership.
        """
        if self.member is None:
            return True
        if self.intake or self.frontend.has_answers:
            return False
        return self.member.may_stop()

    def close(self) -> None:
        """Close the files of a node that stops in order."""
        if self.member is not None:
            self.member.close()

    # --- peers and clients --------------------------------------------------------------------

    def _take_events(self) -> list[Event]:
        """Return what has happened to the connections, when all that a node knows of it is done."""
        events = list(self._peers.events())
        for event in events:
            level = self._neighbours.note(event, self._now)
            if level:
                self._log(f"peer_{type(event).__name__.lower()}", level=level, **asdict(event))
            if isinstance(event, Doubled):
                self._tell_of_double(event)
            elif isinstance(event, Disconnected):
                self._fetch.lost(event.name)
                self.frontend.abandon_relays(event.name)
        return events

    def _tell_of_double(self, event: Doubled) -> None:
        double = (
            f"{self.settings.name} has refused a process at {event.address}, incarnation "
            f"{event.incarnation}, that says it is {event.name}"
        )
        self._peers.send(event.name, about.encode(Facts(double=double)))

    def _take_messages(self, messages: list[tuple[str, Message]], member: Member | None) -> None:
        """Take these and what else peers sent; what there is no time for waits where it is.

        A connection that has begun in this turn has had its event before: later ones begin in
        between turns.
        """
        while True:
            for name, message in messages:
                if member is not None:
                    member.hear(name)
                handler = _MESSAGES.get(type(message))
                if handler is not None:
                    handler(self, name, message)
                else:
                    self.part.take_message(name, message)
            self._more_messages = len(messages) == self._step_messages
            if not self._more_messages or self._hearing.spent():
                return
            messages = self._peers.receive(self._step_messages)

    def _take_requests(self) -> None:
        if not self.intake:
            return
        self._requests.begin()
        self.intake.begin_turn(self._now)
        while (taken := self.intake.take()) is not None:
            sender, what = taken
            if isinstance(what, Relay):
                assert isinstance(sender, str), sender
                self.frontend.take_relay(sender, what)
            else:
                assert isinstance(sender, bytes), sender
                self.frontend.take_request(sender, what)
            if self._requests.spent():
                return

    def _take_health(self, name: str, message: Health) -> None:
        self._neighbours.take_health(name, message)
        self._room = None

    def _take_about(self, name: str, message: About) -> None:
        try:
            facts = about.decode(message)
        except MessageError as error:
            self._log("about_unreadable", level="warning", peer=name, reason=str(error))
            return
        for event, fields in self._neighbours.take(name, facts, self._now):
            self._log(event, **fields)
        if self.member is not None and facts.digests:
            self.member.compare_state(name, facts.digests)

    def _queue_relay(self, name: str, message: Relay) -> None:
        if not self.intake.add_relay(name, message, self._now):
            self.frontend.refuse_relay(name, message)

    def _take_snapshot_refused(self, name: str, message: SnapshotRefused) -> None:
        # It is asked for until it is given; why it is not may change.
        if self._reports.due(f"copy {name} {message.reason}", self._now):
            self._log("copy_refused", node=name, reason=message.reason)
        self._fetch.refused(name, self._now)


_MESSAGES: Final[dict[type, Callable[[Replica, str, Any], None]]] = {
    About: Replica._take_about,
    Health: lambda replica, name, message: replica._take_health(name, message),
    Relay: Replica._queue_relay,
    RelayReply: lambda replica, name, message: replica.frontend.take_relay_reply(message),
    SnapshotChunk: lambda replica, name, message: replica._fetch.take_chunk(
        name, message, replica._now
    ),
    SnapshotRefused: Replica._take_snapshot_refused,
}
