"""The registry of checks. One pure function a module, named like it: tables in, evidence out.

A check returns rows of `schema.EVIDENCE`; none = clean. It never collects, uses no UDF, and its
windows stay inside a bucket, an answer or a summary. To add one: a module, and a row here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from analytics.anomalies.aborted_read import aborted_read
from analytics.anomalies.ack_not_durable import ack_not_durable
from analytics.anomalies.corrupt import corrupt
from analytics.anomalies.cursor_regression import cursor_regression
from analytics.anomalies.duplicate_delivered import duplicate_delivered
from analytics.anomalies.duplicate_stored import duplicate_stored
from analytics.anomalies.fencing import fencing
from analytics.anomalies.gap import gap
from analytics.anomalies.inconsistent_id import inconsistent_id
from analytics.anomalies.leaders_per_term import leaders_per_term
from analytics.anomalies.lost import lost
from analytics.anomalies.phantom import phantom
from analytics.anomalies.realtime_order import realtime_order
from analytics.anomalies.reordered import reordered
from analytics.anomalies.replica_divergence import replica_divergence
from analytics.anomalies.stale_read import stale_read
from analytics.tables import Tables


@dataclass(frozen=True, slots=True)
class Check:
    """A named check. `meaning`: what one row of its evidence proves.

    `needs_truth`: it judges what stood on the nodes' disks, and can't where none was collected.
    `needs_names`: it judges by who put what was delivered, which an application's record lacks.
    """

    name: str
    find: Callable[[Tables], DataFrame]
    meaning: str
    needs_truth: bool = False
    needs_names: bool = False


CHECKS: Final = (
    Check(
        "lost",
        lost,
        "an acknowledged publication never reached a subscriber that was owed it, though it got"
        " later ones (middle; prefix: nothing lower came) or drained the topic (tail)",
    ),
    Check("duplicate_stored", duplicate_stored, "one publication stands under two ids"),
    Check(
        "duplicate_delivered", duplicate_delivered, "an id was handed over twice, asked for once"
    ),
    Check("inconsistent_id", inconsistent_id, "one id was seen with different publications"),
    Check("gap", gap, "a subscriber's ids jump"),
    Check("reordered", reordered, "ids go back within a subscriber or along a producer's counters"),
    Check(
        "phantom", phantom, "a publication was delivered that nobody tried to put", needs_names=True
    ),
    Check(
        "aborted_read",
        aborted_read,
        "a publication was delivered whose PUT definitely failed",
        needs_names=True,
    ),
    Check(
        "corrupt",
        corrupt,
        "a payload's format, checksum or topic does not check out",
        needs_names=True,
    ),
    Check(
        "realtime_order",
        realtime_order,
        "a publication stands below one that was acknowledged before it was sent",
    ),
    Check(
        "stale_read", stale_read, "an answer ignores what was acknowledged before it was asked for"
    ),
    Check(
        "cursor_regression",
        cursor_regression,
        "a cursor went back, or stands above all that was delivered",
    ),
    Check("fencing", fencing, "an operation succeeded after a newer process had taken over"),
    Check("leaders_per_term", leaders_per_term, "two nodes answered as the leader of one term"),
    Check(
        "replica_divergence",
        replica_divergence,
        "two nodes hold different entries or states at one index",
        needs_truth=True,
    ),
    Check(
        "ack_not_durable",
        ack_not_durable,
        "an acknowledged publication is missing from a majority's disks",
        needs_truth=True,
    ),
)
