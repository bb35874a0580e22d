"""A case on two stores and in the reference: what has to hold behind each entry.

What lives here: the stores and what befalls them, the comparisons, and what is read. What must not:
drawing (cases.py), and what a person is told (fuzzer.py).

`steady` takes every entry as its leader made it, and is never opened again. `restless` decodes it,
and is opened again, crashes and is copied at any time. The simulator's reference takes the same
operations. So a rule that one of three has wrong is seen, and so is what an entry raises.
"""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chaos.simulation.checks.rebuilt import Differences, is_so, memory_of
from chaos.simulation.checks.reference import Reference
from chaos.simulation.checks.upkeep import miscounted, out_of_date
from chaos.simulation.plan.limits import limited
from cluster.log.entries import FIRST_INDEX
from cluster.store import rows, snapshots, tables
from cluster.store.commands import encode, misfit
from cluster.store.outcomes import Delivery, Looked, Outcome
from cluster.store.store import Store
from flotilla_client.protocol import unpack
from tests.fuzz_store.cases import MEMBERS, PRINCIPALS, RESTLESS, STEADY, DrawnEntry, EntriesCase
from tests.unit.store_bench import views

ENTRY_S_MAX: Final = 10.0  # one that takes longer is a finding: it may never end
CHECKED_SHARE: Final = 0.1  # of the entries, behind which all of the stores is compared
READS: Final = 4  # behind an entry
LOOKS_MAX: Final = 1_000  # until a read has an answer
SERVED_SHARE: Final = 0.5  # of what is read of any topic is said to be sent


class Wrong(AssertionError):
    """Something that has to hold does not."""


@dataclass(frozen=True)
class StoreFinding:
    """What a case has come to, and by which entry; `place` tells one defect from another."""

    entry: int
    place: str
    text: str


def finding_of(case: EntriesCase) -> StoreFinding | None:
    """Run a case; return what is wrong, None if all is right."""
    with limited(case.knobs), tempfile.TemporaryDirectory() as directory:
        trial = StoreTrial(case, Path(directory))
        try:
            for entry in case.entries:
                with _bounded():
                    trial.take(entry)
            trial.compare()
        except Exception as error:  # noqa: BLE001 - whatever it is: that is what is looked for
            return StoreFinding(trial.taken, *_told(error))
        finally:
            trial.close()
    return None


@contextmanager
def _bounded() -> Iterator[None]:
    """Have what takes too long of the processor's time raise."""

    def over(*_: object) -> None:
        raise Wrong(f"an entry takes longer than {ENTRY_S_MAX} s")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, ENTRY_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _told(error: Exception) -> tuple[str, str]:
    """Return where it was raised, and what a person is told."""
    frames, traceback = list[str](), error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "site-packages" not in code.co_filename:
            frames.append(f"{Path(code.co_filename).name}:{code.co_name}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    place = frames[-1]
    if isinstance(error, Wrong):
        place = f"{place} {str(error).partition(':')[0]}"
    return place, f"{type(error).__name__}: {error}\n  by {' > '.join(frames)}"


class StoreTrial:
    """A case under way: `taken` entries of it."""

    def __init__(self, case: EntriesCase, directory: Path) -> None:
        self._limits, self._directory = case.store_limits(), directory
        self.taken = 0
        self._reference = Reference(self._limits)
        self._reference.applied_index = FIRST_INDEX
        self._differences = Differences(self._reference)
        self._paths = {name: directory / name / "store.db" for name in (STEADY, RESTLESS)}
        self._stores: dict[str, Store] = {}
        self._log: list[tuple[int, bytes, list[Outcome]]] = [(0, b"", [])] * (FIRST_INDEX + 1)
        for name, path in self._paths.items():
            path.parent.mkdir()
            self._stores[name] = self._opened(path)
            self._stores[name].apply(FIRST_INDEX, 0, b"")

    def _opened(self, path: Path) -> Store:
        return Store.open(path, MEMBERS, self._limits)

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores.values():
            store.close()

    # --- an entry ---------------------------------------------------------------------------------

    def take(self, entry: DrawnEntry) -> None:
        """Carry it out everywhere, and look at everything that is quick."""
        self.taken += 1
        index, stamp, operations = FIRST_INDEX + self.taken, entry.stamp, entry.operations
        for operation in operations:
            if why := misfit(operation):
                raise Wrong(f"no entry says {operation}: {why}")
        payload = encode(stamp.ms, operations, stamp.wall_ms)
        outcomes = self._stores[STEADY].apply(index, entry.term, payload, (stamp, operations))
        others = self._stores[RESTLESS].apply(index, entry.term, payload)
        self._log.append((entry.term, payload, outcomes))
        if outcomes != others:
            raise Wrong(f"two stores differ: {outcomes} and {others}")
        self._judge(index, entry, outcomes)
        for store in self._stores.values():
            self._look(store)
        rng = random.Random(entry.reads)
        self._read(rng)
        for befall in entry.befalls:
            self._befall(*befall)
        if rng.random() < CHECKED_SHARE:
            self.compare()

    def _judge(self, index: int, entry: DrawnEntry, outcomes: list[Outcome]) -> None:
        """Compare what the operations came to with what the reference says."""
        results = self._reference.apply(index, entry.operations, entry.term, entry.stamp)
        for operation, outcome, result in zip(entry.operations, outcomes, results, strict=True):
            if result is not None and not is_so(outcome, result):
                what = type(operation).__name__
                raise Wrong(f"the reference differs on {what}: {outcome}, not {result}")

    def _befall(self, name: str, what: str, count: int) -> None:
        store, path = self._stores[name], self._paths[name]
        if what == "commit":
            store.commit()
        elif what == "collect":
            store.collect_garbage(count)
        elif what == "crash":
            store.close()
            self._again(name, self._opened(path))
        else:
            store.commit()
            before = memory_of(store)
            if what == "install":
                copy = path.with_name("copy-1.db")
                snapshots.make_copy(path, copy, pause=lambda _: None)
            store.close()
            if what == "install":
                snapshots.install(copy, path)
            self._stores[name] = store = self._opened(path)
            _same("what a store has in memory", before, memory_of(store))

    def _again(self, name: str, store: Store) -> None:
        """Carry out again what was not committed: it comes to the same."""
        self._stores[name] = store
        for index in range(store.applied_index + 1, len(self._log)):
            term, payload, outcomes = self._log[index]
            if (found := store.apply(index, term, payload)) != outcomes:
                raise Wrong(f"an entry differs when it comes again: {found}, not {outcomes}")

    # --- comparisons ------------------------------------------------------------------------------

    def _look(self, store: Store) -> None:
        """See that what is kept beside the state follows from it."""
        groups = store.groups._groups.values()
        if store.groups._open_count != sum(len(group.open) for group in groups):
            raise Wrong(f"the open ones of all groups: {store.groups._open_count}")
        for group in groups:
            if text := miscounted(group):
                raise Wrong(f"a group: {group.name} of {group.topic.name}: {text}")
        for client_id, unread in store._topics._unread.items():
            if text := out_of_date(store, client_id, unread):
                raise Wrong(f"what is unread: of {client_id} is kept that {text}")
        store.take_entered()
        store.take_successor()
        store.groups.take_stirred()
        store.patterns.take_missing()

    def compare(self) -> None:
        """Compare all of both stores, with one another and with the reference."""
        steady, restless = (self._stores[name] for name in (STEADY, RESTLESS))
        if steady.digest() != restless.digest():
            raise Wrong("the digests differ")
        _same("what two stores have in memory", memory_of(steady), memory_of(restless))
        _same("what two stores tell", _told_alike(steady), _told_alike(restless))
        for difference in self._differences.of(steady):
            raise Wrong(f"the reference: {difference}")
        rows.check_rows(self._paths[STEADY], steady._database._connection, lambda _: None)
        tables.checkpoint(self._paths[STEADY])

    # --- reads ------------------------------------------------------------------------------------

    def _read(self, rng: random.Random) -> None:
        """Read as clients do, from both stores: it raises nothing, and is what was published."""
        steady, restless = self._stores[STEADY], self._stores[RESTLESS]
        if not self._reference.topics or not self._reference.clients:
            return
        for _ in range(READS):
            asked = self._drawn(rng)
            for read in (_ReadAsked.own, _ReadAsked.anybodys):
                found, other = (_answer(read, asked, store) for store in (steady, restless))
                if found != other:
                    raise Wrong(f"two stores answer a read: {found} and {other}")
                self._is_as_published(asked, found)
            for store in (steady, restless):  # whose turn it is depends on what was served
                self._is_as_published(asked, found := _answer(_ReadAsked.any_topic, asked, store))
                if isinstance(found, Delivery) and found.count and rng.random() < SERVED_SHARE:
                    store.note_turn(asked.client_id, found.topic)
        self._read_leases(rng)

    def _drawn(self, rng: random.Random) -> _ReadAsked:
        topics = sorted(self._reference.topics)
        topic, client_id = rng.choice(topics), rng.choice(sorted(self._reference.clients))
        end = self._reference.last_id_at(topic, self._reference.applied_index)
        return _ReadAsked(
            client_id,
            topic,
            rng.choice((None, rng.randint(0, end + 1))),
            {name: rng.randint(0, 9) for name in topics if rng.random() < 0.2},
            rng.choice((None, *PRINCIPALS)),
            (rng.choice((1, 2, 100)), rng.choice((1, 60, 100_000))),
            {"knows_expiry": rng.random() < 0.9, "knows_runs": rng.random() < 0.5},
        )

    def _is_as_published(self, asked: _ReadAsked, found: Any) -> None:
        """See that what is delivered was published, and that what is told to be gone is."""
        told = found.passed if isinstance(found, Delivery) else found
        if told is not None and "first_id" in told.details:
            name, last_id = told.details.get("topic", asked.topic), told.details["last_id"]
            there = [
                id_
                for id_ in range(told.details["first_id"], last_id + 1)
                if not self._is_gone(name, id_)
            ]
            if there or (isinstance(found, Delivery) and found.first_id != last_id + 1):
                raise Wrong(f"a reader is told what is not so: {found}, {there} are there")
        if not isinstance(found, Delivery) or not found.count:
            return
        topic = self._reference.topics[found.topic]
        ids = [*range(found.first_id, found.first_id + found.count)]
        for first, count in found.runs:
            ids += range(first, first + count)
        published = [topic.publications[id_][1] for id_ in ids]
        if unpack(found.lengths, found.data) != published or any(
            self._is_gone(found.topic, id_) for id_ in ids
        ):
            raise Wrong(f"a delivery is not what was published: {found}, not {published}")

    def _is_gone(self, name: str, id_: int) -> bool:
        reference, index = self._reference, self._reference.applied_index
        return (
            id_ < reference.first_id_at(name, index)
            or reference.is_over_at(name, id_, index)
            or reference.is_compacted_at(name, id_, index)
        )

    def _read_leases(self, rng: random.Random) -> None:
        """Read what each has of a group, as a take that is repeated would have it read."""
        for topic, name in sorted(self._reference.groups):
            for client_id in self._reference.clients:
                found = []
                for store in self._stores.values():
                    group = store.groups.get(topic, name)
                    assert group is not None, name
                    store.groups.has_work(group, client_id, store.idle.log_ms + rng.choice((0, 9)))
                    worker = group.workers.get(client_id)
                    if worker is not None:
                        given = [worker.token, worker.given]
                        found.append(store.read_leased(client_id, topic, name, *given))
                if len(found) == 2 and found[0] != found[1]:
                    raise Wrong(f"two stores answer a take: {found[0]} and {found[1]}")


@dataclass(frozen=True)
class _ReadAsked:
    """What a client asks for: `bounds` are a count and bytes, `hows` what it knows."""

    client_id: str
    topic: str
    last_id: int | None
    last_ids: dict[str, int]
    principal: str | None
    bounds: tuple[int, int]
    hows: dict[str, bool]

    def own(self, store: Store, looked: dict[str, Looked]) -> Any:
        """Ask for what it has not got of a topic."""
        placed = store.placed(self.client_id).get(self.topic, 0)
        who = self.client_id, self.topic, self.last_id
        return store.read(*who, *self.bounds, placed, looked=looked, **self.hows)

    def anybodys(self, store: Store, looked: dict[str, Looked]) -> Any:
        """Ask for what the topic holds."""
        return store.read_from(
            self.topic, self.last_id or 1, *self.bounds, looked=looked, **self.hows
        )

    def any_topic(self, store: Store, looked: dict[str, Looked]) -> Any:
        """Ask for what it has not got of any topic."""
        placed = store.placed(self.client_id)
        who = self.client_id, self.last_ids
        return store.read_any(
            *who, *self.bounds, self.principal, placed, looked=looked, **self.hows
        )


def _answer(read: Callable[[_ReadAsked, Store, Any], Any], asked: _ReadAsked, store: Store) -> Any:
    """Ask until there is an answer."""
    looked: dict[str, Looked] = {}
    for _ in range(LOOKS_MAX):
        found = read(asked, store, looked)
        if not isinstance(found, Looked):
            return found
        looked[found.topic] = found
    raise Wrong(f"a read has no answer: {looked}")


def _told_alike(store: Store) -> dict[str, Any]:
    """Return what a node tells of its state, but for what depends on when it collects."""
    told = views(store)
    told["statistics"].pop("backlog_bytes")
    for row in told["topics"]:
        row.pop("backlog_bytes")
    return told


def _same(what: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in one.items():
        if value != other[name]:
            raise Wrong(f"{what}, {name}: {value} and {other[name]}")
