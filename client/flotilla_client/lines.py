"""Lines of standard input, waited for with a bound: Python's own reader waits for ever.

What lives here: reading and splitting. What must not: what becomes of a line (cli.py).
"""

from __future__ import annotations

import os
import select
from collections import deque
from typing import Final

from flotilla_client.protocol import PUBLICATION_BYTES_MAX
from flotilla_client.terminal import StreamError

READ_BYTES: Final = 256 * 1024


class Lines:
    """The lines of a descriptor, each without its end.

    A line that is longer than any publication comes in pieces, the first of which is too long: it
    is refused, and memory stays bounded where an input has no ends of lines at all.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ready: deque[bytes] = deque()
        self._rest = b""
        self._is_over = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def next(self, wait_s: float | None = None) -> bytes | None:
        """Return the next line; None at the end, or if there was none for `wait_s`.

        Raises StreamError.
        """
        while not self._ready and not self._is_over:
            if not self._poll.poll(None if wait_s is None else wait_s * 1000):
                return None
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except OSError as error:
                raise StreamError(f"the input cannot be read: {error.strerror}") from error
            self._take(data)
        return self._ready.popleft() if self._ready else None

    def put_back(self, line: bytes) -> None:
        """Let it be the next one again."""
        self._ready.appendleft(line)

    def have_ended(self) -> bool:
        """Tell if the end of the input has come and no line is left."""
        return self._is_over and not self._ready

    def _take(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._ready.extend(whole)
        self._is_over = not data
        if (self._is_over and self._rest) or len(self._rest) > PUBLICATION_BYTES_MAX:
            self._ready.append(self._rest)
            self._rest = b""
