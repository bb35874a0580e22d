"""A cluster of node processes on this machine, over loopback (cluster/local/local.py).

What lives here: what can be done to processes, their disks and clocks: the Target Protocol, and
most of its further powers. What must not: anything that LocalCluster knows already (ports, files,
processes), what happens on a disk (disks.py, shim/), and networks (namespaces.py).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from chaos.targets import (
    Compacts,
    Damages,
    Fills,
    LosesPower,
    Remains,
    StepsClocks,
    Syncs,
    TargetError,
    disks,
)
from chaos.targets.leftovers import RunLock, clear_processes, sweep
from chaos.targets.recovery import BACK_S_MAX, TargetRecovery
from chaos.targets.shim import CALM, COUNTS, Shim, check_compiler, compile_shim, undo
from cluster.local.errors import LocalError
from cluster.local.local import NODE_COMMAND, LocalCluster
from flotilla_client.keys import VARIABLE

DEATH_S_MAX: Final = 10.0  # a killed process may have to finish an fdatasync
DEATH_POLL_S: Final = 0.005  # a death is over in milliseconds
COMPACTION_S_MAX: Final = 30.0  # until the load has filled the few segments that a short log keeps

SHIMMED: Final = frozenset({Fills, LosesPower, StepsClocks, Syncs})
SHORT_LOGS: Final = frozenset({Compacts, Damages})
SHORT_LOG: Final = {"journal.segment_bytes": 65_536, "journal.keep_bytes": 65_536}  # the least


class LocalTarget:
    """`node_count` processes below `directory`, which must not hold a cluster yet.

    The cluster has keys, as a user's has. While it is up the clients' key stands where each client
    looks for it, in this process and in those that it starts: in the environment.
    `command`: what a node is started with, as LocalCluster has it.
    """

    name = "local"

    def __init__(
        self, directory: Path, node_count: int, command: Sequence[str] = NODE_COMMAND
    ) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, node_count + 1))
        self._directory = directory
        self._cluster = LocalCluster(directory, command, self._prefix)
        self._claim = RunLock(self.name, directory)
        self._settings: dict[str, Any] = {}
        self._compile = False
        self._shims: dict[str, Shim] = {}
        self._recovery = TargetRecovery(self.nodes, self._statuses, lambda: self._cluster.tails())
        self._running: set[str] = set()  # started, and since then ended by no fault
        self._damaged: set[str] = set()
        self._ends: list[str] = []

    def equip(self, needs: Collection[type]) -> None:
        """Have the shim if one of these powers needs it, and short logs if one does."""
        self._compile = not SHIMMED.isdisjoint(needs)
        if self._compile:
            check_compiler()  # now: without one the run must not begin
        self._settings = dict(SHORT_LOG) if not SHORT_LOGS.isdisjoint(needs) else {}

    def up(self) -> None:
        """Create a fresh cluster and start every node; clear away what dead runs left."""
        sweep()
        self._claim.take()
        with _as_target_error():
            self._create()
            assert tuple(self._cluster.endpoints()) == self.nodes, self._cluster.endpoints()
            os.environ[VARIABLE] = str(self._cluster.key)
            if self._compile:
                library = compile_shim(self._directory)
                self._shims = {node: Shim(library, self._data(node)) for node in self.nodes}
            self.start(list(self.nodes))
            self._cluster.wait_for_leader()  # fails early, and shows the logs
            self._cluster.begin_at_newest_level()  # as a user's

    def _create(self) -> None:
        self._cluster.create(nodes=len(self.nodes), settings=self._settings, keys=True)

    def _prefix(self, node: str) -> Sequence[str]:
        return self._shims[node].words() if node in self._shims else ()

    def _data(self, node: str) -> Path:
        return Path(self._cluster.node(node).data_dir)

    def endpoints(self) -> dict[str, str]:
        """Return where clients reach each node."""
        with _as_target_error():
            return self._cluster.endpoints()

    def _statuses(self) -> dict[str, dict[str, Any]]:
        with _as_target_error():
            return self._cluster.statuses()

    def leader(self) -> str | None:
        """Return the node that says it leads, in the highest term; None while there is none."""
        with _as_target_error():
            return self._cluster.leader()

    def remains(self, directory: Path) -> dict[str, Remains]:
        """Return where the data and the log of each node are."""
        with _as_target_error():
            return {
                node: Remains(self._data(node), self._cluster.log_file(node)) for node in self.nodes
            }

    # --- processes --------------------------------------------------------------------------------

    def ended(self) -> list[str]:
        """Return the nodes that ended though no fault may have ended them, each end once."""
        self._note_ends()
        ends, self._ends = self._ends, []
        return ends

    def _note_ends(self) -> None:
        # Before any process is started or ended here: afterwards nobody could tell whose end it is.
        with _as_target_error():
            gone = self._running - self._cluster.pids().keys() if self._running else set()
        self._running -= gone
        self._ends += [
            f"{node} ended by itself ({_manner(self._cluster.exit_codes.get(node))})"
            for node in sorted(gone)
            if not self._may_end(node)
        ]

    def _may_end(self, node: str) -> bool:
        """Whether a fault explains that this node ends: what is, or was, wrong with its disk."""
        if node in self._damaged or node not in self._shims:
            return node in self._damaged
        ordered = self._shims[node].ordered
        is_full = ordered("space_bytes") != CALM["space_bytes"]
        # Of a write that was refused it may die when there is room again.
        return is_full or bool(ordered("sync_fails") or ordered("writes_refused"))

    def _expect_ends(self, nodes: Collection[str]) -> None:
        self._note_ends()
        self._running.difference_update(nodes)

    def kill(self, nodes: list[str]) -> None:
        """SIGKILL these nodes, first all of them, then see that they are gone."""
        self._expect_ends(nodes)
        with _as_target_error():
            doomed = {node: pid for node, pid in self._cluster.pids().items() if node in nodes}
            for pid in doomed.values():
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)
            self._await_deaths(doomed)

    def _await_deaths(self, doomed: Collection[str]) -> None:
        if alive := self._survivors(doomed):
            raise TargetError(f"{sorted(alive)} still run {DEATH_S_MAX:g} s after SIGKILL")

    def _survivors(self, doomed: Collection[str]) -> set[str]:
        deadline_s = time.monotonic() + DEATH_S_MAX
        while alive := set(doomed) & self._cluster.pids().keys():
            if time.monotonic() >= deadline_s:
                return alive
            time.sleep(DEATH_POLL_S)
        return set()

    def start(self, nodes: list[str]) -> None:
        """Start those of the nodes that do not run."""
        self._note_ends()
        with _as_target_error():
            for node in [node for node in nodes if node not in self._cluster.pids()]:
                if node in self._shims:
                    self._shims[node].order(**COUNTS)  # they are of one process
                self._cluster.start(node)
        self._running.update(nodes)

    def stop(self, nodes: list[str]) -> None:
        """End those of the nodes that run in order (SIGTERM), one after the other."""
        self._expect_ends(nodes)
        with _as_target_error():
            for node in [node for node in nodes if node in self._cluster.pids()]:
                self._cluster.kill(node, "TERM")

    def pause(self, nodes: list[str]) -> None:
        """SIGSTOP those of the nodes that run."""
        self._signal(nodes, "STOP")

    def resume(self, nodes: list[str]) -> None:
        """SIGCONT those of the nodes that run."""
        self._signal(nodes, "CONT")

    def _signal(self, nodes: list[str], name: str) -> None:
        with _as_target_error():
            for node in [node for node in nodes if node in self._cluster.pids()]:
                self._cluster.kill(node, name)

    def roll(self, nodes: list[str]) -> None:
        """Stop and start these nodes, each when the one before is a member that keeps up."""
        for node in nodes:
            self.stop([node])
            self.start([node])
            self._recovery.await_back(node)

    # --- disks that lose what they had ------------------------------------------------------------

    def await_whole(self) -> None:
        """Return when every node that lost its disk is a member again."""
        self._recovery.await_whole()

    def wipe(self, nodes: list[str]) -> None:
        """Kill these nodes, remove their data. Raises TargetError for more than a minority."""
        self._recovery.lose(nodes)
        for node in nodes:
            self._empty(node)

    def _empty(self, node: str) -> None:
        self._expect_ends([node])
        with _as_target_error():
            self._cluster.wipe(node)
        self._damaged.discard(node)
        if node in self._shims:
            self._shims[node].forget()

    def flip_bit(self, node: str, rng: random.Random) -> None:
        """Kill the node and flip a durable bit of its journal."""
        with self._recovery.losing([node]):
            self.kill([node])
            disks.flip_bit(self._data(node), rng)
        self._damaged.add(node)

    def truncate(self, node: str, rng: random.Random) -> None:
        """Wait until the node's journal has two files; kill it and cut off the first one's end."""
        data = self._data(node)
        self._recovery.wait(
            lambda: len(disks.journal_files(data)) > 1, f"a second file in {data}", COMPACTION_S_MAX
        )
        with self._recovery.losing([node]):
            self.kill([node])
            disks.truncate(data, rng)
        self._damaged.add(node)

    def rebuild(self, nodes: list[str]) -> None:
        """Start these nodes; wipe who refuses its disk, and start it again."""
        self.start(nodes)
        for node in [node for node in nodes if node in self._recovery.unsound]:
            self._recovery.wait(partial(self._has_decided, node), f"{node}'s start", BACK_S_MAX)
            if node in self._cluster.pids():
                raise TargetError(f"{node} goes on with a damaged disk as if nothing was wrong")
            self._empty(node)
            self.start([node])

    def _has_decided(self, node: str) -> bool:
        return node not in self._cluster.pids() or node in self._statuses()

    def await_compaction(self, nodes: list[str]) -> None:
        """Return when all living nodes' logs begin behind the last entry of these dead ones."""
        have = min(disks.last_index(self._data(node)) for node in nodes)
        self._recovery.wait(
            lambda: self._begin_behind(have), f"logs compacted past {have}", COMPACTION_S_MAX
        )

    def _begin_behind(self, index: int) -> bool:
        firsts = [body.get("first_index", 0) for body in self._statuses().values()]
        return bool(firsts) and min(firsts) > index + 1

    # --- the shim ---------------------------------------------------------------------------------

    def lose_power(self, nodes: list[str], rng: random.Random) -> None:
        """Kill these nodes and undo what they had not synced, or any part of it."""
        self.kill(nodes)
        for node in nodes:
            keeps = rng.choice(undo.KEEPS)
            self._shims[node].lose_power(undo.UnsyncedRemainder(keeps, rng))

    def fill(self, nodes: list[str], free_bytes: int) -> None:
        """Let the files of these nodes grow by so much, and no more."""
        self._order(nodes, space_bytes=free_bytes)

    def free(self, nodes: list[str]) -> None:
        """Let them grow as they like."""
        self._order(nodes, space_bytes=CALM["space_bytes"])

    def slow_syncs(self, nodes: list[str], ms: int) -> None:
        """Let each fsync take so much longer."""
        self._order(nodes, sync_ms=ms)

    def fail_syncs(self, nodes: list[str]) -> None:
        """Let each fsync report EIO."""
        self._order(nodes, sync_fails=1)

    def mend_syncs(self, nodes: list[str]) -> None:
        """Let fsync work again. After EIO the kernel drops what was not synced: so is it here.

        Raises TargetError, when all is mended, if a node went on whose journal was not synced.
        """
        failing = [node for node in nodes if self._shims[node].ordered("sync_fails")]
        self._expect_ends(failing)
        deaf = self._deaf(failing)
        self._order(nodes, sync_ms=0, sync_fails=0)
        self.kill(failing)
        for node in failing:
            self._shims[node].lose_power(undo.LOST)
        if deaf:
            raise TargetError(f"{sorted(deaf)} went on when an fsync of the journal had failed")

    def _deaf(self, failing: list[str]) -> set[str]:
        # Who had nothing to sync has met no error, and may live. Who met a second one had gone on
        # after the first, whatever it died of: a node syncs its journal from one thread.
        told = [node for node in failing if self._failed_syncs(node)]
        with _as_target_error():
            for node, pid in self._cluster.pids().items():
                if node in told:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)  # it may have been paused on its way out
            survivors = self._survivors(told)
        return survivors | {node for node in failing if self._failed_syncs(node) > 1}

    def _failed_syncs(self, node: str) -> int:
        return self._shims[node].ordered("log_syncs_failed")

    def step_clocks(self, nodes: list[str], seconds: float) -> None:
        """Set the wall clocks of these nodes so far off the machine's."""
        self._order(nodes, clock_ns=round(seconds * 1e9))

    def _order(self, nodes: list[str], **fields: int) -> None:
        for node in nodes:
            self._shims[node].order(**fields)

    # --- the end ----------------------------------------------------------------------------------

    def down(self) -> None:
        """Heal the disks, wake and stop every node, even those whose directory was removed."""
        self._running.clear()
        try:
            for shim in self._shims.values():
                with suppress(FileNotFoundError):  # a disk that is gone needs no healing
                    shim.order(**CALM)
        finally:
            self._take_down()
        self._claim.release()  # last: until here there is something to clear away

    def _take_down(self) -> None:
        try:
            with _as_target_error():
                self._cluster.down()
        finally:  # a cluster knows its nodes from its directory alone
            clear_processes(self._cluster.directory, "")
            if os.environ.get(VARIABLE) == str(self._cluster.key):
                del os.environ[VARIABLE]


def _manner(exit_code: int | None) -> str:
    if exit_code is None:
        return "exit code unknown"
    return f"exit code {exit_code}" if exit_code >= 0 else signal.Signals(-exit_code).name


@contextmanager
def _as_target_error() -> Iterator[None]:
    try:
        yield
    except LocalError as error:
        raise TargetError(f"local: {error}") from error
