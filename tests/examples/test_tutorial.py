"""The tutorial's commands, run as they are written, by one shell, on ports of its own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs/tutorial.md"
TUTORIAL_S_MAX = 150
MARK = "@@ "  # begins the line before each command's output


def free_port() -> int:
    """Return a port behind which those of a cluster of three are free."""
    for port in range(17_000, 30_000, 300):
        with socket.socket() as probe:
            if all(probe.connect_ex(("127.0.0.1", port + add)) for add in (1, 2, 3, 101, 201)):
                return port
    raise AssertionError("no ports")


def commands() -> list[str]:
    text = TUTORIAL.read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(TUTORIAL_S_MAX + 60)
def test_the_tutorial_s_commands_do_what_it_says(tmp_path: Path) -> None:
    port = free_port()
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = "".join(
        f"echo '{MARK}{number}'\n{command.replace('--detach', f'--detach --port {port}')}\n"
        for number, command in enumerate(commands())
    )
    nodes = ",".join(f"127.0.0.1:{port + number}" for number in (1, 2, 3))
    environment = os.environ | {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FLOTILLA_ENDPOINTS": nodes,
        "PYTHONUNBUFFERED": "1",
    }
    with (tmp_path / "out.txt").open("w") as out:
        try:
            done = subprocess.run(
                ["bash", "-eu", "-c", script],
                cwd=tmp_path,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=TUTORIAL_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.fail(f"not after {TUTORIAL_S_MAX} s:\n{(tmp_path / 'out.txt').read_text()}")
        finally:
            down = [str(Path(sys.executable).parent / "flotilla-cluster"), "down"]
            subprocess.run(down, cwd=tmp_path, check=False, capture_output=True)
    said = (tmp_path / "out.txt").read_text()
    assert done.returncode == 0, said
    parts = said.split(MARK)[1:]
    outputs = {
        command: part.partition("\n")[2] for command, part in zip(commands(), parts, strict=True)
    }

    pages = len(list((ROOT / "docs").glob("*.md")))
    assert outputs["python examples/jobs/submit.py docs/*.md"] == f"{pages} jobs\n"
    assert outputs["ls out | wc -l"].strip() == str(pages)
    [sums] = [output for command, output in outputs.items() if "totals.py" in command]
    cents = 2 * sum(100 + number for number in range(1, 61))
    expected = f"120 orders, {cents} cents"
    assert sums == f"billing.db: {expected}\nstock.db: {expected}\n"
    assert "200 prices read" in said
    assert "5 prices read" in said
