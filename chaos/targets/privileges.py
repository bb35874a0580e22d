"""What a process must be allowed to do before it may touch networks: root, and two capabilities.

What lives here: asking for both, and the words that say how to get them. What must not: the tools
that a target needs, or what it does with any of it.

Root in a container is root without most capabilities; `ip` would only say that an operation is not
permitted, half-way through.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from chaos.targets import TargetError

STATUS: Final = Path("/proc/self/status")
EFFECTIVE: Final = "CapEff:"  # hexadecimal, one bit a capability: proc(5)
NET_ADMIN, SYS_ADMIN = "NET_ADMIN", "SYS_ADMIN"
BITS: Final = {NET_ADMIN: 12, SYS_ADMIN: 21}  # of linux/capability.h


def check_networking(what: str, otherwise: str = "") -> None:
    """Raise TargetError if `what` cannot be done by this process, with what would let it.

    `otherwise`: what else there is for who has no root.
    """
    if os.geteuid() != 0:
        raise TargetError(f"{what} need root{otherwise}")
    if missing := lacking(STATUS.read_text(encoding="ascii")):
        names = " and ".join(f"CAP_{name}" for name in missing)
        raise TargetError(f"{what} need {names}, which root lacks here; {granting(missing)}")


def lacking(status: str) -> list[str]:
    """Return which of the capabilities are missing in a process's /proc/PID/status, by name."""
    lines = [line for line in status.splitlines() if line.startswith(EFFECTIVE)]
    assert len(lines) == 1, status
    has = int(lines[0].removeprefix(EFFECTIVE), 16)
    return [name for name, bit in BITS.items() if not has >> bit & 1]


def granting(missing: Iterable[str] = tuple(BITS)) -> str:
    """Return how a container is started with these capabilities, and with the use of them."""
    names = list(missing)
    options = [f"--cap-add {name}" for name in names]
    if SYS_ADMIN in names:  # docker's profile for AppArmor forbids to mount, capability or not
        options.append("--security-opt apparmor=unconfined")
    return f"in a container, start it with: docker run {' '.join(options)} …"
