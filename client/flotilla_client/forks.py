"""What a client is made of, one for each process that uses it.

What lives here: the notice that a process was forked. What must not: what of a parent's survives in
its child (state.py says that of files).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from flotilla_client.errors import Forked

T = TypeVar("T")
_pid = os.getpid()  # of this process: a system call less, each time that a client is used


def _in_child() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_in_child)


class PerProcess(Generic[T]):
    """The parts of a client, made anew in a child process where that is possible.

    `make()` makes them. `owned`: what of it belongs to the process that made it, "" for nothing.
    """

    def __init__(self, make: Callable[[], T], owned: str) -> None:
        self._make, self._owned = make, owned
        self._home = _pid
        # What a parent made stays in here as well: nothing of it may be used or closed.
        self._parts: dict[int, T] = {self._home: make()}

    def here(self) -> T:
        """Return this process's parts. Raises Forked."""
        parts = self._parts.get(_pid)
        if parts is not None:
            return parts
        if self._owned:
            raise forked(f"its {self._owned} belongs to that process", self._home)
        return self._parts.setdefault(_pid, self._make())  # of two threads one wins

    def existing(self) -> T | None:
        """Return this process's parts, None if it has none: then there is nothing to close."""
        return self._parts.get(_pid)


def owned(state_dir: object, name: object) -> str:
    """Return what of a client belongs to one process, in words; "" for nothing."""
    if state_dir is not None:
        return f"state directory {state_dir}"
    return "" if name is None else f"name {name!r}"


def here() -> int:
    """Return the process that asks, as `check_here` takes it."""
    return _pid


def check_here(home: int, why: str) -> None:
    """Raise Forked in another process than `home`, before any lock is asked for.

    Whoever had one when the process was copied has it in the copy for ever.
    """
    if _pid != home:
        raise forked(why, home)


def forked(why: str, home: int) -> Forked:
    """Return the error of a client that was made in process `home` and is used in another."""
    message = (
        f"this client was made in process {home} and is used in process {os.getpid()}, which was"
        f" forked from it: {why}; make a client in each process, after the fork, with a state"
        " directory or a name of its own"
    )
    return Forked(message, details={"made_in": home, "used_in": os.getpid()})
