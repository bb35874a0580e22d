"""Small directories that deceive by what stands around the rows: who recorded, which lines stand.

What lives here: the directories, and what each must come to by any judge. What must not: a judge.
Kinds of sabotage (broken_files.py) change a legal history; these are made for one sentence each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from analytics.command.differences import JudgedRun
from tests.spark.histories import Row, RunRecorder, write

OF_DISKS: Final = {"replica_divergence", "ack_not_durable"}  # no disk is read here
NAMES: Final = frozenset(
    {"phantom", "aborted_read", "future_read", "corrupt", "delayed", "group_content"}
)
Change = Callable[[dict[str, Any]], None]  # of what run.json says of files, by their names


@dataclass(frozen=True)
class Expected:
    """The verdict; the checks whose rows are proofs; those that could not judge the record, of
    what is no matter of the disks.
    """

    verdict: str
    proven: frozenset[str] = frozenset()
    not_judged: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Made:
    """A run, what its run.json says beside, and what it comes to. `then` changes what run.json says
    of the files when it is sealed.
    """

    run: RunRecorder
    expected: Expected
    document: dict[str, Any] = field(default_factory=dict)
    then: Change | None = None

    def write(self, directory: Path) -> None:
        """Write it, sealed."""
        write(directory, self.run.rows, **self.document)
        if self.then is not None:
            file = directory / "run.json"
            document = json.loads(file.read_text())
            self.then(document["history"])
            file.write_text(json.dumps(document))


def came_to(judgement: JudgedRun) -> Expected:
    """Return what a judge said, in the same form."""

    def of(standing: str) -> frozenset[str]:
        found = {name for name, one in judgement.checks.items() if one.standing == standing}
        return frozenset(found - OF_DISKS)

    return Expected(judgement.verdict, of("invalid"), of("not judged"))


Build = Callable[[], Made]
DIRECTORIES: Final[dict[str, Build]] = {}
APPLICATION: Final = {"recorded_by": "application"}
UNKNOWN: Final = Expected("unknown")


def directory(build: Build) -> Build:
    """Register a directory; its name is the claim."""
    assert build.__name__ not in DIRECTORIES, build.__name__
    DIRECTORIES[build.__name__] = build
    return build


def put(run: RunRecorder, counter: int, digest: str | None = None) -> Row:
    """Record an acknowledged PUT of one publication, whose id is its counter."""
    own = {} if digest is None else {"digests": digest * 16}
    invoke = run.invoke("p", "put", "t", counter=counter, count=1, **own)
    return run.complete(invoke, "ok", first_id=counter, last_id=counter)


def clean() -> RunRecorder:
    """Return two publications, both given, and a drain."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    put(run, 1)
    put(run, 2)
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    run.drained("s", "t", 2)
    return run


def haunted() -> RunRecorder:
    """Return the same, with a publication that nobody put."""
    run = clean()
    run.get("s", "t", 2, [[3, "ghost", 1, 1]])
    return run


# --- who recorded ---------------------------------------------------------------------------------


@directory
def ghost_is_found() -> Made:
    return Made(haunted(), Expected("invalid", frozenset({"phantom"})))


@directory
def ghost_hides_behind_one_line_with_digests() -> Made:
    run = haunted()
    put(run, 4, "a")
    return Made(run, Expected("unknown", not_judged=NAMES))


@directory
def ghost_hides_in_what_calls_itself_an_applications_record() -> Made:
    return Made(haunted(), Expected("unknown", not_judged=NAMES), APPLICATION)


@directory
def application_names_nobody() -> Made:
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    put(run, 1, "a")
    answer = {"first_id": 1, "last_id": 1, "count": 1, "digests": "a" * 16}
    run.complete(run.invoke("s", "get", "t", last_id=0), "ok", **answer)
    return Made(run, Expected("valid", not_judged=NAMES), APPLICATION)


@directory
def application_is_acknowledged_a_batch_in_two_parts() -> Made:
    """Two tries of one batch have two places each: no neighbour of one is one of the other."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    for first_id in (1, 5):
        batch = run.invoke("p", "put", "t", counter=1, count=2, digests="a" * 32)
        run.complete(batch, "ok", first_id=first_id, last_id=first_id + 1)
    ids = {"first_id": 1, "last_id": 6, "count": 6, "digests": "a" * 96}
    run.complete(run.invoke("s", "get", "t", last_id=0), "ok", **ids)
    return Made(run, Expected("invalid", frozenset({"duplicate_stored"}), NAMES), APPLICATION)


def worked_beside_others() -> RunRecorder:
    """Return what one worker of a group records where another one, that does not, did the rest."""
    run = RunRecorder()
    for settled in (0, 2):
        joins = run.invoke("w", "group", "t", group="g")
        run.complete(joins, "ok", last_id=settled, resumed=True)
    takes = run.invoke("w", "take", "t", group="g", number=1, max_count=1)
    given = {"token": 9, "leases": [[3, 3, 3]], "left_ms": 0, "lease_ms": 50}
    run.complete(takes, "ok", count=1, attempt=1, **given)
    return run


@directory
def group_settles_what_nobody_of_ours_was_leased() -> Made:
    proven = frozenset({"group_lost", "group_lease"})
    return Made(worked_beside_others(), Expected("invalid", proven))


@directory
def application_works_in_a_group_beside_others_that_do_not_record() -> Made:
    """No line of it has digests: what run.json says is all that tells it from a run of ours."""
    return Made(worked_beside_others(), Expected("unknown", not_judged=NAMES), APPLICATION)


# --- which lines are there ------------------------------------------------------------------------


@directory
def answer_goes_back_and_its_question_is_gone() -> Made:
    """The answer says itself what it was asked with: that line alone is the proof."""
    run = clean()
    run.get("s", "t", 2, [[1, "p", 1, 1]])
    del run.rows[-2]
    return Made(run, Expected("invalid", frozenset({"reordered"})))


@directory
def term_goes_back_and_the_question_is_gone() -> Made:
    run = clean()
    run.get("s", "t", 2, [], node="a", term=5)
    run.get("s", "t", 2, [], node="b", term=4)
    del run.rows[-2]
    return Made(run, Expected("invalid", frozenset({"term_order"})))


@directory
def loss_hides_behind_an_answer_from_before_its_question() -> Made:
    run = clean()
    invoke, end = run.rows[-3], run.rows[-2]
    assert (invoke["f"], end["f"]) == ("get", "get")
    end["t_ns"] = invoke["t_ns"] - 500_000
    return Made(run, UNKNOWN)


@directory
def answer_from_before_its_question_says_not_when_that_was() -> Made:
    run = clean()
    invoke, end = run.rows[-3], run.rows[-2]
    end |= {"t_ns": invoke["t_ns"] - 500_000, "invoke_ns": None}
    return Made(run, UNKNOWN)


@directory
def answer_repeats_another_limit_than_was_asked_for() -> Made:
    run = clean()
    run.rows[-3]["max_count"], run.rows[-2]["max_count"] = 1, 2
    return Made(run, UNKNOWN)


@directory
def acknowledgment_repeats_another_epoch() -> Made:
    run = clean()
    [acknowledged] = [row for row in run.rows if row["type"] == "ok" and row.get("counter") == 2]
    acknowledged["epoch"] = 7
    return Made(run, UNKNOWN)


@directory
def answer_says_that_it_begins_elsewhere() -> Made:
    run = clean()
    run.rows[-2] |= {"first_id": 2, "last_id": 3}
    return Made(run, UNKNOWN)


@directory
def run_has_seen_a_violation_and_gives_no_reason() -> Made:
    outcome = {"finished": True, "reasons": [], "violations": ["a reader was given one twice"]}
    return Made(clean(), UNKNOWN, {"outcome": outcome})


@directory
def run_says_nothing_of_whether_it_finished() -> Made:
    return Made(clean(), UNKNOWN, {"outcome": {"reasons": []}})


@directory
def outcome_is_no_object() -> Made:
    return Made(clean(), UNKNOWN, {"outcome": ["finished"]})


@directory
def truth_that_was_to_be_read_is_no_object() -> Made:
    return Made(clean(), UNKNOWN, {"truth": ["a", "b", "c"]})


@directory
def nodes_are_a_number() -> Made:
    return Made(clean(), UNKNOWN, {"nodes": 3})


@directory
def node_has_no_name() -> Made:
    return Made(clean(), UNKNOWN, {"nodes": ["a", ["b"]]})


@directory
def ghost_is_found_though_nodes_are_a_number() -> Made:
    return Made(haunted(), Expected("invalid", frozenset({"phantom"})), {"nodes": 3})


@directory
def nobody_knows_who_recorded() -> Made:
    return Made(clean(), UNKNOWN, {"recorded_by": ["application"]})


@directory
def ghost_is_no_proof_where_nobody_knows_who_recorded() -> Made:
    return Made(haunted(), UNKNOWN, {"recorded_by": "an application"})


@directory
def client_was_forgotten() -> Made:
    run = clean()
    run.sub("gone", "t", 2)
    run.complete(run.invoke("gone", "get", "t", last_id=2), "fail", error="forgotten")
    run.put("p", "u", 1, "ok", first_id=0)
    return Made(run, UNKNOWN)


# --- what run.json says of files ------------------------------------------------------------------

NOTHING: Final = {"lines": 0, "bytes": 0, "blake2b": blake2b(digest_size=16).hexdigest()}


def _renamed(name: str) -> Change:
    """Return a change of what run.json says: of the subscriber's file under another name alone."""

    def change(files: dict[str, Any]) -> None:
        files[name] = files.pop("s.jsonl")

    return change


def _beside(name: str, **fields: Any) -> Change:
    """Return a change: the subscriber's file is named once more, with other fields."""

    def change(files: dict[str, Any]) -> None:
        files[name] = {**files["s.jsonl"], **fields}

    return change


def _with(**fields: Any) -> Change:
    return _beside("s.jsonl", **fields)


@directory
def file_has_a_path_for_a_name() -> Made:
    return Made(clean(), UNKNOWN, then=_renamed("./s.jsonl"))


@directory
def file_stands_outside() -> Made:
    return Made(clean(), UNKNOWN, then=_renamed("../history/s.jsonl"))


@directory
def file_is_named_once_more_by_a_path_with_another_digest() -> Made:
    return Made(clean(), UNKNOWN, then=_beside("./s.jsonl", blake2b="0" * 32))


@directory
def ghost_is_no_proof_where_a_file_is_named_once_more_and_is_gone() -> Made:
    return Made(haunted(), UNKNOWN, then=_beside("t.jsonl"))


@directory
def digest_is_in_capital_letters() -> Made:
    def change(files: dict[str, Any]) -> None:
        files["s.jsonl"]["blake2b"] = "A" + files["s.jsonl"]["blake2b"].upper()[1:]

    return Made(clean(), UNKNOWN, then=change)


@directory
def digest_is_of_twice_the_length() -> Made:
    return Made(clean(), UNKNOWN, then=_with(blake2b="0" * 64))


@directory
def file_has_another_number_of_lines() -> Made:
    return Made(clean(), UNKNOWN, then=_with(lines=1))


@directory
def file_is_closed_by_a_number() -> Made:
    return Made(clean(), UNKNOWN, then=_with(closed=1))


@directory
def file_has_fewer_bytes_than_none() -> Made:
    return Made(clean(), UNKNOWN, then=_with(bytes=-1))


@directory
def file_says_more_of_itself() -> Made:
    return Made(clean(), Expected("valid"), then=_with(host="here"))


@directory
def file_of_a_client_that_was_killed_vouches_for_nothing() -> Made:
    """It is remarked, and no reason: any process may die before it says what its file is."""
    return Made(clean(), Expected("valid"), then=_with(**NOTHING, closed=False))


@directory
def file_that_was_closed_vouches_for_nothing() -> Made:
    return Made(clean(), UNKNOWN, then=_with(**NOTHING))


@directory
def files_are_a_list() -> Made:
    def change(files: dict[str, Any]) -> None:
        files["p.jsonl"] = [files["p.jsonl"]]

    return Made(clean(), UNKNOWN, then=change)


# --- sessions and hosts ---------------------------------------------------------------------------


def _of_two_sessions(**second: Any) -> RunRecorder:
    """Return a subscriber that is told nothing, comes back, and reads; its later rows say more."""
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    run.get("s", "t", 0, [])
    put(run, 1)
    invoke = run.invoke("s", "get", "t", last_id=0, **{"session": 1, **second})
    given = {"items": [[1, "p", 1, 1]], "count": 1, "first_id": 1, "last_id": 1}
    run.complete(invoke, "ok", **given, **{n: invoke[n] for n in ("host",) if n in second})
    run.drained("s", "t", 1)
    return run


@directory
def process_comes_back_and_reads() -> Made:
    return Made(_of_two_sessions(), Expected("valid"))


@directory
def session_is_of_two_hosts() -> Made:
    return Made(_of_two_sessions(session=0, host="elsewhere"), UNKNOWN)


@directory
def answer_is_of_another_host_than_its_question() -> Made:
    run = _of_two_sessions()
    run.rows[-2]["host"] = "elsewhere"
    return Made(run, UNKNOWN)


@directory
def lines_of_a_session_do_not_all_say_their_host() -> Made:
    return Made(_of_two_sessions(session=0, host=None), UNKNOWN)


@directory
def session_is_lower_than_the_one_before_it() -> Made:
    run = _of_two_sessions()
    for row in run.rows[:2]:
        row["session"] = 2
    return Made(run, UNKNOWN)


@directory
def run_has_counted_more_than_is_on_record() -> Made:
    return Made(clean(), UNKNOWN, {"outcome": {"finished": True, "acknowledged": 3}})


@directory
def run_has_handed_over_more_than_is_on_record() -> Made:
    return Made(clean(), UNKNOWN, {"outcome": {"finished": True, "delivered": 3}})


@directory
def run_has_counted_once_more_what_came_in_two_batches() -> Made:
    run = RunRecorder()
    run.sub("s", "t", 0, resumed=False, cursor=0)
    batch = run.invoke("p", "put", "t", counter=1, count=2)
    run.complete(batch, "ok", first_id=1, last_id=2)
    put(run, 2)
    run.get("s", "t", 0, [[1, "p", 1, 2]])
    run.drained("s", "t", 2)
    counted = {"finished": True, "acknowledged": 3, "delivered": 2}
    return Made(run, Expected("valid"), {"outcome": counted})
