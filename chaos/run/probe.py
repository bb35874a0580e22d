"""The runner's own client: the health gate's publication and the tombstones.

What lives here: one publisher that records into the runner's history. What must not: phases.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

from chaos.run.plan import RunPlan
from chaos.workloads.history import ProcessRecorder, WorkloadObserver
from chaos.workloads.publisher import Texts, WorkloadPublisher
from flotilla_client import Client, FlotillaError, UnheardWarning


class ClientProbe:
    """The Probe of a real run."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._publications = WorkloadPublisher(client, Texts(0, seed))

    def put(self, topic: str) -> int | None:
        """Publish one recorded payload; return its id, None when it was not acknowledged."""
        try:
            [result] = self._publications.put(topic)
        except FlotillaError:  # recorded by the observer; the runner asks again within its bound
            return None
        return result.id

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def open_probe(plan: RunPlan) -> Callable[[list[str], ProcessRecorder], ClientProbe]:
    """Return what makes the probe of a run once the endpoints are known."""

    def make(endpoints: list[str], recorder: ProcessRecorder) -> ClientProbe:
        warnings.simplefilter("ignore", UnheardWarning)  # the record says what was stored
        client = Client(
            endpoints,
            state_dir=plan.directory / "clients" / "runner",
            timeout=plan.experiment.workload.deadline_ms / 1000,
            observer=WorkloadObserver(recorder),
            rng=random.Random(plan.seed),
        )
        return ClientProbe(client, plan.seed)

    return make
