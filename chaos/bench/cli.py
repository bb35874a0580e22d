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

from chaos.bench.brokers import BROKERS, found
from chaos.bench.figures import BenchError, Figure
from chaos.bench.machine import Processors, facts
from chaos.bench.measures import MEASURES, PEERS, BenchPlan
from chaos.bench.report import BenchReport, document, table
from chaos.bench.stage import BenchStage
from chaos.terminal.console import stdout_console
from chaos.terminal.options import Named, a_number
from chaos.terminal.progress import Display, display
from cluster.local.local import LocalError
from flotilla_client import FlotillaError

START_S_EXPECTED: Final = 2.0
SEED_BITS: Final = 32
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
            found(BROKERS[name])
        except BenchError as error:
            raise click.BadParameter(str(error)) from None
    return names


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
@click.option("--insecure", is_flag=True, help="Without keys: what they cost is the difference.")
def bench(
    seconds: float,
    kills: int,
    only: tuple[str, ...],
    seed: int | None,
    json_file: Path | None,
    parent: Path,
    peers: tuple[str, ...],
    insecure: bool,
) -> None:
    """Measure a cluster of three nodes on this machine, in ratios to bare ZeroMQ and the disk."""
    drawn = secrets.randbits(SEED_BITS) if seed is None else seed
    if PEERS in only and not peers:
        raise click.UsageError("--only peers: which? Name them with --peers")
    plan = BenchPlan(seconds, kills, drawn, peers)
    names = [name for name in MEASURES if name in (only or name) and (peers or name != PEERS)]
    machine, before, began = facts(), Processors.now(), time.monotonic()
    expected_s = START_S_EXPECTED + sum(MEASURES[name].expected_s(plan) for name in names)
    try:
        with display(Console(stderr=True), expected_s) as shown:
            figures = measure(parent, plan, names, shown, keys=not insecure)
    except (BenchError, LocalError, FlotillaError) as error:
        raise click.ClickException(str(error)) from None
    others_share = Processors.now().others_share(before)
    report = BenchReport(machine, plan, figures, time.monotonic() - began, others_share)
    stdout_console().print(table(report), highlight=False)
    if json_file is not None:
        text = orjson.dumps(document(report), option=orjson.OPT_INDENT_2)
        json_file.write_bytes(text + b"\n")


def measure(
    parent: Path, plan: BenchPlan, names: list[str], shown: Display, keys: bool
) -> list[Figure]:
    """Return the figures of the measures `names`, from a new cluster below `parent`."""
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    figures: list[Figure] = []
    try:
        shown.stage("starting a cluster", START_S_EXPECTED)
        with BenchStage(directory, shown, keys) as stage:
            for name in names:
                shown.stage(MEASURES[name].title, MEASURES[name].expected_s(plan))
                figures += MEASURES[name].run(stage, plan)
    finally:
        shutil.rmtree(directory)
    return figures


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    bench()
