"""What `run.json` says of a run, for people to read and to run again. Every field may be missing,
or be anything: a history is judged without it too. No Spark, no HTML here.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # not at run time: it imports Spark, and the index does without
    from analytics.common.storage import Place

LIST_SHOWN_MAX: Final = 12  # of a list's values: a run may have hundreds of topics

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """`name` and `about` of the experiment; `settings`, `versions`: names with values, as text.

    `truth`: of how many nodes it is known what stood on their disks at the end, with its words.
    `rerun`: the command that does the same again; None when run.json does not say enough.
    """

    name: str
    about: str
    target: str
    seed: str
    start: str
    nodes: tuple[str, ...]
    settings: Pairs
    versions: Pairs
    problems: tuple[str, ...]
    truth: tuple[str, str, str]
    rerun: str | None


def facts_of(directory: Place) -> ReportFacts:
    """Return what the run's `run.json` says; a file that says nothing gives empty facts.

    That it cannot be read is among the report's reasons already (analytics/judge/load.py).
    """
    run = _object(directory / "run.json")
    experiment = _table(run.get("experiment"))
    outcome = _table(run.get("outcome"))
    return ReportFacts(
        name=str(experiment.get("name") or directory.resolve().name),
        about=str(experiment.get("about") or ""),
        target=str(run.get("target") or ""),
        seed=str(run.get("seed", "")),
        start=str(run.get("start") or ""),
        nodes=tuple(str(node) for node in _list(run.get("nodes"))),
        settings=tuple(_flat(_settings(run, experiment))),
        versions=tuple(_flat(_table(run.get("versions")))),
        problems=tuple(str(one) for one in _list(outcome.get("problems"))),
        truth=_truth(directory, run),
        rerun=_rerun(run, experiment),
    )


def _object(path: Place) -> dict[str, Any]:
    try:
        return _table(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _truth(directory: Place, run: Mapping[str, Any]) -> tuple[str, str, str]:
    collected = len(list((directory / "truth").glob("*.jsonl")))
    if not collected:
        return "none", "truth of nodes", "their disks were not read"
    of = f"{collected} of {len(_list(run.get('nodes'))) or collected}"
    return of, "nodes' truth", "what stood on their disks at the end"


def _settings(run: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: run[name] for name in ("target", "nodes", "seed", "duration_s") if name in run}
    return own | {key: value for key, value in experiment.items() if key not in ("name", "about")}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
            for place, one in enumerate(value, start=1):
                yield from _flat(_table(one) or {"": one}, f"{name}[{place}].")
        else:
            yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        more = len(value) - LIST_SHOWN_MAX
        shown = ", ".join(map(str, value[:LIST_SHOWN_MAX])) or "none"
        return f"{shown} and {more} more" if more > 0 else shown
    return "none" if value is None else str(value)


def _rerun(run: Mapping[str, Any], experiment: Mapping[str, Any]) -> str | None:
    if not experiment.get("name") or "seed" not in run:
        return None
    words = ["flotilla-chaos", "run", str(experiment["name"])]
    if run.get("target"):
        words += ["--target", str(run["target"])]
    if nodes := _list(run.get("nodes")):
        words += ["--nodes", str(len(nodes))]
    if isinstance(seconds := run.get("duration_s"), int | float) and seconds:
        words += ["--duration", f"{seconds:g}"]
    return shlex.join([*words, "--seed", str(run["seed"])])
