"""`flotilla topic`: what topics keep, and what they do when they are full.

What lives here: its arguments and columns. What must not: what is asked (admin.py), what a policy
is (policies.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from flotilla_client.admin import Admin
from flotilla_client.admin_cli import Show, is_sure
from flotilla_client.arguments import text_type
from flotilla_client.client import Client
from flotilla_client.error_table import ProtocolError
from flotilla_client.errors import UnknownTopic
from flotilla_client.operations import check_topic
from flotilla_client.policies import WHEN_FULL, Policy, parse_keep, parse_size, size_text
from flotilla_client.rows import TopicDeleted, TopicDetails, TopicPolicySet

CREATE: Final = "create"
ALTER: Final = "alter"
SHOW: Final = "show"
DELETE: Final = "delete"
DOES: Final = (CREATE, ALTER, SHOW, DELETE)
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    CREATE: ("topic", "keep", "max_bytes", "when_full", "dead_letter", "compact", "created"),
    ALTER: ("topic", "keep", "max_bytes", "when_full", "dead_letter"),
    SHOW: (
        *("topic", "keep", "max_bytes", "when_full", "dead_letter", "compact", "first_id"),
        *(
            "last_id",
            "compacted_id",
            "held_bytes",
            "delayed",
            "subscribers",
            "dropped_id",
            "purged_id",
        ),
    ),
    DELETE: ("topic", "last_id", "deleted", "ended"),
}
_TEXT: Final = (
    "Topics that have a policy: they exist without subscribers. `create NAME` and `alter NAME` with"
    " --keep, --max-bytes, --when-full and --dead-letter, `create` with --compact; `show NAME`;"
    " `delete NAME`, with all that it holds."
)


def add_topic(verb: Callable[..., argparse.ArgumentParser], show: Show) -> None:
    """Add the command; `show(rows, columns, as_json)` prints."""

    def run(client: Client, options: Any) -> int:
        return _topic(Admin.over(client), options, show)

    parser = verb("topic", run, _TEXT)
    parser.add_argument("what", choices=DOES, metavar="WHAT", help=", ".join(DOES))
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument(
        "--keep",
        type=_keep,
        metavar="WHAT",
        help="what stays although everybody has read it: unread (nothing; the default), forever, a "
        "size (10GB), an age (7d) or a count (1000). What is unread always stays",
    )
    parser.add_argument(
        "--max-bytes",
        type=_size,
        metavar="SIZE",
        help="how much it may hold, read or not: 10GB, 512MiB; none: no bound of its own",
    )
    parser.add_argument(
        "--when-full",
        choices=WHEN_FULL,
        help="refuse publications (the default), or drop the oldest, read or not, and tell "
        "whoever missed them",
    )
    parser.add_argument(
        "--dead-letter",
        type=text_type,
        metavar="TOPIC",
        help="where its groups put what they give up, or what expires in them, if they name no "
        "topic of their own; none: nowhere. Takes feature level 5",
    )
    parser.add_argument(
        "--compact",
        action="store_true",
        help="create: of each key the last publication stays, of what all who stand in the topic "
        "have read; of the rest what --keep says (forever, if it says nothing). Takes feature "
        "level 5",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do it without asking: delete, with its subscriptions, or drop at once what a policy"
        " keeps no more",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _keep(text: str) -> str:
    try:
        parse_keep(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _size(text: str) -> int:
    try:
        return 0 if text == "none" else parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _topic(admin: Admin, options: Any, show: Show) -> int:
    what, name = options.what, options.name
    check_topic(name)
    if problem := _problem(options):
        sys.stderr.write(f"flotilla topic: {problem}\n")
        return 2
    answer: TopicDeleted | TopicDetails | TopicPolicySet
    if what == DELETE:
        topic = admin.show_topic(name)
        count = topic.last_id + 1 - topic.first_id
        question = f"delete {name!r}, {count} publications, {topic.subscribers} subscriptions?"
        if not options.yes and not is_sure("topic", question):
            return 2
        answer = admin.delete_topic(name, ends_subscriptions=True)
    elif what == SHOW:
        answer = admin.show_topic(name)
    else:
        dead_letter = "" if options.dead_letter == "none" else options.dead_letter
        parts: dict[str, Any] = {"max_bytes": options.max_bytes, "when_full": options.when_full}
        parts |= {"keep": options.keep, "dead_letter": dead_letter}
        question = "" if options.yes else _lost(admin, options)
        if question and not is_sure("topic", question):
            return 2
        answer = (
            admin.create_topic(name, compact=options.compact, **parts)
            if what == CREATE
            else admin.alter_topic(name, **parts)
        )
    row = {"topic": name, **answer}
    if not options.json and not isinstance(answer, TopicDeleted):
        row |= _readable(answer.policy)
    show([row], _COLUMNS[what], options.json)
    return 0


def _lost(admin: Admin, options: Any) -> str:
    """Return what is asked before a policy that drops something at once, "" if it drops nothing."""
    parts: dict[str, Any] = {} if options.keep is None else parse_keep(options.keep)
    if options.max_bytes is not None:
        parts["max_bytes"] = options.max_bytes
    if options.when_full is not None:
        parts["when_full"] = options.when_full
    if not parts:
        return ""
    try:
        topic = admin.show_topic(options.name)
        before = topic.policy or Policy()
        after = before.changed(parts)
    except (UnknownTopic, ProtocolError):
        return ""  # it is new, or the cluster says what is wrong
    if not after.loses(before, topic.held_bytes):
        return ""
    count, held = topic.last_id + 1 - topic.first_id, size_text(topic.held_bytes)
    has = f"{options.name!r} holds {count} publications, {held}"
    return f"{has}: drop at once what is over {after}?"


def _problem(options: Any) -> str:
    """Return what is wrong with the arguments, "" if nothing is."""
    what = options.what
    said = [
        name
        for name, value in (
            ("--keep", options.keep),
            ("--max-bytes", options.max_bytes),
            ("--when-full", options.when_full),
            ("--dead-letter", options.dead_letter),
        )
        if value is not None
    ]
    if what in (SHOW, DELETE) and said:
        return f"{what} takes no {said[0]}: that is for create and alter"
    if what == ALTER and not said:
        return "alter: say what: --keep, --max-bytes, --when-full or --dead-letter"
    if options.compact and what != CREATE:
        return f"{what} takes no --compact: a topic is made so"
    if options.yes and what == SHOW:
        return f"{what} ends nothing: --yes has no meaning there"
    return ""


def _readable(policy: Policy | None) -> dict[str, str]:
    """Return a policy for a table: as the options take it."""
    if policy is None:
        names = ("keep", "max_bytes", "when_full", "dead_letter", "compact")
        return dict.fromkeys(names, "-")
    return {
        "keep": policy.keep_text,
        "max_bytes": size_text(policy.max_bytes) if policy.max_bytes else "-",
        "when_full": policy.when_full if policy.max_bytes else "-",
        "dead_letter": policy.dead_letter or "-",
        "compact": "yes" if policy.compact else "-",
    }
