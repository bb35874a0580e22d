"""Publish orders: `shop.py COUNT`."""

from __future__ import annotations

import json
import os
import sys

from flotilla_client import Client

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")


def main(count: int) -> None:
    with Client(NODES) as client:
        stored = []
        for number in range(1, count + 1):
            order = json.dumps({"order": number, "cents": 100 + number})
            stored.append(client.publish_soon("orders", order, key=f"customer-{number % 7}"))
        print(f"up to id {stored[-1].result().id}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
