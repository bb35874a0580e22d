"""The second store, the mirrors of the disks and the drawn limits are themselves right."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.simulation.checks.books import ASKED_S_MAX, TAKE_S_MAX, Books, uncollected
from chaos.simulation.checks.calm import Calm
from chaos.simulation.checks.mirror import Mirror
from chaos.simulation.checks.raft_rules import RaftRules
from chaos.simulation.checks.rebuilt import ReopenedStore, is_so, memory_of
from chaos.simulation.checks.reference import ByIndex, Reference
from chaos.simulation.checks.work import WorkPromises
from chaos.simulation.disks.disk import SimDisk
from chaos.simulation.plan.limits import (
    CONSTANTS,
    DEFAULTS,
    OF_MANY,
    OF_THE_STORE,
    limited,
    store_limits,
    value_of,
)
from chaos.simulation.search.swarm import plan_for
from chaos.simulation.world.node import SimNode
from cluster.log.entries import FIRST_INDEX
from cluster.log.journal import Journal
from cluster.members.catchup import RETRY_S
from cluster.members.standing import Seniority
from cluster.serve import broker
from cluster.store import commands
from cluster.store.commands import (
    Advance,
    Forget,
    Hear,
    MakeGroup,
    Operation,
    Put,
    Raise,
    Register,
    Subscribe,
    SubscribePattern,
    TransferLeader,
    Unsubscribe,
)
from cluster.store.idle import HEARD_MS
from cluster.store.store import Done, Limits, Store
from cluster.wire.levels import LEVEL_OF_IDLE, LEVEL_OF_PATTERNS
from cluster.wire.messages import (
    AppendEntries,
    AppendEntriesResponse,
    ReadIndex,
    SnapshotOffer,
    TimeoutNow,
)
from flotilla_client.protocol import pack
from flotilla_client.work import LeaseBook

ENTRIES = 400


def _operation(rng: random.Random) -> Operation:
    client = rng.choice("ab")
    epoch = rng.choice((None, 1, 1, 1, 2))
    topic = rng.choice("xyz")
    lengths, data = pack([b"#" * rng.randint(0, 9) for _ in range(rng.randint(1, 3))])
    return rng.choice(
        (
            Register(client, rng.random() < 0.5, rng.choice((None, rng.randint(1, 9))), "n"),
            Subscribe(client, epoch, topic, rng.choice((None, rng.randint(1, 30)))),
            Unsubscribe(client, epoch, topic, rng.choice((None, rng.randint(1, 30)))),
            Put(client, epoch, topic, rng.randint(0, 12), lengths, data),
            Advance(client, epoch, {topic: rng.randint(0, 12)}),
        )
    )


def test_the_reference_comes_to_what_the_store_comes_to(tmp_path: Path) -> None:
    limits = Limits(topics_max=2, subscriptions_max=4, subscriptions_per_client_max=2)
    store = Store.open(tmp_path / "store.db", {"n": "i"}, limits)
    store.apply(FIRST_INDEX, 0, b"")
    reference, rng = Reference(limits), random.Random(7)
    for index in range(FIRST_INDEX + 1, ENTRIES):
        operations = [_operation(rng) for _ in range(rng.randint(1, 3))]
        outcomes = store.apply(index, 1, commands.encode(0, operations))
        results = reference.apply(index, operations)
        for outcome, result, operation in zip(outcomes, results, operations, strict=True):
            assert result is not None
            assert is_so(outcome, result), (operation, outcome, result)
    assert store.topic_ends() == {
        row["topic"]: row["last_id"] for row in reference.listing_at("", reference.applied_index)
    }
    store.close()


def _about_silence(rng: random.Random) -> Operation:
    clients = rng.sample("ab", rng.randint(0, 2))
    hours = rng.randint(0, 5) * HEARD_MS
    return rng.choice((Hear(clients), Forget(clients, hours), _operation(rng)))


def test_the_reference_forgets_whom_a_store_forgets_that_is_opened_again_at_times(
    tmp_path: Path,
) -> None:
    members, reference, rng = {"n": "i"}, Reference(Limits()), random.Random(7)
    lost: list[str] = []
    reopened = ReopenedStore(tmp_path / "reopened.db", members, rng, lost.append)
    reopened.store.apply(FIRST_INDEX, 0, b"")
    term, stamp_ms = 1, 0
    for index in range(FIRST_INDEX + 1, ENTRIES):
        operations: list[Operation] = [_about_silence(rng) for _ in range(rng.randint(1, 3))]
        if index == FIRST_INDEX + 20:
            operations.append(Raise(LEVEL_OF_IDLE))
        if rng.random() < 0.1:
            term, stamp_ms = term + 1, rng.randrange(100 * HEARD_MS)
        stamp_ms += rng.randrange(2 * HEARD_MS)
        outcomes = reopened.apply(index, term, commands.encode(stamp_ms, operations))
        results = reference.apply(index, operations, term, commands.Stamp(stamp_ms))
        for outcome, result, operation in zip(outcomes, results, operations, strict=True):
            assert result is None or is_so(outcome, result), (operation, outcome, result)
    assert reference.forgotten.now > 5
    assert reopened.store.idle.log_ms == reference.log_ms
    assert lost == []
    reopened.store.holdings.clients["nobody"] += 1  # and no row says so
    reopened.reopen()
    assert len(lost) == 1
    reopened.store.close()


def test_the_past_is_what_it_was_behind_each_entry() -> None:
    past: ByIndex[int] = ByIndex(0)
    past.put(3, 30)
    past.put(3, 31)
    past.put(7, 70)
    assert [past.at(index) for index in (2, 3, 6, 7, 9)] == [0, 31, 31, 70, 70]
    assert [*past.during(4, 7)] == [31, 70]


def test_a_subscription_has_not_ended_for_a_node_that_is_not_there_yet() -> None:
    reference = Reference(Limits())
    reference.apply(2, [Register("me", True, None, "n")])
    reference.apply(3, [Subscribe("me", 1, "t", 1)])
    reference.apply(5, [Unsubscribe("me", 1, "t", 2)])
    client = reference.clients["me"]
    assert client.has_left_between("t", 3, 5)
    assert not client.has_left_between("t", 3, 4)
    assert not client.has_left_between("t", 5, 9)


def test_a_mirror_has_what_the_journal_has_synced_and_no_more() -> None:
    disk = SimDisk(lambda: None)
    node: Any = SimpleNamespace(disk=disk, life=1)
    directory = Path("/journal")
    Journal.create(directory, disk)
    journal = Journal.open(directory, 300, 300, files=disk, on_failure=disk.stop)
    journal.set_term(4, "b")
    mirror = Mirror(cast(SimNode, node))
    first = journal.last_index + 1
    for index in range(first, first + 20):
        journal.add(b"\0command", index, 4)
    before = mirror.look().last_index
    assert before < first + 19, "nothing is synced yet"
    journal.sync()
    mirror.look()
    assert (mirror.term, mirror.vote, mirror.last_index) == (4, "b", first + 19)
    journal.set_term(5, None)
    journal.add(b"\0other", first + 10, 5)
    journal.sync()
    mirror.look()
    assert (mirror.last_index, mirror.last_term, mirror.vote) == (first + 10, 5, None)
    assert not mirror.holds(first + 11, 4)


def test_limits_are_a_runs_own_and_are_put_back() -> None:
    before, limits = broker.PUT_BYTES_MAX, Store.open.__func__.__defaults__  # type: ignore[attr-defined]
    with limited({"put_bytes_max": 5, "topics_max": 2, "batch_count_max": 3}):
        assert (value_of("put_bytes_max"), value_of("batch_count_max")) == (5, 3)
        assert Store.open.__func__.__defaults__[0].topics_max == 2  # type: ignore[attr-defined]
    assert before == broker.PUT_BYTES_MAX
    assert Store.open.__func__.__defaults__ == limits  # type: ignore[attr-defined]
    assert store_limits({}) == Limits()
    cached = Journal.open.__func__.__defaults__  # type: ignore[attr-defined]
    with limited({"journal_cache_bytes": 7}):
        assert 7 in Journal.open.__func__.__defaults__  # type: ignore[attr-defined]
    assert Journal.open.__func__.__defaults__ == cached  # type: ignore[attr-defined]


def test_every_limit_is_drawn_small_by_some_seed() -> None:
    drawn = {knob for seed in range(1, 121) for knob in plan_for(seed, "safety").knobs}
    assert not {*CONSTANTS, *DEFAULTS, *OF_THE_STORE, *OF_MANY} - drawn


def test_what_a_store_has_in_memory_of_groups_and_patterns_is_compared(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store.db", {"a": "1"})
    who = "c", None
    operations = (
        Raise(LEVEL_OF_PATTERNS),
        Register("c", True, None, ""),
        MakeGroup(*who, "t", None, "g", 1_000, None, None),
        SubscribePattern(*who, "o.*", None, "new", 0),
    )
    for operation in operations:
        [outcome] = store.apply(store.applied_index + 1, 1, commands.encode(1, [operation]))
        assert isinstance(outcome, Done), outcome
    before = memory_of(store)
    assert memory_of(store) == before
    store.groups._open_count += 1
    assert memory_of(store) != before
    store.groups._open_count -= 1
    store.patterns._found["t"] = [store.patterns.of("c")["o.*"]]
    assert memory_of(store) != before
    store.close()


def test_a_take_that_waits_for_what_is_there_or_for_no_group_is_seen(tmp_path: Path) -> None:
    group = SimpleNamespace(workers={})
    clock = [0.0]
    store = SimpleNamespace(
        idle=SimpleNamespace(row=lambda: (0, 1, 0, 0)),
        groups=SimpleNamespace(get=lambda *key: group, has_work=lambda *about: True),
        lacks=lambda *about: None,
    )
    request = SimpleNamespace(client_id="c", epoch=1, body={"number": 1, "max_count": 1})
    waiting = SimpleNamespace(request=request, principal=None)
    led = SimpleNamespace(_parked_takes={("t", "g"): {1: waiting}})
    raft = SimpleNamespace(serving=True, term=1)
    member = SimpleNamespace(broker=led, store=store, raft=raft)
    node = SimpleNamespace(name="a", life=1, clock=lambda: clock[0])
    books = Books(cast("Any", SimpleNamespace(watchers=[])), cast("Any", None), cast("Any", None))

    def found() -> list[str]:
        return [check for check, _ in books._takes_in_vain(cast("Any", node), cast("Any", member))]

    assert found() == []
    clock[0] = TAKE_S_MAX + 0.1
    assert found() == ["waits"]
    group = None
    assert found() == ["waits"]


def test_a_wait_for_any_topic_that_a_forgotten_client_has_left_is_seen() -> None:
    reference = Reference(Limits())
    reference.apply(1, [Raise(LEVEL_OF_IDLE)], 1, commands.Stamp(0))
    reference.apply(2, [Register("c", True, 0, "n")], 1, commands.Stamp(0))
    reference.apply(3, [Forget(["c"], -(10**9))], 1, commands.Stamp(0))
    store = SimpleNamespace(applied_index=2, _topics=SimpleNamespace(active={}, of=lambda one: {}))
    waiting = SimpleNamespace(principal=None)
    led = SimpleNamespace(_parked={}, _parked_any={"c": {1: waiting}})
    member = SimpleNamespace(broker=led, store=store)
    world, nobody = SimpleNamespace(watchers=[]), cast("Any", None)
    books = Books(cast("Any", world), nobody, reference)

    def found() -> list[str]:
        return [check for check, _ in books._parked_in_vain(cast("Any", member))]

    assert found() == []
    store.applied_index = 3
    assert found() == ["waits"]


def _rules(node: SimpleNamespace, mirror: SimpleNamespace, failures: list[str]) -> RaftRules:
    """Return the rules of a world of one machine, and of a disk that is `mirror`."""
    invariants = SimpleNamespace(fail=lambda check, text: failures.append(check), on_entry=[])
    net = SimpleNamespace(taps=[], send_taps=[], has_untaken=lambda name: False)
    net.hello_of = lambda one, other: SimpleNamespace(incarnation="an incarnation")
    net.closed_s = lambda one, other: float("-inf")
    node.disk, node.disk_faults = SimpleNamespace(is_synced=False), []
    world = SimpleNamespace(net=net, observers=[], watchers=[], now=0.0, machine=lambda name: node)
    world.plan = SimpleNamespace(nodes=3)
    rules = RaftRules(cast("Any", world), cast("Any", invariants))
    mirror.node, mirror.look = node, lambda: mirror
    rules._mirrors[node.name] = cast("Any", mirror)
    return rules


def test_a_follower_that_commits_more_than_it_was_shown_is_seen() -> None:
    failures = list[str]()
    raft = SimpleNamespace(commit_index=3, applied_index=3, is_leader=False)
    raft.term = raft.settled_index = 3
    member = SimpleNamespace(raft=raft, _server=SimpleNamespace(_number=0))
    node = SimpleNamespace(name="b", life=1, as_member=member)
    node.build, node.clock = SimpleNamespace(level_max=99), lambda: 0.0
    mirror = SimpleNamespace(term=3, last_term=3, last_index=9)
    mirror.holds = lambda index, term: (index, term) in {(4, 2), (9, 2)}
    rules = _rules(node, mirror, failures)
    rules._committed = 99
    of_node = cast("Any", node)

    def shown(previous: tuple[int, int], count: int) -> None:
        entries = [(b"\0\0", previous[0] + 1 + each, 3) for each in range(count)]
        rules._delivered("a", "b", AppendEntries(3, 8, *previous, entries))

    rules._turned(of_node)
    shown((7, 3), 1)  # what is before it is another's here: that proves nothing
    rules._turned(of_node)
    assert not failures
    shown((4, 2), 1)
    raft.commit_index = 5
    rules._turned(of_node)
    assert not failures
    raft.commit_index = 6
    rules._turned(of_node)
    assert failures == ["commit"]


def test_a_leader_that_hands_over_for_another_leader_s_wish_is_seen() -> None:
    failures = list[str]()
    frontend = SimpleNamespace(stopping=False)
    member = SimpleNamespace(_frontend=frontend)
    node = SimpleNamespace(name="a", life=1, as_member=member)
    rules = _rules(node, SimpleNamespace(last_index=9, last_term=3), failures)
    rules._leaders[3] = "a"
    rules._life("a").acknowledged[3]["b", "an incarnation"] = 9
    wish = TransferLeader("", "b", False, None, "an act", 0)

    rules._applied(8, 2, None, [wish])  # it was made in another term
    rules._sent("a", "b", TimeoutNow(3))
    assert failures == ["handover"]
    frontend.stopping = True
    rules._sent("a", "b", TimeoutNow(3))
    frontend.stopping = False
    rules._applied(9, 3, None, [wish])
    rules._sent("a", "b", TimeoutNow(3))
    assert failures == ["handover"]


def test_a_leader_that_hands_over_to_who_was_gone_before_its_last_turn_is_seen() -> None:
    failures = list[str]()
    member = SimpleNamespace(_frontend=SimpleNamespace(stopping=True))
    node = SimpleNamespace(name="a", life=1, as_member=member)
    rules = _rules(node, SimpleNamespace(last_index=9, last_term=3), failures)
    rules._leaders[3] = "a"
    life, net = rules._life("a"), cast("Any", rules._world.net)
    life.acknowledged[3]["b", "an incarnation"], life.turned_s = 9, 5.0
    answers = {"hello": SimpleNamespace(incarnation="an incarnation")}
    net.hello_of, net.closed_s = lambda one, other: answers.get("hello"), lambda one, other: 4.9
    rules._sent("a", "b", TimeoutNow(3))
    assert not failures
    del answers["hello"]
    net.closed_s = lambda one, other: 5.0  # it asked behind that turn, and was parted since
    rules._sent("a", "b", TimeoutNow(3))
    assert "handover" not in failures
    net.closed_s = lambda one, other: 4.9
    rules._sent("a", "b", TimeoutNow(3))
    assert "handover" in failures


def test_what_is_sent_again_asked_again_or_offered_for_nothing_is_seen() -> None:
    failures = list[str]()
    clock = [0.0]
    raft = SimpleNamespace(term_start_index=9)
    member = SimpleNamespace(raft=raft, journal=SimpleNamespace(first_index=5))
    node = SimpleNamespace(name="a", life=1, as_member=member, clock=lambda: clock[0])
    rules = _rules(node, SimpleNamespace(last_index=9, last_term=3, terms={}), failures)
    rules._leaders[3] = "a"
    rules._committed = 99
    rules._world.knob = lambda name: 0.08  # type: ignore[method-assign,assignment]

    def send(*indexes: int) -> None:
        entries = [(b"\0\0", index, 3) for index in indexes]
        rules._sent("a", "b", AppendEntries(3, 0, indexes[0] - 1, 3, entries))

    send(10, 11)
    send(12)
    assert not failures
    send(12)
    assert failures == ["append"]
    rules._delivered("b", "a", AppendEntriesResponse(3, 12, True, False))
    send(12)
    rules._sent("a", "b", ReadIndex(3, 1))
    clock[0] = 0.1
    rules._sent("a", "b", ReadIndex(3, 1))
    assert failures == ["append"]
    rules._sent("a", "b", ReadIndex(3, 1))
    assert failures == ["append", "barrier"]
    rules._sent("a", "c", SnapshotOffer(3))
    assert failures == ["append", "barrier", "snapshot"]
    rules._delivered("c", "a", AppendEntriesResponse(3, 4, True, False))
    rules._sent("a", "c", SnapshotOffer(3))
    assert failures == ["append", "barrier", "snapshot"]


def test_a_node_that_knows_its_disk_wrongly_or_forgets_an_answer_is_seen() -> None:
    failures = list[str]()
    journal = SimpleNamespace(term=3, vote=None, last_index=9, last_term=3)
    store = SimpleNamespace(applied_index=9, applied_term=3)
    reads = SimpleNamespace(passed=lambda term: passed)
    raft = SimpleNamespace(term=3, _reads=reads)
    member = cast("Any", SimpleNamespace(journal=journal, store=store, raft=raft))
    node = SimpleNamespace(name="a", life=1)
    mirror = SimpleNamespace(term=3, vote=None, last_index=9, last_term=3)
    rules, of_node = _rules(node, mirror, failures), cast("Any", node)
    rules._invariants.term_of = lambda index: 3  # type: ignore[method-assign]

    rules._knows_its_disk(of_node, member, cast("Any", mirror))
    passed = 2
    rules._forgets_no_answer(of_node, member, rules._life("a"))
    assert not failures
    journal.vote = "b"
    rules._knows_its_disk(of_node, member, cast("Any", mirror))
    assert failures == ["hard_state"]
    journal.vote, store.applied_term = None, 2
    rules._knows_its_disk(of_node, member, cast("Any", mirror))
    assert failures == ["hard_state", "prefix"]
    passed = 1
    rules._forgets_no_answer(of_node, member, rules._life("a"))
    assert failures == ["hard_state", "prefix", "barrier"]


def test_a_dead_row_that_nobody_collects_is_seen() -> None:
    def topic(oldest_end: int, dead_id: int) -> Any:
        return SimpleNamespace(oldest_end=oldest_end, dead_id=dead_id)

    topics = {"empty": topic(0, 5), "read": topic(5, 5), "unread": topic(6, 5)}
    assert uncollected(topics, ()) == ["read"]
    assert uncollected(topics, {"read"}) == []


def test_a_copy_that_waits_for_a_lost_piece_without_asking_is_seen() -> None:
    clock = [RETRY_S]
    fetch = SimpleNamespace(under_way=True, _verifying=False, _asked_s=0.0)
    node = SimpleNamespace(name="a", life=1, clock=lambda: clock[0])
    books = Books(cast("Any", SimpleNamespace(watchers=[])), cast("Any", None), cast("Any", None))

    def found() -> list[str]:
        both = books._waits_for_a_piece(cast("Any", node), cast("Any", fetch))
        return [check for check, _ in both]

    assert found() == []
    clock[0] = 9.0  # as behind a pause: its next turn asks
    assert found() == []
    clock[0] += ASKED_S_MAX + 0.1
    assert found() == ["progress"]
    fetch._asked_s = clock[0]
    assert found() == []


def test_a_copy_that_is_over_is_not_waited_for_behind_it() -> None:
    clock, failures = [RETRY_S + 1.0], list[str]()
    fetch = SimpleNamespace(under_way=True, _verifying=False, _asked_s=0.0)
    replica = SimpleNamespace(_fetch=fetch)
    node = SimpleNamespace(
        name="a", life=1, clock=lambda: clock[0], replica=replica, as_member=None
    )
    invariants = SimpleNamespace(fail=lambda check, text: failures.append(check))
    world = SimpleNamespace(watchers=[])
    books = Books(cast("Any", world), cast("Any", invariants), cast("Any", None))
    [turned] = world.watchers
    turned(node)
    fetch.under_way = False
    turned(node)
    assert not books._unasked
    fetch.under_way = True  # the next one
    clock[0] += ASKED_S_MAX + 0.1
    turned(node)
    assert not failures
    clock[0] += ASKED_S_MAX + 0.1
    turned(node)
    assert failures == ["progress"]


def test_a_lease_that_is_believed_too_long_and_a_loop_that_keeps_something_are_seen() -> None:
    failures: list[str] = []
    promises = WorkPromises(lambda check, text: failures.append(text), cast("Any", None))
    book = LeaseBook("t", "g", lambda: 0.0, lambda item, lease_ms: None, lambda: None)
    item = SimpleNamespace(topic="t", id=1, _end_ms=1_000.0)
    promises.believed("c", cast("Any", item), 1_000.0)
    promises.loop_left("c", book)
    assert failures == []
    promises.believed("c", cast("Any", item), 999.0)
    book.given[1] = cast("Any", item)
    promises.loop_left("c", book)
    assert len(failures) == 2


@pytest.mark.parametrize(
    ("given_ms", "said_ms", "is_seen"), [(500, 500, False), (150, 500, True), (500, 150, True)]
)
def test_a_lease_is_held_against_the_log_s_and_against_what_the_answer_says_of_it(
    given_ms: int, said_ms: int, is_seen: bool
) -> None:
    failures: list[str] = []
    reference = SimpleNamespace(lease_ms={("t", "g", 7): given_ms})
    promises = WorkPromises(lambda check, text: failures.append(check), cast("Any", reference))
    item = SimpleNamespace(topic="t", group="g", id=1, _token=7, _end_ms=1_500.0, _lease_ms=said_ms)
    promises.leased("c", cast("Any", item), 1_000.0)
    assert failures == ["leases"] * is_seen


def test_nothing_is_calm_while_a_node_stands_aside_for_another_of_its_name() -> None:
    seniority = Seniority(3.0, 0.0)
    member = SimpleNamespace(_context=SimpleNamespace(seniority=seniority))
    node = SimpleNamespace(
        as_member=member, clock=lambda: world.now, paused=False, slow_sync_ms=0.0,
        in_turn_until_s=0.0, disk=SimpleNamespace(full=False), clock_rate=1.0,
    )  # fmt: skip
    conditions = SimpleNamespace(loss=0.0, late=0.0)
    net = SimpleNamespace(cut=set(), conditions=conditions, clogged={}, connected=lambda *_: True)
    world = SimpleNamespace(
        now=10.0, observers=[], watchers=[], lost_ways=[], doubles={}, net=net, nodes={"a": node}
    )
    calm = Calm(cast("Any", world), cast("Any", None))

    def is_disturbed() -> bool:
        node.takes_part = SimNode.takes_part.fget(node)  # type: ignore[attr-defined]
        return calm._is_disturbed()

    assert not is_disturbed()
    seniority.yields(True, True, world.now)
    assert is_disturbed()
    world.now = 13.0
    assert not is_disturbed()


@pytest.mark.parametrize(
    ("token", "client_id", "failures"),
    [(7, "c1", ["leases"]), (8, "c1", []), (7, "displaced", []), (7, "gone", [])],
)
def test_who_is_told_that_a_lease_was_lost_by_which_it_has_acknowledged_is_deceived(
    token: int, client_id: str, failures: list[str]
) -> None:
    found: list[str] = []
    group = SimpleNamespace(acked={1: (token, client_id)}, displaced={"displaced"})
    reference = SimpleNamespace(groups={("t", "g"): group}, gone={"gone": (9, ())})
    promises = WorkPromises(lambda check, text: found.append(check), cast("Any", reference))
    promises.told_lost("c", cast("Any", SimpleNamespace(topic="t", group="g", id=1, _token=7)))
    promises.told_lost("c", cast("Any", SimpleNamespace(topic="t", group="g", id=2, _token=7)))
    promises.told_lost("c", cast("Any", SimpleNamespace(topic="t", group="ended", id=1, _token=7)))
    assert found == failures


@pytest.mark.parametrize(("acked", "failures"), [({1}, []), (set(), ["key_order"])])
def test_what_the_log_has_as_acknowledged_is_done_whatever_its_worker_was_told(
    acked: set[int], failures: list[str]
) -> None:
    found: list[str] = []
    reference = SimpleNamespace(
        ordered_from=lambda topic, group: 1,
        topics={"t": SimpleNamespace(over={})},
        log_ms=0,
        groups={("t", "g"): SimpleNamespace(acked=acked)},
        moved_groups=(),
    )
    promises = WorkPromises(lambda check, text: found.append(check), cast("Any", reference))
    for id_, settled in ((1, "lost"), (2, "")):
        item = SimpleNamespace(topic="t", group="g", id=id_, key="k", settled=settled)
        promises._look_at_key("c", cast("Any", item))
    assert found == failures
