"""The registry of checks. One pure function a module, named like it: tables in, evidence out.

A check returns rows of `schema.EVIDENCE`; none = clean. It never collects, uses no UDF, and its
windows stay inside a bucket, an answer or a summary. To add one: a module, and a row here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from analytics.anomalies.aborted_read import aborted_read
from analytics.anomalies.corrupt import corrupt
from analytics.anomalies.duplicate_delivered import duplicate_delivered
from analytics.anomalies.duplicate_stored import duplicate_stored
from analytics.anomalies.gap import gap
from analytics.anomalies.inconsistent_id import inconsistent_id
from analytics.anomalies.lost import lost
from analytics.anomalies.phantom import phantom
from analytics.anomalies.reordered import reordered
from analytics.tables import Tables


@dataclass(frozen=True, slots=True)
class Check:
    """A named check. `meaning`: what one row of its evidence proves."""

    name: str
    find: Callable[[Tables], DataFrame]
    meaning: str


CHECKS: Final = (
    Check("lost", lost, "an acknowledged publication never reached a subscriber that was owed it"),
    Check("duplicate_stored", duplicate_stored, "one publication stands under two ids"),
    Check(
        "duplicate_delivered", duplicate_delivered, "an id was handed over twice, asked for once"
    ),
    Check("inconsistent_id", inconsistent_id, "one id was seen with different publications"),
    Check("gap", gap, "a subscriber's ids jump"),
    Check("reordered", reordered, "ids go back within a subscriber or along a producer's counters"),
    Check("phantom", phantom, "a publication was delivered that nobody tried to put"),
    Check("aborted_read", aborted_read, "a publication was delivered whose PUT definitely failed"),
    Check("corrupt", corrupt, "a payload's format, checksum or topic does not check out"),
)
