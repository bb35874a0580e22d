"""All clients of a simulation, and the course of the run as they know it.

What lives here: the clients by name, orders to them, the phases of a run's end (heal, tombstones,
drain; docs/history.md) and who has got how far. What must not: what one client does (scripts.py),
what must hold (invariants.py), faults of nodes.

The end of a run is as in chaos/run/runner.py: after the last fault one publication has to be
acknowledged; the publishers stop and empty their outboxes; each topic gets a tombstone; the
subscribers read up to it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from chaos.simulation.clients.awaiting import new_awaiting
from chaos.simulation.clients.clients import (
    ClientWire,
    Process,
    Script,
    SimClient,
    Watcher,
    new_process,
)
from chaos.simulation.clients.scripts import ClientScript, Hears, Known, Role, begin_anew
from chaos.workloads import payload
from chaos.workloads.history import ProcessRecorder
from flotilla_client import FlotillaError, Forgotten, Losses, WorkItem
from flotilla_client.reading import Delivery
from flotilla_client.state import OUTBOX_BYTES_MAX
from flotilla_client.work import LeaseBook

RUNNER: Final = "runner"
LOOK_S: Final = 0.2  # between looks at how far the clients are
RETRY_S: Final = 0.1  # between the runner's attempts at an acknowledged publication


class ClientWitness(Watcher, Hears, Protocol):
    """Hears all that clients do, and what their scripts have to say."""


class Crowd:
    """The clients of one run; the `Course` that their scripts follow.

    `roles`: of each client; `heal_s`: when the last fault is over; `directory`: the run's, for
    states and histories. Use: `start`, then let time pass until `is_done`.
    """

    def __init__(
        self,
        wire: ClientWire,
        witness: ClientWitness,
        nodes: Sequence[str],
        roles: Sequence[Role],
        heal_s: float,
        directory: Path,
        run_id: str,
        deadline_ms: int,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
    ) -> None:
        self.is_publishing = True
        self.tombstones: Mapping[str, int] | None = None
        self.phase = "steady"
        self.is_done = False
        self.topics = sorted({topic for role in roles for topic in role.topics})
        self._wire, self._witness = wire, witness
        self._heal_s = heal_s
        self._flushed: set[str] = set()
        self._drained: set[str] = set()
        self._roles = {f"client-{number}": role for number, role in enumerate(roles, 1)}
        place = (nodes, directory, run_id, deadline_ms)
        self.clients = {
            name: SimClient(
                wire,
                witness,
                name,
                *place,
                self._script,
                new_awaiting if role.is_awaiting else new_process,
                outbox_bytes_max,
            )
            for name, role in self._roles.items()
        }
        self.runner = SimClient(wire, witness, RUNNER, *place, self._finale)

    def start(self) -> None:
        """Start every client and the runner."""
        for client in self._all():
            client.set_phase(self.phase)
            client.start()

    def close(self) -> None:
        """End what still runs, as a crash would."""
        for client in self._all():
            for process in list(client.processes):
                process.end(crashed=True)

    def recorder(self, process: str) -> ProcessRecorder:
        """Return what writes the rows of a process that is no client."""
        return self.runner.recorder_of(process)

    def lagging(self) -> list[str]:
        """Return who has not come to the end yet."""
        return sorted(name for name in self.clients if not self._is_over(name, self._drained))

    # --- what scripts say -----------------------------------------------------------------------

    def refused(self, client: str, error: FlotillaError) -> None:
        """See `scripts.Course`."""
        self._witness.refused(client, error)

    def made(self, process: Process, topic: str, counter: int, publications: Sequence[str]) -> None:
        """See `scripts.Course`."""
        self._witness.made(process, topic, counter, publications)

    def told(self, process: Process, topic: str, counter: int, id_: int) -> None:
        """See `scripts.Course`."""
        self._witness.told(process, topic, counter, id_)

    def out_of_order(self, client: str, text: str) -> None:
        """See `scripts.Course`."""
        self._witness.out_of_order(client, text)

    def not_stored(self, process: Process, topic: str, publication: str) -> None:
        """See `scripts.Course`."""
        self._witness.not_stored(process, topic, publication)

    def forgotten(self, process: Process, client_id: str) -> None:
        """See `scripts.Course`."""
        self._witness.forgotten(process, client_id)

    def begun_anew(self, process: Process, client_id: str, lost: Losses) -> None:
        """See `scripts.Course`."""
        self._witness.begun_anew(process, client_id, lost)

    def handed_over(self, client: str, delivery: Delivery) -> None:
        """See `scripts.Course`."""
        self._witness.handed_over(client, delivery)

    def acknowledged(self, client: str, topic: str, last_id: int) -> None:
        """See `scripts.Course`."""
        self._witness.acknowledged(client, topic, last_id)

    def given(self, client: str, item: WorkItem) -> None:
        """See `scripts.Course`."""
        self._witness.given(client, item)

    def worked(self, client: str, item: WorkItem) -> None:
        """See `scripts.Course`."""
        self._witness.worked(client, item)

    def told_lost(self, client: str, item: WorkItem) -> None:
        """See `scripts.Course`."""
        self._witness.told_lost(client, item)

    def leased(self, client: str, item: WorkItem, asked_ms: float) -> None:
        """See `scripts.Course`."""
        self._witness.leased(client, item, asked_ms)

    def believed(self, client: str, item: WorkItem, until_ms: float) -> None:
        """See `scripts.Course`."""
        self._witness.believed(client, item, until_ms)

    def spoken(self, client: str, item: WorkItem, kind: str, ms: int) -> None:
        """See `scripts.Course`."""
        self._witness.spoken(client, item, kind, ms)

    def taking(self, client: str, book: LeaseBook) -> None:
        """See `scripts.Course`."""
        self._witness.taking(client, book)

    def agreed(self, client: str, item: WorkItem, kind: str, ms: int) -> None:
        """See `scripts.Course`."""
        self._witness.agreed(client, item, kind, ms)

    def loop_left(self, client: str, book: LeaseBook) -> None:
        """See `scripts.Course`."""
        self._witness.loop_left(client, book)

    @property
    def takes_properties(self) -> bool:
        """See `scripts.Course`."""
        return self._witness.takes_properties

    @property
    def takes_expiry(self) -> bool:
        """See `scripts.Course`."""
        return self._witness.takes_expiry

    def known(self) -> Known:
        """See `scripts.Course`."""
        return self._witness.known()

    def listed(self, client: str, rows: Sequence[Mapping[str, Any]], known: Known) -> None:
        """See `scripts.Course`."""
        self._witness.listed(client, rows, known)

    def flushed(self, client: str, process: Process) -> None:
        """See `scripts.Course`."""
        self._flushed |= {client, process.name}

    def drained(self, client: str) -> None:
        """See `scripts.Course`."""
        self._drained.add(client)

    # --- the course -----------------------------------------------------------------------------

    def _script(self, client: SimClient, process: Process) -> Script:
        rng = random.Random(client.rng.getrandbits(64))
        role = self._roles[client.name]
        return ClientScript(client.name, role, process, self, rng, self._wire).run()

    def _finale(self, client: SimClient, process: Process) -> Script:
        """Wait for the end of the faults, then lead the run to its own."""
        self._mark(process, self.phase)
        yield self._heal_s - self._wire.now
        self._mark(process, "heal")
        for each in self._all():
            each.recover()
        yield from self._put(process, self.topics[0])
        self.is_publishing = False
        while not all(self._is_over(name, self._flushed) for name in self.clients):
            yield LOOK_S
        self._mark(process, "tombstone")
        last_ids: dict[str, int] = {}
        for topic in self.topics:
            last_ids[topic] = yield from self._put(process, topic)
        self._mark(process, "drain")
        self.tombstones = last_ids
        while self.lagging():
            yield LOOK_S
        self._mark(process, "done")
        self.is_done = True

    def _put(self, process: Process, topic: str) -> Any:
        """Publish until it is acknowledged; return the id, 0 if nobody subscribes."""
        session = process.session
        while True:
            try:
                counter = yield session.operations.next_counter(topic)
                text = payload.make(session.state.client_id, topic, counter, self.phase)
                self._witness.made(process, topic, counter, [text])
                [result] = yield from process.put(topic, [text])
            except Forgotten as error:
                self._witness.refused(RUNNER, error)
                yield from begin_anew(process, self)
            except FlotillaError as error:
                self._witness.refused(RUNNER, error)
                yield RETRY_S
            else:
                return result.id

    def _mark(self, process: Process, phase: str) -> None:
        self.phase = phase
        for client in self._all():
            client.set_phase(phase)
        process.recorder.mark_phase(phase)

    def _is_over(self, name: str, those: set[str]) -> bool:
        """Return whether a client is among those, with every process of it that still lives.

        Of two processes either may be the fenced one: a copy of a state that is old, or its origin.
        """
        client = self.clients[name]
        if client.processes:
            return all(process.name in those for process in client.processes)
        return name in those or client.has_ended

    def _all(self) -> list[SimClient]:
        return [*self.clients.values(), self.runner]
