"""Who is told what is being done, and how long it took. How it is shown is cli.py's."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from analytics.common.verdict import CheckResult

# Called with a step's name when it begins, and again when it has ended: with the result when it
# was a check, else with the seconds that it took.
OnProgress = Callable[[str, CheckResult | float | None], None]
Keep = Callable[[str, DataFrame], DataFrame]


def unheard(_name: str, _came_to: CheckResult | float | None) -> None:
    """Tell nobody."""


@contextmanager
def step(name: str, tell: OnProgress) -> Iterator[None]:
    """Tell of what is done inside; an exception is not an end."""
    begun_s = time.monotonic()
    tell(name, None)
    yield
    tell(name, time.monotonic() - begun_s)


def telling(keep: Keep, tell: OnProgress) -> Keep:
    """Return `keep` that tells of each table."""

    def kept(name: str, table: DataFrame) -> DataFrame:
        with step(name, tell):
            return keep(name, table)

    return kept
