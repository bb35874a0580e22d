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

import struct
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
_MS: Final = struct.Struct("<Q")
_MS_FIELD_BYTES: Final = 1 + _MS.size
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


def encode(properties: Properties, *, were_read: bool = False) -> bytes:
    """Return the envelope of properties, b"" of none.

    `were_read`: of a publication that was taken, whose names are not looked at once more: Pythons
    differ in what is printable. Raises TypeError, and ProtocolError `bad_request`, `too_large`.
    """
    fields = bytearray()
    if properties.expires_ms:
        _check_ms(properties.expires_ms, EXPIRES_MS_MAX)
        fields.append(_EXPIRY)
        fields += _MS.pack(properties.expires_ms)
    if properties.deliver_after_ms:
        _check_ms(properties.deliver_after_ms, DELIVER_AFTER_MS_MAX)
        fields.append(_DELAY)
        fields += _MS.pack(properties.deliver_after_ms)
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
        named = name.encode() if were_read else _checked_name(name)
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


def _check_name(name: str) -> None:
    if not name or not name.isprintable():
        raise ProtocolError("bad_request", "a header's name is printable text, and not empty")


def _checked_name(name: str) -> bytes:
    _check_name(name)
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


def expiry_of(data: bytes, start: int = 0) -> int:
    """Return the `expires_ms` of the properties at `start`, which were read before; 0: none."""
    first = start + HEAD_BYTES
    return _MS.unpack_from(data, first + 1)[0] if data[first] == _EXPIRY else 0


def delay_of(data: bytes, start: int = 0) -> int:
    """Return the `deliver_after_ms` of the properties at `start`, as `expiry_of`; 0: none."""
    first = start + HEAD_BYTES
    if data[first] == _EXPIRY:
        first += _MS_FIELD_BYTES
        if first - start == HEAD_BYTES + (data[start + 1] | data[start + 2] << 8):
            return 0
    return _MS.unpack_from(data, first + 1)[0] if data[first] == _DELAY else 0


def decode(publication: bytes) -> tuple[Properties, int]:
    """Return the properties that a publication begins with, and how many bytes they take.

    It was taken before. So names are not looked at once more, as in `encode`. Raises ProtocolError
    `bad_request`, `too_large`.
    """
    fields: list[tuple[int, bytes, int, int]] = []
    check(publication, 0, len(publication), set(), are_texts=False, fields=fields)
    key: str | bytes | None = None
    headers: dict[str, str | bytes] = {}
    ms = {_EXPIRY: 0, _DELAY: 0}
    for tag, name, first, last in fields:
        value = publication[first:last]
        if tag in ms:
            ms[tag] = int.from_bytes(value, "little")
        elif name:
            headers[name.decode()] = _text(value) if tag == _HEADER_TEXT else value
        else:
            key = _text(value) if tag == _KEY_TEXT else value
    return Properties(key, headers, ms[_EXPIRY], ms[_DELAY]), envelope_bytes(publication)


def check(
    data: bytes,
    start: int,
    stop: int,
    names: set[bytes],
    *,
    are_texts: bool,
    fields: list[tuple[int, bytes, int, int]] | None = None,
) -> tuple[bool, bool]:
    """Check the properties of the publication data[start:stop]; return if it expires, is delayed.

    `names`: of headers that were found right before, with which it goes on. `are_texts`: whether
    what is to be text is looked at as well. `fields` takes each one's tag, a header's name, which
    may be unprintable, and where in `data` the value is. Makes next to no object: a batch has
    65,536 of these, or 200,000 headers, and a node reads it in one turn. Raises ProtocolError
    `bad_request`, `too_large`.
    """
    first = start + HEAD_BYTES
    if first > stop or data[start] != VERSION:
        raise _malformed(f"they do not begin with {VERSION}, their version, and their size")
    end = first + (data[start + 1] | data[start + 2] << 8)
    if end - start > PROPERTIES_BYTES_MAX:
        raise _too_large(f"properties of {end - start} bytes", PROPERTIES_BYTES_MAX)
    if not first < end <= stop:
        raise _malformed(f"{end - start} bytes of a publication of {stop - start}")
    at, expires, is_delayed = first, False, False
    if data[first] >= _EXPIRY:
        at, expires, is_delayed = _check_durations(data, first, end, fields)
    tag = data[at] if at < end else 0
    if _KEY_TEXT <= tag <= _KEY_BYTES:
        value = at + 3
        if value > end:
            raise _beyond(at - start)
        at = value + (data[value - 2] | data[value - 1] << 8)
        if at > end:
            raise _beyond(value - start)
        if at - value > KEY_BYTES_MAX:
            raise _too_large(f"key of {at - value} bytes", KEY_BYTES_MAX)
        if are_texts and tag == _KEY_TEXT:
            _text(data[value:at])
        if fields is not None:
            fields.append((tag, b"", value, at))
    if at < end:
        _check_headers(data, at, end, start, names, are_texts, fields)
    return expires, is_delayed


def _check_headers(
    data: bytes,
    at: int,
    end: int,
    start: int,
    names: set[bytes],
    are_texts: bool,
    fields: list[tuple[int, bytes, int, int]] | None,
) -> None:
    own: list[bytes] = []
    while at < end:
        tag = data[at]
        if not _HEADER_TEXT <= tag <= _HEADER_BYTES:
            raise _malformed(f"no field begins with {tag} at byte {at - start}")
        named = at + 2
        if named > end:
            raise _beyond(at - start)
        size_at = named + data[at + 1]
        value = size_at + 2
        if value > end:
            raise _beyond(named - start)
        at = value + (data[size_at] | data[size_at + 1] << 8)
        if at > end:
            raise _beyond(value - start)
        name = data[named:size_at]
        if name not in names:
            text = _text(name)
            if fields is None or not text:
                _check_name(text)
            names.add(name)
        own.append(name)
        if are_texts and tag == _HEADER_TEXT and at > value:
            _text(data[value:at])
        if fields is not None:
            fields.append((tag, name, value, at))
    if len(own) > HEADERS_MAX:
        raise _too_large(f"{len(own)} headers", HEADERS_MAX)
    if len(own) > 1 and len(set(own)) < len(own):
        twice = next(name for name in own if own.count(name) > 1)
        raise _malformed(f"header {_text(twice)!r} is there twice")


def _check_durations(
    data: bytes, at: int, end: int, fields: list[tuple[int, bytes, int, int]] | None
) -> tuple[int, bool, bool]:
    """Check an expiry and a delay; return where they end, and whether they are there."""
    found = []
    for tag, name, ms_max in _DURATIONS:
        is_there = at < end and data[at] == tag
        found.append(is_there)
        if is_there:
            after = at + _MS_FIELD_BYTES
            if after > end:
                raise _malformed(f"the {name} goes beyond their end")
            _check_ms(_MS.unpack_from(data, at + 1)[0], ms_max)
            if fields is not None:
                fields.append((tag, b"", at + 1, after))
            at = after
    return at, found[0], found[1]


def _beyond(at: int) -> ProtocolError:
    return _malformed(f"the field at byte {at} goes beyond their end")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _malformed("a text in them is not UTF-8") from None


def _malformed(what: str) -> ProtocolError:
    return ProtocolError("bad_request", f"malformed properties: {what}")
