"""A run of the simulator as data: who takes part, and every fault with its time.

What lives here: the plan and its JSON form. What must not: how plans are drawn (swarm.py), and what
an action does (world.py). A run is a function of its plan and the code, nothing else; so a failing
run is shrunk by leaving out actions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

NODES_MAX: Final = 7  # more only make a run slower: a majority of seven is four
CLIENTS_MAX: Final = 10
SCHEDULE_MAX: Final = 10_000  # actions; a run of hours has some thousands
_NAMES: Final = "abcdefg"

Mode = Literal["safety", "live", "log"]


@dataclass(frozen=True, slots=True)
class Action:
    """Do `name` with `args` at `at_s` virtual seconds after the start; see `World.perform`."""

    at_s: float
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides a run. `knobs`: settings by name; see `world.KNOBS` for those of the world.

    `mode`: in `safety` the schedule may break anything at any time; in `live` a majority is healthy
    for good from some point on, and progress is due; in `log` the same things befall the log and
    its members again and again (log_plans.py), and the cluster is whole in between.
    """

    seed: int
    nodes: int = 3
    clients: int = 4
    duration_s: float = 60.0
    mode: Mode = "safety"
    knobs: Mapping[str, Any] = field(default_factory=dict)
    schedule: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        """Assert the bounds that every run keeps."""
        assert 1 <= self.nodes <= NODES_MAX, f"{self.nodes} nodes; 1 to {NODES_MAX}"
        assert 0 <= self.clients <= CLIENTS_MAX, f"{self.clients} clients; 0 to {CLIENTS_MAX}"
        assert self.duration_s > 0, f"a run of {self.duration_s} s"
        assert self.mode in get_args(Mode), self.mode
        assert len(self.schedule) <= SCHEDULE_MAX, f"{len(self.schedule)} actions"

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes' names, in order."""
        return tuple(_NAMES[: self.nodes])

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` has written. Raises ValueError, KeyError, TypeError."""
        fields = json.loads(text)
        actions = tuple(Action(**action) for action in fields.pop("schedule"))
        return cls(schedule=actions, **fields)
