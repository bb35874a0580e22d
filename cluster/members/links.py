"""The parts of the connections between nodes: a look-up, a dial, a connection and its buffers.

What lives here: what one connection is, and its two system calls. What must not: who may connect,
when to dial, what is reported (peers.py).
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import islice
from random import Random
from typing import Any, Final, TypeAlias

from cluster.keys.tls import TlsSocket
from cluster.wire import messages
from cluster.wire.frames import FrameReader
from cluster.wire.messages import Hello

READ_BYTES_MAX: Final = 1024 * 1024  # of one connection a turn: nobody starves the loop
RECEIVE_BUFFER_BYTES_MAX: Final = messages.FRAME_BYTES_MAX + READ_BYTES_MAX  # a frame always fits
GATHER_FRAMES_MAX: Final = 64  # buffers in one sendmsg; far below IOV_MAX (1024)
# What the system may hold of a connection and not have sent yet: what is urgent overtakes the rest.
UNSENT_BYTES_MAX: Final = 256 * 1024  # 2 ms at 1 Gbit/s
TCP_NOTSENT_LOWAT: Final = 25  # of Linux; the socket module has no name for it
BACKOFF_MS_MIN: Final = 25  # a restarted peer is reachable at once
BACKOFF_MS_MAX: Final = 1_000  # a dead one costs a SYN a second
REFUSED_ATTEMPTS: Final = 10  # who was refused asks at the longest distance
LOOKUPS_MAX: Final = 8  # threads inside getaddrinfo, abandoned ones included

Address: TypeAlias = tuple[str, int]


class Reason(StrEnum):
    """Why a connection ended."""

    CLOSED = "the peer closed the connection"
    LOST = "the connection broke"
    BAD_FRAME = "the peer sent something that is no message"
    SILENT = "the peer said nothing for too long"
    REPLACED = "the peer opened a new connection"
    BEHIND = "the peer doesn't take what we send"
    UNFIT = "the peer's build and this one don't fit"
    REFUSED = "the peer refuses this node"
    UNWELCOME = "this node refuses the peer"
    UNPROVED = "the peer's certificate is not accepted any more"
    RENEWED = "this node has a new certificate to prove itself with"


class Lookup:
    """One look-up of an address; a name's runs in a thread, as getaddrinfo can block for seconds.

    Nothing is cached beyond the system's resolver: a container that restarts has a new address.
    """

    _slots: Final = threading.BoundedSemaphore(LOOKUPS_MAX)

    def __init__(self, address: Address) -> None:
        self.found: list[Any] | None = None
        self.failure = ""
        try:
            self.found = socket.getaddrinfo(
                *address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except (OSError, UnicodeError):
            self._start(address)

    def _start(self, address: Address) -> None:
        if not self._slots.acquire(blocking=False):
            self.failure = f"{LOOKUPS_MAX} look-ups of names are stuck in the resolver"
            return
        try:
            threading.Thread(target=self._run, args=(address,), daemon=True).start()
        except RuntimeError as error:  # the system has no more threads for us now
            self._slots.release()
            self.failure = f"look-up of {address[0]}: {error}"

    def _run(self, address: Address) -> None:
        try:
            self.found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self.failure = f"look-up of {address[0]}: {error}"
        finally:
            self._slots.release()


@dataclass(slots=True, eq=False)
class Dial:
    """A peer that we dial, and how that goes.

    Its name is greater than ours; or `is_question`: it should dial us, and has not.
    """

    name: str
    address: Address
    due_at: float
    is_question: bool = False
    attempts: int = 0  # since it last said Hello
    give_up_at: float = 0.0
    lookup: Lookup | None = None
    connection: Connection | None = None

    def connect(self, found: list[Any]) -> tuple[socket.socket, Any]:
        """Begin to connect to one of the addresses found, in turn; raises OSError."""
        family, kind, protocol, _, address = found[self.attempts % len(found)]
        raw = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        error = raw.connect_ex(address)
        if error not in (0, errno.EINPROGRESS):
            raw.close()
            raise OSError(error, os.strerror(error))
        return raw, address

    def schedule(self, now: float, random: Random) -> None:
        """Set the next attempt: soon at first, then at doubling distances."""
        backoff_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(self.attempts, 10))
        self.due_at = now + backoff_ms * random.uniform(0.5, 1.0) / 1000
        self.attempts += 1
        self.lookup = self.connection = None


class LinkState(Enum):
    """What a connection is at."""

    CONNECTING = 1
    GREETING = 2
    LIVE = 3
    ENDED = 4  # read to its end: what came before it is still to be received
    CLOSED = 5


@dataclass(slots=True, eq=False)
class Connection:
    """A socket, what waits on either side of it, and who is at its other end.

    What waits in `bulk` leaves when nothing waits in `outbox`; a frame that has begun is finished.
    """

    socket: socket.socket | TlsSocket
    fd: int
    address: str
    dial: Dial | None
    state: LinkState
    deadline_at: float  # of connecting, then of the handshake
    name: str = ""
    hello: Hello | None = None  # while greeting: without its extension
    unfit: str = ""  # why it is refused when its deadline comes
    reader: FrameReader = field(default_factory=lambda: FrameReader(messages.HELLO_BYTES_MAX))
    outbox: deque[bytes | memoryview] = field(default_factory=deque)
    outbox_bytes: int = 0
    bulk: deque[bytes | memoryview] = field(default_factory=deque)
    bulk_bytes: int = 0
    has_begun_bulk: bool = False  # the first frame of `bulk` has left in part
    live_at: float = 0.0  # since when it has its peer's place
    heard_at: float = 0.0
    sent_at: float = 0.0
    blocked: bool = False  # the socket took less than we had
    watched: tuple[bool, bool] = (False, False)
    ending: tuple[Reason, str] | None = None  # no more bytes will come or go

    def queue(self, frame: bytes) -> None:
        self.outbox.append(frame)
        self.outbox_bytes += len(frame)

    def queue_bulk(self, frame: bytes) -> None:
        self.bulk.append(frame)
        self.bulk_bytes += len(frame)

    @property
    def waiting_bytes(self) -> int:
        return self.outbox_bytes + self.bulk_bytes

    def read(self, scratch: memoryview, until_empty: bool) -> bool:
        """Take up to `READ_BYTES_MAX`; return whether anything came. May set `ending`.

        A read that doesn't fill `scratch` is taken for the last one, which saves a system call;
        `until_empty` asks the socket nevertheless, to see its end in time.
        """
        taken = 0
        while taken < READ_BYTES_MAX and self.reader.buffered_bytes < RECEIVE_BUFFER_BYTES_MAX:
            try:
                size = self.socket.recv_into(scratch)
            except BlockingIOError:
                break
            except OSError as error:
                self.ending = (Reason.LOST, str(error))
                break
            if size == 0:
                self.ending = (Reason.CLOSED, "")
                break
            self.reader.feed(scratch[:size])
            taken += size
            if size < len(scratch) and not until_empty:
                break
        return taken > 0

    def write(self) -> bool:
        """Write what the socket takes; return whether it took anything. May set `ending`."""
        self.blocked = False
        before = self.waiting_bytes
        if self._holds_sealed():
            self._flush_sealed()
        while self.waiting_bytes and not self.blocked:
            frames = self._gathered()
            try:
                size = self.socket.sendmsg(frames)
            except BlockingIOError:
                size = 0
            except OSError as error:
                self.ending = (Reason.LOST, str(error))
                break
            self.blocked = size < sum(map(len, frames))
            if size == self.outbox_bytes and not self.has_begun_bulk:  # as a rule
                self.outbox.clear()
                self.outbox_bytes = 0
            else:
                self._sent(size)
        self.blocked = self.blocked or self._holds_sealed()
        return self.waiting_bytes < before

    def _holds_sealed(self) -> bool:
        return isinstance(self.socket, TlsSocket) and self.socket.has_unsent

    def _flush_sealed(self) -> None:
        """Let what TLS has sealed leave, though nothing may wait behind it."""
        assert isinstance(self.socket, TlsSocket), self.address
        try:
            self.blocked = not self.socket.flush()
        except OSError as error:
            self.ending = (Reason.LOST, str(error))
            self.blocked = True

    def _gathered(self) -> list[bytes | memoryview]:
        """Return the next frames in the order in which they leave."""
        frames = [self.bulk[0]] if self.has_begun_bulk else []
        frames += islice(self.outbox, GATHER_FRAMES_MAX - len(frames))
        begun = int(self.has_begun_bulk)
        frames += islice(self.bulk, begun, begun + GATHER_FRAMES_MAX - len(frames))
        return frames

    def _sent(self, size_bytes: int) -> None:
        if self.has_begun_bulk:
            size_bytes = self._sent_bulk(size_bytes, 1)
        while size_bytes and self.outbox:
            head = self.outbox.popleft()
            self.outbox_bytes -= min(len(head), size_bytes)
            if len(head) > size_bytes:
                self.outbox.appendleft(memoryview(head)[size_bytes:])
                return
            size_bytes -= len(head)
        self._sent_bulk(size_bytes, len(self.bulk))

    def _sent_bulk(self, size_bytes: int, frames_max: int) -> int:
        """Note that up to `size_bytes` of the first frames have left; return what is over."""
        for _ in range(frames_max):
            if not size_bytes:
                break
            head = self.bulk.popleft()
            self.bulk_bytes -= min(len(head), size_bytes)
            self.has_begun_bulk = len(head) > size_bytes
            if self.has_begun_bulk:
                self.bulk.appendleft(memoryview(head)[size_bytes:])
                return 0
            size_bytes -= len(head)
        return size_bytes

    def wishes(self) -> tuple[bool, bool]:
        if self.state is LinkState.CONNECTING:
            return False, True
        open_ = self.state in (LinkState.GREETING, LinkState.LIVE)
        room = self.reader.buffered_bytes < RECEIVE_BUFFER_BYTES_MAX
        return open_ and room, open_ and self.blocked and not self.awaits_peer

    @property
    def asks(self) -> bool:
        """Whether we only ask by it why nobody dials us."""
        return self.dial is not None and self.dial.is_question

    @property
    def proved(self) -> str | None:
        """The name that the other end's certificate has; None without TLS."""
        if not isinstance(self.socket, TlsSocket):
            return None
        assert self.socket.peer is not None, "nothing is read before the handshake is done"
        return self.socket.peer.node

    @property
    def awaits_peer(self) -> bool:
        """True while TLS can send nothing before the peer has: writable is no news then."""
        return isinstance(self.socket, TlsSocket) and self.socket.awaits_peer
