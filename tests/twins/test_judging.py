"""docs/history.md, "What a record must show to be whole", and the verdict of docs/checks.md."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from analytics.command import plain
from analytics.common.check_specs import CHECK_SPECS, Part
from analytics.common.verdict import Verdict
from analytics.twins import TWINS, judge
from analytics.twins.judging import (
    NEEDS_HISTORY,
    OF_DISKS,
    OF_NAMES,
    delivered_count,
)
from analytics.twins.record import GONE
from chaos.simulation.clients import follower, replayer
from flotilla_client.error_table import ERRORS
from flotilla_client.recording import TOLD_OF_GONE
from tests.judges.directories import DIRECTORIES
from tests.spark.histories import RunRecorder

OUTCOME = {"finished": True, "reasons": []}
Lines = list[dict[str, Any]]


def recorded(lost: bool = False) -> RunRecorder:
    """Return a run of two publications, of which the first one may be lost."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    run.put("p", "t", 1, "ok", first_id=1, last_id=1)
    run.put("p", "t", 2, "ok", first_id=2, last_id=2)
    items = [[2, "p", 2, 1]] if lost else [[1, "p", 1, 2]]
    run.get("s", "t", 1 if lost else 0, items)
    run.drained("s", "t", 2)
    run.rows[-1]["op_id"] = 3
    run.rows[-1]["session"] = 0
    return run


def write(directory: Path, run: RunRecorder, **document: Any) -> Path:
    """Write a run's directory with all that vouches for it; `document` replaces what run.json says.

    A file of the truth for each node whose disk was read.
    """
    history = directory / "history"
    history.mkdir(exist_ok=True)
    for process in sorted({row["process"] for row in run.rows}):
        lines = [json.dumps(row) for row in run.rows if row["process"] == process]
        (history / f"{process}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if run.nodes:
        (directory / "truth").mkdir(exist_ok=True)
        for node in run.nodes:
            rows = [json.dumps(row) for row in run.truth if row["node"] == node]
            text = "".join(f"{row}\n" for row in rows)
            (directory / "truth" / f"{node}.jsonl").write_text(text)
        files = {path.name: vouched(path) for path in sorted((directory / "truth").iterdir())}
        document = {"truth": {"nodes": sorted(run.nodes), "files": files}, **document}
    told = {path.name: vouched(path) for path in sorted(history.iterdir())}
    about = {"run_id": run.run_id, "outcome": OUTCOME, "history": told, **document}
    known = {name: value for name, value in about.items() if value is not None}
    (directory / "run.json").write_text(json.dumps(known))
    return directory


def vouched(path: Path, closed: bool = True) -> dict[str, Any]:
    """Return what run.json says of a file."""
    data = path.read_bytes()
    digest = blake2b(data, digest_size=16).hexdigest()
    return {"lines": data.count(b"\n"), "bytes": len(data), "blake2b": digest, "closed": closed}


def test_a_whole_run_without_a_violation_is_valid(tmp_path: Path) -> None:
    judgement = judge(write(tmp_path, recorded()))
    assert (judgement.verdict, judgement.exit_code, judgement.reasons) == ("valid", 0, ())


def test_a_whole_run_with_a_violation_is_invalid(tmp_path: Path) -> None:
    judgement = judge(write(tmp_path, recorded(lost=True)))
    assert (judgement.verdict, judgement.exit_code, judgement.reasons) == ("invalid", 1, ())


DELAYED = "t\x1fdelayed"
WAITING = "1 delayed publications were due, and not seen to come to all who subscribed"


def delaying(ms: int | None, came: bool) -> RunRecorder:
    """Return a run in which `p` puts something with a delay, 50 ms before `s` asks once more, and
    is given it, or nothing.
    """
    run = recorded()
    said = {"delays": [[1, 1, ms]]} if ms else {}
    invoke = run.invoke("p", "put", DELAYED, counter=1, count=1, **said)
    run.complete(invoke, "ok", first_id=1, last_id=1)
    run.wait(50)
    brought = {"first_id": 3, "last_id": 3, "count": 1, "delayed": [[3, "p", 1, 1]]}
    run.get("s", "t", 2, [], **(brought if came else {}))
    return run


@pytest.mark.parametrize("ms", [20, None])
def test_what_was_due_and_not_seen_to_come_is_a_reason(tmp_path: Path, ms: int | None) -> None:
    judgement = judge(write(tmp_path, delaying(ms, came=False)))
    assert (judgement.verdict, judgement.reasons) == ("unknown", (WAITING,))


@pytest.mark.parametrize("ms", [20, None])
def test_a_run_in_which_all_came_that_was_delayed_is_valid(tmp_path: Path, ms: int | None) -> None:
    judgement = judge(write(tmp_path, delaying(ms, came=True)))
    assert (judgement.verdict, judgement.reasons) == ("valid", ())


def test_what_is_due_after_the_end_of_a_record_is_no_reason(tmp_path: Path) -> None:
    judgement = judge(write(tmp_path, delaying(86_400_000, came=False)))
    assert (judgement.verdict, judgement.reasons) == ("valid", ())


# --- files ----------------------------------------------------------------------------------------


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return a damage that replaces text of a file once."""

    def damage(directory: Path) -> None:
        path = directory / "history" / name
        text = path.read_text()
        assert old in text, (name, old)
        path.write_text(text.replace(old, new, 1))

    return damage


def gone(name: str) -> Callable[[Path], None]:
    """Return a damage that takes a file away."""
    return lambda directory: (directory / "history" / name).unlink()


def emptied(directory: Path) -> None:
    (directory / "history" / "s.jsonl").write_bytes(b"")


def cut_at_a_line(directory: Path) -> None:
    path = directory / "history" / "p.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))


def another_file(name: str) -> Callable[[Path], None]:
    """Return a damage that puts a file beside those of the run."""

    def damage(directory: Path) -> None:
        path = directory / "history" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((directory / "history" / "p.jsonl").read_text())

    return damage


def parquet_beside(directory: Path) -> None:
    (directory / "history.parquet").mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "gone": gone("p.jsonl"),
    "emptied": emptied,
    "cut at a line": cut_at_a_line,
    "underscore": another_file("_p.jsonl"),
    "dot": another_file(".p.jsonl"),
    "a copy": another_file("p-copy.jsonl"),
    "a subdirectory": another_file("more/p.jsonl"),
    "another suffix": another_file("p.jsonl.bak"),
    "parquet": parquet_beside,
    "a number": replaced("p.jsonl", '"first_id": 1', '"first_id": 3'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("lost", [False, True], ids=["clean", "lost"])
def test_a_file_that_is_not_as_run_json_says_leaves_absence_without_proof(
    tmp_path: Path, damage: Callable[[Path], None], lost: bool
) -> None:
    damage(write(tmp_path, recorded(lost)))
    judgement = judge(tmp_path)
    proofs = set(judgement.evidence) - set(judgement.no_proof)
    rows = {name for name in proofs if judgement.evidence[name]}
    assert judgement.verdict == ("invalid" if rows else "unknown")
    assert "lost" not in rows
    assert judgement.reasons


def test_a_file_of_a_living_client_vouches_for_what_it_had_and_no_more(tmp_path: Path) -> None:
    write(tmp_path, recorded(lost=True))
    told = {path.name: vouched(path, closed=False) for path in (tmp_path / "history").iterdir()}
    write(tmp_path, recorded(lost=True), history=told)
    with (tmp_path / "history" / "p.jsonl").open("ab") as file:
        file.write(b'{"run_id": "run", "proc')
    judgement = judge(tmp_path)
    assert (judgement.verdict, judgement.reasons) == ("invalid", ())
    assert len(judgement.remarks) == 2


@pytest.mark.parametrize("history", [None, ["p.jsonl", "s.jsonl"]], ids=["nothing", "names"])
@pytest.mark.parametrize("lost", [False, True], ids=["clean", "lost"])
def test_a_run_that_nothing_vouches_for_is_not_valid_and_its_proofs_stand(
    tmp_path: Path, history: list[str] | None, lost: bool
) -> None:
    judgement = judge(write(tmp_path, recorded(lost), history=history))
    assert judgement.verdict == ("invalid" if lost else "unknown")
    assert len(judgement.reasons) == 1


def test_a_name_with_brackets_is_a_name(tmp_path: Path) -> None:
    directory = tmp_path / "run [1]*"
    directory.mkdir()
    run = recorded()
    for row in run.rows:
        row["process"] += "[2]"
    assert judge(write(directory, run)).verdict == "valid"


@pytest.mark.parametrize(
    "text", ["", "{}", '{"run_id": 3}', "[]", '{"run_id": "a", "run_id": "b"}']
)
def test_a_directory_without_a_run_is_unknown(tmp_path: Path, text: str) -> None:
    assert judge(tmp_path).exit_code == 2
    (tmp_path / "run.json").write_text(text)
    assert judge(tmp_path).exit_code == 2


SAID = {"lines": 1, "bytes": 1, "blake2b": "A" * 32, "closed": True}


@pytest.mark.parametrize(
    "history",
    [3, ["gone.jsonl", 3], {"p.jsonl": 3, "s.jsonl": 3}, {"p.jsonl": SAID, "s.jsonl": SAID}],
)
def test_what_run_json_says_of_files_and_can_not_be_read_vouches_for_nothing_and_is_no_hole(
    tmp_path: Path, history: object
) -> None:
    assert judge(write(tmp_path, recorded(), history=history)).verdict == "unknown"
    assert judge(write(tmp_path, recorded(lost=True), history=history)).verdict == "invalid"


@pytest.mark.parametrize("nodes", [3, "a", {"a": 1}, ["a", 3], ["a", None]])
def test_nodes_that_are_no_list_of_names_are_a_hole_of_the_truth(
    tmp_path: Path, nodes: object
) -> None:
    """A majority of nodes is not known then: what is on too few disks may be on enough of them."""
    said = judge(write(tmp_path, recorded(), nodes=nodes))
    assert said.reasons == ("run.json does not say which nodes there were",)
    run = recorded()
    run.disk("a", "b", "c")
    run.found_on("abc", "state", index=1, digest="00")
    run.held("a", "p", "t", 1, 2)
    for node in "abc":
        run.found_on(node, "topic", topic="t", last_id=2, floor_id=0)
    directory = tmp_path / "disks"
    directory.mkdir()
    assert judge(write(directory, run, nodes=["a", "b", "c"])).verdict == "invalid"
    assert judge(write(directory, run, nodes=nodes)).verdict == "unknown"


@pytest.mark.parametrize("who", ["runner", 3, True, ["application"], {}])
def test_who_recorded_is_an_application_or_is_not_said(tmp_path: Path, who: object) -> None:
    for lost in (False, True):
        said = judge(write(tmp_path, recorded(lost), recorded_by=who))
        assert said.verdict == "unknown"
        assert f"run.json does not say who recorded: {who!r}" in said.reasons


# --- lines ----------------------------------------------------------------------------------------


def resealed(directory: Path, run: RunRecorder, change: Callable[[Path], None]) -> Path:
    """Write a run, change it, and let run.json vouch for what is there now."""
    change(write(directory, run))
    told = {path.name: vouched(path) for path in sorted((directory / "history").iterdir())}
    document = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps({**document, "history": told}))
    return directory


TOO_LONG = "x" * 20_000_001
LINES: dict[str, Callable[[Path], None]] = {
    "no producer": replaced("s.jsonl", '"items": [[1, "p", 1, 2]]', '"items": [[1, null, 1, 2]]'),
    "count 0": replaced("s.jsonl", '[[1, "p", 1, 2]]', '[[1, "p", 1, 2], [3, "p", 3, 0]]'),
    "id 0": replaced("s.jsonl", '[[1, "p", 1, 2]]', '[[0, "p", 1, 2]]'),
    "another count": replaced("s.jsonl", '"count": 2', '"count": 3'),
    "ids that are no count": replaced("p.jsonl", '"last_id": 1', '"last_id": 5'),
    "other quotes": replaced("s.jsonl", '"f": "get"', "'f': 'get'"),
    "a name twice": replaced("s.jsonl", '"f": "get"', '"f": "get", "f": "get"'),
    "no number": replaced("s.jsonl", '"last_id": 0', '"last_id": NaN'),
    "a number below 0": replaced("s.jsonl", '"last_id": 0', '"last_id": -1'),
    "half a surrogate": replaced("s.jsonl", '"f": "get"', '"f": "get", "error": "\\ud800"'),
    "a long text": replaced("s.jsonl", '"f": "get"', f'"f": "get", "error": "{TOO_LONG}"'),
    "an empty line": replaced("s.jsonl", "\n", "\n\n"),
    "another run": replaced("s.jsonl", '"run_id": "run"', '"run_id": "rum"'),
    "another process": replaced("s.jsonl", '"process": "s"', '"process": "r"'),
    "an op_id twice": replaced("p.jsonl", '"op_id": 2', '"op_id": 1'),
    "an op_id left out": replaced("s.jsonl", '"op_id": 3', '"op_id": 4'),
    "another client": replaced("s.jsonl", '"client_id": "s"', '"client_id": "r"'),
    "another session": replaced("s.jsonl", '"session": 0', '"session": 1'),
    "another topic": replaced("p.jsonl", '"topic": "t"', '"topic": "u"'),
    "another counter": replaced("p.jsonl", '"counter": 1', '"counter": 7'),
    "another cursor": replaced("s.jsonl", '"asked": 0', '"asked": 1'),
    "another time": replaced("p.jsonl", '"invoke_ns": 3', '"invoke_ns": 2'),
}  # fmt: skip


@pytest.mark.parametrize(
    ("leases", "items"),
    [
        ([[3, 3, 1]], [[4, "q", 1, 1]]),
        ([[3, 4, 1]], [[2, "q", 1, 2]]),
        ([[3, 3, 1], [7, 7, 1]], [[3, "q", 1, 2]]),
    ],
)
def test_a_take_that_brings_other_ids_than_it_leases_is_a_hole(
    tmp_path: Path, leases: list[list[int]], items: list[list[Any]]
) -> None:
    run = recorded()
    run.complete(run.invoke("a", "group", "t", group="g"), "ok", last_id=2, resumed=False)
    take = run.invoke("a", "take", "t", group="g", number=1, max_count=9)
    told = {"token": 1, "left_ms": 9, "count": sum(last - first + 1 for first, last, _ in leases)}
    run.complete(take, "ok", **told, leases=leases, items=items)
    reasons = judge(write(tmp_path, run)).reasons
    assert "malformed: history/a.jsonl:4: it brings other ids than it leases" in reasons


@pytest.mark.parametrize("change", LINES.values(), ids=LINES)
def test_a_line_that_no_recorder_writes_is_a_hole(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    judgement = judge(resealed(tmp_path, recorded(), change))
    assert (judgement.verdict, bool(judgement.reasons)) == ("unknown", True)


def without(*numbers: int) -> Callable[[Path], None]:
    """Return a change that leaves lines of the subscriber out."""

    def change(directory: Path) -> None:
        path = directory / "history" / "s.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for n, line in enumerate(lines) if n not in numbers))

    return change


@pytest.mark.parametrize("numbers", [(0,), (2,), (2, 3), (0, 1)])
def test_a_line_or_an_operation_that_is_gone_is_a_hole(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    assert judge(resealed(tmp_path, recorded(), without(*numbers))).verdict == "unknown"


def test_two_ends_make_an_operation_that_proves_nothing(tmp_path: Path) -> None:
    def twice(directory: Path) -> None:
        path = directory / "history" / "p.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines, lines[1].replace('"first_id": 1', '"first_id": 9')]))

    assert judge(resealed(tmp_path, recorded(), twice)).verdict == "unknown"


def torn(session: int, mark: bytes = b"\x18\n") -> Callable[[Path], None]:
    """Return a change that tears a line of the subscriber, who goes on in a session."""

    def change(directory: Path) -> None:
        path = directory / "history" / "s.jsonl"
        last = json.dumps({**json.loads(path.read_text().splitlines()[-1]), "session": session})
        lines = path.read_bytes().splitlines(keepends=True)[:-1]
        path.write_bytes(b"".join([*lines, b'{"run_id": "ru' + mark, last.encode(), b"\n"]))

    return change


def test_a_torn_line_ends_a_session(tmp_path: Path) -> None:
    judgement = judge(resealed(tmp_path, recorded(), torn(session=1)))
    assert (judgement.verdict, judgement.reasons) == ("valid", ())


def test_a_torn_line_in_the_middle_of_a_session_is_a_hole(tmp_path: Path) -> None:
    assert judge(resealed(tmp_path, recorded(), torn(session=0))).verdict == "unknown"


def test_a_broken_line_without_the_mark_is_a_hole(tmp_path: Path) -> None:
    assert judge(resealed(tmp_path, recorded(), torn(1, b"\n"))).verdict == "unknown"


# --- truth ----------------------------------------------------------------------------------------


def with_truth(id_: int = 1, run_id: str = "run") -> RunRecorder:
    """Return the run with three nodes that hold both publications from `id_` on."""
    run = recorded()
    run.disk("a", "b", "c")
    common = {"topic": "t", "producer": "p"}
    run.found_on("abc", "held", first_id=id_, first_counter=1, count=2, **common)
    run.found_on("abc", "topic", topic="t", last_id=id_ + 1, floor_id=0)
    run.found_on("abc", "counter", counter=2, **common)
    run.found_on("abc", "state", index=9, digest="0" * 32)
    run.truth = [{**row, "run_id": run_id} for row in run.truth]
    return run


def test_a_truth_that_agrees_is_valid(tmp_path: Path) -> None:
    assert judge(write(tmp_path, with_truth())).verdict == "valid"


def test_an_id_other_than_the_acknowledged_one_is_not_durable(tmp_path: Path) -> None:
    judgement = judge(write(tmp_path, with_truth(id_=5)))
    assert judgement.verdict == "invalid"
    assert len(judgement.evidence["ack_not_durable"]) == 2


def test_a_truth_of_another_run_is_unknown(tmp_path: Path) -> None:
    assert judge(write(tmp_path, with_truth(run_id="rum"))).verdict == "unknown"


@pytest.mark.parametrize("kinds", [(), ("held", "topic", "counter")], ids=["empty", "no state"])
def test_a_truth_without_a_state_is_unknown(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    run = with_truth()
    run.truth = [row for row in run.truth if row["node"] != "a" or row["kind"] in kinds]
    assert judge(write(tmp_path, run)).verdict == "unknown"


def test_a_truth_that_is_gone_or_that_nobody_expects_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, with_truth())
    (tmp_path / "truth" / "c.jsonl").rename(tmp_path / "truth" / "d.jsonl")
    judgement = judge(tmp_path)
    assert (judgement.verdict, len(judgement.reasons)) == ("unknown", 2)


def test_without_a_truth_disks_are_not_judged(tmp_path: Path) -> None:
    judgement = judge(write(tmp_path, recorded()))
    assert set(judgement.not_judged) == {"replica_divergence", "ack_not_durable"}


# --- reasons --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome",
    [{"finished": False, "reasons": []}, {"finished": True, "reasons": ["too few"]}, 3],
)
def test_what_the_run_says_of_itself_is_a_reason(tmp_path: Path, outcome: object) -> None:
    assert judge(write(tmp_path, recorded(), outcome=outcome)).verdict == "unknown"


def test_a_subscription_that_stands_and_has_not_drained_is_a_reason(tmp_path: Path) -> None:
    run = recorded()
    del run.rows[-1]
    assert judge(write(tmp_path, run)).reasons == (
        "drain incomplete: 1 subscriptions, such as s t",
    )


def test_an_application_need_not_drain_and_names_nobody(tmp_path: Path) -> None:
    run = DIRECTORIES["application_names_nobody"]().run
    judgement = judge(write(tmp_path, run, recorded_by="application", outcome=None))
    assert judgement.verdict == "valid"
    assert {"phantom", "aborted_read", "future_read", "corrupt"} <= set(judgement.not_judged)


def test_a_run_in_which_nothing_happened_proves_nothing(tmp_path: Path) -> None:
    run = RunRecorder()
    run.sub("s", "t", 0)
    assert len(judge(write(tmp_path, run)).reasons) == 3


@pytest.mark.parametrize(
    ("f", "fields", "told"),
    [
        ("get", {}, ("fail", {"error": "purged", "first_id": 1, "last_id": 6_000_000})),
        ("take", {"group": "g", "acks": [[1, 1, 6_000_000]]}, ("ok", {"count": 0})),
    ],
)
def test_what_is_too_much_for_this_judge_it_says(
    tmp_path: Path, f: str, fields: dict[str, Any], told: tuple[str, dict[str, Any]]
) -> None:
    run = recorded()
    run.complete(run.invoke("r", f, "t", **fields), told[0], **told[1])
    reasons = judge(write(tmp_path, run)).reasons
    assert reasons == ("over 5000000 publications: too many for this judge",)


def test_what_a_subscriber_is_told_is_gone_was_not_delivered(tmp_path: Path) -> None:
    run = RunRecorder()
    run.sub("s", "t", 0)
    run.put("p", "t", 1, "ok", first_id=1, last_id=1)
    run.purge("t", 1)
    told = run.invoke("s", "get", "t", last_id=0)
    run.complete(told, "fail", error="purged", first_id=1, last_id=1)
    run.drained("s", "t", 1)
    judgement = judge(write(tmp_path, run))
    assert delivered_count(judgement.run) == 0
    assert judgement.verdict == "unknown"


def dict_of_checks() -> dict[str, object]:
    """Return the checks, to be changed by a test."""
    assert isinstance(TWINS, dict)
    return TWINS


def test_a_check_that_crashes_is_a_reason_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("by the test")

    monkeypatch.setitem(dict_of_checks(), "gap", crash)
    judgement = judge(write(tmp_path, recorded()))
    assert judgement.reasons == ("gap crashed: ZeroDivisionError: by the test",)
    assert judgement.verdict == "unknown"


def test_both_judges_hold_the_same_checks_for_no_proof_where_something_is_missing() -> None:
    """As the table "rests on" of docs/checks.md has them."""
    page = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
    table = page[page.index("| rests on | checks |") :].split("\n\n")[0].splitlines()[2:]
    documented = [
        {name for name in re.findall(r"`(\w+)`", row) if name in CHECK_SPECS} for row in table
    ]
    history, truth, _ = documented
    assert history == NEEDS_HISTORY
    assert truth == OF_DISKS
    assert documented == [
        *(
            {name for name, spec in CHECK_SPECS.items() if part in spec.needs_whole}
            for part in (Part.HISTORY, Part.TRUTH)
        ),
        {name for name, spec in CHECK_SPECS.items() if not spec.needs_whole},
    ]


def test_both_judges_hold_the_same_checks_for_those_of_names_and_of_disks() -> None:
    assert {name for name, spec in CHECK_SPECS.items() if spec.needs_names} == OF_NAMES
    assert {name for name, spec in CHECK_SPECS.items() if spec.needs_truth} == OF_DISKS


def test_recorder_judges_and_simulator_know_the_same_errors_that_say_what_is_gone() -> None:
    assert set(GONE) == TOLD_OF_GONE == follower.TELL_OF_GONE == replayer.TELL_OF_GONE
    pairs = (Path(__file__).parents[2] / "analytics/tables/pairs.py").read_text(encoding="utf-8")
    on_spark = pairs.partition("def is_told_of_purge")[2].partition("return")[0]
    assert {name for name in re.findall(r'"(\w+)"', on_spark) if name in ERRORS} == TOLD_OF_GONE


@pytest.mark.parametrize("name", [b"\xff.jsonl", b"a:b.jsonl"])
@pytest.mark.parametrize("history", [None, []], ids=["unvouched", "of 0.2"])
def test_a_name_that_no_recorder_gives_is_a_hole_and_no_crash(
    tmp_path: Path, name: bytes, history: list[str] | None
) -> None:
    directory = write(tmp_path, recorded(), history=history)
    (directory / "history" / os.fsdecode(name)).write_text("{}\n")
    said = plain.judged(directory)
    assert (said.verdict, len(said.reasons)) == ("unknown", 2)
    plain.write(said)


FAULT = {"process": "runner", "f": "fault"}
ODD: dict[str, dict[str, Any]] = {
    "an outcome": {"outcome": "fine"},
    "injections": {"outcome": {**OUTCOME, "injections": 3}},
    "an injection": {"outcome": {**OUTCOME, "injections": [{"name": "kill"}, [1]]}},
    "problems": {"outcome": {**OUTCOME, "problems": 7}},
    "nodes": {"nodes": 3},
    "a node": {"nodes": [["a"]]},
    "a duration": {"experiment": {"name": "calm"}, "seed": 1, "duration_s": "long"},
}


@pytest.mark.parametrize("error", ["{no", "[1]", "7", None, '{"action":"heal","targets":5}'])
@pytest.mark.parametrize("document", ODD.values(), ids=ODD)
def test_what_can_not_be_read_beside_the_operations_hides_no_proof(
    tmp_path: Path, document: dict[str, Any], error: str | None
) -> None:
    """Of faults, and of the run's own words, a report is made: it tells what can be read."""
    run = recorded(lost=True)
    run._add({**FAULT, "error": error}, "info")
    said = plain.judged(write(tmp_path, run, **document))
    assert said.verdict == "invalid"
    plain.write(said)
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "invalid"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A read of a pipe might wait, and of a device go on, for ever."""
    directory = write(tmp_path, recorded(), nodes=["a"], truth={"nodes": ["a"]})
    (directory / "truth").mkdir()
    os.mkfifo(directory / "truth" / "a.jsonl")
    judgement = judge(directory)
    assert judgement.reasons == ("unreadable: truth/a.jsonl: it is no file",)
    (directory / "run.json").unlink()
    os.mkfifo(directory / "run.json")
    judgement = judge(directory)
    assert judgement.reasons[0] == "unreadable: run.json: it is no file"


@pytest.mark.parametrize("about", ["gone", "no JSON", "without a run_id"])
def test_what_is_proven_stands_though_run_json_vouches_for_nothing(
    about: str, tmp_path: Path
) -> None:
    for lost, due in ((True, Verdict.INVALID), (False, Verdict.UNKNOWN)):
        directory = tmp_path / f"{lost}"
        directory.mkdir()
        write(directory, recorded(lost), run_id=None if about == "without a run_id" else "run")
        if about == "gone":
            (directory / "run.json").unlink()
        elif about == "no JSON":
            (directory / "run.json").write_text("{")
        judgement = judge(directory)
        assert judgement.verdict == due
        assert "run.json names no run_id" in judgement.reasons
        assert bool(judgement.evidence["lost"]) is lost


def test_lines_of_several_runs_need_a_run_json_that_says_of_which_it_is(tmp_path: Path) -> None:
    run = recorded(lost=True)
    run.rows[-1]["run_id"] = "another"
    judgement = judge(write(tmp_path, run, run_id=None))
    assert (judgement.verdict, len(judgement.reasons)) == (Verdict.UNKNOWN, 1)
    assert "several runs" in judgement.reasons[0]


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "topic", "topic": "t", "last_id": 2, "floor_id": 3},
        {"kind": "state", "index": 2, "digest": ""},
        {"kind": "entry", "index": 2, "term": 1, "digest": ""},
        {"kind": ["state"], "index": 2, "digest": "00"},
        {"kind": "state", "index": 2, "digest": "00", "term": "1"},
        {"kind": "leadership", "term": 1, "producer": 7},
        {"kind": "counter", "producer": "p", "topic": "t", "counter": 2, "first_id": 0},
    ],
)
def test_a_truth_that_no_node_leaves_is_a_hole(tmp_path: Path, row: dict[str, Any]) -> None:
    directory = write(tmp_path, recorded(), nodes=["a"], truth={"nodes": ["a"]})
    common = {"run_id": json.loads((directory / "run.json").read_text())["run_id"], "node": "a"}
    state = {"kind": "state", "index": 1, "digest": "00"}
    counter = {"kind": "counter", "producer": "p", "topic": "t", "counter": 2}
    (directory / "truth").mkdir()
    lines = "".join(json.dumps({**common, **one}) + "\n" for one in (state, counter, row))
    (directory / "truth" / "a.jsonl").write_text(lines)
    assert any(one.startswith("malformed: truth/a.jsonl:3") for one in judge(directory).reasons)
