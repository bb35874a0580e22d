"""What a planted bug is, and the list of all of them.

What lives here: the description of a bug, the way to put it into the running code and to take it
out again. What must not: any single bug (the modules beside this one), runs of the simulator.

A bug is a patch of the real code from outside: production code has no hook for it. So a campaign
over a bug says whether the checks of the simulator would see that line of code missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar
from unittest import mock

from chaos.simulation.plan.plan import Mode

SEEDS_MAX: Final = 40  # a bug that hides longer is a hole in the swarm, to be mended there
SEEDS_RARE_MAX: Final = 150  # but for one that shows only where several rare things meet

K = TypeVar("K")
V = TypeVar("V")


class Patches(ExitStack):
    """Replacements of attributes and table entries, undone together."""

    def attribute(self, owner: object, name: str, value: object) -> None:
        """Replace the attribute `name`, which must exist, of a class or a module.

        What replaces a function takes what that takes: else every run would end with a TypeError,
        and nobody would see that the bug is planted no more.
        """
        _compare(inspect.getattr_static(owner, name), value, name)
        self.enter_context(mock.patch.object(owner, name, value))

    def entry(self, table: Mapping[K, V], key: K, value: V) -> None:
        """Replace the value of a key, which must be there."""
        assert key in table, key
        assert isinstance(table, MutableMapping), type(table)
        self.enter_context(mock.patch.dict(table, {key: value}))


def _compare(before: object, after: object, name: str) -> None:
    """Assert that a call of the one, with all arguments or the fewest, is one of the other."""
    if not inspect.isfunction(before):
        return
    assert callable(after), name
    takes = inspect.signature(after)
    parameters = inspect.signature(before).parameters.values()
    for these in (parameters, [each for each in parameters if each.default is each.empty]):
        named = {each.name: each for each in these if each.kind is each.KEYWORD_ONLY}
        places = [
            each
            for each in these
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        try:
            takes.bind(*places, **named)
        except TypeError as error:
            raise AssertionError(
                f"{name}{inspect.signature(before)} is not {takes}: {error}"
            ) from None


Plant = Callable[[Patches], None]


@dataclass(frozen=True)
class Bug:
    """A sabotage of one rule.

    `rule`: what it breaks; `what`: the sabotage in a sentence. `caught_by`: the checks that are
    meant to see it, any one of them within `seeds_max` seeds from 1 on of runs in `mode`, with
    `nodes` nodes (None: as the swarm draws).
    """

    name: str
    rule: str
    what: str
    caught_by: frozenset[str]
    seeds_max: int
    mode: Mode
    nodes: int | None
    plant: Plant

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug in the code while the context lasts."""
        with Patches() as patches:
            self.plant(patches)
            yield


_found: Final[dict[str, Bug]] = {}
BUGS: Final[Mapping[str, Bug]] = MappingProxyType(_found)


def bug(
    rule: str,
    caught_by: set[str],
    seeds_max: int = SEEDS_MAX,
    mode: Mode = "safety",
    nodes: int | None = None,
) -> Callable[[Plant], Plant]:
    """Register the function as a bug: its name is the bug's, its docstring says what it does."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        assert name not in _found, f"two bugs are called {name}"
        assert plant.__doc__, f"{name} does not say what it does"
        what = " ".join(plant.__doc__.split())
        checks = frozenset(caught_by)
        _found[name] = Bug(name, rule, what, checks, seeds_max, mode, nodes, plant)
        return plant

    return register
