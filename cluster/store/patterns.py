"""Subscriptions to patterns of topics: who has which, and which of them a new topic is of.

What lives here: the rows, and a tree of words that finds the patterns of a name. What must not:
what a client then subscribes to, and who may (store.py), the topics that there are (topics.py).

A pattern becomes subscriptions, one a topic: when it is made, of the topics that there are, and
from then on of each topic in the entry that makes it. So a topic that is there costs nothing more,
and a pattern is looked for only where a topic is made, or might be. Decision:
docs/decisions/0024-patterns.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import groupby
from typing import Any, Final

import orjson

from cluster.store.tables import CorruptStore, Database, row_crc
from flotilla_client.protocol import has_wildcard, matches

# Names that no topic has, and their patterns: 4 MB; then it begins anew. Who publishes where nobody
# listens asks for the same name again and again.
NAMES_CACHED_MAX: Final = 16_384


@dataclass(slots=True, eq=False)
class Pattern:
    """A client's subscription to all topics of `text`; `client`: the client's number.

    `at`: the entry that made it. `principal`: who subscribed, so what he may not read it does not
    bring; None: he may read everything. `topics_max`, `subscriptions_max`: so many topics he may
    subscribe to, and so many subscriptions he may have, 0: any number. `missed`: a topic that it
    should have brought, and there was no room; "": none.
    """

    client_id: str
    client: int
    text: str
    at: int
    principal: str | None
    topics_max: int
    missed: str = ""
    subscriptions_max: int = 0  # the last one, as rows of earlier builds lack it


@dataclass(slots=True)
class _TreeNode:
    """A place in the tree: patterns that end here, that take all behind, and further words."""

    ends: list[Pattern] = field(default_factory=list)
    rest: list[Pattern] = field(default_factory=list)
    below: dict[str, _TreeNode] = field(default_factory=dict)


class Patterns:
    """The patterns of all clients."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._by_client: dict[str, dict[str, Pattern]] = {}
        self._root = _TreeNode()
        self._found: dict[str, list[Pattern]] = {}  # by name, of names that were looked for
        self._dirty: dict[tuple[int, str], Pattern | None] = {}  # None: gone
        self._missing: set[str] = set()  # see take_missing
        self.count = 0
        for client, text, record, crc, client_id in database.query(_PATTERNS):
            database.verify(crc, (client, text, record))
            if client_id is None:
                raise CorruptStore(database.path, f"pattern {text!r} of no client {client}")
            self._add(Pattern(client_id, client, text, *orjson.loads(record)))

    def _add(self, pattern: Pattern) -> None:
        self._by_client.setdefault(pattern.client_id, {})[pattern.text] = pattern
        self._place_of(pattern).append(pattern)
        self._found.clear()
        self.count += 1

    def _place_of(self, pattern: Pattern) -> list[Pattern]:
        node, words = self._root, pattern.text.split(".")
        for word in words[:-1]:
            node = node.below.setdefault(word, _TreeNode())
        if words[-1] == ">":
            return node.rest
        return node.below.setdefault(words[-1], _TreeNode()).ends

    # --- what there is ----------------------------------------------------------------------------

    def of(self, client_id: str) -> dict[str, Pattern]:
        """Return a client's patterns by their text: not to be changed."""
        return self._by_client.get(client_id, {})

    def count_of(self, principal: str) -> int:
        """Return how many patterns a principal subscribes to."""
        found = (each for own in self._by_client.values() for each in own.values())
        return sum(each.principal == principal for each in found)

    def covering(self, client_id: str, topic: str) -> list[Pattern]:
        """Return those of a client's patterns that a topic is of, by their text."""
        own = self._by_client.get(client_id)
        if own is None or has_wildcard(topic):
            return []
        return [own[text] for text in sorted(own) if matches(text, topic)]

    def of_topic(self, name: str) -> Iterator[tuple[str, list[Pattern]]]:
        """Yield clients with the patterns that a topic of that name is of, by id and by text.

        A name with `*` or `>` in it, as topics may have from before there were patterns, is of
        none.
        """
        found = self._found.get(name)
        if found is None:
            found = [] if has_wildcard(name) else self._look_for(name)
            if len(self._found) >= NAMES_CACHED_MAX:
                self._found.clear()
            self._found[name] = found
        for client_id, patterns in groupby(found, lambda each: each.client_id):
            yield client_id, list(patterns)

    def _look_for(self, name: str) -> list[Pattern]:
        found: list[Pattern] = []
        nodes = [self._root]
        for word in name.split("."):
            found += [pattern for node in nodes for pattern in node.rest]
            nodes = [node.below[key] for node in nodes for key in (word, "*") if key in node.below]
            if not nodes:
                break
        found += [pattern for node in nodes for pattern in node.ends]
        return sorted(found, key=lambda each: (each.client_id, each.text))

    def missed_by(self, client_id: str) -> Pattern | None:
        """Return a pattern of the client's that has missed a topic, None if none has."""
        own = self._by_client.get(client_id)
        return None if own is None else next((each for each in own.values() if each.missed), None)

    def page(self, client_id: str, text: str, count_max: int) -> list[dict[str, Any]]:
        """Return patterns by client id and text: those behind (`client_id`, `text`)."""
        keys = ((each, own) for each, patterns in self._by_client.items() for own in patterns)
        behind = nsmallest(count_max, (key for key in keys if key > (client_id, text)))
        return [
            {
                "pattern": own,
                "client_id": each,
                "topics_max": self._by_client[each][own].topics_max,
                "missed": self._by_client[each][own].missed,
            }
            for each, own in behind
        ]

    # --- changes ----------------------------------------------------------------------------------

    def set(self, pattern: Pattern) -> None:
        """Have a pattern stand as it is said, whether or not the client has it already."""
        own = self.of(pattern.client_id).get(pattern.text)
        if own is not None:
            self._drop(own)
        self._add(pattern)
        self._dirty[pattern.client, pattern.text] = pattern

    def end(self, pattern: Pattern) -> None:
        """End a pattern; what it has brought is for the caller to end."""
        self._drop(pattern)
        self._dirty[pattern.client, pattern.text] = None

    def _drop(self, pattern: Pattern) -> None:
        own = self._by_client[pattern.client_id]
        del own[pattern.text]
        if not own:
            del self._by_client[pattern.client_id]
        self._place_of(pattern).remove(pattern)
        self._prune(pattern)
        self._found.clear()
        self.count -= 1

    def _prune(self, pattern: Pattern) -> None:
        """Take out of the tree what leads to no pattern any more."""
        words = pattern.text.split(".")
        way = [self._root]
        for word in words:
            if word not in way[-1].below:
                break
            way.append(way[-1].below[word])
        while len(way) > 1 and way[-1] == _TreeNode():
            way.pop()
            del way[-1].below[words[len(way) - 1]]

    def has_missed(self, pattern: Pattern, topic: str) -> None:
        """Note that there was no room for a topic; of several the first one is named."""
        if not pattern.missed:
            pattern.missed = topic
            self._dirty[pattern.client, pattern.text] = pattern
            self._missing.add(pattern.client_id)

    def take_missing(self) -> list[str]:
        """Return, once, the clients that have to hear that a pattern of theirs has missed one."""
        missing = sorted(self._missing)
        self._missing.clear()
        return missing

    def flush(self) -> None:
        """Write what changed, in the open transaction."""
        if not self._dirty:
            return
        gone = [key for key, pattern in self._dirty.items() if pattern is None]
        sql = "DELETE FROM patterns WHERE client = ? AND pattern = ?"
        self._database.write(sql, gone)
        here = [(*key, _record(each)) for key, each in self._dirty.items() if each is not None]
        sql = "INSERT OR REPLACE INTO patterns VALUES(?, ?, ?, ?)"
        self._database.write(sql, [(*row, row_crc(row)) for row in here])
        self._dirty.clear()


def _record(pattern: Pattern) -> str:
    said = pattern.at, pattern.principal, pattern.topics_max, pattern.missed
    return orjson.dumps((*said, pattern.subscriptions_max)).decode()


_PATTERNS: Final = (
    "SELECT client, pattern, record, patterns.crc, client_id FROM patterns"
    " LEFT JOIN clients ON clients.number = client ORDER BY client, pattern"
)
