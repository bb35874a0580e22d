"""What a run says of itself reaches the verdict."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.anomalies import CHECKS
from analytics.common.verdict import Verdict
from analytics.judge import check as checking
from analytics.judge.check import check
from tests.spark.histories import RunRecorder, write

pytestmark = pytest.mark.slow


def test_a_run_in_which_too_little_succeeded_is_unknown_though_nothing_was_found(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "CHECKS", [one for one in CHECKS if one.name == "corrupt"])
    run = RunRecorder()
    run.sub("s", "t")
    run.put("p", "t", 1, "ok", first_id=1, last_id=1)
    run.get("s", "t", 0, [[1, "p", 1, 1]])
    run.drained("s", "t", 1)
    write(tmp_path, run.rows)
    file = tmp_path / "run.json"
    outcome = {"finished": True, "reasons": ["1 acknowledged, 50 are the least"]}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"outcome": outcome}))
    report = check(tmp_path)
    assert report.verdict == Verdict.UNKNOWN
    assert "1 acknowledged, 50 are the least" in report.reasons
    assert [one.count for one in report.checks] == [0]
