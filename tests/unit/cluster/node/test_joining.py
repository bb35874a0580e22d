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
    copy = tmp_path / "copy"
    copy.write_bytes(b"of no use")
    fetch.ready = Verified(copy, 7, 1, {"a": "one", "b": "two", "c": "old"}, 1)
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
    assert not copy.exists()
    assert joining.join(2.0) is None
    sent.assert_called_once_with("b", SnapshotRequest("", 0))


def test_a_wiped_node_asks_any_of_the_members_for_a_copy_not_the_same_one_always(
    tmp_path: Path,
) -> None:
    """One that is cut off from the others never has the admission."""
    fetch = mock.Mock(ready=None)
    hellos = {
        name: hello_of(Identity("x", name, name, started=True), NAMES, BUILD) for name in "ab"
    }
    chosen = iter(("a", "b", "a"))
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(name="c", members=NAMES),
        hellos=lambda: hellos,
        rng=SimpleNamespace(choice=lambda names: next(name for name in chosen if name in names)),
        fetch=fetch,
        log=mock.Mock(),
    )
    joining = Joining(context, Identity("x", "c", "new"), mock.Mock())

    for now in (1.0, 2.0, 3.0):
        assert joining.join(now) is None
    assert [call.args for call in fetch.start.mock_calls] == [("a", 1.0), ("b", 2.0), ("a", 3.0)]
