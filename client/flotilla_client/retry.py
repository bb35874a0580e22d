"""The lazy pirate: how one operation gets its answer from a cluster whose nodes come and go.

What lives here: `Exchange`, a state machine from events (started, replied, silent, unsent, resumed)
to actions (send, listen, pause, close, done, failed), and `Routes`, what the client has learned
about which node answers on which endpoint. What must not: sockets, clocks, threads, or randomness
of its own; the time and a `random.Random` come in (after h11: bytes in, events out).

After Hintjens, ZeroMQ Guide ch. 4 (Lazy Pirate): poll with a timeout, on silence close the socket
and ask elsewhere. Beyond it: the request of every attempt is named `<operation>.<attempt>`. An
answer to an earlier attempt answers the operation too (all attempts are the same idempotent
request), but a NAK settles only the attempt that it names: an error is `definite` only if every
attempt that left was refused for certain.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flotilla_client.errors import FlotillaError, Unavailable, from_reply
from flotilla_client.log import LOG
from flotilla_client.protocol import ACK, ERRORS, Reply

DEADLINE_MS: Final = 15_000  # an operation's patience: above two elections and a silent node
DEADLINE_MS_MAX: Final = 24 * 3600 * 1000  # nobody waits longer for an answer
ATTEMPT_MS: Final = 2_500  # silence that long means a dead node or link: above one election
ATTEMPTS_MIN: Final = 3  # that many silent attempts fit into any deadline: a node may be down
SHUN_MS: Final = 10_000  # a silent endpoint is not preferred, even if it hosts the leader
BACKOFF_MS: Final = 20  # the first pause; doubles: a dead leader is replaced in a few hundred ms
BACKOFF_MS_MAX: Final = 250  # asking four times a second hurts no node and finds a leader soon
RETRY_AFTER_MS_MAX: Final = 5_000  # a node's wish to be left alone is honoured up to here
NO_ANSWER_YET: Final = "no answer yet"
JITTER: Final = (0.5, 1.5)  # clients that were refused together must not come back together


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request under `request_id`, wait for a reply; then `replied`, `silent`, `unsent`."""

    endpoint: int
    request_id: str
    timeout_ms: float


@dataclass(frozen=True, slots=True)
class Listen:
    """Go on waiting for a reply from `endpoint`; then `replied` or `silent`."""

    endpoint: int
    timeout_ms: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait; then `resumed`."""

    wait_ms: float


@dataclass(frozen=True, slots=True)
class Close:
    """Close the endpoint's socket: a late answer must not meet a later question."""

    endpoint: int


@dataclass(frozen=True, slots=True)
class Done:
    """The operation's ACK, after `attempts` sends."""

    reply: Reply
    attempts: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation's error."""

    error: FlotillaError


Action = Send | Listen | Pause | Close | Done | Failed


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a retryable NAK leads to: ask `where` ("leader", "next", "stay") after a pause."""

    where: str
    reason: str


# A code that is missing here is final. Every code whose row says "never" is missing.
ON_NAK: Final[Mapping[str, Reaction]] = {
    "not_leader": Reaction("leader", "the node cannot pass the request on"),
    "electing": Reaction("next", "a node that is cut off would say so for ever"),
    "uncertain": Reaction("next", "repeating it tells the outcome"),
    "shutting_down": Reaction("next", "this one is leaving"),
    "overloaded": Reaction("stay", "another node would only pass it on to the same queue"),
    "quota": Reaction("stay", "it is the principal's limit, and other nodes have their own load"),
    "backlog_full": Reaction("stay", "it is the topic's limit, not the node's"),
    "disk_full": Reaction("stay", "it is the majority's limit, not the node's"),
}

# Where the deadline's error says more than "unavailable": the cluster lives and keeps refusing.
TELLING: Final = frozenset({"overloaded", "quota", "backlog_full", "disk_full"})


def attempt_timeout_ms(budget_ms: float, wait_ms: float) -> float:
    """Return how long to wait for one answer: a third of the budget at most, and the GET's wait.

    A wait of a quarter of the budget leaves half of that: `ATTEMPTS_MIN` attempts, each with the
    wait, still end within the budget and one wait.
    """
    if wait_ms:
        budget_ms /= 2
    return min(ATTEMPT_MS, budget_ms / ATTEMPTS_MIN) + wait_ms


def exchange_deadline_ms(operation_deadline_ms: float, wait_ms: float) -> float:
    """Return when to give up: what a GET waits for a publication comes on top, once."""
    return operation_deadline_ms + wait_ms


class Routes:
    """Which node answers on which endpoint, which hosts the leader, which was silent lately.

    `current`: the endpoint of the next request. Invariant: one of `endpoints`. Nodes have no
    advertised addresses: all of this is learned from replies. `names`: of all endpoints, for
    the log.
    """

    def __init__(self, endpoints: Sequence[int], names: Sequence[str] = ()) -> None:
        assert endpoints, "a client needs an endpoint"
        self.endpoints = tuple(endpoints)
        self._names = tuple(names)
        self._leader = ""
        self.current = self.endpoints[0]
        self._endpoint_of: dict[str, int] = {}
        self._shunned_until_ms: dict[int, float] = {}

    def answered(self, endpoint: int, reply: Reply, now_ms: float) -> None:
        """Learn from a reply, and head for the leader: known, or perhaps on an unknown endpoint."""
        if self._shunned_until_ms.pop(endpoint, None) is not None:
            LOG.info("%s answers again", self.name(endpoint))
        if reply.leader and reply.leader != self._leader:
            self._leader = reply.leader
            LOG.info("%s leads, says %s", reply.leader, self.name(endpoint))
        if self._endpoint_of.get(reply.node) != endpoint:
            kept = {n: e for n, e in self._endpoint_of.items() if e != endpoint}
            self._endpoint_of = kept | {reply.node: endpoint}
        if reply.leader in ("", reply.node):
            self.current = endpoint
            return
        known = self._endpoint_of.get(reply.leader)
        candidates = [known] if known is not None else self._unknown()
        self.current = next((e for e in candidates if not self._shunned(e, now_ms)), endpoint)

    def silent(self, endpoint: int, now_ms: float, cause: str = "no answer") -> None:
        """Learn that an endpoint did not answer: others come first for `SHUN_MS`."""
        # Once for each time that it goes silent: an outage must not fill a log.
        level = logging.DEBUG if endpoint in self._shunned_until_ms else logging.WARNING
        self._shunned_until_ms[endpoint] = now_ms + SHUN_MS
        self.current = self.after(endpoint, now_ms)
        LOG.log(level, "%s: %s; next: %s", self.name(endpoint), cause, self.name(self.current))

    def after(self, endpoint: int, now_ms: float) -> int:
        """Return the next endpoint in the ring, one that was not silent lately if there is one."""
        here = self.endpoints.index(endpoint)
        ring = self.endpoints[here + 1 :] + self.endpoints[: here + 1]
        return next((e for e in ring if not self._shunned(e, now_ms)), ring[0])

    def name(self, endpoint: int) -> str:
        """Return what the log calls an endpoint."""
        return self._names[endpoint] if self._names else f"endpoint {endpoint}"

    def _unknown(self) -> list[int]:
        known = set(self._endpoint_of.values())
        return [endpoint for endpoint in self.endpoints if endpoint not in known]

    def _shunned(self, endpoint: int, now_ms: float) -> bool:
        return now_ms < self._shunned_until_ms.get(endpoint, now_ms)


class Exchange:
    """One operation's way to its answer.

    Every method takes the time (monotonic, ms) and returns actions, to be carried out in order;
    the last one says what to wait for, and with it which method is called next.
    `final`: codes that end this exchange although others would retry them. `sent`: attempts that
    left before (a producer's, behind its predecessors), all of them without a settled outcome.
    `name`: the operation's, of which each attempt's request has its own: `<name>.<attempt>`.
    """

    def __init__(
        self,
        routes: Routes,
        name: str,
        deadline_ms: float,
        timeout_ms: float,
        rng: random.Random,
        final: frozenset[str] = frozenset(),
        sent: int = 0,
    ) -> None:
        self._routes = routes
        self.name = name
        self._deadline_ms = deadline_ms
        self._timeout_ms = timeout_ms
        self._rng = rng
        self._final = final
        self._endpoint = routes.current
        self._attempts = sent
        self._unsettled = set(range(1, sent + 1))  # attempts that may have happened
        self._setbacks = 0
        self._until_ms = 0.0
        self._is_pausing = False
        self._last_nak: Reply | None = None
        self._causes: dict[int, str] = {}  # what each endpoint did last, in the time that it had

    def is_asked(self, reply: Reply) -> bool:
        """Return whether a reply is to one of its attempts."""
        return reply.request_id.rpartition(".")[0] == self.name

    def started(self, now_ms: float) -> list[Action]:
        """Begin: the first attempt goes where the leader is believed to be."""
        return self._send(now_ms)

    def adopted(self, endpoint: int, now_ms: float) -> list[Action]:
        """Begin with an attempt that is already on its way to `endpoint`."""
        assert self._attempts > 0, self._attempts
        self._endpoint = endpoint
        self._until_ms = min(now_ms + self._timeout_ms, self._deadline_ms)
        return [self._keep_listening(now_ms)]

    def replied(self, reply: Reply, now_ms: float) -> list[Action]:
        """A reply came in, to this operation or to another."""
        name, _, attempt = reply.request_id.rpartition(".")
        if name != self.name:
            return [self._keep_listening(now_ms)]
        self._routes.answered(self._endpoint, reply, now_ms)
        if reply.type == ACK:
            return [Done(reply, self._attempts)]
        self._causes[self._endpoint] = str(reply.body.get("error", ""))
        return self._refused(reply, int(attempt), now_ms)

    def silent(self, now_ms: float, cause: str = "no answer") -> list[Action]:
        """No reply in time, or another cause of the like: the attempt may have happened."""
        self._note(cause, now_ms)
        return self._elsewhere(now_ms)

    def unsent(self, now_ms: float, cause: str = "no connection") -> list[Action]:
        """No connection, for that cause: the attempt certainly did not happen."""
        self._note(cause, now_ms)
        self._unsettled.discard(self._attempts)
        return self._elsewhere(now_ms)

    def resumed(self, now_ms: float) -> list[Action]:
        """The pause is over."""
        return self._send(now_ms)

    def _note(self, cause: str, now_ms: float) -> None:
        if now_ms < self._deadline_ms:
            self._causes[self._endpoint] = cause
        else:  # what the deadline cut off says nothing of an endpoint that has said something
            self._causes.setdefault(self._endpoint, cause)

    def _refused(self, reply: Reply, attempt: int, now_ms: float) -> list[Action]:
        if is_definite(reply):
            self._unsettled.discard(attempt)
        if attempt != self._attempts:
            return [self._keep_listening(now_ms)]
        code = str(reply.body.get("error"))
        if code not in ON_NAK or code in self._final or _has_to_give_up(reply):
            return [Failed(from_reply(reply, not self._unsettled, self._attempts))]
        self._last_nak = reply
        level = logging.INFO if self._setbacks == 0 else logging.DEBUG
        LOG.log(level, "%s: %s; asking again", self._routes.name(self._endpoint), code)
        self._endpoint = self._place(ON_NAK[code].where, now_ms)
        return self._pause(self._retry_after_ms(reply), now_ms)

    def _place(self, where: str, now_ms: float) -> int:
        if where == "stay" or (where == "leader" and self._routes.current != self._endpoint):
            return self._routes.current
        return self._routes.after(self._endpoint, now_ms)

    def _elsewhere(self, now_ms: float) -> list[Action]:
        gone = self._endpoint
        self._routes.silent(gone, now_ms, self._causes[gone])
        self._endpoint = self._routes.current
        self._setbacks += 1
        all_were_asked = self._setbacks % len(self._routes.endpoints) == 0
        wait_ms = self._backoff_ms() if all_were_asked else 0.0
        onward = self._pause(wait_ms, now_ms) if wait_ms else self._send(now_ms)
        return [Close(gone), *onward]

    def _send(self, now_ms: float) -> list[Action]:
        if now_ms >= self._deadline_ms:
            return self._given_up()
        self._attempts, self._is_pausing = self._attempts + 1, False
        self._unsettled.add(self._attempts)
        self._until_ms = min(now_ms + self._timeout_ms, self._deadline_ms)
        request_id = f"{self.name}.{self._attempts}"
        return [Send(self._endpoint, request_id, self._until_ms - now_ms)]

    def _keep_listening(self, now_ms: float) -> Listen:
        return Listen(self._endpoint, max(0.0, self._until_ms - now_ms))

    def _pause(self, wait_ms: float, now_ms: float) -> list[Action]:
        if now_ms + wait_ms >= self._deadline_ms:
            return self._given_up()
        self._is_pausing = True
        return [Pause(wait_ms)]

    def _retry_after_ms(self, reply: Reply) -> float:
        wished_ms = reply.body.get("retry_after_ms")
        self._setbacks += 1
        if type(wished_ms) is not int or wished_ms <= 0:
            return self._backoff_ms()
        return min(wished_ms, RETRY_AFTER_MS_MAX) * self._rng.uniform(*JITTER)

    def _backoff_ms(self) -> float:
        doublings = min(self._setbacks // len(self._routes.endpoints), 8)
        return min(BACKOFF_MS * 2.0**doublings, BACKOFF_MS_MAX) * self._rng.uniform(*JITTER)

    def _given_up(self) -> list[Action]:
        LOG.warning("gave up at the deadline, after %d attempts", self._attempts)
        return [Failed(self._out_of_time(self._causes))]

    def out_of_time(self) -> FlotillaError:
        """Return the error of somebody whose deadline has come by now; this may go on."""
        awaited = {} if self._is_pausing else {self._endpoint: NO_ANSWER_YET}
        return self._out_of_time(awaited | self._causes)

    def _out_of_time(self, causes: Mapping[int, str]) -> FlotillaError:
        definite = not self._unsettled
        if self._last_nak is None:
            message = "no answer from any node before the deadline"
            if not self._attempts:
                message = "the deadline passed before any node was asked"
            details = {"attempts": self._attempts, "causes": causes}
            return Unavailable(message, "", definite, details)
        last = from_reply(self._last_nak, definite, self._attempts)
        if last.code in TELLING:
            return last
        message = f"the deadline passed; the last answer was {last.code}: {last.message}"
        details = last.details | {"last": last.code, "causes": causes}
        return Unavailable(message, "", definite, details)


def _has_to_give_up(reply: Reply) -> bool:
    """Return whether a quota is one that does not free itself."""
    return reply.body.get("error") == "quota" and "retry_after_ms" not in reply.body


def is_definite(reply: Reply) -> bool:
    """Return whether a NAK says that its attempt has certainly not happened."""
    said = reply.body.get("definite")
    known = ERRORS.get(str(reply.body.get("error")))
    return said if isinstance(said, bool) else known is not None and known.definite
