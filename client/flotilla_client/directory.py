"""Whose a state directory is, and which processes may use it at the same time.

What lives here: the check that a directory is ours, and locks on files in it. What must not: what
stands in the directory's database (state.py).

Three files are locked (flock), the database is not one of them:

- `lock`: by the process that works on the state. A `Client` of the library keeps it until it is
  closed; those that share a directory (sharing.py) take it for an operation, in turns.
- `session`: who is there. Shared by those that share, exclusive for one that does not. It changes
  hands only under `lock`; whoever gets it exclusively is alone, so that nobody's session goes on.
- `reader`: by the one among those that share who is being handed publications.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flotilla_client.errors import StateInUse, StateUnusable

DATABASE_NAME: Final = "client.db"
LOCK_NAME: Final = "lock"
SESSION_NAME: Final = "session"
READER_NAME: Final = "reader"
HISTORY_NAME: Final = "history"  # of the shell's lines
OURS: Final = frozenset(
    {DATABASE_NAME, f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-shm", f"{DATABASE_NAME}-journal"}
    | {LOCK_NAME, SESSION_NAME, READER_NAME, HISTORY_NAME}
)
ALONE: Final = "alone"  # stands in `lock` behind the pid of one that does not share
LOOK_S: Final = 0.01  # between looks at a lock that another process has: below an fsync
_OF_ITS_OWN: Final = (
    "each client needs a state directory of its own"
    " (on the command line: --state DIR or FLOTILLA_STATE)"
)
_TURN: Final = "its operation outlasted this one's deadline (on the command line: --deadline)"
_READS: Final = (
    "it is being handed publications, which one process at a time is: end it, or read as another"
    " client, with a state directory of its own (on the command line: --state DIR or"
    " FLOTILLA_STATE)"
)
ALONE_S: Final = 0.2  # what a killed one left there is overwritten sooner by who comes next


def make_ours(directory: Path) -> None:
    """Make the directory if it is missing. Raises StateUnusable, with nothing made or written.

    A directory is ours if it is empty, if it holds a client's database, or nothing that is not a
    client's: a process may have died before it had made the database.
    """
    try:
        names = set(os.listdir(directory))
    except FileNotFoundError:
        names = set()
    except OSError as error:
        raise unusable(directory, error.strerror or str(error)) from error
    strange = sorted(names - OURS)
    if strange and DATABASE_NAME not in names:
        raise StateUnusable(
            f"{directory} is no client's state directory: it holds {strange[0]!r}"
            f"{' and more' if strange[1:] else ''}; name an empty directory or a new one",
            details={"directory": str(directory)},
        )
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(directory, error.strerror or str(error)) from error
    for path in missing or [directory]:  # whoever made it may have been killed before the sync
        with contextlib.suppress(PermissionError):  # who may use it, and not list where it is
            sync_names(path.parent)


def sync_names(directory: Path) -> None:
    """Have the names in a directory outlive a power loss. Raises PermissionError, StateUnusable."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except PermissionError:
        raise
    except OSError as error:
        raise unusable(directory, error.strerror or str(error)) from error


def unusable(directory: Path, reason: str) -> StateUnusable:
    """Return the error of a directory that the operating system refuses."""
    message = f"the state directory {directory} cannot be made or written: {reason}"
    return StateUnusable(message, details={"directory": str(directory)})


class _Locks:
    """The files `lock` and `session` of a directory: locked until they are closed.

    Closed at the latest when nobody has them any more: ctrl-C may have come before anybody had.
    """

    _lock = _session = -1

    def forsake(self) -> None:
        """Close the files. Idempotent.

        Each is forgotten first, and no call lies between: that is where ctrl-C may come, and behind
        the close the number may be another file's.
        """
        session, self._session = self._session, -1
        if session >= 0:
            os.close(session)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __del__(self) -> None:
        self.forsake()


class Sole(_Locks):
    """A directory that this process has for itself until `release`. Raises StateInUse at once.

    In a forked process, whose parent keeps the locks, `forsake` is for it.
    """

    def __init__(self, directory: Path) -> None:
        make_ours(directory)
        self._directory = directory
        self._lock = _open(directory, LOCK_NAME)
        try:
            if not _take(self._lock, fcntl.LOCK_EX):
                raise _in_use(directory, self._lock)
            self._session = _open(directory, SESSION_NAME)
            if not _take(self._session, fcntl.LOCK_EX):
                raise _shared_by_others(directory)
            _sign(directory, self._lock, ALONE)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let other processes have the directory. Idempotent. Raises StateUnusable."""
        try:
            if self._session >= 0:
                os.ftruncate(self._lock, 0)  # nobody has it alone; a full disk has room for that
        except OSError as error:
            raise unusable(self._directory, error.strerror or str(error)) from error
        finally:
            self.forsake()


class Shared(_Locks):
    """A directory that processes use in turns. Safe to use from several threads, which share turns.

    The first turn is this process's when the constructor returns; `is_first`: nobody else is there.
    Waiting for a turn is bounded: StateInUse after `patience_s`, at once if another does not share.
    """

    def __init__(self, directory: Path, patience_s: float) -> None:
        make_ours(directory)
        self._directory, self._patience_s = directory, patience_s
        self._mutex = threading.Lock()
        self._turns = 0
        self._is_held = False  # the lock; not so in a turn that could not be gone on with
        self._lock = _open(directory, LOCK_NAME)
        try:
            self.begin()
            self._session = _open(directory, SESSION_NAME)
            self.is_first = _take(self._session, fcntl.LOCK_EX)
            if not _take(self._session, fcntl.LOCK_SH):  # a failed change loses what one had
                raise _in_use(directory, self._session)
            _sign(directory, self._session)
        except BaseException:
            self.forsake()
            raise

    def begin(self, patience_s: float | None = None) -> bool:
        """Take a turn, or another one within it; return whether it is a new one."""
        return self._hold(self._patience_s if patience_s is None else patience_s, turns=1)

    def begin_again(self) -> bool:
        """Go on with a turn that `end` has interrupted, as `begin`; end it also if this raises."""
        with self._mutex:
            self._turns += 1
        return self._hold(self._patience_s, turns=0)

    def end(self) -> None:
        """End what `begin` began, if it was not ended; the last one lets others in."""
        with self._mutex:
            self._turns = max(0, self._turns - 1)
            if not self._turns:
                self._let_go()

    def end_all(self) -> None:
        """End every turn that is open: Ctrl-C may have come between one's beginning and its end."""
        with self._mutex:
            self._turns = 0
            self._let_go()

    def _hold(self, patience_s: float, turns: int) -> bool:
        """Have the lock for `turns` more; return whether another process may have had it meanwhile.

        The mutex is free while this waits: another thread has a deadline of its own.
        """
        patience = _Patience(self._directory, self._lock, patience_s, _TURN)
        while True:
            with self._mutex:
                is_new = not self._is_held
                if not is_new or _take(self._lock, fcntl.LOCK_EX):
                    if is_new:
                        self._sign_or_let_go()
                    self._is_held = True
                    self._turns += turns
                    return is_new
            patience.wait()

    def _sign_or_let_go(self) -> None:
        try:
            _sign(self._directory, self._lock)
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        self._is_held = False
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Be the one that is handed publications."""
        descriptor = _open(self._directory, READER_NAME)
        try:
            patience = _Patience(self._directory, descriptor, self._patience_s, _READS)
            while not _take(descriptor, fcntl.LOCK_EX):
                patience.wait()
            _sign(self._directory, descriptor)
            yield
        finally:
            os.close(descriptor)


def _open(directory: Path, name: str) -> int:
    try:
        return os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unusable(directory, error.strerror or str(error)) from error


def _take(descriptor: int, how: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        return True
    return False


class _Patience:
    """The wait for a lock that another process has: flock itself can't wait with a bound.

    `why`: what is said of that process.
    """

    def __init__(self, directory: Path, descriptor: int, patience_s: float, why: str) -> None:
        self._directory, self._descriptor = directory, descriptor
        self._patience_s, self._why = patience_s, why
        self._began_s = time.monotonic()

    def wait(self) -> None:
        """Wait until the next look. Raises StateInUse when it is over."""
        waited_s = time.monotonic() - self._began_s
        if _signed(self._descriptor)[1:] == [ALONE] and waited_s >= ALONE_S:
            raise _in_use(self._directory, self._descriptor)
        if waited_s >= self._patience_s:
            raise _in_use(self._directory, self._descriptor, self._why)
        time.sleep(LOOK_S)


def _sign(directory: Path, descriptor: int, *words: str) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{' '.join([str(os.getpid()), *words])}\n".encode(), 0)
    except OSError as error:
        raise unusable(directory, error.strerror or str(error)) from error


def _signed(descriptor: int) -> list[str]:
    return os.pread(descriptor, 64, 0).decode(errors="replace").split()


def _in_use(directory: Path, descriptor: int, why: str = _OF_ITS_OWN) -> StateInUse:
    """Return the error of a lock that another process, or another client of this one, has."""
    pid = (_signed(descriptor) or ["unknown"])[0]
    who = f"{pid}, this one" if pid == str(os.getpid()) else pid
    message = f"{directory} is in use by process {who}; {why}"
    return StateInUse(message, details={"directory": str(directory), "pid": pid})


def _shared_by_others(directory: Path) -> StateInUse:
    """Return the error of one who wants for itself what commands share: of them many may be."""
    message = f"{directory} is in use by commands in other terminals; {_OF_ITS_OWN}"
    return StateInUse(message, details={"directory": str(directory)})
