"""Bugs in what administrators do: purges, dropped clients, steering, and each act once.

What must not live here: what finds them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from chaos.simulation.bugs.registry import Patches, bug
from cluster.serve import broker
from cluster.store.acts import Acts
from cluster.store.clients import Client
from cluster.store.commands import Purge
from cluster.store.outcomes import Outcome
from cluster.store.store import Store
from cluster.store.topics import Topic, Topics

_purge: Final = Store._purge
_flush: Final = Topics.flush
_find_floor: Final = Topic.find_floor
_note: Final = Acts.note


@bug("a purge removes what it names", {"answered"})
def a_purge_removes_one_more(patches: Patches) -> None:
    """Remove the publication behind the last one that a purge names, too."""

    def purge(store: Store, asked: Purge) -> Outcome:
        topic = store._topics.active.get(asked.topic)
        more = topic is not None and asked.last_id < topic.last_id
        return _purge(store, replace(asked, last_id=asked.last_id + 1) if more else asked)

    patches.attribute(Store, "_purge", purge)


@bug("a purge removes what it names", {"answered", "digest", "ended", "rebuilt"})
def a_purge_is_forgotten_by_a_restart(patches: Patches) -> None:
    """Keep in memory alone up to where a topic was purged."""

    def flush(topics: Topics) -> None:
        topics._purged.clear()
        _flush(topics)

    patches.attribute(Topics, "flush", flush)


@bug("who has not read what is purged is told", {"answered"})
def who_missed_a_purge_is_told_nothing(patches: Patches) -> None:
    """Move the cursors over what is purged, as if its subscribers had acknowledged it."""

    def find_floor(topic: Topic) -> None:
        for subscription in topic.subscribers.values():
            if subscription.cursor < topic.purged_id:
                topic._depart(subscription.cursor)
                subscription.cursor = topic.purged_id
                topic._enter(topic.purged_id)
        _find_floor(topic)

    patches.attribute(Topic, "find_floor", find_floor)


@bug("an act is carried out once", {"answered", "rebuilt", "ended"})
def acts_are_not_known_again(patches: Patches) -> None:
    """Carry out each request for an act, whether or not the same was carried out before."""

    def note(acts: Acts, entry: int, log_ms: int, asked: Any, body: Any) -> None:
        nameless = replace(asked, act_id="") if hasattr(asked, "act_id") else asked
        _note(acts, entry, log_ms, nameless, body)

    patches.attribute(Acts, "note", note)


@bug("who may administrate is judged at the entry", {"answered", "permission"})
def anybody_may_do_acts(patches: Patches) -> None:
    """Carry out acts of anybody."""
    patches.attribute(Store, "_administrating", lambda store, operation: None)
    patches.attribute(broker, "unauthorized", lambda *what: None)


@bug("a client that is dropped is gone", {"answered", "books", "rebuilt", "ended"})
def a_dropped_client_leaves_its_subscriptions(patches: Patches) -> None:
    """Forget a dropped client, and leave its subscriptions as they are."""

    def remove(store: Store, client: Client) -> set[str]:
        if client.owner is not None:
            store.holdings.clients[client.owner] -= 1
        store._clients.forget(client, may_come_again=True)
        return set()

    patches.attribute(Store, "_remove", remove)


@bug("acts are in the history of every node", {"rebuilt", "digest"})
def the_leader_alone_keeps_the_history(patches: Patches) -> None:
    """Note no act of nobody: the admission of a member."""

    def note(acts: Acts, entry: int, log_ms: int, asked: Any, body: Any) -> None:
        if getattr(asked, "principal", None) is not None:
            _note(acts, entry, log_ms, asked, body)

    patches.attribute(Acts, "note", note)
