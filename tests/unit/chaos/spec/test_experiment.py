"""What experiment.py promises: slips of the pen are refused, a seed decides a schedule."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from chaos.faults import FAULTS
from chaos.run import launch
from chaos.run.client_faults import CLIENT_FAULTS
from chaos.spec import experiment
from chaos.spec.bounds import BOUNDS
from chaos.spec.experiment import Experiment
from chaos.spec.reading import ExperimentError
from chaos.workloads import ClientConfig, kinds

KNOWN = {*FAULTS, *CLIENT_FAULTS}
LEAST = """
about = "x"
[workload]
topics = ["a", "b"]
[[clients]]
kind = "publisher"
[[clients]]
kind = "subscriber"
"""
TWO = """
[[faults]]
name = "kill-leader"
hold_s = 1
quiet_s = 1
[[faults]]
name = "kill-all"
also = ["client-crash"]
hold_s = 1
quiet_s = 1
"""


def parse(text: str) -> Experiment:
    return experiment.parse(text, "x", KNOWN)


# --- what is shipped ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", experiment.names())
def test_every_experiment_that_is_shipped_is_valid_and_says_what_it_is_after(name: str) -> None:
    loaded = launch.load(name)
    assert loaded.name == name
    assert len(loaded.about) > 30


def test_at_least_twenty_experiments_are_shipped_and_every_fault_is_in_one_of_them() -> None:
    loaded = [launch.load(name) for name in experiment.names()]
    assert len(loaded) >= 20
    assert {"none", "everything"} <= {one.name for one in loaded}
    assert {fault for one in loaded for fault in one.fault_names} == KNOWN


def test_every_kind_of_client_is_in_an_experiment() -> None:
    loaded = [launch.load(name) for name in experiment.names()]
    used = {group.kind for one in loaded for group in one.workload.groups}
    assert used == set(kinds.KINDS)


# --- reading --------------------------------------------------------------------------------------


def test_a_number_of_topics_stands_for_as_many_names() -> None:
    parsed = parse(LEAST.replace('["a", "b"]', "12"))
    assert len(set(parsed.workload.topics)) == 12


def test_clients_have_the_topics_they_are_given_else_all() -> None:
    text = LEAST.replace('kind = "subscriber"', 'kind = "subscriber"\ncount = 3\npause_s = 2')
    text += '[[clients]]\nkind = "visitor"\ntopics = ["b"]\n'
    workload = parse(text).workload
    assert [group.count for group in workload.groups] == [1, 3, 1]
    assert [workload.topics_of(group) for group in workload.groups] == [
        ("a", "b"),
        ("a", "b"),
        ("b",),
    ]
    assert workload.groups[1].parameters == kinds.Subscriber(pause_s=2)


def test_a_document_of_an_experiment_says_each_groups_kind() -> None:
    written = experiment.as_document(parse(LEAST))
    assert [group["kind"] for group in written["workload"]["groups"]] == ["publisher", "subscriber"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("about = 1 =", "Expected newline"),
        (LEAST.replace('about = "x"', 'about = " "'), "`about` has to say"),
        (LEAST.replace('about = "x"', "about = 7"), "about is 7, it has to be of type str"),
        (LEAST.replace('about = "x"', 'about = "x"\nname = "y"'), "its name is given as 'y'"),
        (LEAST.replace('["a", "b"]', '["a b"]'), "the topic 'a b' has a space in it"),
        (LEAST.replace('["a", "b"]', "[]"), "a topic, and a publisher for each"),
        (LEAST.replace('["a", "b"]', "0"), "topics is 0, it has to be from 1 to 1,000"),
        (LEAST.replace('["a", "b"]', '"a"'), "topics is 'a', it has to be a list of names"),
        (LEAST.replace('topics = ["a", "b"]', ""), "a topic, and a publisher for each"),
        (LEAST.replace('"publisher"', '"poet"'), r"\[\[clients\]\] 1: no kind 'poet'; there are"),
        (LEAST.replace('"subscriber"', '"visitor"'), "nobody reads \\['a', 'b'\\] all the time"),
        (LEAST + "[[clients]]\ncount = 1\n", r"\[\[clients\]\] 3: it lacks kind; there are pub"),
        (LEAST + 'pause_s = "long"\n', "pause_s is 'long', it has to be of type float"),
        (LEAST + 'topics = ["c"]\n', r"2 \(subscriber\): no topic 'c'; there are a, b"),
        (LEAST + '[[faults]]\nname = "flood"\n', r"x: \[\[faults\]\] 1: no fault 'flood'; there"),
        (LEAST + '[[faults]]\nname = "wipe"\nalso = ["flood"]\n', "1: no fault 'flood'; there"),
        (LEAST + "[[faults]]\nhold_s = 1\n", r"\[\[faults\]\] 1: it lacks name"),
        (LEAST + "[faults]\nhold_s = 1\n", r"\[\[faults\]\] has to be a list of tables"),
        (LEAST + "[phases]\nsteady_s = true\n", "steady_s is True, it has to be of type float"),
    ],
)
def test_an_experiment_with_a_slip_of_the_pen_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ExperimentError, match=complaint):
        parse(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (LEAST.replace('"publisher"', '["publisher"]'), r"no kind \['publisher'\]; there are"),
        (LEAST.replace('"publisher"', "{ a = 1 }"), "no kind {'a': 1}; there are publisher"),
        (LEAST + "pause_s = " + "[" * 5_000 + "]" * 5_000, "nested too deeply"),
        (LEAST + "pause_s = " + "{ b = " * 3_000 + "1" + "}" * 3_000, "nested too deeply"),
        (LEAST + "pause_s." + "b." * 3_000 + "b = 1", "nested too deeply"),
        (LEAST + "pause_s = " + "[" * 9 + "]" * 9, "nested too deeply"),
        (LEAST + "count = " + "9" * 5_000, "a number has too many digits"),
        (LEAST + "count = 0x" + "f" * 5_000, "a whole number is beyond 9007199254740991"),
        (LEAST + f"get_count_max = {2**53}", "a whole number is beyond 9007199254740991"),
        (LEAST + f"topics = [{-(2**53)}]", "a whole number is beyond 9007199254740991"),
    ],
    ids=range(10),
)
def test_what_no_parser_or_message_can_hold_is_refused_in_a_sentence(
    text: str, complaint: str
) -> None:
    with pytest.raises(ExperimentError, match=complaint) as refused:
        parse(text)
    assert len(str(refused.value)) < 200


def with_topics(*topics: str) -> str:
    return LEAST.replace('["a", "b"]', json.dumps(topics))


@pytest.mark.parametrize(
    ("topics", "complaint"),
    [
        (("a", "a"), r"\[workload\]: the topic 'a' is named twice"),
        (("a", ""), "no topic '': SUB needs a topic"),
        (("a\nb",), r"no topic 'a\\nb': a topic's name is printable"),
        (("a\u0085b",), "a topic's name is printable"),
        (("t" * 256,), "`topic` is over 255 bytes"),
        (("ü" * 128,), "`topic` is over 255 bytes"),
        (("t" * 3_000_000,), "topics of 3,000,000 bytes together; 60,000 are the most"),
        (tuple(f"t{number}" for number in range(1_001)), "1001 topics; at most 1000"),
    ],
    ids=range(8),
)
def test_topics_are_what_a_node_accepts_and_each_is_named_once(
    topics: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ExperimentError, match=complaint) as refused:
        parse(with_topics(*topics))
    assert len(str(refused.value)) < 200


def test_the_longest_topic_and_the_most_topics_are_accepted() -> None:
    assert parse(with_topics("ü" * 127 + "t")).workload.topics == ("ü" * 127 + "t",)
    assert len(parse(with_topics(*map(str, range(1_000)))).workload.topics) == 1_000


def test_the_topics_of_a_client_go_into_one_argument_of_its_process() -> None:
    topics = tuple(f"{number:03}".ljust(60, '"') for number in range(1_000))  # JSON's worst case
    workload = parse(with_topics(*topics)).workload
    config = ClientConfig(
        process="publisher-100",
        run_id="r" * 36,
        directory="/" + "d" * 4_000,
        endpoints=("tcp://10.213.255.255:65535",) * 7,
        topics=workload.topics,
        seed=2**32,
        deadline_ms=1,
        parameters=workload.groups[0].parameters,
    )
    assert subprocess.run(["true", config.encode()], check=True).returncode == 0
    with pytest.raises(ExperimentError, match="60,060 bytes together"):
        parse(with_topics(*topics[:-1], *("x" * 120,)))


def test_a_client_s_topics_are_named_once() -> None:
    with pytest.raises(ExperimentError, match=r"2 \(subscriber\): the topic 'a' is named"):
        parse(LEAST + 'topics = ["a", "b", "a"]\n')


FAULT = '[[faults]]\nname = "wipe"\n'


@pytest.mark.parametrize(
    "also", ['["wipe"]', '["kill-leader", "kill-leader"]', '["kill-leader", "wipe"]']
)
def test_a_fault_comes_once_in_a_window(also: str) -> None:
    with pytest.raises(ExperimentError, match="is named twice for one window"):
        parse(LEAST + FAULT + f"also = {also}\n")


# --- names ----------------------------------------------------------------------------------------

IN_THE_WORKLOAD = LEAST.replace("[workload]", "[workload]\n{}")
AT_THE_TOP = "{}\n" + LEAST


@pytest.mark.parametrize(
    ("text", "key", "complaint"),
    [
        (AT_THE_TOP, "shuffle", "x: no key 'shuffle': did you mean 'shuffled'? There are about,"),
        (AT_THE_TOP, "groups", "x: no key 'groups'; there are about, clients, expect, faults, n"),
        (IN_THE_WORKLOAD, "groups", "x: [workload]: no key 'groups'; there are deadline_ms, top"),
        (IN_THE_WORKLOAD, "topic", "x: [workload]: no key 'topic': did you mean 'topics'? The"),
        (LEAST + "{}", "rate_per_s", "x: [[clients]] 2 (subscriber): no key 'rate_per_s'; the"),
        (LEAST + "{}", "parameters", "x: [[clients]] 2 (subscriber): no key 'parameters'; the"),
        (LEAST + "{}", "puase_s", "no key 'puase_s': did you mean 'pause_s'? There are count, "),
        (LEAST + FAULT + FAULT + "{}", "hold", "x: [[faults]] 2: no key 'hold': did you mean 'h"),
        (LEAST + "[phases]\n{}", "quiet_s", "x: [phases]: no key 'quiet_s'"),
        (LEAST + "[expect]\n{}", "acknowledged", "x: [expect]: no key 'acknowledged': did you"),
    ],
    ids=range(10),
)
def test_a_key_that_nobody_reads_is_refused_with_its_place_and_what_was_probably_meant(
    text: str, key: str, complaint: str
) -> None:
    with pytest.raises(ExperimentError, match=re.escape(complaint)):
        parse(text.format(f"{key} = 1"))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (LEAST.replace("publisher", "publsher"), "no kind 'publsher': did you mean 'publisher'?"),
        (LEAST + FAULT.replace("wipe", "kill-leadr"), "no fault 'kill-leadr': did you mean 'kill"),
        (LEAST + FAULT + 'also = ["slow-link"]', "no fault 'slow-link': did you mean 'slow-links"),
        (with_topics("alpha", "beta") + 'topics = ["alfa"]', "'alfa': did you mean 'alpha'? There"),
    ],
    ids=range(4),
)
def test_a_name_that_there_is_not_is_told_which_one_was_probably_meant(
    text: str, meant: str
) -> None:
    with pytest.raises(ExperimentError, match=re.escape(meant)):
        parse(text)


def test_of_very_many_names_a_complaint_shows_some() -> None:
    with pytest.raises(ExperimentError, match=r"no topic 'none'; there .* and 940 more") as refused:
        parse(with_topics(*map(str, range(1_000))) + 'topics = ["none"]')
    assert len(str(refused.value)) < 500


# --- numbers --------------------------------------------------------------------------------------

PUBLISHER = LEAST + '[[clients]]\nkind = "publisher"\n{} = {}\n'
PIPELINER = LEAST + '[[clients]]\nkind = "pipeliner"\n{} = {}\n'
VISITOR = LEAST + '[[clients]]\nkind = "visitor"\n{} = {}\n'
TAKER = VISITOR.replace('"visitor"', '"taker"')
PHASES = LEAST + "[phases]\n{} = {}\n"
EXPECT = LEAST + "[expect]\n{} = {}\n"
NUMBERS = [
    (LEAST.replace('topics = ["a", "b"]', "{} = {}"), "topics", 1, 1_000),
    (LEAST.replace("[workload]", "[workload]\n{} = {}"), "deadline_ms", 1, 600_000),
    (VISITOR, "count", 1, 98),  # two are there already
    (PUBLISHER, "rate_per_s", 0, 1_000_000),
    (PUBLISHER, "hot_share", 0, 1),
    (PUBLISHER, "size_bytes", 0, 1_048_576),
    (PUBLISHER, "batch_count", 1, 65_536),
    (PIPELINER, "burst_count", 1, 10_000),
    (PIPELINER, "batch_bytes", 1, 1_048_576),
    (PIPELINER, "in_flight_max", 1, 999),
    (VISITOR, "get_count_max", 1, 65_536),
    (VISITOR, "get_wait_ms", 0, 60_000),
    (VISITOR, "pause_s", 0, 86_400),
    (VISITOR, "stay_s", 0, 86_400),
    (VISITOR, "away_s", 0, 86_400),
    (TAKER, "take_count_max", 1, 4_096),
    (TAKER, "lease_s", 0.1, 43_200),
    (TAKER, "stall_share", 0, 1),
    (TAKER, "nak_share", 0, 1),
    (TAKER, "extend_share", 0, 1),
    (TAKER, "attempts_max", 1, 10_000),
    (LEAST + FAULT + "{} = {}\n", "hold_s", 0, 86_400),
    (LEAST + FAULT + "{} = {}\n", "quiet_s", 0, 86_400),
    (PHASES, "warmup_acknowledged", 0, 1_000_000_000),
    (PHASES, "warmup_s_max", 0, 86_400),
    (PHASES, "steady_s", 0, 86_400),
    (PHASES, "health_s_max", 0, 86_400),
    (PHASES, "drain_s_max", 0, 86_400),
    (EXPECT, "acknowledged_min", 0, 1_000_000_000),
    (EXPECT, "acknowledged_per_s_min", 0, 1_000_000),
    (EXPECT, "blackout_s_max", 0, 86_400),
]


@pytest.mark.parametrize(("text", "key", "low", "most"), NUMBERS, ids=[row[1] for row in NUMBERS])
def test_every_number_has_bounds_and_a_complaint_names_them(
    text: str, key: str, low: float, most: float
) -> None:
    for value in (low, most):
        parse(text.format(key, value))
    for strange in (low - 1, most + 1, "1e300", "inf", "-inf", "nan", 2**53 - 1):
        with pytest.raises(
            ExperimentError, match=r"from [\d.]+ to [\d,]+|of type int|names|in all"
        ):
            parse(text.format(key, strange))


def test_no_number_of_an_experiment_is_without_bounds() -> None:
    tables = (experiment.Group, experiment.FaultPlan, experiment.Phases, experiment.Expect)
    numbers = {
        field.name
        for table in (experiment.Workload, *tables, *kinds.KINDS.values())
        for field in fields(table)
        if field.type in ("int", "float")
    }
    assert numbers | {"topics"} == set(BOUNDS)
    assert {key for _, key, _, _ in NUMBERS} == set(BOUNDS)


@pytest.mark.parametrize("kind", kinds.KINDS.values())
def test_the_defaults_of_every_kind_of_client_are_within_bounds(
    kind: type[kinds.Parameters],
) -> None:
    assert all(BOUNDS[field.name].admits(field.default) for field in fields(kind))


@pytest.mark.parametrize("rate", ["0.0009", "1e-300", "5e-324", "-0.001"])
def test_a_rate_is_none_at_all_or_one_that_a_run_sees_something_of(rate: str) -> None:
    parse(PUBLISHER.format("rate_per_s", "0.001"))
    with pytest.raises(ExperimentError, match=r"has to be 0, or from 0\.001 to 1,000,000"):
        parse(PUBLISHER.format("rate_per_s", rate))


def test_numbers_that_are_small_each_may_not_be_too_much_together() -> None:
    large = "size_bytes = 1_048_576\n"
    parse(PUBLISHER.format("batch_count", 64) + large)
    with pytest.raises(ExperimentError, match="65 publications of 1,048,576 bytes at once"):
        parse(PUBLISHER.format("batch_count", 65) + large)
    parse(PIPELINER.format("burst_count", 32) + large)
    with pytest.raises(ExperimentError, match=r"\(pipeliner\): 66 publications of"):
        parse(PIPELINER.format("burst_count", 33) + large)  # of each of two topics
    with pytest.raises(ExperimentError, match="102 clients in all; 100 are the most"):
        parse(VISITOR.format("count", 100))


def test_more_windows_than_a_run_has_are_refused() -> None:
    parse(LEAST + FAULT * 3)
    with pytest.raises(ExperimentError, match=r"10001 \[\[faults\]\]; 10000 are the most"):
        parse(LEAST + FAULT * 10_001)


def test_an_experiment_of_ones_own_is_a_path(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    with pytest.raises(ExperimentError, match="No such file"):
        launch.load(str(mine))
    mine.write_text(LEAST + TWO)
    assert launch.load(str(mine)).name == "mine"
    assert launch.load(str(mine)).fault_names == ["client-crash", "kill-all", "kill-leader"]
    mine.write_bytes(b"\xff")
    with pytest.raises(ExperimentError, match="can't decode"):
        launch.load(str(mine))


def test_the_example_in_the_documentation_is_accepted() -> None:
    text = (Path(__file__).parents[4] / "docs" / "chaos.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    parsed = parse(example)
    assert [group.count for group in parsed.workload.groups] == [2, 1, 1]
    assert parsed.fault_names == ["client-crash", "kill-leader"]
    defaults = (experiment.Phases(), experiment.Expect())
    assert (parsed.phases, parsed.expect) == defaults


# --- planning -------------------------------------------------------------------------------------


def test_each_fault_comes_once_and_then_again_while_the_duration_lasts() -> None:
    parsed = parse(LEAST + TWO)
    windows = experiment.schedule(parsed, 0, 1)
    assert [window.faults for window in windows] == [("kill-leader",), ("kill-all", "client-crash")]
    long = experiment.schedule(parsed, 100, 1)
    assert 100 - 5 < sum(w.hold_s + w.quiet_s for w in long) <= 100
    assert long == experiment.schedule(parsed, 100, 1)
    assert long != experiment.schedule(parsed, 100, 2)


def test_a_shuffled_experiment_has_its_faults_in_an_order_of_the_seed() -> None:
    parsed = parse(LEAST.replace("[workload]", "shuffled = true\n[workload]", 1) + TWO)
    orders = {
        tuple(window.faults for window in experiment.schedule(parsed, 0, seed))
        for seed in range(20)
    }
    assert len(orders) == 2


def test_an_experiment_runs_where_all_its_faults_of_nodes_can_be_done() -> None:
    assert "local" in launch.able(launch.load("client-crash-and-kill"))
    assert "local" not in launch.able(launch.load("isolate-leader"))
