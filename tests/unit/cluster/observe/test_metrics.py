"""The metrics: names by Prometheus' conventions, as the table says, with bounded series."""

from __future__ import annotations

import re
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.observe import metrics
from cluster.observe.metrics import METRICS, View, exposition, registry
from cluster.observe.past import Past
from cluster.observe.survey import SubscriptionRow, Survey, TopicRow
from tests.unit.observed import SAMPLE, later


def shown(view: View) -> str:
    content_type, text = exposition(registry(lambda: view), "")
    assert content_type.startswith("text/plain; version=0.0.4")
    return text.decode()


@pytest.mark.parametrize("version", ["x", "", "1", "1.0.0\xff", "2.0.0\xff", "1..", "9" * 5_000])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_whatever_version_a_reader_names_it_is_answered(kind: str, version: str) -> None:
    made = registry(lambda: view_of(1))
    content_type, text = exposition(made, f"{kind};version={version}")
    assert content_type.isascii()
    assert b"flotilla_" in text


def samples(view: View) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(shown(view)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def view_of(count: int) -> View:
    topics = [TopicRow(f"t{n:05}", n, 100 * n, 1, n, 10 * n) for n in range(count)]
    behind = [SubscriptionRow(count - n, f"t{n:05}", f"c{n}", n) for n in range(count)]
    survey = Survey(topics, behind, count, sum(row.lag for row in behind))
    past = Past("c")
    past.topic_rates = {f"t{n:05}": float(count - n) for n in range(count)}
    return View(SAMPLE, survey, past)


def test_names_follow_the_conventions() -> None:
    for row in METRICS:
        assert re.fullmatch(r"flotilla_[a-z0-9_]+", row.name), row
        assert not row.name.endswith(("_total", "_count", "_sum", "_bucket")), row
        assert not re.search(r"_(ms|kb|mb|milliseconds|percent)$", row.name), row
        assert row.help.endswith("."), row
        assert "le" not in row.labels
        if row.kind == metrics.HISTOGRAM:
            assert row.name.endswith("_seconds"), row


def test_every_metric_of_the_table_is_shown_and_nothing_else_of_ours() -> None:
    families = {
        family.name: family.type for family in text_string_to_metric_families(shown(view_of(3)))
    }
    ours = {name: kind for name, kind in families.items() if name.startswith("flotilla_")}
    assert ours == {row.name: row.kind for row in METRICS}
    assert "process_resident_memory_bytes" in families


def test_labels_are_those_of_the_table() -> None:
    found = samples(view_of(3))
    for row in METRICS:
        name = f"{row.name}_bucket" if row.kind == metrics.HISTOGRAM else row.shown_name
        for labels, _ in found[name]:
            assert set(labels) - {"le"} == set(row.labels), row


def test_ten_thousand_topics_are_a_hundred_series_and_the_rest_is_summed() -> None:
    view = view_of(10_000)
    found = samples(view)

    names = {labels["topic"] for labels, _ in found["flotilla_topic_backlog_bytes"]}
    assert len(names) == metrics.TOPICS_SHOWN_MAX
    assert {"t09999", "t00000"} <= names, "those with most backlog, and the busiest"
    listed = sum(value for _, value in found["flotilla_topic_backlog_bytes"])
    [(_, rest)] = found["flotilla_other_topics_backlog_bytes"]
    assert listed + rest == sum(row.backlog_bytes for row in view.survey.topics)
    assert found["flotilla_other_topics"] == [({}, 10_000 - metrics.TOPICS_SHOWN_MAX)]
    lags = found["flotilla_subscription_lag_publications"]
    assert len(lags) == metrics.SUBSCRIPTIONS_SHOWN_MAX
    [(_, rest)] = found["flotilla_other_subscriptions_lag_publications"]
    assert sum(value for _, value in lags) + rest == view.survey.lag


def test_a_follower_shows_no_topics_so_that_a_sum_counts_each_once() -> None:
    view = view_of(10)
    follower = View(later(SAMPLE, 0, status={"role": "follower"}), view.survey, view.past)

    found = samples(follower)

    assert not [name for name in found if name.startswith(("flotilla_topic_", "flotilla_other_"))]
    assert ({"role": "follower"}, 1.0) in found["flotilla_raft_role"]


def test_a_node_that_joins_shows_what_there_is() -> None:
    keys = ("node", "versions")
    status = {key: SAMPLE.status[key] for key in keys} | {"role": "joining", "leader": ""}
    joining = View(later(SAMPLE, 0), Survey(), Past("c"))
    object.__setattr__(joining.sample, "status", status)

    assert ({"role": "joining"}, 1.0) in samples(joining)["flotilla_raft_role"]


@pytest.mark.needs("promtool")
def test_promtool_has_nothing_against_the_names() -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=shown(view_of(3)),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    said = [line for line in checked.stderr.splitlines() if "flotilla_" in line]
    assert (said, checked.returncode) == ([], 0), checked.stderr
