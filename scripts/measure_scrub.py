"""What the scrub costs: PUTs to two clusters in turns, one that reads its disks back and one not.

Use: python scripts/measure_scrub.py [ROUNDS]. Both have the same backlog; the first one reads at
the default pace, one pass after the other. Prints latency, what was read, and the processor time
of nodes that have nothing else to do.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from chaos.bench.stage import cpu_s
from cluster.local.local import LocalCluster
from flotilla_client import Client

BACKLOG: Final = 40_000  # publications that nobody has read
BACKLOG_BATCH: Final = 50
SIZE_BYTES: Final = 1_000
PUTS: Final = 400  # in each round
IDLE_S: Final = 20.0
SETTINGS: Final = {"on": {"scrub.period_s": 0}, "off": {"scrub.bytes_per_s_max": 0}}
PATIENT: Final = {"raft.election_min_ms": 1_500, "raft.election_max_ms": 3_000}


def processor_s(cluster: LocalCluster) -> float:
    """Return the processor time that the nodes have used."""
    return sum(cpu_s(pid) for pid in cluster.pids().values())


def read_bytes(cluster: LocalCluster) -> int:
    """Return how much the nodes have read back."""
    return sum(status["scrub"]["bytes"] for status in cluster.statuses().values())


def main() -> None:
    """Measure."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as home:
        clusters = {name: LocalCluster(Path(home) / name) for name in SETTINGS}
        clients = {}
        try:
            for name, cluster in clusters.items():
                cluster.create(3, settings={**PATIENT, **SETTINGS[name]})
                cluster.start_all()
                cluster.wait_for_leader()
                endpoints = list(cluster.endpoints().values())
                clients[name] = client = Client(endpoints, state_dir=Path(home) / f"c-{name}")
                client.subscribe("t")
                batch = [bytes(SIZE_BYTES)] * BACKLOG_BATCH
                for _ in range(BACKLOG // BACKLOG_BATCH):
                    client.publish_many("t", batch)
            took_ms: dict[str, list[float]] = {name: [] for name in SETTINGS}
            before = {name: read_bytes(cluster) for name, cluster in clusters.items()}
            began_s = time.monotonic()
            for each in range(rounds):
                for name in SETTINGS if each % 2 else reversed(SETTINGS):
                    for _ in range(PUTS):
                        at_s = time.perf_counter()
                        clients[name].publish("t", bytes(SIZE_BYTES))
                        took_ms[name].append(1000 * (time.perf_counter() - at_s))
            used_s = {name: -processor_s(cluster) for name, cluster in clusters.items()}
            time.sleep(IDLE_S)
            for name, cluster in clusters.items():
                used_s[name] += processor_s(cluster)
            whole_s = time.monotonic() - began_s
            for name, each in took_ms.items():
                read = (read_bytes(clusters[name]) - before[name]) / whole_s / 3
                cuts = statistics.quantiles(each, n=1000)
                print(
                    f"{name}: {len(each)} PUTs, p50 {cuts[499]:.2f} ms, p99 {cuts[989]:.2f} ms,"
                    f" p99.9 {cuts[998]:.2f} ms; {read / 2**20:.2f} MiB/s read back by each node;"
                    f" idle, it takes {100 * used_s[name] / IDLE_S / 3:.1f} % of a core"
                )
            print(f"load average {os.getloadavg()[0]:.1f}")
        finally:
            for client in clients.values():
                client.close()
            for cluster in clusters.values():
                cluster.down()


if __name__ == "__main__":
    main()
