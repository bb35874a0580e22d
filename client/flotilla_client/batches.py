"""What an application publishes, made into batches that fit the protocol.

What lives here: the check of a publication's type and size, and packing. What must not: counters,
the outbox (state.py), or when a batch is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from flotilla_client import checks, protocol
from flotilla_client.errors import TooLarge


def batches_of(publications: Sequence[bytes | str]) -> list[tuple[bytes, bytes]]:
    """Pack publications into as few batches (lengths, data) as the protocol's limits allow.

    Raises TooLarge for a publication over `PUBLICATION_BYTES_MAX`, and TypeError for what is no
    list of publications: one text alone, say, or a set, which has no order.
    """
    batches: list[list[bytes]] = [[]]
    size_bytes = 0
    for publication in map(as_bytes, checks.several("publications", publications)):
        full = len(batches[-1]) == protocol.BATCH_COUNT_MAX
        if batches[-1] and (full or size_bytes + len(publication) > protocol.BATCH_BYTES_MAX):
            batches.append([])
            size_bytes = 0
        batches[-1].append(publication)
        size_bytes += len(publication)
    return [protocol.pack(batch) for batch in batches if batch]


def batch_of(publication: bytes | str) -> tuple[bytes, bytes]:
    """Return a batch of one publication, as `batches_of` would."""
    data = as_bytes(publication)
    return len(data).to_bytes(4, "little"), data


def as_bytes(publication: object) -> bytes:
    """Return a publication's bytes (text as UTF-8). Raises TooLarge, and TypeError for all else."""
    if type(publication) is bytes and len(publication) <= protocol.PUBLICATION_BYTES_MAX:
        return publication  # as a rule
    if not isinstance(publication, bytes | bytearray | memoryview | str):
        kind = type(publication).__name__
        raise TypeError(f"a publication is bytes or text, not {kind}")
    data = publication.encode() if isinstance(publication, str) else bytes(publication)
    if len(data) > protocol.PUBLICATION_BYTES_MAX:
        raise TooLarge(
            f"a publication of {len(data)} bytes; {protocol.PUBLICATION_BYTES_MAX} are allowed",
            details={"limit": protocol.PUBLICATION_BYTES_MAX},
        )
    return data
