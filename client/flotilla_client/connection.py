"""ZeroMQ sockets, one an endpoint: opened when first used, closed on silence.

What lives here: DEALER sockets that speak the wire's framing, and the news that a connection was
lost. What must not: a decision about what to send, where or how often (retry.py).

`EndpointSockets` belong to the thread that uses them at the moment: handing them over takes a lock
or a queue between the two (a full memory barrier), as ZeroMQ demands of its sockets.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import zmq

from flotilla_client.errors import FlotillaError, KeyUnusable
from flotilla_client.keys import KeyFile
from flotilla_client.names import Address
from flotilla_client.protocol import MESSAGE_BYTES_MAX, ProtocolError, Reply, decode_reply

CONNECT_MS_MAX: Final = 1_000  # a host that does not even accept in that time counts as silent
REQUESTS_QUEUED_MAX: Final = 1_000  # ZMQ_SNDHWM: above a producer's window, so sends do not block
CONNECTION_LOST: Final = "connection lost"
NO_REPLY: Final = "answers as no node does"
NO_SOCKET: Final = "not asked, as this process has too many files open, or ZeroMQ too many sockets"
# As plain numbers: those of an enumeration take microseconds to be compared and joined.
_EVENTS: Final = int(zmq.EVENTS)
_IN: Final = int(zmq.POLLIN)
_LAST: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
LOST: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
POLL_MS_MAX: Final = 60_000  # longer than any attempt: what waits for nothing looks again then
RECONNECT_MS: Final = 100  # nobody waits for it: a lost connection's socket is closed


class NoSocketLeft(OSError):
    """No socket can be had now: descriptors, or the sockets of ZeroMQ's context, are used up."""


@dataclass(frozen=True, slots=True)
class Link:
    """A DEALER socket and a monitor on which a message means: the connection was lost or refused.

    Of zmq.Context or zmq.asyncio.Context, hence the type.
    """

    socket: Any
    monitor: Any

    def close(self) -> None:
        """Close both, dropping what was not sent."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


def open_link(context: Any, address: Address, key: KeyFile | None) -> Link:
    """Return a link to an address that has been looked up, by CURVE if there is a key.

    IMMEDIATE: nothing is queued before the connection stands, so what could not be sent certainly
    was not, and a lost connection's requests are never repeated behind our back.
    Raises NoSocketLeft, KeyUnusable.
    """
    try:
        return _open_link(context, address, key)
    except zmq.ZMQError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise NoSocketLeft(error.errno, NO_SOCKET) from error
        raise


def _open_link(context: Any, address: Address, key: KeyFile | None) -> Link:
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.SNDHWM, REQUESTS_QUEUED_MAX)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        if key is not None:
            set_key(socket, key)
        link = Link(socket, socket.get_monitor_socket(LOST))
    except BaseException:  # no descriptor could be had
        socket.close(linger=0)
        raise
    try:
        socket.connect(str(address))
    except BaseException:
        link.close()
        raise
    return link


def set_key(socket: Any, key: KeyFile) -> None:
    """Let a socket speak CURVE with a key, before it connects. Raises KeyUnusable."""
    if not zmq.has("curve"):
        raise KeyUnusable("this build of libzmq has no CURVE; pyzmq's wheels have it")
    now = key.current()
    socket.setsockopt(zmq.CURVE_SERVERKEY, now.server.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, now.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, now.secret.encode())


def why_unsent(lost: bool) -> str:
    """Return the cause of an attempt that found no connection; `lost`: the monitor said so."""
    return "connection refused" if lost else "no connection"


def with_endpoints(error: FlotillaError, endpoints: Sequence[str]) -> FlotillaError:
    """Return an error whose message names what each endpoint did last (`details["causes"]`)."""
    causes = error.details.get("causes")
    if not causes:
        return error
    told = {endpoints[number]: cause for number, cause in sorted(causes.items())}
    said = ", ".join(f"{endpoint}: {cause}" for endpoint, cause in told.items())
    details = error.details | {"causes": told}
    return type(error)(f"{error.message} ({said})", error.code, error.definite, details)


def parsed(frames: Sequence[bytes]) -> Reply | None:
    """Return the reply in a received message, None for one that is no reply of this protocol.

    It counts as silence, for the cause NO_REPLY: whoever sent it is not a node of ours.
    """
    try:
        return decode_reply(frames[1:])
    except ProtocolError:
        return None


def is_lost(link: Link) -> bool:
    """Return whether the connection was lost or refused."""
    return bool(link.monitor.getsockopt(_EVENTS) & _IN)


def has_come(link: Link) -> bool:
    """Return whether a message waits; as with a send, its descriptor tells no more of it then."""
    return bool(link.socket.getsockopt(_EVENTS) & _IN)


def received(link: Link) -> list[list[bytes]]:
    """Return the messages that have come, without waiting."""
    socket = link.socket
    found: list[list[bytes]] = []
    while socket.getsockopt(_EVENTS) & _IN:
        found.append(socket.recv_multipart(_LAST))
    return found


def sent(link: Link, frames: Sequence[bytes]) -> bool:
    """Send, behind the empty delimiter of a REQ socket, unless there is no connection."""
    socket = link.socket
    try:
        socket.send(b"", _MORE)
        for frame in frames[:-1]:
            socket.send(frame, _MORE)
        socket.send(frames[-1], _LAST)
    except zmq.Again:  # of the first one: what has begun is taken to its end
        return False
    return True


class EndpointSockets:
    """The sockets to a client's endpoints, for one thread at a time; `key`: for CURVE."""

    def __init__(self, endpoints: Sequence[str], key: KeyFile | None = None) -> None:
        self._endpoints, self._key = tuple(endpoints), key
        self._context: zmq.Context[Any] = zmq.Context.instance()
        self._links: dict[int, Link] = {}
        self._poller, self._polled = zmq.Poller(), dict[int, Link]()  # of `receive_any`
        # Called when a connection is made anew for one that was lost while nobody listened.
        self.lost: Callable[[int], object] = lambda endpoint: None
        self.cause = ""  # why the last `send` returned False, or the last `receive` None

    def send(self, endpoint: int, frames: Sequence[bytes], timeout_ms: float) -> bool:
        """Send a request; return False if no connection stood in time: then nothing was sent."""
        until_s = time.monotonic() + min(timeout_ms, CONNECT_MS_MAX) / 1000
        link = self._link(endpoint, until_s)
        if link is None:
            return False
        if sent(link, frames):  # as a rule: the connection stands
            return True
        ready = self._poll(link, zmq.POLLOUT, (until_s - time.monotonic()) * 1000)
        if link.socket not in ready:
            self.cause = why_unsent(link.monitor in ready)
            return False
        self.cause = why_unsent(lost=False)  # lost since the poll, or REQUESTS_QUEUED_MAX
        return sent(link, frames)

    def receive(self, endpoint: int, timeout_ms: float, wake: int | None = None) -> Reply | None:
        """Return a reply; None after `timeout_ms`, or when `wake` (a file descriptor) is readable.

        Raises ConnectionResetError when the connection is lost: no reply will come.
        """
        link = self._links[endpoint]
        ready = self._poll(link, zmq.POLLIN, timeout_ms, wake)
        self.cause = "no answer"
        if link.socket in ready:
            self.cause = NO_REPLY
            return parsed(link.socket.recv_multipart())
        if link.monitor in ready:
            raise ConnectionResetError(self._endpoints[endpoint])
        return None

    def receive_any(
        self, endpoints: Collection[int], timeout_ms: float
    ) -> list[tuple[int, Reply | str]]:
        """Return what has come from any of these, as soon as something has.

        A text says why nothing more comes from an endpoint.
        """
        links = {endpoint: self._links[endpoint] for endpoint in endpoints}
        if links != self._polled:
            self._polled, self._poller = links, zmq.Poller()
            for link in links.values():
                self._poller.register(link.socket, zmq.POLLIN)
                self._poller.register(link.monitor, zmq.POLLIN)
        ready = dict(self._poller.poll(min(POLL_MS_MAX, max(0, math.ceil(timeout_ms)))))
        found: list[tuple[int, Reply | str]] = []
        for endpoint, link in links.items():
            if link.socket in ready:
                found += [(endpoint, parsed(each) or NO_REPLY) for each in received(link)]
            elif link.monitor in ready:
                found.append((endpoint, CONNECTION_LOST))
        return found

    def close(self, endpoint: int) -> None:
        """Close the endpoint's socket: late replies on it are gone."""
        link = self._links.pop(endpoint, None)
        if link is not None:
            link.close()

    def close_all(self) -> None:
        """Close every socket."""
        for endpoint in tuple(self._links):
            self.close(endpoint)

    def _link(self, endpoint: int, until_s: float) -> Link | None:
        """Return the endpoint's link; None, with `cause`, if it has no address by then."""
        link = self._links.get(endpoint)
        if link is not None and is_lost(link):
            self.close(endpoint)
            self.lost(endpoint)
            link = None
        if link is None:
            address = Address(self._endpoints[endpoint])
            address.wait(until_s - time.monotonic())
            self.cause = address.failure
            if not self.cause:
                link = self._opened(endpoint, address)
        return link

    def _opened(self, endpoint: int, address: Address) -> Link | None:
        try:
            link = self._links[endpoint] = open_link(self._context, address, self._key)
        except NoSocketLeft:
            self.cause = NO_SOCKET
            return None
        return link

    @staticmethod
    def _poll(link: Link, flags: int, timeout_ms: float, wake: int | None = None) -> set[Any]:
        poller = zmq.Poller()
        poller.register(link.socket, flags)
        poller.register(link.monitor, zmq.POLLIN)
        if wake is not None:
            poller.register(wake, zmq.POLLIN)
        return {ready for ready, _ in poller.poll(max(0, int(timeout_ms)))}
