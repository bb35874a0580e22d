"""The mutants of this project still apply, so that they don't rot as the code changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from chaos.mutation import project
from chaos.mutation.mutants import Mutant, MutationError
from tests.mutation import fake_project

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.xdist_group("mutants")  # one worker applies them all, once


@cache
def _ours() -> project.Project:
    return project.load(ROOT)


@cache
def _by_hand() -> list[Mutant]:
    return _ours().by_hand()


@pytest.mark.slow
def test_every_mutant_by_hand_applies_exactly_once_and_compiles() -> None:
    assert len(_by_hand()) >= 150  # it raises for one that does not


def test_mutants_are_spread_over_the_product() -> None:
    files = {mutant.file for mutant in _by_hand()}

    assert len(files) >= 30, sorted(files)


def test_a_mutant_says_what_it_breaks_and_when_and_is_small() -> None:
    for mutant in _by_hand():
        assert mutant.breaks, mutant.name
        assert mutant.when, mutant.name
        old, new = mutant.old.splitlines(), mutant.new.splitlines()
        changed = len(set(old) ^ set(new))
        assert changed <= 12, (mutant.name, changed)


def test_every_file_of_a_mutant_has_its_nearest_tests() -> None:
    ours = _ours()
    files = {mutant.file for mutant in _by_hand()} | set(ours.modules)

    assert files <= ours.nearest.keys(), files - ours.nearest.keys()


def test_every_equivalent_is_a_mutant_and_has_a_reason() -> None:
    assert all(_ours().equivalents(_by_hand()).values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return nothing", "return 1", "stands 0 times"),
        ("return ", "pass; return ", "stands 4 times"),
        ("return sorted(values)", "return sorted(values", "does not compile"),
        ("return sorted(values)", "return sorted(values)", "changes nothing"),
    ],
)
def test_a_mutant_that_does_not_apply_is_told(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    root = fake_project.make(tmp_path, [("wrong", old, new)])

    with pytest.raises(MutationError, match=message):
        project.load(root).by_hand()


def test_two_mutants_of_one_name_are_told(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path, [fake_project.ORDER, fake_project.ORDER])

    with pytest.raises(MutationError, match="two mutants 'unordered'"):
        project.load(root).by_hand()


def test_an_equivalent_that_is_no_mutant_is_told(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path, equivalents="gone")
    ours = project.load(root)

    with pytest.raises(MutationError, match="'gone' is no mutant"):
        ours.equivalents(ours.by_hand())


def test_a_table_of_tests_that_are_gone_is_told(tmp_path: Path) -> None:
    root = fake_project.make(tmp_path)
    (root / "test_product.py").unlink()

    with pytest.raises(MutationError, match=r"test_product\.py"):
        project.load(root)


def test_a_fingerprint_changes_with_the_mutant_and_with_its_file(tmp_path: Path) -> None:
    ours = project.load(fake_project.make(tmp_path))
    first, second, _ = ours.by_hand()
    source = ours.source("product.py")

    assert first.fingerprint(source) != second.fingerprint(source)
    assert first.fingerprint(source) == first.fingerprint(source)
    assert first.fingerprint(source) != first.fingerprint(source + "\n")


def test_a_mutant_is_not_applied_to_another_text(tmp_path: Path) -> None:
    ours = project.load(fake_project.make(tmp_path))
    [mutant, *_] = ours.by_hand()

    with pytest.raises(MutationError, match="not what it was made from"):
        mutant.applied("# " + ours.source("product.py"))
