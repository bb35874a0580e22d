"""What chaos/experiment.py promises: slips of the pen are refused, a seed decides a schedule."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chaos import experiment, launch
from chaos.client_faults import CLIENT_FAULTS
from chaos.experiment import Experiment, ExperimentError
from chaos.faults import FAULTS
from chaos.workloads import kinds

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
        (LEAST.replace('["a", "b"]', "0"), "0 topics; from 1"),
        (LEAST.replace('["a", "b"]', '"a"'), "topics is 'a', it has to be a list of names"),
        (LEAST.replace("topics", "tropics"), r"unknown \['tropics'\]"),
        (LEAST.replace('"publisher"', '"poet"'), "kind is 'poet'; there are publisher"),
        (LEAST.replace('"subscriber"', '"visitor"'), "nobody reads \\['a', 'b'\\] all the time"),
        (LEAST + "count = 0\n", "0 subscribers; 1 to"),
        (LEAST + "rate_per_s = 5\n", r"subscriber: unknown \['rate_per_s'\]; known: \['get_count"),
        (LEAST + "pause_s = -1\n", "pause_s is -1, it has to be 0 or more"),
        (LEAST + "pause_s = inf\n", "pause_s is inf, it has to be 0 or more"),
        (LEAST + 'pause_s = "long"\n', "pause_s is 'long', it has to be of type float"),
        (LEAST + 'topics = ["c"]\n', "subscribers of topics that are none"),
        (LEAST + '[[clients]]\nkind = "publisher"\nhot_share = 2\n', "hot_share is 2"),
        (LEAST + '[[clients]]\nkind = "publisher"\nsize_bytes = 9_999_999\n', "from 0 to 1.04858e"),
        (LEAST + '[[faults]]\nname = "flood"\n', r"unknown faults \['flood'\]"),
        (LEAST + '[[faults]]\nname = "wipe"\nalso = ["flood"]\n', r"unknown faults \['flood'\]"),
        (LEAST + "[[faults]]\nhold_s = 1\n", "faults: it lacks name"),
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
        (LEAST.replace('"publisher"', '["publisher"]'), r"kind is \['publisher'\]; there are"),
        (LEAST.replace('"publisher"', "{ a = 1 }"), r"kind is {'a': 1}; there are publisher"),
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
        (("a", "a"), "workload: the topic 'a' is named twice"),
        (("a", ""), "no topic '': SUB needs a topic"),
        (("a\nb",), r"no topic 'a\\nb': a topic's name is printable"),
        (("a\u0085b",), "a topic's name is printable"),
        (("t" * 256,), "`topic` is over 255 bytes"),
        (("ü" * 128,), "`topic` is over 255 bytes"),
        (("t" * 3_000_000,), "header of 3000"),
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


def test_a_client_s_topics_are_named_once() -> None:
    with pytest.raises(ExperimentError, match="clients: subscriber: the topic 'a' is named twice"):
        parse(LEAST + 'topics = ["a", "b", "a"]\n')


FAULT = '[[faults]]\nname = "wipe"\n'


@pytest.mark.parametrize(
    "also", ['["wipe"]', '["kill-leader", "kill-leader"]', '["kill-leader", "wipe"]']
)
def test_a_fault_comes_once_in_a_window(also: str) -> None:
    with pytest.raises(ExperimentError, match="is named twice for one window"):
        parse(LEAST + FAULT + f"also = {also}\n")


DEADLINE = LEAST.replace("[workload]", "[workload]\ndeadline_ms = {}")


@pytest.mark.parametrize(
    ("text", "low", "most"),
    [
        (DEADLINE, 1, 600_000),
        (LEAST + "pause_s = {}\n", 0, 86_400),
        (LEAST + '[[clients]]\nkind = "visitor"\nstay_s = {}\n', 0, 86_400),
        (LEAST + '[[clients]]\nkind = "visitor"\naway_s = {}\n', 0, 86_400),
        (LEAST + FAULT + "hold_s = {}\n", 0, 86_400),
        (LEAST + FAULT + "quiet_s = {}\n", 0, 86_400),
        (LEAST + "[phases]\nsteady_s = {}\n", 0, 86_400),
        (LEAST + "[phases]\nwarmup_s_max = {}\n", 0, 86_400),
        (LEAST + "[phases]\nhealth_s_max = {}\n", 0, 86_400),
        (LEAST + "[phases]\ndrain_s_max = {}\n", 0, 86_400),
        (LEAST + "[expect]\nblackout_s_max = {}\n", 0, 86_400),
    ],
    ids=range(11),
)
def test_a_time_is_one_that_somebody_waits_for(text: str, low: int, most: int) -> None:
    for value in (low, most):
        parse(text.format(value))
    for value in (low - 1, most + 1):
        with pytest.raises(ExperimentError, match=rf"_m?s\w* is {value}, it has to be"):
            parse(text.format(value))


def test_a_rate_is_no_time() -> None:
    parse(LEAST.replace('"publisher"', '"publisher"\nrate_per_s = 100_000'))


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
    text = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text(encoding="utf-8")
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
