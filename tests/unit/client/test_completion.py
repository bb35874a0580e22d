"""`flotilla completion`: what the shells offer, asked of the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from flotilla_client import cli, completion
from flotilla_client.completion import SHELLS

COMMANDS: Final = set(completion._commands(cli.build_parser()))
# The command as the script calls it: a table with a head, as `flotilla topics` prints it.
FLOTILLA: Final = """\
#!/bin/sh
echo "$@" >>"$(dirname "$0")/asked"
printf 'topic           last_id\\n'
printf 'orders          3\\n'
printf 'orders of july  7\\n'
case "$*" in *--all*) printf 'others          1\\nof:july         1\\n' ;; esac
"""
WAIT_S: Final = 20.0
ASK_BASH: Final = """\
source /dev/stdin <<<"$SCRIPT"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_flotilla
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH in which `flotilla` is a stub."""
    stub = tmp_path / "flotilla"
    stub.write_text(FLOTILLA)
    stub.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def offered(path: str, *words: str) -> list[str]:
    """Return what bash offers for the last of the words."""
    environ = os.environ | {"PATH": path, "SCRIPT": SHELLS["bash"](cli.build_parser())}
    command = ["bash", "--norc", "-c", ASK_BASH, "bash", *words]
    asked = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert asked.stderr == ""
    return [line for line in asked.stdout.splitlines() if line]


def test_bash_offers_the_commands_and_the_options(path: str) -> None:
    assert {"sub", "put", "get", "topics", "status", "shell", "completion"} <= COMMANDS
    assert set(offered(path, "flotilla", "")) == COMMANDS
    assert offered(path, "flotilla", "un") == ["unsub"]
    assert {"--state", "--deadline", "--endpoints"} <= set(offered(path, "flotilla", "--"))
    assert {"--follow", "--count", "--state"} <= set(offered(path, "flotilla", "get", "--"))
    assert offered(path, "flotilla", "completion", "") == sorted(SHELLS)


def test_bash_finds_the_command_behind_options_with_values(path: str) -> None:
    assert offered(path, "flotilla", "--state", "sub", "un") == ["unsub"]
    assert "--json" in offered(path, "flotilla", "-v", "-e", "a:1", "topics", "--j")


def test_bash_offers_topics_mine_to_get_and_all_to_sub(path: str, tmp_path: Path) -> None:
    assert offered(path, "flotilla", "get", "o") == ["orders", "orders\\ of\\ july"]
    assert offered(path, "flotilla", "--state", "here", "sub", "ot") == ["others"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["--deadline 2 topics", "--state here --deadline 2 topics --all"]
    assert offered(path, "flotilla", "put", "orders", "") == []  # the text is no topic


def test_bash_joins_what_it_has_parted_at_colons_and_equal_signs(path: str, tmp_path: Path) -> None:
    at = "a", ":", "1"
    assert offered(path, "flotilla", "-e", *at, "un") == ["unsub"]
    assert offered(path, "flotilla", "--endpoints", "=", *at, "--key", "k", "sub", "oth")
    assert (tmp_path / "asked").read_text() == "--endpoints=a:1 --key k --deadline 2 topics --all\n"
    assert offered(path, "flotilla", "sub", "of", ":", "j") == ["july"]
    assert offered(path, "flotilla", "sub", "of", ":") == ["july"]
    assert offered(path, "flotilla", "sub", "of:j") == ["of:july"]  # where : parts nothing


def test_bash_offers_directories_for_the_state(path: str, tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    assert offered(path, "flotilla", "--state", f"{tmp_path}/st") == [f"{tmp_path}/states"]
    assert offered(path, "flotilla", "--deadline", "1") == []


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt-get install zsh")
def test_zsh_takes_the_script_and_knows_the_commands(path: str) -> None:
    script = SHELLS["zsh"](cli.build_parser())
    ask = 'autoload -Uz compinit; compinit -u -D; eval "$SCRIPT"; print ${_comps[flotilla]}'
    environ = os.environ | {"PATH": path, "SCRIPT": script}
    command = ["zsh", "-f", "-c", ask]
    asked = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert (asked.stdout, asked.stderr) == ("_flotilla\n", "")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh: apt-get install zsh")
@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("flotilla get ", "--deadline 2 topics"),
        ("flotilla -e a:1 --key 'my key' sub ", "-e a:1 --key my key --deadline 2 topics --all"),
        ("flotilla get --endpoints=a:1 ", "--endpoints=a:1 --deadline 2 topics"),
    ],
)
def test_zsh_asks_the_cluster_that_is_named_for_its_topics(
    path: str, tmp_path: Path, typed: str, asked: str
) -> None:
    log = tmp_path / "asked"

    def has_asked() -> bool:
        return log.exists() and log.read_text().endswith("\n")

    environ = os.environ | {"PATH": path, "SCRIPT": SHELLS["zsh"](cli.build_parser())}
    ours, its = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"], env=environ, stdin=its, stdout=its, stderr=its
    ) as zsh:
        os.close(its)
        try:
            os.write(ours, b'autoload -Uz compinit; compinit -u -D; eval "$SCRIPT"; echo re""ady\n')
            _read_until(ours, lambda said: b"ready" in said)
            os.write(ours, typed.encode() + b"\t")
            _read_until(ours, lambda said: has_asked())
        finally:
            zsh.kill()
            os.close(ours)
    assert log.read_text() == f"{asked}\n"


def _read_until(terminal: int, is_there: Callable[[bytes], bool]) -> None:
    """Read what a shell shows until it is there."""
    said = b""
    while not is_there(said):
        assert select.select([terminal], [], [], WAIT_S)[0], said
        said += os.read(terminal, 4096)


def test_every_command_and_option_is_in_the_zsh_script() -> None:
    script = SHELLS["zsh"](cli.build_parser())
    for word in (*COMMANDS, "--state", "--follow", "--json", "--wait", "_flotilla_topics --all"):
        assert word in script


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_the_command_prints_the_script(
    shell: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.main(["completion", shell]) == cli.OK
    assert capfdbinary.readouterr().out.decode() == SHELLS[shell](cli.build_parser())
