"""What nodes have on their books: that it adds up, keeps its limits, and is nothing in the end.

What lives here: looks into brokers, relays, caches and windows, now and then in a run and once when
all is quiet. What must not: what was answered (replies.py).

A count that is not given back refuses everybody some day; what nobody waits for any more must not
be kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from chaos.simulation.checks.invariants import Invariants
from chaos.simulation.checks.reference import Reference
from chaos.simulation.world.node import SimNode
from chaos.simulation.world.wire import WirePort
from chaos.simulation.world.world import World
from cluster.log.journal import CACHE_ENTRY_BYTES
from cluster.members.catchup import RETRY_S, SnapshotFetch
from cluster.node.member import Member
from cluster.node.replica import Replica
from cluster.raft import transport
from cluster.serve import broker, intake, leases, relays
from cluster.serve.client_port import ClientPort, PortState
from cluster.store import patterns, publications, users
from cluster.store.topics import Topic
from cluster.store.users import Users
from flotilla_client.protocol import INTEGER_MAX, MESSAGE_BYTES_MAX, TAKE, has_wildcard

TURNS_PER_LOOK: Final = 16  # of a node: to look at each would be a tenth of a run's time
ASKED_S_MAX: Final = 1.0  # behind the moment at which a lost piece is due to be asked for again
TAKE_S_MAX: Final = 1.0  # a parked TAKE is offered what is there at once, or with the next look
TOLD_MAX: Final = 2  # times that a node says how its disk is, until it heeds what others say
DUE_MS_MAX: Final = 500  # until what is due has come, when nothing else is to be done
QUIET_S: Final = 3.0  # until what the last clients have asked for is over: GETs wait for 2 s


class Books:
    """Looks into the nodes of a world; tells `invariants` of what does not add up."""

    def __init__(self, world: World, invariants: Invariants, reference: Reference) -> None:
        self._world, self._invariants, self._reference = world, invariants, reference
        self._turns = 0
        # By node, of what is wrong: its process and which way; when it said so; how often since.
        self._wrong: dict[str, tuple[tuple[int, bool], float, int]] = {}
        self._users: dict[str, tuple[Users, int]] = {}  # by node: at its last look
        # By node and group, of TAKEs that are parked though there is something: since when.
        self._in_vain: dict[tuple[str, int, leases.Key], float] = {}
        # By process, of a copy of which a piece did not come: since when it should be asked for.
        self._unasked: dict[tuple[str, int], float] = {}
        world.watchers.append(self._turned)

    def _turned(self, node: SimNode) -> None:
        self._turns += 1
        replica, member = node.replica, node.as_member
        if replica is None:
            return
        if replica._fetch.under_way or self._unasked:  # of no copy nothing is to be noted
            for check, text in self._waits_for_a_piece(node, replica._fetch):
                self._invariants.fail(check, f"{node.name}: {text}")
        if member is None:
            return
        users = member.store.users
        are_other_users = self._users.get(node.name) != (users, users.changes)
        if are_other_users:  # what a revocation forgets is soon gone
            self._users[node.name] = users, users.changes
        if self._turns % TURNS_PER_LOOK and not are_other_users:
            return
        found = (
            *self._sums(node, replica, member),
            *self._limits(replica, member),
            *self._heeds_room(node, replica, member),
            *self._takes_in_vain(node, member),
        )
        for check, text in found:
            self._invariants.fail(check, f"{node.name}: {text}")

    # --- at any time ------------------------------------------------------------------------------

    def _waits_for_a_piece(self, node: SimNode, fetch: SnapshotFetch) -> Iterator[tuple[str, str]]:
        """Yield a copy of which a piece was lost that nobody asks for again.

        Another fault may have it begun anew, so that all comes to its end.
        """
        process, now = (node.name, node.life), node.clock()
        if not fetch.under_way or fetch._verifying or now - fetch._asked_s <= RETRY_S:
            self._unasked.pop(process, None)
        elif now - self._unasked.setdefault(process, now) > ASKED_S_MAX:
            late_s = now - fetch._asked_s
            yield "progress", f"it waits for a piece of a copy for {late_s:.1f} s, and does not ask"

    def _sums(self, node: SimNode, replica: Replica, member: Member) -> Iterator[tuple[str, str]]:
        """Yield what is counted in two ways and differs."""
        led, rows, store = member.broker, member.store._publications, member.store
        waiting = [each for _, authors in led._entries.values() for each in authors]
        tables = led._parked, led._parked_any, led._parked_takes
        parked = [kept for table in tables for kept in table.values()]
        relayed = [each for queue in replica.intake._nodes.values() for each in queue]
        active = store._topics.active
        asked = Counter(
            (each.principal, quota)
            for each in (*waiting, *led._authors)
            if not each.answered
            for quota in each.asks_for
        )
        gets = [each for kept in parked for each in kept.values()]
        subscriptions = sum(len(topic.subscribers) for topic in active.values())
        pairs: dict[str, tuple[Any, Any]] = {
            "requests in entries": (led._entries_waiting, len(waiting)),
            "bytes of PUTs": (
                led._put_bytes,
                sum(each.put_bytes for each in (*waiting, *led._authors)),
            ),
            "bytes of PUTs by principal": (
                led._put_bytes_of,
                _by_principal(
                    (each.principal, each.put_bytes) for each in (*waiting, *led._authors)
                ),
            ),
            "work by principal": (
                led._work_under_way_of,
                _by_principal((each.principal, each.work) for each in (*waiting, *led._authors)),
            ),
            "relays by principal": (
                replica.frontend._relays._of,
                _by_principal(
                    (each.principal, 1) for each in replica.frontend._relays._under_way.values()
                ),
            ),
            "relays in the intake by principal": (
                replica.intake._of,
                _by_principal((each.principal, 1) for each in relayed),
            ),
            "parked GETs": (led._parked_count, sum(map(len, parked))),
            "parked GETs by principal": (
                led._parked_of,
                Counter(each.principal for each in gets if each.principal is not None),
            ),
            "parked TAKEs by group and client": (
                led._takes_of,
                Counter(broker._taker(e.request) for e in gets if e.request.type == TAKE),
            ),
            "parked GETs among what is under way": (sum(each.has_place for each in gets), 0),
            "what principals ask for": (led._asked, asked),
            "subscriptions by principal": (
                +store.holdings.subscriptions,
                Counter({who: topics.total() for who, topics in store.holdings._topics.items()}),
            ),
            "bytes of relays in the intake by principal": (
                replica.intake._bytes_of,
                _by_principal((each.principal, sum(map(len, each.frames))) for each in relayed),
            ),
            "bytes in the rows' cache": (
                rows._cache_bytes,
                sum(row.size_bytes for row in rows._cache.values()),
            ),
            "bytes of relays in the intake": (
                replica.intake._nodes_bytes,
                sum(len(frame) for relay in relayed for frame in relay.frames),
            ),
            "relays in the intake": (replica.intake._nodes_count, len(relayed)),
            "subscriptions": (store._topics.subscriptions_count, subscriptions),
            "names of topics": (store._topics._names, sorted(active)),
        }
        on_disk = {id(topic): topic for topic in (*active.values(), *rows.garbage.values())}
        pairs["bytes of publications on disk"] = (
            rows.stored_bytes,
            sum(topic.added_bytes - topic.dropped_bytes for topic in on_disk.values()),
        )
        patterns = store.patterns
        pairs["patterns of names that were looked for"] = (
            {name: [*found] for name, found in patterns._found.items()},
            {name: patterns._look_for(name) for name in patterns._found if not has_wildcard(name)}
            | {name: [] for name in patterns._found if has_wildcard(name)},
        )
        for topic in active.values():
            cursors = Counter(each.cursor for each in topic.subscribers.values())
            cursors.update(topic.groups.values())
            dead = max(min(cursors, default=topic.last_id), topic.purged_id, topic.lapsed_id)
            if topic.retention is not None:  # the reference says how far (checks/replies.py)
                dead = topic.floor_id
            pairs[f"ids of {topic.name} that nobody wants"] = topic.floor_id, dead
            pairs[f"subscribers of {topic.name} by cursor"] = topic.cursors, cursors
        answers = sum(len(each.data) for each in led._answers)
        pairs["bytes that were read for answers"] = led._read_bytes_in_all, answers
        journal = member.journal
        cached = sum(map(len, journal._cache.values())) + len(journal._cache) * CACHE_ENTRY_BYTES
        pairs["bytes in the journal's cache"] = journal._cache_bytes, cached
        first_index = max(journal._cache_first, journal.first_index)
        newest = range(first_index, journal.last_index + 1)
        pairs["entries in the journal's cache"] = sorted(journal._cache), [*newest]
        for name, window in member.raft._sender.windows.items():
            total = sum(size for _, size in window.flying)
            pairs[f"bytes in flight to {name}"] = window.bytes, total
        for what, (counted, found) in pairs.items():
            if counted != found:
                yield "books", f"{counted} {what} on the books, and there are {found}"
        yield from self._parked_in_vain(member)
        if isinstance(node._port, WirePort):
            yield from _connections(node._port.clients)
        if kept := uncollected(active, rows.garbage):
            yield "books", f"{kept} have rows that nobody wants, and are not to be collected"
        twice = [name for name, dead in rows.garbage.items() if active.get(name, dead) is not dead]
        if twice:
            yield "books", f"{twice} on the books twice: who subscribes, and what is collected"

    def _parked_in_vain(self, member: Member) -> Iterator[tuple[str, str]]:
        """Yield the GETs that wait for what is there."""
        led, topics = member.broker, member.store._topics
        for topic, parked in led._parked.items():
            place = topics.active.get(topic)
            end = 0 if place is None else place.last_id
            for each in parked.values():
                client_id = each.request.client_id
                if member.store.lacks(each.principal, "subscribe", topic) is not None:
                    yield "permission", f"{each.principal} waits for {topic}, and may not read it"
                if place is None or client_id not in place.subscribers:
                    yield "waits", f"{client_id} waits for {topic}, and has no subscription to it"
                last_id = each.request.body["last_id"]
                if last_id is not None and last_id < end:
                    yield "waits", f"a GET of {topic} is parked behind {last_id}, it ends at {end}"
        for client_id, parked in led._parked_any.items():
            known = self._reference.clients.get(client_id)
            if known is None or not known.epoch.at(member.store.applied_index):
                yield "waits", f"{client_id} waits for any topic, and is no client"
            principals = {each.principal for each in parked.values()}
            for name, found in topics.of(client_id).items():
                if any(member.store.lacks(each, "subscribe", name) for each in principals):
                    continue
                cursor = found.subscribers[client_id].cursor
                if cursor < found.last_id:
                    yield "waits", f"{client_id} waits for any topic, {name} is at {cursor}"

    def _takes_in_vain(self, node: SimNode, member: Member) -> Iterator[tuple[str, str]]:
        """Yield the TAKEs that wait for what is there, or for what is no more."""
        led, store = member.broker, member.store
        before, self._in_vain = (
            self._in_vain,
            {key: since_s for key, since_s in self._in_vain.items() if key[0] != node.name},
        )
        for key, parked in led._parked_takes.items():
            group = store.groups.get(*key)
            if group is None:
                yield "waits", f"TAKEs of group {key}, which is no more, are parked"
                continue
            for each in parked.values():
                if store.lacks(each.principal, "subscribe", key[0]) is not None:
                    yield "permission", f"{each.principal} waits for {key}, and may not read it"
            if not member.raft.serving or not any(
                leases.has_news(store, group, each.request, _reckoned_ms(node, member))
                for each in parked.values()
            ):
                continue
            place = node.name, node.life, key
            since_s = self._in_vain[place] = before.get(place, node.clock())
            if node.clock() - since_s > TAKE_S_MAX:
                yield "waits", f"a TAKE of {key} is parked for {TAKE_S_MAX:.0f} s beside news"

    def _limits(self, replica: Replica, member: Member) -> Iterator[tuple[str, str]]:
        """Yield what is over its limit."""
        led, store, knob = member.broker, member.store, self._world.knob
        rows = store._publications
        under_way = led._entries_waiting + len(led._operations)
        under_way += len(led._reads) + len(led._ready) + len(led._due)
        entered = [*led._authors, *(each for _, some in led._entries.values() for each in some)]
        woken = sum(
            (each.request.type == TAKE or each.awaits_time) and each.deadline_ms > each.taken_ms
            for each in entered
        )
        most = {
            "bytes of PUTs": (led._put_bytes, broker.PUT_BYTES_MAX),
            # A read that was admitted may come back to be answered in steps. What was parked, and
            # counted there, makes an entry when there is something for it: a TAKE always, a GET
            # where that has expired and the log has to say so.
            "requests under way": (under_way - woken, knob("in_flight_max")),
            "parked GETs": (led._parked_count + len(led._woken), knob("parked_gets_max")),
            "relays": (len(replica.frontend._relays), knob("relays_max")),
            "parked GETs of a principal": (
                max(led._parked_of.values(), default=0),
                knob("quota_parked_gets") or broker.BrokerLimits.parked_gets_max,
            ),
            "rows in the cache": (len(rows._cache), publications.ROWS_CACHED_MAX),
            "names that were looked for": (len(store.patterns._found), patterns.NAMES_CACHED_MAX),
            "answers about rights": (len(store.users._answers), users.ANSWERS_CACHED_MAX),
            "clients that were heard": (len(led._heard), broker.HEARD_MAX),
            "full topics to be told of": (len(led._held), broker.HELD_TOPICS_MAX),
            "relays in the intake": (replica.intake._nodes_count, intake.RELAYS_WAITING_MAX),
            "bytes of relays there": (
                replica.intake._nodes_bytes,
                intake.RELAYS_WAITING_BYTES_MAX,
            ),
        }
        if len(member.journal._cache) > 1:
            most["bytes in the journal's cache"] = (
                member.journal._cache_bytes,
                member.journal._cache_bytes_max,
            )
        if len(rows._cache) > 1:
            most["bytes in the rows' cache"] = rows._cache_bytes, publications.ROWS_CACHED_BYTES_MAX
        for name, window in member.raft._sender.windows.items():
            before_last = window.bytes - (window.flying[-1][1] if window.flying else 0)
            most[f"bytes in flight to {name}"] = before_last, transport.IN_FLIGHT_BYTES_MAX
        for what, (found, limit) in most.items():
            if found > limit:
                yield "limit", f"{found} {what}, {limit:.0f} may be"

    def _heeds_room(
        self, node: SimNode, replica: Replica, member: Member
    ) -> Iterator[tuple[str, str]]:
        """Yield if PUTs are refused for room that there is, or taken though there is none.

        That is for a node and a majority to say. What the others say is counted each time that this
        node says the same of itself: so it is wrong only if it is wrong after two more of these.
        """
        said_s, health = replica._next_health_s, replica._neighbours.health
        there = [name for name in health if replica._peers.hello_of(name) is not None]
        low = node.disk_low + sum(health[name].disk_low for name in there)
        is_short = node.disk_low or low * 2 > len(replica.settings.members)
        if member.broker.disk_low == is_short:
            self._wrong.pop(node.name, None)
            return
        this = node.life, is_short
        before, last_s, times = self._wrong.get(node.name, (this, said_s, 0))
        if before != this:
            last_s, times = said_s, 0
        self._wrong[node.name] = this, said_s, times + (said_s != last_s)
        if times >= TOLD_MAX:
            done = "taken" if is_short else "refused for want of room"
            yield "books", f"PUTs are {done}, and {low} are short of room"

    # --- in the end -------------------------------------------------------------------------------

    def check_quiet(self, node: SimNode, recovered_s: float, healthy: Collection[str]) -> None:
        """Check that a node has nothing on its books any more: no client asks for anything."""
        replica, member = node.replica, node.as_member
        if replica is None or member is None:
            return
        led, front = member.broker, replica.frontend
        left: dict[str, Any] = {
            "entries somebody waits for": led._entries,
            "operations": led._operations,
            "authors": led._authors,
            "reads": led._reads,
            "reads behind their barrier": led._ready,
            "answers to be made": led._due,
            "woken GETs": led._woken,
            "wishes that another node leads": member._handover is not None,
            "parked GETs": led._parked or led._parked_any or led._parked_takes,
            "answers": led._answers or front._answers or front._relayed,
            "requests": replica.intake,
            "bytes of PUTs": led._put_bytes,
            "requests in entries": led._entries_waiting,
            "messages": member._before_sync or member._after_sync,
            "bytes of publications that are not written": (
                member.store._publications.buffered_bytes
            ),
            "dead rows": member.store._publications.garbage,
            "checkpoints that nobody makes": node.waits_in_vain,
            "who waits for a copy": member._server._waiting if node._worker.idle else (),
        }
        if isinstance(node._port, WirePort):
            clients = [*node._port.clients._clients.values()]
            left["requests of connections"] = [each.requests for each in clients if each.requests]
            left["connections that wait for a share"] = node._port.clients._wanting
        if member.raft.is_leader:
            left["bytes in flight"] = {
                name: size
                for name, size in member.raft.in_flight().items()
                if size and name in healthy
            }
            left["entries not committed"] = member.raft.uncommitted_entries
            idle, due_ms = member.store.idle, member.store.delayed.due_ms
            reckoned_ms = idle.at(member.raft.term, node.clock() * 1000)
            left["what is to be compacted and waits"] = member.store.compaction.is_behind
            left["what is due and waits"] = due_ms + DUE_MS_MAX < reckoned_ms
        now_ms = node.clock() * 1000
        ago_ms = (self._world.now - recovered_s) * 1000
        left["relays"] = [
            each.request_id
            for each in front._relays._under_way.values()
            if now_ms - (each.deadline_ms - relays.RELAY_MS_MAX) < ago_ms
        ]
        for what, found in left.items():
            if found:
                self._invariants.fail("books", f"{node.name}: all is quiet, and {what}: {found}")


def _reckoned_ms(node: SimNode, member: Member) -> int:
    """Return which time of the log a leader may take it for by now.

    Where that stands, as nobody has made an entry since it leads, one has to come: no lease lasts.
    """
    log_ms, term, stamp_ms, _ = member.store.idle.row()
    passed_ms = max(0, int(node.clock() * 1000) - stamp_ms)
    return log_ms + passed_ms if term == member.raft.term else INTEGER_MAX


def uncollected(active: Mapping[str, Topic], garbage: Collection[str]) -> list[str]:
    """Return the topics whose oldest row is dead, and of which nobody collects it."""
    dead = (name for name, topic in active.items() if 0 < topic.oldest_end <= topic.dead_id)
    return sorted(name for name in dead if name not in garbage)


def _by_principal(counted: Iterable[tuple[str | None, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for principal, count in counted:
        if principal is not None and count:
            total[principal] += count
    return total


def _connections(port: ClientPort) -> Iterator[tuple[str, str]]:
    """Yield what a node counts of its clients' connections in two ways and differs."""
    clients = [*port._clients.values()]
    ready = [each for each in clients if each.state is PortState.READY]
    shares = max(1, port._limits.unfinished_bytes_max // MESSAGE_BYTES_MAX)
    pairs: dict[str, tuple[Any, Any]] = {
        "bytes of replies that clients have not taken": (
            port.unread_bytes,
            sum(len(data) for each in clients for data in each.outbox),
        ),
        "shares of large messages": (shares - port._shares, sum(e.has_share for e in clients)),
        "shares of large messages by payer": (
            port._shares_of,
            Counter(each.payer for each in clients if each.has_share),
        ),
        "connections by payer": (port._payers, Counter(each.payer for each in ready)),
        "routes": (sorted(port._routes), sorted(each.route for each in clients)),
    }
    for what, (counted, found) in pairs.items():
        if counted != found:
            yield "books", f"{counted} {what} on the books, and there are {found}"
    gone = [
        each
        for table in (port._strangers, port._unheard, port._readable, port._held, port._wanting)
        for each in table
        if each.fd not in port._clients
    ]
    claimants = [each.claimant for each in clients if each.claimant is not None]
    gone += [each for each in claimants if each.fd not in port._clients]
    if gone:
        yield "books", f"connections that are closed are on the books: {gone}"
