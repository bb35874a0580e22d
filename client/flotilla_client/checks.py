"""What an application passes in, looked at before anything is stored or sent.

What lives here: the checks of arguments that several methods share; each raises TypeError or
ValueError and names the argument. What must not: what a node decides (operations.check_topic), the
arguments of the command line (arguments.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from datetime import datetime, timedelta
from pathlib import Path

from flotilla_client.protocol import EARLIEST, INTEGER_MAX, NEW

Duration = float | timedelta  # seconds, or a timedelta


def number(name: str, value: object, low: float, high: float) -> float:
    """Return a number of milliseconds or the like from `low` to `high`; NaN is in no range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number, not {_kind(value)}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; from {low:,} to {high:,} is allowed")
    return value


def milliseconds(name: str, value: Duration, low_ms: float, high_ms: float) -> int:
    """Return a duration (seconds or a timedelta) in ms."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return round(number(name, value, low_ms / 1000, high_ms / 1000) * 1000)


def integer(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, not {_kind(value)}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; from {low:,} to {high:,} is allowed")
    return value


def directory(name: str, value: object) -> Path | None:
    """Return a directory's path, None for none; an empty text is a mistake."""
    return path(name, value, "directory")


def path(name: str, value: object, kind: str = "file") -> Path | None:
    """Return a file's path, None for none; an empty text is a mistake."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} is a path, not {_kind(value)}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError(f"{name} is a path of text, not of {_kind(text)}")
    if not text or "\0" in text:
        raise ValueError(f"{name} is {text!r}, which names no {kind}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is {text!r}, which names no {kind}: {error.reason}") from error
    return Path(text)


def several(name: str, value: object) -> Iterable[object]:
    """Return an ordered collection; one text or one row of bytes is none, nor is a set."""
    is_one = isinstance(value, str | bytes | bytearray | memoryview)
    if is_one or isinstance(value, Mapping | Set) or not isinstance(value, Iterable):
        raise TypeError(f"{name} is a list, not {_kind(value)}")
    return value


def start(value: object) -> str | int:
    """Return where a subscription is to start: "new", "earliest", the first id to be read, or what
    was published from a time of day on.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"start is {value}, which says no time zone")
        return f"@{max(0, round(value.timestamp() * 1000))}"
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"start is 'new', 'earliest', an id or a datetime, not {_kind(value)}")
    if isinstance(value, str) and value not in (NEW, EARLIEST):
        raise ValueError(f"start is {value!r}: 'new', 'earliest' or an id is due")
    return value if isinstance(value, str) else integer("start", value, 1, INTEGER_MAX)


def text(name: str, value: object) -> str:
    """Return a text that UTF-8 can say."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is {value!r}: {error.reason}") from error
    return value


def texts(name: str, value: object) -> list[str]:
    """Return a list of texts."""
    return [text(f"what {name} lists", each) for each in several(name, value)]


def flag(name: str, value: object) -> bool:
    """Return True or False; what is only true or false by its truth is a mistake."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return value


def topic_name(value: object) -> str:
    """Return a topic's name; whether a node accepts it is not asked here."""
    if not isinstance(value, str):
        raise TypeError(f"a topic's name is a text, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
