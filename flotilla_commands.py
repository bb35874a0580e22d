"""The commands of an installed broker: where its packages are, and which extra each command needs.

What lives here: entry points. What must not: what the commands do.

A wheel has `cluster`, `chaos` and `analytics` in one folder, `flotilla_broker`, that nobody else's
programs have on their path: packages of these names exist on the index. These commands put it on
theirs, and on that of the processes that they start. In a checkout there is no such folder.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).with_name("flotilla_broker")


def node() -> Any:
    """`flotilla-node`."""
    return _run("flotilla-node", "cluster.node.node", "cluster")


def local() -> Any:
    """`flotilla-cluster`."""
    return _run("flotilla-cluster", "cluster.local.cli", "cluster")


def chaos() -> Any:
    """`flotilla-chaos`."""
    return _run("flotilla-chaos", "chaos.cli", "chaos")


def check() -> Any:
    """`flotilla-check`."""
    return _run("flotilla-check", "analytics.cli", "analytics")


def keys() -> Any:
    """`flotilla-keys`."""
    return _run("flotilla-keys", "cluster.keys.cli", "cluster")


def simulate() -> Any:
    """`flotilla-simulate`."""
    return _run("flotilla-simulate", "chaos.simulation.cli", "cluster")


def _run(command: str, module: str, extra: str) -> Any:
    if FOLDER.is_dir():
        sys.path.insert(0, str(FOLDER))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{FOLDER}{os.pathsep}{before}" if before else str(FOLDER)
    return import_module("cluster.extras").run(command, module, extra)
