"""The directory of keys that a node has: what `flotilla-keys node NAME` has made for it.

What lives here: the files' names and forms, reading them strictly, and noticing that they changed.
What must not: making keys (authority.py), sockets.

| file | content |
|---|---|
| `ca.pem` | the CAs whose nodes are let in: one, or two while it is changed |
| `node.pem` | this node's certificate and its key |
| `revoked` | serial numbers of certificates that are not accepted any more, one a line |
| `server.key` | the servers' CURVE keys, `curve PUBLIC SECRET` a line, the newest first |
| `authorized_clients` | who may come: `NAME PUBLIC` a line |

The last three begin with a comment and end with one, so that half of one is none.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nacl.bindings import crypto_scalarmult_base

from cluster.keys.curve import KeyPair, Keyring
from cluster.keys.tls import Tls
from flotilla_client.keys import from_z85

AUTHORITIES: Final = "ca.pem"
CERTIFICATE: Final = "node.pem"
REVOKED: Final = "revoked"
SERVER_KEY: Final = "server.key"
SERVER_WORD: Final = "curve"  # begins a line: Z85 may begin with the # of a comment
CLIENTS: Final = "authorized_clients"
# A file that begins so is whole if it has the line END: half a copy is no shorter list of clients.
COMMENT: Final = "# Made by flotilla-keys; one a line, to the line `# end`."
END: Final = "# end"
FILES: Final = (AUTHORITIES, CERTIFICATE, REVOKED, SERVER_KEY, CLIENTS)
FILE_BYTES_MAX: Final = 8 * 1024 * 1024  # 100,000 clients
SERVER_KEYS_MAX: Final = 2  # each costs every handshake of a stranger 40 µs
LOOK_S: Final = 1.0  # five calls of stat()
NAME: Final = re.compile(r"[a-z0-9-]{1,32}")  # as a node's; a word in every log and file


class KeysError(Exception):
    """The keys can't be used. The text names the file and never has a secret in it."""


@dataclass(frozen=True)
class NodeKeys:
    """What a node proves itself with, and whom it lets in."""

    keyring: Keyring
    tls: Tls


def load(directory: Path, cluster_id: str, node: str) -> NodeKeys:
    """Return the keys of a node. Raises KeysError."""
    authorities = _text(directory / AUTHORITIES)
    revoked = [line for _, line in _lines(directory / REVOKED)]
    try:
        tls = Tls(authorities, str(directory / CERTIFICATE), revoked)
    except (OSError, ValueError) as error:  # of `ssl`: which of the files it was it does not say
        raise KeysError(f"{directory}: {CERTIFICATE} or {AUTHORITIES}: {error}") from None
    own = tls.own
    if (own.cluster_id, own.node) != (cluster_id, node):
        raise KeysError(
            f"{directory / CERTIFICATE}: is of node {own.node!r} of cluster {own.cluster_id!r},"
            f" not of {node!r} of {cluster_id!r}"
        )
    keyring = Keyring(servers_of(directory / SERVER_KEY), clients_of(directory / CLIENTS))
    return NodeKeys(keyring, tls)


class KeysDirectory:
    """A node's directory of keys, read again when a file of it was changed or replaced.

    `keys`: as they were read last. The constructor raises KeysError.
    """

    def __init__(self, directory: Path, cluster_id: str, node: str) -> None:
        self._directory, self._whose = directory, (cluster_id, node)
        self._seen = self._marks()
        self._looked_at = float("-inf")
        self._is_asked = False
        # A thread: 100,000 clients take seconds, in which a leader would be deposed. Not that of
        # the worker: who is revoked must not stay in while that copies a database.
        self._reader: threading.Thread | None = None
        self._read: NodeKeys | KeysError | None = None
        self.keys = load(directory, cluster_id, node)

    def look(self, now: float, asked: bool) -> bool:
        """Begin to read them again if they changed, or because somebody asked; return whether
        there are new ones since the last call.

        Looks every `LOOK_S`. Raises KeysError, and goes on with the keys that it had: half a copy
        is not read again before it changes.
        """
        self._is_asked = self._is_asked or asked
        if self._reader is not None:
            return not self._reader.is_alive() and self._take()
        if not self._is_asked and now < self._looked_at + LOOK_S:
            return False
        self._looked_at = now
        marks = self._marks()  # before they are read: what changes meanwhile is seen the next time
        if not self._is_asked and marks == self._seen:
            return False
        self._is_asked = False
        reader = threading.Thread(target=self._run, name="keys", daemon=True)
        try:
            reader.start()
        except RuntimeError as error:  # the system has no more threads for us now
            raise KeysError(f"{self._directory}: cannot be read now: {error}") from error
        self._seen, self._reader = marks, reader
        return False

    def _take(self) -> bool:
        read, self._reader, self._read = self._read, None, None
        assert read is not None, "reading keys failed; the traceback stands above"
        if isinstance(read, KeysError):
            raise read
        self.keys = read
        return True

    def _run(self) -> None:
        try:
            self._read = load(self._directory, *self._whose)
        except KeysError as error:
            self._read = error

    def _marks(self) -> tuple[object, ...]:
        """Return something that is another when a file was changed or replaced."""
        marks: list[object] = []
        for name in FILES:
            try:
                status = (self._directory / name).stat()
            except OSError:
                marks.append(None)
            else:
                marks.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(marks)


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeysError(f"{file}: {error.strerror}; `flotilla-keys node` makes it") from None
    if len(raw) > FILE_BYTES_MAX:
        raise KeysError(f"{file}: over {FILE_BYTES_MAX} bytes")
    return raw.decode("ascii", errors="backslashreplace")


def whole(file: Path) -> str:
    """Return the text of a file that is read line by line. Raises KeysError for half of one."""
    text = _text(file)
    lines = text.splitlines()
    if not text.endswith("\n") or (lines[0] == COMMENT and END not in lines):
        raise KeysError(f"{file}: is not whole: bring it again")
    return text


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is neither empty nor a comment."""
    for number, line in enumerate(whole(file).splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def servers_of(file: Path) -> tuple[KeyPair, ...]:
    """Return the servers' keys, the newest first. Raises KeysError."""
    pairs = []
    for number, line in _lines(file):
        word, *keys = line.split()
        try:
            public, secret = map(from_z85, keys)
            if word != SERVER_WORD:
                raise ValueError(word)
        except ValueError:
            raise KeysError(f"{file}: line {number} is not: curve PUBLIC SECRET") from None
        if crypto_scalarmult_base(secret) != public:
            raise KeysError(f"{file}: line {number}: the two are not of one pair")
        pairs.append(KeyPair(public, secret))
    if not 1 <= len(pairs) <= SERVER_KEYS_MAX:
        raise KeysError(f"{file}: {len(pairs)} keys; 1 or {SERVER_KEYS_MAX} are due")
    return tuple(pairs)


def clients_of(file: Path) -> dict[bytes, str]:
    """Return whose each key is, as they were made. Raises KeysError."""
    clients: dict[bytes, str] = {}
    for number, line in _lines(file):
        name, _, key = line.partition(" ")
        try:
            public = from_z85(key.strip())
        except ValueError as error:
            raise KeysError(f"{file}: line {number}: {error}") from None
        if not NAME.fullmatch(name):
            raise KeysError(f"{file}: line {number}: a name is 1 to 32 of a-z, 0-9 and -")
        if clients.get(public, name) != name:
            raise KeysError(f"{file}: line {number}: the key of {clients[public]} is not {name}'s")
        clients[public] = name
    return clients
