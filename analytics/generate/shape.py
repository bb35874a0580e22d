"""What a synthetic history is to be like: sizes, and the arithmetic that places publications.

Publication number n = 0, 1, 2, … of the whole history decides everything about it, so any task of
a Spark job can make any part. Numbers are dealt in rounds: a round has a slot for each topic (the
hot one has several), a slot has a publication of each producer, in an order that a hash of the
slot decides. So counters and ids follow from n by division, without any state. Functions take
whole numbers or Spark columns alike. No operation and no violation here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

Number = Any  # an int or a Column of BIGINT: every formula below serves for both

OPERATIONS_MAX: Final = 1_000_000_000  # times and numbers are 64 bits wide far beyond it
CLIENTS_MAX: Final = 1_000  # their names stand in the query's plan
TOPICS_MAX: Final = 10_000
PLANTS_MAX: Final = 100  # of a kind: they are few by design, and made one by one
HOT_PERCENT_MAX: Final = 99
HASH_PRIME: Final = 1_000_003
HASH_FACTORS: Final = (7_919, 104_729)


class BadShape(Exception):
    """What was asked for can't be made; the message says which number is wrong."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a history. `operations`: PUTs of one publication, and GETs that deliver one.

    `hot_percent` of the publications go to the first topic; 0 = every topic gets as many. Each
    of the `subscribers` has subscribed to every topic.
    """

    operations: int
    topics: int = 64
    producers: int = 8
    subscribers: int = 1
    hot_percent: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        bounds = {
            "operations": (self.least_operations, OPERATIONS_MAX),
            "topics": (1, TOPICS_MAX),
            "producers": (2, CLIENTS_MAX),
            "subscribers": (1, CLIENTS_MAX),
            "hot_percent": (0, HOT_PERCENT_MAX),
            "seed": (0, HASH_PRIME),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise BadShape(f"{name} is {getattr(self, name)}: not in {low}..{high}")

    @property
    def least_operations(self) -> int:
        """One whole round of publications, put and delivered."""
        return self.round_size * (1 + self.subscribers)

    @property
    def publications(self) -> int:
        """How many publications there are; each is put once and delivered to every subscriber."""
        return self.operations // (1 + self.subscribers)

    @property
    def hot_slots(self) -> int:
        """The slots of a round that are the first topic's; every other topic has one."""
        others = self.topics - 1
        return max(1, round(self.hot_percent * others / (100 - self.hot_percent)))

    @property
    def slots(self) -> int:
        """The slots of a round."""
        return self.hot_slots + self.topics - 1

    @property
    def round_size(self) -> int:
        """The publications of a round."""
        return self.slots * self.producers

    def number_of(self, round_: int, slot: int, producer: int) -> int:
        """Return the number of the publication of `producer` in a slot."""
        place = (producer - int(self._turn(round_ * self.slots + slot))) % self.producers
        return round_ * self.round_size + slot * self.producers + place

    def place_of(self, number: Number) -> Mapping[str, Number]:
        """Return round, slot, producer, topic, id and counter of publication `number`.

        `put_place` counts the publications of the producer, over all topics, from 0.
        """
        round_, inside = divided(number, self.round_size)
        slot, place = divided(inside, self.producers)
        is_hot = slot < self.hot_slots
        rank, width = chosen(is_hot, slot, 0), chosen(is_hot, self.hot_slots, 1)
        put_place = round_ * self.slots + slot
        return {
            "round": round_,
            "slot": slot,
            "producer": (place + self._turn(put_place)) % self.producers,
            "topic": chosen(is_hot, 0, slot - self.hot_slots + 1),
            "id": (round_ * width + rank) * self.producers + place + 1,
            "counter": round_ * width + rank + 1,
            "put_place": put_place,
        }

    def _turn(self, put_place: Number) -> Number:
        return self.scrambled(put_place) % self.producers

    def scrambled(self, number: Number) -> Number:
        """Return a number in 0..HASH_PRIME-1 that looks random and is decided by the seed."""
        first, second = HASH_FACTORS
        mixed = ((number % HASH_PRIME) * first + self.seed * second) % HASH_PRIME
        return (mixed * mixed + number % second) % HASH_PRIME


def divided(number: Number, by: int) -> tuple[Number, Number]:
    """Return quotient and remainder of whole numbers (>= 0)."""
    rest = number % by
    if isinstance(number, int):
        return number // by, rest
    return ((number - rest) / by).cast("bigint"), rest  # exact below 2**53


def chosen(condition: Number, yes: Number, no: Number) -> Number:
    """Return `yes` where the condition holds, else `no`."""
    if isinstance(condition, Column):
        return F.when(condition, yes).otherwise(no).cast("bigint")
    return yes if condition else no


def violations_of(text: str, kinds: Mapping[str, object]) -> dict[str, int]:
    """Return {kind: how many} of `lost=3,gap=2`; empty text is no violation.

    Raises BadShape when a kind is unknown, comes twice, or its number is not in 1..PLANTS_MAX.
    """
    wanted: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, count = part.strip().partition("=")
        if name not in kinds:
            raise BadShape(f"no violation is called {name!r}; there are {', '.join(kinds)}")
        if name in wanted:
            raise BadShape(f"{name} is asked for twice")
        if not count.isdecimal() or not 1 <= int(count) <= PLANTS_MAX:
            raise BadShape(f"{name}={count}: the number must be in 1..{PLANTS_MAX}")
        wanted[name] = int(count)
    return wanted
