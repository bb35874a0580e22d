"""Bugs in what becomes of silent clients: who is one, what is removed, and who is told what.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from chaos.simulation.bugs.registry import SEEDS_RARE_MAX, Patches, bug
from cluster.serve.broker import Broker
from cluster.store.clients import Client, Clients
from cluster.store.commands import Forget
from cluster.store.idle import Idle
from cluster.store.outcomes import Outcome, unknown_client
from cluster.store.store import Store
from flotilla_client.state import State

_flush: Final = Clients.flush
_forget: Final = Store._forget
_pass_to: Final = Idle.pass_to


@bug("who is forgotten is gone", {"answered", "digest", "ended", "rebuilt"})
def forgotten_clients_stay_until_the_flush(patches: Patches) -> None:
    """Delete a forgotten client's row with the next flush: until then it is found again."""
    gone: WeakKeyDictionary[Clients, list[tuple[int]]] = WeakKeyDictionary()

    def forget(clients: Clients, client: Client, may_come_again: bool) -> None:
        clients.count -= 1
        clients.producers_count -= client.producers
        clients._clients.drop(client.client_id)
        clients._dirty_clients.discard(client)
        clients._dirty_owners.discard(client)
        gone.setdefault(clients, []).append((client.number,))
        clients._idle.forget(client.number, client.producers > 0)

    def flush(clients: Clients) -> None:
        numbers = gone.pop(clients, [])
        if numbers:
            clients._database.write("DELETE FROM clients WHERE number = ?", numbers)
            clients._database.write("DELETE FROM owners WHERE client = ?", numbers)
        _flush(clients)

    patches.attribute(Clients, "forget", forget)
    patches.attribute(Clients, "flush", flush)


@bug(
    "who is forgotten is silent when the entry is applied",
    {"answered", "rebuilt"},
    seeds_max=SEEDS_RARE_MAX,
)
def whoever_was_silent_is_forgotten(patches: Patches) -> None:
    """Forget whom the leader has named, though he was heard since."""

    def forget(store: Store, operation: Forget) -> Outcome:
        return _forget(store, replace(operation, silent_ms=-(10**9)))

    patches.attribute(Store, "_forget", forget)


@bug("between two leaders no time passes", {"answered", "rebuilt"})
def clocks_of_two_leaders_are_compared(patches: Patches) -> None:
    """Let the time pass that is between two leaders' clocks."""

    def pass_to(idle: Idle, term: int, stamp_ms: int) -> None:
        idle._term = term
        _pass_to(idle, term, stamp_ms)

    patches.attribute(Idle, "pass_to", pass_to)


@bug("who reads is heard", {"forgotten"})
def readers_are_silent(patches: Patches) -> None:
    """Put nothing into the log of who only reads."""
    patches.attribute(Broker, "_hear", lambda broker, client_id: None)


@bug("who waits and is forgotten is told so", {"answered", "books", "upkeep", "waits"})
def the_forgotten_wait_on(patches: Patches) -> None:
    """Leave the parked GETs of forgotten clients where they are."""

    def forgotten(broker: Broker, client_ids: Iterable[str], topics: Iterable[str]) -> None:
        """Leave them."""

    patches.attribute(Broker, "forgotten", forgotten)


@bug("who may be forgotten is told so", {"answered", "forgotten", "rebuilt"})
def the_forgotten_were_never_there(patches: Patches) -> None:
    """Say of a forgotten client what is said of one that the cluster has never had."""
    patches.attribute(Store, "_unknown", lambda store, client_id: unknown_client(client_id))


@bug("what may be stored is not sent again", {"duplicate_stored", "forgotten", "inconsistent_id"})
def the_forgotten_send_their_outbox(patches: Patches) -> None:
    """Let a client that was forgotten send what waits, as the new one that it is."""

    def begin_anew(state: State) -> dict[str, tuple[bytes, ...]]:
        state.renew()
        return {}

    patches.attribute(State, "begin_anew", begin_anew)
