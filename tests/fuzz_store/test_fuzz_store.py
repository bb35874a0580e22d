"""Cases from seeds find nothing; what is planted they find, and it is made small."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from chaos.simulation.checks.reference import Reference
from chaos.simulation.plan.limits import limited
from cluster.store import commands
from cluster.store.commands import Operation, Purge, Put
from cluster.store.topics import Topic, Topics
from tests.fuzz_store.cases import case_of
from tests.fuzz_store.fuzzer import Shrinking, told
from tests.fuzz_store.oracles import finding_of
from tests.seeds import seeds

SEEDS_OF_ONE = 10  # that one test tries
DRAWN = range(40)  # of which all that is drawn is looked at
SMALL = 80  # operations of a case that is soon made smaller


@pytest.mark.parametrize("part", seeds(2, 200))
def test_an_entry_of_any_operations_is_the_same_on_all_stores_and_in_the_reference(
    part: int,
) -> None:
    for seed in range(SEEDS_OF_ONE * part, SEEDS_OF_ONE * (part + 1)):
        case = case_of(seed)
        if (finding := finding_of(case)) is not None:
            pytest.fail("\n".join(told(seed, case, finding)))


def test_a_seed_is_a_case() -> None:
    assert case_of(1) == case_of(1) != case_of(2)


def test_every_operation_is_drawn_and_carried_out() -> None:
    done: set[type[Operation]] = set()
    for seed in DRAWN:
        case = case_of(seed)
        with limited(case.knobs):
            reference = Reference(case.store_limits())
            for index, entry in enumerate(case.entries, 2):
                results = reference.apply(index, entry.operations, entry.term, entry.stamp)
                for operation, result in zip(entry.operations, results, strict=True):
                    if result is None or not result[0]:
                        done.add(type(operation))
    assert done == {*commands._KINDS, Put}


@pytest.mark.slow
def test_what_an_operation_raises_is_found_and_made_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    purge = Topics.purge

    def planted(topics: Topics, topic: Topic, last_id: int) -> None:
        assert not topic.groups, "planted"
        purge(topics, topic, last_id)

    monkeypatch.setattr(Topics, "purge", planted)
    for case in map(case_of, DRAWN):
        if case.size < SMALL and (finding := finding_of(case)) is not None:
            break
    else:
        pytest.fail("nothing was found")
    assert "planted" in finding.text
    small = Shrinking(case, finding).smallest(finding.entry)
    again: Any = finding_of(small)
    assert again.place == finding.place
    operations = [*chain.from_iterable(entry.operations for entry in small.entries)]
    assert type(operations[-1]) is Purge
    assert len(operations) <= 8  # a level, clients, a group, what it has not read, and that
