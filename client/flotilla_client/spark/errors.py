"""What a Spark job is told by name when the data source `flotilla` refuses.

What lives here: the exceptions of this package alone. What must not: those of a cluster's answers
(flotilla_client.errors), which come out as they are: Unauthorized, UnknownTopic, Unavailable, …

    SparkError
    ├── BadOption           an option that is unknown, missing or no such value
    ├── BadSchema           columns that are not those of a publication
    ├── DataLost            ids that were to be read are not kept any more
    └── BatchRefused        a micro-batch that must not be written
        ├── NotRepeatable   it runs again, and its rows are not those of before
        └── StaleBatch      a later one was written already, or its job is over
"""

from __future__ import annotations


class SparkError(Exception):
    """What the data source `flotilla` refuses."""


class BadOption(SparkError, ValueError):
    """An option is unknown, missing, or has no such value."""


class BadSchema(SparkError, TypeError):
    """The columns are not those of a publication; the message says which are."""


class DataLost(SparkError):
    """Ids that were to be read are not kept any more, and `failOnDataLoss` is true."""


class BatchRefused(SparkError):
    """A partition of a micro-batch must not be written; nothing of it was stored by this task."""


class NotRepeatable(BatchRefused):
    """A partition of a batch that runs again lacks rows that were stored before."""


class StaleBatch(BatchRefused):
    """This one comes from a run that is over: a later batch of its producer was written, or the
    job has ended.
    """
