"""`flotilla admin`: what a cluster keeps, as tables, as JSON, or again and again.

What lives here: its arguments and columns. What must not: what is asked (admin.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from flotilla_client.admin import Admin
from flotilla_client.arguments import seconds, start, text_type
from flotilla_client.client import Client
from flotilla_client.errors import BadRequest, FlotillaError, Unsupported
from flotilla_client.protocol import EVERYBODY_ELSE

WATCH_S: Final = 2.0  # between two looks; a list of 10,000 topics takes a tenth of it
CLEARED: Final = "\x1b[H\x1b[2J"  # the cursor home, and the screen empty
_OF_ONE: Final[Mapping[str, str]] = {"topic": "NAME", "client": "ID"}
USER: Final = "user"
AUDIT: Final = "audit"
CHANGES: Final = ("add", "allow", "deny", "remove")
RIGHTS: Final = ("publish", "subscribe", "observe", "admin")
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "topics": ("topic", "last_id", "subscribers", "backlog_bytes", "delayed"),
    "topic": ("client_id", "group", "cursor", "backlog"),
    "clients": ("client_id", "principal", "epoch", "subscriptions", "producers"),
    "client": ("topic", "last_id", "cursor", "backlog"),
    "subscriptions": (
        *("topic", "client_id", "group", "cursor", "backlog"),
        *("leased", "waiting", "attempts", "ordered_by_key", "behind", "missed"),
    ),
    "config": ("node", "setting", "value", "from"),
    "audit": ("number", "at", "index", "principal", "act", "about", "result"),
    "drop-subscription": ("topic", "client_id", "was_subscribed"),
    "drop-client": ("client_id", "left"),
    "drop-group": ("topic", "group", "was_subscribed"),
    "seek-group": ("topic", "group", "last_id"),
    "purge": ("topic", "last_id", "purged"),
    "transfer-leader": ("leader",),
    "checkpoint": ("node", "checkpointed_index", "is_done", "error"),
    "user": (
        "user",
        "publish",
        "deny_publish",
        "subscribe",
        "deny_subscribe",
        "observe",
        "admin",
    ),
}
_TEXT: Final = (
    "Show what the cluster keeps, change who may what, end things, or steer. "
    "It shows topics, one topic's subscribers and groups, clients, one client's topics, "
    "subscriptions, or the settings in force on each node and where each comes from. Or say who may"
    " what: `user list`, and `user add|allow|deny NAME` with --publish, --subscribe, --observe, "
    "--admin, or `user remove NAME`. NAME is a key's; '*' are all that have no user of their own. "
    "Or end a subscription in its client's place: `drop-subscription TOPIC ID`; what it has not "
    "read is gone for it. Or end a group, whoever works in it: `drop-group TOPIC GROUP`; or have "
    "it begin anew: `seek-group TOPIC GROUP new|earliest|ID|TIME`. Or forget a client: "
    "`drop-client ID`. Or remove what a topic holds now, read or not: `purge TOPIC`. Or "
    "have another node lead: `transfer-leader [NODE]`, or all nodes "
    "make a `checkpoint`. `audit` lists what was done, by whom and when."
)

Rows = Sequence[Mapping[str, Any]]
Show = Callable[[Rows, Sequence[str], bool], None]


def add_admin(verb: Callable[..., argparse.ArgumentParser], show: Show) -> None:
    """Add the command; `show(rows, columns, as_json)` prints."""

    def run(client: Client, options: Any) -> int:
        return _admin(client, options, show)

    parser = verb("admin", run, _TEXT)
    parser.add_argument("what", choices=sorted(_COLUMNS), metavar="WHAT", help=_whats())
    parser.add_argument(
        "words", nargs="*", type=text_type, metavar="NAME", help="which one it is about; see above"
    )
    for right, what in (("publish", "publish to"), ("subscribe", "subscribe to")):
        parser.add_argument(
            f"--{right}",
            action="append",
            type=text_type,
            default=[],
            metavar="PATTERN",
            help=f"of a user: {what} these topics; orders.new, 'orders.*', 'orders.>'; repeatable",
        )
    parser.add_argument(
        "--observe", action="store_true", help="of a user: see what belongs to others"
    )
    parser.add_argument(
        "--admin", action="store_true", help="of a user: change what belongs to others"
    )
    parser.add_argument(
        "--yes", action="store_true", help="do it without asking; needed where nobody can be asked"
    )
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
    what, words = options.what, options.words
    problem = _problem(options)
    if problem:
        sys.stderr.write(f"flotilla admin: {problem}\n")
        return 2
    admin = Admin.over(client)
    if what in _ACTS:
        return _act(admin, options, show)
    if what == USER and words[0] != "list":
        _show_users(show, _change(admin, options), options.json)
        return 0
    name = words[0] if words else ""
    while True:
        rows = _rows(admin, client, what, name)
        if options.watch is not None and not options.json and sys.stdout.isatty():
            sys.stdout.write(CLEARED)
        if what == USER:
            _show_users(show, rows, options.json)
        elif what == AUDIT and not options.json:
            show([_readable(row) for row in rows], _COLUMNS[AUDIT], False)
        else:
            show(rows, _COLUMNS[what], options.json)
        if options.watch is None:
            return 0
        time.sleep(options.watch)


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an act for a table: a date, and what it was about in words."""
    at_ms = row["at_ms"]
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds") if at_ms else "-"
    said = {name: _words(row[name]) for name in ("about", "result")}
    return {**row, **said, "at": at, "principal": row["principal"] or "-"}


def _words(fields: Mapping[str, Any]) -> str:
    """Return fields as `name=value`; what is empty, and rows of users, are left out."""
    shown = (
        f"{name}={' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in fields.items()
        if value not in ("", [], None, False) and not isinstance(value, dict)
    )
    return " ".join(shown) or "-"


def _show_users(show: Show, rows: Rows, as_json: bool) -> None:
    """Print users; in a table patterns stand one behind the other, and `-` for none."""
    readable = [
        {name: " ".join(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in rows
    ]
    cells = [{name: _cell(value) for name, value in row.items()} for row in readable]
    show(rows if as_json else cells, _COLUMNS[USER], as_json)


def _cell(value: Any) -> str:
    return {True: "yes", False: "-", "": "-"}.get(value, str(value))


def _problem(options: Any) -> str:
    """Return what is wrong with the arguments, "" if nothing is."""
    what, words = options.what, options.words
    rights = [right for right in RIGHTS if getattr(options, right)]
    if options.yes and what not in _ACTS:
        return f"{what} ends nothing: --yes has no meaning there"
    if options.watch is not None and (what in _ACTS or (what == USER and words != ["list"])):
        return f"{what} is done once: --watch has no meaning there"
    if what == USER:
        return _problem_of_user(words, rights)
    if rights:
        return f"--{rights[0]} is a user's: `user allow NAME --{rights[0]} …`"
    if what in _ACTS:
        act = _ACTS[what]
        return "" if len(words) in act.words else f"{what} takes {act.takes}"
    if what in _OF_ONE:
        return "" if len(words) == 1 else f"{what} takes one {_OF_ONE[what]}"
    return f"{what} takes no name" if words else ""


def _problem_of_user(words: Sequence[str], rights: Sequence[str]) -> str:
    if words == ["list"]:
        return f"user list takes no --{rights[0]}" if rights else ""
    if len(words) != 2 or words[0] not in CHANGES:
        return "user takes `list`, or one of add, allow, deny and remove, and one NAME"
    if words[0] in ("allow", "deny") and not rights:
        return f"user {words[0]}: say what: " + ", ".join(f"--{right}" for right in RIGHTS)
    if words[0] == "remove" and rights:
        return f"user remove takes no --{rights[0]}: `user deny` takes something away"
    return ""


def _act(admin: Admin, options: Any, show: Show) -> int:
    """Do what ends something or steers the nodes, if whoever asks is sure."""
    act, words = _ACTS[options.what], options.words
    try:
        question, do = act.prepare(admin, *words)
    except argparse.ArgumentTypeError as error:
        sys.stderr.write(f"flotilla admin: {error}\n")
        return 2
    if question and not options.yes and not is_sure("admin", question):
        return 2
    rows = do()
    show(rows, _COLUMNS[options.what], options.json)
    return 0 if all(row.get("is_done", True) for row in rows) else 1


Prepared = tuple[str, Callable[[], Rows]]  # what is asked before, "": nothing


def _drop_subscription(admin: Admin, topic: str, client_id: str) -> Prepared:
    def do() -> Rows:
        was_subscribed = admin.drop_subscription(topic, client_id)
        return [{"topic": topic, "client_id": client_id, "was_subscribed": was_subscribed}]

    return f"end the subscription of {client_id} to {topic!r}?", do


def _drop_group(admin: Admin, topic: str, group: str) -> Prepared:
    def do() -> Rows:
        was_there = admin.drop_group(topic, group)
        return [{"topic": topic, "group": group, "was_subscribed": was_there}]

    return f"end the group {group!r} of {topic!r}, with what it has not settled?", do


def _seek_group(admin: Admin, topic: str, group: str, text: str) -> Prepared:
    begin = start(text)

    def do() -> Rows:
        return [{"topic": topic, "group": group, "last_id": admin.seek_group(topic, group, begin)}]

    return f"have the group {group!r} of {topic!r} begin anew at {text}, whatever is done?", do


def _drop_client(admin: Admin, client_id: str) -> Prepared:
    def do() -> Rows:
        left = ", ".join(admin.drop_client(client_id))
        return [{"client_id": client_id, "left": left}]

    return f"forget {client_id}, with its subscriptions and counters?", do


def _purge(admin: Admin, topic: str) -> Prepared:
    """What is published behind the question stays: it is asked about what stands there before."""
    last_id = admin.end_of(topic)

    def do() -> Rows:
        return [{"topic": topic, **admin.purge(topic, last_id)}]

    return f"remove all of {topic!r} up to id {last_id}, read or not?", do


def _transfer_leader(admin: Admin, node: str | None = None) -> Prepared:
    return "", lambda: [{"leader": admin.transfer_leader(node)}]


def _checkpoint(admin: Admin) -> Prepared:
    return "", admin.checkpoint


@dataclass(frozen=True)
class _Act:
    """An act: how many words it takes, which, and what is asked before and done then."""

    words: tuple[int, ...]
    takes: str
    prepare: Callable[..., Prepared]


_ACTS: Final[Mapping[str, _Act]] = {
    "drop-subscription": _Act((2,), "a TOPIC and a client's ID", _drop_subscription),
    "drop-group": _Act((2,), "a TOPIC and a GROUP", _drop_group),
    "seek-group": _Act((3,), "a TOPIC, a GROUP and where to", _seek_group),
    "drop-client": _Act((1,), "a client's ID", _drop_client),
    "purge": _Act((1,), "a TOPIC", _purge),
    "transfer-leader": _Act((0, 1), "a NODE, or nothing", _transfer_leader),
    "checkpoint": _Act((0,), "no name", _checkpoint),
}


def is_sure(verb: str, question: str) -> bool:
    """Ask on a terminal; where there is none, say what takes the question's place."""
    if not sys.stdin.isatty():
        sys.stderr.write(f"flotilla {verb}: {question} Say --yes\n")
        return False
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _change(admin: Admin, options: Any) -> Rows:
    """Change what a user may; return the row that is in force for its principal from now on."""
    change, name = options.words
    if change != "remove":
        act = {"add": admin.add_user, "allow": admin.allow_user, "deny": admin.deny_user}[change]
        rights = {right: getattr(options, right) for right in RIGHTS}
        return [act(name, **rights)]
    was_there = admin.remove_user(name)
    others = [row for row in admin.users() if row.user == EVERYBODY_ELSE]
    now = f"it may what '{EVERYBODY_ELSE}' may" if others else "it may nothing"
    sys.stderr.write(f"{name}: {'removed' if was_there else 'was no user'}; {now}\n")
    return others


def _of_topic(admin: Admin, name: str) -> Rows:
    """Return a topic's subscribers and its groups."""
    rows: list[Mapping[str, Any]] = [*admin.topic(name)]
    with suppress(BadRequest, Unsupported):  # a leader or a cluster of before there were any
        rows += [row for row in admin.groups() if row.topic == name]
    return rows


def _subscriptions(admin: Admin) -> Rows:
    """Return the clients' own, the shared ones and those to patterns, by topic."""
    rows: list[Mapping[str, Any]] = [*admin.subscriptions()]
    with suppress(BadRequest, Unsupported):  # as above
        rows += [*admin.groups(), *({"topic": row.pattern, **row} for row in admin.patterns())]
    return sorted(rows, key=lambda row: (row["topic"], row.get("client_id", ""), row.get("group")))


def _settings(admin: Admin, endpoints: Sequence[str]) -> Rows:
    """Return the settings of each node; of one that does not answer, the error's code."""
    found: list[Mapping[str, Any]] = []
    for number, endpoint in enumerate(endpoints):
        try:
            found += admin.settings(number)
        except FlotillaError as error:
            found.append({"node": endpoint, "setting": "-", "value": error.code, "from": "-"})
    return found


def _rows(admin: Admin, client: Client, what: str, name: str) -> Rows:
    lists: Mapping[str, Callable[[], Rows]] = {
        "topics": admin.topics,
        "topic": lambda: _of_topic(admin, name),
        "clients": admin.clients,
        "client": lambda: admin.client(name).topics or (),
        "subscriptions": lambda: _subscriptions(admin),
        "config": lambda: _settings(admin, client.endpoints),
        USER: admin.users,
        AUDIT: admin.audit,
    }
    return lists[what]()
