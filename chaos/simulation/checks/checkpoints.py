"""What a checkpoint vouches for is in the database as a power loss would leave it.

What lives here: the database that the platter has at that moment, and how far it got. What must
not: checkpoints themselves (cluster/store/tables.py), what is durable of a file (stored.py).

A journal is cut on that word alone. A power loss would have to come between a checkpoint and the
next one to show that it was wrong, so it is looked at as soon as it is given.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.world import World
from cluster.store import tables
from cluster.store.tables import CorruptStore

# What is damaged is the product's to notice, where it reads it.
DAMAGES: Final = frozenset({"flip_store", "flip_row", "bit_flip", "truncate"})
DATABASE: Final = "store.db"


class Checkpoints:
    """Looks at each node's database when a checkpoint has vouched for it."""

    def __init__(self, world: World, invariants: Invariants) -> None:
        self._world, self._invariants = world, invariants
        self._seen: dict[str, tuple[int, int]] = {}  # by machine: its process, the index
        world.watchers.append(self._turned)
        world.observers.append(self._observe)

    def _observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "vouched":  # a checkpoint that nobody but the world has asked for
            self._judge(self._world.machine(fields["node"]), fields["index"])

    def _turned(self, node: SimNode) -> None:
        member = node.as_member
        if member is None:
            return
        index = member.checkpointed_index
        if not index or self._seen.get(node.name) == (node.life, index):
            return
        self._seen[node.name] = node.life, index
        self._judge(node, index)

    def _judge(self, node: SimNode, index: int) -> None:
        if DAMAGES.isdisjoint(node.disk_faults):
            found = self._durable_index(node)
            if found < index:
                text = f"{node.name} has a checkpoint of entry {index}, and {found} on its disk"
                self._invariants.fail("vouched", text)

    def _durable_index(self, node: SimNode) -> int:
        """Return the last entry in the database that the platter has; -1: it has none."""
        directory = self._world.directory / "durable"
        directory.mkdir(exist_ok=True)
        for left in directory.iterdir():
            left.unlink()
        for name, data in node.image.durable(DATABASE).items():  # copies of it are others' files
            (directory / name).write_bytes(data)
        path = directory / DATABASE
        if not path.exists():
            return -1
        try:
            with closing(tables.connect(path, 0)) as connection:
                return tables.read_position(path, connection)[0]
        except (CorruptStore, sqlite3.DatabaseError):
            return -1
