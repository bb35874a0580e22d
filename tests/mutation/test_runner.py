"""The runner, with a project of one module, real processes and real files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.mutation.ledger import BASELINE
from tests.mutation import fake_project
from tests.mutation.fake_project import FAILING, HANGING, LIMIT, ORDER, SPARE

ROOT = Path(__file__).resolve().parents[2]


def _run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chaos.mutation", "--root", str(root)]
    state = ["--state", str(root / "runs/mutants.jsonl"), "--seeds", "5", "--jobs", "1"]
    return subprocess.run(
        [*command, *state, *options], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def _children(pid: int) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            children.append(int(path.parent.name))
    return children


def _results(root: Path) -> dict[str, dict[str, object]]:
    lines = (root / "runs/mutants.jsonl").read_text().splitlines()
    rows = map(json.loads, lines)
    return {row["name"]: row for row in rows if row["name"] != BASELINE}


@pytest.mark.slow  # a dozen processes
def test_each_mutant_meets_its_end_and_survivors_are_told(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path)

    done = _run(root, "--report", str(root / "runs/report.md"))

    assert done.returncode == 1, done.stderr
    results = _results(root)
    ends = {name: (row["verdict"], row["by"]) for name, row in results.items()}
    assert ends == {
        "unordered": ("killed", "simulation"),
        "limit": ("killed", "tests"),
        "spare": ("survived", ""),
    }
    assert (results["unordered"]["what"], results["unordered"]["seed"]) == ("order", 3)
    assert results["limit"]["what"] == "test_product.py::test_the_limit_is_three"
    assert "nobody noticed spare" in done.stdout
    page = (root / "runs/report.md").read_text()
    assert "breaks: a promise" in page
    assert "simulation: order, seed 3" in page
    assert (root / "product.py").read_text() == fake_project.PRODUCT


@pytest.mark.slow  # a dozen processes
def test_all_noticed_is_exit_code_0_and_an_equivalent_is_not_run(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path, equivalents="spare")

    done = _run(root, "--report", str(root / "runs/report.json"))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "spare" not in _results(root)
    document = json.loads((root / "runs/report.json").read_text())
    assert document["summary"] == {
        "equivalent": 1,
        "killed by simulation": 1,
        "killed by tests": 1,
    }


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_and_repeats_what_has_changed(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path)
    _run(root)
    before = (root / "runs/mutants.jsonl").read_text()

    _run(root)
    assert (root / "runs/mutants.jsonl").read_text() == before

    fake_project.write_mutants(root, [ORDER, LIMIT, (SPARE[0], SPARE[1], "return number * 2\n")])
    _run(root)
    after = (root / "runs/mutants.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in after[len(before.splitlines()) :]] == ["spare"]

    (root / "product.py").write_text(fake_project.PRODUCT + "\nMORE = 1\n")
    _run(root)
    lines = (root / "runs/mutants.jsonl").read_text().splitlines()
    names = [json.loads(line)["name"] for line in lines]
    assert names[len(after) :] == [BASELINE, "unordered", "limit", "spare"]


@pytest.mark.slow
def test_survivors_run_again_when_asked_or_with_more_seeds(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path, [ORDER, SPARE])
    assert _run(root, "--seeds", "2", "--no-tests").returncode == 1
    assert {row["verdict"] for row in _results(root).values()} == {"survived"}

    assert _run(root, "--seeds", "4", "--no-tests").returncode == 1
    assert _results(root)["unordered"]["seed"] == 3

    count = len((root / "runs/mutants.jsonl").read_text().splitlines())
    _run(root, "--seeds", "4", "--no-tests", "--again")
    lines = (root / "runs/mutants.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines[count:]] == ["spare"]


def test_a_mutant_that_hangs_is_bounded(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path, [HANGING], silence_s_max=1)

    done = _run(root, "--no-baseline")

    assert done.returncode == 0, done.stderr
    assert _results(root)["hanging"]["what"] == "hangs"


def test_a_mutant_that_ends_the_simulation_is_noticed(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path, [FAILING])

    assert _run(root).returncode == 0
    assert _results(root)["failing"]["what"] == "breaks"
    assert "no product" in str(_results(root)["failing"]["detail"])


@pytest.mark.parametrize(
    ("old", "new", "who"),
    [("sorted(values)", "values", "the simulation"), ("<= 3", "<= 4", "a test of product.py")],
)
def test_a_tree_that_fails_as_it_is_proves_nothing(
    tmp_path: Path, old: str, new: str, who: str
) -> None:
    root = fake_project.make(tmp_path, [SPARE])
    product = root / "product.py"
    product.write_text(product.read_text().replace(old, new))

    done = _run(root)

    assert done.returncode == 2
    assert f"{who} finds fault with the tree as it is" in done.stderr


def test_a_sample_is_decided_by_its_seed(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path)

    def sample(seed: str) -> list[str]:
        return _run(root, "--list", "--sample", "1", "--seed", seed).stdout.splitlines()

    assert sample("0") == sample("0")
    assert sample("0") != sample("1")
    assert len(sample("1")) == 2  # the mutant, and how many


def test_operators_make_mutants_of_the_modules_that_are_named(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path)

    listed = _run(root, "--list", "--from", "operators").stdout

    assert "product.py:9:off-by-one" in listed
    assert "simulation.py" not in listed


def test_what_can_not_be_used_is_exit_code_2(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path)

    assert _run(root, "--only", "nothing*").returncode == 2
    assert _run(root, "--seeds", "0", "--no-tests").returncode == 2
    (root / "runs").mkdir(exist_ok=True)
    (root / "runs/mutants.jsonl").write_text('{"name": 1}\n')
    done = _run(root)
    assert done.returncode == 2
    assert "mutants.jsonl:1 is no result" in done.stderr


@pytest.mark.slow
def test_half_a_line_of_a_run_that_was_killed_is_cut_off(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path, [ORDER])
    _run(root)
    state = root / "runs/mutants.jsonl"
    whole = state.read_text()
    state.write_text(whole + '{"name": "unor')

    assert _run(root).returncode == 0
    assert state.read_text() == whole


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_leaves_a_state_that_the_next_run_goes_on_with(
    tmp_path: Path, number: signal.Signals
) -> None:
    root = fake_project.make(tmp_path, [ORDER, HANGING, LIMIT], silence_s_max=60)
    state = root / "runs/mutants.jsonl"
    command = [sys.executable, "-m", "chaos.mutation", "--root", str(root), "--no-baseline"]
    command += ["--state", str(state), "--seeds", "5", "--jobs", "1"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline_s = time.monotonic() + 60
    while not (state.exists() and (hanging := _children(process.pid))):
        assert time.monotonic() < deadline_s, "no second mutant hangs"
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130, errors
    assert b"goes on with" in errors
    assert [pid for pid in hanging if Path(f"/proc/{pid}").exists()] == []
    assert list(_results(root)) == ["unordered"]
    assert _run(root, "--no-baseline", "--only", "limit").returncode == 0
    assert list(_results(root)) == ["unordered", "limit"]
