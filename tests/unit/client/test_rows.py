"""Rows have fields, and are the mappings that they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from flotilla_client.rows import NodeStatus, TopicInfo
from tests.unit.fake_node import FakeNode, client_of


def test_what_a_cluster_says_has_fields_and_is_a_mapping_still(
    node: FakeNode, tmp_path: Path
) -> None:
    with client_of(node, tmp_path) as client:
        client.subscribe("t")
        client.publish("t", "a")
        [own] = client.topics()
        [any_] = client.topics(everything=True)
        assert (own.topic, own.last_id, own.cursor, own.backlog) == ("t", 1, 0, 1)
        assert own == {"topic": "t", "last_id": 1, "cursor": 0, "backlog": 1}
        assert (any_.topic, any_.subscribers, any_.cursor) == ("t", 1, None)
        assert client.subscribers("t") == []
        status = client.status()
        assert status.node == status["node"]
        raised = client.upgrade(2)
        assert (raised.level, raised.before) == (2, 1)


def test_a_newer_node_s_fields_stand_in_the_mapping_and_an_older_one_s_lack() -> None:
    status = NodeStatus.of({"node": "n1", "role": "joining", "newer": 7})
    assert (status.node, status.applied_index, status["newer"]) == ("n1", None, 7)
    assert status.get("applied_index") is None
    assert len(status) == 3
    with pytest.raises(AttributeError):
        status.node = "n2"  # type: ignore[misc]
    assert "said" not in repr(TopicInfo.of({"topic": "t"}))
