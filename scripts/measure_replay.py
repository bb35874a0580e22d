"""What reading a large backlog from its start costs those who write meanwhile.

`python scripts/measure_replay.py [MIB] [ROUNDS] [CALLERS]`: three nodes hold a topic of so many
MiB, kept for ever. A producer publishes 1 kB each to another topic as fast as it can; or so many
callers do, each awaiting its answer. A process that reads the backlog, again and again, is let run
in every second window of 5 s, and stopped in the others. Printed: publications a second in both
kinds of windows, how fast it read, and the processor time of each process. Writers, reader and
nodes share this machine: where its processors are busy, what the reader takes of them is lost to
the writers, too.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from chaos.bench.stage import cpu_s
from cluster.local.local import LocalCluster
from flotilla_client import Admin, Client

MIB: Final = 1024
ROUNDS: Final = 5
WINDOW_S: Final = 5.0
FILL: Final = bytes(64 * 1024)
FILLED_AT_ONCE: Final = 256
READ_COUNT: Final = 1_000
SMALL: Final = bytes(1_000)
BACKLOG_BYTES_MAX: Final = 64 * 2**30


def main() -> None:
    """Measure, or be the process that reads."""
    if len(sys.argv) > 1 and sys.argv[1] == "read":
        read(sys.argv[2])
        return
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else MIB
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    callers = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with tempfile.TemporaryDirectory() as directory, LocalCluster(Path(directory) / "c") as cluster:
        cluster.create(3, port=0, settings={"limits.backlog_bytes_max": BACKLOG_BYTES_MAX})
        cluster.start_all()
        cluster.wait_for_leader()
        cluster.begin_at_newest_level()
        endpoints = ",".join(cluster.endpoints().values())
        try:
            fill(endpoints, mib)
            measure(endpoints, cluster.pids(), rounds, callers)
        finally:
            cluster.down(patience_s=0.0)


def fill(endpoints: str, mib: int) -> None:
    """Make the topics, and the backlog."""
    with Admin(endpoints) as admin:
        admin.create_topic("backlog", keep="forever")
        admin.create_topic("new", keep="forever")
    with Client(endpoints, timeout=60) as client:
        for _ in range(mib * 16 // FILLED_AT_ONCE):
            client.publish_many("backlog", [FILL] * FILLED_AT_ONCE)


def read(endpoints: str) -> None:
    """Read the backlog from the start, for ever; print its bytes, a line each."""
    with Client(endpoints, timeout=60) as client:
        from_id = 1
        while True:
            delivery = client.read("backlog", from_id, READ_COUNT)
            from_id = 1 if delivery is None else delivery.first_id + len(delivery.publications)
            if delivery is not None:
                print(sum(map(len, delivery.publications)), flush=True)


def measure(endpoints: str, nodes: dict[str, int], rounds: int, callers: int) -> None:
    """Publish in windows without the reader and with it, by turns; print both rates."""
    published, read_bytes, is_over = [0] * max(1, callers), [0], threading.Event()
    reader = subprocess.Popen(
        [sys.executable, __file__, "read", endpoints], stdout=subprocess.PIPE, text=True
    )

    def publish(client: Client, number: int) -> None:
        while not is_over.is_set():
            client.publish("new", SMALL)
            published[number] += 1

    def produce(client: Client) -> None:
        with client.producer("new") as producer:
            while not is_over.is_set():
                producer.send(SMALL)
                published[0] += 1

    def count() -> None:
        assert reader.stdout is not None
        for line in reader.stdout:
            read_bytes[0] += int(line)

    with Client(endpoints, timeout=60) as client:
        threads = [
            threading.Thread(target=publish, args=(client, number)) for number in range(callers)
        ]
        if not callers:
            threads.append(threading.Thread(target=produce, args=(client,)))
        threads.append(threading.Thread(target=count))
        for thread in threads:
            thread.start()
        rates: dict[bool, list[float]] = {False: [], True: []}
        for round_number in range(2 * rounds):
            is_read = round_number % 2 == 1
            os.kill(reader.pid, signal.SIGCONT if is_read else signal.SIGSTOP)
            before, before_bytes, began_s = sum(published), read_bytes[0], time.monotonic()
            pids = {"reader": reader.pid, "writers": os.getpid(), **nodes}
            used_s = {name: cpu_s(pid) for name, pid in pids.items()}
            time.sleep(WINDOW_S)
            spent_s = time.monotonic() - began_s
            rates[is_read].append((sum(published) - before) / spent_s)
            mib_s = (read_bytes[0] - before_bytes) / spent_s / 2**20
            print(
                f"window {round_number + 1}: {rates[is_read][-1]:,.0f} publications/s,"
                f" {mib_s:.1f} MiB/s read, load {os.getloadavg()[0]:.1f}, % of a processor:",
                ", ".join(
                    f"{name} {100 * (cpu_s(pid) - used_s[name]) / spent_s:.0f}"
                    for name, pid in pids.items()
                ),
                flush=True,
            )
        is_over.set()
        os.kill(reader.pid, signal.SIGCONT)
        reader.terminate()
        for thread in threads:
            thread.join()
        reader.wait()
    alone, beside = statistics.median(rates[False]), statistics.median(rates[True])
    print(f"median: {alone:,.0f} alone, {beside:,.0f} beside the reader: {1 - beside / alone:.1%}")


if __name__ == "__main__":
    main()
