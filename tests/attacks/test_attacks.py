"""A few of each attack: nobody gets in, nobody ends, nothing changes, others go on."""

from __future__ import annotations

import pytest

from cluster.wire.frames import framed
from cluster.wire.messages import Hello, PeerRefused
from flotilla_client.protocol import Request, encode_request
from tests.attacks.attacks import _harmless, _is_let_in, _is_more_than_a_hello
from tests.attacks.measure import measure
from tests.unit.cluster.wire.test_messages import EXAMPLES
from tests.unit.curve_client import GREETING, command


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nobody_gets_in_no_node_ends_and_the_state_is_unchanged() -> None:
    for row in measure(0.0, calm_s=1.0, is_quick=True):
        assert row.answered == 0, row
        assert row.same, row


@pytest.mark.parametrize(
    ("said", "is_let_in"),
    [
        (b"", False),
        (GREETING, False),
        (GREETING + command(b"\x07WELCOME" + bytes(160)), False),
        (GREETING + command(b"\x05READY" + bytes(24)), True),
        (b"HTTP/1.1 400 Bad Request\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"\x15\x03\x03\x00\x02\x02F", False),
        (b"\x16\x03\x03\x00\x7a", True),
    ],
)
def test_who_is_let_in_is_told_from_who_is_refused(said: bytes, is_let_in: bool) -> None:
    assert _is_let_in(said) is is_let_in


def test_what_a_node_tells_a_member_beyond_its_hello_counts() -> None:
    due = {type(each) for each in EXAMPLES if not _is_more_than_a_hello(framed(each))}
    assert due == {Hello, PeerRefused}


def test_only_what_changes_nothing_is_harmless() -> None:
    asked = Request("STATUS", "7"), Request("UNSUB", "8", "t", "c", 1, {"sequence": 1})
    assert [_harmless(encode_request(each)) for each in asked] == [{"7"}, set()]
    assert _harmless([b"nonsense"]) == set()
