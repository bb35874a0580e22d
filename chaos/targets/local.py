"""A cluster of node processes on this machine, over loopback (cluster/local.py).

What lives here: the Target Protocol on top of LocalCluster. What must not: anything that
LocalCluster knows already: ports, files, processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chaos.targets import TargetError
from cluster.local import LocalCluster, LocalError

DEATH_S_MAX: Final = 10.0  # a killed process may have to finish an fdatasync
DEATH_POLL_S: Final = 0.005  # a death is over in milliseconds


class LocalTarget:
    """`node_count` processes below `directory`, which must not hold a cluster yet."""

    name = "local"

    def __init__(self, directory: Path, node_count: int) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, node_count + 1))
        self._cluster = LocalCluster(directory)

    def up(self) -> None:
        """Create a fresh cluster and start every node."""
        with _as_target_error():
            self._cluster.create(nodes=len(self.nodes))
            assert tuple(self._cluster.endpoints()) == self.nodes, self._cluster.endpoints()
            self._cluster.start_all()
            self._cluster.wait_for_leader()  # fails early, and shows the logs

    def endpoints(self) -> dict[str, str]:
        """Return where clients reach each node."""
        with _as_target_error():
            return self._cluster.endpoints()

    def leader(self) -> str | None:
        """Return the node that says it leads, in the highest term; None while there is none."""
        with _as_target_error():
            return self._cluster.leader()

    def kill(self, nodes: list[str]) -> None:
        """SIGKILL these nodes, first all of them, then see that they are gone."""
        with _as_target_error():
            doomed = {node: pid for node, pid in self._cluster.pids().items() if node in nodes}
            for pid in doomed.values():
                os.kill(pid, signal.SIGKILL)
            self._await_deaths(doomed)

    def _await_deaths(self, doomed: dict[str, int]) -> None:
        deadline_s = time.monotonic() + DEATH_S_MAX
        while alive := doomed.keys() & self._cluster.pids().keys():
            if time.monotonic() >= deadline_s:
                raise TargetError(f"{sorted(alive)} still run {DEATH_S_MAX:g} s after SIGKILL")
            time.sleep(DEATH_POLL_S)

    def start(self, nodes: list[str]) -> None:
        """Start those of the nodes that do not run."""
        with _as_target_error():
            for node in [node for node in nodes if node not in self._cluster.pids()]:
                self._cluster.start(node)

    def down(self) -> None:
        """Stop every node."""
        with _as_target_error():
            self._cluster.down()


@contextmanager
def _as_target_error() -> Iterator[None]:
    try:
        yield
    except LocalError as error:
        raise TargetError(f"local: {error}") from error
