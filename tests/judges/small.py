"""Small histories written against the specification: some deceive, some are legal and look strange.

What lives here: the register, and how a row is told in a word or two. What must not: a judge. Both
judges must find exactly what it says (tests/twins/test_small.py, tests/spark/test_checks.py).
None of these is a kind of sabotage: they are combinations, edges, what those kinds do not think of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tests.spark.histories import Row, RunRecorder

Build = Callable[[RunRecorder], set[str]]
SMALL: Final[dict[str, Build]] = {}
KINDS_OF: Final = frozenset(  # checks whose rows are of several kinds, by the first word
    {"lost", "stale_read", "cursor_regression", "subscription", "purge", "replica_divergence"}
    | {
        "delayed",
        "properties",
        "group_order",
        "group_lease",
        "group_lost",
        "group_content",
        "dead_letter",
    }
)


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


def stored(
    run: RunRecorder, producer: str, counter: int, id_: int, count: int = 1, **fields: Any
) -> Row:
    """Record an acknowledged PUT; `id_` 0: nobody subscribes, or it is not known any more."""
    last_id = id_ + count - 1 if id_ else 0
    return run.put(producer, "t", counter, "ok", count, first_id=id_, last_id=last_id, **fields)


def unclear(run: RunRecorder, producer: str, counter: int, count: int = 1, **fields: Any) -> Row:
    """Record a PUT of which nobody knows what became."""
    return run.put(producer, "t", counter, "info", count, error="timeout", **fields)


Given = tuple[int, str, int]  # id, producer, counter


def got(run: RunRecorder, client: str, asked: int | None, *given: Given, **fields: Any) -> Row:
    """Record a GET and what it brought."""
    return run.get(client, "t", asked, [[*one, 1] for one in given], **fields)


def gone(
    run: RunRecorder,
    client: str,
    asked: int | None,
    first_id: int,
    last_id: int,
    error: str = "purged",
) -> Row:
    """Record a GET that was told what is purged, or is gone in another way."""
    invoke = run.invoke(client, "get", "t", last_id=asked)
    ids = {"first_id": first_id, "last_id": last_id}
    return run.complete(invoke, "fail", error=error, **ids)


def three(run: RunRecorder) -> None:
    """Record `s`, which subscribes, and publications 1 to 3 of `p`."""
    run.sub("s", "t", 0)
    for number in (1, 2, 3):
        stored(run, "p", number, number)


def brief(run: RunRecorder, ms: int = 10) -> None:
    """Record the same, but 1 and 2 expire."""
    run.sub("s", "t", 0)
    stored(run, "p", 1, 1, 2, expires=[[1, 2, ms]])
    stored(run, "p", 3, 3)


KEY_DIGESTS: Final = {key: f"0{number}" * 8 for number, key in enumerate("abc", 1)}


def keyed(run: RunRecorder, counter: int, keys: str, producer: str = "p", **fields: Any) -> Row:
    """Record a PUT of publications with these keys, of a letter each, a dot for none; ids are as
    their counters.
    """
    ids = {counter + n: KEY_DIGESTS[key] for n, key in enumerate(keys) if key != "."}
    said = {"marked": [*ids], "properties": "".join(ids.values())} if ids else {}
    said |= {"keyed": [*ids], "keys": "".join(ids.values())} if ids else {}
    return stored(run, producer, counter, counter, len(keys), **said, **fields)
