"""A client process that subscribes: `python -m chaos.workloads.subscriber CONFIG`.

What lives here: reading every topic to its end, again and again, and the drain at the end of a run.
What must not: judging what was delivered; the history has it all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from chaos.history import DRAINED, Recorder
from chaos.workloads import ClientConfig, decode_config
from chaos.workloads.control import Control
from chaos.workloads.publisher import open_client
from flotilla import Client, FlotillaError

REFUSED_PAUSE_S: Final = 0.1  # after an error that came at once: ask ten times a second, no more
IDLE_S: Final = 0.2  # between looks for an order once everything is drained


class SubscriberProcess:
    """Reads its topics in turn; one GET a topic, so that each tells what it has (`last_id`)."""

    def __init__(
        self, config: ClientConfig, client: Client, recorder: Recorder, control: Control
    ) -> None:
        self._config = config
        self._client = client
        self._recorder = recorder
        self._control = control
        self._have: dict[str, int] = {}
        self._tombstones: Mapping[str, int] | None = None
        self._delivered = 0

    def run(self) -> None:
        """Subscribe, then read until the order to stop."""
        for topic in self._config.topics:
            self._have[topic] = self._client.subscribe(topic).last_id
        self._control.report("ready")
        wait_s, going = 0.0, True
        while going:
            order = self._control.order(wait_s)
            going = self._obey(order) if order is not None else True
            wait_s = self._round() if going and self._undrained() else IDLE_S
        self._control.report("progress", delivered=self._delivered)

    def _obey(self, order: Mapping[str, Any]) -> bool:
        """Do what the order says; return whether to go on."""
        if order["order"] == "phase":
            self._recorder.phase = order["phase"]
        elif order["order"] == "drain":
            self._tombstones = order["last_ids"]
            for topic in self._config.topics:
                self._note_drained(topic)
        return bool(order["order"] != "stop")

    def _undrained(self) -> list[str]:
        """Return the topics that still have to be read; all of them before the drain."""
        if self._tombstones is None:
            return list(self._config.topics)
        return [topic for topic, id_ in self._tombstones.items() if self._have[topic] < id_]

    def _round(self) -> float:
        """GET once from each topic; return how long to wait before the next round."""
        pauses_s = [self._get(topic) for topic in self._undrained()]
        self._control.progress(delivered=self._delivered)
        return max(pauses_s, default=0.0)

    def _get(self, topic: str) -> float:
        try:
            delivery = self._client.get(
                topic, wait_ms=self._config.get_wait_ms, max_count=self._config.get_count_max
            )
        except FlotillaError:  # recorded by the observer, as every outcome
            return REFUSED_PAUSE_S
        if delivery is not None:
            self._have[topic] = delivery.last_id
            self._delivered += len(delivery.publications)
            self._note_drained(topic)
        return 0.0

    def _note_drained(self, topic: str) -> None:
        if self._tombstones is None or self._have[topic] < self._tombstones[topic]:
            return
        self._recorder.mark_phase(DRAINED, topic=topic, last_id=self._have[topic])
        if not self._undrained():
            self._control.report("drained")


def main(arguments: list[str]) -> None:
    """Run the process that the configuration in `arguments` describes."""
    config = decode_config(arguments[0])
    with (
        Recorder(config.history, config.process, config.run_id) as recorder,
        open_client(config, recorder) as client,
    ):
        SubscriberProcess(config, client, recorder, Control()).run()


if __name__ == "__main__":
    main(sys.argv[1:])
