"""A client's key: the file that `flotilla-keys client NAME` has made, and what stands in it.

What lives here: the file's form and Z85, in which ZeroMQ writes keys. What must not: sockets
(connection.py), the making of keys (a cluster's matter). Nothing here puts a secret into a text:
errors name the file and the line.

The form is that of ZeroMQ's own certificates (`zmq.auth.load_certificate` reads it), with the key
of the servers besides: lines `name = "value"` under `metadata` and `curve`, `#` begins a comment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flotilla_client import checks
from flotilla_client.errors import KeyUnusable

KEY_BYTES: Final = 32  # of Curve25519
Z85_CHARACTERS: Final = 40  # as which ZeroMQ writes them
FILE_BYTES_MAX: Final = 16 * 1024  # a key's file has some hundred
VARIABLE: Final = "FLOTILLA_KEY"
_ALPHABET: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_VALUE_OF: Final = {character: value for value, character in enumerate(_ALPHABET)}
_LINE: Final = re.compile(r'\s+([a-z-]+)\s*=\s*"([^"]*)"\s*')
_SECTIONS: Final = frozenset({"metadata", "curve"})


def z85(key: bytes) -> str:
    """Return 32 bytes as 40 characters."""
    assert len(key) == KEY_BYTES, len(key)
    text = []
    for start in range(0, KEY_BYTES, 4):
        number = int.from_bytes(key[start : start + 4], "big")
        text += [_ALPHABET[number // 85**place % 85] for place in (4, 3, 2, 1, 0)]
    return "".join(text)


def from_z85(text: str) -> bytes:
    """Return the 32 bytes of a key. Raises ValueError, which does not repeat the text."""
    if len(text) != Z85_CHARACTERS:
        raise ValueError(f"{len(text)} characters; a key has {Z85_CHARACTERS}")
    key = b""
    for start in range(0, Z85_CHARACTERS, 5):
        number = 0
        for character in text[start : start + 5]:
            if character not in _VALUE_OF:
                raise ValueError("a character that Z85 does not have")
            number = number * 85 + _VALUE_OF[character]
        if number >> 32:
            raise ValueError("five characters above Z85's range")
        key += number.to_bytes(4, "big")
    return key


@dataclass(frozen=True, slots=True)
class Key:
    """What a client needs to be let in. `name`: whose it is; the keys are Z85, as ZeroMQ's."""

    name: str
    public: str
    secret: str = field(repr=False)
    server: str

    def text(self) -> str:
        """Return the file's text."""
        return (
            "# A client's key: whoever has this file is this client. Keep it to its owner.\n"
            "metadata\n"
            f'    name = "{self.name}"\n'
            "curve\n"
            f'    public-key = "{self.public}"\n'
            f'    secret-key = "{self.secret}"\n'
            f'    server-key = "{self.server}"\n'
        )


class KeyFile:
    """A client's key file, looked at again for each connection.

    A file that was replaced counts from the next connection on, so that keys are changed under
    clients that run. One that has gone or is damaged by then changes nothing for them.
    Raises KeyUnusable if it can't be read at first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key = read_key(path)

    def current(self) -> Key:
        """Return the key as it is now."""
        try:
            self._key = read_key(self.path)
        except KeyUnusable:
            return self._key
        return self._key


def key_file(given: object) -> KeyFile | None:
    """Return the key of the argument `key`, or of FLOTILLA_KEY where None is given; None: no key.

    Raises TypeError, ValueError, KeyUnusable.
    """
    if given is None:
        given = os.environ.get(VARIABLE) or None
    path = checks.path("key", given)
    return None if path is None else KeyFile(path)


def read_key(path: Path) -> Key:
    """Return the key in a file. Raises KeyUnusable."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    if len(raw) > FILE_BYTES_MAX:
        raise _unusable(path, f"over {FILE_BYTES_MAX} bytes: no key file")
    values: dict[str, str] = {}
    for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() in _SECTIONS:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise _unusable(path, f"line {number} is none of a key file")
        values[match[1]] = match[2]
    for name in ("public-key", "secret-key", "server-key"):
        if name not in values:
            raise _unusable(path, f"has no {name}; `flotilla-keys client NAME` makes whole ones")
        try:
            from_z85(values[name])
        except ValueError as error:
            raise _unusable(path, f"{name}: {error}") from None
    name, public = values.get("name", ""), values["public-key"]
    return Key(name, public, values["secret-key"], values["server-key"])


def _unusable(path: Path, reason: str) -> KeyUnusable:
    return KeyUnusable(f"the key file {path}: {reason}", details={"file": str(path)})
