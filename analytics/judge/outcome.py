"""What a run says of itself: why it proves nothing, whatever is found in its history.

What lives here: reading that from `run.json`. What must not: finding reasons of our own
(observations.py), or judging what a run expected of the service: that is not a promise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # not at run time: it imports Spark, and the twins do without
    from analytics.common.storage import Place

UNFINISHED = "the run did not finish"


def reasons_of(directory: Place) -> tuple[str, ...]:
    """Return the run's own reasons; none for a history that no experiment made.

    A `run.json` that can't be read is a reason that load.py has found already.
    """
    try:
        outcome = json.loads((directory / "run.json").read_bytes()).get("outcome")
    except (OSError, ValueError, AttributeError):
        return ()
    return said_by(outcome) if isinstance(outcome, dict) else ()


def said_by(outcome: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the reasons that a run's `outcome` gives."""
    found = tuple(str(reason) for reason in outcome.get("reasons") or ())
    return found or ((UNFINISHED,) if outcome.get("finished") is False else ())
