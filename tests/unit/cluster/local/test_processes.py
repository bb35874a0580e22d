"""What cluster/local/processes.py promises: what a process was started with, and its end."""

from __future__ import annotations

import os
import sys

from cluster.local.processes import arguments, ends, is_zombie


def test_a_process_has_its_arguments_until_it_has_ended() -> None:
    code = "import sys; sys.stdin.read()"
    read, write = os.pipe()
    os.set_inheritable(write, False)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)],
    )
    process = os.pidfd_open(pid)

    lives = arguments(pid)  # may be in the middle of its exec()
    zombie = is_zombie(pid)
    had_ended = ends(process, 0.0)
    os.close(write)

    assert (lives[1:3], zombie, had_ended) == ([b"-c", code.encode()], False, False)
    assert ends(process, 60.0)
    assert is_zombie(pid)
    assert arguments(pid) == [b""], "a zombie has none, and nobody waits for them"
    os.waitpid(pid, 0)
    assert arguments(pid) == []
    os.close(process)
    os.close(read)
