"""Plans of the mode `log`: what befalls the log, its disks and its members, again and again.

What lives here: the drawing of these plans, and their scenes. What must not: kinds of faults that
other seeds draw too (swarm.py), what an action does.

A seed of the swarm has a dozen kinds of faults at once, and its clients do all that a cluster can
do. So an entry that raises the level, or admits somebody, is replaced in hardly one seed of a
hundred; and few logs end in what no majority has just when their node starts again. Here a seed has
a few scenes, one after the other, many times; the cluster is whole in between. Clients do little,
and limits of nodes are met; a turn takes what has come in some milliseconds, so that a node is told
several things at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from chaos.simulation.disks.disk import KEEPS
from chaos.simulation.plan.limits import CONSTANTS, DEFAULTS, OF_LEVELS, OF_SCRUB
from chaos.simulation.plan.plan import Action, Plan
from chaos.simulation.search.swarm import KINDS, Draw, Schedule, plain_load, weather
from cluster.wire.levels import BUILD, LEVEL_FIRST
from flotilla_client.protocol import STATUS

NODES: Final = {3: 45, 4: 15, 5: 35, 7: 5}  # weights: of three nobody but the leader has a lost
# tail, and half of four is no majority.
DURATION_S: Final = (14.0, 24.0)
CLIENTS: Final = (3, 4)
FIRST_S: Final = 2.0  # the first scene finds a leader
BETWEEN_S: Final = (0.2, 3.0)  # two scenes: one may find the cluster not whole yet
MAIN: Final = ("admissions", "copies", "raises", "tails")  # two of these a seed has, at least
BESIDE: Final = (2, 5)  # so many others
ENDS_SHARE: Final = 0.25  # of the leaders that are to be cut off end instead
CALM_SHARE: Final = 0.5  # of the seeds have a calm network
WIRE_SHARE: Final = 0.25
SCRUB_SHARE: Final = 0.4
RAISED_SHARE: Final = 0.8  # of the seeds in which that is no scene raise the level at once
BOUND_SHARE: Final = 0.3  # of the limits that belong to the log
WAKE_MS: Final = (0.2, 0.2, 5.0, 20.0)  # from what comes to the turn that takes it
BOUNDS: Final = (
    "slice_entries_max", "slice_bytes_max", "journal_buffer_bytes_max", "in_flight_bytes_max",
    "copy_chunk_bytes",
)  # fmt: skip
STATUS_PERIOD_S: Final = 0.4
RAISES_S: Final = (0.5, 1.0, 2.0, 4.0)
ADMITTED_S_MAX: Final = 8.0  # until a wiped member is readmitted: it has to be silent first
# Kinds of faults of the swarm that are scenes by themselves: they are mended in some seconds.
KINDS_TAKEN: Final = (
    "dead_sources", "failing_disks", "inheritances", "lost_checkpoints", "lost_pieces", "rebirths",
    "returning_leaders", "way_back_meanwhile",
)  # fmt: skip

Scene = Callable[[Draw], Schedule]


def _apart(draw: Draw, seconds: float) -> dict[str, Any]:
    """Return whom to cut off for so long: a minority, which ends meanwhile or does not.

    Or the leader ends at once, and some of the others have what it has just said.
    """
    if draw.rng.random() < ENDS_SHARE:
        ends = {"end_s": draw.between(0.0005, 0.02), "keep": draw.rng.choice(("", *KEEPS))}
        return {"count": 0, "seconds": seconds, **ends}
    isolation: dict[str, Any] = {"seconds": seconds}
    isolation["count"] = draw.rng.randint(1, max(1, (len(draw.members) - 1) // 2))
    if draw.rng.random() < 0.5:
        isolation["end_s"] = round(seconds * draw.rng.uniform(0.5, 0.9), 3)
        isolation["keep"] = draw.rng.choice(("", *KEEPS))
    return isolation


def _tails(draw: Draw) -> Schedule:
    """Have entries that no majority has replaced by another leader's."""
    if draw.rng.random() < 0.3:
        ms = draw.between(5.0, 200.0)
        yield from ((0.0, "slow_fsync", {"node": node, "ms": ms}) for node in draw.members)
    yield 0.1, "isolate", _apart(draw, draw.between(0.8, 2.5))
    # Who leads for a moment still takes what an operator asks, whoever its clients go to.
    for _ in range(draw.rng.randint(0, 6)):
        yield 0.1 + draw.between(0.005, 0.5), "checkpoint", {"node": "leader"}


def _raises(draw: Draw) -> Schedule:
    """Have the entry replaced that raises the level: of the leader's log alone, or of a minority's.

    Then ask again; a level in between leaves more of them for later.
    """
    levels = [*range(LEVEL_FIRST + 1, BUILD.level_max + 1)]
    level = draw.rng.choice([*levels[:2], *levels])
    seconds = draw.between(0.8, 2.5)
    yield 0.0, "isolate_at", {"event": "raising", "within_s": 2.0, **_apart(draw, seconds)}
    for later_s in (0.01, 0.4, seconds + 1.0):
        yield later_s, "let_users", {"level": level}


def _admissions(draw: Draw) -> Schedule:
    """Have the entry replaced that readmits a wiped member."""
    seconds = draw.between(0.8, 3.0)
    alone = _apart(draw, seconds)
    alone["count"] = min(1, alone["count"])  # the others are to be a majority without it
    yield 0.0, "wipe", {"node": draw.member()}
    yield 0.05, "restart_all", {}
    if draw.rng.random() < 0.3:  # or wipe it once more, before it has said much
        again = {"within_s": ADMITTED_S_MAX, "later_s": draw.between(0.01, 0.5)}
        yield 0.1, "wipe_at_admission", again
    else:
        yield 0.1, "isolate_at", {"event": "admitting", "within_s": ADMITTED_S_MAX, **alone}
    if draw.rng.random() < 0.3:
        yield draw.between(2.0, 6.0), "kill", {"node": "leader"}
    yield ADMITTED_S_MAX, "restart_all", {}


def _copies(draw: Draw) -> Schedule:
    """Let a member lag until the others have no more of the log; end it, or its source, midway."""
    node, seconds = draw.member(), draw.between(0.6, 2.0)
    yield 0.0, "cut", {"node": node, "others": list(draw.members), "seconds": seconds}
    for share in (0.6, 0.95):
        yield from ((share * seconds, "compact", {"node": name}) for name in draw.members)
    hows = ("", "kill_source", "lose_piece", "kill", "power_loss", "isolate", "low")
    how = draw.rng.choice(hows)
    piece = {"seconds": 3.0, "pieces": draw.rng.randint(0, 3)}
    if how in ("kill_source", "lose_piece"):
        yield seconds, how, piece
    elif how == "isolate":
        yield seconds + draw.between(0.05, 0.5), how, _apart(draw, draw.between(0.8, 2.0))
    elif how == "low":
        short = draw.rng.choice(([node], [*draw.members]))
        later_s = seconds + draw.between(1.5, 3.0)
        yield from ((0.9 * seconds, "disk_low", {"node": name}) for name in short)
        yield from ((later_s, "disk_free", {"node": name}) for name in short)
    elif how:
        operation = draw.rng.choice(("store_rename", "store_unlink", "fdatasync", "rename", "any"))
        keep = {"keep": draw.rng.choice(KEEPS)} if how == "power_loss" else {}
        at = {"at": operation, "count": draw.rng.randint(1, 8)}
        yield seconds, how, {"node": node, **at, **keep}
    yield seconds + 3.0, "restart_all", {}


def _handovers(draw: Draw) -> Schedule:
    """Hand the lead over, to somebody or whoever is next, while a member lags or goes away."""
    one, other = draw.rng.sample(draw.members, 2)
    if draw.rng.random() < 0.4:
        yield 0.0, "slow_fsync", {"node": one, "ms": draw.between(20.0, 300.0)}
    for _ in range(draw.rng.randint(1, 4)):
        at_s = draw.between(0.05, 1.0)
        to = draw.rng.choice(("", *draw.members))
        yield at_s, "transfer_leader", {"node": "leader", "to": to}
        later_s = at_s + draw.between(0.001, 0.1)
        match draw.rng.choice(("", "disconnect", "cut", "isolate")):
            case "disconnect":
                yield later_s, "disconnect", {"one": one, "other": other}
            case "cut":
                cut = {"node": to or other, "others": list(draw.members)}
                yield later_s, "cut", {**cut, "seconds": draw.between(0.3, 1.5)}
            case "isolate":
                yield later_s, "isolate", _apart(draw, draw.between(0.5, 1.5))


def _outages(draw: Draw) -> Schedule:
    """End all, or many, in the middle of what they write, and let them go on from it."""
    for _ in range(draw.rng.randint(1, 3)):
        at_s = draw.between(0.05, 1.5)
        match draw.rng.choice(("kill_all", "power_loss_all", "some", "some")):
            case "kill_all":
                yield at_s, "kill_all", {}
            case "power_loss_all":
                yield at_s, "power_loss_all", {"keep": draw.rng.choice(KEEPS)}
            case _:
                for node in draw.rng.sample(draw.members, len(draw.members) // 2 + 1):
                    operation = draw.rng.choice(("write", "fdatasync", "rename", "store"))
                    at = {"at": operation, "count": draw.rng.randint(1, 5)}
                    keep = draw.rng.choice(KEEPS)
                    yield at_s, "power_loss", {"node": node, "keep": keep, **at}
        yield at_s + draw.between(0.05, 0.5), "restart_all", {}


def _flaps(draw: Draw) -> Schedule:
    """Break connections, and stop processes for a moment: they are back within a turn, or two."""
    for _ in range(draw.rng.randint(2, 8)):
        at_s = draw.between(0.01, 1.5)
        if draw.rng.random() < 0.7:
            one, other = draw.rng.sample(draw.members, 2)
            yield at_s, "disconnect", {"one": one, "other": other}
        else:
            yield at_s, "pause", {"node": draw.node()}
            yield at_s + draw.between(0.02, 0.8), "resume", {"node": "all"}


def _sleeps(draw: Draw) -> Schedule:
    """Suspend all, as a host does that sleeps, while a wiped member waits to be admitted."""
    yield 0.0, "wipe", {"node": draw.member()}
    yield 0.05, "restart_all", {}
    at_s = draw.between(0.1, 2.0)
    yield from ((at_s, "pause", {"node": name}) for name in draw.members)
    at_s += draw.between(1.6, 5.0)
    for name in draw.rng.sample(draw.members, len(draw.members)):
        yield at_s, "resume", {"node": name}
        at_s += draw.between(0.001, 0.1)


def _edges(draw: Draw) -> Schedule:
    """Cut a journal behind a record, or spoil it otherwise, and let its process start again."""
    node = draw.member()
    how = draw.rng.choice(("cut_edge", "cut_edge", "cut", "flip", "flip_row", *["flip_cached"] * 2))
    yield 0.0, "damage", {"node": node, "how": how}
    is_latent = how in ("flip_cached", "flip_row")  # that is for who reads the disk back
    yield draw.between(*((2.0, 4.0) if is_latent else (0.05, 0.3))), "kill", {"node": node}
    yield 4.5, "restart_all", {}


def _liars(draw: Draw) -> Schedule:
    """Let a member's state differ from the others': it has to stop, and begin anew."""
    yield 0.0, "falsify", {"node": draw.member()}
    if draw.rng.random() < 0.3:
        yield draw.between(0.5, 3.0), "power_loss", {"node": draw.member(), "keep": "lost"}
    yield 4.0, "restart_all", {}


def _low_disks(draw: Draw) -> Schedule:
    """Let disks be short of room for a moment, and others while these are not any more."""
    for _ in range(draw.rng.randint(1, 4)):
        at_s = draw.between(0.01, 2.0)
        for node in draw.rng.sample(draw.members, draw.rng.randint(1, len(draw.members))):
            yield at_s, "disk_low", {"node": node}
            yield at_s + draw.between(0.1, 1.0), "disk_free", {"node": node}


SCENES: Final[dict[str, Scene]] = {
    "tails": _tails,
    "raises": _raises,
    "admissions": _admissions,
    "copies": _copies,
    "handovers": _handovers,
    "outages": _outages,
    "flaps": _flaps,
    "sleeps": _sleeps,
    "edges": _edges,
    "liars": _liars,
    "low_disks": _low_disks,
    **{name: KINDS[name] for name in KINDS_TAKEN},
}


def log_plan_for(seed: int, nodes: int | None = None) -> Plan:
    """Return the plan of a seed; `nodes`: how many, drawn if None."""

    def stream(purpose: str) -> random.Random:
        return random.Random(f"swarm {seed} log {purpose}")

    rng = stream("size")
    [drawn] = rng.choices(list(NODES), list(NODES.values()))
    count = nodes or drawn
    clients = [f"client-{number}" for number in range(1, rng.randint(*CLIENTS) + 1)]
    empty = Plan(seed, count, len(clients), round(rng.uniform(*DURATION_S), 1), "log")

    def draw(purpose: str) -> Draw:
        return Draw(stream(purpose), empty.members, clients)

    sky = draw("weather")
    calm = {"delay_ms": 0.5, "jitter_ms": 0.5}
    schedule = [Action(0.0, "weather", calm if sky.rng.random() < CALM_SHARE else weather(sky))]
    names = _names(draw("names").rng)
    knobs = _knobs(stream("knobs"), reads_back="edges" in names)
    if "raises" not in names and draw("level").rng.random() < RAISED_SHARE:
        schedule += [Action(at_s, "let_users", {}) for at_s in RAISES_S]
    schedule += _scenes(draw, names, empty.duration_s) if count > 1 else []
    asks, at_s = draw("asks").rng, FIRST_S
    while (at_s := at_s + asks.expovariate(1 / STATUS_PERIOD_S)) < empty.duration_s:
        asked = {"node": asks.choice(empty.members), "what": STATUS, "place": 0}
        schedule.append(Action(round(at_s, 4), "inspect", asked))
    if "wire" in knobs:  # see swarm.plan_for
        schedule = [each for each in schedule if each.args.get("build") != "0.1"]
    in_time = (each for each in schedule if each.at_s < empty.duration_s)
    ordered = tuple(sorted(in_time, key=lambda action: action.at_s))
    knobs["load"] = {**plain_load(draw("load")), "broken": {}}
    return Plan(seed, count, len(clients), empty.duration_s, "log", knobs, ordered)


def _names(rng: random.Random) -> list[str]:
    """Return the kinds of scenes that a seed has."""
    names = rng.sample(MAIN, 2)
    rest = sorted(SCENES.keys() - set(names))
    return names + rng.sample(rest, rng.randint(*BESIDE))


def _scenes(draw: Callable[[str], Draw], names: Sequence[str], duration_s: float) -> list[Action]:
    """Return what a seed's scenes do, one after the other, and what mends behind each."""
    order = draw("scenes")
    schedule: list[Action] = []
    at_s = FIRST_S
    while at_s < duration_s:
        steps = list(SCENES[order.rng.choice(names)](draw(f"scene at {at_s}")))
        schedule += [Action(round(at_s + later_s, 4), name, args) for later_s, name, args in steps]
        lasts_s = max(later_s + args.get("seconds", 0.0) for later_s, _, args in steps)
        at_s = round(at_s + min(lasts_s, ADMITTED_S_MAX) + 0.1, 4)
        mends: list[tuple[str, dict[str, Any]]] = [("resume", {"node": "all"}), ("restart_all", {})]
        mends += [("slow_fsync", {"node": node, "ms": 0.0}) for node in order.members]
        schedule += [Action(at_s, name, args) for name, args in mends]
        at_s = round(at_s + order.between(*BETWEEN_S), 4)
    return schedule


def _knobs(rng: random.Random, reads_back: bool) -> dict[str, Any]:
    """Return the nodes' settings: small, so that what belongs to the log meets its limits."""
    knobs: dict[str, Any] = {
        "segment_bytes": rng.choice((1024, 1024, 4096, 65536)),
        "keep_bytes": rng.choice((0, 0, 1024, 65536)),
        "fsync_ms": round(rng.uniform(0.1, 4.0), 3),
        "job_ms": round(rng.uniform(1.0, 200.0), 3),
        "fallback_s": rng.choice((1.0, 2.0, 6.0)),
        "share_ends": rng.choice((0.0, 0.0, 0.1, 0.5)),
        "wake_ms": rng.choice(WAKE_MS),
        "acts": 1,
    }
    for name in BOUNDS:
        values = CONSTANTS[name][2]
        if rng.random() < BOUND_SHARE:
            knobs[name] = rng.choice(values)
    for name, (_, _, values) in DEFAULTS.items():
        if rng.random() < BOUND_SHARE:
            knobs[name] = rng.choice(values)
    knobs["audit_every"] = rng.choice(OF_LEVELS["audit_every"][2])
    if rng.random() < WIRE_SHARE:
        knobs["wire"] = 1
    if rng.random() < SCRUB_SHARE or reads_back:
        knobs |= {"scrub_bytes_per_s": 20_000_000, "scrub_period_s": rng.choice((0.5, 2.0))}
        knobs |= {name: rng.choice(values) for name, (_, _, values) in OF_SCRUB.items()}
    return knobs
