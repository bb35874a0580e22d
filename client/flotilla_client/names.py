"""Hosts' names: looked up before ZeroMQ hears of an endpoint, in threads whose number is bounded.

What lives here: from `HOST:PORT` to the address that a socket is given. What must not: sockets of
the wire (connection.py), a cache: a container that restarts has a new address.

getaddrinfo blocks for as long as the resolver takes, and nothing can end it. ZeroMQ would call it
in the one thread that serves all sockets of the process: a single name that hangs would cut every
client off from every node. Here a look-up that hangs holds nothing but a daemon thread of its own:
no operation waits for it beyond its attempt, `close` not at all, and the interpreter ends.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from typing import Final

LOOKUPS_MAX: Final = 8  # threads inside getaddrinfo, in a process: hosts, as each has one at most
UNKNOWN: Final = "name unknown"
NOT_IN_TIME: Final = "name not looked up in time"
_NAMED: Final = re.compile(r"(?:tcp://)?([^\s/;\[\]]+):([0-9]+)")


class SharedLookup:
    """A look-up of an IPv4 address, shared by all who want it while it lasts.

    `address`: "" until it is known; then `failure` says why.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.address, self.failure = "", NOT_IN_TIME
        self._is_over = threading.Event()

    def begin(self) -> bool:
        """Begin; return False if there is no thread for it."""
        thread = threading.Thread(target=self._run, name=f"flotilla-name-{self.host}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be had any more
            return False
        return True

    def give_up(self) -> None:
        """End it without an address."""
        self._is_over.set()

    def is_over(self) -> bool:
        """Return whether it has ended."""
        return self._is_over.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, no longer than that."""
        self._is_over.wait(timeout_s)

    def _run(self) -> None:
        try:
            found = socket.getaddrinfo(self.host, None, socket.AF_INET, socket.SOCK_STREAM)
            self.address = str(found[0][4][0])
        except (OSError, UnicodeError):
            self.failure = UNKNOWN
        finally:
            _lookups.end(self)
            self._is_over.set()


class _Lookups:
    """The look-ups under way in this process, one a host."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start with none: in a forked process, to which the threads did not follow."""
        self._lock = threading.Lock()
        self._running: dict[str, SharedLookup] = {}

    def of(self, host: str) -> SharedLookup:
        """Return the host's look-up; one that has ended if there are `LOOKUPS_MAX` others."""
        with self._lock:
            lookup = self._running.get(host)
            if lookup is None:
                lookup = SharedLookup(host)
                if len(self._running) < LOOKUPS_MAX and lookup.begin():
                    self._running[host] = lookup
                else:
                    lookup.give_up()
            return lookup

    def end(self, lookup: SharedLookup) -> None:
        """Make room for another one."""
        with self._lock:
            self._running.pop(lookup.host, None)


_lookups: Final = _Lookups()
os.register_at_fork(after_in_child=_lookups.forget)


class Address:
    """An endpoint's address for ZeroMQ, once its host's name is looked up, if it has one."""

    def __init__(self, endpoint: str) -> None:
        self._address = endpoint if "://" in endpoint else f"tcp://{endpoint}"
        match = _NAMED.fullmatch(endpoint)
        host, self._port = match.groups() if match else ("", "")
        self._lookup = _lookups.of(host) if host and not _is_number(host) else None

    def is_over(self) -> bool:
        """Return whether there is nothing to wait for."""
        return self._lookup is None or self._lookup.is_over()

    def wait(self, timeout_s: float) -> None:
        """Wait for the name, no longer than that."""
        if self._lookup is not None:
            self._lookup.wait(timeout_s)

    @property
    def failure(self) -> str:
        """Why there is no address, "" if there is one."""
        return "" if self._lookup is None or self._lookup.address else self._lookup.failure

    def __str__(self) -> str:
        if self._lookup is None:
            return self._address
        return f"tcp://{self._lookup.address}:{self._port}"


def _is_number(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, host)
    except (OSError, UnicodeError):
        return False
    return True
