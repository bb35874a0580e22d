"""What processes that we start get from this one. What must not: who they are."""

from __future__ import annotations

import os
import sys


def child_environment() -> dict[str, str]:
    """Return the environment in which a child finds the same packages as this process."""
    packages = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**os.environ, "PYTHONPATH": packages}
