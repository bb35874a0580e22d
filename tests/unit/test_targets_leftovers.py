"""What chaos/targets promises of what is left: whose claims are believed, and when one is over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from chaos.targets import TargetError, leftovers, namespaces
from chaos.targets.leftovers import Claim, sweep
from chaos.targets.namespaces import NamespacesTarget


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Claims of these tests only."""
    monkeypatch.setattr(leftovers, "claims_directory", lambda: tmp_path / "claims")
    return tmp_path / "claims"


def dead_claim(claims: Path, kind: str, label: str) -> Path:
    """Write what a run that was killed has left."""
    claims.mkdir(mode=0o700, exist_ok=True)
    file = claims / f"{label}.json"
    file.write_text(json.dumps({"kind": kind, "directory": "/runs/dead", "label": label}))
    return file


def test_a_claim_that_cannot_be_cleared_is_kept_and_told_and_the_others_are_cleared(
    claims: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck, gone = dead_claim(claims, "compose", "a"), dead_claim(claims, "local", "b")
    missing = dead_claim(claims, "namespaces", "c")
    cleared: list[str] = []

    def fails(directory: Path, label: str) -> None:
        raise TargetError("no docker here")

    def is_missing(directory: Path, label: str) -> None:
        raise FileNotFoundError("ip")

    clears = {
        "compose": fails,
        "namespaces": is_missing,
        "local": lambda directory, label: cleared.append(label),
    }
    assert sweep(clears) == ["local: /runs/dead b"]
    assert cleared == ["b"]
    assert (stuck.exists(), gone.exists(), missing.exists()) == (True, False, True)
    assert capsys.readouterr().err.splitlines() == [
        "left for another time: compose: /runs/dead a: no docker here",
        "left for another time: namespaces: /runs/dead c: ip",
    ]
    clears["compose"] = clears["namespaces"] = clears["local"]
    assert len(sweep(clears)) == 2
    assert list(claims.iterdir()) == []


def test_a_tool_that_is_missing_or_hangs_leaves_the_claim(
    claims: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = dead_claim(claims, "compose", "a")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert sweep() == []
    assert file.exists()
    assert "No such file or directory: 'docker'" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o1777])
def test_claims_that_others_could_have_written_or_read_are_not_believed(
    claims: Path, mode: int
) -> None:
    dead_claim(claims, "local", "a")
    claims.chmod(mode)
    for use in (sweep, Claim("local", claims).take):
        with pytest.raises(TargetError, match=f"mode 700, and is of user .* mode {mode:o}"):
            use()
    claims.chmod(0o700)
    assert len(sweep({"local": lambda directory, label: None})) == 1


def test_claims_in_somebody_else_s_directory_are_not_believed(
    claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_claim(claims, "local", "a")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(TargetError, match=rf"(?s)of user {user + 1} .*TMPDIR"):
        sweep()


def test_a_link_to_a_directory_of_claims_is_not_followed(claims: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir(mode=0o700)
    claims.symlink_to(tmp_path / "ours")
    with pytest.raises(TargetError, match="must be a directory"):
        Claim("local", tmp_path).take()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamespacesTarget:
    """A target of namespaces on a machine that seems to have all it needs; nothing is up."""
    monkeypatch.setattr(namespaces, "_check_machine", lambda: None)
    return NamespacesTarget(tmp_path / "cluster", 3)


def test_the_claim_on_namespaces_is_released_when_they_are_gone_and_not_before(
    target: NamespacesTarget, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    def clear(directory: Path, label: str) -> None:
        held.append(len(list(claims.iterdir())))

    monkeypatch.setattr(namespaces, "clear_namespaces", clear)
    target._claim.take()
    target.down()
    assert held == [1]
    assert list(claims.iterdir()) == []


def test_a_network_that_could_not_be_removed_stays_claimed(
    target: NamespacesTarget, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clear(directory: Path, label: str) -> None:
        raise TargetError("ip netns delete: busy")

    monkeypatch.setattr(namespaces, "clear_namespaces", clear)
    target._claim.take()
    with pytest.raises(TargetError, match="busy"):
        target.down()
    assert len(list(claims.iterdir())) == 1
    target._claim.release()


def test_packets_that_nobody_held_are_told_when_all_is_down(
    target: NamespacesTarget, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget() -> None:
        raise TargetError("n1: who held its packets had ended")

    cleared: list[str] = []
    monkeypatch.setattr(namespaces, "clear_namespaces", lambda _, label: cleared.append(label))
    monkeypatch.setattr(target._network, "forget", forget)
    target._claim.take()
    with pytest.raises(TargetError, match="had ended"):
        target.down()
    assert cleared == [target._label]
    assert list(claims.iterdir()) == []
