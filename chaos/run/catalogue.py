"""The experiments and the kinds of clients as tables of docs/chaos.md.

What lives here: Markdown made from what there is. What must not: anything that a run needs.
"""

from __future__ import annotations

import inspect
from dataclasses import fields

from chaos.run import launch
from chaos.spec import experiment as experiments
from chaos.spec.bounds import BOUNDS
from chaos.spec.experiment import Experiment
from chaos.workloads.kinds import KINDS


def experiment_table() -> str:
    """Return the experiments, what they inject, and the targets that can do them."""
    lines = ["| experiment | what it is after | faults | targets |", "|---|---|---|---|"]
    for name in experiments.names():
        loaded = launch.load(name)
        able = ", ".join(launch.able(loaded))
        lines.append(f"| `{name}` | {loaded.about} | {_faults(loaded)} | {able} |")
    return "\n".join(lines) + "\n"


def client_table() -> str:
    """Return the kinds of clients, and what can be set for each."""
    lines = ["| kind | what it does | keys, defaults, bounds |", "|---|---|---|"]
    for name, kind in KINDS.items():
        about, _, rest = (inspect.getdoc(kind) or "").partition("\n\n")
        keys = ", ".join(
            f"`{field.name}` {field.default:g} ({BOUNDS[field.name]})" for field in fields(kind)
        )
        lines.append(f"| `{name}` | {_joined(f'{about} {rest}')} | {keys} |")
    return "\n".join(lines) + "\n"


def _faults(loaded: Experiment) -> str:
    windows = (" + ".join(plan.names) for plan in loaded.faults)
    return ", ".join(dict.fromkeys(windows)) or "none"


def _joined(text: str) -> str:
    return " ".join(text.split())
