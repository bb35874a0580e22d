"""Where in the files a witness stands. Reads lines as text; knows nothing of what they prove."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from analytics.common.verdict import WitnessOperation

if TYPE_CHECKING:  # not at run time: it imports Spark, and the twins do without
    from analytics.common.storage import Place


def located(
    directory: Place, wanted: Iterable[WitnessOperation]
) -> Mapping[WitnessOperation, WitnessOperation]:
    """Return each of `wanted` with the lines of its events.

    Reads every file that is named once, to its end: line numbers are not in the Parquet files, so
    that reading can be split freely; looking up a few afterwards costs one pass, and only when
    something was found.
    """
    by_process: dict[str, dict[int, WitnessOperation]] = {}
    for operation in wanted:
        by_process.setdefault(operation.process, {})[operation.op_id] = operation
    found = {}
    for process, operations in by_process.items():
        path = directory / "history" / f"{process}.jsonl"
        lines = _lines(path, operations.keys())
        for op_id, operation in operations.items():
            places = tuple(f"history/{path.name}:{number}" for number in lines.get(op_id, ()))
            found[operation] = WitnessOperation(process, op_id, places)
    return found


def _lines(path: Place, op_ids: Iterable[int]) -> Mapping[int, list[int]]:
    """Return the numbers (from 1) of the lines of each operation; none if the file is not there."""
    wanted = {str(op_id).encode(): op_id for op_id in op_ids}
    found: dict[int, list[int]] = {}
    if not path.exists():  # a process may write under another name than its file's
        return found
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            # Parsing every line would take minutes where this takes seconds.
            if any(text in line for text in wanted):
                op_id = _op_id(line)
                if op_id in wanted.values():
                    found.setdefault(op_id, []).append(number)
    return found


def _op_id(line: bytes) -> int:
    try:
        return int(json.loads(line)["op_id"])
    except (ValueError, KeyError, TypeError):
        return -1  # a malformed line is counted elsewhere, and is nobody's witness
