"""Colour for people: on a terminal, and nowhere else.

What lives here: when to use it, and the few styles there are. What must not: what is printed.
"""

from __future__ import annotations

import os
from typing import Final, TextIO

BOLD: Final = "1"
RED: Final = "31"
GREEN: Final = "32"


def has_colour(stream: TextIO) -> bool:
    """Tell whether to colour what goes to `stream`; NO_COLOR: see https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str, stream: TextIO) -> str:
    """Return the text in a style, or as it is where `stream` shows none."""
    return f"\x1b[{style}m{text}\x1b[0m" if style and has_colour(stream) else text
