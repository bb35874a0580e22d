"""The pages in a real browser, without a network: drawn, readable, silent on the console."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser

from analytics.common.check_specs import CHECK_SPECS
from analytics.common.verdict import CheckResult
from analytics.report.index import write_index
from analytics.report.page import page
from tests.browsing import WAIT_MS, Seen, chromium, opened
from tests.report import samples

VIEWS: Final = [(1280, "light"), (390, "dark")]
# What each plot must have drawn: (plot, what its marks are, how many at least).
DRAWN: Final = (
    ("throughput", ".scatterlayer path.js-line", 3),
    ("unseen", ".scatterlayer path.js-fill", 1),
    ("latency", ".scatterlayer path.js-line", 3),
    ("staleness", ".scatterlayer path.js-line", 3),
    ("roles", ".barlayer .point path", 5),
)

# A browser starts for each of them: a minute and a half in all, on two processors.
pytestmark = [pytest.mark.needs("chromium"), pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run with its page."""
    directory = tmp_path_factory.mktemp("run")
    facts = samples.facts(directory)
    text = page(samples.report(), facts, samples.series(), samples.EVENTS)
    (directory / "report.html").write_text(text, encoding="utf-8")
    return directory


def file(browser: Browser, path: Path, width: int = 1280, scheme: str = "light") -> Seen:
    """Open a file where there is no network."""
    return opened(browser, path.as_uri(), width, scheme, offline=True)


def drawn(browser: Browser, run: Path, width: int = 1280, scheme: str = "light") -> Seen:
    seen = file(browser, run / "report.html", width, scheme)
    seen.page.wait_for_selector(f"html[data-drawn={scheme}]", timeout=WAIT_MS)
    return seen


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_page_draws_every_plot_without_error_or_network(
    browser: Browser, run: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    seen = drawn(browser, run, width, scheme)
    picture = tmp_path / f"report-{width}-{scheme}.png"
    seen.page.screenshot(path=picture, full_page=True)
    print(picture)
    assert seen.troubles == []
    assert [url for url in seen.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") == width
    for plot, marks, count in DRAWN:
        box = seen.page.locator(f"#{plot} .main-svg").first.bounding_box()
        assert box is not None, plot
        assert box["width"] > 250, plot
        assert box["height"] > 150, plot
        shown = [one.bounding_box() for one in seen.page.locator(f"#{plot} {marks}").all()]
        assert len([one for one in shown if one and one["width"] > 1]) >= count, (plot, shown)
    seen.page.context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_index_fits_is_silent_and_leads_to_the_pages(
    browser: Browser, run: Path, width: int
) -> None:
    (run / "report.json").write_text(json.dumps(samples.report().as_dict()))
    write_index([run, run / "nowhere"], run / "index.html")
    seen = file(browser, run / "index.html", width)
    assert seen.page.evaluate("document.documentElement.scrollWidth") == width
    assert "invalid" in seen.page.inner_text("header")
    seen.page.get_by_role("link", name="kill leader").click()
    seen.page.wait_for_url("**/report.html", timeout=WAIT_MS)
    assert seen.troubles == []
    seen.page.context.close()


# Every word of the tables that stands in more than one line. A line may end at a space or a slash,
# not at an underscore.
BROKEN_WORDS: Final = """() => {
  const broken = [];
  for (const table of document.querySelectorAll("table")) {
    const walker = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      for (const word of walker.currentNode.data.matchAll(/[\\w]+/g)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, word.index);
        range.setEnd(walker.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) {
          broken.push(word[0]);
        }
      }
    }
  }
  return broken;
}"""


@pytest.mark.parametrize("width", [1400, 1280, 800, 390])
def test_no_word_of_a_table_breaks_in_its_middle(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    checks = tuple(CheckResult(name, one.meaning, 0, (), 0.5) for name, one in CHECK_SPECS.items())
    report = replace(samples.report(), checks=checks)
    text = page(report, samples.facts(tmp_path), samples.series(), samples.EVENTS)
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    seen = drawn(browser, tmp_path, width)
    assert seen.page.evaluate(BROKEN_WORDS) == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") == width
    seen.page.context.close()


def test_names_from_a_history_do_not_run(browser: Browser, run: Path) -> None:
    seen = drawn(browser, run)
    for plot, _, _ in DRAWN:
        seen.page.locator(f"#{plot} .nsewdrag").first.hover()  # labels under the pointer
    assert seen.page.evaluate("typeof hacked") == "undefined"
    assert samples.TOPIC in seen.page.inner_text("#witnesses ~ article")
    assert samples.NODE in seen.page.inner_text("#roles")
    seen.page.context.close()


def test_markup_that_got_through_would_still_not_run(browser: Browser, tmp_path: Path) -> None:
    """The page's policy is the second wall: here the first one is torn down on purpose."""
    text = page(samples.report(), samples.facts(tmp_path), samples.series(), {})
    evil = "<script>hacked=1</script><img src=x onerror=hacked=1>"
    (tmp_path / "report.html").write_text(text.replace("<main>", f"<main>{evil}"))
    seen = drawn(browser, tmp_path)
    assert seen.page.evaluate("typeof hacked") == "undefined"
    assert "Content Security Policy" in " ".join(seen.troubles)
    seen.page.context.close()


def test_colours_follow_the_reader_s_choice_of_light_or_dark(browser: Browser, run: Path) -> None:
    seen = drawn(browser, run)
    background = "getComputedStyle(document.querySelector('#unseen .main-svg')).backgroundColor"
    light = seen.page.evaluate(background)
    seen.page.emulate_media(color_scheme="dark")
    seen.page.wait_for_selector("html[data-drawn=dark]", timeout=WAIT_MS)
    dark = seen.page.evaluate(background)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(26, 33, 43)")
    seen.page.context.close()


def test_zooming_one_plot_zooms_all(browser: Browser, run: Path) -> None:
    seen = drawn(browser, run)
    seen.page.evaluate("Plotly.relayout('latency', {'xaxis.range[0]': 1.5, 'xaxis.range[1]': 3.0})")
    ranges = (
        "[...document.querySelectorAll('.plot')]"
        ".map((plot) => plot.layout.xaxis.range.map(Number).join('-'))"
    )
    assert set(seen.page.evaluate(ranges)) == {"1.5-3"}
    assert seen.troubles == []
    seen.page.context.close()
