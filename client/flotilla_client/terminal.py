"""The standard streams: colour for people on a terminal, and what to do about a broken one.

What lives here: when to use colour, the few styles there are, streams that are closed or can't be
written. What must not: what is printed.
"""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

BOLD: Final = "1"
RED: Final = "31"
GREEN: Final = "32"


# A closed stdout stays one that can't be written: what nobody gets must not pass for delivered.
_IN_PLACE: Final = (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))


class StreamError(Exception):
    """Standard input can't be read, or standard output not be written; the message says why."""


def open_closed_streams() -> None:
    """Put /dev/null in the place of standard streams that this process was started without.

    Otherwise the next file that is opened would take their number.
    """
    for name, flags in _IN_PLACE:
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


def drop_output() -> None:
    """Give what stdout still holds somewhere to go: Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def has_colour(stream: TextIO) -> bool:
    """Tell whether to colour what goes to `stream`; NO_COLOR: see https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str, stream: TextIO) -> str:
    """Return the text in a style, or as it is where `stream` shows none."""
    return f"\x1b[{style}m{text}\x1b[0m" if style and has_colour(stream) else text
