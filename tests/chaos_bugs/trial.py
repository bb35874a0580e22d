"""One run of an experiment in which every node, or every client, has a bug.

What lives here: a run with real processes, sabotaged ones among them. What must not: which bug is
tried how (cases.py), and what the checks say about the run (test_chaos_bugs.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from unittest import mock

from rich.console import Console

from chaos.faults import support
from chaos.run import client_pool, launch
from chaos.run.client_pool import ClientPool
from chaos.run.probe import open_probe
from chaos.run.run_result import RunResult
from chaos.run.runner import Runner
from chaos.run.truth import Disks
from chaos.targets.local import LocalTarget
from chaos.targets.namespaces import NamespacesTarget
from chaos.terminal.progress import display
from chaos.workloads import ClientConfig
from cluster.local.local import NODE_COMMAND

EXPERIMENTS: Final = Path(__file__).parent / "experiments"
TARGETS: Final = {"local": LocalTarget, "namespaces": NamespacesTarget}
SABOTAGED: Final = (sys.executable, "-m", "tests.chaos_bugs.sabotaged")

TargetName = Literal["local", "namespaces"]
Command = Callable[[ClientConfig], list[str]]


@dataclass(frozen=True)
class OwnEnd:
    """How a node ends by itself: its exit code, and what its log says last."""

    node: str
    exit_code: int
    words: str

    def is_seen(self, outcome: RunResult, directory: Path) -> bool:
        """Return whether this node ended so in that run, and no other node by itself."""
        ended = {one for one in outcome.problems if "ended by itself" in one}
        log = (directory / "cluster" / self.node / "node.log").read_text(encoding="utf-8")
        last = log.rstrip().rpartition("\n")[2]
        expected = f"{self.node} ended by itself (exit code {self.exit_code})"
        return ended == {expected} and self.words in last


@dataclass(frozen=True, kw_only=True)
class BugCase:
    """A bug, and how it is brought to light.

    `without`: the defences that are out as well, because they would end nodes before a check of the
    histories sees the bug (sharper.py). `experiment`: one of ours (a file below this directory) by
    name. `caught_by`: the checks that may see it, any one of them, with one of `seeds`, tried in
    turn; or the run itself does, and says `complaint`; or a node does, and ends as `ends` says.
    `sabotages`: whose processes have it. `settings`: of the nodes.
    """

    bug: str
    experiment: str
    without: tuple[str, ...] = ()
    caught_by: frozenset[str] = frozenset()
    complaint: str = ""
    ends: OwnEnd | None = None
    target: TargetName = "local"
    nodes: int = 3
    settings: Mapping[str, int] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1, 2, 3)
    sabotages: Literal["nodes", "clients"] = "nodes"


def carry_out(case: BugCase, seed: int, directory: Path, *, clean: bool = False) -> RunResult:
    """Run the case's experiment in `directory`; without the bug if it is to be `clean`."""
    name = str(EXPERIMENTS / f"{case.experiment}.toml")
    plan = launch.make_plan(name, 0.0, seed, directory)
    bugs = "" if clean else ",".join((case.bug, *case.without))
    of_nodes = bugs if case.sabotages == "nodes" else ""
    of_clients = bugs if case.sabotages == "clients" else ""
    command = sabotaged(NODE_COMMAND, of_nodes)
    target = TARGETS[case.target](directory / "cluster", case.nodes, command)
    support.prepare(target, launch.node_faults(plan.experiment))
    target._settings |= case.settings
    with (
        display(Console(stderr=True), plan.expected_s) as shown,
        mock.patch.object(client_pool, "client_command", _client_command(of_clients)),
    ):
        return Runner(plan, target, ClientPool(), open_probe(plan), Disks(), shown).run()


def sabotaged(command: Sequence[str], bugs: str) -> list[str]:
    """Return a command `python -m MODULE …` with the bugs in it; as it is without any."""
    if not bugs:
        return list(command)
    assert tuple(command[:2]) == (sys.executable, "-m"), command
    return [*SABOTAGED, bugs, *command[2:]]


def _client_command(bugs: str) -> Command:
    healthy = client_pool.client_command
    return lambda config: sabotaged(healthy(config), bugs)
