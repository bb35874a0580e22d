"""Bugs in what publications have beside their text: envelopes, keys, headers and times.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, unpack
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.serve import broker
from cluster.store.commands import Operation, Stamp
from cluster.store.outcomes import Outcome
from cluster.store.store import Store
from cluster.store.tables import Database
from flotilla_client.operations import Operations
from flotilla_client.protocol import HAS_PROPERTIES, Request, stripped
from flotilla_client.state import Entry, State

_apply: Final = Store.apply
_running: Final = Database.running
_outbox: Final = State.outbox
_put_request: Final = Operations.put_request


def _unmarked(lengths: bytes) -> bytes:
    """Return lengths that say of no publication that it has properties."""
    count = len(lengths) // 4
    return pack(f"<{count}I", *(each % HAS_PROPERTIES for each in unpack(f"<{count}I", lengths)))


@bug("a publication's length says whether it has properties", {"answered"})
def stripped_publications_keep_their_mark(patches: Patches) -> None:
    """Cut the properties off for who knows of none, and say that they are there."""

    def cut(lengths: bytes, data: bytes) -> tuple[bytes, bytes]:
        sizes, texts = stripped(lengths, data)
        count = len(sizes) // 4
        marks = [each & HAS_PROPERTIES for each in unpack(f"<{count}I", lengths)]
        marked = [
            size | mark for size, mark in zip(unpack(f"<{count}I", sizes), marks, strict=True)
        ]
        return pack(f"<{count}I", *marked), texts

    patches.attribute(broker, "stripped", cut)


@bug("who knows of no properties gets the text alone", {"answered"})
def properties_are_for_everybody(patches: Patches) -> None:
    """Deliver publications as they are stored, whoever asks."""
    patches.attribute(broker, "stripped", lambda lengths, data: (lengths, data))


@bug("times never go back, whoever leads", {"answered", "properties"})
def a_new_leader_s_clock_counts_alone(patches: Patches) -> None:
    """Stamp publications with what their leader says, though one before has said more."""

    def apply(
        store: Store,
        index: int,
        term: int,
        payload: bytes,
        made_of: tuple[Stamp, Sequence[Operation]] | None = None,
    ) -> list[Outcome]:
        store.timestamp_ms = 0
        return _apply(store, index, term, payload, made_of)

    patches.attribute(Store, "apply", apply)


@bug(
    "times never go back, whoever leads",
    {"answered", "digest", "ended", "properties", "rebuilt"},
)
def the_last_time_is_forgotten_at_a_start(patches: Patches) -> None:
    """Begin with no time when a store is opened."""

    def running(database: Database) -> tuple[Any, ...] | None:
        row = _running(database)
        return None if row is None else (*row[:-1], 0)

    patches.attribute(Database, "running", running)


@bug("what is sent again is what was published", {"properties", "upkeep"})
def the_outbox_keeps_the_texts_alone(patches: Patches) -> None:
    """Send what stands in the outbox without its properties, after a crash or an error."""

    def outbox(state: State, topic: str | None = None) -> list[Entry]:
        kept = _outbox(state, topic)
        return [Entry(e.topic, e.counter, *stripped(e.lengths, e.data)) for e in kept]

    patches.attribute(State, "outbox", outbox)


@bug("a batch says which of its publications have properties", {"content", "properties"})
def retries_lose_their_marks(patches: Patches) -> None:
    """Ask as it was asked, but for the marks."""
    asked: set[tuple[str, str, int]] = set()

    def put_request(operations: Operations, entry: Entry) -> Request:
        request = _put_request(operations, entry)
        key = (operations.state.client_id, entry.topic, entry.counter)
        if key in asked:
            request.lengths = _unmarked(request.lengths)
        asked.add(key)
        return request

    patches.attribute(Operations, "put_request", put_request)
