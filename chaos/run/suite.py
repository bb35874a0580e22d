"""Many experiments, one after the other, each judged; and the table of what they came to.

What lives here: which experiments, the one process that judges them all, the table, the exit code.
What must not: a single run (launch.py, runner.py) or the checks (analytics).
"""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analytics.command import plain
from analytics.command.choice import AUTO, SPARK, TWINS, chosen
from chaos.run import launch
from chaos.run.plan import RunPlan
from chaos.run.run_result import RunResult
from chaos.spec import experiment as experiments
from chaos.spec.reading import ExperimentError
from chaos.terminal.progress import display
from chaos.workloads.children import child_environment

JUDGING: Final = (sys.executable, "-m", "chaos.run.judging")
JUDGING_S_MAX: Final = 600.0  # of one run: fifty times what it takes; then the verdict is unknown
JUDGING_S_EXPECTED: Final = 10.0
READY_S_MAX: Final = 120.0  # a JVM on a busy machine
STOP_S_MAX: Final = 20.0
VERDICTS: Final = ("valid", "invalid", "unknown")  # by exit code
STYLES: Final = {"valid": "green", "invalid": "bold red", "unknown": "yellow"}
INDEX: Final = "index.html"
LOG: Final = "analytics.log"  # written by judging.py
DEMONSTRATION: Final = "demo"  # has a command of its own


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a suite is to be. No `names` = all that the target can do."""

    names: tuple[str, ...]
    target: str
    nodes: int
    duration_s: float
    seconds_max: float | None
    seed: int
    directory: Path
    judge: str = SPARK


@dataclass
class SuiteRow:
    """What one experiment came to. `problems`: of the run; `reasons`: for an unknown verdict."""

    experiment: str
    directory: str
    verdict: str
    seconds: float
    acknowledged: int = 0
    acknowledged_per_s: float = 0.0
    delivered: int = 0
    gaps_ms: list[float | None] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    violated: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """As an exit code: 0 as it should be, 1 it is not, 2 it is not known."""
        if self.verdict == "invalid":
            return 1
        if self.verdict == "unknown":
            return 2
        return 1 if self.problems else 0


class Judge:
    """The process that judges: one Spark session, started when the first run needs it."""

    def __init__(self, log: Path, command: tuple[str, ...]) -> None:
        self._log, self._command = log, command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def judge(self, directory: Path, wait: Callable[[], None]) -> str:
        """Return the verdict of a run; `wait` is called now and then. Never raises for a run."""
        process = self._process or self._start(wait)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: then there is no answer either
            process.stdin.write(f"{directory}\n".encode())
        answer = self._answer(process, JUDGING_S_MAX, wait)
        if not answer.isdigit() or int(answer) >= len(VERDICTS):
            self._end()  # the next run gets another one
            return "unknown"
        return VERDICTS[int(answer)]

    def _start(self, wait: Callable[[], None]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is ours
            )
        self._answer(self._process, READY_S_MAX, wait)
        return self._process

    def _answer(
        self, process: subprocess.Popen[bytes], seconds_max: float, wait: Callable[[], None]
    ) -> str:
        """Return the next line, "" when there is none within the time or ever."""
        assert process.stdout is not None
        deadline_s, line = time.monotonic() + seconds_max, b""
        arrivals = select.poll()
        arrivals.register(process.stdout, select.POLLIN)
        while not line.endswith(b"\n") and time.monotonic() < deadline_s:
            wait()
            if arrivals.poll(200):
                data = os.read(process.stdout.fileno(), 1)
                if not data:
                    return ""
                line += data
        return line.decode().strip()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class TwinJudge:
    """Judges in this process, by the checks' twins in plain Python: for small histories."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def judge(self, directory: Path, wait: Callable[[], None]) -> str:
        """Return the verdict of a run."""
        wait()
        has_begun = (directory / "run.json").exists()
        return plain.judge(directory) if has_begun else "unknown"


class Auto:
    """Judges small runs in this process, and others on Spark."""

    def __init__(self, on_spark: Judge) -> None:
        self._plain, self._on_spark = TwinJudge(), on_spark

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._on_spark.__exit__(*error)

    def judge(self, directory: Path, wait: Callable[[], None]) -> str:
        """Return the verdict of a run."""
        judge = self._plain if chosen(str(directory), AUTO).judge == TWINS else self._on_spark
        return judge.judge(directory, wait)


def _judge(name: str, log: Path) -> Judge | TwinJudge | Auto:
    if name == TWINS:
        return TwinJudge()
    on_spark = Judge(log, JUDGING)
    return on_spark if name == SPARK else Auto(on_spark)


class Suite:
    """Runs and judges. Raises ExperimentError or TargetError for what cannot be, at once."""

    def __init__(self, options: Options, console: Console) -> None:
        self._options, self._console = options, console
        self._rows: list[SuiteRow] = []
        self._skipped: list[str] = []
        self._names = list(options.names) or able(options.target)
        if options.seconds_max is not None:  # the last ones may not come to their turn
            random.Random(options.seed).shuffle(self._names)
        if len(set(self._names)) < len(self._names):
            raise ExperimentError("an experiment is named twice; each has one directory")
        for name in self._names:
            self._prepared(name)
        if options.directory.exists() and any(options.directory.iterdir()):
            raise ExperimentError(f"{options.directory} is not empty; a suite needs its own")

    def run(self) -> int:
        """Run all experiments, whatever becomes of one; return the exit code."""
        options, began_s = self._options, time.monotonic()
        options.directory.mkdir(parents=True, exist_ok=True)
        noun = "experiment" if len(self._names) == 1 else "experiments"
        self._say(f"{len(self._names)} {noun} on {options.target}, seed {options.seed}")
        log = options.directory / "judging.log"
        with _judge(options.judge, log) as judge:
            for name in self._names:
                if self._has_time(began_s):
                    self._add(self._one(name, judge))
                else:
                    self._skipped.append(name)
        directories = [options.directory / row.directory for row in self._rows]
        has_index = write_index(options.directory / INDEX, directories, log)
        self._console.print(self.table())
        if self._skipped:
            self._say(f"no time for: {', '.join(self._skipped)}")
        self._say(
            f"everything is in {options.directory / INDEX if has_index else options.directory}"
        )
        return exit_code(self._rows)

    def _prepared(self, name: str) -> tuple[RunPlan, Callable[..., RunResult]]:
        options = self._options
        directory = options.directory / Path(name).stem
        plan = launch.make_plan(name, options.duration_s, options.seed, directory)
        return plan, launch.prepare(plan, options.target, options.nodes)

    def _has_time(self, began_s: float) -> bool:
        """Whether one more, as long as the longest so far, would fit."""
        most_s = self._options.seconds_max
        longest_s = max((row.seconds for row in self._rows), default=0.0)
        return most_s is None or time.monotonic() - began_s + longest_s <= most_s

    def _one(self, name: str, judge: Judge | TwinJudge | Auto) -> SuiteRow:
        began_s = time.monotonic()
        plan, carry_out = self._prepared(name)
        with display(self._console, plan.expected_s + JUDGING_S_EXPECTED) as shown:
            try:
                outcome = carry_out(shown)
                shown.stage("checks", JUDGING_S_EXPECTED)
                log = plan.directory / LOG
                verdict = judge.judge(plan.directory, lambda: shown.tick(escape(last_line(log))))
            except Exception as error:  # noqa: BLE001  (what ends one must not end the others)
                outcome = RunResult(problems=[f"{type(error).__name__}: {error}"])
                verdict = "unknown"
        return self._row(plan, outcome, verdict, time.monotonic() - began_s)

    def _row(self, plan: RunPlan, outcome: RunResult, verdict: str, seconds: float) -> SuiteRow:
        report = read_report(plan.directory)
        if verdict == "valid" and not outcome.finished:
            verdict = "unknown"
        if outcome.violations:
            verdict = "invalid"
        checks = report.get("checks", [])
        return SuiteRow(
            experiment=plan.experiment.name,
            directory=plan.directory.name,
            verdict=verdict,
            seconds=round(seconds, 1),
            acknowledged=outcome.acknowledged,
            acknowledged_per_s=outcome.acknowledged_per_s,
            delivered=outcome.delivered,
            gaps_ms=[injection.gap_ms for injection in outcome.injections],
            problems=outcome.problems,
            reasons=list(report.get("reasons", [])),
            violated=[check["name"] for check in checks if check["verdict"] == "invalid"],
        )

    def _add(self, row: SuiteRow) -> None:
        """Take a row up, and write all there are: a suite that is killed has told what it knew."""
        self._rows.append(row)
        style = STYLES[row.verdict]
        self._console.print(f"[{style}]{row.verdict}[/] {row.experiment} ({row.seconds:.0f} s)")
        for line in [*row.violated, *row.problems, *row.reasons]:
            self._console.print(f"  {line}", style="yellow", markup=False, highlight=False)
        document = {
            "seed": self._options.seed,
            "target": self._options.target,
            "nodes": self._options.nodes,
            "duration_s": self._options.duration_s,
            "rows": [asdict(one) for one in self._rows],
        }
        encoded = orjson.dumps(document, option=orjson.OPT_INDENT_2)
        (self._options.directory / "suite.json").write_bytes(encoded + b"\n")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def table(self) -> Table:
        """Return the rows as a person reads them."""
        table = Table(box=None)
        table.add_column("experiment", no_wrap=True)
        for head in ("verdict", "acked", "/s", "delivered", "faults", "blackout ms", "worst", "s"):
            table.add_column(head, justify="left" if head == "verdict" else "right")
        for row in self._rows:
            verdict = f"[{STYLES[row.verdict]}]{row.verdict}[/]" + (" !" if row.problems else "")
            table.add_row(
                row.experiment,
                verdict,
                f"{row.acknowledged:,}",
                f"{row.acknowledged_per_s:,.0f}",
                f"{row.delivered:,}",
                str(len(row.gaps_ms)),
                *blackouts(row.gaps_ms),
                f"{row.seconds:.0f}",
            )
        return table


def able(target: str) -> list[str]:
    """Return the experiments that a target can do, but for the demonstration."""
    return [
        name
        for name in experiments.names()
        if name != DEMONSTRATION and target in launch.able(launch.load(name))
    ]


def blackouts(gaps_ms: list[float | None]) -> tuple[str, str]:
    """Return the median and the worst of the blackouts, as text; one without an end is worst."""
    if not gaps_ms:
        return "-", "-"
    known = sorted(gap for gap in gaps_ms if gap is not None)
    middle = f"{median(known):,.0f}" if known else "-"
    return middle, "no end" if len(known) < len(gaps_ms) else f"{known[-1]:,.0f}"


def write_index(target: Path, directories: list[Path], log: Path) -> bool:
    """Write the index of judged runs; return whether it came to that, the reason in `log`."""
    with log.open("ab") as output:
        try:
            done = subprocess.run(
                [*JUDGING, str(target), *map(str, directories)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=child_environment(),
                timeout=READY_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            output.write(f"{error}\n".encode())
            return False
    return done.returncode == 0 and target.exists()


def last_line(log: Path) -> str:
    """Return what was said last in a log that may not be there yet."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else "nothing was found yet"


def read_report(directory: Path) -> dict[str, Any]:
    """Return what analytics has written of a run, {} when it came to nothing."""
    path = directory / "report.json"
    report: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    return report


def exit_code(rows: list[SuiteRow]) -> int:
    """Return 1 when something is wrong, else 2 when something is not known, or nothing was run."""
    codes = {row.code for row in rows}
    if 1 in codes:
        return 1
    return 0 if codes == {0} else 2
