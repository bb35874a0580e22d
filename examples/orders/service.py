"""A service; each order has its effect there once: `service.py NAME DATABASE`."""

from __future__ import annotations

import json
import os
import sqlite3
import sys

from flotilla_client import Client, Message

NODES = os.environ.get("FLOTILLA_ENDPOINTS", "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003")
SCHEMA = """
CREATE TABLE IF NOT EXISTS cursor (only INTEGER PRIMARY KEY CHECK (only = 1), last_id INTEGER);
INSERT OR IGNORE INTO cursor VALUES (1, 0);
CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, orders INTEGER, cents INTEGER);
"""


def handle(database: sqlite3.Connection, message: Message) -> None:
    """Add an order to its customer's totals, unless that has been done."""
    order = json.loads(message.publication)
    with database:  # one transaction
        [(last_id,)] = database.execute("SELECT last_id FROM cursor")
        if message.id <= last_id:
            return
        database.execute(
            "INSERT INTO totals VALUES (?, 1, ?) ON CONFLICT DO UPDATE"
            " SET orders = orders + 1, cents = cents + excluded.cents",
            (message.key, order["cents"]),
        )
        database.execute("UPDATE cursor SET last_id = ?", (message.id,))


def main(name: str, path: str) -> None:
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    with Client(NODES, name=f"orders-{name}") as client:
        client.subscribe("orders")
        print("subscribed", flush=True)
        for message in client.messages("orders"):
            handle(database, message)


if __name__ == "__main__":
    main(*sys.argv[1:])
