"""Dead letters that stand twice, and those whose publication is alive."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.common.schema import evidence
from analytics.common.table_store import is_never_any, settled
from analytics.tables.groups import ID, accepted_of, leases_of, letters_of, named, takes_of
from analytics.tables.tables import Tables


def dead_letter(tables: Tables) -> DataFrame:
    """Find what is said of a publication that was given up, and can't be so."""
    letters = settled(letters_of(tables.told, tables.worked))
    if is_never_any(letters):
        return letters.select(*evidence())
    takes = settled(takes_of(tables.worked))
    return (
        _twice(letters)
        .unionByName(_acknowledged(letters, takes))
        .unionByName(_leased(letters, takes))
    )


def _twice(letters: DataFrame) -> DataFrame:
    place = F.struct("stands_in", "stands_at")
    places = letters.groupBy(*ID, place.alias("place")).agg(F.min("seen").alias("seen"))
    both = places.groupBy(*ID).agg(
        F.min(F.struct("place", "seen")).alias("one"),
        F.max(F.struct("place", "seen")).alias("other"),
    )
    return both.where(F.col("one.place") != F.col("other.place")).select(
        *evidence(**named("twice"), operations=F.array("one.seen", "other.seen"))
    )


def _acknowledged(letters: DataFrame, takes: DataFrame) -> DataFrame:
    acks = accepted_of(takes).select(*ID, F.col("seen").alias("ack"))
    return (
        letters.join(acks, list(ID))
        .groupBy(*ID)
        .agg(F.min(F.struct("ack", "seen")).alias("proof"))
        .select(*evidence(**named("acknowledged"), operations=F.array("proof.ack", "proof.seen")))
    )


def _leased(letters: DataFrame, takes: DataFrame) -> DataFrame:
    """Find what was leased by a TAKE that was sent when its dead letter had been read."""
    leases = leases_of(takes).select(
        *ID, "at", F.col("invoke_ns").alias("take_ns"), F.col("seen").alias("take")
    )
    return (
        letters.join(leases, [*ID, "at"])
        .where(F.col("end_ns") < F.col("take_ns"))
        .groupBy(*ID)
        .agg(F.min(F.struct("seen", "take")).alias("proof"))
        .select(*evidence(**named("leased"), operations=F.array("proof.seen", "proof.take")))
    )
