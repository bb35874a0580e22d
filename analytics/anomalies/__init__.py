"""The registry of checks. One pure function a module, named like it: tables in, evidence out.

A check returns rows of `schema.EVIDENCE`; none = clean. It never collects, uses no UDF, and its
windows stay inside a bucket, an answer or a summary. To add one: docs/design.md, where to change
what.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from analytics.anomalies.aborted_read import aborted_read
from analytics.anomalies.ack_not_durable import ack_not_durable
from analytics.anomalies.corrupt import corrupt
from analytics.anomalies.cursor_regression import cursor_regression
from analytics.anomalies.dead_letter import dead_letter
from analytics.anomalies.delayed import delayed
from analytics.anomalies.duplicate_delivered import duplicate_delivered
from analytics.anomalies.duplicate_stored import duplicate_stored
from analytics.anomalies.fencing import fencing
from analytics.anomalies.future_read import future_read
from analytics.anomalies.gap import gap
from analytics.anomalies.group_content import group_content
from analytics.anomalies.group_lease import group_lease
from analytics.anomalies.group_lost import group_lost
from analytics.anomalies.group_order import group_order
from analytics.anomalies.inconsistent_id import inconsistent_id
from analytics.anomalies.key_order import key_order
from analytics.anomalies.leaders_per_term import leaders_per_term
from analytics.anomalies.lost import lost
from analytics.anomalies.phantom import phantom
from analytics.anomalies.properties import properties
from analytics.anomalies.purge import purge
from analytics.anomalies.realtime_order import realtime_order
from analytics.anomalies.reordered import reordered
from analytics.anomalies.replica_divergence import replica_divergence
from analytics.anomalies.stale_read import stale_read
from analytics.anomalies.subscription import subscription
from analytics.anomalies.term_order import term_order
from analytics.anomalies.torn_batch import torn_batch
from analytics.common.check_specs import CHECK_SPECS, CheckSpec
from analytics.tables.tables import Tables


@dataclass(frozen=True, slots=True)
class Check:
    """A named check; `claim`: what one row of its evidence proves, and what it needs for that."""

    name: str
    find: Callable[[Tables], DataFrame]

    @property
    def claim(self) -> CheckSpec:
        """What the check claims."""
        return CHECK_SPECS[self.name]


CHECKS: Final = tuple(
    Check(find.__name__, find)
    for find in (
        lost,
        duplicate_stored,
        duplicate_delivered,
        inconsistent_id,
        properties,
        gap,
        reordered,
        phantom,
        aborted_read,
        future_read,
        torn_batch,
        corrupt,
        realtime_order,
        stale_read,
        cursor_regression,
        subscription,
        purge,
        delayed,
        group_order,
        group_lease,
        group_lost,
        group_content,
        key_order,
        dead_letter,
        fencing,
        term_order,
        leaders_per_term,
        replica_divergence,
        ack_not_durable,
    )
)
