"""Each check once more in plain Python, id by id: the oracle of the Spark functions, and the way
to check simulations, which are many and small. No Spark, no interval arithmetic, no cleverness
here: the two are worth something to each other as long as they have nothing in common.

Events are dictionaries as docs/history.md has them, all of one run, in memory. What a row of
evidence proves is said at the Spark function of the same name (analytics/anomalies/).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from analytics.twins import clocks, disks, publications
from analytics.twins.run import Event, Evidence, Run, read

__all__ = ["TWINS", "Event", "Evidence", "Run", "find_all", "read"]

TWINS: Final[Mapping[str, Callable[[Run], list[Evidence]]]] = {
    "lost": publications.lost,
    "duplicate_stored": publications.duplicate_stored,
    "duplicate_delivered": publications.duplicate_delivered,
    "inconsistent_id": publications.inconsistent_id,
    "gap": publications.gap,
    "reordered": publications.reordered,
    "phantom": publications.phantom,
    "aborted_read": publications.aborted_read,
    "corrupt": publications.corrupt,
    "realtime_order": clocks.realtime_order,
    "stale_read": clocks.stale_read,
    "cursor_regression": clocks.cursor_regression,
    "fencing": clocks.fencing,
    "leaders_per_term": clocks.leaders_per_term,
    "replica_divergence": disks.replica_divergence,
    "ack_not_durable": disks.ack_not_durable,
}


def find_all(
    events: Iterable[Event], truth: Iterable[Event] = (), nodes: Mapping[str, bool] | None = None
) -> dict[str, list[Evidence]]:
    """Return the evidence of every check over the events of one run, sorted.

    `truth`: what stood on the nodes' disks at its end; `nodes`: of each whether its disk was read.
    """
    run = read(events, truth, nodes)
    return {name: sorted(find(run), key=repr) for name, find in TWINS.items()}
