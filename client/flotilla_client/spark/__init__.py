"""Topics as DataFrames, and DataFrames into topics: `format("flotilla")` (docs/spark.md).

    from flotilla_client.spark import register

    register(spark)
    spark.readStream.format("flotilla").option("endpoints", …).option("topic", "orders").load()

What lives here: a data source for Spark 4.2 or newer, in Python. It needs the extra `spark` of
flotilla-client (pyspark, pyarrow), which nothing else of the client's imports. What must not:
anything that the client needs without Spark.
"""

try:
    import pyarrow as _arrow  # noqa: F401
    from pyspark.sql import SparkSession
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"{missing.name} is not installed: flotilla_client.spark needs the extra `spark`,"
        " pip install './client[spark]' in a checkout",
        name=missing.name,
    ) from missing

from flotilla_client.spark.errors import (
    BadOption,
    BadSchema,
    BatchRefused,
    DataLost,
    NotRepeatable,
    SparkError,
    StaleBatch,
)
from flotilla_client.spark.source import FlotillaDataSource

__all__ = [
    "BadOption",
    "BadSchema",
    "BatchRefused",
    "DataLost",
    "FlotillaDataSource",
    "NotRepeatable",
    "SparkError",
    "StaleBatch",
    "register",
]


def register(spark: SparkSession) -> None:
    """Make the format `flotilla` known to a session. Again is no harm."""
    spark.dataSource.register(FlotillaDataSource)
