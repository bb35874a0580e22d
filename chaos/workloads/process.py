"""What all client processes have in common: `python -m chaos.workloads.<kind> CONFIG`.

What lives here: a process's loop from its start to its last order. What must not: what a kind of
client does between orders (a module each), or the library's part: retries, state, sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from chaos.workloads import ClientConfig, decode_config
from chaos.workloads.control import Control
from chaos.workloads.history import ProcessRecorder
from chaos.workloads.kinds import Parameters
from chaos.workloads.recording import MortalObserver, open_client
from flotilla_client import Client, Fenced, FlotillaError

IDLE_S: Final = 0.2  # between looks for an order while there is nothing to do
REFUSED_PAUSE_S: Final = 0.1  # after an error that came at once: ask ten times a second, no more

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Kit:
    """What a client process works with."""

    config: ClientConfig
    client: Client
    recorder: ProcessRecorder
    observer: MortalObserver
    control: Control


class ClientWorkload:
    """A client process's behaviour. A kind of client says how it gets ready, acts and drains."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.client, self.control = kit.client, kit.control
        self.topics = kit.config.topics
        self.counts = {"acknowledged": 0, "delivered": 0, "unknown": 0, "failed": 0}
        self._is_ready = False

    def run(self) -> None:
        """Obey orders, and act while there are none, until the order to stop. Raises Fenced."""
        wait_s, going = 0.0, True
        while going:
            order = self.control.order(wait_s)
            if order is None:
                wait_s = self._step()
            else:
                going, wait_s = self._obey(order), 0.0
        self.finish()
        self.control.report("progress", **self.counts)

    def _step(self) -> float:
        try:
            wait_s = self.act() if self._is_ready else self._get_ready()
        except Fenced:
            raise
        except FlotillaError as error:  # recorded by the observer, as every outcome
            self.count_error(error)
            wait_s = REFUSED_PAUSE_S
        self.control.progress(**self.counts)
        return wait_s

    def _get_ready(self) -> float:
        self.prepare()
        self._is_ready = True
        self.control.report("ready")
        return 0.0

    def _obey(self, order: Mapping[str, Any]) -> bool:
        """Do what the order says; return whether to go on."""
        match order["order"]:
            case "phase":
                self.kit.recorder.phase = order["phase"]
            case "crash":
                self.kit.observer.arm(order["point"], order["passes"])
            case "drain":
                self.drain(order["last_ids"])
            case "stop":
                return False
        return True

    def count_error(self, error: FlotillaError) -> None:
        """Count an operation that did not succeed."""
        self.counts["failed" if error.definite else "unknown"] += 1

    # --- what a kind of client does -------------------------------------------------------------

    def prepare(self) -> None:
        """Get ready to act; tried again after a FlotillaError."""
        self.client.open()

    def act(self) -> float:
        """Do one thing; return how long to wait before the next one, for orders, in seconds."""
        raise NotImplementedError

    def drain(self, last_ids: Mapping[str, int]) -> None:
        """Hear that nothing will be published any more, and each topic's last id."""

    def finish(self) -> None:
        """Do what is left to be done before the process ends."""


def work(arguments: list[str], kind: Callable[[Kit], ClientWorkload]) -> None:
    """Be the process that the configuration in `arguments` describes.

    A process whose client was taken up by another one says so and ends: it is nobody any more.
    """
    config, control = decode_config(arguments[0]), Control()
    with ProcessRecorder(config.history, config.process, config.run_id) as recorder:
        observer = MortalObserver(recorder)
        with open_client(config, observer) as client:
            try:
                kind(Kit(config, client, recorder, observer, control)).run()
            except Fenced:
                control.report("fenced")


def parameters_of(config: ClientConfig, kind: type[P]) -> P:
    """Return the parameters of a client that is of this kind, or of one that goes further."""
    assert isinstance(config.parameters, kind), config.parameters
    return config.parameters
