"""What came under an id that no PUT was answered with: what had a delay, and dead letters. No rule
about right and wrong here.

arrivals   one row an id, `what` came under it, and a host (`at`) on which is known behind which
           moment that was stored (`since_ns`); by its delay behind which (`due_ns`)
brought    one row an id, what came, and an answer that brought it
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.common.table_store import is_never_any, none_of, settled
from analytics.tables.delays import PUBLICATION, first_tries_of, singles_of, tries_of
from analytics.tables.groups import GROUP, ID, groups_of, leases_of, letters_of, takes_of

PLACE: Final = ("run_id", "topic", "id")
ARRIVAL: Final = (*PLACE, "what")


def _delayed() -> Column:
    """Return `what`, of a publication: nothing in it is null, as it is joined by."""
    nothing = F.lit("")
    return F.struct(
        "producer", nothing.alias("topic"), nothing.alias("group"), F.col("counter").alias("number")
    ).alias("what")


def _letter() -> Column:
    """Return `what`, of a dead letter."""
    nobody = F.lit("").alias("producer")
    return F.struct(nobody, "topic", "group", F.col("id").alias("number")).alias("what")


def arrivals_of(
    lanes: DataFrame, comings: DataFrame, told: DataFrame, worked: DataFrame
) -> DataFrame:
    """Return `arrivals`: ARRIVAL, at, since_ns, due_ns, and `seen`, an answer that brought it."""
    delayed = _delayed_arrivals(lanes, comings)
    if is_never_any(worked) or is_never_any(told):
        return delayed
    return delayed.unionByName(_letter_arrivals(told, worked))


def _delayed_arrivals(lanes: DataFrame, comings: DataFrame) -> DataFrame:
    came = singles_of(comings).groupBy(*PUBLICATION, "id").agg(F.min("seen").alias("seen"))
    rows = came.join(first_tries_of(tries_of(lanes)), list(PUBLICATION))
    found = rows.select(
        *PLACE, _delayed(), "at", F.col("sent_ns").alias("since_ns"), "due_ns", "seen"
    )
    return none_of(found) if is_never_any(comings) else found


def _letter_arrivals(told: DataFrame, worked: DataFrame) -> DataFrame:
    places = letters_of(told, worked).groupBy(*ID, "stands_in", "stands_at")
    letters = settled(places.agg(F.min("seen").alias("seen")))
    if is_never_any(letters):
        rows = letters.withColumns({"at": F.lit(""), "leased_ns": F.lit(0).cast("bigint")})
    else:
        rows = letters.join(leased_since(letters.select(*ID).distinct(), worked), list(ID))
    named = rows.withColumn("what", _letter()).drop("topic", "id")
    return named.withColumnsRenamed({"stands_in": "topic", "stands_at": "id"}).select(
        *(*ARRIVAL, "at", F.col("leased_ns").alias("since_ns")),
        *(F.col("leased_ns").alias("due_ns"), "seen"),
    )


def leased_since(buried: DataFrame, worked: DataFrame) -> DataFrame:
    """Return (ID, at, leased_ns): when on a host each id of `buried` was last asked for that was
    leased then, in a group that stood. Its dead letter was made behind that.
    """
    stood = groups_of(worked).where("stood").select(*GROUP)
    own = takes_of(worked).join(F.broadcast(stood), list(GROUP), "leftsemi")
    leases = leases_of(own).join(F.broadcast(buried), list(ID), "leftsemi")
    return leases.groupBy(*ID, "at").agg(F.max("begun_ns").alias("leased_ns"))


def brought_of(comings: DataFrame, told: DataFrame, worked: DataFrame) -> DataFrame:
    """Return `brought`: ARRIVAL, at, end_ns, process, op_id."""
    delayed = singles_of(comings).select(*PLACE, _delayed(), "at", "end_ns", "seen")
    if is_never_any(comings):
        delayed = none_of(delayed)
    letters = letters_of(told, worked).withColumn("what", _letter()).drop("topic", "id")
    letters = letters.withColumnsRenamed({"stands_in": "topic", "stands_at": "id"})
    rows = delayed.unionByName(letters.select(*delayed.columns))
    return rows.select(*ARRIVAL, "at", "end_ns", "seen.process", "seen.op_id")


def letter_topics_of(told: DataFrame, worked: DataFrame) -> DataFrame:
    """Return (run_id, topic) of the topics in which dead letters stand."""
    letters = letters_of(told, worked)
    return letters.select("run_id", F.col("stands_in").alias("topic")).distinct()
