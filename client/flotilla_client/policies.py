"""What a topic keeps, and what it does when it is full: policies as people and messages say them.

What lives here: a policy's parts, their bounds, and their texts. What must not: what follows from a
policy (cluster/store/topics.py), arguments of the command line (topic_cli.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from flotilla_client.error_table import ProtocolError

UNREAD: Final = "unread"
FOREVER: Final = "forever"
BYTES: Final = "bytes"
MS: Final = "ms"
COUNT: Final = "count"
REFUSE: Final = "refuse"
DROP_OLDEST: Final = "drop-oldest"

KEEPS: Final = (UNREAD, FOREVER, BYTES, MS, COUNT)
COMPACT_KEEPS: Final = (FOREVER, MS, COUNT)
WHEN_FULL: Final = (REFUSE, DROP_OLDEST)
PARTS: Final = frozenset({"keep", "amount", "max_bytes", "when_full", "dead_letter", "compact"})
AMOUNT_MAX: Final = 2**53 - 1  # what JSON readers of every language agree on

_SIZES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES_BINARY: Final = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_AGES: Final = {"MS": 1, "S": 1_000, "M": 60_000, "H": 3_600_000, "D": 86_400_000, "W": 604_800_000}
_AMOUNT: Final = re.compile(r"([0-9]{1,16})\s*([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class Policy:
    """What a topic keeps although everybody has read it, and how large it may get.

    `keep`: one of KEEPS; `amount`: how many bytes, ms or publications, else 0. `max_bytes`: of what
    the topic holds, 0 for no bound of its own. `when_full`: what a PUT that has no room comes to.
    `dead_letter`: the topic to which goes what its groups give up that name none; "": none.
    `compact`: what all have read that a later publication of its key has replaced goes before.
    """

    keep: str = UNREAD
    amount: int = 0
    max_bytes: int = 0
    when_full: str = REFUSE
    dead_letter: str = ""
    compact: bool = False

    @property
    def keeps(self) -> bool:
        """Whether it keeps anything that nobody waits for."""
        return self.keep != UNREAD

    @property
    def drops(self) -> bool:
        """Whether a full topic drops its oldest publications, read or not."""
        return self.when_full == DROP_OLDEST

    def parts(self) -> dict[str, Any]:
        """Return it as it stands in messages and in the log.

        Builds before level 5 know no `dead_letter` and no `compact`: nothing is said of none.
        """
        parts = {name: getattr(self, name) for name in _PARTS}
        for name in ("dead_letter", "compact"):
            if not parts[name]:
                del parts[name]
        return parts

    def changed(self, parts: Mapping[str, Any]) -> Policy:
        """Return it with some parts changed; they were checked (`check_parts`).

        Raises ProtocolError where the whole makes no sense.
        """
        policy = replace(self, **parts)
        if policy.drops and not policy.max_bytes:
            message = "`drop-oldest` needs `max_bytes`: without a bound a topic is never full"
            raise ProtocolError("bad_request", message)
        if policy.compact and policy.keep not in COMPACT_KEEPS:
            message = (
                "`compact` goes with what stays of all else: forever, an age or a count; `unread`"
                " would keep nothing, and a size would count what is gone"
            )
            raise ProtocolError("bad_request", message)
        if policy.compact and policy.drops:
            message = "`compact` does not go with `drop-oldest`, which drops what is unread"
            raise ProtocolError("bad_request", message)
        return policy

    def loses(self, before: Policy, held_bytes: int) -> bool:
        """Return whether a topic of that policy that holds so much may lose some of it by this one.

        As far as can be told without the topic: what is over a new age may be no publication's.
        """
        if not held_bytes:
            return False
        if self.drops and self.max_bytes < held_bytes:
            return True
        if not before.keeps or self.keep == FOREVER:
            return False
        return self.keep != before.keep or self.amount < before.amount

    def __str__(self) -> str:
        said = f"keep {self.keep_text}"
        if self.max_bytes:
            said += f", at most {size_text(self.max_bytes)}, when full {self.when_full}"
        if self.dead_letter:
            said += f", dead letters to {self.dead_letter!r}"
        if self.compact:
            said += ", compacted"
        return said

    @property
    def keep_text(self) -> str:
        """What is kept, as `--keep` takes it."""
        if self.keep == BYTES:
            return size_text(self.amount)
        if self.keep == MS:
            return age_text(self.amount)
        return str(self.amount) if self.keep == COUNT else self.keep


_PARTS: Final = tuple(each.name for each in fields(Policy))  # in their order in messages


def check_parts(parts: Mapping[str, Any], *, were_read: bool = False) -> dict[str, Any]:
    """Return parts of a policy as they were said, every one of them checked.

    `were_read`: of an entry, which was taken. Its name is not looked at once more: Pythons differ
    in what is printable. Raises ProtocolError.
    """
    if unknown := sorted(parts.keys() - PARTS):
        raise _bad(f"{unknown[0]!r} is no part of a policy; known: {', '.join(sorted(PARTS))}")
    if ("keep" in parts) != ("amount" in parts):
        raise _bad("`keep` and `amount` are said together")
    if "keep" in parts:
        keep, amount = parts["keep"], parts["amount"]
        if keep not in KEEPS:
            raise _bad(f"`keep` is one of {', '.join(KEEPS)}")
        low = 0 if keep in (UNREAD, FOREVER) else 1
        _check_number("amount", amount, low, 0 if not low else AMOUNT_MAX)
    if "max_bytes" in parts:
        _check_number("max_bytes", parts["max_bytes"], 0, AMOUNT_MAX)
    if "when_full" in parts and parts["when_full"] not in WHEN_FULL:
        raise _bad(f"`when_full` is one of {', '.join(WHEN_FULL)}")
    if "dead_letter" in parts:
        name = parts["dead_letter"]
        if type(name) is not str or not (were_read or name.isprintable()):
            raise _bad("`dead_letter` is a topic's name, printable text; empty: none")
    if "compact" in parts and type(parts["compact"]) is not bool:
        raise _bad("`compact` is true or false")
    return dict(parts)


def _check_number(name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise _bad(f"`{name}` is not an integer from {low} to {high}")


def _bad(message: str) -> ProtocolError:
    return ProtocolError("bad_request", message)


# --- texts ----------------------------------------------------------------------------------------


def parse_keep(text: str) -> dict[str, Any]:
    """Return the parts that `--keep` says: `unread`, `forever`, `10GB`, `7d`, `1000`.

    Raises ValueError.
    """
    word = text.strip()
    if word in (UNREAD, FOREVER):
        return {"keep": word, "amount": 0}
    found = _AMOUNT.fullmatch(word)
    units = {"": (COUNT, 1)}
    units |= {unit: (BYTES, size) for unit, size in (_SIZES | _SIZES_BINARY).items()}
    units |= {unit: (MS, age) for unit, age in _AGES.items()}
    if found is None or found[2].upper() not in units:
        raise ValueError(
            f"{text!r} is none of unread, forever, a size (10GB, 512MiB), an age (7d, 12h, 30m,"
            " 45s) or a count of publications (1000)"
        )
    kind, unit = units[found[2].upper()]
    return {"keep": kind, "amount": _amount(text, int(found[1]) * unit)}


def parse_size(text: str) -> int:
    """Return the bytes of `10GB`, `512MiB` or `1000`. Raises ValueError."""
    found = _AMOUNT.fullmatch(text.strip())
    units = {"": 1} | _SIZES | _SIZES_BINARY
    if found is None or found[2].upper() not in units:
        raise ValueError(f"{text!r} is no size: 10GB, 512MiB or a number of bytes")
    return _amount(text, int(found[1]) * units[found[2].upper()])


def parse_age(text: str) -> int:
    """Return the milliseconds of `90s`, `12h` or `500ms`. Raises ValueError."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found[2].upper() not in _AGES:
        raise ValueError(f"{text!r} is no time: 7d, 12h, 30m, 45s, 500ms")
    return _amount(text, int(found[1]) * _AGES[found[2].upper()])


def _amount(text: str, amount: int) -> int:
    if not 1 <= amount <= AMOUNT_MAX:
        raise ValueError(f"{text!r} is not from 1 to {AMOUNT_MAX}")
    return amount


def size_text(size_bytes: int) -> str:
    """Return a size as `parse_size` and `parse_keep` take it, in the largest unit that fits."""
    return _in_units(size_bytes, {"B": 1} | _SIZES | {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30})


def age_text(age_ms: int) -> str:
    """Return an age as `parse_keep` takes it, in the largest unit that fits."""
    return _in_units(age_ms, {unit.lower(): age for unit, age in _AGES.items()})


def _in_units(amount: int, units: Mapping[str, int]) -> str:
    fitting = [(size, unit) for unit, size in units.items() if amount % size == 0]
    size, unit = max(fitting)
    return f"{amount // size}{unit}"
