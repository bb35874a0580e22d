"""What a node answers over HTTP, and to whom."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from cluster.observe.http import HttpRequest, Response
from cluster.observe.observer import Happened
from cluster.observe.pages import FRESH_S, LIVE_S, REFUSED_BY_MAX, ROWS_MAX, Pages
from cluster.observe.past import Past
from cluster.observe.reading import ASKED_MAX, PageFound, PageRead
from cluster.observe.survey import SubscriptionRow, Survey, TopicRow
from cluster.store.outcomes import Delivery, Refused
from flotilla_client.protocol import pack
from tests.unit.observed import SAMPLE, Observed, ReadAtOnce, later

TOKEN = "correct-horse-battery"


class PageWorld:
    """Pages over a node made by hand, and a clock."""

    def __init__(self, token: str = "") -> None:
        self.node, self.now = Observed(), SAMPLE.at
        observer: Any = self.node
        self.pages = Pages(observer, Past("c"), token, lambda: self.now)

    def get(self, path: str, method: str = "GET", **headers: str) -> Response:
        path, _, query = path.partition("?")
        given = dict(pair.split("=") for pair in query.split("&")) if query else {}
        given_headers = {"host": "127.0.0.1:7201", **headers}
        answer = self.pages.answer(HttpRequest(method, path, given, given_headers))
        if isinstance(answer, Response):
            return answer

        async def awaited() -> Response:
            return await answer

        return asyncio.run(awaited())

    def json(self, path: str) -> Any:
        response = self.get(path)
        assert response.status == 200, response
        return orjson.loads(response.body)


def test_a_loop_that_does_not_turn_is_ill_and_before_that_not_ready() -> None:
    world = PageWorld()
    assert (world.get("/healthz").status, world.get("/readyz").status) == (200, 200)
    world.now += FRESH_S + 1
    assert (world.get("/healthz").status, world.get("/readyz").status) == (200, 503)
    world.now += LIVE_S
    assert world.get("/healthz").status == 503
    assert b"has not turned for 36 s" in world.get("/healthz").body


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": {"leader": ""}}, b"no leader is known"),
        ({"status": {"role": "joining", "leader": ""}}, b"no member yet"),
        ({"stopping": True}, b"stopping"),
    ],
)
def test_readyz_says_why_a_node_is_not_ready(changes: dict[str, Any], reason: bytes) -> None:
    world = PageWorld()
    world.node.sample = later(SAMPLE, 0, **changes)

    response = world.get("/readyz")

    assert response.status == 503
    assert reason in response.body
    assert world.get("/healthz").status == 200, "a restart would not help"


def test_without_the_token_only_health_and_the_bare_page_are_shown() -> None:
    world = PageWorld(TOKEN)
    closed = ("/metrics", "/status.json", "/topics.json", "/subscriptions.json", "/history.json",
              "/events")  # fmt: skip
    for path in closed:
        for given in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": TOKEN},
                      {"authorization": f"Basic {TOKEN}"}):  # fmt: skip
            response = world.get(path, **given)
            assert response.status == 401, path
            assert dict(response.headers)["www-authenticate"].startswith("Bearer")
            assert b"n1" not in response.body
        assert world.get(path, authorization=f"Bearer {TOKEN}").status == 200
    for path in ("/", "/page.css", "/page.js", "/healthz", "/readyz"):
        assert world.get(path).status == 200


def test_a_name_that_a_stranger_points_here_is_refused_without_a_token() -> None:
    for host in ("evil.example", "evil.example:7201", "127.0.0.1.evil.example", "", "[::1"):
        assert PageWorld().get("/status.json", host=host).status == 421, host
    for host in ("127.0.0.1:7201", "localhost:7201", "[::1]:7201", "10.0.0.7"):
        assert PageWorld().get("/status.json", host=host).status == 200, host
    named = PageWorld(TOKEN).get("/status.json", host="n1.example", authorization=f"Bearer {TOKEN}")
    assert named.status == 200


def test_pages_of_this_cluster_s_nodes_may_read_and_no_others() -> None:
    world = PageWorld()
    allowed = "access-control-allow-origin"
    ours = world.get("/status.json", origin="http://127.0.0.1:7202")
    assert dict(ours.headers)[allowed] == "http://127.0.0.1:7202"
    preflight = world.get("/status.json", method="OPTIONS", origin="http://127.0.0.1:7202")
    assert dict(preflight.headers)["access-control-allow-headers"] == "authorization"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:7203"):
        assert allowed not in dict(world.get("/status.json", origin=origin).headers)


def test_the_status_says_who_was_refused_and_why() -> None:
    world = PageWorld()
    expected = [["shop", "requests_per_s_max", 3], ["shop", "publish", 2]]
    assert world.json("/status.json")["refused_by"] == expected
    many = {(f"p{number}", "publish"): number for number in range(100)}
    world.node.sample = later(SAMPLE, 1.0, unauthorized=many, quota_refused={})
    said = world.json("/status.json")["refused_by"]
    assert said[0] == ["p99", "publish", 99]
    assert len(said) == REFUSED_BY_MAX


def test_topics_are_searched_and_sorted_here() -> None:
    world = PageWorld()
    rows = [TopicRow(f"orders.{n}", n, 0, n % 7, 100 - n, 10 * n) for n in range(100)]
    world.node.survey = Survey([*rows, TopicRow("other", 1, 0, 0, 0, 0)])

    found = world.json("/topics.json?search=orders&sort=bytes&count=2")
    assert [row["topic"] for row in found["rows"]] == ["orders.99", "orders.98"]
    assert (found["found"], found["all"]) == (100, 101)
    found = world.json("/topics.json?sort=topic&down=0&first=1&count=1")
    assert [row["topic"] for row in found["rows"]] == ["orders.1"]
    assert len(world.json(f"/topics.json?count={10 * ROWS_MAX}")["rows"]) == 101


@pytest.mark.parametrize("order", ["topic", "publications", "subscribers", "backlog", "bytes"])
def test_topics_are_sorted_by_what_is_asked_for(order: str) -> None:
    world = PageWorld()
    rows = [TopicRow(f"t{n}", n * 3 % 7, 0, n * 2 % 7, n * 5 % 7, n * 4 % 7) for n in range(7)]
    world.node.survey = Survey(rows)
    shown = [row[order] for row in world.json(f"/topics.json?sort={order}")["rows"]]
    assert shown == sorted(shown, reverse=True)
    assert len(set(shown)) == 7


def test_topics_are_sorted_by_their_rate() -> None:
    world = PageWorld()
    for ids in ((1, 1, 1), (5, 3, 9)):
        world.node.survey = Survey(
            [TopicRow(f"t{n}", id_, 0, 0, 0, 0) for n, id_ in enumerate(ids)]
        )
        world.pages.refresh()
        world.now += 2.0
    shown = world.json("/topics.json?sort=rate")["rows"]
    assert [(row["topic"], row["rate"]) for row in shown] == [("t2", 4.0), ("t0", 2.0), ("t1", 1.0)]


def test_an_answer_has_so_many_rows_at_most_whatever_is_asked_for() -> None:
    world = PageWorld()
    topics = [TopicRow(f"t{n}", n, 0, 0, 0, 0) for n in range(ROWS_MAX + 1)]
    subscriptions = [SubscriptionRow(n, "t", f"c{n}", 0) for n in range(ROWS_MAX + 1)]
    world.node.survey = Survey(topics, subscriptions, len(subscriptions), 0)
    for path in ("/topics.json", "/subscriptions.json"):
        found = world.json(f"{path}?count={ROWS_MAX + 1}")
        assert (len(found["rows"]), found["found"]) == (ROWS_MAX, ROWS_MAX + 1)


@pytest.mark.parametrize(
    "query", ["sort=colour", "first=-1", "count=x", "first=1e9", "search=" + "x" * 256]
)
def test_what_cannot_be_meant_is_refused(query: str) -> None:
    assert PageWorld().get(f"/topics.json?{query}").status == 400
    assert PageWorld().get(f"/subscriptions.json?{query}").status == 400


def test_subscriptions_are_searched_and_sorted_here() -> None:
    world = PageWorld()
    rows = [SubscriptionRow(100 - n, "a" if n % 2 else "b", f"c{n}", n) for n in range(100)]
    world.node.survey = Survey([], rows, 250, 5000)

    found = world.json("/subscriptions.json?topic=a&sort=cursor&count=1")
    [row] = found["rows"]
    assert row == {"lag": 1, "topic": "a", "client_id": "c99", "cursor": 99, "group": ""}
    assert (found["found"], found["known"], found["all"]) == (50, 100, 250)
    assert world.json("/subscriptions.json?search=c42")["found"] == 1


def test_groups_stand_among_the_subscriptions_and_are_found_by_name() -> None:
    world = PageWorld()
    rows = [SubscriptionRow(9, "t", "", 1, "workers"), SubscriptionRow(2, "t", "c", 8)]
    world.node.survey = Survey([], rows, 2, 11)
    assert [row["group"] for row in world.json("/subscriptions.json")["rows"]] == ["workers", ""]
    [found] = world.json("/subscriptions.json?search=work")["rows"]
    assert found == {"lag": 9, "topic": "t", "client_id": "", "cursor": 1, "group": "workers"}


def test_publications_are_shown_where_the_node_is_told_as_whom() -> None:
    world = PageWorld()
    assert world.json("/status.json")["reads"] is False
    refused = world.get("/publications.json?topic=t")
    assert (refused.status, b"http_reads_as is not set" in refused.body) == (403, True)
    lengths, data = pack([b"a", b"b"])
    reader = ReadAtOnce(PageFound(3, 9, Delivery("t", 4, 2, lengths, data, ((2, 1000),))))
    world.node.reader = reader
    assert world.json("/status.json")["reads"] is True
    shown = world.json("/publications.json?topic=t&from=4&count=2")
    assert [shown[each] for each in ("topic", "first_id", "last_id")] == ["t", 3, 9]
    assert [(row["id"], row["text"], row["at_ms"]) for row in shown["rows"]] == [
        (4, "a", 1000),
        (5, "b", 1000),
    ]
    [asked] = reader.given
    assert (asked.topic, asked.from_id, asked.count) == ("t", 4, 2)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (Refused("unauthorized", "board lacks `subscribe` on 't'"), 403),
        (Refused("unknown_topic", "nobody subscribes to 't'"), 404),
        (Refused("electing", "not yet"), 503),
    ],
)
def test_a_refusal_of_the_state_is_told(found: Refused, status: int) -> None:
    world = PageWorld()
    world.node.reader = ReadAtOnce(found)
    response = world.get("/publications.json?topic=t")
    assert (response.status, response.body.decode()) == (status, f"{found.message}\n")


@pytest.mark.parametrize(
    "query",
    [
        *("", "topic=t&from=x", "topic=t&count=51", "topic=t&count=0", "topic=t&count=0011111"),
        pytest.param(f"topic={256 * 't'}", id="longer than any topic's name"),
        "topic=a\nb",
        pytest.param("topic=t&count=001" + 4_300 * "0", id="more digits than Python reads"),
    ],
)
def test_what_is_no_place_in_a_topic_is_refused(query: str) -> None:
    world = PageWorld()
    world.node.reader = ReadAtOnce(None)
    assert world.get(f"/publications.json?{query}").status == 400


def test_a_loop_that_reads_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.observe.pages.READ_S_MAX", 0.0)
    world = PageWorld()
    world.node.reader = ReadAtOnce(None)
    assert world.get("/publications.json?topic=t").status == 503


def test_who_asks_to_read_while_as_many_wait_as_may_is_told_so_and_throws_nobody_out() -> None:
    world = PageWorld()
    waiting = [PageRead("t", None, 1) for _ in range(ASKED_MAX)]
    world.node.reader = SimpleNamespace(asked=deque(waiting, maxlen=ASKED_MAX))
    response = world.get("/publications.json?topic=t")
    assert (response.status, dict(response.headers)["retry-after"]) == (503, "1")
    assert [*world.node.reader.asked] == waiting


def test_publications_take_the_token_as_all_data_does() -> None:
    world = PageWorld(TOKEN)
    reader = world.node.reader = ReadAtOnce(Refused("unknown_topic", "none"))
    assert world.get("/publications.json?topic=t").status == 401
    assert reader.given == []
    allowed = {"authorization": f"Bearer {TOKEN}", "origin": "http://127.0.0.1:7202"}
    answered = world.get("/publications.json?topic=t", **allowed)
    assert answered.status == 404
    assert ("access-control-allow-origin", "http://127.0.0.1:7202") in answered.headers


def test_events_tell_each_thing_that_happened_once() -> None:
    world = PageWorld()
    stream = world.pages.events()

    async def following(count: int) -> list[Any]:
        got = []
        for number in range(count):
            world.node.happened.append(Happened(float(number), "role", "info", {"term": number}))
            line = await anext(stream)
            assert line.startswith(b"data: ")
            assert line.endswith(b"\n\n")
            got.append(orjson.loads(line[6:]))
        return got

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cluster.observe.pages.EVENT_S", 0.0)
        got = asyncio.run(following(3))
    terms = [[each["term"] for each in line["events"]] for line in got]
    assert terms == [[0], [1], [2]]
    assert got[0]["status"]["role"] == "leader"


def test_what_happened_since_the_last_line_is_told_in_its_order() -> None:
    world = PageWorld()

    async def second_line() -> list[int]:
        stream = world.pages.events()
        await anext(stream)
        for number in range(3):
            world.node.happened.append(Happened(float(number), "role", "info", {"term": number}))
        line = await anext(stream)
        return [each["term"] for each in orjson.loads(line[6:])["events"]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cluster.observe.pages.EVENT_S", 0.0)
        assert asyncio.run(second_line()) == [0, 1, 2]


def test_what_a_sample_knows_is_newer_than_what_happened_before_it() -> None:
    world = PageWorld()
    world.pages.refresh()
    wall_s = SAMPLE.wall_s
    world.node.happened.append(Happened(wall_s + 0.5, "role", "info", {"leader": "n3"}))
    world.node.sample = later(SAMPLE, 1.0, status={"leader": "", "role": "follower"})
    assert world.json("/status.json")["leaderless_s"] == 0
    world.node.sample = later(SAMPLE, 2.0, status={"leader": "", "role": "follower"})
    assert world.json("/status.json")["leaderless_s"] == pytest.approx(1.0)


def test_a_blackout_between_two_samples_is_measured_to_the_event() -> None:
    world = PageWorld()
    world.pages.refresh()
    wall_s = SAMPLE.wall_s
    told: list[tuple[float, str, dict[str, Any]]] = [
        (0.1, "role", {"leader": "n2"}),
        (0.2, "peer_disconnected", {"name": "n2"}),
        (0.5, "role", {"leader": "n3"}),
        (1.5, "peer_disconnected", {"name": "n3"}),
    ]
    for after_s, event, fields in told:
        world.node.happened.append(Happened(wall_s + after_s, event, "info", fields))
    world.node.sample = later(SAMPLE, 1.0, status={"leader": "n3", "role": "follower"})

    assert world.json("/status.json")["leaderless_s"] == pytest.approx(0.3)
    world.node.sample = later(SAMPLE, 2.0, status={"leader": "", "role": "follower"})
    assert world.json("/status.json")["leaderless_s"] == pytest.approx(0.8)


def test_an_unknown_address_says_which_there_are() -> None:
    response = PageWorld().get("/nothing")
    assert response.status == 404
    assert b"/metrics" in response.body
