"""Commands whose extra is not installed: which one, how to get it, exit code 2, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
LIBRARIES: Final = (
    "click", "rich", "structlog", "pysyncobj", "nacl", "cryptography", "pyspark", "jinja2",
    "plotly",
)  # fmt: skip
COMMANDS: Final = {
    "flotilla-node": ("node", "cluster"),
    "flotilla-cluster": ("local", "cluster"),
    "flotilla-chaos": ("chaos", "chaos"),
    "flotilla-check": ("check", "analytics"),
    "flotilla-simulate": ("simulate", "cluster"),
    "flotilla-keys": ("keys", "cluster"),
}
MODULES: Final = {
    "cluster": "cluster",
    "chaos": "chaos",
    "chaos.simulation": "cluster",
    "chaos.bench": "cluster",
    "analytics": "analytics",
}


def without(libraries: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Run code where these libraries cannot be imported."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({libraries!r})); "
    return subprocess.run(
        [sys.executable, "-c", hidden + code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"},
        check=False,
    )


def check_said(ended: subprocess.CompletedProcess[str], command: str, extra: str) -> None:
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"{command}: needs the extra `{extra}`")
    assert f"in a checkout:\n    pip install ./client '.[{extra}]'\n" in ended.stderr
    assert "pip install 'flotilla" not in ended.stderr, "the names are not on the index"
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_extra_says_which_one(command: str) -> None:
    entry, extra = COMMANDS[command]
    ended = without(LIBRARIES, f"import flotilla_commands; sys.exit(flotilla_commands.{entry}())")
    check_said(ended, command, extra)


@pytest.mark.parametrize("module", MODULES)
def test_so_does_a_module_that_is_run(module: str) -> None:
    ended = without(LIBRARIES, f"import runpy; runpy.run_module({module!r}, run_name='__main__')")
    check_said(ended, ended.stderr.partition(":")[0], MODULES[module])


@pytest.mark.parametrize("library", ["click", "pysyncobj", "structlog"])
def test_a_single_library_that_is_missing_is_named(library: str) -> None:
    ended = without((library,), "import flotilla_commands; sys.exit(flotilla_commands.node())")
    check_said(ended, "flotilla-node", "cluster")
    assert f"({library} is not installed)" in ended.stderr


def test_a_demonstration_without_spark_says_so_before_it_begins(tmp_path: Path) -> None:
    demo = f"from chaos.cli import commands; commands(['demo', '--out', {str(tmp_path / 'run')!r}])"
    check_said(without(("pyspark",), demo), "flotilla-chaos demo", "analytics")
    assert list(tmp_path.iterdir()) == []


def test_without_the_client_library_it_is_asked_for() -> None:
    ended = without(("flotilla_client",), "import flotilla_commands; flotilla_commands.node()")
    assert ended.returncode == 2
    assert ended.stderr.startswith("flotilla-node: needs the client library")
    assert "pip install flotilla" not in ended.stderr, "the names are not on the index"


def test_another_project_s_package_of_the_same_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "flotilla_client").mkdir()
    (tmp_path / "flotilla_client" / "__init__.py").touch()
    (tmp_path / "command.py").write_text("from flotilla_client.protocol import PUT")
    code = "from cluster.extras import run; run('flotilla-node', 'command', 'cluster')"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code],  # without what an editable installation puts in between
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    where = tmp_path / "flotilla_client" / "__init__.py"
    assert f"the package `flotilla_client` in {where} is another project's" in ended.stderr


def test_a_module_of_ours_that_is_missing_is_a_defect_and_not_an_extra() -> None:
    ended = without(("cluster.node.replica",), "import flotilla_commands; flotilla_commands.node()")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr


def interrupted(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose module is `program`, in which ctrl-C is `ctrl_c()`."""
    ctrl_c = "import os, signal, time\ndef ctrl_c(): os.kill(os.getpid(), signal.SIGINT)\n"
    (directory / "command.py").write_text(ctrl_c + program)
    code = "from cluster.extras import run; sys.exit(run('flotilla-node', 'command', 'cluster'))"
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {code}"],
        env={"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_an_interrupt_amid_the_imports_of_a_command_ends_it_without_a_word(tmp_path: Path) -> None:
    ended = interrupted(tmp_path, "ctrl_c()\ntime.sleep(20)")
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_an_interrupt_behind_the_imports_is_for_the_command_to_answer(tmp_path: Path) -> None:
    program = "def main():\n try: ctrl_c(); time.sleep(20)\n except KeyboardInterrupt: return 7"
    assert interrupted(tmp_path, program).returncode == 7


def test_an_interrupt_that_the_caller_ignores_stays_ignored(tmp_path: Path) -> None:
    """As `nohup` and a shell's `&` have it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ended = interrupted(tmp_path, "ctrl_c()\ndef main(): ctrl_c(); return 7")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.returncode == 7
