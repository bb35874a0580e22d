"""Whether a run's record can be judged: one that can't be hides what it holds.

What lives here: what makes a verdict `unknown` for the rows' sake (docs/history.md), asked of what
clients recorded in a run. What must not: what the rows prove (analytics.twins).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from analytics.twins import Event, Malformed, Run, checked, read


def taken_in(rows: Iterable[Mapping[str, Any]]) -> tuple[Run, list[str]]:
    """Return the run of the rows that can be read, and what is wrong with the record."""
    sound: list[Event] = []
    wrong: list[str] = []
    for row in rows:
        try:
            sound.append(checked(dict(row)))
        except Malformed as error:
            wrong.append(f"malformed: {row.get('process')} {row.get('op_id')}: {error}")
    run = read(sound)
    lacking = "an answer lacks the cursor or topic asked for"
    wrong += [*run.holes, *(f"{get.process} {get.op_id}: {lacking}" for get in run.unplaced)]
    return run, wrong
