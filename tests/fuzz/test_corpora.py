"""What the fuzzer once found is tried again, on every run of the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz import targets
from tests.fuzz.corpora import CORPUS, kept, made
from tests.fuzz.targets import INPUT_BYTES_MAX, TARGETS

MANY = 10  # inputs, at least, that somebody has to have kept of a target


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_breaks_nothing(target: str) -> None:
    files = [file for of, file in kept() if of == target]
    assert len(files) >= MANY, f"the corpus of {target} is not there: run `make fuzz`"
    for file in files:
        data = file.read_bytes()
        assert len(data) <= INPUT_BYTES_MAX
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_what_our_own_encoders_make_is_taken_by_what_a_target_tries(target: str) -> None:
    for data in made(target):
        TARGETS[target](data)


def test_every_corpus_has_its_target() -> None:
    assert {entry.name for entry in CORPUS.iterdir()} == TARGETS.keys()


def _raises(error: type[Exception]) -> Callable[..., None]:
    def decode(*_: object) -> None:
        raise error("planted")

    return decode


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("request", "decode_request"),
        ("reply", "decode_reply"),
        ("client_stream", "Receiver"),
        ("peer_stream", "FrameReader"),
        ("journal", "Journal"),
    ],
)
def test_an_error_that_a_reader_may_not_raise_is_a_finding(
    target: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, name, _raises(KeyError))
    with pytest.raises((KeyError, AttributeError)):
        TARGETS[target](b"\x01some input")
