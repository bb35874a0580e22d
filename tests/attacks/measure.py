"""A cluster under attack, and somebody beside it who only wants to publish.

Use: `python -m tests.attacks [SHARE]`: all attacks, each that share of its full number of times;
prints the table of docs/security.md. Exit code 1 if anything got in, ended or changed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from cluster.keys.authority import Authority
from cluster.local.local import LocalCluster
from flotilla_client import Admin, Client
from tests.attacks.attacks import ATTACKS, Attack, AttackedCluster
from tests.cluster.test_keys import recorded_session

SEED: Final = 20_261_123
CALM_S: Final = 3.0  # before and behind each attack
PAUSE_S: Final = 0.02  # between two PUTs of the bystander
PATIENT: Final = {"raft.election_min_ms": 2_000, "raft.election_max_ms": 4_000}
STATUS_MS: Final = 20_000
SAMPLES_MIN: Final = 20  # below there is no 99th percentile worth its name
_SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Figures:
    """One attack's figures. `calm_ms`, `under_ms`: the bystander's p99; `same`: the state's."""

    what: str
    count: int
    seconds: float
    answered: int
    calm_ms: float
    under_ms: float
    same: bool

    def line(self) -> str:
        """Return it as a line of the table."""
        state = "unchanged" if self.same else "CHANGED"
        times = self.under_ms / self.calm_ms
        return (
            f"| {self.what} | {self.count:,} in {self.seconds:.0f} s | {self.answered} |"
            f" {self.calm_ms:.0f} ms, {self.under_ms:.0f} ms ({times:.1f}x) | {state} |"
        )


def bystander(endpoints: list[str], key: str, directory: str, told: Connection) -> None:
    """Publish until told to end; tell (when, how long in ms) of each PUT."""
    samples = []
    with Client(endpoints, state_dir=directory, key=key, timeout=60) as client:
        client.subscribe("bystander")
        told.send(client.client_id)
        while not told.poll(PAUSE_S):
            began_s = time.monotonic()
            client.publish("bystander", b"only this")
            samples.append((began_s, 1000 * (time.monotonic() - began_s)))
    told.send(samples)


@contextmanager
def attacked(home: Path) -> Iterator[tuple[AttackedCluster, Connection]]:
    """Run a cluster with keys and pages, and a bystander."""
    cluster = LocalCluster(home / "cluster")
    cluster.create(3, keys=True, pages=True, settings=PATIENT)
    try:
        cluster.start_all()
        cluster.wait_for_leader()
        cluster.begin_at_newest_level()
        keys = Authority(cluster.keys_dir)
        own, attacker = keys.client("bystander"), keys.client("attacker")
        endpoints = list(cluster.endpoints().values())
        ours, theirs = _SPAWN.Pipe()
        arguments = (endpoints, str(own), str(home / "bystander"), theirs)
        process = _SPAWN.Process(target=bystander, args=arguments, daemon=True)
        process.start()
        victim = ours.recv()
        recorded, _ = recorded_session(cluster)
        yield AttackedCluster(cluster, attacker, victim, recorded), ours
        process.join(STATUS_MS / 1000)
    finally:
        cluster.down(patience_s=0.0)


def state_of(target: AttackedCluster) -> Mapping[str, Any]:
    """Return what no attack may change: processes, terms, and what clients can see."""
    cluster = target.cluster
    statuses = cluster.statuses(STATUS_MS)
    assert len(statuses) == 3, f"{sorted(statuses)} answer"
    with Admin(list(cluster.endpoints().values()), key=cluster.admin_key) as admin:
        rows = [row for row in admin.topics() if row.topic != "bystander"]
        clients = sorted(row.client_id for row in admin.clients())
        users = admin.users()
        subscriptions = [(row.topic, row.client_id) for row in admin.subscriptions()]
    return {
        "pids": cluster.pids(),
        "terms": {status["term"] for status in statuses.values()},
        "topics": rows,
        "clients": clients,
        "users": users,
        "subscriptions": sorted(subscriptions),
    }


def tried(
    target: AttackedCluster, attack: Attack, count: int, calm_s: float
) -> tuple[Figures, list[float]]:
    """Attack; return the figures but the bystander's, and when each phase began and ended."""
    before, times = state_of(target), [time.monotonic()]
    time.sleep(calm_s)
    times.append(time.monotonic())
    found = attack(target, random.Random(SEED), count)
    times.append(time.monotonic())
    time.sleep(calm_s)
    times.append(time.monotonic())
    after = state_of(target)
    what = " ".join((attack.__doc__ or "").split()).rstrip(".")
    took_s = times[2] - times[1]
    return Figures(what, found.count, took_s, found.answered, 0, 0, after == before), times


def p99(samples: list[tuple[float, float]], *spans: tuple[float, float]) -> float:
    """Return the 99th percentile of what was under way in these spans; the worst of few.

    A PUT counts until the next one begins: an attack may fit between two of them.
    """
    nexts = [*(at for at, _ in samples[1:]), samples[-1][0] + samples[-1][1] / 1000]
    within = [
        ms
        for (at, ms), following in zip(samples, nexts, strict=True)
        if any(at < until and following >= since for since, until in spans)
    ]
    assert within, "the bystander stood still"
    return statistics.quantiles(within, n=100)[98] if len(within) >= SAMPLES_MIN else max(within)


def measure(share: float, calm_s: float = CALM_S, is_quick: bool = False) -> list[Figures]:
    """Try all attacks and return their rows."""
    found = []
    with tempfile.TemporaryDirectory() as home, attacked(Path(home)) as (target, told):
        for attack, (few, many) in ATTACKS.items():
            count = few if is_quick else max(few, round(many * share))
            found.append(tried(target, attack, count, calm_s))
            print(found[-1][0], file=sys.stderr, flush=True)
        told.send("end")
        samples = told.recv()
    rows = []
    for row, (began, since, until, ended) in found:
        calm_ms = p99(samples, (began, since), (until, ended))
        under_ms = p99(samples, (since, until))
        rows.append(
            Figures(row.what, row.count, row.seconds, row.answered, calm_ms, under_ms, row.same)
        )
    return rows


def main() -> None:
    """Print the table."""
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    rows = measure(share)
    print("| what was tried | how often | let in | others' p99, calm and beside it | state |")
    print("|---|---|---|---|---|")
    for row in rows:
        print(row.line())
    print(f"\nSeed {SEED}, load average {os.getloadavg()[0]:.1f}.")
    sys.exit(any(row.answered or not row.same for row in rows))
