"""What chaos/faults promises: each hits whom it says, and healing undoes it."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from itertools import pairwise

import pytest

from chaos import faults
from chaos.faults import FAULTS, networks, support
from chaos.targets import (
    CLIENTS,
    POWERS,
    Link,
    LinkConditions,
    Pauses,
    TargetError,
    UnsupportedFault,
    await_leader,
)
from chaos.targets.kinds import KINDS

SEED = 1


class AbleTarget:
    """A target of names that can do everything, and remembers what is broken.

    `leads`: what STATUS will say next, one answer a question. `broken`: what a heal has to undo.
    `done`: everything that was ever called.
    """

    name = "names"

    def __init__(self, *leads: str | None, count: int = 3) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, count + 1))
        self.leads = list(leads or ("n2",))
        self.broken: set[tuple[object, ...]] = set()
        self.done: list[str] = []

    def leader(self) -> str | None:
        return self.leads.pop(0) if len(self.leads) > 1 else self.leads[0]

    def _breaks(self, what: str, *who: object) -> None:
        self.done.append(what)
        self.broken |= {(what, one) for one in who}

    def _mends(self, *what: str, who: Collection[object]) -> None:
        self.done += what
        self.broken -= {(one, whom) for one in what for whom in who}

    def kill(self, nodes: list[str]) -> None:
        self._breaks("dead", *nodes)

    def stop(self, nodes: list[str]) -> None:
        self._breaks("dead", *nodes)

    def start(self, nodes: list[str]) -> None:
        assert not {("damaged", node) for node in nodes} & self.broken, "it would refuse to start"
        self._mends("dead", "empty", who=nodes)

    def pause(self, nodes: list[str]) -> None:
        self._breaks("paused", *nodes)

    def resume(self, nodes: list[str]) -> None:
        self._mends("paused", who=nodes)

    def roll(self, nodes: list[str]) -> None:
        self._breaks("dead", *nodes)

    def await_whole(self) -> None:
        assert not any(what == "empty" for what, _ in self.broken)
        self.done.append("whole")

    def wipe(self, nodes: list[str]) -> None:
        self._breaks("empty", *nodes)
        self._breaks("dead", *nodes)

    def flip_bit(self, node: str, rng: random.Random) -> None:
        self._breaks("damaged", node)

    def truncate(self, node: str, rng: random.Random) -> None:
        self._breaks("damaged", node)

    def rebuild(self, nodes: list[str]) -> None:
        self._mends("damaged", who=nodes)

    def lose_power(self, nodes: list[str], rng: random.Random) -> None:
        self._breaks("dead", *nodes)

    def fill(self, nodes: list[str], free_bytes: int) -> None:
        self._breaks("full", *nodes)

    def free(self, nodes: list[str]) -> None:
        self._mends("full", who=nodes)

    def slow_syncs(self, nodes: list[str], ms: int) -> None:
        assert ms > 0
        self._breaks("slow", *nodes)

    def fail_syncs(self, nodes: list[str]) -> None:
        self._breaks("failing", *nodes)

    def mend_syncs(self, nodes: list[str]) -> None:
        self._mends("slow", "failing", who=nodes)

    def step_clocks(self, nodes: list[str], seconds: float) -> None:
        if seconds:
            self._breaks("stepped", *nodes)
        else:
            self._mends("stepped", who=nodes)

    def await_compaction(self, nodes: list[str]) -> None:
        assert {("dead", node) for node in nodes} <= self.broken
        self.done.append("compacted")

    def cut(self, links: Collection[Link]) -> None:
        self._breaks("cut", *links)

    def join(self, links: Collection[Link]) -> None:
        self._mends("cut", who=links)

    def unplug(self, nodes: list[str]) -> None:
        self._breaks("unplugged", *nodes)

    def plug(self, nodes: list[str]) -> None:
        self._mends("unplugged", who=nodes)

    def degrade(self, links: Collection[Link], conditions: LinkConditions) -> None:
        assert conditions != LinkConditions(), "a calm network is no fault"
        self._breaks("weather", *links)

    def clear(self, links: Collection[Link]) -> None:
        self._mends("weather", who=links)

    def cuts(self) -> set[Link]:
        return {link for what, link in self.broken if what == "cut"}  # type: ignore[misc]


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("count", [3, 5])
def test_every_fault_is_undone_by_its_heal_and_choosing_does_nothing(name: str, count: int) -> None:
    for seed in range(SEED, SEED + 20):
        target, rng = AbleTarget(count=count), random.Random(seed)
        fault = FAULTS[name]
        assert fault.name == name
        hit = fault.choose(target, rng)
        assert hit, seed
        assert set(hit) <= set(target.nodes), seed
        assert not target.broken, seed
        fault.inject(target, hit, rng)
        assert target.done, seed
        assert target.broken or name == "restart-all", seed  # the one that is over at once
        fault.heal(target, hit)
        assert not target.broken, seed


@pytest.mark.parametrize("name", FAULTS)
def test_healing_what_never_happened_does_no_harm(name: str) -> None:
    target = AbleTarget()
    fault = FAULTS[name]
    hit = fault.choose(target, random.Random(SEED))
    fault.heal(target, hit)
    assert not target.broken


@pytest.mark.parametrize("name", FAULTS)
def test_the_same_dice_do_the_same(name: str) -> None:
    def once() -> tuple[list[str], set[tuple[object, ...]], list[str]]:
        target, rng = AbleTarget(), random.Random(SEED)
        hit = FAULTS[name].choose(target, rng)
        FAULTS[name].inject(target, hit, rng)
        return hit, target.broken, target.done

    assert once() == once()


@pytest.mark.parametrize(
    ("name", "hits"),
    [
        ("kill-leader", lambda nodes: nodes == ["n2"]),
        ("kill-follower", lambda nodes: len(nodes) == 1 and nodes != ["n2"]),
        ("kill-minority", lambda nodes: len(nodes) == 2),
        ("kill-majority", lambda nodes: len(nodes) == 3),
        ("kill-all", lambda nodes: len(nodes) == 5),
        ("pause-leader", lambda nodes: nodes == ["n2"]),
        ("pause-follower", lambda nodes: len(nodes) == 1 and nodes != ["n2"]),
        ("restart-all", lambda nodes: len(nodes) == 5),
        ("rolling-restart", lambda nodes: len(nodes) == 5),
        ("transfer-leadership", lambda nodes: nodes == ["n2"]),
        ("split-halves", lambda nodes: len(nodes) == 2),
        ("wipe", lambda nodes: len(nodes) == 1),
        ("readmission", lambda nodes: len(set(nodes)) == 2),
        ("far-behind", lambda nodes: len(nodes) == 1 and nodes != ["n2"]),
    ],
)
def test_a_fault_hits_of_five_nodes_whom_its_name_says(
    name: str, hits: Callable[[list[str]], bool]
) -> None:
    for seed in range(30):
        hit = FAULTS[name].choose(AbleTarget(count=5), random.Random(seed))
        assert hits(hit), (seed, hit)


def test_kill_leader_waits_for_one_to_be_elected() -> None:
    assert FAULTS["kill-leader"].choose(AbleTarget(None, None, "n3"), random.Random(SEED)) == ["n3"]


def test_waiting_for_a_leader_that_never_comes_ends_at_its_bound() -> None:
    with pytest.raises(TargetError, match=r"no leader within 0\.1 s"):
        await_leader(AbleTarget(None), 0.1)


@pytest.mark.parametrize("name", ["wipe", "bit-flip", "truncate", "readmission", "far-behind"])
def test_who_takes_a_disk_away_waits_until_the_last_one_is_back(name: str) -> None:
    target = AbleTarget()
    FAULTS[name].choose(target, random.Random(SEED))
    assert target.done == ["whole"]


# --- who hears whom -------------------------------------------------------------------------------


def cuts_of(name: str, count: int, seed: int = SEED) -> tuple[list[str], set[Link]]:
    target, rng = AbleTarget(count=count), random.Random(seed)
    hit = FAULTS[name].choose(target, rng)
    FAULTS[name].inject(target, hit, rng)
    return hit, target.cuts()


def heard(node: str, count: int, cuts: set[Link]) -> set[str]:
    """Return whom the node hears and is heard by, itself too."""
    others = AbleTarget(count=count).nodes
    return {one for one in others if not {(one, node), (node, one)} & cuts}


@pytest.mark.parametrize("count", [3, 5, 7])
def test_an_isolated_leader_hears_no_node_and_still_the_clients(count: int) -> None:
    hit, cuts = cuts_of("isolate-leader", count)
    assert hit == ["n2"]
    assert heard("n2", count, cuts) == {"n2"}
    assert len(cuts) == 2 * (count - 1)
    assert not any(CLIENTS in link for link in cuts)


@pytest.mark.parametrize("count", [5, 7])
def test_in_the_ring_each_node_hears_a_majority_and_no_two_the_same(count: int) -> None:
    _, cuts = cuts_of("majorities-ring", count)
    groups = [frozenset(heard(node, count, cuts)) for node in AbleTarget(count=count).nodes]
    assert len(set(groups)) == count
    assert all(count // 2 < len(group) < count for group in groups)


@pytest.mark.parametrize("count", [3, 5, 7])
def test_across_the_bridge_two_halves_share_one_node(count: int) -> None:
    hit, cuts = cuts_of("bridge", count)
    groups = [heard(node, count, cuts) for node in hit]
    assert groups[0] == set(hit)
    half = (count - 1) // 2
    assert sorted(map(len, groups[1:])) == [half + 1] * (count - 1)
    assert set.intersection(*groups) == {hit[0]}


def test_of_three_nodes_the_ring_is_the_bridge() -> None:
    assert networks.ringed(AbleTarget(), ["n1", "n2", "n3"]) == networks.bridged(
        AbleTarget(), ["n1", "n2", "n3"]
    )


def test_one_way_leaves_the_other_way_open_and_comes_in_both_directions() -> None:
    seen = set()
    for seed in range(20):
        _, cuts = cuts_of("one-way", 3, seed)
        assert len(cuts) == 2
        assert not {(other, one) for one, other in cuts} & cuts
        seen.add(all(one == "n2" for one, _ in cuts))
    assert seen == {True, False}


def test_clients_from_leader_cuts_nothing_between_nodes() -> None:
    assert cuts_of("clients-from-leader", 3)[1] == {("n2", CLIENTS), (CLIENTS, "n2")}


def test_halves_are_apart_and_whole() -> None:
    hit, cuts = cuts_of("split-halves", 5)
    rest = set(AbleTarget(count=5).nodes) - set(hit)
    assert all(heard(node, 5, cuts) == set(hit) for node in hit)
    assert all(heard(node, 5, cuts) == rest for node in rest)


def test_no_two_kinds_of_bad_links_are_the_same() -> None:
    drawn = [
        draw(random.Random(SEED))
        for draw in (
            networks.slow,
            networks.lossy,
            networks.duplicating,
            networks.reordering,
            networks.clogged,
        )
    ]
    assert all(one != other for one, other in pairwise(drawn))


# --- who can do what ------------------------------------------------------------------------------


def test_every_target_can_kill_and_every_fault_has_a_target() -> None:
    assert set(support.able("kill-leader")) == set(KINDS)
    assert all(support.able(name) for name in FAULTS)


def test_a_fault_that_the_target_cannot_do_is_refused_and_those_that_can_are_named() -> None:
    assert support.missing(["isolate-leader", "kill-all", "bit-flip"], "local") == [
        "isolate-leader"
    ]
    with pytest.raises(
        UnsupportedFault,
        match="local cannot do isolate-leader: it can't cut links between nodes; namespaces, comp",
    ):
        support.check(["kill-all", "isolate-leader"], "local")


def test_every_power_that_a_fault_needs_has_words_for_who_lacks_it() -> None:
    needed = {need for fault in FAULTS.values() for need in fault.needs}
    assert needed == set(POWERS)
    for fault in FAULTS:
        assert support.lacking(fault, object) == [POWERS[need] for need in FAULTS[fault].needs]


def test_a_target_hears_before_it_is_up_what_will_be_asked_of_it() -> None:
    class Equipped(AbleTarget):
        name = "local"
        heard: Collection[type] = ()

        def equip(self, needs: Collection[type]) -> None:
            self.heard = needs

    target = Equipped()
    support.prepare(target, ["kill-all", "pause-leader"])  # type: ignore[arg-type]
    assert target.heard == {Pauses}
    with pytest.raises(UnsupportedFault, match="bridge"):
        support.prepare(target, ["bridge"])  # type: ignore[arg-type]


def test_the_table_names_every_fault_with_what_it_does() -> None:
    lines = support.fault_table().splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == list(FAULTS)
    assert all(cell.strip() for line in lines for cell in line.strip("|").split("|"))
    assert faults.__doc__
