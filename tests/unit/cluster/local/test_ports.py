"""cluster/local/ports.py: who has which port of this machine."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from cluster.local import ports
from cluster.local.errors import LocalError
from cluster.local.ports import HOST, PORT_LOW, _registry_file, free_ports, ports_from


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all begin to look at one port, and nobody else have claims."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(zlib, "crc32", lambda _: 1_000)


def test_a_port_that_nobody_listens_on_stays_who_claimed_it(tmp_path: Path) -> None:
    first, second = (free_ports(3, tmp_path / name) for name in ("a", "b"))

    assert not set(first) & set(second)


def test_one_directory_gets_other_ports_when_it_asks_again(tmp_path: Path) -> None:
    assert len({*free_ports(2, tmp_path / "a"), *free_ports(2, tmp_path / "a")}) == 4


def test_ports_that_somebody_named_are_claimed_too(tmp_path: Path) -> None:
    [free] = free_ports(1, tmp_path / "a")
    named = ports_from(free, 3, 1, tmp_path / "b")

    assert not set(named) & set(free_ports(9, tmp_path / "c"))


def test_who_names_ports_gets_a_dead_cluster_s(tmp_path: Path) -> None:
    claimed = free_ports(3, tmp_path / "a")

    assert ports_from(claimed[0] - 1, 3, 1, tmp_path / "b") == claimed


def test_claims_end_with_their_directory(tmp_path: Path) -> None:
    first = free_ports(3, tmp_path / "a")
    shutil.rmtree(tmp_path / "a")

    assert free_ports(3, tmp_path / "b") == first


def test_the_directory_is_made_so_that_the_claim_holds(tmp_path: Path) -> None:
    free_ports(1, tmp_path / "new" / "cluster")

    assert (tmp_path / "new" / "cluster").is_dir()


def test_a_directory_that_cannot_be_made_is_named_and_claims_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(LocalError, match="file/cluster: Not a directory"):
        free_ports(3, tmp_path / "file" / "cluster")
    with closing(sqlite3.connect(_registry_file())) as registry:
        assert registry.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)


def test_a_port_that_somebody_listens_on_is_nobody_else_s(tmp_path: Path) -> None:
    with socket.create_server((HOST, PORT_LOW + 1_000)):
        assert PORT_LOW + 1_000 not in free_ports(3, tmp_path / "a")


def test_many_that_choose_at_once_choose_apart(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        chosen = list(pool.map(lambda n: free_ports(6, tmp_path / str(n)), range(32)))

    assert len({port for each in chosen for port in each}) == 6 * 32


def test_too_few_ports_say_what_claims_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = free_ports(3, tmp_path / "a")
    monkeypatch.setattr(ports, "_bind_error", lambda port: None if port in taken else OSError())

    with pytest.raises(LocalError, match=r"only 0 free ports of 3 .*1 clusters claim 3: remove"):
        free_ports(3, tmp_path / "b")


def test_a_damaged_registry_is_named_with_what_to_do(tmp_path: Path) -> None:
    _registry_file().parent.mkdir()
    _registry_file().write_bytes(b"no database" * 1_000)

    with pytest.raises(LocalError, match=r"ports\.sqlite.*not a database.*remove it"):
        free_ports(3, tmp_path / "a")


def test_a_registry_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)

    with pytest.raises(LocalError, match="another user's; set TMPDIR"):
        free_ports(3, tmp_path / "a")
