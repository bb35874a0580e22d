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
from chaos.simulation.clients.working import DEAD, DESK, GROUP
from chaos.simulation.world.node import OPERATOR
from chaos.simulation.world.world import World
from chaos.workloads.history import ProcessRecorder
from flotilla_client.policies import DROP_OLDEST, REFUSE
from flotilla_client.protocol import (
    ACK,
    ADMIN,
    ALTER_TOPIC,
    CHECKPOINT,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DROP_CLIENT,
    PURGE,
    READ,
    SEEK_GROUP,
    TRANSFER_LEADER,
    Request,
    encode_request,
)

AGAIN_S: Final = (0.0, 0.05, 1.0, 5.0)  # until the same act is asked for once more
OPEN_S: Final = 1.0  # between two looks whether a topic may be full
TOPICS_MAX: Final = 1_000  # more than any run has
ANY_ID: Final = 2**53 - 1
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
        world.at(world.plan.duration_s, self._open)
        world.actions |= {
            "purge": self._purge,
            "seek_group": self._seek_group,
            "set_topic": self._set_topic,
            "delete_topic": self._delete_topic,
            "read_topic": self._read_topic,
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

    def _seek_group(self, node: str, topic: str, start: str | int) -> None:
        """Have the group of a topic begin anew somewhere, perhaps behind its end."""
        act_id = self._act(node, SEEK_GROUP, topic=topic, group=GROUP, start=start)
        if act_id:  # on record it is the group's end, and its begin elsewhere
            recorder = self._recording()
            seek: tuple[tuple[str, dict[str, Any]], ...]
            seek = ("ungroup", {}), ("group", {"start": str(start)})
            for f, said in seek:
                op_id = recorder.invoke(f, topic, group=GROUP, **said)
                recorder.complete(op_id, "info", error="timeout")

    def _set_topic(self, node: str, topic: str, policy: dict[str, Any], is_new: bool) -> None:
        """Give a topic a policy, or change it.

        One that drops is on record a purge of any id: whoever has not read it may be told so.
        """
        act_id = self._act(
            node, CREATE_TOPIC if is_new else ALTER_TOPIC, topic=topic, policy=policy
        )
        if act_id and policy.get("when_full") == DROP_OLDEST:
            self._record("purge", topic, ANY_ID)

    def _open(self) -> None:
        """Let no topic be full for ever, whatever gets lost on the way: so the run can end."""
        leader = self._world.leader()
        part = self._world.nodes[leader].as_member if leader else None
        for topic in [] if part is None else part.store.topics_page("", TOPICS_MAX):
            if topic.retention is not None and topic.retention.policy.max_bytes:
                self._asked += 1
                policy = {"max_bytes": 0, "when_full": REFUSE}
                body = {"act": ALTER_TOPIC, "act_id": f"open {self._asked}", "policy": policy}
                name = f"{OPERATOR} open {self._asked}.0"
                request = Request(ADMIN, name, topic.name, body=body)
                self._world.request(OPERATOR, leader, encode_request(request))
        self._world.after(OPEN_S, self._open)

    def _delete_topic(self, node: str, topic: str, ends: bool) -> None:
        """Delete a topic."""
        act_id = self._act(node, DELETE_TOPIC, topic=topic, ends=ends)
        if act_id and topic in (DEAD, DESK):  # on record it is the group's end
            recorder = self._recording()
            op_id = recorder.invoke("ungroup", topic, group=GROUP)
            recorder.complete(op_id, "info", error="timeout")

    def _read_topic(self, node: str, topic: str, share: float) -> None:
        """Read a topic by hand, from somewhere between its first id and behind its end."""
        found = self._kept(topic)
        target = self._world.leader() if node == "leader" else node
        if found is None or not target:
            return
        first_id, end = found
        from_id = max(1, round(first_id + share * (end + 1 - first_id)))
        self._asked += 1
        bounds = {"from_id": from_id, "max_count": self._rng.choice((1, 3, 100))}
        request = Request(READ, f"{OPERATOR} read {self._asked}.0", topic, body=bounds)
        self._world.request(OPERATOR, target, encode_request(request))

    def _record(self, f: str, topic: str, last_id: int) -> None:
        self._recording().single(f, topic=topic, last_id=last_id)

    def _recording(self) -> ProcessRecorder:
        if self._recorder is None:
            self._recorder = self._opened()
            self._recorder.client_id = OPERATOR
        return self._recorder

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
