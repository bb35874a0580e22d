"""What one node has becomes the first node of a new cluster, and nothing else is changed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cluster.log.journal import Journal
from cluster.members.identity import (
    CONDEMNED_NAME,
    IDENTITY_NAME,
    LOCK_NAME,
    UNFINISHED_NAME,
    DirectoryInUse,
    Identity,
    MissingIdentity,
    check_not_condemned,
    mark_condemned,
)
from cluster.members.membership import UNNAMED
from cluster.recovery import recovery
from cluster.recovery.cli import report
from cluster.recovery.recovery import (
    BACKUP_NAME,
    CLUSTER_ID_MAX,
    TERMS_AHEAD,
    Recovery,
    RecoveryError,
    new_cluster_id,
)
from cluster.store import tables
from cluster.store.commands import (
    Advance,
    DropClient,
    Operation,
    Put,
    Raise,
    Register,
    Subscribe,
    encode,
)
from cluster.store.store import Done, Limits, Refused, Store
from cluster.store.tables import row_crc
from cluster.wire.levels import BUILD, BUILD_0_1, LEVEL_OF_NAMES
from flotilla_client.protocol import EPOCHS_A_RECOVERY, pack

MEMBERS = {"n1": "one", "n2": "two", "n3": "three"}
FIRST = [
    Register("me", True, None, ""),
    Register("you", True, None, ""),
    Subscribe("me", 1, "t", 1),
]
TERM = 7
NEWER_TERM = 9  # of an election that nobody won


def put(counter: int, count: int = 1, topic: str = "t") -> Put:
    return Put("you", 1, topic, counter, *pack([b"%d" % (counter + i) for i in range(count)]))


def node_data(
    directory: Path, entries: list[list[Operation]], applied: int, node: str = "n3"
) -> Path:
    """Make the data directory of a node whose log has the no-op, FIRST and then `entries`.

    `applied`: how many of `entries` its store has.
    """
    identity = Identity("old", node, MEMBERS[node], started=True)
    (directory / "journal").mkdir(parents=True)
    Journal.create(directory / "journal")
    journal = Journal.open(directory / "journal")
    store = Store.open(directory / "store" / "store.db", MEMBERS)
    journal.set_term(NEWER_TERM, None)
    journal.add(b"\x01", 1, 0)
    store.apply(1, 0, b"")
    for index, operations in enumerate([FIRST, *entries], start=2):
        payload = encode(0, operations)
        journal.add(b"\0" + payload, index, TERM)
        if index <= applied + 2:
            store.apply(index, TERM, payload)
    journal.sync()
    os.close(journal._segments[0].fd)  # as a crash leaves it: without a commit hint
    store.commit()
    store.close()
    identity.save(directory)
    return directory


def opened(directory: Path) -> Store:
    return Store.open(directory / "store" / "store.db", {})


def contents(directory: Path) -> dict[str, str]:
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return {str(f.relative_to(directory)): sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three PUTs of one, of which the store has one and the last is nowhere known as committed."""
    return node_data(tmp_path / "source", [[put(1)], [put(2)], [put(3)]], applied=1)


def test_all_that_the_journal_has_is_kept(source: Path, tmp_path: Path) -> None:
    with Recovery(source, tmp_path / "new") as recovery:
        found = recovery.found
        assert (found.applied_index, found.last_index, found.term) == (3, 5, NEWER_TERM)
        assert (found.clients, found.topics, found.publications) == (2, 1, 3)
        assert found.members == ("n1", "n2", "n3")
        made = recovery.finish("new", found.members)
    store = opened(made)
    assert store.topic_ends() == {"t": 3}
    assert store.read("me", "t", None, 9, 999).data == b"123"  # type: ignore[union-attr]
    store.close()


def with_another_log(source: Path, term: int, hint: int) -> None:
    """Give a node a journal that contradicts its store, known to be committed up to `hint`."""
    shutil.rmtree(source / "journal")
    Journal.create(source / "journal")
    journal = Journal.open(source / "journal")
    journal.set_term(NEWER_TERM, None)
    journal.add(b"\x01", 1, 0)
    for index in range(2, 9):
        journal.add(b"\0" + encode(0, [put(index, topic="u")]), index, term)
    journal.note_commit(hint)
    journal.close()


def test_of_a_copy_that_came_just_before_the_node_ended_nothing_is_lost_by_the_log_before_it(
    tmp_path: Path,
) -> None:
    """The node would have begun its log anew behind the copy, as it does when it starts."""
    source = node_data(tmp_path / "source", [[put(1)], [put(2)]], applied=2)
    with_another_log(source, TERM - 1, hint=3)
    with Recovery(source, tmp_path / "new") as recovery:
        found = recovery.found
        assert (found.applied_index, found.settled_index, found.last_index) == (4, 4, 4)
        assert (found.last_term, found.term) == (TERM, NEWER_TERM)
        store = opened(recovery.finish("new", found.members))
    assert store.topic_ends() == {"t": 2}
    store.close()


def test_a_log_that_contradicts_the_store_in_what_was_committed_is_damage(tmp_path: Path) -> None:
    source = node_data(tmp_path / "source", [[put(1)], [put(2)]], applied=2)
    with_another_log(source, TERM - 1, hint=4)
    with pytest.raises(RecoveryError, match="that one of term 6"), Recovery(source, None):
        pass


@pytest.mark.parametrize("applied", [0, 1])
def test_the_new_cluster_is_at_the_level_of_the_old_one(tmp_path: Path, applied: int) -> None:
    source = node_data(tmp_path / "source", [[Raise(2)]], applied)
    with Recovery(source, tmp_path / "new") as recovery:
        store = opened(recovery.finish("new", recovery.found.members))
    assert store.level == 2
    store.close()


def test_a_program_that_does_not_understand_the_level_recovers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = node_data(tmp_path / "source", [[Raise(2)]], applied=1)
    before = contents(source)
    monkeypatch.setattr(Store.open.__func__, "__defaults__", (Limits(), BUILD_0_1))  # type: ignore[attr-defined]
    with (
        pytest.raises(RecoveryError, match="at level 2; this is a version that names no levels"),
        Recovery(source, tmp_path / "new"),
    ):
        pass
    assert contents(source) == before


def test_the_new_node_belongs_to_a_new_cluster_in_a_later_term(
    source: Path, tmp_path: Path
) -> None:
    with Recovery(source, tmp_path / "new") as recovery:
        made = recovery.finish("new", ["n1", "n2", "n3"])
    identity = Identity.load(made)
    assert identity is not None
    assert (identity.cluster_id, identity.node, identity.started) == ("new", "n3", True)
    assert identity.incarnation not in MEMBERS.values()
    store, journal = opened(made), Journal.open(made / "journal")
    assert store.members == {"n1": UNNAMED, "n2": UNNAMED, "n3": identity.incarnation}
    place = store.applied_index, store.applied_term
    assert place == (6, NEWER_TERM + TERMS_AHEAD)
    assert (journal.last_index, journal.last_term) == place
    assert journal.term == NEWER_TERM + TERMS_AHEAD
    assert identity.admitted_index == 6


def test_the_source_is_not_touched(source: Path, tmp_path: Path) -> None:
    before = contents(source)
    with Recovery(source, tmp_path / "new") as recovery:
        recovery.finish("new", ["n1", "n2", "n3"])
    assert contents(source) == before


@pytest.mark.parametrize("in_place", [True, False])
def test_a_recovery_that_is_not_confirmed_leaves_nothing_behind(
    source: Path, tmp_path: Path, in_place: bool
) -> None:
    before = contents(source)
    with Recovery(source, None if in_place else tmp_path / "new"):
        pass
    assert contents(source) == before
    assert sorted(source.iterdir()) == [
        source / name for name in (IDENTITY_NAME, "journal", "store")
    ]
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())


@pytest.mark.root
def test_what_root_makes_at_the_top_of_a_file_system_leaves_fsck_s_directory_alone(
    source: Path, tmp_path: Path
) -> None:
    rescued = tmp_path / "top" / "lost+found"
    rescued.mkdir(parents=True)
    os.chown(source, 10_001, 10_001)
    with Recovery(source, tmp_path / "top") as recovery:
        made = recovery.finish("new", ["n3"])
    assert {path.name: path.stat().st_uid for path in made.iterdir()} == {
        IDENTITY_NAME: 10_001,
        "journal": 10_001,
        "store": 10_001,
        "lost+found": 0,
    }


@pytest.mark.root
@pytest.mark.parametrize("in_place", [True, False])
def test_what_root_makes_belongs_to_whom_the_source_belongs(
    source: Path, tmp_path: Path, in_place: bool
) -> None:
    uid = gid = 10_001
    for path in (source, *source.rglob("*")):
        os.chown(path, uid, gid)
    with Recovery(source, None if in_place else tmp_path / "new") as recovery:
        made = recovery.finish("new", ["n3"])
    paths = [made, *made.rglob("*")]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {(uid, gid)}


def test_in_place_what_was_there_before_is_kept_below(source: Path) -> None:
    before = contents(source)
    for number, name in enumerate([BACKUP_NAME, f"{BACKUP_NAME}-2"]):
        with Recovery(source, None) as recovery:
            assert recovery.finish(f"new-{number}", ["n1", "n2", "n3"]) == source
        assert (source / name / IDENTITY_NAME).exists()
        assert not (source / UNFINISHED_NAME).exists()
    assert contents(source / BACKUP_NAME) == before
    store = opened(source)
    assert store.topic_ends() == {"t": 3}
    store.close()


def test_a_swap_and_its_undoing_that_fail_lose_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(source)
    move = recovery._move

    def moving(count: int) -> Callable[[Path, Path], None]:
        """Return what moves so many files and fails then."""
        left = iter([True] * count)

        def moved(here: Path, there: Path) -> None:
            if not next(left, False):
                raise OSError(errno.EIO, "no more")
            move(here, there)

        return moved

    monkeypatch.setattr(recovery, "_move", moving(4))  # three from their place, one to it
    with pytest.raises(OSError, match="no more"), Recovery(source, None) as recovering:
        recovering.finish("new", ["n1", "n2", "n3"])
    for _ in range(2):
        monkeypatch.setattr(recovery, "_move", moving(1))
        with pytest.raises(OSError, match="no more"), Recovery(source, None):
            pass
    monkeypatch.setattr(recovery, "_move", move)
    with Recovery(source, None):
        pass
    assert contents(source) == before


# A process of its own that forks: this one may have threads, one of which could hold a lock.
CUTTING = """
import os
import sys
from contextlib import suppress
from pathlib import Path

from cluster.log.files import DISK
from cluster.recovery.recovery import Recovery, RecoveryError


def recover(directory, left):
    def dying(real):
        def operate(*arguments):
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(3)
            return real(*arguments)

        return operate

    for name in ("rename", "make_directory"):
        setattr(DISK, name, dying(getattr(DISK, name)))
    with Recovery(directory, None) as recovery:
        recovery.finish("cut", ["n1", "n2", "n3"])


for line in sys.stdin:
    step, _, directory = line.rstrip().partition(" ")
    child = os.fork()
    if child == 0:
        with suppress(RecoveryError):  # the new cluster was whole before this one began
            recover(Path(directory), int(step))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def cut_off() -> Iterator[Callable[[Path, int], bool]]:
    """Recover in place in a process that dies before its `step`th change on disk; False if not."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CUTTING], **pipes) as process:

        def cut(directory: Path, step: int) -> bool:
            process.stdin.write(f"{step} {directory}\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
            assert code in (0, 3), "not cut off, but broken"
            return code == 3

        yield cut
        process.stdin.close()


@pytest.mark.slow
def test_a_recovery_in_place_that_was_killed_anywhere_begins_again_with_all_there_was(
    tmp_path: Path, cut_off: Callable[[Path, int], bool]
) -> None:
    """And again if that is killed too; in between it is the old node, no node or the new one."""
    seen = set()
    step, is_cut = 0, True
    while is_cut:
        directory = node_data(tmp_path / f"cut-{step}", [[put(1)], [put(2)]], applied=1)
        is_cut = cut_off(directory, step)
        for again in (step, step // 2):
            try:
                identity = Identity.load(directory)
                seen.add(identity.cluster_id if identity else "fresh")
            except MissingIdentity as error:
                seen.add("no node" if "recover --from" in str(error) else str(error))
            cut_off(directory, again)
        with Recovery(directory, None) as recovery:
            assert recovery.found.publications == 2
            recovery.finish("new", ["n1", "n2", "n3"])
        assert not (directory / UNFINISHED_NAME).exists()
        oldest = directory / BACKUP_NAME
        kept = Identity.load(oldest)
        assert kept is not None
        assert kept.cluster_id == "old"
        assert (oldest / "journal").is_dir()
        assert (oldest / "store").is_dir()
        step += 1
    assert seen == {"old", "no node", "cut"}


def test_a_report_doubts_what_is_not_known_to_be_committed_and_nothing_else(
    source: Path, tmp_path: Path
) -> None:
    with Recovery(source, tmp_path / "new") as recovery:
        found = recovery.found
    assert (found.applied_index, found.settled_index, found.last_index) == (3, 3, 5)
    assert "The last 2 may never have been acknowledged" in report(found)
    settled = replace(found, settled_index=5)
    assert "All of them were committed for certain." in report(settled)


# --- what is refused ----------------------------------------------------------------------------


def refusal(source: Path, target: Path, **options: bool) -> str:
    with pytest.raises(RecoveryError) as caught, Recovery(source, target, **options):
        pass
    assert not target.exists() or not any(target.iterdir()), "nothing is left behind"
    return str(caught.value)


def test_an_empty_or_missing_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is empty" in refusal(tmp_path / "empty", tmp_path / "new")
    assert "is no directory" in refusal(tmp_path / "missing", tmp_path / "new")


def test_a_node_that_never_was_a_member_is_refused(tmp_path: Path) -> None:
    Identity.create("old", "n3").save(tmp_path / "source")
    assert "never became a member" in refusal(tmp_path / "source", tmp_path / "new")


def test_a_running_node_is_refused(source: Path, tmp_path: Path) -> None:
    with open(source / LOCK_NAME, "w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DirectoryInUse, match="4711"), Recovery(source, tmp_path / "new"):
            pass
    with Recovery(source, tmp_path / "new"):
        pass


def test_a_damaged_journal_is_named_and_the_store_can_be_taken_alone(
    source: Path, tmp_path: Path
) -> None:
    [segment] = (source / "journal").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)
    said = refusal(source, tmp_path / "new")
    assert str(segment) in said
    assert "rebuild" not in said, "there are no others to rebuild it from"
    with Recovery(source, tmp_path / "new", with_journal=False) as recovery:
        assert recovery.found.last_index == 3
        made = recovery.finish("new", ["n3"])
    store = opened(made)
    assert store.topic_ends() == {"t": 1}
    store.close()


def test_a_lost_journal_lets_the_store_be_taken_alone_in_its_place(source: Path) -> None:
    shutil.rmtree(source / "journal")
    with pytest.raises(RecoveryError, match="journal is missing"), Recovery(source, None):
        pass
    with Recovery(source, None, with_journal=False) as recovery:
        recovery.finish("new", ["n3"])
    store = opened(source)
    assert store.topic_ends() == {"t": 1}
    store.close()


def test_a_state_that_differed_from_the_majority_s_is_recovered_only_if_that_is_meant(
    source: Path,
) -> None:
    mark_condemned(source, "differs since entry 7")
    with pytest.raises(RecoveryError, match=r"differs since entry 7.*remove .*/condemned first"):
        Recovery(source, None).__enter__()
    (source / CONDEMNED_NAME).unlink()
    with Recovery(source, None) as recovery:
        recovery.finish("new", ["n3"])
    check_not_condemned(source)


def test_what_a_killed_node_has_in_the_log_of_its_store_is_kept(tmp_path: Path) -> None:
    entries: list[list[Operation]] = [[put(1)], [put(2)]]
    running = node_data(tmp_path / "running", entries, applied=0)
    store = opened(running)
    for index, operations in enumerate(entries, start=3):
        store.apply(index, TERM, encode(0, operations))
    store.commit()
    source = Path(shutil.copytree(running, tmp_path / "source"))  # as a kill leaves it
    store.close()
    assert (source / "store" / "store.db-wal").stat().st_size > 0

    with Recovery(source, tmp_path / "new", with_journal=False) as recovery:
        assert recovery.found.applied_index == 4
        made = recovery.finish("new", ["n3"])

    store = opened(made)
    assert store.read("me", "t", None, 9, 999).data == b"12"  # type: ignore[union-attr]
    store.close()


def test_a_damaged_store_is_named(source: Path, tmp_path: Path) -> None:
    database = source / "store" / "store.db"
    data = database.read_bytes()
    assert data.count(b"\x01\x00\x00\x001") == 1, "the row of the first publication"
    database.write_bytes(data.replace(b"\x01\x00\x00\x001", b"\x01\x00\x00\x002"))
    assert str(database) in refusal(source, tmp_path / "new")


@pytest.mark.parametrize("step", ["apply", "finish"])
def test_a_full_disk_is_told_as_one_and_leaves_nothing_behind(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        with closing(sqlite3.connect(tmp_path / "small.db", isolation_level=None)) as small:
            small.execute("CREATE TABLE t(x)")
            small.execute("PRAGMA max_page_count=2")
            small.execute("INSERT INTO t VALUES(zeroblob(100000))")

    where = {"apply": (recovery, "_apply"), "finish": (tables, "write_recovery")}
    monkeypatch.setattr(*where[step], fail)
    with pytest.raises(OSError, match="disk is full"), Recovery(source, tmp_path / "new") as made:
        made.finish("new", ["n3"])
    assert not (tmp_path / "new" / "store").exists()


def test_a_state_of_a_later_level_is_left_to_a_build_that_understands_it(
    source: Path, tmp_path: Path
) -> None:
    level = BUILD.level_max + 1
    with closing(sqlite3.connect(source / "store" / "store.db")) as connection:
        connection.execute(f"PRAGMA user_version={level}")
        connection.execute("UPDATE state SET crc = ?", (row_crc((3, TERM, level)),))
        connection.commit()
    said = refusal(source, tmp_path / "new")
    assert f"level {level}" in said
    assert "damaged" not in said


def test_a_journal_that_does_not_belong_to_the_store_is_refused(
    source: Path, tmp_path: Path
) -> None:
    other = node_data(tmp_path / "other", [[put(1)]] * 3, applied=3)
    journal = Journal.open(other / "journal")
    journal.reset(90, TERM)
    journal.close()
    (other / "store").rename(tmp_path / "gone")
    (source / "store").rename(other / "store")
    assert "the journal has entries 90 to 90" in refusal(other, tmp_path / "new")


def test_the_top_of_a_new_file_system_is_a_target(source: Path, tmp_path: Path) -> None:
    (tmp_path / "top" / "lost+found").mkdir(parents=True)
    with Recovery(source, tmp_path / "top") as recovery:
        assert recovery.finish("new", ["n3"]) == tmp_path / "top"


def test_a_directory_that_is_not_empty_is_no_target(source: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(RecoveryError, match="is not empty"), Recovery(source, tmp_path / "used"):
        pass


def test_what_is_to_stay_as_it_is_takes_no_new_directory(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    for target in (source / "new", tmp_path / "link" / "new"):
        with pytest.raises(RecoveryError, match="is to stay as it is"), Recovery(source, target):
            pass
    assert not (source / "new").exists()


@pytest.mark.parametrize(
    ("cluster_id", "members", "why"),
    [
        ("old", ["n1", "n2", "n3"], "like the old one"),
        ("Not A Name", ["n1", "n2", "n3"], "is not 1 to 32"),
        ("new", ["n1", "n2", "N 3", "n3", "n5"], "is not 1 to 32"),
        ("new", ["n1", "n2"], "1, 3, 5 or 7"),
        ("new", ["n1", "n1", "n3"], "1, 3, 5 or 7"),
        ("new", ["n1"], "with n3 among them"),
    ],
)
def test_a_wrong_cluster_is_refused_before_anything_is_made(
    source: Path, tmp_path: Path, cluster_id: str, members: list[str], why: str
) -> None:
    before = contents(source)
    with pytest.raises(RecoveryError, match=why), Recovery(source, None) as recovery:
        recovery.finish(cluster_id, members)
    assert contents(source) == before


# --- what the recovered state tells clients -----------------------------------------------------


def recovered(source: Path, target: Path, cluster_id: str = "new") -> Store:
    with Recovery(source, target) as recovery:
        recovery.finish(cluster_id, ["n1", "n2", "n3"])
    return opened(target)


def test_every_process_of_before_is_refused_until_it_takes_up_its_id_anew(
    source: Path, tmp_path: Path
) -> None:
    store = recovered(source, tmp_path / "new")
    for epoch in (1, 2, EPOCHS_A_RECOVERY - 1, EPOCHS_A_RECOVERY + 2):
        assert code_of(store.check_client("me", epoch)) == "recovered"
    assert store.check_client("me", EPOCHS_A_RECOVERY + 1) is None
    [again] = applied(store, Register("me", False, 2, "nonce"))
    assert isinstance(again, Done)
    assert again.body["epoch"] == EPOCHS_A_RECOVERY + 2
    assert code_of(store.check_client("me", EPOCHS_A_RECOVERY + 1)) == "fenced"
    store.close()


def test_a_client_that_was_dropped_is_of_before_too_when_its_name_comes_again(
    tmp_path: Path,
) -> None:
    drops = [Raise(LEVEL_OF_NAMES), DropClient("you", is_root=True)]
    store = recovered(node_data(tmp_path / "source", [drops], applied=1), tmp_path / "new")
    [again] = applied(store, Register("you", True, None, ""))
    assert isinstance(again, Done)
    assert again.body["epoch"] == EPOCHS_A_RECOVERY + 2
    store.close()


def test_a_client_that_the_recovered_node_never_met_is_of_before_when_its_name_comes_again(
    tmp_path: Path,
) -> None:
    """Else what it sends late is stored, and what the new one sends is taken for the same."""
    source = node_data(tmp_path / "source", [[Raise(LEVEL_OF_NAMES)]], applied=1)
    store = recovered(source, tmp_path / "new")
    [again] = applied(store, Register("lost", True, None, ""))
    assert isinstance(again, Done)
    epoch = again.body["epoch"]
    late = Put("lost", 1, "t", 51, *pack([b"late"]))
    own = Put("lost", epoch, "t", 1, *pack([b"own"]))
    refused, stored = applied(store, late, own)
    assert isinstance(refused, Refused)
    assert refused.code == "recovered"
    assert isinstance(stored, Done)
    assert (stored.body["stored"], stored.body["duplicate"]) == (True, False)
    store.close()


def code_of(refused: Refused | None) -> str:
    assert refused is not None
    return refused.code


def applied(store: Store, *operations: Operation) -> list[Done | Refused]:
    return store.apply(store.applied_index + 1, 10**7, encode(0, operations))


def test_clients_are_told_up_to_where_ids_are_what_they_were(tmp_path: Path) -> None:
    source = node_data(tmp_path / "source", [[put(1)], [put(2)], [put(3)]], applied=2)
    store = recovered(source, tmp_path / "new")
    told = store.since_recovery("me", "")
    assert told["settled"] == {"t": 2}, "the last PUT was not known to be committed"
    for known in (told["recovery"], None):
        again = store.since_recovery("me", known)
        assert again == {"recovery": told["recovery"], "ends": {"t": 3}}
    store.close()


def test_a_cursor_that_the_log_has_proves_more_than_the_commit_index(tmp_path: Path) -> None:
    entries: list[list[Operation]] = [[put(1, 5)], [Advance("me", 1, {"t": 4})]]
    store = recovered(node_data(tmp_path / "source", entries, applied=0), tmp_path / "new")
    assert store.since_recovery("me", "")["settled"] == {"t": 4}
    store.close()


def test_a_second_recovery_vouches_for_what_came_after_the_first_alone(tmp_path: Path) -> None:
    source = node_data(tmp_path / "source", [[put(1)], [put(2)]], applied=1)
    first = recovered(source, tmp_path / "one")
    name = first.since_recovery("me", "")["recovery"]
    applied(first, Register("you", False, None, ""))
    again = Put("you", EPOCHS_A_RECOVERY + 2, "t", 3, *pack([b"3", b"4"]))
    assert isinstance(applied(first, again)[0], Done)
    first.commit()
    first.close()
    second = recovered(tmp_path / "one", tmp_path / "two", "newer")
    assert second.since_recovery("me", name)["settled"] == {"t": 4}
    assert second.since_recovery("me", "")["settled"] == {"t": 1}, "as the first recovery did"
    assert second.since_recovery("me", "of another node's data")["settled"] == {"t": 0}
    [body] = applied(second, Register("you", False, None, ""))
    assert isinstance(body, Done)
    assert body.body["epoch"] == 2 * EPOCHS_A_RECOVERY + 3
    second.close()


def test_the_new_name_is_short_enough_and_no_other_recovery_chooses_it() -> None:
    names = {new_cluster_id("x" * CLUSTER_ID_MAX) for _ in range(9)}
    assert {len(name) for name in names} == {CLUSTER_ID_MAX}
    assert len(names) == 9
    assert len(new_cluster_id(new_cluster_id("orders"))) == len("orders-r12345678")


def test_what_is_made_is_for_its_owner_and_group_alone(tmp_path: Path) -> None:
    source, target = node_data(tmp_path / "n3", [[put(1)]], 1), tmp_path / "new"
    with Recovery(source, target) as recovery:
        recovery.finish("new", tuple(MEMBERS))
    made = [target, *(each for each in target.iterdir() if each.is_dir())]
    assert [each.stat().st_mode & 0o007 for each in made] == [0, 0, 0]
