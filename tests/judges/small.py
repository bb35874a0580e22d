"""Small histories written against the specification: some deceive, some are legal and look strange.

What lives here: the register, how a scenario is read, and how a row is told in a word or two. What
must not: a judge. Both judges must find exactly what a scenario says (tests/twins/test_small.py,
tests/spark/test_checks.py). None of these is a kind of sabotage: they are combinations, edges, what
those kinds do not think of.

A scenario stands in a file *.txt beside this one: a line with its claim; its steps, indented, with
`;` between two of a line; and behind `->` what has to be found, if anything has. A step is a
function of steps.py, or a method of RunRecorder, and its arguments: `p3` is publication 3 of `p`
under id 3, `5:p3` the same under id 5; `$name` is what the step `name = …` returned; all else is a
word, or a literal of Python's without spaces (`none`, `true`, `false` in small letters).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.judges.steps import STEPS
from tests.spark.histories import RunRecorder

Build = Callable[[RunRecorder], set[str]]
SCENARIOS: Final = Path(__file__).parent
GROUPS: Final = {"group_order", "group_lease", "group_lost", "group_content", "dead_letter"}
KINDS_OF: Final = GROUPS | {  # checks whose rows are of several kinds, by the first word
    "lost",
    "stale_read",
    "cursor_regression",
    "subscription",
    "purge",
    "replica_divergence",
    "delayed",
    "properties",
}
GIVEN: Final = re.compile(r"(?:(\d+):)?([a-z])(\d+)")
NAME: Final = re.compile(r"[a-z_]+=")
WORDS: Final = {"none": None, "true": True, "false": False}


class SmallHistory:
    """A history in words."""

    def __init__(self, steps: list[str], found: set[str]) -> None:
        self.steps, self.found = steps, found

    def __call__(self, run: RunRecorder) -> set[str]:
        """Record it; return what has to be found."""
        results: dict[str, Any] = {}
        for step in self.steps:
            name, is_kept, call = step.rpartition(" = ")
            word, *arguments = call.split()
            plain = [value_of(one, results) for one in arguments if not NAME.match(one)]
            named = [one.split("=", 1) for one in arguments if NAME.match(one)]
            act = STEPS.get(word) or getattr(RunRecorder, word)
            result = act(run, *plain, **{key: value_of(one, results) for key, one in named})
            if is_kept:
                results[name] = result
        return self.found


def value_of(text: str, results: Mapping[str, Any]) -> Any:
    """Return the argument that a text stands for."""
    if text.startswith("$"):
        return results[text[1:]]
    if text in WORDS:
        return WORDS[text]
    if given := GIVEN.fullmatch(text):
        id_, producer, counter = given.groups()
        return int(id_ or counter), producer, int(counter)
    return ast.literal_eval(text) if text[0] in '-0123456789"[({' else text


def scenarios(path: Path) -> dict[str, SmallHistory]:
    """Return the scenarios of a file by their claims."""
    read: dict[str, SmallHistory] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not line.startswith(" "):
            name = text.replace(" ", "_")
            assert name not in read, f"{path}: {text}"
            read[name] = SmallHistory([], set())
        elif text.startswith("-> "):
            read[name].found |= set(text.removeprefix("-> ").split(", "))
        else:
            read[name].steps += text.split("; ")
    assert all(scenario.steps for scenario in read.values()), path
    return read


def _all() -> dict[str, Build]:
    found: dict[str, Build] = {}
    for path in sorted(SCENARIOS.glob("*.txt")):
        claims = scenarios(path)
        assert not found.keys() & claims, path
        found |= claims
    return found


SMALL: Final[dict[str, Build]] = _all()


def small(build: Build) -> Build:
    """Register a history; its name is the claim, and it returns what has to be found."""
    assert build.__name__ not in SMALL, build.__name__
    SMALL[build.__name__] = build
    return build


def told(found: Mapping[str, Iterable[Any]]) -> set[str]:
    """Return rows of evidence in words: the check, the kind of row, and its id or its counter."""
    words = set()
    for check, rows in found.items():
        for row in rows:
            kind = (row.detail or "").partition(" ")[0].rstrip(":")
            number = row.counter if row.id is None else row.id
            parts = [check, kind if check in KINDS_OF else "", number]
            words.add(" ".join(str(one) for one in parts if one not in ("", None)))
    return words
