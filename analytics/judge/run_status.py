"""What a run says of itself: why it proves nothing, whatever is found in its history.

What lives here: reading that from `run.json`. What must not: finding reasons of our own
(observations.py), or judging what a run expected of the service: that is not a promise.
"""

from __future__ import annotations

from collections.abc import Mapping

from analytics.common.storage import Place
from analytics.intake.files import content_of, strictly

UNFINISHED = "the run did not finish"
COUNTED = ("acknowledged", "delivered")
UNREADABLE = "run.json: the outcome can't be read"


def reasons_of(directory: Place) -> tuple[str, ...]:
    """Return the run's own reasons; none for a history that no experiment made.

    A `run.json` that can't be read is a reason that load.py has found already.
    """
    try:
        outcome = strictly(content_of(directory / "run.json")).get("outcome")
    except (OSError, ValueError, AttributeError):
        return ()
    return () if outcome is None else said_by(outcome)


def counted_by(directory: Place) -> Mapping[str, int]:
    """Return how many publications the run has counted: `acknowledged`, `delivered`."""
    try:
        outcome = strictly(content_of(directory / "run.json")).get("outcome")
    except (OSError, ValueError, AttributeError):
        return {}
    said = outcome if isinstance(outcome, Mapping) else {}
    return {name: said[name] for name in COUNTED if type(said.get(name)) is int}


def said_by(outcome: object) -> tuple[str, ...]:
    """Return the reasons that a run's `outcome` gives, and the violations that it has seen."""
    if not isinstance(outcome, Mapping):
        return (UNREADABLE,)
    reasons, violations = outcome.get("reasons", []), outcome.get("violations", [])
    if not isinstance(reasons, list) or not isinstance(violations, list):
        return (UNREADABLE,)
    found = tuple(dict.fromkeys(map(str, (*reasons, *violations))))
    return found or (() if outcome.get("finished") is True else (UNFINISHED,))
