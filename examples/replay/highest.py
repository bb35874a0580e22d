"""Say the highest price of each thing, from all that is kept: `highest.py [IDLE_S]`."""

from __future__ import annotations

import os
import sys

from flotilla_client import Client

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


def main(idle_s: float | None = None) -> None:
    highest: dict[str, int] = {}
    read = 0
    with Client(NODES, name="highest") as client:
        client.subscribe("prices", start="earliest")
        with client.messages("prices", idle=idle_s) as messages:
            for message in messages:
                price, thing = int(message.publication), str(message.key)
                highest[thing] = max(price, highest.get(thing, 0))
                read += 1
    print(f"{read} prices read;", ", ".join(f"{k} {v}" for k, v in sorted(highest.items())))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
