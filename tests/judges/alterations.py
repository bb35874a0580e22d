"""Legal histories in which one field of one row has another value, as well-formed as the first.

What lives here: which values a field may have instead, and what must follow for a line, and its
operation, to stay well-formed. What must not: whether the result is a lie, or a judge. Nobody chose
these: many are what another legal run would have recorded (docs/checks.md, "How the judges are
tried").
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.judges.history import RAW, MadeHistory, Row
from tests.judges.world import legal

Alter = Callable[[], None]
Alterations = dict[str, list[Alter]]  # what is altered, and how -> each place for it

BASES: Final = 1_000  # legal histories that are altered
ROWS_MAX: Final = 220  # of one of these: more of the same says little
KEPT: Final = {  # what says which line it is, what follows from others, what nothing rests on
    *("run_id", "process", "op_id", "type", "f", "kind", "invoke_ns", "asked"),
    *("wall_ns", "t_ns", "phase", "host", "bytes", "max_bytes", "attempt", "handed_apart"),
}
FOLLOWING: Final = {  # from other fields of an answer, or of its invoke
    "put": {"last_id", "counter", "count", "topic"},
    "get": {"first_id", "last_id", "count"},
    "take": {"count", "topic"},
}
REPEATED: Final = ("counter", "epoch", "max_count", "session", "client_id")
OPTIONAL: Final = {
    *("epoch", "cursor", "resumed", "duplicate", "start", "compacted", "number", "max_count"),
    *("max_attempts", "dead_letter", "ordered_by_key", "lease_ms", "redelivered"),
}
HEX_OF: Final = {"marked": "properties", "keyed": "keys"}
RUNS: Final = ("items", "delayed", "letters", "corrupt")
DIGITS: Final = 16


def alterations(history: MadeHistory, rng: random.Random) -> Alterations:
    """Return all that can be altered in this history; each is done once, by calling it."""
    found: Alterations = defaultdict(list)
    for name, change in (*_of_rows(history, rng), *_of_disks(history, rng)):
        found[name].append(change)
    return found


def _of_rows(history: MadeHistory, rng: random.Random) -> Iterator[tuple[str, Alter]]:
    rows = [row for row in history.rows if RAW not in row]
    partners, values = _partners(rows), _values(rows, _shape)
    for row in rows:
        said, partner = f"{row['f']} {row['type']}", partners.get(id(row))
        for field in list(row):
            if field in KEPT or _follows(row, partner, field):
                continue
            for how, change in _of_field(row, field, values[_shape(row), field], rng):
                yield f"{said} {field} {how}", _fitted(change, row, partner, field)
        for how, change in _of_operation(history, row, partner, rng):
            yield f"{said} {how}", change


def _of_disks(history: MadeHistory, rng: random.Random) -> Iterator[tuple[str, Alter]]:
    every = [row for rows in history.truth.values() for row in rows]
    values = _values(every, lambda row: row["kind"])
    for rows in history.truth.values():
        for row in rows:
            kind = row["kind"]
            yield f"disk {kind} gone", _without(rows, row)
            for field in [one for one in row if one not in KEPT and one != "node"]:
                for how, change in _of_field(row, field, values[kind, field], rng):
                    yield f"disk {kind} {field} {how}", change


@dataclass(frozen=True)
class Altered:
    """A legal history with one field altered; `name`: of which line, and how."""

    name: str
    base_seed: int
    history: MadeHistory


def altered(seed: int, is_fit: Callable[[int], bool], tried: Counter[str]) -> Altered:
    """Return an altered history; of all that can be altered in one, what was `tried` least often.

    `is_fit`: whether a legal history, by its seed, will do.
    """
    rng = random.Random(f"altered {seed}")
    while True:
        base_seed = rng.randrange(BASES)
        history = legal(base_seed)
        if len(history.rows) > ROWS_MAX or not is_fit(base_seed):
            continue
        ways = alterations(history, rng)
        least = min(tried[name] for name in ways)
        name = rng.choice(sorted(name for name in ways if tried[name] == least))
        tried[name] += 1
        rng.choice(ways[name])()
        return Altered(name, base_seed, history)


def told_of(verdicts: Mapping[str, Counter[str]]) -> Iterator[str]:
    """Yield lines that say what each alteration came to, and all of them."""
    columns = ("invalid", "unknown", "valid")
    yield f"{'altered':44}" + "".join(f"{name:>9}" for name in columns)
    for name, counted in sorted(verdicts.items()):
        yield f"{name:44}" + "".join(f"{counted[column]:9}" for column in columns)
    every: Counter[str] = sum(verdicts.values(), Counter())
    told = ", ".join(f"{every[column]:,} {column}" for column in columns)
    yield f"{len(verdicts)} alterations, {every.total():,} histories: {told}"


def _follows(row: Row, invoke: Row | None, field: str) -> bool:
    """Whether what an end says in a field is not its own."""
    if row["type"] == "invoke" or invoke is None:
        return False
    is_told = row["type"] == "ok" or field in ("first_id", "last_id", "topic")
    own = FOLLOWING.get(row["f"], {"topic"}) if row["type"] == "ok" else set()
    return field in REPEATED or field in own or not is_told


# --- fields ---------------------------------------------------------------------------------------


def _shape(row: Row) -> tuple[str, str]:
    return row["f"], row["type"]


def _values(
    rows: Iterable[Row], form: Callable[[Row], object]
) -> dict[tuple[object, str], list[Any]]:
    """Return what the lines of a form say in a field, all together."""
    found: dict[tuple[object, str], list[Any]] = defaultdict(list)
    for row in rows:
        for field, value in row.items():
            found[form(row), field].append(value)
    return found


def _partners(rows: Iterable[Row]) -> dict[int, Row]:
    """Return the invoke of each end and the end of each invoke, by the row's identity."""
    invokes: dict[tuple[str, int], Row] = {}
    found: dict[int, Row] = {}
    for row in rows:
        key = row["process"], row["op_id"]
        if row["type"] == "invoke":
            invokes[key] = row
        elif key in invokes:
            found[id(row)], found[id(invokes[key])] = invokes[key], row
    return found


def _of_field(
    row: Row, field: str, values: list[Any], rng: random.Random
) -> Iterator[tuple[str, Alter]]:
    """Yield how a field may be altered."""
    value = row[field]
    if field in OPTIONAL or isinstance(value, list):
        yield "left out", _left_out(row, field)
    if isinstance(value, list):
        for how, change in _of_list(row, field, values, rng):
            yield how, change
    elif field not in HEX_OF.values():
        for how, other in _others(value, values, rng):
            yield how, _set(row, field, other)


def _others(value: Any, values: Iterable[Any], rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Yield other values, with how each was come by."""
    if isinstance(value, bool):
        yield "flipped", not value
        return
    if isinstance(value, int):
        yield "+1", value + 1
        if value > 0:
            yield "-1", value - 1
        if value > 1:
            yield "0", 0
    different = [one for one in values if one != value and one is not None]
    if different:
        yield "another's", rng.choice(different)


def _of_list(
    row: Row, field: str, values: list[Any], rng: random.Random
) -> Iterator[tuple[str, Alter]]:
    value: list[Any] = row[field]
    if not value:
        return
    digits = HEX_OF.get(field)
    if len(value) > 1:
        place = rng.randrange(len(value))
        yield "without one", _cut(row, field, place)
    if len(value) > 1 and not digits:
        yield "swapped", _swapped(row, field, rng.randrange(len(value) - 1))
    if digits and digits in row:
        yield from _of_digits(row, digits, values, rng)
    members = [member for one in values for member in one]
    place = rng.randrange(len(value))
    if isinstance(value[place], int):
        for how, other in _others(value[place], members, rng):
            yield f"id {how}", _set_item(row, field, place, other)
        return
    for column, told in enumerate(value[place]):
        column_values = [one[column] for one in members if len(one) > column]
        for how, other in _others(told, column_values, rng):
            yield f"[{column}] {how}", _set_cell(row, field, place, column, other)


def _of_digits(
    row: Row, digits: str, values: list[Any], rng: random.Random
) -> Iterator[tuple[str, Alter]]:
    """Yield how one digest of many may be altered."""
    own = [row[digits][at : at + DIGITS] for at in range(0, len(row[digits]), DIGITS)]
    place = rng.randrange(len(own))
    flipped = ("1" if own[place][0] != "1" else "2") + own[place][1:]
    yield (
        f"{digits} flipped",
        _set(row, digits, "".join([*own[:place], flipped, *own[place + 1 :]])),
    )
    if len(set(own)) > 1:
        yield f"{digits} swapped", _set(row, digits, "".join(reversed(own)))


def _set(row: Row, field: str, value: Any) -> Alter:
    return lambda: row.__setitem__(field, value)


def _left_out(row: Row, field: str) -> Alter:
    def change() -> None:
        del row[field]
        row.pop(HEX_OF.get(field, ""), None)

    return change


def _cut(row: Row, field: str, place: int) -> Alter:
    def change() -> None:
        row[field] = [one for number, one in enumerate(row[field]) if number != place]
        if digits := HEX_OF.get(field):
            at = place * DIGITS
            row[digits] = row[digits][:at] + row[digits][at + DIGITS :]

    return change


def _swapped(row: Row, field: str, place: int) -> Alter:
    def change() -> None:
        told = list(row[field])
        told[place], told[place + 1] = told[place + 1], told[place]
        row[field] = told

    return change


def _set_item(row: Row, field: str, place: int, value: Any) -> Alter:
    def change() -> None:
        told = list(row[field])
        told[place] = value
        row[field] = told

    return change


def _set_cell(row: Row, field: str, place: int, column: int, value: Any) -> Alter:
    def change() -> None:
        told = [list(one) for one in row[field]]
        before = told[place][column]
        told[place][column] = value
        if column < _ids(field) and len(told[place]) > 2 and _is_one(field, told[place], before):
            told[place][: _ids(field)] = [value] * _ids(field)
            if field == "leases":
                _let_follow(row, before, value)
        row[field] = told

    return change


def _ids(field: str) -> int:
    """Return how many of the first columns of a run are its ids, or counters."""
    return {"leases": 2, "times": 2, "expires": 2, "delays": 2}.get(field, 0)


def _is_one(field: str, run: list[Any], before: int) -> bool:
    """Whether a run was of one id: then both of its ends move."""
    return before in run[: _ids(field)]


def _let_follow(row: Row, before: int, value: int) -> None:
    """Let what a TAKE brought be under the id that it leases."""
    for name in ("items", "delayed", "letters"):
        for run in row.get(name, ()):
            if run[0] == before:
                run[0] = value
    row["keyed"] = [value if one == before else one for one in row.get("keyed", ())]
    if not row["keyed"]:
        del row["keyed"]


# --- what has to follow ---------------------------------------------------------------------------


def _fitted(change: Alter, row: Row, partner: Row | None, field: str) -> Alter:
    """Return the change, and what must follow it: in the line, and in the other one."""

    def do() -> None:
        change()
        _refit(row)
        if partner is None or row["type"] != "invoke":
            return
        same = [*REPEATED, "topic"] if row["f"] != "get" else REPEATED
        if field in same or (field == "count" and row["f"] == "put"):
            if field in partner and field in row:
                partner[field] = row[field]
            elif field in partner:
                del partner[field]
        if field == "last_id" and "asked" in partner:
            partner["asked"] = row["last_id"]
        _refit(partner)

    return do


def _refit(row: Row) -> None:
    """Let ids and counts that follow from other fields of an `ok` follow."""
    if row["type"] != "ok" or "count" not in row:
        return
    if row["f"] == "put":
        row["last_id"] = row["first_id"] + row["count"] - 1 if row["first_id"] else 0
    if row["f"] == "take" and "leases" in row:
        kept = {run[0] for run in row["leases"]}
        row["count"] = sum(last - first + 1 for first, last, _ in row["leases"])
        for name in ("items", "delayed", "letters"):
            if name in row:
                row[name] = [run for run in row[name] if run[0] in kept]
    if row["f"] == "get" and any(name in row for name in RUNS):
        spans = [
            (run[0], run[0] + (run[3] if name in ("items", "delayed") else 1) - 1)
            for name in RUNS
            for run in row.get(name, ())
        ]
        row["count"] = sum(last - first + 1 for first, last in spans)
        if spans:
            row["first_id"] = min(first for first, _ in spans)
            row["last_id"] = max(last for _, last in spans)


# --- operations -----------------------------------------------------------------------------------

COMMON: Final = {
    *("run_id", "process", "host", "session", "client_id", "phase", "t_ns", "wall_ns", "op_id"),
    *("f", "topic", "type", "attempt", "invoke_ns", "asked", "epoch", "max_count"),
}
NOT_DONE: Final = {"put": "backlog_full", "sub": "overloaded", "group": "overloaded"}


def _of_operation(
    history: MadeHistory, row: Row, partner: Row | None, rng: random.Random
) -> Iterator[tuple[str, Alter]]:
    """Yield what may become of an operation, or of an event, as a whole."""
    if row["type"] == "invoke" or (row["type"] == "info" and partner is None):
        yield "gone", lambda: _remove(history, row)
    if row["type"] == "invoke":
        if partner is not None and partner["t_ns"] > row["t_ns"]:
            yield "sent at its end", lambda: _move(row, partner, partner["t_ns"])
        return
    if partner is None:
        return
    yield "answered at once", _set(row, "t_ns", partner["t_ns"])
    if row["type"] != "fail":
        yield "to fail", lambda: _end_as(row, partner, "fail", NOT_DONE.get(row["f"], "electing"))
    if row["type"] == "fail" and row["f"] in ("get", "take"):
        for error in ("not_subscribed", "unknown_topic"):
            if row["error"] != error:
                yield f"to {error}", lambda error=error: _end_as(row, partner, "fail", error)
    same = [
        other
        for other in history.rows
        if RAW not in other
        and other is not row
        and other["process"] == row["process"]
        and _shape(other) == _shape(row)
        and other.get("topic") == row.get("topic")
    ]
    if same:
        yield "answers swapped", lambda: _swap_answers(row, rng.choice(same))


def _without(rows: list[Row], row: Row) -> Alter:
    def change() -> None:
        del rows[next(number for number, one in enumerate(rows) if one is row)]

    return change


def _remove(history: MadeHistory, row: Row) -> None:
    """Let an operation never have been; those after it of its process are numbered anew."""
    process, op_id = row["process"], row["op_id"]
    history.rows = [
        one
        for one in history.rows
        if RAW in one or (one["process"], one["op_id"]) != (process, op_id)
    ]
    for one in history.rows:
        if RAW not in one and one["process"] == process and one["op_id"] > op_id:
            one["op_id"] -= 1


def _move(invoke: Row, end: Row | None, t_ns: int) -> None:
    invoke["t_ns"] = t_ns
    if end is not None and "invoke_ns" in end:
        end["invoke_ns"] = t_ns


def _end_as(end: Row, invoke: Row, outcome: str, error: str) -> None:
    kept = COMMON | ({"counter", "count"} if invoke["f"] == "put" else set())
    for field in [one for one in end if one not in kept]:
        del end[field]
    end["type"], end["error"] = outcome, error


def _swap_answers(one: Row, other: Row) -> None:
    kept = COMMON - {"attempt"} | ({"counter", "count"} if one["f"] == "put" else set())
    own = {field: value for field, value in one.items() if field not in kept}
    theirs = {field: value for field, value in other.items() if field not in kept}
    for row, old, new in ((one, own, theirs), (other, theirs, own)):
        for field in old:
            del row[field]
        row.update(new)
        _refit(row)
