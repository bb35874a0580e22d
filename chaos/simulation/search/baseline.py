"""The control: pysyncobj as it comes, in the same world with the same clients and checks.

What lives here: the seam without its rules, and the plans that show what that loses. What must not:
the rules themselves (cluster/), single sabotages (bugs/).

Stock are the journal's semantics (an append truncates what follows its previous entry; loading a
dump wipes the log; nothing is ever synced) and the messages' (whatever comes is believed). The
broker, the store, the copies of it and the clients are ours, and the bytes on disk: pysyncobj's own
would know nothing of the store. docs/raft.md has the audit that this repeats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from chaos.simulation.bugs import BUGS, Bug
from chaos.simulation.bugs.registry import Patches
from cluster.log import journal
from cluster.raft.raft import Raft
from cluster.raft.transport import _RECEIVE, Guard
from cluster.wire.messages import AppendEntriesResponse

_receive_append_entries_response: Final = Guard._receive_append_entries_response
SEEDS_MAX: Final = 20  # of `plan_for`: within these the control has lost something
BATCH_BYTES: Final = 1 << 16  # stock appendEntriesBatchSizeBytes: a longer backlog is cut there

# Rules of docs/raft.md that stock pysyncobj does not keep, by the bug that leaves one out.
WITHOUT: Final = (
    "truncates-like-stock",
    "restart-wipes-the-log",
    "sync-without-the-disk",
    "everything-leaves-before-the-sync",
    "commit-index-is-believed",
    "offer-commits-the-whole-log",
    "votes-are-counted-twice",
)


def _plant(patches: Patches) -> None:
    """Take the guards off pysyncobj."""
    for name in WITHOUT:
        BUGS[name].plant(patches)

    def next_index(guard: Guard, name: str, message: dict[str, Any]) -> AppendEntriesResponse:
        reset, success = message["reset"], message["success"]
        return AppendEntriesResponse(guard._core.term, message["next_node_idx"], reset, success)

    def receive(guard: Guard, name: str, message: AppendEntriesResponse) -> None:
        _receive_append_entries_response(guard, name, replace(message, term=guard._core.term))

    patches.entry(_RECEIVE, AppendEntriesResponse, receive)  # rule 15
    patches.attribute(Guard, "_refused_as_stale", lambda guard, name, term: False)  # 21
    patches.attribute(Guard, "_next_index", next_index)  # rules 18 and 19
    patches.attribute(Raft, "_pre_vote", lambda raft: None)  # rule 9
    patches.attribute(Guard, "_keep_next_index", lambda guard, name, before: None)  # rule 22
    patches.attribute(journal, "SLICE_BYTES_MAX", BATCH_BYTES)


CONTROL: Final = Bug(
    "stock-pysyncobj",
    "all of docs/raft.md",
    "Take the guards off pysyncobj.",
    frozenset({"acknowledged", "append", "commit", "durable", "lost", "prefix", "vote"}),
    SEEDS_MAX,
    "safety",
    3,
    _plant,
)
