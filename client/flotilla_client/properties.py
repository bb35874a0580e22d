"""What a publication has beside its bytes: key, headers, expiry, delay, and how they travel.

What lives here: the envelope that a publication with properties begins with, its limits, its strict
reading. What must not: batches (protocol.py), what anybody does with a key, when a publication has
expired (cluster/store/expiry.py) or is due (cluster/store/delayed.py).

An envelope is `version` (uint8, 1), `size` (uint16) of the fields, the fields; numbers are little
endian. A field is a tag (uint8) and, of an expiry or a delay, the milliseconds (uint64); of a key,
`size` (uint16) and the value; of a header `size` (uint8) and the name, `size` (uint16) and the
value. The tag says whether the value is text (UTF-8) or bytes. First the expiry, if there is one,
then the delay, the key, the headers, in their order, no name twice. What has no properties has no
envelope. So each has one encoding, and each encoding one meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from flotilla_client.error_table import ProtocolError

VERSION: Final = 1
HEAD_BYTES: Final = 3  # version, size
KEY_BYTES_MAX: Final = 1024  # a name of what the publication is about, not a document
HEADERS_MAX: Final = 64
HEADER_NAME_BYTES_MAX: Final = 255  # as a topic's
PROPERTIES_BYTES_MAX: Final = 16 * 1024  # of an envelope: as the header of a request
EXPIRES_MS_MAX: Final = 315_360_000_000  # ten years: what is to stay longer needs no expiry
DELIVER_AFTER_MS_MAX: Final = 31_536_000_000  # a year: what is due later is a calendar's

_KEY_TEXT, _KEY_BYTES, _HEADER_TEXT, _HEADER_BYTES, _EXPIRY, _DELAY = 1, 2, 3, 4, 5, 6
_MS_BYTES: Final = 8
_MS_FIELD_BYTES: Final = 1 + _MS_BYTES
_DURATIONS: Final = (  # in their order, before all else: tag, name, limit
    (_EXPIRY, "expiry", EXPIRES_MS_MAX),
    (_DELAY, "delay", DELIVER_AFTER_MS_MAX),
)


@dataclass(frozen=True, slots=True)
class Properties:
    """A publication's `key` (None: it has none) and `headers`.

    `expires_ms`: so long after it came into its topic it is given to nobody any more; 0: it never
    expires. `deliver_after_ms`: so long after it was stored it comes into its topic; 0: at once.
    """

    key: str | bytes | None = None
    headers: Mapping[str, str | bytes] = field(default_factory=dict, hash=False)
    expires_ms: int = 0
    deliver_after_ms: int = 0

    def of(self, data: bytes | str) -> Publication:
        """Return something to be published with them."""
        expires, deliver_after = _duration(self.expires_ms), _duration(self.deliver_after_ms)
        return Publication(data, self.key, self.headers, expires, deliver_after)

    def lasting(self) -> Properties:
        """Return them without expiry and delay, which builds of before these do not know."""
        return replace(self, expires_ms=0, deliver_after_ms=0)


def _duration(ms: int) -> timedelta | None:
    return timedelta(milliseconds=ms) if ms else None


@dataclass(frozen=True, slots=True)
class Publication:
    """Bytes or text to be published with properties; wherever a publication is taken.

    `key`: what it is about. `headers` {name: text or bytes}, names printable. Both are stored and
    handed over with it, as they are. `expires`: so long (seconds, or a timedelta) after it came
    into its topic it is given to nobody any more; None: it never expires. `deliver_after`: so long
    after it was stored it comes into its topic, and has its id and time from then; None: at once.
    """

    data: bytes | str
    key: str | bytes | None = None
    headers: Mapping[str, str | bytes] = field(default_factory=dict, hash=False)
    expires: float | timedelta | None = None
    deliver_after: float | timedelta | None = None

    @property
    def properties(self) -> Properties:
        """What it is published with. Raises TypeError, ProtocolError `bad_request`."""
        expires_ms = _milliseconds("expires", self.expires, EXPIRES_MS_MAX)
        delay_ms = _milliseconds("deliver_after", self.deliver_after, DELIVER_AFTER_MS_MAX)
        return Properties(self.key, self.headers, expires_ms, delay_ms)


def _milliseconds(name: str, value: float | timedelta | None, ms_max: int) -> int:
    """Return a duration in ms, 0 for none; a part of one counts as one."""
    if value is None:
        return 0
    if isinstance(value, timedelta):
        value = value / timedelta(seconds=1)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is seconds or a timedelta, not {type(value).__name__}")
    if not 0 < value <= ms_max / 1000:
        raise _out_of_range(f"{value} s", ms_max)
    return max(1, round(value * 1000))


def _out_of_range(what: str, ms_max: int) -> ProtocolError:
    message = (
        f"a publication expires after 1 ms to {ms_max} ms (ten years), not {what}"
        if ms_max == EXPIRES_MS_MAX
        else f"a publication is delayed by 1 ms to {ms_max} ms (a year), not {what}"
    )
    return ProtocolError("bad_request", message)


class Enveloped(bytes):
    """The bytes of a publication that begin with its properties."""

    __slots__ = ()


# --- encoding -----------------------------------------------------------------------------------


def encode(properties: Properties) -> bytes:
    """Return the envelope of properties, b"" of none.

    Raises TypeError, and ProtocolError `bad_request`, `too_large`.
    """
    fields = bytearray()
    if properties.expires_ms:
        _check_ms(properties.expires_ms, EXPIRES_MS_MAX)
        fields.append(_EXPIRY)
        fields += properties.expires_ms.to_bytes(_MS_BYTES, "little")
    if properties.deliver_after_ms:
        _check_ms(properties.deliver_after_ms, DELIVER_AFTER_MS_MAX)
        fields.append(_DELAY)
        fields += properties.deliver_after_ms.to_bytes(_MS_BYTES, "little")
    key = properties.key
    if key is not None:
        value, is_text = _value("key", key)
        if len(value) > KEY_BYTES_MAX:
            raise _too_large(f"key of {len(value)} bytes", KEY_BYTES_MAX)
        fields.append(_KEY_TEXT if is_text else _KEY_BYTES)
        fields += len(value).to_bytes(2, "little") + value
    headers = properties.headers
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a mapping of names, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise _too_large(f"{len(headers)} headers", HEADERS_MAX)
    for name, content in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a text, not {type(name).__name__}")
        value, is_text = _value(f"header {name!r}", content)
        if len(value) > PROPERTIES_BYTES_MAX:
            raise _too_large(f"header {name!r} of {len(value)} bytes", PROPERTIES_BYTES_MAX)
        named = _checked_name(name)
        fields.append(_HEADER_TEXT if is_text else _HEADER_BYTES)
        fields.append(len(named))
        fields += named + len(value).to_bytes(2, "little") + value
    if not fields:
        return b""
    if HEAD_BYTES + len(fields) > PROPERTIES_BYTES_MAX:
        raise _too_large(f"properties of {HEAD_BYTES + len(fields)} bytes", PROPERTIES_BYTES_MAX)
    return bytes((VERSION, *len(fields).to_bytes(2, "little"))) + fields


def _check_ms(ms: int, ms_max: int) -> None:
    if not 1 <= ms <= ms_max:
        raise _out_of_range(f"{ms} ms", ms_max)


def _value(what: str, value: object) -> tuple[bytes, bool]:
    """Return a value's bytes, and whether it is text."""
    if isinstance(value, str):
        try:
            return value.encode(), True
        except UnicodeEncodeError:
            raise ProtocolError("bad_request", f"{what} is no text that UTF-8 can say") from None
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is text or bytes, not {type(value).__name__}")
    return bytes(value), False


def _checked_name(name: str) -> bytes:
    if not name or not name.isprintable():
        raise ProtocolError("bad_request", "a header's name is printable text, and not empty")
    named = name.encode()
    if len(named) > HEADER_NAME_BYTES_MAX:
        raise _too_large(f"a header's name of {len(named)} bytes", HEADER_NAME_BYTES_MAX)
    return named


def _too_large(what: str, limit: int) -> ProtocolError:
    return ProtocolError("too_large", what, limit=limit)


# --- decoding -----------------------------------------------------------------------------------


def envelope_bytes(publication: bytes) -> int:
    """Return how long the envelope is that a publication begins with; it was read before."""
    return HEAD_BYTES + int.from_bytes(publication[1:HEAD_BYTES], "little")


def key_field(data: bytes, start: int = 0) -> bytes | None:
    """Return the key of the properties at `start`, as it is encoded; None: no key.

    They were read before. Two keys are one if these bytes are equal: of the same kind, and the
    same.
    """
    first, end = start + HEAD_BYTES, start + envelope_bytes(data[start : start + HEAD_BYTES])
    for tag in (_EXPIRY, _DELAY):
        if first < end and data[first] == tag:
            first += _MS_FIELD_BYTES
    if first == end or data[first] not in (_KEY_TEXT, _KEY_BYTES):
        return None
    return data[first : first + 3 + int.from_bytes(data[first + 1 : first + 3], "little")]


def expiry_of(publication: bytes) -> int:
    """Return the `expires_ms` of a publication that begins with properties; they were read before.

    0: it never expires.
    """
    return _ms_at(publication, HEAD_BYTES) if publication[HEAD_BYTES] == _EXPIRY else 0


def delay_of(publication: bytes) -> int:
    """Return the `deliver_after_ms` of a publication that begins with properties, as `expiry_of`.

    0: it is not delayed.
    """
    first = HEAD_BYTES + (_MS_FIELD_BYTES if publication[HEAD_BYTES] == _EXPIRY else 0)
    if first == envelope_bytes(publication) or publication[first] != _DELAY:
        return 0
    return _ms_at(publication, first)


def _ms_at(publication: bytes, first: int) -> int:
    return int.from_bytes(publication[first + 1 : first + _MS_FIELD_BYTES], "little")


def decode(publication: bytes) -> tuple[Properties, int]:
    """Return the properties that a publication begins with, and how many bytes they take.

    Raises ProtocolError `bad_request`, `too_large`.
    """
    if len(publication) < HEAD_BYTES or publication[0] != VERSION:
        raise _malformed(f"they do not begin with {VERSION}, their version, and their size")
    end = envelope_bytes(publication)
    if end > PROPERTIES_BYTES_MAX:
        raise _too_large(f"properties of {end} bytes", PROPERTIES_BYTES_MAX)
    if not HEAD_BYTES < end <= len(publication):
        raise _malformed(f"{end} bytes of a publication of {len(publication)}")
    key: str | bytes | None = None
    headers: dict[str, str | bytes] = {}
    expires_ms, delay_ms, position = _durations(publication, end)
    first = position
    while position < end:
        tag = publication[position]
        if tag in (_HEADER_TEXT, _HEADER_BYTES):
            named, position = _sized(publication, position + 1, 1, end)
            name = _text(named)
            _checked_name(name)
            if name in headers:
                raise _malformed(f"header {name!r} is there twice")
            value, position = _sized(publication, position, 2, end)
            headers[name] = _text(value) if tag == _HEADER_TEXT else value
        elif tag in (_KEY_TEXT, _KEY_BYTES) and position == first:
            value, position = _sized(publication, position + 1, 2, end)
            if len(value) > KEY_BYTES_MAX:
                raise _too_large(f"key of {len(value)} bytes", KEY_BYTES_MAX)
            key = _text(value) if tag == _KEY_TEXT else value
        else:
            raise _malformed(f"no field begins with {tag} at byte {position}")
    if len(headers) > HEADERS_MAX:
        raise _too_large(f"{len(headers)} headers", HEADERS_MAX)
    return Properties(key, headers, expires_ms, delay_ms), end


def _durations(publication: bytes, end: int) -> tuple[int, int, int]:
    """Return the expiry and the delay (0: none), and where what follows them begins."""
    found, position = {_EXPIRY: 0, _DELAY: 0}, HEAD_BYTES
    for tag, name, ms_max in _DURATIONS:
        if position < end and publication[position] == tag:
            if position + _MS_FIELD_BYTES > end:
                raise _malformed(f"the {name} goes beyond their end")
            found[tag] = _ms_at(publication, position)
            _check_ms(found[tag], ms_max)
            position += _MS_FIELD_BYTES
    return found[_EXPIRY], found[_DELAY], position


def _sized(publication: bytes, start: int, size_bytes: int, end: int) -> tuple[bytes, int]:
    """Return a value that its size stands before, and where it ends."""
    first = start + size_bytes
    last = first + int.from_bytes(publication[start:first], "little")
    if first > end or last > end:
        raise _malformed(f"the field at byte {start} goes beyond their end")
    return publication[first:last], last


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _malformed("a text in them is not UTF-8") from None


def _malformed(what: str) -> ProtocolError:
    return ProtocolError("bad_request", f"malformed properties: {what}")
