"""What somebody probably meant who has written a name that there is not.

What lives here: the sentence that says so, for the command line and experiments' files alike. What
must not: where names come from.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

COMPARED_CHARACTERS_MAX: Final = 100  # a slip of the pen is no longer; comparing takes its square
SHOWN_MAX: Final = 60  # names: all experiments or faults, and not a thousand topics


def no_such(what: str, word: object, known: Iterable[str]) -> str:
    """Return "no WHAT 'WORD'", the one of `known` that it may have been meant for, and all."""
    names = list(known)
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    there_are = f"here are {', '.join(names[:SHOWN_MAX])}{more}"
    if (near := _nearest(word, names)) is not None:
        return f"no {what} {reprlib.repr(word)}: did you mean {near!r}? T{there_are}"
    return f"no {what} {reprlib.repr(word)}; t{there_are}"


def _nearest(word: object, names: list[str]) -> str | None:
    if not isinstance(word, str) or len(word) > COMPARED_CHARACTERS_MAX:
        return None
    return next(iter(get_close_matches(word, names, n=1)), None)
