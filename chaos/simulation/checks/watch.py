"""Everything that is put into a world and round it: its clients, and all that is checked.

What lives here: `attach` and what it returns, the run's progress, and its end. What must not: any
single claim, the world itself, how a run is started (run.py).

Use: `watch = attach(world)`, let the world's time pass until `watch.is_over`, then
`watch.finish()`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from analytics import twins
from analytics.twins import Evidence
from chaos.simulation.checks.books import QUIET_S, Books
from chaos.simulation.checks.calm import Calm
from chaos.simulation.checks.checkpoints import Checkpoints
from chaos.simulation.checks.clients_upkeep import ClientsUpkeep
from chaos.simulation.checks.coverage import Coverage
from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.checks.message_rules import MessageRules
from chaos.simulation.checks.promises import Promises
from chaos.simulation.checks.raft_rules import RaftRules
from chaos.simulation.checks.reads import ReadChecks
from chaos.simulation.checks.rebuilt import Rebuilt
from chaos.simulation.checks.recorded import taken_in
from chaos.simulation.checks.reference import Reference
from chaos.simulation.checks.replies import Replies
from chaos.simulation.checks.scrubbing import Scrubbing
from chaos.simulation.checks.travels import Travels
from chaos.simulation.checks.upkeep import Upkeep
from chaos.simulation.checks.work import WorkPromises
from chaos.simulation.clients.clients import Process, Script, SimClient
from chaos.simulation.clients.compactor import (
    COMPACTED_TOPIC,
    COMPACTOR,
    Compactor,
)
from chaos.simulation.clients.crowd import Crowd
from chaos.simulation.clients.dressing import properties_of
from chaos.simulation.clients.follower import FOLLOWER, FOLLOWERS, Follower
from chaos.simulation.clients.intruder import INTRUDER, Intruder
from chaos.simulation.clients.replayer import REPLAYER, Replayer
from chaos.simulation.clients.scripts import Known, Role, delivered
from chaos.simulation.clients.traveller import (
    TOPICS_MAX,
    TRAVELLER,
    Travelling,
    keep_ending,
)
from chaos.simulation.clients.working import DEAD
from chaos.simulation.plan.limits import of_limits, store_limits
from chaos.simulation.plan.result import Failure
from chaos.simulation.world.administrator import Administrator
from chaos.simulation.world.node import OPERATOR, SimNode
from chaos.simulation.world.operator import Operator
from chaos.simulation.world.sockets import Sockets
from chaos.simulation.world.world import World
from chaos.workloads import history
from cluster.wire.levels import LEVEL_OF_EXPIRY, LEVEL_OF_PROPERTIES
from flotilla_client import (
    BacklogFull,
    FlotillaError,
    Gap,
    Losses,
    Operation,
    OutboxFull,
    Outcome,
    Purged,
    TooLarge,
    WorkItem,
)
from flotilla_client.properties import Properties
from flotilla_client.protocol import CLIENT, SUBSCRIPTIONS, TOPIC, Reply, Request, topic_of
from flotilla_client.reading import Delivery
from flotilla_client.retry import DEADLINE_MS
from flotilla_client.state import OUTBOX_BYTES_MAX
from flotilla_client.work import LeaseBook

LEAVE_S: Final = 1.0  # between two requests to end what somebody reads by hand
PROGRESS_S_MAX: Final = 120.0  # from the last fault to the end: deadlines, shunned nodes, copies
UNDER_WAY_S_MAX: Final = 1.0  # when all is quiet: an entry takes as long as a few syncs
UNDER_WAY_LOOK_S: Final = 0.01
EVIDENCE_MAX: Final = 3  # of each check: one defect shows a thousand times


class Attached:
    """The clients of a world and everything that watches them; implements `crowd.Witness`.

    `failures`: what was seen so far. `coverage`: how often each interesting state was reached.
    """

    def __init__(self, world: World, directory: Path) -> None:
        load: Mapping[str, Any] = world.plan.knobs["load"]
        roles = [Role.of(role) for role in load["roles"]]
        assert len(roles) == world.plan.clients, (len(roles), world.plan.clients)
        names = [f"client-{number}" for number in range(1, len(roles) + 1)]
        by_name = dict(zip(names, roles, strict=True))
        leavers = frozenset(name for name, role in by_name.items() if role.churns)
        manual = frozenset(name for name, role in by_name.items() if role.is_manual)
        once = frozenset(name for name, role in by_name.items() if role.is_at_most_once)
        self._has_expiry = any(role.expires for role in roles)
        self._old = frozenset(name for name, role in by_name.items() if role.is_old)
        self.directory = directory
        self._world = world
        self._invariants = Invariants(world)
        self._message_rules = MessageRules(world, self._invariants)
        self._reads = ReadChecks(world, self._invariants)
        self._reference = Reference(store_limits(world.plan.knobs))
        self._rules = RaftRules(world, self._invariants)
        self._calm = Calm(world, self._invariants)
        self._replies = Replies(
            world, self._invariants, self._reference, self._calm, self._rules.served
        )
        self._books = Books(world, self._invariants, self._reference)
        self._upkeep = Upkeep(world, self._invariants)
        self._clients_upkeep = ClientsUpkeep(lambda text: self._invariants.fail("upkeep", text))
        self._checkpoints = Checkpoints(world, self._invariants)
        self._rebuilt = Rebuilt(world, self._invariants, self._reference)
        self._scrubbing = Scrubbing(world, self._invariants)
        self._work = WorkPromises(self._invariants.fail, self._reference)
        self._promises = Promises(
            self._invariants,
            self._reads,
            leavers,
            manual,
            lambda: world.net.doubled > 0,
            of_limits(world.plan.knobs) | self._of_settings(),
            once,
        )
        self._coverage = Coverage(world)
        self._intruder = Intruder(world.stream(INTRUDER))
        delays = world.stream(f"{REPLAYER} delays")
        self._replayer = Replayer(world.stream(REPLAYER), self._invariants.rovers, delays)
        self._followers = {
            name: Follower(name, world.stream(name), self._invariants.rovers) for name in FOLLOWERS
        }
        self._compactor = Compactor(world.stream(COMPACTOR), self._invariants.rovers)
        world.reply_taps.append(self._replayed)
        world.at(world.plan.duration_s, self._leave)
        self._deadline_s = world.plan.duration_s + PROGRESS_S_MAX
        self._lossy = set[str]()  # places of clients whose disks may lose what was not synced
        sockets, run_id = Sockets(world), str(UUID(int=world.plan.seed % 2**128))
        deadline_ms = int(load.get("deadline_ms", DEADLINE_MS))
        self.crowd = Crowd(
            sockets,
            self,
            world.plan.members,
            roles,
            world.plan.duration_s,
            directory,
            run_id,
            deadline_ms,
            int(load.get("outbox_bytes_max", OUTBOX_BYTES_MAX)),
        )
        self._traveller: SimClient | None = None
        if world.knob("traveller"):
            self._traveller = self._new_traveller(sockets, run_id, deadline_ms)
        world.actions |= {
            "client_crash": self._client_crash,
            "client_restart": self._client_restart,
            "client_copy": self._client_copy,
            "client_power_loss": self._client_power_loss,
            "client_fsync_error": self._client_fsync_error,
            "intrude": self._intrude,
            "replay": self._replay,
            "compact_by_key": self._compact_by_key,
            "follow": self._follow,
            "inspect": self._inspect,
        }
        self._operator = Operator(world)
        self._administrator = Administrator(
            world, self.crowd, self._reference.kept, lambda: self.crowd.recorder(OPERATOR)
        )
        world.at(0.0, self.crowd.start)
        world.at(world.plan.duration_s, lambda: self._operator.recover(load.get("broken", {})))

    def _new_traveller(self, sockets: Sockets, run_id: str, deadline_ms: int) -> SimClient:
        """Return somebody who reads where he likes, by the library, and is not on record."""
        world, rng = self._world, self._world.stream(TRAVELLER)
        travels = Travels(
            self._invariants.fail,
            self._reference,
            self._promises,
            self._reads,
            self._message_rules,
            self._clients_upkeep,
            self._invariants.rovers,
            self._of_settings(),
        )
        topics = rng.sample(self.crowd.topics, min(TOPICS_MAX, len(self.crowd.topics)))

        def is_over() -> bool:
            return world.now >= world.plan.duration_s

        def script(client: SimClient, process: Process) -> Script:
            return Travelling(process, travels, topics, rng, is_over).run()

        place = world.plan.members, self.directory / "travels", run_id, deadline_ms
        client = SimClient(sockets, travels, TRAVELLER, *place, script)
        world.at(0.0, lambda: keep_ending(client, sockets, rng, is_over))
        world.at(world.plan.duration_s, client.recover)
        return client

    def _of_settings(self) -> frozenset[str]:
        """Return the errors that a run's users, acts or limits explain."""
        knob = self._world.knob
        explained = {
            "unauthorized": knob("keys"),
            "forgotten": knob("client_idle_ms") or knob("acts"),
            Purged.CODE: knob("acts"),
            Gap.CODE: knob("topics") or (self._has_expiry and self._old),
            TooLarge.CODE: knob("topics"),
            BacklogFull.CODE: knob("topics"),
            OutboxFull.CODE: "outbox_bytes_max" in self._world.plan.knobs["load"],
        }
        return frozenset(code for code, is_due in explained.items() if is_due)

    @property
    def is_over(self) -> bool:
        """True once everybody has come to the end, or the time for it is over."""
        is_back = self._traveller is None or self._traveller.has_ended
        is_done = self.crowd.is_done and is_back and self._is_settled()
        return is_done or self._world.now >= self._deadline_s

    @property
    def failures(self) -> list[Failure]:
        """What was seen so far."""
        return self._invariants.failures

    @property
    def coverage(self) -> dict[str, int]:
        """How often each interesting state was reached."""
        return dict(self._coverage.counts)

    def finish(self) -> list[Failure]:
        """End the clients, check what is left to check; return all failures."""
        if self.crowd.is_done:
            self._coverage.reach("drained")
        if self._world.now >= self._deadline_s:
            self._no_progress()
        self.crowd.close()
        for process in [] if self._traveller is None else list(self._traveller.processes):
            process.end(crashed=True)
        if not self.failures:
            self._be_quiet()
        self._administrator.close()  # an act may be answered when all is quiet
        self._invariants.finish()
        if not self.failures:
            self._rebuilt.compare(self._operator.healthy)
        return self.failures + self._evidence()

    def events(self) -> list[dict[str, Any]]:
        """Return the run's history, all files of it."""
        files = sorted((self.directory / "history").glob("*.jsonl"))
        return [event for file in files for event in history.read(file)]

    def _be_quiet(self) -> None:
        """Let what is under way come to its end; nobody asks for anything any more."""
        world = self._world
        since_s, until_s = world.plan.duration_s + QUIET_S, world.now
        world.run_until(max(until_s, self._calm.clogged_until_s) + QUIET_S)
        healthy = self._operator.healthy
        # A leader has the log's time pass by an entry now and then: one may be under way just now,
        # or applied, and what is dead by it goes before the next commit of the store.
        for node in healthy:
            latest_s, dead_before = world.now + UNDER_WAY_S_MAX, -1
            while world.now < latest_s and _is_at_work(node):
                if (dead := _dead_ids(node)) != dead_before:  # few in a step, in some seeds
                    latest_s, dead_before = world.now + UNDER_WAY_S_MAX, dead
                world.run_until(world.now + UNDER_WAY_LOOK_S)
            self._books.check_quiet(node, since_s, {each.name for each in healthy})
        left = self._replies.unanswered(since_s, until_s)
        names = {node.name for node in healthy}
        forgotten = [what for node, what in left if node in names]
        if forgotten:
            self._invariants.fail("answered", f"all is quiet, and nobody answers {forgotten}")

    def _is_settled(self) -> bool:
        """Return whether every node that may is a member and has applied all there is."""
        members = [node.as_member for node in self._operator.healthy]
        applied = {0 if each is None else each.raft.applied_index for each in members}
        return len(applied) == 1 and 0 not in applied

    def _lagging(self) -> list[str]:
        is_back = self._traveller is None or self._traveller.has_ended
        return self.crowd.lagging() + ([] if is_back else [TRAVELLER])

    def _no_progress(self) -> None:
        lagging = ", ".join(self._lagging()) or "nobody"
        standings = "; ".join(self._invariants.standings())
        text = f"{self.crowd.phase} has no end, {lagging} lagging: {standings}"
        self._invariants.fail("progress", text)

    def _evidence(self) -> list[Failure]:
        """Return what the record of the run shows, and whether it can be judged at all."""
        events = self.events()
        run, wrong = taken_in([*map(self._as_sent, events), *self._endings(events)])
        found = [("recorded", text) for text in wrong[:EVIDENCE_MAX]]
        for check, evidence in twins.found_in(run).items():
            proofs = [each for each in evidence if not self._is_no_proof(check, each)]
            found += [(check, repr(one._replace(run_id=""))) for one in proofs[:EVIDENCE_MAX]]
        return [Failure(check, text, self._world.now) for check, text in found]

    def _is_no_proof(self, check: str, evidence: Evidence) -> bool:
        if check == "duplicate_delivered" and evidence.operations:
            # A disk that loses power, or whose sync fails, may forget what was handed over;
            # `handed_over_twice` knows what it has kept (seed 202611290206).
            return evidence.operations[0][0] in self._lossy
        if check == "group_lease":
            # Nodes' clocks run at other rates than those of clients, and the second one of a
            # doubled request may be given what the first one was not.
            by_clocks = {"shared", "soon", "refused"}
            return evidence.detail in by_clocks or self._world.net.doubled > 0
        if (check, evidence.detail) == ("group_order", "settled"):
            # Where an administrator has moved a group, no record says so (seed 202611280034).
            moved = (one for one in self._world.plan.schedule if one.name == "seek_group")
            return any(one.args["topic"] == evidence.topic for one in moved)
        if check == "purge" and evidence.detail in ("early", "late"):  # for the same reason
            return True
        if (check, evidence.detail) in (("delayed", "early"), ("realtime_order", "due")):
            return True  # the same
        if check == "stale_read" and evidence.detail == "nothing" and evidence.other_id is None:
            # Of any topic: what its principal may not read any more is left out, and no record
            # says so (seed 202611240128).
            return bool(self._world.knob("keys"))
        if (check, evidence.detail) == ("subscription", "unsubscribed"):
            # Of two SUBs the second one may be refused for want of a quota that the first has.
            return bool(self._world.knob("quota_topics")) and self._world.net.doubled > 0
        return False

    def _as_sent(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return a row; where the network may have made two of a SUB it was sent twice.

        No connection does that, and the second one meets the first (seed 121, live).
        """
        is_sub = event["f"] in ("sub", "group") and event.get("attempt") == 1
        return event | {"attempt": 2} if is_sub and self._world.net.doubled else event

    def _endings(self, events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield an UNSUB for each subscription that the cluster ended as it forgot its client.

        No client has recorded these, and what comes to a topic from then on is not owed to them.
        """
        numbers = itertools.count(1)
        for client_id, (index, topics) in sorted(
            self._reference.gone.items(), key=lambda one: self._replies.applied_s[one[1][0]]
        ):
            for topic in topics:
                both = {
                    "run_id": events[0]["run_id"],
                    "host": events[0].get("host"),
                    "process": "the cluster",
                    "session": 1,
                    "op_id": next(numbers),
                    "client_id": client_id,
                    "f": "unsub",
                    "topic": topic,
                    "t_ns": round(self._replies.applied_s[index] * 1e9),
                }
                yield {**both, "type": "invoke"}
                yield {**both, "type": "ok"}

    # --- actions ----------------------------------------------------------------------------------

    def _client_crash(self, client: str, at: str = "now") -> None:
        """End a client's process; see `clients.CRASH_POINTS`."""
        self.crowd.clients[client].crash(at)

    def _client_restart(self, client: str) -> None:
        """Start a client's process, if none lives."""
        self.crowd.clients[client].start()

    def _client_copy(self, client: str) -> None:
        """Let another process go on with a copy of a client's state."""
        self.crowd.clients[client].take_over()

    def _client_power_loss(
        self, client: str, keep: str = "torn", at: str = "now", count: int = 1
    ) -> None:
        """End a client's machine, now or at an operation of its disk; see `World.power_loss`."""
        # A copy of the client's state has a place, and a record, of its own (seed 29110348).
        self._lossy.add(self.crowd.clients[client].lose_power(keep, at, count))

    def _client_fsync_error(
        self, client: str, count: int = 1, kind: str = "store_sync", ends: bool = False
    ) -> None:
        """Let a sync of a client's state report EIO and lose its bytes; see `World.fsync_error`.

        `ends`: its process goes no further.
        """
        self._lossy.add(self.crowd.clients[client].fail_sync(kind, count, ends))

    def _intrude(self, node: str) -> None:
        """Have somebody ask a node for something in the name of another principal's client."""
        world, reference = self._world, self._reference
        target = world.leader() if node == "leader" else node
        victims = {
            client_id: {
                **dict.fromkeys(client.cursors, 0),
                **{
                    topic: max(0, each.counter.now)
                    for topic, each in client.producers.items()
                    if topic == topic_of(topic)
                },
            }
            for client_id, client in reference.clients.items()
            if client.owner.now
        }
        if target:
            self._intruder.intrude(victims, lambda frames: world.request(INTRUDER, target, frames))

    def _replay(self, node: str, topic: str) -> None:
        """Have somebody by hand read a topic, from wherever he likes."""
        target = self._world.leader() if node == "leader" else node
        if target:
            end = self._reference.last_id_at(topic, self._reference.applied_index)
            self._replayer.ask(topic, end, self._carrier(REPLAYER, target))

    def _compact_by_key(self, node: str) -> None:
        """Have somebody by hand do something with a topic that is compacted."""
        target, topic = self._world.leader() if node == "leader" else node, COMPACTED_TOPIC
        if target:
            end = self._reference.last_id_at(topic, self._reference.applied_index)
            self._compactor.ask(topic, end, self._carrier(COMPACTOR, target))

    def _follow(self, node: str, who: str = FOLLOWER) -> None:
        """Have somebody by hand do something with subscriptions to patterns."""
        target = self._world.leader() if node == "leader" else node
        if target:
            self._followers[who].ask(self._carrier(who, target))

    def _replayed(self, node: str, route: str, frames: Sequence[bytes]) -> None:
        if route == REPLAYER:
            self._replayer.answered(frames)
        elif route == COMPACTOR:
            self._compactor.answered(frames)
        elif route in self._followers:
            self._followers[route].answered(frames)

    def _leave(self) -> None:
        """Let those leave who read by hand: nobody waits for them to read on."""
        target = self._world.leader()
        are_here = [True]
        if target:
            leaving: dict[str, Replayer | Follower] = {REPLAYER: self._replayer}
            leaving |= {**self._followers, COMPACTOR: self._compactor}
            are_here = [each.leave(self._carrier(name, target)) for name, each in leaving.items()]
        if any(are_here):
            self._world.after(LEAVE_S, self._leave)

    def _carrier(self, name: str, target: str) -> Callable[[list[bytes]], None]:
        return lambda frames: self._world.request(name, target, frames)

    def _inspect(self, node: str, what: str, place: int = 0) -> None:
        """Have the operator ask a node about clients, subscriptions, users, or itself.

        `place`: of the clients, or topics, that it is about.
        """
        clients, topics = [*self._reference.clients], ["", *self._reference.topics]
        if what == CLIENT and not clients:
            return
        client_id = clients[place % len(clients)] if what == CLIENT else ""
        topic = topics[place % len(topics)] if what in (SUBSCRIPTIONS, TOPIC) else ""
        if what == TOPIC and not topic:
            return
        self._operator.inspect(node, what, client_id, topic)

    # --- what clients do, for everybody who watches -----------------------------------------------

    def invoked(self, process: Process, operation: Operation) -> None:
        """See `clients.Watcher`."""
        self._promises.invoked(process, operation)
        self._coverage.invoked(process, operation)

    def completed(self, process: Process, operation: Operation, outcome: Outcome) -> None:
        """See `clients.Watcher`."""
        self._tell(process, operation, outcome)
        self._promises.completed(process, operation, outcome)
        self._clients_upkeep.answered(process)
        self._coverage.completed(process, operation, outcome)

    def _tell(self, process: Process, operation: Operation, outcome: Outcome) -> None:
        told = {name: value for name in _TOLD if (value := getattr(outcome, name)) is not None}
        kind = "answered" if not outcome.error else "not_answered"
        self._world.emit(kind, client=process.name, f=operation.f, topic=operation.topic, **told)

    def asked(self, request_id: str) -> None:
        """See `clients.Watcher`."""
        self._reads.asked(request_id)
        self._message_rules.asked(request_id)

    def failed(self, name: str, error: FlotillaError) -> None:
        """See `clients.Watcher`."""
        self._message_rules.failed(name, error)

    def gave_up(self, process: Process, error: FlotillaError, left_ms: float) -> None:
        """See `clients.Watcher`."""
        self._promises.gave_up(process, error, left_ms)

    def denied(self, request: Request, reply: Reply) -> None:
        """See `clients.Watcher`."""
        self._message_rules.denied(request, reply)

    def took(self, process: Process, seconds: float) -> None:
        """See `clients.Watcher`."""
        self._promises.took(process, seconds)

    def opened(self, process: Process) -> None:
        """See `clients.Watcher`."""
        self._promises.opened(process)

    def life(self, client: str, what: str) -> None:
        """See `clients.Watcher`."""
        self._world.emit(f"client_{what}", client=client)
        self._promises.life(client, what)
        self._coverage.life(client, what)

    @property
    def takes_properties(self) -> bool:
        """See `scripts.Course`."""
        return self._reference.level.now >= LEVEL_OF_PROPERTIES

    @property
    def takes_expiry(self) -> bool:
        """See `scripts.Course`."""
        return self._reference.level.now >= LEVEL_OF_EXPIRY

    def refused(self, client: str, error: FlotillaError) -> None:
        """See `scripts.Course`."""
        self._promises.refused(client, error)
        self._coverage.refused(client, error)

    def made(self, process: Process, topic: str, counter: int, publications: Sequence[str]) -> None:
        """See `scripts.Course`."""
        self._promises.made(process, topic, counter, publications)

    def told(self, process: Process, topic: str, counter: int, id_: int) -> None:
        """See `scripts.Course`."""
        self._promises.told(process, topic, counter, id_)

    def out_of_order(self, client: str, text: str) -> None:
        """See `scripts.Course`."""
        self._promises.out_of_order(client, text)

    def not_stored(self, process: Process, topic: str, publication: str) -> None:
        """See `scripts.Course`."""
        client = process.name.partition("/")[0]
        self._promises.not_stored(client, topic, publication.encode())
        if process in self.crowd.clients[client].processes:  # a copy of it may have it, and send it
            self._clients_upkeep.refused(process, topic, publication.encode())

    def forgotten(self, process: Process, client_id: str) -> None:
        """See `scripts.Course`."""
        self._world.emit("client_forgotten", client=process.name, client_id=client_id)
        self._coverage.reach("client_forgotten")
        self._promises.forgotten(process, client_id, client_id in self._reference.gone)

    def begun_anew(self, process: Process, client_id: str, lost: Losses) -> None:
        """See `scripts.Course`."""
        self._promises.begun_anew(process, client_id, lost)

    def handed_over(self, client: str, delivery: Delivery) -> None:
        """See `scripts.Course`."""
        self._promises.handed_over(client, delivery)
        self._judge_properties(client, delivery)

    def _judge_properties(self, client: str, delivery: Delivery) -> None:
        """Judge what a publication has beside its text: by that, and by what its log says."""
        is_old = client in self._old
        for message in delivery:
            topic, id_ = message.topic, message.id
            text = message.publication.decode(errors="replace")
            due = Properties() if is_old else properties_of(text)
            durations = message.expires_ms or 0, message.deliver_after_ms or 0
            found = Properties(message.key, message.headers, *durations)
            if found != due:
                text = f"{client}: {topic} {id_} has {found}, it was published with {due}"
                self._invariants.fail("properties", text)
        if not is_old:
            self._judge_times(client, delivery)

    def _judge_times(self, client: str, delivery: Delivery) -> None:
        for message in delivery:
            topic, id_ = message.topic, message.id
            at_ms = self._reference.timestamp_of(topic, id_)
            if message.timestamp_ms != at_ms:
                text = f"{client}: {topic} {id_} is of {message.timestamp_ms}, the log says {at_ms}"
                self._invariants.fail("properties", text)

    def acknowledged(self, client: str, topic: str, last_id: int) -> None:
        """See `scripts.Course`."""
        self._promises.acknowledged(client, topic, last_id)

    def given(self, client: str, item: WorkItem) -> None:
        """See `scripts.Course`."""
        self._work.given(client, item)
        if client not in self._old:
            own = delivered(item.message)
            self._judge_times(client, own)
            if item.topic != DEAD:  # a letter says what became of it besides
                self._judge_properties(client, own)

    def worked(self, client: str, item: WorkItem) -> None:
        """See `scripts.Course`."""
        self._work.worked(client, item)

    def told_lost(self, client: str, item: WorkItem) -> None:
        """See `scripts.Course`."""
        self._work.told_lost(client, item)

    def leased(self, client: str, item: WorkItem, asked_ms: float) -> None:
        """See `scripts.Course`."""
        self._work.leased(client, item, asked_ms)

    def believed(self, client: str, item: WorkItem, until_ms: float) -> None:
        """See `scripts.Course`."""
        self._work.believed(client, item, until_ms)

    def spoken(self, client: str, item: WorkItem, kind: str, ms: int) -> None:
        """See `scripts.Course`."""
        self._work.spoken(item, kind, ms)

    def taking(self, client: str, book: LeaseBook) -> None:
        """See `scripts.Course`."""
        self._work.taking(client, book)

    def agreed(self, client: str, item: WorkItem, kind: str, ms: int) -> None:
        """See `scripts.Course`."""
        self._work.agreed(item, kind, ms)

    def loop_left(self, client: str, book: LeaseBook) -> None:
        """See `scripts.Course`."""
        self._work.loop_left(client, book)

    def known(self) -> Known:
        """See `scripts.Course`."""
        return Known(self._promises.known(), self._reference.applied_index)

    def listed(self, client: str, rows: Sequence[Mapping[str, Any]], known: Known) -> None:
        """See `scripts.Course`."""
        self._promises.listed(client, rows, known.ends)
        reference = self._reference
        principal = client if self._world.knob("keys") else None
        indexes = reference.judged_at(known.index, reference.applied_index)
        left_out = {
            topic
            for topic in reference.alive_since(known.index) - {row["topic"] for row in rows}
            if all(reference.may_see_at(principal, topic, index) for index in indexes)
        }
        if left_out:
            text = f"{client} lists all topics, and is not told of {sorted(left_out)}"
            self._invariants.fail("answered", f"{text}, which were there all the time")


def _dead_ids(node: SimNode) -> int:
    """Return how many ids stand in rows that are to be collected, or might be."""
    member = node.as_member
    topics = () if member is None else member.store._publications.garbage.values()
    return sum(topic.dead_id - topic.oldest_end for topic in topics)


def _is_at_work(node: SimNode) -> bool:
    """Return whether a node has garbage, or leads and has entries that not all others have."""
    member = node.as_member
    if member is None:
        return False
    raft = member.raft
    is_sending = raft.is_leader and (raft.uncommitted_entries > 0 or any(raft.in_flight().values()))
    return is_sending or bool(member.store._publications.garbage)


_TOLD: Final = ("attempts", "leader", "term", "error", "first_id", "count", "duplicate", "last_id")


def attach(world: World, directory: Path | None = None) -> Attached:
    """Put the plan's clients into a world, and watch all of it.

    `directory`: where the histories go (`history/<process>.jsonl`); the world's own by default,
    which is removed with it.
    """
    return Attached(world, directory or world.directory / "run")
