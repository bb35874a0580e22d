"""An administrator of a simulation: he purges topics, drops clients, and steers nodes.

What lives here: his requests, whether he asks again, and what of them the history has to know. What
must not: what they come to (checks/replies.py), who asks for levels and users (operator.py).

Each act has a name, and is often asked for once more, of another node: it must be done once. Some
are asked for by somebody who may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from chaos.simulation.clients.crowd import Crowd
from chaos.simulation.clients.intruder import INTRUDER
from chaos.simulation.world.node import OPERATOR
from chaos.simulation.world.world import World
from chaos.workloads.history import ProcessRecorder
from flotilla_client.protocol import (
    ACK,
    ADMIN,
    CHECKPOINT,
    DROP_CLIENT,
    PURGE,
    TRANSFER_LEADER,
    Request,
    encode_request,
)

AGAIN_S: Final = (0.0, 0.05, 1.0, 5.0)  # until the same act is asked for once more
FORBIDDEN_SHARE: Final = 0.2  # of the acts are asked for by somebody who may not, if there are keys


class Administrator:
    """Adds his actions to the world's.

    `kept(topic)`: the first id that somebody still wants of it and its last, None: there is no such
    topic. `opened()`: who writes what the history has to know.
    """

    def __init__(
        self,
        world: World,
        crowd: Crowd,
        kept: Callable[[str], tuple[int, int] | None],
        opened: Callable[[], ProcessRecorder],
    ) -> None:
        self._world, self._crowd, self._kept = world, crowd, kept
        self._opened = opened
        self._recorder: ProcessRecorder | None = None  # few runs have a purge
        self._rng = world.stream("administrator")
        self._asked = 0
        # By the act's name: what the history is told once it is done.
        self._done: dict[str, Callable[[], None]] = {}
        world.reply_taps.append(self._answered)
        world.actions |= {
            "purge": self._purge,
            "drop_client": self._drop_client,
            "transfer_leader": self._transfer_leader,
            "checkpoint": self._checkpoint,
        }

    def close(self) -> None:
        """End the record."""
        if self._recorder is not None:
            self._recorder.close()

    def _purge(self, node: str, topic: str, share: float) -> None:
        """Purge a share of what a topic holds, sometimes more than there is."""
        found = self._kept(topic)
        if found is None:
            return
        first_id, end = found
        last_id = round(first_id + share * (end - first_id))
        if last_id < 1:
            return
        act_id = self._act(node, PURGE, topic=topic, last_id=last_id)
        if act_id:
            self._record("purge", topic, last_id)
            self._done[act_id] = lambda: self._record("purged", topic, last_id)

    def _record(self, f: str, topic: str, last_id: int) -> None:
        if self._recorder is None:
            self._recorder = self._opened()
        self._recorder.single(f, topic=topic, last_id=last_id)

    def _drop_client(self, node: str, client: str) -> None:
        """Have the cluster forget a client, which begins anew when it hears so."""
        process = self._crowd.clients[client].process
        if process is not None and process.session.state.client_id:
            self._act(node, DROP_CLIENT, client_id=process.session.state.client_id)

    def _transfer_leader(self, node: str, to: str) -> None:
        """Have the leader hand over."""
        self._act(node, TRANSFER_LEADER, node=to)

    def _checkpoint(self, node: str) -> None:
        """Have every node make a checkpoint."""
        self._act(node, CHECKPOINT)

    def _act(self, at: str, act: str, topic: str = "", client_id: str = "", **about: Any) -> str:
        """Ask for an act, perhaps twice; return its name, "" if who asks may not do it."""
        rng = self._rng
        self._asked += 1
        has_keys = bool(self._world.knob("keys"))
        asker = INTRUDER if has_keys and rng.random() < FORBIDDEN_SHARE else OPERATOR
        act_id = f"act {self._asked}"
        body = {"act": act, "act_id": act_id, **about}
        times = [0.0, rng.choice(AGAIN_S)] if rng.random() < 0.5 else [0.0]

        def ask(attempt: int) -> None:
            if attempt:  # it may be the first that gets there, and disturbs as much
                self._world.emit("fault", name=act, args=about)
            target = self._world.leader() if at == "leader" or attempt else at
            if target:
                name = f"{asker} {act_id}.{attempt}"
                request = Request(ADMIN, name, topic, client_id, body=dict(body))
                self._world.request(asker, target, encode_request(request))

        for attempt, after_s in enumerate(times):
            self._world.after(after_s, partial(ask, attempt))
        return act_id if asker == OPERATOR else ""

    def _answered(self, node: str, route: str, frames: Sequence[bytes]) -> None:
        if route != OPERATOR:
            return
        header: Mapping[str, Any] = orjson.loads(frames[0])
        act_id = str(header["request_id"]).removeprefix(f"{OPERATOR} ").rpartition(".")[0]
        if header["type"] == ACK and act_id in self._done:
            self._done.pop(act_id)()
