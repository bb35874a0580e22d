"""Flow control between the core and a follower: what is in flight, and when it is given up.

The rules of what may be believed are proved in tests/simulation/test_rules_transport.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.raft.transport import IN_FLIGHT_BYTES_MAX, RaftTransport
from cluster.wire.messages import AppendEntries, NextIndex

TERM = 5


class Core:
    """What the transport asks of Raft, and what it has told the core about `b`."""

    term = TERM
    settled_index = 1
    installed_index = 0

    def __init__(self) -> None:
        self.connected: list[bool] = []

    def next_index(self, name: str) -> int | None:
        return 2

    def raise_next_index(self, name: str, index: int) -> None:
        """Nothing to raise."""


@pytest.fixture
def transport() -> RaftTransport:
    made = RaftTransport(["b"], 0.08, lambda: 0.0)
    core = Core()
    made.core = core
    made.setOnNodeConnectedCallback(lambda node: core.connected.append(True))
    made.setOnNodeDisconnectedCallback(lambda node: core.connected.append(False))
    made.setOnMessageReceivedCallback(lambda node, message: None)
    return made


def send(transport: RaftTransport, index: int, size_bytes: int) -> None:
    message: dict[str, Any] = {
        "type": "append_entries",
        "term": TERM,
        "commit_index": 1,
        "entries": [(bytes(size_bytes), index, TERM)],
        "prevLogIdx": index - 1,
        "prevLogTerm": TERM,
    }
    transport.send(transport.nodes["b"], message)


def test_a_full_window_stops_the_core_s_sending_until_the_round_is_over(
    transport: RaftTransport,
) -> None:
    send(transport, 2, IN_FLIGHT_BYTES_MAX - 1)
    assert transport.core.connected == []  # type: ignore[attr-defined]
    send(transport, 3, 1)
    assert transport.window_is_full("b")
    transport.resume_paused()
    assert transport.core.connected == [False, True]  # type: ignore[attr-defined]
    assert [type(message) for _, message in transport.appends] == [AppendEntries] * 2


def test_an_acknowledgment_opens_the_window(transport: RaftTransport) -> None:
    send(transport, 2, IN_FLIGHT_BYTES_MAX)
    transport.deliver("b", NextIndex(TERM - 1, 3, False, True))
    assert transport.window_is_full("b"), "of an earlier leadership"
    transport.deliver("b", NextIndex(TERM, 3, False, True))
    assert not transport.window_is_full("b")


@pytest.mark.parametrize("reset", [True, False])
def test_what_a_follower_does_not_take_is_not_in_flight(
    transport: RaftTransport, reset: bool
) -> None:
    send(transport, 2, IN_FLIGHT_BYTES_MAX)
    transport.deliver("b", NextIndex(TERM, 2, reset, False))
    assert not transport.window_is_full("b")


def test_a_new_connection_has_nothing_in_flight(transport: RaftTransport) -> None:
    send(transport, 2, IN_FLIGHT_BYTES_MAX)
    transport.connect("b")
    assert not transport.window_is_full("b")
    assert not transport.paused
