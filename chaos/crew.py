"""The client processes of a run, seen from the runner.

What lives here: starting them, giving orders, taking reports, ending them within bounds. What must
not: phases and faults (runner.py), and what a client does about an order (workloads/).
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from chaos.workloads import ClientConfig

READ_BYTES: Final = 65_536
STOP_DEADLINES: Final = 2  # the operation that a client may be waiting in, and its outbox's flush
STOP_MARGIN_S: Final = 5.0
KILLED_S_MAX: Final = 5.0  # SIGKILL takes effect at once unless the machine is very busy
LOG_TAIL_CHARACTERS: Final = 2_000


class CrewError(Exception):
    """A client process ended by itself or does not follow an order."""


@dataclass
class Member:
    """One client process. `facts` holds the newest value of each field that it reported."""

    role: str
    config: ClientConfig
    process: subprocess.Popen[bytes]
    facts: dict[str, Any] = field(default_factory=dict)
    partial: bytes = b""
    dismissed: bool = False

    @property
    def log(self) -> Path:
        """The file that the process's stderr goes to."""
        return log_path(self.config)


def log_path(config: ClientConfig) -> Path:
    """Return where a client process's stderr goes."""
    return config.state.parent / f"{config.process}.log"


class Crew:
    """The client processes of a run: `publisher`s and `subscriber`s."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._selector = selectors.DefaultSelector()

    def start(self, role: str, configs: Iterable[ClientConfig]) -> None:
        """Start one process of `chaos.workloads.<role>` for each of `configs`."""
        for config in configs:
            member = Member(role, config, _spawn(role, config))
            assert member.process.stdout is not None
            self._members.append(member)
            self._selector.register(member.process.stdout, selectors.EVENT_READ, member)

    def poll(self, wait_s: float) -> None:
        """Take reports for `wait_s` seconds. Raises CrewError when one has ended by itself."""
        deadline_s = time.monotonic() + wait_s
        while True:
            left_s = deadline_s - time.monotonic()
            for key, _ in self._selector.select(max(0.0, left_s)):
                self._read(key.data)
            if left_s <= 0:
                return
            if not self._selector.get_map():
                time.sleep(left_s)

    def _read(self, member: Member) -> None:
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

    def _gone(self, member: Member) -> None:
        assert member.process.stdout is not None
        self._selector.unregister(member.process.stdout)
        member.process.stdout.close()
        if not member.dismissed:
            code = member.process.wait(KILLED_S_MAX)
            tail = member.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
            raise CrewError(f"{member.config.process} ended with {code}; {member.log}:\n{tail}")

    def all_have(self, report: str, role: str = "") -> bool:
        """Whether every process (of `role`) has made this report."""
        return all(report in member.facts for member in self._of(role))

    def lacking(self, report: str, role: str = "") -> list[str]:
        """Return the names of the processes (of `role`) that have not made this report."""
        return [member.config.process for member in self._of(role) if report not in member.facts]

    def count(self, name: str) -> int:
        """Return the sum of a reported count over all processes."""
        return sum(member.facts.get(name, 0) for member in self._members)

    def order(self, order: str, role: str = "", **fields: Any) -> None:
        """Give an order to every process (of `role`) that has not ended."""
        line = orjson.dumps({"order": order, **fields}) + b"\n"
        for member in self._of(role):
            if member.process.poll() is None:
                assert member.process.stdin is not None
                with suppress(BrokenPipeError):  # it has just ended: poll says so, with its log
                    member.process.stdin.write(line)

    def dismiss(self, role: str = "") -> list[str]:
        """Order processes (of `role`) to stop; return the names of those that had to be killed."""
        members = self._of(role)
        for member in members:
            member.dismissed = True
        self.order("stop", role)
        longest_ms = max((member.config.deadline_ms for member in members), default=0)
        wait_s = STOP_DEADLINES * longest_ms / 1000 + STOP_MARGIN_S
        deadline_s = time.monotonic() + wait_s
        while time.monotonic() < deadline_s and any(m.process.poll() is None for m in members):
            self.poll(0.05)
        return [member.config.process for member in members if _ended_by_force(member)]

    def close(self) -> None:
        """Kill whatever still runs. For the end of a run, whatever its reason."""
        for member in self._members:
            member.dismissed = True
            _ended_by_force(member)
            assert member.process.stdout is not None
            member.process.stdout.close()
        self._selector.close()

    def _of(self, role: str) -> list[Member]:
        return [member for member in self._members if role in ("", member.role)]


def _spawn(role: str, config: ClientConfig) -> subprocess.Popen[bytes]:
    config.state.mkdir(parents=True, exist_ok=True)
    with log_path(config).open("ab") as log:
        return subprocess.Popen(
            client_command(role, config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,  # an order is one write, and leaves at once
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is the runner's: it stops its clients in order
        )


def client_command(role: str, config: ClientConfig) -> list[str]:
    """Return the command of one client process."""
    return [sys.executable, "-m", f"chaos.workloads.{role}", config.encode()]


def child_environment() -> dict[str, str]:
    """Return the environment in which a child finds the same packages as this process."""
    packages = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**os.environ, "PYTHONPATH": packages}


def _ended_by_force(member: Member) -> bool:
    forced = member.process.poll() is None
    if forced:
        member.process.kill()
        member.process.wait(KILLED_S_MAX)
    if member.process.stdin is not None:
        member.process.stdin.close()
    return forced
