"""The client processes of a run, seen from the runner.

What lives here: starting them, giving orders, taking reports, ending them within bounds, killing
and doubling them when an experiment says so. What must not: phases and when faults come
(runner.py), and what a client does about an order (workloads/).
"""

from __future__ import annotations

import os
import selectors
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from chaos.workloads import ClientConfig
from chaos.workloads.children import child_environment
from flotilla_client.directory import DATABASE_NAME

READ_BYTES: Final = 65_536
STOP_DEADLINES: Final = 2  # the operation that a client may be waiting in, and its outbox's flush
STOP_MARGIN_S: Final = 5.0
KILLED_S_MAX: Final = 5.0  # SIGKILL takes effect at once unless the machine is very busy
LOG_TAIL_CHARACTERS: Final = 2_000
COUNTS: Final = ("acknowledged", "delivered", "unknown", "failed")


class ClientPoolError(Exception):
    """A client process ended by itself or does not follow an order."""


@dataclass
class PooledClient:
    """One client, with the process that it is now. `facts`: the newest value of each report.

    `doomed`: its process may end at any time, and is started again. `replaced`: another process
    has taken up the client; this one has to notice. `counts`: of the processes before.
    """

    config: ClientConfig
    process: subprocess.Popen[bytes]
    facts: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    partial: bytes = b""
    dismissed: bool = False
    doomed: bool = False
    replaced: bool = False

    @property
    def name(self) -> str:
        """The name of the process, in the history as well."""
        return self.config.process

    @property
    def log(self) -> Path:
        """The file that the process's stderr goes to."""
        return log_path(self.config)

    @property
    def exit_codes(self) -> set[int]:
        """How its process may end now: a crash of the library's is none of them."""
        is_fenced = self.replaced and "fenced" in self.facts
        codes = {0} if self.dismissed or is_fenced else set()
        return codes | {-signal.SIGKILL} if self.doomed else codes

    @property
    def lives(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None


def log_path(config: ClientConfig) -> Path:
    """Return where a client process's stderr goes."""
    return config.state.parent / f"{config.process}.log"


class ClientPool:
    """The client processes of a run: those that publish and those that read."""

    def __init__(self) -> None:
        self._members: list[PooledClient] = []
        self._selector = selectors.DefaultSelector()
        self._standing: list[dict[str, Any]] = []  # what a process that starts late has to hear

    # --- reports --------------------------------------------------------------------------------

    def start(self, configs: Iterable[ClientConfig]) -> None:
        """Start one process for each of `configs`."""
        for config in configs:
            self._enlist(PooledClient(config, _spawn(config)))

    def _enlist(self, member: PooledClient) -> None:
        self._members.append(member)
        self._hear(member)

    def _hear(self, member: PooledClient) -> None:
        assert member.process.stdout is not None
        self._selector.register(member.process.stdout, selectors.EVENT_READ, member)

    def poll(self, wait_s: float) -> None:
        """Take reports for `wait_s` seconds. Raises ClientPoolError when one ended by itself."""
        deadline_s = time.monotonic() + wait_s
        while True:
            left_s = deadline_s - time.monotonic()
            for key, _ in self._selector.select(max(0.0, left_s)):
                self._read(key.data)
            if left_s <= 0:
                return
            if not self._selector.get_map():
                time.sleep(left_s)

    def _read(self, member: PooledClient) -> None:
        assert member.process.stdout is not None
        data = os.read(member.process.stdout.fileno(), READ_BYTES)
        if not data:
            self._gone(member)
            return
        *lines, member.partial = (member.partial + data).split(b"\n")
        for line in lines:
            report = orjson.loads(line)
            member.facts[report.pop("report")] = True
            member.facts.update(report)

    def _gone(self, member: PooledClient) -> None:
        assert member.process.stdout is not None
        self._selector.unregister(member.process.stdout)
        member.process.stdout.close()
        code = member.process.wait(KILLED_S_MAX)
        if code not in member.exit_codes:
            tail = member.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
            raise ClientPoolError(f"{member.name} ended with {code}; {member.log}:\n{tail}")

    def lacking(self, report: str, role: str = "") -> list[str]:
        """Return the names of the processes (of `role`) that have not made this report."""
        members = (m for m in self._of(role) if not m.replaced)
        return [member.name for member in members if report not in member.facts]

    def reporting(self, report: str) -> list[str]:
        """Return the names of the processes that have made this report."""
        return [m.name for m in self._members if report in m.facts and not m.replaced]

    def count(self, name: str) -> int:
        """Return the sum of a reported count over all processes."""
        return sum(m.facts.get(name, 0) + m.counts.get(name, 0) for m in self._members)

    # --- orders ---------------------------------------------------------------------------------

    def order(self, order: str, role: str = "", **fields: Any) -> None:
        """Give an order to every process (of `role`) that has not ended."""
        given = {"order": order, **fields}
        if order == "phase":
            self._standing = [given]
        for member in self._of(role):
            _tell(member, given)

    def dismiss(self, role: str = "") -> list[str]:
        """Order processes (of `role`) to stop; return the names of those that had to be killed."""
        members = self._of(role)
        for member in members:
            member.dismissed = True
        self.order("stop", role)
        longest_ms = max((member.config.deadline_ms for member in members), default=0)
        wait_s = STOP_DEADLINES * longest_ms / 1000 + STOP_MARGIN_S
        deadline_s = time.monotonic() + wait_s
        while time.monotonic() < deadline_s and any(_is_to_be_heard(m) for m in members):
            self.poll(0.05)
        return [member.name for member in members if _ended_by_force(member)]

    def close(self) -> None:
        """Kill whatever still runs. For the end of a run, whatever its reason."""
        for member in self._members:
            member.dismissed = True
            _ended_by_force(member)
            assert member.process.stdout is not None
            member.process.stdout.close()
        self._selector.close()

    # --- what is done to clients ----------------------------------------------------------------

    def clients(self) -> list[str]:
        """Return the names of the processes that are a client now."""
        return [m.name for m in self._members if not (m.replaced or m.dismissed)]

    def doom(self, name: str, point: str, passes: int) -> None:
        """Have a process die at a point of workloads/recording.py, after so many passes of it."""
        member = self._member(name)
        member.doomed = True
        _tell(member, {"order": "crash", "point": point, "passes": passes})

    def restart(self, name: str) -> None:
        """Start the client again from its state; a process that is still alive is killed first."""
        member = self._member(name)
        if member.lives:
            member.process.kill()
        member.process.wait(KILLED_S_MAX)
        assert member.process.stdin is not None
        member.process.stdin.close()
        assert member.process.stdout is not None
        while not member.process.stdout.closed:
            self._read(member)  # what it had still reported
        member.counts = {
            name: member.counts.get(name, 0) + member.facts.get(name, 0) for name in COUNTS
        }
        member.facts, member.partial, member.doomed = {}, b"", False
        member.process = _spawn(member.config)
        self._hear(member)
        self._brief(member)

    def double(self, name: str) -> str:
        """Let another process take up the client, from a copy of its state; return its name."""
        member = self._member(name)
        twins = sum(m.name.startswith(f"{name}-twin") for m in self._members)
        config = replace(member.config, process=f"{name}-twin{twins + 1}")
        config.state.mkdir(parents=True)
        _copy_state(member.config.state, config.state)
        member.replaced = True
        twin = PooledClient(config, _spawn(config))
        self._enlist(twin)
        self._brief(twin)
        return config.process

    def unfenced(self) -> list[str]:
        """Return the processes that were replaced and have not noticed."""
        return [member.name for member in self._members if member.replaced and member.lives]

    def _brief(self, member: PooledClient) -> None:
        for order in self._standing:
            _tell(member, order)

    def _member(self, name: str) -> PooledClient:
        [member] = [member for member in self._members if member.name == name]
        return member

    def _of(self, role: str) -> list[PooledClient]:
        return [member for member in self._members if _is_of(member.config, role)]


def _is_of(config: ClientConfig, role: str) -> bool:
    roles = {
        "": True,
        "publisher": config.parameters.publishes,
        "subscriber": config.parameters.reads,
    }
    return roles[role]


def _tell(member: PooledClient, order: dict[str, Any]) -> None:
    if member.lives:
        assert member.process.stdin is not None
        with suppress(BrokenPipeError):  # it has just ended: poll says so, with its log
            member.process.stdin.write(orjson.dumps(order) + b"\n")


def _copy_state(source: Path, target: Path) -> None:
    """Copy a client's state while its process goes on, as of one moment."""
    with (
        closing(sqlite3.connect(source / DATABASE_NAME)) as original,
        closing(sqlite3.connect(target / DATABASE_NAME)) as copy,
    ):
        original.backup(copy)


def _spawn(config: ClientConfig) -> subprocess.Popen[bytes]:
    config.state.mkdir(parents=True, exist_ok=True)
    with log_path(config).open("ab") as log:
        return subprocess.Popen(
            client_command(config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,  # an order is one write, and leaves at once
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is the runner's: it stops its clients in order
        )


def client_command(config: ClientConfig) -> list[str]:
    """Return the command of one client process."""
    return [sys.executable, "-m", f"chaos.workloads.{config.kind}", config.encode()]


def _is_to_be_heard(member: PooledClient) -> bool:
    """Return whether it lives, or has left last words, or an exit code, that nobody has taken."""
    assert member.process.stdout is not None
    return member.lives or not member.process.stdout.closed


def _ended_by_force(member: PooledClient) -> bool:
    forced = member.lives
    if forced:
        member.process.kill()
        member.process.wait(KILLED_S_MAX)
    if member.process.stdin is not None:
        member.process.stdin.close()
    return forced
