"""What `flotilla-check seal` writes, and what it refuses to call whole."""

import json
from hashlib import blake2b
from pathlib import Path

import pytest

from analytics.intake.cache import HistoryError
from analytics.intake.seal import seal


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "p.jsonl").write_text('{"op_id":1}\n{"op_id"')
    (tmp_path / "run.json").write_text('{"run_id": "r", "history": ["p.jsonl"], "seed": 1}')
    return tmp_path


def test_a_sealed_run_says_of_each_file_what_it_is_and_keeps_the_rest(run: Path) -> None:
    data = (run / "history" / "p.jsonl").read_bytes()
    assert seal(run) == {"p.jsonl": 1}
    digest = blake2b(data, digest_size=16).hexdigest()
    file = {"lines": 1, "bytes": len(data), "blake2b": digest, "closed": True}
    document = {"run_id": "r", "history": {"p.jsonl": file}, "seed": 1}
    assert json.loads((run / "run.json").read_text()) == document
    assert seal(run) == {"p.jsonl": 1}


@pytest.mark.parametrize("name", [".p.jsonl", "_p.jsonl", "p.jsonl.bak", "deep"])
def test_what_would_not_be_read_is_not_sealed(run: Path, name: str) -> None:
    (run / "history" / name).mkdir()
    with pytest.raises(HistoryError, match="would not be read: remove it"):
        seal(run)


def test_two_histories_or_none_are_not_sealed(run: Path) -> None:
    (run / "history.parquet").mkdir()
    (run / "history.parquet" / "part.parquet").touch()
    with pytest.raises(HistoryError, match=r"both history and history\.parquet"):
        seal(run)
    for file in (run / "history.parquet" / "part.parquet", run / "history" / "p.jsonl"):
        file.unlink()
    with pytest.raises(HistoryError, match="no history to seal"):
        seal(run)


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is no JSON"), ("[]", "names no run"), ("{}", "names no run")]
)
def test_a_run_without_a_run_id_is_not_sealed(run: Path, text: str, said: str) -> None:
    (run / "run.json").write_text(text)
    with pytest.raises(HistoryError, match=said):
        seal(run)
    (run / "run.json").unlink()
    with pytest.raises(HistoryError, match="can't be read: No such file"):
        seal(run)


def test_what_was_read_of_disks_is_sealed_as_well_and_what_nobody_expects_is_refused(
    run: Path,
) -> None:
    (run / "run.json").write_text('{"run_id": "r", "truth": {"nodes": ["a", "b"]}}')
    (run / "truth").mkdir()
    (run / "truth" / "a.jsonl").write_text("{}\n")
    assert seal(run) == {"p.jsonl": 1, "truth/a.jsonl": 1}
    truth = json.loads((run / "run.json").read_text())["truth"]
    digest = blake2b(b"{}\n", digest_size=16).hexdigest()
    file = {"lines": 1, "bytes": 3, "blake2b": digest, "closed": True}
    assert truth == {"nodes": ["a", "b"], "files": {"a.jsonl": file}}
    (run / "truth" / "c.jsonl").write_text("{}\n")
    with pytest.raises(HistoryError, match="of no node's disk, and would not be read: remove it"):
        seal(run)
