"""Which bug is tried how: the table. Nothing else lives here; what is measured is in docs/."""

from __future__ import annotations

from typing import Final

from tests.chaos_bugs.trial import Case

LONG_FALLBACK: Final = {"raft.fallback_ms": 5_000}  # a deposed leader that is slow to notice
CLOSE_ELECTIONS: Final = {"raft.election_max_ms": 320}  # from 300 on: several stand at once

DEDUPE_OFF: Final = Case(
    bug="repeated-puts-are-stored-again",
    experiment="kills-and-pipelines",
    caught_by=frozenset({"duplicate_stored"}),
)
ACK_BEFORE_FSYNC: Final = Case(
    bug="sync-without-the-disk",
    experiment="dark",
    caught_by=frozenset({"lost", "ack_not_durable"}),
    seed=3,  # of those whose first power loss hits all
)
ACK_BEFORE_REPLICATE: Final = Case(
    bug="leader-commits-alone",
    experiment="cut-off",
    caught_by=frozenset({"lost", "stale_read", "ack_not_durable", "inconsistent_id"}),
    target="namespaces",
    settings=LONG_FALLBACK,
)
STALE_READ: Final = Case(
    bug="barrier-always-passes",
    experiment="cut-off",
    caught_by=frozenset({"stale_read"}),
    target="namespaces",
    settings=LONG_FALLBACK,
)
VOTE_FORGOTTEN: Final = Case(
    bug="votes-are-forgotten",
    experiment="two-sides",
    caught_by=frozenset({"leaders_per_term"}),
    target="namespaces",
    settings=CLOSE_ELECTIONS,
    seeds_max=5,
)
COUNTERS_FORGOTTEN: Final = Case(
    bug="producers-live-in-memory",
    experiment="all-die",
    caught_by=frozenset({"duplicate_stored"}),
)
LAME_NODE: Final = Case(
    bug="one-node-applies-backwards",
    experiment="kills-and-pipelines",
    caught_by=frozenset({"replica_divergence"}),
)
FENCING_OFF: Final = Case(
    bug="epochs-are-not-compared",
    experiment="doubles",
    caught_by=frozenset({"fencing"}),
)
CHECKSUMS_OFF: Final = Case(
    bug="checksums-are-not-compared",
    experiment="rot",
    complaint="goes on with a damaged disk",
)
FLOOR_TOO_HIGH: Final = Case(
    bug="floor-is-the-fastest-cursor",
    experiment="slow-readers",
    complaint="did not drain",
)

QUICK: Final = [DEDUPE_OFF, ACK_BEFORE_FSYNC]
CASES: Final = [
    DEDUPE_OFF,
    ACK_BEFORE_FSYNC,
    ACK_BEFORE_REPLICATE,
    STALE_READ,
    VOTE_FORGOTTEN,
    COUNTERS_FORGOTTEN,
    LAME_NODE,
    FENCING_OFF,
    CHECKSUMS_OFF,
    FLOOR_TOO_HIGH,
]
# Each experiment once as it is: what a bug is blamed for must not happen without it.
CONTROLS: Final = list({case.experiment: case for case in reversed(CASES)}.values())[::-1]
