"""A client process that comes and goes: `python -m chaos.workloads.visitor CONFIG`.

What lives here: when to subscribe and when to leave. What must not: reading (subscriber.py).

An UNSUB without an answer may have been carried out: it is asked again until there is an answer.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Final

from chaos.workloads import kinds
from chaos.workloads.process import IDLE_S, Kit, parameters_of, work
from chaos.workloads.subscriber import SubscriberProcess

JITTER: Final = 0.5  # a stay is up to so much longer or shorter
RESUME_CHANCE: Final = 0.25  # of subscribing again in place of leaving


class VisitorProcess(SubscriberProcess):
    """Subscribes to all its topics, reads, leaves them all, comes back; until the drain."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self._visit = parameters_of(kit.config, kinds.Visitor)
        self._rng = random.Random(kit.config.seed)
        self._is_here = True
        self._leaving: set[str] = set()  # asked to end, no answer yet
        self._turn_s = self._next_turn_s(self._visit.stay_s)

    def _next_turn_s(self, seconds: float) -> float:
        return time.monotonic() + seconds * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def act(self) -> float:
        """Come, read or go, whatever it is time for."""
        if self._leaving:
            self._leave(min(self._leaving))
            return 0.0
        if self.tombstones is not None:
            return super().act()
        if time.monotonic() >= self._turn_s:
            self._turn()
        if self._is_here:
            return self._come_or_read()
        return min(IDLE_S, max(0.0, self._turn_s - time.monotonic()))

    def _turn(self) -> None:
        if self._is_here and self._rng.random() < RESUME_CHANCE:
            self._turn_s = self._next_turn_s(self._visit.stay_s)
            for topic in self.have:
                self.client.subscribe(topic)
            return
        self._is_here = not self._is_here
        self._turn_s = self._next_turn_s(
            self._visit.stay_s if self._is_here else self._visit.away_s
        )
        if not self._is_here:
            self._leaving = set(self.have)

    def _come_or_read(self) -> float:
        for topic in self.topics:
            if topic not in self.have:
                self.have[topic] = self.client.subscribe(topic).last_id
                return 0.0
        return super().act()

    def _leave(self, topic: str) -> None:
        self.client.unsubscribe(topic)
        self._leaving.remove(topic)
        self.have.pop(topic, None)
        self.report_drained()

    def is_drained(self) -> bool:
        """Whether everything is read that it stays subscribed to."""
        return not self._leaving and super().is_drained()


if __name__ == "__main__":
    work(sys.argv[1:], VisitorProcess)
