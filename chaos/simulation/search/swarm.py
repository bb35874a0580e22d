"""Plans from seeds: each seed draws its own mix of clients, network and faults.

What lives here: the drawing. What must not: what an action does (world.py, operator.py,
clients.py), and anything that depends on how a run goes: a plan is a function of its arguments.

After Groce et al., Swarm Testing (2012): runs in which a few kinds of faults happen, often, reach
states that no run with all kinds at once does; so each seed leaves out about half of everything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

from chaos.simulation.clients.follower import FAR_TOPICS, FOLLOWERS, QUIET_TOPICS
from chaos.simulation.clients.replayer import KEPT_TOPIC
from chaos.simulation.clients.working import DEAD, NOWHERE
from chaos.simulation.disks.disk import KEEPS, OWN_SYNC, SYNCS
from chaos.simulation.plan.limits import (
    CHUNK_PUTS,
    CLIENT_IDLE_MS,
    CONSTANTS,
    DEFAULTS,
    OF_GROUPS,
    OF_IDLE,
    OF_KEY_ORDER,
    OF_LEVELS,
    OF_MANY,
    OF_PATTERNS,
    OF_PUTS,
    OF_SCRUB,
    OF_THE_STORE,
)
from chaos.simulation.plan.plan import Action, Mode, Plan
from chaos.simulation.search import scenes
from chaos.simulation.search.quiet_window import QuietWindow
from chaos.simulation.world.network import double_of
from chaos.simulation.world.operator import BROKEN_HOWS
from cluster.wire.levels import LEVEL_OF_USERS
from flotilla_client.protocol import INSPECTED, SETTINGS, STATUS

NODES: Final = {3: 70, 5: 22, 1: 4, 7: 4}  # weights
DURATION_S: Final = (12.0, 30.0)  # of faults; more seeds find more than longer runs
CLIENTS: Final = (3, 5)
CROWD: Final = (6, 10)  # clients of some seeds: so that many requests stand in one entry
CROWD_SHARE: Final = 0.25
PAUSE_S: Final = (0.04, 0.4)  # mean time between two operations of a client
CROWD_PAUSES: Final = 2  # as long in a crowd: it is to meet, not to weigh
PUT_BYTES: Final = 40_000  # filler of the largest PUT: more of it only makes a run slower
LISTER_SHARE: Final = 0.5  # of the seeds have a client that only lists, the others a leaver
WAITER_SHARE: Final = 0.25  # of the seeds have a reader that always waits
FITTING_SHARE: Final = 0.5  # of the seeds have settings that fit their faults
SLEEPER_SHARE: Final = 0.6  # of those with a bounded backlog have one that seldom reads
SHARES_END: Final = (0.0, 0.0, 0.1, 0.5)  # by how much chance a turn's share is over after a step
KEYS_SHARE: Final = 0.4  # of the seeds have clients with keys, and permissions that change
LATE_SHARE: Final = 0.3  # of these changes find somebody who asks again for what is stored
LATE_S: Final = (1.0, 4.0)
DENIED_S: Final = (0.02, 3.0)  # how long a permission is gone
KEYS_PERIOD_S: Final = (0.5, 4.0)  # mean time between two changes of these, and between intrusions
ACTS_SHARE: Final = 0.7  # of the seeds whose cluster is at the level for it have administrators
ACTS_PERIOD_S: Final = (0.5, 5.0)  # mean time between two acts of a kind
TOPIC_LETTERS_SHARE: Final = 0.5  # of policies say where dead letters go
TOPICS_SHARE: Final = 0.9  # of these seeds have topics with policies, and somebody who replays
MAX_BYTES: Final = (400, 4_000, 60_000)  # of a topic with a bound: some PUTs are larger
FAR_SHARE: Final = 0.3  # of the topics that are deleted are those that patterns bring
PATTERNS_SHARE: Final = 0.9  # of the same seeds have somebody who subscribes to patterns
FOLLOWS_PERIOD_S: Final = (0.05, 0.5)  # mean time between two things that one asks for
ESTRANGED_PERIOD_S: Final = (0.5, 4.0)  # mean time until one may not read some topic, with keys
ESTRANGED_S: Final = (1.0, 30.0)  # often for the rest of the run: what is denied is made later
PATTERN_LIMITS_SHARE: Final = 0.3  # of these meet the limits of patterns
KEY_ORDER_SHARE: Final = 0.8  # of these have groups that are ordered by key
GROUP_SEEKS_SHARE: Final = 0.4  # of these have groups that are moved
GROUPS_SHARE: Final = 0.7  # of the same seeds have clients that work in groups
DEATHS_SHARE: Final = 0.7  # of these have workers that die with what they have in hand
DEATHS_PERIOD_S: Final = (1.0, 6.0)
DEAD_S: Final = (0.02, 1.0)  # shorter than most leases
WIRE_SHARE: Final = 0.25  # of the seeds have nodes that talk in bytes; it costs a third more
AWAITING_SHARE: Final = 0.25  # of the clients use AsyncClient
PROPERTIES_SHARE: Final = 0.9  # of the seeds that may publish with properties do
EXPIRES: Final = (0.1, 0.3, 0.6, 1.0)  # so much of what a client of today publishes; a seed's most
DELAYS_SHARE: Final = 0.6  # of seeds at this build's level
CALLERS_SHARE: Final = 0.4  # of the clients publish for several callers at once
CALLERS_BYTES_MAX: Final = 10_000  # a publication's: nine together stay far below a request's most
TIGHT_SHARE: Final = 0.4  # of the seeds have limits that are met
BOUNDED_SHARE: Final = 0.5  # of the seeds have constants of the product that are met
BOUND_SHARES: Final = (0.1, 0.3, 0.6)  # of these constants
FEW_SHARE: Final = 0.5  # of the seeds take few of a thing for many
LEVEL_SHARE: Final = 0.55  # of the seeds without other programs are at the level of this build
CHUNKS_SHARE: Final = 0.25  # of the seeds have short windows of producers
FULL_SHARE: Final = 0.2  # of the seeds with several callers have topics that are soon full
OUTBOX_SHARE: Final = 0.2  # of the seeds have clients whose outboxes are soon full
OUTBOX_PUTS: Final = 2  # of a seed's largest
ONCE_SHARE: Final = 0.2  # of the clients that don't acknowledge by hand read at most once
GET_COUNTS: Final = (1, 3, 100)
RATES_SHARE: Final = 0.08  # of the seeds have a quota of requests, or of bytes
QUOTA_SHARE: Final = 0.4  # of the seeds with keys have each of the others
INSPECTIONS_SHARE: Final = 0.3  # of the seeds have an operator who looks at what there is
INSPECTIONS_PERIOD_S: Final = (0.2, 3.0)
IDLE_SHARE: Final = 0.4  # of the seeds whose cluster has raised its level forget silent clients
SILENCE_PERIOD_S: Final = (1.0, 6.0)  # mean time between two silences, of any client
SILENCES: Final = (0.5, 4.0)  # of the time until one is forgotten
# The same of half of them, with disks that are slow then: who is named may have been heard since.
BRINK: Final = (0.95, 1.1)
BRINK_SYNC_MS: Final = (20.0, 300.0)
RAISES_S: Final = (0.5, 1.0, 2.0, 4.0)  # when it is asked for: there may be no leader yet
STORE_SHARE: Final = 0.06  # for each limit of the state machine: who is refused a topic does less
FOUNDING_SHARE: Final = 0.2  # of the seeds have processes that end while they found the cluster
START_S: Final = 1.0  # the cluster may form before the first fault, or not
KIND_SHARE: Final = (0.08, 0.5)  # of the kinds of faults that a seed has: few leave time to work
PERIOD_S: Final = (1.0, 12.0)  # mean time between two faults of a kind
HOLD_S: Final = (0.05, 4.0)  # how long a fault lasts
DISK_OPERATIONS: Final = (
    "write", "fdatasync", "rename", "unlink", "truncate", "fsync_directory", "store", "any",
    "store_sync", "store_open", "store_rename", "store_unlink", "store_write",
)  # fmt: skip
STATE_OPERATIONS: Final = ("store_sync", "store_synced", "store_open", "store_write", "any")
STATE_SYNCS: Final = ("store_sync", "store_sync", "store", "any")
DAMAGES_DRAWN: Final = (
    "cut",
    "flip",
    "flip",
    "unreadable",
    "flip_store",
)  # a flip alone is for the checksums
BACKLOG_PUTS_MIN: Final = 3  # of a seed's largest: so none of them waits for ever
PUBLICATION_OVERHEAD_BYTES: Final = 200  # of a payload beyond its filler, properties included
LETTER_OVERHEAD_BYTES: Final = 160  # of a dead letter's headers beyond what it was
LEFT_TOPIC: Final = "left"  # nobody but who unsubscribes has it, so it dies and comes back
LOW_S: Final = (0.2, 6.0)  # of room: what members say of theirs is heard after a second or two
CLOG_S: Final = (0.05, 12.0)  # what comes out of one may be older than a client's patience
CRASH_POINTS: Final = ("now", "invoke", "complete", "handed", "stored")
# Of disks that go bad under a running node, which reads them back.
SCRUB_SHARE: Final = 0.3
DAMAGES_LATENT: Final = ("cut", "flip", "flip", "unreadable", "flip_store", *["flip_row"] * 5)
LATENT_PERIOD_S: Final = (0.5, 5.0)
ALONE_SHARE: Final = 0.5
NEWER_FIRST_SHARE: Final = 0.3  # of the ways back lead to this build, the others to an older one
WAYS_BACK: Final = 3  # members that come back, one after the other
LOSSES: Final = frozenset(
    {"wipe", "damage", "double", "kill", "kill_all", "kill_source", "power_loss", "power_loss_all"}
    | {"stop", "install", "fsync_error", "disk_full"}
)

Schedule = Iterator[tuple[float, str, dict[str, Any]]]


class Draw:
    """The random choices of one seed."""

    def __init__(self, rng: random.Random, members: Sequence[str], clients: Sequence[str]) -> None:
        self.rng, self.members, self.clients = rng, members, clients

    def between(self, low: float, high: float) -> float:
        """Return a number whose logarithm is evenly spread, so that short times are common."""
        return round(float(low * (high / low) ** self.rng.random()), 3)

    def node(self) -> str:
        """Return a node, the leader about as often as all others together."""
        return "leader" if self.rng.random() < 0.4 else self.member()

    def member(self) -> str:
        """Return a node's own name."""
        return self.rng.choice(self.members)

    def dialing(self) -> str:
        """Return one that dials most others, as the smaller name does, more often than any other.

        Its double is heard as soon as its silence is over; one that is dialed only when they give
        up the connection that they have.
        """
        early = self.members[: (len(self.members) + 1) // 2]
        return self.rng.choice(early) if self.rng.random() < 0.7 else self.member()

    def pair(self) -> list[str]:
        """Return two nodes; a lone one twice."""
        return self.rng.sample(self.members, 2) if len(self.members) > 1 else [*self.members] * 2

    def hold_s(self) -> float:
        """Return how long a fault lasts."""
        return self.between(*HOLD_S)


# --- kinds of faults: each yields what happens, at times from the fault's beginning --------------


def _kills(draw: Draw) -> Schedule:
    yield 0.0, "kill", {"node": draw.node(), **_moment(draw)}
    yield draw.hold_s(), "restart_all", {}


def _power_losses(draw: Draw) -> Schedule:
    keep = draw.rng.choice(KEEPS)
    yield 0.0, "power_loss", {"node": draw.node(), "keep": keep, **_moment(draw)}
    yield draw.hold_s(), "restart_all", {}


def _moment(draw: Draw) -> dict[str, Any]:
    if draw.rng.random() < 0.4:
        return {}
    return {"at": draw.rng.choice(DISK_OPERATIONS), "count": draw.rng.randint(1, 12)}


def _inheritances(draw: Draw) -> Schedule:
    """Kill a process at a change of names; another one goes on from there, until the power goes."""
    node = draw.member()
    yield 0.0, "kill", {"node": node, "at": "fsync_directory", "count": draw.rng.randint(1, 2)}
    restarted_s = draw.between(0.5, 4.0)
    yield restarted_s, "restart_all", {}
    yield restarted_s + draw.between(0.05, 0.5), "power_loss", {"node": node, "keep": "lost"}
    yield restarted_s + 1.0 + draw.hold_s(), "restart_all", {}


def _outages(draw: Draw) -> Schedule:
    if draw.rng.random() < 0.5:
        yield 0.0, "kill_all", {}
    else:
        yield 0.0, "power_loss_all", {"keep": draw.rng.choice(KEEPS)}
    yield draw.between(0.01, 1.0), "restart_all", {}


def _pauses(draw: Draw) -> Schedule:
    yield 0.0, "pause", {"node": draw.node()}
    yield draw.hold_s(), "resume", {"node": "all"}


def _clocks(draw: Draw) -> Schedule:
    node = draw.member()
    yield 0.0, "clock_rate", {"node": node, "rate": draw.between(0.5, 2.0)}
    yield draw.hold_s() * 4, "clock_rate", {"node": node, "rate": 1.0}


def _cuts(draw: Draw) -> Schedule:
    others = draw.rng.sample(draw.members, draw.rng.randint(1, len(draw.members)))
    if draw.clients and draw.rng.random() < 0.3:
        others += draw.rng.sample(draw.clients, draw.rng.randint(1, len(draw.clients)))
    yield 0.0, "cut", {"node": draw.node(), "others": others, "seconds": draw.hold_s()}


def _deposed_leaders(draw: Draw) -> Schedule:
    """Leave a leader to its clients, long enough for the others to elect another one."""
    seconds = draw.between(1.0, 6.0)
    yield 0.0, "cut", {"node": "leader", "others": list(draw.members), "seconds": seconds}


def _cuts_one_way(draw: Draw) -> Schedule:
    source, target = draw.pair()
    yield 0.0, "cut_one_way", {"source": source, "target": target, "seconds": draw.hold_s()}


def _clogs(draw: Draw) -> Schedule:
    source, target = draw.pair()
    if draw.rng.random() < 0.5:
        # Its requests arrive when it has long moved on; the second one comes and goes, or lists.
        source = draw.rng.choice((draw.clients[:2][-1], draw.rng.choice(draw.clients)))
    yield 0.0, "clog", {"source": source, "target": target, "seconds": draw.between(*CLOG_S)}


def _disconnects(draw: Draw) -> Schedule:
    one, other = draw.pair()
    if one != other:
        yield 0.0, "disconnect", {"one": one, "other": other}


def _weathers(draw: Draw) -> Schedule:
    yield 0.0, "weather", weather(draw)


def _full_disks(draw: Draw) -> Schedule:
    for node in draw.rng.sample(draw.members, draw.rng.randint(1, len(draw.members))):
        yield 0.0, "disk_full", {"node": node}
        yield draw.hold_s(), "disk_free", {"node": node}
    yield HOLD_S[1] + 0.1, "restart_all", {}


def _low_disks(draw: Draw) -> Schedule:
    seconds = draw.between(*LOW_S)
    for node in draw.rng.sample(draw.members, draw.rng.randint(1, len(draw.members))):
        yield 0.0, "disk_low", {"node": node}
        yield seconds, "disk_free", {"node": node}


def _slow_disks(draw: Draw) -> Schedule:
    node = draw.member()
    yield 0.0, "slow_fsync", {"node": node, "ms": draw.between(5.0, 500.0)}
    yield draw.hold_s(), "slow_fsync", {"node": node, "ms": 0.0}


def _successions(draw: Draw) -> Schedule:
    """End a leader while all disks are slow: the next one leads long before it has proved it."""
    ms = draw.between(20.0, 500.0)
    for node in draw.members:
        yield 0.0, "slow_fsync", {"node": node, "ms": ms}
    yield draw.between(0.2, 1.0), "kill", {"node": "leader"}
    yield 1.5 + draw.hold_s(), "restart_all", {}
    for node in draw.members:
        yield 6.0, "slow_fsync", {"node": node, "ms": 0.0}


def _failing_disks(draw: Draw) -> Schedule:
    """Let a sync fail; the process that comes after it may lose its machine's power."""
    kind, node = draw.rng.choice(("fdatasync", *SYNCS, "any")), draw.node()
    yield 0.0, "fsync_error", {"node": node, "count": draw.rng.randint(1, 10), "kind": kind}
    if kind.startswith("store"):
        yield 0.05, "compact", {"node": node}
    restarted_s = draw.hold_s()
    yield restarted_s, "restart_all", {}
    if draw.rng.random() < 0.5:
        later_s = restarted_s + draw.hold_s()
        yield later_s, "power_loss", {"node": node, "keep": draw.rng.choice(KEEPS)}
        yield later_s + draw.hold_s(), "restart_all", {}


def _wiped_disks(draw: Draw) -> Schedule:
    yield 0.0, "wipe", {"node": draw.member()}
    yield draw.hold_s(), "restart_all", {}


def _damaged_disks(draw: Draw) -> Schedule:
    node = draw.member()
    yield 0.0, "damage", {"node": node, "how": draw.rng.choice(DAMAGES_DRAWN)}
    yield draw.between(0.05, 1.0), "kill", {"node": node}
    yield 1.0 + draw.hold_s(), "restart_all", {}


def _stops(draw: Draw) -> Schedule:
    yield 0.0, "stop", {"node": draw.node(), "seconds": draw.hold_s()}


def _transfers(draw: Draw) -> Schedule:
    yield 0.0, "transfer", {}


def _late_transfers(draw: Draw) -> Schedule:
    """Hand the leadership over while what one member says comes late."""
    source, target = draw.pair()
    clog = {"source": source, "target": target, "seconds": draw.between(0.05, 3.0)}
    yield 0.0, "clog", clog
    yield 0.001, "transfer", {}


def _compactions(draw: Draw) -> Schedule:
    for node in draw.rng.sample(draw.members, draw.rng.randint(1, len(draw.members))):
        yield 0.0, "compact", {"node": node}


def _lost_checkpoints(draw: Draw) -> Schedule:
    """Have the power go in a checkpoint or behind it: nothing but that has what is dropped.

    Of some, a sync of the store fails before: then the power goes when it is over, and the journal
    has dropped what it vouches for, but before the next one has written it again.
    """
    for _ in range(draw.rng.randint(1, 3)):
        node, later_s = draw.member(), draw.between(0.1, 2.0)
        if draw.rng.random() < 0.5:
            # SQLite syncs the log and the database; then comes the checkpoint's own word.
            kinds = (("store_sync", 1), ("store_sync", 2), (OWN_SYNC, 1), (OWN_SYNC, 1))
            kind, count = draw.rng.choice(kinds)
            yield 0.0, "fsync_error", {"node": node, "count": count, "kind": kind}
            later_s = draw.between(0.8, 3.0)
        yield 0.0, "compact", {"node": node}
        keep = draw.rng.choice(("lost", "lost", *KEEPS))
        yield later_s, "power_loss", {"node": node, "keep": keep}
        yield later_s + draw.between(0.05, 1.0), "restart_all", {}


def _rebirths(draw: Draw) -> Schedule:
    """End a process that rejoins with an empty disk, at any of its operations, and again."""
    node = draw.member()
    yield 0.0, "wipe", {"node": node}
    yield 0.05, "restart_all", {}
    at_s = 0.1
    for _ in range(draw.rng.randint(1, 3)):
        how = {"at": draw.rng.choice(DISK_OPERATIONS), "count": draw.rng.randint(1, 20)}
        if draw.rng.random() < 0.5:
            yield at_s, "kill", {"node": node, **how}
        else:
            yield at_s, "power_loss", {"node": node, "keep": draw.rng.choice(KEEPS), **how}
        at_s += draw.between(1.0, 5.0)
        yield at_s, "restart_all", {}


def _dead_sources(draw: Draw) -> Schedule:
    """End a member from which an empty one copies the store, in the middle of that."""
    yield 0.0, "wipe", {"node": draw.member()}
    yield 0.05, "restart_all", {}
    for _ in range(draw.rng.randint(1, 2)):
        yield 0.1, "kill_source", {"seconds": 8.0, "pieces": draw.rng.randint(0, 3)}
    yield 10.0, "restart_all", {}


def _upgrades(draw: Draw) -> Schedule:
    """Install another program on one node after the other; raise the level, too early as well.

    Somebody may go back to version 0.1 at the moment at which the level is raised.
    """
    build = draw.rng.choice(("0.1", "next", "next"))
    level, at_s = draw.rng.choice(("this", "next")), 0.0
    for node in draw.rng.sample(draw.members, len(draw.members)):
        yield at_s, "install", {"node": node, "build": build}
        at_s += draw.between(0.2, 2.0)
        if draw.rng.random() < 0.4:
            yield at_s, "raise_level", {"node": "leader", "build": level}
    yield at_s, "raise_level", {"node": "leader", "build": level}
    if draw.rng.random() < 0.5:
        hasty = {"node": draw.member(), "build": "0.1"}
        yield at_s + draw.between(0.0005, 0.05), "install", hasty


def _way_back_meanwhile(draw: Draw) -> Schedule:
    """Raise the level while the leader is cut off; a member comes back to it with an older program.

    So the entry stands in the leader's log alone when somebody connects who can't read it. All the
    others are cut off for longer: they would have the entry committed, or elect another leader. A
    cluster whose level was raised before has to get a newer program first. Each time another member
    comes back: the leader itself may be drawn, and nothing is raised while there is none.
    """
    build, at_s = "this", 0.0
    if draw.rng.random() < NEWER_FIRST_SHARE:
        build = "next"
        for node in draw.rng.sample(draw.members, len(draw.members)):
            yield at_s, "install", {"node": node, "build": build}
            at_s += 0.4  # one after the other, so that a majority is always there
        at_s += 1.5
    for back in draw.rng.sample(draw.members, min(len(draw.members), WAYS_BACK)):
        others = [name for name in draw.members if name != back]
        seconds = draw.between(0.5, 2.0), draw.between(0.02, 0.3)
        yield at_s, "cut", {"node": "leader", "others": others, "seconds": seconds[0]}
        yield at_s, "cut", {"node": "leader", "others": [back], "seconds": seconds[1]}
        yield at_s + 0.01, "raise_level", {"node": "leader", "build": build}
        old = "0.1" if build == "this" else draw.rng.choice(("0.1", "this"))
        yield at_s + 0.015, "install", {"node": back, "build": old}
        at_s += seconds[0]
        yield at_s, "install", {"node": back, "build": build}
        at_s += 2.0


def _lonely_leaders(draw: Draw) -> Schedule:
    """Empty a member's disk; until its readmission is due, so many others fall silent.

    The leader, which may go on for seconds without a majority, is left with one that is empty.
    """
    node = draw.member()
    yield 0.0, "wipe", {"node": node}
    yield draw.between(0.02, 0.2), "restart_all", {}
    for _ in range(len(draw.members) // 2):
        yield draw.between(0.25, 0.75), "pause", {"node": "follower"}
    yield draw.between(4.0, 8.0), "resume", {"node": "all"}


def _client_crashes(draw: Draw) -> Schedule:
    client = draw.rng.choice(draw.clients)
    yield 0.0, "client_crash", {"client": client, "at": draw.rng.choice(CRASH_POINTS)}
    yield draw.hold_s(), "client_restart", {"client": client}


def _late_retries(draw: Draw) -> Schedule:
    """Have clients ask again for what is stored when nobody has room any more.

    Each dies behind the record of the answer, and what it has sent stands in its outbox still.
    """
    seconds = draw.between(1.0, HOLD_S[1])
    for client in draw.rng.sample(draw.clients, draw.rng.randint(1, len(draw.clients))):
        yield 0.0, "client_crash", {"client": client, "at": "stored"}
        yield draw.between(1.0, 2.0), "client_restart", {"client": client}
    for node in draw.members:
        yield 0.5, "disk_low", {"node": node}
        yield 1.0 + seconds, "disk_free", {"node": node}


def _lost_pieces(draw: Draw) -> Schedule:
    """Lose a piece of a copy of the store, or the question for it, on a connection that goes on."""
    yield 0.0, "wipe", {"node": draw.member()}
    yield 0.05, "restart_all", {}
    for _ in range(draw.rng.randint(1, 3)):
        piece = {"pieces": draw.rng.randint(0, 3), "hold_s": draw.between(0.02, 0.3)}
        yield 0.1, "lose_piece", {"seconds": 8.0, **piece}


def _returning_leaders(draw: Draw) -> Schedule:
    """Cut a leader off with entries that it does not know to be committed, for two more terms.

    The others have some of these, and others in place of the rest: the second leader after it finds
    out entry by entry how far their logs are the same.
    """
    ms = draw.between(50.0, 400.0)
    for node in draw.members:
        yield 0.0, "slow_fsync", {"node": node, "ms": ms}
    cut_s, seconds = draw.between(0.2, 1.0), draw.between(3.0, 6.0)
    yield cut_s, "cut", {"node": "leader", "others": list(draw.members), "seconds": seconds}
    for node in draw.members:
        yield cut_s + 0.1, "slow_fsync", {"node": node, "ms": 0.0}
    for later_s in (1.5, 2.0, 2.5):
        yield cut_s + later_s, "transfer", {}


def _client_copies(draw: Draw) -> Schedule:
    yield 0.0, "client_copy", {"client": draw.rng.choice(draw.clients)}


def _client_power_losses(draw: Draw) -> Schedule:
    client, keep = draw.rng.choice(draw.clients), draw.rng.choice(KEEPS)
    moment: dict[str, Any] = {}
    if draw.rng.random() < 0.5:
        moment = {"at": draw.rng.choice(STATE_OPERATIONS), "count": draw.rng.randint(1, 12)}
    yield 0.0, "client_power_loss", {"client": client, "keep": keep, **moment}
    yield draw.hold_s(), "client_restart", {"client": client}


def _client_failing_disks(draw: Draw) -> Schedule:
    """Let syncs of a client's state fail; it goes on, or another process; then the power goes."""
    client = draw.rng.choice(draw.clients)
    for _ in range(draw.rng.randint(1, 3)):
        failing = {"kind": draw.rng.choice(STATE_SYNCS), "count": draw.rng.randint(1, 6)}
        yield 0.0, "client_fsync_error", {"client": client, **failing}
        if draw.rng.random() < 0.5:
            yield draw.hold_s(), "client_crash", {"client": client, "at": "now"}
            yield HOLD_S[1], "client_restart", {"client": client}
    later_s = HOLD_S[1] + draw.hold_s()
    keep = draw.rng.choice(("lost", *KEEPS))
    yield later_s, "client_power_loss", {"client": client, "keep": keep}
    yield later_s + draw.hold_s(), "client_restart", {"client": client}


def _empty_doubles(draw: Draw) -> Schedule:
    """Start a member with an empty disk a second time; the first one lives, or falls silent."""
    node = draw.dialing()
    yield 0.0, "double", {"node": node, "how": "empty", "seconds": draw.between(4.0, 20.0)}
    if draw.rng.random() < 0.7:
        # Longer than it takes to be replaced, or not, and then back, often while the double runs.
        later_s, seconds = draw.between(0.1, 1.0), draw.between(2.0, 9.0)
        others = [name for name in draw.members if name != node]
        yield later_s, "cut", {"node": node, "others": others, "seconds": seconds}


def _replaced_unheard(draw: Draw) -> Schedule:
    """Cut a member off until its empty double is admitted, which one of the others can't hear.

    That one believes that it is connected with the first, until its log says otherwise.
    """
    node = draw.dialing()
    others = [name for name in draw.members if name != node]
    yield 0.0, "double", {"node": node, "how": "empty", "seconds": draw.between(12.0, 20.0)}
    # Silence, a second until the double asks again, half a one until the leader looks: or longer.
    yield 0.1, "cut", {"node": node, "others": others, "seconds": draw.between(5.0, 8.0)}
    # By now another one leads if that was the member, and the double is heard nowhere yet.
    deaf = {"source": double_of(node), "target": "follower"}
    yield 1.5, "cut_one_way", {**deaf, "seconds": draw.between(6.0, 10.0)}


def _copied_doubles(draw: Draw) -> Schedule:
    seconds = draw.between(1.0, 8.0)
    yield 0.0, "double", {"node": draw.member(), "how": "copy", "seconds": seconds}


KINDS: Final[Mapping[str, Callable[[Draw], Schedule]]] = {
    "kills": _kills,
    "power_losses": _power_losses,
    "inheritances": _inheritances,
    "outages": _outages,
    "pauses": _pauses,
    "clocks": _clocks,
    "cuts": _cuts,
    "deposed_leaders": _deposed_leaders,
    "cuts_one_way": _cuts_one_way,
    "clogs": _clogs,
    "disconnects": _disconnects,
    "weathers": _weathers,
    "full_disks": _full_disks,
    "low_disks": _low_disks,
    "slow_disks": _slow_disks,
    "successions": _successions,
    "failing_disks": _failing_disks,
    "wiped_disks": _wiped_disks,
    "damaged_disks": _damaged_disks,
    "stops": _stops,
    "transfers": _transfers,
    "late_transfers": _late_transfers,
    "compactions": _compactions,
    "lost_checkpoints": _lost_checkpoints,
    "rebirths": _rebirths,
    "dead_sources": _dead_sources,
    "upgrades": _upgrades,
    "way_back_meanwhile": _way_back_meanwhile,
    "lonely_leaders": _lonely_leaders,
    "client_crashes": _client_crashes,
    "client_copies": _client_copies,
    "late_retries": _late_retries,
    "lost_pieces": _lost_pieces,
    "returning_leaders": _returning_leaders,
    "client_power_losses": _client_power_losses,
    "client_failing_disks": _client_failing_disks,
    "empty_doubles": _empty_doubles,
    "copied_doubles": _copied_doubles,
    "replaced_unheard": _replaced_unheard,
}
RARE: Final = frozenset(
    {
        "client_copies",
        "client_failing_disks",
        "lost_checkpoints",
        "rebirths",
        "dead_sources",
        "lost_pieces",
        "late_retries",
        "returning_leaders",
        "deposed_leaders",
        "outages",
        "full_disks",
        "failing_disks",
        "successions",
        "upgrades",
        "way_back_meanwhile",
        "lonely_leaders",
        "replaced_unheard",
    }
)
# Half of all seeds: most rules are about a leader that is none any more, or what comes late.
FREQUENT: Final = frozenset({"deposed_leaders", "clogs", "lost_checkpoints"})
RARE_PERIOD_S: Final = (6.0, 30.0)  # each of these takes the cluster, or a client, out for long
# Of several steps, which come off only where nothing else is broken (quiet_window.py).
STAGED: Final = (
    "empty_doubles",
    "replaced_unheard",
    "lonely_leaders",
    "way_back_meanwhile",
)
ROOM_S_MAX: Final = 8.0  # a run has a dozen other kinds of faults
QUIET_SHARE: Final = 0.5  # of the seeds have a quiet window for one of these
STAGED_BESIDE: Final = ("returning_leaders",)  # the same, of seeds without one for the others
BESIDE_SHARE: Final = 0.4
SETTLED_S: Final = (4.0, 7.0)  # before it: an emptied member is one again, and a leader leads


# --- plans ----------------------------------------------------------------------------------------


def plan_for(seed: int, mode: Mode, nodes: int | None = None) -> Plan:
    """Return the plan of a seed; `nodes`: how many, drawn if None.

    Each part of a plan has random numbers of its own: a new kind of fault, or role, leaves the
    other parts of every seed as they were.
    """
    rng = _stream(seed, mode, "size")
    [drawn] = rng.choices(list(NODES), list(NODES.values()))
    count = nodes or drawn
    size = rng.randint(*(CROWD if rng.random() < CROWD_SHARE else CLIENTS))
    clients = [f"client-{number}" for number in range(1, size + 1)]
    empty = Plan(seed, count, len(clients), round(rng.uniform(*DURATION_S), 1), mode)

    def draw(purpose: str) -> Draw:
        return Draw(_stream(seed, mode, purpose), empty.members, clients)

    load, awaiting, callers = _load(draw("load")), draw("awaiting"), draw("callers")
    for role in load["roles"]:
        role["is_awaiting"] = awaiting.rng.random() < AWAITING_SHARE
        if callers.rng.random() < CALLERS_SHARE and role.get("size_bytes", 0) <= CALLERS_BYTES_MAX:
            role["callers"] = callers.rng.choice((2, 4, 9))
    schedule = tuple(_schedule(draw, empty.duration_s))
    window = _quiet_window(draw, empty.duration_s)
    schedule = tuple(sorted((*schedule, *window.steps), key=lambda action: action.at_s))
    knobs: dict[str, Any] = {**_world(draw("world")), **_limits(draw("limits"), load["roles"])}
    if draw("full topics").rng.random() < FULL_SHARE and _are_joined(load["roles"]):
        knobs.setdefault("backlog_bytes_max", BACKLOG_PUTS_MIN * _largest(load["roles"]))
    _slow_down(draw("slow"), load["roles"], "backlog_bytes_max" in knobs)
    knobs |= _bounds(draw("bounds"), _largest(load["roles"]))
    many = draw("few of many").rng
    if many.random() < FEW_SHARE:
        knobs |= {name: many.choice(values) for name, (_, _, values) in OF_MANY.items()}
    knobs |= _fitting(draw("fitting"), {action.name for action in schedule}, knobs)
    knobs |= _chunks(draw("chunks").rng) | _batches(draw("batches").rng, load["roles"])
    outboxes = draw("outboxes").rng
    if outboxes.random() < OUTBOX_SHARE:
        load["outbox_bytes_max"] = OUTBOX_PUTS * _largest(load["roles"])
    _read_once(draw("at most once").rng, load["roles"])
    knobs["share_ends"] = draw("shares").rng.choice(SHARES_END)
    builds = {action.args.get("build") for action in schedule}
    at_level = draw("level").rng
    if at_level.random() < LEVEL_SHARE and builds == {None}:
        raises = [
            Action(at_s, "raise_level", {"node": "leader", "build": "this"}) for at_s in RAISES_S
        ]
        schedule = tuple(sorted((*raises, *schedule), key=lambda one: one.at_s))
        knobs |= {name: at_level.choice(values) for name, (_, _, values) in OF_LEVELS.items()}
    if draw("wire").rng.random() < WIRE_SHARE:
        knobs["wire"] = 1
        # Version 0.1 would say its Hello by today's product there, which looks at what 0.1 did not.
        schedule = tuple(action for action in schedule if action.args.get("build") != "0.1")
    elif draw("keys").rng.random() < KEYS_SHARE:
        knobs["keys"] = 1
        own = _users(draw("users"), load["roles"], empty.duration_s)
        schedule = tuple(sorted((*schedule, *own), key=lambda action: action.at_s))
    knobs |= _quotas(draw("quotas"), load["roles"], schedule, bool(knobs.get("keys")))
    own = _inspections(draw("inspections"), empty.duration_s)
    schedule = tuple(sorted((*schedule, *own), key=lambda action: action.at_s))
    if at_level_of_users(schedule):
        own = _of_levels(draw, knobs, load["roles"], empty.duration_s)
        schedule = tuple(sorted((*schedule, *own), key=lambda action: action.at_s))
    knobs |= _scrub(draw("scrub").rng)
    scenes.short_steps(draw("short steps").rng, knobs)
    schedule = _with_latent_damages(draw("latent damages"), knobs, schedule, empty.duration_s)
    caches = scenes.failing_majorities(draw("caches").rng, empty.members, empty.duration_s)
    schedule = window.made_in((*schedule, *caches), empty.members)
    deaths = _let_work(draw("groups"), load["roles"], schedule, knobs, empty.duration_s)
    own = _order_by_key(draw("order by key"), load["roles"], knobs, empty.duration_s)
    lost = scenes.lost_syncs(draw("lost syncs").rng, clients, empty.duration_s)
    holes = scenes.holes(draw("holes").rng, clients, empty.duration_s)
    rest = [*deaths, *own, *lost, *holes]
    schedule = tuple(sorted((*schedule, *rest), key=lambda action: action.at_s))
    schedule = _staged(draw, load, schedule, knobs, empty.duration_s)
    if knobs.get("keys") or any(action.name == "client_copy" for action in schedule):
        # A client that was fenced for good reads no more; nor one that may not, for a while.
        knobs.pop("backlog_bytes_max", None)
    knobs["load"] = {**load, "broken": _broken(draw("broken"), mode)}
    return Plan(seed, count, len(clients), empty.duration_s, mode, knobs, schedule)


def _staged(
    draw: Callable[[str], Draw],
    load: Mapping[str, Any],
    schedule: tuple[Action, ...],
    knobs: dict[str, Any],
    duration_s: float,
) -> tuple[Action, ...]:
    """Return a schedule in which some seeds do one thing alone, where the cluster lets them."""
    roles = load["roles"]
    if not at_level_of_users(schedule):
        if any(action.args.get("build") for action in schedule):
            return schedule
        pair, deadline_s = draw("waiting pair"), load["deadline_ms"] / 1000
        about = dict(zip(pair.clients, roles, strict=True)), pair.members, knobs
        added = scenes.waiting_pair(pair.rng, *about, deadline_s, duration_s)
        return tuple(sorted((*schedule, *added), key=lambda action: action.at_s))
    raised = (*schedule, *scenes.later_raises(duration_s))
    schedule = tuple(sorted(raised, key=lambda action: action.at_s))
    drawn = [dict(role) for role in roles]
    schedule = scenes.workshop(draw("workshop").rng, roles, schedule, knobs, duration_s)
    if roles == drawn:  # it has no workshop
        scenes.late_reader(draw("late reader").rng, roles, knobs)
    schedule = scenes.traveller(draw("drive").rng, schedule, knobs, duration_s)
    schedule = scenes.rover(draw("rover").rng, schedule, knobs, duration_s)
    schedule = scenes.lost_lanes(draw("lost lanes").rng, schedule, knobs, duration_s)
    return scenes.compacted(draw("the last of each key at last").rng, schedule, knobs, duration_s)


def _of_levels(
    draw: Callable[[str], Draw],
    knobs: dict[str, Any],
    roles: Sequence[dict[str, Any]],
    duration_s: float,
) -> Iterator[Action]:
    """Set the knobs of what a cluster does at this build's level, and yield what brings it."""
    if draw("idle").rng.random() < IDLE_SHARE:
        knobs |= _idle(draw("idle times"))
        scenes.sleepers(draw("sleepers").rng, roles, knobs)
        yield from _silences(draw("silences"), int(knobs["client_idle_ms"]), duration_s)
    if draw("acts").rng.random() < ACTS_SHARE:
        knobs["acts"] = 1
        yield from _acts(draw("acts of a kind"), roles, duration_s)
    if draw("topics").rng.random() < TOPICS_SHARE:
        knobs["topics"] = 1
        yield from _topics(draw("topics of a kind"), roles, duration_s)
    if draw("patterns").rng.random() < PATTERNS_SHARE:
        knobs |= {"patterns": 1, **_pattern_limits(draw("pattern limits"), knobs)}
        yield from _follows(draw("follows"), duration_s)
        if knobs.get("keys"):
            yield from _estrangements(draw("estrangements"), duration_s)
    _dress(draw("properties").rng, roles)
    _delay(draw("delays").rng, roles)


def _dress(rng: random.Random, roles: Sequence[dict[str, Any]]) -> None:
    """Let some clients publish with keys and headers, and some know of none, in most seeds.

    Those of `AsyncClient` are all of today.
    """
    if rng.random() >= PROPERTIES_SHARE:
        return
    most = rng.choice(EXPIRES)
    for role in roles:
        if rng.random() < 0.25 and not role["is_awaiting"]:
            role["is_old"] = True
        elif rng.random() < 0.8:
            role["has_properties"] = True
            role["expires"] = rng.choice((0.1 * most, most, most))


def _delay(rng: random.Random, roles: Sequence[dict[str, Any]]) -> None:
    """Let some clients publish with a delay, in some seeds: of those that publish one by one."""
    if rng.random() >= DELAYS_SHARE:
        return
    for role in roles:
        alone = not (role.get("in_flight") or role.get("callers") or role.get("is_awaiting"))
        if role.get("puts") and alone and rng.random() < 0.8:
            role["delays"] = rng.choice((0.1, 0.5, 0.9))


def at_level_of_users(schedule: Sequence[Action]) -> bool:
    """Return whether all programs are this build's, and the cluster gets to their level."""
    builds = {action.args.get("build") for action in schedule if action.name == "install"}
    raises = any(action.name in ("raise_level", "let_users") for action in schedule)
    return raises and not builds


def _are_joined(roles: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether several callers of some client publish at once: so they are refused so."""
    return any(role.get("callers") for role in roles)


def _chunks(rng: random.Random) -> dict[str, int]:
    """Return a short window of producers, in some seeds."""
    return {"chunk_puts": rng.choice(CHUNK_PUTS)} if rng.random() < CHUNKS_SHARE else {}


def _batches(rng: random.Random, roles: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return, in some seeds, batches so small that a call's publications take several."""
    one_bytes = max(role["size_bytes"] for role in roles) + PUBLICATION_OVERHEAD_BYTES
    one_bytes += LETTER_OVERHEAD_BYTES  # or nobody would take a dead letter's
    return {"batch_bytes_max": one_bytes * rng.randint(1, 2)} if rng.random() < 0.15 else {}


def _read_once(rng: random.Random, roles: Sequence[dict[str, Any]]) -> None:
    """Let some clients read at most once."""
    for role in roles:
        role["is_at_most_once"] = rng.random() < ONCE_SHARE and not role.get("is_manual")


def _stream(seed: int, mode: Mode, purpose: str) -> random.Random:
    return random.Random(f"swarm {seed} {mode} {purpose}")


def _schedule(draw: Callable[[str], Draw], duration_s: float) -> list[Action]:
    """Return the faults of all kinds that this seed has, in order."""
    actions = [Action(0.0, "weather", weather(draw("weather"))), *_founding(draw("founding"))]
    share = draw("share").between(*KIND_SHARE)
    for name, kind in KINDS.items():
        own = draw(name)
        if own.rng.random() >= (0.5 if name in FREQUENT else share):
            continue
        period_s = own.between(*(RARE_PERIOD_S if name in RARE else PERIOD_S))
        # A kind that a seed has comes at least once.
        at_s = START_S + own.rng.random() * (min(period_s, duration_s) - START_S)
        while at_s < duration_s:
            actions += [
                Action(round(at_s + later_s, 4), what, args) for later_s, what, args in kind(own)
            ]
            at_s += own.rng.expovariate(1 / period_s)
    return sorted((one for one in actions if one.at_s < duration_s), key=lambda one: one.at_s)


def _quiet_window(draw: Callable[[str], Draw], duration_s: float) -> QuietWindow:
    """Return a quiet window for a fault of several steps, in some seeds; in the others none."""
    # The streams have an older name: with another one, all seeds would draw another plan.
    window = _quiet_window_for(draw("room"), duration_s, STAGED, QUIET_SHARE)
    if window.steps:
        return window
    return _quiet_window_for(draw("another room"), duration_s, STAGED_BESIDE, BESIDE_SHARE)


def _quiet_window_for(
    draw: Draw, duration_s: float, kinds: Sequence[str], share: float
) -> QuietWindow:
    if draw.rng.random() >= share:
        return QuietWindow(0.0, 0.0, ())
    steps = list(KINDS[draw.rng.choice(kinds)](draw))
    # The last of it may meet others again.
    lasts_s = min(ROOM_S_MAX, max(later_s + args.get("seconds", 0.0) for later_s, _, args in steps))
    settled_s = draw.between(*SETTLED_S)
    latest_s = duration_s - lasts_s
    at_s = max(START_S + settled_s, START_S + draw.rng.random() * (latest_s - START_S))
    own = tuple(
        Action(round(at_s + later_s, 4), name, args)
        for later_s, name, args in steps
        if at_s + later_s < duration_s - 0.001
    )
    end_s = min(at_s + lasts_s, duration_s - 0.001)
    return QuietWindow(round(at_s - settled_s, 4), int(end_s * 1e4) / 1e4, own)


def _users(draw: Draw, roles: Sequence[Mapping[str, Any]], duration_s: float) -> Iterator[Action]:
    """Have the cluster get users; take permissions away and give them back; have ids stolen."""
    rng = draw.rng
    for at_s in (0.8, 1.5, 3.0, 6.0):  # there may be no leader, or an older program
        yield Action(at_s, "let_users", {"level": LEVEL_OF_USERS} if at_s < 1.0 else {})
    if rng.random() < 0.3:  # everybody has what he needs, and nobody else anything
        for number, role in enumerate(roles, 1):
            rights = {"publish": role["topics"], "subscribe": role["topics"]}
            change = {"node": "leader", "act": "add", "user": f"client-{number}", **rights}
            yield Action(2.0, "change_user", change)
        yield Action(2.5, "change_user", {"node": "leader", "act": "remove", "user": "*"})
    yield from _denials(draw, roles, duration_s)
    period_s, at_s = draw.between(*KEYS_PERIOD_S), 2.0
    while (at_s := at_s + rng.expovariate(1 / period_s)) < duration_s:
        yield Action(at_s, "intrude", {"node": draw.node()})


def _denials(draw: Draw, roles: Sequence[Mapping[str, Any]], duration_s: float) -> Iterator[Action]:
    """Take permissions away and give them back, some from who has to ask again for what is stored.

    That one dies with its answer, and without a record of it.
    """
    rng = draw.rng
    named = zip(draw.clients, roles, strict=True)
    publishers = [(name, role["topics"]) for name, role in named if role["puts"]]
    period_s, at_s = draw.between(*KEYS_PERIOD_S), 2.0
    while (at_s := at_s + rng.expovariate(1 / period_s)) < duration_s - 0.05:
        client, topics = rng.choice(("*", *draw.clients)), [*roles[0]["topics"], "*", LEFT_TOPIC]
        [right] = rng.choices(("publish", "subscribe", "observe"), (3, 4, 1))
        is_late = rng.random() < LATE_SHARE
        back_s = at_s + draw.between(*(LATE_S if is_late else DENIED_S))
        if is_late:
            (client, topics), right = rng.choice(publishers), "publish"
            crash = {"client": client, "at": "stored"}
            yield Action(at_s - draw.between(0.3, 1.0), "client_crash", crash)
        what = {right: True if right == "observe" else [rng.choice([*topics, ">"])]}
        change = {"node": draw.node(), "user": client}
        if client != "*":
            everything = {"publish": [">"], "subscribe": [">"], "observe": True}
            yield Action(at_s, "change_user", {**change, "act": "add", **everything})
        yield Action(at_s + 0.05, "change_user", {**change, "act": "deny", **what})
        later = [Action(back_s, "change_user", {**change, "act": "allow", **what})]
        if is_late:
            restart = {"client": client}
            later += [Action(each_s, "client_restart", restart) for each_s in (at_s + 0.3, back_s)]
        yield from (each for each in later if each.at_s < duration_s)


def _quotas(
    draw: Draw, roles: Sequence[dict[str, Any]], schedule: Sequence[Action], has_keys: bool
) -> dict[str, float]:
    """Return quotas that are met, of rates in few seeds, and of what principals have.

    A PUT may bring twenty publications, or more. At a rate of requests, who fetched them one by one
    would not come to the end in time.
    """
    rng = draw.rng
    quotas: dict[str, float] = {}
    if rng.random() < RATES_SHARE:
        quotas["quota_requests_per_s"] = rng.choice((20, 60))
        for role in roles:
            role["get_count"] = GET_COUNTS[-1]
    if rng.random() < RATES_SHARE:
        quotas["quota_bytes_per_s"] = rng.choice((100_000, 300_000))  # all is read in time
    tight = {
        "quota_topics": 1,
        "quota_parked_gets": 1,
        "quota_unread_bytes": BACKLOG_PUTS_MIN * _largest(roles),
    }
    if any(action.name == "client_copy" for action in schedule):
        del tight["quota_unread_bytes"]  # a client that was fenced for good reads no more
    drawn = {name: value for name, value in tight.items() if rng.random() < QUOTA_SHARE}
    return quotas | (drawn if has_keys else {})


def _inspections(draw: Draw, duration_s: float) -> Iterator[Action]:
    """Have the operator look at what there is, in some seeds."""
    rng, at_s = draw.rng, 0.5
    period_s = draw.between(*INSPECTIONS_PERIOD_S)
    if rng.random() >= INSPECTIONS_SHARE:
        return
    while (at_s := at_s + rng.expovariate(1 / period_s)) < duration_s:
        asked = {"what": rng.choice((*sorted(INSPECTED - {SETTINGS}), STATUS))}
        yield Action(at_s, "inspect", {"node": draw.node(), "place": rng.randrange(99), **asked})


def _idle(draw: Draw) -> dict[str, float]:
    """Return settings with which silent clients are forgotten, within seconds."""
    knobs: dict[str, float] = {"client_idle_ms": draw.rng.choice(CLIENT_IDLE_MS)}
    return knobs | {name: draw.rng.choice(values) for name, (_, _, values) in OF_IDLE.items()}


def _silences(draw: Draw, idle_ms: int, duration_s: float) -> Iterator[Action]:
    """Let clients be silent for about as long as it takes to be forgotten, and come back.

    Some die and start again, some are cut off and go on with what they had under way.
    """
    rng, at_s = draw.rng, START_S
    period_s = draw.between(*SILENCE_PERIOD_S)
    while (at_s := at_s + rng.expovariate(1 / period_s)) < duration_s:
        client, share = rng.choice(draw.clients), rng.choice((SILENCES, BRINK))
        seconds = idle_ms / 1000 * draw.between(*share)
        ms, brink_s = draw.between(*BRINK_SYNC_MS), at_s + idle_ms / 1000
        slow_s = brink_s - 2 * ms / 1000, brink_s + 3 * ms / 1000
        if share is BRINK and slow_s[1] < duration_s:
            for node in draw.members:
                yield Action(slow_s[0], "slow_fsync", {"node": node, "ms": ms})
                yield Action(slow_s[1], "slow_fsync", {"node": node, "ms": 0.0})
        if rng.random() < 0.5:
            yield Action(at_s, "client_crash", {"client": client, "at": rng.choice(CRASH_POINTS)})
            if at_s + seconds < duration_s:
                yield Action(at_s + seconds, "client_restart", {"client": client})
        else:
            for node in draw.members:
                yield Action(at_s, "cut", {"node": node, "others": [client], "seconds": seconds})


def _scrub(rng: random.Random) -> dict[str, float]:
    """Return, in some seeds, settings with which disks are read back every few seconds."""
    if rng.random() >= SCRUB_SHARE:
        return {}
    knobs: dict[str, float] = {
        "scrub_bytes_per_s": rng.choice((1_000_000, 20_000_000)),
        "scrub_period_s": rng.choice((0.5, 2.0, 5.0)),
    }
    return knobs | {name: rng.choice(values) for name, (_, _, values) in OF_SCRUB.items()}


def _with_latent_damages(
    draw: Draw, knobs: Mapping[str, float], schedule: tuple[Action, ...], duration_s: float
) -> tuple[Action, ...]:
    """Have a disk go bad, bit by bit, under a running node that reads it back.

    In half of these seeds no process ends by a fault and no other disk is lost: a damaged one would
    not start again, and two at a time are more than most clusters stand.
    """
    rng, at_s, node = draw.rng, START_S, draw.member()
    if "scrub_bytes_per_s" not in knobs:
        return schedule
    if rng.random() < ALONE_SHARE:
        schedule = tuple(each for each in schedule if each.name not in LOSSES)
    period_s, own = draw.between(*LATENT_PERIOD_S), []
    while (at_s := at_s + rng.expovariate(1 / period_s)) < duration_s:
        how = rng.choice(DAMAGES_LATENT)
        own.append(Action(at_s, "damage", {"node": node, "how": how}))
    return tuple(sorted((*schedule, *own), key=lambda action: action.at_s))


def _acts(draw: Draw, roles: Sequence[Mapping[str, Any]], duration_s: float) -> Iterator[Action]:
    """Have administrators purge, drop and steer; most seeds have a few kinds of acts."""
    rng = draw.rng
    topics = sorted({topic for role in roles for topic in role["topics"]})
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "purge": lambda: {"topic": rng.choice(topics), "share": rng.choice((0.0, 0.5, 1.0, 1.2))},
        "drop_client": lambda: {"client": rng.choice(draw.clients)},
        "transfer_leader": lambda: {"to": rng.choice(("", *draw.members))},
        "checkpoint": dict,
    }
    for name, made in kinds.items():
        if rng.random() < 0.8:
            period_s = draw.between(*ACTS_PERIOD_S)
            if name == "drop_client":
                period_s *= 4  # there are few
            # A kind that a seed has comes at least once.
            at_s = START_S + rng.random() * (min(period_s, duration_s) - START_S)
            while at_s < duration_s:
                yield Action(round(at_s, 4), name, {"node": draw.node(), **made()})
                at_s += rng.expovariate(1 / period_s)


def _kept_topic(draw: Draw) -> dict[str, Any]:
    """Return how the topic is made that somebody by hand publishes to.

    Nobody has to read it, so an age alone moves its floor.
    """
    policy = draw.rng.choice(
        (
            {"keep": "count", "amount": 5},
            {"keep": "count", "amount": 50},
            {"keep": "ms", "amount": 500},
            {"keep": "ms", "amount": 2_000},
        )
    )
    return {"node": "leader", "topic": KEPT_TOPIC, "policy": policy, "is_new": True}


def _topics(draw: Draw, roles: Sequence[Mapping[str, Any]], duration_s: float) -> Iterator[Action]:
    """Give topics policies, change and end them; let somebody by hand read where he likes.

    What keeps more than is unread drops when it is full: nobody could make room for more.
    """
    rng = draw.rng
    # That of dead letters has a group alone, which ends with it, and is made anew.
    topics = [*sorted({topic for role in roles for topic in role["topics"]}), KEPT_TOPIC, DEAD]

    def policy() -> dict[str, Any]:
        keep = rng.choice(("unread", "forever", "count", "bytes", "ms"))
        amounts = {"count": (1, 5, 50), "bytes": (100, 5_000), "ms": (200, 2_000)}
        parts = {"keep": keep, "amount": rng.choice(amounts.get(keep, (0,)))}
        if rng.random() < 0.5:
            drops = keep != "unread" or rng.random() < 0.7
            full = "drop-oldest" if drops else "refuse"
            parts |= {"max_bytes": rng.choice(MAX_BYTES), "when_full": full}
        if rng.random() < TOPIC_LETTERS_SHARE:
            parts["dead_letter"] = rng.choice((DEAD, DEAD, NOWHERE, ""))
        return parts

    # One that has a policy already is refused another as a new one, and one that has none is
    # refused a change: most are asked for what can be done.
    known = {KEPT_TOPIC}

    def about_policy(topic: str) -> dict[str, Any]:
        is_new = rng.random() < (0.2 if topic in known else 0.9)
        known.add(topic)
        parts = policy()
        if topic == DEAD:
            parts.pop("dead_letter", None)  # that would be its own topic
        return {"policy": parts, "is_new": is_new}

    def deletion() -> dict[str, Any]:
        topic = rng.choice(FAR_TOPICS if rng.random() < FAR_SHARE else topics)
        return {"topic": topic, "ends": topic in (DEAD, *FAR_TOPICS)}

    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "set_topic": dict,
        "delete_topic": deletion,
        "read_topic": lambda: {"share": rng.choice((-0.2, 0.0, 0.5, 1.0, 1.3))},
        "replay": lambda: {"topic": rng.choice((topics[0], KEPT_TOPIC))},
    }
    kept = _kept_topic(draw)
    for at_s in (1.0, 3.0, 7.0):  # the cluster gets to its level by and by
        yield Action(at_s, "set_topic", kept)
    for name, made in kinds.items():
        if name == "replay" or rng.random() < 0.8:
            period_s = draw.between(*ACTS_PERIOD_S) / (10 if name == "replay" else 1)
            at_s = START_S + rng.random() * (min(period_s, duration_s) - START_S)
            while at_s < duration_s:
                about = {"node": draw.node(), "topic": rng.choice(topics), **made()}
                if name == "set_topic":
                    about |= about_policy(about["topic"])
                yield Action(int(at_s * 1e4) / 1e4, name, about)  # not rounded up to the end
                at_s += rng.expovariate(1 / period_s)


def _pattern_limits(draw: Draw, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return limits that somebody meets who subscribes to patterns, and nobody else."""
    if draw.rng.random() >= PATTERN_LIMITS_SHARE:
        return {}
    limits = {name: draw.rng.choice(values) for name, values in OF_PATTERNS.items()}
    return {name: value for name, value in limits.items() if name not in knobs}


def _follows(draw: Draw, duration_s: float) -> Iterator[Action]:
    """Let two by hand subscribe to patterns, and publish where only these listen."""
    period_s = draw.between(*FOLLOWS_PERIOD_S)
    at_s = START_S + draw.rng.random() * (min(period_s, duration_s) - START_S)
    while at_s < duration_s:
        node = "leader" if draw.rng.random() < 0.7 else draw.node()
        who = draw.rng.choice(FOLLOWERS)
        yield Action(int(at_s * 1e4) / 1e4, "follow", {"node": node, "who": who})
        at_s += draw.rng.expovariate(len(FOLLOWERS) / period_s)


def _estrangements(draw: Draw, duration_s: float) -> Iterator[Action]:
    """Take single topics from those whose patterns bring them, and give them back."""
    rng, at_s = draw.rng, START_S
    period_s = draw.between(*ESTRANGED_PERIOD_S)
    everything = {"publish": [">"], "subscribe": [">"], "observe": True}
    while (at_s := at_s + rng.expovariate(1 / period_s)) < duration_s - 0.05:
        change = {"node": "leader", "user": rng.choice(FOLLOWERS)}
        what = {"subscribe": [rng.choice((*FAR_TOPICS, *QUIET_TOPICS))]}
        yield Action(at_s, "change_user", {**change, "act": "add", **everything})
        yield Action(at_s + 0.05, "change_user", {**change, "act": "deny", **what})
        back_s = at_s + 0.05 + draw.between(*ESTRANGED_S)
        if back_s < duration_s:
            yield Action(back_s, "change_user", {**change, "act": "allow", **what})


def _founding(draw: Draw) -> Iterator[Action]:
    """End some processes while they found the cluster; they come back."""
    if draw.rng.random() >= FOUNDING_SHARE:
        return
    for node in draw.rng.sample(draw.members, draw.rng.randint(1, len(draw.members))):
        how = {"at": draw.rng.choice(DISK_OPERATIONS), "count": draw.rng.randint(1, 20)}
        at_s = draw.between(0.05, 0.25)  # about when the last one starts
        if draw.rng.random() < 0.5:
            yield Action(at_s, "kill", {"node": node, **how})
        else:
            keep = draw.rng.choice(KEEPS)
            yield Action(at_s, "power_loss", {"node": node, "keep": keep, **how})
    for at_s in (0.6, 1.5, 3.0):
        yield Action(at_s, "restart_all", {})


def weather(draw: Draw) -> dict[str, float]:
    """Return a network: calm, bad in one way, or bad in every way."""
    rng = draw.rng
    if rng.random() < 0.3:
        return {}
    wild = {
        "loss": draw.between(0.001, 0.1),
        "duplicate": draw.between(0.001, 0.2),
        "reorder": draw.between(0.001, 0.3),
        "late": draw.between(0.01, 1.0),
    }
    chosen = wild if rng.random() < 0.3 else dict([rng.choice(list(wild.items()))])
    return {**chosen, "delay_ms": draw.between(0.1, 20.0), "jitter_ms": draw.between(0.1, 30.0)}


def _world(draw: Draw) -> dict[str, float]:
    """Return the nodes' settings: small, so that their limits are met."""
    rng = draw.rng
    knobs: dict[str, float] = {
        "segment_bytes": rng.choice((1024, 1024, 4096, 65536)),
        "keep_bytes": rng.choice((0, 256, 1024, 8192, 65536)),
        "fsync_ms": draw.between(0.1, 8.0),
        "job_ms": draw.between(1.0, 300.0),
    }
    knobs["fallback_s"] = rng.choice((1.0, 2.0, 6.0))  # how long a leader without followers leads
    return knobs


def _limits(draw: Draw, roles: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return tight limits: none in most seeds, in the others several, so that refusals meet."""
    rng = draw.rng
    if rng.random() >= TIGHT_SHARE:
        return {}
    largest = _largest(roles)
    tight = {
        "in_flight_max": 3,
        "parked_gets_max": 2,
        "backlog_bytes_max": BACKLOG_PUTS_MIN * largest,
        "uncommitted_entries_max": 4,
        "relays_max": 3,
        "full_share": 0.1,
    }
    limits = {name: value for name, value in tight.items() if rng.random() < 0.4}
    if "relays_max" in limits:  # the same kind: what waits on the way to clients
        limits["room_bytes"] = 1  # one GET a turn and way; the others are put off
    return limits


def _bounds(draw: Draw, largest: int) -> dict[str, int]:
    """Return small values of the product's constants, in half of all seeds: so they are met."""
    rng = draw.rng
    if rng.random() >= BOUNDED_SHARE:
        return {}
    share, bounds = rng.choice(BOUND_SHARES), {}
    for knob, (_, _, values) in CONSTANTS.items():
        chosen = rng.choice(values or [largest * times + 1_000 for times in OF_PUTS[knob]])
        if rng.random() < share:
            bounds[knob] = chosen
    for knob, (_, _, values) in DEFAULTS.items():
        chosen = rng.choice(values)
        if rng.random() < share:
            bounds[knob] = chosen
    for knob, values in OF_THE_STORE.items():
        if rng.random() < STORE_SHARE:
            bounds[knob] = rng.choice(values)
    return bounds


def _fitting(draw: Draw, actions: Set[str], knobs: Mapping[str, Any]) -> dict[str, float]:
    """Return settings that let faults meet what they are for, in half of the seeds.

    A checkpoint that vouches for too much shows where the journal keeps nothing behind it, and more
    is committed while it lasts; a leader that is left alone where it leads on for long; a lost
    piece where a copy has several; an acknowledgment of what was not shown where little is at once;
    a listing without its end where it has pages.
    """
    if draw.rng.random() >= FITTING_SHARE:
        return {}
    fitting: dict[str, float] = {"topics_count_max": int(knobs.get("topics_count_max", 2))}
    if "fsync_error" in actions:
        fitting |= {"segment_bytes": 1024, "keep_bytes": 0, "job_ms": 300.0}
    if {"install", "pause"} & actions and "cut" in actions:
        fitting["fallback_s"] = 6.0
    if not {"lose_piece", "kill_source"}.isdisjoint(actions):
        fitting["copy_chunk_bytes"] = int(knobs.get("copy_chunk_bytes", 8_192))
    if "transfer" in actions:
        fitting["slice_entries_max"] = int(knobs.get("slice_entries_max", 2))
    return fitting


def _largest(roles: Sequence[Mapping[str, Any]]) -> int:
    """Return the bytes of the largest PUT that these roles make, of all callers together."""
    size_bytes = max(role["size_bytes"] for role in roles)
    count = max(role["batch_count"] * role.get("callers", 1) for role in roles)
    return int(count * (size_bytes + PUBLICATION_OVERHEAD_BYTES))


def _load(draw: Draw) -> dict[str, Any]:
    """Return the clients' part: topics are few, so that clients meet."""
    rng = draw.rng
    topics = ["x", "y", "z"][: rng.randint(1, 3)]
    size_bytes = rng.choice((20, 200, 2000, 20_000))
    sizes = [size_bytes] if rng.random() < 0.7 else [20, 200, 2000, size_bytes]
    roles = [_role(draw, topics, rng.choice(sizes)) for _ in draw.clients]
    roles[0] |= {"puts": 1.0, "churns": 0.0}
    # One that only reads: it never waits for an answer to a PUT that a deposed leader can't give.
    roles[-1] |= {"puts": 0.0, "gets": 1.0, "churns": 0.0, "reads_any": False}
    roles[1] |= _lister(draw) if rng.random() < LISTER_SHARE else _leaver(draw)
    for role in roles:
        if role["churns"]:
            role |= {"topics": [*role["topics"], LEFT_TOPIC], "puts": role["puts"] or 0.2}
            role["reads_any"] = False  # it may hear of a SUB by its publications, not its answer
    return {"roles": roles, "deadline_ms": rng.choice((1_500, 1_500, 3_000, 15_000))}


def plain_load(draw: Draw) -> dict[str, Any]:
    """Return clients of one topic or two that publish, read and list, and little else."""
    rng, topics = draw.rng, ["x", "y"][: draw.rng.randint(1, 2)]
    size_bytes = rng.choice((20, 20, 200, 2000))
    roles = []
    for number, _ in enumerate(draw.clients):
        role = _role(draw, topics, size_bytes) | {"churns": 0.0, "oversized": 0.0}
        is_maker = number < 2
        role |= {
            "puts": float(is_maker),
            "gets": float(not is_maker),
            "pause_s": rng.uniform(0.02, 0.1),
        }
        roles.append({**role, "is_awaiting": False, "batch_count": rng.choice((1, 1, 3))})
    return {"roles": roles, "deadline_ms": rng.choice((1_500, 3_000))}


def _let_work(
    draw: Draw,
    roles: Sequence[dict[str, Any]],
    schedule: Sequence[Action],
    knobs: dict[str, Any],
    duration_s: float,
) -> list[Action]:
    """Let some clients of most seeds of their level share their topics' publications, besides.

    What a group has not settled fills its topic, and its workers may be gone for good. Return how
    they die in the meantime.
    """
    rng = draw.rng
    if not at_level_of_users(schedule) or rng.random() >= GROUPS_SHARE:
        return []
    knobs.pop("backlog_bytes_max", None)
    knobs.pop("quota_unread_bytes", None)
    for role in rng.sample(roles, rng.randint(min(2, len(roles)), len(roles))):
        role |= {
            "works": rng.choice((0.5, 1.0, 3.0)),
            "lease_ms": rng.choice((150, 500, 2_000)),
            "max_attempts": rng.choice((0, 0, 1, 2)),
        }
    share = rng.choice(BOUND_SHARES)
    for name, values in OF_GROUPS.items():
        value = rng.choice(values)
        if rng.random() < share:
            knobs[name] = value
    if rng.random() >= DEATHS_SHARE:
        return []
    workers = [
        name for name, role in zip(draw.clients, roles, strict=True) if role.get("works", 0.0)
    ]
    deaths, at_s, period_s = list[Action](), START_S, draw.between(*DEATHS_PERIOD_S)
    while (at_s := at_s + rng.expovariate(1 / period_s)) < duration_s - DEAD_S[1]:
        client = {"client": rng.choice(workers)}
        deaths.append(Action(at_s, "client_crash", {**client, "at": "now"}))
        deaths.append(Action(at_s + draw.between(*DEAD_S), "client_restart", client))
    return deaths


def _order_by_key(
    draw: Draw, roles: Sequence[dict[str, Any]], knobs: dict[str, Any], duration_s: float
) -> Iterator[Action]:
    """Let the groups of most seeds be ordered by key, and some be moved by an administrator."""
    rng = draw.rng
    workers = [role for role in roles if role.get("works")]
    if not workers:
        return
    if rng.random() < KEY_ORDER_SHARE:
        knobs |= {name: rng.choice(values) for name, values in OF_KEY_ORDER.items()}
        for role in workers:
            role["is_ordered"] = rng.choice((True, True, True, True, None, False))
        for role in roles:
            role["has_properties"] = not role.get("is_old")  # nothing else has keys
    if rng.random() < GROUP_SEEKS_SHARE:
        topics = sorted({topic for role in workers for topic in role["topics"]})
        for _ in range(rng.randint(1, 4)):
            start = rng.choice(("new", "earliest", "earliest", rng.randint(1, 100)))
            args = {"node": draw.node(), "topic": rng.choice(topics), "start": start}
            yield Action(round(draw.between(START_S, duration_s), 4), "seek_group", args)


def _slow_down(draw: Draw, roles: Sequence[dict[str, Any]], is_bounded: bool) -> None:
    """Let some client wait long for what comes, or leave others' publications lying about."""
    if draw.rng.random() < WAITER_SHARE:
        roles[-1] |= {"get_wait_ms": 2_000, "pause_s": draw.between(0.02, 0.1)}
    if is_bounded and draw.rng.random() < SLEEPER_SHARE:
        reads_too = {"gets": 1.0, "churns": 0.0, "puts": 0.0, "lists": 0.0}
        roles[2] |= {**reads_too, "pause_s": draw.between(2.0, 6.0), "reads_any": False}


def _lister(draw: Draw) -> dict[str, Any]:
    """Who changes nothing stays with a deposed leader as long as it answers."""
    only = {"puts": 0.0, "gets": 0.0, "churns": 0.0, "lists": 1.0, "oversized": 0.0}
    return only | {"pause_s": draw.between(0.03, 0.15)}


def _leaver(draw: Draw) -> dict[str, Any]:
    """Who comes and goes finds out when a request of the past is carried out."""
    return {"puts": 0.2, "gets": 1.0, "churns": 1.0, "pause_s": draw.between(0.05, 0.2)}


def _role(draw: Draw, topics: Sequence[str], size_bytes: int) -> dict[str, Any]:
    rng = draw.rng
    puts, gets = rng.choice(((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.2, 1.0)))
    role: dict[str, Any] = {
        "topics": rng.sample(topics, rng.randint(1, len(topics))),
        "puts": puts,
        "gets": gets,
        "churns": rng.choice((0.0, 0.1, 0.5)) if gets else 0.0,
        "lists": rng.choice((0.0, 0.05)),
        "oversized": rng.choice((0.0, 0.0, 0.01)),
        "pause_s": draw.between(*PAUSE_S) * (CROWD_PAUSES if len(draw.clients) > CLIENTS[1] else 1),
        "batch_count": min(rng.choice((1, 1, 3, 20)), max(1, PUT_BYTES // size_bytes)),
        "size_bytes": size_bytes,
        "get_count": rng.choice(GET_COUNTS),
        "get_wait_ms": rng.choice((0, 0, 50, 500, 2000)),
        "reads_any": rng.random() < 0.3,
        "is_manual": rng.random() < 0.2,
        "is_hasty": rng.random() < 0.3,
        "in_flight": rng.choice((0, 0, 0, 0, 3, 16)),
    }
    return role


def _broken(draw: Draw, mode: Mode) -> dict[str, str]:
    """Return which nodes stay broken in the end: a minority, where progress is the point."""
    if mode == "safety":
        return {}
    count = draw.rng.randint(0, (len(draw.members) - 1) // 2)
    return {name: draw.rng.choice(BROKEN_HOWS) for name in draw.rng.sample(draw.members, count)}
