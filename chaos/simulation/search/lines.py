"""Which lines of the product a run goes through, and which ones no run has reached.

What lives here: tracing, and what is left when the lines of many runs are taken together. What must
not: tables for a person (report.py), the states that a run reaches (coverage.py, features.py).

Tracing makes a run 2.5 times as slow, so that it is asked for: `flotilla-simulate --lines`. It is
done by the package `coverage`, which is imported then and not before: a node has no use for it.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coverage import Coverage

PACKAGES: Final = ("cluster", "flotilla_client")

# Modules that no simulated world has a place for, with the tests that go through them.
OUTSIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster/__main__.py": ("tests/unit/cluster/node/test_node.py",),
    "cluster/members/about.py": ("tests/unit/cluster/members/test_about.py",),
    "cluster/settings/config.py": ("tests/unit/cluster/settings/test_config.py",),
    "cluster/extras.py": ("tests/unit/cluster/test_extras.py",),
    "cluster/local/local.py": (
        "tests/unit/cluster/local/test_local.py",
        "tests/unit/cluster/local/test_cli.py",
    ),
    "cluster/local/cli.py": ("tests/unit/cluster/local/test_cli.py",),
    "cluster/settings/logs.py": ("tests/unit/cluster/settings/test_logs.py",),
    "cluster/recovery/recovery.py": (
        "tests/unit/cluster/recovery/test_recovery.py",
        "tests/cluster/test_recover.py",
    ),
    "cluster/recovery/cli.py": (
        "tests/unit/cluster/recovery/test_recovery.py",
        "tests/cluster/test_recover.py",
    ),
    "flotilla_client/arguments.py": ("tests/unit/client/test_arguments.py",),
    "flotilla_client/cli.py": ("tests/unit/client/test_cli.py",),
    "flotilla_client/completion.py": ("tests/unit/client/test_completion.py",),
    "flotilla_client/forks.py": ("tests/unit/client/test_forks.py",),
    "flotilla_client/lines.py": ("tests/unit/client/test_lines.py",),
    "flotilla_client/log.py": ("tests/unit/client/test_log.py",),
    "flotilla_client/losses.py": (
        "tests/unit/client/test_losses.py",
        "tests/cluster/test_put_back.py",
    ),
    "flotilla_client/names.py": ("tests/unit/client/test_names.py",),
    "flotilla_client/probe.py": ("tests/unit/client/test_connection.py",),
    "flotilla_client/recording.py": ("tests/unit/client/test_recording.py",),
    "flotilla_client/sharing.py": ("tests/unit/client/test_sharing.py",),
    "flotilla_client/shell.py": ("tests/unit/client/test_shell.py",),
    "flotilla_client/terminal.py": (
        "tests/unit/client/test_cli.py",
        "tests/unit/client/test_shell.py",
    ),
}

Lines = Mapping[str, frozenset[int]]  # module's file, as "cluster/raft/raft.py" -> numbers of lines


@dataclass(frozen=True, slots=True)
class Module:
    """A module with the lines that can run, and those of them that no run has reached."""

    file: str
    lines: int
    missing: tuple[int, ...]

    @property
    def share(self) -> float:
        """The part of the lines that ran; 1.0 of a module without any."""
        return 1.0 - len(self.missing) / self.lines if self.lines else 1.0


class Tracer:
    """Traces the product's lines while it is on; `lines` are those of the last time.

    One for a process: setting it up takes a while.
    """

    def __init__(self) -> None:
        self.lines: Lines = {}
        self._coverage = _measure()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace what runs inside."""
        self._coverage.erase()
        self._coverage.start()
        try:
            yield
        finally:
            self._coverage.stop()
            data = self._coverage.get_data()
            self.lines = {
                _short(file): frozenset(data.lines(file) or ()) for file in data.measured_files()
            }


def modules(reached: Lines) -> list[Module]:
    """Return every module of the product, in order, those that no run has touched included.

    What runs when a module is imported, outside of functions, counts as reached.
    """
    measure = _measure()
    found = []
    for file in _files():
        _, statements, _, _, _ = measure.analysis2(str(file))
        bodies = _in_functions(file)
        seen = reached.get(_short(str(file)), frozenset())
        missing = tuple(line for line in statements if line in bodies and line not in seen)
        found.append(Module(_short(str(file)), len(statements), missing))
    return found


def total(found: Iterable[Module], besides: Container[str] = ()) -> Module:
    """Return all modules, but for some files, as one: of its lines only their number counts."""
    every = [module for module in found if module.file not in besides]
    missing = tuple(line for module in every for line in module.missing)
    return Module("all", sum(module.lines for module in every), missing)


def ranges(lines: Iterable[int]) -> str:
    """Return numbers of lines as a person writes them: "3-5, 9"."""
    parts: list[list[int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def merged(one: Lines, other: Lines) -> Lines:
    """Return what either has reached."""
    return {
        file: one.get(file, frozenset()) | other.get(file, frozenset())
        for file in sorted({*one, *other})
    }


def _measure() -> Coverage:
    from coverage import Coverage

    measure = Coverage(data_file=None, config_file=False, source_pkgs=list(PACKAGES))
    measure.set_option("run:disable_warnings", ["module-not-measured"])  # imported long before
    return measure


def _in_functions(file: Path) -> frozenset[int]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        line
        for node in ast.walk(tree)
        if isinstance(node, functions)
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    )


def _folders() -> list[Path]:
    # The packages as they are imported: a checkout, a copy of it, or a wheel.
    import cluster
    import flotilla_client

    return [Path(str(package.__file__)).parent for package in (cluster, flotilla_client)]


def _files() -> list[Path]:
    return [file for folder in _folders() for file in sorted(folder.rglob("*.py"))]


def _short(file: str) -> str:
    """Return a module's file with its package, and nothing of where that is."""
    for folder in _folders():
        if Path(file).is_relative_to(folder):
            return str(Path(file).relative_to(folder.parent))
    return file
