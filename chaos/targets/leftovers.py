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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from chaos.targets import TargetError
from chaos.targets.commands import output
from cluster.local import LocalCluster, LocalError

PATIENCE_S: Final = 2.0  # nobody needs these nodes any more
# What a compose project has: how it is removed, and further options of its listing.
CONTAINER_KINDS: Final = {
    "container": ("rm --force", "--all"),
    "volume": ("rm",),
    "network": ("rm",),
}
CLAIMS_MODE: Final = 0o700  # claims say what is ended and removed, maybe by root
INTERFACES: Final = Path("/sys/class/net")


def claims_directory() -> Path:
    """Return where the claims of this user's runs are."""
    return Path(tempfile.gettempdir()) / f"flotilla-chaos-{os.geteuid()}"


def _checked_directory() -> Path | None:
    """Return it, if it is there. Raises TargetError if anybody else could have written a claim."""
    directory = claims_directory()
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or mode != CLAIMS_MODE:
        raise TargetError(
            f"{directory} must be a directory of user {os.geteuid()} with mode {CLAIMS_MODE:o}, and"
            f" is of user {found.st_uid} with mode {mode:o}: what it says may be somebody else's."
            " Remove it, or let TMPDIR name another place"
        )
    return directory


class Claim:
    """Says that a run of this kind (a target's name) uses `directory`, and anything by `label`."""

    def __init__(self, kind: str, directory: Path, label: str = "") -> None:
        self._fields = {"kind": kind, "directory": str(directory.resolve()), "label": label}
        self._held: tuple[int, Path] | None = None  # its lock and its file

    def take(self) -> None:
        """Write it down, and hold it until `release` or this process's end.

        Raises TargetError if a living run has claimed the same label, or if others could write
        claims.
        """
        claims_directory().mkdir(mode=CLAIMS_MODE, exist_ok=True)
        directory = _checked_directory()
        if self._fields["label"] and self._fields["label"] in _living_labels():
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
    """Wake and end the node processes of a directory."""
    if directory.exists():
        LocalCluster(directory).down(PATIENCE_S)


def clear_namespaces(directory: Path, label: str) -> None:
    """End the nodes of a directory, and remove the namespaces whose names begin with `label`-."""
    clear_processes(directory, label)
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

    What cannot be cleared away now (its docker is not there, say) keeps nobody from anything: its
    claim stays for the next time, and a line on stderr says why.
    """
    lines = []
    for path, fields, is_dead in _claims():
        if is_dead:
            what = f"{fields['kind']}: {fields['directory']} {fields['label']}".strip()
            try:
                clears[fields["kind"]](Path(fields["directory"]), fields["label"])
            except (TargetError, LocalError, OSError) as error:
                sys.stderr.write(f"left for another time: {what}: {error}\n")
                continue
            lines.append(what)
            path.unlink(missing_ok=True)
    return lines


def _living_labels() -> set[str]:
    return {fields["label"] for _, fields, is_dead in _claims() if not is_dead}


def _claims() -> Iterator[tuple[Path, dict[str, str], bool]]:
    """Yield (file, fields, whether its process is gone); the lock of a dead one is held by us."""
    directory = _checked_directory()
    for path in sorted(directory.glob("*.json")) if directory else ():
        with suppress(FileNotFoundError), path.open() as file:  # it may be released just now
            is_dead = _locked(file.fileno())
            if text := file.read():  # none: it is just being taken
                yield path, json.loads(text), is_dead


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
