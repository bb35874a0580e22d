"""What was gone for good when an operation was sent: purged, or told to somebody to be gone.

What lives here: only that. What must not: whether it was told rightly (answers.py).
"""

from __future__ import annotations

from analytics.twins.record import RecordedOperation
from analytics.twins.run import Run


def gone_before(run: Run, get: RecordedOperation) -> int:
    """Return up to which id a topic had been purged when a GET or a TAKE was sent."""
    return max(
        (
            one.last_id
            for one in run.purges
            if one.is_done and one.topic == (get.named or get.topic)
            if one.host == get.host and one.time < get.invoke
        ),
        default=0,
    )


def told_before(run: Run, own: RecordedOperation) -> int:
    """Return up to which id somebody had been told that all is gone when an operation was sent."""
    return max(
        (
            max(get.ids())
            for get in run.told_of_purges
            if get.named == (own.named or own.topic) and is_for_good(run, get)
            if get.host == own.host and get.end < own.invoke
        ),
        default=0,
    )


def is_for_good(run: Run, get: RecordedOperation) -> bool:
    """Whether what is below what an answer says is gone, is gone as well: not of what has expired
    or was replaced, which who does not know these words is told with that for what was dropped.
    """
    is_gap = get.error == "gap" and not run.is_application and get.named not in run.expiring
    return get.error == "purged" or (is_gap and get.key not in run.replacements)


def begins_in_the_gone(run: Run, control: RecordedOperation, start: str) -> bool:
    """Whether something begins, at the earliest or an id, below what was gone before it was sent.

    A gap in a topic of which keys are known may be of what was replaced.
    """
    if start != "earliest" and not start.isdecimal():
        return False
    is_keyed = any(put.is_ok and put.keys for put in run.of("put") if put.topic == control.topic)
    told = (
        max(get.ids())
        for get in run.told_of_purges
        if get.named == control.topic and is_for_good(run, get)
        if get.error == "purged" or not is_keyed
        if get.host == control.host and get.end < control.invoke
    )
    return (control.last_id or 0) < max((gone_before(run, control), *told))
