"""`python -m chaos.model`: explore the model, with a rule switched off if one likes.

What lives here: the command line. What must not: the model.
"""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from chaos.model.search import STATES_MAX, Symmetry, explore
from chaos.model.world import RULES, Left, Model, founded, unfounded

BOUND: Final = click.IntRange(0, 9)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--terms", type=click.IntRange(1, 9), default=2, show_default=True)
@click.option("--writes", type=BOUND, default=0)
@click.option("--wipes", type=BOUND, default=0, help="Nodes that lose their disks, one at a time.")
@click.option("--twins", type=click.IntRange(0, 1), default=0, help="A second process of a name.")
@click.option("--crashes", type=BOUND, default=0)
@click.option("--reads", type=BOUND, default=0)
@click.option("--compactions", type=BOUND, default=0)
@click.option("--copies", type=BOUND, default=0, help="Of a leader's store, for followers.")
@click.option("--founding", is_flag=True, help="Begin with three empty nodes.")
@click.option("--without", type=click.Choice(list(RULES)), multiple=True, help="Drop this rule.")
@click.option("--states", type=click.IntRange(1), default=STATES_MAX, help="Stop at so many.")
@click.option("--rules", is_flag=True, help="List the rules.")
def main(without: tuple[str, ...], founding: bool, states: int, rules: bool, **left: int) -> None:
    """Explore every state of three nodes within these bounds.

    Exit code 0: all states, nothing broken; 1: an invariant is broken, with the shortest way
    there; 2: stopped at the bound of states, or a usage error.
    """
    if rules:
        for name, rule in RULES.items():
            click.echo(f"{name:24}{rule}")
        return
    began = time.monotonic()

    def told(count: int, depth: int) -> None:
        pace = count / (time.monotonic() - began)
        click.echo(f"\r{count:,} states, depth {depth}, {pace:,.0f} states/s", err=True, nl=False)

    start = unfounded(Left(**left)) if founding else founded(Left(**left))
    symmetric: Symmetry = "but the first" if founding else "all"
    model = Model(frozenset(without))
    found = explore(model, start, symmetric=symmetric, states_max=states, told=told)
    click.echo(err=True)
    if found.violation:
        for number, step in enumerate(found.trace, 1):
            click.echo(f"{number:3}  {step}")
        click.echo(f"{len(found.trace) + 1:3}  {found.violation}")
        sys.exit(1)
    whole = "all" if found.complete else "not all"
    click.echo(f"{found.states:,} states, {whole}, depth {found.depth}: nothing is broken")
    sys.exit(0 if found.complete else 2)


if __name__ == "__main__":
    main(prog_name="python -m chaos.model")
