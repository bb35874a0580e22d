"""What an application publishes, made into batches that fit the protocol.

What lives here: the check of a publication's type and size, and packing. What must not: counters,
the outbox (state.py), or when a batch is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from flotilla_client import checks, properties, protocol
from flotilla_client.errors import BY_CODE, BadRequest, TooLarge
from flotilla_client.properties import Enveloped, Publication
from flotilla_client.protocol import HAS_PROPERTIES, ProtocolError

Publishable = bytes | str | Publication
FLAG: Final = HAS_PROPERTIES >> 24  # in the last byte of a length


def publication_of(
    publication: Publishable,
    key: str | bytes | None,
    headers: Mapping[str, str | bytes] | None,
    expires: float | timedelta | None = None,
    deliver_after: float | timedelta | None = None,
) -> Publishable:
    """Return a publication with the properties that were given beside it.

    Raises TypeError if it has its own.
    """
    if key is None and headers is None and expires is None and deliver_after is None:
        return publication
    if isinstance(publication, Publication):
        raise TypeError("a Publication has its key, headers, expiry and delay: give none beside it")
    return Publication(publication, key, {} if headers is None else headers, expires, deliver_after)


def lane_for(topic: str, batches: Sequence[tuple[bytes, bytes]]) -> str:
    """Return under which name a client counts what it publishes to a topic at once.

    Raises BadRequest where some of it has a delay, and some has none.
    """
    found = set[bool]()
    for lengths, data in batches:
        has_properties = max(lengths[3::4]) >= FLAG
        found |= (
            {each > 0 for each in protocol.delays(lengths, data)} if has_properties else {False}
        )
    if len(found) > 1:
        message = "some of it has a delay, and some has none: publish the two one after the other"
        raise BadRequest(message)
    return protocol.lane_of(topic, is_delayed=True in found)


def check_undelayed(data: bytes) -> None:
    """Refuse, of what `as_bytes` has returned, what has a delay. Raises BadRequest."""
    if type(data) is Enveloped and properties.delay_of(data):
        raise BadRequest("a producer publishes at once: `publish` takes what has a delay")


def batches_of(publications: Sequence[Publishable]) -> list[tuple[bytes, bytes]]:
    """Pack publications into as few batches (lengths, data) as the protocol's limits allow.

    Raises TooLarge for a publication over `PUBLICATION_BYTES_MAX`, its properties included, what
    its properties are refused with, and TypeError for what is no list of publications: one text
    alone, say, or a set, which has no order.
    """
    batches: list[list[bytes]] = [[]]
    size_bytes = runs = delay_ms = 0
    for publication in map(as_bytes, checks.several("publications", publications)):
        before_ms = delay_ms
        delay_ms = properties.delay_of(publication) if type(publication) is Enveloped else 0
        runs += delay_ms != before_ms
        full = len(batches[-1]) == protocol.BATCH_COUNT_MAX or runs > protocol.DELAYS_MAX
        if batches[-1] and (full or size_bytes + len(publication) > protocol.BATCH_BYTES_MAX):
            batches.append([])
            size_bytes, runs = 0, 1
        batches[-1].append(publication)
        size_bytes += len(publication)
    return [protocol.pack(batch) for batch in batches if batch]


def batch_of(publication: Publishable) -> tuple[bytes, bytes]:
    """Return a batch of one publication, as `batches_of` would."""
    data = as_bytes(publication)
    if type(data) is Enveloped:
        return protocol.pack([data])
    return len(data).to_bytes(4, "little"), data


def as_bytes(publication: object) -> bytes:
    """Return a publication's bytes (text as UTF-8), with properties as Enveloped.

    What it has returned it returns as it is. Raises TooLarge, BadRequest, and TypeError for all
    else.
    """
    if type(publication) is bytes and len(publication) <= protocol.PUBLICATION_BYTES_MAX:
        return publication  # as a rule
    if type(publication) is Enveloped:
        return publication
    if isinstance(publication, Publication):
        return _enveloped(publication)
    if not isinstance(publication, bytes | bytearray | memoryview | str):
        kind = type(publication).__name__
        raise TypeError(f"a publication is bytes or text, not {kind}")
    data = publication.encode() if isinstance(publication, str) else bytes(publication)
    if len(data) > protocol.PUBLICATION_BYTES_MAX:
        raise _too_large(data)
    return data


def _enveloped(publication: Publication) -> bytes:
    """Return the bytes of a publication behind its properties, if it has any."""
    data = as_bytes(publication.data)
    if type(data) is Enveloped:
        raise TypeError("a publication is bytes or text, not another one with properties")
    try:
        envelope = properties.encode(publication.properties)
    except ProtocolError as error:
        raise BY_CODE[error.code](error.message, details=error.details) from error
    if not envelope:
        return data
    if len(envelope) + len(data) > protocol.PUBLICATION_BYTES_MAX:
        raise _too_large(envelope + data)
    return Enveloped(envelope + data)


def _too_large(data: bytes) -> TooLarge:
    return TooLarge(
        f"a publication of {len(data)} bytes; {protocol.PUBLICATION_BYTES_MAX} are allowed",
        details={"limit": protocol.PUBLICATION_BYTES_MAX},
    )
