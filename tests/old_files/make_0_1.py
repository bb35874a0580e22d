"""Makes `0.1.tar.xz`: what version 0.1 leaves on disks. Run once, with the code of that version.

    git archive 1c9d649 | tar x -C TREE
    PYTHONPATH=TREE:TREE/client python tests/old_files/make_0_1.py 0.1.tar.xz

In it: `cluster` (three nodes' directories after a kill of the leader and an orderly end), the
states of clients (`reader`: 20 of topic "a" acknowledged; `late`: nothing read; `writer`: its last
publication was taken by nobody: all nodes were down, and it was killed), `record` (what the
reader's application was handed) and `run` (an experiment's record with its truth).
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from flotilla import Client  # its name then

from cluster.local import LocalCluster

SEED = "20261121"


def leave_pending(endpoints: list[str], state: Path, opened: Event, ended: Event) -> None:
    """Put once nobody answers, until this process is killed."""
    with Client(endpoints, state_dir=state) as writer:
        writer.put("b", "b40")
        opened.set()
        ended.wait()
        writer.put("a", "pending")


def without_logs(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what nobody opens again, and who made it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return (
        None if member.name.endswith((".log", "lock")) and "journal" not in member.name else member
    )


def main(to: Path) -> None:
    """Make the files, and put them into the archive."""
    scratch = Path(tempfile.mkdtemp())
    cluster = LocalCluster(scratch / "cluster")
    cluster.create(3)
    cluster.start_all()
    cluster.wait_for_leader()
    endpoints = list(cluster.endpoints().values())
    with (
        Client(endpoints, state_dir=scratch / "reader", record=scratch / "record") as reader,
        Client(endpoints, state_dir=scratch / "late") as late,
        Client(endpoints, state_dir=scratch / "writer") as writer,
    ):
        for topic in ("a", "b"):
            reader.subscribe(topic)
        late.subscribe("a")
        for number in range(30):
            writer.put("a", f"a{number}")
        writer.put_many("b", [f"b{number}" for number in range(40)])
        cluster.kill(cluster.wait_for_leader())
        writer.put_many("a", [f"a{number}" for number in range(30, 60)])
        given = reader.get("a", max_count=20, ack="manual")
        assert given is not None
        reader.acknowledge("a", given.last_id)
    cluster.start_all()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        bodies = cluster.statuses().values()
        if len({body.get("applied_index") for body in bodies}) == 1 and len(bodies) == 3:
            break
        time.sleep(0.1)
    opened, ended = multiprocessing.Event(), multiprocessing.Event()
    child = multiprocessing.Process(
        target=leave_pending, args=(endpoints, scratch / "writer", opened, ended)
    )
    child.start()
    opened.wait()
    cluster.down()
    ended.set()
    time.sleep(2)  # it has written down what it wants to send, and asks one node after the other
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    command = [sys.executable, "-m", "chaos", "run", "client-crash-and-kill", "--seed", SEED]
    command += ["--duration", "6", "--out", str(scratch / "run")]
    subprocess.run(command, check=True)
    for made in (scratch / "run").iterdir():
        if made.is_dir() and made.name not in ("history", "truth"):
            shutil.rmtree(made)
    with tarfile.open(to, "w:xz") as archive:
        for made in sorted(scratch.iterdir()):
            archive.add(made, made.name, filter=without_logs)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
