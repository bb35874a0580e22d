"""`flotilla-check DIR`: runs the checks and shows the report. Computes nothing itself."""

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analytics.check import check
from analytics.load import HistoryError
from analytics.session import JavaMissing
from analytics.verdict import EXIT_CODES, CheckResult, Report, Verdict, Witness

STYLES = {Verdict.VALID: "green", Verdict.INVALID: "bold red", Verdict.UNKNOWN: "yellow"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flotilla")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--master", help="Spark master, such as spark://host:7077. Default: local[2].")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the whole report to this file.",
)
def main(directory: Path, master: str | None, json_path: Path | None) -> None:
    """Check the history of the run in DIRECTORY.

    Exit code: 0 valid, 1 invalid, 2 unknown (or it could not be checked).
    """
    console = Console()
    try:
        report = checked(console, directory, master)
        show(console, report)
        if json_path is not None:
            json_path.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    except (HistoryError, JavaMissing) as error:
        console.print(f"[yellow]unknown[/]: {escape(str(error))}", soft_wrap=True)
        sys.exit(EXIT_CODES[Verdict.UNKNOWN])
    except Exception:  # noqa: BLE001  (Python would exit with 1, which here means "invalid")
        console.print_exception()
        sys.exit(EXIT_CODES[Verdict.UNKNOWN])
    sys.exit(EXIT_CODES[report.verdict])


def checked(console: Console, directory: Path, master: str | None) -> Report:
    """Return the report; what is being done is shown while it is being done."""
    with console.status("starting Spark") as status:

        def on_progress(name: str, result: CheckResult | None) -> None:
            if result is None:
                status.update(name)
            else:
                style = STYLES[result.verdict]
                console.print(f"[{style}]{name}[/]: {result.count} ({result.seconds:.1f} s)")

        return check(directory, master, on_progress)


def show(console: Console, report: Report) -> None:
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
    for reason in report.reasons:
        console.print(f"[yellow]{escape(reason)}[/]", soft_wrap=True)
    console.print(f"[{STYLES[report.verdict]}]{report.verdict}[/]")


def checks_table(report: Report) -> Table:
    """Return a row a check: verdict, count, the smallest witnesses with file and line."""
    table = Table("check", "verdict", "count", "smallest witnesses", title=report.run_id)
    for one in report.checks:
        witnesses = one.error or "\n".join(map(sentence, one.witnesses))
        verdict = f"[{STYLES[one.verdict]}]{one.verdict}[/]"
        table.add_row(one.name, verdict, str(one.count), escape(witnesses))
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
    words = [f"{witness.topic} id {witness.id}" if witness.id is not None else f"{witness.topic}"]
    if witness.other_id is not None:
        words.append(f"and {witness.other_id}")
    if witness.producer is not None:
        words.append(f"({witness.producer} {witness.counter})")
    if witness.client_id is not None:
        words.append(f"at {witness.client_id}")
    if witness.detail is not None:
        words.append(f"[{witness.detail}]")
    lines = [line for operation in witness.operations for line in operation.lines]
    return " ".join([*words, *dict.fromkeys(lines)])
