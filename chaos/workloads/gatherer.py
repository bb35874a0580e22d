"""A client process that reads any topic, by turns: `python -m chaos.workloads.gatherer CONFIG`.

What lives here: GETs without a topic. What must not: the rest of a subscriber (subscriber.py).
"""

from __future__ import annotations

import sys

from chaos.workloads.process import IDLE_S, work
from chaos.workloads.subscriber import SubscriberProcess


class GathererProcess(SubscriberProcess):
    """Reads all its topics with one GET after the other; the broker says of which topic it is."""

    def act(self) -> float:
        """GET from any topic."""
        if not self.undrained():
            return IDLE_S
        parameters = self.parameters
        idle = parameters.get_wait_ms / 1000
        self.take(self.client.get(idle=idle, max_count=parameters.get_count_max))
        return parameters.pause_s if self.tombstones is None else 0.0


if __name__ == "__main__":
    work(sys.argv[1:], GathererProcess)
