"""What chaos/cli.py promises: exit codes, refusals before anything starts, orderly interrupts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos import cli
from chaos.run import launch
from chaos.run.run_result import RunResult
from chaos.spec import experiment
from chaos.targets import leftovers


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore what the command line does to this process's signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_list_names_every_experiment_and_show_prints_its_file() -> None:
    listed = CliRunner().invoke(cli.commands, ["list"])
    assert listed.exit_code == 0
    for name in experiment.names():
        assert name in listed.output
        shown = CliRunner().invoke(cli.commands, ["show", name])
        assert launch.load(name).about in listed.output
        text = (experiment.EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8")
        assert shown.output == text


def test_show_with_a_seed_tells_when_each_fault_comes_the_same_for_the_same_seed() -> None:
    def shown(seed: str) -> str:
        arguments = ["show", "client-crash-and-kill", "--seed", seed, "--duration", "20"]
        return CliRunner().invoke(cli.commands, arguments).output

    assert shown("7") == shown("7") != shown("8")
    injections = [line for line in shown("7").splitlines() if "  inject " in line]
    assert len(injections) > 2
    assert injections[0].endswith("1.00  inject kill-leader + client-crash")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "none", "--seed", "-5"],
        ["run", "none", "--seed", str(2**63)],
        ["suite", "none", "--minutes", "0"],
    ],
)
def test_numbers_that_no_run_can_have_are_errors_of_usage(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli.commands, arguments)
    assert done.exit_code == 2
    assert "is not in the range" in done.output


@pytest.mark.parametrize(
    "arguments",
    [["run", "none", "--duration", "nan"], ["suite", "none", "--minutes", "nan"]],
)
def test_what_is_no_number_at_all_is_in_no_range(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli.commands, arguments)
    assert done.exit_code == 2
    assert "nan is not in any range" in done.output


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["run", "kill-leadr"], "no experiment 'kill-leadr': did you mean 'kill-leader'? There"),
        (["show", "kil-all"], "no experiment 'kil-all': did you mean 'kill-all'? There are any-"),
        (["suite", "nones"], "no experiment 'nones': did you mean 'none'? There are any-topic"),
        (["run", "none", "--target", "lokal"], "no target 'lokal': did you mean 'local'? There"),
        (["run", "none", "--target", "namespace"], "'namespace': did you mean 'namespaces'? Th"),
        (["suite", "none", "--judge", "twin"], "no judge 'twin': did you mean 'twins'? There a"),
    ],
)
def test_a_slip_of_the_pen_is_told_which_name_was_probably_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.commands, arguments)
    assert done.exit_code == 2
    assert meant in " ".join(done.output.split())
    assert list(tmp_path.iterdir()) == []


def test_heal_tells_what_it_has_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "sweep", lambda: ["local: /runs/dead"])
    assert CliRunner().invoke(cli.commands, ["heal"]).output == "local: /runs/dead\n"


def test_heal_refuses_claims_that_are_not_to_be_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "claims").mkdir(mode=0o755)
    monkeypatch.setattr(leftovers, "run_locks_directory", lambda: tmp_path / "claims")
    done = CliRunner().invoke(cli.commands, ["heal"])
    assert done.exit_code == 2
    assert "mode 700" in done.output


def test_a_suite_of_something_strange_is_refused_before_anything_starts(tmp_path: Path) -> None:
    out = tmp_path / "new"
    for arguments in (["flood"], ["isolate-leader", "--target", "local"]):
        refused = CliRunner().invoke(cli.commands, ["suite", *arguments, "--out", str(out)])
        assert refused.exit_code == 2
        assert arguments[0] in refused.output
        assert not out.exists()


def test_a_strange_experiment_and_a_used_directory_are_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    strange = CliRunner().invoke(cli.commands, ["run", "flood", "--out", str(tmp_path / "new")])
    assert (strange.exit_code, (tmp_path / "new").exists()) == (2, False)
    assert "kill-leader" in strange.output
    (tmp_path / "old").touch()
    used = CliRunner().invoke(cli.commands, ["run", "none", "--out", str(tmp_path)])
    assert used.exit_code == 2
    assert "not empty" in used.output


def test_a_target_with_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "new"
    arguments = ["run", "none", "--target", "compose", "--nodes", "5", "--out", str(out)]
    refused = CliRunner().invoke(cli.commands, arguments)
    assert refused.exit_code == 2
    assert "3 nodes, not 5" in refused.output
    assert not out.exists()


def test_a_number_of_nodes_that_makes_no_cluster_is_told_the_ones_that_do(tmp_path: Path) -> None:
    out = tmp_path / "new"
    refused = CliRunner().invoke(cli.commands, ["run", "none", "--nodes", "2", "--out", str(out)])
    assert refused.exit_code == 2
    assert "'1', '3', '5', '7'" in refused.output
    assert not out.exists()


def test_a_target_that_cannot_be_had_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new"
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["run", "none", "--target", "compose", "--out", str(out)]
    refused = CliRunner().invoke(cli.commands, arguments)
    assert refused.exit_code == 2
    assert "neither `docker compose`" in refused.output
    assert not out.exists()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (RunResult(finished=True), 0),
        (RunResult(finished=True, problems=["too slow"]), 1),
        (RunResult(finished=False, problems=["broke"]), 2),
    ],
)
def test_the_exit_code_tells_done_from_unmet_from_unfinished(outcome: RunResult, code: int) -> None:
    assert cli.exit_code(outcome) == code


def test_a_crash_is_not_taken_for_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "commands", crash)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2


def test_what_the_system_refuses_is_told_in_a_line_and_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/runs/x/run.json")

    monkeypatch.setattr(cli, "commands", refuse)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == "cannot go on: [Errno 2] No such file or directory: '/runs/x/run.json'"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_ends_the_run_and_a_second_one_is_not_felt(number: int) -> None:
    CliRunner().invoke(cli.commands, ["list"])
    with pytest.raises(SystemExit) as caught:
        signal.raise_signal(number)
    assert caught.value.code == 130
    signal.raise_signal(number)


def test_nodes_that_are_started_after_an_interrupt_still_hear_sigterm() -> None:
    CliRunner().invoke(cli.commands, ["list"])
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGINT)
    script = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert child.stdout == b"True\n"
