"""Who a data directory belongs to: cluster, node, incarnation, founding; and who is using it.

What lives here: the file `identity.json`, its checks, and the lock on the directory. What must not:
how members admit each other, and any other file of the node (they are only seen to exist).

Order of a first start: `save` an identity with `started` false, create journal and store, `save` it
with `started` true. So data without an identity is never taken for a new node, and a missing
journal is only created while `started` is false.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

from cluster.log.files import DISK, Files

FORMAT_VERSION = 1
IDENTITY_NAME = "identity.json"
LOCK_NAME = "lock"
UNFINISHED_NAME = "recovering"
"""What a recovery in place works in (recovery.py)."""
CONDEMNED_NAME = "condemned"
"""Why a node must not use the directory again: text for people."""
PID_BYTES_MAX = 32
"""What is read of another process's lock file: a pid has 7 digits."""
RESCUED_NAME = "lost+found"
"""What a file system of its own has at its top: fsck's, and empty."""

_DRAFT_NAME = "identity.json.unfinished"
_REBUILD = (
    "To rebuild this node from the others: stop it, move its data directory away, start it again "
    "with an empty one; it copies the state from the leader and is readmitted."
)


class IdentityError(Exception):
    """The data directory must not be used by this node as it is."""


class WrongCluster(IdentityError):
    """The directory belongs to another cluster than the configured one."""


class WrongNode(IdentityError):
    """The directory belongs to another node than the configured one."""


class WrongMembers(IdentityError):
    """The directory's cluster has other members than the configured ones."""


class DamagedIdentity(IdentityError):
    """The identity's file can't be believed."""


class MissingIdentity(IdentityError):
    """There is data in the directory, but nothing says whose."""


class UnsupportedIdentity(IdentityError):
    """The identity was written in a format that this program does not know."""


class CondemnedState(IdentityError):
    """The node's state differed from the majority's: it must not take part with it again."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"{directory}: {reason}. Keep the directory for whoever looks for the cause, and move"
            " it away: started with an empty one the node is readmitted and copies their state"
        )


class DirectoryInUse(IdentityError):
    """Another process holds the directory."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Name the owner of a data directory.

    `incarnation`: a random UUID that a wiped directory does not get again. `founding`: member ->
    incarnation of the cluster's first members; None = not a founder, not yet a member. `started`:
    journal and store have been created. `admitted_index`: the index of the copy of the store that
    a readmitted node began with (0: a founder, or not started).
    """

    cluster_id: str
    node: str
    incarnation: str
    founding: Mapping[str, str] | None = None
    started: bool = False
    admitted_index: int = 0

    def __post_init__(self) -> None:
        """Assert that a founder is among the founders as what it is."""
        if self.founding is not None:
            assert self.founding.get(self.node) == self.incarnation, (
                f"{self.node} is {self.incarnation}, founded as {dict(self.founding)}"
            )

    @classmethod
    def create(
        cls, cluster_id: str, node: str, new_incarnation: Callable[[], UUID] = uuid4
    ) -> Identity:
        """Return a new identity; nothing is written before `save`."""
        return cls(cluster_id, node, str(new_incarnation()))

    @classmethod
    def load(cls, directory: Path, files: Files = DISK) -> Identity | None:
        """Return the identity in `directory`, None if the directory is empty or missing.

        Raises DamagedIdentity, UnsupportedIdentity, MissingIdentity, OSError.
        """
        if _is_identified(directory, files):
            files.fsync_directory(directory)  # a killed process may have left the name unsynced
            return _decode(directory / IDENTITY_NAME, files.read(directory / IDENTITY_NAME))
        return None

    def save(self, directory: Path, files: Files = DISK) -> None:
        """Replace the identity in `directory`, durable on return, never half. May raise OSError."""
        files.make_directory(directory)
        unfinished = directory / _DRAFT_NAME
        fd = files.open_append(unfinished)
        try:
            files.truncate(fd, 0)  # left by a crash
            data = bytearray(_encode(self))
            while data:
                del data[: files.write(fd, data)]
            files.fdatasync(fd)
        finally:
            files.close(fd)
        files.rename(unfinished, directory / IDENTITY_NAME)
        files.fsync_directory(directory)

    def check(self, directory: Path, cluster_id: str, node: str) -> None:
        """Raise WrongCluster or WrongNode unless this is the configured cluster and node."""
        if self.cluster_id != cluster_id:
            raise WrongCluster(
                f"{directory} belongs to cluster {self.cluster_id!r}, configured is {cluster_id!r}."
                " If the cluster was recovered from another node: move this directory away and"
                " start with an empty one"
            )
        if self.node != node:
            raise WrongNode(f"{directory} belongs to node {self.node!r}, configured is {node!r}")


def _is_identified(directory: Path, files: Files) -> bool:
    """Return whether there is an identity; MissingIdentity if only others' files are there."""
    names = set(files.list(directory))
    others = sorted(names - {IDENTITY_NAME, LOCK_NAME, _DRAFT_NAME, RESCUED_NAME})
    if IDENTITY_NAME not in names and others:
        way_out = _REBUILD
        if UNFINISHED_NAME in names:
            way_out = (
                "A recovery in place was cut off here. Nothing is lost: run `flotilla-node recover"
                f" --from {directory} --in-place` again, which first puts back what was there."
            )
        raise MissingIdentity(
            f"{directory} holds {', '.join(others)} but no {IDENTITY_NAME}. {way_out}"
        )
    return IDENTITY_NAME in names


def mark_condemned(directory: Path, reason: str, files: Files = DISK) -> None:
    """Keep the directory from being used by a node again; durable. May raise OSError."""
    fd = files.open_append(directory / CONDEMNED_NAME)
    try:
        data = bytearray(reason.encode())
        while data:
            del data[: files.write(fd, data)]
        files.fdatasync(fd)
    finally:
        files.close(fd)
    files.fsync_directory(directory)


def check_not_condemned(directory: Path, files: Files = DISK) -> None:
    """Raise CondemnedState if `mark_condemned` was here."""
    if CONDEMNED_NAME in files.list(directory):
        reason = bytes(files.read(directory / CONDEMNED_NAME)).decode(errors="replace")
        raise CondemnedState(directory, reason)


class DirectoryLock:
    """Hold a data directory for this process alone, as a context; freed by any death of it."""

    def __init__(self, directory: Path) -> None:
        """Prepare to lock `directory`, which is created when missing."""
        self._directory = directory
        self._fd = -1

    def __enter__(self) -> Self:
        """Take the lock. Raises DirectoryInUse, MissingIdentity, OSError: nothing is written into a
        directory that is somebody else's.
        """
        if self._directory.is_dir():
            _is_identified(self._directory, DISK)
        Files.make_directory(self._directory)
        fd = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, PID_BYTES_MAX, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise DirectoryInUse(
                f"{self._directory} is in use by another process (pid {holder})"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        return self

    def __exit__(self, *_error: object) -> None:
        """Free the lock. The file stays: removing it would let two processes lock two files."""
        os.close(self._fd)


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, indent=2).encode()


def _encode(identity: Identity) -> bytes:
    fields: dict[str, Any] = {"format": FORMAT_VERSION} | asdict(identity)
    return _canonical(fields | {"sha256": sha256(_canonical(fields)).hexdigest()}) + b"\n"


def _decode(path: Path, data: bytes) -> Identity:
    """Return the identity in `data`. Raises DamagedIdentity, UnsupportedIdentity."""
    try:
        fields = json.loads(data)
        checksum = fields.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedIdentity(f"{path} is damaged ({error!r}). {_REBUILD}") from error
    if checksum != sha256(_canonical(fields)).hexdigest():
        raise DamagedIdentity(f"{path} is damaged (checksum). {_REBUILD}")
    version = fields.pop("format")
    if version != FORMAT_VERSION:
        raise UnsupportedIdentity(
            f"{path} has format {version}, this program reads {FORMAT_VERSION}"
        )
    return Identity(**fields)
