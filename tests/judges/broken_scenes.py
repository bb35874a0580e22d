"""Sabotage in a topic of its own: a few operations that break one sentence of docs/checks.md.

What lives here: kinds that need a certain order of events, which is written on purpose. What must
not: changes of what is there already (broken_rows.py), damage of files (broken_files.py).

Of each kind the rest of the scene is legal: only the sentence that is named is broken, or one that
cannot be broken without another one.
"""

from __future__ import annotations

import random

from tests.judges.history import MadeHistory, Row
from tests.judges.kinds import breaks, need
from tests.judges.scene import Place, SceneWriter

FAR_NS = 10**9  # in a scene a step takes less


def opening(history: MadeHistory, rng: random.Random) -> SceneWriter:
    """Return a scene; now and then with a publication that everybody was given already."""
    return SceneWriter(history, rng)


def names(history: MadeHistory) -> bool:
    """Whether what is delivered says who put it."""
    return not history.is_application


# --- lost ----------------------------------------------------------------------------------


@breaks("lost-acknowledged", "lost", "an acknowledged publication is owed to a life", "middle")
def lost_acknowledged(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    scene.put("p", 3, 3)
    scene.get("s", 0, 1, ("p", 1))
    scene.get("s", 1, 3, ("p", 3))


@breaks("lost-first", "lost", "the life's first publication is owed as well", "prefix")
def lost_first(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    scene.get("s", 0, 2, ("p", 2))


@breaks("lost-by-cursor", "lost", "a cursor that a GET asked with is passed")
def lost_by_cursor(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    scene.get("s", 0, 1, ("p", 1))
    scene.nothing("s", 2)


@breaks("lost-start-lies", "lost", "a SUB's start is above what is put after its answer", "start")
def lost_start_lies(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    count = rng.randint(1, 3)
    scene.sub("s", 3)
    for counter in range(1, count + 1):
        scene.put("p", counter, counter)
    if rng.random() < 0.5:
        scene.nothing("s", 3)


@breaks("lost-duplicate-without-id", "lost", "an acknowledged duplicate is taken", "unplaced")
def lost_duplicate_without_id(history: MadeHistory, rng: random.Random) -> None:
    """An answer `duplicate` with id 0, while a subscription stood all the time."""
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    if rng.random() < 0.7:
        scene.unclear("p", 2)
    scene.put("p", 2, 0, duplicate=True)
    scene.put("p", 3, 2)
    scene.get("s", 0, 1, ("p", 1), ("p", 3))


@breaks("lost-drained-duplicate", "lost", "who drained was given what is taken", "unplaced")
def lost_drained_duplicate(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    after = before_the_tombstone(scene)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.unclear("p", 2)
    scene.put("p", 2, 0, duplicate=True)
    after()
    scene.put("tomb", 1, 2)
    scene.get("s", 0, 1, ("p", 1), ("tomb", 1))
    scene.nothing("s", 2)
    scene.drained("s", 2)


@breaks("lost-counter-between", "lost", "below a stored counter all are taken", "unplaced")
def lost_counter_between(history: MadeHistory, rng: random.Random) -> None:
    """Counters 1 and 3 are stored, 2 was tried and is nowhere."""
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.unclear("p", 2)
    scene.put("p", 3, 2)
    scene.get("s", 0, 1, ("p", 1), ("p", 3))


@breaks("lost-seen-by-another", "lost", "what anybody was given is stored, so owed", "middle")
def lost_seen_by_another(history: MadeHistory, rng: random.Random) -> None:
    """Of unknown outcome, delivered to one subscriber and not to another who went past it.

    An application's answers place nothing, as they name no publication: there it is a `gap` alone.
    """
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.sub("r", 0)
    scene.put("p", 1, 1)
    scene.unclear("q", 1)
    scene.put("p", 2, 3)
    scene.get("r", 0, 1, ("p", 1), ("q", 1), ("p", 2))
    scene.get("s", 0, 1, ("p", 1))
    scene.get("s", 1, 3, ("p", 2))


@breaks("lost-seen-then-drained", "lost", "what anybody was given is owed to who drains", "tail")
def lost_seen_then_drained(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    after = before_the_tombstone(scene)
    scene.sub("s", 0)
    scene.sub("r", 0)
    scene.put("p", 1, 1)
    scene.unclear("q", 1)
    scene.get("r", 0, 1, ("p", 1), ("q", 1))
    after()
    tombstone = scene.begin_put("tomb", 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.nothing("s", 1)
    scene.drained("s", 1)
    scene.stored(tombstone, 3)


@breaks("lost-tail", "lost", "whoever drained has everything that was known before the cut", "tail")
def lost_tail(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    after = before_the_tombstone(scene)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    after()
    tombstone = scene.begin_put("tomb", 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.nothing("s", 1)
    scene.drained("s", 1)
    scene.stored(tombstone, 3)


@breaks("lost-before-unsub", "lost", "an UNSUB ends a life, not what was owed to it")
def lost_before_unsub(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    scene.put("p", 3, 3)
    scene.get("s", 0, 1, ("p", 1))
    scene.get("s", 1, 3, ("p", 3))
    scene.unsub("s", rng.choice(("ok", "ok", "info")))
    if rng.random() < 0.5:
        scene.put("p", 4, 0)
        scene.sub("s", 3)


@breaks("lost-in-second-life", "lost", "each life is owed what was stored while it stood")
def lost_in_second_life(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.unsub("s")
    scene.sub("s", 1)
    scene.put("p", 2, 2)
    scene.put("p", 3, 3)
    scene.get("s", 1, 3, ("p", 3))


@breaks("lost-unclear-sub", "lost", "a SUB of unknown outcome stands once a GET is answered")
def lost_unclear_sub(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    invoke = scene.invoke("s", "sub")
    if rng.random() < 0.5:
        scene.end(invoke, "info")
    scene.put("p", 1, 1)
    scene.get("s", None, 1, ("p", 1))
    scene.put("p", 2, 2)
    scene.put("p", 3, 3)
    scene.get("s", 1, 3, ("p", 3))


@breaks("unstored", "lost", "`nobody subscribes` is answered only when nobody does", "unstored")
def unstored(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    if rng.random() < 0.5:
        scene.put("p", 1, 1)
        scene.put("p", 2, 0)
    else:
        scene.put("p", 1, 0)
    if rng.random() < 0.5:
        scene.unsub("s")  # later: it stood then all the same


@breaks(
    "unhanded", "lost", "what the library got it hands over before the cursor passes", "unhanded"
)
def unhanded(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    for counter in (1, 2, 3):
        scene.put("p", counter, counter)
    invoke = scene.begin_get("s", 0)
    scene.brought(invoke, 1, ("p", 1), ("p", 2), ("p", 3), handed_apart=True)
    scene.single("s", "hand", first_id=scene.id(1), last_id=scene.id(1), cursor=scene.id(0))
    scene.single("s", "ack", last_id=scene.id(1), cursor=scene.id(0))
    scene.single("s", "hand", first_id=scene.id(3), last_id=scene.id(3), cursor=scene.id(1))
    scene.single("s", "ack", last_id=scene.id(3), cursor=scene.id(1))
    scene.nothing("s", 3)


def before_the_tombstone(scene: SceneWriter) -> _BehindRow:
    """Put a scene before the run's phase `tombstone`; return what takes it behind that.

    A cut is a moment of the host that marked the phase, so the scene is on it. A run without that
    phase has another cut, and the scene stays where it is.
    """
    marks = [row for row in scene.history.rows if row.get("phase") == "tombstone"]
    marks = [row for row in marks if row.get("f") == "phase"]
    if not marks:
        return _BehindRow(scene, None)
    scene.host = marks[0].get("host")
    scene.t_ns = max(0, marks[0]["t_ns"] - 10 * FAR_NS)
    return _BehindRow(scene, marks[0])


class _BehindRow:
    """Takes a scene behind a row."""

    def __init__(self, scene: SceneWriter, mark: Row | None) -> None:
        self._scene, self._mark = scene, mark
        if mark is not None:  # on a host with others terms must go on
            scene.node = scene.term = None  # type: ignore[assignment]

    def __call__(self) -> None:
        if self._mark is not None:
            self._scene.t_ns = max(self._scene.t_ns, self._mark["t_ns"])


# --- order and content ------------------------------------------------------------------------


@breaks("stored-twice", "duplicate_stored", "a publication has one place")
def stored_twice(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1)
    scene.put("p", 1, 2)
    scene.get("s", 0, 1, ("p", 1), ("p", 1))


@breaks("acknowledged-twice", "duplicate_stored", "a retry is answered with the original id")
def acknowledged_twice(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 1, 2, duplicate=True, session=2)


@breaks("nowhere-and-acknowledged-again", "duplicate_stored", "a counter is taken once")
def nowhere_and_acknowledged_again(history: MadeHistory, rng: random.Random) -> None:
    """Stored nowhere by an answer that is no duplicate; another one says where it stands, or that
    it is no duplicate either. An application's are of one epoch.
    """
    scene = opening(history, rng)
    session = 1 if history.is_application else rng.choice((1, 2))
    number = rng.choice((0, 1))
    if rng.random() < 0.3:
        scene.sub("s", 0)
        scene.put("p", 1, 1)
        scene.unsub("s")
        scene.put("p", 1, 0, session=session)
        return
    scene.put("p", 1, 0)
    if number:
        scene.sub("s", 0)
    scene.put("p", 1, number, session=session, duplicate=bool(number) and rng.random() < 0.5)


@breaks("two-under-one-id", "inconsistent_id", "an id has one publication")
def two_under_one_id(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.sub("r", 0)
    scene.unclear("p", 1)
    scene.unclear("q", 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.get("r", 0, 1, ("q", 1))


@breaks("two-acknowledged-under-one-id", "inconsistent_id", "acknowledgments place as well")
def two_acknowledged(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    first, second = scene.begin_put("p", 1), scene.begin_put("q", 1)
    scene.stored(first, 1)
    scene.stored(second, 1)


@breaks("read-of-the-future", "future_read", "nothing is given before its PUT was sent")
def read_of_the_future(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.get("s", 0, 1, ("p", 1))
    scene.put("p", 1, 1)


@breaks("failed-put-before-its-retry", "future_read", "a failed PUT stores nothing")
def failed_put_before_its_retry(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.end(scene.begin_put("p", 1), "fail")
    scene.get("s", 0, 1, ("p", 1))
    scene.put("p", 1, 1)


@breaks("torn-by-another", "torn_batch", "a batch is stored as one", "split")
def torn_by_another(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1, count=2)
    scene.put("q", 1, 2)
    scene.get("s", 0, 1, ("p", 1), ("q", 1), ("p", 2))


@breaks("torn-in-half", "torn_batch", "a batch is given whole or not at all", "half")
def torn_in_half(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1, count=2)
    scene.put("q", 1, 2)
    scene.get("s", 0, 1, ("p", 1), ("q", 1))


@breaks("torn-first-half", "torn_batch", "the first half of a batch is not left out", "half")
def torn_first_half(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("q", 1, 1)
    scene.unclear("p", 1, count=2)
    scene.get("s", 0, 1, ("q", 1), ("p", 2))


@breaks("torn-and-drained", "torn_batch", "who drained was given all of a batch", "half")
def torn_and_drained(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    after = before_the_tombstone(scene)
    scene.sub("s", 0)
    scene.unclear("p", 1, count=2)
    scene.get("s", 0, 1, ("p", 1))
    after()
    tombstone = scene.begin_put("tomb", 1)
    scene.nothing("s", 1)
    scene.drained("s", 1)
    scene.stored(tombstone, 3)


@breaks("counters-out-of-order", "reordered", "a later counter has a higher id", "producer")
def counters_out_of_order(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    first, second = scene.begin_put("p", 1), scene.begin_put("p", 2)
    if rng.random() < 0.5:
        scene.stored(first, 2)
        scene.stored(second, 1)
    scene.get("s", 0, 1, ("p", 2), ("p", 1))


@breaks("batch-goes-back", "reordered", "a batch keeps its order", "producer")
def batch_goes_back(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1, count=2)
    scene.get("s", 0, 1, ("p", 2), ("p", 1))


@breaks("answer-at-the-cursor", "reordered", "an answer begins above the cursor", "subscriber")
def answer_at_the_cursor(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, count=3)
    scene.get("s", 0, 1, ("p", 1), ("p", 2))
    scene.get("s", 2, rng.choice((1, 2)), *(("p", 2), ("p", 3))[: rng.randint(1, 2)])


@breaks("answer-goes-back", "reordered", "ids go up inside an answer", "subscriber")
def answer_goes_back(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("q", 1, 2)
    answer = scene.get("s", 0, 1, ("p", 1), ("q", 1))
    answer["items"].reverse()


@breaks("answer-jumps", "gap", "ids of an answer follow one another")
def answer_jumps(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.unclear("q", 1)
    scene.put("p", 2, 3)
    answer = scene.get("s", 0, 1, ("p", 1), ("p", 2))
    answer["items"][1][0] += 1
    answer["last_id"] += 1


@breaks("answer-begins-too-high", "gap", "an answer begins with what follows the cursor")
def answer_begins_too_high(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("q", 1)
    scene.put("p", 1, 2)
    scene.get("s", 0, 2, ("p", 1))


@breaks("ghost", "phantom", "what is given was put by somebody")
def ghost(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    other: Place = rng.choice((("p", 2), ("nobody", 1)))
    scene.get("s", 0, 1, ("p", 1), other)


@breaks("failed-and-given", "aborted_read", "what failed at every try is given to nobody")
def failed_and_given(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    for _ in range(rng.randint(1, 2)):
        scene.end(scene.begin_put("p", 1), "fail")
    scene.get("s", 0, 1, ("p", 1))


@breaks("unsub-undone", "subscription", "who has left begins anew", "kept")
def unsub_undone(history: MadeHistory, rng: random.Random) -> None:
    """A SUB that was sent twice may resume what its first attempt began."""
    scene = opening(history, rng)
    scene.sub("s", 0)
    if rng.random() < 0.5:
        scene.put("p", 1, 1)
        if names(history):
            scene.get("s", 0, 1, ("p", 1))
    scene.unsub("s")
    scene.sub("s", 0, resumed=True)


@breaks("said-to-be-nowhere", "aborted_read", "what is stored nowhere is given to nobody")
def said_to_be_nowhere(history: MadeHistory, rng: random.Random) -> None:
    """Where it is a duplicate, it may stand: then the answer does not say that it does not."""
    need(names(history))
    scene = opening(history, rng)
    scene.put("p", 1, 0)
    scene.sub("s", 0)
    scene.get("s", 0, 1, ("p", 1))


@breaks("payload-is-broken", "corrupt", "a payload is what was put")
def payload_is_broken(history: MadeHistory, rng: random.Random) -> None:
    need(names(history))
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    answer = scene.get("s", 0, 1, ("p", 1), ("p", 2))
    place = rng.randint(0, 1)
    del answer["items"][place]
    answer["corrupt"] = [[scene.id(place + 1), rng.choice(("format", "checksum", "topic"))]]


# --- what was known --------------------------------------------------------------------------


@breaks("behind-an-acknowledgment", "realtime_order", "ids follow real time: acknowledgments")
def behind_an_acknowledgment(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 2)
    scene.put("q", 1, 1)


@breaks("behind-a-delivery", "realtime_order", "ids follow real time: what anybody was given")
def behind_a_delivery(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1)
    invoke = scene.begin_get("s", 0)
    scene.brought(invoke, 2, ("p", 1))
    scene.put("q", 1, 1)


@breaks("behind-a-start", "realtime_order", "ids follow real time: where a subscription begins")
def behind_a_start(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.sub("r", 5)
    scene.put("q", 1, rng.randint(1, 5))


@breaks("behind-a-cursor", "realtime_order", "ids follow real time: a cursor that was accepted")
def behind_a_cursor(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.nothing("s", 4)
    scene.put("q", 1, rng.randint(1, 4))


@breaks("denied-an-acknowledged-one", "stale_read", "an acknowledgment is known", "nothing")
def denied_an_acknowledged_one(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.nothing("s", 0)


@breaks(
    "denied-a-given-one", "stale_read", "what one client was given, nobody is denied", "nothing"
)
def denied_a_given_one(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.sub("r", 0)
    scene.unclear("p", 1)
    scene.get("r", 0, 1, ("p", 1))
    scene.nothing("s", 0)


@breaks(
    "counter-denied", "stale_read", "an acknowledged counter is there for the next one", "counter"
)
def counter_denied(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.end(scene.begin_put("p", rng.randint(1, 2)), "fail", error="counter_gap")


@breaks("begins-in-the-past", "stale_read", "a new subscription begins at the end", "start")
def begins_in_the_past(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    scene.sub("r", rng.choice((0, 1)))


@breaks("begins-below-a-delivery", "stale_read", "it begins above what anybody was given", "start")
def begins_below_a_delivery(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.unclear("p", 1, count=2)
    scene.get("s", 0, 1, ("p", 1), ("p", 2))
    scene.sub("r", rng.choice((0, 1)))


@breaks("cursor-answered-lower", "cursor_regression", "a cursor never goes back", "answered")
def cursor_answered_lower(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    scene.get("s", 0, 1, ("p", 1), ("p", 2))
    scene.nothing("s", 2)
    scene.sub("s", rng.choice((0, 1)), resumed=True, session=2)


@breaks("cursor-asked-lower", "cursor_regression", "no subscriber asks below its cursor", "asked")
def cursor_asked_lower(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.get("s", 0, 1, ("p", 1))
    scene.nothing("s", 1)
    scene.get("s", 0, 1, ("p", 1), session=2)


@breaks("cursor-ahead", "cursor_regression", "a cursor is where its subscriber was", "ahead")
def cursor_ahead(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.put("p", 2, 2)
    scene.get("s", 0, 1, ("p", 1))
    scene.sub("s", 2, resumed=True, session=2)


# --- subscriptions ---------------------------------------------------------------------------


@breaks("subscription-forgotten", "subscription", "a subscription stands until UNSUB", "forgotten")
def subscription_forgotten(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.sub("s", 0, resumed=False, session=rng.randint(1, 2))


@breaks("subscription-denied", "subscription", "a GET of a standing one is answered", "denied")
def subscription_denied(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    error = rng.choice(("not_subscribed", "unknown_topic"))
    scene.end(scene.begin_get("s", rng.choice((0, None))), "fail", error=error)


@breaks("denied-after-unclear-sub", "subscription", "an answered GET proves the SUB", "denied")
def denied_after_unclear_sub(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.end(scene.invoke("s", "sub"), "info")
    scene.put("p", 1, 1)
    scene.get("s", None, 1, ("p", 1))
    scene.end(scene.begin_get("s", 1), "fail", error="not_subscribed")


@breaks("given-after-unsub", "subscription", "after UNSUB nothing is given", "unsubscribed")
def given_after_unsub(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("r", 0)
    scene.sub("s", 0)
    scene.unsub("s")
    scene.put("p", 1, 1)
    if rng.random() < 0.5:
        scene.get("s", 0, 1, ("p", 1))
    else:
        scene.end(scene.begin_get("s", 0), "ok", count=0, topic=scene.topic, bytes=0)


@breaks("given-without-sub", "subscription", "without SUB nothing is given", "unsubscribed")
def given_without_sub(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("r", 0)
    if rng.random() < 0.3:
        scene.end(scene.invoke("s", "sub"), "fail", error="overloaded")
    scene.put("p", 1, 1)
    scene.get("s", 0, 1, ("p", 1))


@breaks("another-topic", "subscription", "asked for one topic, answered with that", "topic")
def another_topic(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    other = f"{scene.topic}-2"
    scene.sub("s", 0)
    scene.subscribed(scene.invoke("s", "sub", topic=other), 0)
    scene.put("p", 1, 1)
    invoke = scene.begin_get("s", 0)
    invoke["topic"] = other
    scene.brought(invoke, 1, ("p", 1))


@breaks("too-many", "subscription", "an answer brings no more than `max_count`", "limit")
def too_many(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, count=4)
    invoke = scene.begin_get("s", 0, max_count=rng.randint(1, 3))
    scene.brought(invoke, 1, *(("p", counter) for counter in (1, 2, 3, 4)))


# --- handing over ----------------------------------------------------------------------------


@breaks("given-twice", "duplicate_delivered", "an id is given again only if asked for again")
def given_twice(history: MadeHistory, rng: random.Random) -> None:
    need(not history.is_application)
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, count=3)
    scene.get("s", 0, 1, ("p", 1), ("p", 2))
    scene.get("s", 1, 2, ("p", 2), ("p", 3))


@breaks("handed-behind-a-higher-one", "gap", "what was fetched is handed over in order", "handed")
def handed_behind_a_higher_one(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, count=3)
    invoke = scene.begin_get("s", 0)
    scene.brought(invoke, 1, ("p", 1), ("p", 2), ("p", 3), handed_apart=True)
    last = rng.randint(2, 3)
    for first in (last, 1):
        ids = {"first_id": scene.id(first), "last_id": scene.id(max(first, last - 1))}
        scene.single("s", "hand", cursor=scene.id(0), **ids)


@breaks("handed-twice", "duplicate_delivered", "no id is handed over twice without a release")
def handed_twice(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    scene.brought(scene.begin_get("s", 0), 1, ("p", 1), handed_apart=True)
    for _ in range(2):
        ids = {"first_id": scene.id(1), "last_id": scene.id(1)}
        scene.single("s", "hand", cursor=scene.id(0), **ids)


@breaks("handed-again-unsaid", "duplicate_delivered", "what comes again is said to come again")
def handed_again_unsaid(history: MadeHistory, rng: random.Random) -> None:
    """A crash left it unacknowledged: it comes again by right, and the application is not told."""
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1)
    ids = {"first_id": scene.id(1), "last_id": scene.id(1)}
    for session in (1, 2):
        get = scene.begin_get("s", 0, session=session)
        scene.brought(get, 1, ("p", 1), handed_apart=True)
        scene.single("s", "hand", cursor=scene.id(0), session=session, **ids)


@breaks("handed-after-ack", "duplicate_delivered", "what is acknowledged is not handed over again")
def handed_after_ack(history: MadeHistory, rng: random.Random) -> None:
    """The acknowledgment is stored: the hand-over of the next one says so, by its cursor."""
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, count=2)
    scene.brought(scene.begin_get("s", 0), 1, ("p", 1), ("p", 2), handed_apart=True)
    first, second = ({"first_id": scene.id(one), "last_id": scene.id(one)} for one in (1, 2))
    scene.single("s", "hand", cursor=scene.id(0), **first)
    scene.single("s", "ack", last_id=scene.id(1), cursor=scene.id(0))
    scene.single("s", "hand", cursor=scene.id(1), **second)
    session = rng.randint(1, 2) if history.is_application else 1  # a copy of a state may go on
    scene.single("s", "hand", cursor=scene.id(1), session=session, **first)


# --- leaders ---------------------------------------------------------------------------------


@breaks("fenced-one-goes-on", "fencing", "what an older process sends later is refused")
def fenced_one_goes_on(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, epoch=1)
    scene.put("p", 2, 2, epoch=2, process="x-p-copy")
    scene.put("p", 3, 3, epoch=1)


@breaks("fenced-reader-goes-on", "fencing", "what an older process asks later is refused")
def fenced_reader_goes_on(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0, epoch=1)
    scene.sub("s", 0, resumed=True, epoch=2, process="x-s-copy")
    scene.nothing("s", 0, epoch=1)


@breaks("two-under-one-epoch", "fencing", "each session has an epoch of its own", "shared")
def two_under_one_epoch(history: MadeHistory, rng: random.Random) -> None:
    """Who takes the client over is given the epoch that it has."""
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.put("p", 1, 1, epoch=1)
    own = {"process": "x-p-copy"} if rng.random() < 0.5 else {"session": 2}
    scene.put("p", 2, 2, epoch=1, **own)


@breaks("term-goes-back", "term_order", "terms go up in real time")
def term_goes_back(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    low = max((row.get("term") or 0 for row in history.rows), default=0) + 5
    scene.node, scene.term = "a", low + rng.randint(1, 3)
    scene.put("p", 1, 1)
    scene.node, scene.term = "b", low
    scene.put("p", 2, 2)


@breaks("two-leaders", "leaders_per_term", "a term has one leader")
def two_leaders(history: MadeHistory, rng: random.Random) -> None:
    scene = opening(history, rng)
    scene.sub("s", 0)
    scene.term = max((row.get("term") or 0 for row in history.rows), default=0) + 5
    scene.node = "a"
    scene.put("p", 1, 1)
    scene.node = "b"
    scene.put("p", 2, 2)
