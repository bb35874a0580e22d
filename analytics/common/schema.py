"""The columns of a history and of evidence. No reading, no rule: those are load.py and anomalies/.

The field's meanings are in docs/history.md; this file is their Spark types.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

# A line as it stands in the file. `items` and `corrupt` are arrays of mixed arrays there, which
# only become typed once each place in them is known (load.py).
LINE: Final = (
    "run_id STRING, process STRING, client_id STRING, op_id BIGINT, session BIGINT, type STRING,"
    " f STRING, topic STRING, t_ns BIGINT, wall_ns BIGINT, host STRING, node STRING, term BIGINT,"
    " counter BIGINT, count BIGINT, first_id BIGINT, last_id BIGINT,"
    " items ARRAY<ARRAY<STRING>>, corrupt ARRAY<ARRAY<STRING>>, error STRING, attempt BIGINT,"
    " duplicate BOOLEAN, phase STRING, epoch BIGINT, resumed BOOLEAN, cursor BIGINT,"
    " digests STRING, invoke_ns BIGINT, asked BIGINT,"
    " handed_apart BOOLEAN, redelivered BIGINT, max_count BIGINT, max_bytes BIGINT, bytes BIGINT,"
    " start STRING, times ARRAY<ARRAY<BIGINT>>, marked ARRAY<BIGINT>, properties STRING,"
    " group STRING, number BIGINT, lease_ms BIGINT, max_attempts BIGINT, dead_letter STRING,"
    " acks ARRAY<ARRAY<BIGINT>>, naks ARRAY<ARRAY<BIGINT>>, extends ARRAY<ARRAY<BIGINT>>,"
    " token BIGINT, leases ARRAY<ARRAY<BIGINT>>, lost ARRAY<ARRAY<BIGINT>>, left_ms BIGINT,"
    " letters ARRAY<ARRAY<STRING>>, ordered_by_key BOOLEAN, keyed ARRAY<BIGINT>, keys STRING,"
    " expires ARRAY<ARRAY<BIGINT>>, delayed ARRAY<ARRAY<STRING>>,"
    " delays ARRAY<ARRAY<BIGINT>>, compacted BOOLEAN, unsaid BOOLEAN"
)
ITEM: Final = "STRUCT<first_id: BIGINT, producer: STRING, counter: BIGINT, count: BIGINT>"
BAD_ITEM: Final = "STRUCT<id: BIGINT, reason: STRING>"
LANE: Final = "\x1fdelayed"  # behind a topic's name: what is put there with a delay
LETTER: Final = "STRUCT<id: BIGINT, topic: STRING, group: STRING, from_id: BIGINT>"
# A line once read, and a row of a history that is kept as Parquet.
EVENT: Final = (
    LINE.replace("items ARRAY<ARRAY<STRING>>", f"items ARRAY<{ITEM}>")
    .replace("corrupt ARRAY<ARRAY<STRING>>", f"corrupt ARRAY<{BAD_ITEM}>")
    .replace("letters ARRAY<ARRAY<STRING>>", f"letters ARRAY<{LETTER}>")
    .replace("delayed ARRAY<ARRAY<STRING>>", f"delayed ARRAY<{ITEM}>")
)

# For `options` of a Parquet writer, which took a third of all the time that a long history takes.
# Numbers that hardly repeat: to try a dictionary for them took a tenth of it, and none came of it.
# Nobody reads how long values are, nor from which name to which a file has them: nothing is
# looked for by these.
PLAIN: Final = {
    f"parquet.enable.dictionary#{name}": "false"
    for name in (
        *("op_id", "t_ns", "wall_ns", "invoke_ns", "end_ns", "counter", "asked", "sent_id"),
        *("first_id", "last_id", "first", "last", "first_counter", "last_counter"),
        *(f"items.list.element.{name}" for name in ("first_id", "counter")),
        *(f"pieces.list.element.{name}" for name in ("first", "last", "shift")),
    )
} | {
    "parquet.size.statistics.enabled": "false",
    **{
        f"parquet.column.statistics.enabled#{name}": "false"
        for name in ("run_id", "process", "client_id", "producer", "topic", "host")
    },
}

BROKEN: Final = "process STRING, op_id BIGINT"  # operations that are left out

# A line of a node's truth; which fields a row has depends on its `kind`.
TRUTH: Final = (
    "run_id STRING, node STRING, kind STRING, index BIGINT, term BIGINT, digest STRING,"
    " topic STRING, first_id BIGINT, producer STRING, first_counter BIGINT, count BIGINT,"
    " last_id BIGINT, floor_id BIGINT, counter BIGINT"
)
# The nodes that a run had, and whether it is known what stood on their disks at its end.
NODES: Final = "run_id STRING, node STRING, is_collected BOOLEAN"

# Of ids, counters and cursors: above, JSON's numbers are not exact everywhere.
NUMBER_MAX: Final = 2**53
COUNT_MAX: Final = 2**24  # publications in one operation: far more than a batch can hold

DIGEST_DIGITS: Final = 16  # of one publication, in `digests`

TYPES: Final = ("invoke", "ok", "fail", "info")
HANDLINGS: Final = ("hand", "ack", "release")
PURGES: Final = ("purge", "purged")  # asked for, carried out
ANY_ID: Final = 2**53 - 1  # what a row of a policy that drops its oldest says as `last_id`
OF_GROUPS: Final = ("group", "ungroup", "take")
OF_LEASES: Final = ("acks", "naks", "extends", "leases", "lost")
OPERATIONS: Final = ("put", "get", "sub", "unsub", *OF_GROUPS)
FUNCTIONS: Final = (*OPERATIONS, "fault", "phase", *HANDLINGS, *PURGES)

# An operation's key: its invoke and its completion share it.
KEY: Final = ("run_id", "process", "op_id")

OPERATION: Final = "STRUCT<process: STRING, op_id: BIGINT>"
EVIDENCE: Final = (
    ("run_id", "STRING"),
    ("topic", "STRING"),
    ("client_id", "STRING"),  # the subscriber that saw it; null where it is nobody's alone
    ("id", "BIGINT"),
    ("other_id", "BIGINT"),  # the id that it contradicts: before it, or the second place of it
    ("producer", "STRING"),
    ("counter", "BIGINT"),
    ("detail", "STRING"),
    ("operations", f"ARRAY<{OPERATION}>"),  # the operations that prove it
)


def texts(columns: str) -> list[str]:
    """Return the names of those of `columns` (`LINE`, `TRUTH`) that are texts."""
    fields = (field.strip().split(" ") for field in columns.split(","))
    return [name for name, kind in fields if kind == "STRING"]


def evidence(**columns: Column) -> list[Column]:
    """Return the columns of an evidence row; those not given are null.

    Every check selects these last, so all evidence has one shape (`EVIDENCE`).
    """
    unknown = columns.keys() - dict(EVIDENCE).keys()
    assert not unknown, f"not columns of evidence: {sorted(unknown)}"
    return [columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in EVIDENCE]


def operation(process: str = "process", op_id: str = "op_id") -> Column:
    """Return the struct that names one operation in `operations`."""
    return F.struct(F.col(process).alias("process"), F.col(op_id).alias("op_id"))
