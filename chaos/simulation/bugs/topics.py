"""Bugs in topics' policies, and in where subscriptions start and are moved to.

What must not live here: what finds them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.store.commands import Advance
from cluster.store.outcomes import Outcome
from cluster.store.retention import Retention
from cluster.store.store import Store
from cluster.store.topics import Topic, Topics

_advance: Final = Store._advance
_start: Final = Store._start
_cursor_of: Final = Store._cursor_of
_find_kept: Final = Retention.find_kept
_find_floor: Final = Topic.find_floor
_flush: Final = Topics.flush
_place: Final = Topics.place


@bug("what a policy keeps stays", {"answered", "rebuilt"})
def a_policy_keeps_one_less(patches: Patches) -> None:
    """Let one publication more go than a policy says, of those that everybody has read."""

    def find_kept(kept: Retention, last_id: int, added_bytes: int, log_ms: int) -> None:
        _find_kept(kept, last_id, added_bytes, log_ms)
        kept.keep_id = min(last_id, kept.keep_id + 1)

    patches.attribute(Retention, "find_kept", find_kept)


@bug("a topic with a policy stores what nobody subscribes to", {"answered"})
def a_kept_topic_stores_for_subscribers_alone(patches: Patches) -> None:
    """Take what is put to a topic that keeps it only while somebody subscribes."""
    patches.attribute(Topic, "takes", property(lambda topic: bool(topic.subscribers)))


@bug("a policy outlives the process", {"answered", "rebuilt", "digest", "ended"})
def a_policy_is_forgotten_by_a_restart(patches: Patches) -> None:
    """Keep policies in memory alone."""

    def flush(topics: Topics) -> None:
        topics._dirty_policies.clear()
        _flush(topics)

    patches.attribute(Topics, "flush", flush)


@bug("an age goes by the log's time", {"answered", "rebuilt"})
def what_is_too_old_goes_with_the_next_put(patches: Patches) -> None:
    """Let nothing get too old by time alone: only where a topic is put to, it is looked at."""
    patches.attribute(Topics, "pass_to", lambda topics, log_ms: [])


@bug("a full topic refuses, or drops its oldest", {"answered"})
def a_full_topic_takes_more(patches: Patches) -> None:
    """Store what a topic has no room for, and drop nothing for it."""
    patches.attribute(Store, "too_full", lambda store, name, size_bytes, is_delayed=False: None)
    patches.attribute(Topics, "make_room", lambda topics, topic, size_bytes: None)


@bug("who has missed something is told", {"answered", "skipped", "cursor"})
def who_missed_what_was_dropped_is_told_nothing(patches: Patches) -> None:
    """Move the cursors over what is dropped, as if its subscribers had acknowledged it."""

    def find_floor(topic: Topic) -> None:
        for subscription in topic.subscribers.values():
            if subscription.cursor < topic.dropped_id:
                topic._depart(subscription.cursor)
                subscription.cursor = topic.dropped_id
                topic._enter(topic.dropped_id)
        _find_floor(topic)

    patches.attribute(Topic, "find_floor", find_floor)


@bug("nothing read before a seek acknowledges behind it", {"answered"})
def a_late_get_acknowledges_behind_a_seek(patches: Patches) -> None:
    """Believe an acknowledgment, whichever place of the subscription it is of."""

    def advance(store: Store, asked: Advance) -> Outcome:
        own = store._topics.of(asked.client_id)
        places = {
            name: own[name].subscribers[asked.client_id].placed
            for name in asked.cursors
            if name in own
        }
        return _advance(store, replace(asked, placed=places))

    def start(store: Store, client_id: str, name: str, last_id: int | None, placed: int) -> Any:
        found = store._subscription(client_id, name)
        at = found[1].placed if isinstance(found, tuple) else placed
        return _start(store, client_id, name, last_id, at)

    patches.attribute(Store, "_advance", advance)
    patches.attribute(Store, "_start", start)


@bug("a subscription starts where it is told to", {"answered", "rebuilt"})
def a_start_at_an_id_leaves_it_out(patches: Patches) -> None:
    """Begin behind the first id that is to be read, where there is one."""

    def cursor_of(store: Store, topic: Topic, start: str | int) -> Any:
        cursor = _cursor_of(store, topic, start)
        if isinstance(start, int) and isinstance(cursor, int) and cursor < topic.last_id:
            return cursor + 1
        return cursor

    patches.attribute(Store, "_cursor_of", cursor_of)


@bug("a place outlives the process", {"answered", "rebuilt", "digest", "ended"})
def a_place_is_forgotten_by_a_restart(patches: Patches) -> None:
    """Keep in memory alone which entry has placed a subscription."""

    def flush(topics: Topics) -> None:
        topics._dirty_placed.clear()
        _flush(topics)

    patches.attribute(Topics, "flush", flush)


@bug("a seek moves to either side", {"answered", "rebuilt"})
def a_seek_never_goes_back(patches: Patches) -> None:
    """Leave a cursor where it is that is to be moved back."""

    def place(topics: Topics, client_id: str, topic: Topic, cursor: int, placed: int) -> None:
        before = topic.subscribers[client_id].cursor
        _place(topics, client_id, topic, max(cursor, before), placed)

    patches.attribute(Topics, "place", place)
