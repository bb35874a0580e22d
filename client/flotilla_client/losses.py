"""What a client was told that its cluster does not know: found when its id is taken up, and said.

What lives here: the comparison, and its words. What must not: what is then done about it
(operations.py, state.py).

In a cluster that was not put back there is nothing to find: an acknowledged publication raises the
broker's counter before the client hears of it, and a delivered one is below its topic's end for
good. After a recovery (docs/recovery.md), or a forbidden restore of data directories, both may be
otherwise, and what was lost is given the same counters and ids again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from flotilla_client.properties import Publication
from flotilla_client.protocol import lane_said, matches


@dataclass(frozen=True, slots=True)
class Losses:
    """What became of what this client was told; empty (and false) if it all stands.

    `publications` {topic: how many}: acknowledged to this client, and lost. `deliveries` {topic:
    (kept, had)}: it had everything up to `had`, of which only what is up to `kept` is known to be
    the same still; what has these ids now comes again. `subscriptions`: gone. `returned`:
    subscriptions that it had ended. `is_unknown`: the cluster does not know the client at all.
    `unanswered` {topic: publications}, of a client that the cluster has forgotten: they waited for
    an answer, may be stored or not, and are not sent again. Of both, what had a delay stands under
    a name of its own (`protocol.lane_of`).
    """

    publications: Mapping[str, int]
    deliveries: Mapping[str, tuple[int, int]]
    subscriptions: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    is_unknown: bool = False
    unanswered: Mapping[str, tuple[bytes | Publication, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.is_unknown or any(True for _ in self.sentences())

    def sentences(self) -> Iterator[str]:
        """Yield each loss in words."""
        if self.is_unknown:
            yield "the cluster does not know this client"
        for topic, count in sorted(self.publications.items()):
            lost = "publication" if count == 1 else "publications"
            yield f"{count} acknowledged {lost} to {lane_said(topic)} lost"
        for topic, (kept, had) in sorted(self.deliveries.items()):
            yield f"what was read from {topic} is certain up to id {kept} only, and not up to {had}"
        for topic in self.subscriptions:
            yield f"the subscription to {topic} lost"
        for topic in self.returned:
            yield f"the ended subscription to {topic} back"
        for topic, waiting in sorted(self.unanswered.items()):
            what = "1 publication" if len(waiting) == 1 else f"{len(waiting)} publications"
            said = lane_said(topic)
            yield f"{what} to {said} without an answer: stored or not, and not sent again"

    def details(self) -> dict[str, Any]:
        """Return the losses as plain values."""
        return {
            "publications": {lane_said(topic): n for topic, n in self.publications.items()},
            "deliveries": dict(self.deliveries),
            "subscriptions": list(self.subscriptions),
            "returned": list(self.returned),
            "unanswered": {lane_said(topic): len(each) for topic, each in self.unanswered.items()},
        }


def found(
    acknowledged: Mapping[str, int],
    cursors: Mapping[str, int],
    body: Mapping[str, Any],
    patterns: Mapping[str, int] = MappingProxyType({}),
) -> Losses:
    """Return what the answer to REQUEST_ID lacks.

    `acknowledged` {topic: last counter that was}, `cursors` {topic: last id that the application
    was handed}, `patterns` that it subscribes to: what these bring it need not have heard of.
    `body["settled"]` is there if the cluster was recovered since the client last met it.
    """
    counters, subscriptions = body.get("counters", {}), body.get("subscriptions", {})
    ends, settled = body.get("ends", {}), body.get("settled")
    deliveries = {}
    for topic in cursors.keys() & subscriptions.keys():
        had, known = cursors[topic], subscriptions[topic]
        kept = ends.get(topic, had) if settled is None else settled.get(topic, known)
        if had > kept:
            # Without a recovery nothing says how much of it is the same: the broker's cursor does.
            deliveries[topic] = (known if settled is None else kept, had)
    told = body.get("patterns", {})
    ended = (cursors.keys() - subscriptions.keys()) | (patterns.keys() - told.keys())
    returned = {
        topic
        for topic in subscriptions.keys() - cursors.keys()
        if not any(matches(pattern, topic) for pattern in patterns.keys() & told.keys())
    } | (told.keys() - patterns.keys())
    return Losses(
        {
            topic: last - counters.get(topic, 0)
            for topic, last in acknowledged.items()
            if "counters" in body and last > counters.get(topic, 0)
        },
        deliveries,
        # Otherwise an UNSUB or a SUB was carried out and its answer lost.
        () if settled is None else tuple(sorted(ended)),
        () if settled is None else tuple(sorted(returned)),
    )
