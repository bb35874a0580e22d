"""A worker of a group, as a process that tests kill: it says on stdout what it was given and did.

Lines: `given ID ATTEMPT` before the body, `done ID` once the cluster has agreed.
"""

from __future__ import annotations

import sys

from flotilla_client import Client, WorkItem

PREFETCH = 16
LEASE_S = 2.0
IDLE_S = 4.0  # above a lease and an election


def main(endpoints: str, topic: str) -> None:
    """Work until nothing comes."""
    settled: list[WorkItem] = []
    with Client(endpoints) as client:
        for item in client.work(topic, "g", lease=LEASE_S, prefetch=PREFETCH, idle=IDLE_S):
            print(f"given {item.id} {item.attempt}", flush=True)
            settled = _told(settled)
            settled.append(item)
        _told(settled)


def _told(settled: list[WorkItem]) -> list[WorkItem]:
    """Say what is done of the items before; return those of which it is not known yet."""
    left = []
    for item in settled:
        if item._book.is_to_be_said(item) or not item.settled:
            left.append(item)
        elif item.settled == "ack":
            print(f"done {item.id}", flush=True)
    return left


if __name__ == "__main__":
    main(*sys.argv[1:])
