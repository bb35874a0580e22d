"""Mutual TLS 1.3 between nodes: a socket whose bytes are somebody's whose certificate we know.

What lives here: contexts, the proof of a peer's name, and a socket with the methods that a
connection uses (members/links.py). What must not: files (directory.py), what a peer says.

A node's certificate is signed by the cluster's own CA and has one SAN URI,
`flotilla://CLUSTER/NODE`. No byte of a peer is handed on before the handshake is done and that name
is one of ours: nothing of a stranger's reaches the parser of messages.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

RECORD_BYTES: Final = 16 * 1024  # the most that TLS puts into one record
SEAL_BYTES_MAX: Final = 4 * RECORD_BYTES  # sealed before the system is asked to take it
VIEW_BYTES_MIN: Final = 2 * RECORD_BYTES  # of a read: half a record may wait, another fits
URI_SCHEME: Final = "flotilla"
_URI: Final = re.compile(r"flotilla://([a-z0-9-]{1,32})/([a-z0-9-]{1,32})")


class TlsError(OSError):
    """The handshake failed, or its certificate is nobody's whom we know; the connection ends."""


@dataclass(frozen=True, slots=True)
class CertificateIdentity:
    """Whose a certificate is. `serial`: hexadecimal, as `openssl x509 -serial` prints it; `issuer`:
    the name of the CA that has signed it, which no other CA has.
    """

    cluster_id: str
    node: str
    serial: str
    issuer: object

    @property
    def uri(self) -> str:
        """What stands in the certificate."""
        return uri_of(self.cluster_id, self.node)


def uri_of(cluster_id: str, node: str) -> str:
    """Return the SAN URI of a node's certificate."""
    return f"{URI_SCHEME}://{cluster_id}/{node}"


def identity_of(certificate: Any) -> CertificateIdentity:
    """Return whose a verified certificate is (of `getpeercert`). Raises TlsError."""
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    match = _URI.fullmatch(names[0]) if len(names) == 1 else None
    if match is None:
        raise TlsError("its certificate names no node")
    serial = _serial(certificate["serialNumber"])
    return CertificateIdentity(match[1], match[2], serial, certificate["issuer"])


def _serial(text: str) -> str:
    return text.upper().lstrip("0") or "0"


class Tls:
    """What a node proves itself with, and whom it believes.

    `authorities`: PEM of the CAs whose nodes are let in. `certificate`: a file with this node's
    certificate and its key. `revoked`: serial numbers that are not accepted any more. Raises
    OSError (ssl.SSLError), TlsError for what can't be used, or would not be believed by others.
    """

    def __init__(self, authorities: str, certificate: str, revoked: Iterable[str]) -> None:
        self.revoked = frozenset(_serial(each) for each in revoked)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, authorities, certificate)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, authorities, certificate)
        self._server.num_tickets = 0  # nothing is resumed: each connection proves itself
        self._issuers = [each["subject"] for each in self._client.get_ca_certs()]
        self.own = self._own()

    def _own(self) -> CertificateIdentity:
        """Return who we are to others: by a handshake with ourselves, that finds what theirs would
        (a foreign CA, a date, a use that is not allowed).
        """
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self._server.wrap_bio(there, back, server_side=True)
        client = self._client.wrap_bio(back, there)
        for side in (client, server, client, server):  # TLS 1.3: two flights, then both are done
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        return identity_of(server.getpeercert())

    def wrap(self, raw: socket.socket, is_server: bool) -> TlsSocket:
        """Return a connected, or connecting, non-blocking socket by TLS."""
        return TlsSocket(raw, self._server if is_server else self._client, self, is_server)

    def check(self, certificate: Any) -> CertificateIdentity:
        """Return whose a verified certificate is, one of our cluster's. Raises TlsError."""
        peer = identity_of(certificate)
        objection = self.objection(peer)
        if objection:
            raise TlsError(objection)
        return peer

    def objection(self, peer: CertificateIdentity) -> str:
        """Return why a certificate is not accepted that was verified once, "" if it is."""
        if peer.cluster_id != self.own.cluster_id:
            return f"its certificate is of cluster {peer.cluster_id!r}"
        if peer.serial in self.revoked:
            return f"its certificate (of {peer.node}, serial {peer.serial}) is revoked"
        if peer.issuer not in self._issuers:
            return f"its certificate (of {peer.node}) is of a CA that is not accepted any more"
        return ""


def _context(protocol: int, authorities: str, certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node's name is in its URI, whatever address it has
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authorities)
    context.load_cert_chain(certificate, password="")  # a file that has one is no file of ours
    return context


class TlsSocket:
    """A non-blocking socket by TLS, with what a connection uses of a socket's methods.

    `recv_into` and `sendmsg` do the handshake first; until it is done they raise BlockingIOError.
    `peer`: whose the other end is, None until then.
    """

    def __init__(
        self, raw: socket.socket, context: ssl.SSLContext, tls: Tls, is_server: bool
    ) -> None:
        self._raw, self._policy = raw, tls
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=is_server)
        self._unsent: bytes | memoryview = b""
        self.peer: CertificateIdentity | None = None

    @property
    def has_unsent(self) -> bool:
        """True while sealed bytes wait for the system to take them."""
        return bool(self._unsent)

    @property
    def awaits_peer(self) -> bool:
        """True while nothing can be sent, whatever the system would take."""
        return self.peer is None and not self._unsent

    def recv_into(self, view: memoryview) -> int:
        """Take what came, 0 at the end of it. Raises BlockingIOError, OSError as a socket's."""
        assert len(view) >= VIEW_BYTES_MIN, len(view)
        taken = 0
        if self.peer is None or self._holds_unopened():
            taken = self._opened(view)
        while True:
            # No more than fits: what is opened has no other place to wait, and no event to come.
            room = len(view) - taken - self._in.pending
            if room <= 0:
                return taken
            if self.peer is None:  # a stranger may send a handshake in many tiny records
                room = RECORD_BYTES
            try:
                data = self._raw.recv(room)
            except BlockingIOError:
                if taken:
                    return taken
                raise
            if not data:
                return taken
            self._in.write(data)
            taken += self._opened(view[taken:])
            if self.peer is None:  # a record of it a turn: what is left has an event of its own
                raise BlockingIOError
            if taken and len(data) < room:  # what comes from now on has an event of its own
                return taken

    def _holds_unopened(self) -> bool:
        return bool(self._in.pending or self._tls.pending())

    def _opened(self, view: memoryview) -> int:
        if self.peer is None and not self._shake_hands():
            return 0
        taken = 0
        try:
            while taken < len(view):
                rest = view[taken:] if taken else view
                size: Any = self._tls.read(len(rest), rest)  # into it
                taken += size
                if not size or not self._holds_unopened():  # to ask for more costs an exception
                    break
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            self.flush()
        except ssl.SSLError as error:
            raise _told(error) from None
        return taken

    def sendmsg(self, frames: Iterable[bytes | memoryview]) -> int:
        """Seal and send frames; return how many of their bytes were taken. Raises as a socket's."""
        if (self.peer is None and not self._shake_hands()) or not self.flush():
            raise BlockingIOError
        taken, batch = 0, bytearray()
        for frame in frames:
            rest = memoryview(frame)
            while rest:
                piece = rest[: SEAL_BYTES_MAX - len(batch)]
                batch += piece
                rest = rest[len(piece) :]
                if len(batch) == SEAL_BYTES_MAX:
                    taken += self._seal(batch)
                    batch = bytearray()
                    if not self.flush():
                        return taken
        taken += self._seal(batch)
        self.flush()
        return taken

    def _seal(self, batch: bytearray) -> int:
        view = memoryview(batch)
        while view:
            view = view[self._tls.write(view) :]  # a record at a time
        return len(batch)

    def flush(self) -> bool:
        """Let sealed bytes leave; return whether all have."""
        while True:
            if not self._unsent:
                if not self._out.pending:
                    return True
                self._unsent = self._out.read()
            try:
                size = self._raw.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = memoryview(self._unsent)[size:]

    def _shake_hands(self) -> bool:
        """Go on with the handshake; return whether it is done. Raises TlsError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.flush()
            return False
        except ssl.SSLError as error:
            self._last_word()
            raise _told(error) from None
        self.peer = self._policy.check(self._tls.getpeercert())
        self.flush()
        return True

    def _last_word(self) -> None:
        """Send the alert that says why, if the system takes it: an operator's mistake is found."""
        try:
            self.flush()
        except OSError:
            return

    def getsockopt(self, level: int, option: int) -> int:
        """Return an option of the socket."""
        return self._raw.getsockopt(level, option)

    def close(self) -> None:
        """Close the socket."""
        self._raw.close()


def _told(error: ssl.SSLError) -> TlsError:
    reason = getattr(error, "verify_message", "") or (error.reason or str(error)).lower()
    return TlsError(f"no TLS of this cluster: {reason.replace('_', ' ')}")
