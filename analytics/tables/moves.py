"""SUBs that say where they start, and seeks: readings of one subscription that begin anew.

moves   one row a client and topic: `moves`, an array of when each may have acted, and which it is

Two operations are of one reading if no move may have acted between the begin of the first and the
end of the second. Moves that were over before the first one are among those that had begun before
the end of the second, so it is enough to compare their numbers: `era_over`, `era_begun`.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.table_store import settled

OWNER: Final = ("run_id", "client_id", "topic")


def moves_of(acts: DataFrame) -> DataFrame:
    """Return `moves`."""
    move = F.struct("from_ns", "latest_ns", "at", "process", "op_id")
    rows = acts.where((F.col("f") == "sub") & F.col("start").isNotNull())
    return settled(rows.groupBy(*OWNER).agg(F.collect_list(move).alias("moves")))


def with_eras(
    rows: DataFrame, moves: DataFrame, over: Column, begun: Column, at: str = "at"
) -> DataFrame:
    """Add `era_over`, the moves that were over at `over`, and `era_begun`, those that had begun
    before `begun`; a SUB that is a move is over for itself. Both are null where a move of another
    host may have acted at any time.
    """
    is_elsewhere = F.exists("moves", lambda move: move["at"] != F.col(at))
    is_itself = _is_itself(rows)
    done = F.filter("moves", lambda move: (move["latest_ns"] <= over) | is_itself(move))
    started = F.filter("moves", lambda move: move["from_ns"] < begun)
    known = rows.join(F.broadcast(moves), list(OWNER), "left")
    era = {"era_over": done, "era_begun": started}
    counted = {
        name: F.when(~F.coalesce(is_elsewhere, F.lit(False)), F.coalesce(F.size(some), F.lit(0)))
        for name, some in era.items()
    }
    return known.withColumns(counted).drop("moves")


def _is_itself(rows: DataFrame):  # type: ignore[no-untyped-def]
    if not {"process", "op_id"} <= set(rows.columns):
        return lambda _: F.lit(False)
    return lambda move: (move["process"] == F.col("process")) & (move["op_id"] == F.col("op_id"))
