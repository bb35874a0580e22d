"""A client process that subscribes: `python -m chaos.workloads.subscriber CONFIG`.

What lives here: reading every topic to its end, again and again, and the drain at the end of a run.
What must not: judging what was delivered; the history has it all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from chaos.workloads import kinds
from chaos.workloads.history import DRAINED
from chaos.workloads.process import IDLE_S, ClientWorkload, Kit, parameters_of, work
from flotilla_client import Delivery


class SubscriberProcess(ClientWorkload):
    """Reads its topics in turn; one GET a topic, so that each tells what it has (`last_id`)."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self.parameters = parameters_of(kit.config, kinds.Subscriber)
        self.have: dict[str, int] = {}  # of each subscription
        self.tombstones: Mapping[str, int] | None = None
        self._round: list[str] = []  # topics that have not had their turn

    def prepare(self) -> None:
        """Subscribe to every topic; those that a process before had subscribed to are resumed."""
        for topic in self.topics:
            if topic not in self.have:
                self.have[topic] = self.client.subscribe(topic).last_id

    def act(self) -> float:
        """GET from the next topic that is not drained."""
        if not self.undrained():
            return IDLE_S
        if not self._round:
            self._round = list(self.undrained())
        self.take(self._get(self._round.pop(0)))
        is_round_over = not self._round and self.tombstones is None
        return self.parameters.pause_s if is_round_over else 0.0

    def _get(self, topic: str) -> Delivery | None:
        return self.client.get(
            topic,
            idle=self.parameters.get_wait_ms // len(self.undrained()) / 1000,
            max_count=self.parameters.get_count_max,
        )

    def take(self, delivery: Delivery | None) -> None:
        """Note what a GET has brought."""
        if delivery is not None:
            self.have[delivery.topic] = delivery.last_id
            self.counts["delivered"] += len(delivery.publications)
            self._note_drained(delivery.topic)

    # --- the drain ------------------------------------------------------------------------------

    def undrained(self) -> list[str]:
        """Return the topics that still have to be read; all of them before the drain."""
        if self.tombstones is None:
            return list(self.have)
        return [topic for topic, id_ in self.have.items() if id_ < self.tombstones[topic]]

    def is_drained(self) -> bool:
        """Whether everything is read."""
        return not self.undrained()

    def drain(self, last_ids: Mapping[str, int]) -> None:
        """Read up to these ids, and no further."""
        self.tombstones, self._round = last_ids, []
        for topic in self.have:
            self._note_drained(topic)
        self.report_drained()

    def report_drained(self) -> None:
        """Tell the runner when everything is drained."""
        if self.tombstones is not None and self.is_drained():
            self.control.report("drained")

    def _note_drained(self, topic: str) -> None:
        if self.tombstones is None or self.have[topic] < self.tombstones[topic]:
            return
        self.kit.recorder.mark_phase(DRAINED, topic=topic, last_id=self.have[topic])
        self.report_drained()


if __name__ == "__main__":
    work(sys.argv[1:], SubscriberProcess)
