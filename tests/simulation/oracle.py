"""What no schedule may ever break, watched while a cluster runs.

What lives here: claims about all nodes at once (one leader a term, one entry an index, one state an
applied index). What must not: clients, what a single test expects.
"""

from __future__ import annotations

from collections.abc import Mapping

from cluster.node.replica import Replica


class Oracle:
    """Collects evidence of damage, one line each."""

    def __init__(self) -> None:
        self.evidence: list[str] = []
        self._entries: dict[int, tuple[int, bytes]] = {}
        self._leaders: dict[int, str] = {}
        self._digests: dict[int, tuple[str, str]] = {}

    def applied(self, name: str, index: int, term: int, payload: bytes) -> None:
        """Take note that a node applies an entry: it is the same one everywhere."""
        known = self._entries.setdefault(index, (term, payload))
        if known != (term, payload):
            self._report(f"{name} applies entry {index} of term {term}, others of {known[0]}")

    def look(self, nodes: Mapping[str, Replica]) -> None:
        """Check who leads."""
        for name, node in nodes.items():
            if node.member is not None and node.member.raft.is_leader:
                term = node.member.raft.term
                leader = self._leaders.setdefault(term, name)
                if leader != name:
                    self._report(f"{leader} and {name} lead term {term}")

    def compare(self, nodes: Mapping[str, Replica]) -> None:
        """Compare the nodes' states with all that were seen at the same applied index."""
        for name, node in nodes.items():
            if node.member is not None:
                store = node.member.store
                index, digest = store.applied_index, store.digest()
                other, known = self._digests.setdefault(index, (name, digest))
                if known != digest:
                    self._report(f"{name} and {other} differ at applied index {index}")

    def _report(self, line: str) -> None:
        if line not in self.evidence:
            self.evidence.append(line)
