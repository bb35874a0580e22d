"""The interactive shell: verbs in any case, verbatim text, completion, history."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pexpect
import pytest

from flotilla_client.cli import add_verbs
from flotilla_client.errors import Unavailable
from flotilla_client.shell import Shell
from tests.unit.fake_node import FakeNode

PATIENCE_S = 15


class Executed:
    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> bool:
        self.calls.append(list(argv))
        return True


@pytest.fixture
def executed() -> Executed:
    return Executed()


@pytest.fixture
def shell(executed: Executed, tmp_path: Path) -> Shell:
    shell = Shell(executed, lambda: ["orders", "other"], tmp_path / "history")
    shell.stdout = io.StringIO()
    return shell


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("SUB t", ["sub", "t"]),
        ("unSub t", ["unsub", "t"]),
        ("get", ["get"]),
        ("GET t --wait 1", ["get", "t", "--wait", "1"]),
        ('sub "two words"', ["sub", "two words"]),
        ('put t it\'s  "quoted"', ["put", "--", "t", 'it\'s  "quoted"']),
        ("PUT t --json", ["put", "--", "t", "--json"]),
        ('put t "two words"', ["put", "--", "t", "two words"]),
        ("put t 'one' and 'two'", ["put", "--", "t", "'one' and 'two'"]),
    ],
)
def test_a_line_becomes_arguments(
    shell: Shell, executed: Executed, line: str, argv: list[str]
) -> None:
    assert not shell.onecmd(line)
    assert executed.calls == [argv]


@pytest.mark.parametrize(
    "line", ["", "put t", "put t -", "put", "help", "bogus", '"unbalanced', "sub 'a"]
)
def test_what_is_no_complete_command_is_not_executed(
    shell: Shell, executed: Executed, line: str
) -> None:
    if line == '"unbalanced':
        line = 'get "unbalanced'
    assert not shell.onecmd(line)
    assert executed.calls == []


@pytest.mark.parametrize("line", ["bogus", "put t", "sub 'a"])
def test_complaints_go_to_stderr(
    shell: Shell, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert not shell.onecmd(line)
    assert isinstance(shell.stdout, io.StringIO)
    assert shell.stdout.getvalue() == ""
    assert capsys.readouterr().err.strip()


def test_every_verb_of_the_command_line_is_there_and_in_the_help(
    shell: Shell, executed: Executed
) -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    add_verbs(verbs)
    shell.onecmd("help")
    assert isinstance(shell.stdout, io.StringIO)
    told = shell.stdout.getvalue()
    for verb in verbs.choices:
        shell.onecmd(f"{verb} topic text")
        assert executed.calls[-1][0] == verb
        assert f"\n{verb.upper()} " in f"\n{told}"


def test_wrong_usage_is_said_as_by_the_command_line(tmp_path: Path) -> None:
    with FakeNode() as node:
        arguments = ["-e", node.endpoint, "--state", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "flotilla_client.cli", *arguments, "shell"],
            input=b"get --bogus\n",
            capture_output=True,
            env=os.environ | {"PYTHONPATH": "client"},
            check=False,
        )
    assert done.returncode == 1
    assert b"flotilla: error: unrecognized arguments: --bogus" in done.stderr


@pytest.mark.parametrize("line", ["EXIT", "exit", "Quit", "EOF"])
def test_leaving(shell: Shell, line: str) -> None:
    assert shell.onecmd(line)


def test_verbs_and_own_topics_are_completed(shell: Shell) -> None:
    assert shell.completenames("un") == ["unsub "]
    assert shell.completenames("ST") == ["STATUS "]
    assert shell.completedefault("ord", "GET ord", 4, 7) == ["orders "]


def test_completion_without_a_cluster_offers_nothing(executed: Executed, tmp_path: Path) -> None:
    def topics() -> list[str]:
        raise Unavailable("down")

    assert Shell(executed, topics, tmp_path / "history").completedefault("", "GET ", 4, 4) == []


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[pexpect.spawn]:
    with FakeNode() as node:
        terminal = pexpect.spawn(
            sys.executable,
            ["-m", "flotilla_client.cli", "-e", node.endpoint, "--state", str(tmp_path), "shell"],
            env=os.environ | {"PYTHONPATH": "client", "TERM": "dumb"},
            timeout=PATIENCE_S,
        )
        yield terminal
        terminal.close(force=True)


def test_on_a_terminal_it_talks_completes_survives_ctrl_c_and_remembers(
    terminal: pexpect.spawn, tmp_path: Path
) -> None:
    terminal.expect("flotilla> ")
    terminal.sendline("SUB orders")
    terminal.expect("subscribed: publications after id 0")
    terminal.expect("flotilla> ")
    terminal.sendline("put orders one more")
    terminal.expect("1\r\n")
    terminal.expect("flotilla> ")
    terminal.sendline("get nowhere")
    terminal.expect("not_subscribed")
    terminal.expect("flotilla> ")
    terminal.sendline("frob")
    terminal.expect("unknown command 'frob': try HELP")
    terminal.expect("flotilla> ")
    terminal.sendintr()
    terminal.expect("flotilla> ")
    terminal.send("GET ord\t--json\n")
    terminal.expect("one more")
    terminal.expect("flotilla> ")
    terminal.sendline("get orders")
    terminal.expect("nothing new")
    terminal.expect("flotilla> ")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert (terminal.exitstatus, terminal.signalstatus) == (0, None)
    assert "put orders one more" in (tmp_path / "history").read_text()


@pytest.mark.parametrize(
    ("script", "code"), [(b"sub t\nput t x\nget\nget", 0), (b"bogus\nsub t", 1)]
)
def test_of_a_script_only_the_output_is_shown_and_a_failure_is_the_exit_code(
    tmp_path: Path, script: bytes, code: int
) -> None:
    with FakeNode() as node:
        arguments = ["-e", node.endpoint, "--state", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "flotilla_client.cli", *arguments, "shell"],
            input=script,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": "client"},
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == code
    if code == 0:
        assert done.stdout == b"subscribed: publications after id 0 will come\n1\nx\n"
        assert done.stderr == b"nothing new\n"


def test_a_script_publishes_what_is_no_text_in_the_terminal_s_encoding(
    node: FakeNode, tmp_path: Path
) -> None:
    options = ["-e", node.endpoint, "--state", str(tmp_path / "state")]
    done = subprocess.run(
        [sys.executable, "-m", "flotilla_client.cli", *options, "shell"],
        input=b"sub t\nput t \xff\nput t b\n",
        capture_output=True,
        env=os.environ | {"PYTHONPATH": "client", "PYTHONIOENCODING": "utf-8:strict"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert node.cluster.topics["t"] == [b"\xff", b"b"]
