"""What chaos/targets promises of simulated clusters: faults become actions, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from chaos.faults import FAULTS, support
from chaos.run.client_faults import CLIENT_FAULTS
from chaos.run.simulated_windows import SimulatedClientPool
from chaos.simulation.checks.watch import Attached, attach
from chaos.simulation.plan.plan import Plan
from chaos.simulation.world.world import World
from chaos.targets import CLIENTS, Breakable, LinkConditions, TargetError
from chaos.targets.simulated_cluster import SimulatedCluster

SEED = 4
ROLE = {"topics": ["t"], "puts": 1.0, "gets": 1.0, "pause_s": 0.2}
FORMED_S = 2.0


@pytest.fixture
def world() -> Iterator[World]:
    plan = Plan(SEED, 3, 2, 60.0, "live", {"load": {"roles": [ROLE, ROLE], "deadline_ms": 5000}})
    with World(plan) as world:
        yield world


@pytest.fixture
def watch(world: World) -> Iterator[Attached]:
    watch = attach(world)
    world.run_until(FORMED_S)
    assert world.leader()
    yield watch
    watch.crowd.close()


@pytest.fixture
def cluster(world: World, watch: Attached) -> SimulatedCluster:
    return SimulatedCluster(world, SimulatedClientPool(world).clients())


@pytest.mark.parametrize("name", [name for name in FAULTS if "simulated" in support.able(name)])
def test_every_fault_that_it_can_do_is_done_and_healed_and_nothing_is_violated(
    world: World, watch: Attached, cluster: SimulatedCluster, name: str
) -> None:
    fault, rng, breakable = FAULTS[name], random.Random(SEED), checked(cluster)
    seen: list[str] = []
    world.observers.append(lambda kind, fields: seen.append(kind))
    hit = fault.choose(breakable, rng)
    fault.inject(breakable, hit, rng)
    world.run_until(world.now + 1.5)
    fault.heal(breakable, hit)
    world.run_until(world.now + 6)
    assert all(node.up and not node.paused for node in world.nodes.values())
    assert not world.net.cut
    assert not world.net.clogged
    assert world.leader()
    assert watch.failures == []
    assert seen


def checked(cluster: SimulatedCluster) -> Breakable:
    return cluster


def test_while_nobody_leads_any_node_is_taken_for_the_leader(
    world: World, cluster: SimulatedCluster
) -> None:
    cluster.kill(list(cluster.nodes))
    assert world.leader() == ""
    assert cluster.leader() in cluster.nodes


def test_links_to_the_clients_are_links_to_each_of_them(
    world: World, cluster: SimulatedCluster
) -> None:
    cluster.cut([("a", CLIENTS), ("b", "a")])
    assert world.net.cut == {("a", "client-1"), ("a", "client-2"), ("b", "a")}
    cluster.join([("a", CLIENTS)])
    assert world.net.cut == {("b", "a")}


def test_conditions_hold_everywhere_and_go_back_to_the_world_s_own(
    world: World, cluster: SimulatedCluster
) -> None:
    calm = world.net.conditions
    cluster.degrade([("a", "b")], LinkConditions(loss=0.25, duplicate=0.5))
    assert (world.net.conditions.loss, world.net.conditions.duplicate) == (0.25, 0.5)
    assert world.net.conditions.delay_ms == calm.delay_ms
    cluster.clear([("a", "b")])
    assert world.net.conditions == calm


@pytest.mark.parametrize("name", CLIENT_FAULTS)
def test_clients_can_be_harmed_too(world: World, watch: Attached, name: str) -> None:
    pool, rng = SimulatedClientPool(world), random.Random(SEED)
    fault = CLIENT_FAULTS[name]
    clients = fault.choose(pool, rng)
    fault.inject(pool, clients, rng)
    world.run_until(world.now + 2)
    fault.heal(pool, clients)
    world.run_until(world.now + 5)
    assert watch.failures == []
    assert all(client.process is not None for client in watch.crowd.clients.values())


def test_what_it_cannot_do_is_refused_with_those_that_can() -> None:
    with pytest.raises(TargetError, match=r"simulated cannot do clock-step.*local, namespaces can"):
        support.check(["clock-step"], "simulated")
