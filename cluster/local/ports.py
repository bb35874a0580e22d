"""Ports for the clusters on one machine: no two of them get the same.

What lives here: the choice of ports, and the registry of who has which.
What must not: what listens on them.

A port that nobody listens on may be a dead node's, which will listen there again. So what is chosen
is claimed in a database that all clusters of a user share, each port with the directory that it is
for. A claim is void when its directory is gone: nobody has to give ports back.
"""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from cluster.local.errors import LocalError
from cluster.settings.config import PORT_MAX

HOST: Final = "127.0.0.1"
PEER_PORT_OFFSET: Final = 100  # peers of PORT+1.. listen on PORT+101..
PAGE_PORT_OFFSET: Final = 200  # and their pages are on PORT+201..
PORT_LOW: Final = 10_000  # below are the well-known services
PORT_HIGH_MIN: Final = 20_000  # enough to choose from where the ephemeral range starts early
REGISTRY_TIMEOUT_S: Final = 10.0  # who has it writes some rows, and waits for nobody
SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS claims (port INTEGER PRIMARY KEY, directory TEXT NOT NULL) STRICT"
)


def ports_from(port: int, nodes: int, kinds: int, directory: Path) -> list[int]:
    """Return the ports that follow from the one given, for `nodes` nodes: `kinds` for each.

    They are claimed for `directory`, also those that another cluster has when none of its nodes
    listens there: who names ports wants these. Raises LocalError for ports that are taken, not for
    us, or none at all.
    """
    starts = [port + 1 + offset for offset in (0, PEER_PORT_OFFSET, PAGE_PORT_OFFSET)][:kinds]
    ports = [start + number for start in starts for number in range(nodes)]
    if not 0 < min(ports) <= max(ports) <= PORT_MAX:
        raise LocalError(f"ports from {min(ports)} to {max(ports)}: take a lower --port")
    failed = {each: error for each in ports if (error := _bind_error(each)) is not None}
    forbidden = [str(each) for each, error in failed.items() if error.errno == errno.EACCES]
    if forbidden:
        numbers = ", ".join(forbidden)
        raise LocalError(f"port {numbers}: permission denied; try a --port above 1023, or 0")
    if failed:
        numbers = ", ".join(map(str, failed))
        raise LocalError(f"port {numbers} is taken; try another --port, or 0 for any")
    with _registry() as registry:
        _claim(registry, ports, directory)
    return ports


def free_ports(count: int, directory: Path) -> list[int]:
    """Return ports that are nobody's, and claim them for what is kept in `directory`.

    The directory is made if there is none: a claim holds for as long as it is there.
    Raises LocalError.
    """
    # Below the ephemeral range, where an outgoing connection could take the port of a node
    # between its death and its restart.
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    span = max(int(ephemeral[0]), PORT_HIGH_MIN) - PORT_LOW
    # The directory says where to begin: users whose registries differ choose apart, mostly.
    begin = zlib.crc32(bytes(directory))
    numbers = (PORT_LOW + (begin + step) % span for step in range(span))
    with _registry() as registry:
        claimed = _claims(registry)
        free = (port for port in numbers if port not in claimed and _bind_error(port) is None)
        ports = list(islice(free, count))
        if len(ports) < count:
            raise LocalError(
                f"only {len(ports)} free ports of {count} above {PORT_LOW}; the directories of"
                f" {len(set(claimed.values()))} clusters claim {len(claimed)}: remove some of them"
            )
        _claim(registry, ports, directory)
    return ports


def _registry_file() -> Path:
    return Path(tempfile.gettempdir()) / f"flotilla-ports-{os.getuid()}" / "ports.sqlite"


@contextmanager
def _registry() -> Iterator[sqlite3.Connection]:
    # A transaction at a time, however many processes choose: what is claimed in one is seen in
    # the next. Nothing is synced: a machine that loses power has no cluster that listens.
    file = _registry_file()
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if file.parent.lstat().st_uid != os.getuid():
            raise LocalError(f"{file.parent} is another user's; set TMPDIR to a directory of yours")
        with closing(sqlite3.connect(file, REGISTRY_TIMEOUT_S, isolation_level=None)) as registry:
            registry.execute("PRAGMA synchronous = OFF")
            registry.execute("BEGIN IMMEDIATE")
            registry.execute(SCHEMA)
            yield registry
            registry.execute("COMMIT")
    except OSError as error:
        raise LocalError(f"{file.parent}: {error.strerror}") from error
    except sqlite3.DatabaseError as error:
        raise LocalError(
            f"{file}, which says whose each port is: {error}; if that stays, remove it"
        ) from error


def _claims(registry: sqlite3.Connection) -> dict[int, str]:
    """Return who has which port, without those whose directory is gone."""
    for (directory,) in registry.execute("SELECT DISTINCT directory FROM claims").fetchall():
        if not Path(directory).exists():
            registry.execute("DELETE FROM claims WHERE directory = ?", (directory,))
    return dict(registry.execute("SELECT port, directory FROM claims"))


def _claim(registry: sqlite3.Connection, ports: list[int], directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"{directory}: {error.strerror}") from error
    rows = [(port, str(directory.resolve())) for port in ports]
    registry.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?)", rows)


def _bind_error(port: int) -> OSError | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the nodes do
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error
    return None
