"""Checks of what stood on the nodes' disks when the run was over.

What lives here: `replica_divergence`, `ack_not_durable`. What must not: what clients saw of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from analytics.twins.record import LANE, Event, Evidence, Publication, RecordedOperation
from analytics.twins.run import Run

DIGITS_SHOWN = 8  # of a digest
ANY_ID = 2**53 - 1  # the `last_id` of a row of a policy that drops its oldest


def replica_divergence(run: Run) -> Iterable[Evidence]:
    """Find indexes at which nodes hold different entries, or have different states; and topics of
    which nodes of one state hold different things.
    """
    found: dict[tuple[str, int], set[tuple[int, str, str]]] = defaultdict(set)
    for row in run.truth:
        if row.get("kind") in ("entry", "state"):
            content = (row.get("term") or 0, row["digest"], row["node"])
            found[row["kind"], row["index"]].add(content)
    for (kind, index), contents in found.items():
        if len({(term, digest) for term, digest, _ in contents}) > 1:
            both = " ".join(_shown(kind, *one) for one in (min(contents), max(contents)))
            yield run.row(id=index, detail=f"{kind}: {both}")
    yield from _terms_back(run)
    yield from _unequal(run)


def _terms_back(run: Run) -> Iterator[Evidence]:
    """Yield the highest index of each term that stands above one of a higher term on its node."""
    indexes: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in run.truth:
        if row.get("kind") == "entry":
            indexes[row["node"]][row.get("term") or 0].append(row["index"])
    for node, of_terms in indexes.items():
        lowest, its = None, 0
        for term, own in sorted(of_terms.items(), reverse=True):
            if lowest is not None and max(own) > lowest:
                yield run.row(id=max(own), other_id=lowest, detail=f"term: {node}/{term} {its}")
            if lowest is None or min(own) < lowest:
                lowest, its = min(own), term


def _unequal(run: Run) -> Iterator[Evidence]:
    """Yield the topics that are not the same on two nodes whose states are."""
    rows: dict[str, list[Event]] = defaultdict(list)
    for row in run.truth:
        rows[row["node"]].append(row)
    alike: dict[frozenset[tuple[int, str]], dict[str, dict[str, _TopicOnDisk]]] = defaultdict(dict)
    for node, own in sorted(rows.items()):
        states = frozenset((r["index"], r["digest"]) for r in own if r.get("kind") == "state")
        if states:
            alike[states][node] = _topics_on(own, run.expiring)
    for nodes in alike.values():
        for topic in {topic for topics in nodes.values() for topic in topics}:
            least, *others = nodes
            told = nodes[least].get(topic)
            other = next((node for node in others if nodes[node].get(topic) != told), None)
            if other is not None:
                yield run.row(topic=topic, detail=f"content: {least} {other}")


class _TopicOnDisk(NamedTuple):
    """What a node's state says of a topic: where it ends, up to where nothing need be there, and
    how many ids are held above that.
    """

    last_id: int
    floor_id: int
    held_count: int


def _topics_on(rows: Iterable[Event], expiring: set[str]) -> dict[str, _TopicOnDisk]:
    """Return what a disk says of each topic. Of one that expires nobody counts what is held."""
    ends: dict[str, tuple[int, int]] = {}
    held: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        if row.get("kind") == "topic":
            last_id, floor_id = ends.get(row["topic"], (0, 0))
            ends[row["topic"]] = max(last_id, row["last_id"]), max(floor_id, row["floor_id"])
        elif row.get("kind") == "held" and row.get("first_id") and row["topic"] not in expiring:
            first_id = row["first_id"]
            held[row["topic"]].update(range(first_id, first_id + (row.get("count") or 1)))
    return {
        topic: _TopicOnDisk(last_id, floor_id, sum(id_ > floor_id for id_ in held[topic]))
        for topic, (last_id, floor_id) in ends.items()
    }


def _shown(kind: str, term: int, digest: str, node: str) -> str:
    terms = [str(term)] if kind == "entry" else []
    return "/".join([node, *terms, digest[:DIGITS_SHOWN]])


class Disk:
    """What one node has. `purged`: up to which id purges name, by topic."""

    def __init__(self, rows: Iterable[Event], purged: Mapping[str, int]) -> None:
        self._purged = purged
        self._held: dict[Publication, set[int | None]] = defaultdict(set)
        self._last_ids: dict[str, int] = {}
        self._floors: dict[str, int] = {}
        self._counters: dict[tuple[str, str], int] = {}
        for row in rows:
            match row.get("kind"):
                case "held":
                    self._hold(row)
                case "topic":
                    topic = row["topic"]  # said twice: the highest counts, as of a counter
                    self._last_ids[topic] = max(row["last_id"], self._last_ids.get(topic, 0))
                    self._floors[topic] = max(row["floor_id"], self._floors.get(topic, 0))
                case "counter":
                    whose = (row["producer"], row["topic"])
                    self._counters[whose] = max(row["counter"], self._counters.get(whose, 0))

    def _hold(self, row: Event) -> None:
        first_id = row.get("first_id")
        for place in range(row.get("count") or 1):
            publication = (row["producer"], row["topic"], row["first_counter"] + place)
            self._held[publication].add(first_id + place if first_id else None)

    def has(self, publication: Publication, id_: int | None) -> bool:
        """Whether it has what was acknowledged; `id_`: under which id, None if that is not known.

        What has no id need only be taken: nobody subscribed, or it stands where nobody said. What
        is not taken would be stored again if it were sent again.
        """
        producer, topic, counter = publication
        is_taken = self._counters.get((producer, topic), 0) >= counter
        if not is_taken:
            return False
        for held in self._held.get(publication, ()):
            if held is None:
                return True
            if id_ in (held, None) and held <= self._last_ids.get(topic, held):
                return True
        if id_ is None or topic.endswith(LANE):
            return True  # what was delayed: it may wait, or stand in the topic
        return id_ <= max(self._floors.get(topic, 0), self._purged.get(topic, 0))


def ack_not_durable(run: Run) -> Iterable[Evidence]:
    """Find what was acknowledged, or given, and is missing from a majority of disks, or half."""
    read = [node for node, was_read in sorted(run.nodes.items()) if was_read]
    if not read:
        return
    rows: dict[str, list[Event]] = defaultdict(list)
    for row in run.truth:
        rows[row["node"]].append(row)
    purged = _purged(run)
    disks = {node: Disk(rows[node], purged) for node in read}
    for publication, id_, put in _acknowledged(run):
        missing = [node for node, disk in disks.items() if not disk.has(publication, id_)]
        others = len(run.nodes) - len(missing)
        if missing and others * 2 <= len(run.nodes):
            producer, topic, counter = publication
            fields = {"topic": topic, "id": id_, "producer": producer, "counter": counter}
            yield run.row(put, **fields, detail=f"not on {' '.join(missing)}")


def _purged(run: Run) -> dict[str, int]:
    """Return up to which id purges name, by topic; a policy's row names none."""
    found: dict[str, int] = defaultdict(int)
    for one in run.purges:
        if one.last_id < ANY_ID:
            found[one.topic] = max(found[one.topic], one.last_id)
    return found


def _acknowledged(run: Run) -> Iterator[tuple[Publication, int | None, RecordedOperation]]:
    """Yield each publication that was acknowledged, or else given, with each id that was said of
    it, and who was told; of one of which no id was ever said, None.
    """
    told: dict[Publication, dict[int | None, RecordedOperation]] = defaultdict(dict)
    for put in run.of("put"):
        if put.is_ok:
            for place, counter in enumerate(put.counters):
                id_ = put.first_id + place if put.first_id else None
                told[put.client, put.topic, counter].setdefault(id_, put)
    acknowledged = set(told)
    for get in run.answers:
        for given in get.given:
            if given.producer is not None and given.counter is not None:
                publication = (given.producer, get.named, given.counter)
                if publication not in acknowledged and publication in run.knowledge.tries:
                    told[publication].setdefault(given.id, get)
    for publication, ids in told.items():
        for id_, teller in ids.items():
            if id_ is not None or len(ids) == 1:
                yield publication, id_, teller
