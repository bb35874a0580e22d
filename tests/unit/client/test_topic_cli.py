"""`flotilla topic`: what would be gone at once is asked about before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flotilla_client import topic_cli
from flotilla_client.errors import UnknownTopic
from flotilla_client.policies import Policy, parse_keep


class Boss:
    """In an Admin's place: a topic with a policy that holds `held_bytes`; `done`: what was said."""

    def __init__(self, policy: Policy | None, held_bytes: int) -> None:
        self.policy, self.held_bytes = policy, held_bytes
        self.done: list[str] = []

    def show_topic(self, name: str) -> Any:
        if name == "new":
            raise UnknownTopic("nobody subscribes to 'new'")
        return SimpleNamespace(
            policy=self.policy, held_bytes=self.held_bytes, first_id=1, last_id=9, subscribers=1
        )

    def alter_topic(self, name: str, **parts: Any) -> Any:
        self.done.append("alter")
        return {"policy": self.policy or Policy()}

    def create_topic(self, name: str, **parts: Any) -> Any:
        self.done.append("create")
        return {"policy": self.policy or Policy()}


def said(boss: Any, what: str, name: str = "t", **given: Any) -> int:
    options: dict[str, Any] = dict.fromkeys(("keep", "max_bytes", "when_full", "dead_letter"))
    options |= {"compact": False, "yes": False, "json": True, "what": what, "name": name}
    return topic_cli._topic(boss, SimpleNamespace(**options | given), lambda *shown: None)


def kept(text: str, **more: Any) -> Policy:
    return Policy().changed(parse_keep(text) | more)


@pytest.mark.parametrize(
    ("policy", "given", "is_asked"),
    [
        (kept("7d"), {"keep": "1d"}, True),
        (kept("7d"), {"keep": "8d"}, False),
        (kept("7d"), {"keep": "7d"}, False),
        (kept("7d"), {"keep": "forever"}, False),
        (kept("forever"), {"keep": "1000"}, True),
        (kept("forever"), {"keep": "unread"}, True),
        (kept("1000"), {"keep": "10GB"}, True),
        (kept("unread"), {"keep": "10"}, False),
        (kept("forever"), {"dead_letter": "dead"}, False),
        (kept("forever"), {"max_bytes": 50}, False),
        (kept("forever"), {"max_bytes": 50, "when_full": "drop-oldest"}, True),
        (kept("forever"), {"max_bytes": 5_000, "when_full": "drop-oldest"}, False),
        (kept("forever", max_bytes=50), {"when_full": "drop-oldest"}, True),
        (kept("forever", max_bytes=500, when_full="drop-oldest"), {"max_bytes": 50}, True),
        (kept("forever"), {"when_full": "drop-oldest"}, False),  # makes no sense: the node says so
    ],
)
def test_a_policy_that_drops_something_at_once_is_asked_about(
    capsys: pytest.CaptureFixture[str], policy: Policy, given: dict[str, Any], is_asked: bool
) -> None:
    boss = Boss(policy, 100)
    assert said(boss, "alter", **given) == (2 if is_asked else 0)
    assert boss.done == ([] if is_asked else ["alter"])
    assert ("Say --yes" in capsys.readouterr().err) is is_asked
    assert said(boss, "alter", yes=True, **given) == 0
    assert boss.done[-1] == "alter"


def test_an_empty_topic_and_a_new_one_have_nothing_to_lose() -> None:
    boss = Boss(kept("forever"), 0)
    assert said(boss, "alter", keep="10") == 0
    assert said(boss, "create", "new", keep="10", max_bytes=5, when_full="drop-oldest") == 0
    assert said(boss, "alter", "new", keep="10") == 0  # the node says that there is none
    assert boss.done == ["alter", "create", "alter"]


def test_a_topic_that_gets_a_policy_is_asked_about_as_well() -> None:
    boss = Boss(None, 100)
    assert said(boss, "create", keep="10") == 0
    assert said(boss, "create", max_bytes=50, when_full="drop-oldest") == 2
    assert boss.done == ["create"]
