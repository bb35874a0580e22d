"""A whole cluster on one machine, for `flotilla-cluster`, tests and experiments.

What lives here: the directory of a local cluster and its node processes, from start to death.
What must not: the command line (cli.py), anything that a node does itself, or an idea of
what to break and when.

A directory holds `cluster.json` (`{"nodes": [{"name", "endpoint", "pid", "data_dir"}, …]}`, pid
null when dead) and for each node `<name>/node.toml`, `<name>/node.log` and `<name>/data`; and
`new`, until the cluster's level was raised. `cluster.json` is the truth that several processes
share: it is replaced whole, under a lock, and a pid in it is believed only while /proc says that
the process runs with our configuration file.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import cluster
import flotilla_client
from cluster.keys.authority import NODES, Authority
from cluster.local import processes
from cluster.local.errors import LocalError
from cluster.local.ports import HOST, free_ports, ports_from
from cluster.recovery.recovery import BACKUP_NAME, Found, Recovery, new_cluster_id, unused
from cluster.settings.config import ENV_PREFIX, MEMBER_COUNTS, http_page, load
from flotilla_client import Client, FlotillaError, NotUpgraded
from flotilla_client.connection import EndpointSockets
from flotilla_client.keys import KeyFile
from flotilla_client.protocol import STATUS, Request, encode_request

NODE_COMMAND: Final = (sys.executable, "-m", "cluster")
HOST_PORTS: Final = (7000, 7100)  # clients', peers': as in the image
STOP_TIMEOUT_S: Final = 10.0  # SIGTERM to SIGKILL: leadership is handed over within two elections
KILL_TIMEOUT_S: Final = 10.0  # a killed process may have to finish an fdatasync
LEADER_TIMEOUT_S: Final = 20.0  # first start: imports, files and a few elections on a busy machine
STATUS_TIMEOUT_MS: Final = 500  # a live node answers STATUS at the end of its turn
STATUS_INTERVAL_S: Final = 0.05  # processes announce no leader, so they are asked again
LOG_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
LOG_TAIL_LINES: Final = 8
LOCK_NAME: Final = "cluster.lock"
KEYS_NAME: Final = "keys"
NEW_NAME: Final = "new"  # there until the cluster has begun at the newest level
CLUSTER_ID: Final = "local"
CLIENT_NAME: Final = "app"  # of the key that is made for clients
ADMIN_NAME: Final = "admin"  # of the one whose principal may say who may what


@dataclass
class LocalNode:
    """One row of `cluster.json`. `pid` is None while the node is dead."""

    name: str
    endpoint: str
    pid: int | None
    data_dir: str


# --- the library --------------------------------------------------------------------------------


class LocalCluster:
    """The nodes of one directory.

    As a context manager it stops them all at the end. `command` is what a node is started with,
    followed by `--config FILE`; before it stands `prefix(name)`: words that let another program
    prepare the node's process and then become the node itself (`env A=B`, `ip netns exec NAME`).
    """

    def __init__(
        self,
        directory: Path | str,
        command: Sequence[str] = NODE_COMMAND,
        prefix: Callable[[str], Sequence[str]] = lambda name: (),
    ) -> None:
        self.directory = Path(directory).resolve()
        self._command = tuple(command)
        self._prefix = prefix
        # How each node ended last: its exit code, below 0 the signal; None: it was not our child.
        self.exit_codes: dict[str, int | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def create(
        self,
        nodes: int = 3,
        port: int = 0,
        settings: Mapping[str, Any] | None = None,
        hosts: Sequence[str] = (),
        pages: bool = False,
        keys: bool = False,
    ) -> None:
        """Write the directory of `nodes` nodes n1, n2, …; nothing is started.

        Clients reach them on `port`+1 and up, peers on `port`+101 and up, browsers with `pages` on
        `port`+201 and up; 0 picks free ports. With `hosts`, one a node, each listens on its own at
        HOST_PORTS: the host must be its alone.
        With `keys` clients and nodes have to prove who they are; `key` is then a client's file.
        `settings` go into every node's file: {"limits.parked_gets_max": 10}. Raises LocalError
        for a directory in use, a number of nodes that makes no cluster and ports that are taken,
        ConfigError for settings that a node would refuse.
        """
        if nodes not in MEMBER_COUNTS:
            raise LocalError(f"{nodes} nodes make no cluster: take 1, 3, 5 or 7")
        if self.exists():
            raise LocalError(f"{self.directory} holds a cluster already; start it or remove it")
        self._check_ours()
        assert len(hosts) in (0, nodes), hosts
        addresses = [f"{host}:{number}" for number in HOST_PORTS for host in hosts]
        if not hosts:
            kinds = 3 if pages else 2
            ports = (
                ports_from(port, nodes, kinds, self.directory)
                if port
                else free_ports(kinds * nodes, self.directory)
            )
            addresses = [f"{HOST}:{number}" for number in ports]
        names = [f"n{number}" for number in range(1, nodes + 1)]
        members = dict(zip(names, addresses[nodes : 2 * nodes], strict=True))
        shown = addresses[2 * nodes :] or [""] * nodes
        rows = []
        if keys:
            self._make_keys(names)
        for name, listen, page in zip(names, addresses[:nodes], shown, strict=True):
            own = {"http_listen": page} if page else {}
            own |= {"keys_dir": str(self.keys_dir / NODES / name)} if keys else {}
            self._write_config(name, listen, members, own | dict(settings or {}))
            rows.append(LocalNode(name, f"tcp://{listen}", None, str(self._data_dir(name))))
        with self._locked():
            self._new_file().touch()
            self._write(rows)

    @property
    def keys_dir(self) -> Path:
        """Where the cluster's keys are, if it has any: a directory for `flotilla-keys`."""
        return self.directory / KEYS_NAME

    @property
    def key(self) -> Path | None:
        """The file of a client's key; None for a cluster without keys."""
        return Authority(self.keys_dir).client_file(CLIENT_NAME) if self.keys_dir.exists() else None

    @property
    def admin_key(self) -> Path | None:
        """The file of the administrator's key; None for a cluster without keys.

        A directory of an earlier version has no key of that name, and `key` does what it did.
        """
        if self.key is None:
            return None
        file = Authority(self.keys_dir).client_file(ADMIN_NAME)
        return file if file.exists() else self.key

    def _make_keys(self, names: Sequence[str]) -> None:
        if self.keys_dir.exists():  # a creation that was broken off
            shutil.rmtree(self.keys_dir)
        authority = Authority.create(self.keys_dir, CLUSTER_ID, (CLIENT_NAME, ADMIN_NAME))
        for name in names:
            authority.node(name)

    def exists(self) -> bool:
        """True when the directory holds a cluster."""
        return self._state_file().exists()

    @property
    def is_new(self) -> bool:
        """True until its level was raised: it may have been stopped before it was up."""
        return self._new_file().exists()

    def nodes(self) -> list[LocalNode]:
        """Return the nodes in order, pids verified. Raises LocalError without a cluster."""
        with self._locked():
            return self._read()

    def node(self, name: str) -> LocalNode:
        """Return the node `name`, its pid verified. Raises LocalError if there is none."""
        return _find(self.nodes(), name)

    def endpoints(self) -> dict[str, str]:
        """Return where clients reach each node: {"n1": "tcp://127.0.0.1:7001", …}."""
        return {node.name: node.endpoint for node in self.nodes()}

    def pages(self) -> dict[str, str]:
        """Return where a browser finds each node's page: {"n1": "http://127.0.0.1:7201", …}."""
        found = {
            node.name: http_page(load(self._config_file(node.name), {})) for node in self.nodes()
        }
        return {name: page for name, page in found.items() if page}

    def pids(self) -> dict[str, int]:
        """Return the process of each node that lives."""
        return {node.name: node.pid for node in self.nodes() if node.pid is not None}

    def start(self, name: str) -> int:
        """Start the node `name`; return its pid. Raises LocalError if it runs already."""
        with self._locked():
            rows = self._read()
            row = _find(rows, name)
            if row.pid is not None:
                raise LocalError(f"{name} runs already (pid {row.pid})")
            row.pid = self._spawn(name)
            self._write(rows)
            return row.pid

    def start_all(self) -> None:
        """Start every node that does not run."""
        for node in self.nodes():
            if node.pid is None:
                self.start(node.name)

    def kill(self, name: str, signal_name: str = "KILL") -> None:
        """Send a signal ("KILL", "STOP", "CONT", "TERM", …) to the node `name`.

        After KILL and TERM the process is gone. Raises LocalError if the node does not run, or
        is still there after KILL_TIMEOUT_S or STOP_TIMEOUT_S.
        """
        if not self._signalled(name, signal.Signals[f"SIG{signal_name}"]):
            raise LocalError(f"{name} does not run")

    def _signalled(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to the node `name`, as `kill` does; return whether it ran."""
        timeout_s = {signal.SIGKILL: KILL_TIMEOUT_S, signal.SIGTERM: STOP_TIMEOUT_S}.get(number)
        with self._opened(name) as process:
            if process is None or not _sent(process, number):
                return False
            if number == signal.SIGTERM:
                _sent(process, signal.SIGCONT)  # or a stopped one can't hear it
            if timeout_s is not None and not processes.ends(process, timeout_s):
                raise LocalError(f"{name} still runs {timeout_s:.0f} s after {number.name}")
        self.nodes()  # notes the death in cluster.json
        return True

    # These two ask nobody first whether the node runs: it may end between answer and signal.
    def restart(self, name: str) -> int:
        """Stop the node `name` in order if it runs, and start it; return its pid."""
        self._signalled(name, signal.SIGTERM)
        return self.start(name)

    def wipe(self, name: str) -> None:
        """Kill the node `name` if it runs and remove its data directory; it stays dead."""
        self._signalled(name, signal.SIGKILL)
        if self._data_dir(name).exists():
            shutil.rmtree(self._data_dir(name))

    def recover(self, name: str, confirm: Callable[[Found], None] = lambda found: None) -> str:
        """Make a new cluster of what the node `name` has, after the others' disks were lost.

        Every node must be dead. The others begin empty; old data is kept beside what is new.
        Returns the new cluster's id. `confirm` may raise: then nothing was changed. Raises
        LocalError, RecoveryError.
        """
        alive = self.pids()
        if alive:
            raise LocalError(f"{', '.join(alive)} still run: a recovery is for dead nodes")
        names = [node.name for node in self.nodes()]
        with Recovery(Path(self.node(name).data_dir), None) as recovery:
            confirm(recovery.found)
            cluster_id = new_cluster_id(recovery.found.identity.cluster_id)
            recovery.finish(cluster_id, names)
        for other in names:
            if other != name and self._data_dir(other).exists():
                self._data_dir(other).rename(unused(self._data_dir(other).parent / BACKUP_NAME))
            file = self._config_file(other)
            line = f"cluster_id = {json.dumps(cluster_id)}"
            file.write_text(re.sub("(?m)^cluster_id = .*$", line, file.read_text()))
        if self.keys_dir.exists():
            Authority(self.keys_dir).rename(cluster_id)
        return cluster_id

    def statuses(self, timeout_ms: int = STATUS_TIMEOUT_MS) -> dict[str, dict[str, Any]]:
        """Return what each node says of itself (the body of its STATUS).

        Who is silent for `timeout_ms` is absent.
        """
        alive = [node for node in self.nodes() if node.pid is not None]
        with ThreadPoolExecutor(max(MEMBER_COUNTS)) as pool:  # frozen nodes cost one time-out
            key = None if self.key is None else KeyFile(self.key)
            bodies = pool.map(lambda node: _ask_status(node.endpoint, key, timeout_ms), alive)
            answers = zip(alive, bodies, strict=True)
            return {node.name: body for node, body in answers if body is not None}

    def status(self, name: str) -> dict[str, Any] | None:
        """Return what the node `name` says of itself, None if it does not answer at once."""
        key = None if self.key is None else KeyFile(self.key)
        return _ask_status(self.node(name).endpoint, key, STATUS_TIMEOUT_MS)

    def leader(self) -> str | None:
        """Return the node that says it leads, in the highest term; None if none does."""
        leaders = {
            int(body["term"]): name
            for name, body in self.statuses().items()
            if body["role"] == "leader"
        }
        return leaders[max(leaders)] if leaders else None

    def upgrade(self, level: int | None = None) -> dict[str, Any]:
        """Raise the cluster's feature level; None: to the highest that any node understands.

        Returns the level now and `before`. Raises LocalError while a member stands in its way.
        """
        with Client(list(self.endpoints().values()), key=self.admin_key) as client:
            try:
                raised = dict(client.upgrade(level))
            except FlotillaError as error:
                raise LocalError(error.message) from error
        self._new_file().unlink(missing_ok=True)
        return raised

    def begin_at_newest_level(self) -> dict[str, Any]:
        """Raise a new cluster's level to the highest that its nodes understand.

        Nobody will want to go back from it. It waits for all nodes, which may still be starting.
        Returns as `upgrade` does. Raises LocalError if one is missing after LEADER_TIMEOUT_S.
        """
        deadline = time.monotonic() + LEADER_TIMEOUT_S
        while True:
            try:
                return self.upgrade()
            except LocalError as error:
                is_early = isinstance(error.__cause__, NotUpgraded)
                if not is_early or time.monotonic() >= deadline:
                    raise
            time.sleep(STATUS_INTERVAL_S)

    def wait_for_leader(self, timeout_s: float = LEADER_TIMEOUT_S) -> str:
        """Return the leader as soon as there is one.

        Raises LocalError after `timeout_s`, or at once when no majority is alive, with the last
        lines of the logs.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.leader()
            if found is not None:
                return found
            alive, count = len(self.pids()), len(self.nodes())
            if 2 * alive <= count:
                raise LocalError(f"{alive} of {count} nodes live: no majority\n{self.tails()}")
            time.sleep(STATUS_INTERVAL_S)
        raise LocalError(f"no leader within {timeout_s:.0f} s\n{self.tails()}")

    def wait_until_up(self, name: str, timeout_s: float = LEADER_TIMEOUT_S) -> None:
        """Return as soon as the node `name` says something of itself.

        Raises LocalError after `timeout_s`, or at once when it has ended, with the last lines of
        its log.
        """
        deadline = time.monotonic() + timeout_s
        while self.status(name) is None:
            if self.node(name).pid is None:
                raise LocalError(f"{name} has ended again\n{self.tail(name)}")
            if time.monotonic() >= deadline:
                raise LocalError(f"{name} is silent for {timeout_s:.0f} s\n{self.tail(name)}")
            time.sleep(STATUS_INTERVAL_S)

    def down(self, patience_s: float = STOP_TIMEOUT_S) -> list[str]:
        """Stop every node: SIGTERM to all, SIGKILL to those that live after `patience_s`.

        Returns the names of those that had to be killed.
        """
        if not self.exists():
            return []
        killed = []
        deadline = time.monotonic() + patience_s
        with ExitStack() as stack:
            opened = {name: stack.enter_context(self._opened(name)) for name in self.pids()}
            alive = {name: process for name, process in opened.items() if process is not None}
            for process in alive.values():
                _sent(process, signal.SIGTERM)
                _sent(process, signal.SIGCONT)  # or a stopped one can't hear it
            for name, process in alive.items():
                has_ended = processes.ends(process, max(0.0, deadline - time.monotonic()))
                if not has_ended and _sent(process, signal.SIGKILL):
                    killed.append(name)
                    processes.ends(process, KILL_TIMEOUT_S)
        self.nodes()  # notes the deaths in cluster.json
        return killed

    def log_file(self, name: str) -> Path:
        """Return where the node `name` writes its log, one JSON object a line."""
        return self.directory / name / "node.log"

    def tails(self) -> str:
        """Return the last lines of every node's log, for an error message."""
        return "\n".join(self.tail(node.name) for node in self.nodes())

    def tail(self, name: str) -> str:
        """Return the same of one node."""
        file = self.log_file(name)
        lines = file.read_text(errors="replace").splitlines() if file.exists() else []
        return "\n".join([f"{file}:", *(f"    {line}" for line in lines[-LOG_TAIL_LINES:])])

    # --- files ---

    def _check_ours(self) -> None:
        """Raise LocalError for a directory that holds more than a creation that was broken off."""
        try:
            names = {path.name for path in self.directory.iterdir()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise LocalError(f"{self.directory}: {error.strerror}") from error
        ours = {f"n{number}" for number in range(1, MEMBER_COUNTS[-1] + 1)}
        ours |= {LOCK_NAME, KEYS_NAME, NEW_NAME}
        strange = sorted(names - ours)
        if strange:
            raise LocalError(
                f"{self.directory} is no cluster's directory: it holds {strange[0]!r}; choose a new"
                " or an empty --dir"
            )

    def _state_file(self) -> Path:
        return self.directory / "cluster.json"

    def _new_file(self) -> Path:
        return self.directory / NEW_NAME

    def _config_file(self, name: str) -> Path:
        return self.directory / name / "node.toml"

    def _data_dir(self, name: str) -> Path:
        return self.directory / name / "data"

    def _write_config(
        self, name: str, listen: str, members: Mapping[str, str], settings: Mapping[str, Any]
    ) -> None:
        values = {
            "cluster_id": CLUSTER_ID,
            "node": name,
            "data_dir": str(self._data_dir(name)),
            "client_listen": listen,
            "peer_listen": members[name],
            **{f"members.{member}": address for member, address in members.items()},
            **settings,
        }
        file = self._config_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        # A JSON string or number is one of TOML too, and a dotted key stands for a table.
        file.write_text("".join(f"{key} = {json.dumps(values[key])}\n" for key in values))
        load(file, {})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self.directory.exists():
            raise LocalError(f"{self.directory} does not exist; `flotilla-cluster up` makes it")
        with (self.directory / LOCK_NAME).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self) -> list[LocalNode]:
        if not self.exists():
            raise LocalError(f"{self.directory} holds no cluster; `flotilla-cluster up` makes it")
        rows = [LocalNode(**row) for row in json.loads(self._state_file().read_text())["nodes"]]
        pids = [(row, row.pid) for row in rows if row.pid is not None]
        dead = [(row, pid) for row, pid in pids if not self._is_ours(row.name, pid)]
        for row, pid in dead:
            self.exit_codes[row.name] = _bury(pid)
            row.pid = None
        if dead:
            self._write(rows)
        return rows

    def _write(self, rows: Iterable[LocalNode]) -> None:
        text = json.dumps({"nodes": [asdict(row) for row in rows]}, indent=2)
        temporary = self._state_file().with_suffix(".tmp")
        temporary.write_text(text + "\n")
        temporary.replace(self._state_file())

    # --- processes ---

    def _spawn(self, name: str) -> int:
        # Not subprocess: nodes may well outlive us and the object that started them.
        arguments = [*self._prefix(name), *self._command, "--config", str(self._config_file(name))]
        pid = os.posix_spawnp(
            arguments[0],
            arguments,
            _child_environ(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log_file(name)), LOG_FLAGS, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,  # ctrl-C at our terminal is for us alone
            setsigmask=[],
        )
        # exec() shows the arguments in /proc a moment later; until then the node would be taken
        # for dead.
        deadline = time.monotonic() + processes.EXEC_TIMEOUT_S
        while not self._is_ours(name, pid) and not _has_ended(pid):
            assert time.monotonic() < deadline, f"{self._command} hides its arguments"
            time.sleep(processes.EXEC_INTERVAL_S)
        return pid

    def _is_ours(self, name: str, pid: int) -> bool:
        return os.fsencode(self._config_file(name)) in processes.arguments(pid)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int | None]:
        # A pidfd of the node, None if it is dead. Opened first and checked then, so that the
        # reuse of a pid can't make us signal a stranger.
        pid = self.node(name).pid
        process = None if pid is None else _pidfd(pid)
        try:
            yield process if pid is not None and self._is_ours(name, pid) else None
        finally:
            if process is not None:
                os.close(process)


def _find(rows: Sequence[LocalNode], name: str) -> LocalNode:
    for row in rows:
        if row.name == name:
            return row
    raise LocalError(f"no node {name!r}; there are {', '.join(row.name for row in rows)}")


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _bury(pid: int) -> int | None:
    # A zombie is its parent's to bury; that is often us, whoever killed it. It is one as soon as
    # its first thread has ended, and can be buried when its last one has: a moment later.
    process = _pidfd(pid)
    if process is None:
        return None
    try:
        if processes.is_zombie(pid) and (
            _has_ended(pid) or processes.ends(process, KILL_TIMEOUT_S)
        ):
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return None  # somebody else's by now
    except (ChildProcessError, FileNotFoundError, ProcessLookupError):
        return None
    finally:
        os.close(process)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _sent(process: int, number: int) -> bool:
    """Send a signal to the process of a pidfd; return whether it was still there."""
    try:
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:  # it has ended, and somebody has buried it
        return False
    return True


def _child_environ() -> dict[str, str]:
    # Our settings stand in the files: a FLOTILLA_NODE of the shell would name all nodes the same.
    environ = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
    roots = [str(Path(package.__path__[0]).parent) for package in (cluster, flotilla_client)]
    environ["PYTHONPATH"] = os.pathsep.join([*roots, environ.get("PYTHONPATH", "")]).strip(":")
    return environ


def _ask_status(endpoint: str, key: KeyFile | None, timeout_ms: int) -> dict[str, Any] | None:
    connection = EndpointSockets([endpoint], key)
    try:
        if not connection.send(0, encode_request(Request(STATUS, "local")), timeout_ms):
            return None
        reply = connection.receive(0, timeout_ms)
    except ConnectionResetError:
        return None  # it died between question and answer
    finally:
        connection.close_all()
    return reply.body if reply is not None and reply.ok else None
