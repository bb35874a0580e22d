"""The ways of a PUT and of a GET in docs/design.md are taken; the files that it names are there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from chaos.simulation.plan.plan import Plan
from chaos.simulation.search.run import run

ROOT: Final = Path(__file__).parents[2]
DESIGN: Final = ROOT / "docs/design.md"
STEP: Final = re.compile(r"^\d+\. `([^`]+)` `([^`]+)`: ", re.MULTILINE)
OURS: Final = re.compile(re.escape(str(ROOT)) + r"/((?:cluster|client/flotilla_client)/.*)$")
ROLES: Final = (
    {"topics": ["x"], "puts": 1.0, "pause_s": 0.2, "is_awaiting": True},
    {"topics": ["x"], "gets": 1.0, "pause_s": 0.5, "get_count": 3, "is_awaiting": True},
)
SEEDS: Final = range(1, 9)  # who reads one by one, and who in a loop, is drawn
Step = tuple[str, str]  # file, function

# One worker does the runs, each once.
pytestmark = pytest.mark.xdist_group("design")


def written(title: str) -> list[Step]:
    """Return the steps of a way as the document has them."""
    text = DESIGN.read_text(encoding="utf-8").partition(f"**{title}**")[2]
    section = re.split(r"^\*\*|^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return STEP.findall(section)


@cache
def taken(seed: int) -> Sequence[Step]:
    """Return every call of the product's functions in a short run: two clients, three nodes."""
    calls: list[Step] = []
    names: dict[str, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        file = frame.f_code.co_filename
        if file not in names:
            found = OURS.search(file)
            names[file] = found[1] if found else ""
        if names[file]:
            calls.append((names[file], frame.f_code.co_qualname))

    plan = Plan(seed, 3, 2, 4.0, knobs={"load": {"roles": ROLES}, "wire": 1}, schedule=())
    sys.setprofile(note)
    try:
        result = run(plan)
    finally:
        sys.setprofile(None)
    assert result.failures == (), seed
    return calls


def stretches(calls: Sequence[Step], first: Step) -> Iterator[Sequence[Step]]:
    """Yield what was called from each call of `first` until its second next one."""
    starts = [number for number, call in enumerate(calls) if call == first]
    for start, end in zip(starts, [*starts[2:], len(calls)], strict=False):
        yield calls[start:end]


def followed(steps: Sequence[Step], calls: Sequence[Step]) -> int:
    """Return how many of the steps come one behind the other."""
    rest = iter(calls)
    count = 0
    for step in steps:
        if step not in rest:
            break
        count += 1
    return count


@pytest.mark.parametrize("title", ["The way of a PUT", "The way of a GET"])
def test_a_request_goes_the_way_that_is_written_down(title: str) -> None:
    steps = written(title)
    assert len(steps) >= 20
    furthest = 0
    for seed in SEEDS:
        reached = (followed(steps, calls) for calls in stretches(taken(seed), steps[0]))
        furthest = max([furthest, *reached])
        if furthest == len(steps):
            break
    assert furthest == len(steps), f"nobody gets from step {furthest} to {steps[furthest]}"


def test_a_put_stands_in_as_many_files_of_a_node_as_the_design_says() -> None:
    files = {file for file, _ in written("The way of a PUT") if file.startswith("cluster/")}
    assert f"stand in {len(files)} files of `cluster/`" in " ".join(DESIGN.read_text().split())
    assert len(files) <= 12, sorted(files)


@pytest.mark.parametrize(
    "stranger", [("cluster/serve/broker.py", "Broker.abdicate"), ("a.py", "b")]
)
def test_a_step_that_nobody_takes_is_noticed(stranger: Step) -> None:
    steps = written("The way of a PUT")
    wrong = [*steps[:9], stranger, *steps[9:]]
    found = max(followed(wrong, calls) for calls in stretches(taken(SEEDS[0]), steps[0]))
    assert found == 9


def test_the_files_and_functions_to_change_for_something_are_there() -> None:
    """Follow "Where to change what": a name belongs to the file before it."""
    section = DESIGN.read_text(encoding="utf-8").partition("## 7. Where to change what")[2]
    changes = re.split(r"^\*\*", section.partition("\n## ")[0], flags=re.MULTILINE)[1:]
    assert len(changes) >= 15
    for change in changes:
        title, files = change.split("\n", maxsplit=1)
        file = Path()
        for name in re.findall(r"`([^`]+)`", files):
            if "/" in name:
                file = ROOT / name
                assert file.is_file(), f"{name}, of: {title}"
            elif "*" not in name and " " not in name:
                source = file.read_text(encoding="utf-8")
                last = name.rpartition(".")[2]
                found = re.search(rf"^\s*(?:def |class )?{last}\b", source, re.MULTILINE)
                assert found, f"{name} in {file}, of: {title}"


def test_the_map_has_every_module_of_client_and_cluster_in_its_folder() -> None:
    drawn = DESIGN.read_text(encoding="utf-8").partition("## 2. The house")[2].split("```")[1]
    own = re.split(r"^(?=\S)", drawn, flags=re.MULTILINE)
    for package in ("client/flotilla_client", "cluster"):
        (part,) = (text for text in own if text.startswith(f"{package}/"))
        folders = re.split(r"^    (?=\w+/)", part, flags=re.MULTILINE)
        named = {text.partition("/")[0]: text for text in folders[1:]} | {"": part}
        for path in (ROOT / package).rglob("*.py"):
            if not path.name.startswith("__"):
                folder, _, name = path.relative_to(ROOT / package).as_posix().rpartition("/")
                assert re.search(rf"\b{name}", named[folder]), f"{path} is not in the map"


def test_the_map_has_every_folder_of_chaos_analytics_and_tests() -> None:
    drawn = DESIGN.read_text(encoding="utf-8").partition("## 2. The house")[2].split("```")[1]
    parts = {
        part.partition("/")[0]: part for part in re.split(r"^(?=\S)", drawn, flags=re.MULTILINE)
    }
    for package in ("chaos", "analytics", "tests"):
        for path in (ROOT / package).iterdir():
            if any(path.glob("*.py")):
                assert f" {path.name}/" in parts[package], f"{path} is not in the map"
