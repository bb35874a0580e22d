"""The publications of a run: text that proves where it came from and that it is whole.

What lives here: making a payload, checking one, and folding deliveries into runs. What must not:
clients, files of a run, clocks. The layout is fixed by docs/history.md:
`<producer> <topic> <counter> <crc32 as 8 hex digits> <filler>`; the CRC covers all the rest,
joined by single spaces.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from flotilla_client.protocol import lane_of

FIELDS_BEFORE_FILLER: Final = 4
CRC_DIGITS: Final = 8
LINES_MAX: Final = 20_000  # of the project's text: a few MB in each publisher, no more
LINE_CHARACTERS_MAX: Final = 200  # a line of text, not a minified file
TEXT_SUFFIXES: Final = frozenset({".py", ".md", ".toml"})

Run = tuple[int, str, int, int]  # first id, producer, first counter, count
Corrupt = tuple[int, str]  # id, reason


class BadPayload(Exception):
    """A payload that does not check out. `reason` is `format`, `checksum` or `topic`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def make(producer: str, topic: str, counter: int, filler: str) -> str:
    """Return the payload of one publication; neither `producer` nor `topic` may hold a space."""
    for name in (producer, topic):
        assert name, "a producer or a topic without a name"
        assert " " not in name, name
    assert counter >= 0, counter
    crc = _crc(f"{producer} {topic} {counter} {filler}".encode())
    return f"{producer} {topic} {counter} {crc} {filler}"


def check(data: bytes, topic: str) -> tuple[str, int]:
    """Return (producer, counter) of a payload delivered on `topic`.

    Raises BadPayload: `format` (not our layout), `checksum` (bytes changed on the way) or `topic`
    (whole, but published to another topic), in this order.
    """
    fields = data.split(b" ", FIELDS_BEFORE_FILLER)
    if len(fields) != FIELDS_BEFORE_FILLER + 1 or not fields[2].isdigit() or not fields[0]:
        raise BadPayload("format")
    producer, sent_to, counter, crc, filler = fields
    if len(crc) != CRC_DIGITS:
        raise BadPayload("format")
    if crc != _crc(b" ".join((producer, sent_to, counter, filler))).encode():
        raise BadPayload("checksum")
    if sent_to != topic.encode():
        raise BadPayload("topic")
    return producer.decode(), int(counter)


def is_delayed(data: bytes, topic: str) -> bool:
    """Return whether a payload delivered on `topic` says that it was published with a delay.

    Then it names the topic's lane, whose counters are apart from the topic's.
    """
    return data.split(b" ", 2)[1:2] == [lane_of(topic, is_delayed=True).encode()]


def runs(
    topic: str, first_id: int, publications: Iterable[bytes]
) -> tuple[list[Run], list[Corrupt]]:
    """Return (items, corrupt) of a delivery whose ids start at `first_id` and have no holes.

    Neighbours with the same producer and following counters share a run, so that a million
    publications of a busy producer are a few thousand runs.
    """
    return runs_of((id_, topic, data) for id_, data in enumerate(publications, first_id))


def runs_of(delivered: Iterable[tuple[int, str, bytes]]) -> tuple[list[Run], list[Corrupt]]:
    """Return the same of publications with their ids, each put to a topic."""
    items: list[Run] = []
    corrupt: list[Corrupt] = []
    for id_, topic, data in delivered:
        try:
            producer, counter = check(data, topic)
        except BadPayload as bad:
            corrupt.append((id_, bad.reason))
            continue
        if items and _continues(items[-1], id_, producer, counter):
            items[-1] = (*items[-1][:3], items[-1][3] + 1)
        else:
            items.append((id_, producer, counter, 1))
    return items, corrupt


def _continues(run: Run, id_: int, producer: str, counter: int) -> bool:
    first_id, run_producer, first_counter, count = run
    return (first_id + count, run_producer, first_counter + count) == (id_, producer, counter)


def _crc(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def project_lines(root: Path) -> list[str]:
    """Return up to LINES_MAX lines of text from the project's own files below `root`."""
    return list(islice(_lines(_text_files(root)), LINES_MAX))


def _text_files(root: Path) -> list[Path]:
    folders = ("client", "cluster", "chaos", "analytics", "docs")
    found = (path for folder in folders for path in (root / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in TEXT_SUFFIXES and path.is_file())


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if text := line.strip():
                yield text[:LINE_CHARACTERS_MAX]


def fillers(lines: Sequence[str], seed: int) -> Iterator[str]:
    """Yield one of `lines` after the other for ever, from a place that `seed` decides."""
    assert lines, "no text to publish"
    start = random.Random(seed).randrange(len(lines))
    while True:
        yield from lines[start:]
        start = 0
