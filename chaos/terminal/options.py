"""Types of options that click has nearly: they refuse a little more, or say a little more.

What lives here: what several of our command lines take. What must not: any one command's options.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import click

from chaos.spec.suggestions import no_such


# Not `Choice[str]`: in click 8.1 it is no generic class.
class Named(click.Choice):  # type: ignore[type-arg]
    """A choice that tells a slip of the pen which name was probably meant. `what` they name."""

    def __init__(self, what: str, names: Iterable[str]) -> None:
        super().__init__(list(names))
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name. Fails with what is near it if it is none."""
        if value not in self.choices:
            self.fail(no_such(self._what, value, self.choices), param, ctx)
        return super().convert(value, param, ctx)


def a_number(
    _context: click.Context, _option: click.Parameter, value: float | None
) -> float | None:
    """Return the value of an option; refuse nan, which is neither below nor above any bound."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not in any range.")
    return value
