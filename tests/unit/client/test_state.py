"""The durable client state: what stands after a crash, who may open it, what it refuses."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from flotilla_client import state as state_module
from flotilla_client.directory import DATABASE_NAME, LOCK_NAME
from flotilla_client.errors import (
    Closed,
    OutboxFull,
    StateDamaged,
    StateError,
    StateInUse,
    StateUnusable,
)
from flotilla_client.protocol import pack
from flotilla_client.state import SCHEMA_VERSION, Entry, State

ONE = pack([b"one"])
TWO = pack([b"two", b"three"])
SYNCHRONOUS_FULL = 2  # SQLite's number
PIECE = pack([bytes(20_000)])
STEPS_MIN = 5  # places at which every change can be broken off


FORMS = pytest.mark.parametrize("is_kept", [True, False], ids=["directory", "memory"])


def _reopened(state: State) -> State:
    state.close()
    return State(state.directory)


def _read_again(state: State) -> State:
    """Return what stands of a state in its database: of a directory, for another process."""
    if state.directory is not None:
        return _reopened(state)
    state._known = None
    return state


def test_everything_stands_after_reopening(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.resumed("me", 3, 7, {"t": 10}, {"s": 4})
    assert state.next_sequence() == 8
    state.raise_cursor("s", 9)
    entries = state.enqueue("t", [ONE, TWO])
    state = _reopened(state)
    assert (state.client_id, state.epoch, state.sequence) == ("me", 3, 8)
    assert state.cursors() == {"s": 9}
    assert state.outbox() == entries == [Entry("t", 11, *ONE), Entry("t", 12, *TWO)]
    assert state.counter("t") == 13
    state.close()


@FORMS
def test_what_is_acknowledged_leaves_the_outbox_and_its_counter_stays(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    [entry] = state.enqueue("t", [TWO])
    assert (entry.counter, entry.count, state.counter("t")) == (1, 2, 2)
    state.acknowledged(entry)
    state = _read_again(state)
    assert (state.outbox(), state.outbox_bytes, state.counter("t")) == ([], 0, 2)
    [entry] = state.enqueue("t", [ONE])
    assert (entry.counter, state.outbox()) == (3, [entry])
    state.acknowledged(entry)
    state.acknowledged(entry)
    assert (state.outbox(), state.outbox_bytes) == ([], 0)
    state.close()


@FORMS
def test_what_changes_most_often_stands_before_all_that_comes_behind_it(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    state.raise_cursor("s", 0)
    first, second = state.enqueue("t", [ONE, TWO])
    state.hand_over("s", 9, cursor=7)
    state.acknowledged(first)
    state.raise_cursor("s", 8)
    state.lower({}, {"s": 5}, ())
    state = _read_again(state)
    assert (state.cursor("s"), state.handed("s")) == (5, 5)
    assert (state.outbox(), state.acknowledged_counters()) == ([second], {"t": 1})
    assert state.withdraw(second) == 2
    assert [entry.counter for entry in state.enqueue("t", [ONE])] == [2]
    state.close()


@FORMS
def test_counters_that_were_provisional_are_final_with_those_that_were_not(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    [first] = state.enqueue("t", [ONE])
    state.enqueue("t", [ONE], provisional=True)
    state.enqueue("t", [ONE])
    state.acknowledged(first)
    state.resumed("me", 2, 1, {"t": 7}, {})
    state = _read_again(state)
    assert [entry.counter for entry in state.outbox("t")] == [8, 9]
    state.close()


def test_a_second_process_is_told_the_directory_and_the_pid(tmp_path: Path) -> None:
    state = State(tmp_path)
    with pytest.raises(StateInUse) as caught:
        State(tmp_path)
    assert caught.value.details == {"directory": str(tmp_path), "pid": str(os.getpid())}
    assert str(tmp_path) in caught.value.message
    _reopened(state).close()


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from flotilla_client.state import State\n"
        "state = State(pathlib.Path(sys.argv[1])); state.raise_cursor('t', 5)\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": "client"},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
    state = State(tmp_path)
    assert state.cursor("t") == 5
    state.close()


@pytest.mark.parametrize(
    "junk", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / DATABASE_NAME).write_bytes(junk)
    with pytest.raises(StateDamaged, match=str(tmp_path)):
        State(tmp_path)


def test_a_page_that_was_overwritten_is_found_at_opening(tmp_path: Path) -> None:
    state = State(tmp_path)
    for number in range(200):
        state.raise_cursor(f"topic-{number}", number)
    state.close()
    file = tmp_path / DATABASE_NAME
    content = bytearray(file.read_bytes())
    content[4096 * 2 : 4096 * 3] = b"\xff" * 4096
    file.write_bytes(content)
    with pytest.raises(StateDamaged):
        State(tmp_path)


def test_a_refused_opening_does_not_keep_the_lock(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).write_bytes(b"junk" * 1000)
    for _ in range(2):
        with pytest.raises(StateDamaged):
            State(tmp_path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    State(tmp_path).close()
    database = sqlite3.connect(tmp_path / DATABASE_NAME)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    with pytest.raises(StateDamaged, match=f"schema version {SCHEMA_VERSION + 1}"):
        State(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM client",
        "UPDATE client SET epoch = 'x'",
        "UPDATE client SET client_id = x'ff'",
        "UPDATE client SET sequence = -1",
        "UPDATE cursors SET last_id = 'x'",
        "UPDATE handed SET last_id = 1.5",
        "UPDATE counters SET counter = -1",
        "UPDATE outbox SET data = 'text'",
        "UPDATE outbox SET lengths = x'01'",
        "UPDATE outbox SET counter = 0",
    ],
)
def test_what_no_client_writes_is_damage(tmp_path: Path, change: str) -> None:
    """A flipped bit in a row's head makes another type of a value, and the file stays sound."""
    state = State(tmp_path)
    state.enqueue("t", [pack([b"one"])])
    state.hand_over("t", 5, cursor=4)
    state.close()
    State(tmp_path).close()
    database = sqlite3.connect(tmp_path / DATABASE_NAME)
    database.execute(change)
    database.commit()
    database.close()
    table = change.replace("DELETE FROM", "UPDATE").split()[1]
    with pytest.raises(StateDamaged, match=f"the table `{table}`"):
        State(tmp_path)


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StateUnusable, match="/file cannot be made or written: Not a directory"):
        State(file)


def test_a_directory_that_cannot_be_made_is_unusable_and_the_reason_is_said() -> None:
    with pytest.raises(StateUnusable, match="cannot be made or written: ") as caught:
        State(Path("/proc/no/such/place"))
    assert caught.value.details == {"directory": "/proc/no/such/place"}


def test_a_database_that_cannot_be_opened_is_unusable_and_not_damaged(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).mkdir()
    with pytest.raises(StateUnusable, match="unable to open"):
        State(tmp_path)


def test_what_waits_in_the_outbox_is_its_owner_s_alone_in_anybody_s_directory(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        state = State(tmp_path)
        state.enqueue("t", [ONE])
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert DATABASE_NAME in modes
    assert set(modes.values()) == {0o600}
    state.close()


def test_a_directory_that_is_removed_promises_nothing_more(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    with closing(State(directory)) as state:
        state.enqueue("t", [(b"\1\0\0\0", b"a")])
        shutil.rmtree(directory)

        with pytest.raises(StateUnusable, match="No such file or directory") as caught:
            state.enqueue("t", [(b"\1\0\0\0", b"b")])

        assert caught.value.definite
        assert [entry.data for entry in state.outbox()] == [b"a"]


@pytest.mark.parametrize("replaced", [DATABASE_NAME, f"{DATABASE_NAME}-wal"])
def test_a_directory_whose_files_are_others_promises_nothing_more(
    tmp_path: Path, replaced: str
) -> None:
    with closing(State(tmp_path)) as state:
        state.enqueue("t", [(b"\1\0\0\0", b"a")])
        (tmp_path / "copy").write_bytes((tmp_path / replaced).read_bytes())
        (tmp_path / "copy").rename(tmp_path / replaced)

        with pytest.raises(StateUnusable, match="other files stand in it"):
            state.enqueue("t", [(b"\1\0\0\0", b"b")])


def test_the_lock_file_names_the_holder(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()} alone\n"
    state.close()


@FORMS
def test_a_cursor_is_never_lowered(tmp_path: Path, is_kept: bool) -> None:
    state = State(tmp_path if is_kept else None)
    state.raise_cursor("t", 9)
    state.raise_cursor("t", 4)
    assert state.cursor("t") == 9
    state.drop_cursor("t")
    assert state.cursor("t") is None
    state.close()


def test_a_cursor_that_could_not_be_stored_has_not_moved(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.raise_cursor("t", 4)
    state._database.execute("PRAGMA query_only = ON")
    with pytest.raises(StateError):
        state.raise_cursor("t", 9)
    with pytest.raises(StateError):
        state.drop_cursor("t")
    with pytest.raises(StateError):
        state.resumed("me", 2, 4, {}, {"t": 9, "other": 1})
    assert state.cursors() == {"t": 4}
    state.close()
    again = State(tmp_path)
    assert again.cursors() == {"t": 4}
    again.close()


@FORMS
def test_resuming_adopts_what_the_broker_knows_better_and_lowers_nothing(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    state.raise_cursor("ahead", 9)
    state.raise_cursor("behind", 1)
    state.raise_cursor("unsubscribed, answer lost", 5)
    state.enqueue("mine", [TWO])
    subscriptions = {"ahead": 7, "behind": 3, "subscribed, answer lost": 6}
    state.resumed("me", 2, 4, {"mine": 1, "restored": 40}, subscriptions)
    assert state.cursors() == {"ahead": 9, "behind": 3, "subscribed, answer lost": 6}
    assert (state.counter("mine"), state.counter("restored")) == (2, 40)
    state.close()


@FORMS
def test_withdrawing_gives_back_the_counters_of_it_and_all_behind_it(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    first, second, _ = state.enqueue("t", [ONE, TWO, ONE])
    state.enqueue("other", [ONE])
    assert state.withdraw(second) == 3
    assert [entry.counter for entry in state.outbox("t")] == [first.counter]
    assert state.counter("t") == 1
    assert state.counter("other") == 1
    assert state.enqueue("t", [ONE])[0].counter == 2
    state.close()


@FORMS
def test_removing_one_moves_up_what_follows_and_the_last_counter(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    first, second, _, _ = state.enqueue("t", [ONE, TWO, ONE, TWO])
    state.enqueue("other", [ONE])
    assert state.remove(second) == 2
    counters = [(entry.counter, entry.lengths) for entry in state.outbox("t")]
    assert counters == [(first.counter, ONE[0]), (2, ONE[0]), (3, TWO[0])]
    assert (state.counter("t"), state.counter("other")) == (4, 1)
    state.close()


def test_provisional_counters_become_final_behind_what_the_broker_has(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.enqueue("t", [ONE])
    state.enqueue("t", [TWO, ONE], provisional=True)
    state.enqueue("t", [ONE], provisional=True)
    state.enqueue("behind", [ONE], provisional=True)
    state = _reopened(state)
    state.resumed("me", 2, 1, {"t": 7}, {})
    assert [entry.counter for entry in state.outbox("t")] == [1, 8, 10, 11]
    assert state.counter("t") == 11
    assert [entry.counter for entry in state.outbox("behind")] == [1]
    state.resumed("me", 3, 2, {"t": 9}, {})
    assert [entry.counter for entry in state.outbox("t")] == [1, 8, 10, 11]
    state.close()


@FORMS
def test_a_full_outbox_refuses_and_takes_again_once_it_is_acknowledged(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None, outbox_bytes_max=16)
    [entry] = state.enqueue("t", [ONE])
    with pytest.raises(OutboxFull) as caught:
        state.enqueue("t", [ONE, ONE])
    assert caught.value.details == {"limit": 16}
    assert state.counter("t") == 1
    state.acknowledged(entry)
    assert len(state.enqueue("t", [ONE, ONE])) == 2
    state.close()


@FORMS
def test_empty_publications_fill_the_outbox_too(tmp_path: Path, is_kept: bool) -> None:
    directory = tmp_path if is_kept else None
    with closing(State(directory, outbox_bytes_max=1_000)) as state:
        state.enqueue("t", [pack([b""] * 250)])
        with pytest.raises(OutboxFull):
            state.enqueue("t", [pack([b""])])
        assert len(state.outbox()) == 1
    if is_kept:
        with closing(State(directory, outbox_bytes_max=1_000)) as state, pytest.raises(OutboxFull):
            state.enqueue("t", [pack([b""])])


# --- the size of the file -------------------------------------------------------------------------

LARGE = pack([b"x" * 1_000_000])
LARGE_COUNT = 24  # more than what is kept free


def _size_bytes(directory: Path) -> int:
    return (directory / DATABASE_NAME).stat().st_size


@pytest.mark.parametrize("how", ["acknowledged", "removed", "withdrawn"])
def test_the_file_of_an_outbox_that_was_emptied_shrinks(tmp_path: Path, how: str) -> None:
    with closing(State(tmp_path)) as state:
        entries = [state.enqueue("t", [LARGE])[0] for _ in range(LARGE_COUNT)]
        state.enqueue("other", [ONE])
    filled_bytes = _size_bytes(tmp_path)
    assert filled_bytes > LARGE_COUNT * 1_000_000
    with closing(State(tmp_path)) as state:
        if how == "acknowledged":
            for entry in entries:
                state.acknowledged(entry)
        elif how == "removed":
            for entry in reversed(entries):
                state.remove(entry)
        else:
            state.withdraw(entries[0])
        [last] = state.outbox()
        state.acknowledged(last)
    assert _size_bytes(tmp_path) < state_module.FREE_BYTES_KEPT_EMPTY + 1_000_000
    with closing(State(tmp_path)) as state:
        assert (state.outbox(), state.counter("other")) == ([], 1)


def test_giving_back_is_done_in_bounded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "SHRINK_BYTES", 1_000_000)
    with closing(State(tmp_path)) as state:
        entries = [state.enqueue("t", [LARGE])[0] for _ in range(LARGE_COUNT)]
        pages = _pages(state)
        state.withdraw(entries[0])
        taken = [pages, _pages(state)]
        for entry in state.enqueue("t", [ONE] * 3):
            state.acknowledged(entry)
            taken.append(_pages(state))
    steps = [before - after for before, after in itertools.pairwise(taken)]
    step_max = 1_000_000 // 4096 + 1  # and a page of SQLite's own pointers
    assert all(0 < step <= step_max for step in steps), steps


def _pages(state: State) -> int:
    [(count,)] = state._read("PRAGMA page_count")
    return int(count)


def _make_old(directory: Path, count: int) -> None:
    """Make a directory as version 0.1 does, whose outbox had `count` large publications."""
    with closing(sqlite3.connect(directory / DATABASE_NAME, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"BEGIN; {state_module._SCHEMA} PRAGMA user_version = 1; COMMIT;")
        for counter in range(1, count + 1):
            database.execute("INSERT INTO outbox VALUES ('t', ?, ?, ?)", (counter, *LARGE))
        database.execute("INSERT INTO counters VALUES ('t', ?)", (count,))
    assert _size_bytes(directory) > count * 1_000_000


def test_the_file_of_an_old_directory_shrinks_too_once_it_is_sent(tmp_path: Path) -> None:
    _make_old(tmp_path, LARGE_COUNT)
    with closing(State(tmp_path)) as state:  # too much to be made anew at once
        entries = state.outbox()
        assert len(entries) == LARGE_COUNT
        for entry in entries:
            state.acknowledged(entry)
    with closing(State(tmp_path)) as state:
        assert (state.outbox(), state.counter("t")) == ([], LARGE_COUNT)
    assert _size_bytes(tmp_path) < 1_000_000


def test_an_old_directory_opens_where_there_is_no_room_to_make_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_old(tmp_path, 2)
    [(pages,)] = sqlite3.connect(tmp_path / DATABASE_NAME).execute("PRAGMA page_count").fetchall()

    class Full(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "VACUUM":
                super().execute(f"PRAGMA max_page_count = {pages}")
                raise _full()
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Full))
    with closing(State(tmp_path)) as state:
        for entry in state.outbox():
            state.acknowledged(entry)
        assert state.outbox() == []


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@pytest.mark.parametrize("is_full", [True, False])
def test_an_error_of_the_disk_says_whether_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    class Failing(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith("INSERT INTO outbox"):
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
                raise error
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))
    if is_full:
        monkeypatch.setattr(state_module, "FULL_BYTES", 2**63)
    with closing(State(tmp_path)) as state, pytest.raises(StateUnusable) as caught:
        state.enqueue("t", [ONE])
    assert ("the disk is full (disk I/O error)" in str(caught.value)) is is_full


def test_a_disk_too_full_to_shrink_a_file_keeps_no_acknowledgment_from_being_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if "incremental_vacuum" in sql:
                tried.append(sql)
                raise _full()
            return super().execute(sql, *values)

    tried: list[str] = []
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Full))
    with closing(State(tmp_path)) as state:
        for entry in [state.enqueue("t", [LARGE])[0] for _ in range(LARGE_COUNT)]:
            state.acknowledged(entry)
        assert tried
        assert (state.outbox(), state._settled().outbox_bytes) == ([], 0)
        assert state.enqueue("t", [ONE])[0].counter == LARGE_COUNT + 1


@FORMS
def test_what_is_closed_says_so_and_still_tells_its_id(tmp_path: Path, is_kept: bool) -> None:
    state = State(tmp_path if is_kept else None)
    state.resumed("me", 3, 7, {}, {})
    [entry] = state.enqueue("t", [ONE])
    state.close()
    with pytest.raises(Closed):
        state.next_sequence()
    with pytest.raises(Closed):
        state.enqueue("t", [ONE])
    with pytest.raises(Closed):
        state.acknowledged(entry)
    with pytest.raises(Closed):
        state.outbox()
    assert state.client_id == "me"


def test_a_commit_that_failed_is_not_counted_as_bytes_of_the_outbox(tmp_path: Path) -> None:
    state = State(tmp_path, outbox_bytes_max=16)
    state._database.execute("PRAGMA query_only = ON")
    for _ in range(9):
        with pytest.raises(StateUnusable):
            state.enqueue("t", [ONE])
    state._database.execute("PRAGMA query_only = OFF")
    [entry] = state.enqueue("t", [ONE])
    state._database.execute("PRAGMA query_only = ON")
    for change in (state.withdraw, state.remove, state.acknowledged):
        with pytest.raises(StateUnusable):
            change(entry)
    with pytest.raises(OutboxFull):
        state.enqueue("t", [ONE, ONE])
    state._database.execute("PRAGMA query_only = OFF")
    assert (entry.counter, state.outbox()) == (1, [entry])
    state.close()


CHANGES: dict[str, Callable[[State], object]] = {
    "enqueue": lambda state: state.enqueue("t", [TWO, ONE]),
    "provisional": lambda state: state.enqueue("t", [TWO, ONE], provisional=True),
    "answered": lambda state: state.acknowledged(LAST),
    "handed over": lambda state: state.hand_over("s", 6, cursor=5),
    "read": lambda state: state.outbox(),
    "acknowledged": lambda state: state.acknowledged(state.outbox("t")[0]),
    "withdraw": lambda state: state.withdraw(state.outbox("t")[0]),
    "remove": lambda state: state.remove(state.outbox("t")[0]),
    "raise_cursor": lambda state: state.raise_cursor("s", state.cursors()["s"] + 1),
    "drop_cursor": lambda state: state.drop_cursor("s"),
    "next_sequence": lambda state: state.next_sequence(),
    "raise_sequence": lambda state: state.raise_sequence(state.sequence + 5),
    "resumed": lambda state: state.resumed("other", 9, 9, {"t": 50}, {"s": 7, "u": 1}),
}


LAST = Entry("t", 9, *ONE)  # of what is prepared: behind what is provisional


class Stop(BaseException):
    """What Ctrl-C is, from a place that the test chose."""


def _all_of(state: State) -> tuple[object, ...]:
    return (copy.deepcopy(state._settled()), state.outbox(), state.counter("t"))


def _prepared(directory: Path | None) -> State:
    state = State(directory)
    state.resumed("me", 2, 4, {"t": 3}, {"s": 1})
    state.enqueue("t", [ONE, TWO, ONE])
    state.enqueue("t", [ONE], provisional=True)
    assert state.enqueue("t", [ONE]) == [LAST]
    return state


def _broken_off(work: Callable[[], object], place: int) -> bool:
    """Do the work, and break it off behind the `place`-th step in it at which Python looks for
    signals: the start of a function of ours and the end of a call. Tell if it came so far."""
    steps = 0

    def at(frame: FrameType, event: str, _: object) -> None:
        nonlocal steps
        if event in ("call", "c_return") and frame.f_code.co_filename == state_module.__file__:
            steps += 1
            if steps == place:
                sys.setprofile(None)
                raise Stop

    sys.setprofile(at)
    try:
        work()
    except Stop:
        return True
    finally:
        sys.setprofile(None)
    return False


@FORMS
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_broken_off_anywhere_is_whole_or_not_there(
    name: str, is_kept: bool, tmp_path: Path
) -> None:
    change, places = CHANGES[name], itertools.count(1)
    before, whole = _states_around(change, tmp_path / "undisturbed" if is_kept else None)
    for place in places:
        state = _prepared(tmp_path / str(place) if is_kept else None)
        is_broken = _broken_off(functools.partial(change, state), place)
        known = _all_of(state)
        # Another thread gets on with it, and so does this one.
        thread = threading.Thread(target=state.enqueue, args=("other", [ONE]))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        state.raise_cursor("later", 1)
        if is_kept:
            [(setting,)] = state._read("PRAGMA synchronous")
            assert setting == SYNCHRONOUS_FULL
        rest = _all_of(state)
        again = _read_again(state)
        assert _all_of(again) == rest, (name, place)
        again.close()
        if not is_broken:
            break
        assert known in (before, whole), (name, place)
    assert next(places) > STEPS_MIN


def _states_around(
    change: Callable[[State], object], directory: Path | None
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return what stands before a change, and behind one that nobody breaks off."""
    with closing(_prepared(directory)) as state:
        before = _all_of(state)
    if directory is not None:
        shutil.rmtree(directory)
    with closing(_prepared(directory)) as state:
        change(state)
        return before, _all_of(state)


@pytest.mark.parametrize("broken", ["answered", "read"])
def test_what_was_broken_off_anywhere_is_gone_once_it_is_acknowledged(broken: str) -> None:
    for place in itertools.count(1):
        with closing(_prepared(None)) as state:
            is_broken = _broken_off(functools.partial(CHANGES[broken], state), place)
            state.acknowledged(LAST)
            assert LAST not in state.outbox(), place
            assert (state.outbox_bytes, state.counter("t")) == (37, 9)
        if not is_broken:
            break
    assert place > STEPS_MIN


@FORMS
def test_what_waits_for_an_answer_is_not_acknowledged_yet(tmp_path: Path, is_kept: bool) -> None:
    state = State(tmp_path if is_kept else None)
    first, second = state.enqueue("t", [pack([b"a", b"b"]), pack([b"c"])])
    assert state.acknowledged_counters() == {"t": 0}
    state.acknowledged(first)
    assert state.acknowledged_counters() == {"t": 2}
    state.acknowledged(second)
    assert state.acknowledged_counters() == {"t": 3}
    state.close()


@FORMS
def test_what_a_cluster_has_lost_was_neither_acknowledged_nor_handed_over(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    state.hand_over("t", 5, cursor=4)
    state.lower({}, {"t": 2}, ())
    assert (state.cursor("t"), state.handed("t"), state.had()) == (2, 2, {"t": 2})
    state.close()


@FORMS
def test_what_was_handed_over_at_another_place_counts_no_more(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    state.raise_cursor("t", 0)
    state.hand_over("t", 5)
    assert state.place("t", 2, 7)
    assert state.handed("t") == 2
    state.close()


def test_the_next_process_knows_that_a_subscription_was_placed_elsewhere_or_ended(
    tmp_path: Path,
) -> None:
    with closing(State(tmp_path)) as state:
        state.raise_cursor("t", 0)
        state.hand_over("t", 5)
        state.place("t", 2, 7)
        state.place("u", 2, 8)
        state.drop_cursor("u")
    with closing(State(tmp_path)) as again:
        assert (again.handed("t"), again.placed("t")) == (2, 7)
        assert (again.cursor("u"), again.placed("u")) == (None, 0)


@FORMS
def test_a_subscription_that_was_moved_back_stands_there(tmp_path: Path, is_kept: bool) -> None:
    with closing(State(tmp_path if is_kept else None)) as state:
        state.place("t", 5, 7)
        state.resumed("me", 1, 0, {}, {"t": 2}, {"t": 9})
        assert state.cursor("t") == 2


def test_a_sequence_that_was_given_out_is_not_given_again(tmp_path: Path) -> None:
    with closing(State(tmp_path)) as state:
        assert [state.next_sequence() for _ in range(3)] == [1, 2, 3]
        state.raise_sequence(1)
        assert (state.sequence, state.next_sequence()) == (3, 4)


@FORMS
def test_what_another_process_has_moved_was_not_handed_over_there(
    tmp_path: Path, is_kept: bool
) -> None:
    state = State(tmp_path if is_kept else None)
    state.place("t", 0, 7)
    state.hand_over("t", 5)
    state.resumed("me", 1, 0, {}, {"t": 2}, {"t": 9})
    for _ in range(2):
        assert (state.handed("t"), state.placed("t")) == (2, 9)
        state = _read_again(state)
    state.close()


def test_what_waits_provisionally_goes_behind_what_the_broker_has_also_where_some_was_lost(
    tmp_path: Path,
) -> None:
    with closing(State(tmp_path)) as state:
        state.resumed("me", 1, 0, {"t": 5}, {})
        state.enqueue("t", [ONE], provisional=True)
        state.lower({"t": 2}, {}, ())
        state.resumed("me", 2, 0, {"t": 6}, {})
        assert state.outbox() == [Entry("t", 7, *ONE)]


def test_what_is_acknowledged_with_what_was_handed_over_already_is_stored(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.raise_cursor("t", 0)
    state.hand_over("t", 5)
    state.hand_over("t", 3, cursor=2)
    state.close()
    again = State(tmp_path)
    assert (again.cursor("t"), again.handed("t")) == (2, 5)
    again.close()


def test_who_waits_for_a_hand_over_that_is_known_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    state = State(tmp_path / "state")
    state.raise_cursor("t", 0)
    state.hand_over("t", 5, durable=False)
    monkeypatch.setattr(state_module, "_sync", synced.append)
    state.hand_over("t", 5)
    assert len(synced) == 1
    state.close()


# --- a small disk ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk of a MiB: four times less than a log that is never short of room."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    yield tmp_path / "state"
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


@pytest.mark.root
def test_the_log_of_what_was_sent_does_not_take_a_small_disk(small_disk: Path) -> None:
    with closing(State(small_disk)) as state:
        state.resumed("me", 1, 0, {}, {"t": 0})
        for number in range(200):
            [entry] = state.enqueue("t", [PIECE])
            state.acknowledged(entry)
            state.raise_cursor("t", number, durable=number % 3 == 0)
    with closing(State(small_disk)) as state:
        assert (state.counter("t"), state.cursor("t")) == (200, 199)


@pytest.mark.root
def test_an_outbox_that_has_filled_a_small_disk_is_sent_and_goes_on(small_disk: Path) -> None:
    state = State(small_disk)
    state.resumed("me", 1, 0, {}, {})

    def fill() -> None:
        for _ in range(200):
            state.enqueue("t", [PIECE])

    with pytest.raises(OutboxFull, match="the disk no room") as caught:
        fill()
    assert caught.value.definite
    state.close()
    state = State(small_disk)
    kept = state.outbox("t")
    assert len(kept) > 5
    assert state.next_sequence() == 1
    for entry in kept:
        state.acknowledged(entry)
    assert state.outbox("t") == []
    for _ in kept:
        state.enqueue("t", [PIECE])
    state.close()


@pytest.mark.root
def test_nothing_enters_where_others_have_filled_the_disk(small_disk: Path) -> None:
    with closing(State(small_disk)) as state:
        state.resumed("me", 1, 0, {}, {"t": 0})
        (small_disk.parent / "others").write_bytes(bytes(700_000))
        with pytest.raises(StateUnusable, match="the disk is full") as caught:
            state.enqueue("t", [PIECE])
        assert caught.value.definite
        state.raise_cursor("t", 3)
        (small_disk.parent / "others").unlink()
        state.enqueue("t", [PIECE])
