"""A node that is no member yet. The rest is tests/simulation/test_membership.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cluster.members.catchup import SnapshotFetch
from cluster.members.identity import Identity
from cluster.members.membership import hello_of
from cluster.node.joining import Joining
from cluster.store.snapshots import Verified
from cluster.wire.levels import BUILD
from cluster.wire.messages import SnapshotRequest

NAMES = ["a", "b", "c"]


def test_a_copy_from_before_its_admission_is_of_no_use_to_a_wiped_node_which_asks_for_another(
    tmp_path: Path,
) -> None:
    sent, log = mock.Mock(), mock.Mock()
    fetch = SnapshotFetch(tmp_path, mock.Mock(), sent, log)
    fetch.ready = Verified(tmp_path / "copy", 7, 1, {"a": "one", "b": "two", "c": "old"}, 1)
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(name="c", members=NAMES),
        hellos=lambda: {
            "a": None,
            "b": hello_of(Identity("x", "b", "two", started=True), NAMES, BUILD),
        },
        rng=SimpleNamespace(choice=lambda names: names[0]),
        fetch=fetch,
        log=log,
    )
    joining = Joining(context, Identity("x", "c", "new"), mock.Mock())
    assert joining.join(1.0) is None
    assert joining.join(2.0) is None
    sent.assert_called_once_with("b", SnapshotRequest("", 0))
