"""What the page shows of publications: whose permission it takes, and that no cursor moves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.observe import reading
from cluster.observe.observer import NodeObserver
from cluster.observe.reading import (
    PERIOD_S,
    SHOWN_BYTES_MAX,
    PageFound,
    PageRead,
    PublicationReader,
    rows,
)
from cluster.serve.meters import FSYNC_S, Histogram, Meters
from cluster.store.commands import Raise, encode
from cluster.store.outcomes import Delivery, Refused
from cluster.wire.levels import LEVEL_OF_TOPICS
from flotilla_client.properties import Enveloped, Publication
from flotilla_client.properties import encode as envelope
from flotilla_client.protocol import (
    ADD_USER,
    ADMIN,
    DENY_USER,
    PURGE,
    PUT,
    REQUEST_ID,
    SUB,
    pack,
)
from tests.unit.cluster.serve.test_broker import code_of
from tests.unit.cluster.store.test_holdings import Leading


class ReadingWorld(Leading):
    """A leader with ten publications in `t`, and a reader for its page."""

    def __init__(self, directory: Path, reads_as: str = "board") -> None:
        super().__init__(directory)
        raised = encode(1, [Raise(LEVEL_OF_TOPICS)])
        self.store.apply(self.store.applied_index + 1, 1, raised)
        self.broker.admins = frozenset({"admin"})
        frontend: Any = SimpleNamespace(lead=SimpleNamespace(broker=self.broker))
        self.reader = PublicationReader(frontend, reads_as)
        self.at_s, self.acts = 0.0, 0
        assert code_of(self.answered(REQUEST_ID)) == "ACK"
        assert code_of(self.answered(SUB, "t", "id-1")) == "ACK"
        for number in range(10):
            put = {"counter": number, "publication": f"p{number + 1}"}
            assert code_of(self.answered(PUT, "t", "id-1", **put)) == "ACK"

    def act(self, act: str, topic: str = "", **body: Any) -> None:
        self.acts += 1
        body |= {"act": act, "act_id": f"a{self.acts}"}
        assert code_of(self.answered(ADMIN, topic, by="admin", **body)) == "ACK"

    def look(self, topic: str = "t", from_id: int | None = None, count: int = 50) -> Any:
        asked = PageRead(topic, from_id, count)
        self.reader.asked.append(asked)
        self.at_s += PERIOD_S
        self.reader.tick(self.at_s)
        return asked.found

    def shown(self, *what: Any) -> list[int]:
        found = self.look(*what)
        assert isinstance(found, PageFound), found
        return [row["id"] for row in rows(found.delivery)]


@pytest.fixture
def world(tmp_path: Path) -> ReadingWorld:
    return ReadingWorld(tmp_path)


def test_the_last_ones_are_shown_or_those_from_an_id_on_and_no_cursor_moves(
    world: ReadingWorld,
) -> None:
    before = world.store.digest()
    assert world.shown("t", None, 3) == [8, 9, 10]
    assert world.shown("t", 2, 2) == [2, 3]
    assert world.shown("t", 11) == []
    found = world.look()
    assert (found.first_id, found.last_id) == (1, 10)
    assert [row["text"] for row in rows(found.delivery)][:2] == ["p1", "p2"]
    assert world.store.cursor("id-1", "t") == 0
    assert world.store.digest() == before


def test_it_takes_the_permission_of_the_user_and_ends_with_that(world: ReadingWorld) -> None:
    world.act(ADD_USER, user="board", subscribe=["t", "u"])
    assert len(world.shown()) == 10
    world.act(DENY_USER, user="board", subscribe=["t"])
    refused = world.look()
    assert (refused.code, "board lacks `subscribe` on 't'" in refused.message) == (
        "unauthorized",
        True,
    )
    assert world.look("nothing").code == "unauthorized", "nor does it say whether there is one"
    assert world.look("u").code == "unknown_topic"
    assert world.broker.denied.total == Counter({("board", "subscribe"): 2})


def test_what_is_gone_is_passed_over(world: ReadingWorld) -> None:
    world.act(PURGE, "t", last_id=4)
    assert world.shown("t", 2, 3) == [5, 6, 7]
    world.act(PURGE, "t", last_id=10)
    found = world.look()
    assert (found.first_id, found.last_id, rows(found.delivery)) == (11, 10, [])


def test_a_node_that_is_no_member_yet_shows_nothing() -> None:
    frontend: Any = SimpleNamespace(lead=None)
    reader = PublicationReader(frontend, "board")
    asked = PageRead("t", None, 1)
    reader.asked.append(asked)
    reader.tick(1.0)
    assert isinstance(asked.found, Refused)
    assert asked.found.code == "electing"


def test_reads_take_turns_and_few_wait(world: ReadingWorld) -> None:
    asked = [PageRead("t", None, 1) for _ in range(reading.ASKED_MAX + 1)]
    world.reader.asked.extend(asked)
    world.reader.tick(1.0)
    world.reader.tick(1.0 + PERIOD_S / 2)
    assert [each.found is not None for each in asked] == [False, True, *[False] * 7]
    world.reader.tick(1.0 + PERIOD_S)
    assert asked[2].found is not None


def test_text_is_shown_as_text_bytes_as_digits_and_both_cut() -> None:
    half = "é".encode() * SHOWN_BYTES_MAX
    publication = Publication("x", key=b"\xff", headers={"h": "v", "b": b"\x00\xfe"})
    kept = Enveloped(envelope(publication.properties) + b"x")
    lengths, data = pack([b"text", b"\xff\x01", b"a" + half, "é".encode()[:1], kept])
    shown = rows(Delivery("t", 7, 5, lengths, data, ((2, 1000), (3, 0)), True))
    assert [(row["id"], row["at_ms"], row["bytes"]) for row in shown] == [
        (7, 1000, 4),
        (8, 1000, 2),
        (9, None, 2 * SHOWN_BYTES_MAX + 1),
        (10, None, 1),
        (11, None, 1),
    ]
    texts = [row["text"] for row in shown]
    assert texts[:2] == ["text", "ff 01"]
    assert texts[2] == "a" + "é" * (SHOWN_BYTES_MAX // 2 - 1)
    assert texts[3:] == ["c3", "x"]
    assert (shown[4]["key"], shown[4]["headers"]) == ("ff", {"h": "v", "b": "00 fe"})
    assert (shown[0]["key"], shown[0]["headers"]) == (None, {})


def observer_of(directory: Path, reads_as: str = "") -> NodeObserver:
    """Return the observer of a node that joins, which knows no leader yet."""
    frontend: Any = SimpleNamespace(
        lead=None,
        meters=Meters(),
        stopping=False,
        relays_waiting=0,
        refusals=SimpleNamespace(total={}),
        status=lambda: {"leader": ""},
    )
    clients: Any = type("Clients", (), {"unread_bytes": 0, "__len__": lambda self: 0})()
    return NodeObserver(frontend, clients, Histogram(FSYNC_S), directory, reads_as)


def test_a_change_of_role_is_shown_with_the_next_turn_and_all_else_each_second(
    tmp_path: Path,
) -> None:
    observer = observer_of(tmp_path)
    observer.tick(10.0)
    observer.note("listening", "info", {})
    observer.tick(10.1)
    assert observer.sample.at == 10.0
    observer.note("role", "info", {"role": "follower", "leader": ""})
    observer.tick(10.2)
    assert observer.sample.at == 10.2
    observer.tick(10.3)
    assert observer.sample.at == 10.2


def test_what_nobody_looks_at_is_kept_in_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.observe.observer.HAPPENED_MAX", 3)
    observer = observer_of(tmp_path)
    for number in range(10):
        observer.note("slow_turn", "warning", {"number": number})
    assert [each.fields["number"] for each in observer.happened] == [7, 8, 9]


@pytest.mark.parametrize("reads_as", ["", "board"])
def test_a_node_reads_for_its_page_where_it_is_told_as_whom(tmp_path: Path, reads_as: str) -> None:
    observer = observer_of(tmp_path, reads_as)
    observer.tick(1.0)
    if not reads_as:
        assert observer.reader is None
        return
    assert observer.reader is not None
    asked = PageRead("t", None, 1)
    observer.reader.asked.append(asked)
    observer.tick(2.0)
    assert asked.found is not None
