"""What is reported beside the checks, of a run in memory. Judges nothing.

Counts are as in analytics/observations.py; of times only what the caller knows of the faults.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from analytics.liveness import Healing, named, with_healing, with_recovery
from analytics.twins.run import Event, Run
from analytics.verdict import Fault, Observations

UNDRAINED_SHOWN_MAX = 3


def observe(run: Run, faults: Iterable[Fault]) -> Observations:
    """Return the observations of a run; `faults` as they are in it."""
    undrained = sorted(
        f"{one.client_id} {one.topic}"
        for one in run.standing()
        if (one.client_id, one.topic) not in run.drains
    )
    acknowledged = _counters(run, "ok")
    unsure = _counters(run, "info") - acknowledged
    seen = {
        (topic, producer, counter)
        for (topic, _), contents in run.seen.items()
        for producer, counter in contents
    }
    unplaced = [get for get in run.gets if get.ids() and (get.asked is None or get.topic is None)]
    rows = {"puts": len(run.puts), "gets": len(run.gets), "controls": len(run.controls)}
    rows |= {"subscriptions": len(run.subscriptions), "drains": len(run.drains)}
    return Observations(
        acknowledged=len(acknowledged),
        delivered=sum(len(get.ids()) for get in run.gets),
        recovered=len(unsure & seen),
        undrained_count=len(undrained),
        undrained=tuple(undrained[:UNDRAINED_SHOWN_MAX]),
        unplaced_answers=len(unplaced),
        faults=tuple(faults),
        rows=rows,
    )


def _counters(run: Run, outcome: str) -> set[tuple[str, str, int]]:
    return {
        (put.topic, put.producer, counter)
        for put in run.puts
        if put.outcome == outcome
        for counter in put.counters
    }


def outlived(
    faults: Sequence[Fault], events: Iterable[Event], nodes: Sequence[str], run: Run
) -> tuple[Fault, ...]:
    """Return `faults`, in their order of time, with what `events` say of their healing."""
    healings = sorted(
        (event["t_ns"], *named(event["error"]))
        for event in events
        if event["f"] == "fault" and '"heal"' in event["error"]
    )
    healed = with_healing(faults, [Healing(*one) for one in healings], nodes)
    acks_ns = sorted(put.end_ns for put in run.puts if put.outcome == "ok" and put.end_ns)
    next_ns = {}
    for fault in healed:
        place = bisect_left(acks_ns, fault.healed_ns or 0)
        if fault.healed_ns is not None and place < len(acks_ns):
            next_ns[fault.healed_ns] = acks_ns[place]
    return with_recovery(healed, next_ns)
