"""The files of a run's history, as bytes: which there are, and what run.json says of each.

What lives here: `history` in run.json (docs/history.md, "What a record must show to be whole"),
compared with the directory, and `truth.files` with those of the truth; where lines are torn. What
must not: what a line says (load.py, truth.py), but for the session of those on both sides of a torn
one; writing any of it (seal.py).

A file is read once, in pieces, whatever its size.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from analytics.common.schema import NUMBER_MAX
from analytics.common.storage import Place, files_in
from analytics.intake.completeness import TORN_MARK

LINES: Final = "history"  # in a run's directory: a file of lines for each process
PARQUET: Final = "history.parquet"  # instead of it: parts
APPLICATION: Final = "application"  # `recorded_by` in run.json
TRUTH: Final = "truth"  # beside it: a file for each node whose disk was read
HIDDEN: Final = ("_", ".")  # Spark leaves out what is called so
PARQUET_ASIDE: Final = ("_SUCCESS", ".crc")  # ends of names that Hadoop writes beside the parts
DIGEST_BYTES: Final = 16
DIGEST: Final = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")
PIECE_BYTES: Final = 4 * 1024 * 1024
# Of a last line without an end, kept to tell if it is torn: a GET's answer has 6 MB at most.
TAIL_BYTES_MAX: Final = 64 * 1024 * 1024
READERS: Final = 4  # files at a time: to read and to digest go on without the interpreter
SHOWN_MAX: Final = 20  # of what is wrong with files, each kind; the others are counted
SEAL_REMEDY: Final = "where it is known to be whole, `flotilla-check seal` says so"


@dataclass(frozen=True, slots=True)
class Described:
    """A member of `history` in run.json: what a file's first `bytes` bytes are."""

    lines: int
    bytes: int
    blake2b: str
    closed: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """What the bytes of a file are. `described`: of all of it, or of those that were asked for.

    `tail`: the MD5 of a last line that was cut off while it was written, "" without one.
    `mark_number`: the line of the first mark of a torn line in the middle of a session, 0 if none.
    """

    size: int
    described: Described
    tail: str = ""
    mark_number: int = 0
    has_byte_order_mark: bool = False


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """The files of a run as they stand on disk, before any line is parsed.

    `run_id`: "" if run.json does not say. `holes`: part of the record is missing or not to be
    believed. `unvouched`: nothing is known to be missing, nothing says that all is there. `remarks`
    are no reasons. `tails`: name and MD5 of the lines that were cut off last. `lines`: what
    run.json says how many there are, None if it doesn't of each file.
    """

    run_id: str
    readable: tuple[Place, ...]
    is_parquet: bool
    holes: tuple[str, ...] = ()
    unvouched: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    tails: tuple[tuple[str, str], ...] = ()
    lines: int | None = None


@dataclass(slots=True)
class _FileDoubts:
    """What has been found wrong with the files so far."""

    holes: list[str] = field(default_factory=list)
    unvouched: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def entries_of(directory: Place) -> tuple[Place, ...]:
    """Return all that stands where a run's history is, whatever it is."""
    return tuple(entry for name in (LINES, PARQUET) for entry in files_in(directory / name, "*"))


def survey_of(directory: Place) -> FileSurvey:
    """Return which files of the run in `directory` are to be read, and what is wrong with them."""
    doubts = _FileDoubts()
    document = _run_file(directory / "run.json", doubts)
    run_id = None if document is None else document.get("run_id")
    if document is not None and not (isinstance(run_id, str) and run_id):
        doubts.unvouched.append("run.json: no `run_id`")
    who = None if document is None else document.get("recorded_by")
    if who not in (None, APPLICATION):
        doubts.holes.append(f"run.json does not say who recorded: {who!r}")
    named = None if document is None else _named(document, doubts)
    is_parquet = _is_parquet(directory, named)
    candidates = _candidates(directory, is_parquet, named, doubts)
    vouched = named if isinstance(named, dict) else {}
    contents = _all_contents(candidates, vouched, not is_parquet, doubts)
    for name, found in contents.items():
        _compare(name, found, vouched.get(name), doubts)
    readable = tuple(candidates[name] for name in contents)
    is_vouched = bool(vouched) and contents.keys() <= vouched.keys()
    return FileSurvey(
        run_id if isinstance(run_id, str) else "",
        readable,
        is_parquet,
        _shown(doubts.holes),
        _shown(doubts.unvouched),
        _shown(doubts.remarks),
        tuple((candidates[name].name, one.tail) for name, one in contents.items() if one.tail),
        sum(one.lines for one in vouched.values()) if is_vouched and is_parquet else None,
    )


def against_run_file(
    truth: Iterable[Place], said: object, due: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what is wrong with the files of a truth by what run.json says of them (`truth.files`),
    and where it does not say enough to tell. `due`: the names of all that were to be written; that
    one of them is not there is no matter of this.
    """
    doubts = _FileDoubts()
    files = {f"{TRUTH}/{file.name}": file for file in truth}
    members = said if isinstance(said, dict) else {}
    vouched = {f"{TRUTH}/{name}": _described(member) for name, member in members.items()}
    closed = {name: member for name, member in vouched.items() if member and member.closed}
    if files and not isinstance(said, dict):
        doubts.unvouched.append(
            f"run.json does not say what is in the files of the {TRUTH}: one that was cut would not"
            f" be noticed; {SEAL_REMEDY}"
        )
    elif unsaid := sorted(files.keys() - closed.keys()):
        doubts.unvouched.append(f"run.json does not say what is in {unsaid[0]}; {SEAL_REMEDY}")
    strangers = sorted(members.keys() - set(due))
    doubts.holes += [f"run.json says what {TRUTH}/{name} is: nobody's" for name in strangers]
    for name, found in _all_contents(files, closed, is_lines=False, doubts=doubts).items():
        _compare(name, found, closed.get(name), doubts)
    return _shown(doubts.holes), _shown(doubts.unvouched)


def contents_of(file: Place, first_bytes: int | None = None, is_lines: bool = True) -> Contents:
    """Return what the bytes of `file` are, described up to `first_bytes` (None: all of them).

    Raises OSError.
    """
    digest, lines, position, end_of_last, marks = hashlib.blake2b(digest_size=16), 0, 0, 0, False
    begin = b""
    with file.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            begin = begin or piece[:3]
            inside = piece if first_bytes is None else piece[: max(0, first_bytes - position)]
            digest.update(inside)
            lines += inside.count(b"\n")
            marks = marks or TORN_MARK.encode() in piece
            if (place := piece.rfind(b"\n")) >= 0:
                end_of_last = position + place + 1
            position += len(piece)
        described_bytes = position if first_bytes is None else min(position, first_bytes)
        tail = b""
        if is_lines and end_of_last < position:
            stream.seek(end_of_last)
            tail = stream.read(TAIL_BYTES_MAX)
    described = Described(lines, described_bytes, digest.hexdigest(), closed=True)
    if not is_lines:
        return Contents(position, described)
    return Contents(
        position,
        described,
        hashlib.md5(tail, usedforsecurity=False).hexdigest() if _is_torn(tail) else "",
        _mark_amid_session(file) if marks else 0,
        begin == b"\xef\xbb\xbf",
    )


def strictly(text: bytes | str) -> Any:
    """Return what a JSON text says. Raises ValueError for one that only a lenient parser takes."""
    try:
        found = json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate is no character
        return found
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def content_of(path: Place) -> bytes:
    """Return what is in a file, such as run.json. Raises OSError, also of a pipe or a device, which
    might never end.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.read_bytes()


def _run_file(path: Place, doubts: _FileDoubts) -> dict[str, Any] | None:
    try:
        document = strictly(content_of(path))
    except OSError as error:
        doubts.unvouched.append(f"run.json can't be read: {_said(error)}")
        return None
    except ValueError as error:
        doubts.unvouched.append(f"run.json is no JSON: {error}")
        return None
    if not isinstance(document, dict):
        doubts.unvouched.append("run.json is no JSON object")
        return None
    return document


def _named(
    document: Mapping[str, Any], doubts: _FileDoubts
) -> dict[str, Described] | list[str] | None:
    """Return what run.json says of the files, or of their names alone, or None."""
    history = document.get("history")
    if is_names(history):
        doubts.unvouched.append(
            "run.json names the files of its history and does not say what is in them, as of"
            f" version 0.2: one that was cut would not be noticed; {SEAL_REMEDY}"
        )
        return history
    if not isinstance(history, dict):
        what = "has no `history`" if history is None else "has a `history` that is no object"
        doubts.unvouched.append(
            f"run.json {what}: nothing says that all of the record is there; {SEAL_REMEDY}"
        )
        return None
    described = {name: _described(member) for name, member in history.items()}
    if wrong := [name for name, member in described.items() if member is None]:
        doubts.unvouched.append(f"run.json does not say of {wrong[0]} what is in it; {SEAL_REMEDY}")
    nothing = Described(0, 0, hashlib.blake2b(digest_size=DIGEST_BYTES).hexdigest(), closed=False)
    return {name: member or nothing for name, member in described.items()}


def is_names(value: object) -> TypeGuard[list[str]]:
    """Return whether what run.json says is a list of names."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _described(member: object) -> Described | None:
    if not isinstance(member, dict):
        return None
    lines, size, digest, closed = (
        member.get(name) for name in ("lines", "bytes", "blake2b", "closed")
    )
    is_right = (
        type(lines) is int
        and type(size) is int
        and min(lines, size) >= 0
        and max(lines, size) <= NUMBER_MAX
        and isinstance(digest, str)
        and DIGEST.fullmatch(digest) is not None
        and isinstance(closed, bool)
    )
    return Described(lines, size, digest, closed) if is_right else None  # type: ignore[arg-type]


def _is_parquet(directory: Place, named: dict[str, Described] | list[str] | None) -> bool:
    if named:
        return all(name.startswith(f"{PARQUET}/") for name in named)
    return not files_in(directory / LINES, "*.jsonl") and (directory / PARQUET).exists()


def _candidates(
    directory: Place,
    is_parquet: bool,
    named: dict[str, Described] | list[str] | None,
    doubts: _FileDoubts,
) -> dict[str, Place]:
    """Return the files that are to be read, by the names that run.json has for them."""
    folder = PARQUET if is_parquet else LINES
    beside = LINES if is_parquet else PARQUET
    if (directory / beside).exists() and (not is_parquet or files_in(directory / beside, "*")):
        doubts.holes.append(f"{beside} stands beside {folder}: it is not read")
    entries = {
        _named_as(entry.name, is_parquet): entry for entry in files_in(directory / folder, "*")
    }
    found: dict[str, Place] = {}
    for name, entry in entries.items():
        if is_parquet and entry.name.endswith(PARQUET_ASIDE):
            continue
        why = _not_read(entry, ".parquet" if is_parquet else ".jsonl")
        if not why and isinstance(named, dict) and name not in named:
            if _is_empty(entry):
                continue  # its process died before it was named, and so before its first line
            why = "run.json does not name it"
        if why:
            doubts.holes.append(f"{folder}/{legible(entry.name)} is not read: {why}")
        else:
            found[name] = entry
    doubts.holes += [
        f"{_shown_as(name)} is gone: run.json names it" for name in _gone(named, entries)
    ]
    return found


def _gone(named: Iterable[str] | None, entries: Mapping[str, Place]) -> list[str]:
    return sorted(set(named or ()) - entries.keys())


def _named_as(name: str, is_parquet: bool) -> str:
    return f"{PARQUET}/{name}" if is_parquet else name


def _shown_as(name: str) -> str:
    """Return the path below the run's directory of what run.json calls `name`."""
    return name if name.startswith((f"{PARQUET}/", f"{TRUTH}/")) else f"{LINES}/{name}"


def _not_read(entry: Place, ending: str) -> str:
    """Return why an entry is no file of a history, whatever stands in it; "" if it is one."""
    if entry.name.startswith(HIDDEN):
        return "its name is one of those that Spark leaves out"
    if not entry.name.endswith(ending):
        return f"it is no *{ending}"
    if entry.name != legible(entry.name):
        return "its name is no UTF-8"
    if ":" in entry.name:
        return "its name has a colon, which Hadoop's paths can't have"
    try:
        return "" if entry.is_file() else "it is no file"
    except OSError as error:
        return _said(error)


def legible(name: str) -> str:
    """Return the name of a file as text: bytes of it may be no UTF-8."""
    return os.fsencode(name).decode(errors="replace")


def _is_empty(entry: Place) -> bool:
    try:
        return entry.stat().st_size == 0
    except OSError:
        return False


def _all_contents(
    candidates: Mapping[str, Place],
    vouched: Mapping[str, Described],
    is_lines: bool,
    doubts: _FileDoubts,
) -> dict[str, Contents]:
    """Return what is in each file; one that can't be read is left out, and a hole. `is_lines`: of a
    history, whose last line may be torn.
    """

    def read(name: str) -> Contents | OSError:
        said = vouched.get(name)
        try:
            return contents_of(candidates[name], None if said is None else said.bytes, is_lines)
        except OSError as error:
            return error

    with ThreadPoolExecutor(READERS) as pool:
        found = dict(zip(candidates, pool.map(read, candidates), strict=True))
    doubts.holes += [
        f"{_shown_as(name)} can't be read: {_said(error)}"
        for name, error in found.items()
        if isinstance(error, OSError)
    ]
    return {name: one for name, one in found.items() if isinstance(one, Contents)}


def _compare(name: str, found: Contents, said: Described | None, doubts: _FileDoubts) -> None:
    """Note what is wrong with a file's bytes, by themselves or by what run.json says of them."""
    file, size = _shown_as(name), found.size
    if found.mark_number:
        doubts.holes.append(f"{file}:{found.mark_number} was cut off in the middle of a session")
    if found.has_byte_order_mark:
        doubts.holes.append(f"{file} begins with a byte order mark, which no recorder writes")
    if said is None:
        return
    if size < said.bytes:
        doubts.holes.append(f"{file} was cut: it has {size} bytes, run.json says {said.bytes}")
    elif found.described.blake2b != said.blake2b:
        doubts.holes.append(f"{file} was changed: its first {said.bytes} bytes have another digest")
    elif not name.startswith(f"{PARQUET}/") and found.described.lines != said.lines:
        lines = found.described.lines
        doubts.holes.append(f"{file} has {lines} lines there, and run.json says {said.lines}")
    elif said.closed and size > said.bytes:
        more = size - said.bytes
        doubts.holes.append(f"{file} has {more} bytes more than when it was closed")
    elif not said.closed:
        doubts.remarks.append(
            f"{file} was not closed, so only {said.bytes} of its {size} bytes are vouched for"
        )


def _is_torn(tail: bytes) -> bool:
    """Return whether a last line without an end was cut off while it was written."""
    if not tail or tail.endswith(TORN_MARK.encode()):
        return False  # a marked line is counted where lines are read
    try:
        strictly(tail)
    except ValueError:
        return True
    return False


def _mark_amid_session(file: Place) -> int:
    """Return the line of the first mark behind which the same session goes on; 0 without one."""
    last, session, number_of_mark = b"", 0, 0
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.rstrip(b"\n").endswith(TORN_MARK.encode()):
                if not number_of_mark:
                    number_of_mark, session = number, _session_of(last) if last else 0
            elif number_of_mark:
                if _session_of(line) <= session:
                    return number_of_mark
                number_of_mark, last = 0, line
            else:
                last = line
    return 0


def _session_of(line: bytes) -> int:
    """Return a line's session, -1 if it does not say one."""
    try:
        session = strictly(line)["session"]
    except (ValueError, LookupError, TypeError):
        return -1
    return session if type(session) is int else -1


def _shown(found: list[str]) -> tuple[str, ...]:
    more = len(found) - SHOWN_MAX
    return tuple(found) if more <= 0 else (*found[:SHOWN_MAX], f"and {more} more like these")


def _said(error: OSError) -> str:
    return error.strerror or str(error)
