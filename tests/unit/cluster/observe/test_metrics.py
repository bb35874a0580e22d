"""The metrics: names by Prometheus' conventions, as the table says, with bounded series."""

from __future__ import annotations

import re
import subprocess
from typing import Any

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

    of_rows = ("flotilla_topic_", "flotilla_other_", "flotilla_subscription_")
    assert not [name for name in found if name.startswith(of_rows)]
    assert ({"role": "follower"}, 1.0) in found["flotilla_raft_role"]


def test_each_metric_has_the_value_that_it_is_called_by() -> None:
    store = {name: 40 + place for place, name in enumerate(sorted(SAMPLE.status["store"]))}
    scrub = {"damaged": 61, "passes": 62, "bytes": 63, "last_pass_ended_ms": 64_500}
    names = ("term", "commit_index", "applied_index", "last_index", "first_index", "journal_bytes",
             "full_topics", "clients_silent", "level")  # fmt: skip
    status: dict[str, Any] = {name: 20 + place for place, name in enumerate(names)}
    sample = later(
        SAMPLE,
        0,
        status=status | {"store": store, "scrub": scrub, "serving": False, "disk_low": True},
        added=(71, 72),
        delivered=(73, 74),
        connections=75,
        unread_bytes=76,
        disk_free_bytes=77,
        disk_size_bytes=78,
        relays=79,
    )
    past = Past("c", elections=81, leader_changes=82, closed=83)
    past._without_s = 84.0
    found = samples(View(sample, Survey(), past))
    expected = {
        **{f"raft_{name}": status[name] for name in names if name.endswith(("term", "_index"))},
        "raft_feature_level": status["level"],
        "raft_serving": 0,
        "raft_has_leader": 1,
        "raft_elections_total": 81,
        "raft_leader_changes_total": 82,
        "raft_leaderless_seconds_total": 84,
        "journal_bytes": status["journal_bytes"],
        "disk_free_bytes": 77,
        "disk_size_bytes": 78,
        "disk_low": 1,
        "damage_found": 61,
        "scrub_passes_total": 62,
        "scrub_bytes_total": 63,
        "scrub_last_pass_timestamp_seconds": 64.5,
        "client_connections": 75,
        "client_connections_closed_total": 83,
        "client_unread_bytes": 76,
        "clients": store["clients"],
        "clients_silent": status["clients_silent"],
        "clients_forgotten_total": store["clients_forgotten"],
        "producers": store["producers"],
        "publications_stored_total": 71,
        "publications_stored_bytes_total": 72,
        "publications_delivered_total": 73,
        "publications_delivered_bytes_total": 74,
        "topics": store["topics"],
        "topics_ever": store["topic_names"],
        "topics_full": status["full_topics"],
        "subscriptions": store["subscriptions"],
        "groups": store["groups"],
        "backlog_bytes": store["backlog_bytes"],
        "delayed_publications": store["delayed"],
        "compacted_bytes": store["compacted_bytes"],
    }
    assert {name: found[f"flotilla_{name}"] for name in expected} == {
        name: [({}, value)] for name, value in expected.items()
    }
    assert ({"for": "leader"}, 79) in found["flotilla_requests_waiting"]
    of_peers = {"connected": (1, 0), "silent_seconds": (0, 1.5), "lag_entries": (0, 8)}
    for name, (n2, n3) in of_peers.items():
        assert found[f"flotilla_peer_{name}"] == [({"peer": "n2"}, n2), ({"peer": "n3"}, n3)]


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
