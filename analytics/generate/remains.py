"""What the nodes of a synthetic history have left: its truth, few rows a topic. No violation here.

Every subscriber has drained every topic, so all publications are garbage: a node says how far each
topic went, and which counters it has taken (docs/history.md, "The truth").
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from analytics.generate.operations import (
    TERM_FIRST,
    fault_numbers,
    leader,
    name_of,
    node_names,
    topic_of,
)
from analytics.generate.plants import Scene
from analytics.generate.shape import Shape

Row = dict[str, Any]
DIGEST: Final = "0" * 32  # of the state: all nodes have applied the same


def truths(shape: Shape, scene: Scene) -> Mapping[str, list[Row]]:
    """Return each node's truth, as rows without run and node."""
    common = [
        {"kind": "state", "index": 2 * shape.publications, "digest": DIGEST},
        *_topics(shape),
        *_counters(shape, scene),
    ]
    terms = range(TERM_FIRST, TERM_FIRST + len(fault_numbers(shape)) + 1)
    return {
        node: [
            *common,
            *({"kind": "leadership", "term": term} for term in terms if leader(term) == node),
            *(row for holder, row in scene.truth if holder == node),
        ]
        for node in node_names()
    }


def _topics(shape: Shape) -> Iterator[Row]:
    last_ids: dict[int, int] = {}
    for place in _last(shape):
        last_ids[place["topic"]] = max(last_ids.get(place["topic"], 0), place["id"])
    for topic, last_id in last_ids.items():
        yield {
            "kind": "topic",
            "topic": topic_of(topic),
            "last_id": last_id,
            "floor_id": last_id,
        }


def _counters(shape: Shape, scene: Scene) -> Iterator[Row]:
    """Yield the counters that were taken, those of the clients that plants made as well."""
    taken: dict[tuple[str, str], int] = {}
    for place in _last(shape):
        _, producer = name_of("producer", place["producer"], shape)
        key = producer, topic_of(place["topic"])
        taken[key] = max(taken.get(key, 0), place["counter"])
    apart = {row["producer"] for _, row in scene.truth if row["kind"] == "counter"}
    for put in scene.extra:
        if put["f"] == "put" and put["outcome"] == "ok" and put["client_id"] not in apart:
            taken[put["client_id"], put["topic"]] = put["counter"] + (put["count"] or 1) - 1
    for (producer, topic), counter in taken.items():
        yield {"kind": "counter", "producer": producer, "topic": topic, "counter": counter}


def _last(shape: Shape) -> Iterator[Mapping[str, int]]:
    """Yield where the last publications stand: of each topic and producer at least one."""
    first = max(0, shape.publications - 2 * shape.round_size)
    return (shape.place_of(n) for n in range(first, shape.publications))
