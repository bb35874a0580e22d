"""`flotilla admin`: what a cluster keeps, as tables, as JSON, or again and again.

What lives here: its arguments and columns. What must not: what is asked (admin.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flotilla_client.admin import Admin
from flotilla_client.arguments import seconds
from flotilla_client.client import Client
from flotilla_client.errors import FlotillaError

WATCH_S: Final = 2.0  # between two looks; a list of 10,000 topics takes a tenth of it
CLEARED: Final = "\x1b[H\x1b[2J"  # the cursor home, and the screen empty
_OF_ONE: Final[Mapping[str, str]] = {"topic": "NAME", "client": "ID"}
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "topics": ("topic", "last_id", "subscribers", "backlog_bytes"),
    "topic": ("client_id", "cursor", "backlog"),
    "clients": ("client_id", "epoch", "subscriptions", "producers"),
    "client": ("topic", "last_id", "cursor", "backlog"),
    "subscriptions": ("topic", "client_id", "cursor", "backlog"),
    "config": ("node", "setting", "value", "from"),
}
_TEXT: Final = (
    "Show what the cluster keeps: topics, one topic's subscribers, clients, one client's topics, "
    "subscriptions, or the settings in force on each node and where each comes from."
)

Show = Callable[[Sequence[dict[str, Any]], Sequence[str], bool], None]


def add_admin(verb: Callable[..., argparse.ArgumentParser], show: Show) -> None:
    """Add the command; `show(rows, columns, as_json)` prints."""

    def run(client: Client, options: Any) -> int:
        return _admin(client, options, show)

    parser = verb("admin", run, _TEXT)
    parser.add_argument("what", choices=sorted(_COLUMNS), metavar="WHAT", help=_whats())
    parser.add_argument("name", nargs="?", help="of `topic` or `client`: which one")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--watch",
        type=seconds,
        nargs="?",
        const=WATCH_S,
        metavar="SECONDS",
        help=f"again and again, until ctrl-C; default: every {WATCH_S:g}",
    )


def _whats() -> str:
    return ", ".join(f"{what} {_OF_ONE[what]}" if what in _OF_ONE else what for what in _COLUMNS)


def _admin(client: Client, options: Any, show: Show) -> int:
    what, name = options.what, options.name
    if (what in _OF_ONE) != (name is not None):
        due = f"takes one {_OF_ONE[what]}" if what in _OF_ONE else "takes no name"
        sys.stderr.write(f"flotilla admin: {what} {due}\n")
        return 2
    admin = Admin.over(client)
    while True:
        rows = _rows(admin, client, what, name)
        if options.watch is not None and not options.json and sys.stdout.isatty():
            sys.stdout.write(CLEARED)
        show(rows, _COLUMNS[what], options.json)
        if options.watch is None:
            return 0
        time.sleep(options.watch)


def _rows(admin: Admin, client: Client, what: str, name: str) -> list[dict[str, Any]]:
    if what == "topics":
        return admin.topics()
    if what == "topic":
        return admin.topic(name)
    if what == "clients":
        return admin.clients()
    if what == "client":
        rows: list[dict[str, Any]] = admin.client(name)["topics"]
        return rows
    if what == "subscriptions":
        return admin.subscriptions()
    found: list[dict[str, Any]] = []
    for number, endpoint in enumerate(client.endpoints):
        try:
            found += admin.settings(number)
        except FlotillaError as error:
            found.append({"node": endpoint, "setting": "-", "value": error.code, "from": "-"})
    return found
