"""The clients of a run, each a process of its own; `kinds.py` lists what kinds there are.

What lives here: what a client process is told at its start. What must not: the broker's side, and
anything that a client of the library could not do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from chaos.workloads.kinds import KINDS, Parameters, kind_of


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What one client process is told, as JSON in its argument.

    `directory` is the run's; the process keeps its state in `clients/<process>/` and its history
    in `history/<process>.jsonl` there. `parameters` are its kind's.
    """

    process: str
    run_id: str
    directory: str
    endpoints: tuple[str, ...]
    topics: tuple[str, ...]
    seed: int
    deadline_ms: int
    parameters: Parameters

    @property
    def kind(self) -> str:
        """The kind of client: the module of chaos.workloads that it runs."""
        return kind_of(self.parameters)

    @property
    def history(self) -> Path:
        """The directory of the run's history files."""
        return Path(self.directory) / "history"

    @property
    def state(self) -> Path:
        """The client's state directory."""
        return Path(self.directory) / "clients" / self.process

    def encode(self) -> str:
        """Return the configuration as JSON text."""
        return orjson.dumps(asdict(self) | {"kind": self.kind}).decode()


def decode_config(text: str) -> ClientConfig:
    """Return the configuration that `encode` wrote."""
    fields = orjson.loads(text)
    for name in ("endpoints", "topics"):
        fields[name] = tuple(fields[name])
    fields["parameters"] = KINDS[fields.pop("kind")](**fields["parameters"])
    return ClientConfig(**fields)
