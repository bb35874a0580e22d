"""Holds back and loses packets that iptables hands over: `python packets.py JSON`, as root.

What lives here: one process's work in one network namespace: reading NFQUEUEs, the fate of each
packet, the verdicts. What must not: rules of iptables (network.py), and anything but the standard
library, because it runs as a file of its own.

Not netem: many kernels lack it, it works on a whole interface rather than on who sent a packet, and
it has no way to deliver late what a clogged link has taken. Packets are queued where they arrive: a
sender that feels its own packets wait sends fewer of them.

JSON: {"seed": 7, "queues": {"0": {"delay_ms": 50, "jitter_ms": 10, "loss": 0.1, "reorder": 0.1,
"clog": false}}}. Writes "ready" when packets may come; SIGTERM, or the end of stdin, lets all that
is held pass at once: whoever holds the other end of that pipe takes it away however it ends.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

PACKETS_MAX: Final = 20_000  # held of one queue; the kernel drops what comes on top
SOCKET_BYTES: Final = 16 * 2**20
RECEIVE_BYTES_MAX: Final = 65_536

# From linux/netlink.h and linux/netfilter/nfnetlink_queue.h.
NETLINK_NETFILTER: Final = 12
SO_RCVBUFFORCE: Final = 33
SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5
REQUEST, ACKNOWLEDGED = 1, 5
SUBSYSTEM: Final = 3 << 8
PACKET, VERDICT, CONFIG = 0, 1, 2
CONFIG_COMMAND, CONFIG_PARAMETERS, CONFIG_LENGTH = 1, 2, 3
COMMAND_BIND, COPY_META = 1, 1
ATTRIBUTE_HEADER, ATTRIBUTE_VERDICT = 1, 2
DROP, ACCEPT = 0, 1
ATTRIBUTE_TYPE: Final = 0x3FFF


class Fates:
    """What becomes of the packets of one queue. Times in seconds."""

    def __init__(self, conditions: Mapping[str, Any], rng: random.Random) -> None:
        self._delay_s = conditions["delay_ms"] / 1000
        self._jitter_s = conditions["jitter_ms"] / 1000
        self._loss, self._reorder = conditions["loss"], conditions["reorder"]
        self._clog, self._rng = conditions["clog"], rng
        self._last_s = 0.0

    def due_s(self, now_s: float) -> float | None:
        """Return when a packet that comes now may pass; infinity: never by itself; None: lost."""
        if self._clog:
            return float("inf")
        if self._rng.random() < self._loss:
            return None
        if self._rng.random() < self._reorder:
            return now_s
        late_s = max(0.0, self._delay_s + self._rng.uniform(-self._jitter_s, self._jitter_s))
        self._last_s = max(self._last_s, now_s + late_s)  # jitter alone overtakes nobody
        return self._last_s


class Queues:
    """The kernel's queues, by their numbers. Raises OSError for want of root or of the kernel."""

    def __init__(self, numbers: list[int]) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BYTES)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
        try:
            for number in numbers:
                self._configure(number, CONFIG_COMMAND, struct.pack("!BxH", COMMAND_BIND, 0))
                self._configure(number, CONFIG_PARAMETERS, struct.pack("!IB", 0, COPY_META))
                self._configure(number, CONFIG_LENGTH, struct.pack("!I", PACKETS_MAX))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that is readable when packets are here."""
        return self._socket.fileno()

    def _configure(self, number: int, kind: int, value: bytes) -> None:
        self._socket.send(_message(CONFIG, ACKNOWLEDGED, number, kind, value))
        (code,) = struct.unpack_from("=i", self._socket.recv(RECEIVE_BYTES_MAX), 16)
        if code:
            raise OSError(-code, f"NFQUEUE {number}: {os.strerror(-code)}")

    def decide(self, number: int, packet: int, verdict: int) -> None:
        """Let a packet of a queue pass, or drop it."""
        value = struct.pack("!II", verdict, packet)
        self._socket.send(_message(VERDICT, REQUEST, number, ATTRIBUTE_VERDICT, value))

    def take(self) -> Iterator[tuple[int, int]]:
        """Yield (queue, packet) of what one read of the socket brings."""
        data, at = self._socket.recv(RECEIVE_BYTES_MAX), 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == SUBSYSTEM | PACKET:
                (number,) = struct.unpack_from("!H", data, at + 18)
                yield number, _packet_id(data[at + 20 : at + length])
            at += max(16, (length + 3) & ~3)


def _message(kind: int, flags: int, number: int, attribute: int, value: bytes) -> bytes:
    body = struct.pack("=HH", 4 + len(value), attribute) + value + bytes(-len(value) % 4)
    head = struct.pack("=IHHII", 20 + len(body), SUBSYSTEM | kind, flags, 0, 0)
    return head + struct.pack("!BBH", 0, 0, number) + body


def _packet_id(attributes: bytes) -> int:
    at = 0
    while at + 4 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if kind & ATTRIBUTE_TYPE == ATTRIBUTE_HEADER:
            (found,) = struct.unpack_from("!I", attributes, at + 4)
            return int(found)
        at += max(4, (length + 3) & ~3)
    raise ValueError("a packet without its header")


def serve(queues: Queues, fates: Mapping[int, Fates], stopping: Callable[[], bool]) -> None:
    """Carry out fates until told to stop; then let everything pass that is held."""
    held: list[tuple[float, int, int]] = []  # (due, packet, queue): the kernel counts packets up
    while not stopping():
        now_s = time.monotonic()
        while held and held[0][0] <= now_s:
            _, packet, number = heapq.heappop(held)
            queues.decide(number, packet, ACCEPT)
        wait_s = held[0][0] - now_s if held else float("inf")
        ready, _, _ = select.select([queues], [], [], min(wait_s, 0.1))
        for number, packet in queues.take() if ready else ():
            due_s = fates[number].due_s(time.monotonic())
            if due_s is None:
                queues.decide(number, packet, DROP)
            else:
                heapq.heappush(held, (due_s, packet, number))
    for _, packet, number in sorted(held):
        queues.decide(number, packet, ACCEPT)


def main(text: str) -> None:
    """Serve the queues that `text` (JSON) describes until SIGTERM or the end of stdin."""
    order = json.loads(text)
    fates = {
        int(number): Fates(conditions, random.Random(f"{order['seed']} {number}"))
        for number, conditions in order["queues"].items()
    }
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    queues = Queues(sorted(fates))
    os.write(1, b"ready\n")
    serve(queues, fates, lambda: bool(told) or _is_at_end(0))


def _is_at_end(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0]) and not os.read(descriptor, 1)


if __name__ == "__main__":
    main(sys.argv[1])
