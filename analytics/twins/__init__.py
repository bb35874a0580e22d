"""The second judge: every check and the verdict once more, in plain Python.

It is written from the specification alone (docs/checks.md, docs/history.md), id by id, and shares
no rule with the first judge, nor a parser: the two are worth something to each other as long as
they have nothing in common but that text. It is also the way to judge simulations and other small
runs, for it needs no Spark.

    record.py     lines put together to operations         run.py        what the checks are given
    knowledge.py  what is known, since when                standing.py   who stood subscribed
    gone.py, compaction.py       what may be missing       group_standing.py  who is in a group
    owed.py, stored.py, answers.py, clocks.py, delays.py, patterns.py, disks.py, groups.py   checks
    intake.py     a run's directory, and whether it is whole
    checks.py     the list of them, and what identifies a row
    judging.py    the verdict, with its reasons

Events are dictionaries as docs/history.md has them, all of one run, in memory.
"""

from analytics.twins.checks import TWINS, evidence_of, find_all, found_in, identity
from analytics.twins.intake import Malformed, checked
from analytics.twins.judging import Judgement, judge
from analytics.twins.record import Event, Evidence
from analytics.twins.run import Run, read

__all__ = [
    "TWINS",
    "Event",
    "Evidence",
    "Judgement",
    "Malformed",
    "Run",
    "checked",
    "evidence_of",
    "find_all",
    "found_in",
    "identity",
    "judge",
    "read",
]
