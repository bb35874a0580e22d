"""The docker engine as the tests of `deploy/` use it: its command, and waiting for its events.

What lives here: what the tests of the image and of the compose file share. What must not: claims.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S: Final = 600.0  # the first build fetches the dependencies
COMMAND_TIMEOUT_S: Final = 60.0  # the longest command is a stop: 20 s of grace and a busy machine
EVENT_TIMEOUT_S: Final = 60.0  # start of a node and a few probes
COMPOSE: Final[Mapping[str, list[str]]] = {
    "v2": ["docker", "compose"],
    "v1": ["docker-compose"],
}


def run(
    *argv: str, timeout_s: float = COMMAND_TIMEOUT_S, env: Mapping[str, str] | None = None
) -> str:
    """Return what a command wrote to standard output; AssertionError with all of it on failure."""
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(env or {})},
        check=False,
    )
    assert done.returncode == 0, (argv, done.returncode, done.stdout, done.stderr)
    return done.stdout.strip()


def has_compose(version: str) -> bool:
    """Return whether this version of compose can be called here."""
    argv = [*COMPOSE[version], "version"]
    if shutil.which(argv[0]) is None:
        return False
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def unique(prefix: str) -> str:
    """Return a name for something in the engine that no other run of the tests has."""
    return f"{prefix}-{secrets.token_hex(4)}"


def inspect(container: str) -> dict[str, Any]:
    """Return what the engine knows of a container."""
    (details,) = json.loads(run("docker", "inspect", container))
    assert isinstance(details, dict)
    return details


def await_event(container: str, wanted: str, since_s: float) -> None:
    """Return when the engine reports `wanted` of a container, at `since_s` (wall clock) or later.

    The engine repeats events that are past already, so one that came before the call is not
    missed. An AssertionError with the container's state and log after EVENT_TIMEOUT_S.
    """
    deadline = time.monotonic() + EVENT_TIMEOUT_S
    argv = ["docker", "events", "--since", f"{since_s:.9f}", "--format", "{{.Status}}"]
    seen: list[str] = []
    with subprocess.Popen(
        [*argv, "--filter", f"container={container}"], stdout=subprocess.PIPE, bufsize=0
    ) as events:
        assert events.stdout is not None
        try:
            while wanted not in seen:
                left_s = deadline - time.monotonic()
                ready = left_s > 0 and select.select([events.stdout], [], [], left_s)[0]
                assert ready, (wanted, seen, inspect(container)["State"], logs(container))
                seen.append(events.stdout.readline().decode().strip())
        finally:
            events.kill()


def logs(container: str) -> str:
    """Return the end of what a container wrote, standard error included."""
    argv = ["docker", "logs", "--tail", "30", container]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
