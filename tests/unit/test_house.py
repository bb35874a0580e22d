"""The house rules of docs/design.md section 2, kept by reading the source.

Docstrings, and above all who may import whom: one way only, and the core sees no socket, thread,
clock or random number.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

TOP_LEVEL: Final = {
    ".ci", ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "analytics", "chaos",
    "client", "cluster", "deploy", "docs", "examples", "flotilla_commands.py", "pyproject.toml",
    "scripts", "setup.py", "tests",
}  # fmt: skip
MADE: Final = {  # by tools and runs; .gitignore names them
    ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "__pycache__",
    "build", "dist", "derby.log", "flotilla-data", "flotilla.egg-info",
    "flotilla_broker.egg-info", "metastore_db", "runs",
    "spark-warehouse", "state", ".dockerignore",
}  # fmt: skip

# A package may import these packages of ours, itself aside.
MAY_IMPORT: Final[Mapping[str, set[str]]] = {
    "flotilla_client": set(),
    "cluster": {"flotilla_client"},
    # The twins, which need no Spark; of Spark's judge only the process that judges a suite.
    "chaos": {"flotilla_client", "cluster", "analytics"},
    "analytics": set(),
}
# A package's folders, each with leave to import from those before it. What lies in no folder may
# import from all of them.
FLOORS: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster": (
        "settings", "log", "keys", "wire", "store", "raft", "members", "serve", "recovery",
        "observe", "node", "local",
    ),
    "analytics": (
        "common", "intake", "tables", "anomalies", "judge", "twins", "report", "generate",
        "command",
    ),
    "chaos": (
        "workloads", "spec", "terminal", "simulation", "targets", "faults", "run", "bench",
        "mutation", "model",
    ),
    "chaos/simulation": ("plan", "disks", "clients", "world", "checks", "bugs", "search"),
}  # fmt: skip
# In these modules of the core nothing comes from the outside but as an argument.
CORE: Final = (
    "client/flotilla_client/joining.py",
    "client/flotilla_client/losses.py",
    "client/flotilla_client/pipeline.py",
    "client/flotilla_client/protocol.py",
    "client/flotilla_client/retry.py",
    "cluster/members/about.py",
    "cluster/serve/broker.py",
    "cluster/node/budget.py",
    "cluster/store/commands.py",
    "cluster/serve/frontend.py",
    "cluster/keys/curve.py",
    "cluster/members/handshake.py",
    "cluster/serve/intake.py",
    "cluster/serve/quotas.py",
    "cluster/serve/shares.py",
    "cluster/wire/levels.py",
    "cluster/members/membership.py",
    "cluster/members/neighbours.py",
    "cluster/members/standing.py",
    "cluster/node/joining.py",
    "cluster/node/linked.py",
    "cluster/node/member.py",
    "cluster/node/replica.py",
    "cluster/node/scrub.py",
    "cluster/store/store.py",
    "cluster/serve/zmtp.py",
)
NOT_IN_THE_CORE: Final = {
    "asyncio", "datetime", "multiprocessing", "secrets", "select", "selectors", "signal",
    "socket", "subprocess", "threading", "time", "zmq",
}  # fmt: skip
# A library -> the only modules that may import it.
KEEPERS: Final[Mapping[str, set[str]]] = {
    "pysyncobj": {
        "cluster/raft/core.py",
        "cluster/raft/log.py",
    },
    "nacl": {
        "cluster/keys/authority.py",
        "cluster/keys/boxes.py",
        "cluster/keys/curve.py",
        "cluster/keys/directory.py",
    },
    "cryptography": {"cluster/keys/authority.py"},
    "zmq": {
        "client/flotilla_client/connection.py",
        "client/flotilla_client/aio.py",
        "chaos/bench/wire.py",
        "chaos/simulation/clients/awaiting.py",  # in zmq's place, with its constants
    },
}
# The same thing at the two ends of the protocol: as an application has it, and as the store does.
AT_BOTH_ENDS: Final = {"Client", "Delivery", "Done", "Producer", "Refused"}
PACKAGES: Final = ("client", "cluster", "chaos", "analytics")
THE_CLIENTS_LIBRARIES: Final = {"zmq", "orjson"}
# What an extra of the client's may import besides, in a folder that nothing else of ours imports.
THE_EXTRAS_LIBRARIES: Final[Mapping[Path, set[str]]] = {
    ROOT / "client/flotilla_client/spark": {"pyspark", "pyarrow"},
}
# The same in one module (tracing.py), and for the types of another.
THE_CLIENTS_TRACING: Final = {"spans", "tracing"}
A_COMMAND_LINE_S: Final = {"client/flotilla_client/cli.py", "client/flotilla_client/shell.py"}

# One worker parses every source, once.
pytestmark = pytest.mark.xdist_group("house")


def _source(package: str) -> list[Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package} has no source: nothing would be held to the rules"
    return files


SOURCES: Final = [file for package in PACKAGES for file in _source(package)]


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _package(file: Path) -> str:
    return _name(file).removeprefix("client/").partition("/")[0]


@cache
def _nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(_tree(file)))


@cache
def _imports(file: Path) -> set[str]:
    """Return the top-level packages that the module imports, anywhere in it."""
    found: set[str] = set()
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(file)}:{node.lineno}: imports are absolute"
            found.add((node.module or "").partition(".")[0])
    return found


def _folder(file: Path, package: str) -> str:
    """Return the folder of the package that a source of it lies in, "" for none."""
    first, _, rest = file.relative_to(ROOT / package).as_posix().partition("/")
    return first if rest else ""


def _modules(file: Path) -> list[tuple[int, str]]:
    """Return the line and the full name of all that the module imports, anywhere in it."""
    found = []
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def _is_public(name: str) -> bool:
    return not name.startswith("_")


# Each rule is one test over every source, and names all that break it.


def test_a_module_says_what_lives_in_it() -> None:
    assert [_name(file) for file in SOURCES if not ast.get_docstring(_tree(file))] == []


def test_what_is_public_has_a_docstring() -> None:
    bare = [
        f"{_name(file)}:{node.lineno} {node.name}"
        for file in SOURCES
        for node in _tree(file).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and _is_public(node.name)
        and not ast.get_docstring(node)
    ]
    assert bare == []


def test_imports_are_absolute_and_point_one_way() -> None:
    wrong = [
        f"{_name(file)} imports {package}"
        for file in SOURCES
        for package in sorted(_imports(file) & MAY_IMPORT.keys() - {_package(file)})
        if package not in MAY_IMPORT[_package(file)]
    ]
    assert wrong == []


@pytest.mark.parametrize("package", FLOORS)
def test_a_folder_imports_only_from_those_below_it(package: str) -> None:
    floors, prefix = FLOORS[package], package.replace("/", ".") + "."
    folders = {entry.parent.name for entry in (ROOT / package).glob("*/__init__.py")}
    assert folders == set(floors), "a folder has no floor, or a floor no folder"
    upward = [
        f"{_name(file)}:{line} imports {module}"
        for file in _source(package)
        if (own := _folder(file, package)) in floors
        for line, module in _modules(file)
        if module.startswith(prefix)
        and (floor := module.removeprefix(prefix).split(".")[0]) in floors
        and floors.index(floor) > floors.index(own)
    ]
    assert upward == []


# Of two that know each other: who only names the other one's types, or loads it when asked.
MAY_LOOK_BACK: Final = {
    "cluster.store.unread": "cluster.store.topics",
    "flotilla_client.spans": "flotilla_client.tracing",
}


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {
        _name(file).removeprefix("client/").removesuffix(".py").replace("/", "."): file
        for file in SOURCES
    }
    arrows = {
        name: {
            found
            for _, module in _modules(file)
            if (found := module if module in names else module.rpartition(".")[0]) in names
        }
        - {name, MAY_LOOK_BACK.get(name, "")}
        for name, file in names.items()
    }
    assert sum(map(len, arrows.values())) > len(names)
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_a_library_is_imported_by_its_keepers_alone() -> None:
    strangers = [
        f"{_name(file)} imports {library}"
        for file in SOURCES
        for library in sorted(KEEPERS.keys() & _imports(file))
        if _name(file) not in KEEPERS[library]
    ]
    assert strangers == []


def test_the_client_needs_its_two_libraries_alone() -> None:
    may = THE_CLIENTS_LIBRARIES | {"flotilla_client"} | sys.stdlib_module_names
    outside = [
        f"{_name(file)} imports {package}"
        for file in SOURCES
        if _package(file) == "flotilla_client" and file.stem not in THE_CLIENTS_TRACING
        for package in sorted(_imports(file) - may - THE_EXTRAS_LIBRARIES.get(file.parent, set()))
    ]
    assert outside == []
    code = "import sys, flotilla_client.aio, flotilla_client.cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "flotilla_client.spans" in loaded
    assert "opentelemetry" not in loaded


def test_an_extra_of_the_clients_is_imported_by_itself_alone() -> None:
    for folder in THE_EXTRAS_LIBRARIES:
        users = [
            _name(file)
            for file in SOURCES
            if file.parent != folder and f"flotilla_client.{folder.name}" in file.read_text()
        ]
        assert users == []


@pytest.mark.parametrize("name", CORE)
def test_the_core_sees_no_socket_thread_clock_or_random_number(name: str) -> None:
    file = ROOT / name
    forbidden = _imports(file) & NOT_IN_THE_CORE
    assert not forbidden, f"{name} imports {forbidden}"
    assert _drawn(file) == [], f"{name} draws random numbers of its own"


def _drawn(file: Path) -> list[str]:
    """Return the uses of `random` other than as the type of a generator that comes in."""
    made = [
        ast.unparse(node.func)
        for node in _nodes(file)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("random.Random", "Random")
    ]
    drawn = [
        ast.unparse(node)
        for node in _nodes(file)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "random"
        and node.attr != "Random"
    ]
    return made + drawn


def test_an_attribute_of_the_cluster_s_is_set_in_the_folder_of_its_class() -> None:
    """Whoever is outside calls a method, or hands over an argument: each object has one owner."""
    own: dict[Path, set[str]] = {}
    for file in _source("cluster"):
        own.setdefault(file.parent, set()).update(_attributes(file))
    known = set().union(*own.values())
    foreign = [
        f"{_name(file)}:{node.lineno} sets {ast.unparse(node)}"
        for file in _source("cluster")
        for node in _nodes(file)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and ast.unparse(node.value) not in ("self", "cls")
        and node.attr in known - own[file.parent]
    ]
    assert foreign == []


def _attributes(file: Path) -> set[str]:
    """Return the attributes that the module's classes have."""
    found = set()
    for node in _nodes(file):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("self."):
            found.add(node.attr)
    return found


def test_nobody_prints() -> None:
    calls = [
        f"{_name(file)}:{node.lineno}"
        for file in SOURCES
        for node in _nodes(file)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and _name(file) not in A_COMMAND_LINE_S
    ]
    assert calls == []


def test_no_exception_vanishes() -> None:
    swallowed = [
        f"{_name(file)}:{node.lineno}"
        for file in SOURCES
        for node in _nodes(file)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (len(node.body) == 1 and isinstance(node.body[0], ast.Pass)))
    ]
    assert swallowed == []


def test_no_class_name_stands_twice() -> None:
    """One word has one meaning, in the tests as well: who looks for a name finds one class.

    An underscore makes no other word of it.
    """
    places: dict[str, list[str]] = {}
    for file in (*SOURCES, *_source("tests")):
        for node in _tree(file).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.removeprefix("_"), []).append(_name(file))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not {name: found for name, found in twice.items() if name not in AT_BOTH_ENDS}
    assert twice.keys() == AT_BOTH_ENDS, "names that stand once are no exceptions any more"
    for name in AT_BOTH_ENDS:
        assert {file.partition("/")[0] for file in twice[name]} == {"client", "cluster"}, name


def test_every_unit_test_lies_in_the_folder_that_mirrors_what_it_tests() -> None:
    """What tests the whole tree lies in tests/unit itself; `client` stands for its one package."""
    whole = {"test_design.py", "test_docs.py", "test_house.py"}
    for file in sorted((ROOT / "tests/unit").rglob("test_*.py")):
        folder = file.parent.relative_to(ROOT / "tests/unit").as_posix()
        if folder == ".":
            assert file.name in whole, f"{file.name} belongs into the folder of what it tests"
            continue
        own = folder.replace("client", "client/flotilla_client", 1)
        mirrored = ROOT / (own if folder.split("/")[0] == "client" else folder)
        assert (mirrored / "__init__.py").is_file(), f"tests/unit/{folder} mirrors no folder"


def test_the_top_level_is_what_the_design_says() -> None:
    assert {entry.name for entry in ROOT.iterdir()} - MADE <= TOP_LEVEL
