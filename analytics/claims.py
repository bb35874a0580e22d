"""What a row of each check proves, and what of a run has to be there for it. No check lives here,
and no Spark: the checks (anomalies/) and their twins (twins/) say the same.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


class Part(enum.StrEnum):
    """A part of a run that a check reads."""

    HISTORY = "history"
    TRUTH = "truth"


@dataclass(frozen=True, slots=True)
class Claim:
    """`meaning`: what one row of a check's evidence proves.

    `needs_truth`: it judges what stood on the nodes' disks, and can't where none was collected.
    `needs_names`: it judges by who put what was delivered, which an application's record lacks.
    `needs_whole`: the part of which a line that is missing can make a row out of a correct run: a
    row rests on what is not there. None: every row rests on lines that are there.
    """

    meaning: str
    needs_truth: bool = False
    needs_names: bool = False
    needs_whole: Part | None = None


CLAIMS: Final[Mapping[str, Claim]] = {
    "lost": Claim(
        "an acknowledged publication never reached a subscriber that was owed it, though it got"
        " later ones (middle; prefix: nothing lower came) or drained the topic (tail), or its"
        " library had it and never handed it over (unhanded)",
        needs_whole=Part.HISTORY,  # the answer that brought it, or the UNSUB
    ),
    "duplicate_stored": Claim("one publication stands under two ids"),
    "duplicate_delivered": Claim(
        "an id was handed over twice, asked for once, or again after it was acknowledged",
        needs_whole=Part.HISTORY,  # the GET without an answer after which it may come again
    ),
    "inconsistent_id": Claim("one id was seen with different publications"),
    "gap": Claim(
        "a subscriber's ids jump",
        needs_whole=Part.HISTORY,  # the answer in between, or the SUB that began above
    ),
    "reordered": Claim("ids go back within a subscriber or along a producer's counters"),
    "phantom": Claim(
        "a publication was delivered that nobody tried to put",
        needs_names=True,
        needs_whole=Part.HISTORY,  # the PUT
    ),
    "aborted_read": Claim(
        "a publication was delivered whose PUT definitely failed",
        needs_names=True,
        needs_whole=Part.HISTORY,  # a later PUT of the same
    ),
    "corrupt": Claim("a payload's format, checksum or topic does not check out", needs_names=True),
    "realtime_order": Claim(
        "a publication stands below one that was acknowledged before it was sent",
        needs_whole=Part.HISTORY,  # an earlier PUT of the same
    ),
    "stale_read": Claim("an answer ignores what was acknowledged before it was asked for"),
    "cursor_regression": Claim(
        "a cursor went back, or stands above all that was delivered",
        needs_whole=Part.HISTORY,  # what was delivered
    ),
    "fencing": Claim("an operation succeeded after a newer process had taken over"),
    "leaders_per_term": Claim("two nodes led one term"),
    "replica_divergence": Claim(
        "two nodes hold different entries or states at one index", needs_truth=True
    ),
    "ack_not_durable": Claim(
        "an acknowledged publication is missing from a majority's disks",
        needs_truth=True,
        needs_whole=Part.TRUTH,
    ),
}
