"""What a run has set up on this machine, written down so that a later one can clear it away.

What lives here: the claim of a running experiment, and clearing up after those whose process is
gone (SIGKILL, a crash of the machine's session). What must not: how a cluster is taken down in
order; a target's `down` does that.

A claim is a file below the user's runtime directory, locked for as long as the run's process lives:
the kernel lets go of the lock however that process ends, so a claim that can be locked is dead.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from chaos.targets import TargetError
from chaos.targets.commands import output
from cluster.local import processes

FIELDS: Final = ("kind", "directory", "label")
DEATH_S_MAX: Final = 10.0  # a killed process may have to finish an fdatasync
CONFIG_NAME: Final = "node.toml"  # DIRECTORY/NODE/node.toml: a node's last argument
# What a compose project has: how it is removed, and further options of its listing.
CONTAINER_KINDS: Final = {
    "container": ("rm --force", "--all"),
    "volume": ("rm",),
    "network": ("rm",),
}
RUN_LOCKS_MODE: Final = 0o700  # claims say what is ended and removed, maybe by root
INTERFACES: Final = Path("/sys/class/net")


def run_locks_directory() -> Path:
    """Return where the claims of this user's runs are."""
    return Path(tempfile.gettempdir()) / f"flotilla-chaos-{os.geteuid()}"


def _checked_directory() -> Path | None:
    """Return it, if it is there. Raises TargetError if anybody else could have written a claim."""
    directory = run_locks_directory()
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or mode != RUN_LOCKS_MODE:
        raise TargetError(
            f"{directory} must be a directory of user {os.geteuid()} with mode {RUN_LOCKS_MODE:o},"
            f" and is of user {found.st_uid} with mode {mode:o}: what it says may be somebody "
            "else's. Remove it, or let TMPDIR name another place"
        )
    return directory


class RunLock:
    """Says that a run of this kind (a target's name) uses `directory`, and anything by `label`."""

    def __init__(self, kind: str, directory: Path, label: str = "") -> None:
        self._fields = {"kind": kind, "directory": str(directory.resolve()), "label": label}
        self._held: tuple[int, Path] | None = None  # its lock and its file

    def take(self) -> None:
        """Write it down, and hold it until `release` or this process's end.

        Raises TargetError if a living run has claimed the same label, or if others could write
        claims.
        """
        run_locks_directory().mkdir(mode=RUN_LOCKS_MODE, exist_ok=True)
        directory = _checked_directory()
        if self._fields["label"] in _in_use():
            raise TargetError(f"{self._fields['label']} is in use by another run")
        descriptor, path = tempfile.mkstemp(".json", dir=directory)
        self._held = descriptor, Path(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, json.dumps(self._fields).encode())

    def release(self) -> None:
        """Nothing is left of the run."""
        if self._held is not None:
            descriptor, path = self._held
            self._held = None
            path.unlink(missing_ok=True)
            os.close(descriptor)


Clear = Callable[[Path, str], None]
"""Clears away what a claim's (directory, label) says."""


def clear_processes(directory: Path, label: str) -> None:
    """End the node processes of a directory, be they paused or the directory gone.

    Raises TargetError if one of them can't be ended.
    """
    with ExitStack() as stack:
        nodes = {}
        for pid in _pids_of(directory):
            with suppress(ProcessLookupError):  # it has just ended
                process = os.pidfd_open(pid)
                stack.callback(os.close, process)
                # Asked again: so the reuse of a pid can't make us kill a stranger.
                if _is_node_of(directory, pid):
                    nodes[pid] = process
                    signal.pidfd_send_signal(process, signal.SIGKILL)
        deadline_s = time.monotonic() + DEATH_S_MAX
        alive = [
            pid
            for pid, process in nodes.items()
            if not processes.ends(process, max(0.0, deadline_s - time.monotonic()))
        ]
    if alive:
        raise TargetError(f"processes {alive} still run {DEATH_S_MAX:g} s after SIGKILL")


def _pids_of(directory: Path) -> list[int]:
    pids = [int(entry) for entry in os.listdir(processes.PROCESSES) if entry.isdecimal()]
    return [pid for pid in pids if _is_node_of(directory, pid)]


def _is_node_of(directory: Path, pid: int) -> bool:
    """Whether it is a node of LocalCluster(directory), and of this user as its claim is."""
    try:
        if (processes.PROCESSES / str(pid)).stat().st_uid != os.geteuid():
            return False
    except FileNotFoundError:
        return False
    words = processes.arguments(pid)
    option, file = b"".join(words[-3:-2]), Path(os.fsdecode(b"".join(words[-2:-1])))
    is_config = option == b"--config" and file.name == CONFIG_NAME
    return is_config and file.parent.parent == directory


def clear_namespaces(directory: Path, label: str) -> None:
    """End the nodes of a directory, and remove the namespaces whose names begin with `label`-."""
    clear_processes(directory.resolve(), label)  # a living run names it as it was told
    host = host_interface(label)  # first: it goes by itself some time after its other end
    if _has_interface(host):
        _remove("link", host, _has_interface)
    for name in sorted(name for name in _namespaces() if name.startswith(f"{label}-")):
        for pid in output(["ip", "netns", "pids", name]).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _remove("netns", name, lambda name: name in _namespaces())


def _has_interface(name: str) -> bool:
    return (INTERFACES / name).exists()


def _namespaces() -> set[str]:
    return {line.split()[0] for line in output(["ip", "netns", "list"]).splitlines()}


def _remove(kind: str, name: str, exists: Callable[[str], bool]) -> None:
    """Remove it, unless somebody else just has. Raises TargetError."""
    try:
        output(["ip", kind, "delete", name])
    except TargetError:
        if exists(name):
            raise


def clear_containers(directory: Path, label: str) -> None:
    """Remove containers, volumes and networks of the compose project `label`."""
    of_project = f"label=com.docker.compose.project={label}"
    for kind, removal in CONTAINER_KINDS.items():
        found = output(["docker", kind, "ls", "--quiet", "--filter", of_project, *removal[1:]])
        if found.split():
            output(["docker", kind, *removal[0].split(), *found.split()])


def host_interface(label: str) -> str:
    """Return the name of a run's interface on the machine's side: 15 characters at most."""
    return f"flt-{label.rpartition('-')[2]}"


CLEARS: Final[Mapping[str, Clear]] = {
    "local": clear_processes,
    "namespaces": clear_namespaces,
    "compose": clear_containers,
}


def sweep(clears: Mapping[str, Clear] = CLEARS) -> list[str]:
    """Clear away what dead runs left; return a line for each. A living run is left alone.

    What cannot be cleared away now (its docker is not there, say, or its claim can't be read) keeps
    nobody from anything: its claim stays for the next time, and a line on stderr says why.
    """
    in_use = _in_use()
    lines = []
    for path, text, is_dead in _claims():
        if is_dead:
            what = str(path)
            try:
                fields = _fields(text, clears)
                what = f"{fields['kind']}: {fields['directory']} {fields['label']}".strip()
                if not in_use.isdisjoint((fields["directory"], fields["label"])):
                    raise TargetError("another run uses the same now")
                clears[fields["kind"]](Path(fields["directory"]), fields["label"])
            except (TargetError, OSError, ValueError) as error:  # a NUL, say, is in no name
                sys.stderr.write(f"left for another time: {what}: {error}\n")
                continue
            lines.append(what)
            path.unlink(missing_ok=True)
    return lines


def _in_use() -> set[str]:
    """Return the directories and labels of living runs."""
    found = set()
    for _, text, is_dead in _claims():
        if not is_dead:
            with suppress(TargetError):  # what can't be read names nothing
                fields = _fields(text)
                found |= {fields["directory"], fields["label"]}
    return found - {""}


def _fields(text: bytes, kinds: Collection[str] = ()) -> dict[str, str]:
    """Return what a claim says. Raises TargetError if it is none, or of none of these kinds."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not all(isinstance(fields.get(key), str) for key in FIELDS):
        raise TargetError("it is no claim of ours; remove it by hand")
    if kinds and fields["kind"] not in kinds:
        raise TargetError(f"there is no target {fields['kind']!r}; remove it by hand")
    if not Path(fields["directory"]).is_absolute():
        raise TargetError(f"{fields['directory']!r} is no absolute path; remove it by hand")
    return fields


def _claims() -> Iterator[tuple[Path, bytes, bool]]:
    """Yield (file, content, whether its process is gone); the lock of a dead one is held by us."""
    directory = _checked_directory()
    for path in sorted(directory.glob("*.json")) if directory else ():
        try:
            file = path.open("rb")
        except FileNotFoundError:  # it has just been released
            continue
        except OSError as error:  # a directory, say: what it has is no claim
            yield path, str(error).encode(), True
            continue
        with file:
            is_dead = _locked(file.fileno())
            if text := file.read():  # none: it is just being taken
                yield path, text, is_dead


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
