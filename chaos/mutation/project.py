"""What the runner has to know of a project: its file `mutation.toml`.

What lives here: reading that file. What must not: running what it says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chaos.mutation import mutants, operators
from chaos.mutation.mutants import Mutant, MutationError

FILE: Final = Path("tests/mutation/mutation.toml")
_KEYS: Final = {
    "simulation": {"command", "silence_s_max"},
    "tests": {"command", "seconds_max", "nearest"},
    "tree": {"paths", "left_out", "linked", "precompiled"},
    "operators": {"modules"},
}


@dataclass(frozen=True)
class Project:
    """A project that mutants are made of.

    `simulation_command`: with `{python}` and `{seeds}` (as 1..40) to be filled in; prints a line of
    JSON a seed. `silence_s_max`: without a line for so long it hangs. `tests_command`: `{python}`;
    the tests' files follow. `nearest`: module -> tests. `paths`: of the tree, for PYTHONPATH.
    `left_out`: names that are not copied; `linked`: files that copies share. `precompiled`:
    directories. `modules`: what operators work on.
    """

    root: Path
    simulation_command: tuple[str, ...]
    silence_s_max: float
    tests_command: tuple[str, ...]
    tests_seconds_max: float
    nearest: dict[str, tuple[str, ...]]
    paths: tuple[str, ...]
    left_out: tuple[str, ...]
    linked: tuple[str, ...]
    precompiled: tuple[str, ...]
    modules: tuple[str, ...]

    def source(self, file: str) -> str:
        """Return the text of a file of the tree."""
        return (self.root / file).read_text(encoding="utf-8")

    def by_hand(self) -> list[Mutant]:
        """Return the mutants that were written by hand. Raises MutationError."""
        return mutants.load(self.root / FILE.parent / "mutants", self.root)

    def generated(self) -> list[Mutant]:
        """Return the mutants that operators make."""
        return [
            mutant
            for module in self.modules
            for mutant in operators.generate(module, self.source(module))
        ]

    def equivalents(self, by_hand: Sequence[Mutant]) -> dict[str, str]:
        """Return {name: why it breaks nothing}. Raises MutationError."""
        path = self.root / FILE.parent / "equivalents.toml"
        return mutants.load_equivalents(path, {mutant.name: mutant for mutant in by_hand})


def load(root: Path) -> Project:
    """Return the project at `root`. Raises MutationError."""
    path = root / FILE
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise MutationError(f"{path}: {error}") from None
    found = {table: set(rows) for table, rows in document.items() if isinstance(rows, dict)}
    if found != _KEYS:
        raise MutationError(f"{path} has {found}; {_KEYS} are due")
    simulation, tests, tree = document["simulation"], document["tests"], document["tree"]
    project = Project(
        root,
        _texts(simulation["command"]),
        float(simulation["silence_s_max"]),
        _texts(tests["command"]),
        float(tests["seconds_max"]),
        {module: _texts(files) for module, files in tests["nearest"].items()},
        _texts(tree["paths"]),
        _texts(tree["left_out"]),
        _texts(tree["linked"]),
        _texts(tree["precompiled"]),
        _texts(document["operators"]["modules"]),
    )
    named = {*project.nearest, *project.modules, *sum(project.nearest.values(), ())}
    missing = sorted(name for name in named if not (root / name).exists())
    if missing:
        raise MutationError(f"{path} names what is not there: {', '.join(missing)}")
    return project


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise MutationError(f"{value!r} is no list of texts")
    return tuple(value)
