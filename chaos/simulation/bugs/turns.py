"""Bugs in a node's turn: its order, elections, reads (rules 7 to 12 and 28 of docs/raft.md).

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.log.entries import Entry
from cluster.node.member import Member
from cluster.raft.raft import Raft
from cluster.raft.ready import Ready
from cluster.serve.broker import _OPERATIONS, Broker, Waiting
from cluster.store.commands import Put
from cluster.store.store import Delivery, Store
from cluster.wire.messages import Message, RequestVote
from flotilla_client.protocol import ERRORS, PUT

_step: Final = Raft.step
_tick: Final = Raft._tick
_receive: Final = Raft._receive
_broker_put: Final = Broker._put
_apply_committed: Final = Member._apply_committed


@bug(
    "7: nothing leaves before what it says is durable",
    {"acknowledged", "commit", "durable", "hard_state", "lost", "vote"},
)
def everything_leaves_before_the_sync(patches: Patches) -> None:
    """Send votes and acknowledgments together with the appends, ahead of the fdatasync."""

    def step(raft: Raft, *arguments: Any, **options: Any) -> Ready:
        ready = _step(raft, *arguments, **options)
        at_once = [*ready.before_sync, *ready.after_sync]
        return ready._replace(before_sync=at_once, after_sync=[]) if ready.after_sync else ready

    patches.attribute(Raft, "step", step)


@bug("a commit takes a majority", {"commit", "durable", "ended", "lost", "prefix"})
def leader_commits_alone(patches: Patches) -> None:
    """Commit on the leader whatever is in its own log."""

    def tick(raft: Raft) -> None:
        if raft.serving:
            raft._core._SyncObj__raftCommitIndex = raft._log.last_index
        _tick(raft)

    patches.attribute(Raft, "_tick", tick)


@bug("9: pre-votes come before votes", {"progress", "vote"}, mode="live")
def followers_stick_to_their_leader(patches: Patches) -> None:
    """Ignore requests for votes while a leader is heard, in the place of pre-votes."""

    def receive(raft: Raft, name: str, message: Message) -> None:
        heard = raft._now - raft._leader_heard_s < raft._timing.election_min_s
        if not isinstance(message, RequestVote) or not (raft.is_leader or heard):
            _receive(raft, name, message)

    patches.attribute(Raft, "_pre_vote", lambda raft: None)
    patches.attribute(Raft, "_receive", receive)


@bug(
    "10: the applied index is committed with the effects",
    {"digest", "ended", "rebuilt", "snapshot"},
)
def applied_index_stays_behind(patches: Patches) -> None:
    """Commit the effects of entries without the position that says so."""

    def commit(store: Store) -> None:
        store._flush()
        store._topics.committed()
        if store._database.in_transaction:
            store._database.commit()

    patches.attribute(Store, "commit", commit)


@bug("10: a commit that is put off takes the applied index with it", {"digest", "ended", "rebuilt"})
def deferred_commit_loses_the_applied_index(patches: Patches) -> None:
    """Commit what a turn has had written, and leave the position to the commit that is due."""

    def settle(store: Store, is_due: bool) -> None:
        if is_due:
            store.commit()
        elif store.uncommitted:
            store._flush()
            store._topics.committed()
            if store._database.in_transaction:
                store._database.commit()

    patches.attribute(Store, "settle", settle)


@bug(
    "11: a deposed leader says that it does not know",
    {"aborted_read", "answered", "content", "definite", "subscription"},
)
def uncertain_counts_as_refused(patches: Patches) -> None:
    """Call an operation that was under way when leadership changed definitely not done."""
    patches.entry(ERRORS, "uncertain", replace(ERRORS["uncertain"], definite=True))


@bug("12: a leader serves after the no-op of its own term", {"barrier", "stale_read"})
def serves_before_its_no_op(patches: Patches) -> None:
    """Serve as soon as a majority has voted."""
    patches.attribute(Raft, "serving", property(lambda raft: raft.is_leader))


@bug("28: reads wait for answers from a majority", {"barrier", "stale_read"})
def barrier_always_passes(patches: Patches) -> None:
    """Answer reads without asking anybody."""
    patches.attribute(Raft, "barrier_passed", lambda raft: raft._reads._newest)


@bug(
    "a GET shows what is committed",
    {"aborted_read", "answered", "barrier", "cursor", "inconsistent_id", "phantom"},
)
def parked_gets_hear_too_early(patches: Patches) -> None:
    """Deliver a publication to whoever waits for its topic before it is committed."""

    def put(broker: Broker, asked: Waiting) -> Put:
        request = asked.request
        count = len(request.lengths) >> 2
        operation: Put = _broker_put(broker, asked)  # type: ignore[assignment]
        found = broker.store._topics.active.get(request.topic)
        if found is not None:
            blobs = operation.lengths, operation.data
            early = Delivery(request.topic, found.last_id + 1, count, *blobs)
            for number, waiting in list(broker._parked.get(request.topic, {}).items()):
                if waiting.request.body.get("last_id") == found.last_id:
                    broker._unpark(number, waiting)
                    broker._deliver(waiting, early)
        return operation

    patches.entry(_OPERATIONS, PUT, put)


@bug(
    "what a turn has no time for is done later",
    {"answered", "applied", "books", "digest", "ended", "prefix", "rebuilt"},
)
def entries_without_time_are_skipped(patches: Patches) -> None:
    """Count all committed entries as applied when a turn's time for them is over."""

    def apply(member: Member, entries: Sequence[Entry]) -> None:
        _apply_committed(member, entries)
        member.raft.advance(member.raft.commit_index)

    patches.attribute(Member, "_apply_committed", apply)


@bug("what rests on a follower is applied in the end", {"progress"}, mode="live")
def what_rests_is_never_due(patches: Patches) -> None:
    """Let what is committed rest on a follower for as long as it follows."""
    patches.attribute(Member, "_may_rest", property(lambda member: True))


@bug("a tick comes when it is due", {"progress"}, mode="live")
def elections_are_never_due(patches: Patches) -> None:
    """Leave the election deadline out of what a tick may be due for."""

    def is_due(raft: Raft) -> bool:
        return raft._core.has_to_apply or raft.is_leader

    patches.attribute(Raft, "tick_is_due", property(is_due))


@bug("a GET is answered when its wait is over", {"answered", "books", "progress"})
def waits_are_over_when_something_happens(patches: Patches) -> None:
    """Look for GETs whose wait is over only when there is something else to serve."""

    def may_serve(broker: Broker, now_ms: float) -> bool:
        return bool(broker._reads or broker._ready or broker._due or broker._woken)

    patches.attribute(Broker, "may_serve", may_serve)
