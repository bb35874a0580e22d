"""Which target can do which fault: asked before a run starts, and shown to people.

What lives here: what faults need against what kinds of targets have. What must not: what a fault
does, and what a target does about it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection

from chaos.faults import FAULTS
from chaos.targets import POWERS, Equips, Target, UnsupportedFault
from chaos.targets.kinds import KINDS


def lacking(fault: str, kind: type) -> list[str]:
    """Return what a kind of target can't do that a fault needs, in words; none: it can do it."""
    return [POWERS[need] for need in FAULTS[fault].needs if not issubclass(kind, need)]


def able(fault: str) -> list[str]:
    """Return the names of the targets that can do a fault."""
    return [name for name, kind in KINDS.items() if not lacking(fault, kind)]


def missing(faults: Collection[str], target: str) -> list[str]:
    """Return those of the faults that the target `target` (a name) cannot do, sorted."""
    return sorted(fault for fault in faults if target not in able(fault))


def check(faults: Collection[str], target: str) -> None:
    """Raise UnsupportedFault for the first of the faults that the target `target` cannot do."""
    for fault in missing(faults, target):
        others = ", ".join(able(fault)) or "no target here"
        lacks = ", ".join(lacking(fault, KINDS[target]))
        raise UnsupportedFault(
            f"the target {target} cannot do {fault}: it can't {lacks}; {others} can"
        )


def prepare(target: Target, faults: Collection[str]) -> None:
    """Let the target get ready for these faults, before its `up`.

    Raises UnsupportedFault for what no such target does, TargetError for what this machine lacks.
    """
    check(faults, target.name)
    if isinstance(target, Equips):
        target.equip({need for fault in faults for need in FAULTS[fault].needs})


def fault_table() -> str:
    """Return the table of faults, and of who can do them, as Markdown."""
    lines = ["| fault | what it is | inject | heal | targets |", "|---|---|---|---|---|"]
    for name, fault in FAULTS.items():
        inject, heal = _first_sentence(fault.inject), _first_sentence(fault.heal)
        targets = ", ".join(able(name))
        lines.append(f"| `{name}` | {fault.about} | {inject} | {heal} | {targets} |")
    return "\n".join(lines) + "\n"


def _first_sentence(described: object) -> str:
    first = (inspect.getdoc(described) or "").partition("\n\n")[0]
    return " ".join(first.split())
