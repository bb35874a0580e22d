"""The pages as text: what they say, and that nothing from a history becomes markup or runs."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.common.verdict import InjectedFault, Verdict
from analytics.report.data import SLICES_MAX, Axis, Band, axis_over, bands_of, phases_of, summed
from analytics.report.facts import facts_of
from analytics.report.index import entry_of, index, write_index
from analytics.report.operations import timeline
from analytics.report.page import page
from tests.report import samples
from tests.report.samples import AXIS, EVENTS, GET, HOSTILE, ORIGIN_NS, PUT, SECOND_NS

LOADS = ("src", "href", "srcset", "data", "poster", "action", "formaction")


class PageReader(HTMLParser):
    """Reads a page as a browser would: elements, text, scripts, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._inside = ""
        self.feed(text)
        self.close()
        self.words = " ".join(self.words.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        is_code = tag == "script" and ("type", "application/json") not in attrs
        self._inside = "code" if is_code else tag if tag in ("script", "style") else ""
        if is_code:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "code":
            self.scripts[-1] += data
        elif not self._inside:
            self.words += " " + data


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    facts = samples.facts(tmp_path_factory.mktemp("run"))
    return page(samples.report(), facts, samples.series(), EVENTS)


@pytest.fixture(scope="module")
def read(text: str) -> PageReader:
    return PageReader(text)


def test_names_from_a_history_stay_text(read: PageReader) -> None:
    assert len(read.scripts) == 2, "plotly's and the page's"
    assert not {"img", "svg", "iframe", "object"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    for name in HOSTILE:
        assert " ".join(name.split()) in read.words, name


def test_names_in_figures_are_escaped_for_plotly_and_for_the_page(text: str) -> None:
    block = text.partition('id="figures">')[2].partition("</script>")[0]
    assert "<" not in block
    figures = json.loads(block)
    shown = json.dumps(figures["roles"])
    assert "&lt;img src=x" in shown
    assert "<img" not in shown
    assert "<script" not in shown.replace("<br>", "")


def test_only_the_scripts_of_the_page_may_run(read: PageReader) -> None:
    policy = next(
        value for name, value in read.attributes if name == "content" and "script-src" in value
    )
    for script in read.scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]


def test_page_loads_nothing(read: PageReader) -> None:
    links = {value for name, value in read.attributes if name in LOADS}
    away = {link for link in links if not link.startswith(("#", "history/", "report.json"))}
    assert away == {"data:,"}, "the icon that no browser has to ask for"


def test_verdict_comes_first_and_says_what_it_rests_on(read: PageReader) -> None:
    parts = (
        *("✗ invalid", "1 of 3 checks (1 could not judge this run) found 21 pieces"),
        *("drain incomplete", "What it rests on", "900 acknowledged", "3 of 4 subscriptions"),
        *("1 torn, 0 malformed", "A check's count", "not judged", "Shaded:", "The longest time"),
        *("512 ms", "no end seen", "the smallest proofs", "The same experiment"),
        "flotilla-chaos run 'kill leader'",
    )
    places = [read.words.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)


def test_figures_have_numbers_in_words_for_who_cannot_see_them(read: PageReader) -> None:
    told = [value for name, value in read.attributes if name == "aria-label"]
    assert any("Latency of PUT: medians of slices: median 7 ms" in one for one in told), told
    assert any("n2 led term 2 from 2.5 to 5.9 s" in one for one in told), told
    assert read.tags.count("figure") == 5


def test_durations_and_liveness_are_told(read: PageReader) -> None:
    assert "PUT 900 5.0 10.0 20.0 90.0 180.0 staleness 1,800 2.0 4.0 8.0 12.0 16.5" in read.words
    assert "acknowledged in 91.5% of the time" in read.words
    assert "Liveness: ✗ invalid · 1 subscriptions did not drain" in read.words


def test_witness_links_to_file_and_lines(text: str, read: PageReader) -> None:
    links = [value for name, value in read.attributes if name == "href"]
    assert "history/s.jsonl" in links
    assert "history/s.jsonl:4, 5" in text


@pytest.mark.parametrize(
    ("reasons", "verdict", "sentence"),
    [
        ((), "valid", "1 check read 4,456 lines of what every client saw, and found nothing"),
        (("no time",), "unknown", "1 check found no evidence, but that proves nothing: no time"),
    ],
)
def test_verdict_in_a_sentence(
    tmp_path: Path, reasons: tuple[str, ...], verdict: str, sentence: str
) -> None:
    report = replace(samples.valid(), reasons=reasons)
    read = PageReader(page(report, facts_of(tmp_path), samples.series(), {}))
    assert sentence in read.words
    assert ("class", verdict) in read.attributes


def test_history_of_several_hosts_is_not_plotted_and_the_page_says_so(tmp_path: Path) -> None:
    read = PageReader(page(samples.report(), facts_of(tmp_path), None, EVENTS))
    assert "several hosts" in read.words
    assert (read.scripts, read.tags.count("figure")) == ([], 0)


def test_only_the_longest_blackouts_are_listed(tmp_path: Path) -> None:
    faults = tuple(InjectedFault("kill", (f"n{n}",), ORIGIN_NS + n, float(n)) for n in range(200))
    report = replace(samples.valid(), observations=samples.observations(faults))
    words = PageReader(page(report, facts_of(tmp_path), samples.series(), {})).words
    assert "The 50 longest of 200" in words
    assert "kill n150 " in words
    assert "kill n149 " not in words


# --- data -----------------------------------------------------------------------------------------


@given(st.integers(0, 10**18), st.integers(0, 10**16))
def test_axis_never_has_more_slices_than_fit(begin_ns: int, length_ns: int) -> None:
    axis = axis_over(begin_ns, begin_ns + length_ns)
    assert 1 <= axis.count <= SLICES_MAX
    assert axis.width_ns >= 100_000_000
    assert axis.count == len(axis.times_s())


def test_axis_of_a_minute_has_slices_of_100_ms_and_of_a_day_of_100_s() -> None:
    assert axis_over(0, 60 * SECOND_NS).width_s == 0.1
    assert axis_over(0, 86_400 * SECOND_NS).width_s == 100


def test_band_lasts_from_injection_to_healing_or_to_the_end() -> None:
    healed = InjectedFault(
        "kill", ("n1",), ORIGIN_NS + SECOND_NS, 9.0, healed_ns=ORIGIN_NS + 4 * SECOND_NS
    )
    standing = InjectedFault("cut", (), ORIGIN_NS + 5 * SECOND_NS, None)
    assert bands_of(AXIS, (healed, standing)) == (
        Band("kill", ("n1",), 1.0, 4.0, True),
        Band("cut", (), 5.0, AXIS.end_s, False),
    )


def test_phase_lasts_until_the_next_mark() -> None:
    phases = phases_of(AXIS, [(ORIGIN_NS + SECOND_NS, "steady"), (ORIGIN_NS, "warmup")])
    assert [(one.name, one.begin_s, one.end_s) for one in phases] == [
        ("warmup", 0.0, 1.0),
        ("steady", 1.0, AXIS.end_s),
    ]


def test_level_holds_between_its_steps() -> None:
    axis = Axis(0, 4, 1)
    assert summed(axis, {1: 3, 3: -2}) == [0, 3, 3, 1, 1]


def test_bar_runs_from_invoke_to_completion_and_without_one_to_the_border() -> None:
    drawn = timeline((PUT, GET), EVENTS, ORIGIN_NS, samples.series().bands)
    assert drawn is not None
    put, get = drawn.bars
    length_s = drawn.end_s - drawn.begin_s
    assert put.left == pytest.approx((2.0 - drawn.begin_s) / length_s * 100, abs=0.01)
    assert put.width == pytest.approx(0.5 / length_s * 100, abs=0.01)
    assert (put.outcome, put.lasted_ms) == ("ok", 500.0)
    assert put.words.startswith(f"PUT {samples.TOPIC} counters 7–9 → ids 11–13 (leader ")
    assert (get.outcome, get.ended, get.lasted_ms) == ("no end", False, None)
    assert get.left + get.width == pytest.approx(100)
    assert [shade.name for shade in drawn.shades] == [samples.FAULT]
    assert timeline((samples.operation(99),), EVENTS, ORIGIN_NS) is None


def test_a_take_shows_what_was_leased_and_how_long() -> None:
    take, other = samples.operation(5, "w"), samples.operation(6, "v")
    said = {"f": "take", "group": "g"}
    events = {
        ("w", 5): [
            samples.event(take, "invoke", 1.0, **said, acks=[[1, 3, 4]]),
            samples.event(take, "ok", 1.1, **said, token=2, leases=[[5, 5, 3]], left_ms=500),
        ],
        ("v", 6): [
            samples.event(other, "invoke", 2.0, **said),
            samples.event(other, "ok", 2.1, **said, lost=[[3, 4]]),
        ],
    }
    drawn = timeline((take, other), events, ORIGIN_NS)
    assert drawn is not None
    leased, nothing = drawn.bars
    assert "acks ids 3–4 of token 1" in leased.words
    assert "id 5 (attempt 3) under token 2 for 500 ms" in leased.words
    assert "not his any more: ids 3–4" in nothing.words
    assert nothing.lease is None
    assert leased.lease is not None
    assert leased.width < leased.lease < nothing.left - leased.left


# --- facts and index ------------------------------------------------------------------------------


def test_rerun_command_is_the_whole_of_it(tmp_path: Path) -> None:
    facts = samples.facts(tmp_path)
    assert facts.rerun == (
        "flotilla-chaos run 'kill leader' --target local --nodes 3 --duration 8 --seed 7"
    )
    settings = dict(facts.settings)
    assert settings["faults[1].hold_s"] == "1.5"
    assert settings["workload.topics"].endswith("t11 and 8 more")


@pytest.mark.parametrize("content", [None, "{", "[]", '{"experiment": 3, "nodes": null}'])
def test_facts_of_a_run_file_that_says_nothing_are_empty(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    facts = facts_of(tmp_path)
    assert (facts.name, facts.rerun, facts.nodes) == (tmp_path.name, None, ())


def a_run(directory: Path, document: dict[str, object] | None) -> Path:
    directory.mkdir()
    samples.facts(directory)
    if document is not None:
        (directory / "report.json").write_text(json.dumps(document))
        (directory / "report.html").write_text("a page")
    return directory


def test_index_has_a_row_a_run_and_the_worst_verdict(tmp_path: Path) -> None:
    invalid = a_run(tmp_path / "a run#1", samples.report().as_dict())
    lost = a_run(tmp_path / "lost", None)
    write_index([invalid, lost], tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text()
    read = PageReader(text)
    assert "2 runs ✗ invalid 1 unknown, 1 invalid" in read.words
    assert "lost: 21" in read.words
    assert "no report: No such file or directory" in read.words
    assert "1 without end" in read.words
    assert [v for n, v in read.attributes if n == "href"] == ["data:,", "a%20run%231/report.html"]
    assert (read.scripts, "img" in read.tags) == ([], False)


def test_entry_has_median_and_worst_blackout(tmp_path: Path) -> None:
    faults = tuple(
        InjectedFault("kill", ("n1",), n, ms) for n, ms in enumerate((100.0, 300.0, 800.0))
    )
    report = replace(samples.valid(), observations=samples.observations(faults))
    entry = entry_of(a_run(tmp_path / "run", report.as_dict()), tmp_path / "index.html")
    assert (entry.median_ms, entry.worst_ms, entry.endless) == (300.0, 800.0, 0)
    assert entry.verdict is Verdict.VALID
    assert entry.found == ("expected: 3 acknowledged, 50 are the least",)


def test_index_of_nothing_is_unknown() -> None:
    assert "No run, so nothing is known" in PageReader(index([])).words
