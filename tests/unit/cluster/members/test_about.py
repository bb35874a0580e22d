"""What nodes tell each other beside Raft: its reading, and what follows from it."""

from __future__ import annotations

import orjson
import pytest

from cluster.members import about
from cluster.members.about import Facts, Heard
from cluster.members.neighbours import REFUSAL_S, Neighbours
from cluster.members.peers import Connected, Disconnected, HandshakeRefused, Reason, RefusedBy
from cluster.wire.frames import HEAD, framed
from cluster.wire.messages import (
    ABOUT_BYTES_MAX,
    About,
    Health,
    MessageError,
    Refusal,
    RelayReply,
)

FACTS = Facts(
    {"raft.heartbeat_ms": 80, "admins": "admin,ops"}, {"a": Heard("inc", 120)}, "double", "advice",
    "http://10.0.0.1:7201",
)  # fmt: skip


class NoPeers:
    """A stand-in: nobody is connected."""

    def hello_of(self, name: str) -> None:
        return None

    def trouble(self, name: str) -> str:
        return "" if name == "c" else f"{name} is away"


def neighbours(**settings: int | str) -> Neighbours:
    return Neighbours(["b", "c"], settings, NoPeers(), 100.0)  # type: ignore[arg-type]


def test_pages_of_the_others_are_known_also_while_they_are_away() -> None:
    mine = neighbours()
    mine.take("b", Facts(http="http://b:7201"), 100.0)
    mine.take("c", Facts(), 100.0)  # of an older version, or without a page
    mine.note(Disconnected("b", Reason.CLOSED, ""), 101.0)

    assert mine.describe(102.0)["pages"] == {"b": "http://b:7201"}


def test_a_refusal_is_shown_and_keeps_connections_from_the_log_while_it_counts() -> None:
    mine = neighbours()
    refused = RefusedBy("b", "inc-b", Refusal.DOUBLED, "doubled")
    assert mine.note(refused, 100.0) == "error"
    assert mine.note(Connected("b"), 100.1) == ""
    assert mine.describe(101.0)["refused_by"] == {"b": "doubled"}

    assert mine.note(Connected("b"), 100.1 + REFUSAL_S) == "info"
    assert mine.describe(101.0 + REFUSAL_S)["refused_by"] == {}


def test_facts_come_out_as_they_went_in() -> None:
    assert about.decode(about.encode(FACTS)) == FACTS


def test_keys_of_later_versions_are_skipped() -> None:
    assert about.decode(About(b'{"settings": {"x": 1}, "mood": [1]}')) == Facts({"x": 1})


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"texts": []}', '{"texts": {"x": 1}}', '{"texts": {"x": "' + "x" * 1025 + '"}}',
     '{"settings": []}', '{"settings": {"x": "1"}}', '{"seen": [1]}', '{"advice": 1}',
     '{"seen": {"a": ["i"]}}', '{"seen": {"a": ["i", -1]}}', '{"seen": {"a": [1, 1]}}',
     '{"double": "' + "x" * 1025 + '"}',
     '{"settings": {' + ",".join(f'"{n}": 1' for n in range(300)) + "}}"],
)  # fmt: skip
def test_other_facts_are_refused(text: str) -> None:
    with pytest.raises(MessageError, match="About"):
        about.decode(About(text.encode()))


def test_version_0_1_takes_it_for_a_reply_to_a_relay_that_it_never_sent() -> None:
    message = about.encode(FACTS)
    frame = bytearray(framed(message))
    reply = framed(RelayReply(1, [message.facts]))
    assert frame[HEAD.size] == reply[HEAD.size]
    assert len(frame) == len(reply)


def test_about_of_too_many_bytes_is_never_sent() -> None:
    with pytest.raises(AssertionError):
        framed(About(bytes(ABOUT_BYTES_MAX + 1)))


# --- what a node makes of it ----------------------------------------------------------------------


def test_settings_that_differ_are_told_once_a_peer_and_change() -> None:
    mine = neighbours(x=1, y=2, z=3)
    theirs = Facts({"x": 1, "y": 5, "other": 9})
    assert [event for event, _ in mine.take("b", theirs, 100.0)] == ["settings_differ"]
    assert mine.take("b", theirs, 100.5) == []
    assert mine.describe(100.5)["settings_differ"] == {"b": {"y": [2, 5]}}
    ((_, fields),) = mine.take("b", Facts({"y": 6}), 101.0)
    assert (fields["level"], fields["mine_and_theirs"]) == ("warning", {"y": [2, 6]})
    ((_, fields),) = mine.take("b", Facts({"y": 2}), 102.0)
    assert (fields["level"], fields["mine_and_theirs"]) == ("info", {})


def test_admins_that_differ_are_told_and_peers_of_before_hear_numbers_alone() -> None:
    mine = neighbours(x=1, admins="admin")
    ((_, fields),) = mine.take("b", Facts({"x": 1, "admins": "admin,ops"}), 100.0)
    assert fields["mine_and_theirs"] == {"admins": ["admin", "admin,ops"]}
    assert mine.take("c", Facts({"x": 1}), 100.0) == []
    assert orjson.loads(about.encode(FACTS).facts)["settings"] == {"raft.heartbeat_ms": 80}


def test_a_member_is_silent_when_neither_this_node_nor_a_witness_hears_it() -> None:
    mine = neighbours()
    assert mine.silent_s("b", "inc", {"c"}, 103.0) == 3.0  # since this node could have heard it
    mine.hear("b", "inc", 105.0)
    assert mine.silent_s("b", "inc", {"c"}, 106.0) == 1.0
    assert mine.silent_s("b", "other", {"c"}, 106.0) == 6.0
    mine.take("c", Facts(seen={"b": Heard("inc", 500)}), 108.0)
    assert mine.silent_s("b", "inc", {"c"}, 109.0) == 1.5
    assert mine.silent_s("b", "inc", set(), 109.0) == 4.0, "who is no witness counts not"
    assert mine.silent_s("b", "other", {"c"}, 109.0) == 9.0, "a witness hears another incarnation"
    mine.count_silence_from(110.0)
    assert mine.silent_s("b", "inc", {"c"}, 111.0) == 1.0


def test_who_is_refused_every_second_says_so_every_ten() -> None:
    mine = neighbours()
    told = []
    for second in range(20):
        now = 100.0 + second
        for event in (
            Connected("b"),
            RefusedBy("b", "inc-b", 2, "doubled"),
            Disconnected("b", Reason.REFUSED, "doubled"),
        ):
            level = mine.note(event, now)
            told += [(type(event).__name__, level)] if level else []
    assert told == [("Connected", "info"), ("RefusedBy", "error"), ("RefusedBy", "error")]
    assert mine.refused_as(2, 119.5) == "doubled"  # type: ignore[arg-type]
    assert mine.refused_as(2, 125.0) == ""  # type: ignore[arg-type]


def test_strangers_are_a_warning() -> None:
    assert neighbours().note(HandshakeRefused("1.2.3.4:5", "cluster"), 1.0) == "warning"


def test_a_joining_node_names_what_it_waits_for_from_each() -> None:
    assert neighbours().waiting_for("") == ["b: b is away", "c: is not connected"]
    assert neighbours().waiting_for("b") == ["a copy of the store from b"]


def test_the_settings_of_a_peer_that_is_gone_differ_no_more_and_are_not_told_twice() -> None:
    mine = neighbours(x=1)
    assert [event for event, _ in mine.take("b", Facts({"x": 2}), 100.0)] == ["settings_differ"]
    mine.note(Disconnected("b", Reason.CLOSED, ""), 101.0)
    assert mine.describe(101.0)["settings_differ"] == {}
    assert mine.take("b", Facts({"x": 2}), 102.0) == []
    assert mine.describe(102.0)["settings_differ"] == {"b": {"x": [1, 2]}}


def test_what_one_who_is_gone_said_of_its_disk_counts_no_more() -> None:
    mine = neighbours()
    mine.take_health("b", Health(7, True))
    mine.note(Disconnected("b", Reason.CLOSED, ""), 101.0)
    assert mine.health == {}
