"""What SQLite does to files, seen from outside: a VFS that hands on to SQLite's own for Unix.

What lives here: the layer between SQLite and its Unix VFS, by ctypes, in the SQLite that Python
itself has loaded. What must not: what of a file is durable, and when anything fails (stored.py).

Syncs, truncations, deletions, sleeps, and the writes of files for which it is asked go through
Python; everything else is SQLite's own code with no call between. A path that nobody watches is
left alone entirely.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import sqlite3
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import Any, Final, Protocol
from urllib.parse import quote

NAME: Final = "flotilla-simulated"
UNDER: Final = "unix-excl"  # one process: the WAL's index is in memory, system calls are saved
SHM_SHARED_LOCK: Final = 2 | 4  # SQLITE_SHM_LOCK | SQLITE_SHM_SHARED
MAIN_DB: Final = 0x100  # SQLITE_OPEN_MAIN_DB
READ_ONLY: Final = 0x1  # SQLITE_OPEN_READONLY
OK: Final = 0
PRNG_SEED: Final = 28  # SQLITE_TESTCTRL_PRNG_SEED
IOERR_WRITE: Final = 10 | 3 << 8
IOERR_FSYNC: Final = 10 | 4 << 8
IOERR_TRUNCATE: Final = 10 | 6 << 8
IOERR_DELETE: Final = 10 | 10 << 8
CANTOPEN: Final = 14
FULL: Final = 13


class FileWatcher(Protocol):
    """Decides over the files of a directory. Each may raise: the operation is not done then.

    An OSError with ENOSPC becomes SQLITE_FULL, all else an error of the operation.
    """

    def opening(self, path: str) -> bool:
        """Hear that a file is about to be opened; True: who reads it is to be told of."""

    def reading(self, path: str) -> None:
        """Hear that a transaction is about to begin on a file of which that was asked."""

    def is_written_aloud(self, path: str) -> bool:
        """Return whether the writes of a file that is no database are to be told."""

    def writing(self, path: str, offset: int, count: int) -> None:
        """Hear of a write before it is done."""

    def truncating(self, path: str, size: int) -> None:
        """Hear of a truncation before it is done."""

    def syncing(self, path: str) -> None:
        """Take the place of a sync."""

    def deleting(self, path: str) -> bool:
        """Take the place of a deletion; False: it is for SQLite to do it."""

    def sleeping(self, seconds: float) -> None:
        """Take the place of a wait for a lock."""


Find = Callable[[str], FileWatcher | None]


class _Vfs(Structure):
    _fields_ = [
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        *((name, c_void_p) for name in ("xOpen", "xDelete", "xAccess", "xFullPathname")),
        *((name, c_void_p) for name in ("xDlOpen", "xDlError", "xDlSym", "xDlClose")),
        *((name, c_void_p) for name in ("xRandomness", "xSleep", "xCurrentTime")),
        *((name, c_void_p) for name in ("xGetLastError", "xCurrentTimeInt64")),
        *((name, c_void_p) for name in ("xSetSystemCall", "xGetSystemCall", "xNextSystemCall")),
    ]


class _Methods(Structure):
    _fields_ = [
        ("iVersion", c_int),
        *((name, c_void_p) for name in ("xClose", "xRead", "xWrite", "xTruncate", "xSync")),
        *((name, c_void_p) for name in ("xFileSize", "xLock", "xUnlock", "xCheckReservedLock")),
        *((name, c_void_p) for name in ("xFileControl", "xSectorSize")),
        *((name, c_void_p) for name in ("xDeviceCharacteristics", "xShmMap", "xShmLock")),
        *((name, c_void_p) for name in ("xShmBarrier", "xShmUnmap", "xFetch", "xUnfetch")),
    ]


_OPEN: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_SLEEP: Final = CFUNCTYPE(c_int, c_void_p, c_int)
_CLOSE: Final = CFUNCTYPE(c_int, c_void_p)
_WRITE: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE: Final = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC: Final = CFUNCTYPE(c_int, c_void_p, c_int)
_SHM_LOCK: Final = CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int)


def _library() -> Any:
    """Return the SQLite that Python's module runs on: no other has its connections."""
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    library.sqlite3_vfs_find.restype = POINTER(_Vfs)
    library.sqlite3_vfs_find.argtypes = [c_char_p]
    library.sqlite3_vfs_register.argtypes = [c_void_p, c_int]
    return library


class _Layer:
    """The VFS, registered once in a process; `find` says who watches a path, while a world runs."""

    def __init__(self) -> None:
        self.find: Find = lambda path: None
        self.current: Callable[[], FileWatcher | None] = lambda: None
        # By SQLite's address of an open file, with what is under it. The flags: it is a database's
        # main file; its transactions are told.
        self._files: dict[int, tuple[str, FileWatcher, int, bool, bool]] = {}
        self._tables: dict[tuple[int, bool, bool], _Methods] = {}
        library = _library()
        self._test_control = library.sqlite3_test_control
        under = library.sqlite3_vfs_find(UNDER.encode())
        self._under = ctypes.cast(under, c_void_p)
        vfs = under.contents
        self._under_open = _OPEN(vfs.xOpen)
        self._under_delete = _DELETE(vfs.xDelete)
        self._callbacks = (
            _OPEN(self._open), _DELETE(self._delete), _SLEEP(self._sleep), _CLOSE(self._close),
            _WRITE(self._write), _TRUNCATE(self._truncate), _SYNC(self._sync),
            _SHM_LOCK(self._shm_lock),
        )  # fmt: skip
        opens, deletes, sleeps, *_ = self._callbacks
        self._vfs = _Vfs()
        ctypes.pointer(self._vfs)[0] = vfs
        self._vfs.zName = NAME.encode()
        self._vfs.pNext = None
        self._vfs.xOpen = ctypes.cast(opens, c_void_p).value
        self._vfs.xDelete = ctypes.cast(deletes, c_void_p).value
        self._vfs.xSleep = ctypes.cast(sleeps, c_void_p).value
        assert library.sqlite3_vfs_register(ctypes.addressof(self._vfs), 0) == OK

    # --- of the file system -------------------------------------------------------------------

    def _open(self, _: Any, name: Any, file: Any, flags: int, out: Any) -> int:
        path = ctypes.string_at(name).decode() if name else ""
        watcher = self.find(path) if path else None
        is_read_aloud = False
        if watcher is not None:
            try:
                is_read_aloud = watcher.opening(path)
            except Exception:  # noqa: BLE001  (no exception passes through SQLite)
                c_void_p.from_address(file).value = None
                return CANTOPEN
        code: int = self._under_open(self._under, name, file, flags, out)
        if code == OK and watcher is not None and not flags & READ_ONLY:
            methods = c_void_p.from_address(file)
            under, is_main = methods.value or 0, bool(flags & MAIN_DB)
            self._files[file] = (path, watcher, under, is_main, is_read_aloud)
            aloud = is_main or watcher.is_written_aloud(path)
            table = self._methods(under, aloud, is_main and is_read_aloud)
            methods.value = ctypes.addressof(table)
        return code

    def _delete(self, _: Any, name: Any, sync: int) -> int:
        path = ctypes.string_at(name).decode()
        watcher = self.find(path)
        if watcher is not None:
            try:
                if watcher.deleting(path):
                    return OK
            except Exception:  # noqa: BLE001  (no exception passes through SQLite)
                return IOERR_DELETE
        code: int = self._under_delete(self._under, name, sync)
        return code

    def _sleep(self, _: Any, microseconds: int) -> int:
        watcher = self.current()
        if watcher is not None:
            watcher.sleeping(microseconds / 1e6)
        return microseconds

    # --- of a file ----------------------------------------------------------------------------

    def _methods(self, under: int, aloud: bool, read_aloud: bool) -> _Methods:
        """Return the methods that stand before these, writes and transactions told or not."""
        table = self._tables.get((under, aloud, read_aloud))
        if table is None:
            table = self._tables[under, aloud, read_aloud] = _Methods()
            # The first version has no more than this; what a version lacks is never called.
            ctypes.memmove(ctypes.addressof(table), under, ctypes.sizeof(table))
            _, _, _, closes, writes, truncates, syncs, locks = self._callbacks
            table.xClose = ctypes.cast(closes, c_void_p).value
            table.xTruncate = ctypes.cast(truncates, c_void_p).value
            table.xSync = ctypes.cast(syncs, c_void_p).value
            if aloud:
                table.xWrite = ctypes.cast(writes, c_void_p).value
            if read_aloud:
                table.xShmLock = ctypes.cast(locks, c_void_p).value
        return table

    def seed(self, number: int) -> None:
        """Let SQLite draw its salts from here on; 0: from the system again.

        What a power loss leaves of a WAL depends on which of its bytes are those of the one before:
        salts that no seed decides make one run in some hundreds another one.
        """
        assert 0 <= number < 1 << 31, number
        code = self._test_control(PRNG_SEED, c_int(number), c_void_p(None))
        assert code == OK, code

    def listen(self, watcher: FileWatcher) -> None:
        """Ask the watcher anew, for all of its open files, whose writes are to be told."""
        for file, (path, owner, under, is_main, is_read_aloud) in self._files.items():
            if owner is watcher:
                aloud = is_main or watcher.is_written_aloud(path)
                table = self._methods(under, aloud, is_main and is_read_aloud)
                c_void_p.from_address(file).value = ctypes.addressof(table)

    def _original(self, file: int) -> tuple[str, FileWatcher, _Methods]:
        path, watcher, under, *_ = self._files[file]
        return path, watcher, _Methods.from_address(under)

    def _close(self, file: int) -> int:
        methods = self._original(file)[2]
        del self._files[file]
        code: int = _CLOSE(methods.xClose)(file)
        return code

    def _write(self, file: int, data: int, count: int, offset: int) -> int:
        path, watcher, methods = self._original(file)
        try:
            watcher.writing(path, offset, count)
        except Exception as error:  # noqa: BLE001  (no exception passes through SQLite)
            return _code_of(error, IOERR_WRITE)
        code: int = _WRITE(methods.xWrite)(file, data, count, offset)
        return code

    def _truncate(self, file: int, size: int) -> int:
        path, watcher, methods = self._original(file)
        try:
            watcher.truncating(path, size)
        except Exception:  # noqa: BLE001  (no exception passes through SQLite)
            return IOERR_TRUNCATE
        code: int = _TRUNCATE(methods.xTruncate)(file, size)
        return code

    def _sync(self, file: int, flags: int) -> int:
        path, watcher, _ = self._original(file)
        try:
            watcher.syncing(path)
        except Exception:  # noqa: BLE001  (no exception passes through SQLite)
            return IOERR_FSYNC
        return OK

    def _shm_lock(self, file: int, offset: int, count: int, flags: int) -> int:
        path, watcher, methods = self._original(file)
        if flags == SHM_SHARED_LOCK:
            watcher.reading(path)
        code: int = _SHM_LOCK(methods.xShmLock)(file, offset, count, flags)
        return code


def _code_of(error: Exception, otherwise: int) -> int:
    return FULL if isinstance(error, OSError) and error.errno == errno.ENOSPC else otherwise


LAYER: Final = _Layer()

_connect: Final[Callable[..., sqlite3.Connection]] = sqlite3.connect


def connect(database: Any, uri: bool = False, **options: Any) -> sqlite3.Connection:
    """Open a database as `sqlite3.connect` does, through the layer, but a finished copy."""
    if database == ":memory:" or (uri and "immutable=1" in database):
        return _connect(database, uri=uri, **options)
    address = f"{database}&" if uri else f"file:{quote(str(database))}?"
    return _connect(f"{address}vfs={NAME}", uri=True, **options)
