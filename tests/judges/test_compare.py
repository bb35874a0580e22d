"""`flotilla-check compare` and `--judge`: which judge a run gets, and where two of them differ."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analytics.cli import main
from analytics.command import choice, plain
from analytics.command.choice import AUTO, SPARK, TWINS, chosen
from analytics.twins.checks import IDENTITY
from tests.judges.broken_scenes import lost_acknowledged
from tests.judges.world import legal

VALID_SEED, OTHER_SEED = 1, 2
DOCS = Path(__file__).parents[2] / "docs" / "checks.md"


def check(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory of two runs."""
    for seed in (VALID_SEED, OTHER_SEED):
        legal(seed).write(tmp_path / "runs" / f"run-{seed}")
    return tmp_path / "runs"


def lost(directory: Path) -> None:
    """Write a run that lost something."""
    history = legal(VALID_SEED)
    lost_acknowledged(history, random.Random(1))
    history.write(directory)


# --- which judge ---------------------------------------------------------------------------------


def test_a_small_run_is_judged_by_the_twins_and_the_command_says_why(runs: Path) -> None:
    result = check(runs / "run-1")
    assert result.exit_code == 0, result.output
    assert "judge: twins" in result.stderr
    assert "are no more than 60,000" in result.stderr
    report = json.loads((runs / "run-1" / "report.json").read_bytes())
    assert report["verdict"] == "valid"
    assert "--judge spark" in (runs / "run-1" / "report.html").read_text()


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [("LINES_TWINS_MAX", 3, "lines are more than 3"), ("BYTES_TWINS_MAX", 100, "bytes are more")],
)
def test_a_larger_run_is_for_spark(
    runs: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, why: str
) -> None:
    monkeypatch.setattr(choice, limit, value)
    found = chosen(str(runs / "run-1"), AUTO)
    assert found.judge == SPARK
    assert why in found.why


def test_parquet_and_what_is_elsewhere_are_for_spark(runs: Path) -> None:
    (runs / "run-1" / "history.parquet").mkdir()
    assert chosen(str(runs / "run-1"), AUTO).judge == SPARK
    assert chosen("s3a://bucket/run", AUTO).judge == SPARK


def test_who_insists_is_not_told_why(runs: Path) -> None:
    assert chosen(str(runs / "run-1"), TWINS) == choice.Choice(TWINS, "")
    assert "judge:" not in check(runs / "run-1", "--judge", "twins").stderr


def test_sparks_options_are_none_of_the_twins(runs: Path) -> None:
    result = check(runs / "run-1", "--judge", "twins", "--memory", "2g")
    assert result.exit_code == 2
    assert "--memory" in result.stderr


def test_what_the_twins_find_is_told_with_file_and_line(tmp_path: Path) -> None:
    lost(tmp_path / "run")
    result = check(tmp_path / "run", "--no-report", "--json", tmp_path / "told.json")
    assert result.exit_code == 1
    assert "history/x-p.jsonl:" in result.stdout
    assert not (tmp_path / "run" / "report.json").exists()
    assert json.loads((tmp_path / "told.json").read_bytes())["verdict"] == "invalid"


def test_nothing_to_read_is_unknown(tmp_path: Path) -> None:
    result = check(tmp_path, "--judge", "twins")
    assert result.exit_code == 2
    assert "unknown" in result.stdout


# --- seal ----------------------------------------------------------------------------------------


def test_a_sealed_run_is_valid_and_a_cut_one_is_not(runs: Path) -> None:
    run = runs / "run-1"
    document = json.loads((run / "run.json").read_bytes())
    del document["history"]
    (run / "run.json").write_text(json.dumps(document))
    assert check(run).exit_code == 2
    sealed = check("seal", run)
    assert sealed.exit_code == 0, sealed.output
    assert check(run).exit_code == 0
    file = sorted((run / "history").iterdir())[0]
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    assert check(run).exit_code == 2


def test_nothing_to_seal_is_said_so(tmp_path: Path) -> None:
    result = check("seal", tmp_path)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert check("seal", tmp_path / "nowhere").exit_code == 2


# --- compare -------------------------------------------------------------------------------------


def test_a_judge_agrees_with_itself(runs: Path) -> None:
    result = check("compare", runs, "--judges", "twins,auto")
    assert result.exit_code == 0, result.output
    assert "2 runs, 0 differ" in result.stdout


def test_two_versions_reports_are_compared_run_by_run(runs: Path, tmp_path: Path) -> None:
    for directory in (runs / "run-1", runs / "run-2"):
        plain.judge(directory)
    lost(tmp_path / "other" / "run-1")
    plain.judge(tmp_path / "other" / "run-1")
    legal(OTHER_SEED).write(tmp_path / "other" / "run-2")
    told = tmp_path / "told.json"
    result = check("compare", runs, tmp_path / "other", "--json", told)
    assert result.exit_code == 1, result.output
    found = json.loads(told.read_bytes())["differences"]
    assert {one["run"] for one in found} == {"run-1"}
    assert {"verdict", "lost"} <= {one["what"] for one in found}
    assert "2 runs, 1 differ" in result.stdout


def test_two_reports_are_compared_as_files(runs: Path) -> None:
    for directory in (runs / "run-1", runs / "run-2"):
        plain.judge(directory)
    first, second = (runs / name / "report.json" for name in ("run-1", "run-2"))
    assert check("compare", first, first).exit_code == 0
    text = first.read_text().replace('"valid"', '"unknown"', 1)
    second.write_text(text)
    result = check("compare", first, second)
    assert result.exit_code == 1
    assert "verdict" in result.stdout


def test_rows_are_told_apart_by_what_identifies_them(tmp_path: Path) -> None:
    lost(tmp_path / "a")
    lost(tmp_path / "b")
    for name in "ab":
        plain.judge(tmp_path / name)
    report = tmp_path / "b" / "report.json"
    document = json.loads(report.read_bytes())
    row = next(one for one in document["checks"] if one["name"] == "lost")["witnesses"][0]
    row["other_id"] = 77  # says how to see it, and does not identify it
    report.write_text(json.dumps(document))
    assert check("compare", tmp_path / "a", tmp_path / "b").exit_code == 0
    row["id"] += 1
    report.write_text(json.dumps(document))
    result = check("compare", tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 1
    assert f"id {row['id']}" in result.stdout


def test_a_run_that_only_one_side_has_cannot_be_compared(runs: Path, tmp_path: Path) -> None:
    legal(VALID_SEED).write(tmp_path / "other" / "run-1")
    result = check("compare", runs, tmp_path / "other")
    assert result.exit_code == 2
    assert "run-2 is not in" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("one",),
        ("one", "two", "three"),
        ("nowhere", "--judges", "twins,spark"),
        (".", "--judges", "twins"),
        (".", "--judges", "twins,somebody"),
    ],
)
def test_what_cannot_be_meant_is_an_error_of_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check("compare", *arguments).exit_code == 2


def test_no_report_is_no_traceback(runs: Path) -> None:
    for text in ("", "[]", '{"verdict": 1}'):
        (runs / "run-1" / "report.json").write_text(text)
        result = check("compare", runs, runs)
        assert result.exit_code == 2, text
        assert "is no report of flotilla-check" in result.stdout


def test_a_run_whose_directory_is_called_like_a_command_can_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    legal(VALID_SEED).write(tmp_path / "compare")
    monkeypatch.chdir(tmp_path)
    assert check("./compare").exit_code == 0


def test_help_names_every_command(tmp_path: Path) -> None:
    text = check("--help").output
    assert "compare" in text
    assert "seal" in text
    assert "DIRECTORY" in check("seal", "--help").output
    assert "--judges" in check("compare", "--help").output


def test_every_check_has_what_identifies_its_rows_as_documented() -> None:
    said = {}
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        name = cells[1].split("`")[1] if len(cells) > 3 and "`" in cells[1] else ""
        if name in IDENTITY:
            said.setdefault(name, cells[2])
    assert set(said) == set(IDENTITY)
    words = {"client_id": "client", "word": "first word of `detail`"}
    for name, fields in IDENTITY.items():
        for field in fields:
            assert words.get(field, field) in said[name], (name, field)
