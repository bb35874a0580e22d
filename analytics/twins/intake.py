"""A run's directory, read strictly: what its record says, and whether all of it is there.

What lives here: docs/history.md, "What a record must show to be whole". What must not: checks, the
verdict. A hole is a sentence: what is missing, or can't be believed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeGuard

import orjson

from analytics.twins.record import (
    FUNCTIONS,
    HANDLINGS,
    OF_GROUPS,
    PURGES,
    Event,
    is_told_of_purge,
)

NUMBER_MAX: Final = 2**53
COUNT_MAX: Final = 2**24  # publications at once
TEXT_MAX: Final = 20_000_000  # characters of a field
TIME_NS_MAX: Final = 2**63 - 1
TORN_MARK: Final = b"\x18"
DIGEST: Final = re.compile(r"[0-9a-f]{32}")
CONTENT_DIGESTS: Final = re.compile(r"(?:[0-9a-f]{16})*")
# A run is held in memory, each publication by itself: some GB for so many.
PUBLICATIONS_MAX: Final = 5_000_000

HISTORY: Final = "history"
PARQUET: Final = "history.parquet"
TRUTH: Final = "truth"


class Unjudgeable(Exception):
    """The directory holds nothing that this judge can look at."""


class Malformed(Exception):
    """A line that no recorder writes; the message says why."""


@dataclass
class TakenIn:
    """What was read. `holes` of the history, and of the truth; `doubts`: what nothing vouches for.

    `remarks` are no reason for anything. `nodes`: of each whether its disk was read; `missing`:
    nodes whose disks were to be read.
    """

    document: Mapping[str, Any]
    rows: list[Event] = field(default_factory=list)
    truth: list[Event] = field(default_factory=list)
    nodes: dict[str, bool] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)
    truth_holes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    lines: int = 0
    torn: int = 0
    malformed: int = 0

    @property
    def run_id(self) -> str:
        """The run's id, as run.json names it; "": it names none."""
        run_id = self.document.get("run_id")
        return run_id if isinstance(run_id, str) else ""

    @property
    def is_application(self) -> bool:
        """Whether an application recorded itself: no phases, nobody had to drain."""
        return self.document.get("recorded_by") == "application"


def take_in(directory: Path) -> TakenIn:
    """Read a run's directory. Raises Unjudgeable."""
    intake = TakenIn({})
    try:
        intake.document = _document(directory / "run.json")
    except Malformed as error:
        intake.doubts.append(f"unreadable: run.json: {error}")
    if not intake.run_id:
        intake.doubts.append("run.json names no run_id")
    who = intake.document.get("recorded_by")
    if who is not None and not intake.is_application:
        intake.holes.append(f"run.json does not say who recorded: {who!r}")
    _take_history(intake, directory)
    _take_truth(intake, directory)
    if not intake.run_id and len({row["run_id"] for row in intake.rows}) > 1:
        raise Unjudgeable("lines are of several runs, and run.json does not say of which it is")
    return intake


def _document(path: Path) -> Mapping[str, Any]:
    """Return what stands in run.json. Raises Malformed."""
    try:
        if path.exists() and not path.is_file():  # a pipe, or a device, might never end
            raise Malformed("it is no file")
        return parsed(path.read_bytes())
    except OSError as error:
        raise Malformed(error.strerror) from error


# --- JSON, strictly -------------------------------------------------------------------------------


def parsed(data: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises Malformed, for what only a lenient parser takes as well."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refused)
        if b"\\u" in data:
            orjson.loads(data)  # half a surrogate is no character
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise Malformed("no JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name twice")
    return value


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


# --- the history's files --------------------------------------------------------------------------


def _take_history(intake: TakenIn, directory: Path) -> None:
    listed = intake.document.get(HISTORY)
    folder = directory / HISTORY
    if (directory / PARQUET).exists():
        intake.holes.append(f"{PARQUET} is not read by this judge")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    wanted = _wanted(intake, listed, found)
    for name in wanted:
        if name in found and (folder / name).is_file():
            try:
                data = (folder / name).read_bytes()
            except OSError as error:
                intake.holes.append(f"unreadable: {HISTORY}/{name}: {error.strerror}")
                continue
            if isinstance(listed, Mapping):
                _compare(intake, f"{HISTORY}/{name}", listed[name], data)
            _take_lines(intake, name, data)
        else:
            intake.holes.append(f"{HISTORY}/{name} is gone: run.json names it")
    for name in found:
        if name not in wanted and not _is_unnamed_yet(folder / name):
            intake.holes.append(f"{HISTORY}/{_shown(name)} is not read: it is no file of this run")


def _wanted(intake: TakenIn, listed: object, found: list[str]) -> list[str]:
    """Return the names of the files to read, whether they are there or not."""
    if isinstance(listed, Mapping):
        own = [name for name in listed if _is_own(name)]
        intake.holes += [
            f"run.json names {name!r}, which is no file of {HISTORY}/"
            for name in listed
            if not _is_own(name)
        ]
        return sorted(own)
    intake.doubts.append("run.json does not say what its files hold: a cut one could not be told")
    names = {name for name in found if _is_own(name)}
    return sorted(names | set(listed)) if _is_names(listed) else sorted(names)


def _is_names(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_own(name: str) -> bool:
    is_named_so = name.endswith(".jsonl") and not name.startswith(("_", "."))
    return is_named_so and not {"/", ":"} & set(name) and name == _shown(name)


def _shown(name: str) -> str:
    """Return a file's name as text: bytes of it may be no UTF-8."""
    return os.fsencode(name).decode(errors="replace")


def _is_unnamed_yet(path: Path) -> bool:
    """Whether its client died before it could be named, and so before its first line."""
    return _is_own(path.name) and path.is_file() and path.stat().st_size == 0


def _compare(intake: TakenIn, path: str, said: object, data: bytes) -> None:
    """Hold a file of the history against what run.json says of it."""
    if not _is_said(said):
        intake.doubts.append(f"run.json does not say what {path} holds: {said!r}")
        return
    intake.holes += _differences(path, said, data)
    if not said["closed"]:
        size_bytes = said["bytes"]
        intake.remarks.append(f"{path} was not closed: {size_bytes} bytes of it are vouched for")


def _differences(path: str, said: Mapping[str, Any], data: bytes) -> list[str]:
    """Return in what a file is not the one that run.json names; the first that is found."""
    size_bytes: int = said["bytes"]
    first = data[:size_bytes]
    if len(data) < size_bytes:
        return [f"{path} is cut: {len(data)} bytes of {size_bytes}"]
    if blake2b(first, digest_size=16).hexdigest() != said["blake2b"]:
        return [f"{path} is not the file that run.json names: another digest"]
    if first.count(b"\n") != said["lines"]:
        return [f"{path} has not the {said['lines']} lines that run.json names"]
    if said["closed"] and len(data) > size_bytes:
        return [f"{path} is longer than it was when it was closed"]
    return []


def _is_said(said: object) -> TypeGuard[Mapping[str, Any]]:
    return (
        isinstance(said, Mapping)
        and all(_is_number(said.get(name)) for name in ("bytes", "lines"))
        and isinstance(said.get("blake2b"), str)
        and DIGEST.fullmatch(said["blake2b"]) is not None
        and isinstance(said.get("closed"), bool)
    )


def _take_lines(intake: TakenIn, name: str, data: bytes) -> None:
    """Take the lines of one file; each is counted, and is a row, torn or a hole."""
    process = name.removesuffix(".jsonl")
    torn_session: int | None = None  # of a torn line: what follows has to be of a later one
    session = 0
    for number, line in enumerate(BytesIO(data), start=1):
        intake.lines += 1
        where = f"{HISTORY}/{name}:{number}"
        is_ended = line.endswith(b"\n")
        text = line.removesuffix(b"\n")
        if text.endswith(TORN_MARK):
            intake.torn += 1
            torn_session = session
            continue
        try:
            row = checked(parsed(text))
        except Malformed as error:
            if is_ended:
                intake.malformed += 1
                intake.holes.append(f"malformed: {where}: {error}")
            else:
                intake.torn += 1
            continue
        if intake.run_id not in ("", row["run_id"]):
            intake.holes.append(f"{where} is of another run")
            continue
        if row["process"] != process:
            intake.holes.append(f"{where} is of another process: {row['process']!r}")
            continue
        session = row.get("session") or 0
        if torn_session is not None and session <= torn_session:
            intake.holes.append(f"{where} goes on in the session of a torn line")
        torn_session = None
        intake.rows.append(row)


# --- rows of the history --------------------------------------------------------------------------

Test = Callable[[Any], bool]


def _is_number(value: object, most: int = NUMBER_MAX) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_id(value: object) -> bool:  # a counter as well
    return _is_number(value) and value != 0


def _is_count(value: object) -> bool:
    return _is_number(value, COUNT_MAX)


def _is_time(value: object) -> bool:
    return _is_number(value, TIME_NS_MAX)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_MAX


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_item(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 4:
        return False
    first_id, producer, counter, count = value
    is_run = _is_id(first_id) and _is_id(counter) and _is_count(count) and count >= 1
    return is_run and isinstance(producer, str) and bool(producer)


def _is_corrupt(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and _is_id(value[0])
        and isinstance(value[1], str)
    )


def _is_letter(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 4:
        return False
    id_, topic, group, from_id = value
    return _is_id(id_) and _is_text(topic) and _is_text(group) and _is_id(from_id)


def _is_run(value: object, first_place: int, size: int) -> bool:
    """Whether it is so many numbers, of which two from `first_place` on are a run of ids."""
    if not isinstance(value, list) or len(value) != size or not all(map(_is_number, value)):
        return False
    first_id, last_id = value[first_place : first_place + 2]
    return first_id >= 1 and bool(1 <= last_id - first_id + 1 <= COUNT_MAX)


def _is_lease(value: object) -> bool:
    return _is_run(value, 0, 3) and isinstance(value, list) and value[2] >= 1


def _is_lost(value: object) -> bool:
    return _is_run(value, 0, 2)


def _is_ack(value: object) -> bool:
    return _is_run(value, 1, 3) and isinstance(value, list) and value[0] >= 1


def _is_delayed(value: object) -> bool:  # a nak, or an extend
    return _is_run(value, 1, 4) and isinstance(value, list) and value[0] >= 1


def _is_list(of: Test) -> Test:
    return lambda value: isinstance(value, list) and all(of(one) for one in value)


def _is_digests(value: object) -> bool:
    return isinstance(value, str) and CONTENT_DIGESTS.fullmatch(value) is not None


def _is_time_run(value: object) -> bool:
    """Whether it is a run of ids, and the time that they have."""
    if not isinstance(value, list) or len(value) != 3 or not all(map(_is_id, value)):
        return False
    first_id, last_id, _ = value
    return bool(1 <= last_id - first_id + 1 <= COUNT_MAX)


_NUMBERS: Final = (
    *("session", "asked", "epoch", "cursor", "first_id", "last_id"),
    *("attempt", "term", "bytes", "redelivered", "lease_ms", "left_ms"),
)
_NUMBERS_FROM_1: Final = (
    *("op_id", "counter", "max_count", "max_bytes"),
    *("token", "number", "max_attempts"),
)
_TEXTS: Final = (
    *("run_id", "process", "client_id", "type", "f", "topic", "host", "node", "error", "phase"),
    *("start", "group", "dead_letter"),
)
_FLAGS: Final = ("duplicate", "resumed", "handed_apart", "ordered_by_key", "compacted", "unsaid")
_FIELDS: Final[Mapping[str, Test]] = {
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_NUMBERS_FROM_1, _is_id),
    **dict.fromkeys(_TEXTS, _is_text),
    **dict.fromkeys(("t_ns", "wall_ns", "invoke_ns"), _is_time),
    **dict.fromkeys(_FLAGS, _is_flag),
    "count": _is_count,
    "items": _is_list(_is_item),
    "corrupt": _is_list(_is_corrupt),
    "digests": _is_digests,
    "times": _is_list(_is_time_run),
    "expires": _is_list(_is_time_run),
    "delays": _is_list(_is_time_run),
    "marked": _is_list(_is_id),
    "properties": _is_digests,
    "keyed": _is_list(_is_id),
    "keys": _is_digests,
    "letters": _is_list(_is_letter),
    "delayed": _is_list(_is_item),
    "leases": _is_list(_is_lease),
    "lost": _is_list(_is_lost),
    "acks": _is_list(_is_ack),
    "naks": _is_list(_is_delayed),
    "extends": _is_list(_is_delayed),
}
_DUE: Final = ("run_id", "process", "op_id", "type", "f", "t_ns")
_DUE_OF_CLIENTS: Final = (*_DUE, "client_id", "session", "topic")
_TYPES: Final = frozenset({"invoke", "ok", "fail", "info"})
_SINGLES: Final = HANDLINGS | PURGES | {"phase", "fault"}


def checked(row: dict[str, Any]) -> Event:
    """Return a row as docs/history.md has them; a null is a field that was left out.

    Raises Malformed.
    """
    row = {name: value for name, value in row.items() if value is not None}
    for name, value in row.items():
        test = _FIELDS.get(name)
        if test is not None and not test(value):
            raise Malformed(f"{name} is {value!r}")
    f, kind = row.get("f"), row.get("type")
    if f not in FUNCTIONS | _SINGLES:
        raise Malformed(f"no function: {f!r}")
    due = _DUE_OF_CLIENTS if f in FUNCTIONS | HANDLINGS else _DUE
    if lacking := [name for name in due if name not in row]:
        raise Malformed(f"no {', '.join(lacking)}")
    if row.get("invoke_ns", 0) > row["t_ns"]:
        raise Malformed("it ends before it was sent")
    if kind not in (_TYPES if f in FUNCTIONS else {"info"}):
        raise Malformed(f"type is {kind!r}")
    _check_function(row)
    if "digests" in row:
        _check_digests(row)
    if 16 * len(row.get("marked", ())) != len(row.get("properties", "")):
        raise Malformed("properties are not as many as are marked")
    if 16 * len(row.get("keyed", ())) != len(row.get("keys", "")):
        raise Malformed("keys are not as many as are keyed")
    _check_named(row)
    return row


def _check_named(row: Event) -> None:
    """Raise Malformed if a row says something of ids that it does not bring, or of counters that
    it does not put.
    """
    f, kind = row["f"], row["type"]
    if f == "put" and kind == "invoke":
        first, last = row["counter"], row["counter"] + row["count"] - 1
        runs = [*row.get("expires", ()), *row.get("delays", ())]
    elif f in ("put", "get") and kind == "ok":
        first, last = row.get("first_id", 0), row.get("last_id", NUMBER_MAX)
        runs = [*row.get("times", ()), *row.get("expires", ())]
        runs += [(id_, id_) for id_ in (*row.get("marked", ()), *row.get("keyed", ()))]
    elif f == "take" and kind == "ok":
        leased = {id_ for low, high, _ in row.get("leases", ()) for id_ in range(low, high + 1)}
        if not leased.issuperset(row.get("keyed", ())):
            raise Malformed("it has keys of what it does not lease")
        return
    else:
        return
    if any(run[0] < first or run[1] > last for run in runs):
        raise Malformed(f"it speaks of others than {first} to {last}")


def _check_function(row: Event) -> None:
    """Raise Malformed if a row lacks what one of its function has."""
    f, kind = row["f"], row["type"]
    if f == "put":
        _check_put(row)
    elif f == "get" and kind == "ok":
        _check_answer(row)
    elif f == "get" and is_told_of_purge(row):
        _check_gone(row)
    elif f in PURGES and not {"topic", "last_id"} <= row.keys():
        raise Malformed("a purge without topic and last_id")
    elif f in ("sub", "group") and kind == "ok" and "last_id" not in row:
        raise Malformed("no last_id")
    elif f == "sub" and kind == "ok" and row.get("cursor", 0) > row["last_id"]:
        raise Malformed(f"it begins behind {row['last_id']}, and stands at {row['cursor']}")
    elif f in OF_GROUPS and kind == "invoke" and "group" not in row:
        raise Malformed("no group")
    elif f == "take" and kind == "ok":
        _check_take(row)
    elif f in HANDLINGS:
        _check_handling(row)


def _check_put(put: Event) -> None:
    count = put.get("count")
    if put["type"] == "invoke":
        if not put.get("counter") or not count:
            raise Malformed("a PUT without counter and count")
    elif count == 0:
        raise Malformed("a PUT of none")
    elif put["type"] == "ok" and "first_id" not in put:
        raise Malformed("no first_id")
    first_id, last_id = put.get("first_id"), put.get("last_id")
    if put["type"] == "ok" and first_id and None not in (last_id, count):
        told = put["last_id"] - first_id + 1
        if told != count:
            raise Malformed(f"ids {first_id} to {last_id} are not {count}")


def _check_answer(get: Event) -> None:
    """Raise Malformed if an answer says another count than it brings, or not of which topic."""
    count = get.get("count", 0)
    named = sum(item[3] for name in ("items", "delayed") for item in get.get(name, ()))
    brought = named + len(get.get("corrupt", ())) + len(get.get("letters", ()))
    if "digests" not in get and count != brought:
        raise Malformed(f"count is {count}, it brings {brought}")
    if get["f"] == "get" and count and not get["topic"]:
        raise Malformed("it brings something, and says no topic")
    if get["f"] == "get" and "digests" not in get and brought:
        _check_range(get)


def _range_of(answer: Event) -> tuple[int, int]:
    """Return the lowest and the highest id that an answer brings."""
    runs = [*answer.get("items", ()), *answer.get("delayed", ())]
    single = [one[0] for name in ("corrupt", "letters") for one in answer.get(name, ())]
    lowest = min([run[0] for run in runs] + single)
    return lowest, max([run[0] + run[3] - 1 for run in runs] + single)


def _check_range(get: Event) -> None:
    """Raise Malformed if an answer does not begin and end with the ids that it says."""
    lowest, highest = _range_of(get)
    if get.get("first_id", lowest) != lowest or get.get("last_id", highest) != highest:
        raise Malformed(f"it brings {lowest} to {highest}, and says other ids")


def _check_take(take: Event) -> None:
    """Raise Malformed if a TAKE's answer says another count than it leases, or brings."""
    count = take.get("count", 0)
    leased = sum(last + 1 - first for first, last, _ in take.get("leases", ()))
    if count != leased:
        raise Malformed(f"count is {count}, it leases {leased}")
    if lacking := [name for name in ("token", "left_ms") if leased and name not in take]:
        raise Malformed(f"no {', '.join(lacking)}")
    if "items" in take or "corrupt" in take:
        _check_answer(take)
        leases = take.get("leases", ())
        if leased and _range_of(take) != (min(leases)[0], max(last for _, last, _ in leases)):
            raise Malformed("it brings other ids than it leases")


def _check_gone(get: Event) -> None:
    """Raise Malformed if an answer does not say which ids are purged, and of which topic."""
    first_id, last_id = get["first_id"], get.get("last_id", 0)
    if first_id == 0 or not 1 <= last_id - first_id + 1 <= COUNT_MAX:
        raise Malformed(f"ids {first_id} to {last_id} are purged")
    if not get["topic"]:
        raise Malformed("it says what is gone, and no topic")


def _check_digests(row: Event) -> None:
    """Raise Malformed if a digest is missing: of each of `count`, and of each id of an answer."""
    count, digits = row.get("count"), len(row["digests"])
    if count is None or digits != 16 * count:
        raise Malformed("digests are not as many as count")
    first_id, last_id = row.get("first_id"), row.get("last_id")
    if row["f"] != "put" and (not first_id or last_id is None or last_id - first_id + 1 != count):
        raise Malformed("ids are not as many as digests")


def _check_handling(row: Event) -> None:
    """Raise Malformed if a row does not say of which ids it is."""
    if "last_id" not in row or (row["f"] != "ack" and "first_id" not in row):
        raise Malformed("it names no ids")
    first_id = row.get("first_id", row["last_id"])
    if row.get("first_id") == 0 or not 1 <= row["last_id"] - first_id + 1 <= COUNT_MAX:
        raise Malformed(f"ids {first_id} to {row['last_id']}")


# --- the truth ------------------------------------------------------------------------------------


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and bool(value)


_TRUTH_FIELDS: Final[Mapping[str, Mapping[str, Test]]] = {
    "entry": {"index": _is_number, "term": _is_number, "digest": _is_digest},
    "state": {"index": _is_number, "digest": _is_digest},
    "held": {
        "topic": _is_text,
        "first_id": lambda value: value is None or _is_id(value),
        "producer": _is_text,
        "first_counter": _is_id,
        "count": lambda value: _is_count(value) and value >= 1,
    },
    "topic": {"topic": _is_text, "last_id": _is_number, "floor_id": _is_number},
    "counter": {"producer": _is_text, "topic": _is_text, "counter": _is_id},
    "leadership": {"term": _is_number},
}
_ANY_TRUTH: Final[Mapping[str, Test]] = {  # of a field that is no matter of a row's kind
    name: test for fields in _TRUTH_FIELDS.values() for name, test in fields.items()
}


def _take_truth(intake: TakenIn, directory: Path) -> None:
    expected = _expected(intake)
    folder = directory / TRUTH
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    names = intake.document.get("nodes")
    if names is not None and not _is_names(names):
        intake.truth_holes.append("run.json does not say which nodes there were")
    every = {*expected, *(names if _is_names(names) else ())}
    intake.nodes = dict.fromkeys(sorted(every), False)
    told = intake.document.get(TRUTH)
    files = told.get("files") if isinstance(told, Mapping) else None
    named: Mapping[str, object] = files if isinstance(files, Mapping) else {}
    for node in expected:
        name = f"{node}.jsonl"
        if name not in found:
            intake.missing.append(node)
            continue
        try:
            data = (folder / name).read_bytes() if (folder / name).is_file() else None
        except OSError as error:
            intake.truth_holes.append(f"unreadable: {TRUTH}/{name}: {error.strerror}")
            continue
        if data is None:
            intake.truth_holes.append(f"unreadable: {TRUTH}/{name}: it is no file")
            continue
        intake.nodes[node] = True
        _vouch(intake, name, named.get(name), data)
        rows = list(_truth_rows(intake, node, data))
        if not any(row["kind"] == "state" for row in rows):
            intake.truth_holes.append(f"{TRUTH}/{name} has no state")
        intake.truth += rows
    for name in found:
        if name not in {f"{node}.jsonl" for node in expected}:
            path = f"{TRUTH}/{_shown(name)}"
            intake.truth_holes.append(f"{path} is not read: no disk of that name was due")
    for name in named:
        if name not in {f"{node}.jsonl" for node in expected}:
            intake.truth_holes.append(f"run.json names {TRUTH}/{name}, and no such disk was due")


def _vouch(intake: TakenIn, name: str, said: object, data: bytes) -> None:
    """Hold a file of the truth against what run.json says of it: all of it, as it is closed."""
    path = f"{TRUTH}/{name}"
    if _is_said(said) and said["closed"]:
        intake.truth_holes += _differences(path, said, data)
    else:
        intake.doubts.append(f"run.json does not say what {path} holds: it may have been cut")


def _expected(intake: TakenIn) -> list[str]:
    truth = intake.document.get(TRUTH)
    if truth is None:
        return []
    nodes = truth.get("nodes") if isinstance(truth, Mapping) else None
    if not _is_names(nodes):
        intake.truth_holes.append("run.json does not say whose disks were to be read")
        return []
    return sorted(set(nodes))


def _truth_rows(intake: TakenIn, node: str, data: bytes) -> Iterator[Event]:
    for number, line in enumerate(BytesIO(data), start=1):
        where = f"{TRUTH}/{node}.jsonl:{number}"
        try:
            row = parsed(line)
            _check_truth(row)
        except Malformed as error:
            intake.truth_holes.append(f"malformed: {where}: {error}")
            continue
        if intake.run_id not in ("", row["run_id"]):
            intake.truth_holes.append(f"{where} is of another run")
        elif row["node"] != node:
            intake.truth_holes.append(f"{where} is of another node: {row['node']!r}")
        else:
            yield row


def _check_truth(row: Mapping[str, Any]) -> None:
    kind = row.get("kind")
    fields = _TRUTH_FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise Malformed(f"no kind: {kind!r}")
    for name, test in {"run_id": _is_text, "node": _is_text, **fields}.items():
        if not test(row.get(name)):
            raise Malformed(f"{name} is {row.get(name)!r}")
    for name, value in row.items():
        if value is not None and name in _ANY_TRUTH and not _ANY_TRUTH[name](value):
            raise Malformed(f"{name} is {value!r}")
    if row["kind"] == "topic" and row["floor_id"] > row["last_id"]:
        raise Malformed(f"collected up to {row['floor_id']}, given up to {row['last_id']}")


def size_of(rows: list[Event]) -> int:
    """Return how many publications rows are about, each time anew."""
    return sum(_size_of(row) for row in rows)


def _size_of(row: Event) -> int:
    f, kind = row["f"], row["type"]
    if f == "put":
        return int(row.get("count", 0)) if kind == "invoke" else 0
    if f in HANDLINGS or (f == "get" and is_told_of_purge(row)):
        return int(row["last_id"] - row.get("first_id", row["last_id"]) + 1)
    if f == "take" and kind == "invoke":
        runs = [run for name in ("acks", "naks", "extends") for run in row.get(name, ())]
        return sum(last - first + 1 for _, first, last, *_ in runs)
    return int(row.get("count", 0)) if f in ("get", "take") else 0
