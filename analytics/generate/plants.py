"""The violations that can be planted, each as a change of the operations around one publication.

A plant is found by the check that its name begins with. What else would give it away is changed
too; where one violation is the other as well (what was given before it was sent stands below what
was known before it was sent), the plant says so. Works on plain dictionaries, a few a violation;
Spark and files are not here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from analytics.common.check_specs import CHECK_SPECS
from analytics.common.schema import LANE
from analytics.generate.operations import (
    OPERATION,
    STEP_NS,
    TERM_FIRST,
    acknowledged_ns,
    fault_numbers,
    is_unknown,
    leader,
    name_of,
    node_names,
    topic_of,
)
from analytics.generate.shape import BadShape, Shape

Operation = dict[str, Any]
ROUNDS_APART: Final = 4  # of two violations: each touches publications of two rounds
ROUNDS_A_VIOLATION: Final = 2 * ROUNDS_APART  # room to go round a fault, which takes two


@dataclass(frozen=True, slots=True)
class Victim:
    """Where a violation goes: publication `n`, the one before it in its topic, and the `later`
    one, the next of the same producer and topic; `subscriber` is who sees it, if one alone does.
    `place` counts the violations of the history.
    """

    place: int
    n: int
    later: int
    subscriber: int

    @property
    def before(self) -> int:
        """The publication before `n`: of the same slot, so of the same topic."""
        return self.n - 1

    def numbers(self) -> tuple[int, ...]:
        """Return all publications that a plant may change."""
        return (self.before, self.n, self.later)


class PlantedRow(NamedTuple):
    """A row of evidence that has to be found: as `planted.json` has it, with the check's name."""

    check: str
    topic: str | None
    id: int | None
    word: str


@dataclass(slots=True)
class Scene:
    """The operations around the victims, for plants to change.

    `touched` are the publications, `puts` by publication, `gets` by publication and subscriber.
    `extra` are operations beside them. `restarts`: (subscriber, n), a session begins after n.
    `besides`: what a plant gives away beside its own. `topics`: of the places of
    plants that have a topic of their own. `truth`: what nodes hold beside what all of them do, as
    (node, row).
    """

    shape: Shape
    touched: frozenset[int]
    puts: dict[int, Operation] = field(default_factory=dict)
    gets: dict[tuple[int, int], Operation] = field(default_factory=dict)
    extra: list[Operation] = field(default_factory=list)
    restarts: list[tuple[int, int]] = field(default_factory=list)
    besides: list[PlantedRow] = field(default_factory=list)
    topics: dict[int, str] = field(default_factory=dict)
    truth: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def also(self, check: str, operation: Operation, id_: int | None, word: str = "") -> None:
        """Let `check` find something in the operation's topic as well, and call it that."""
        self.besides.append(PlantedRow(check, operation["topic"], id_, word))

    def everyone_s(self, n: int) -> list[Operation]:
        """Return all subscribers' GETs of publication `n`."""
        return [self.gets[n, subscriber] for subscriber in range(self.shape.subscribers)]

    def operations(self) -> list[Operation]:
        """Return all operations that are left, and the extra ones."""
        return [*self.puts.values(), *self.gets.values(), *self.extra]


# Evidence of no topic, unless a plant has one of its own; its id is a term, or an index of the log.
TOPICLESS: Final = frozenset({"leaders_per_term", "term_order", "replica_divergence"})
Act = Callable[[Scene, Victim], int | None]


@dataclass(frozen=True, slots=True)
class Plant:
    """A violation that can be planted: `act` changes the scene and returns the id of its evidence.

    `check` finds it, and begins its `detail` with the word, where its rows have one that tells.
    """

    check: str
    word: str
    act: Act


PLANTS: Final[dict[str, Plant]] = {}


def plant(word: str = "") -> Callable[[Act], Act]:
    """Register a plant."""

    def register(act: Act) -> Act:
        PLANTS[act.__name__] = Plant(check_of(act.__name__), word, act)
        return act

    return register


def check_of(kind: str) -> str:
    """Return the check that finds a plant: the longest name of one that its own begins with."""
    return max((name for name in CHECK_SPECS if kind.startswith(name)), key=len)


def victims_of(
    shape: Shape, wanted: Mapping[str, int], kinds_in_order: Iterable[str]
) -> list[tuple[str, Victim]]:
    """Return where each violation goes: spread over the whole history, away from faults.

    In the order of the kinds: some must not come behind others. Raises BadShape when the history is
    too short for so many.
    """
    kinds = [name for name in kinds_in_order for _ in range(wanted.get(name, 0))]
    rounds = shape.publications // shape.round_size - 2
    if rounds < len(kinds) * ROUNDS_A_VIOLATION:
        needed = (len(kinds) * ROUNDS_A_VIOLATION + 2) * shape.least_operations
        raise BadShape(f"{len(kinds)} violations need {needed} operations or more")
    room = rounds // len(kinds) if kinds else 0
    return [(kind, _victim(shape, place, place * room + 1)) for place, kind in enumerate(kinds)]


def _victim(shape: Shape, place: int, round_: int) -> Victim:
    slot = shape.scrambled(place) % shape.slots
    for begin in range(round_, round_ + ROUNDS_A_VIOLATION, ROUNDS_APART):
        n = begin * shape.round_size + slot * shape.producers + 1
        later = _next_of_producer(shape, n)
        victim = Victim(place, n, later, shape.scrambled(n) % shape.subscribers)
        if not any(is_unknown(shape, number) for number in victim.numbers()):
            return victim
    raise AssertionError(f"faults everywhere around round {round_} of {shape}")


def _next_of_producer(shape: Shape, n: int) -> int:
    """Return the next publication of the same producer in the same topic."""
    place = shape.place_of(n)
    round_, slot = place["round"], place["slot"] + 1
    if slot >= shape.hot_slots:
        round_, slot = round_ + 1, 0 if place["topic"] == 0 else place["slot"]
    return shape.number_of(round_, slot, place["producer"])


def _make_unknown(put: Operation) -> None:
    put.update(outcome="info", first_id=None, error="timeout")


def _beside(scene: Scene, get: Operation, step: int, after_ns: int, **fields: Any) -> Operation:
    """Add a GET like `get`, a position and some time before or after it."""
    moved = {name: get[name] + after_ns for name in ("invoke_ns", "end_ns")}
    scene.extra.append({**get, "op_id": get["op_id"] + step, **moved, **fields})
    return scene.extra[-1]


def _known(scene: Scene, like: Operation, numbers: Iterable[int], asking: Operation) -> int:
    """Return the highest id in the topic of `like` that was acknowledged before `asking` was sent,
    of the publications `numbers`.
    """
    shape = scene.shape
    places = {number: shape.place_of(number) for number in numbers}
    return max(
        int(place["id"])
        for number, place in places.items()
        if topic_of(place["topic"]) == like["topic"]
        and acknowledged_ns(number, shape) < asking["invoke_ns"]
        and not is_unknown(shape, number)
    )


def _deliver(get: Operation, producer: str, counter: int) -> None:
    get["items"] = [(get["first_id"], producer, counter, 1)]


@plant("middle")
def lost(scene: Scene, victim: Victim) -> int:
    """A subscriber restarts and goes on above an acknowledged publication that it never got."""
    missed = scene.gets.pop((victim.n, victim.subscriber))
    scene.restarts.append((victim.subscriber, victim.n))
    return int(missed["first_id"])


@plant()
def gap(scene: Scene, victim: Victim) -> int:
    """A subscriber's answers jump over a publication of unknown outcome, which it loses by that.

    Where nobody else was given it, its place is not known.
    """
    put = scene.puts[victim.n]
    _make_unknown(put)
    jumped = int(scene.gets.pop((victim.n, victim.subscriber))["first_id"])
    is_known = scene.shape.subscribers > 1
    place = (jumped, "middle") if is_known else (None, "unplaced")
    scene.also("lost", put, *place)
    return jumped + 1


@plant()
def duplicate_stored(scene: Scene, victim: Victim) -> int:
    """A publication stands a second time, where the producer's next one would have stood."""
    first = scene.puts[victim.n]
    _replace(scene, victim.later, first["client_id"], first["counter"])
    return int(first["first_id"])


@plant()
def duplicate_delivered(scene: Scene, victim: Victim) -> int:
    """A subscriber asks for what follows a publication and gets that publication again."""
    get = scene.gets[victim.n, victim.subscriber]
    _beside(scene, get, 1, STEP_NS // 2, asked=get["first_id"])
    scene.also("reordered", get, get["first_id"], "subscriber")
    return int(get["first_id"])


@plant()
def inconsistent_id(scene: Scene, victim: Victim) -> int:
    """A subscriber sees, under an acknowledged id, the PUT of unknown outcome of a stranger."""
    put = scene.puts[victim.n]
    process, client_id = name_of("stranger", victim.place, scene.shape)
    stranger = {**put, "process": process, "client_id": client_id, "op_id": 1, "counter": 1}
    _make_unknown(stranger)
    scene.extra.append(stranger)
    _deliver(scene.gets[victim.n, victim.subscriber], client_id, 1)
    scene.also("ack_not_durable", put, put["first_id"])  # no disk holds it
    return int(put["first_id"])


@plant("back")
def properties(scene: Scene, victim: Victim) -> int:
    """A publication's time is smaller than that of the one before it."""
    get, before = (scene.gets[n, victim.subscriber] for n in (victim.n, victim.before))
    for one, at_ms in ((before, 10 * victim.n + 9), (get, 10 * victim.n)):
        one["times"] = [[one["first_id"], one["first_id"], at_ms]]
    return int(get["first_id"])


@plant("producer")
def reordered(scene: Scene, victim: Victim) -> int:
    """Two publications of a producer, of unknown outcome, stand the wrong way round."""
    first, second = scene.puts[victim.n], scene.puts[victim.later]
    too_high = int(second["first_id"])
    second.update(invoke_ns=first["invoke_ns"] + 1, end_ns=first["end_ns"])  # before it is given
    for put in (first, second):
        _make_unknown(put)
    for number, put in ((victim.n, second), (victim.later, first)):
        for get in scene.everyone_s(number):
            _deliver(get, put["client_id"], put["counter"])
    return too_high


@plant()
def phantom(scene: Scene, victim: Victim) -> int:
    """Everyone gets a publication that nobody put."""
    id_ = int(scene.puts[victim.n]["first_id"])
    _, client_id = name_of("ghost", victim.place, scene.shape)
    _replace(scene, victim.n, client_id, 1)
    return id_


@plant()
def aborted_read(scene: Scene, victim: Victim) -> int:
    """Everyone gets a publication whose PUT was refused."""
    put = scene.puts[victim.n]
    id_ = int(put["first_id"])
    put.update(outcome="fail", first_id=None, error="electing")
    return id_


@plant()
def corrupt(scene: Scene, victim: Victim) -> int:
    """A subscriber gets a payload whose checksum is wrong."""
    get = scene.gets[victim.n, victim.subscriber]
    get.update(items=[], corrupt=[(get["first_id"], "checksum")])
    return int(get["first_id"])


@plant()
def realtime_order(scene: Scene, victim: Victim) -> int:
    """A publication was acknowledged before the one below it was sent."""
    put, before = scene.puts[victim.n], scene.puts[victim.before]
    sent_ns = before["invoke_ns"]
    put.update(invoke_ns=sent_ns - STEP_NS // 2, end_ns=sent_ns - STEP_NS // 4)
    return int(before["first_id"])


@plant("nothing")
def stale_read(scene: Scene, victim: Victim) -> int:
    """A subscriber asks for a publication after its acknowledgment and is told there is none."""
    get = scene.gets[victim.n, victim.subscriber]
    empty = _beside(scene, get, -1, -STEP_NS // 2, items=[])
    return _known(scene, get, range(victim.n, victim.n + 1 + scene.shape.producers), empty)


@plant()
def future_read(scene: Scene, victim: Victim) -> int:
    """A publication is given to everyone before it is sent."""
    put = scene.puts[victim.n]
    given_ns = max(get["end_ns"] for get in scene.everyone_s(victim.n))
    put.update(invoke_ns=given_ns + 1, end_ns=given_ns + 2)
    scene.also("realtime_order", put, put["first_id"])
    return int(put["first_id"])


@plant("split")
def torn_batch(scene: Scene, victim: Victim) -> int:
    """Two publications of a producer, one batch of unknown outcome, do not stand side by side.

    Another producer's, of unknown outcome too, stands behind the first of them: it changes places
    with it, for the second may come next.
    """
    put, other = scene.puts[victim.n], scene.puts[victim.before]
    id_ = int(other["first_id"])
    for one in (put, other):
        _make_unknown(one)
    for number, one in ((victim.before, put), (victim.n, other)):
        for get in scene.everyone_s(number):
            _deliver(get, one["client_id"], one["counter"])
    put["count"] = 2
    del scene.puts[victim.later]
    return id_


@plant("denied")
def subscription(scene: Scene, victim: Victim) -> None:
    """A subscriber is told that it has not subscribed."""
    get = scene.gets[victim.n, victim.subscriber]
    denied = {"outcome": "fail", "items": None, "error": "not_subscribed"}
    _beside(scene, get, -1, -STEP_NS // 2, **denied, node=None, term=None)


@plant()
def term_order(scene: Scene, victim: Victim) -> int:
    """A leader of long ago answers."""
    term = victim.place + 1
    scene.puts[victim.n].update(term=term, node=leader(term))
    return term


@plant()
def leaders_per_term(scene: Scene, victim: Victim) -> int:
    """Another node than the leader answers in its term: found once a term."""
    put = scene.puts[victim.n]
    put.update(node=leader(put["term"] + 1))
    return int(put["term"])


# --- what needs a client of its own ---------------------------------------------------------------

MOMENT_NS: Final = STEP_NS // 50  # of a newcomer's operation; half as long passes to its next one


class Newcomer:
    """A client that comes for a few operations in the victim's topic, one after the other.

    It begins between the PUTs of the publication before the victim and of the victim: then the
    topic has reached `reached`, the id below the victim's, and nothing above that was tried.
    """

    def __init__(self, scene: Scene, victim: Victim) -> None:
        self._scene = scene
        put = scene.puts[victim.n]
        self.process, self.client_id = name_of("newcomer", victim.place, scene.shape)
        self._like = {name: put[name] for name in ("topic", "n", "node", "term")}
        self.reached = int(put["first_id"]) - 1
        self.now_ns = put["invoke_ns"] - STEP_NS // 2
        self._numbers: dict[str, int] = {}

    def does(self, f: str, process: str = "", **fields: Any) -> Operation:
        """Add an operation that succeeds unless `fields` say otherwise; return it."""
        process = process or self.process
        number = self._numbers[process] = self._numbers.get(process, 0) + 1
        times = {"invoke_ns": self.now_ns, "end_ns": self.now_ns + MOMENT_NS}
        self.now_ns += 2 * MOMENT_NS
        whose = {"process": process, "client_id": self.client_id, "op_id": number, "session": 1}
        known = {**self._like, **whose, **times, "f": f, "outcome": "ok", **fields}
        self._scene.extra.append({name: None for name, _ in OPERATION} | known)
        return self._scene.extra[-1]

    def subscribes(self, **fields: Any) -> Operation:
        """Subscribe, from what the topic has reached."""
        return self.does("sub", **{"first_id": self.reached, "resumed": False, **fields})

    def leaves(self) -> None:
        """Unsubscribe: nothing is owed from then on."""
        self.does("unsub")


@plant("start")
def lost_start(scene: Scene, victim: Victim) -> int:
    """A subscription begins above what is put after it: it claims what is not there yet, too."""
    put, newcomer = scene.puts[victim.n], Newcomer(scene, victim)
    newcomer.subscribes(first_id=put["first_id"])
    newcomer.now_ns = put["end_ns"] + 1
    newcomer.leaves()
    scene.also("realtime_order", put, put["first_id"])
    return int(put["first_id"])


@plant("tail")
def lost_tail(scene: Scene, victim: Victim) -> int:
    """A subscriber says that it has drained a topic of which it was given nothing."""
    put, newcomer = scene.puts[victim.n], Newcomer(scene, victim)
    newcomer.subscribes()
    newcomer.now_ns = put["end_ns"] + 1
    drained = newcomer.does("phase", outcome="info", phase="drained")
    newcomer.leaves()
    for number in range(victim.n + 1, victim.n + scene.shape.round_size):
        place = scene.shape.place_of(number)
        known_ns = acknowledged_ns(number, scene.shape)
        if topic_of(place["topic"]) == put["topic"] and known_ns < drained["invoke_ns"]:
            scene.also("lost", put, int(place["id"]), "tail")
    return int(put["first_id"])


@plant("unstored")
def lost_unstored(scene: Scene, victim: Victim) -> None:
    """A PUT is answered that nobody subscribes, though everyone does: it is taken, and nowhere."""
    put = Newcomer(scene, victim).does("put", counter=1, first_id=0)
    _by_everyone_else(scene, put, "unstored")
    for _ in range(scene.shape.subscribers):
        scene.also("lost", put, None, "unplaced")


@plant("unplaced")
def lost_unplaced(scene: Scene, victim: Victim) -> None:
    """A retry is acknowledged as stored before, and nobody is ever given it."""
    put = Newcomer(scene, victim).does("put", counter=1, first_id=0, duplicate=True)
    _by_everyone_else(scene, put, "unplaced")


@plant("unplaced")
def lost_between(scene: Scene, victim: Victim) -> None:
    """A producer's second publication is stored, and its first one, tried before it, is not."""
    taken, newcomer = scene.puts[victim.n], Newcomer(scene, victim)
    _make_unknown(newcomer.does("put", counter=1))
    newcomer.does("put", counter=2, first_id=taken["first_id"])
    _replace(scene, victim.n, newcomer.client_id, 2)
    _by_everyone_else(scene, taken, "unplaced")


@plant("half")
def torn_batch_half(scene: Scene, victim: Victim) -> int:
    """A batch of unknown outcome: the second of its two publications is nowhere, and so lost."""
    put, taken = scene.puts[victim.n], scene.puts[victim.later]
    newcomer = Newcomer(scene, victim)
    newcomer.now_ns = taken["invoke_ns"] + 1
    newcomer.does("put", counter=1, first_id=taken["first_id"])
    del scene.puts[victim.later]  # its counter is the second one of the batch
    for get in scene.everyone_s(victim.later):
        _deliver(get, newcomer.client_id, 1)
    second_id = int(put["first_id"]) + 1
    _make_unknown(put)
    put["count"] = 2
    for _ in range(scene.shape.subscribers):
        scene.also("lost", put, None, "unplaced")
    return second_id


@plant()
def aborted_read_nowhere(scene: Scene, victim: Victim) -> int:
    """A PUT is answered that nobody subscribes, though everyone does, and everyone is given it."""
    put = scene.puts[victim.n]
    id_, put["first_id"] = int(put["first_id"]), 0
    for _ in range(scene.shape.subscribers):
        scene.also("lost", put, None, "unstored")
    return id_


@plant("start")
def stale_read_start(scene: Scene, victim: Victim) -> int:
    """A subscription begins below what everybody knows."""
    newcomer = Newcomer(scene, victim)
    sub = newcomer.subscribes(first_id=newcomer.reached - scene.shape.producers)
    newcomer.leaves()
    return _known(scene, sub, range(victim.n - scene.shape.round_size, victim.n), sub)


@plant("kept")
def purge(scene: Scene, victim: Victim) -> int:
    """Everyone is given what was purged before; the groups of later plants work above that."""
    newcomer = Newcomer(scene, victim)
    gets = scene.everyone_s(victim.before)
    newcomer.now_ns = min(get["invoke_ns"] for get in gets) - 1
    newcomer.does("purged", outcome="info", phase="steady", first_id=newcomer.reached)
    for get in gets[1:]:
        scene.also("purge", get, newcomer.reached, "kept")
    return newcomer.reached


@plant("forgotten")
def subscription_forgotten(scene: Scene, victim: Victim) -> None:
    """Who subscribes again is told that nothing was subscribed."""
    newcomer = Newcomer(scene, victim)
    newcomer.subscribes()
    newcomer.subscribes()
    newcomer.leaves()


@plant("start")
def subscription_start(scene: Scene, victim: Victim) -> None:
    """Who asks for what follows an id is given what follows the next one."""
    newcomer = Newcomer(scene, victim)
    newcomer.subscribes(start=str(newcomer.reached))
    newcomer.leaves()


@plant("kept")
def subscription_kept(scene: Scene, victim: Victim) -> None:
    """Who left and subscribes again is told that the subscription stands."""
    newcomer = Newcomer(scene, victim)
    newcomer.subscribes()
    newcomer.leaves()
    newcomer.subscribes(resumed=True, cursor=newcomer.reached)
    newcomer.leaves()


@plant("unsubscribed")
def subscription_unsubscribed(scene: Scene, victim: Victim) -> None:
    """Who left is answered."""
    newcomer = Newcomer(scene, victim)
    newcomer.subscribes()
    newcomer.leaves()
    newcomer.does("get", asked=newcomer.reached, items=[])
    newcomer.leaves()


@plant("topic")
def subscription_topic(scene: Scene, victim: Victim) -> None:
    """A question about one topic is answered about another one."""
    newcomer = Newcomer(scene, victim)
    newcomer.subscribes()
    newcomer.does("get", asked=newcomer.reached, items=[], answered="another")
    newcomer.leaves()


@plant("limit")
def subscription_limit(scene: Scene, victim: Victim) -> None:
    """A subscriber that asks for one publication gets two."""
    second = scene.gets.pop((victim.n, victim.subscriber))
    first = scene.gets[victim.before, victim.subscriber]
    first["items"] = [*first["items"], *second["items"]]


@plant("asked")
def cursor_regression(scene: Scene, victim: Victim) -> int:
    """A subscriber asks with a cursor that it has left behind, and gets again what it had then."""
    get, before = (scene.gets[n, victim.subscriber] for n in (victim.n, victim.before))
    again = {name: before[name] for name in ("asked", "first_id", "items")}
    _beside(scene, get, 1, STEP_NS // 2, **again)
    return int(before["asked"])


@plant("answered")
def cursor_regression_answered(scene: Scene, victim: Victim) -> int:
    """A subscriber subscribes again and is told a cursor that it has left behind."""
    get = scene.gets[victim.n, victim.subscriber]
    lower = int(get["asked"]) - 1
    fields = {"f": "sub", "asked": None, "items": None, "resumed": True, "cursor": lower}
    _beside(scene, get, 1, STEP_NS // 2, **fields)
    return lower


@plant("ahead")
def cursor_regression_ahead(scene: Scene, victim: Victim) -> int:
    """A subscriber that was given nothing subscribes again: its cursor has moved."""
    newcomer = Newcomer(scene, victim)
    newcomer.subscribes(first_id=newcomer.reached - 1, start=str(newcomer.reached))
    newcomer.subscribes(resumed=True, cursor=newcomer.reached)
    newcomer.leaves()
    return newcomer.reached


@plant()
def fencing(scene: Scene, victim: Victim) -> None:
    """A process goes on though a newer one of its client has taken over."""
    newcomer = Newcomer(scene, victim)
    newer = f"{newcomer.process}-newer"
    newcomer.subscribes(epoch=1)
    again = {"resumed": True, "cursor": newcomer.reached}
    newcomer.subscribes(epoch=2, process=newer, **again)
    newcomer.subscribes(epoch=1, **again)
    newcomer.does("unsub", epoch=2, process=newer)


@plant("shared")
def fencing_shared(scene: Scene, victim: Victim) -> None:
    """A process takes a client over, and is given the epoch that the one before has."""
    newcomer = Newcomer(scene, victim)
    newcomer.subscribes(epoch=1)
    newcomer.does("unsub", epoch=1, process=f"{newcomer.process}-newer")


# --- what needs a topic of its own ----------------------------------------------------------------

LAST_ID: Final = 9  # of a topic of a plant's own
EXPIRED_NS: Final = 1_100_000  # passes before what expires after 1 ms is surely gone


class TopicOwner(Newcomer):
    """A newcomer with a topic that nobody else has, and subscribers of its own.

    It is the publisher. `floor_id`: up to it all disks have collected what stands there.
    """

    DELAY_MS = 1  # is over at once, as far as a record can tell: times are told in ms

    def __init__(
        self,
        scene: Scene,
        victim: Victim,
        *readers: str,
        floor_id: int = 0,
        last_id: int = LAST_ID,
    ) -> None:
        super().__init__(scene, victim)
        self._victim, self._place = victim, victim.place
        self.moves_to(f"own-{victim.place}", floor_id, last_id)
        self._readers = readers
        self.at_ms = 10 * victim.n  # what answers say is a time: below that of any later plant's
        for reader in readers:
            self.by(reader, "sub", first_id=0, resumed=False)

    def moves_to(self, topic: str, floor_id: int, last_id: int = LAST_ID) -> None:
        """Let all that follows be in a topic; it is the one of the plant's evidence."""
        self.topic = self._scene.topics[self._place] = topic
        self._like |= {"topic": topic}
        for node in node_names():
            ends = {"kind": "topic", "topic": topic, "last_id": last_id}
            self._scene.truth.append((node, ends | {"floor_id": floor_id}))

    def begins_early(self) -> None:
        """Begin so early that what expires after 1 ms does, by the time of the victim: not where
        that was before a fault, as nobody of then may have answered in this term.
        """
        steps, n = EXPIRED_NS // STEP_NS + 1, self._victim.n
        if not any(0 <= n - fault <= steps for fault in fault_numbers(self._scene.shape)):
            self.now_ns -= EXPIRED_NS

    def by(self, reader: str, f: str, **fields: Any) -> Operation:
        """Let a subscriber do something."""
        name = f"{self.process}-{reader}"
        return self.does(f, process=name, client_id=name, **fields)

    def puts(self, id_: int, **fields: Any) -> Operation:
        """Put one, whose counter is its id."""
        return self.does("put", **{"counter": id_, "first_id": id_, **fields})

    def gets(self, reader: str, id_: int, **fields: Any) -> Operation:
        """Give a subscriber one, behind all below its id."""
        own = {"asked": id_ - 1, "first_id": id_, "items": [(id_, self.client_id, id_, 1)]}
        return self.by(reader, "get", **{**own, **fields})

    def told_gone(self, reader: str, id_: int, error: str) -> Operation:
        """Tell a subscriber that what it would read next is gone."""
        own = {"asked": id_ - 1, "first_id": id_, "last_id": id_, "items": None}
        return self.by(reader, "get", outcome="fail", error=error, **own, node=None, term=None)

    def hands(self, reader: str, id_: int, cursor: int, **fields: Any) -> Operation:
        """Let a subscriber's library hand one over, with that cursor stored."""
        own = {"outcome": "info", "phase": "steady", "first_id": id_, "last_id": id_}
        return self.by(reader, "hand", **own, cursor=cursor, **fields)

    def delays(self, counter: int, place: int, **fields: Any) -> Operation:
        """Put one with a delay."""
        own = {"topic": f"{self.topic}{LANE}", "counter": counter, "first_id": place}
        return self.does("put", **{**own, "delay_ms": self.DELAY_MS, **fields})

    def given(self, reader: str, id_: int, counter: int, **fields: Any) -> Operation:
        """Give a subscriber one that was delayed, behind all below its id."""
        item = (id_, self.client_id, counter, 1)
        own = {"asked": id_ - 1, "first_id": id_, "delayed": [item]}
        return self.by(reader, "get", **{**own, **fields})

    def works(self, f: str, **fields: Any) -> Operation:
        """Make a group, or take of it."""
        return self.does(f, **{"epoch": 1, "group": f"group-{self._place}", **fields})

    def closes(self) -> None:
        """Let everybody leave."""
        for reader in self._readers:
            self.by(reader, "unsub")

    def settles(self) -> None:
        """Say that all is settled, and let everybody leave."""
        group = f"group-{self._place}"
        self.does("phase", outcome="info", phase="settled", group=group)
        self.closes()


# --- groups ---------------------------------------------------------------------------------------

LEFT_MS: Final = 1_000  # of a lease: longer than what a newcomer does takes


class GroupWorker(Newcomer):
    """A newcomer that works in a group of its own, which begins with the last `count` ids up to
    what is `reached`.

    All that it says is so until a plant breaks it; at the end the group is settled. A purge that
    takes nothing says that what the made-up nodes have collected is not what all have passed: the
    group's cursor would have held it.
    """

    def __init__(self, scene: Scene, victim: Victim, count: int = 1, **said: Any) -> None:
        super().__init__(scene, victim)
        self.group, self._number = f"group-{victim.place}", 0
        if "max_attempts" in said:
            said.setdefault("dead_letter", self._like["topic"])
        below = self.reached - count
        self.does("purge", outcome="info", phase="steady", first_id=0)
        self.made(below, resumed=False, start=str(below + 1), **said)

    def made(self, settled_id: int, **said: Any) -> None:
        """Make the group, or ask up to where it is settled."""
        told = {"first_id": settled_id, "resumed": True, "epoch": 1, "group": self.group}
        self.does("group", **{**told, **said})

    def takes(self, token: int = 0, attempt: int = 0, **said: Any) -> Operation:
        """Take the id that is `reached` under a token, or only settle."""
        self._number += 1
        told: dict[str, Any] = {"epoch": 1, "group": self.group, "number": self._number}
        if token:
            lease = [self.reached, self.reached, attempt]
            told |= {"token": token, "leases": [lease], "left_ms": 0}
        return self.does("take", **{**told, **said})

    def acknowledges(self, token: int) -> None:
        """Acknowledge it."""
        self.takes(acks=[[token, self.reached, self.reached]])

    def ends(self) -> int:
        """Say that all is settled; return the id that it was about."""
        self.does("phase", outcome="info", phase="settled", group=self.group)
        return self.reached

    def buries(self, at: int = 0) -> Operation:
        """Be given the dead letter of it, as if it stood in the same topic, on another one: on the
        next, which nobody knew when it was leased.
        """
        topic, id_ = self._like["topic"], at or self.reached + 1
        take = self.takes(letters=[(id_, topic, self.group, self.reached)])
        self._scene.also("inconsistent_id", take, id_)
        return take


@plant("idle")
def stale_read_idle(scene: Scene, victim: Victim) -> int:
    """A worker is told nothing of what was put, which it is given a moment later.

    Before all other plants of groups: where one of them has something open, there may be no room.
    """
    owner = TopicOwner(scene, victim, floor_id=1)
    owner.works("group", first_id=0, resumed=False)
    owner.puts(1)
    owner.works("take", number=1)
    owner.works("take", number=2, token=1, leases=[[1, 1, 1]], left_ms=0)
    owner.works("take", number=3, acks=[[1, 1, 1]])
    owner.settles()
    return 1


@plant("limit")
def subscription_limit_take(scene: Scene, victim: Victim) -> None:
    """A worker that takes one publication is leased two."""
    worker = GroupWorker(scene, victim, count=2)
    runs = [worker.reached - 1, worker.reached]
    worker.takes(1, most=1, leases=[[*runs, 1]])
    worker.takes(acks=[[1, *runs]])
    worker.ends()


@plant("forgotten")
def subscription_group_forgotten(scene: Scene, victim: Victim) -> None:
    """Who asks for a group that stands is told that it is new."""
    worker = GroupWorker(scene, victim)
    worker.made(worker.reached, resumed=False, start=str(worker.reached + 1))


@plant("denied")
def subscription_group_denied(scene: Scene, victim: Victim) -> None:
    """A worker of a group that stands is told that there is none."""
    worker = GroupWorker(scene, victim)
    worker.takes(outcome="fail", error="not_subscribed", node=None, term=None)


@plant("kept")
def subscription_group_kept(scene: Scene, victim: Victim) -> None:
    """A group that was ended is found."""
    worker = GroupWorker(scene, victim)
    worker.does("ungroup", epoch=1, group=worker.group)
    worker.made(worker.reached)


@plant("unsubscribed")
def subscription_group_unsubscribed(scene: Scene, victim: Victim) -> None:
    """A worker of a group that was ended is answered."""
    worker = GroupWorker(scene, victim)
    worker.does("ungroup", epoch=1, group=worker.group)
    worker.takes()


@plant("again")
def group_order(scene: Scene, victim: Victim) -> int:
    """What a worker has acknowledged is given again."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.acknowledges(1)
    worker.takes(2, 2)
    return worker.ends()


@plant("late")
def group_order_late(scene: Scene, victim: Victim) -> int:
    """An acknowledgment of a lost lease is accepted."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.takes(2, 2)
    worker.acknowledges(1)
    return worker.ends()


@plant("twice")
def group_order_twice(scene: Scene, victim: Victim) -> int:
    """Two acknowledgments of one publication are accepted."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.acknowledges(1)
    worker.acknowledges(1)
    return worker.ends()


@plant("attempt")
def group_order_attempt(scene: Scene, victim: Victim) -> int:
    """A publication is given again, and that counts as its first attempt."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.takes(2, 1)
    worker.acknowledges(2)
    return worker.ends()


@plant("token")
def group_order_token(scene: Scene, victim: Victim) -> int:
    """A later take has a lower token: the one that was lost to it is known by that."""
    worker = GroupWorker(scene, victim, count=2)
    worker.takes(7, 1)
    worker.takes(5, 1, leases=[[worker.reached - 1, worker.reached - 1, 1]])
    worker.acknowledges(7)
    worker.ends()
    return 5


@plant("settled")
def group_order_settled(scene: Scene, victim: Victim) -> int:
    """What is settled is given again: it was acknowledged, too."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.acknowledges(1)
    worker.made(worker.reached)
    scene.also("group_order", worker.takes(2, 2), worker.reached, "again")
    return worker.ends()


@plant("back")
def group_order_back(scene: Scene, victim: Victim) -> int:
    """What was said to be settled is said to be open."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.acknowledges(1)
    worker.made(worker.reached)
    worker.made(worker.reached - 1)
    worker.ends()
    return worker.reached - 1


@plant("doubled")
def group_order_doubled(scene: Scene, victim: Victim) -> int:
    """One answer gives a publication twice."""
    worker = GroupWorker(scene, victim)
    lease = [worker.reached, worker.reached, 1]
    worker.takes(1, leases=[lease, lease])
    worker.acknowledges(1)
    return worker.ends()


@plant("overtaken")
def group_order_overtaken(scene: Scene, victim: Victim) -> int:
    """What nobody was given yet is given behind a higher one."""
    worker = GroupWorker(scene, victim, count=2)
    first, last = worker.reached - 1, worker.reached
    worker.takes(1, 1)
    worker.takes(2, leases=[[first, first, 1]])
    worker.takes(acks=[[1, last, last], [2, first, first]])
    worker.ends()
    return first


@plant("soon")
def group_lease_soon(scene: Scene, victim: Victim) -> int:
    """What was given back for later is given at once."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.takes(naks=[[1, worker.reached, worker.reached, LEFT_MS]])
    worker.takes(2, 2)
    worker.acknowledges(2)
    return worker.ends()


@plant("refused")
def group_lease_refused(scene: Scene, victim: Victim) -> int:
    """An acknowledgment is refused though the lease stands."""
    worker = GroupWorker(scene, victim)
    own = [worker.reached, worker.reached]
    worker.takes(1, 1, left_ms=LEFT_MS)
    worker.takes(acks=[[1, *own]], lost=[own])
    return worker.ends()


@plant("shared")
def group_lease(scene: Scene, victim: Victim) -> int:
    """A publication is given again while its lease holds."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1, left_ms=LEFT_MS)
    worker.takes(2, 2)
    worker.acknowledges(2)
    return worker.ends()


@plant("jump")
def group_lease_jump(scene: Scene, victim: Victim) -> int:
    """A publication is given for the third time, and nobody had it before."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 3)
    worker.acknowledges(1)
    return worker.ends()


@plant("foreign")
def group_lease_foreign(scene: Scene, victim: Victim) -> int:
    """An acknowledgment by a token that nobody has is accepted."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.acknowledges(9)
    return worker.ends()


@plant("foreign")
def group_lease_foreign_nak(scene: Scene, victim: Victim) -> int:
    """What nobody has by that token is given back, and that is accepted."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.takes(naks=[[9, worker.reached, worker.reached, 0]])
    worker.acknowledges(1)
    return worker.ends()


@plant("over")
def group_lease_over(scene: Scene, victim: Victim) -> int:
    """An acknowledgment of what was given back is accepted."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.takes(naks=[[1, worker.reached, worker.reached, 0]])
    worker.acknowledges(1)
    return worker.ends()


@plant("shared")
def group_lease_extended(scene: Scene, victim: Victim) -> int:
    """What its worker has extended is given again at once."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.takes(extends=[[1, worker.reached, worker.reached, LEFT_MS]])
    worker.takes(2, 2)
    worker.acknowledges(2)
    return worker.ends()


@plant("foreign")
def group_lease_foreign_extension(scene: Scene, victim: Victim) -> int:
    """What nobody has by that token is extended, and that is accepted."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.takes(extends=[[9, worker.reached, worker.reached, LEFT_MS]])
    worker.acknowledges(1)
    return worker.ends()


@plant("over")
def group_lease_over_extension(scene: Scene, victim: Victim) -> int:
    """What was acknowledged is extended, and that is accepted."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.acknowledges(1)
    worker.takes(extends=[[1, worker.reached, worker.reached, LEFT_MS]])
    return worker.ends()


@plant("shared")
def group_lease_letter(scene: Scene, victim: Victim) -> int:
    """A publication becomes a dead letter while its worker has it in hand."""
    worker = GroupWorker(scene, victim, max_attempts=1)
    worker.takes(1, 1, left_ms=LEFT_MS)
    worker.buries()
    worker.takes()
    return worker.ends()


@plant("phantom")
def group_content(scene: Scene, victim: Victim) -> int:
    """A worker is given what nobody put, where something else stands."""
    worker = GroupWorker(scene, victim)
    take = worker.takes(1, 1, items=[(worker.reached, worker.group, 1, 1)])
    scene.also("group_content", take, worker.reached, "other")
    worker.acknowledges(1)
    return worker.ends()


@plant("corrupt")
def group_content_corrupt(scene: Scene, victim: Victim) -> int:
    """A worker is given a payload whose checksum is wrong."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1, corrupt=[(worker.reached, "checksum")])
    worker.acknowledges(1)
    return worker.ends()


@plant("aborted")
def group_content_aborted(scene: Scene, victim: Victim) -> int:
    """A worker is given what was refused, where something else stands."""
    worker = GroupWorker(scene, victim)
    worker.does("put", counter=1, outcome="fail", error="electing")
    take = worker.takes(1, 1, items=[(worker.reached, worker.client_id, 1, 1)])
    scene.also("group_content", take, worker.reached, "other")
    worker.acknowledges(1)
    return worker.ends()


@plant("future")
def group_content_future(scene: Scene, victim: Victim) -> int:
    """A worker is given what is put later, under another id, where something else stands."""
    put, worker = scene.puts[victim.n], GroupWorker(scene, victim)
    take = worker.takes(1, 1, items=[(worker.reached, put["client_id"], put["counter"], 1)])
    for word in ("other", "twice"):
        scene.also("group_content", take, worker.reached, word)
    worker.acknowledges(1)
    return worker.ends()


@plant("settled")
def group_lost(scene: Scene, victim: Victim) -> int:
    """A group is settled, and what it gave was not acknowledged."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1)
    worker.made(worker.reached)
    return worker.ends()


@plant("held")
def key_order(scene: Scene, victim: Victim) -> int:
    """One is given while another of its key is held."""
    worker = GroupWorker(scene, victim, count=2, ordered_by_key=True)
    first, last, key = worker.reached - 1, worker.reached, "a" * 16
    worker.takes(1, 1, leases=[[first, first, 1]], keyed=[first], keys=key)
    take = worker.takes(2, 1, keyed=[last], keys=key)
    worker.takes(acks=[[1, first, first]])
    scene.also("key_order", take, last, "open")
    worker.ends()
    return last


@plant("together")
def key_order_together(scene: Scene, victim: Victim) -> int:
    """Two of a key are given at once: the lower one is held while the other one is given."""
    worker = GroupWorker(scene, victim, count=2, ordered_by_key=True)
    both, key = [worker.reached - 1, worker.reached], "a" * 16
    take = worker.takes(1, leases=[[*both, 1]], keyed=both, keys=2 * key)
    worker.takes(acks=[[1, *both]])
    scene.also("key_order", take, worker.reached, "held")
    return worker.ends()


@plant("again")
def key_order_again(scene: Scene, victim: Victim) -> int:
    """One is given behind the next one of its key, and acknowledged after that was given."""
    worker = GroupWorker(scene, victim, count=2, ordered_by_key=True)
    first, last, key = worker.reached - 1, worker.reached, "a" * 16
    worker.takes(1, leases=[[first, first, 1]], keyed=[first], keys=key)
    worker.takes(2, 1, keyed=[last], keys=key)
    take = worker.takes(3, leases=[[first, first, 2]], keyed=[first], keys=key)
    worker.takes(acks=[[3, first, first], [2, last, last]])
    for word in ("held", "open"):
        scene.also("key_order", take, last, word)
    return worker.ends()


@plant("changed")
def key_order_changed(scene: Scene, victim: Victim) -> int:
    """A publication has another key when it is given again."""
    worker = GroupWorker(scene, victim)
    worker.takes(1, 1, keyed=[worker.reached], keys="a" * 16)
    worker.takes(2, 2, keyed=[worker.reached], keys="b" * 16)
    worker.acknowledges(2)
    return worker.ends()


@plant("elsewhere")
def dead_letter_elsewhere(scene: Scene, victim: Victim) -> int:
    """A dead letter stands in another topic than its group has named."""
    worker = GroupWorker(scene, victim, max_attempts=1, dead_letter="elsewhere")
    worker.takes(1, 1)
    worker.buries()
    return worker.ends()


@plant("twice")
def dead_letter(scene: Scene, victim: Victim) -> int:
    """A dead letter stands under two ids."""
    worker = GroupWorker(scene, victim, max_attempts=1)
    worker.takes(1, 1)
    worker.buries()
    worker.buries(worker.reached + 2)
    return worker.ends()


@plant("early")
def dead_letter_early(scene: Scene, victim: Victim) -> int:
    """What was given once of two times becomes a dead letter."""
    worker = GroupWorker(scene, victim, max_attempts=2)
    worker.takes(1, 1)
    worker.buries()
    return worker.ends()


@plant("acknowledged")
def dead_letter_acknowledged(scene: Scene, victim: Victim) -> int:
    """What was acknowledged becomes a dead letter."""
    worker = GroupWorker(scene, victim, max_attempts=1)
    worker.takes(1, 1)
    worker.acknowledges(1)
    worker.buries()
    return worker.ends()


@plant("leased")
def dead_letter_leased(scene: Scene, victim: Victim) -> int:
    """What became a dead letter is given again."""
    worker = GroupWorker(scene, victim, max_attempts=1)
    worker.takes(1, 1)
    worker.buries()
    worker.takes(2, 2)
    return worker.ends()


@plant()
def ack_not_durable(scene: Scene, victim: Victim) -> int:
    """An acknowledged publication is given to everyone, and one of the nodes alone has taken it."""
    taken, newcomer = scene.puts[victim.n], Newcomer(scene, victim)
    newcomer.does("put", counter=1, first_id=taken["first_id"])
    _replace(scene, victim.n, newcomer.client_id, 1)
    counter = {"producer": newcomer.client_id, "topic": taken["topic"], "counter": 1}
    scene.truth.append(("n1", {"kind": "counter", **counter}))
    return int(taken["first_id"])


@plant("entry")
def replica_divergence(scene: Scene, victim: Victim) -> int:
    """Two nodes have different entries at one index."""
    index = victim.place + 1
    for node, digest in (("n1", "1" * 32), ("n2", "2" * 32)):
        entry = {"kind": "entry", "index": index, "term": TERM_FIRST, "digest": digest}
        scene.truth.append((node, entry))
    return index


@plant("state")
def replica_divergence_state(scene: Scene, victim: Victim) -> int:
    """Two nodes have different states at one index."""
    index = victim.place + 1
    for node, digest in (("n1", "1" * 32), ("n2", "2" * 32), ("n3", "2" * 32)):
        scene.truth.append((node, {"kind": "state", "index": index, "digest": digest}))
    return index


LED_ABOVE: Final = 500  # terms that nobody answered in: below those of the history


@plant()
def leaders_per_term_logged(scene: Scene, victim: Victim) -> int:
    """Two nodes have led one term, as their logs say."""
    term = LED_ABOVE + victim.place
    assert term < TERM_FIRST
    for node in ("n1", "n2"):
        scene.truth.append((node, {"kind": "leadership", "term": term}))
    return term


@plant("term")
def replica_divergence_term(scene: Scene, victim: Victim) -> int:
    """The terms of a journal's entries fall; on a node that no other plant has given any."""
    index = 2 * victim.place + 1
    for place in (0, 1):
        entry = {"index": index + place, "term": index + 1 - place, "digest": "0" * 32}
        scene.truth.append(("n3", {"kind": "entry", **entry}))
    return index + 1


# --- delays, hand-overs, properties, purges: in topics of their own -------------------------------


@plant("early")
def delayed(scene: Scene, victim: Victim) -> int:
    """What is delayed comes at once."""
    owner = TopicOwner(scene, victim, "s")
    owner.delays(1, 1, delay_ms=3_600_000)
    scene.also("realtime_order", owner.given("s", 1, 1), 1, "due")
    owner.closes()
    return 1


@plant("twice")
def delayed_twice(scene: Scene, victim: Victim) -> int:
    """What was delayed comes under two ids."""
    owner = TopicOwner(scene, victim, "s")
    owner.delays(1, 1)
    owner.given("s", 1, 1)
    owner.given("s", 2, 1)
    owner.closes()
    return 1


@plant("order")
def delayed_order(scene: Scene, victim: Victim) -> int:
    """What was put later, with the same delay, comes first."""
    owner = TopicOwner(scene, victim, "s")
    owner.delays(1, 1)
    owner.delays(2, 2)
    owner.given("s", 1, 2)
    owner.given("s", 2, 1)
    owner.closes()
    return 2


@plant("lost")
def delayed_lost(scene: Scene, victim: Victim) -> None:
    """What is ahead of what came never comes."""
    owner = TopicOwner(scene, victim, "s")
    owner.delays(1, 1)
    owner.delays(2, 2)
    owner.given("s", 1, 2)
    owner.closes()


@plant("lost")
def delayed_lost_to_one(scene: Scene, victim: Victim) -> int:
    """What came to one subscriber did not come to another, which has asked for what follows."""
    owner = TopicOwner(scene, victim, "s", "r")
    owner.delays(1, 1)
    owner.given("s", 1, 1)
    owner.by("r", "get", asked=1, items=[])
    owner.closes()
    return 1


@plant("unstored")
def delayed_unstored(scene: Scene, victim: Victim) -> None:
    """What is delayed is stored nowhere, though somebody subscribes."""
    owner = TopicOwner(scene, victim, "s")
    owner.delays(1, 0)
    owner.closes()


@plant("phantom")
def delayed_phantom(scene: Scene, victim: Victim) -> int:
    """What nobody put comes as if it had been delayed."""
    owner = TopicOwner(scene, victim, "s")
    owner.given("s", 1, 1)
    owner.closes()
    return 1


@plant("aborted")
def delayed_aborted(scene: Scene, victim: Victim) -> int:
    """What was refused comes later."""
    owner = TopicOwner(scene, victim, "s")
    owner.delays(1, 0, outcome="fail", first_id=None, error="electing")
    owner.given("s", 1, 1)
    owner.closes()
    return 1


@plant("future")
def delayed_future(scene: Scene, victim: Victim) -> int:
    """What is delayed comes before it is put."""
    owner = TopicOwner(scene, victim, "s")
    get = owner.given("s", 1, 1)
    owner.delays(1, 1)
    scene.also("realtime_order", get, 1)  # it was known before it was put
    owner.closes()
    return 1


@plant("other")
def delayed_other(scene: Scene, victim: Victim) -> int:
    """Two that were delayed come under one id, to two subscribers."""
    owner = TopicOwner(scene, victim, "s", "r")
    owner.delays(1, 1)
    owner.delays(2, 2)
    owner.given("s", 1, 1)
    owner.given("s", 2, 2)
    take = owner.given("r", 1, 2)
    scene.also("delayed", take, 1, "twice")  # the second one has two ids by that
    owner.by("r", "get", asked=2, items=[])
    scene.also("delayed", take, 2, "lost")  # and the other one of them is lost to this one
    owner.closes()
    return 1


@plant("content")
def delayed_content(scene: Scene, victim: Victim) -> int:
    """What was delayed comes with another key."""
    owner = TopicOwner(scene, victim, "s")
    owner.delays(1, 1, marked=[1], properties="a" * 16)
    times = [[1, 1, 10 * victim.n + 9]]
    owner.given("s", 1, 1, times=times, marked=[1], properties="b" * 16)
    owner.closes()
    return 1


@plant("unhanded")
def lost_unhanded(scene: Scene, victim: Victim) -> int:
    """A library hands over the second of two that it got, and its cursor passes the first."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.puts(2)
    owner.gets("s", 1, handed_apart=True)
    owner.gets("s", 2, handed_apart=True)
    owner.hands("s", 2, cursor=1)
    owner.closes()
    return 1


@plant("prefix")
def lost_reading(scene: Scene, victim: Victim) -> int:
    """Who left comes back to the earliest, and goes on behind what its first reading alone had."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.gets("s", 1)
    owner.by("s", "unsub")
    owner.by("s", "sub", start="earliest", first_id=0, resumed=False)
    owner.by("s", "get", asked=1, items=[])
    owner.closes()
    return 1


@plant("handed")
def gap_handed(scene: Scene, victim: Victim) -> int:
    """An application is handed the second of two before the first."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.puts(2)
    owner.gets("s", 1, handed_apart=True)
    owner.gets("s", 2, handed_apart=True)
    owner.hands("s", 2, cursor=0)
    owner.hands("s", 1, cursor=0)
    owner.closes()
    return 1


@plant()
def duplicate_delivered_handed(scene: Scene, victim: Victim) -> int:
    """An application is handed one twice by one process."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.gets("s", 1, handed_apart=True)
    owner.hands("s", 1, cursor=0)
    owner.hands("s", 1, cursor=0)
    owner.closes()
    return 1


@plant()
def duplicate_delivered_acknowledged(scene: Scene, victim: Victim) -> int:
    """An application is handed again what it has acknowledged, by its next process."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.puts(2)
    owner.gets("s", 1, handed_apart=True)
    owner.gets("s", 2, handed_apart=True)
    owner.hands("s", 1, cursor=0)
    owner.hands("s", 2, cursor=1)
    owner.hands("s", 1, cursor=1, session=2)
    owner.by("s", "unsub", session=2)
    return 1


@plant()
def duplicate_delivered_unsaid(scene: Scene, victim: Victim) -> int:
    """A crash leaves one unacknowledged; the application is handed it again, and not told so."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    for session in (1, 2):
        owner.gets("s", 1, handed_apart=True, session=session)
        owner.hands("s", 1, cursor=0, session=session)
    owner.by("s", "unsub", session=2)
    return 1


@plant("time")
def properties_time(scene: Scene, victim: Victim) -> int:
    """Two subscribers are told two times of one publication."""
    owner = TopicOwner(scene, victim, "s", "r", floor_id=LAST_ID)
    owner.puts(1)
    for reader, at_ms in (("s", owner.at_ms), ("r", owner.at_ms + 1)):
        owner.gets(reader, 1, times=[[1, 1, at_ms]])
    owner.closes()
    return 1


@plant("batch")
def properties_batch(scene: Scene, victim: Victim) -> int:
    """The publications of one batch have two times."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1, count=2, last_id=2)
    owner.gets("s", 1, times=[[1, 1, owner.at_ms]])
    owner.gets("s", 2, times=[[2, 2, owner.at_ms + 1]])
    owner.closes()
    return 1


@plant("content")
def properties_content(scene: Scene, victim: Victim) -> int:
    """Two subscribers are given one publication with two keys."""
    owner = TopicOwner(scene, victim, "s", "r", floor_id=LAST_ID)
    owner.puts(1, marked=[1], properties="a" * 16)
    for reader, digest in (("s", "a" * 16), ("r", "b" * 16)):
        owner.gets(reader, 1, times=[[1, 1, owner.at_ms]], marked=[1], properties=digest)
    owner.closes()
    return 1


@plant("clock")
def realtime_order_clock(scene: Scene, victim: Victim) -> int:
    """What is put after an answer has a smaller time than that had said, and so goes back."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.gets("s", 1, times=[[1, 1, owner.at_ms + 1]])
    owner.puts(2)
    get = owner.gets("s", 2, times=[[2, 2, owner.at_ms]])
    scene.also("properties", get, 2, "back")
    owner.closes()
    return 2


@plant("counter")
def stale_read_counter(scene: Scene, victim: Victim) -> int:
    """A publisher is told that the counter is missing which it was acknowledged."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.puts(2, outcome="fail", first_id=None, error="counter_gap", node=None, term=None)
    owner.gets("s", 1)
    owner.closes()
    return 1


@plant("missed")
def subscription_missed(scene: Scene, victim: Victim) -> None:
    """Nobody subscribes, a publisher is told, though a pattern that stands has the topic."""
    owner = TopicOwner(scene, victim)
    pattern, topic = f"{owner.topic}.*", f"{owner.topic}.a"
    scene.topics[victim.place] = topic
    owner.by("s", "sub", topic=pattern, first_id=0, resumed=False)
    owner.puts(1, topic=topic, first_id=0)
    owner.by("s", "get", topic="", items=[])
    owner.by("s", "unsub", topic=pattern)


@plant("unsaid")
def purge_unsaid(scene: Scene, victim: Victim) -> int:
    """A subscriber is told of a purge that nobody asked for."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.told_gone("s", 1, "purged")
    owner.closes()
    return 1


@plant("alive")
def purge_alive(scene: Scene, victim: Victim) -> int:
    """What one subscriber was told is purged is given to another one."""
    owner = TopicOwner(scene, victim, "s", "r", floor_id=LAST_ID)
    owner.puts(1)
    owner.does("purge", outcome="info", phase="steady", first_id=1)
    owner.told_gone("r", 1, "purged")
    owner.gets("s", 1)
    owner.closes()
    return 1


@plant("early")
def purge_early(scene: Scene, victim: Victim) -> int:
    """What is to expire in an hour has expired."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1, expires_ms=3_600_000)
    owner.told_gone("s", 1, "expired")
    owner.closes()
    return 1


@plant("unsaid")
def purge_unexpired(scene: Scene, victim: Victim) -> int:
    """What was not put to expire has expired."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1)
    owner.told_gone("s", 1, "expired")
    owner.closes()
    return 1


@plant("late")
def purge_late(scene: Scene, victim: Victim) -> int:
    """What has expired is given, by who stored it."""
    owner = TopicOwner(scene, victim, floor_id=LAST_ID)
    owner.begins_early()
    owner.by("s", "sub", first_id=0, resumed=False)
    owner.puts(1, expires_ms=1)
    owner.now_ns += EXPIRED_NS
    owner.gets("s", 1)
    owner.by("s", "unsub")
    return 1


@plant("alive")
def purge_alive_compacted(scene: Scene, victim: Victim) -> int:
    """What one who came later was told is compacted away is given to the next one."""
    owner = TopicOwner(scene, victim, floor_id=LAST_ID)
    owner.puts(1, **_keyed(1, "a"))
    owner.puts(2, **_keyed(2, "a"))
    for reader in ("s", "r"):
        owner.by(reader, "sub", start="earliest", first_id=0, resumed=False)
    owner.told_gone("s", 1, "compacted")
    owner.gets("s", 2)
    owner.gets("r", 1)
    owner.gets("r", 2)
    for reader in ("s", "r"):
        owner.by(reader, "unsub")
    return 1


def _keyed(id_: int, key: str) -> dict[str, Any]:
    """Return what a PUT's answer says of the key of the one publication that it has stored."""
    return {"marked": [id_], "properties": key * 16, "keyed": [id_], "keys": key * 16}


@plant("unsaid")
def purge_keyless(scene: Scene, victim: Victim) -> int:
    """What has no key was compacted away."""
    owner = TopicOwner(scene, victim, floor_id=LAST_ID)
    owner.puts(1)
    owner.by("s", "sub", start="earliest", first_id=0, resumed=False)
    owner.told_gone("s", 1, "compacted")
    owner.by("s", "unsub")
    return 1


@plant("latest")
def purge_latest(scene: Scene, victim: Victim) -> int:
    """The last publication of a key was compacted away."""
    owner = TopicOwner(scene, victim, floor_id=LAST_ID)
    owner.puts(1, **_keyed(1, "a"))
    owner.by("s", "sub", start="earliest", first_id=0, resumed=False)
    owner.told_gone("s", 1, "compacted")
    owner.puts(2, **_keyed(2, "b"))
    owner.gets("s", 2)
    owner.by("s", "unsub")
    return 1


@plant("unread")
def purge_unread(scene: Scene, victim: Victim) -> int:
    """What was replaced is gone before a subscriber has read it that stood when it was put."""
    owner = TopicOwner(scene, victim, "s", floor_id=LAST_ID)
    owner.puts(1, **_keyed(1, "a"))
    owner.puts(2, **_keyed(2, "a"))
    owner.told_gone("s", 1, "compacted")
    owner.gets("s", 2)
    owner.closes()
    return 1


@plant("missed")
def subscription_missed_since(scene: Scene, victim: Victim) -> None:
    """A pattern has nothing new, though its topic, which was there before, has."""
    owner = TopicOwner(scene, victim)
    pattern = f"{owner.topic}.*"
    owner.moves_to(f"{owner.topic}.a", floor_id=LAST_ID)
    owner.by("r", "sub", first_id=0, resumed=False)
    owner.puts(1)
    owner.by("s", "sub", topic=pattern, first_id=0, resumed=False)
    owner.puts(2)
    owner.by("s", "get", topic="", items=[])
    owner.gets("r", 1)
    owner.gets("r", 2)
    owner.by("s", "unsub", topic=pattern)
    owner.by("r", "unsub")


# --- groups in topics of their own ----------------------------------------------------------------


@plant("start")
def subscription_start_group(scene: Scene, victim: Victim) -> None:
    """A group that is to begin at the earliest begins behind what is given afterwards."""
    owner = TopicOwner(scene, victim, "s", floor_id=1)
    owner.puts(1)
    owner.works("group", start="earliest", first_id=1, resumed=False)
    owner.gets("s", 1)
    owner.settles()


@plant("nothing")
def stale_read_leased(scene: Scene, victim: Victim) -> int:
    """A subscriber is told that there is nothing when a worker has it already."""
    owner = TopicOwner(scene, victim, "s", floor_id=1)
    owner.works("group", first_id=0, resumed=False)
    put = owner.puts(1)
    owner.works("take", number=1, token=1, leases=[[1, 1, 1]], left_ms=0)
    owner.by("s", "get", asked=0, items=[])
    put["end_ns"] = owner.now_ns  # it was not acknowledged by then
    owner.now_ns += MOMENT_NS
    owner.gets("s", 1)
    owner.works("take", number=2, acks=[[1, 1, 1]])
    owner.settles()
    return 1


@plant("aborted")
def group_content_nowhere(scene: Scene, victim: Victim) -> int:
    """A worker is given what was said to be stored nowhere."""
    owner = TopicOwner(scene, victim, floor_id=1)
    owner.puts(1, first_id=0)
    owner.works("group", first_id=0, resumed=False)
    item = (1, owner.client_id, 1, 1)
    owner.works("take", number=1, token=1, leases=[[1, 1, 1]], left_ms=0, items=[item])
    owner.works("take", number=2, acks=[[1, 1, 1]])
    owner.settles()
    return 1


@plant("other")
def group_content_letter(scene: Scene, victim: Victim) -> int:
    """A worker is given something where another one was given a dead letter."""
    owner = TopicOwner(scene, victim, floor_id=1)
    owner.works("group", first_id=0, resumed=False)
    owner.puts(1, outcome="info", first_id=None, node=None, term=None)
    letter, brought = (1, owner.topic, "elsewhere", LAST_ID), (1, owner.client_id, 1, 1)
    first = {"token": 1, "leases": [[1, 1, 1]], "left_ms": 0, "letters": [letter]}
    owner.works("take", number=1, **first)
    second = {"token": 2, "leases": [[1, 1, 2]], "left_ms": 0, "items": [brought]}
    owner.works("take", number=2, **second)
    owner.works("take", number=3, acks=[[2, 1, 1]])
    owner.settles()
    return 1


@plant("changed")
def key_order_keyless(scene: Scene, victim: Victim) -> int:
    """A worker is told a key of what was put without one, beside one that has it."""
    owner = TopicOwner(scene, victim, floor_id=2)
    owner.works("group", first_id=0, resumed=False)
    owner.puts(1, count=2, last_id=2, **_keyed(1, "a"))
    said: dict[str, Any] = {"keyed": [1, 2], "keys": "a" * 32}
    owner.works("take", number=1, token=1, leases=[[1, 2, 1]], left_ms=0, **said)
    owner.works("take", number=2, acks=[[1, 1, 2]])
    owner.settles()
    return 2


@plant("settled")
def group_lost_purged(scene: Scene, victim: Victim) -> int:
    """A group is said to be settled, nobody had what is in it, and that is purged afterwards."""
    owner = TopicOwner(scene, victim, floor_id=1)
    owner.works("group", first_id=0, resumed=False)
    owner.puts(1)
    owner.works("group", first_id=1, resumed=True)
    owner.does("purge", outcome="info", phase="steady", first_id=1)
    owner.settles()
    return 1


@plant("lost")
def dead_letter_lost(scene: Scene, victim: Victim) -> int:
    """A dead letter is never given to a subscriber that asks for what follows it."""
    owner = TopicOwner(scene, victim, "s", floor_id=1)
    said: dict[str, Any] = {"max_attempts": 1, "dead_letter": owner.topic}
    owner.works("group", first_id=0, resumed=False, **said)
    owner.puts(1)
    owner.gets("s", 1)
    owner.works("take", number=1, token=1, leases=[[1, 1, 1]], left_ms=0)
    owner.works("take", number=2, letters=[(2, owner.topic, f"group-{victim.place}", 1)])
    owner.by("s", "get", asked=2, items=[])
    owner.settles()
    return 1


def _replace(scene: Scene, n: int, producer: str, counter: int) -> None:
    """Have everyone be given another publication in the place of publication `n`, which is gone.

    So its counter is one that nobody tried, between two that are stored.
    """
    scene.also("phantom", scene.puts.pop(n), None)
    for get in scene.everyone_s(n):
        _deliver(get, producer, counter)


def _by_everyone_else(scene: Scene, put: Operation, word: str) -> None:
    """Let `lost` find the same, without an id, for the subscribers beside the first one."""
    for _ in range(1, scene.shape.subscribers):
        scene.also("lost", put, None, word)
