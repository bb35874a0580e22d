"""No alarm in a legal history, and none of sabotage is missed: by the judge in plain Python."""

from collections import Counter
from pathlib import Path

import pytest

from tests.judges.detection import Trial, detect, kinds_named, verdicts
from tests.judges.history import RAW
from tests.judges.judges import TWINS, judge_of
from tests.judges.kinds import KINDS
from tests.judges.world import legal

LEGAL_QUICK, LEGAL_MANY = range(1, 51), range(1, 2_001)
SABOTAGED_MANY = 5_000
KINDS_MIN = 40
VALID_SHARE_MIN = 0.3  # of legal histories: the rest lacks a drain, or says no cursor


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(judge_of(TWINS), tmp_path / "run")


def test_legal_histories_raise_no_alarm(trial: Trial) -> None:
    no_alarm(trial, LEGAL_QUICK)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_two_thousand_legal_histories_raise_no_alarm(trial: Trial) -> None:
    no_alarm(trial, LEGAL_MANY)


def no_alarm(trial: Trial, seeds: range) -> None:
    counted, alarms = verdicts(trial, seeds)
    assert alarms == []
    assert counted["valid"] >= VALID_SHARE_MIN * len(seeds), counted


@pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))
def test_what_breaks_one_sentence_is_found(trial: Trial, kind: object) -> None:
    nothing_is_missed(trial, 1, kind)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_five_thousand_sabotaged_histories_are_found(trial: Trial) -> None:
    nothing_is_missed(trial, SABOTAGED_MANY, *KINDS.values())


def nothing_is_missed(trial: Trial, histories: int, *kinds: object) -> None:
    tallies = detect(trial, histories, 1, kinds_named(tuple(kind.name for kind in kinds)))
    missed = {kind.name: tally.missed for kind, tally in tallies if tally.missed}
    assert missed == {}


def test_one_seed_makes_one_history() -> None:
    for seed in range(20):
        assert legal(seed) == legal(seed)


def test_there_are_many_kinds_and_each_says_which_sentence_it_breaks() -> None:
    assert len(KINDS) >= KINDS_MIN
    sentences = [kind.sentence for kind in KINDS.values()]
    assert all(sentences)
    assert [name for name, count in Counter(sentences).items() if count > 1] == []


def test_legal_histories_hold_what_a_correct_cluster_can_do() -> None:
    """What they lack is not shown to raise no alarm."""
    seen: Counter[str] = Counter()
    for seed in range(400):
        history = legal(seed)
        for name in features(history):
            seen[name] += 1
    wanted = {
        *("crash", "torn line", "takeover", "fenced", "left and came back", "several hosts"),
        *("no host", "nobody subscribes", "duplicate with id", "duplicate without id"),
        *("any topic", "short answer", "batch", "counter_gap", "late acknowledgment", "hand"),
        *("release", "digests", "truth", "no phases", "no epochs", "terms", "open file", "tie"),
        *("unclear sub", "late duplicate", "all known already", "stale_request", "terse"),
        *("expired", "purged", "gap", "compacted"),
    }
    assert {name: seen[name] for name in wanted if seen[name] < 2} == {}


def features(history) -> set[str]:
    """Return what a legal history has in it."""
    found: set[str] = set()
    rows = [row for row in history.rows if RAW not in row]
    found |= {"torn line" for row in history.rows if RAW in row}
    found |= {"crash" for row in rows if row["session"] > 1}
    found |= {"takeover" for row in rows if "-copy-" in row["process"]}
    found |= {str(row["error"]) for row in rows if row.get("error")}
    found |= {"no host" for row in rows if "host" not in row}
    found |= {"several hosts"} if len({row.get("host") for row in rows}) > 1 else set()
    found |= {"terms"} if len({row["term"] for row in rows if "term" in row}) > 2 else set()
    found |= {"truth"} if history.truth else set()
    found |= {"open file"} if history.open else set()
    found |= {"no epochs"} if not any("epoch" in row for row in rows) else set()
    phases = {row["phase"] for row in rows if row.get("f") == "phase"}
    found |= {"no phases"} if not phases and not history.is_application else set()
    found |= {row["f"] for row in rows if row["f"] in ("hand", "release")}
    found |= {"digests" for row in rows if "digests" in row}
    left, drained = set(), set()
    for row in rows:
        found |= features_of(row, history, drained)
        own = (row.get("client_id"), row.get("topic"))
        if row["f"] == "unsub" and row["type"] == "ok":
            left.add(own)
        elif row["f"] == "sub" and row["type"] == "ok" and own in left:
            found.add("left and came back")
        elif row.get("phase") == "drained" and row["f"] == "phase":
            drained.add(row["topic"])
    times = Counter((row.get("host"), row["t_ns"]) for row in rows)
    return found | ({"tie"} if max(times.values()) > 1 else set())


def features_of(row, history, drained: set[str]) -> set[str]:
    """Return what one row shows."""
    found: set[str] = set()
    if row["f"] == "sub" and row["type"] == "info":
        found.add("unclear sub")
    if row["type"] == "ok" and "invoke_ns" not in row:
        found.add("terse")
    if row["f"] == "put" and row["type"] == "ok":
        is_duplicate, first_id = row["duplicate"], row["first_id"]
        found.add("batch" if row.get("count", 1) > 1 else "single")
        if is_duplicate:
            found.add("duplicate with id" if first_id else "duplicate without id")
        elif not first_id:
            found.add("nobody subscribes")
        if row["topic"] in drained:
            found.add("late duplicate" if is_duplicate else "late acknowledgment")
    if row["f"] == "get" and row["type"] == "ok":
        if "asked" not in row and row["count"] and "cursor" in row:
            found.add("any topic")
        if 0 < row["count"] < (row.get("max_count") or 0):
            found.add("short answer")
        if row["count"] == 0 and row.get("first_id"):
            found.add("all known already")
    return found
