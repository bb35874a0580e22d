"""A data directory belongs to one node of one cluster and is used by one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest

from cluster.members.identity import (
    IDENTITY_NAME,
    LOCK_NAME,
    DamagedIdentity,
    DirectoryInUse,
    DirectoryLock,
    Identity,
    MissingIdentity,
    UnsupportedIdentity,
    WrongCluster,
    WrongNode,
)
from tests.unit.memory_disk import (
    Crash,
    MemoryDisk,
    keep_everything,
    lose_unsynced,
    tear_in_half,
)

INCARNATION = UUID(int=7)
DIRECTORY = Path("/disk/node")
PATIENCE_S = 10


def fresh(node: str = "a") -> Identity:
    return Identity.create("c1", node, lambda: INCARNATION)


def test_a_new_identity_is_fresh_and_not_started() -> None:
    identity = fresh()
    assert identity.incarnation == str(INCARNATION)
    assert identity.founding is None
    assert not identity.started


def test_two_new_identities_have_different_incarnations() -> None:
    assert Identity.create("c1", "a") != Identity.create("c1", "a")


def test_load_returns_what_was_saved(tmp_path: Path) -> None:
    founding = {"a": str(INCARNATION), "b": "x"}
    for identity in (fresh(), replace(fresh(), founding=founding), replace(fresh(), started=True)):
        identity.save(tmp_path)
        assert Identity.load(tmp_path) == identity
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY_NAME]


def test_an_absent_or_empty_directory_has_no_identity(tmp_path: Path) -> None:
    assert Identity.load(tmp_path / "absent") is None
    assert Identity.load(tmp_path) is None
    with DirectoryLock(tmp_path):
        assert Identity.load(tmp_path) is None


def test_data_without_an_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(MissingIdentity, match=r"holds journal but no identity\.json.*rebuild"):
        Identity.load(tmp_path)


def test_the_top_of_a_new_file_system_is_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with DirectoryLock(tmp_path):
        assert Identity.load(tmp_path) is None


@pytest.mark.parametrize("incarnation", [None, "another"])
def test_a_founder_is_among_the_founders_as_what_it_is(incarnation: str | None) -> None:
    founding = {"b": "x"} | ({} if incarnation is None else {"a": incarnation})
    with pytest.raises(AssertionError, match="a is 0000"):
        replace(fresh(), founding=founding)


def test_another_cluster_is_refused_by_both_names(tmp_path: Path) -> None:
    fresh().check(tmp_path, "c1", "a")
    with pytest.raises(WrongCluster, match="belongs to cluster 'c1', configured is 'c2'"):
        fresh().check(tmp_path, "c2", "a")


def test_another_node_is_refused_by_both_names(tmp_path: Path) -> None:
    with pytest.raises(WrongNode, match="belongs to node 'a', configured is 'b'"):
        fresh().check(tmp_path, "c1", "b")


def test_any_flipped_or_missing_byte_is_damage_and_says_how_to_rebuild(tmp_path: Path) -> None:
    fresh().save(tmp_path)
    path = tmp_path / IDENTITY_NAME
    data = path.read_bytes()
    damaged = [data[:at] for at in range(len(data) - 1)]
    damaged += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    damaged += [b"[]", b"null", b"{}", b'{"sha256": 3}']
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(DamagedIdentity, match="To rebuild this node from the others"):
            Identity.load(tmp_path)


def test_another_format_version_is_named(tmp_path: Path) -> None:
    fields: dict[str, object] = {"format": 2}
    checksum = sha256(json.dumps(fields, sort_keys=True, indent=2).encode()).hexdigest()
    (tmp_path / IDENTITY_NAME).write_text(json.dumps(fields | {"sha256": checksum}))
    with pytest.raises(UnsupportedIdentity, match="format 2, this program reads 1"):
        Identity.load(tmp_path)


@pytest.mark.parametrize("keep", [lose_unsynced, keep_everything, tear_in_half])
@pytest.mark.parametrize("names", ["durable", "latest"])
def test_a_power_loss_while_saving_leaves_the_old_or_the_new(
    keep: Callable[[bytes, bytes], bytes], names: str
) -> None:
    old, new = fresh(), replace(fresh(), started=True)
    for crash_at in range(60):
        disk = MemoryDisk()
        disk.crash_at = crash_at
        saved: list[Identity | None] = [None]
        try:
            for identity in (old, new):
                saved.append(identity)
                identity.save(DIRECTORY, disk)
                saved = [identity]
        except Crash:
            found = disk.after_power_loss(keep, names)
            assert Identity.load(DIRECTORY, found) in saved
            new.save(DIRECTORY, found)
            assert Identity.load(DIRECTORY, found) == new
        else:
            assert crash_at > 10
            return
    pytest.fail("two saves take more than 60 operations")


def test_what_a_killed_process_has_saved_and_the_next_has_read_survives_a_power_loss() -> None:
    old, new = fresh(), replace(fresh(), started=True)
    seen = set()
    for kill_at in range(60):
        disk = MemoryDisk()
        old.save(DIRECTORY, disk)
        disk.crash_at = len(disk.operations) + kill_at
        try:
            new.save(DIRECTORY, disk)
        except Crash:
            disk.crash_at = None
        else:
            assert seen == {False, True}
            return
        read = Identity.load(DIRECTORY, disk)
        assert Identity.load(DIRECTORY, disk.after_power_loss(lose_unsynced, "durable")) == read
        seen.add(read == new)
    pytest.fail("a save takes more than 60 operations")


def test_a_second_user_of_the_directory_is_refused_with_the_firsts_pid(tmp_path: Path) -> None:
    with (
        DirectoryLock(tmp_path / "node"),
        pytest.raises(DirectoryInUse, match=rf"in use by another process \(pid {os.getpid()}\)"),
        DirectoryLock(tmp_path / "node"),
    ):
        pytest.fail("locked twice")
    (tmp_path / "node" / LOCK_NAME).write_text("99999999999999\n")
    with DirectoryLock(tmp_path / "node"):
        assert (tmp_path / "node" / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_no_lock_is_left_in_a_directory_that_is_no_node_s(tmp_path: Path) -> None:
    (tmp_path / "passwd").touch()
    with pytest.raises(MissingIdentity), DirectoryLock(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["passwd"]


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from cluster.members.identity import DirectoryLock\n"
        "with DirectoryLock(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(DirectoryInUse, match=f"pid {process.pid}"), DirectoryLock(tmp_path):
            pytest.fail("locked twice")
        process.kill()
        process.wait(PATIENCE_S)
    with DirectoryLock(tmp_path):
        pass
