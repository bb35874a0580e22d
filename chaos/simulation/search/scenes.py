"""Scenes: situations of several parts, which seeds that draw each part by itself seldom come to.

What lives here: parts of a plan that fit each other, each with the share of seeds that has it. What
must not: what a seed draws for itself (swarm.py), what an action does.

The more a cluster can do, the less of anything a seed has: its clients do all of it in turns, and
each fault meets the others. Of 40 seeds one had a key with two publications in a worker's hands,
and none a seek that went back. So some seeds do one thing, and do it often. Each scene has a random
stream of its own, so that whoever draws it leaves all others as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from chaos.simulation.clients.compactor import COMPACTED_TOPIC
from chaos.simulation.clients.replayer import KEPT_TOPIC, REPLAYER
from chaos.simulation.clients.traveller import TRODDEN
from chaos.simulation.clients.working import DEAD, DESK
from chaos.simulation.plan.limits import (
    CLIENT_IDLE_MS,
    OF_COMPACTION,
    OF_GROUPS,
    OF_KEY_ORDER,
)
from chaos.simulation.plan.plan import Action

# A level is raised while every member is heard, so that early asking may be in vain for ever.
LATER_RAISES_S: Final = (5.0, 8.0, 11.0, 15.0, 20.0, 25.0)

WORKSHOP_SHARE: Final = 0.5  # of the seeds whose cluster gets to the level of groups
WORKSHOP_CLIENTS: Final = 5  # at most; the last one of four or more goes on as it was drawn
MAKERS_SHARE: Final = 0.4  # of a workshop's clients publish, the others work
BY_KEY_SHARE: Final = 0.5
LETTERS_SHARE: Final = 0.6  # have dead letters
OF_TOPICS_SHARE: Final = 0.5  # of which the topics say where they go
MOVES_SHARE: Final = 0.5  # have groups that are moved
MOVES: Final = (4, 12)
NAKS: Final = (0.15, 0.5)  # so much of what is in hand is given back, against 0.85 of all else
WAIT_MS: Final = 2_000  # of some TAKEs: longer than any may be parked beside what it could be given
WAITS_MS: Final = (0, 0, 100, WAIT_MS)  # one of these
TIGHT_SHARE: Final = 0.3  # meet limits of groups
# Of those with dead letters have workers that come so seldom that much expires before they look.
LATE_SHARE: Final = 0.5
LATE_PAUSE_S: Final = (0.3, 0.8)
LATE_READER_SHARE: Final = 0.6
READING_PAUSE_S: Final = (0.1, 0.4)  # most lives are shorter (dressing.py)
MAKING_PAUSE_S: Final = (0.05, 0.2)
POLICIES_S: Final = (1.0, 2.0, 4.0, 8.0)  # the cluster gets to its level by and by
# What ends groups, or changes what their topics keep.
OF_TOPICS: Final = frozenset({"delete_topic", "set_topic", "purge"})

PAIR_SHARE: Final = 0.8  # of the seeds in which nobody would raise a level
MAKER_PAUSE_S: Final = (0.3, 0.8)  # so that work is waited for, and does not wait
WORKER_PAUSE_S: Final = 0.05
PAIR_RAISES_S: Final = (0.8, 1.5, 2.0)
DESK_ENDS_S: Final = (1.0, 3.0)  # between two ends of their topic, in the first half
DEAF_PERIOD_S: Final = (1.5, 4.0)  # between two times that the worker hears nothing
DEAF_MORE_S: Final = (0.1, 1.0)  # than it asks

ROVER_SHARE: Final = 0.4  # of the seeds with somebody who replays have one who does it undisturbed
ROVER_PERIOD_S: Final = 0.12

# So many of those seeds have their topic deleted while what he has published waits for its time.
LOST_LANES_SHARE: Final = 0.8
LOST_LANES_S: Final = 3.0
LANES_POLICY: Final = {"keep": "forever", "amount": 0}

COMPACTED_SHARE: Final = 0.35  # of the seeds whose cluster gets to that level
COMPACTED_PERIOD_S: Final = 0.05  # of what somebody asks who publishes with keys
COMPACTED_ENDS_S: Final = 9.0  # between two ends of his topic, in those seeds that have any
BOTH_SHARE: Final = 0.7  # of those with a traveller have his topic compacted, too
COMPACTED_POLICIES: Final = (
    {"keep": "forever", "amount": 0},
    {"keep": "forever", "amount": 0, "max_bytes": 5_000},
    {"keep": "count", "amount": 60},
    {"keep": "ms", "amount": 6_000},
)

LOST_SYNCS_SHARE: Final = 0.25  # of all seeds have clients that end at a sync that fails
LOST_SYNCS_PERIOD_S: Final = 5.0

HOLES_SHARE: Final = 0.15  # of all seeds have clients that go on behind a sync that fails
HOLES_PERIOD_S: Final = 3.0

MAJORITIES_SHARE: Final = 0.12  # of all seeds have disks of a majority that fail together
MAJORITIES_PERIOD_S: Final = 3.0

SLEEPERS_SHARE: Final = 0.5  # of the seeds that forget who is silent have one who waits as long
QUIET: Final = "quiet"  # the topic that nobody publishes to

TRAVELLER_SHARE: Final = 0.4  # of the seeds whose cluster gets to its level, and has few limits
TRODDEN_POLICIES: Final[Sequence[Mapping[str, Any]]] = (
    {"keep": "forever", "amount": 0},
    {"keep": "count", "amount": 40},
    {"keep": "forever", "amount": 0, "compact": True},
)
TRODDEN_PURGES_S: Final = (2.0, 8.0)  # between two of them

SHORT_STEPS_SHARE: Final = 0.5  # of the seeds that read disks back do so in steps of few rows


def later_raises(duration_s: float) -> list[Action]:
    """Ask for the level of this build until all members are there; it is raised once."""
    return [Action(at_s, "let_users", {}) for at_s in LATER_RAISES_S if at_s < duration_s]


def short_steps(rng: Random, knobs: dict[str, Any]) -> None:
    """Have disks read back few rows at a time, in quick steps, in some seeds that do at all."""
    if "scrub_bytes_per_s" in knobs and rng.random() < SHORT_STEPS_SHARE:
        knobs |= {"scrub_step_rows": rng.choice((2, 3)), "job_ms": 1.0}
        knobs |= {"scrub_bytes_per_s": 20_000_000, "scrub_period_s": 2.0}


def sleepers(rng: Random, roles: Sequence[dict[str, Any]], knobs: dict[str, Any]) -> None:
    """Let somebody wait where nobody publishes, for longer than who is silent is remembered.

    In some seeds that forget at all. Elsewhere something comes before he is forgotten.
    """
    if rng.random() < SLEEPERS_SHARE:
        knobs["client_idle_ms"] = min(CLIENT_IDLE_MS)
        roles[-1] |= {"puts": 0.0, "churns": 0.0, "lists": 0.0, "works": 0.0, "gets": 1.0}
        roles[-1] |= {"topics": [QUIET], "reads_any": rng.random() < 0.5, "get_wait_ms": WAIT_MS}


def lost_syncs(rng: Random, clients: Sequence[str], duration_s: float) -> Iterator[Action]:
    """End clients' processes at a sync that fails; the next one goes on, until the power goes.

    What the failed one was to write is in the cache alone, and nobody has written it again.
    """
    if rng.random() >= LOST_SYNCS_SHARE:
        return
    at_s = rng.uniform(1.0, LOST_SYNCS_PERIOD_S)
    while at_s < duration_s - LOST_SYNCS_PERIOD_S:
        client = {"client": rng.choice(clients)}
        fails = {"count": rng.randint(1, 3), "kind": "store_sync", "ends": True}
        back_s = at_s + rng.uniform(0.5, 1.5)
        gone_s = back_s + rng.uniform(0.3, 2.5)
        yield Action(at_s, "client_fsync_error", {**client, **fails})
        yield Action(back_s, "client_restart", client)
        yield Action(gone_s, "client_power_loss", {**client, "keep": "lost"})
        yield Action(gone_s + 0.2, "client_restart", client)
        at_s += LOST_SYNCS_PERIOD_S


def holes(rng: Random, clients: Sequence[str], duration_s: float) -> Iterator[Action]:
    """Let a sync of a client's state fail, and the same process go on, until the power goes.

    What the failed sync was to write is in the cache alone. What is written behind it is lost with
    it, unless the process writes all of its log again.
    """
    if rng.random() >= HOLES_SHARE:
        return
    at_s = rng.uniform(1.0, HOLES_PERIOD_S)
    while at_s < duration_s - HOLES_PERIOD_S:
        client = {"client": rng.choice(clients)}
        fails = {"count": rng.randint(1, 2), "kind": "store_sync"}
        gone_s = at_s + rng.uniform(0.5, 2.5)
        yield Action(at_s, "client_fsync_error", {**client, **fails})
        yield Action(gone_s, "client_power_loss", {**client, "keep": "lost"})
        yield Action(gone_s + 0.2, "client_restart", client)
        at_s += HOLES_PERIOD_S


def failing_majorities(rng: Random, members: Sequence[str], duration_s: float) -> Iterator[Action]:
    """Let a sync of a majority's journals fail; the next processes go on, until the power goes.

    What the failed syncs were to write is in the caches alone: whoever takes it for durable there
    may commit on it.
    """
    if rng.random() >= MAJORITIES_SHARE:
        return
    at_s = rng.uniform(1.0, MAJORITIES_PERIOD_S)
    while at_s < duration_s - MAJORITIES_PERIOD_S:
        back_s = at_s + rng.uniform(0.3, 0.8)
        gone_s = back_s + rng.uniform(0.1, 0.6)
        for node in rng.sample(members, len(members) // 2 + 1):
            yield Action(at_s, "fsync_error", {"node": node, "count": rng.randint(1, 2)})
            yield Action(gone_s, "power_loss", {"node": node, "keep": "lost"})
        yield Action(back_s, "restart_all", {})
        yield Action(gone_s + rng.uniform(0.3, 1.0), "restart_all", {})
        at_s += MAJORITIES_PERIOD_S


def workshop(
    rng: Random,
    roles: Sequence[dict[str, Any]],
    schedule: Sequence[Action],
    knobs: dict[str, Any],
    duration_s: float,
) -> tuple[Action, ...]:
    """Let some clients do nothing but work in the groups of one topic, which the others fill.

    In some seeds; return the schedule, in which nobody keeps them from it. What a group has not
    settled fills its topic, so that has no limit here, as wherever somebody works.
    """
    if rng.random() >= WORKSHOP_SHARE or _has_limits(knobs):
        return tuple(schedule)
    topic = str(roles[0]["topics"][0])
    is_ordered = rng.random() < BY_KEY_SHARE
    max_attempts = rng.choice((1, 2)) if rng.random() < LETTERS_SHARE else 0
    are_topics_asked = max_attempts > 0 and rng.random() < OF_TOPICS_SHARE
    work: dict[str, Any] = {"lease_ms": rng.choice((150, 500, 2_000)), "max_attempts": max_attempts}
    work |= {"take_waits_ms": list(WAITS_MS), "naks": rng.choice(NAKS)}
    work |= {"is_ordered": is_ordered, "own_letters": 0.0 if are_topics_asked else 1.0}
    those = roles[: min(WORKSHOP_CLIENTS, max(3, len(roles) - 1))]
    makers = round(MAKERS_SHARE * len(those))
    for number, role in enumerate(those):
        role |= {"churns": 0.0, "lists": 0.0, "oversized": 0.0, "gets": 0.0, "puts": 0.0}
        role |= {"topics": [topic], "reads_any": False, "pause_s": rng.uniform(0.03, 0.1)}
        if number < makers:
            role |= {"puts": 1.0, "works": 0.0, "batch_count": 5, "size_bytes": 20}
            role |= {"has_properties": True, "is_old": False}
            role |= {"expires": rng.choice((0.0, 0.0, 0.3)), "pause_s": rng.uniform(0.1, 0.3)}
        else:
            role |= {"works": 1.0, **work}
    _lift_limits(knobs, (*OF_GROUPS, "subscriptions_per_client_max", "backlog_bytes_max"))
    if rng.random() < TIGHT_SHARE:
        limits = {**OF_GROUPS, **OF_KEY_ORDER}
        name = rng.choice([each for each in sorted(limits) if each != "workers_max"])
        knobs[name] = rng.choice(limits[name])
    own = [
        each
        for each in schedule
        if not _is_denial(each)
        and each.name != "drop_client"
        and not (each.name in OF_TOPICS and each.args["topic"] in (topic, DEAD))
    ]
    if are_topics_asked:
        policy = {"keep": "unread", "amount": 0, "dead_letter": DEAD}
        about = {"node": "leader", "topic": topic, "policy": policy, "is_new": True}
        own += [Action(at_s, "set_topic", about) for at_s in POLICIES_S if at_s < duration_s]
    if rng.random() < MOVES_SHARE:
        for _ in range(rng.randint(*MOVES)):
            start = rng.choice(
                ("new", "earliest", "earliest", rng.randint(1, 60), rng.randint(1, 300))
            )
            move = {"node": "leader", "topic": topic, "start": start}
            own.append(Action(round(rng.uniform(2.0, duration_s - 0.1), 4), "seek_group", move))
    if max_attempts and rng.random() < LATE_SHARE:
        for role in those[:makers]:
            role |= {"expires": 1.0, "expires_soon": True}
        for role in those[makers:]:
            role |= {"pause_s": rng.uniform(*LATE_PAUSE_S), "take_waits_ms": [0]}
    return tuple(sorted(own, key=lambda action: action.at_s))


def traveller(
    rng: Random, schedule: Sequence[Action], knobs: dict[str, Any], duration_s: float
) -> tuple[Action, ...]:
    """Let a client of the library read where it likes, of a topic that keeps what was read, too.

    In some seeds; return the schedule. It may be long behind, so not where topics are full of what
    somebody has not read.
    """
    is_due = rng.random() < TRAVELLER_SHARE and "backlog_bytes_max" not in knobs
    if not is_due or _has_limits(knobs):
        return tuple(schedule)
    knobs["traveller"] = 1
    about, policy = {"node": "leader", "topic": TRODDEN}, rng.choice(TRODDEN_POLICIES)
    if policy.get("compact"):
        knobs |= {name: rng.choice(values) for name, (_, _, values) in OF_COMPACTION.items()}
    own = [
        Action(at_s, "set_topic", {**about, "policy": policy, "is_new": True})
        for at_s in (*POLICIES_S, *LATER_RAISES_S)
        if at_s < duration_s
    ]
    at_s = 0.0
    while (at_s := at_s + rng.uniform(*TRODDEN_PURGES_S)) < duration_s:
        own.append(Action(round(at_s, 4), "purge", {**about, "share": rng.choice((0.2, 0.6))}))
    return tuple(sorted((*schedule, *own), key=lambda action: action.at_s))


def late_reader(rng: Random, roles: Sequence[dict[str, Any]], knobs: Mapping[str, Any]) -> None:
    """Let one client read whatever topic comes, so seldom that half of what is next has expired.

    In some seeds without a workshop. In the other seeds few clients ask for any topic. Hardly one
    of them meets a topic of which the first publications have expired, and what follows has not.
    """
    if rng.random() >= LATE_READER_SHARE or len(roles) < 2:
        return
    if _has_limits(knobs) or not knobs.keys().isdisjoint({"backlog_bytes_max", "client_idle_ms"}):
        return  # topics that are full, and clients that sleep, are scenes of their own
    reader, *makers = reversed(roles)
    reader |= {"puts": 0.0, "churns": 0.0, "lists": 0.0, "oversized": 0.0, "works": 0.0}
    reader |= {"gets": 1.0, "topics": sorted({topic for role in roles for topic in role["topics"]})}
    reader |= {"reads_any": True, "get_wait_ms": 0, "pause_s": rng.uniform(*READING_PAUSE_S)}
    reader |= {"is_old": False}
    for role in (role for role in makers if role.get("puts")):
        role |= {"has_properties": True, "is_old": False, "expires": 0.5, "expires_soon": True}
        role |= {"puts": 1.0, "delays": 0.0, "pause_s": rng.uniform(*MAKING_PAUSE_S)}


def waiting_pair(
    rng: Random,
    roles: Mapping[str, dict[str, Any]],
    members: Sequence[str],
    knobs: dict[str, Any],
    deadline_s: float,
    duration_s: float,
) -> Iterator[Action]:
    """Let one of the last two wait for the other's work, and hear nothing for a while.

    In some of the seeds that have no groups. Where many work somebody else takes what one who waits
    should be offered; few wait when their group ends, or give up on a TAKE that was carried out.
    `roles`: by client.
    """
    if rng.random() >= PAIR_SHARE or _has_limits(knobs):
        return
    _lift_limits(knobs, ("subscriptions_per_client_max", "backlog_bytes_max"))
    maker, worker = list(roles)[-2:]
    both = {"topics": [DESK], "lease_ms": 2_000, "is_old": False, "expires": 0.0}
    both |= {"gets": 0.0, "churns": 0.0, "lists": 0.0, "oversized": 0.0, "reads_any": False}
    roles[maker] |= both | {"puts": 1.0, "batch_count": 1, "callers": 0, "in_flight": 0}
    roles[maker] |= {"pause_s": rng.uniform(*MAKER_PAUSE_S)}
    roles[worker] |= both | {"puts": 0.0, "works": 1.0, "take_waits_ms": [WAIT_MS]}
    roles[worker] |= {"pause_s": WORKER_PAUSE_S}
    yield from (Action(at_s, "let_users", {}) for at_s in PAIR_RAISES_S)
    yield from later_raises(duration_s)
    at_s, end = PAIR_RAISES_S[-1], {"node": "leader", "topic": DESK, "ends": True}
    while (at_s := at_s + rng.uniform(*DESK_ENDS_S)) < duration_s / 2:
        yield Action(round(at_s, 4), "delete_topic", end)
    while (at_s := at_s + rng.uniform(*DEAF_PERIOD_S)) < duration_s:
        seconds = round(deadline_s + rng.uniform(*DEAF_MORE_S), 4)
        for node in members:
            cut = {"source": node, "target": worker, "seconds": seconds}
            yield Action(round(at_s, 4), "cut_one_way", cut)


def rover(
    rng: Random, schedule: Sequence[Action], knobs: dict[str, Any], duration_s: float
) -> tuple[Action, ...]:
    """Let somebody by hand replay the topic that he publishes to, and nobody keep him from it.

    In some of the seeds that have one; return the schedule.
    """
    if "topics" not in knobs or rng.random() >= ROVER_SHARE or _has_limits(knobs):
        return tuple(schedule)
    _lift_limits(knobs, ())
    own = [
        each
        for each in schedule
        if not (_is_denial(each) and each.args["user"] in ("*", REPLAYER))
        and not (each.name in ("delete_topic", "purge") and each.args["topic"] == KEPT_TOPIC)
    ]
    at_s = 2.0
    while (at_s := at_s + rng.expovariate(1 / ROVER_PERIOD_S)) < duration_s:
        own.append(Action(at_s, "replay", {"node": "leader", "topic": KEPT_TOPIC}))
    return tuple(sorted(own, key=lambda action: action.at_s))


def lost_lanes(
    rng: Random, schedule: Sequence[Action], knobs: dict[str, Any], duration_s: float
) -> tuple[Action, ...]:
    """Delete the topic of who replays by hand, again and again, right behind what he publishes.

    In some of the seeds that have one; return the schedule.
    """
    if "topics" not in knobs or rng.random() >= LOST_LANES_SHARE:
        return tuple(schedule)
    about = {"node": "leader", "topic": KEPT_TOPIC}
    own = list(schedule)
    at_s = rng.uniform(4.0, 4.0 + LOST_LANES_S)
    while at_s < duration_s - 1.0:
        own.append(Action(at_s, "set_topic", {**about, "policy": LANES_POLICY, "is_new": True}))
        own += [Action(at_s + 0.3 + 0.04 * place, "replay", about) for place in range(8)]
        own.append(Action(at_s + 0.65, "delete_topic", {**about, "ends": True}))
        at_s += LOST_LANES_S
    return tuple(sorted(own, key=lambda action: action.at_s))


def compacted(
    rng: Random, schedule: Sequence[Action], knobs: dict[str, Any], duration_s: float
) -> tuple[Action, ...]:
    """Let somebody by hand publish with keys to a topic that is compacted, and read it.

    In some seeds; return the schedule. Steps are short, so
    that a topic has several of them.
    """
    if rng.random() >= COMPACTED_SHARE or _has_limits(knobs):
        return tuple(schedule)
    about = {"node": "leader", "topic": COMPACTED_TOPIC}
    policy = {**rng.choice(COMPACTED_POLICIES), "compact": True}
    knobs |= {name: rng.choice(values) for name, (_, _, values) in OF_COMPACTION.items()}
    own = [
        Action(at_s, "set_topic", {**about, "policy": policy, "is_new": True})
        for at_s in POLICIES_S
        if at_s < duration_s
    ]
    ends_s, at_s = rng.choice((duration_s, COMPACTED_ENDS_S)), 1.5
    next_end_s = ends_s
    while (at_s := at_s + rng.expovariate(1 / COMPACTED_PERIOD_S)) < duration_s:
        own.append(Action(round(at_s, 4), "compact_by_key", {"node": "leader"}))
        if at_s > next_end_s and at_s < duration_s - 1.0:
            next_end_s += ends_s
            own.append(Action(round(at_s, 4), "delete_topic", {**about, "ends": True}))
            again = {**about, "policy": policy, "is_new": True}
            own += [Action(round(at_s + after_s, 4), "set_topic", again) for after_s in (0.2, 1.0)]
    if rng.random() < BOTH_SHARE:
        schedule = [_compacting(each) for each in schedule]
    return tuple(sorted((*schedule, *own), key=lambda action: action.at_s))


def _compacting(action: Action) -> Action:
    """Return an action that gives the traveller's topic its policy as one that compacts it."""
    if action.name != "set_topic" or action.args["topic"] != TRODDEN:
        return action
    return replace(
        action, args={**action.args, "policy": {**COMPACTED_POLICIES[0], "compact": True}}
    )


def _has_limits(knobs: Mapping[str, Any]) -> bool:
    """Return whether somebody may be refused a topic, or a subscription: such seeds are few."""
    return "topics_max" in knobs or "subscriptions_max" in knobs


def _lift_limits(knobs: dict[str, Any], names: Sequence[str]) -> None:
    """Leave out limits of these names, and quotas: who is refused does less."""
    for name in [name for name in knobs if name in names or name.startswith("quota_")]:
        del knobs[name]


def _is_denial(action: Action) -> bool:
    return action.name == "change_user" and action.args["act"] in ("deny", "remove")
