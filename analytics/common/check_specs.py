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
class CheckSpec:
    """`meaning`: what one row of a check's evidence proves.

    `needs_truth`: it judges what stood on the nodes' disks, and can't where none was collected.
    `needs_names`: it judges by who put what was delivered, which an application's record lacks.
    `needs_whole`: the parts of which a line that is missing can make a row out of a correct run: a
    row rests on what is not there. None of them: every row rests on lines that are there.
    """

    meaning: str
    needs_truth: bool = False
    needs_names: bool = False
    needs_whole: tuple[Part, ...] = ()


CHECK_SPECS: Final[Mapping[str, CheckSpec]] = {
    "lost": CheckSpec(
        "a stored publication never reached a subscriber that was owed it, though it got later ones"
        " (middle; prefix: nothing lower came; unplaced: under an unknown id) or drained the topic"
        " (tail), or it was stored below the subscription's start, or not at all, while that stood"
        " (start, unstored), or its library had it and never handed it over (unhanded)",
        needs_whole=(Part.HISTORY,),  # the answer that brought it, or the UNSUB
    ),
    "duplicate_stored": CheckSpec(
        "one publication stands under two ids, or was stored nowhere and acknowledged once more"
    ),
    "duplicate_delivered": CheckSpec(
        "an id was handed over twice, asked for once, or again after it was acknowledged",
        needs_whole=(Part.HISTORY,),  # the GET without an answer after which it may come again
    ),
    "inconsistent_id": CheckSpec(
        "one id was seen with different publications, or with different dead letters"
    ),
    "properties": CheckSpec(
        "a publication's time is smaller than that of one before it (back), or one was said to have"
        " two times (time) or two keys or headers (content)"
    ),
    "gap": CheckSpec(
        "a subscriber's ids jump",
        needs_whole=(Part.HISTORY,),  # the answer in between, the SUB that began above, a release
    ),
    "reordered": CheckSpec("ids go back within a subscriber or along a producer's counters"),
    "phantom": CheckSpec(
        "a publication stands somewhere that nobody tried to put",
        needs_names=True,
        needs_whole=(Part.HISTORY,),  # the PUT
    ),
    "aborted_read": CheckSpec(
        "a publication stands somewhere whose PUT definitely failed, or was told that it does not",
        needs_names=True,
        needs_whole=(Part.HISTORY,),  # a later PUT of the same
    ),
    "future_read": CheckSpec(
        "a publication was delivered before anybody had tried to put it",
        needs_names=True,
        needs_whole=(Part.HISTORY,),  # an earlier PUT of the same
    ),
    "torn_batch": CheckSpec(
        "a batch was not stored as one: its publications do not stand beside each other (split), or"
        " a subscriber got one without its neighbour (half), or a node has taken one (taken)",
        needs_whole=(Part.HISTORY,),  # the answer with the neighbour, a PUT of one of them alone
    ),
    "corrupt": CheckSpec(
        "a payload's format, checksum or topic does not check out", needs_names=True
    ),
    "realtime_order": CheckSpec(
        "a publication stands at or below an id that was known before it was sent",
        needs_whole=(Part.HISTORY,),  # an earlier PUT of the same
    ),
    "stale_read": CheckSpec(
        "an answer ignores what was known before it was asked for",
        needs_whole=(Part.HISTORY,),  # a SUB that began above it
    ),
    "cursor_regression": CheckSpec(
        "a cursor went back, or stands above all that was delivered",
        needs_whole=(Part.HISTORY,),  # what was delivered
    ),
    "subscription": CheckSpec(
        "a subscription or a group that stood was forgotten or denied, one that did not stand was"
        " answered, one begins elsewhere than was said, a pattern missed a topic, or an answer is"
        " of another topic or longer than was asked for",
        needs_whole=(Part.HISTORY,),  # the SUB that made it, or the UNSUB that ended it
    ),
    "purge": CheckSpec(
        "a subscriber was told that publications are purged which no purge had named (unsaid), or"
        " somebody was given what one had removed before (kept), or what somebody had been told is"
        " gone (alive)",
        needs_whole=(Part.HISTORY,),  # the row of the purge
    ),
    "delayed": CheckSpec(
        "what was put with a delay came before that was over (early), under two ids (twice), behind"
        " what it was ahead of (order), where something else stands (other), with another key or"
        " other headers (content), before it was sent, though it had failed, or though nobody put"
        " it (future, aborted, phantom); or it never came to who was owed it (lost, unstored)",
        needs_names=True,
        needs_whole=(Part.HISTORY,),  # the PUT, the answer that brought it
    ),
    "group_order": CheckSpec(
        "what a group's worker has acknowledged is leased again (again), an ack of a lost lease was"
        " accepted (late), or two of one (twice); or attempts or tokens do not go up (attempt,"
        " token), what was said to be settled is given or open again (settled, back), or a request"
        " that was asked again was answered otherwise (step)"
    ),
    "group_lease": CheckSpec(
        "a publication was leased to another, or given up, while a lease of it held (shared), more"
        " attempts are missing than can have been given unseen (jump), or what was said of a lease"
        " was accepted of who never had it (foreign), or when it was over (over)",
        needs_whole=(Part.HISTORY,),  # the nak that gave it back, the TAKE that was given it
    ),
    "group_lost": CheckSpec(
        "a group says that a publication is settled, and nobody acknowledged it (settled), or not"
        " by then (early), nor is it a dead letter",
        needs_whole=(Part.HISTORY,),  # the ack
    ),
    "group_content": CheckSpec(
        "a group's worker was given what does not check out (corrupt), what nobody put (phantom),"
        " what had failed (aborted) or was not sent yet (future), another publication than others"
        " under that id (other), or one that stands under two (twice); or what only workers were"
        " given stands out of order (order, behind) or never reached a subscriber (lost)",
        needs_names=True,
        needs_whole=(Part.HISTORY,),  # the PUT
    ),
    "key_order": CheckSpec(
        "key order broken: a group that is ordered by key gave a publication with another one of"
        " its key (together), before that was given for the last time (again), before something"
        " was said of its lease (held), or before anybody had said that it is done (open)",
        needs_whole=(Part.HISTORY,),  # the ack
    ),
    "dead_letter": CheckSpec(
        "a dead letter stands twice (twice), its publication was acknowledged or is leased again"
        " (acknowledged, leased), was given too seldom (early), it stands in another topic than the"
        " group's (elsewhere), or never reached a subscriber that was owed it (lost)",
        needs_whole=(Part.HISTORY,),  # the TAKE that was given it
    ),
    "fencing": CheckSpec(
        "an operation succeeded after a newer process had taken over, or two processes had success"
        " under one epoch (shared)"
    ),
    "term_order": CheckSpec(
        "a term's leader answered what was sent after an answer of a later term"
    ),
    "leaders_per_term": CheckSpec("two nodes led one term"),
    "replica_divergence": CheckSpec(
        "two nodes hold different entries or states at one index, or terms fall on one (term), or"
        " two of one state hold different things (content)",
        needs_truth=True,
        needs_whole=(Part.HISTORY, Part.TRUTH),  # a PUT that expires, what a node holds
    ),
    "ack_not_durable": CheckSpec(
        "an acknowledged publication is missing from a majority's disks",
        needs_truth=True,
        needs_whole=(Part.TRUTH,),
    ),
}
