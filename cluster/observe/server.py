"""The thread that shows a node over HTTP. Its libraries are imported in it, behind the start.

What lives here: the listening socket, the thread, its end. What must not: what is answered.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Callable
from typing import Final

from cluster.observe.observer import NodeObserver

# How long the loop waits for the interpreter when this thread computes, at most; Python's default
# of 5 ms would be added to a turn at each of its system calls.
SWITCH_S: Final = 0.0005
BACKLOG: Final = 64
_FAMILIES: Final = {True: socket.AF_INET6, False: socket.AF_INET}


def listen(address: tuple[str, int]) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    ipv6 = ":" in address[0]
    return socket.create_server(
        address, family=_FAMILIES[ipv6], backlog=BACKLOG, dualstack_ipv6=ipv6
    )


def tls_of(certificate: str) -> ssl.SSLContext | None:
    """Return what HTTPS is spoken with, None without a file. Raises OSError for one of no use."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # what scrapers and old phones still speak
    try:
        context.load_cert_chain(certificate, password="")  # nobody is asked for one
    except ssl.SSLError as error:  # it says neither which file nor, mostly, what is wrong
        raise OSError(error.errno, f"holds no key with its certificate ({error.reason})") from error
    return context


class HttpThread:
    """Serves `observer` on `listener` until the process ends.

    `token`: what who asks has to show, "" for nothing. `tls`: None for plain HTTP. `failed(error)`
    hears, in the thread, of what should not happen: the node goes on without it.
    """

    def __init__(
        self,
        observer: NodeObserver,
        listener: socket.socket,
        cluster_id: str,
        token: str,
        failed: Callable[[Exception], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._observer, self._listener, self._tls = observer, listener, tls
        self._cluster_id, self._token, self._failed = cluster_id, token, failed
        sys.setswitchinterval(SWITCH_S)
        threading.Thread(target=self._run, name="http", daemon=True).start()

    def _run(self) -> None:
        try:
            from cluster.observe import pages

            pages.run(
                self._observer,
                self._cluster_id,
                self._token,
                self._failed,
                self._listener,
                self._tls,
            )
        except Exception as error:  # noqa: BLE001  (a defect here must not end the node)
            self._failed(error)
