"""The clients of a run: publishers and subscribers, each a process of its own.

What lives here: what a client process is told at its start. What must not: the broker's side, and
anything that a client of the library could not do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What one client process is told, as JSON in its argument.

    `directory` is the run's; the process keeps its state in `clients/<process>/` and its history
    in `history/<process>.jsonl` there. `rate_per_s` 0 = as fast as possible.
    """

    process: str
    run_id: str
    directory: str
    endpoints: tuple[str, ...]
    topics: tuple[str, ...]
    seed: int
    deadline_ms: int
    rate_per_s: float
    get_count_max: int
    get_wait_ms: int

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
        return orjson.dumps(asdict(self)).decode()


def decode_config(text: str) -> ClientConfig:
    """Return the configuration that `encode` wrote."""
    fields = orjson.loads(text)
    for name in ("endpoints", "topics"):
        fields[name] = tuple(fields[name])
    return ClientConfig(**fields)
