"""A run's file that says nothing is no word that all of the history is there."""

import json
import os
from pathlib import Path

import pytest

from analytics.intake.files import FileSurvey, survey_of
from analytics.intake.truth import _announced


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", "null", '""', "0", '{"seed":1}', '{"run_id":"r"}']
)
def test_a_run_file_that_says_nothing_vouches_for_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "p.jsonl").write_text("")
    (tmp_path / "run.json").write_text(text)
    assert survey_of(tmp_path).unvouched


def test_a_run_file_that_is_gone_vouches_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    assert survey_of(tmp_path).unvouched[0].startswith("run.json can't be read")


def test_a_run_file_that_is_a_pipe_or_a_device_is_not_read(tmp_path: Path) -> None:
    """A read of it might wait, or go on, for ever."""
    (tmp_path / "history").mkdir()
    os.mkfifo(tmp_path / "run.json")
    assert survey_of(tmp_path).unvouched == ("run.json can't be read: it is no file",)
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").symlink_to("/dev/zero")
    assert survey_of(tmp_path).unvouched == ("run.json can't be read: it is no file",)


SAID = {"lines": 0, "bytes": 0, "blake2b": "cae66941d9efbd404e4d88758ea67670", "closed": True}


def survey(directory: Path, **document: object) -> FileSurvey:
    """Write a run with one empty file and look at its files; `document` is its run.json."""
    (directory / "history").mkdir()
    (directory / "history" / "p.jsonl").write_text("")
    about = {"run_id": "r", "history": {"p.jsonl": SAID}, **document}
    (directory / "run.json").write_text(json.dumps(about))
    return survey_of(directory)


def test_a_run_file_that_says_all_of_it_vouches_for_it(tmp_path: Path) -> None:
    found = survey(tmp_path, recorded_by="application")
    assert (found.holes, found.unvouched) == ((), ())


@pytest.mark.parametrize(
    "document",
    [
        {"run_id": ""},
        {"history": ["p.jsonl", 3]},
        {"history": {"p.jsonl": {**SAID, "blake2b": "A" * 32}}},
        {"history": {"p.jsonl": {**SAID, "bytes": 2**53 + 1}}},
    ],
)
def test_a_run_file_that_says_what_can_not_be_vouches_for_nothing_and_is_no_hole(
    tmp_path: Path, document: dict[str, object]
) -> None:
    found = survey(tmp_path, **document)
    assert (found.holes, len(found.unvouched)) == ((), 1)


@pytest.mark.parametrize("who", ["runner", 3, True, ["application"], {}])
def test_who_recorded_is_an_application_or_is_not_said(tmp_path: Path, who: object) -> None:
    found = survey(tmp_path, recorded_by=who)
    assert found.holes == (f"run.json does not say who recorded: {who!r}",)


@pytest.mark.parametrize("nodes", [3, "a", {"a": 1}, ["a", 3], ["a", None]])
def test_nodes_that_are_no_list_of_names_are_said(tmp_path: Path, nodes: object) -> None:
    survey(tmp_path, nodes=nodes, truth={"nodes": ["a"]})
    said = ["run.json does not say which nodes there were"]
    assert _announced(tmp_path / "run.json")[1:4] == (set(), {"a"}, said)
