"""What the sabotage came to, as a page of the documents (docs/detection.md).

What lives here: the page's text. What must not: sabotage, judges.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from tests.judges.detection import KindTally
from tests.judges.kinds import KINDS, UNKNOWN, Kind

HEAD = """# How much of the sabotage is found

Made by `{command}`, not by hand.
[checks.md](checks.md#how-the-judges-are-tried) says what is done, `--list` what each kind breaks.

| | histories | |
|---|---|---|
| legal | {legal:,} | {alarms} called `invalid` |
| sabotaged, {kinds} kinds | {made:,} | {found:,} found ({share:.2%}) |

Found: the check that must find it does, with that first word if one is named; or, at the end of
the table, the verdict is `unknown`. After each kind: how many of its histories were found{all_of}.

| must come to | kinds |
|---|---|
"""


def page(
    arguments: Sequence[str], legal: int, alarms: int, tallies: Mapping[str, KindTally]
) -> str:
    """Return the page: a row for each thing that kinds must come to."""
    rows: dict[str, list[str]] = {}
    for name, tally in tallies.items():
        rows.setdefault(_due(KINDS[name]), []).append(_told(name, tally))
    made = sum(tally.made for tally in tallies.values())
    found = sum(tally.found for tally in tallies.values())
    shown = [one for one in arguments if not one.startswith("--table")]
    shown = [one for one in shown if not one.endswith(".md")]
    head = HEAD.format(
        command=shlex.join(["python", "-m", "tests.judges", *shown]),
        legal=legal,
        alarms=alarms,
        kinds=len(tallies),
        made=made,
        found=found,
        share=found / max(1, made),
        all_of="" if found < made else ": all of them",
    )
    order = sorted(rows, key=lambda due: (due == UNKNOWN, due))
    return head + "".join(f"| {due} | {', '.join(rows[due])} |\n" for due in order)


def _due(kind: Kind) -> str:
    return " ".join(f"`{one}`" for one in (kind.check, kind.word) if one) or UNKNOWN


def _told(name: str, tally: KindTally) -> str:
    said = str(tally.found) if tally.found == tally.made else f"{tally.found} of {tally.made}"
    return f"{name} {said}"
