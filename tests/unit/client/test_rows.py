"""Rows have fields, and are the mappings that they were."""

from __future__ import annotations

from pathlib import Path

import pytest

import flotilla_client
from flotilla_client.policies import Policy
from flotilla_client.rows import (
    Checkpointed,
    ClientInfo,
    Info,
    NodeStatus,
    SettingInfo,
    TopicDetails,
    TopicInfo,
    UserInfo,
)
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


def test_what_stands_in_a_row_is_a_value_that_nobody_changes() -> None:
    user = UserInfo.of({"user": "shop", "publish": ["a", "b"], "subscribe": [], "admin": True})
    assert (user.publish, user.subscribe, user.deny_publish) == (("a", "b"), (), None)
    assert user["publish"] == ["a", "b"], "the mapping is what a node has said"
    setting = SettingInfo.of({"node": "n1", "setting": "x", "value": 1, "from": "default"})
    assert (setting.source, setting["from"]) == ("default", "default")
    client = ClientInfo.of({"client_id": "c", "topics": [{"topic": "t", "cursor": 3}]})
    assert [(row.topic, row.cursor) for row in client.topics or ()] == [("t", 3)]


def test_a_policy_with_parts_of_a_newer_version_is_read() -> None:
    parts = Policy("forever", max_bytes=7).parts()
    assert TopicDetails.of({"topic": "t", "policy": parts | {"newer": 1}}).policy == Policy(**parts)
    assert TopicDetails.of({"topic": "t", "policy": None}).policy is None


def test_a_node_without_a_checkpoint_says_why_and_gives_no_index() -> None:
    row = Checkpointed.of({"node": "h:1", "is_done": False, "error": "unavailable"})
    assert (row.checkpointed_index, row.error) == (None, "unavailable")


@pytest.mark.parametrize("kind", Info.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_row_is_public_and_says_what_it_is(kind: type[Info]) -> None:
    assert kind.__name__ in flotilla_client.__all__
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}("), "a dataclass's own text"
