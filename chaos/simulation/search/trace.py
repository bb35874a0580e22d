"""What happened in a run: counted, and as lines for a person.

What lives here: observers of a world that only look. What must not: deciding or changing anything;
a run is the same without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

VALUE_CHARACTERS_MAX: Final = 80  # of one value in a line for a person
FREQUENT: Final = frozenset({"apply"})  # kinds of events of which a run has thousands


class Counts:
    """Counts events by kind, and the plan's actions by name, as `fault.<name>`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Count one event."""
        self.counts[kind] += 1
        if kind == "fault":
            self.counts[f"fault.{fields['name']}"] += 1


class Printer:
    """Writes a line for each event, those of FREQUENT kinds only if asked for.

    `now` tells the virtual time.
    """

    def __init__(
        self, write: Callable[[str], None], now: Callable[[], float], is_full: bool
    ) -> None:
        self._write, self._now = write, now
        self._silent = frozenset() if is_full else FREQUENT

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Write one event."""
        if kind not in self._silent:
            self._write(line(self._now(), kind, fields))


def line(at_s: float, kind: str, fields: Mapping[str, Any]) -> str:
    """Return an event as a line: `    12.345 b  role role=leader term=3`."""
    rest = " ".join(f"{name}={_text(value)}" for name, value in fields.items() if name != "node")
    return f"{at_s:10.3f} {fields.get('node') or '':<9} {kind:<18} {rest}".rstrip()


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if len(text) > VALUE_CHARACTERS_MAX:
        return text[: VALUE_CHARACTERS_MAX - 1] + "…"
    return text
