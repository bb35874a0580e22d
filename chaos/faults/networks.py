"""Faults of networks: who hears whom, and how well. Processes and disks stay whole.

What must not live here: how packets are kept from arriving (chaos/targets).

A cut drops packets without a word: connections stay open, and nobody is told. A partition is
between nodes alone unless it says otherwise: clients reach both sides, so that a leader without a
majority is asked all the time whether it still thinks that it leads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import permutations, product

from chaos.faults.whom import Whom, leader
from chaos.targets import CLIENTS, Breakable, DegradesLinks, Link, LinkConditions, Links, Unplugs

Cuts = Callable[[Breakable, list[str]], list[Link]]
"""From the target and the nodes that were chosen, in their order, to the links that are cut."""


def between(some: Collection[str], others: Collection[str]) -> list[Link]:
    """Return the links between the two groups, both ways."""
    there = [(one, other) for one, other in product(some, others) if one != other]
    return there + [(other, one) for one, other in there]


def around(target: Breakable, nodes: list[str]) -> list[Link]:
    """Return the links between these nodes and all the others."""
    return between(nodes, [node for node in target.nodes if node not in nodes])


def bridged(target: Breakable, nodes: list[str]) -> list[Link]:
    """Return the links between two halves; the first node stays connected to both."""
    _, *others = nodes
    half = len(others) // 2
    return between(others[:half], others[half:])


def ringed(target: Breakable, nodes: list[str]) -> list[Link]:
    """Return the links that a ring lacks in which each node hears just so many as are a majority.

    Of three nodes each would have to hear one other, which no ring gives: the bridge comes closest.
    """
    if len(nodes) < 5:
        return bridged(target, nodes)
    reach = -(-(len(nodes) // 2) // 2)  # as many to each side, rounded up
    places = {node: place for place, node in enumerate(nodes)}

    def distance(link: Link) -> int:
        apart = abs(places[link[0]] - places[link[1]])
        return min(apart, len(nodes) - apart)

    return [link for link in permutations(nodes, 2) if distance(link) > reach]


def muted(target: Breakable, nodes: list[str]) -> list[Link]:
    """Return the links from these nodes to the others; they go on hearing."""
    return [(node, other) for node in nodes for other in target.nodes if other not in nodes]


def from_clients(target: Breakable, nodes: list[str]) -> list[Link]:
    """Return the links between these nodes and the clients."""
    return between(nodes, [CLIENTS])


def one_way_victims(target: Breakable, rng: random.Random) -> list[str]:
    """Return the leader, which then is not heard, or all others: then the leader hears nobody."""
    led = leader(target, rng)
    return rng.choice((led, [node for node in target.nodes if node not in led] or led))


def half(target: Breakable, rng: random.Random) -> list[str]:
    """Return the smaller half of the nodes, whoever they are."""
    return rng.sample(target.nodes, len(target.nodes) // 2)


@dataclass(frozen=True)
class Partition:
    """Links over which nothing arrives, while every connection stays open."""

    name: str
    about: str
    choose: Whom
    cuts: Cuts
    needs: tuple[type, ...] = (Links,)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Drop what is sent."""
        assert isinstance(target, Links), target.name
        target.cut(self.cuts(target, nodes))

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Let it pass again."""
        assert isinstance(target, Links), target.name
        target.join(self.cuts(target, nodes))


@dataclass(frozen=True)
class Unplug:
    """A node without a network: its own sends fail, while a partition's go nowhere in silence."""

    name: str
    about: str
    choose: Whom
    needs: tuple[type, ...] = (Unplugs,)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Pull the cable (containers: `docker network disconnect`)."""
        assert isinstance(target, Unplugs), target.name
        target.unplug(nodes)

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Put it back."""
        assert isinstance(target, Unplugs), target.name
        target.plug(nodes)


@dataclass(frozen=True)
class BadLinks:
    """Links of nodes, to each other and to the clients, on which packets fare badly."""

    name: str
    about: str
    choose: Whom
    draw: Callable[[random.Random], LinkConditions]
    needs: tuple[type, ...] = (DegradesLinks,)

    def inject(self, target: Breakable, nodes: list[str], rng: random.Random) -> None:
        """Put conditions on the links, drawn at random."""
        assert isinstance(target, DegradesLinks), target.name
        target.degrade(self._links(target, nodes), self.draw(rng))

    def heal(self, target: Breakable, nodes: list[str]) -> None:
        """Let the links be calm; what was held back arrives now."""
        assert isinstance(target, DegradesLinks), target.name
        target.clear(self._links(target, nodes))

    @staticmethod
    def _links(target: Breakable, nodes: list[str]) -> list[Link]:
        return sorted(set(between(nodes, [*target.nodes, CLIENTS])))


def slow(rng: random.Random) -> LinkConditions:
    """Return delays from a wide area's up to one that endangers heartbeats."""
    delay_ms = rng.uniform(20, 150)
    return LinkConditions(delay_ms=delay_ms, jitter_ms=delay_ms / 4)


def lossy(rng: random.Random) -> LinkConditions:
    """Return losses that a connection survives: it sends again, ever more slowly."""
    return LinkConditions(loss=rng.uniform(0.02, 0.25))


def duplicating(rng: random.Random) -> LinkConditions:
    """Return a share of packets that arrive twice."""
    return LinkConditions(duplicate=rng.uniform(0.1, 0.6))


def reordering(rng: random.Random) -> LinkConditions:
    """Return a share of packets that overtake all that are under way."""
    return LinkConditions(delay_ms=rng.uniform(10, 40), reorder=rng.uniform(0.1, 0.5))


def clogged(rng: random.Random) -> LinkConditions:
    """Return a link that takes everything and delivers it when nobody waits for it any more."""
    return LinkConditions(clog=True)
