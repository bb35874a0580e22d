"""The live page in a real browser: drawn, searched, and still of use when its node dies."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from cluster.local.local import LocalCluster
from cluster.observe import pages as module
from cluster.observe.observer import Happened
from cluster.observe.reading import PageFound
from cluster.observe.server import listen
from cluster.observe.survey import SubscriptionRow, Survey, TopicRow
from cluster.store.outcomes import Delivery, Refused
from flotilla_client import Client
from flotilla_client.protocol import pack
from tests.browsing import WAIT_MS, Seen, chromium, opened
from tests.unit.observed import SAMPLE, Observed, ReadAtOnce, later

TOPICS: Final = 10_000
EVIL: Final = "<img src=x onerror=alert(1)>"
TOKEN: Final = "correct-horse-battery-staple"

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def look(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Seen]]:
    """Return a function that opens a page as a desktop or a phone does.

    How each looks in the end is saved.
    """
    pages = []

    def look(url: str, width: int = 1280, scheme: str = "light") -> Seen:
        seen = opened(browser, url, width, scheme)
        pages.append(seen.page)
        return seen

    expect.set_options(timeout=WAIT_MS)
    yield look
    for number, page in enumerate(pages):
        _save(page, tmp_path / f"page-{number}.png")
        page.context.close()


def _save(page: Page, picture: Path) -> None:
    page.screenshot(path=picture, full_page=True)
    print(picture)


def shown(node: Observed, token: str = "") -> str:
    """Serve a node that is made by hand; return its page."""
    node.sample = later(node.sample, 1e9)  # fresh for as long as the test takes
    listener = listen(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    observer: Any = node
    failed: Callable[[Exception], None] = lambda error: None  # noqa: E731
    arguments = (observer, "by-hand", token, failed, listener, None)
    threading.Thread(target=module.run, args=arguments, daemon=True).start()
    return url


def crowded() -> Observed:
    node = Observed()
    topics = [TopicRow(f"orders.{n:05}", 7 * n, 0, 1, n, 100 * n) for n in range(TOPICS)]
    behind = [SubscriptionRow(n, f"orders.{n:05}", f"client-{n}", n) for n in range(TOPICS)]
    node.survey = Survey([TopicRow(EVIL, 1, 0, 1, 10**6, 5), *topics], behind, 100_000, 10**8)
    node.happened.append(Happened(1e9, "role", "info", {"role": EVIL, "term": 1, "reason": EVIL}))
    refused = {**SAMPLE.refused, "backlog_full": 12}
    node.sample = later(SAMPLE, 0, refused=refused)
    return node


def test_an_empty_node_is_drawn_without_a_word_on_the_console(look: Callable[..., Seen]) -> None:
    seen = look(shown(Observed()))

    expect(seen.page.locator(".node.leader")).to_have_text(re.compile("n1.*leader", re.DOTALL))
    expect(seen.page.locator(".node.away")).to_contain_text("n3")
    expect(seen.page.locator("#topics tbody")).to_have_text("none")
    expect(seen.page.locator("#state")).to_have_text("n1 leads in term 3.")
    assert seen.troubles == []
    assert {re.sub(r"(//[^/]*/[^?]*).*", r"\1", each) for each in seen.requests} == {
        seen.page.url + name
        for name in ("", "page.css", "page.js", "history.json", "events", "topics.json",
                     "subscriptions.json")
    }  # fmt: skip


@pytest.mark.parametrize(("lag", "said"), [(0, "up to date"), (1, "1 entry"), (2, "2 entries")])
def test_a_member_is_said_to_be_so_far_behind(
    look: Callable[..., Seen], lag: int, said: str
) -> None:
    node = Observed()
    members = SAMPLE.status["members"]
    members = {**members, "n2": {**members["n2"], "lag": lag}}
    node.sample = later(SAMPLE, 0, status={"members": members})
    said += " behind" if lag else ""
    expect(look(shown(node)).page.locator(".node", has_text="n2")).to_contain_text(said)


def test_ten_thousand_topics_are_searched_and_sorted_and_none_of_them_is_html(
    look: Callable[..., Seen],
) -> None:
    seen = look(shown(crowded()))
    page = seen.page
    first = page.locator("#topics tbody tr:first-child td:first-child")

    expect(first).to_have_text(EVIL)  # it has most unread publications
    expect(page.locator("#topics tbody tr")).to_have_count(50)
    expect(page.locator("#topics-pages")).to_contain_text("1–50 of 10,001")
    page.locator("#topics-pages button", has_text="next").click()
    expect(page.locator("#topics-pages")).to_contain_text("51–100 of 10,001")
    page.locator("#topics th button", has_text="bytes").click()
    expect(first).to_have_text("orders.09999")
    page.locator("#topics th button", has_text="bytes").click()
    expect(first).to_have_text("orders.00000")
    page.locator("#topics-search").fill("0042")
    expect(page.locator("#topics-pages")).to_contain_text("1–11 of 11")
    expect(page.locator("#subscriptions-count")).to_contain_text("furthest behind")
    expect(page.locator("#refused")).to_contain_text("backlog_full")
    expect(page.locator("#events")).to_contain_text(EVIL)
    assert page.locator("img").count() == 0
    assert seen.troubles == []


def test_a_topic_s_publications_are_looked_at_from_its_row(look: Callable[..., Seen]) -> None:
    node = Observed()
    node.survey = Survey([TopicRow("orders", 42, 0, 1, 2, 5)], [], 0, 0)
    node.reader = ReadAtOnce(
        PageFound(1, 42, Delivery("orders", 41, 2, *pack([EVIL.encode(), b"y"])))
    )
    seen = look(shown(node))
    page = seen.page

    expect(page.locator("#read")).to_be_hidden()
    page.locator("#topics td button", has_text="orders").click()
    expect(page.locator("#read h2")).to_contain_text("Publications of orders 1 to 42 are there")
    expect(page.locator("#read-rows tbody tr")).to_have_count(2)
    expect(page.locator("#read-rows tbody")).to_contain_text(EVIL)
    page.locator("#read-pages button", has_text="before").click()
    expect(page.locator("#read-pages button", has_text="next")).to_be_disabled()
    assert [asked.from_id for asked in node.reader.given] == [None, 21]
    node.reader.found = Refused("unauthorized", "board lacks `subscribe` on 'orders'")
    page.locator("#topics td button", has_text="orders").click()
    expect(page.locator("#read-rows tbody")).to_have_text("403 board lacks `subscribe` on 'orders'")
    assert page.locator("img").count() == 0
    assert len(seen.troubles) <= 1, "the browser tells of the 403"


def test_without_a_reader_no_topic_can_be_opened(look: Callable[..., Seen]) -> None:
    page = look(shown(crowded())).page
    expect(page.locator("#topics tbody tr")).to_have_count(50)
    assert page.locator("#topics td button").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it_in_its_width(look: Callable[..., Seen], scheme: str) -> None:
    page = look(shown(crowded()), 390, scheme).page

    expect(page.locator("#topics tbody tr")).to_have_count(50)
    expect(page.locator("figure")).to_have_count(5)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_token_is_asked_for_and_kept_for_the_session(look: Callable[..., Seen]) -> None:
    seen = look(shown(Observed(), TOKEN))
    expect(seen.page.locator("#ask")).to_be_visible()
    assert seen.page.locator(".node").count() == 0

    seen.page.locator("#token").fill("wrong-wrong-wrong-wrong")
    seen.page.locator("#ask button").click()
    expect(seen.page.locator("#ask")).to_be_visible()
    seen.page.locator("#token").fill(TOKEN)
    seen.page.locator("#ask button").click()

    expect(seen.page.locator(".node.leader")).to_be_visible()
    assert not [url for url in seen.requests if TOKEN in url]


def test_a_killed_leader_s_page_goes_on_with_another_node_and_comes_home(
    look: Callable[..., Seen], tmp_path: Path
) -> None:
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.create(3, pages=True)
        cluster.start_all()
        leader = cluster.wait_for_leader()
        with Client(list(cluster.endpoints().values()), state_dir=tmp_path / "c") as client:
            client.subscribe("orders")
            client.publish("orders", b"x")
        seen = look(cluster.pages()[leader])
        state, nodes = seen.page.locator("#state"), seen.page.locator(".node")
        expect(state).to_have_text(re.compile(f"^{leader} leads"))
        expect(nodes).to_have_count(3)
        expect(seen.page.locator("#topics tbody")).to_contain_text("orders")
        expect(seen.page.locator(".node a")).to_have_count(2)  # by then it knows the others
        _save(seen.page, tmp_path / "page-led.png")

        cluster.kill(leader)

        second = cluster.wait_for_leader()
        expect(state).to_contain_text(f"{second} leads")
        expect(state).to_contain_text("the node that this page came from does not answer")
        expect(seen.page.locator(".node.away")).to_contain_text(leader)
        expect(seen.page.locator(".node.leader")).to_contain_text(second)
        expect(seen.page.locator("#reigns figcaption")).to_contain_text("without a leader")
        expect(seen.page.locator("#reigns .reign").last).to_contain_text(second)
        _save(seen.page, tmp_path / "page-killed.png")

        others = [name for name in cluster.pids() if name != second]
        cluster.kill(others[0])
        expect(state).to_contain_text("No leader")

        cluster.start_all()
        expect(state).to_have_text(re.compile(r"leads in term \d+\.$"))
        cluster.down()
        expect(state).to_contain_text("does not answer since")
