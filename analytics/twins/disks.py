"""What the nodes' disks held at the end of a run. Without a truth nothing is found here."""

from collections import defaultdict

from analytics.twins.run import Event, Evidence, Key, Run

DIGITS = 8  # of a digest that are shown


def replica_divergence(run: Run) -> list[Evidence]:
    """Twin of `anomalies.replica_divergence`."""
    found = []
    for kind in ("entry", "state"):
        held: dict[int, list[Event]] = defaultdict(list)
        for row in run.truth:
            if row["kind"] == kind:
                held[row["index"]].append(row)
        for index, rows in held.items():
            least, most = min(rows, key=_content), max(rows, key=_content)
            if _content(least)[:2] != _content(most)[:2]:
                detail = f"{kind}: {_shown(least)} {_shown(most)}"
                found.append(Evidence(run.run_id, id=index, detail=detail))
    return found


def _content(row: Event) -> tuple[int, str, str]:
    return (-1 if row.get("term") is None else row["term"], row["digest"], row["node"])


def _shown(row: Event) -> str:
    words = (row["node"], row.get("term"), row["digest"][:DIGITS])
    return "/".join(str(word) for word in words if word is not None)


def ack_not_durable(run: Run) -> list[Evidence]:
    """Twin of `anomalies.ack_not_durable`."""
    acknowledged: dict[tuple[str, str, int, int | None], Key] = {}
    for put in run.puts:
        for place, counter in enumerate(put.counters):
            if put.outcome == "ok":
                id_ = put.first_id + place if put.first_id > 0 else None
                content = (put.topic, put.producer, counter, id_)
                acknowledged[content] = min(put.key, acknowledged.get(content, put.key))
    disks = [(node, Disk(run, node)) for node, is_read in sorted(run.nodes.items()) if is_read]
    found = []
    for content, key in acknowledged.items():
        absent = [node for node, disk in disks if not disk.has(*content)]
        if absent and (len(run.nodes) - len(absent)) * 2 <= len(run.nodes):
            topic, producer, counter, id_ = content
            detail = f"not on {' '.join(absent)}"
            row = (run.run_id, topic, None, id_, None, producer, counter, detail, (key,))
            found.append(Evidence(*row))
    return found


class Disk:
    """What one node's disk held."""

    def __init__(self, run: Run, node: str) -> None:
        self._held: set[tuple[str, str, int]] = set()
        self._floors: dict[str, int] = {}
        self._taken: dict[tuple[str, str], int] = {}
        for row in run.truth:
            if row["node"] != node:
                continue
            if row["kind"] == "held":
                first = row["first_counter"]
                for counter in range(first, first + row["count"]):
                    self._held.add((row["topic"], row["producer"], counter))
            elif row["kind"] == "topic":
                topic = row["topic"]
                self._floors[topic] = max(row["floor_id"], self._floors.get(topic, 0))
            elif row["kind"] == "counter":
                producer = (row["topic"], row["producer"])
                self._taken[producer] = max(row["counter"], self._taken.get(producer, -1))

    def has(self, topic: str, producer: str, counter: int, id_: int | None) -> bool:
        """Return whether it has, or has had, the publication."""
        if (topic, producer, counter) in self._held:
            return True
        is_over = id_ is None or id_ <= self._floors.get(topic, 0)
        return is_over and counter <= self._taken.get((topic, producer), -1)
