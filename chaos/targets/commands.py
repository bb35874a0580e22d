"""Programs that targets run and wait for (`ip`, `iptables-restore`, `docker`).

What lives here: one call of one, within a bound, whose every failure is a TargetError. What must
not: which programs there are, what they are told, and processes that outlive a call.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final

from chaos.targets import TargetError

COMMAND_S_MAX: Final = 30.0  # iptables waits for its lock
ERROR_CHARACTERS_MAX: Final = 2_000


def output(command: Sequence[str], text: str = "", seconds_max: float = COMMAND_S_MAX) -> str:
    """Run a command with `text` as its stdin; return its stdout.

    Raises TargetError, with stderr and `text`, if it fails, is missing or takes too long.
    """
    words = " ".join(command)
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",  # what a program prints need not be text
            timeout=seconds_max,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        tail = error.stderr[-ERROR_CHARACTERS_MAX:].strip()
        raise TargetError(f"{words}: exit {error.returncode}: {tail}\n{text}".strip()) from None
    except (subprocess.TimeoutExpired, OSError) as error:
        raise TargetError(f"{words}: {error}") from None
    return done.stdout
