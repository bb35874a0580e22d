"""`flotilla doctor`: what is wrong with a machine or a cluster, what follows, and what to do.

What lives here: measurements, each short, and a judgement of each that needs none. What must not:
anything that changes a cluster. A file that is written for a measurement is removed again.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FSYNCS: Final = 64  # of a page each: a third of a second on a good disk, some seconds on a bad one
FSYNC_S_MAX: Final = 10.0  # then what was measured has to do
PAGE_BYTES: Final = 4096
ROUND_TRIPS: Final = 20
FSYNC_SLOW_MS: Final = 20.0  # of the median: a network disk; PUT takes twice that
FSYNC_WORST_MS: Final = 100.0  # of the 99th percentile: a third of an election's least wait
ROUND_TRIP_SLOW_MS: Final = 30.0  # a tenth of it
FREE_BYTES_MIN: Final = 1024**3  # a minute of full speed, and a copy of a small store
FREE_SHARE_MIN: Final = 0.1
DESCRIPTORS_MIN: Final = 4096  # `limits.connections_max` gets half of them
# A node's defaults, which are cluster/settings/config.py's: a client need not have that package.
TIMEOUTS_MS: Final[Mapping[str, int]] = {
    "raft.election_min_ms": 300,
    "raft.election_max_ms": 600,
    "raft.heartbeat_ms": 80,
    "raft.fallback_ms": 1000,
    "raft.takeover_ms": 3000,
}
# The highest that a node takes of those that get there before the others do.
HIGHEST_MS: Final[Mapping[str, int]] = {
    "raft.election_min_ms": 60_000,
    "raft.heartbeat_ms": 10_000,
    "raft.fallback_ms": 60_000,
}
ELECTION_MIN_MS: Final = TIMEOUTS_MS["raft.election_min_ms"]
ELECTION_STEP_MS: Final = 50
MARGIN: Final = 10  # of an election's wait over a round trip with an fsync
UNSYNCHRONISED: Final = 5  # adjtimex(2): TIME_ERROR
_TIMEX_BYTES: Final = 512  # above what the structure takes anywhere

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """What was looked at and found; if it is not well, what follows from it and what to do."""

    subject: str
    found: str
    follows: str = ""
    do: str = ""

    @property
    def is_well(self) -> bool:
        """True if there is nothing to do."""
        return not self.follows

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        yield f"{'ok   ' if self.is_well else 'WRONG'} {self.subject}: {self.found}"
        if not self.is_well:
            yield f"      so    {self.follows}"
            yield f"      do    {self.do}"

    def row(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"well": self.is_well, **asdict(self)}


# --- the machine --------------------------------------------------------------------------------


def fsync_times_ms(directory: Path, count: int = FSYNCS) -> list[float]:
    """Return how long it takes to make a page durable there, the shortest first. Raises OSError."""
    times = []
    give_up_at = time.monotonic() + FSYNC_S_MAX
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(count):
            file.write(b"\0" * PAGE_BYTES)
            file.flush()
            began = time.monotonic()
            os.fdatasync(file.fileno())
            ended = time.monotonic()
            times.append((ended - began) * 1000)
            if ended > give_up_at:
                break
    return sorted(times)


def loopback_times_ms() -> list[float]:
    """Return round trips of a byte over the loopback device, the shortest first. Raises OSError."""
    times = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as one,
        listener.accept()[0] as other,
    ):
        for each in (one, other):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            one.sendall(b"?")
            other.sendall(other.recv(1))
            one.recv(1)
            times.append((time.monotonic() - began) * 1000)
    return sorted(times)


def quantile(times: Sequence[float], share: float) -> float:
    """Return the value below which that share lies."""
    return times[min(len(times) - 1, int(share * len(times)))]


def judge_disk(directory: Path, times_ms: Sequence[float]) -> Finding:
    """Judge the fsyncs of a data directory."""
    median, worst = quantile(times_ms, 0.5), quantile(times_ms, 0.99)
    found = f"median {median:.2f} ms, 99 % {worst:.2f} ms"
    subject = f"fsync in {directory}"
    if worst > FSYNC_WORST_MS:
        return Finding(
            subject,
            found,
            "a turn can take as long as an election's wait: leaders are deposed without a reason",
            "give the node a disk of its own, or raise raft.election_min_ms (see below)",
        )
    if median > FSYNC_SLOW_MS:
        return Finding(
            subject,
            found,
            f"each acknowledged PUT takes at least {2 * median:.0f} ms",
            "use a disk with a capacitor, or batches (client.producer), which share an fsync",
        )
    return Finding(subject, found)


def judge_space(directory: Path, free_bytes: int, size_bytes: int) -> Finding:
    """Judge the free space of a data directory."""
    found = f"{free_bytes / 2**30:.1f} of {size_bytes / 2**30:.1f} GiB are free"
    subject = f"space in {directory}"
    if free_bytes < FREE_BYTES_MIN or free_bytes < FREE_SHARE_MIN * size_bytes:
        return Finding(
            subject,
            found,
            "under limits.disk_free_min_bytes PUT is refused (disk_full) on the whole cluster, once"
            " the leader or a majority is there",
            "make room, or find who holds the backlog: flotilla admin topics",
        )
    return Finding(subject, found)


def judge_descriptors(soft: int, hard: int) -> Finding:
    """Judge the limit of open files; a node raises its own to the hard one."""
    found = f"{hard} ({soft} unless a process asks for more)"
    if hard < DESCRIPTORS_MIN:
        return Finding(
            "open files",
            found,
            f"a node takes {hard // 2} connections of clients at most, and closes the others",
            "LimitNOFILE in the unit, --ulimit nofile= for a container",
        )
    return Finding("open files", found)


def judge_clock(state: int) -> Finding:
    """Tell the kernel's word on its clock (adjtimex), which is never wrong for a node."""
    if state == UNSYNCHRONISED:
        found = "the kernel says that nothing sets it; the cluster trusts no clock, people do"
        return Finding("clock", found)
    return Finding("clock", "is set by the network" if state >= 0 else "the kernel tells nothing")


def judge_round_trip(subject: str, times_ms: Sequence[float]) -> Finding:
    """Judge round trips of the network."""
    median, worst = quantile(times_ms, 0.5), quantile(times_ms, 0.99)
    found = f"median {median:.2f} ms, 99 % {worst:.2f} ms"
    if worst > ROUND_TRIP_SLOW_MS:
        return Finding(
            subject,
            found,
            "an acknowledged PUT takes a round trip between nodes at least; with the default"
            " time-outs a slow moment looks like a dead leader",
            "raise raft.election_min_ms (see below) on every node if nodes are as far apart",
        )
    return Finding(subject, found)


def judge_answers(endpoint: str, times_ms: Sequence[float]) -> Finding:
    """Judge how soon a node answers STATUS: at the end of its turn, behind a round trip."""
    median, worst = quantile(times_ms, 0.5), quantile(times_ms, 0.99)
    subject = f"status of {endpoint}"
    found = f"median {median:.2f} ms, 99 % {worst:.2f} ms"
    if median > ROUND_TRIP_SLOW_MS:
        return Finding(
            subject,
            found,
            "everything that is asked of this node takes as long",
            "is it far away, has it too much to do, or a slow disk? `flotilla-cluster doctor`"
            " there, and `slow_turn` in its log, tell",
        )
    return Finding(subject, found)


def clock_state() -> int:
    """Return what adjtimex(2) says, -1 if it may not be asked."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        answer: int = library.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return -1
    return answer


def suggested_elections(round_trip_ms: float, fsync_ms: float) -> dict[str, int]:
    """Return raft settings for a network and a disk, of their 99th percentiles.

    The highest that nodes take, where none would suit.
    """
    wanted = MARGIN * (round_trip_ms + fsync_ms)
    least = max(ELECTION_MIN_MS, ELECTION_STEP_MS * -int(-wanted // ELECTION_STEP_MS))
    least = min(least, HIGHEST_MS["raft.election_min_ms"])
    settings = {key: least * default // ELECTION_MIN_MS for key, default in TIMEOUTS_MS.items()}
    return {key: min(value, HIGHEST_MS.get(key, value)) for key, value in settings.items()}


def suggestion(round_trip_ms: float, fsync_ms: float) -> Finding:
    """Judge the default time-outs against what was measured."""
    settings = suggested_elections(round_trip_ms, fsync_ms)
    text = ", ".join(f"{key.removeprefix('raft.')} {value}" for key, value in settings.items())
    slowest = f"99 % of a round trip and an fsync take {round_trip_ms + fsync_ms:.1f} ms"
    if settings["raft.election_min_ms"] == ELECTION_MIN_MS:
        return Finding("election time-outs", f"{slowest}: the defaults suit ({text})")
    return Finding(
        "election time-outs",
        slowest,
        "with the defaults nodes may depose a leader that lives",
        f"on every node, in [raft]: {text}",
    )


def examine_machine(directory: Path) -> list[Finding]:
    """Measure this machine for a node or a client that keeps its data in `directory`."""
    # `Path.exists` raises where it may not look, or the name is too long.
    while not os.path.exists(directory) and directory != directory.parent:
        directory = directory.parent  # where it would be made
    findings = []
    fsync_ms = 0.0
    try:
        times = fsync_times_ms(directory)
        findings.append(judge_disk(directory, times))
        fsync_ms = quantile(times, 0.99)
        room = shutil.disk_usage(directory)
        findings.append(judge_space(directory, room.free, room.total))
    except OSError as error:
        findings.append(
            Finding(
                f"fsync in {directory}",
                str(error),
                "nothing can be kept there",
                "choose another directory, or mend this one's owner and mode",
            )
        )
    round_trip_ms = 0.0
    try:
        loopback = loopback_times_ms()
        findings.append(judge_round_trip("loopback", loopback))
        round_trip_ms = quantile(loopback, 0.99)
    except OSError as error:
        findings.append(
            Finding(
                "loopback",
                str(error),
                "nothing on this machine reaches a node here by 127.0.0.1",
                "`ip link set lo up`, or look at the firewall; is this a bare network namespace?",
            )
        )
    findings.append(judge_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE)))
    findings.append(judge_clock(clock_state()))
    findings.append(suggestion(round_trip_ms, fsync_ms))
    return findings


# --- the cluster --------------------------------------------------------------------------------


def examine_cluster(endpoints: Sequence[str], status: Callable[[int], Row]) -> list[Finding]:
    """Ask every node for its status, some times; `status(number)` raises OSError for silence."""
    rows: dict[str, Row] = {}
    findings = []
    for number, endpoint in enumerate(endpoints):
        times = []
        try:
            for _ in range(ROUND_TRIPS):
                began = time.monotonic()
                rows[endpoint] = status(number)
                times.append((time.monotonic() - began) * 1000)
        except OSError as error:
            findings.append(
                Finding(
                    f"node at {endpoint}",
                    str(error),
                    "clients that know it alone get nothing; a cluster of three lives with two",
                    "start it, or look at its log; is the address right, and the port open?",
                )
            )
        else:
            times.sort()
            findings.append(judge_answers(endpoint, times))
    return findings + judge_statuses(rows)


def judge_statuses(rows: Mapping[str, Row]) -> list[Finding]:
    """Judge what the nodes say of themselves and of each other, by endpoint."""
    if not rows:
        return []
    return [
        _leader(rows),
        _versions(rows),
        *_links(rows),
        *_troubles(rows),
    ]


def _leader(rows: Mapping[str, Row]) -> Finding:
    leaders = {row.get("leader") or "none" for row in rows.values()}
    terms = {row.get("term", 0) for row in rows.values()}
    found = f"{', '.join(sorted(leaders))} in term {', '.join(map(str, sorted(terms)))}"
    if leaders == {"none"}:
        return Finding(
            "leader",
            found,
            "nothing is published or read",
            "start nodes until a majority runs; look whether they reach each other's peer port",
        )
    if len(leaders) > 1:
        return Finding(
            "leader",
            found,
            "an election is on, or nodes are cut off from each other",
            "ask again in some seconds; if it stays so look at the pairs below",
        )
    return Finding("leader", found)


def _versions(rows: Mapping[str, Row]) -> Finding:
    versions = {
        row["node"]: row.get("versions", {}).get("flotilla", "0.1") for row in rows.values()
    }
    found = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    if len(set(versions.values())) > 1:
        return Finding(
            "versions",
            found,
            "the cluster goes on as one of the oldest version",
            "finish the upgrade, then `flotilla upgrade` (docs/deploy.md)",
        )
    return Finding("versions", found)


def _links(rows: Mapping[str, Row]) -> Iterator[Finding]:
    """Yield who does not reach whom, of every pair that one of both tells of."""
    pairs = well = 0
    for row in rows.values():
        for name, member in sorted(row.get("members", {}).items()):
            pairs += 1
            well += bool(member["connected"])
            if not member["connected"]:
                yield Finding(
                    f"link from {row['node']} to {name}",
                    f"none for {member.get('silent_ms', 0) / 1000:.0f} s",
                    "if both live they can't elect each other, and one failure more may stop all",
                    f"does {name} run? If it does: name, peer port and firewall between the two",
                )
    if pairs and pairs == well:
        yield Finding("links", f"{well} of {pairs}: every node reaches every other")


def _troubles(rows: Mapping[str, Row]) -> Iterator[Finding]:
    for row in rows.values():
        node = row["node"]
        for line in row.get("waiting_for", ()):
            yield Finding(f"{node} waits", line, "it is no member until then", "see docs/deploy.md")
        for peer, reason in row.get("refused_by", {}).items():
            yield Finding(
                f"{node} is refused by {peer}",
                reason,
                "it takes no part",
                "stop one of two processes of one name, or start it with an empty directory",
            )
        for peer, differences in row.get("settings_differ", {}).items():
            both = ", ".join(f"{key} {a} and {b}" for key, (a, b) in differences.items())
            yield Finding(
                f"settings of {node} and {peer}",
                both,
                "what clients are refused, who may administrate, and how soon a leader is replaced,"
                " depends on who leads",
                "give all nodes the same, one after the other",
            )
        if row.get("full_topics"):
            yield Finding(
                "full topics",
                f"{row['full_topics']} of them",
                "PUT to them is refused (backlog_full): a subscriber of each does not read",
                f"the log of {node} names topic and holder (backlog_full); so does flotilla admin"
                " subscriptions: bring the reader back, or end its subscription",
            )
        if row.get("clients_silent"):
            yield Finding(
                "silent clients",
                f"{row['clients_silent']} of them",
                "they are forgotten soon, with their subscriptions (limits.client_idle_days)",
                f"the log of {node} names some (clients_silent): start those that are to stay",
            )
        if row.get("damage"):
            yield _damage(node, row)
        if row.get("disk_low"):
            yield Finding(
                f"disk of {node}",
                "it or a majority has no space",
                "PUT is refused (disk_full)",
                "make room, or end the subscription that holds the backlog: flotilla admin topics",
            )


def _damage(node: str, row: Row) -> Finding:
    count, first = row["scrub"]["damaged"], row["damage"][0]
    where = " ".join(str(value) for key, value in first.items() if key != "reason")
    return Finding(
        f"damage on the disk of {node}",
        f"in {count} place{'s' if count > 1 else ''}, first {where}: {first['reason']}",
        "it ends when it has to read that; until then it takes part, and answers nothing wrong",
        "wipe it while all others are well: docs/operations.md, FlotillaDamage",
    )


def shown(findings: Sequence[Finding]) -> tuple[str, int]:
    """Return the text for people, and the exit code: 0 if all is well."""
    text = "".join(f"{line}\n" for finding in findings for line in finding.lines())
    wrong = sum(not finding.is_well for finding in findings)
    end = f"{wrong} of {len(findings)} need something\n" if wrong else "all is well\n"
    return text + end, int(wrong > 0)
