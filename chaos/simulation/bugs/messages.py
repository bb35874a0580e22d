"""Bugs in what members believe of each other's messages (rules 14 to 21 of docs/raft.md).

What must not live here: what finds them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.log import journal
from cluster.raft.transport import _RECEIVE, Guard
from cluster.wire.messages import AppendEntries, RequestVoteResponse, SnapshotOffer

_next_index: Final = Guard._next_index
_receive_append: Final = Guard._receive_append


def _shorten_messages(patches: Patches) -> None:
    """Send one entry a message, so that a short backlog is several, as a long one is."""
    patches.attribute(journal, "SLICE_ENTRIES_MAX", 1)


@bug("16: an append commits no more than it proves", {"commit", "ended", "prefix"})
def commit_index_is_believed(patches: Patches) -> None:
    """Commit up to the leader's index, whatever stands there."""

    def receive(guard: Guard, name: str, message: AppendEntries) -> None:
        if guard._refused_as_stale(name, message.term):
            return
        guard._proved_index = message.previous_index + len(message.entries)
        append = {"type": "append_entries", "term": message.term, "entries": message.entries}
        append |= {"prevLogIdx": message.previous_index, "prevLogTerm": message.previous_term}
        guard._pass(name, append | {"commit_index": message.commit_index})

    patches.entry(_RECEIVE, AppendEntries, receive)
    _shorten_messages(patches)


@bug("17: an offer commits nothing", {"commit", "ended", "prefix"})
def offer_commits_the_whole_log(patches: Patches) -> None:
    """Commit what is in the log when a snapshot is offered."""

    def receive(guard: Guard, name: str, message: SnapshotOffer) -> None:
        if not guard._refused_as_stale(name, message.term):
            guard.offer = name
            offer = {"type": "append_entries", "term": message.term, "commit_index": 2**62}
            guard._pass(name, offer | {"serialized": (b"", True, True)})

    patches.entry(_RECEIVE, SnapshotOffer, receive)


@bug(
    "a message of an older term counts no more",
    {"acknowledged", "append", "applied", "commit", "durable", "ended", "lost", "prefix"},
)
def deposed_leaders_are_obeyed(patches: Patches) -> None:
    """Take a deposed leader's entries for the new leader's."""

    def receive(guard: Guard, name: str, message: AppendEntries) -> None:
        term = max(message.term, guard._core.term)
        _receive_append(guard, name, replace(message, term=term))

    patches.entry(_RECEIVE, AppendEntries, receive)


@bug("20: a vote is counted once", {"ended", "leaders", "prefix", "vote"}, nodes=5)
def votes_are_counted_twice(patches: Patches) -> None:
    """Count each voter's answer twice, as if it had come twice."""

    def receive(guard: Guard, name: str, message: RequestVoteResponse) -> None:
        for _ in range(2):
            guard._pass(name, {"type": "response_vote", "term": message.term})

    patches.entry(_RECEIVE, RequestVoteResponse, receive)
