"""Which bug is tried how: the table. Nothing else lives here; what is measured is in docs/."""

from __future__ import annotations

from typing import Final

from cluster.node.node import EXIT_DATA
from tests.chaos_bugs.sabotaged import LAME
from tests.chaos_bugs.trial import BugCase, OwnEnd

LONG_FALLBACK: Final = {"raft.fallback_ms": 5_000}  # a deposed leader that is slow to notice
CLOSE_ELECTIONS: Final = {  # several stand at once
    "raft.election_min_ms": 150,
    "raft.election_max_ms": 160,
    "raft.heartbeat_ms": 40,
}
COMPARISON: Final = "states-are-not-compared"  # a node that differs would stop too soon

DEDUPE_OFF: Final = BugCase(
    bug="repeated-puts-are-stored-again",
    experiment="kills-and-pipelines",
    caught_by=frozenset({"duplicate_stored"}),
)
ACK_BEFORE_FSYNC: Final = BugCase(
    bug="sync-without-the-disk",
    experiment="dark",
    caught_by=frozenset({"lost", "ack_not_durable"}),
    seeds=(3, 7, 8),  # whose first power loss hits all
)
ACK_BEFORE_REPLICATE: Final = BugCase(
    bug="leader-commits-alone",
    experiment="unheard",
    # What it acknowledged alone is gone, and its ids are another's. The publishers, whose counters
    # have a gap now, can't empty their outboxes: most runs end there, without drain and truth.
    caught_by=frozenset({"lost", "ack_not_durable", "inconsistent_id"}),
    target="namespaces",
)
STALE_READ: Final = BugCase(
    bug="barrier-always-passes",
    experiment="cut-off",
    caught_by=frozenset({"stale_read"}),
    target="namespaces",
    settings=LONG_FALLBACK,
)
VOTE_FORGOTTEN: Final = BugCase(
    bug="votes-are-forgotten",
    experiment="rivals",
    caught_by=frozenset({"leaders_per_term"}),
    target="namespaces",
    settings=CLOSE_ELECTIONS,
)
COUNTERS_FORGOTTEN: Final = BugCase(
    bug="producers-leave-no-trace",
    without=(COMPARISON,),
    experiment="all-die",
    # No disk has the counters. What is sent again is stored again, if a kill hits such a moment.
    caught_by=frozenset({"duplicate_stored", "ack_not_durable"}),
)
LAME_NODE: Final = BugCase(
    bug="one-node-applies-backwards",
    without=(COMPARISON,),
    experiment="kills-and-pipelines",
    caught_by=frozenset({"replica_divergence"}),
)
LAME_NODE_COMPARED: Final = BugCase(  # the others must not end
    bug="one-node-applies-backwards",
    experiment="long-calm",
    ends=OwnEnd(LAME, EXIT_DATA, "this node's state differs from that of a majority"),
)
FENCING_OFF: Final = BugCase(
    bug="epochs-are-not-compared",
    experiment="doubles",
    caught_by=frozenset({"fencing"}),
)
CHECKSUMS_OFF: Final = BugCase(
    bug="checksums-are-not-compared",
    experiment="rot",
    complaint="goes on with a damaged disk",
)
DAMAGE_CUT_OFF: Final = BugCase(
    bug="damage-counts-as-a-torn-tail",
    experiment="rot",
    complaint="goes on with a damaged disk",
)
FSYNC_TRIED_AGAIN: Final = BugCase(
    bug="failed-fsync-is-tried-again",
    experiment="sick-disks",
    complaint="went on when an fsync of the journal had failed",
)
FLOOR_TOO_HIGH: Final = BugCase(
    bug="floor-is-the-fastest-cursor",
    experiment="slow-readers",
    caught_by=frozenset({"purge"}),  # who reads slowly is told that something is gone
)

WIPED_COUNT: Final = BugCase(
    bug="wiped-nodes-count-at-once",
    without=("the-evicted-are-welcome",),
    experiment="lost-disks",
    caught_by=frozenset({"replica_divergence", "ack_not_durable", "lost", "leaders_per_term"}),
)

CURSOR_TOO_FAR: Final = BugCase(
    bug="cursor-moves-too-far",
    experiment="crashes",
    caught_by=frozenset({"gap", "lost"}),
    sabotages="clients",
)

QUICK: Final = [ACK_BEFORE_FSYNC]  # in `make test`: the cheapest, by the twins alone
CASES: Final = [
    DEDUPE_OFF,
    ACK_BEFORE_FSYNC,
    ACK_BEFORE_REPLICATE,
    STALE_READ,
    VOTE_FORGOTTEN,
    COUNTERS_FORGOTTEN,
    LAME_NODE,
    LAME_NODE_COMPARED,
    FENCING_OFF,
    CHECKSUMS_OFF,
    DAMAGE_CUT_OFF,
    FSYNC_TRIED_AGAIN,
    FLOOR_TOO_HIGH,
    WIPED_COUNT,
    CURSOR_TOO_FAR,
]
# Each experiment once as it is: what a bug is blamed for must not happen without it.
CONTROLS: Final = list({case.experiment: case for case in CASES}.values())
