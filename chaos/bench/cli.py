"""The command line of the benchmarks.

What lives here: options, the directory, the order of a run. What must not: measuring.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click
import orjson
from rich.console import Console

from chaos.bench.brokers import BROKERS, program_of
from chaos.bench.figures import BenchError, Curve, Figure
from chaos.bench.machine import Processors, facts
from chaos.bench.measures import MEASURES, PEERS, Result
from chaos.bench.page import page, require_plotly
from chaos.bench.plan import BenchPlan
from chaos.bench.report import BenchReport, document, table
from chaos.bench.stage import BenchStage
from chaos.terminal.console import stdout_console
from chaos.terminal.options import Named, a_number
from chaos.terminal.progress import Display, display
from cluster.local.errors import LocalError
from flotilla_client import FlotillaError

START_S_EXPECTED: Final = 2.0
SEED_BITS: Final = 32
BACKLOG_MIB_MAX: Final = 32 * 1024  # of each of three nodes, on one disk
EXIT_TERMINATED: Final = 143  # as a shell has it for SIGTERM


def _named_brokers(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the brokers that are named, each of whose programs is there."""
    names = tuple(dict.fromkeys(filter(None, ",".join(texts).split(","))))
    unknown = [name for name in names if name not in BROKERS]
    if unknown:
        raise click.BadParameter(f"no broker {unknown[0]!r}; there are {', '.join(BROKERS)}")
    for name in names:
        try:
            program_of(BROKERS[name])
        except BenchError as error:
            raise click.BadParameter(str(error)) from None
    return names


def _sizes(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the sizes that `text` lists, each once."""
    try:
        sizes = tuple(dict.fromkeys(int(each) for each in text.split(",")))
    except ValueError:
        raise click.BadParameter(f"{text!r} lists no whole numbers of MiB") from None
    if not all(0 <= size <= BACKLOG_MIB_MAX for size in sizes):
        raise click.BadParameter(f"a backlog has 0 to {BACKLOG_MIB_MAX:,} MiB")
    return sizes


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--seconds",
    type=click.FloatRange(0.2, 30),
    callback=a_number,
    default=6.0,
    show_default=True,
    help="How long each load runs, together with what it is compared to.",
)
@click.option(
    "--kills",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="How often the leader is killed.",
)
@click.option(
    "--only",
    type=Named("measure", MEASURES),
    multiple=True,
    help="Measure this alone; may be given several times.",
)
@click.option("--seed", type=int, help="Decides when leaders are killed. Default: drawn.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the figures to this file too.",
)
@click.option(
    "--dir",
    "parent",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="On whose disk: a directory is made below it, and removed at the end.",
)
@click.option(
    "--peers",
    callback=_named_brokers,
    multiple=True,
    metavar="NAME,…",
    help=f"Measure others' brokers beside ours: {', '.join(BROKERS)}. They are Debian's packages.",
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page with plots to this file, and measure what they show too: minutes.",
)
@click.option(
    "--backlogs",
    "backlogs_mib",
    callback=_sizes,
    default="0,64",
    show_default=True,
    metavar="MIB,…",
    help="How much is unread in a topic, where that is measured. The others are compared with the "
    "first.",
)
@click.option("--insecure", is_flag=True, help="Without keys: what they cost is the difference.")
def bench(
    seconds: float,
    kills: int,
    only: tuple[str, ...],
    seed: int | None,
    json_file: Path | None,
    parent: Path,
    peers: tuple[str, ...],
    html_file: Path | None,
    backlogs_mib: tuple[int, ...],
    insecure: bool,
) -> None:
    """Measure a cluster of three nodes on this machine, in ratios to bare ZeroMQ and the disk."""
    drawn = secrets.randbits(SEED_BITS) if seed is None else seed
    if PEERS in only and not peers:
        raise click.UsageError("--only peers: which? Name them with --peers")
    plan = BenchPlan(seconds, kills, drawn, peers, backlogs_mib, html_file is not None)
    names = [
        name for name, each in MEASURES.items() if (name in only if only else each.is_asked(plan))
    ]
    machine, before, began = facts(), Processors.now(), time.monotonic()
    expected_s = START_S_EXPECTED + sum(MEASURES[name].expected_s(plan) for name in names)
    try:
        if html_file is not None:
            require_plotly()
        with display(Console(stderr=True), expected_s) as shown:
            found = measure(parent, plan, names, shown, keys=not insecure)
    except (BenchError, LocalError, FlotillaError) as error:
        raise click.ClickException(str(error)) from None
    others_share = Processors.now().others_share(before)
    figures = [each for each in found if isinstance(each, Figure)]
    curves = [each for each in found if isinstance(each, Curve)]
    report = BenchReport(machine, plan, figures, curves, time.monotonic() - began, others_share)
    stdout_console().print(table(report), highlight=False)
    if json_file is not None:
        text = orjson.dumps(document(report), option=orjson.OPT_INDENT_2)
        json_file.write_bytes(text + b"\n")
    if html_file is not None:
        html_file.write_text(page(report), encoding="utf-8")


def measure(
    parent: Path, plan: BenchPlan, names: list[str], shown: Display, keys: bool
) -> list[Result]:
    """Return the figures and curves of the measures `names`, from a new cluster below `parent`."""
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    found: list[Result] = []
    try:
        shown.stage("starting a cluster", START_S_EXPECTED)
        with BenchStage(directory, shown, keys) as stage:
            for name in names:
                shown.stage(MEASURES[name].title, MEASURES[name].expected_s(plan))
                found += MEASURES[name].run(stage, plan)
    finally:
        shutil.rmtree(directory)
    return found


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    bench()
