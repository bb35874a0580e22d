"""Bugs in subscriptions to patterns: topics that they miss, bring to the wrong, or keep.

What must not live here: what finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.store.clients import Client
from cluster.store.commands import SubscribePattern, Unsubscribe
from cluster.store.outcomes import Done, Outcome
from cluster.store.patterns import Pattern, Patterns
from cluster.store.store import Store
from cluster.store.topics import Topic, Topics

_add: Final = Patterns._add
_bring: Final = Store._bring
_flush: Final = Patterns.flush
_leave: Final = Store._leave
_flush_brought: Final = Topics._flush_brought
_look_for: Final = Patterns._look_for
_subscribe_pattern: Final = Store._subscribe_pattern


@bug("a PUT to a topic that only a pattern has makes it", {"answered"})
def a_pattern_makes_no_topic(patches: Patches) -> None:
    """Store nothing of a topic that is none yet, though it is of a pattern."""
    patches.attribute(Store, "_make", lambda store, name, count: None)


@bug("a pattern has the topics that come later", {"answered", "rebuilt"})
def a_topic_that_is_made_by_name_is_missed(patches: Patches) -> None:
    """Look for patterns where a PUT makes a topic, and not where a SUB or an act does."""
    making: list[str] = []
    make = Store._make

    def made(store: Store, name: str, count: int) -> Topic | None:
        making.append(name)
        try:
            return make(store, name, count)
        finally:
            making.pop()

    def bring(store: Store, topic: Topic) -> None:
        if making:
            _bring(store, topic)

    patches.attribute(Store, "_make", made)
    patches.attribute(Store, "_bring", bring)


@bug("`>` is one word or more", {"answered", "rebuilt"})
def the_rest_is_one_word(patches: Patches) -> None:
    """Take `>` for one word."""

    def look_for(patterns: Patterns, name: str) -> list[Pattern]:
        found = _look_for(patterns, name)
        words = name.count(".")
        return [each for each in found if ">" not in each.text or each.text.count(".") == words]

    patches.attribute(Patterns, "_look_for", look_for)


@bug("a new topic is read from its first publication on", {"answered", "rebuilt"})
def a_new_topic_is_read_from_the_beginning_of_its_name(patches: Patches) -> None:
    """Begin at the first id that the topic ever had, also where it was there before."""

    def bring(store: Store, topic: Topic) -> None:
        last_id, topic.last_id = topic.last_id, 0
        try:
            _bring(store, topic)
        finally:
            topic.last_id = last_id

    patches.attribute(Store, "_bring", bring)


@bug("a pattern outlives the process", {"answered", "rebuilt", "digest", "ended"})
def a_pattern_is_forgotten_by_a_restart(patches: Patches) -> None:
    """Keep patterns in memory alone."""

    def flush(patterns: Patterns) -> None:
        patterns._dirty.clear()
        _flush(patterns)

    patches.attribute(Patterns, "flush", flush)


@bug("what a pattern alone has brought outlives the process as that", {"answered", "digest"})
def what_was_brought_is_kept_behind_a_restart(patches: Patches) -> None:
    """Forget with a restart which subscriptions stand by patterns alone."""

    def flush_brought(topics: Topics) -> None:
        topics._dirty_brought.clear()
        _flush_brought(topics)

    patches.attribute(Topics, "_flush_brought", flush_brought)


@bug("a pattern ends with what it alone has brought", {"answered", "rebuilt"})
def a_pattern_takes_with_it_what_another_one_has(patches: Patches) -> None:
    """End all subscriptions of a pattern, also those that another pattern has or a SUB by name."""

    def leave_pattern(store: Store, client: Client, text: str) -> Done | None:
        pattern = store.patterns.of(client.client_id).get(text)
        if pattern is None:
            return None
        store.patterns.end(pattern)
        for name in store._own_of(client, text):
            _leave(store, client, name)
        return Done({"was_subscribed": True, "topics": []})

    patches.attribute(Store, "_leave_pattern", leave_pattern)


@bug("who misses a topic is told", {"answered"})
def a_pattern_misses_a_topic_in_silence(patches: Patches) -> None:
    """Say nothing where there was no room for a topic."""
    patches.attribute(Patterns, "has_missed", lambda patterns, pattern, topic: None)


@bug("a pattern gives nothing that its principal may not read", {"answered", "permission"})
def a_pattern_brings_what_its_principal_may_not_read(patches: Patches) -> None:
    """Bring each topic that is of a pattern, to whoever it is."""

    def wanting(store: Store, name: str) -> Iterator[tuple[str, list[Pattern]]]:
        yield from store.patterns.of_topic(name)

    patches.attribute(Store, "_wanting", wanting)


@bug("a topic is left with the pattern that brings it", {"answered"})
def a_topic_is_left_though_a_pattern_brings_it(patches: Patches) -> None:
    """End a subscription by its topic's name, whatever pattern brings it."""

    def unsubscribe(store: Store, asked: Unsubscribe) -> Outcome:
        client = store._controlling(asked)
        return _leave(store, client, asked.topic) if isinstance(client, Client) else client

    patches.attribute(Store, "_unsubscribe", unsubscribe)


@bug("a pattern starts where it is told to", {"answered", "rebuilt"})
def a_pattern_starts_at_the_end_alone(patches: Patches) -> None:
    """Begin at the end of the topics that there are, whatever `start` says."""

    def subscribe_pattern(store: Store, asked: SubscribePattern) -> Outcome:
        return _subscribe_pattern(store, replace(asked, start="new"))

    patches.attribute(Store, "_subscribe_pattern", subscribe_pattern)


@bug(
    "a name that was looked for is looked for again behind a new pattern",
    {"answered", "books", "rebuilt"},
)
def looked_up_names_are_known_for_ever(patches: Patches) -> None:
    """Believe what was found for a name before a pattern was made that it is of."""

    def add(patterns: Patterns, pattern: Pattern) -> None:
        found = dict(patterns._found)
        _add(patterns, pattern)
        patterns._found.update(found)

    patches.attribute(Patterns, "_add", add)
