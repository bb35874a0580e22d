"""Publications for the page: asked for by the HTTP thread, read by the loop, without a cursor.

What lives here: what is asked and found, whose permission it takes, bounds, and the rows that are
shown. What must not: HTTP. The two threads share `asked`, by one append, and `found`, by one
assignment.
"""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final

from cluster.serve.frontend import Frontend
from cluster.store.outcomes import Delivery, Looked, Refused, no_topic
from cluster.store.users import SUBSCRIBE
from flotilla_client.properties import Enveloped, Properties
from flotilla_client.properties import decode as decode_properties
from flotilla_client.protocol import text_of, unpack

COUNT_MAX: Final = 50  # publications in one answer: what a page can show
BYTES_MAX: Final = 64 * 1024  # of them; a larger one comes alone
SHOWN_BYTES_MAX: Final = 1024  # of each
PERIOD_S: Final = 0.1  # between two reads, each a fraction of a millisecond of a turn
ASKED_MAX: Final = 8  # that wait: people, not programs
STEPS_MAX: Final = 16  # over what has expired or is compacted away, in one answer


@dataclass(eq=False, slots=True)
class PageRead:
    """Up to `count` publications of a topic from an id on; None: the last ones.

    `found` is set by the loop.
    """

    topic: str
    from_id: int | None
    count: int
    found: PageFound | Refused | None = None


@dataclass(frozen=True, slots=True)
class PageFound:
    """What a topic has from `first_id` to `last_id`, and some of it."""

    first_id: int
    last_id: int
    delivery: Delivery


class PublicationReader:
    """Reads for the page as the user `reads_as`, whom the replicated state has to let."""

    def __init__(self, frontend: Frontend, reads_as: str) -> None:
        self._frontend, self.reads_as = frontend, reads_as
        self._next_s = 0.0
        self.asked: deque[PageRead] = deque(maxlen=ASKED_MAX)

    def tick(self, now: float) -> None:
        """Read for one who asked, if it is time."""
        if self.asked and now >= self._next_s:
            self._next_s = now + PERIOD_S
            asked = self.asked.popleft()
            asked.found = self._read(asked)

    def _read(self, asked: PageRead) -> PageFound | Refused:
        lead = self._frontend.lead
        if lead is None:
            return Refused("electing", "this node does not know yet who may see that")
        store, topic = lead.broker.store, asked.topic
        if refused := store.lacks(self.reads_as, SUBSCRIBE, topic):
            lead.broker.denied.note(self.reads_as, SUBSCRIBE)
            return refused
        row = store.topic_row(topic)
        if row is None:
            return no_topic(topic)
        first_id, last_id = row["first_id"], row["last_id"]
        from_id = last_id + 1 - asked.count if asked.from_id is None else asked.from_id
        from_id = max(first_id, from_id)
        for _ in range(STEPS_MAX):
            if from_id > last_id:
                break
            found = store.read_from(topic, from_id, asked.count, BYTES_MAX)
            if isinstance(found, Delivery):
                return PageFound(first_id, last_id, found)
            gone_id = found.last_id if isinstance(found, Looked) else found.details["last_id"]
            from_id = gone_id + 1
        return PageFound(first_id, last_id, Delivery(topic, 0, 0, b"", b""))


def rows(delivery: Delivery) -> list[dict[str, Any]]:
    """Return publications as they are shown: what is no text as hexadecimal digits."""
    publications = unpack(delivery.lengths, delivery.data)
    times = chain.from_iterable(repeat(ms, count) for count, ms in delivery.times)
    made = []
    for number, publication in enumerate(publications):
        properties = Properties()
        if isinstance(publication, Enveloped):
            properties, _ = decode_properties(publication)
        text, key = text_of(publication), properties.key
        made.append(
            {
                "id": delivery.first_id + number,
                "at_ms": next(times, 0) or None,
                "bytes": len(text),
                "text": _shown(text),
                "key": None if key is None else _shown(key),
                "headers": {name: _shown(each) for name, each in properties.headers.items()},
            }
        )
    return made


def _shown(value: str | bytes) -> str:
    if isinstance(value, str):
        return value[:SHOWN_BYTES_MAX]
    part = value[:SHOWN_BYTES_MAX]
    try:  # half a character at the cut is left out, one at the end is no text
        text = codecs.getincrementaldecoder("utf-8")().decode(part, final=part == value)
    except UnicodeDecodeError:
        return part.hex(" ")
    return text
