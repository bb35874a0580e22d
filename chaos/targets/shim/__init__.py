"""What stands between a node and its disk and clock: shim.c, preloaded into the node's process.

What lives here: compiling it, the words that start a node with it, and its orders while the node
runs. What must not: which node, when and why (chaos/targets); what a power loss undoes (undo.py).

A library between a process and libc, because it needs neither root nor a kernel module, sees every
write in its order, and holds for the journal and for SQLite alike. What it cannot show: a kernel or
a disk that lies about an fsync in its own way, and files that are mapped (SQLite's -shm alone).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from chaos.targets import TargetError
from chaos.targets.shim import undo

SOURCE: Final = Path(__file__).parent / "shim.c"
COMPILE_S_MAX: Final = 60.0
INSTALL: Final = "apt-get install gcc libc6-dev"
CALM: Final = {"clock_ns": 0, "sync_ms": 0, "sync_fails": 0, "space_bytes": -1}
COUNTS: Final = {"log_syncs_failed": 0, "writes_refused": 0}  # which the shim counts up
FIELDS: Final = (*CALM, *COUNTS)  # of shim.c's struct control
_FIELD: Final = struct.Struct("<q")


def check_compiler() -> None:
    """Raise TargetError without a C compiler."""
    if shutil.which("cc") is None:
        raise TargetError(f"faults of disks and clocks need a library to be compiled: {INSTALL}")


def compile_shim(directory: Path) -> Path:
    """Compile the library into `directory`; return its path. Raises TargetError if it cannot."""
    check_compiler()
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "shim.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S_MAX)
    if done.returncode:
        raise TargetError(f"{' '.join(command)}: {done.stderr.strip()}\ntry: {INSTALL}")
    return library


class Shim:
    """The shim of one node. `data`: the directory that it watches, beside which it keeps its own.

    Calls but `words` and `lose_power` work while the node runs, and on its next start.
    """

    def __init__(self, library: Path, data: Path) -> None:
        self._library, self._data = library, data
        self._directory = data.parent / "shim"
        self._control, self._undo = self._directory / "control", self._directory / "undo"
        self._directory.mkdir(parents=True, exist_ok=True)
        self.order(**CALM, **COUNTS)

    def words(self) -> list[str]:
        """Return what stands before a command that is to run with the shim. Before each start."""
        undo.trim(self._undo)
        return [
            "env",
            f"LD_PRELOAD={self._library}",
            f"SHIM_DIRECTORY={self._data}",
            f"SHIM_CONTROL={self._control}",
            f"SHIM_UNDO={self._undo}",
        ]

    def order(self, **fields: int) -> None:
        """Set fields of the control, by the names of CALM and COUNTS."""
        self._control.touch()
        with self._control.open("r+b") as file:
            for name, value in fields.items():
                file.seek(FIELDS.index(name) * _FIELD.size)
                file.write(_FIELD.pack(value))

    def ordered(self, name: str) -> int:
        """Return what a field of the control is now."""
        with self._control.open("rb") as file:
            file.seek(FIELDS.index(name) * _FIELD.size)
            number: int = _FIELD.unpack(file.read(_FIELD.size))[0]
            return number

    def lose_power(self, choice: undo.UnsyncedRemainder) -> undo.Loss:
        """Undo what the killed node had not synced, as `choice` says; return what was undone."""
        return undo.lose_power(self._undo, self._data, choice)

    def forget(self) -> None:
        """Forget what was written: the disk is another one, or empty."""
        undo.forget(self._undo)
