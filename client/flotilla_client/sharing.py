"""A client of which several processes are part at the same time: the command line's.

What lives here: the state that processes share in turns, and the client on it. What must not: locks
(directory.py), what a state holds (state.py), commands (cli.py).

`get --follow` in one terminal and `put` in another are one client: one id, one epoch, one outbox.
An operation takes its turn, reads what the others have changed, and gives the directory back; while
a node holds its GET it does not need it.

The first process takes up the client's id (REQUEST_ID) and so raises the epoch, which fences all
that came before it. Those that come while one is there go on under the same epoch, written down in
the database for them: taking up the id again would fence the others. That the epoch is theirs is
proved by the lock on `session`, which a copy of the directory has not, and which ends with the
processes. Whoever comes after all of them is a first one again.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from flotilla_client.client import Client
from flotilla_client.directory import Shared
from flotilla_client.errors import Fenced
from flotilla_client.reading import Delivery
from flotilla_client.state import OUTBOX_BYTES_MAX, State, Statement

# The epoch that this session has taken up. A table of its own, as with `provisional`.
_SESSION: Final = "CREATE TABLE IF NOT EXISTS session (epoch INTEGER NOT NULL)"
_NO_SESSION: Final[Statement] = ("DELETE FROM session", ())


class SharedClient(Client):
    """A client whose state directory other processes use at the same time, each by a SharedClient.

    An operation waits for its turn for as long as its deadline is, then raises StateInUse; so does
    one whose directory a `Client` has. An open producer keeps the turn. To be handed publications,
    be the one that does so: within `reading`.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        state_dir: str,
        timeout: float,
        key: str | None = None,
    ) -> None:
        self._open_state = functools.partial(SharedState, patience_s=timeout)
        super().__init__(endpoints, state_dir=state_dir, timeout=timeout, key=key)

    def get(self, *arguments: Any, **options: Any) -> Delivery | None:
        """GET as `Client`; again if it waited while another process of ours took up the id."""
        while True:
            epoch = self._session.state.epoch
            try:
                return super().get(*arguments, **options)
            except Fenced:
                if self._session.state.epoch == epoch:
                    raise

    def reading(self) -> AbstractContextManager[None]:
        """Be the only process that is handed publications. Raises StateInUse, as an operation."""
        return self._shared_state.reading()

    def end_turns(self) -> None:
        """Let others have the state, after a command that ended anyhow, producers closed."""
        self._shared_state.end_turns()

    @property
    def _shared_state(self) -> SharedState:
        state = self._session.state
        assert isinstance(state, SharedState), state
        return state


class SharedState(State):
    """A state whose directory other processes use too, each in its turn.

    Every method is called within `turn`; the constructor takes one for itself and may wait for it
    for `patience_s`. Raises StateInUse then, and at once if another process does not share.
    """

    def __init__(
        self,
        directory: Path | None,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        patience_s: float = 0.0,
    ) -> None:
        self._patience_s = patience_s
        super().__init__(directory, outbox_bytes_max)
        self._shared.end()

    @contextmanager
    def turn(self, patience_s: float | None = None) -> Iterator[None]:
        """Have the state, as the others have left it. Raises StateInUse after `patience_s`.

        None: after what the constructor waits.
        """
        if self._shared.begin(patience_s):
            self._known = None  # others may have changed it
        try:
            yield
        finally:
            self._shared.end()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let others have the state; then it is read again."""
        self._shared.end()
        try:
            yield
        finally:
            if self._shared.begin_again():
                self._known = None

    def reading(self) -> AbstractContextManager[None]:
        """Be the only process that is handed publications: see directory.py."""
        return self._shared.reading()

    def end_turns(self) -> None:
        """End every turn that is open."""
        self._shared.end_all()

    @property
    def is_open(self) -> bool:
        """True once a process of this session has taken up the id, and nobody else has since."""
        return self._read("SELECT epoch FROM session") == [(self.epoch,)]

    def resumed(
        self,
        client_id: str,
        epoch: int,
        sequence: int,
        counters: Mapping[str, int],
        subscriptions: Mapping[str, int],
        placed: Mapping[str, int] = MappingProxyType({}),
        patterns: Mapping[str, int] = MappingProxyType({}),
        handed: Mapping[str, int] = MappingProxyType({}),
        recovery: str | None = None,
    ) -> None:
        """Store who the broker says this client is, for the others of this session too."""
        known = placed, patterns, handed, recovery
        with self._lock:
            super().resumed(client_id, epoch, sequence, counters, subscriptions, *known)
            self._commit(_NO_SESSION, ("INSERT INTO session VALUES (?)", (epoch,)))

    def reopen(self) -> None:
        """Let whoever comes next take up the id anew."""
        with self._lock:
            self._commit(_NO_SESSION)

    def _claim(self) -> None:
        assert self.directory is not None, "what is in memory has nobody to be shared with"
        self._shared = Shared(self.directory, self._patience_s)

    def _is_alone(self) -> bool:
        return self._shared.is_first

    def _release(self) -> None:
        self._shared.forsake()

    def _forsake(self) -> None:
        self._shared.forsake()

    def _prepare(self, database: sqlite3.Connection) -> None:
        super()._prepare(database)
        database.execute(_SESSION)
        if self._shared.is_first:
            database.execute(*_NO_SESSION)
