"""The dashboard and the alerts ask for metrics and labels that a node really shows."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.observe.metrics import View, exposition, registry
from cluster.observe.past import Past
from cluster.observe.survey import SubscriptionRow, Survey, TopicRow
from tests.unit.observed import SAMPLE

ROOT: Final = Path(__file__).resolve().parents[4]
DASHBOARD: Final = ROOT / "deploy/grafana/flotilla.json"
RULES: Final = ROOT / "deploy/prometheus/flotilla.rules.yml"
OPERATIONS: Final = ROOT / "docs/operations.md"
OF_A_SCRAPE: Final = {"instance", "job"}  # labels that Prometheus adds
OF_PROMETHEUS: Final = {"up": OF_A_SCRAPE}


@cache
def shown() -> dict[str, set[str]]:
    """Return {sample's name: its labels} of a leader's metrics."""
    survey = Survey([TopicRow("t", 1, 1, 1, 1, 1)], [SubscriptionRow(1, "t", "c", 0)], 1, 1)
    view = View(SAMPLE, survey, Past("c"))
    _, text = exposition(registry(lambda: view), "")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels, OF_A_SCRAPE)
    return found | OF_PROMETHEUS


def expressions(node: Any) -> Iterator[str]:
    """Yield each query of a dashboard, wherever it stands."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "expr":
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for each in node:
            yield from expressions(each)


def dashboard_queries() -> list[str]:
    found = list(expressions(json.loads(DASHBOARD.read_text())))
    assert len(found) > 25
    return found


def rule_queries() -> list[str]:
    text = RULES.read_text()
    folded = re.findall(r"expr: >-\n((?: {10}.*\n)+)", text)
    plain = re.findall(r"expr: (?!>-)(.+)\n", text)
    found = [" ".join(each.split()) for each in folded] + plain
    assert len(found) == text.count("- alert: ")
    return found


def problems(query: str) -> list[str]:
    """Return what a query names that no node shows."""
    wrong, named = [], set[str]()
    without_texts = re.sub(r'"[^"]*"', '""', query)
    for name, _, selector in re.findall(
        r"\b((?:flotilla|process)_\w+|up\b)(\{([^}]*)\})?", without_texts
    ):
        if name not in shown():
            wrong.append(f"no metric {name}")
            continue
        named |= shown()[name]
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        wrong += [f"{name} has no label {each}" for each in sorted(asked - shown()[name])]
    if not named:
        wrong.append("it names no metric")
    for names in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", without_texts):
        wanted = {each.strip() for each in names.split(",") if each.strip()}
        wrong += [f"nothing here has a label {each}" for each in sorted(wanted - named)]
    return wrong


@pytest.mark.parametrize("query", [*dashboard_queries(), *rule_queries()])
def test_a_query_names_what_there_is(query: str) -> None:
    assert problems(query) == []


@pytest.mark.parametrize(
    "query",
    [
        "flotilla_raft_terms",
        'flotilla_raft_role{roll="leader"}',
        "sum by (nobody) (flotilla_raft_term)",
        "flotilla_put_seconds",  # a histogram is asked by its buckets
        "flotilla_requests",  # a counter ends in _total
        "1 + 1",
    ],
)
def test_a_query_for_what_there_is_not_is_noticed(query: str) -> None:
    assert problems(query) != []


def test_legends_use_labels_that_are_left() -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"\b{label}\b", target["expr"]) or problems_free(
                    target["expr"], label
                ), (panel["title"], label)


def problems_free(query: str, label: str) -> bool:
    """Return whether some metric in the query brings the label, and nothing sums it away."""
    if re.search(r"\b(sum|max|min)\s*(by|\()", query):
        return False
    return any(label in shown()[name] for name in re.findall(r"\b(?:flotilla|process)_\w+", query))


@pytest.mark.needs("promtool")
def test_promtool_takes_the_rules_and_each_alert_comes_when_it_should() -> None:
    for command in (["check", "rules", RULES.name], ["test", "rules", "flotilla.test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=RULES.parent, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("promtool")
def test_promtool_parses_each_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {
            "record": f"query:{number}",
            "expr": query.replace("$__rate_interval", "1m").replace("$__interval", "1m"),
        }
        for number, query in enumerate(dashboard_queries())
    ]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_explained() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    tests = (RULES.parent / "flotilla.test.yml").read_text()
    assert [name for name in alerts if f"alertname: {name}" not in tests] == []
    said = OPERATIONS.read_text(encoding="utf-8")
    assert [name for name in alerts if f"### {name}" not in said] == []
