"""The registry of small histories, each with the evidence that it holds, and no other.

A case is a function that fills a `Run` and returns what every check must find in it. test_checks.py
runs all of them at once, by Spark and by the twins.
"""

from collections.abc import Callable

from analytics.twins import Evidence
from tests.spark.histories import Run

Expected = dict[str, list[Evidence]]
Case = Callable[[Run], Expected]
CASES: dict[str, Case] = {}


def case(build: Case) -> Case:
    """Register a case; its name is the claim."""
    assert build.__name__ not in CASES, build.__name__
    CASES[build.__name__] = build
    return build


def row(run: Run, **fields: object) -> Evidence:
    """Return a row of evidence, in the topic `t` unless it says otherwise."""
    return Evidence(run.run_id, **{"topic": "t", **fields})  # type: ignore[arg-type]
