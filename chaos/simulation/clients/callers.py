"""Several callers of one client: whose publication is whose, and what each of them is told.

What lives here: publications that are made when they are given their counter, as no caller of
several knows the next one's, and who asked for them. What must not: when callers call (scripts.py),
what must hold of it (checks/promises.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from chaos.simulation.clients.clients import Process
from chaos.simulation.clients.dressing import dressed
from chaos.workloads import payload
from flotilla_client.batches import as_bytes
from flotilla_client.protocol import pack, text_of, unpack
from flotilla_client.state import Entry

PLACE: Final = "\0call "  # begins what stands for a publication until it has its counter
COUNTER_MAX: Final = 999_999  # in a run
Note = Callable[[list[list[Entry]]], None]


class Hearer(Protocol):
    """Who hears of publications as they are made; see `scripts.Course`."""

    def made(self, process: Process, topic: str, counter: int, publications: Sequence[str]) -> None:
        """Hear what a client will publish, as it is given its counter."""

    def out_of_order(self, client: str, text: str) -> None:
        """Hear of a publication that stands where it must not."""


class Callers:
    """Those of one process. Use: publish what `text` returns; `counter_of` tells where it is.

    `course` hears of a publication that is stored while it stands in the outbox already, or in
    front of one that was called for before.
    """

    def __init__(self, name: str, process: Process, course: Hearer) -> None:
        self._name, self._process, self._course = name, process, course
        self._numbers = itertools.count(1)
        self._fillers: dict[int, str] = {}
        self._at: dict[str, dict[int, int]] = {}  # topic -> {counter: call}
        self._texts: dict[int, str] = {}
        self._refused: set[int] = set()  # for certain
        self._state = process.session.state
        self._enqueue_all = self._state.enqueue_all
        self._state.enqueue_all = self._enqueued  # type: ignore[method-assign]
        self._cancelled: set[int] = set()  # before they were given a counter
        process.on_cancelled = self._note_cancelled

    def text(self, topic: str, filler: str) -> tuple[int, str]:
        """Return a new call's number, and what it publishes: as long as it will be, or longer."""
        number = next(self._numbers)
        unique = f"{number}-"  # no two calls publish the same
        self._fillers[number] = unique + filler[len(unique) :]
        made = payload.make(self._state.client_id, topic, COUNTER_MAX, self._fillers[number])
        return number, f"{PLACE}{number} ".ljust(len(made))

    def refused(self, number: int) -> str:
        """Note that a call was refused for certain; return what was stored for it, or ""."""
        self._refused.add(number)
        return self._texts.get(number, "")

    def _note_cancelled(self, called: Sequence[str]) -> None:
        """Note who is cancelled; what has no counter by now was never begun, and must not be."""
        self._cancelled.update(set(map(_number_of, called)) - self._texts.keys())

    def counter_of(self, topic: str, number: int) -> int:
        """Return under which counter a call's publication was stored last, 0 if never."""
        at = self._at.get(topic, {})
        return next((counter for counter, call in at.items() if call == number), 0)

    def _enqueued(
        self,
        batches: Sequence[tuple[str, Sequence[tuple[bytes, bytes]]]],
        note: Note = lambda entries: None,
        provisional: bool = False,
    ) -> list[list[Entry]]:
        made = [(topic, self._stamped(topic, of_topic)) for topic, of_topic in batches]
        return self._enqueue_all(made, note, provisional)

    def _stamped(
        self, topic: str, batches: Sequence[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        counter, stamped = self._state.counter(topic), []
        for lengths, data in batches:
            publications = unpack(lengths, data)
            for place, publication in enumerate(publications):
                counter += 1
                text = text_of(publication).decode()
                if text.startswith(PLACE):
                    made = self._made(topic, counter, _number_of(text))
                    publications[place] = as_bytes(dressed(made))
            stamped.append(pack(publications))
        return stamped

    def _made(self, topic: str, counter: int, number: int) -> str:
        at = self._at.setdefault(topic, {})
        for gone in [other for other in at if other >= counter]:
            del at[gone]  # it was taken out of the outbox
        what = f"{topic} {counter} is of call {number}"
        if number in at.values():
            self._course.out_of_order(self._name, f"{what}, which is stored already")
        elif number in self._cancelled:
            self._course.out_of_order(self._name, f"{what}, which was cancelled before it began")
        elif number in self._refused:
            self._course.out_of_order(self._name, f"{what}, which was refused for certain")
        elif at and max(at.values()) > number:
            self._course.out_of_order(self._name, f"{what}, behind call {max(at.values())}")
        at[counter] = number
        text = payload.make(self._state.client_id, topic, counter, self._fillers[number])
        self._texts[number] = text
        self._course.made(self._process, topic, counter, [text])
        return text


def _number_of(text: str) -> int:
    """Return the number of the call that a text stands for."""
    return int(text.removeprefix(PLACE).partition(" ")[0])
