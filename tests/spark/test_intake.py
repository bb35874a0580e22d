"""What no recorder writes is noticed: lines, files and numbers that may not be believed.

Each history here is what it is called, and no more: those that a correct recorder leaves are whole,
all others have a hole, or nothing vouches for them. None ends in a traceback.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.intake.cache import HistoryError
from analytics.intake.completeness import TORN_MARK
from analytics.intake.seal import seal
from analytics.judge.load import _counts, _counts_of_sound, load, parse, taken_in
from tests.spark.histories import Row, RunRecorder, write

pytestmark = pytest.mark.slow

OTHER = b'{"f":"put","type":"ok"}'
LONG_BYTES = 20 * 1024 * 1024
HALF = '{"run_id":"run","proc'


def line_of(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def recorded() -> RunRecorder:
    run = RunRecorder()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", first_id=1, last_id=1)
    run.get("s", "t", 0, [[1, "p", 1, 1]])
    run.put("p", "t", 2, "ok", 2, first_id=2, last_id=3)
    run.drained("s", "t", 1)
    return run


def malformed(spark: SparkSession, directory: Path, *lines: bytes) -> list[bool]:
    """Return whether each line is malformed, in order."""
    (directory / "lines").write_bytes(b"\n".join(lines))
    read = spark.read.text(str(directory / "lines"), lineSep="\n").coalesce(1)
    return [row.malformed for row in parse(read).select("malformed").collect()]


# --- lines ----------------------------------------------------------------------------------------


def test_whatever_stands_behind_the_object_of_a_line_makes_it_malformed(
    tmp_path: Path, spark: SparkSession
) -> None:
    line = line_of(recorded().rows[-1])
    endings = (b"", OTHER, b" " + OTHER, b"\0\0" + OTHER, b"," + OTHER, b"\t" + OTHER, b" garbage")
    found = malformed(spark, tmp_path, *(line + ending for ending in (*endings, b"\0", b"\r")))
    assert found == [False, True, True, True, True, True, True, True, False]


GET: Row = recorded().rows[5]
PUT: Row = recorded().rows[7]
DRAINED: Row = recorded().rows[-1]
WRONG: list[tuple[Row, Row]] = [
    (GET, {"last_id": -1}),
    (GET, {"asked": -1}),
    (GET, {"first_id": 2**53 + 1}),
    (GET, {"count": 2**24 + 1}),
    (GET, {"items": [[2**63 - 2, "p", 1, 1]]}),
    (GET, {"items": [[1, "p", 1, 2**62]]}),
    (GET, {"items": [[1, "p", -1, 1]]}),
    (GET, {"items": [[0, "p", 1, 1]]}),
    (GET, {"items": [[1, "p", 0, 1]]}),
    (GET, {"items": [[1, "p", 1, 0]], "count": 0}),
    (GET, {"items": [[1, None, 1, 1]]}),
    (GET, {"items": [[1, 5, 1, 1]]}),
    (GET, {"items": [["1", "p", 1, 1]]}),
    (GET, {"items": [[1, "p", 1.0, 1]]}),
    (GET, {"items": [[1, "p", 1, 1, 1]]}),
    (GET, {"items": [[1, "p", 1]]}),
    (GET, {"items": [None]}),
    (GET, {"items": [{"first_id": 1}]}),
    (GET, {"items": {"first_id": 1}}),
    (GET, {"items": []}),
    (GET, {"count": 2}),
    (GET, {"count": 0}),
    (GET, {"count": None}),
    (GET, {"corrupt": [[-1, "format"]], "count": 2}),
    (GET, {"corrupt": [[0, "format"]], "count": 2}),
    (GET, {"corrupt": [[2, None]], "count": 2}),
    (GET, {"corrupt": [[2, "format"]]}),
    (GET, {"items": None, "digests": "00" * 8, "first_id": 0, "last_id": 0}),
    (GET, {"topic": "ord\udcff"}),
    (GET, {"topic": 5}),
    (GET, {"topic": ""}),
    (GET, {"topic": "", "items": None, "digests": "00" * 8, "first_id": 1, "last_id": 1}),
    (GET, {"topic": "", "type": "fail", "error": "purged", "first_id": 1, "last_id": 2}),
    (GET, {"client_id": {"name": "s"}}),
    (GET, {"t_ns": "6000000"}),
    (GET, {"t_ns": 6000000.0}),
    (GET, {"t_ns": None}),
    (GET, {"session": True}),
    (GET, {"max_count": 0}),
    (GET, {"op_id": None}),
    (GET, {"op_id": 0}),
    (GET, {"op_id": 2**53 + 1}),
    (PUT, {"last_id": 4}),
    (PUT, {"count": 1}),
    (PUT, {"count": 0, "first_id": 0, "last_id": 0}),
    (PUT, {"counter": 0}),
    (PUT, {"duplicate": "false"}),
    (DRAINED, {"op_id": None}),
    (DRAINED, {"type": "ok"}),
    (DRAINED, {"f": "hand", "first_id": 0, "session": 0}),
]
RIGHT: list[tuple[Row, Row]] = [
    (GET, {}),
    (GET, {"items": [[1, 'p"[1,2]', 1, 1]], "topic": 'a "topic": 5 [', "node": None}),
    (GET, {"items": None, "corrupt": [[1, "format"]]}),
    (GET, {"items": [], "count": 0}),
    (GET, {"items": None, "count": 0, "first_id": 7}),
    (GET, {"items": None, "count": 0, "topic": ""}),
    (GET, {"items": None, "count": None, "topic": "", "type": "fail", "error": "purged"}),
    (GET, {"items": None, "digests": "00" * 8, "first_id": 1, "last_id": 1}),
    (PUT, {}),
    (PUT, {"first_id": 0, "last_id": 0}),
    (PUT, {"error": '{"name":"x","count":"["}', "max_bytes": 9, "bytes": 0, "more": {"a": 1}}),
    (DRAINED, {}),
    (DRAINED, {"f": "hand", "first_id": 1, "session": 0}),
    (DRAINED, {"f": "ack", "session": 0}),
]


def test_what_no_recorder_writes_makes_a_line_malformed_and_what_one_does_does_not(
    tmp_path: Path, spark: SparkSession
) -> None:
    rows = [json.dumps({**row, **fields}, ensure_ascii=False) for row, fields in (*WRONG, *RIGHT)]
    lines = [row.encode(errors="surrogateescape") for row in rows]
    found = malformed(spark, tmp_path, *lines)
    judged = zip(found, (*WRONG, *RIGHT), strict=True)
    expected = [True] * len(WRONG) + [False] * len(RIGHT)
    assert [
        fields for (is_bad, (_, fields)), due in zip(judged, expected, strict=True) if is_bad != due
    ] == []


BAD_IN_PARQUET: list[tuple[Row, Row]] = [
    (GET, {"topic": ""}),
    (GET, {"op_id": 0}),
    (GET, {"t_ns": None}),
    (GET, {"client_id": None}),
    (GET, {"count": 2}),
    (GET, {"items": [[1, "p", 1, 1], [3, "p", 3, 0]]}),
    (GET, {"invoke_ns": 2**62}),
    (GET, {"type": "fail", "error": "purged", "first_id": 0, "last_id": 1}),
    (GET, {"times": [[1, 2]]}),
    (GET, {"marked": [1], "properties": "0"}),
    (PUT, {"first_id": None}),
    (PUT, {"digests": "00"}),
    (DRAINED, {"type": "ok"}),
    (DRAINED, {"f": "dance"}),
    (DRAINED, {"f": "hand", "first_id": 0, "session": 0}),
]


def test_rows_of_parquet_are_proven_sound_only_if_each_of_them_is(
    tmp_path: Path, spark: SparkSession
) -> None:
    right = [(row, fields) for row, fields in RIGHT if "more" not in fields]
    right += [(GET, {"times": [[1, 1, 5]], "marked": [1], "properties": "00" * 8})]
    rows = rows_of(spark, tmp_path / "right", *right)
    run_id = GET["run_id"]
    assert _counts_of_sound(rows, run_id) == _counts(rows, run_id)
    assert _counts(rows, run_id)["timed"]
    assert _counts_of_sound(rows, "another") is None
    for number, bad in enumerate(BAD_IN_PARQUET):
        rows = rows_of(spark, tmp_path / f"{number}", *right, bad)
        assert _counts_of_sound(rows, run_id) is None, bad
        assert _counts(rows, run_id)["malformed"] == 1, bad


def rows_of(spark: SparkSession, path: Path, *rows: tuple[Row, Row]) -> DataFrame:
    """Return rows as they stand in Parquet."""
    path.write_bytes(b"\n".join(line_of({**row, **fields}) for row, fields in rows))
    read = parse(spark.read.text(str(path), lineSep="\n"))
    return read.drop("malformed", "value")


def test_what_only_a_lenient_parser_takes_is_malformed(tmp_path: Path, spark: SparkSession) -> None:
    line = line_of(GET)
    wrong = [
        line.replace(b'"', b"'"),
        line.replace(b'"f"', b"f"),
        line.replace(b'"f":"get"', b'"f":"get","f":"get"'),
        line.replace(b'"f":"get"', b'"f":"get","t_ns":NaN'),
        line.replace(b'"f":"get"', b'"f":"get",'),
        line.replace(b'"f":"get"', b'"f":"get","x":01'),
        line.replace(b'"f":"get"', b'"f":"g\\et"'),
        line.replace(b'"f":"get"', b'"f":"get","topic":"\\ud800"'),
        line.replace(b'"f":"get"', b'"f":"get","node":"x\\\\\\uDC00"'),
        line.replace(b'"f":"get"', b'"f":"get","node":"\\ude00\\ud83d"'),
        line.replace(b'"f":"get"', b'"f":"get"/*x*/'),
        b"[" + line + b"]",
        b'"' + line.replace(b'"', b'\\"') + b'"',
        b"null",
        line[:-1],
        b"\0" * 40,
    ]
    right = [
        line,
        line.replace(b'"f":"get"', b'"f":"get","node":"\\ud83d\\uDE00"'),
        line.replace(b'"f":"get"', b'"f":"get","node":"\\\\ud800"'),
    ]
    found = malformed(spark, tmp_path, *wrong, *right)
    assert found == [True] * len(wrong) + [False] * len(right)


# --- a directory ----------------------------------------------------------------------------------


class Kept:
    """A run's directory that is to be damaged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.history = directory / "history"

    def lines(self, name: str) -> list[str]:
        return (self.history / f"{name}.jsonl").read_text().splitlines(keepends=True)

    def set(self, name: str, *lines: str) -> None:
        (self.history / f"{name}.jsonl").write_text("".join(lines))

    def about(self, **fields: Any) -> None:
        file = self.directory / "run.json"
        document = json.loads(file.read_text()) | fields
        known = {name: value for name, value in document.items() if value is not None}
        file.write_text(json.dumps(known))

    def file(self, name: str, **fields: Any) -> None:
        document = json.loads((self.directory / "run.json").read_text())
        document["history"][name] |= fields
        self.about(history=document["history"])


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    write(tmp_path / "run", recorded().rows)
    return Kept(tmp_path / "run")


def nothing(_: Kept) -> None:
    pass


def other_text(old: str, new: str, name: str = "s", sealed: bool = True) -> Callable[[Kept], None]:
    def damage(kept: Kept) -> None:
        text = (kept.history / f"{name}.jsonl").read_text()
        assert old in text
        (kept.history / f"{name}.jsonl").write_text(text.replace(old, new, 1))
        if sealed:
            seal(kept.directory)

    return damage


def lines_as(*order: int, name: str = "s") -> Callable[[Kept], None]:
    """Let a file have these of its lines, in this order, and be sealed so."""

    def damage(kept: Kept) -> None:
        lines = kept.lines(name)
        kept.set(name, *(lines[number] for number in order))
        seal(kept.directory)

    return damage


def ending(text: str, name: str = "p", sealed: bool = True) -> Callable[[Kept], None]:
    def damage(kept: Kept) -> None:
        with (kept.history / f"{name}.jsonl").open("a") as file:
            file.write(text)
        if sealed:
            seal(kept.directory)

    return damage


def beside(name: str, content: str = "") -> Callable[[Kept], None]:
    def damage(kept: Kept) -> None:
        (kept.history / name).parent.mkdir(parents=True, exist_ok=True)
        (kept.history / name).write_text(content)

    return damage


def as_if_of_version_0_2(kept: Kept) -> None:
    kept.about(history=["p.jsonl", "s.jsonl"])


def cut_at_a_line(kept: Kept) -> None:
    kept.set("p", *kept.lines("p")[:2])


def gone(kept: Kept) -> None:
    (kept.history / "p.jsonl").unlink()


def without_bytes(kept: Kept) -> None:
    (kept.history / "p.jsonl").write_text("")


def dangling(kept: Kept) -> None:
    (kept.history / "x.jsonl").symlink_to(kept.directory / "nowhere")


def pipe(kept: Kept) -> None:
    os.mkfifo(kept.history / "x.jsonl")


def copied(kept: Kept) -> None:
    (kept.history / "q.jsonl").write_bytes((kept.history / "p.jsonl").read_bytes())
    seal(kept.directory)


def linked(kept: Kept) -> None:
    """Let a file lie elsewhere, under another name: it is read there."""
    (kept.history / "p.jsonl").rename(kept.directory / "elsewhere")
    (kept.history / "p.jsonl").symlink_to(kept.directory / "elsewhere")


def with_line_ends_of_windows(kept: Kept) -> None:
    text = (kept.history / "p.jsonl").read_bytes()
    (kept.history / "p.jsonl").write_bytes(text.replace(b"\n", b"\r\n"))
    seal(kept.directory)


def with_byte_order_mark(kept: Kept) -> None:
    text = (kept.history / "p.jsonl").read_bytes()
    (kept.history / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + text)
    seal(kept.directory)


def without_last_line_end(kept: Kept) -> None:
    text = (kept.history / "p.jsonl").read_bytes()
    (kept.history / "p.jsonl").write_bytes(text.rstrip(b"\n"))
    seal(kept.directory)


def named_like(name: str) -> Callable[[Kept], None]:
    """Let a process have a name that other programs take for a pattern, or for an escape."""

    def damage(kept: Kept) -> None:
        text = (kept.history / "p.jsonl").read_text()
        (kept.history / "p.jsonl").unlink()
        said = json.dumps({"process": name})[1:-1].replace('": "', '":"')
        (kept.history / f"{name}.jsonl").write_text(text.replace('"process":"p"', said))
        seal(kept.directory)

    return damage


def parquet_beside(kept: Kept) -> None:
    (kept.directory / "history.parquet").mkdir()
    (kept.directory / "history.parquet" / "part-0.parquet").write_bytes(b"PAR1")


Case = tuple[str, Callable[[Kept], None]]
# What is said of each; "" for those that are whole.
HOLES: dict[str, Case] = {
    "whole": ("", nothing),
    "linked": ("", linked),
    "crlf": ("", with_line_ends_of_windows),
    "no last line end": ("", without_last_line_end),
    "no last line end, torn": ("", ending(HALF)),
    "torn and marked at the end": ("", ending(HALF + TORN_MARK + "\n")),
    "long torn end": ("", ending('{"items":' + "[" * LONG_BYTES)),
    "blank lines": ("2 malformed lines", ending("\n  \n")),
    "no UTF-8": ("its name is no UTF-8", beside(os.fsdecode(b"\xff.jsonl"))),
    "empty and not named": ("", beside("x.jsonl")),
    "long line": ("1 malformed lines", other_text('"t"', f'"{"t" * LONG_BYTES}"')),
    "NULs at the end": ("", ending("\0" * 4096)),
    "brackets": ("", named_like("p[1]")),
    "space": ("", named_like("p  p+")),
    "percent": ("", named_like("p%20p")),
    "star": ("", named_like("p*?")),
    "braces": ("", named_like("{p,s}")),
    "backslash": ("", named_like("p\\p#")),
    "umlaut": ("", named_like("pü")),
    "file gone": ("history/p.jsonl is gone", gone),
    "no bytes": ("history/p.jsonl was cut: it has 0 bytes", without_bytes),
    "cut at a line": ("history/p.jsonl was cut", cut_at_a_line),
    "changed": ("another digest", other_text('"counter":1', '"counter":3', "p", sealed=False)),
    "longer": ("more than when it was closed", ending(HALF, sealed=False)),
    "other count of lines": ("and run.json says 9", lambda kept: kept.file("p.jsonl", lines=9)),
    "hidden by _": ("history/_p.jsonl is not read", beside("_p.jsonl")),
    "hidden by .": ("history/.p.jsonl is not read", beside(".p.jsonl")),
    "of another name": ("history/p.jsonl.bak is not read", beside("p.jsonl.bak")),
    "not named": ("run.json does not name it", beside("x.jsonl", HALF)),
    "deeper": ("history/deep is not read", beside("deep/x.jsonl", HALF)),
    "dangling": ("history/x.jsonl is not read: it is no file", dangling),
    "pipe": ("history/x.jsonl is not read: it is no file", pipe),
    "Parquet beside": ("history.parquet stands beside history", parquet_beside),
    "copied": ("4 lines are of another run than run, or of another process", copied),
    "colon": ("its name has a colon", named_like("p:p")),
    "of another run": ("1 lines are of another run", other_text('"run_id":"run"', '"run_id":"x"')),
    "byte order mark": ("p.jsonl begins with a byte order mark", with_byte_order_mark),
    "mark amid a session": ("s.jsonl:1 was cut off", other_text("{", f"{HALF}{TORN_MARK}\n{{")),
    "torn amid a session": ("1 malformed lines", other_text("{", f"{HALF}\n{{")),
    "blank end behind a broken line": ("1 malformed lines", ending('{"damaged":\n ')),
    "broken line, and an end in other quotes": (
        "1 malformed",
        ending(f"{HALF}\n{{'run_id':'run'}}"),
    ),
    "both lines of an operation gone": (
        "p: op 1 is missing, op 2 is there",
        lines_as(2, 3, name="p"),
    ),
    "last operation's both lines gone, and sealed": ("", lines_as(0, 1, name="p")),
    "first operation gone": ("s: op 1 is missing, op 2 is there", lines_as(2, 3, 4)),
    "invoke gone": ("1 ends without an invoke, such as s op 2", lines_as(0, 1, 3, 4)),
    "end gone": ("", lines_as(0, 1, 2, 4)),
    "two invokes": ("two lines begin op 2", lines_as(0, 1, 2, 2, 3, 4)),
    "two ends": (
        "1 operations with two invokes or two ends, left out, such as s op 2",
        lines_as(0, 1, 2, 3, 3, 4),
    ),
    "two of both": ("two lines begin op 2", lines_as(0, 1, 2, 3, 2, 3, 4)),
    "end first": (
        "1 operations whose end stands before the invoke, left out",
        lines_as(0, 1, 3, 2, 4),
    ),
    "out of order": ("s: its operations do not begin in the order", lines_as(2, 3, 0, 1, 4)),
}
# Of the end of s op 1 (line 2): what it says otherwise than its invoke.
for _name, _old, _new in (
    ("client", '"client_id":"s"', '"client_id":"z"'),
    ("session", '"session":0', '"session":1'),
    ("function", '"f":"sub"', '"f":"unsub"'),
    ("topic", '"topic":"t"', '"topic":"u"'),
    ("time of the invoke", '"invoke_ns":1000000', '"invoke_ns":2000000'),
    ("cursor asked with", '"asked":null', '"asked":7'),
    ("epoch", '"epoch":null', '"epoch":7'),
    ("host", '"host":"h"', '"host":"x"'),
):

    def _contradict(kept: Kept, old: str = _old, new: str = _new) -> None:
        lines = kept.lines("s")
        assert old in lines[1], lines[1]
        kept.set("s", lines[0], lines[1].replace(old, new, 1), *lines[2:])
        seal(kept.directory)

    HOLES[f"end says another {_name}"] = (
        "contradicts the invoke, left out, such as s op 1",
        _contradict,
    )
# Of s: what an operation, both lines of it, says otherwise than the others of its process.
for _name, _said, _place, _old, _new in (
    ("another host", "s: session 0 is of two hosts", 2, '"host":"h"', '"host":"x"'),
    ("a later session", "s: session 1 stands before", 0, '"session":0', '"session":1'),
):

    def _displace(kept: Kept, place: int = _place, old: str = _old, new: str = _new) -> None:
        lines = kept.lines("s")
        both = range(place, place + 2)
        assert all(old in lines[at] for at in both), lines
        changed = (line.replace(old, new) if at in both else line for at, line in enumerate(lines))
        kept.set("s", *changed)
        seal(kept.directory)

    HOLES[f"operation of {_name}"] = (_said, _displace)
UNVOUCHED: dict[str, Case] = {
    "version 0.2": ("run.json names the files of its history", as_if_of_version_0_2),
    "version 0.1": ("run.json has no `history`", lambda kept: kept.about(history=None)),
    "other history": ("that is no object", lambda kept: kept.about(history="p.jsonl")),
    "no digest": ("does not say of p.jsonl", lambda kept: kept.file("p.jsonl", blake2b=None)),
    "other types": ("does not say of p.jsonl", lambda kept: kept.file("p.jsonl", bytes="9")),
    "no run_id": ("no `run_id`", lambda kept: kept.about(run_id=None)),
    "digest in capitals": (
        "does not say of p.jsonl",
        lambda kept: kept.file("p.jsonl", blake2b="A" * 32),
    ),
    "more than there can be": (
        "does not say of p.jsonl",
        lambda kept: kept.file("p.jsonl", bytes=2**53 + 1),
    ),
    "names and a number": ("that is no object", lambda kept: kept.about(history=["p.jsonl", 3])),
    "empty run_id": ("no `run_id`", lambda kept: kept.about(run_id="")),
    "run.json gone": ("can't be read", lambda kept: (kept.directory / "run.json").unlink()),
    "run.json broken": ("no JSON", lambda kept: _text(kept, "{")),
    "run.json repeats": ("no JSON: a name comes twice", lambda kept: _text(kept, '{"a":1,"a":1}')),
    "run.json of half a character": ("no JSON", lambda kept: _text(kept, '{"run_id":"\\ud800"}')),
    "run.json a list": ("no JSON object", lambda kept: _text(kept, "[]")),
}


def _text(kept: Kept, text: str) -> None:
    (kept.directory / "run.json").write_text(text)


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_named_with_its_file_and_a_whole_record_has_none(
    kept: Kept, spark: SparkSession, name: str
) -> None:
    said, damage = HOLES[name]
    damage(kept)
    intake = taken_in(spark, kept.directory)
    assert intake.unvouched == ()
    assert said in "; ".join(intake.damage())
    assert bool(said) == bool(intake.damage())


@pytest.mark.parametrize("name", UNVOUCHED)
def test_what_nothing_vouches_for_is_no_hole(kept: Kept, spark: SparkSession, name: str) -> None:
    said, damage = UNVOUCHED[name]
    damage(kept)
    intake = taken_in(spark, kept.directory)
    assert intake.damage() == ()
    assert [one for one in intake.unvouched if said in one]


def test_names_of_version_0_2_have_to_be_there(kept: Kept, spark: SparkSession) -> None:
    kept.about(history=["p.jsonl", "q.jsonl", "s.jsonl"])
    assert taken_in(spark, kept.directory).damage() == (
        "history/q.jsonl is gone: run.json names it",
    )


def test_an_open_file_vouches_for_its_beginning_and_that_is_remarked(
    kept: Kept, spark: SparkSession
) -> None:
    kept.file("p.jsonl", closed=False)
    with (kept.history / "p.jsonl").open("a") as file:
        file.write(HALF)
    intake = taken_in(spark, kept.directory)
    assert (intake.torn_lines, intake.reasons()) == (1, ())
    [remark] = intake.remarks
    assert remark.startswith("history/p.jsonl was not closed")


def test_a_directory_may_be_called_as_anything(tmp_path: Path, spark: SparkSession) -> None:
    directory = tmp_path / "my [r]{ü,n}s *%20?"
    write(directory, recorded().rows)
    assert taken_in(spark, directory).reasons() == ()


def test_a_directory_without_any_history_is_said_so(kept: Kept, spark: SparkSession) -> None:
    for file in kept.history.iterdir():
        file.rename(file.with_name(f"_{file.name}"))
    with pytest.raises(HistoryError, match=r"history: history/_p\.jsonl is not read"):
        taken_in(spark, kept.directory)


def test_operations_that_are_left_out_are_not_among_the_events(
    kept: Kept, spark: SparkSession
) -> None:
    lines_as(0, 1, 2, 3, 3, 4)(kept)
    events = load(spark, kept.directory).events
    assert sorted(tuple(row) for row in events.select("process", "op_id").distinct().collect()) == [
        ("p", 1),
        ("p", 2),
        ("s", 1),
        ("s", 3),
    ]
