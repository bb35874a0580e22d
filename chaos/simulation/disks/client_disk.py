"""The disk under a client's state directory: what of it a failed sync or a power loss takes.

What lives here: one state directory as files on a simulated disk, and how a process that uses it
ends. What must not: when that happens (crowd.py, swarm.py), what a client does.
"""

from __future__ import annotations

import random
from pathlib import Path

from chaos.simulation.disks.disk import SimDisk
from chaos.simulation.disks.stored import StoredFiles
from flotilla_client.state import State


class ClientDisk:
    """One state directory, over the lives of the processes that use it."""

    def __init__(self, directory: Path) -> None:
        self.image = StoredFiles(directory, self._operate)
        self._disk = SimDisk(lambda: None, self.image.fill)
        self._is_cut = False

    @property
    def has_ended(self) -> bool:
        """True once the process that uses it has ended at one of its operations."""
        return self._disk.lost_power

    def crash_in(self, kind: str, count: int) -> None:
        """Have the process end before its `count`-th operation of a kind from now ("any": all)."""
        self._disk.crash_in(kind, count)

    def calm(self) -> None:
        """Call off what was to happen."""
        self._disk.calm()

    def fail_sync(self, kind: str, count: int, ends: bool = False) -> None:
        """Have the `count`-th sync of a kind (disk.SYNCS, "any") from now fail and lose bytes.

        `ends`: and the process end before its next operation.
        """
        self._disk.fail_sync(kind, count, ends)

    def take_cut(self) -> bool:
        """Return, once, whether a process ended behind a sync that failed, whose log it did not
        write again: what had not been waited for is gone, as after a power loss.
        """
        is_cut, self._is_cut = self._is_cut, False
        return is_cut

    def kill(self, state: State | None) -> None:
        """Let go of what an ended process had open; what it did not write is gone."""
        if state is not None:
            self._is_cut = self._is_cut or state._has_failed
            self.image.sealed = True
            state._has_failed = False  # it writes nothing any more
            state.close()
            self.image.sealed = False
        self._disk.restart()

    def lose_power(self, keep: str, rng: random.Random) -> None:
        """Put the files back to what a power loss leaves; no process may have them open."""
        self.image.lose_unsynced(keep, rng)

    def _operate(self, kind: str) -> None:
        self._disk.operate(kind)
