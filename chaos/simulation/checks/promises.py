"""What clients may rely on, checked with each answer that one of them gets.

What lives here: claims that can be judged from what the clients sent and were told, and that the
history (analytics.twins) is too coarse for. What must not: nodes (invariants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.checks.reads import ReadChecks
from chaos.simulation.checks.subscriptions import MISSING, Subscriptions
from chaos.simulation.clients.clients import Process
from chaos.simulation.clients.replayer import TELL_OF_GONE
from chaos.workloads.payload import BadPayload, check, is_delayed
from flotilla_client import FlotillaError, Losses, Operation, Outcome
from flotilla_client.operations import REFUSED_FOREVER
from flotilla_client.properties import Publication
from flotilla_client.protocol import lane_of
from flotilla_client.reading import Delivery
from flotilla_client.retry import BACKOFF_MS_MAX, JITTER, RETRY_AFTER_MS_MAX

# Errors that faults explain. `fenced` and `stale_request` only for who has, or is, a copy;
# `not_subscribed`, `unknown_topic` only for who unsubscribes: an answer to that may get lost.
EXPLAINED: Final = frozenset(
    {"unavailable", "overloaded", "quota", "backlog_full", "disk_full", "no_subscribers"}
)
OF_COPIES: Final = frozenset({"fenced", "stale_request"})
OF_LEAVERS: Final = MISSING
OF_FAILING_DISKS: Final = frozenset({"state_unusable"})

# Quotas of what frees itself: readers catch up, waits end, time passes.
FREE_THEMSELVES: Final = frozenset(
    {
        "bytes_per_s_max",
        "names_per_hour_max",
        "parked_gets_max",
        "requests_per_s_max",
        "unread_bytes_max",
    }
)
BESIDES_S_MAX: Final = 2.5  # of an operation: a GET's wait, or what callers come apart by

Counted = tuple[str, str, int]  # (client_id, topic, counter)
Standing = tuple[str, int, int]  # (client_id, epoch, sequence)


def _standing(process: Process) -> Standing:
    state = process.session.state
    return state.client_id, state.epoch, state.sequence


class Promises:
    """Watches the clients; implements `crowd.Witness`.

    `leavers`: the clients that unsubscribe; `manual`: those that acknowledge by hand;
    `at_most_once`: those that do before they are handed anything.
    `is_doubling`: see `Subscriptions`. `of_limits`: the errors that the plan's limits explain.
    """

    def __init__(
        self,
        invariants: Invariants,
        reads: ReadChecks,
        leavers: frozenset[str],
        manual: frozenset[str],
        is_doubling: Callable[[], bool],
        of_limits: frozenset[str] = frozenset(),
        at_most_once: frozenset[str] = frozenset(),
    ) -> None:
        self._invariants, self._reads = invariants, reads
        self._leavers, self._manual, self._of_limits = leavers, manual, of_limits
        self._at_most_once = at_most_once
        self._copied: set[str] = set()
        self._gone: dict[tuple[str, str], int] = {}  # by client and topic: told that it is purged
        self._with_failing_disk: set[str] = set()
        # By whose state directory it is in; several, if the disk left open which of them is there.
        self._made: dict[tuple[str, Counted], tuple[bytes, ...]] = {}
        self._denied: set[tuple[str, bytes]] = set()  # (topic, publication), refused for certain
        self._acknowledged: dict[Counted, tuple[bytes, ...]] = {}
        self._delivered: dict[Counted, bytes] = {}
        self._given: dict[Counted, int] = {}  # ids, 0 for none, as the last answer has them
        self._last_ids: dict[str, int] = {}  # topic -> highest acknowledged
        self._floors: dict[tuple[str, int], int] = {}  # (process, operation) -> the same, before
        self._epochs: dict[str, int] = {}  # client_id -> newest that is in use
        self._late: set[tuple[str, int]] = set()  # operations begun behind a newer epoch
        self._handed_over: dict[tuple[str, str], int] = {}  # by client and topic
        self._asked: dict[tuple[str, str], int] = {}  # the same: highest cursor in a GET
        self._confirmed: dict[tuple[str, str], int] = {}  # the same: in one that was answered
        self._ids: dict[str, str] = {}  # by state directory: whose it is
        self._kept: dict[tuple[str, Counted], bytes] = {}  # by state directory: in the outbox
        self._standing: dict[str, Standing] = {}  # by state directory: when it asked last
        # By state directory, client and topic: the last counter that it asked with.
        self._counted: dict[tuple[str, str, str], int] = {}
        self._forgotten: set[str] = set()  # ids that a client was told to be forgotten
        self._subscriptions = Subscriptions(
            lambda text: self._fail("subscription", text), is_doubling
        )

    # --- what the clients do ----------------------------------------------------------------------

    def invoked(self, process: Process, operation: Operation) -> None:
        """Note what is true before the request leaves."""
        key = (process.name, operation.number)
        if operation.beside is not None:  # it left with that one
            began = (process.name, operation.beside)
            self._floors[key] = self._floors[began]
            if began in self._late:
                self._late.add(key)
            return
        self._floors[key] = self._last_ids.get(operation.topic, 0)
        known = self._ids.get(process.place, operation.client_id)
        if known in self._forgotten:
            known = operation.client_id
        self._ids[process.place] = known
        self._standing[process.place] = _standing(process)
        if known != operation.client_id:
            self._fail("kept", f"{process.name} was {known}, and is {operation.client_id}")
        epoch = process.session.state.epoch
        newest = max(epoch, self._epochs.get(operation.client_id, 0))
        self._epochs[operation.client_id] = newest
        if epoch < newest:
            self._late.add(key)
        if operation.f == "put":
            assert operation.counter is not None, operation
            assert operation.count is not None, operation
            given = (process.place, operation.client_id, operation.topic)
            last = operation.counter + operation.count - 1
            self._counted[given] = max(last, self._counted.get(given, 0))
        if operation.f == "get" and operation.last_id is not None:
            asker = (process.name.partition("/")[0], operation.topic)
            self._asked[asker] = max(operation.last_id, self._asked.get(asker, 0))
        if not self._is_copied(process):
            self._subscriptions.invoked(process.name, operation)

    def opened(self, process: Process) -> None:
        """Judge what a new process finds in its state: what the one before had when it asked.

        A node would tell it some of that anew, and nobody see that it was lost.
        """
        now = _standing(process)
        before = self._standing.get(process.place, now)
        if before[0] == now[0] and (now[1] < before[1] or now[2] < before[2]):
            self._fail("kept", f"{process.name} stood at {before} when it asked, and is at {now}")
        for (place, own, topic), counter in self._counted.items():
            if (place, own) == (process.place, now[0]):
                kept = process.session.state.counter(topic)
                if kept < counter:
                    text = f"{process.name} has given {topic} {counter}, and stands at {kept}"
                    self._fail("kept", text)

    def completed(self, process: Process, operation: Operation, outcome: Outcome) -> None:
        """Judge an answer."""
        key = (process.name, operation.number)
        floor = self._floors.pop(key)
        if not self._is_copied(process):
            self._subscriptions.completed(process.name, operation, outcome)
        if operation.f == "put" and outcome.error:
            self._note_kept(process, operation, outcome)
        if outcome.error in TELL_OF_GONE and outcome.last_id is not None:
            self._told_of_purge(process, operation, outcome.topic, outcome.last_id)
        if outcome.error:
            return
        # What was asked beside another one asks behind what the node has only just told.
        if operation.f == "get" and operation.last_id is not None and operation.beside is None:
            asker = (process.name.partition("/")[0], operation.topic)
            self._confirmed[asker] = max(operation.last_id, self._confirmed.get(asker, 0))
        if key in self._late:
            what = f"{operation.f} of {operation.client_id} by {process.name}"
            self._fail("fenced", f"{what} succeeded although a newer process had taken over")
        if (judge := _JUDGES.get(operation.f)) is not None:  # of groups: work.py
            judge(self, process, operation, outcome, floor)

    def _told_of_purge(
        self, process: Process, operation: Operation, topic: str, last_id: int
    ) -> None:
        """Note up to where a subscriber is owed nothing any more: it goes on behind that."""
        owner = (operation.client_id, topic)
        self._invariants.handed[owner] = max(last_id, self._invariants.handed.get(owner, 0))
        reader = (process.name.partition("/")[0], topic)
        self._gone[reader] = max(last_id, self._gone.get(reader, 0))

    def _note_kept(self, process: Process, operation: Operation, outcome: Outcome) -> None:
        """Note what a client is told that it stands in its outbox, and what is taken out of it."""
        assert operation.counter is not None, operation
        assert operation.count is not None, operation
        own = (operation.client_id, operation.topic)
        if outcome.definite or outcome.error in REFUSED_FOREVER:
            self._counted.pop((process.place, *own), None)  # it may be taken back
        if outcome.error in REFUSED_FOREVER:  # what follows may move up
            self._kept = {
                key: text
                for key, text in self._kept.items()
                if (key[0], key[1][:2]) != (process.place, own)
            }
        elif not outcome.definite:
            for counter in range(operation.counter, operation.counter + operation.count):
                key = (process.place, (*own, counter))
                if key in self._made:
                    self._kept[key] = self._made[key][-1]
                    self._made[key] = self._made[key][-1:]

    def _stored(self, process: Process, operation: Operation, outcome: Outcome, floor: int) -> None:
        assert operation.counter is not None, operation
        assert operation.count is not None, operation
        last_id = (outcome.first_id or 0) + operation.count - 1
        if outcome.first_id and not outcome.duplicate and outcome.first_id <= floor:
            text = f"{operation.topic}: id {outcome.first_id} is given, {floor} was before"
            self._fail("stale_read", text)
        if outcome.first_id:
            topic = operation.topic
            self._last_ids[topic] = max(last_id, self._last_ids.get(topic, 0))
        put = (operation.client_id, operation.topic, operation.counter)
        self._invariants.acknowledged(*put)
        self._reads.acknowledged(self._invariants.puts.get(put, (0, 0))[0])
        for counter in range(operation.counter, operation.counter + operation.count):
            counted = (operation.client_id, operation.topic, counter)
            first_id = outcome.first_id or 0
            self._given[counted] = first_id + counter - operation.counter if first_id else 0
            made = self._made.pop((process.place, counted), None)
            self._kept.pop((process.place, counted), None)
            if made is not None:
                self._compare(counted, self._acknowledged.setdefault(counted, made))

    def _received(
        self, process: Process, operation: Operation, outcome: Outcome, floor: int
    ) -> None:
        if not outcome.publications:
            cursor = operation.last_id
            if operation.topic and cursor is not None and cursor < floor:
                text = f"nothing behind {cursor}, {floor} was acknowledged before"
                self._fail("stale_read", f"{operation.client_id} {operation.topic}: {text}")
            return
        owner = (operation.client_id, outcome.topic)
        last_id = (outcome.first_id or 0) + len(outcome.publications) - 1
        handed = self._invariants.handed
        handed[owner] = max(last_id, handed.get(owner, 0))
        for data in outcome.publications:
            self._saw(outcome.topic, data)

    def _saw(self, topic: str, data: bytes) -> None:
        lane = lane_of(topic, is_delayed(data, topic))
        try:
            producer, counter = check(data, lane)
        except BadPayload:
            return  # the history has it, as `corrupt`
        counted = (producer, lane, counter)
        if (lane, data) in self._denied:
            self._fail("definite", f"{counted} is delivered, and was refused for certain")
        if self._delivered.setdefault(counted, data) != data:
            self._fail("content", f"{counted} was delivered with two contents")
        self._compare(counted, self._acknowledged.get(counted, (data,)))

    def _compare(self, counted: Counted, acknowledged: tuple[bytes, ...]) -> None:
        if self._delivered.get(counted, acknowledged[-1]) not in acknowledged:
            self._fail("content", f"{counted} is not what was acknowledged to its publisher")

    def _subscribed(
        self, process: Process, operation: Operation, outcome: Outcome, floor: int
    ) -> None:
        assert outcome.last_id is not None, outcome
        owner = (operation.client_id, operation.topic)
        handed = self._invariants.handed
        handed[owner] = max(outcome.last_id, handed.get(owner, 0))
        if not outcome.resumed and outcome.last_id < floor:
            text = f"{operation.client_id} joins {operation.topic} behind {outcome.last_id}"
            self._fail("stale_read", f"{text}, {floor} was acknowledged before")

    def _unsubscribed(
        self, process: Process, operation: Operation, outcome: Outcome, floor: int
    ) -> None:
        """Nothing is claimed of an UNSUB."""

    # --- what their scripts say -------------------------------------------------------------------

    def took(self, process: Process, seconds: float) -> None:
        """Judge how long an operation took: a GET may wait besides, callers come one by one."""
        deadline_s = process.session.deadline_ms / 1000
        if seconds > deadline_s + BESIDES_S_MAX:
            text = f"{process.name} waited {seconds:.2f} s for an operation"
            self._fail("deadline", f"{text}, which {deadline_s:.2f} s were given")

    def gave_up(self, process: Process, error: FlotillaError, left_ms: float) -> None:
        """Judge whether an exchange has asked again for as long as it may: what frees itself does.

        It ends early by one pause at most, which would have outlasted its time.
        """
        asked_ms = error.details.get("retry_after_ms")
        quota = error.details.get("quota")
        if quota is not None and quota not in FREE_THEMSELVES:
            return  # something has to be given up first
        pause_ms = JITTER[1] * max(BACKOFF_MS_MAX, min(asked_ms or 0, RETRY_AFTER_MS_MAX))
        if left_ms > pause_ms:
            text = f"{process.name} gives up with {error.code}, told to come in {asked_ms} ms"
            self._fail("deadline", f"{text}, and has {left_ms:.0f} ms left")

    def life(self, client: str, what: str) -> None:
        """Note which clients have a copy, and what the power may take of what they noted."""
        if what == "copied":
            self._copied.add(client)
        elif what == "failed":
            self._with_failing_disk.add(client)
        elif what == "cut":
            for owner in [owner for owner in self._asked if owner[0] == client]:
                # By coming back for more, which nobody waited for, unless a node had it.
                self._asked[owner] = self._confirmed.get(owner, 0)
            if client in self._manual:  # what it was handed over, nobody waited for either
                for owner in [owner for owner in self._handed_over if owner[0] == client]:
                    del self._handed_over[owner]

    def refused(self, client: str, error: FlotillaError) -> None:
        """Judge an error."""
        explained = EXPLAINED | self._of_limits
        if client in self._copied:
            explained |= OF_COPIES
        if client in self._leavers:
            explained |= OF_LEAVERS
        if client in self._with_failing_disk:
            explained |= OF_FAILING_DISKS
        if error.code not in explained:
            self._fail("unexpected", f"{client} got {error.code}: {error.message}")

    def made(self, process: Process, topic: str, counter: int, publications: Sequence[str]) -> None:
        """Note what stands behind a counter: what was made last, until it is acknowledged.

        A disk that fails when a publication is to become durable leaves open whether it stands in
        the outbox; its caller is told so. The next one takes its counter, but a process that ends
        before that one is written leaves the first.
        """
        client_id = process.session.state.client_id
        for number, text in enumerate(publications, counter):
            key = (process.place, (client_id, topic, number))
            if self._kept.get(key, text.encode()) != text.encode() and not self._is_copied(process):
                self._fail("kept", f"{key[1]} is given again, and what it was given to is kept")
            is_open = process.name.partition("/")[0] in self._with_failing_disk
            before = self._made.get(key, ()) if is_open else ()
            self._made[key] = (*before, text.encode())
            self._denied.discard((topic, text.encode()))  # the same once more is another one

    def told(self, process: Process, topic: str, counter: int, id_: int) -> None:
        """Judge which id one of several callers is told."""
        counted = (process.session.state.client_id, topic, counter)
        if self._given.get(counted) != id_:
            given = self._given.get(counted)
            self._fail("own_answer", f"{counted} has id {given}, and its caller is told {id_}")

    def forgotten(self, process: Process, client_id: str, is_true: bool) -> None:
        """Judge that a client is told to be forgotten. What it was handed over is another's."""
        client = process.name.partition("/")[0]
        if not is_true:
            self._fail("forgotten", f"{client} is told that {client_id} is forgotten: it is not")
        self._forgotten.add(client_id)
        for table in (self._handed_over, self._asked, self._confirmed, self._gone):
            for owner in [owner for owner in table if owner[0] == client]:
                del table[owner]

    def begun_anew(self, process: Process, client_id: str, lost: Losses) -> None:
        """Judge what a client is told of its losses that was forgotten."""
        returned = {
            (topic, each.data if isinstance(each, Publication) else each)
            for topic, waiting in lost.unanswered.items()
            for each in waiting
        }
        for (place, (own, topic, counter)), text in self._kept.items():
            if (place, own) == (process.place, client_id) and (topic, text) not in returned:
                what = f"{topic} {counter} of {client_id}"
                self._fail("forgotten", f"{what} had no answer, and {process.name} is not told")
        made: set[tuple[str, bytes | str]]
        made = {(topic, text) for (_, (_, topic, _)), texts in self._made.items() for text in texts}
        made |= {
            (topic, text) for (_, topic, _), texts in self._acknowledged.items() for text in texts
        }
        for topic, told in returned - made:
            what = f"{told[:40]!r} to {topic}"
            self._fail("forgotten", f"{process.name} is told of {what}, which is not its own")

    def out_of_order(self, client: str, text: str) -> None:
        """Judge what is stored of several callers."""
        self._fail("call_order", f"{client}: {text}")

    def not_stored(self, client: str, topic: str, publication: bytes) -> None:
        """Note what was refused for certain; nobody may be given it, now or later.

        But of a client whose state was copied: the copy has the same in its outbox, and sends it.
        """
        if client in self._copied:
            return
        self._denied.add((topic, publication))
        if publication in self._delivered.values():
            self._fail(
                "definite", f"a publication of {topic} is refused for certain, and delivered"
            )

    def known(self) -> Mapping[str, int]:
        """Return the highest id of each topic that was ever acknowledged to anybody."""
        return dict(self._last_ids)

    def listed(
        self, client: str, rows: Sequence[Mapping[str, Any]], known: Mapping[str, int]
    ) -> None:
        """Check that a listing is no older than the question for it, and has a topic once."""
        names = [row["topic"] for row in rows]
        if names != sorted(set(names)):
            self._fail("answered", f"{client} is told of {names}: each once, by name, is due")
        for row in rows:
            topic, last_id = row["topic"], row["last_id"]
            if last_id < known.get(topic, 0):
                text = f"{client} is told that {topic} ends at {last_id}"
                self._fail("stale_read", f"{text}, {known[topic]} was acknowledged before")

    def handed_over(self, client: str, delivery: Delivery) -> None:
        """Check what an application is given, over all its processes.

        Nothing again below a cursor that a request of its has carried, or without saying so; and
        nothing is passed over.
        """
        if client in self._copied:
            return
        owner, first_id = (client, delivery.topic), delivery.first_id
        acknowledged, last_id = self._asked.get(owner, 0), self._handed_over.get(owner, 0)
        what = f"{client} {delivery.topic}: {first_id} again, "
        if client in self._at_most_once:  # a crash in between loses what is acknowledged before
            if first_id <= last_id:
                self._fail("handed_over_twice", f"{what}and takes each at most once")
            self._handed_over[owner] = max(last_id, delivery.last_id)
            return
        if first_id <= acknowledged:
            self._fail("handed_over_twice", f"{what}it has acknowledged {acknowledged}")
        elif min(last_id, delivery.last_id) - first_id + 1 > delivery.redelivered_count:
            self._fail("handed_over_twice", f"{what}it had {last_id}, and is not told")
        had_id = max(last_id, self._gone.get(owner, 0))
        if last_id and first_id > had_id + 1 and client not in self._leavers:
            text = f"{client} {delivery.topic}: {first_id} comes behind {last_id}"
            self._fail("skipped", text)
        self._handed_over[owner] = max(last_id, delivery.last_id)

    def acknowledged(self, client: str, topic: str, last_id: int) -> None:
        """Note up to where an application is done for good: the library has said that it is."""
        for table in (self._asked, self._confirmed):
            table[client, topic] = max(last_id, table.get((client, topic), 0))

    def _is_copied(self, process: Process) -> bool:
        """Return whether two processes act for the client, each unknown to the other."""
        return process.name.partition("/")[0] in self._copied

    def _fail(self, check: str, text: str) -> None:
        self._invariants.fail(check, text)


_JUDGES: Final = {
    "put": Promises._stored,
    "get": Promises._received,
    "sub": Promises._subscribed,
    "unsub": Promises._unsubscribed,
}
