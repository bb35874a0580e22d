"""The registry of small histories, each with the evidence that it holds, and no other.

A case is a function that fills a `RunRecorder` and returns what every check must find in it.
test_checks.py runs all of them at once.
"""

from collections.abc import Callable
from typing import NamedTuple

from tests.spark.histories import RunRecorder


class EvidenceRow(NamedTuple):
    """A row of evidence: the columns of `schema.EVIDENCE`, operations as (process, op_id)."""

    run_id: str
    topic: str | None = None
    client_id: str | None = None
    id: int | None = None
    other_id: int | None = None
    producer: str | None = None
    counter: int | None = None
    detail: str | None = None
    operations: tuple[tuple[str, int], ...] = ()


Expected = dict[str, list[EvidenceRow]]
Case = Callable[[RunRecorder], Expected]
CASES: dict[str, Case] = {}


def case(build: Case) -> Case:
    """Register a case; its name is the claim."""
    assert build.__name__ not in CASES, build.__name__
    CASES[build.__name__] = build
    return build


def may_subscribe(run: RunRecorder, *client_ids: str) -> None:
    """Let processes of these clients have sent a SUB to `t`, of which nobody knows what became."""
    for client_id in client_ids:
        run.invoke(client_id, "sub", "t", process=f"{client_id}-before")


def row(run: RunRecorder, **fields: object) -> EvidenceRow:
    """Return a row of evidence, in the topic `t` unless it says otherwise."""
    return EvidenceRow(run.run_id, **{"topic": "t", **fields})  # type: ignore[arg-type]
