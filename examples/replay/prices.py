"""Publish prices: `prices.py COUNT`."""

from __future__ import annotations

import os
import random
import sys

from flotilla_client import Client, Publication

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


def main(count: int) -> None:
    chance = random.Random(count)
    prices = [
        Publication(str(chance.randint(100, 999)), key=chance.choice(["tea", "coffee", "milk"]))
        for _ in range(count)
    ]
    with Client(NODES) as client:
        client.publish_many("prices", prices)
    print(f"{count} prices")


if __name__ == "__main__":
    main(int(sys.argv[1]))
