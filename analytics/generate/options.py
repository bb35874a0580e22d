"""The options of `flotilla-check --generate`. What they mean is in shape.py, plants.py and
scripts.py."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from analytics.common import session
from analytics.generate.scripts import EVERY_PLANT
from analytics.generate.shape import Shape, violations_of
from analytics.generate.writing import generate

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULTS: Final = Shape(operations=1_000_000)

OPTIONS: Final = (
    click.option(
        "--generate",
        "operations",
        type=int,
        metavar="N",
        help="Make up a history of N operations in DIRECTORY instead of checking one. Each planted "
        "violation needs room: with 64 topics some 17,000 operations.",
    ),
    click.option(
        "--violations",
        default="",
        metavar="SPEC",
        help=f"Plant these in it, such as lost=3,gap=2. There are: {', '.join(EVERY_PLANT)}.",
    ),
    click.option("--topics", default=DEFAULTS.topics, show_default=True, help="Topics in it."),
    click.option(
        "--hot",
        "hot_percent",
        default=0,
        show_default=True,
        help="Percentage of the publications in its first topic; 0: as many as in the others.",
    ),
    click.option("--producers", default=DEFAULTS.producers, show_default=True, help="That PUT."),
    click.option(
        "--subscribers", default=DEFAULTS.subscribers, show_default=True, help="Of every topic."
    ),
    click.option("--seed", default=DEFAULTS.seed, show_default=True, help="Of all that varies."),
    click.option("--jsonl", "as_jsonl", is_flag=True, help="Write JSON lines, not Parquet."),
)


def with_generation(command: Command) -> Command:
    """Give `command` the options; it gets them as keyword arguments for `made`."""
    return reduce(lambda made, option: option(made), reversed(OPTIONS), command)


def made(
    console: Console,
    directory: Path,
    master: str | None,
    memory: str,
    violations: str,
    as_jsonl: bool,
    **sizes: int,
) -> None:
    """Make the history and say what is in it. Raises BadShape."""
    shape, wanted = Shape(**sizes), violations_of(violations, EVERY_PLANT)
    with session.opened(master, memory) as spark, console.status("generating"):
        answers = generate(spark, directory, shape, wanted, as_jsonl)
    console.print(
        f"{shape.operations} operations in {directory}: {answers['acknowledged']} acknowledged, "
        f"{answers['delivered']} delivered; violations: {violations or 'none'}",
        markup=False,
        soft_wrap=True,
    )
