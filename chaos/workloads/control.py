"""The line between the runner and a client process: orders on stdin, reports on stdout.

What lives here: the client's end of it. What must not: what a client does about an order.
One JSON object a line each way. Orders: {"order": "phase", "phase": …}, {"order": "drain",
"last_ids": {topic: id}}, {"order": "crash", "point": …, "passes": …}, {"order": "stop"}. Reports:
{"report": "ready"}, {"report": "progress", "acknowledged": …, …}, {"report": "drained"}, {"report":
"fenced"}, and {"report": "unflushed"} of who could not empty its outbox. The end of stdin is an
order to stop: no client outlives its runner.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any, Final

import orjson

READ_BYTES: Final = 65_536
REPORT_EVERY_S: Final = 0.25  # a progress bar's pace
WAIT_S_MAX: Final = 86_400.0  # who is to wait longer looks once a day; poll() takes 24 days
STOP: Final[dict[str, Any]] = {"order": "stop"}


class Control:
    """Reads orders and writes reports; `progress` at most every REPORT_EVERY_S."""

    def __init__(self, orders_fd: int = 0, reports_fd: int = 1) -> None:
        self._orders_fd = orders_fd
        self._arrivals = select.poll()
        self._arrivals.register(orders_fd, select.POLLIN)
        self._reports_fd = reports_fd
        self._partial = b""
        self._orders: list[dict[str, Any]] = []
        self._next_progress_s = 0.0

    def order(self, wait_s: float) -> dict[str, Any] | None:
        """Return the next order, waiting up to `wait_s` seconds for one; None when none came."""
        wait_s = min(max(0.0, wait_s), WAIT_S_MAX)
        if not self._orders and self._arrivals.poll(wait_s * 1000):
            self._take(os.read(self._orders_fd, READ_BYTES))
        return self._orders.pop(0) if self._orders else None

    def _take(self, data: bytes) -> None:
        if not data:
            self._orders.append(STOP)
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._orders += [orjson.loads(line) for line in lines]

    def report(self, report: str, **fields: Any) -> None:
        """Write one report now."""
        os.write(self._reports_fd, orjson.dumps({"report": report, **fields}) + b"\n")

    def progress(self, **counts: int) -> None:
        """Report `counts`, unless the last report is too young."""
        now_s = time.monotonic()
        if now_s >= self._next_progress_s:
            self._next_progress_s = now_s + REPORT_EVERY_S
            self.report("progress", **counts)
