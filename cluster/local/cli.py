"""`flotilla-cluster`: a cluster on this machine from the command line.

What lives here: commands, their output, and the foreground watch of `up`. What must not: the
handling of processes and files (local.py).
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster.keys.directory import KeysError
from cluster.local.errors import LocalError
from cluster.local.local import LocalCluster
from cluster.members.identity import IdentityError
from cluster.recovery.cli import report
from cluster.recovery.recovery import Found, RecoveryError
from cluster.settings.config import ConfigError
from flotilla_client.doctor import examine_cluster, examine_machine, shown
from flotilla_client.protocol import LEVEL_MAX
from flotilla_client.version import VERSION

DEFAULT_DIR: Final = Path("flotilla-data")
DEFAULT_PORT: Final = 7000
WATCH_INTERVAL_S: Final = 0.5  # of `up` in the foreground: for a person's eyes
LOG_CHUNK_BYTES: Final = 64 * 1024  # read of a log at a time; the rest comes the next time
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEADER: Final = "leader"  # says whoever leads, where a command takes a node; no node is called so
ALL: Final = "all"
URGENT_LEVELS: Final = ("warning", "error", "critical")

_console: Final = Console(highlight=False)
_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DIR,
    show_default=True,
    help="Where the cluster lives.",
)


def main() -> None:
    """Run the command line; exit 1 with a message for everything that a user can mend."""
    try:
        commands()
    except (LocalError, ConfigError, RecoveryError, IdentityError, KeysError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))


def _fail(reason: str) -> NoReturn:
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    errors.print(f"[red]Error:[/] {escape(reason)}")
    sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
def commands() -> None:
    """Run a cluster of broker nodes on this machine."""


_node_argument: Final = click.argument("node")


@commands.command()
@_dir_option
@click.option("--nodes", default=3, show_default=True, help="How many: 1, 3, 5 or 7.")
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    help="Clients get PORT+1 and up, peers PORT+101, browsers PORT+201; 0 picks free ones.",
)
@click.option("--detach", is_flag=True, help="Leave the nodes running and return.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Make no keys: every process of this machine may publish, read and join.",
)
def up(directory: Path, nodes: int, port: int, detach: bool, insecure: bool) -> None:
    """Start a cluster, or start again the one that DIR holds.

    A new one gets keys, and clients need the file that is named at the end. It listens on this
    machine alone, with keys or without.

    In the foreground it shows who leads and what the nodes warn of; ctrl-C stops them all.
    """
    cluster = LocalCluster(directory)
    if not cluster.exists():
        cluster.create(nodes, port, pages=True, keys=not insecure)
    elif len(cluster.nodes()) != nodes:
        raise LocalError(
            f"{directory} holds a cluster of {len(cluster.nodes())} nodes, not {nodes}: "
            "choose another --dir, or stop and remove this one"
        )
    elif insecure and cluster.key is not None:
        raise LocalError(f"{directory} holds a cluster with keys: --insecure is for a new one")
    if cluster.key is None:
        _console.print(
            "[bold red]INSECURE:[/] this cluster has no keys. Every process of this machine may"
            " publish, read, take over a client by its id and join as a node.",
            soft_wrap=True,
        )
    with ExitStack() as stack:
        stack.callback(_down, cluster)
        watch = Watch(cluster)
        if not detach:
            _take_stop_signals_as_ctrl_c()
        cluster.start_all()
        with _console.status("waiting for a leader"):
            cluster.wait_for_leader()
        if cluster.is_new:
            cluster.begin_at_newest_level()
        if detach:
            stack.pop_all()  # they outlive us now, even if nobody reads what we print
        else:
            # From here on they wait for `until_stopped` and interrupt neither it nor the stopping.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        _print_table(cluster)
        _print_next_steps(cluster, detach)
        if not detach:
            watch.until_stopped()


@commands.command()
@_dir_option
def status(directory: Path) -> None:
    """Show every node: process, role, term, version, levels. Exit 1 while there is no leader."""
    cluster = LocalCluster(directory)
    _print_table(cluster)
    if cluster.leader() is None:
        raise _no_leader(cluster)


@commands.command()
@_dir_option
@click.option(
    "--signal",
    "signal_name",
    type=click.Choice(["KILL", "STOP", "CONT", "TERM"]),
    default="KILL",
    show_default=True,
    help="KILL is a crash, TERM an orderly stop, STOP a freeze until CONT.",
)
@_node_argument
def kill(directory: Path, node: str, signal_name: str) -> None:
    """Send a signal to NODE: crash it, by default. NODE is a name, `leader` or `all`."""
    cluster = LocalCluster(directory)
    for name in _meant(cluster, node, list(cluster.pids())):
        cluster.kill(name, signal_name)
        _console.print(f"{name}: SIG{signal_name}")


@commands.command()
@_dir_option
@_node_argument
def restart(directory: Path, node: str) -> None:
    """Start NODE again; stop it in order first if it runs. NODE is a name, `leader` or `all`.

    `all` are restarted one after the other, each when the one before it answers.
    """
    cluster = LocalCluster(directory)
    for name in _meant(cluster, node, list(cluster.endpoints())):
        _console.print(f"{name}: pid {cluster.restart(name)}")
        cluster.wait_until_up(name)


@commands.command()
@_dir_option
@click.argument("node")
def wipe(directory: Path, node: str) -> None:
    """Kill NODE and remove its data; `restart` brings it back as a new member."""
    LocalCluster(directory).wipe(node)
    again = f"{_typed('flotilla-cluster')} restart --dir {shlex.quote(str(directory))} {node}"
    _console.print(f"{node}: wiped; next: {again}", soft_wrap=True)


@commands.command()
@_dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.argument("node")
def recover(directory: Path, node: str, yes: bool) -> None:
    """Make a new cluster of what NODE has, after the others' data was lost. Nothing may run."""

    def confirm(found: Found) -> None:
        _console.print(report(found), markup=False, soft_wrap=True)
        if not yes:
            click.confirm("Make a new cluster of it?", abort=True)

    cluster_id = LocalCluster(directory).recover(node, confirm)
    again = f"{_typed('flotilla-cluster')} up --dir {shlex.quote(str(directory))}"
    _console.print(f"\ncluster {cluster_id} of what {node} had; next: {again}", soft_wrap=True)


@commands.command()
@_dir_option
@click.option("--level", type=click.IntRange(1, LEVEL_MAX), help="Default: the highest there is.")
def upgrade(directory: Path, level: int | None) -> None:
    """Raise the cluster's feature level, once every node runs a newer version.

    Older versions can't take part any more, and there is no way back. Exit 1 while a node is down
    or of a version without that level.
    """
    done = LocalCluster(directory).upgrade(level)
    was = f"; it was {done['before']}" if done["level"] > done["before"] else " already"
    _console.print(f"level {done['level']}{was}")


@commands.command()
@_dir_option
def doctor(directory: Path) -> None:
    """Measure this machine for nodes in DIR, and the cluster there if one runs.

    Prints what is wrong, what follows and what to do, and election time-outs that suit. Exit 1 if
    anything is wrong.
    """
    findings = examine_machine(directory)
    cluster = LocalCluster(directory)
    if cluster.exists():
        endpoints, statuses = cluster.endpoints(), cluster.statuses()
        names = list(endpoints)

        def status(number: int) -> dict[str, Any]:
            name = names[number]
            if name not in statuses:
                raise OSError("it does not run" if name not in cluster.pids() else "it is silent")
            found = cluster.status(name)
            if found is None:
                raise OSError("it is silent")
            return found

        findings += examine_cluster(list(endpoints.values()), status)
    text, code = shown(findings)
    _console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


@commands.command()
@_dir_option
def down(directory: Path) -> None:
    """Stop every node in order; data and configuration stay."""
    cluster = LocalCluster(directory)
    cluster.nodes()  # says so if there is no cluster
    _down(cluster)


def _meant(cluster: LocalCluster, node: str, everyone: list[str]) -> list[str]:
    """Return the names that NODE stands for. Raises LocalError when it stands for none."""
    if node == ALL:
        if not everyone:
            raise LocalError("no node runs: `flotilla-cluster restart all` starts them")
        return everyone
    if node != LEADER:
        return [node]
    leader = cluster.leader()
    if leader is None:
        raise _no_leader(cluster)
    return [leader]


def _no_leader(cluster: LocalCluster) -> LocalError:
    dead = [node.name for node in cluster.nodes() if node.pid is None]
    if not dead:
        return LocalError("no node leads: an election is under way; ask again")
    return LocalError(
        f"no node leads; dead: {', '.join(dead)}. `flotilla-cluster restart NODE` starts one of"
        " them, `restart all` all"
    )


def _take_stop_signals_as_ctrl_c() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler)


def _down(cluster: LocalCluster) -> None:
    with _console.status("stopping the nodes"):
        killed = cluster.down()
    if killed:
        _console.print(f"[yellow]had to be killed:[/] {', '.join(killed)}")
    _console.print(
        f"stopped; `up` with the same --dir starts again from {cluster.directory}", soft_wrap=True
    )


def _print_table(cluster: LocalCluster) -> None:
    statuses = cluster.statuses()
    columns = ("node", "endpoint", "pid", "role", "term", "level", "version", "levels")
    table = Table(*columns, box=None, pad_edge=False)
    for node in cluster.nodes():
        body = statuses.get(node.name, {"role": "silent" if node.pid else "dead", "term": ""})
        role = f"[green]{body['role']}[/]" if body["role"] == "leader" else str(body["role"])
        term, level = str(body["term"]), str(body.get("level", ""))
        program = _program(node.name, statuses)
        table.add_row(node.name, node.endpoint, str(node.pid or ""), role, term, level, *program)
    _console.print(table)


def _program(name: str, statuses: Mapping[str, dict[str, Any]]) -> tuple[str, str]:
    """Return a node's version and levels; of one that is silent those that it was last seen with.

    Version 0.1 names no levels to anybody, and to its peers no version.
    """
    versions = statuses.get(name, {}).get("versions")
    if versions is not None:
        return versions["flotilla"], _range(versions.get("levels", [1, 1]))
    others = [body.get("members", {}) for body in statuses.values()]
    seen: list[dict[str, Any]] = [members[name] for members in others if name in members]
    newest = min(seen, key=lambda row: row.get("silent_ms", math.inf), default={})
    levels = newest.get("levels")
    return newest.get("version") or "", _range(levels) if levels else ""


def _range(levels: Sequence[int]) -> str:
    return f"{levels[0]}-{levels[1]}"


def _print_next_steps(cluster: LocalCluster, detach: bool) -> None:
    addresses = [each.removeprefix("tcp://") for each in cluster.endpoints().values()]
    client, ours = _typed("flotilla"), _typed("flotilla-cluster")
    directory = shlex.quote(str(cluster.directory))
    _console.print("\nnext:", soft_wrap=True)
    if cluster.key is not None:
        key = shlex.quote(str(cluster.key))
        _console.print(f"  export FLOTILLA_KEY={key}", soft_wrap=True, markup=False)
    for line in (
        f"{client} --endpoints {','.join(addresses)} status",
        f"{ours} status --dir {directory}",
        f"{ours} kill --dir {directory} {LEADER}",
        f"{ours} down --dir {directory}" if detach else "ctrl-C stops all the nodes",
    ):
        _console.print(f"  {line}", soft_wrap=True, markup=False)
    if cluster.admin_key != cluster.key:
        admin = f"{client} --key {shlex.quote(str(cluster.admin_key))} admin user --help"
        _console.print(f"  who may what: {admin}", soft_wrap=True, markup=False)
    page = next(iter(cluster.pages().values()), "")
    if page:
        _console.print(f"  or look at {page}", soft_wrap=True, markup=False)


def _typed(command: str) -> str:
    """Return how `command` can be typed here: by its path, beside ours, where PATH lacks it."""
    beside = Path(sys.argv[0]).parent / command
    on_path = shutil.which(command) is not None
    return command if on_path or not beside.exists() else shlex.quote(str(beside))


class Watch:
    """What changes in a cluster, told line by line, from its making on."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._roles: dict[str, str] = {}
        files = {name: cluster.log_file(name) for name in cluster.endpoints()}
        # Old lines are not news: begin where the logs end now.
        self._read_to = {name: _size(file) for name, file in files.items()}

    def until_stopped(self) -> None:
        """Print changes until one of STOP_SIGNALS, which are blocked, comes."""
        while signal.sigtimedwait(STOP_SIGNALS, WATCH_INTERVAL_S) is None:
            for line in [*self.roles(), *self.warnings()]:
                _console.print(line, soft_wrap=True)

    def roles(self) -> list[str]:
        """Return a line for each node whose role changed since the last call."""
        statuses = self._cluster.statuses()
        lines = []
        for node in self._cluster.nodes():
            body = statuses.get(node.name)
            role = f"{body['role']} (term {body['term']})" if body else "silent"
            role = "dead" if node.pid is None else role
            if self._roles.get(node.name, role) != role:
                lines.append(f"{node.name} is {role}")
            self._roles[node.name] = role
        return lines

    def warnings(self) -> list[str]:
        """Return the urgent lines that the nodes have logged since the last call."""
        return [
            f"[yellow]{name}[/] {escape(line)}"
            for name in self._read_to
            for line in self._new_lines(name)
            if _is_urgent(line)
        ]

    def _new_lines(self, name: str) -> list[str]:
        file = self._cluster.log_file(name)
        if not file.exists():
            return []
        with file.open("rb") as log:
            log.seek(self._read_to[name])
            chunk = log.read(LOG_CHUNK_BYTES)
        whole = chunk[: chunk.rfind(b"\n") + 1]  # a line that is still being written comes later
        if len(chunk) == LOG_CHUNK_BYTES and not whole:
            whole = chunk
        self._read_to[name] += len(whole)
        return whole.decode(errors="replace").splitlines()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _is_urgent(line: str) -> bool:
    try:
        return json.loads(line)["level"] in URGENT_LEVELS
    except (ValueError, KeyError, TypeError):
        return True  # not of our log: the interpreter's own last words
