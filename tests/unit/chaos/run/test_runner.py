"""What runner.py promises: phases in order, faults recorded and healed whatever happens."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from chaos.faults import FAULTS
from chaos.run import run_result
from chaos.run.client_pool import ClientPoolError
from chaos.run.run_result import Injection, RunResult
from chaos.spec import experiment
from chaos.targets import TargetError
from chaos.workloads.history import ProcessRecorder
from flotilla_client.recording import described
from tests.unit.fake_run import EXPERIMENT, RunStage


@pytest.fixture
def stage(tmp_path: Path) -> RunStage:
    return RunStage(tmp_path)


def test_a_run_goes_through_its_phases_in_the_documented_order(stage: RunStage) -> None:
    came_to = stage.run()
    assert came_to.finished
    phases = [event["phase"] for event in stage.events("phase")]
    windows = ["fault", "steady"] * 2
    assert phases == ["warmup", "steady", *windows, "heal", "tombstone", "drain", "done"]


def test_every_fault_is_recorded_done_and_healed_in_its_window(stage: RunStage) -> None:
    stage.run()
    everyone = ["n1", "n2", "n3"]
    assert stage.faults() == [
        ("kill-leader", "inject", ["n1"]),
        ("kill-leader", "heal", ["n1"]),
        ("kill-all", "inject", everyone),
        ("kill-all", "heal", everyone),
    ]
    done = [line for line in stage.log if line.startswith(("kill", "start"))]
    all_nodes = " ".join(everyone)
    expected = ["kill n1", "start n1", f"kill {all_nodes}", f"start {all_nodes}"]
    assert done == [*expected, f"start {all_nodes}"]  # the last one heals all, whatever is left


def test_tombstones_come_after_the_last_publisher_has_stopped_and_name_the_drain(
    stage: RunStage,
) -> None:
    stage.run()
    tail = stage.log[stage.log.index("dismiss publishers") :]
    assert tail == [
        "dismiss publishers",
        "phase tombstone",
        "put a",
        "put b",
        "phase drain",
        "drain {'a': 2, 'b': 3}",
        "dismiss subscribers",
        "phase done",
        "stop n2 n3 n1",
        "read n1 n2 n3",
        "close probe",
        "close clients",
        "down",
    ]


def test_a_fault_is_healed_and_all_is_taken_down_when_the_run_breaks_in_its_window(
    stage: RunStage,
) -> None:
    def break_in_the_window(polls: int) -> None:
        if stage.target.living and len(stage.target.living) < 3:
            raise ClientPoolError("publisher-1 ended with 1")

    stage.clients.on_poll = break_in_the_window
    came_to = stage.run()
    assert came_to.problems == ["ClientPoolError: publisher-1 ended with 1"]
    assert not came_to.finished
    assert stage.faults()[-1] == ("kill-leader", "heal", ["n1"])
    assert stage.log[-4:] == ["start n1", "close probe", "close clients", "down"]


def test_an_interrupt_heals_takes_down_and_goes_on_to_the_caller(stage: RunStage) -> None:
    def interrupt(polls: int) -> None:
        if "kill n1" in stage.log:
            raise KeyboardInterrupt

    stage.clients.on_poll = interrupt
    with pytest.raises(KeyboardInterrupt):
        stage.run()
    assert stage.log[-4:] == ["start n1", "close probe", "close clients", "down"]
    written = json.loads((stage.directory / "run.json").read_bytes())
    assert written["outcome"]["finished"] is False


def test_a_fault_that_half_happened_is_recorded_and_healed(stage: RunStage) -> None:
    def refuse(nodes: list[str]) -> None:
        raise TargetError("no such process")

    stage.target.kill = refuse  # type: ignore[method-assign]
    came_to = stage.run()
    assert came_to.problems == ["TargetError: no such process"]
    assert [action for _, action, _ in stage.faults()] == ["inject", "heal"]
    assert stage.log[-4] == "start n1"


def test_subscribers_that_do_not_drain_in_time_end_the_run_unfinished(stage: RunStage) -> None:
    stage.clients.drains = False
    came_to = stage.run()
    assert came_to.problems == ["RunError: subscriber-1 did not drain within 3 s"]
    assert stage.log[-1] == "down"


def test_a_tombstone_that_is_not_acknowledged_ends_the_run_before_the_drain(
    stage: RunStage,
) -> None:
    stage.unanswered = "b"
    assert stage.run().problems == ["RunError: the tombstone of b was not stored"]
    assert "phase drain" not in stage.log


def test_a_cluster_that_acknowledges_nothing_after_healing_ends_the_run_at_its_bound(
    stage: RunStage,
) -> None:
    stage.unanswered = "a"
    assert stage.run().problems == ["RunError: waited 3 s in vain for: an acknowledged probe"]


def test_a_target_that_does_not_come_up_is_taken_down_all_the_same(stage: RunStage) -> None:
    def refuse() -> None:
        raise TargetError("port taken")

    stage.target.up = refuse  # type: ignore[method-assign]
    assert stage.run().problems == ["TargetError: port taken"]
    assert stage.log == ["close clients", "down"]


def test_the_run_file_says_what_each_file_of_the_history_is_once_all_have_ended(
    stage: RunStage,
) -> None:
    seen: list[object] = []
    up = stage.target.up

    def looked_at() -> None:
        seen.append(json.loads((stage.directory / "run.json").read_bytes()).get("history"))
        up()

    stage.target.up = looked_at  # type: ignore[method-assign]
    with ProcessRecorder(stage.directory / "history", "publisher-1", "r") as recorder:
        recorder.invoke("put", "a", counter=1)
    stage.run()
    said = json.loads((stage.directory / "run.json").read_bytes())["history"]
    files = sorted((stage.directory / "history").iterdir())
    assert seen == [None]
    assert [file.name for file in files] == ["publisher-1.jsonl", "runner.jsonl"]
    assert said == {file.name: described(file) for file in files}


def test_the_run_file_tells_how_to_run_it_again(stage: RunStage) -> None:
    stage.run()
    written = json.loads((stage.directory / "run.json").read_bytes())
    assert (written["run_id"], written["seed"], written["target"]) == (stage.plan.run_id, 5, "fake")
    assert written["experiment"]["faults"][0]["name"] == "kill-leader"
    assert {"python", "orjson"} <= written["versions"].keys()
    assert written["outcome"]["finished"] is True


def test_the_same_seed_gives_clients_the_same_seeds_and_endpoints(tmp_path: Path) -> None:
    stages = [RunStage(tmp_path / name) for name in ("one", "two")]
    for one in stages:
        one.plan.directory.mkdir()
        one.run()
    first, second = (
        [(config.process, config.seed, config.endpoints) for config in one.clients.configs]
        for one in stages
    )
    assert first == second
    assert len({seed for _, seed, _ in first}) == 3


def test_a_gap_reaches_from_the_last_acknowledgment_before_to_the_first_after() -> None:
    injections = [Injection("f", ["n1"], 10_000_000), Injection("g", ["n2"], 50_000_000)]
    times_ns = [ms * 1_000_000 for ms in (8, 12, 30, 49, 52, 88, 91)]
    run_result.measure_gaps(injections, times_ns, 90_000_000)
    assert [injection.gap_ms for injection in injections] == [19.0, 36.0]


def test_a_run_measures_the_gap_of_each_of_its_faults_from_its_history(stage: RunStage) -> None:
    with ProcessRecorder(stage.directory / "history", "publisher-1", "r") as recorder:

        def acknowledge(polls: int) -> None:
            # Recorded times are real: a window has to be long beside a moment without a processor.
            time.sleep(0.002)
            recorder.complete(recorder.invoke("put", "a"), "ok", first_id=polls)

        stage.clients.on_poll = acknowledge
        came_to = stage.run()
    assert [injection.name for injection in came_to.injections] == ["kill-leader", "kill-all"]
    assert all(injection.gap_ms is not None for injection in came_to.injections)
    assert came_to.problems == []


def test_a_run_counts_what_its_history_acknowledges_the_probe_and_the_tombstones_among_it(
    stage: RunStage,
) -> None:
    came_to = stage.run()
    assert came_to.acknowledged == len(["probe", "tombstone of a", "tombstone of b"])
    written = [event for event in stage.events("put") if event["type"] == "ok"]
    assert came_to.acknowledged == len(written)


def test_expectations_that_are_not_met_are_told_with_their_numbers() -> None:
    parsed = experiment.parse(EXPERIMENT, "two", FAULTS)
    injections = [Injection("f", ["n1"], 0, 20_500.0), Injection("g", ["n1"], 0, None)]
    came_to = RunResult(injections=injections)
    assert run_result.unmet(parsed, came_to) == [
        "f: no acknowledgment for 20.5 s, 20 s are the most",
        "g: service did not come back before the next phase",
    ]


def test_too_few_successes_are_a_reason_to_call_the_run_unknown(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("acknowledged_per_s_min = 0", "acknowledged_per_s_min = 2.5")
    text = text.replace("acknowledged_min = 5", "acknowledged_min = 50")
    came_to = RunStage(tmp_path, text).run()
    assert came_to.finished
    [count, rate] = came_to.reasons
    assert count == "3 acknowledged, 50 are the least"
    assert rate.endswith("acknowledged a second, 2.5 are the least")
    assert set(came_to.reasons) <= set(came_to.problems)


def test_a_run_that_did_not_finish_is_called_unknown(stage: RunStage) -> None:
    stage.clients.drains = False
    stage.run()
    written = json.loads((stage.directory / "run.json").read_bytes())
    assert written["outcome"]["reasons"] == ["the run did not finish"]


# --- the ground truth -----------------------------------------------------------------------------


def test_nodes_that_do_not_come_to_rest_end_the_run_unfinished(stage: RunStage) -> None:
    stage.auditor.settles = False
    assert stage.run().problems == ["RunError: waited 3 s in vain for: nodes at one applied index"]
    assert "read n1 n2 n3" not in stage.log


def test_a_disk_that_cannot_be_read_ends_the_run_unfinished(stage: RunStage) -> None:
    stage.auditor.error = "the disk of n2 could not be read"
    came_to = stage.run()
    assert came_to.problems == ["TruthError: the disk of n2 could not be read"]
    assert not came_to.finished


def test_the_run_file_says_whose_disks_were_to_be_read(stage: RunStage) -> None:
    stage.run()
    written = json.loads((stage.directory / "run.json").read_bytes())
    assert written["truth"]["nodes"] == ["n1", "n2", "n3"]


def test_the_run_file_says_what_was_read_of_the_disks(stage: RunStage) -> None:
    stage.run()
    written = json.loads((stage.directory / "run.json").read_bytes())
    files = {path.name: described(path) for path in (stage.directory / "truth").iterdir()}
    assert sorted(files) == ["n1.jsonl", "n2.jsonl", "n3.jsonl"]
    assert written["truth"]["files"] == files


# --- faults of clients, and several at once -------------------------------------------------------

JOINT = """
about = "a leader and half the clients at once"
[workload]
topics = ["a"]
[[clients]]
kind = "publisher"
count = 2
[[clients]]
kind = "subscriber"
[[faults]]
name = "kill-leader"
also = ["client-crash"]
[expect]
acknowledged_min = 0
acknowledged_per_s_min = 0
"""


def test_faults_of_one_window_are_recorded_as_one_and_healed_in_the_reverse_order(
    tmp_path: Path,
) -> None:
    stage = RunStage(tmp_path, JOINT)
    came_to = stage.run()
    [injection] = came_to.injections
    assert injection.name == "kill-leader + client-crash"
    leader, *crashed = injection.targets
    assert leader == "n1"
    assert len(crashed) == 2
    done = [line for line in stage.log if line.startswith(("kill", "doom", "restart", "start"))]
    restarts = [f"restart {client}" for client in crashed]
    dooms = [f"doom {client}" for client in crashed]
    assert done[:-1] == ["kill n1", *dooms, *restarts, "start n1"]


def test_a_client_that_does_not_notice_its_twin_ends_the_run_unfinished(tmp_path: Path) -> None:
    text = JOINT.replace("kill-leader", "client-twin").replace('also = ["client-crash"]', "")
    came_to = RunStage(tmp_path, text + "[phases]\nhealth_s_max = 2\n").run()
    assert came_to.problems == ["RunError: waited 2 s in vain for: replaced clients' ends"]


# --- what is seen beside the history --------------------------------------------------------------


def test_a_node_that_ends_by_itself_makes_the_run_unknown_though_it_is_started_again(
    stage: RunStage,
) -> None:
    stage.target.ends = ["n2 ended by itself (exit code 1)"]
    came_to = stage.run()
    assert came_to.finished
    assert came_to.reasons[0] == "n2 ended by itself (exit code 1)"
    assert came_to.reasons[0] in came_to.problems


def test_a_publisher_that_cannot_empty_its_outbox_ends_the_run_unfinished(stage: RunStage) -> None:
    stage.clients.unflushed = ["publisher-2"]
    came_to = stage.run()
    assert not came_to.finished
    assert came_to.problems[0] == (
        "RunError: publisher-2 could not send what is left in the outbox"
    )
