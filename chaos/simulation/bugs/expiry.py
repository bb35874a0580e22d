"""Bugs in what expires: who is given it, until when, and what becomes of it.

What must not live here: what finds them.
"""

from __future__ import annotations

from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.serve.broker import Broker
from cluster.store.groups import DeadOfTake, Groups, SharedGroup
from cluster.store.outcomes import Delivery, Refused
from cluster.store.publications import Publications, Row
from cluster.store.store import Store
from cluster.store.tables import Database
from cluster.store.topics import Topic, Topics
from flotilla_client.reading import Readers

_run: Final = Row.run
_init: Final = Publications.__init__
_stamp_of: Final = Publications._stamp_of
_pass_expired: Final = Groups._pass_expired
_lapsed: Final = Store._lapsed
_deliver: Final = Store._deliver

FOUND: Final = {"answered", "rebuilt", "digest", "properties", "ended"}


@bug("nobody is given what has expired", FOUND)
def what_has_expired_is_given_all_the_same(patches: Patches) -> None:
    """Deliver from rows whatever they hold, and wait for no entry that would say otherwise."""

    def run(row: Row, first_id: int, count_max: int, log_ms: int, is_over: bool) -> int:
        return _run(row, first_id, count_max, 0, is_over)

    patches.attribute(Row, "run", run)
    patches.attribute(Broker, "_is_over", lambda broker, delivery, now_ms: False)


@bug("an expiry counts from when it was stored", FOUND)
def expiries_count_from_the_log_s_begin(patches: Patches) -> None:
    """Take the milliseconds of an expiry for a time of the log's."""

    def stamp_of(publications: Publications, key: int) -> int | None:
        return None if _stamp_of(publications, key) is None else 0

    patches.attribute(Publications, "_stamp_of", stamp_of)


@bug("what expires is known behind a restart", FOUND)
def stamps_are_forgotten_at_a_start(patches: Patches) -> None:
    """Take it that nothing on disk expires."""

    def init(publications: Publications, database: Database, latest: Any, dropped: Any) -> None:
        _init(publications, database, latest, dropped)
        publications._has_stamps = False

    patches.attribute(Publications, "__init__", init)


@bug("what has expired is kept for nobody", {"answered", "rebuilt", "books"})
def what_has_expired_is_kept(patches: Patches) -> None:
    """Let the floor wait for who has not read what has expired."""
    patches.attribute(Topic, "lapsed_id", property(lambda topic: 0))


@bug("what may become a dead letter is kept until a take has looked at it", FOUND)
def the_floor_passes_what_a_group_has_not_looked_at(patches: Patches) -> None:
    """Collect what has expired, though a group has dead letters."""
    patches.attribute(Topic, "lapsed_id", property(lambda topic: topic.expired_id))


@bug("a take gives nothing that has expired", FOUND)
def what_is_given_again_never_expires(patches: Patches) -> None:
    """Lease again what was given back, though it has expired."""
    patches.attribute(Publications, "has_expired", lambda publications, topic, id_, log_ms: False)


@bug("what expires in a group is a dead letter of it", FOUND)
def what_expires_in_a_group_is_dropped(patches: Patches) -> None:
    """Let what has expired and was never given be gone, dead letters or not."""

    def pass_expired(groups: Groups, group: SharedGroup, dead: DeadOfTake, now_ms: int) -> bool:
        name, group.dead_letter = group.dead_letter, ""
        try:
            return _pass_expired(groups, group, dead, now_ms)
        finally:
            group.dead_letter = name

    patches.attribute(Groups, "_pass_expired", pass_expired)


@bug("the oldest of a topic goes when its time is over", {"answered", "rebuilt", "books"})
def nobody_waits_for_the_oldest_to_expire(patches: Patches) -> None:
    """Collect what has expired only with the next policy's age."""
    _await: Final = Topics._await

    def wait(topics: Topics, topic: Topic) -> None:
        expiry, topic.expiry = topic.expiry, None
        _await(topics, topic)
        topic.expiry = expiry

    patches.attribute(Topics, "_await", wait)


@bug("a reader goes on behind what has expired", {"cursor", "skipped", "lost", "gap"})
def what_has_expired_is_passed_by_one(patches: Patches) -> None:
    """Go on one id behind the last that has expired, and miss that one."""
    _pass_over: Final = Readers.pass_over

    def pass_over(readers: Readers, topic: str, last_id: int) -> None:
        _pass_over(readers, topic, last_id + 1)

    patches.attribute(Readers, "pass_over", pass_over)


@bug("an answer passes nothing that has not expired", FOUND)
def an_answer_passes_one_more(patches: Patches) -> None:
    """Tell a reader that one more has expired, and deliver what follows that."""

    def lapsed(store: Store, topic: Topic, last_id: int, *more: Any) -> Any:
        gone = _lapsed(store, topic, last_id, *more)
        if isinstance(gone, Refused) and gone.details["last_id"] + 1 < topic.last_id:
            gone.details["last_id"] += 1
            gone.details["missed"] += 1
        return gone

    patches.attribute(Store, "_lapsed", lapsed)


@bug("what an answer passes is told", FOUND)
def what_an_answer_passes_is_not_told(patches: Patches) -> None:
    """Deliver what follows, and say nothing of what has expired in front of it."""

    def deliver(store: Store, *asked: Any) -> Any:
        delivery = _deliver(store, *asked)
        if isinstance(delivery, Delivery):
            delivery.passed = None
        return delivery

    patches.attribute(Store, "_deliver", deliver)
