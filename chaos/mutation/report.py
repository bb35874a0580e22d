"""What a run has found, for people (Markdown) and programs (JSON).

What lives here: the two texts. What must not: running anything.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from chaos.mutation.ledger import EQUIVALENT, KILLED, SURVIVED, MutantResult
from chaos.mutation.mutants import Mutant

Results = Mapping[str, MutantResult]


def counted(results: Results) -> dict[str, int]:
    """Return how many mutants met which end, the stage that killed them included."""
    ends: Counter[str] = Counter()
    for result in results.values():
        ends[f"{KILLED} by {result.by}" if result.by else result.verdict] += 1
    return dict(sorted(ends.items()))


def sentence(mutants: Sequence[Mutant], results: Results) -> str:
    """Return the whole in one line."""
    ends = ", ".join(f"{count} {end}" for end, count in counted(results).items())
    missing = len(mutants) - len(results)
    return f"{len(mutants)} mutants: {ends or 'none was run'}" + (
        f", {missing} not run" if missing else ""
    )


def end_of(result: MutantResult) -> str:
    """Return who noticed a mutant, or that nobody did, in a few words."""
    if result.verdict == KILLED:
        seed = "" if result.seed is None else f", seed {result.seed}"
        return f"{result.by}: {result.what}{seed}"
    if result.verdict == EQUIVALENT:
        return result.verdict
    tests = "and the nearest tests" if result.tests else "no test was run"
    return f"{result.verdict} {result.seeds} seeds, {tests}"


def as_json(mutants: Sequence[Mutant], results: Results) -> str:
    """Return a document with every mutant and its result (null: not run)."""
    rows: list[dict[str, Any]] = []
    for mutant in mutants:
        result = results.get(mutant.name)
        row = asdict(mutant) | {"result": None if result is None else asdict(result)}
        rows.append(row)
    document = {"summary": counted(results), "mutants": rows}
    return json.dumps(document, indent=1) + "\n"


def as_markdown(mutants: Sequence[Mutant], results: Results) -> str:
    """Return a page: the survivors first, as they are what is to be done."""
    lines = ["# Mutants", "", sentence(mutants, results) + ".", ""]
    survivors = [each for each in mutants if _verdict(results, each) == SURVIVED]
    if survivors:
        lines += ["## Nobody noticed", ""]
        for mutant in survivors:
            lines += [*_described(mutant), f"  {end_of(results[mutant.name])}", ""]
    lines += ["## All", "", "| mutant | file | end |", "|---|---|---|"]
    for mutant in mutants:
        result = results.get(mutant.name)
        end = "not run" if result is None else end_of(result)
        lines.append(f"| `{mutant.name}` | `{mutant.file}` | {_cell(end)} |")
    equivalents = [each for each in mutants if _verdict(results, each) == EQUIVALENT]
    if equivalents:
        lines += ["", "## Equivalent", ""]
        lines += [f"- `{each.name}`: {results[each.name].detail}" for each in equivalents]
    return "\n".join(lines) + "\n"


def _verdict(results: Results, mutant: Mutant) -> str:
    result = results.get(mutant.name)
    return "" if result is None else result.verdict


def _described(mutant: Mutant) -> list[str]:
    lines = [f"- `{mutant.name}` (`{mutant.file}`)"]
    if mutant.breaks:
        lines += [f"  breaks: {mutant.breaks}", f"  when: {mutant.when}"]
    change = [f"- {line}" for line in mutant.old.strip("\n").splitlines()]
    change += [f"+ {line}" for line in mutant.new.strip("\n").splitlines()]
    return [*lines, "", "  ```diff", *(f"  {line}" for line in change), "  ```", ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
