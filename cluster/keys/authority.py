"""The operator's keys of a cluster: its CA, its servers' key, its nodes' and its clients' keys.

What lives here: making, changing and revoking them, in a directory that belongs on the operator's
machine. What must not: the command line (cli.py), anything that a running node does.

| file | content |
|---|---|
| `cluster.json` | the cluster's id, what was issued to which node, which certificates are revoked |
| `ca.pem` | certificate and key of each CA, the newest first; only this directory has the keys |
| `server.key`, `authorized_clients` | as nodes have them (directory.py) |
| `clients/NAME.key` | the file of a client |
| `nodes/NAME/` | the directory of a node |

Whatever changes, every node's directory here is written anew. Files are replaced whole and have
mode 0600, directories 0700. What was broken off at any file is finished by the next command, so the
same one may be said again.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from nacl.bindings import crypto_box_keypair

from cluster.keys.curve import KeyPair
from cluster.keys.directory import (
    AUTHORITIES,
    CERTIFICATE,
    CLIENTS,
    COMMENT,
    END,
    NAME,
    REVOKED,
    SERVER_KEY,
    SERVER_WORD,
    KeysError,
    clients_of,
    servers_of,
    whole,
)
from cluster.keys.tls import uri_of
from cluster.log.files import DISK
from flotilla_client.errors import KeyUnusable
from flotilla_client.keys import Key, read_key, z85

STATE: Final = "cluster.json"
CLIENT_FILES: Final = "clients"
NODES: Final = "nodes"
LOCK: Final = "lock"
# A certificate that runs out by itself stops a cluster on a day that nobody chose. Who must not get
# in is revoked, and `list` says how old keys are.
CERTIFICATE_DAYS: Final = 100 * 365
BACKDATED: Final = timedelta(days=1)  # for nodes whose clocks are behind
FORMAT: Final = 1
FILE_MODE: Final = 0o600
_END_OF_CA: Final = b"-----END PRIVATE KEY-----\n"


@dataclass
class _Ca:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def pem(self) -> str:
        return _pem(self.certificate)


@dataclass(frozen=True)
class Listed:
    """A row of `flotilla-keys list`. `keys`: how many of it are accepted now."""

    kind: str
    name: str
    keys: int
    file: str


class Authority:
    """The keys in one directory. Every method raises KeysError, OSError.

    `rotate_…` makes a new key beside the old one, which goes on being accepted; `finish_…` ends
    that. So nothing is interrupted if what was made is where it belongs before the end.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    # --- making ---

    @classmethod
    def create(cls, directory: Path, cluster_id: str, clients: Sequence[str] = ()) -> Authority:
        """Make a directory with the CA and the servers' key of a cluster, and some clients' keys.

        One that is there has to be its owner's alone: who may write there may put his own keys in
        the place of these.
        """
        _check_name(cluster_id)
        if (directory / STATE).exists():
            raise KeysError(f"{directory} has the keys of a cluster already")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise KeysError(
                f"{directory} may be written by others: chmod 700 it, or name a new one"
            )
        authority = cls(directory)
        with authority._locked():
            for name in (CLIENT_FILES, NODES):
                (directory / name).mkdir(mode=0o700, exist_ok=True)
            authority._write_authorities([_new_ca(cluster_id)])
            authority._write(SERVER_KEY, _listed(_new_server_line()))
            authority._write(CLIENTS, _listed())
            for name in clients:
                authority._new_client_key(name)
            # The last one: with it the directory is whole.
            empty = {"format": FORMAT, "cluster_id": cluster_id, "issued": {}, "revoked": []}
            authority._save(empty)
        return authority

    @property
    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return str(self._load()["cluster_id"])

    def client(self, name: str) -> Path:
        """Make the key of a new client; return its file."""
        _check_name(name)
        with self._locked():
            if name in [each for each, _ in self._clients()]:
                raise KeysError(
                    f"there is a client {name!r}; `rotate client {name}` changes its key"
                )
            return self._new_client_key(name)

    def node(self, name: str) -> Path:
        """Make the keys of a new node; return its directory."""
        _check_name(name)
        with self._locked():
            if (self._node_directory(name) / CERTIFICATE).exists():
                raise KeysError(f"there is a node {name!r}; `rotate node {name}` changes its key")
            return self._issue(name)

    # --- changing ---

    def rotate_client(self, name: str) -> Path:
        """Make another key for a client, in place of its file; return that."""
        with self._locked():
            self._check_client(name)
            clients = self._clients()
            own = [row for row in clients if row[0] == name]
            if len(own) > 1:
                if not self._is_unused(own[-1]):
                    raise KeysError(f"client {name!r} has two keys already: --finish first")
                self._save_clients([row for row in clients if row != own[-1]])
            return self._new_client_key(name)

    def finish_client(self, name: str) -> None:
        """Accept no key of a client but its newest."""
        with self._locked():
            self._check_client(name)
            clients = self._clients()
            newest = [row for row in clients if row[0] == name][-1]
            if self._is_unused(newest):
                raise KeysError(
                    f"{self.client_file(name)} has the old key, as changing it was broken off:"
                    f" `rotate client {name}` again"
                )
            self._save_clients([row for row in clients if row[0] != name or row == newest])

    def rotate_server(self) -> list[Path]:
        """Make another key of the servers, for every client's file; return these."""
        with self._locked():
            servers = self._servers()
            if len(servers) > 1:
                raise KeysError("the servers have two keys already: --finish first")
            self._write(SERVER_KEY, _listed(_new_server_line(), _server_line(servers[0])))
            return self._publish()

    def finish_server(self) -> None:
        """Accept no key of the servers but the newest."""
        with self._locked():
            self._write(SERVER_KEY, _listed(_server_line(self._servers()[0])))
            self._publish()

    def rotate_node(self, name: str) -> Path:
        """Make another certificate for a node, in its directory; return that."""
        with self._locked():
            self._check_node(name)
            return self._issue(name)

    def finish_node(self, name: str) -> None:
        """Accept no certificate of a node but its newest."""
        with self._locked():
            self._check_node(name)
            state = self._load()
            issued, held = state["issued"].get(name, []), self._held(name)
            if held is not None and _serial(held) not in issued[-1:]:
                raise KeysError(
                    f"{self._node_directory(name)} has not the newest certificate, as changing it"
                    f" was broken off: `rotate node {name}` again"
                )
            self._revoke_certificates(state, name, issued[:-1])

    def rotate_ca(self) -> None:
        """Make another CA, which signs from now on; nodes of both are let in."""
        with self._locked():
            authorities = self._authorities()
            if len(authorities) > 1:
                raise KeysError("there are two CAs already: --finish first")
            self._write_authorities([_new_ca(self.cluster_id), *authorities])
            self._publish()

    def finish_ca(self) -> None:
        """Let in no node but those of the newest CA. Refused while one has no certificate of it."""
        with self._locked():
            authorities = self._authorities()
            newest = authorities[0]
            for name in self.nodes():
                held = self._held(name)
                if held is None or held.issuer != newest.certificate.subject:
                    has = "none" if held is None else "a certificate of the old CA"
                    raise KeysError(f"node {name!r} has {has}: `rotate node {name}` first")
            self._write_authorities([newest])
            self._publish()

    def rename(self, cluster_id: str) -> None:
        """Make the nodes' certificates anew for another id: a recovered cluster has one."""
        _check_name(cluster_id)
        with self._locked():
            self._save(self._load() | {"cluster_id": cluster_id})
            for name in self.nodes():
                self._issue(name)

    # --- revoking ---

    def revoke_client(self, name: str) -> None:
        """Accept no key of a client any more, and forget it."""
        with self._locked():
            self._check_client(name)
            self.client_file(name).unlink(missing_ok=True)
            self._save_clients([row for row in self._clients() if row[0] != name])

    def revoke_node(self, name: str) -> None:
        """Accept no certificate that a node was ever given, and forget it."""
        with self._locked():
            self._check_node(name)
            state = self._load()
            self._revoke_certificates(state, name, state["issued"].get(name, []))
            directory = self._node_directory(name)
            for file in directory.iterdir():  # last: with it the node could not be named again
                file.unlink()
            directory.rmdir()

    # --- looking ---

    def nodes(self) -> list[str]:
        """Return the names of the nodes."""
        return sorted(each.name for each in (self.directory / NODES).iterdir() if each.is_dir())

    def client_file(self, name: str) -> Path:
        """Return where a client's file is."""
        return self.directory / CLIENT_FILES / f"{name}.key"

    def listed(self) -> list[Listed]:
        """Return what there is, without a secret."""
        state = self._load()
        names = [name for name, _ in self._clients()]
        rows = [
            Listed("ca", state["cluster_id"], len(self._authorities()), AUTHORITIES),
            Listed("server", state["cluster_id"], len(self._servers()), SERVER_KEY),
        ]
        for name in self.nodes():
            issued = state["issued"].get(name, [])
            good = [serial for serial in issued if serial not in state["revoked"]]
            rows.append(Listed("node", name, len(good), f"{NODES}/{name}"))
        for name in dict.fromkeys(names):
            file = self.client_file(name).relative_to(self.directory)
            rows.append(Listed("client", name, names.count(name), str(file)))
        return rows

    # --- parts ---

    def _new_client_key(self, name: str) -> Path:
        public, secret = crypto_box_keypair()
        server = z85(self._servers()[0].public)
        # First who accepts it, then who uses it: a client may read its file at any time.
        self._save_clients([*self._clients(), (name, z85(public))])
        file = self.client_file(name)
        _write(file, Key(name, z85(public), z85(secret), server).text())
        return file

    def _issue(self, name: str) -> Path:
        """Write a node's directory with a new certificate."""
        state = self._load()
        serial, pem = _new_certificate(self._authorities()[0], state["cluster_id"], name)
        issued = state["issued"] | {name: [*state["issued"].get(name, []), serial]}
        self._save(state | {"issued": issued})
        directory = self._node_directory(name)
        directory.mkdir(mode=0o700, exist_ok=True)
        _write(directory / CERTIFICATE, pem)
        self._publish_to(directory)
        return directory

    def _revoke_certificates(self, state: dict[str, Any], name: str, serials: list[str]) -> None:
        left = [serial for serial in state["issued"].get(name, []) if serial not in serials]
        revoked = sorted({*state["revoked"], *serials})
        issued = {**state["issued"], name: left}
        if not left:
            del issued[name]
        self._save(state | {"issued": issued, "revoked": revoked})
        self._publish()

    def _publish(self) -> list[Path]:
        """Write what nodes and clients share into each one's files; return the clients' files."""
        for name in self.nodes():
            self._publish_to(self._node_directory(name))
        server = z85(self._servers()[0].public)
        written = []
        for file in sorted((self.directory / CLIENT_FILES).glob("*.key")):
            key = read_key(file)
            if key.server != server:
                _write(file, Key(key.name, key.public, key.secret, server).text())
                written.append(file)
        return written

    def _publish_to(self, directory: Path) -> None:
        state = self._load()
        _write(directory / AUTHORITIES, "".join(each.pem for each in self._authorities()))
        _write(directory / REVOKED, _listed(*(f"{each}\n" for each in state["revoked"])))
        for name in (SERVER_KEY, CLIENTS):
            _write(directory / name, whole(self.directory / name))

    def _is_unused(self, client: tuple[str, str]) -> bool:
        """Return whether a client's newest key is in no file, as its making was broken off."""
        name, public = client
        file = self.client_file(name)
        return file.exists() and read_key(file).public != public

    def _clients(self) -> list[tuple[str, str]]:
        found = clients_of(self.directory / CLIENTS)
        return [(name, z85(public)) for public, name in found.items()]

    def _save_clients(self, clients: list[tuple[str, str]]) -> None:
        self._write(CLIENTS, _listed(*(f"{name} {key}\n" for name, key in clients)))
        self._publish()

    def _servers(self) -> tuple[KeyPair, ...]:
        return servers_of(self.directory / SERVER_KEY)

    def _authorities(self) -> list[_Ca]:
        file = self.directory / AUTHORITIES
        *parts, rest = file.read_bytes().split(_END_OF_CA)
        if not parts or rest:
            raise KeysError(f"{file}: is not whole: bring it again")
        try:
            return [_ca_of(part) for part in parts]
        except ValueError as error:
            raise KeysError(f"{file}: is damaged: {error}") from None

    def _write_authorities(self, authorities: list[_Ca]) -> None:
        text = "".join(each.pem + _private_pem(each.key) for each in authorities)
        self._write(AUTHORITIES, text)

    def _held(self, node: str) -> x509.Certificate | None:
        """Return the certificate in a node's directory; None: its making was broken off."""
        file = self._node_directory(node) / CERTIFICATE
        if not file.exists():
            return None
        try:
            return x509.load_pem_x509_certificate(file.read_bytes())
        except ValueError:
            raise KeysError(f"{file}: is damaged: `rotate node {node}` makes another one") from None

    def _node_directory(self, name: str) -> Path:
        return self.directory / NODES / name

    def _check_client(self, name: str) -> None:
        names = dict(self._clients())
        if name not in names:
            raise KeysError(f"no client {name!r}; there are: {', '.join(names) or 'none'}")

    def _check_node(self, name: str) -> None:
        if not NAME.fullmatch(name) or not self._node_directory(name).is_dir():
            raise KeysError(f"no node {name!r}; there are: {', '.join(self.nodes()) or 'none'}")

    def _load(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.directory / STATE).read_text())
            found = state["format"]
        except FileNotFoundError:
            raise KeysError(
                f"{self.directory} has no keys of a cluster; `flotilla-keys init` makes them"
            ) from None
        except (ValueError, TypeError, KeyError):
            raise KeysError(f"{self.directory / STATE}: is damaged: bring it again") from None
        if found != FORMAT:
            raise KeysError(f"{self.directory}: format {found}; this is for {FORMAT}")
        return state

    def _save(self, state: dict[str, Any]) -> None:
        self._write(STATE, json.dumps(state, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        _write(self.directory / name, text)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change anything, once what was broken off is finished."""
        if not self.directory.is_dir():
            self._load()
        descriptor = os.open(
            self.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if (self.directory / STATE).exists():
                with suppress(KeyUnusable):  # of a client: that must hold up no revocation
                    self._publish()
            yield
        finally:
            os.close(descriptor)


def _write(file: Path, text: str) -> None:
    """Replace a file as a whole: who reads it finds the old one or the new one.

    One that says the same already stays, so that no node reads its keys again for nothing.
    """
    if _says(file, text):
        return
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)  # of a run that was broken off
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "w", encoding="utf-8") as opened:
        os.fchmod(descriptor, FILE_MODE)  # whatever the umask takes away, nobody else is given
        opened.write(text)
        opened.flush()
        os.fsync(descriptor)
    temporary.replace(file)
    DISK.fsync_directory(file.parent)  # who was revoked stays so, whenever the power fails


def _listed(*lines: str) -> str:
    """Return the text of a file that is read line by line."""
    return "".join((f"{COMMENT}\n", *lines, f"{END}\n"))


def _says(file: Path, text: str) -> bool:
    try:
        is_ours = stat.S_IMODE(file.stat().st_mode) == FILE_MODE
        return is_ours and file.read_text(encoding="utf-8") == text
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise KeysError(f"{name!r} is not 1 to 32 of a-z, 0-9 and -")


def _new_server_line() -> str:
    return _server_line(KeyPair(*crypto_box_keypair()))


def _server_line(pair: KeyPair) -> str:
    return f"{SERVER_WORD} {z85(pair.public)} {z85(pair.secret)}\n"


def _ca_of(part: bytes) -> _Ca:
    key = serialization.load_pem_private_key(part + _END_OF_CA, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "ours are"
    return _Ca(x509.load_pem_x509_certificate(part), key)


def _new_ca(cluster_id: str) -> _Ca:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial number in the name: two CAs of a cluster have to be told from each other.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, f"flotilla {cluster_id}"),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{serial:X}"),
        ]
    )
    builder = _builder(name, name, key, serial).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = _usage(signs_certificates=True)
    return _Ca(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)


def _new_certificate(ca: _Ca, cluster_id: str, node: str) -> tuple[str, str]:
    """Return serial number and PEM, the key in it, of a new certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    uri = x509.UniformResourceIdentifier(uri_of(cluster_id, node))
    certificate = (
        _builder(name, ca.certificate.subject, key, serial)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(both, critical=False)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False
        )
        .sign(ca.key, hashes.SHA256())
    )
    return _serial(certificate), _pem(certificate) + _private_pem(key)


def _serial(certificate: x509.Certificate) -> str:
    return f"{certificate.serial_number:X}"


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, serial: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
