"""What can be done to the clients of a run, on every target alike: they are processes of ours.

What lives here: the ClientFault Protocol and its table. What must not: how a process is killed or
doubled (client_pool.py), or what is done to nodes (faults/).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, Protocol

from chaos.workloads.recording import CRASH_POINTS

PASSES_MAX: Final = 5  # a client passes a point some ten times a second: it dies in the window


class HarmableClients(Protocol):
    """The clients of a run, as far as they can be harmed: client_pool.ClientPool."""

    def clients(self) -> list[str]:
        """Return the names of those that are not harmed already."""
        ...

    def doom(self, name: str, point: str, passes: int) -> None:
        """Have a client's process die at a point that it passes."""
        ...

    def restart(self, name: str) -> None:
        """Start a client's process again from its state."""
        ...

    def double(self, name: str) -> str:
        """Let a second process take up a client; return the second one's name."""
        ...


class ClientFault(Protocol):
    """A fault of clients without state, as faults.Fault is one of nodes."""

    name: str

    def choose(self, pool: HarmableClients, rng: random.Random) -> list[str]:
        """Return the clients that this window will hit; nothing happens to them yet."""
        ...

    def inject(self, pool: HarmableClients, clients: list[str], rng: random.Random) -> None:
        """Do it to `clients`."""
        ...

    def heal(self, pool: HarmableClients, clients: list[str]) -> None:
        """Undo it, as far as it can be undone."""
        ...


class ClientCrash:
    """Each of about half the clients dies at a random point; starts again from its state."""

    name = "client-crash"

    def choose(self, pool: HarmableClients, rng: random.Random) -> list[str]:
        """Return half of the clients, at least one."""
        clients = pool.clients()
        return sorted(rng.sample(clients, (len(clients) + 1) // 2))

    def inject(self, pool: HarmableClients, clients: list[str], rng: random.Random) -> None:
        """Arm each of them with a point of its own."""
        for client in clients:
            pool.doom(client, rng.choice(CRASH_POINTS), rng.randrange(PASSES_MAX))

    def heal(self, pool: HarmableClients, clients: list[str]) -> None:
        """Start them again; who has not come to its point dies where it stands."""
        for client in clients:
            pool.restart(client)


class ClientTwin:
    """A second process takes up a client from a copy of its state; the first has to notice."""

    name = "client-twin"

    def choose(self, pool: HarmableClients, rng: random.Random) -> list[str]:
        """Return one client."""
        return [rng.choice(pool.clients())]

    def inject(self, pool: HarmableClients, clients: list[str], rng: random.Random) -> None:
        """Start the second process."""
        for client in clients:
            pool.double(client)

    def heal(self, pool: HarmableClients, clients: list[str]) -> None:
        """Nothing: the second process is the client from here on."""


CLIENT_FAULTS: Final[Mapping[str, ClientFault]] = {
    fault.name: fault for fault in (ClientCrash(), ClientTwin())
}
