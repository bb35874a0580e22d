"""A run's directory while it is made: rows in the order in which they were written, by anybody.

What lives here: the shape that docs/history.md gives a record, and its writing. What must not:
what a row means.
"""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

Row = dict[str, Any]
RAW = "raw"  # a row that is no event has only this beside its process: the bytes of its line
CAN = b"\x18\n"  # ends a torn line
DIGEST_BYTES = 16


@dataclass
class MadeHistory:
    """`rows`: of all processes, in real time's order. `files`: what is written beside them or in
    their place, by path. `open`: process -> how many of its lines run.json vouches for.
    """

    run_id: str
    document: Row = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    truth: dict[str, list[Row]] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    is_sealed: bool = True
    scenes: list[Any] = field(default_factory=list)  # of sabotage (scene.py)
    finished: set[str] = field(default_factory=set)  # topics whose rows no sabotage changes

    def copy(self) -> MadeHistory:
        """Return another one with the same in it."""
        return copy.deepcopy(self)

    @property
    def is_application(self) -> bool:
        """Whether an application recorded itself."""
        return self.document.get("recorded_by") == "application"

    def processes(self) -> list[str]:
        """Return who recorded, in the order of their first rows."""
        return list(dict.fromkeys(row["process"] for row in self.rows))

    def lines(self, process: str) -> list[bytes]:
        """Return what stands in a process's file."""
        return [
            row[RAW] if RAW in row else json.dumps(row, separators=(",", ":")).encode() + b"\n"
            for row in self.rows
            if row["process"] == process
        ]

    def write(self, directory: Path) -> None:
        """Write it as a new run's directory, in place of what is there."""
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "history").mkdir(parents=True)
        named = {}
        for process in self.processes():
            lines = self.lines(process)
            (directory / "history" / f"{process}.jsonl").write_bytes(b"".join(lines))
            is_closed = process not in self.open
            vouched = b"".join(lines[: self.open.get(process, len(lines))])
            named[f"{process}.jsonl"] = sealed(vouched, is_closed)
        document = {"run_id": self.run_id, **self.document}
        if self.is_sealed:
            document["history"] = named
        if self.truth:
            (directory / "truth").mkdir()
        files = {}
        for node, rows in self.truth.items():
            text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
            (directory / "truth" / f"{node}.jsonl").write_text(text)
            files[f"{node}.jsonl"] = sealed(text.encode())
        if self.is_sealed and isinstance(document.get("truth"), dict):
            document["truth"] = document["truth"] | {"files": files}
        (directory / "run.json").write_text(json.dumps(document, indent=1) + "\n")


def sealed(data: bytes, is_closed: bool = True) -> Row:
    """Return what run.json says of a file."""
    digest = blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
    return {
        "lines": data.count(b"\n"),
        "bytes": len(data),
        "blake2b": digest,
        "closed": is_closed,
    }


def digest(producer: str, topic: str, counter: int) -> str:
    """Return what an application's record says of a publication. Some are equal."""
    content = f"{producer} {topic} {counter}" if counter % 7 else "the same"
    return blake2b(content.encode(), digest_size=8).hexdigest()
