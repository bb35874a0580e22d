"""Writes the generated parts of docs/: tables that stand between markers, made from the code.

What lives here: which table stands in which file. What must not: the tables' content.
`python scripts/generate_docs.py` writes them; tests/unit/test_docs.py fails when one is stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.catalogue import client_table, experiment_table
from chaos.faults.support import fault_table
from chaos.simulation.run import PLANTABLE
from cluster import config
from flotilla.protocol import ERRORS

ROOT: Final = Path(__file__).resolve().parents[1]
HUNT: Final = ROOT / "tests/simulation/planted.jsonl"  # of `flotilla-simulate --hunt all --json`


def error_table() -> str:
    """Return the table of errors as Markdown."""
    lines = ["| code | definite | a client then | meaning |", "|---|---|---|---|"]
    then = {
        "same": "sends the same again",
        "leader": "goes to the leader",
        "never": "gives up: the request has to change",
    }
    for row in ERRORS.values():
        definite = "yes" if row.definite else "**no**"
        lines.append(f"| `{row.code}` | {definite} | {then[row.retry]} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def bug_table() -> str:
    """Return the table of planted bugs as Markdown, with what the last whole hunt has measured."""
    hunts = {hunt["bug"]: hunt for hunt in map(json.loads, HUNT.read_text().splitlines())}
    lines = ["| bug | rule | meant to be seen by | within | first seen |", "|---|---|---|---|---|"]
    for bug in PLANTABLE.values():
        with_nodes = f", {bug.nodes} nodes" if bug.nodes else ""
        within = f"{bug.seeds_max} seeds, {bug.mode}{with_nodes}"
        hunt = hunts.get(bug.name, {"checks": []})
        seen = f"seed {hunt['seed']}: {_code(hunt['checks'])}" if hunt["checks"] else "**not yet**"
        row = (f"`{bug.name}`", bug.rule, _code(sorted(bug.caught_by)), within, seen)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# (file, name of the marker) -> what stands between `<!-- NAME: … -->` and `<!-- end -->`.
GENERATED: Final[Mapping[tuple[str, str], Callable[[], str]]] = {
    ("docs/protocol.md", "errors"): error_table,
    ("docs/configuration.md", "settings"): config.describe,
    ("docs/simulation.md", "bugs"): bug_table,
    ("docs/faults.md", "faults"): fault_table,
    ("docs/chaos.md", "experiments"): experiment_table,
    ("docs/chaos.md", "clients"): client_table,
}


def rendered(text: str, marker: str, content: str) -> str:
    """Return `text` with `content` between the markers. Raises ValueError if there are none."""
    pattern = rf"(<!-- {marker}:[^\n]*-->\n).*?(<!-- end -->)"
    new, count = re.subn(pattern, lambda m: m[1] + content + m[2], text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{count} places for {marker!r}, not one")
    return new


def main() -> None:
    """Write every generated part; say which files changed."""
    for (name, marker), content in GENERATED.items():
        file = ROOT / name
        old = file.read_text(encoding="utf-8")
        new = rendered(old, marker, content())
        if new != old:
            file.write_text(new, encoding="utf-8")
            print(f"{name}: {marker} written")


if __name__ == "__main__":
    main()
