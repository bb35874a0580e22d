"""The journal of a dead node, as whoever breaks its disk sees it.

What lives here: damage to journal files that a node has to notice, and where its log ends. What
must not: processes, and the journal itself: it is the one that is checked.

Damage goes only where the journal proves that the bytes were durable. The end of the last file can
be damaged so that it looks as if it had never been written: against that only the other disks help,
and docs/decisions/0001-journal.md says so.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

from chaos.simulation.disks.durable import proved_bytes
from chaos.targets import TargetError
from cluster.log import segments
from cluster.log.segments import Segment


def journal_files(data: Path) -> list[Path]:
    """Return the files of the journal in the data directory, in their order."""
    return sorted(data.rglob("*.log"))


def flip_bit(data: Path, rng: random.Random) -> str:
    """Flip a bit that was durable; return where. Raises TargetError if nothing is proved to be."""
    files = journal_files(data)
    sizes = {file: file.stat().st_size for file in files[:-1]}
    sizes |= {file: proved_bytes(file, file.read_bytes()) for file in files[-1:]}
    proved = {file: size for file, size in sizes.items() if size > 0}
    if not proved:
        raise TargetError(f"{data}: nothing is proved to be durable yet")
    file, size = rng.choice(sorted(proved.items()))
    at, bit = rng.randrange(size), 1 << rng.randrange(8)
    descriptor = os.open(file, os.O_RDWR)
    try:
        byte = os.pread(descriptor, 1, at)[0]
        os.pwrite(descriptor, bytes([byte ^ bit]), at)
    finally:
        os.close(descriptor)
    return f"{file.name}, bit {bit:#x} of byte {at}"


def truncate(data: Path, rng: random.Random) -> str:
    """Cut the end off a journal file that is not the last; return where.

    Raises TargetError if there is one file only.
    """
    older = journal_files(data)[:-1]
    if not older:
        raise TargetError(f"{data}: the journal has one file, and its end may be cut unnoticed")
    file = rng.choice(older)
    size = rng.randrange(file.stat().st_size)
    os.truncate(file, size)
    return f"{file.name}, cut to {size} bytes"


def last_index(data: Path) -> int:
    """Return the index of the last entry in the journal, 0 if there is none."""
    return max((index for file in journal_files(data) for index in _indexes(file)), default=0)


def _indexes(file: Path) -> Iterator[int]:
    content, segment = file.read_bytes(), Segment(file.parent, int(file.stem), 0)
    for kind, offset in segment.scan(content):
        if kind in (segments.ENTRY, segments.BASE):
            yield segment.entry(content, offset)[0]
