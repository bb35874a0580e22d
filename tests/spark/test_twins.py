"""Both judges find the same in histories that nobody thought of: by what identifies a row."""

import random
from collections.abc import Callable, Iterable
from itertools import count, islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from analytics import session
from analytics.anomalies import CHECKS
from analytics.differences import differences
from analytics.judging import by_spark, by_twins
from analytics.load import parse
from analytics.twins import TWINS, find_all
from analytics.twins.intake import Malformed, checked, parsed
from tests.judges.agreement import judgement, parts
from tests.judges.detection import sabotaged
from tests.judges.kinds import KINDS, UNKNOWN, Kind
from tests.judges.lines import changed_lines
from tests.judges.merging import shape
from tests.judges.together import judged_together
from tests.judges.world import legal
from tests.spark.conftest import Find
from tests.spark.histories import Row, Run

BATCH = 200  # histories a Spark job; starting one costs more than the rows in it
BORDER = 65_533  # ids and counters from here on cross a bucket
HOSTS = ("h", "h", "h", "other", None)
NODES = "abc"


class RandomRun:
    """Up to 16 operations over few clients, ids and counters: most runs break some promise.

    Operations overlap in time, and some never end.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.run = Run(str(seed))
        self.base = self.rng.choice((0, BORDER))
        self.run.hosts = {name: self.rng.choice(HOSTS) for name in ("p", "q", "s", "r", "twin")}
        self._open: list[tuple[Row, str, Row]] = []
        for _ in range(self.rng.randint(1, 16)):
            self.rng.choice((self.put, self.put, self.get, self.get, self.control))()
            if self.rng.random() < 0.2:
                self.handle()
            self.pass_time()
        self.disks()
        if self.rng.random() < 0.1:
            self.lose_invokes()

    def lose_invokes(self) -> None:
        """Let lines be gone: of some operations there is only the end."""
        rows = self.run.rows
        for row in [row for row in rows if row["type"] == "invoke" and self.rng.random() < 0.3]:
            rows.remove(row)

    def pass_time(self) -> None:
        """Let operations end, mostly at once; now and then a tick or two goes by."""
        while self._open and self.rng.random() < 0.6:
            place = self.rng.randrange(len(self._open))
            invoke, outcome, fields = self._open.pop(place)
            self.run.complete(invoke, outcome, **self.untold(invoke, fields), **fields)
        if self.rng.random() < 0.2:
            self.run.wait(self.rng.randint(1, 250))

    def untold(self, invoke: Row, end: Row) -> Row:
        """Return what the end does not repeat of its invoke, or repeats wrongly."""
        told = {name for name in ("counter", "count", "epoch", "asked", "invoke_ns", "host")}
        silent = {name: None for name in told - end.keys()}
        wrong = {name: self.id() for name in ("asked", "invoke_ns", "epoch", "counter")}
        return self.rng.choice(({}, {}, {}, silent, dict([self.rng.choice([*wrong.items()])])))

    def id(self) -> int:
        return self.base + self.rng.randint(1, 6)

    def maybe(self, *values: object) -> object:
        return self.rng.choice((None, *values))

    def begin(self, client_id: str, f: str, topic: str, outcome: str, own: Row, end: Row) -> None:
        process = self.rng.choice((client_id, client_id, "twin"))
        common = {"session": self.rng.randint(0, 1), "epoch": self.maybe(1, 1, 2)}
        invoke = self.run.invoke(client_id, f, topic, process=process, **common, **own)
        if outcome == "ok":
            end |= {"node": self.maybe("a", "a", "b"), "term": self.maybe(1, 2)}
        self._open.append((invoke, outcome, end))

    def put(self) -> None:
        rng, outcome = self.rng, self.rng.choice(("ok", "ok", "ok", "fail", "info"))
        end: Row = {}
        if outcome == "ok":
            end = {"first_id": rng.choice((0, *range(self.base + 1, self.base + 7)))}
            end |= {"duplicate": rng.choice((True, False, None))}
        own = {"counter": self.id(), "count": rng.choice((None, 1, 2, 3))}
        if own["count"] and rng.random() < 0.5:
            own["digests"] = self.digests(own["count"])
        self.begin(rng.choice("pq"), "put", rng.choice("tu"), outcome, own, end)

    def get(self) -> None:
        rng, topic = self.rng, self.rng.choice("ttu")
        asked = self.maybe(*range(self.base, self.base + 7))
        items = [
            [self.id(), rng.choice("pq"), self.id(), rng.randint(1, 3)]
            for _ in range(rng.choice((0, 0, 1, 2, 3)))
        ]
        end = {"items": items, "topic": topic, "cursor": None if asked else self.maybe(self.id())}
        if rng.random() < 0.2:
            end["corrupt"] = [[self.id(), "checksum"]]
        if rng.random() < 0.3:
            end["first_id"] = self.id()
        if rng.random() < 0.3:  # recorded by an application
            first_id, count = self.id(), rng.randint(1, 3)
            end = {name: end[name] for name in ("topic", "cursor")}
            end |= {"first_id": first_id, "last_id": first_id + count - 1, "count": count}
            end["digests"] = self.digests(count)
        if rng.random() < 0.7:
            end["handed_apart"] = True
        invoke_topic = topic if asked is not None else rng.choice((topic, ""))
        outcome = rng.choice(("ok", "ok", "ok", "info"))
        end = end if outcome == "ok" else {}
        self.begin(rng.choice("sr"), "get", invoke_topic, outcome, {"last_id": asked}, end)

    def handle(self) -> None:
        """Hand over, acknowledge or give back something, a few steps of one client in a row."""
        rng, client_id, topic = self.rng, self.rng.choice("sr"), self.rng.choice("ttu")
        process = rng.choice((client_id, client_id, "twin"))
        for _ in range(rng.randint(1, 4)):
            f, first_id = rng.choice(("hand", "hand", "hand", "ack", "release")), self.id()
            last_id = first_id + rng.randint(0, 2)
            begin = first_id if f != "ack" or rng.random() < 0.3 else None
            own = {"session": rng.choice((0, 0, 0, 1)), "process": process}
            own["cursor"] = self.maybe(self.base, self.base, self.id())
            self.run.handle(client_id, f, topic, begin, last_id, **own)

    def digests(self, count: int) -> str:
        return "".join(self.rng.choice("ab") * 16 for _ in range(count))

    def control(self) -> None:
        client_id, topic = self.rng.choice("sr"), self.rng.choice("tu")
        kind = self.rng.choice(("sub", "sub", "sub", "unsub", "drained"))
        if kind == "sub":
            end = {"last_id": self.base + self.rng.randint(0, 4), "cursor": self.maybe(self.id())}
            end["resumed"] = self.maybe(True, False)
            self.begin(client_id, "sub", topic, "ok", {}, end)
        elif kind == "unsub":
            self.begin(client_id, "unsub", topic, self.rng.choice(("ok", "fail", "info")), {}, {})
        else:
            self.run.drained(client_id, topic, self.base)

    def disks(self) -> None:
        """Let nodes hold this and that, or no truth be collected at all."""
        rng, run = self.rng, self.run
        if rng.random() < 0.3:
            return
        for node in NODES[: rng.randint(1, 3)]:
            run.disk(node, is_read=rng.random() < 0.9)
        for node in run.nodes:
            for index in range(1, 4):
                content = {
                    "term": rng.choice((1, 1, 1, 2)),
                    "digest": rng.choice(("aa", "aa", "bb")),
                }
                run.found_on(node, "entry", index=index, **content)
            for term in rng.sample((1, 2, 3), rng.randint(0, 2)):
                run.found_on(node, "leadership", term=term)
            run.found_on(node, "state", index=rng.randint(1, 2), digest=rng.choice(("aa", "bb")))
            for topic in "tu":
                floor_id = self.base + rng.randint(-1, 6)
                run.found_on(node, "topic", topic=topic, last_id=self.base + 9, floor_id=floor_id)
                for producer in "pq":
                    for _ in range(rng.randint(0, 2)):
                        run.held(node, producer, topic, self.id(), rng.randint(1, 4))
                    if rng.random() < 0.5:
                        counter = {"topic": topic, "producer": producer, "counter": self.id()}
                        run.found_on(node, "counter", **counter)


@pytest.mark.slow
@settings(
    max_examples=1,
    deadline=None,  # a batch takes seconds on a busy machine
    phases=[Phase.generate],  # a failure names its run's seed: small already, nothing to shrink
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.integers(0, 2**32), min_size=BATCH, max_size=BATCH, unique=True))
def test_spark_and_python_find_the_same_in_random_histories(find: Find, seeds: list[int]) -> None:
    compare(find, seeds)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_long_histories_plans_find_the_same_too(find_as_if_long: Find) -> None:
    compare(find_as_if_long, range(BATCH))


def compare(find: Find, seeds: Iterable[int]) -> None:
    runs = {seed: RandomRun(seed).run for seed in seeds}
    nodes = [(run.run_id, *node) for run in runs.values() for node in run.nodes.items()]
    rows = [row for run in runs.values() for row in run.rows]
    found = find(rows, [row for run in runs.values() for row in run.truth], nodes)
    for seed, run in runs.items():
        expected = judgement(find_all(run.rows, run.truth, run.nodes))
        differing = list(differences(f"RandomRun({seed})", judgement(found[str(seed)]), expected))
        assert differing == []


# --- legal and sabotaged histories ----------------------------------------------------------------

SEED, AGREEMENT_QUICK, AGREEMENT_MANY = 1, 24, 400


def test_judges_agree_on_a_few_legal_and_sabotaged_histories(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Of one shape, so that Spark runs once: with truth of three nodes, and tombstones."""
    print(f"from seed {SEED}")
    fit = (part for part in parts(count(SEED)) if shape(part.history) == SHAPE_QUICK)
    few = list(islice(fit, AGREEMENT_QUICK))
    [told] = judged_together(few, AGREEMENT_QUICK, tmp_path / "run")
    assert told.differing == []
    assert len({check for rows in told.rows.values() for check in rows}) >= CHECKS_QUICK_MIN


SHAPE_QUICK = (False, True, True, (True, True, True))
CHECKS_QUICK_MIN = 8  # that found something: else little was compared


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_judges_agree_on_legal_and_sabotaged_histories(tmp_path: Path, spark: SparkSession) -> None:
    made = parts(range(SEED, SEED + AGREEMENT_MANY))
    found = [told.differing for told in judged_together(made, AGREEMENT_MANY, tmp_path / "run")]
    assert [one for differing in found for one in differing] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_judges_agree_on_the_directory_of_a_legal_history(
    tmp_path: Path, find: Find, seed: int
) -> None:
    legal(seed).write(tmp_path / "run")
    agree(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind", [one for one in KINDS.values() if one.verdict == UNKNOWN], ids=lambda kind: kind.name
)
def test_judges_agree_on_lines_and_files_that_no_recorder_writes(
    tmp_path: Path, find: Find, kind: Kind
) -> None:
    """Second ends, ends that contradict, nulls, cut files: what is left of them, and the verdict.

    `find` is asked for so that one session is open for all.
    """
    is_fit: Callable[[int], bool] = lambda seed: True  # noqa: E731
    sabotaged(kind, 1, tmp_path / "run", is_fit)
    agree(tmp_path / "run")


def agree(directory: Path) -> None:
    found = differences(directory.name, by_spark(directory), by_twins(directory))
    assert list(found) == []


def test_both_intakes_call_the_same_lines_malformed(tmp_path: Path, spark: SparkSession) -> None:
    """Each kind of line with one field changed."""
    lines = dict((line, what) for what, line in changed_lines())
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    session.fit(spark, 1, 1)
    read = spark.read.text(str(tmp_path / "lines"), lineSep="\n").coalesce(1)
    by_spark_ = [row.malformed for row in parse(read).select("malformed").collect()]
    pairs = zip(lines.items(), by_spark_, strict=True)
    assert [(what, said) for (line, what), said in pairs if said != is_malformed(line)] == []


def is_malformed(line: bytes) -> bool:
    try:
        checked(parsed(line))
    except Malformed:
        return True
    return False


def test_every_check_has_a_twin_and_is_explained() -> None:
    names = [check.name for check in CHECKS]
    assert names == list(TWINS)
    explained = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
    assert [name for name in names if f"\n| `{name}`" not in explained] == []


def test_random_histories_break_every_promise() -> None:
    """A check that finds nothing in them was not compared with its twin."""
    runs = [RandomRun(seed).run for seed in range(BATCH)]
    found = [find_all(run.rows, run.truth, run.nodes) for run in runs]
    counts = {name: sum(bool(each[name]) for each in found) for name in found[0]}
    assert min(counts.values()) >= 5, counts
