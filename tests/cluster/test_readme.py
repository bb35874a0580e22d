"""The README's commands, run as they are written, on its own ports."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = ("Start a cluster and point a client at it", "Kill the leader and watch")
PORTS = [*range(7001, 7004), *range(7101, 7104)]
COMMAND_S_MAX = 60
EXPECTED = ["high water 04:12", "high water 16:40"]


def commands_of(section: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    body = text.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\$ (.*)$", body, re.MULTILINE)


def are_free(ports: list[int]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


@pytest.mark.timeout(300)
def test_the_readme_s_commands_work_as_written(tmp_path: Path) -> None:
    if not are_free(PORTS):
        pytest.skip(f"the README's ports {PORTS} are in use on this machine")
    environment = os.environ | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    tools = Path(sys.executable).parent

    def run(command: str) -> str:
        exported = re.fullmatch(r"export (\w+)=(\S+)", command)
        if exported is not None:
            environment[exported[1]] = exported[2]
            return ""
        done = subprocess.run(
            ["bash", "-c", command.replace(".venv/bin/", f"{tools}/")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    commands = [command for section in SECTIONS for command in commands_of(section)]
    assert commands[-1].endswith("down"), commands
    try:
        outputs = {command: run(command) for command in commands}
    finally:
        subprocess.run([tools / "flotilla-cluster", "down"], cwd=tmp_path, check=False)
    got = next(output for command, output in outputs.items() if " get " in command)
    assert [text for text in EXPECTED if text in got] == EXPECTED, got
