"""The operations that a report's witnesses name, as their events stand in the history: fetched from
Spark, and laid out on a timeline in per cent of its width. No HTML here.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.verdict import Witness, WitnessOperation
from analytics.report.data import FIELDS, Band

NS_PER_MS: Final = 1_000_000
MARGIN_SHARE: Final = 0.06  # of a timeline's length, left free on either side
BAR_PERCENT_MIN: Final = 0.8  # or a short operation could not be seen
RUNS_SHOWN_MAX: Final = 8  # of what a TAKE says or was given
Key = tuple[str, int]
Event = Mapping[str, Any]
Events = Mapping[Key, Sequence[Event]]


@dataclass(frozen=True, slots=True)
class OperationBar:
    """An operation, or an event of its own, on a timeline. `ended`: whether its completion was
    recorded; `lasted_ms` is None of what has no beginning or no end.

    `left`, `width`: per cent. `words`: what it was and what it came to. `lines`: where its events
    stand, as `history/p.jsonl:12`. `lease`: of a TAKE that was given something, how far its first
    lease reaches from `left` on, in per cent; the border cuts it off.
    """

    process: str
    op_id: int
    words: str
    outcome: str
    ended: bool
    begin_s: float
    lasted_ms: float | None
    left: float
    width: float
    lines: tuple[str, ...]
    lease: float | None = None


@dataclass(frozen=True, slots=True)
class Shade:
    """A fault in force behind the operations of a timeline; `left`, `width` in per cent."""

    name: str
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A witness's operations over a stretch of the run's time, by their beginning."""

    begin_s: float
    end_s: float
    bars: tuple[OperationBar, ...]
    shades: tuple[Shade, ...]


def fetch(events: DataFrame, witnesses: Iterable[Witness]) -> Events:
    """Return the events of the operations that `witnesses` name: one scan, none without any."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for operation in (one for witness in witnesses for one in witness.operations):
        wanted[operation.process].add(operation.op_id)
    if not wanted:
        return {}
    conditions = [
        (F.col("process") == process) & F.col("op_id").isin(sorted(op_ids))
        for process, op_ids in sorted(wanted.items())
    ]
    found: dict[Key, list[Event]] = defaultdict(list)
    named = reduce(lambda left, right: left | right, conditions)
    for row in events.where(named).select(*FIELDS).orderBy("t_ns").collect():
        found[row.process, row.op_id].append(row.asDict())
    return found


def timeline(
    operations: Iterable[WitnessOperation],
    events: Events,
    origin_ns: int,
    bands: Sequence[Band] = (),
) -> Timeline | None:
    """Return the timeline of `operations`, with the faults of `bands` that were in force then.

    None when none of them was found. An operation without an end is drawn to the right border:
    nobody knows when it ended.
    """
    found = [
        (one, events[one.process, one.op_id])
        for one in dict.fromkeys(operations)
        if events.get((one.process, one.op_id))
    ]
    if not found:
        return None
    times_ns = [event["t_ns"] for _, own in found for event in own]
    first_ns, last_ns = min(times_ns), max(times_ns)
    spare_ns = max((last_ns - first_ns) * MARGIN_SHARE, NS_PER_MS / 10)
    begin_ns, end_ns = max(first_ns - spare_ns, origin_ns), last_ns + spare_ns
    bars = [_bar(one, own, begin_ns, end_ns, origin_ns) for one, own in found]
    begin_s, end_s = (begin_ns - origin_ns) / 1e9, (end_ns - origin_ns) / 1e9
    return Timeline(
        begin_s,
        end_s,
        tuple(sorted(bars, key=lambda bar: (bar.begin_s, bar.process, bar.op_id))),
        tuple(_shades(bands, begin_s, end_s)),
    )


def _shades(bands: Sequence[Band], begin_s: float, end_s: float) -> Iterator[Shade]:
    per_s = 100 / (end_s - begin_s)
    for band in bands:
        left_s, right_s = max(band.begin_s, begin_s), min(band.end_s, end_s)
        if left_s < right_s:
            left, width = (left_s - begin_s) * per_s, (right_s - left_s) * per_s
            yield Shade(band.name, round(left, 3), round(width, 3))


def _bar(
    operation: WitnessOperation,
    events: Sequence[Event],
    begin_ns: float,
    end_ns: float,
    origin_ns: int,
) -> OperationBar:
    invoke, end = events[0], events[-1]
    ended = end["type"] != "invoke"
    until_ns = end["t_ns"] if ended else end_ns
    per_ns = 100 / (end_ns - begin_ns)
    width = max((until_ns - invoke["t_ns"]) * per_ns, BAR_PERCENT_MIN)
    left = min((invoke["t_ns"] - begin_ns) * per_ns, 100 - BAR_PERCENT_MIN)
    lease = None
    if end["f"] == "take" and end["leases"]:
        held_until_ns = end["t_ns"] + end["left_ms"] * NS_PER_MS
        lease = round(min((held_until_ns - begin_ns) * per_ns, 100) - left, 3)
    return OperationBar(
        process=operation.process,
        op_id=operation.op_id,
        words=_words(invoke, end),
        outcome=_outcome(end),
        ended=ended,
        begin_s=(invoke["t_ns"] - origin_ns) / 1e9,
        lasted_ms=(end["t_ns"] - invoke["t_ns"]) / NS_PER_MS if ended and len(events) > 1 else None,
        left=round(left, 3),
        width=round(min(width, 100 - left), 3),
        lines=operation.lines,
        lease=lease,
    )


def _outcome(end: Event) -> str:
    if end["type"] == "invoke":
        return "no end"
    return "ok" if end["f"] == "phase" else str(end["type"])  # a phase's event is of the type info


def _words(invoke: Event, end: Event) -> str:
    """Return an operation in a line: what was asked for, and what was answered."""
    if invoke["f"] == "phase":
        return f"{invoke['phase']} {invoke['topic']} up to id {invoke['last_id']}"
    function = invoke["f"].upper()
    parts = [f"{function} {end['topic'] or invoke['topic'] or 'any topic'}"]
    if invoke["f"] == "put":
        parts.append(_numbers("counter", invoke["counter"], invoke["count"] or 1))
    elif invoke["f"] == "get" and invoke["last_id"] is not None and invoke["type"] == "invoke":
        parts.append(f"after id {invoke['last_id']}")
    elif invoke["group"]:
        parts.append(f"in group {invoke['group']}")
        parts += _settlements(invoke)
    if end["type"] == "ok":
        parts.append(f"→ {_answer(invoke, end)}")
    if end["error"]:
        parts.append(f"→ {end['error']}")
    if end["node"]:
        parts.append(f"(leader {end['node']}, term {end['term']})")
    return " ".join(parts)


def _answer(invoke: Event, end: Event) -> str:
    again = ", a duplicate" if end["duplicate"] else ""
    if end["f"] == "take":
        return _leased(end)
    if end["f"] in ("sub", "unsub", "group", "ungroup"):
        return "done" if end["last_id"] is None else f"from after id {end['last_id']}"
    if end["f"] == "get" and not end["count"]:
        return "nothing"
    if end["f"] == "get" and not end["first_id"]:
        return f"{end['count']} publications"
    if end["first_id"]:
        return _numbers("id", end["first_id"], end["count"] or invoke["count"] or 1) + again
    return "a duplicate" if again else "not stored: nobody subscribes"


def _settlements(take: Event) -> Iterator[str]:
    """Yield what a TAKE says of what its client has."""
    for name in ("acks", "naks", "extends"):
        if take[name]:
            runs = ", ".join(
                f"{_numbers('id', first, last + 1 - first)} of token {token}"
                for token, first, last, *_ in take[name][:RUNS_SHOWN_MAX]
            )
            yield f"{name} {runs}" + (" …" if len(take[name]) > RUNS_SHOWN_MAX else "")


def _leased(take: Event) -> str:
    said = []
    if take["leases"]:
        runs = ", ".join(
            f"{_numbers('id', first, last + 1 - first)} (attempt {attempt})"
            for first, last, attempt in take["leases"][:RUNS_SHOWN_MAX]
        )
        more = " …" if len(take["leases"]) > RUNS_SHOWN_MAX else ""
        said.append(f"{runs}{more} under token {take['token']} for {take['left_ms']:,} ms")
    if take["lost"]:
        lost = ", ".join(_numbers("id", first, last + 1 - first) for first, last in take["lost"])
        said.append(f"not his any more: {lost}")
    return "; ".join(said) or "nothing"


def _numbers(name: str, first: int, count: int) -> str:
    return f"{name} {first}" if count == 1 else f"{name}s {first}–{first + count - 1}"
