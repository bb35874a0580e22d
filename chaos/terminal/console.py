"""Where the commands print: one console on standard output.

What lives here: how wide it is. What must not: what is printed.
"""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console

# In a pipe or a file a row is a line, however long: `grep` and `awk` read it. rich would take 80
# columns there and break every cell. A table is as wide as its cells, so the bound is of those.
PIPE_COLUMNS: Final = 2_000


def stdout_console(soft_wrap: bool = False) -> Console:
    """Return a console as wide as the terminal, or as COLUMNS says, else as any row."""
    console = Console(soft_wrap=soft_wrap)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_COLUMNS
    return console
