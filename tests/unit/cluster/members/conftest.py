"""The nodes, connected to each other, that tests of connections begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.peer_world import PeerWorld


@pytest.fixture
def world() -> Iterator[PeerWorld]:
    """Return nodes without keys."""
    world = PeerWorld()
    yield world
    world.close()
