"""How much of sabotage is found: histories of every kind, judged, counted.

What lives here: which history is made of which seed, and what is expected of a judge. What must
not: kinds, or rules.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.judges import (
    broken_again,
    broken_altered,
    broken_between,
    broken_borrowed,
    broken_files,
    broken_implied,
    broken_more,
    broken_refused,
    broken_rows,
    broken_scenes,
    groups,
    lanes,
    readings,
)
from tests.judges.history import MadeHistory
from tests.judges.judges import Judge, JudgesVerdict
from tests.judges.kinds import INVALID, KINDS, UNKNOWN, Kind, NoRoom
from tests.judges.world import legal

BASES_MAX = 400  # legal histories that are tried for one that has room for a kind
BASES = 1_000  # legal histories that are sabotaged: whether each is valid is asked once
SOURCES = (  # which register their kinds
    *(broken_rows, broken_scenes, broken_files),
    *(broken_more, groups, lanes, readings, broken_again, broken_between, broken_implied),
    *(broken_refused, broken_altered, broken_borrowed),
)


@dataclass(frozen=True)
class Sabotaged:
    """A history with one sentence broken. `seed` makes the same again, with `kind`."""

    kind: Kind
    seed: int
    base_seed: int
    history: MadeHistory

    def write(self, directory: Path) -> None:
        """Write it, and damage the files, if that is what the kind does."""
        self.history.write(directory)
        if self.kind.damage is not None:
            rng = random.Random(f"damage {self.kind.name} {self.seed}")
            self.kind.damage(directory, self.history, rng)


def sabotaged(kind: Kind, seed: int, directory: Path, is_fit: Callable[[int], bool]) -> Sabotaged:
    """Return a sabotaged history, from the first legal one that has room for it, and write it.

    `is_fit`: whether a legal history, by its seed, will do as such.
    """
    rng = random.Random(f"sabotage {kind.name} {seed}")
    for _ in range(BASES_MAX):
        base_seed = rng.randrange(BASES)
        if kind.verdict == UNKNOWN and not is_fit(base_seed):
            continue
        history = legal(base_seed)
        made = Sabotaged(kind, seed, base_seed, history)
        with suppress(NoRoom):
            if kind.change is not None:
                kind.change(history, rng)
                for scene in history.scenes:
                    scene.on_disks()
            made.write(directory)
            return made
    raise LookupError(f"{kind.name}: none of {BASES_MAX} legal histories has room for it")


@dataclass
class KindTally:
    """What became of a kind's histories. `missed`: their seeds, with what was said instead."""

    made: int = 0
    found: int = 0
    missed: list[tuple[int, JudgesVerdict]] = field(default_factory=list)

    def add(self, seed: int, said: JudgesVerdict, is_found: bool) -> None:
        """Count a history."""
        self.made += 1
        self.found += is_found
        if not is_found:
            self.missed.append((seed, said))


def is_found(kind: Kind, said: JudgesVerdict) -> bool:
    """Return whether a judge said what it had to."""
    if kind.verdict == INVALID:
        return said.verdict == INVALID and said.has(kind.check, kind.word)
    return said.verdict == UNKNOWN


class Trial:
    """Asks a judge, and remembers which legal histories are valid to it."""

    def __init__(self, judge: Judge, directory: Path) -> None:
        self._judge, self._directory = judge, directory
        self._fit: dict[int, bool] = {}

    def ask(self, history: MadeHistory) -> JudgesVerdict:
        """Return what it says of a history."""
        history.write(self._directory)
        return self._judge(self._directory)

    def is_fit(self, seed: int) -> bool:
        """Whether a legal history is valid: one that is unknown by itself would prove nothing."""
        if seed not in self._fit:
            self._fit[seed] = self.ask(legal(seed)).verdict == "valid"
        return self._fit[seed]

    def try_one(self, kind: Kind, seed: int) -> tuple[Sabotaged, JudgesVerdict]:
        """Sabotage, and ask."""
        made = sabotaged(kind, seed, self._directory, self.is_fit)
        return made, self._judge(self._directory)


def detect(
    trial: Trial, histories: int, seed: int, kinds: list[Kind]
) -> Iterator[tuple[Kind, KindTally]]:
    """Sabotage so many histories, each kind as often as any other; yield each kind's tally."""
    for kind, seeds in shares(histories, seed, kinds):
        tally = KindTally()
        for own in seeds:
            made, said = trial.try_one(kind, own)
            tally.add(made.seed, said, is_found(kind, said))
        yield kind, tally


def shares(histories: int, seed: int, kinds: list[Kind]) -> Iterator[tuple[Kind, range]]:
    """Yield of each kind the seeds of its histories."""
    share, rest = divmod(histories, len(kinds))
    for number, kind in enumerate(kinds):
        yield kind, range(seed, seed + share + (number < rest))


def verdicts(trial: Trial, seeds: range) -> tuple[Counter[str], list[tuple[int, JudgesVerdict]]]:
    """Judge legal histories; return how many came to what, and the alarms."""
    counted: Counter[str] = Counter()
    alarms = []
    for seed in seeds:
        said = trial.ask(legal(seed))
        counted[said.verdict] += 1
        if said.verdict == INVALID:
            alarms.append((seed, said))
    return counted, alarms


def kinds_named(names: tuple[str, ...]) -> list[Kind]:
    """Return the kinds of these names, all for none. Raises KeyError."""
    return [KINDS[name] for name in names] if names else list(KINDS.values())
