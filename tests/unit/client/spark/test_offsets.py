"""Ids as offsets: ends, splits, and the id of a time, asked of a topic in memory."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flotilla_client.errors import (
    BadRequest,
    Compacted,
    Expired,
    FlotillaError,
    Gap,
    UnknownTopic,
)
from flotilla_client.reading import Delivery
from flotilla_client.spark.offsets import (
    IDS_A_PARTITION,
    PARTITIONS_OF_ITSELF_MAX,
    Extent,
    end_of,
    extent,
    first_since,
    partitions_of,
    split,
)


class TopicInMemory:
    """A topic with ids `floor_id + 1` to the number of its times; it counts what it is asked.

    Who reads passes what is `over`, as the library does.
    """

    def __init__(
        self, times: list[int | None], floor_id: int = 0, over: Collection[int] = ()
    ) -> None:
        self.times, self.floor_id, self.over, self.asked = times, floor_id, over, 0

    def read(self, topic: str, from_id: int, max_count: int = 1) -> Delivery | None:
        assert topic == "t"
        self.asked += 1
        end = len(self.times)
        if from_id > end + 1:
            raise BadRequest("beyond", details={"end": end})
        if from_id <= self.floor_id:
            raise Gap("gone", details={"first_id": from_id, "last_id": self.floor_id})
        while from_id in self.over:
            from_id += 1
        if from_id > end:
            return None
        time = self.times[from_id - 1]
        return Delivery("t", from_id, (b"",), timestamps=((from_id, time),))


def test_an_extent_is_what_is_kept() -> None:
    assert extent(TopicInMemory([]), "t") == Extent(1, 1)
    assert extent(TopicInMemory([5, 5, 5]), "t") == Extent(1, 4)
    assert extent(TopicInMemory([5, 5, 5], floor_id=2), "t") == Extent(3, 4)
    assert extent(TopicInMemory([5, 5, 5], floor_id=3), "t") == Extent(4, 4)
    assert end_of(TopicInMemory([5, 5, 5], floor_id=3), "t") == 4
    assert extent(TopicInMemory([5, 5, 5], over={1, 3}), "t") == Extent(2, 4)
    assert extent(TopicInMemory([5, 5, 5], over={1, 2, 3}), "t") == Extent(4, 4)


@pytest.mark.parametrize("error", [Expired, Compacted])
def test_what_is_gone_in_too_many_runs_to_be_passed_is_gone(error: type[FlotillaError]) -> None:
    class LongTopic(TopicInMemory):
        def read(self, topic: str, from_id: int, max_count: int = 1) -> Delivery | None:
            if from_id in self.over:
                raise error("over", details={"first_id": from_id, "last_id": max(self.over)})
            return super().read(topic, from_id, max_count)

    assert extent(LongTopic([5, 5, 5], over={1, 2}), "t") == Extent(3, 4)
    assert first_since(LongTopic([5, 5, 7], over={2}), "t", 6) == 3


def test_another_refusal_is_told() -> None:
    class StrangeTopic(TopicInMemory):
        def read(self, topic: str, from_id: int, max_count: int = 1) -> Delivery | None:
            raise (BadRequest if from_id > 1 else UnknownTopic)("no")

    with pytest.raises(BadRequest):
        end_of(StrangeTopic([]), "t")


@given(
    times=st.lists(st.integers(0, 20), max_size=40).map(sorted),
    unknown=st.integers(0, 3),
    floor_id=st.integers(0, 45),
    over=st.sets(st.integers(1, 43)),
    at=st.integers(0, 22),
)
def test_a_time_is_the_first_id_of_then_or_later(
    times: list[int], unknown: int, floor_id: int, over: set[int], at: int
) -> None:
    known: list[int | None] = [None] * unknown + list(times)
    floor_id = min(floor_id, len(known))
    topic = TopicInMemory(known, floor_id, over)
    found = first_since(topic, "t", at)
    kept = [id_ for id_ in range(floor_id + 1, len(known) + 1) if id_ not in over]
    fit = [id_ for id_ in kept if (time := known[id_ - 1]) is not None and time >= at]
    assert found == min(fit, default=len(known) + 1)
    assert topic.asked <= 2 + (len(known) - floor_id).bit_length()


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 300))
def test_a_split_leaves_nothing_out_and_is_even(start: int, count: int, partitions: int) -> None:
    ranges = split(start, start + count, partitions)
    assert len(ranges) == min(partitions, count)
    if count:
        assert ranges[0][0] == start
        assert ranges[-1][1] == start + count
        assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))
        sizes = [end - begin for begin, end in ranges]
        assert min(sizes) > 0
        assert max(sizes) - min(sizes) <= 1


def test_a_batch_has_as_many_partitions_as_are_worth_it() -> None:
    assert [partitions_of(n) for n in (0, 1, IDS_A_PARTITION)] == [1, 1, 1]
    assert partitions_of(IDS_A_PARTITION + 1) == 2
    assert partitions_of(10**12) == PARTITIONS_OF_ITSELF_MAX
