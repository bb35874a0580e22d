"""What a record says: its lines put together to operations, and what of it contradicts itself.

What lives here: `RecordedOperation`, `Record`, `Evidence`, and what makes a record of rows. What
must not: files (intake.py), anything that is concluded from a record.

Words are those of docs/checks.md. Times are monotonic and of one host each; what has no time of its
own lies before or after everything, whichever proves less: an operation whose invoke is not known
was sent before all others, one without an end never ended.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

Event = Mapping[str, Any]
Publication = tuple[str, str, int]  # producer, topic, counter
Time = float  # nanoseconds: an int, or an infinity
BEFORE_ALL: Final = -math.inf
NEVER: Final = math.inf

OF_GROUPS: Final = frozenset({"group", "ungroup", "take"})
FUNCTIONS: Final = frozenset({"put", "get", "sub", "unsub"}) | OF_GROUPS
HANDLINGS: Final = frozenset({"hand", "ack", "release"})
PURGES: Final = frozenset({"purge", "purged"})
LANE: Final = "\x1fdelayed"  # behind a topic's name: what is put there with a delay
DENIALS: Final = frozenset({"not_subscribed", "unknown_topic"})
GONE: Final = ("purged", "gap", "expired", "compacted")  # errors that say what is gone
DIGEST_DIGITS: Final = 16


class Evidence(NamedTuple):
    """A row that proves a violation; what does not apply is None.

    `operations`: (process, op_id) of what it can be seen in.
    """

    run_id: str
    topic: str | None = None
    client_id: str | None = None
    id: int | None = None
    other_id: int | None = None
    producer: str | None = None
    counter: int | None = None
    detail: str | None = None
    operations: tuple[tuple[str, int], ...] = ()


class Given(NamedTuple):
    """What a GET brought under one id. Without a producer: it is not known whose it is."""

    id: int
    producer: str | None
    counter: int | None


class Letter(NamedTuple):
    """A dead letter that an answer brought under `id`: where it says that it is from."""

    id: int
    topic: str
    group: str
    from_id: int


class LeasedRun(NamedTuple):
    """A run of ids that a TAKE was given."""

    first: int
    last: int
    attempt: int


@dataclass(slots=True, eq=False)
class OfGroup:
    """What an operation says of a group beside its name, and what it was answered.

    `acks`: (token, first id, last id), `naks` and `extends` with ms besides; `lost`: (first, last).
    `keys`: of the leased ids that have one, a digest each.
    """

    name: str = ""
    number: int | None = None
    max_attempts: int | None = None
    dead_letter: str | None = None
    lease_ms: int | None = None
    acks: list[tuple[int, int, int]] = field(default_factory=list)
    naks: list[tuple[int, ...]] = field(default_factory=list)
    extends: list[tuple[int, ...]] = field(default_factory=list)
    token: int = 0
    leases: list[LeasedRun] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    left_ms: int = 0
    is_ordered: bool | None = None
    keys: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RecordedOperation:
    """An operation: its invoke and its end, or what of the two there is.

    `topic`: of its question, "" for any. GET: `answered`: the topic that the answer said; `named`:
    the one that it is about, which is the question's if it brought nothing; `asked`: the cursor of
    that one that it asked with; `given`: what it brought, in order, `corrupt` apart.
    `times`: runs of first id, last id and their time; `properties`: digests by id, of an ACK.
    `expires`: of a PUT's ACK, runs of first id, last id and ms; `may_expire`: its invoke says some.
    `delays`: of a PUT's invoke, runs of first counter, last counter and ms.
    `tells_of_purge`: it brought nothing, and said that the ids in `given` are purged: who was told
    so is owed them no more than what it has, and does not know whose they were.
    `keys`: of a PUT's ACK, digests by id. `is_compacted`: of a group's answer: its topic is.
    `letters`: dead letters; `delayed`: what was put with a delay, under counters of its own;
    `nobodys`: the ids of both, where they stand in no other list of what came.
    """

    process: str
    op_id: int
    f: str
    client: str
    session: int
    topic: str
    host: str | None
    epoch: int | None
    invoke: Time
    end: Time
    outcome: str  # "ok", "fail", "info"
    error: str = ""
    node: str | None = None
    term: int | None = None
    counter: int | None = None
    count: int = 1
    first_id: int | None = None
    last_id: int | None = None
    is_duplicate: bool = False
    digests: str | None = None
    answered: str = ""
    named: str = ""
    asked: int | None = None
    cursor: int | None = None
    resumed: bool | None = None
    start: str | None = None
    attempt: int | None = None
    max_count: int | None = None
    is_handed_apart: bool = False
    is_unsaid: bool = False
    is_compacted: bool = False
    tells_of_purge: bool = False
    times: list[tuple[int, int, int]] = field(default_factory=list)
    properties: dict[int, str] = field(default_factory=dict)
    expires: list[tuple[int, int, int]] = field(default_factory=list)
    may_expire: bool = False
    delays: list[tuple[int, int, int]] = field(default_factory=list)
    keys: dict[int, str] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)
    corrupt: list[tuple[int, str]] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    delayed: list[Given] = field(default_factory=list)
    nobodys: list[int] = field(default_factory=list)
    of_group: OfGroup = field(default_factory=OfGroup)

    @property
    def key(self) -> tuple[str, int]:
        """How evidence names it."""
        return self.process, self.op_id

    @property
    def is_ok(self) -> bool:
        """Whether it was answered."""
        return self.outcome == "ok"

    @property
    def may_have_happened(self) -> bool:
        """Whether it did not definitely fail."""
        return self.outcome != "fail"

    @property
    def brought(self) -> bool:
        """Whether an answer brought anything."""
        return bool(self.given or self.corrupt or self.nobodys)

    @property
    def brought_count(self) -> int:
        """How many publications an answer brought."""
        return len(self.given) + len(self.corrupt) + len(self.nobodys)

    @property
    def counters(self) -> range:
        """The counters of a PUT."""
        return range(0) if self.counter is None else range(self.counter, self.counter + self.count)

    def expiry_of(self, id_: int) -> int | None:
        """Return after how many ms what a PUT has stored under an id expires, None if never."""
        for first, last, ms in self.expires:
            if first <= id_ <= last:
                return ms
        return None

    @property
    def placed(self) -> bool:
        """Whether a PUT was told where it stands."""
        return self.is_ok and self.counter is not None and bool(self.first_id)

    def ids(self) -> Iterator[int]:
        """Yield the ids that a GET gave, corrupt ones and dead letters included."""
        for each in self.given:
            yield each.id
        for id_, _ in self.corrupt:
            yield id_
        yield from self.nobodys

    def intact_ids(self) -> Iterator[int]:
        """Yield the ids that a GET gave, but for corrupt ones."""
        for each in self.given:
            yield each.id
        yield from self.nobodys

    def contents(self) -> Iterator[tuple[int, str]]:
        """Yield (id, digest) of what an application's PUT or GET says of contents."""
        if self.digests and self.first_id:
            for place in range(len(self.digests) // DIGEST_DIGITS):
                begin = place * DIGEST_DIGITS
                yield self.first_id + place, self.digests[begin : begin + DIGEST_DIGITS]


@dataclass(slots=True, eq=False)
class RecordedHandling:
    """A `hand`, an `ack` or a `release` row."""

    process: str
    op_id: int
    f: str
    client: str
    session: int
    topic: str
    host: str | None
    time: Time
    first_id: int | None
    last_id: int
    cursor: int | None
    redelivered: int

    @property
    def ids(self) -> range:
        """The ids that the row names; none of an acknowledgment up to some id."""
        return range(0) if self.first_id is None else range(self.first_id, self.last_id + 1)


class Drained(NamedTuple):
    """A subscriber's row that it has read a topic to its tombstone."""

    client: str
    topic: str
    host: str | None
    time: Time
    last_id: int


class PurgeRow(NamedTuple):
    """A row that a purge of a topic up to `last_id` is asked for, or that it `is_done`."""

    topic: str
    last_id: int
    host: str | None
    time: Time
    is_done: bool


class Settled(NamedTuple):
    """A row that a worker was told that all of a topic is settled in its group."""

    topic: str
    group: str
    last_id: int


class Phase(NamedTuple):
    """A row that a phase of the run begins."""

    name: str
    host: str | None
    time: Time


@dataclass(eq=False)
class Record:
    """All that is recorded of a run. `holes`: what of the record contradicts itself or is missing.

    `nodes`: of each whether its disk was read.
    """

    run_id: str
    operations: list[RecordedOperation] = field(default_factory=list)
    handlings: list[RecordedHandling] = field(default_factory=list)
    drained: list[Drained] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    purges: list[PurgeRow] = field(default_factory=list)
    faults: list[Event] = field(default_factory=list)
    truth: list[Event] = field(default_factory=list)
    nodes: dict[str, bool] = field(default_factory=dict)
    is_application: bool = False
    holes: list[str] = field(default_factory=list)

    def of(self, f: str) -> list[RecordedOperation]:
        """Return the operations of one function."""
        return self._by_function[f]

    @cached_property
    def _by_function(self) -> dict[str, list[RecordedOperation]]:
        found: dict[str, list[RecordedOperation]] = {f: [] for f in FUNCTIONS}
        for operation in self.operations:
            found[operation.f].append(operation)
        return found

    @cached_property
    def handlings_of(self) -> dict[tuple[str, str], list[RecordedHandling]]:
        """The rows of what was handed over, by client and topic, in the order of time."""
        found: dict[tuple[str, str], list[RecordedHandling]] = defaultdict(list)
        for row in sorted(self.handlings, key=lambda one: one.time):
            found[row.client, row.topic].append(row)
        return found

    @cached_property
    def expiring(self) -> set[str]:
        """The topics to which something was put that expires, and those that are compacted."""
        return self.expires | self.compacted

    @cached_property
    def expires(self) -> set[str]:
        """The topics to which something was put that expires."""
        return {put.topic.removesuffix(LANE) for put in self.of("put") if put.may_expire}

    @cached_property
    def compacted(self) -> set[str]:
        """The topics of which somebody was told that they are compacted, or what went by that."""
        told = {get.named for get in self.of("get") if get.error == "compacted"}
        return told | {one.topic for one in self.of("group") if one.is_compacted}

    @cached_property
    def stored_in(self) -> dict[str, list[RecordedOperation]]:
        """The PUTs that were told where they stand, by topic."""
        found: dict[str, list[RecordedOperation]] = defaultdict(list)
        for put in self.of("put"):
            if put.placed:
                found[put.topic].append(put)
        return found

    def gets_of(self, client: str, topic: str) -> list[RecordedOperation]:
        """Return a client's GETs of a topic, answered or not; of any topic, those that named it."""
        return self._gets_of[client, topic]

    @cached_property
    def _gets_of(self) -> dict[tuple[str, str], list[RecordedOperation]]:
        found: dict[tuple[str, str], list[RecordedOperation]] = defaultdict(list)
        for get in self.of("get"):
            if topic := get.named or get.topic:
                found[get.client, topic].append(get)
        return found

    def silences(self, client: str, topic: str) -> dict[tuple[str, int], list[Time]]:
        """Return when GETs were sent that got no answer, by process and session, in order.

        A GET of any topic may have been about this one.
        """
        found: dict[tuple[str, int], list[Time]] = defaultdict(list)
        for name in {topic, ""}:
            for get in self._silent_gets.get((client, name), ()):
                found[get.process, get.session].append(get.invoke)
        for times in found.values():
            times.sort()
        return found

    @cached_property
    def _silent_gets(self) -> dict[tuple[str, str], list[RecordedOperation]]:
        found: dict[tuple[str, str], list[RecordedOperation]] = defaultdict(list)
        for get in self.of("get"):
            if not get.is_ok:
                found[get.client, get.topic].append(get)
        return found

    @cached_property
    def answers(self) -> list[RecordedOperation]:
        """The GETs that were answered."""
        return [get for get in self.of("get") if get.is_ok]

    @cached_property
    def forgotten(self) -> set[str]:
        """The clients that were told that the cluster has forgotten them."""
        return {one.client for one in self.operations if one.error == "forgotten"}

    @cached_property
    def followed(self) -> dict[str, set[str]]:
        """The patterns that a client may have subscribed to, by client."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self.of("sub"):
            if one.may_have_happened and set("*>") & set(one.topic):
                found[one.client].add(one.topic)
        return found

    @cached_property
    def brought_of(self) -> dict[str, list[RecordedOperation]]:
        """The GETs that brought publications, by topic; not those that were told of a purge."""
        found: dict[str, list[RecordedOperation]] = defaultdict(list)
        for get in self.answers:
            if get.brought and not get.tells_of_purge:
                found[get.named].append(get)
        return found

    @cached_property
    def floors(self) -> dict[str, int]:
        """Up to which id a node has collected a topic of which nothing is purged, dropped, or
        expires.
        """
        purged = {one.topic for one in self.purges} | self.expiring
        found: dict[str, int] = defaultdict(int)
        for row in self.truth:
            if row.get("kind") == "topic" and row["topic"] not in purged:
                found[row["topic"]] = max(found[row["topic"]], row["floor_id"])
        return found

    @cached_property
    def purged(self) -> dict[str, int]:
        """Up to which id rows say that a topic was to be purged, by topic."""
        found: dict[str, int] = {}
        for one in self.purges:
            found[one.topic] = max(one.last_id, found.get(one.topic, 0))
        return found

    @cached_property
    def collected(self) -> dict[str, range]:
        """The ids that a node has collected above what was to be purged, by topic; none of one that
        is compacted: below its floor some are left.
        """
        found: dict[str, range] = {}
        for row in self.truth:
            if row.get("kind") == "topic" and row["topic"] not in self.compacted:
                first = self.purged.get(row["topic"], 0) + 1
                until = max(row["floor_id"] + 1, found.get(row["topic"], range(0)).stop)
                found[row["topic"]] = range(first, until)
        return {topic: ids for topic, ids in found.items() if ids}

    def may_have_gone(self, topic: str, id_: int) -> bool:
        """Return whether a publication of a topic in which some do may have expired, or been
        compacted away: what has no properties has no key, so nothing replaces it.
        """
        return topic in self.expiring and not any(
            put.first_id <= id_ < put.first_id + put.count
            and put.expiry_of(id_) is None
            and not (topic in self.compacted and id_ in put.properties)
            for put in self.stored_in.get(topic, ())
            if put.first_id
        )

    @cached_property
    def told_of_purges(self) -> list[RecordedOperation]:
        """The GETs that were told what is gone."""
        return [get for get in self.answers if get.tells_of_purge]

    def tombstone(self, topic: str, host: str | None) -> Time | None:
        """Return when the topic's first PUT of the phase `tombstone` was sent.

        None: that is not known on `host`; then nothing is known of what was put before.
        """
        return self._tombstones.get((topic, host))

    @property
    def has_tombstones(self) -> bool:
        """Whether the run has a phase in which tombstones are put."""
        return any(phase.name == "tombstone" for phase in self.phases)

    @cached_property
    def _tombstones(self) -> dict[tuple[str, str | None], Time]:
        begun: dict[str | None, Time] = {}
        for phase in self.phases:
            if phase.name == "tombstone":
                begun[phase.host] = min(phase.time, begun.get(phase.host, NEVER))
        found: dict[tuple[str, str | None], Time] = {}
        for put in self.of("put"):
            if put.host in begun and put.invoke >= begun[put.host]:
                key = (put.topic, put.host)
                found[key] = min(put.invoke, found.get(key, NEVER))
        return found

    @property
    def unplaced(self) -> list[RecordedOperation]:
        """The answers that brought something, and lack the cursor or topic asked for."""
        return [get for get in self.answers if get.brought and get.asked is None]

    def row(
        self, *operations: RecordedOperation | RecordedHandling | None, **fields: Any
    ) -> Evidence:
        """Return a row of evidence."""
        keys = tuple((each.process, each.op_id) for each in operations if each is not None)
        return Evidence(self.run_id, **fields, operations=keys)


def fill(run: Record, rows: list[Event]) -> None:
    """Put rows together; those of a process are in the order of its lines."""
    run.is_application |= any(row.get("digests") is not None for row in rows)
    groups: dict[tuple[str, int], list[Event]] = {}
    for row in rows:
        if row["f"] in FUNCTIONS:
            groups.setdefault((row["process"], row["op_id"]), []).append(row)
        else:
            _take_single(run, row)
    for (process, op_id), group in groups.items():
        if complaint := contradiction(group):
            run.holes.append(f"{process} {op_id}: {complaint}")
        if complaint in _LEFT_OUT_NOT:
            run.operations.append(_operation(group))
    run.holes += _misnumbered(rows)
    run.holes += _displaced(rows)


NO_INVOKE: Final = "an end without an invoke"
_LEFT_OUT_NOT: Final = frozenset({"", NO_INVOKE})  # a lone end is judged as far as it goes

# What an end repeats of its invoke: its own name for it, the invoke's, and of which functions.
_REPEATED: Final = (
    ("f", "f", FUNCTIONS),
    ("client_id", "client_id", FUNCTIONS),
    ("session", "session", FUNCTIONS),
    ("topic", "topic", FUNCTIONS - {"get"}),  # a GET's answer names a topic of its own
    ("counter", "counter", {"put"}),
    ("count", "count", {"put"}),
    ("epoch", "epoch", FUNCTIONS),
    ("host", "host", FUNCTIONS),
    ("invoke_ns", "t_ns", FUNCTIONS),
    ("asked", "last_id", FUNCTIONS),
    ("max_count", "max_count", FUNCTIONS),
)


def contradiction(group: list[Event]) -> str:
    """Return what is wrong with the rows of an operation, "" if nothing is."""
    invokes = [row for row in group if row["type"] == "invoke"]
    ends = [row for row in group if row["type"] != "invoke"]
    if len(invokes) > 1:
        return "two invokes"
    if len(ends) > 1:
        return "two ends"
    if not invokes:
        return NO_INVOKE
    if not ends:
        return ""
    [invoke], [end] = invokes, ends
    if group[0] is not invoke or end["t_ns"] < invoke["t_ns"]:
        return "an end before its invoke"
    for own, its, functions in _REPEATED:
        if invoke["f"] in functions and end.get(own) is not None and end[own] != invoke.get(its):
            return f"an end that says another {own} than its invoke"
    return ""


def _misnumbered(rows: Iterable[Event]) -> list[str]:
    """Return the processes whose op_ids do not go 1, 2, 3 and on, by what begins something."""
    last: dict[str, int] = defaultdict(int)
    found: dict[str, str] = {}
    for row in rows:
        op_id, process = row.get("op_id"), row["process"]
        if op_id is None or (row["f"] in FUNCTIONS and row["type"] != "invoke"):
            continue
        if op_id != last[process] + 1:
            found.setdefault(process, f"{process}: op_id {op_id} behind {last[process]}")
        last[process] = op_id
    return list(found.values())


def _displaced(rows: Iterable[Event]) -> list[str]:
    """Return the processes that go back to an earlier session, or to another host within one. A
    line that does not say its session stands anywhere.
    """
    latest: dict[str, int] = {}
    hosts: dict[tuple[str, int], str | None] = {}
    found: dict[str, str] = {}
    for row in rows:
        process, session = row["process"], row.get("session")
        if session is None:
            continue
        if hosts.setdefault((process, session), row.get("host")) != row.get("host"):
            found.setdefault(process, f"{process}: session {session} is of two hosts")
        is_end = row["f"] in FUNCTIONS and row["type"] != "invoke"
        if not is_end and session < latest.setdefault(process, session):
            found.setdefault(process, f"{process}: session {session} behind {latest[process]}")
        latest[process] = max(session, latest.get(process, session))
    return list(found.values())


def _take_single(run: Record, row: Event) -> None:
    f = row["f"]
    if f in HANDLINGS:
        run.handlings.append(
            RecordedHandling(
                process=row["process"],
                op_id=row.get("op_id") or 0,
                f=f,
                client=row.get("client_id") or "",
                session=row.get("session") or 0,
                topic=row.get("topic") or "",
                host=row.get("host"),
                time=row["t_ns"],
                first_id=row.get("first_id"),
                last_id=row.get("last_id") or 0,
                cursor=row.get("cursor"),
                redelivered=row.get("redelivered") or 0,
            )
        )
    elif f == "phase" and row.get("phase") == "drained":
        who = (row.get("client_id") or "", row.get("topic") or "", row.get("host"))
        run.drained.append(Drained(*who, row["t_ns"], row.get("last_id") or 0))
    elif f == "phase" and row.get("phase") == "settled":
        settled = row.get("topic") or "", row.get("group") or "", row.get("last_id") or 0
        run.settled.append(Settled(*settled))
    elif f in PURGES:
        topic, last_id = row["topic"], row["last_id"]
        run.purges.append(PurgeRow(topic, last_id, row.get("host"), row["t_ns"], f == "purged"))
    elif f == "phase":
        run.phases.append(Phase(row.get("phase") or "", row.get("host"), row["t_ns"]))
    elif f == "fault":
        run.faults.append(row)


def _operation(group: list[Event]) -> RecordedOperation:
    """Return the operation of an invoke and its end, or of one of them."""
    begun: Event = next((row for row in group if row["type"] == "invoke"), {})
    ended: Event = next((row for row in group if row["type"] != "invoke"), {})
    row = begun or ended

    def either(name: str) -> Any:
        own = begun.get(name)
        return ended.get(name) if own is None else own

    operation = RecordedOperation(
        process=row["process"],
        op_id=row["op_id"],
        f=row["f"],
        client=either("client_id") or "",
        session=either("session") or 0,
        topic=row.get("topic") or "",
        host=either("host"),
        epoch=either("epoch"),
        invoke=_first_known(begun.get("t_ns"), ended.get("invoke_ns"), BEFORE_ALL),
        end=_first_known(ended.get("t_ns"), NEVER),
        outcome=ended.get("type", "info"),
        error=ended.get("error") or "",
        node=ended.get("node"),
        term=ended.get("term"),
        attempt=ended.get("attempt"),
        digests=either("digests"),
    )
    if operation.is_ok:
        operation.times = [(first, last, at_ms) for first, last, at_ms in ended.get("times") or ()]
        said = ended.get("properties") or ""
        operation.properties = {
            id_: said[DIGEST_DIGITS * place : DIGEST_DIGITS * (place + 1)]
            for place, id_ in enumerate(ended.get("marked") or ())
        }
    _FILLED[operation.f](operation, begun, ended)
    return operation


def _first_known(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _fill_put(put: RecordedOperation, begun: Event, ended: Event) -> None:
    put.counter = _known_or_none(begun.get("counter"), ended.get("counter"))
    put.count = begun.get("count") or ended.get("count") or 1
    put.is_duplicate = bool(ended.get("duplicate"))
    put.first_id = ended.get("first_id")
    put.may_expire = "expires" in begun or "expires" in ended
    put.delays = [(first, last, ms) for first, last, ms in begun.get("delays") or ()]
    if put.is_ok:
        put.expires = [(first, last, ms) for first, last, ms in ended.get("expires") or ()]
        put.keys = _keys(ended)


def _fill_get(get: RecordedOperation, begun: Event, ended: Event) -> None:
    get.first_id, get.last_id = ended.get("first_id"), ended.get("last_id")
    get.max_count = _known_or_none(begun.get("max_count"), ended.get("max_count"))
    get.is_handed_apart = bool(ended.get("handed_apart"))
    for first_id, producer, counter, count in ended.get("items") or ():
        for place in range(count):
            get.given.append(Given(first_id + place, producer, counter + place))
    if ended.get("digests") is not None:
        get.given += [Given(id_, None, None) for id_, _ in get.contents()]
    get.corrupt = [(id_, reason) for id_, reason in ended.get("corrupt") or ()]
    get.letters, get.delayed = _letters(ended), _delayed(ended)
    if ended.get("digests") is None:
        get.nobodys = [letter.id for letter in get.letters] + [each.id for each in get.delayed]
    if not begun:  # its topic is the answer's
        get.topic = ended.get("topic") or ""
    if is_told_of_purge(ended):
        get.outcome, get.tells_of_purge, get.max_count = "ok", True, None
        gone = range(ended["first_id"], ended["last_id"] + 1)
        get.given += [Given(id_, None, None) for id_ in gone]
    get.answered = ended.get("topic") or get.topic
    get.named = get.answered if get.brought else get.topic
    said = _known_or_none(begun.get("last_id"), ended.get("asked"))
    get.is_unsaid = said is None and bool(ended.get("unsaid"))
    asked = _known_or_none(said, ended.get("cursor"))
    # What a client has of one topic says nothing of another one's answer.
    get.asked = asked if get.topic in ("", get.named) else None


def is_told_of_purge(end: Event) -> bool:
    """Return whether an end of a GET says which ids are purged."""
    return end.get("type") == "fail" and end.get("error") in GONE and "first_id" in end


def _known_or_none(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _fill_control(control: RecordedOperation, begun: Event, ended: Event) -> None:
    control.last_id, control.cursor = ended.get("last_id"), ended.get("cursor")
    control.resumed, control.start = ended.get("resumed"), begun.get("start")
    control.is_compacted = bool(ended.get("compacted"))


def _keys(ended: Event) -> dict[int, str]:
    """Return which ids have a key, a digest each."""
    digits = ended.get("keys") or ""
    size = DIGEST_DIGITS
    return {
        id_: digits[size * place : size * (place + 1)]
        for place, id_ in enumerate(ended.get("keyed") or ())
    }


def _letters(ended: Event) -> list[Letter]:
    return [Letter(*letter) for letter in ended.get("letters") or ()]


def _delayed(ended: Event) -> list[Given]:
    return [
        Given(first_id + place, producer, counter + place)
        for first_id, producer, counter, count in ended.get("delayed") or ()
        for place in range(count)
    ]


def _fill_group(control: RecordedOperation, begun: Event, ended: Event) -> None:
    _fill_control(control, begun, ended)
    name, max_attempts = begun.get("group") or "", begun.get("max_attempts")
    lease_ms = begun.get("lease_ms")
    ordered = begun.get("ordered_by_key")
    control.of_group = OfGroup(
        name,
        max_attempts=max_attempts,
        dead_letter=begun.get("dead_letter"),
        lease_ms=lease_ms,
        is_ordered=ordered,
    )


def _fill_take(take: RecordedOperation, begun: Event, ended: Event) -> None:
    take.max_count = begun.get("max_count")
    take.of_group = OfGroup(
        begun.get("group") or "",
        begun.get("number"),
        lease_ms=begun.get("lease_ms"),
        acks=[(token, first, last) for token, first, last in begun.get("acks") or ()],
        naks=[(token, *run) for token, *run in begun.get("naks") or ()],
        extends=[(token, *run) for token, *run in begun.get("extends") or ()],
    )
    if take.is_ok:
        take.of_group.token = ended.get("token") or 0
        take.of_group.leases = [LeasedRun(*lease) for lease in ended.get("leases") or ()]
        take.of_group.lost = [(first, last) for first, last in ended.get("lost") or ()]
        take.of_group.left_ms = ended.get("left_ms") or 0
        take.of_group.keys = _keys(ended)
        take.letters, take.delayed = _letters(ended), _delayed(ended)
        for first_id, producer, counter, count in ended.get("items") or ():
            for place in range(count):
                take.given.append(Given(first_id + place, producer, counter + place))
        take.corrupt = [(id_, reason) for id_, reason in ended.get("corrupt") or ()]


_FILLED: Final = {
    "put": _fill_put,
    "get": _fill_get,
    "sub": _fill_control,
    "unsub": _fill_control,
    "group": _fill_group,
    "ungroup": _fill_group,
    "take": _fill_take,
}
