"""What a client is to be given that reads where it likes, by the log alone.

What lives here: each hand-over, read and gap held against what the log has at those ids, and
against where the log has placed the subscription. What must not: what the traveller does
(clients/traveller.py), any reply.

Each placement of a subscription, by the entry that made it, is a reading of its own: it begins
behind the cursor that the entry set, goes on without a hole but for what is gone, and nothing that
was read elsewhere acknowledges anything in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from chaos.simulation.checks.clients_upkeep import ClientsUpkeep
from chaos.simulation.checks.message_rules import MessageRules
from chaos.simulation.checks.promises import EXPLAINED, Promises
from chaos.simulation.checks.reads import ReadChecks
from chaos.simulation.checks.reference import Reference
from chaos.simulation.clients.clients import Process
from chaos.simulation.clients.replayer import TELL_OF_GONE
from chaos.simulation.clients.traveller import TRAVELLER
from flotilla_client import AlreadyAcknowledged, FlotillaError, Operation, Outcome, SubscribeResult
from flotilla_client.properties import Properties, decode
from flotilla_client.protocol import Reply, Request, has_wildcard
from flotilla_client.reading import Delivery
from flotilla_client.rows import TopicInfo

NOTHING_MAX: Final = 3  # GETs in a row that bring nothing where something is: a move is told once
LOOKED_MAX: Final = 200  # ids of a gap that are looked at, from either end
# What somebody hears who asks for what is not there, or not yet, or not for him.
ASKED_FOR: Final = frozenset(
    {
        "already_acknowledged",
        "bad_request",
        "gap",
        "not_subscribed",
        "purged",
        "too_many",
        "unknown_topic",
        "unsupported",
    }
)

Fail = Callable[[str, str], None]
# A reading: client id, topic, the entry that placed the subscription (0: it began at the end), and
# how many of the topic had ended before.
Reading = tuple[str, str, int, int]


class Travels:
    """Hears of a traveller; implements `traveller.TravelHearer` and `clients.Watcher`.

    `rovers`: clients that need not acknowledge in order; `explained`: errors of the run's settings.
    """

    def __init__(
        self,
        fail: Fail,
        reference: Reference,
        promises: Promises,
        reads: ReadChecks,
        messages: MessageRules,
        upkeep: ClientsUpkeep,
        rovers: set[str],
        explained: frozenset[str],
    ) -> None:
        self._fail, self._reference, self._promises = fail, reference, promises
        self._reads, self._messages, self._upkeep = reads, messages, upkeep
        self._rovers, self._explained = rovers, explained | EXPLAINED | ASKED_FOR
        self._given: dict[Reading, int] = {}  # up to where it was handed over, or told gone
        self._done: dict[Reading, int] = {}  # up to where the application is done
        self._in_hand: dict[str, tuple[Process, Reading, int]] = {}  # by topic
        self._newest: dict[str, Reading] = {}  # by topic: the one that it was told of last
        self._doubtful: set[str] = set()  # topics and patterns that it may subscribe to, or not
        self._ends: dict[str, int] = {}  # by topic, of its own: the highest id that it was told
        self._nothing: dict[str, int] = {}  # by topic: GETs in a row that brought nothing
        self._ahead: set[tuple[str, str, int]] = set()  # which process was told where it stands

    # --- what its processes do --------------------------------------------------------------------

    def invoked(self, process: Process, operation: Operation) -> None:
        """See `clients.Watcher`."""
        self._rovers.add(operation.client_id)

    def completed(self, process: Process, operation: Operation, outcome: Outcome) -> None:
        """See `clients.Watcher`."""
        self._upkeep.answered(process)
        if operation.f == "put" and outcome.first_id:  # the others' are known to `promises`
            last_id = outcome.first_id + (operation.count or 0) - 1
            self._ends[operation.topic] = max(last_id, self._ends.get(operation.topic, 0))

    def asked(self, request_id: str) -> None:
        """See `clients.Watcher`."""
        self._reads.asked(request_id)
        self._messages.asked(request_id)

    def failed(self, name: str, error: FlotillaError) -> None:
        """See `clients.Watcher`."""
        self._messages.failed(name, error)

    def gave_up(self, process: Process, error: FlotillaError, left_ms: float) -> None:
        """See `clients.Watcher`."""
        self._promises.gave_up(process, error, left_ms)

    def denied(self, request: Request, reply: Reply) -> None:
        """See `clients.Watcher`."""
        self._messages.denied(request, reply)

    def took(self, process: Process, seconds: float) -> None:
        """See `clients.Watcher`."""
        self._promises.took(process, seconds)

    def opened(self, process: Process) -> None:
        """See `clients.Watcher`."""
        self._in_hand.clear()

    def life(self, client: str, what: str) -> None:
        """See `clients.Watcher`: what a process that has ended was about to hear is in doubt."""
        if what == "crashed":
            self._doubtful.add("")

    def refused(self, client: str, error: FlotillaError) -> None:
        """Judge an error that its application got."""
        if error.code not in self._explained:
            self._fail("unexpected", f"{client} got {error.code}: {error.message}")

    # --- subscriptions ----------------------------------------------------------------------------

    def end_of(self, topic: str) -> int:
        """See `traveller.TravelHearer`."""
        return self._reference.last_id_at(topic, self._reference.applied_index)

    def known_ends(self) -> Mapping[str, int]:
        """See `traveller.TravelHearer`."""
        return {**self._promises.known(), **self._ends}

    def subscribed(self, process: Process, topic: str, result: SubscribeResult, had: int) -> None:
        """Check behind which id a SUB says that it delivers."""
        self._doubtful -= {topic, ""}
        if has_wildcard(topic):
            return
        if not result.resumed:
            self._begin(process, topic)
        elif result.last_id < had:
            text = f"{process.name} subscribes to {topic} again behind {result.last_id}"
            self._fail("travels", f"{text}, and is done with {had}")
        self._stands(process, topic)

    def sought(self, process: Process, topic: str, start: str | int, cursor: int) -> None:
        """Check where a SEEK says that it has placed a subscription."""
        self._doubtful -= {topic, ""}
        self._begin(process, topic)
        state = process.session.state
        if type(start) is int and cursor != start - 1:
            self._fail("travels", f"{process.name} seeks {start} of {topic}, told {cursor}")
        if state.cursor(topic) != cursor:
            text = f"{process.name} has sought {topic} behind {cursor}"
            self._fail("travels", f"{text}, and stands at {state.cursor(topic)}")
        self._stands(process, topic)

    def in_doubt(self, process: Process, topic: str) -> None:
        """See `traveller.TravelHearer`."""
        self._doubtful.add(topic)
        self._begin(process, topic, is_known=False)

    def left(self, process: Process, topic: str) -> None:
        """Check that what has ended does not stand."""
        self._doubtful -= {topic, ""}
        state = process.session.state
        if topic in state.patterns():
            self._fail("travels", f"{process.name} has left {topic}, and follows it")
        if not has_wildcard(topic):
            self._begin(process, topic, is_known=False)

    def gone(self, process: Process) -> None:
        """Check that who has left everything has nothing, and knows it."""
        state, client_id = process.session.state, process.session.state.client_id
        client = self._reference.clients.get(client_id)
        kept = {*state.cursors(), *state.patterns()}
        if kept:
            self._fail("travels", f"{process.name} has left everything, and keeps {sorted(kept)}")
        if client is not None:
            own = {*client.topics_at(self._reference.applied_index), *client.patterns.now}
            if own:
                text = f"{process.name} has left everything, and subscribes to {sorted(own)}"
                self._fail("travels", text)

    def begun_anew(self) -> None:
        """See `traveller.TravelHearer`."""
        for table in (self._given, self._done, self._in_hand, self._newest, self._nothing):
            table.clear()
        self._doubtful.clear()

    def stands(self, process: Process) -> None:
        """Check where a process takes its subscriptions to stand, behind a success."""
        state = process.session.state
        client = self._reference.client(state.client_id)
        if client is None or not process.session.operations.is_open:
            return
        for topic in state.cursors():
            self._stands(process, topic)
        if not self._doubtful and state.patterns().keys() != client.patterns.now.keys():
            text = f"{process.name} follows {sorted(state.patterns())}"
            self._fail("travels", f"{text}, and subscribes to {sorted(client.patterns.now)}")

    def _stands(self, process: Process, topic: str) -> None:
        """Check that it acknowledges, of a reading, only what it was given in it."""
        state, place = process.session.state, self._reading(process, topic)
        cursor = state.cursor(topic)
        if cursor is None:
            return
        begin = self._begins(place)
        if begin is None:
            return
        given = max(begin, self._given.get(place, 0))
        if cursor < begin or self._kept(topic, given + 1, cursor):
            text = f"{process.name} stands at {cursor} of {topic}, placed at {begin}"
            self._fail("travels", f"{text} by entry {place[2]}, and was given up to {given}")

    def _begin(self, process: Process, topic: str, is_known: bool = True) -> None:
        """Begin a new reading: of what it was given before nothing follows."""
        self._in_hand.pop(topic, None)
        self._nothing.pop(topic, None)
        for table in (self._given, self._done):
            for place in [each for each in table if each[1] == topic and not each[2]]:
                del table[place]
        self._newest.pop(topic, None)
        if is_known:
            self._newest[topic] = self._reading(process, topic)

    def _reading(self, process: Process, topic: str, placed: int | None = None) -> Reading:
        state = process.session.state
        client = self._reference.clients.get(state.client_id)
        ended = 0 if client is None else len(client.ended.get(topic, ()))
        return state.client_id, topic, state.placed(topic) if placed is None else placed, ended

    def _begins(self, place: Reading) -> int | None:
        """Return behind which id a reading begins; None: at the end, or it has ended since."""
        client_id, topic, placed, _ = place
        client = self._reference.clients.get(client_id)
        if not placed or client is None:
            return None
        if client.has_left_between(topic, placed, self._reference.applied_index):
            return None
        return self._reference.cursor_at(client_id, topic, placed)

    # --- what is handed over ----------------------------------------------------------------------

    def got(
        self,
        process: Process,
        topic: str | None,
        ends: Mapping[str, int],
        delivery: Delivery | None,
    ) -> None:
        """Check that a delivery is what comes next."""
        self._came_back(process, topic)
        if delivery is None:
            if topic is not None:
                self._nothing_came(process, topic, ends.get(topic, 0))
            return
        name, first_id = delivery.topic, delivery.first_id
        self._nothing.pop(name, None)
        place = self._reading(process, name, delivery.placed)
        who = f"{process.name} is given {name} {first_id}"
        newest = self._newest.get(name, place)
        if newest[:2] + newest[3:] == place[:2] + place[3:] and delivery.placed < newest[2]:
            text = f"asked for as entry {delivery.placed} has placed it, and was moved since"
            self._fail("travels", f"{who}, {text}")
        begin, given = self._begins(place), self._given.get(place)
        if given is None:
            given = begin
        if given is not None and self._kept(name, given + 1, first_id - 1):
            self._fail("travels", f"{who}, and {given} is what it had")
        done = max(begin or 0, self._done.get(place, 0))
        if first_id <= done:
            self._fail("travels", f"{who}, and is done with {done}")
        again = min(self._given.get(place, 0), delivery.last_id) - first_id + 1
        if again > delivery.redelivered_count:
            self._fail("travels", f"{who} again, it had {given}, and is not told")
        self._given[place] = max(given or 0, delivery.last_id)
        self._in_hand[name] = process, place, delivery.last_id
        self._judge(who, delivery)

    def _nothing_came(self, process: Process, topic: str, end: int) -> None:
        state = process.session.state
        cursor, reference = state.cursor(topic), self._reference
        client = reference.clients.get(state.client_id)
        placed = None if client is None else client.placed.get(topic)
        if placed is not None and placed.now != state.placed(topic):  # it has yet to hear of that
            cursor = reference.cursor_at(state.client_id, topic, reference.applied_index)
        if cursor is None or not self._kept(topic, cursor + 1, end):
            self._nothing.pop(topic, None)
            return
        self._nothing[topic] = self._nothing.get(topic, 0) + 1
        if self._nothing[topic] >= NOTHING_MAX:
            text = f"{process.name} stands at {cursor} of {topic}, and is given nothing"
            self._fail("travels", f"{text}: {end} was acknowledged before")

    def _came_back(self, process: Process, topic: str | None) -> None:
        """Take it that whoever asks again is done with what he was given, where that is "auto"."""
        for name, (owner, place, last_id) in list(self._in_hand.items()):
            if owner is process and topic in (None, name) and self._is_auto(process, name):
                self._done[place] = max(last_id, self._done.get(place, 0))
                del self._in_hand[name]

    @staticmethod
    def _is_auto(process: Process, topic: str) -> bool:
        hand = process.session.operations.readers._hands.get(topic)
        return hand is None or hand.reader.ack == "auto"

    def acknowledged(self, process: Process, topic: str, last_id: int) -> None:
        """See `traveller.TravelHearer`."""
        place = self._reading(process, topic)
        self._done[place] = max(last_id, self._done.get(place, 0))

    def gap_told(self, process: Process, topic: str | None, error: FlotillaError) -> None:
        """Check that what is told as gone is what comes next, and is gone."""
        self._came_back(process, topic)
        details = error.details
        if isinstance(error, AlreadyAcknowledged):
            self._told_ahead(process, details["topic"], details["cursor"])
        if error.code not in TELL_OF_GONE or "last_id" not in details:
            return
        name, first_id = details["topic"], details["first_id"]
        self._gap(f"{process.name} is told that {name}", error)
        cursor = process.session.state.cursor(name) or 0
        place = self._reading(process, name)
        given = self._given.get(place, self._begins(place))
        # What has expired or is compacted away is passed without a word (seed 29110105).
        is_skipped = given is not None and self._lasting(name, given + 1, first_id - 1)
        if first_id <= cursor or is_skipped:
            text = f"{process.name} is told that {name} is gone from {first_id} on"
            self._fail("travels", f"{text}: it stands at {cursor}, and had {given}")
        self._given[place] = max(details["last_id"], given or 0)

    def _told_ahead(self, process: Process, topic: str, cursor: int) -> None:
        """Check that who hears once that he stands further was ended, and brought again."""
        state, who = process.session.state, (process.name, topic, cursor)
        client = self._reference.clients.get(state.client_id)
        text = f"{process.name} stands at {state.cursor(topic)} of {topic}, told {cursor}"
        if cursor <= (state.cursor(topic) or 0) or client is None or not client.ended.get(topic):
            self._fail("travels", f"{text}: its subscription has stood all along")
        if who in self._ahead:
            self._fail("travels", f"{text} once more")
        self._ahead.add(who)

    def _gap(self, who: str, error: FlotillaError) -> None:
        details = error.details
        name, first_id, last_id = details["topic"], details["first_id"], details["last_id"]
        said = f"{who} is gone from {first_id} to {last_id}"
        if details.get("missed", last_id + 1 - first_id) != last_id + 1 - first_id:
            self._fail("travels", f"{said}, which are said to be {details['missed']}")
        if first_id > last_id:
            self._fail("travels", said)
        floor = self._reference.first_id_at(name, self._reference.applied_index)
        if last_id >= floor and self._kept(name, max(first_id, floor), last_id):
            self._fail("travels", f"{said}, and it is not")

    # --- what is read by id -----------------------------------------------------------------------

    def was_read(
        self,
        topic: str,
        from_id: int,
        max_count: int,
        end: int,
        deliveries: Sequence[Delivery],
    ) -> None:
        """Check that a READ brings what comes next, of all that is there."""
        next_id, who = from_id, f"{TRAVELLER} reads {topic} from {from_id} on"
        for delivery in deliveries:
            if delivery.first_id < next_id:
                self._fail("travels", f"{who}, and is given {delivery.first_id}")
            elif self._kept(topic, next_id, delivery.first_id - 1):
                self._fail("travels", f"{who}: {delivery.first_id} comes next to {next_id - 1}")
            next_id = delivery.last_id + 1
            self._judge(who, delivery)
        count = sum(len(delivery.publications) for delivery in deliveries)
        if count > max_count:
            self._fail("travels", f"{who}, {max_count}, and is given {count}")
        if not count and self._kept(topic, from_id, end):
            self._fail("travels", f"{who}, and nothing is there: {end} was acknowledged before")

    def not_read(self, topic: str, from_id: int, error: FlotillaError) -> None:
        """Check what a READ is told is gone."""
        details = error.details
        if error.code in TELL_OF_GONE and "last_id" in details:
            self._gap(f"{TRAVELLER}, who reads from {from_id} on, is told that {topic}", error)
            if details["first_id"] != from_id:
                text = f"{TRAVELLER} reads {topic} from {from_id} on"
                self._fail("travels", f"{text}, told of what is gone from {details['first_id']}")

    def listed(self, rows: Sequence[TopicInfo], cursors: Mapping[str, int]) -> None:
        """Check that a client's own listing says where it stands."""
        for row in rows:
            if (row.cursor or 0) < cursors.get(row.topic, 0):
                text = f"{TRAVELLER} stands at {cursors[row.topic]} of {row.topic}"
                self._fail("travels", f"{text}, and is told {row.cursor}")

    # --- what the log has -------------------------------------------------------------------------

    def _kept(self, topic: str, first_id: int, last_id: int) -> int:
        """Return an id of a span that is still there, 0 if all of them are gone."""
        reference = self._reference
        index = reference.applied_index
        found = reference.topics.get(topic)
        if found is None:
            return 0
        first_id = max(first_id, reference.gone_at(topic, index) + 1)
        return self._lasting(topic, first_id, min(last_id, found.last_id.now))

    def _lasting(self, topic: str, first_id: int, last_id: int) -> int:
        """Return an id of a span that has not expired, nor is compacted away; 0 if all are."""
        reference, index = self._reference, self._reference.applied_index
        return next(
            (
                id_
                for id_ in _ends_of(first_id, last_id)
                if not reference.is_over_at(topic, id_, index)
                and not reference.is_compacted_at(topic, id_, index)
            ),
            0,
        )

    def _judge(self, who: str, delivery: Delivery) -> None:
        """Check that publications have what the log has at their ids, and their time."""
        found = self._reference.topics[delivery.topic]
        for message in delivery:
            _, stored = found.publications[message.id]
            size = found.enveloped.get(message.id, 0)
            own = decode(stored)[0] if size else Properties()
            if message.publication != stored[size:]:
                self._fail("travels", f"{who}: {message.id} is not what the log has there")
            durations = message.expires_ms or 0, message.deliver_after_ms or 0
            given = Properties(message.key, message.headers, *durations)
            if given != own:
                self._fail("properties", f"{who}: {message.id} has {given}, the log {own}")
            at_ms = self._reference.timestamp_of(delivery.topic, message.id)
            if message.timestamp_ms != at_ms:
                text = f"{who}: {message.id} is of {message.timestamp_ms}"
                self._fail("properties", f"{text}, the log says {at_ms}")


def _ends_of(first_id: int, last_id: int) -> Iterable[int]:
    """Return the ids of a span; of a long one those at its ends."""
    if last_id - first_id < 2 * LOOKED_MAX:
        return range(first_id, last_id + 1)
    near, far = range(first_id, first_id + LOOKED_MAX), range(last_id - LOOKED_MAX, last_id + 1)
    return (*near, *far)
