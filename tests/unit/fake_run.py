"""What a runner works with, faked: target, clients, probe, auditor, and a stage for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.faults import FAULTS
from chaos.run.client_faults import CLIENT_FAULTS
from chaos.run.plan import RunPlan
from chaos.run.run_result import RunResult
from chaos.run.runner import Runner
from chaos.run.truth import TruthError
from chaos.spec import experiment
from chaos.targets import Remains
from chaos.workloads import ClientConfig
from chaos.workloads.history import ProcessRecorder, read

EXPERIMENT = """
about = "two faults"
[workload]
topics = ["a", "b"]
[[clients]]
kind = "publisher"
count = 2
[[clients]]
kind = "subscriber"
[[faults]]
name = "kill-leader"
hold_s = 1
quiet_s = 1
[[faults]]
name = "kill-all"
hold_s = 1
quiet_s = 1
[phases]
warmup_acknowledged = 5
health_s_max = 3
drain_s_max = 3
[expect]
acknowledged_min = 5
acknowledged_per_s_min = 0
"""


class EventLog(list[str]):
    """What happened to the target and the clients, in order."""


class FakeTarget:
    """A cluster that is a set of names; the first living node leads."""

    name = "fake"
    nodes = ("n1", "n2", "n3")

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.living: set[str] = set()
        self.ends: list[str] = []

    def up(self) -> None:
        self.log.append("up")
        self.living = set(self.nodes)

    def endpoints(self) -> dict[str, str]:
        return {node: f"tcp://{node}" for node in self.nodes}

    def leader(self) -> str | None:
        return min(self.living) if len(self.living) > 1 else None

    def kill(self, nodes: list[str]) -> None:
        self.log.append(f"kill {' '.join(nodes)}")
        self.living -= set(nodes)

    def start(self, nodes: list[str]) -> None:
        self.log.append(f"start {' '.join(nodes)}")
        self.living |= set(nodes)

    def stop(self, nodes: list[str]) -> None:
        self.log.append(f"stop {' '.join(nodes)}")
        self.living -= set(nodes)

    def ended(self) -> list[str]:
        ends, self.ends = self.ends, []
        return ends

    def remains(self, directory: Path) -> dict[str, Remains]:
        return {node: Remains(directory / node, directory / f"{node}.log") for node in self.nodes}

    def down(self) -> None:
        self.log.append("down")
        self.living = set()


@dataclass
class FakeClients:
    """Clients whose time passes only in `poll`; each 0.1 s acknowledges one publication."""

    log: EventLog
    now_s: float = 0.0
    polls: int = 0
    drains: bool = True
    replaced: list[str] = field(default_factory=list)
    unflushed: list[str] = field(default_factory=list)
    on_poll: Callable[[int], None] = lambda polls: None
    configs: list[ClientConfig] = field(default_factory=list)

    def monotonic_s(self) -> float:
        return self.now_s

    def start(self, configs: list[ClientConfig]) -> None:
        self.configs += configs

    def poll(self, wait_s: float) -> None:
        self.now_s += max(wait_s, 0.001)
        self.polls += 1
        self.on_poll(self.polls)

    def lacking(self, report: str, role: str = "") -> list[str]:
        return [] if self.drains or report != "drained" else ["subscriber-1"]

    def reporting(self, report: str) -> list[str]:
        return self.unflushed if report == "unflushed" else []

    def count(self, name: str) -> int:
        return self.polls

    def order(self, order: str, role: str = "", **fields: Any) -> None:
        self.log.append(" ".join(str(part) for part in (order, *fields.values())))

    def dismiss(self, role: str = "") -> list[str]:
        self.log.append(f"dismiss {role}s")
        return []

    def close(self) -> None:
        self.log.append("close clients")

    def clients(self) -> list[str]:
        return [config.process for config in self.configs]

    def doom(self, name: str, point: str, passes: int) -> None:
        self.log.append(f"doom {name}")

    def restart(self, name: str) -> None:
        self.log.append(f"restart {name}")

    def double(self, name: str) -> str:
        self.log.append(f"double {name}")
        self.replaced = [name]
        return f"{name}-twin1"

    def unfenced(self) -> list[str]:
        return self.replaced


class FakeProbe:
    """A publisher whose publications get the ids 1, 2, …, or no answer while there is no leader.

    `unanswered` names topics that never get one.
    """

    def __init__(self, target: FakeTarget, recorder: ProcessRecorder, unanswered: str = "") -> None:
        self.unanswered = unanswered
        self.target = target
        self.recorder = recorder
        self.last_id = 0

    def put(self, topic: str) -> int | None:
        op_id = self.recorder.invoke("put", topic)
        if self.target.leader() is None or topic in self.unanswered:
            self.recorder.complete(op_id, "info")
            return None
        self.last_id += 1
        self.target.log.append(f"put {topic}")
        self.recorder.complete(op_id, "ok", first_id=self.last_id)
        return self.last_id

    def close(self) -> None:
        self.target.log.append("close probe")


@dataclass
class FakeAuditor:
    """Disks that are read, or not; nodes that come to rest, or never."""

    log: EventLog
    settles: bool = True
    error: str = ""

    def is_settled(self, endpoints: Mapping[str, str]) -> bool:
        return self.settles

    def collect(self, run_id: str, remains: Mapping[str, Remains], directory: Path) -> None:
        self.log.append(f"read {' '.join(remains)}")
        if self.error:
            raise TruthError(self.error)
        (directory / "truth").mkdir()
        for node in remains:
            (directory / "truth" / f"{node}.jsonl").write_text(f"what {node} has left\n")


class Quiet:
    """A display that nobody looks at."""

    def stage(self, title: str, expected_s: float) -> None: ...
    def tick(self, status: str) -> None: ...
    def say(self, line: str) -> None: ...


class RunStage:
    """A runner on fakes, and what they saw."""

    def __init__(self, directory: Path, text: str = EXPERIMENT) -> None:
        parsed = experiment.parse(text, "two", {*FAULTS, *CLIENT_FAULTS})
        self.directory = directory
        self.plan = RunPlan(experiment=parsed, seed=5, duration_s=0, directory=directory)
        self.log = EventLog()
        self.target = FakeTarget(self.log)
        self.clients = FakeClients(self.log)
        self.auditor = FakeAuditor(self.log)
        self.unanswered = ""

    def run(self) -> RunResult:
        return Runner(
            self.plan,
            self.target,
            self.clients,
            lambda endpoints, recorder: FakeProbe(self.target, recorder, self.unanswered),
            self.auditor,
            Quiet(),
            self.clients.monotonic_s,
        ).run()

    def events(self, f: str) -> list[dict[str, Any]]:
        path = self.directory / "history" / "runner.jsonl"
        return [event for event in read(path) if event["f"] == f]

    def faults(self) -> list[tuple[str, str, list[str]]]:
        details = [json.loads(event["error"]) for event in self.events("fault")]
        return [(detail["name"], detail["action"], detail["targets"]) for detail in details]
