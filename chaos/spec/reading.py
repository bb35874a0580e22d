"""TOML tables as checked dataclasses: unknown keys, wrong types, numbers out of bounds are refused.

What lives here: from a file's text to tables, and from a table to a dataclass. What must not: which
tables an experiment has and what has to fit together in it (experiment.py), the bounds (bounds.py).

`where` is what a complaint begins with: the experiment's name, then the place in its file.
"""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar

from chaos.spec.bounds import BOUNDS
from chaos.spec.suggestions import no_such
from flotilla_client.protocol import INTEGER_MAX

NESTING_MAX: Final = 8  # tables and lists in each other; an experiment has three
TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}

Table = dict[str, Any]
T = TypeVar("T")


class ExperimentError(Exception):
    """There is no such experiment, or its file is not what docs/chaos.md describes."""


def tables_of(text: str, where: str) -> Table:
    """Return the top-level table of a TOML file. Raises ExperimentError."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{where}: {error}") from None
    except RecursionError:
        raise ExperimentError(f"{where}: its tables or lists are nested too deeply") from None
    except ValueError:  # of int(), which takes some thousands of digits
        raise ExperimentError(f"{where}: a number has too many digits") from None
    _check_size(tables, where, NESTING_MAX)
    return tables


def _check_size(value: Any, where: str, nesting_max: int) -> None:
    """Refuse what can't be written into a history or a message, wherever it stands."""
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise ExperimentError(f"{where}: a whole number is beyond {INTEGER_MAX}")
    if isinstance(value, dict | list):
        if nesting_max == 0:
            raise ExperimentError(f"{where}: its tables or lists are nested too deeply")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_size(inner, where, nesting_max - 1)


def table_of(tables: Table, key: str, where: str) -> Table:
    """Return the table `key`, empty when there is none. Raises ExperimentError if it is none."""
    table = tables.get(key, {})
    if not isinstance(table, dict):
        raise ExperimentError(f"{where}: {key} is {reprlib.repr(table)}, it has to be a table")
    return table


def rows_of(tables: Table, key: str, where: str) -> list[tuple[str, Table]]:
    """Return each table of the list `key` behind its place. Raises ExperimentError if it is none.

    The place is "WHERE: [[KEY]] 2", counted from 1.
    """
    rows = tables.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ExperimentError(f"{where}: [[{key}]] has to be a list of tables")
    return [(f"{where}: [[{key}]] {number}", row) for number, row in enumerate(rows, 1)]


def texts_of(table: Table, key: str, where: str) -> tuple[str, ...]:
    """Return the list of names `key`, empty when there is none. Raises ExperimentError."""
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        shown = reprlib.repr(texts)
        raise ExperimentError(f"{where}: {key} is {shown}, it has to be a list of names")
    return tuple(texts)


def keys_of(*kinds: type) -> set[str]:
    """Return the names of the fields of these dataclasses."""
    return {entry.name for kind in kinds for entry in fields(kind)}


def check_keys(table: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise ExperimentError for the first key that nobody reads there."""
    for key in table:
        if key not in known:
            raise ExperimentError(f"{where}: {no_such('key', key, sorted(known))}")


def build(kind: type[T], table: Table, where: str) -> T:
    """Return the dataclass that a table of checked keys describes. Raises ExperimentError.

    Values of the types of TYPES are checked; others are the caller's.
    """
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    for name, value in table.items():
        _check_value(name, str(known[name].type), value, where)
    required = (
        name
        for name, entry in known.items()
        if entry.default is MISSING and entry.default_factory is MISSING
    )
    if lacking := [name for name in required if name not in table]:
        raise ExperimentError(f"{where}: it lacks {', '.join(lacking)}")
    return kind(**table)


def _check_value(name: str, annotation: str, value: Any, where: str) -> None:
    types = TYPES.get(annotation)
    if types is not None and type(value) not in types:
        shown = reprlib.repr(value)
        raise ExperimentError(f"{where}: {name} is {shown}, it has to be of type {annotation}")
    if annotation in ("int", "float"):
        check_number(name, value, where)


def check_number(name: str, value: float, where: str) -> None:
    """Raise ExperimentError if the number is not within the bounds of its key."""
    if not BOUNDS[name].admits(value):
        raise ExperimentError(f"{where}: {name} is {value}, it has to be {BOUNDS[name]}")
