"""Where a benchmark plays: a local cluster, an echo, load processes, and somebody watching.

What lives here: processes, from start to certain end. What must not: what they do (loads.py).
Loads run in processes of their own, so that neither the screen nor another load takes their time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from chaos.bench import wire
from chaos.bench.figures import BenchError
from chaos.terminal.progress import Display
from cluster.local.local import LocalCluster
from flotilla_client import FlotillaError
from flotilla_client.keys import VARIABLE
from flotilla_client.protocol import STATUS, Request

NODES: Final = 3
TICK_S: Final = 0.2
LOAD_S_MAX: Final = 120.0  # no load is meant to take half of it
READY_S_MAX: Final = 30.0  # a node starts in well under a second on an idle machine
STATUS_INTERVAL_S: Final = 0.002
DOWN_PATIENCE_S: Final = 2.0  # the measuring is over and the data will be removed

T = TypeVar("T")
SPAWN: Final = multiprocessing.get_context("spawn")  # a fork would share sockets and threads


class Load(Generic[T]):
    """A process that runs `function(report, *arguments)`; what it reports is taken by `result`."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self._name = function.__name__
        self._reports, theirs = SPAWN.Pipe(duplex=False)
        self._process = SPAWN.Process(
            target=_run, args=(theirs, function, arguments), daemon=True, name=self._name
        )
        self._process.start()
        theirs.close()  # or its death would not be seen

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None, self._name
        return self._process.pid

    def result(self, shown: Display, seconds_max: float = LOAD_S_MAX) -> T:
        """Return the next report. Raises BenchError for a load that failed or takes too long."""
        deadline = time.monotonic() + seconds_max
        while not self._reports.poll(TICK_S):
            shown.tick("")
            if time.monotonic() > deadline:
                raise BenchError(f"{self._name} reports nothing for {seconds_max:g} s")
        try:
            reported = self._reports.recv()
        except EOFError:
            raise BenchError(f"{self._name} failed; its traceback stands above") from None
        if isinstance(reported, BenchError):
            raise reported
        result: T = reported
        return result

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self._reports.close()


def _run(reports: Connection, function: Callable[..., None], arguments: Sequence[Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the parent, which kills us
    try:
        function(reports.send, *arguments)
    except BenchError as error:
        reports.send(error)
    except FlotillaError as error:
        reports.send(BenchError(f"{function.__name__}: {error}"))


class BenchStage:
    """A running cluster and an echo below `directory`; all that was started ends with it.

    With `keys` the loads have the cluster's key from their environment, as this process then has
    until the end. `settings`: of every node.
    """

    def __init__(
        self,
        directory: Path,
        shown: Display,
        keys: bool,
        nodes: int = NODES,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory, self.shown, self._keys = directory, shown, keys
        self._nodes, self._settings = nodes, settings
        self._key_before = os.environ.get(VARIABLE)
        directory.mkdir(parents=True, exist_ok=True)
        self.cluster = LocalCluster(directory / "cluster")
        self._loads: list[Load[Any]] = []

    def __enter__(self) -> Self:
        try:
            self.cluster.directory.mkdir()
            self.cluster.create(self._nodes, settings=self._settings, keys=self._keys)
            if self.cluster.key is not None:
                os.environ[VARIABLE] = str(self.cluster.key)
            self.cluster.start_all()
            self.cluster.wait_for_leader()
            self.cluster.begin_at_newest_level()  # as `flotilla-cluster up` does
            self.echo_process: Load[str] = self.start(wire.serve_echo)
            self.echo = self.echo_process.result(self.shown)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for load in self._loads:
            load.end()
        os.environ.pop(VARIABLE, None)
        if self._key_before is not None:
            os.environ[VARIABLE] = self._key_before
        if self.cluster.exists():
            self.cluster.down(DOWN_PATIENCE_S)

    def start(self, function: Callable[..., None], *arguments: Any) -> Load[Any]:
        """Start a load that ends with the stage at the latest."""
        load: Load[Any] = Load(function, *arguments)
        self._loads.append(load)
        return load

    def another(
        self, name: str, nodes: int = NODES, settings: Mapping[str, Any] | None = None
    ) -> BenchStage:
        """Return the stage of another cluster below this one's directory, with keys as it has."""
        return BenchStage(self.directory / name, self.shown, self._keys, nodes, settings)

    def call(
        self, function: Callable[..., None], *arguments: Any, seconds_max: float = LOAD_S_MAX
    ) -> Any:
        """Run a load and return what it reports."""
        load = self.start(function, *arguments)
        result = load.result(self.shown, seconds_max)
        self.end(load)
        return result

    def end(self, load: Load[Any]) -> None:
        """End a load now."""
        load.end()
        self._loads.remove(load)

    # --- the cluster ----------------------------------------------------------------------------

    def leader(self) -> tuple[str, str]:
        """Return the leader's name and endpoint."""
        name = self.cluster.wait_for_leader()
        return name, self.cluster.endpoints()[name]

    def endpoints(self) -> list[str]:
        """Return every node's endpoint."""
        return list(self.cluster.endpoints().values())

    def term(self) -> int:
        """Return the term of the cluster's leader."""
        return int(self.cluster.statuses()[self.leader()[0]]["term"])

    def resident_mib(self) -> dict[str, float]:
        """Return the resident memory of each node."""
        return {name: resident_mib(pid) for name, pid in self.cluster.pids().items()}

    def kill(self, name: str) -> None:
        """SIGKILL the node; return when it is gone."""
        self.cluster.kill(name)

    def await_ready(self, name: str) -> None:
        """Return as soon as the node `name` follows or leads and has applied all there is now."""
        endpoints = self.cluster.endpoints()
        target = max(self._applied(endpoint) for endpoint in endpoints.values())
        deadline = time.monotonic() + READY_S_MAX
        while self._applied(endpoints[name]) < target:
            if time.monotonic() > deadline:
                raise BenchError(f"{name} is not ready after {READY_S_MAX:g} s")
            time.sleep(STATUS_INTERVAL_S)

    @staticmethod
    def _applied(endpoint: str) -> int:
        """Return the applied index of a node that knows a leader, else -1."""
        caller = wire.RequestSocket(endpoint)
        try:
            body = caller.ask(Request(STATUS, "status")).body
        finally:
            caller.close()
        return int(body["applied_index"]) if body["leader"] else -1


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in user and kernel mode."""
    # The scheduler's own count, in nanoseconds: `stat` has hundredths of a second. Of each thread.
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
