"""The violations that can be planted, each as a change of the operations around one publication.

A plant is found by the check of the same name. What else would give it away is changed too; where
one violation is the other as well (what was given before it was sent stands below what was known
before it was sent), the plant says so. Works on plain dictionaries, a few a violation; Spark and
files are not here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from analytics.generate.operations import (
    STEP_NS,
    acknowledged_ns,
    is_unknown,
    leader,
    name_of,
    topic_of,
)
from analytics.generate.shape import BadShape, Shape

Operation = dict[str, Any]
ROUNDS_APART: Final = 4  # of two violations: each touches publications of two rounds
ROUNDS_A_VIOLATION: Final = 4 * ROUNDS_APART  # room to go round the faults


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


@dataclass(slots=True)
class Scene:
    """The operations around the victims, for plants to change.

    `touched` are the publications, `puts` by publication, `gets` by publication and subscriber.
    `extra` are operations beside them. `restarts`: (subscriber, n), a session begins after n.
    `besides`: (check, topic, id) that a plant gives away beside its own.
    """

    shape: Shape
    touched: frozenset[int]
    puts: dict[int, Operation] = field(default_factory=dict)
    gets: dict[tuple[int, int], Operation] = field(default_factory=dict)
    extra: list[Operation] = field(default_factory=list)
    restarts: list[tuple[int, int]] = field(default_factory=list)
    besides: list[tuple[str, str, int | None]] = field(default_factory=list)

    def also(self, check: str, operation: Operation, id_: int | None) -> None:
        """Let `check` find something in the operation's topic as well."""
        self.besides.append((check, operation["topic"], id_))

    def everyone_s(self, n: int) -> list[Operation]:
        """Return all subscribers' GETs of publication `n`."""
        return [self.gets[n, subscriber] for subscriber in range(self.shape.subscribers)]

    def operations(self) -> list[Operation]:
        """Return all operations that are left, and the extra ones."""
        return [*self.puts.values(), *self.gets.values(), *self.extra]


# Evidence of no topic; its id is a term.
TOPICLESS: Final = frozenset({"leaders_per_term", "term_order"})
Plant = Callable[[Scene, Victim], int | None]
PLANTS: Final[dict[str, Plant]] = {}


def plant(act: Plant) -> Plant:
    """Register a plant: it changes the scene and returns the id of its evidence."""
    PLANTS[act.__name__] = act
    return act


def victims_of(shape: Shape, wanted: Mapping[str, int]) -> list[tuple[str, Victim]]:
    """Return where each violation goes: spread over the whole history, away from faults.

    Raises BadShape when the history is too short for so many.
    """
    kinds = [name for name, count in wanted.items() for _ in range(count)]
    rounds = shape.publications // shape.round_size - 2
    if rounds < len(kinds) * ROUNDS_A_VIOLATION:
        needed = (len(kinds) * ROUNDS_A_VIOLATION + 2) * shape.least_operations
        raise BadShape(f"{len(kinds)} violations need {needed} operations or more")
    room = rounds // len(kinds) if kinds else 0
    return [(kind, _victim(shape, place, place * room + 1)) for place, kind in enumerate(kinds)]


def _victim(shape: Shape, place: int, round_: int) -> Victim:
    slot = shape.dice(place) % shape.slots
    for begin in range(round_, round_ + ROUNDS_A_VIOLATION, ROUNDS_APART):
        n = begin * shape.round_size + slot * shape.producers + 1
        later = _next_of_producer(shape, n)
        victim = Victim(place, n, later, shape.dice(n) % shape.subscribers)
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


def _deliver(get: Operation, producer: str, counter: int) -> None:
    get["items"] = [(get["first_id"], producer, counter, 1)]


@plant
def lost(scene: Scene, victim: Victim) -> int:
    """A subscriber restarts and goes on above an acknowledged publication that it never got."""
    missed = scene.gets.pop((victim.n, victim.subscriber))
    scene.restarts.append((victim.subscriber, victim.n))
    return int(missed["first_id"])


@plant
def gap(scene: Scene, victim: Victim) -> int:
    """A subscriber's answers jump over a publication of unknown outcome, which it loses by that.

    Where nobody else was given it, its place is not known.
    """
    put = scene.puts[victim.n]
    _make_unknown(put)
    jumped = int(scene.gets.pop((victim.n, victim.subscriber))["first_id"])
    scene.also("lost", put, jumped if scene.shape.subscribers > 1 else None)
    return jumped + 1


@plant
def duplicate_stored(scene: Scene, victim: Victim) -> int:
    """A publication stands a second time, where the producer's next one would have stood."""
    first = scene.puts[victim.n]
    del scene.puts[victim.later]
    for get in scene.everyone_s(victim.later):
        _deliver(get, first["client_id"], first["counter"])
    return int(first["first_id"])


@plant
def duplicate_delivered(scene: Scene, victim: Victim) -> int:
    """A subscriber asks for what follows a publication and gets that publication again."""
    get = scene.gets[victim.n, victim.subscriber]
    _beside(scene, get, 1, STEP_NS // 2, asked=get["first_id"])
    scene.also("reordered", get, get["first_id"])
    return int(get["first_id"])


@plant
def inconsistent_id(scene: Scene, victim: Victim) -> int:
    """A subscriber sees, under an acknowledged id, the PUT of unknown outcome of a stranger."""
    put = scene.puts[victim.n]
    process, client_id = name_of("stranger", victim.place, scene.shape)
    stranger = {**put, "process": process, "client_id": client_id, "op_id": 1, "counter": 1}
    _make_unknown(stranger)
    scene.extra.append(stranger)
    _deliver(scene.gets[victim.n, victim.subscriber], client_id, 1)
    return int(put["first_id"])


@plant
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


@plant
def phantom(scene: Scene, victim: Victim) -> int:
    """Everyone gets a publication that nobody put."""
    put = scene.puts.pop(victim.n)
    _, client_id = name_of("ghost", victim.place, scene.shape)
    for get in scene.everyone_s(victim.n):
        _deliver(get, client_id, 1)
    return int(put["first_id"])


@plant
def aborted_read(scene: Scene, victim: Victim) -> int:
    """Everyone gets a publication whose PUT was refused."""
    put = scene.puts[victim.n]
    id_ = int(put["first_id"])
    put.update(outcome="fail", first_id=None, error="electing")
    return id_


@plant
def corrupt(scene: Scene, victim: Victim) -> int:
    """A subscriber gets a payload whose checksum is wrong."""
    get = scene.gets[victim.n, victim.subscriber]
    get.update(items=[], corrupt=[(get["first_id"], "checksum")])
    return int(get["first_id"])


@plant
def realtime_order(scene: Scene, victim: Victim) -> int:
    """A publication was acknowledged before the one below it was sent."""
    put, before = scene.puts[victim.n], scene.puts[victim.before]
    sent_ns = before["invoke_ns"]
    put.update(invoke_ns=sent_ns - STEP_NS // 2, end_ns=sent_ns - STEP_NS // 4)
    return int(before["first_id"])


@plant
def stale_read(scene: Scene, victim: Victim) -> int:
    """A subscriber asks for a publication after its acknowledgment and is told there is none."""
    get = scene.gets[victim.n, victim.subscriber]
    empty = _beside(scene, get, -1, -STEP_NS // 2, items=[])
    shape, n = scene.shape, victim.n
    known = [get["first_id"]]  # and what followed in its topic and was acknowledged by then
    for number in range(n + 1, n + 1 + shape.producers):
        place = shape.place_of(number)
        in_time = acknowledged_ns(number, shape) < empty["invoke_ns"]
        if topic_of(place["topic"]) == get["topic"] and in_time and not is_unknown(shape, number):
            known.append(place["id"])
    return int(max(known))


@plant
def future_read(scene: Scene, victim: Victim) -> int:
    """A publication is given to everyone before it is sent."""
    put = scene.puts[victim.n]
    given_ns = max(get["end_ns"] for get in scene.everyone_s(victim.n))
    put.update(invoke_ns=given_ns + 1, end_ns=given_ns + 2)
    scene.also("realtime_order", put, put["first_id"])
    return int(put["first_id"])


@plant
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


@plant
def subscription(scene: Scene, victim: Victim) -> None:
    """A subscriber is told that it has not subscribed."""
    get = scene.gets[victim.n, victim.subscriber]
    denied = {"outcome": "fail", "items": None, "error": "not_subscribed"}
    _beside(scene, get, -1, -STEP_NS // 2, **denied, node=None, term=None)


@plant
def term_order(scene: Scene, victim: Victim) -> int:
    """A leader of long ago answers."""
    term = victim.place + 1
    scene.puts[victim.n].update(term=term, node=leader(term))
    return term


@plant
def leaders_per_term(scene: Scene, victim: Victim) -> int:
    """Another node than the leader answers in its term: found once a term."""
    put = scene.puts[victim.n]
    put.update(node=leader(put["term"] + 1))
    return int(put["term"])
