"""Mutants: one change of one file each, told by exact text.

What lives here: reading the files of mutants that were written by hand (docs/mutation.md has their
form), and of those that are equivalent; applying one to a source. What must not: operators that
make mutants (operators.py), files of the tree (they are read, never written).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

BY_HAND: Final = "hand"
_FILE: Final = re.compile(r"\[(.+)\]")
_HEAD: Final = re.compile(r"@ (\S+): (.+)\nwhen (.+)\n((?:[ +-].*\n)+)")


class MutationError(Exception):
    """What the runner was given can't be used as it is; nothing was run."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of `file` (a path in the tree): `old`, which begins at `at`, becomes `new`.

    `origin`: BY_HAND or an operator's name. Of those by hand `breaks` says which promise it breaks
    and `when` in which situation.
    """

    name: str
    file: str
    at: int
    old: str
    new: str
    origin: str = BY_HAND
    breaks: str = ""
    when: str = ""

    def applied(self, source: str) -> str:
        """Return the mutated source. Raises MutationError if `old` is not where it was."""
        if not source.startswith(self.old, self.at):
            raise MutationError(f"{self.name}: {self.file} is not what it was made from")
        return source[: self.at] + self.new + source[self.at + len(self.old) :]

    def line(self, source: str) -> int:
        """Return the number of the line on which the change begins."""
        blank = len(self.old) - len(self.old.lstrip("\n"))
        return source.count("\n", 0, self.at + blank) + 1

    def fingerprint(self, source: str) -> str:
        """Return what changes when the mutant or its file does: then it has to be run again."""
        text = "\0".join((self.name, self.file, source, self.applied(source)))
        return sha256(text.encode()).hexdigest()[:16]


def load(directory: Path, root: Path) -> list[Mutant]:
    """Return the mutants in the text files of `directory`, in order. Raises MutationError."""
    sources: dict[str, str] = {}
    mutants: dict[str, Mutant] = {}
    for path in sorted(directory.glob("*.txt")):
        file = ""
        for part in re.split(r"\n{2,}", path.read_text(encoding="utf-8").strip()):
            if named := _FILE.fullmatch(part):
                file = named[1]
            elif not all(line.startswith("#") for line in part.splitlines()):
                mutant = _mutant(f"{path.name}: {part.splitlines()[0]}", file, part, root, sources)
                if mutant.name in mutants:
                    raise MutationError(f"{path.name}: there are two mutants {mutant.name!r}")
                mutants[mutant.name] = mutant
    return list(mutants.values())


def load_equivalents(path: Path, names: Mapping[str, object]) -> dict[str, str]:
    """Return {name: why it breaks nothing} of mutants. Raises MutationError for unknown names.

    Names of generated mutants change with their files; they are not kept here.
    """
    if not path.exists():
        return {}
    reasons: dict[str, str] = {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise MutationError(f"{path.name}: {error}") from None
    rows = document.get("equivalent")
    if document.keys() != {"equivalent"} or not isinstance(rows, list):
        raise MutationError(f"{path.name}: [[equivalent]] and nothing else is due")
    for row in rows:
        name, reason = row.get("name"), row.get("reason")
        if not isinstance(name, str) or name not in names or name in reasons:
            raise MutationError(f"{path.name}: {name!r} is no mutant, or is there twice")
        if not isinstance(reason, str) or not reason:
            raise MutationError(f"{path.name}: {name!r} has no reason")
        reasons[name] = reason
    return reasons


def _mutant(where: str, file: str, part: str, root: Path, sources: dict[str, str]) -> Mutant:
    parts = _HEAD.fullmatch(part + "\n")
    if parts is None:
        raise MutationError(f"{where}: a mutant is `@ NAME: PROMISE`, `when …`, and changed lines")
    name, breaks, when, change = parts.groups()
    lines = [(line[0], line[1:]) for line in change.splitlines()]
    old = "\n".join(text for mark, text in lines if mark != "+")
    new = "\n".join(text for mark, text in lines if mark != "-")
    if file not in sources:
        try:
            sources[file] = (root / file).read_text(encoding="utf-8")
        except OSError as error:
            raise MutationError(f"{where}: {error}") from None
    count = sources[file].count(old)
    if count != 1:
        raise MutationError(f"{where}: its old text stands {count} times in {file}, once is due")
    at = sources[file].index(old)
    mutant = Mutant(name, file, at, old, new, breaks=breaks, when=when)
    check(mutant, sources[file])
    return mutant


def check(mutant: Mutant, source: str) -> None:
    """Raise MutationError unless the mutated source is another one and compiles."""
    mutated = mutant.applied(source)
    if mutated == source:
        raise MutationError(f"{mutant.name} changes nothing")
    try:
        compile(mutated, mutant.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise MutationError(f"{mutant.name} does not compile: {error}") from None
