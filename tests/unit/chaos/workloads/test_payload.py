"""What payload.py promises: payloads that prove their origin, runs that lose nothing."""

from __future__ import annotations

import zlib
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.workloads import payload
from chaos.workloads.payload import BadPayload

names = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=20)
fillers = st.text(st.characters(codec="utf-8"), max_size=50)


@given(names, names, st.integers(0, 2**53 - 1), fillers)
def test_a_payload_tells_its_producer_and_counter(
    producer: str, topic: str, counter: int, filler: str
) -> None:
    data = payload.make(producer, topic, counter, filler).encode()
    assert payload.check(data, topic) == (producer, counter)


def test_the_layout_is_the_documented_one() -> None:
    crc = zlib.crc32(b"p t 7 some words")
    assert payload.make("p", "t", 7, "some words") == f"p t 7 {crc:08x} some words"


@given(st.integers(0, 7), st.data())
def test_every_flipped_bit_is_found(bit: int, data: st.DataObject) -> None:
    whole = bytearray(payload.make("producer", "topic", 12, "the filler").encode())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << bit
    with pytest.raises(BadPayload):
        payload.check(bytes(whole), "topic")


@pytest.mark.parametrize("data", [b"", b"one two", b"p t x 00000000 f", b"p t 1 0 f", b"p t 1"])
def test_another_layout_is_a_format_fault(data: bytes) -> None:
    with pytest.raises(BadPayload) as caught:
        payload.check(data, "t")
    assert caught.value.reason == "format"


def test_a_changed_filler_is_a_checksum_fault_and_a_strange_topic_a_topic_fault() -> None:
    whole = payload.make("p", "t", 1, "filler").encode()
    with pytest.raises(BadPayload) as changed:
        payload.check(whole + b"!", "t")
    with pytest.raises(BadPayload) as strayed:
        payload.check(whole, "u")
    assert (changed.value.reason, strayed.value.reason) == ("checksum", "topic")


def test_neighbours_share_a_run_until_producer_or_counter_jumps() -> None:
    sent = [("a", 1), ("a", 2), ("b", 9), ("a", 3), ("a", 5)]
    publications = [payload.make(who, "t", counter, "f").encode() for who, counter in sent]
    items, corrupt = payload.runs("t", 41, publications)
    assert items == [(41, "a", 1, 2), (43, "b", 9, 1), (44, "a", 3, 1), (45, "a", 5, 1)]
    assert corrupt == []


def test_a_corrupt_payload_stands_in_no_run_and_parts_its_neighbours() -> None:
    good = [payload.make("a", "t", counter, "f").encode() for counter in (1, 2)]
    items, corrupt = payload.runs("t", 1, [good[0], b"rubbish", good[1]])
    assert items == [(1, "a", 1, 1), (3, "a", 2, 1)]
    assert corrupt == [(2, "format")]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), max_size=30))
def test_runs_unfold_to_exactly_what_was_delivered(sent: list[tuple[str, int]]) -> None:
    publications = [payload.make(who, "t", counter, "").encode() for who, counter in sent]
    items, _ = payload.runs("t", 5, publications)
    unfolded = [
        (first_id + n, producer, counter + n)
        for first_id, producer, counter, count in items
        for n in range(count)
    ]
    assert unfolded == [(id_, *one) for id_, one in enumerate(sent, 5)]


def test_the_filler_is_the_projects_own_text_from_a_place_that_the_seed_decides() -> None:
    root = Path(payload.__file__).parents[2]
    lines = payload.project_lines(root)
    own = (root / "analytics/__init__.py").read_text(encoding="utf-8").splitlines()
    assert own[0].strip() in lines
    first = list(islice(payload.fillers(lines, 7), 3))
    assert first == list(islice(payload.fillers(lines, 7), 3))
    assert first != list(islice(payload.fillers(lines, 8), 3))
