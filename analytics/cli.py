"""`flotilla-check DIR`: runs the checks and shows the report. Computes nothing itself.

`flotilla-check compare` (compare.py) and `flotilla-check seal` stand beside it.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, Final, cast

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analytics.command import plain
from analytics.command.choice import (
    AUTO,
    BYTES_TWINS_MAX,
    CHOICES,
    LINES_TWINS_MAX,
    SPARK,
    TWINS,
    chosen,
)
from analytics.command.compare import compare
from analytics.command.interruption import interruptible
from analytics.command.prepare import prepare
from analytics.common import session
from analytics.common.session import JavaMissing
from analytics.common.storage import is_url
from analytics.common.verdict import EXIT_CODES, CheckResult, Observations, Report, Verdict, Witness
from analytics.generate.options import made, with_generation
from analytics.generate.shape import BadShape
from analytics.intake.cache import HistoryError
from analytics.intake.disk_space import fullness_named
from analytics.intake.seal import seal
from analytics.judge.check import Finish, check
from analytics.report.page import PAGE, write_report

STYLES = {
    Verdict.VALID: "green",
    Verdict.INVALID: "bold red",
    Verdict.UNKNOWN: "yellow",
    None: "dim",  # not judged
}
PIPE_COLUMNS = 2_000  # where there is no terminal a row is a line: rich would break it at column 80
SECONDS_SHOWN_MIN = 1.0  # of a step that is no check: a short history has dozens of a moment each


HELP: Final = {"help_option_names": ["-h", "--help"]}


class OutputUnwritten(BaseException):
    """Stdout takes nothing: who reads it does not have the verdict. No error of the check."""


class Stdout:
    """Stdout, for a console: its errors are no files' errors, and no ends of the process."""

    def __init__(self) -> None:
        self._stream = sys.stdout

    def write(self, text: str) -> int:
        """See TextIO. Raises OutputUnwritten."""
        with _as_unwritten():
            return self._stream.write(text)

    def flush(self) -> None:
        """See TextIO. Raises OutputUnwritten."""
        with _as_unwritten():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _as_unwritten() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputUnwritten(error.strerror) from error


@contextmanager
def unwritten_is_unknown() -> Iterator[None]:
    """End the process where stdout takes nothing; click would exit with 1: "invalid"."""
    try:
        yield
    except (OutputUnwritten, OSError) as error:
        # What is left in the buffer would be tried again at the exit, and change its code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        is_of_a_file = isinstance(error, OSError) and error.filename is not None
        reason = error.strerror if isinstance(error, OSError) else error  # click's `echo`, or rich
        why = str(error) if is_of_a_file else f"the output cannot be written: {reason}"
        click.echo(f"flotilla-check: {why}", err=True)
        sys.exit(EXIT_CODES[Verdict.UNKNOWN])


class WithOthers(click.Command):
    """A command with others beside it, by the first word: `flotilla-check seal DIR`.

    Not a click.Group: that wants a name for every command, and a run's directory is none.
    A directory that is called like a command is `./compare`.
    """

    others: ClassVar[dict[str, click.Command]] = {}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **more: Any,
    ) -> click.Context:
        """Return the context of the command that is named, or of this one."""
        other = self.others.get(args[0]) if args else None
        if other is None:
            return super().make_context(info_name, args, parent, **more)
        return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **more)

    def main(self, *args: Any, **more: Any) -> Any:
        """Run as a program, whose exit codes are all ours."""
        with unwritten_is_unknown():
            return super().main(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the context is of."""
        with unwritten_is_unknown():  # before click sees it, which exits with 1 at a closed pipe
            return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the other commands."""
        with formatter.section("Commands, in the place of DIRECTORY"):
            formatter.write_dl(
                [(name, one.get_short_help_str()) for name, one in self.others.items()]
            )


@click.command(cls=WithOthers, context_settings=HELP)
@click.version_option(package_name="flotilla-broker")
@click.argument("directory")
@click.option(
    "--judge",
    "judge_name",
    type=click.Choice(CHOICES),
    default=AUTO,
    show_default=True,
    help="twins: in plain Python, without figures and latencies. spark: on Spark. auto: twins up"
    f" to {LINES_TWINS_MAX:,} lines and {BYTES_TWINS_MAX // 2**20} MiB, else spark.",
)
@click.option("--master", help="Spark master, such as spark://host:7077. Default: local[2].")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Heap of Spark's driver, and of an executor on a cluster, such as 512m or 4g."
    f" Default: {session.MEMORY_DEFAULT}.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the whole report to this file.",
)
@click.option("--no-report", is_flag=True, help="Do not write DIRECTORY/report.html and .json.")
@with_generation
def main(
    directory: str,
    judge_name: str,
    master: str | None,
    memory: str | None,
    json_path: Path | None,
    no_report: bool,
    **generation: Any,
) -> None:
    """Check the history of the run in DIRECTORY: a path, or a URL that Spark can read.

    Exit code: 0 valid, 1 invalid, 2 unknown (or it could not be checked).
    """
    console = stdout_console()
    if judge_name == AUTO and (master or memory):
        judge_name = SPARK  # these are Spark's
    if judge_name == TWINS and (master or memory):
        raise click.UsageError("--master and --memory are Spark's, and --judge twins needs none")
    memory = memory or session.MEMORY_DEFAULT
    check_usage(directory, memory, json_path, generation)
    with interruptible() as watch:
        try:
            if generation["operations"] is not None:
                generate(console, directory, master, memory, generation)
                return
            if is_for_twins(directory, judge_name):
                verdict = judge_plainly(console, Path(directory), json_path, no_report)
            else:
                verdict = judge(console, directory, master, memory, json_path, no_report)
        except click.ClickException:
            raise
        except BaseException as failure:
            if watch.number is not None:
                click.echo("interrupted", err=True)
                sys.exit(watch.exit_code)
            if not isinstance(failure, Exception):
                raise
            # Python would exit with 1, which here means "invalid".
            Console(stderr=True).print_exception()
            sys.exit(EXIT_CODES[Verdict.UNKNOWN])
    sys.exit(EXIT_CODES[verdict])


def check_usage(
    directory: str, memory: str, json_path: Path | None, generation: dict[str, Any]
) -> None:
    """Raise click.UsageError for what can't be meant."""
    if not session.MEMORY_PATTERN.fullmatch(memory):
        raise click.BadParameter(f"{memory!r} is no size such as 4g", param_hint="--memory")
    if json_path is not None and not json_path.parent.is_dir():
        raise click.BadParameter(f"{json_path.parent} is no directory", param_hint="--json")
    if generation["violations"] and generation["operations"] is None:
        raise click.UsageError("--violations are planted by --generate N; real ones are found")
    if not is_url(directory) and generation["operations"] is None and not Path(directory).is_dir():
        raise click.BadParameter(f"{directory!r} is no directory", param_hint="DIRECTORY")


def stdout_console() -> Console:
    """Return a console as wide as the terminal, or as COLUMNS says; in a pipe a row is a line."""
    console = Console(file=cast("IO[str]", Stdout()))
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_COLUMNS
    return console


def is_for_twins(directory: str, judge_name: str) -> bool:
    """Return whether the judge in plain Python is due; say on stderr why, if nobody insisted."""
    choice = chosen(directory, judge_name)
    if choice.why:
        click.echo(f"judge: {choice.judge} ({choice.why})", err=True)
    return choice.judge == TWINS


def judge(
    console: Console,
    directory: str,
    master: str | None,
    memory: str,
    json_path: Path | None,
    no_report: bool,
) -> Verdict:
    """Check, show and write the report; return the verdict, `unknown` if there is no report."""
    try:
        finish = None if no_report else write_report
        report = checked(directory, master, memory, finish)
        show(console, report, report.verdict)
        if not no_report:
            console.print(f"report: {directory}/{PAGE}", markup=False, soft_wrap=True)
        if json_path is not None:
            with fullness_named(json_path.parent):
                json_path.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    except (HistoryError, JavaMissing) as error:
        console.print(f"[yellow]unknown[/]: {escape(str(error))}", soft_wrap=True)
        return Verdict.UNKNOWN
    return report.verdict


def judge_plainly(
    console: Console, directory: Path, json_path: Path | None, no_report: bool
) -> Verdict:
    """Do the same by the judge in plain Python."""
    with fullness_named(directory):
        said = plain.judged(directory)
        if said.report is None:
            console.print(f"[yellow]unknown[/]: {escape('; '.join(said.reasons))}", soft_wrap=True)
            return said.verdict
        show(console, said.report, said.verdict)
        if not no_report:
            plain.write(said)
            console.print(f"report: {directory}/{PAGE}", markup=False, soft_wrap=True)
    if json_path is not None:
        with fullness_named(json_path.parent):
            json_path.write_text(json.dumps(plain.document_of(said), indent=2) + "\n")
    return said.verdict


def generate(
    console: Console, directory: str, master: str | None, memory: str, wanted: dict[str, Any]
) -> None:
    """Make up a history in `directory`; a wrong number is an error of usage."""
    if is_url(directory):
        raise click.BadParameter("a history is generated on this machine", param_hint="DIRECTORY")
    try:
        made(console, Path(directory), master, memory, **wanted)
    except BadShape as error:
        raise click.UsageError(str(error)) from error


def checked(directory: str, master: str | None, memory: str, finish: Finish | None) -> Report:
    """Return the report; what is being done is shown on stderr while it is being done."""
    console = Console(stderr=True)
    with console.status("starting Spark") as status:

        def on_progress(name: str, came_to: CheckResult | float | None) -> None:
            if came_to is None:
                status.update(name)
            elif isinstance(came_to, CheckResult):
                style = STYLES[came_to.verdict]
                console.print(f"[{style}]{name}[/]: {came_to.count} ({came_to.seconds:.1f} s)")
            elif came_to >= SECONDS_SHOWN_MIN:
                console.print(f"[dim]{name}[/] ({came_to:.1f} s)", highlight=False)

        return check(directory, master, on_progress, finish, memory)


def show(console: Console, report: Report, verdict: Verdict) -> None:
    """Print the table of checks, the observations and the verdict."""
    console.print(checks_table(report))
    observations = report.observations
    console.print(
        f"{observations.acknowledged} acknowledged, {observations.delivered} delivered, "
        f"{observations.recovered} recovered; {report.lines} lines "
        f"({report.torn_lines} torn, {report.malformed_lines} malformed); {report.seconds:.1f} s"
    )
    if observations.faults:
        console.print(faults_table(report))
    if observations.latencies:
        console.print(times_table(observations))
    liveness = observations.liveness
    findings = "".join(f"; {finding}" for finding in liveness.findings)
    console.print(f"liveness: {liveness.verdict}{escape(findings)}", soft_wrap=True)
    for remark in (*report.remarks, *observations.remarks()):
        console.print(escape(remark), soft_wrap=True)
    for reason in report.reasons:
        console.print(f"[yellow]{escape(reason)}[/]", soft_wrap=True)
    console.print(f"[{STYLES[verdict]}]{verdict}[/]")


def checks_table(report: Report) -> Table:
    """Return a row a check: verdict, count, the smallest witnesses with file and line."""
    table = Table("check", "verdict", "count", "smallest witnesses", title=report.run_id)
    for one in report.checks:
        found = map(sentence, one.witnesses)
        witnesses = one.error or "\n".join([*([one.no_proof] if one.no_proof else []), *found])
        verdict = f"[{STYLES[one.verdict]}]{one.standing}[/]"
        table.add_row(one.name, verdict, str(one.count), escape(witnesses))
    return table


def times_table(observations: Observations) -> Table:
    """Return a row a function with its latencies, one for staleness, one for progress."""
    table = Table("ms", "count", "50 %", "90 %", "99 %", "99.9 %", "most")
    stale = observations.staleness
    for one in (*observations.latencies, *(() if stale is None else (stale,))):
        times = (one.p50_ms, one.p90_ms, one.p99_ms, one.p999_ms, one.max_ms)
        table.add_row(one.of, str(one.count), *(f"{time:.1f}" for time in times))
    share = observations.progress_share
    table.caption = None if share is None else f"progress in {share:.1%} of the time"
    return table


def faults_table(report: Report) -> Table:
    """Return a row a fault, with the longest time without an acknowledged PUT in its window."""
    table = Table("fault", "targets", "blackout ms")
    for fault in report.observations.faults:
        blackout = "-" if fault.blackout_ms is None else f"{fault.blackout_ms:.0f}"
        table.add_row(escape(fault.name), escape(", ".join(fault.targets)), blackout)
    return table


def sentence(witness: Witness) -> str:
    """Return a witness in one line."""
    words = [] if witness.topic is None else [witness.topic]
    if witness.id is not None:
        words.append(f"id {witness.id}")
    if witness.other_id is not None:
        words.append(f"and {witness.other_id}")
    if witness.producer is not None:
        words.append(f"({witness.producer} {witness.counter})")
    if witness.client_id is not None:
        words.append(f"at {witness.client_id}")
    if witness.detail is not None:
        words.append(f"[{witness.detail}]")
    places = [
        place
        for operation in witness.operations
        for place in operation.lines or (f"{operation.process} op {operation.op_id}",)
    ]
    return " ".join([*words, *dict.fromkeys(places)])


@click.command(name="seal", context_settings=HELP)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def seal_run(directory: Path) -> None:
    """Write into run.json what each file of a run's history is.

    For a DIRECTORY of which you know that it is whole: recorded by version 0.1 or 0.2, or put
    together of several machines' files. From then on a file that is cut, changed, gone or added
    makes the verdict unknown. Nobody may write into it any more.

    Exit code: 0 sealed, 2 there is nothing to seal, or something that would not be read.
    """
    try:
        with fullness_named(directory):
            lines = seal(directory)
    except (HistoryError, JavaMissing) as error:
        raise CannotDo(str(error)) from error
    for name, count in sorted(lines.items()):
        click.echo(f"{name}: {count:,} lines")
    click.echo(f"sealed: {directory / 'run.json'}")


@click.command("prepare", context_settings=HELP)
def prepare_java() -> None:
    """Let checks of short histories on Spark start faster: keeps the classes that Java loads for
    them in the Python environment (180 MB). Once for each Java and Spark.
    """
    try:
        archive = prepare()
    except (JavaMissing, OSError) as error:
        raise CannotDo(str(error)) from error
    click.echo(f"kept: {archive} ({archive.stat().st_size >> 20} MiB)")


class CannotDo(click.ClickException):
    """Nothing was done. Click would exit with 1, which here means "invalid"."""

    exit_code = EXIT_CODES[Verdict.UNKNOWN]


WithOthers.others = {"compare": compare, "prepare": prepare_java, "seal": seal_run}
