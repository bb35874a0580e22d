"""What makes a run's record one that can't be judged: the end of each simulated run asks for it."""

from __future__ import annotations

import pytest

from chaos.simulation.checks.recorded import taken_in
from tests.spark.histories import Row, RunRecorder


@pytest.fixture
def rows() -> list[Row]:
    run = RunRecorder()
    run.sub("s", "t", resumed=False)
    run.put("p", "t", 1, "ok", first_id=1, last_id=1)
    run.get("s", "", None, [[1, "p", 1, 1]], answered="t", cursor=0)
    return run.rows


def found(rows: list[Row]) -> list[str]:
    return taken_in(rows)[1]


def test_a_record_that_says_what_it_has_to_is_sound(rows: list[Row]) -> None:
    assert found(rows) == []


def test_an_answer_that_says_no_cursor_is_found(rows: list[Row]) -> None:
    del rows[-1]["cursor"]
    [text] = found(rows)
    assert text.endswith("an answer lacks the cursor or topic asked for")


def test_a_malformed_row_is_found(rows: list[Row]) -> None:
    rows[-1]["op_id"] = "one"
    assert [text for text in found(rows) if text.startswith("malformed: ")]


def test_lines_of_an_operation_that_contradict_each_other_are_found(rows: list[Row]) -> None:
    rows[-1]["client_id"] = "another"
    assert found(rows) != []
