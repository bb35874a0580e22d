"""A client process that shares work with others: `python -m chaos.workloads.taker CONFIG`.

What lives here: a worker of one group a topic: what it takes, and what becomes of each publication,
at random; and the drain, which is over when the cluster says that all is settled. What must not:
judging who was given what; the history has it all.

It reads its groups' dead letters as well, by a subscription of its own.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Mapping
from typing import Final

from chaos.workloads import kinds
from chaos.workloads.history import DRAINED, SETTLED
from chaos.workloads.process import IDLE_S, ClientWorkload, Kit, parameters_of, work
from flotilla_client import LeaseLost, WorkItem

GROUP: Final = "workers"
DEAD_LETTERS: Final = "dead-letters"  # the topic of them
TURN_S: Final = 0.5  # with one topic, as long as there is something to do; then orders are heard
IDLE_TURN_S: Final = 0.2  # the same, where nothing comes
STALL_LEASES: Final = 1.3  # a body that outlasts its lease takes so many
EXTENDED_LEASES: Final = 2.0  # for how many a lease is extended
DELAY_S_MAX: Final = 0.5  # of what is given back


class TakerProcess(ClientWorkload):
    """Works on its topics in turn; each body ends well, gives back, asks for more time or stalls.

    In the drain every body ends well.
    """

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self.parameters = parameters_of(kit.config, kinds.Taker)
        self._rng = random.Random(kit.config.seed)
        self._turns = itertools.cycle(self.topics)
        self._left: dict[str, int] | None = None  # of the drain: topics with their tombstones
        self._dead_id = 0

    def prepare(self) -> None:
        """Subscribe to dead letters, or there would be nobody for them; make the groups."""
        self._dead_id = self.client.subscribe(DEAD_LETTERS).last_id
        for topic in self.topics:
            self._settled_to(topic)

    def act(self) -> float:
        """Work for a while on one topic, and read what dead letters there are."""
        if self._left is None:
            self._work(next(self._turns))
            self._read_dead()
            return 0.0
        if not self._left:
            return IDLE_S
        topic = min(self._left)
        self._work(topic)
        if self._settled_to(topic) >= self._left[topic]:
            told = {"topic": topic, "group": GROUP, "last_id": self._left.pop(topic)}
            self.kit.recorder.mark_phase(SETTLED, **told)
        self._end_drain()
        return 0.0

    def drain(self, last_ids: Mapping[str, int]) -> None:
        """Work until the cluster says that all is settled up to these ids."""
        self._left = {topic: last_ids[topic] for topic in self.topics}

    def _end_drain(self) -> None:
        if not self._left:
            while self._read_dead():
                pass
            told = {"topic": DEAD_LETTERS, "last_id": self._dead_id}
            self.kit.recorder.mark_phase(DRAINED, **told)
            self.control.report("drained")

    def _settled_to(self, topic: str) -> int:
        """Make a topic's group, if need be; return up to which id everything is settled."""
        parameters = self.parameters
        return self.client.make_group(
            topic,
            GROUP,
            lease=parameters.lease_s,
            max_attempts=parameters.attempts_max,
            dead_letter=DEAD_LETTERS,
        )

    def _work(self, topic: str) -> None:
        parameters, until_s = self.parameters, time.monotonic() + TURN_S
        items = self.client.work(
            topic,
            GROUP,
            lease=parameters.lease_s,
            prefetch=parameters.take_count_max,
            ack="manual",
            idle=IDLE_TURN_S,
        )
        with items:
            for item in items:
                self.counts["delivered"] += 1
                self._body(item)
                if time.monotonic() > until_s:
                    break

    def _body(self, item: WorkItem) -> None:
        parameters, chance = self.parameters, self._rng.random()
        if self._left is not None:
            item.ack()
        elif chance < parameters.stall_share:
            time.sleep(STALL_LEASES * parameters.lease_s)
            item.ack()
        elif chance < parameters.stall_share + parameters.nak_share:
            item.nak(self._rng.uniform(0, DELAY_S_MAX))
        elif chance < parameters.stall_share + parameters.nak_share + parameters.extend_share:
            self._take_longer(item)
        else:
            item.ack()

    def _take_longer(self, item: WorkItem) -> None:
        try:
            item.extend(EXTENDED_LEASES * self.parameters.lease_s)
        except LeaseLost as error:
            self.count_error(error)
            return
        time.sleep(self.parameters.lease_s)
        item.ack()

    def _read_dead(self) -> bool:
        """Read the next dead letters; return whether there were any."""
        delivery = self.client.get(DEAD_LETTERS, max_count=self.parameters.take_count_max)
        if delivery is not None:
            self._dead_id = delivery.last_id
        return delivery is not None


if __name__ == "__main__":
    work(sys.argv[1:], TakerProcess)
