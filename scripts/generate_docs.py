"""Writes the generated parts of docs/: tables that stand between markers, made from the code.

What lives here: which table stands in which file. What must not: the tables' content.
`python scripts/generate_docs.py` writes them; tests/unit/test_docs.py fails when one is stale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.faults.support import fault_table
from chaos.run.catalogue import client_table, experiment_table
from chaos.simulation.search.run import PLANTABLE
from cluster.members import peers
from cluster.observe import http, metrics, pages, past, reading, survey
from cluster.observe.metrics import metrics_table
from cluster.serve import broker, client_port, intake, leases, zmtp
from cluster.settings import config
from cluster.settings.config import MEMBER_COUNTS
from cluster.store import acts, store
from cluster.wire import levels
from flotilla_client import connection, names, producer, protocol, retry, state
from flotilla_client.protocol import ERRORS

ROOT: Final = Path(__file__).resolve().parents[1]
HUNT: Final = ROOT / "tests/simulation/planted.jsonl"  # of `flotilla-simulate --hunt all --json`


def error_table() -> str:
    """Return the table of errors as Markdown."""
    lines = ["| code | definite | a client then | meaning |", "|---|---|---|---|"]
    then = {
        "same": "sends the same again",
        "leader": "goes to the leader",
        "never": "gives up: the request has to change",
    }
    for row in ERRORS.values():
        definite = "yes" if row.definite else "**no**"
        lines.append(f"| `{row.code}` | {definite} | {then[row.retry]} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def bug_table() -> str:
    """Return the table of planted bugs as Markdown, with what the last whole hunt has measured."""
    hunts = {hunt["bug"]: hunt for hunt in map(json.loads, HUNT.read_text().splitlines())}
    lines = ["| bug | rule | meant to be seen by | within | first seen |", "|---|---|---|---|---|"]
    for bug in PLANTABLE.values():
        with_nodes = f", {bug.nodes} nodes" if bug.nodes else ""
        within = f"{bug.seeds_max} seeds, {bug.mode}{with_nodes}"
        hunt = hunts.get(bug.name, {"checks": []})
        seen = f"seed {hunt['seed']}: {_code(hunt['checks'])}" if hunt["checks"] else "**not yet**"
        row = (f"`{bug.name}`", bug.rule, _code(sorted(bug.caught_by)), within, seen)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


# Of the wire: (what, name in flotilla_client/protocol.py, what happens over it).
WIRE_LIMITS: Final = (
    ("a publication", "PUBLICATION_BYTES_MAX", "`too_large`"),
    ("a topic's name, in UTF-8", "TOPIC_BYTES_MAX", "`too_large`"),
    ("the id of a client, the name of a request", "NAME_BYTES_MAX", "`too_large`"),
    ("a batch: the publications of one PUT", "BATCH_BYTES_MAX", "`too_large`; the library splits"),
    ("publications in a batch", "BATCH_COUNT_MAX", "`too_large`; the library splits"),
    (
        "runs of publications with one delay, in a batch of such with a delay",
        "DELAYS_MAX",
        "`too_large`; the library splits",
    ),
    ("a publication's key", "KEY_BYTES_MAX", "`too_large`"),
    ("headers of a publication", "HEADERS_MAX", "`too_large`"),
    ("a header's name, in UTF-8", "HEADER_NAME_BYTES_MAX", "`too_large`"),
    (
        "properties of a publication, packed; they count as its bytes",
        "PROPERTIES_BYTES_MAX",
        "`too_large`",
    ),
    ("the time until a publication expires", "EXPIRES_MS_MAX", "`bad_request`"),
    ("the time until a publication with a delay is due", "DELIVER_AFTER_MS_MAX", "`bad_request`"),
    ("the wait of one GET", "GET_WAIT_MS_MAX", "is cut; the library asks again"),
    ("topics in one GET of any topic", "ANY_TOPIC_COUNT_MAX", "`too_large`; the library chooses"),
    ("publications that one TAKE is given", "TAKE_COUNT_MAX", "it is given fewer"),
    ("runs of ids that one TAKE settles", "SETTLE_ROWS_MAX", "`too_large`; the library splits"),
    ("ids in these runs", "SETTLED_MAX", "`too_large`; the library splits"),
    ("a lease, at most; what takes longer extends it", "LEASE_MS_MAX", "`bad_request`"),
    ("the delay until what is given back is given again", "DELAY_MS_MAX", "`bad_request`"),
    ("a group's `max_attempts`", "ATTEMPTS_MAX", "`bad_request`"),
    ("topics in one answer to TOPICS", "TOPICS_COUNT_MAX", "the rest follows; the library asks"),
    ("the header of a request, besides a publication as text", "HEADER_BYTES_MAX", "`too_large`"),
    ("with a publication as text", "TEXT_HEADER_BYTES_MAX", "`too_large`"),
    ("a message, all parts", "MESSAGE_BYTES_MAX", "the node closes the connection"),
    ("a number on the wire", "INTEGER_MAX", "`bad_request`"),
    ("a cluster's feature level, ever", "LEVEL_MAX", "`bad_request`"),
    (
        "patterns of topics that a user may publish to; to subscribe; of each denied",
        "PATTERNS_MAX",
        "`too_many`",
    ),
    ("words in a pattern that somebody subscribes to", "PATTERN_WORDS_MAX", "`too_large`"),
)
NOTHING_NEW: Final = "only what was given before is given"
# Of the replicated state: (what, field of cluster/store/store.py's Limits).
STATE_LIMITS: Final = (
    ("topics that have a subscriber or a policy", "topics_max"),
    ("names of topics, ever", "topic_names_max"),
    ("subscriptions", "subscriptions_max"),
    ("subscriptions of one client", "subscriptions_per_client_max"),
    ("subscriptions to patterns", "patterns_max"),
    ("of these, of one client", "patterns_per_client_max"),
    ("clients", "clients_max"),
    ("topics that one client publishes to", "producers_per_client_max"),
    ("the names of these topics, together", "names_bytes_max"),
    ("publications of one topic, ever", "id_max"),
    ("users: principals with permissions of their own", "users_max"),
)
# The same of cluster/store/groups.py's GroupLimits, with what happens over it.
GROUP_LIMITS: Final = (
    ("groups", "groups_max", "`too_many`"),
    ("publications leased or given back, of all groups", "open_max", NOTHING_NEW),
    ("publications leased or given back, of one group", "open_per_group_max", NOTHING_NEW),
    (
        "of these, those that wait for another one of their key",
        "behind_per_group_max",
        "nothing is given that stands behind one more of such a key",
    ),
    ("leases of one client in a group", "leases_per_client_max", "it is given nothing more"),
    (
        "clients whose last TAKE a group knows",
        "workers_max",
        "the one that took longest ago is forgotten; `too_many` if all have leases",
    ),
)
# A node's settings: (what, key, what happens over it).
SETTING_LIMITS: Final = (
    ("requests that a node reads at a time", "requests_per_turn_max", "the next turns read them"),
    ("requests under way at the leader, writes and reads", "in_flight_max", "`overloaded`"),
    ("requests that a follower has passed on and awaits", "relays_max", "`overloaded`"),
    ("GETs that wait at the leader for a publication", "parked_gets_max", "`overloaded`"),
    (
        "unread publications of one topic",
        "backlog_bytes_max",
        "PUT gets `backlog_full`; other topics go on",
    ),
    (
        "days that a client may be silent",
        "client_idle_days",
        "it is forgotten, and gets `forgotten`",
    ),
    ("a node's free disk, at least", "disk_free_min_bytes", "under it PUT gets `disk_full`"),
    (
        "entries that a leader appends ahead of the majority",
        "uncommitted_entries_max",
        "`overloaded`",
    ),
    ("requests of one connection without a reply", "client_queue_max", "the connection waits"),
    (
        "connections of clients (and at most half of the process's descriptors)",
        "connections_max",
        "the node closes the new one",
    ),
    (
        "large messages that clients have begun to send; each counts as 4 MiB",
        "unfinished_bytes_max",
        "the others wait in their connections",
    ),
    (
        "replies that clients don't take",
        "unread_bytes_max",
        "from half of it on, GET of the slow ones gets `overloaded`; over it the node closes the"
        " connections that have most",
    ),
)
# What one principal may have, without keys one address: (what, key, what happens over it).
QUOTAS: Final = (
    ("requests of one principal to a node, a second", "requests_per_s_max", "`quota`, wait"),
    ("their bytes and those of the replies, a second", "bytes_per_s_max", "`quota`, wait"),
    (
        "connections of one principal to a node",
        "connections_max",
        "`quota` to what it asks; closed after 5 s",
    ),
    ("client ids of one principal", "clients_max", "`quota`"),
    ("topics that one principal subscribes to", "topics_max", "`quota`"),
    (
        "topics of new names that one principal makes, an hour",
        "names_per_hour_max",
        "`quota`, wait",
    ),
    ("subscriptions of one principal", "subscriptions_max", "`quota`"),
    ("subscriptions to patterns of one principal", "patterns_max", "`quota`"),
    ("groups that one principal has made", "groups_max", "`quota`"),
    ("GETs of one principal that wait at the leader", "parked_gets_max", "`quota`, wait"),
    ("unread publications of one principal", "unread_bytes_max", "PUT gets `quota`, wait"),
)
CLOSES: Final = "the node closes the connection"
# Of what clients and strangers have one node hold: (what, module, name of its value, over it).
NODE_LIMITS: Final = (
    (
        "requests that followers pass on and the leader has no time for yet",
        intake,
        "RELAYS_WAITING_MAX",
        "`overloaded`",
    ),
    ("their bytes", intake, "RELAYS_WAITING_BYTES_MAX", "`overloaded`"),
    (
        "publications that wait for a majority; fewer while little of the disk is free",
        broker,
        "PUT_BYTES_MAX",
        "`overloaded`",
    ),
    (
        "what one principal has under way in entries and takes long: a TAKE counts as 16 and one"
        " more for each 16 ids that it settles, a start at a time as 32, a publication with a"
        " delay as 1 (1,024 of a PUT at most), who follows or leaves a pattern as 1,024",
        broker,
        "WORK_OF_ONE_MAX",
        "`overloaded`",
    ),
    (
        "reads of one principal that rests, as its answers are large, and others ask",
        broker,
        "RESTING_READS_MAX",
        "`overloaded`",
    ),
    (
        "TAKEs of one client that wait in a group",
        leases,
        "TAKES_OF_ONE_MAX",
        "`overloaded`",
    ),
    ("parts of a message", zmtp, "PARTS_MAX", CLOSES),
    ("the identity that a ZeroMQ socket says", zmtp, "IDENTITY_BYTES_MAX", CLOSES),
    ("a command of ZeroMQ, such as READY", zmtp, "COMMAND_BYTES_MAX", CLOSES),
    (
        "bytes of a message that begins; above that it is large (`limits.unfinished_bytes_max`)",
        client_port,
        "READ_BYTES",
        "it waits, while too many are large",
    ),
    ("this wait", client_port, "SHARE_S_MAX", CLOSES),
    (
        "replies that one connection doesn't take",
        client_port,
        "UNREAD_BYTES_PAUSE",
        "its requests are not read",
    ),
    ("the same, for its GETs", client_port, "UNREAD_BYTES_SERVED", "`overloaded`"),
    ("the same, in all", client_port, "UNREAD_BYTES_MAX", CLOSES),
    ("a connection's handshake, to READY", client_port, "HANDSHAKE_S_MAX", CLOSES),
    ("silence in the middle of a message", client_port, "MESSAGE_SILENCE_S_MAX", CLOSES),
    ("a message, from its first byte on", client_port, "MESSAGE_S_MAX", CLOSES),
    (
        "silence of a client that answers no PING, or takes no byte of its replies",
        client_port,
        "SILENCE_S_MAX",
        CLOSES,
    ),
    (
        "connections at a peer port before their Hello",
        peers,
        "STRANGERS_MAX",
        "the oldest is closed",
    ),
    ("the time until a Hello there", peers, "HANDSHAKE_MS_MAX", CLOSES),
)
# Of the history of acts: (what, name of its value).
ACT_LIMITS: Final = (
    ("acts of administrators that the cluster remembers", "ACTS_MAX"),
    ("their bytes", "ACTS_BYTES_MAX"),
)
# Of what a node shows over HTTP: (what, module, name of its value, what happens over it).
HTTP_LIMITS: Final = (
    (
        "connections",
        http,
        "CONNECTIONS_MAX",
        "the one that was idle, or answered, for longest gives way",
    ),
    ("open pages", http, "LISTENERS_MAX", "503"),
    ("a request's line and headers", http, "REQUEST_BYTES_MAX", "431"),
    ("rows of topics or subscriptions in an answer", pages, "ROWS_MAX", "the next ones follow"),
    ("publications in an answer", reading, "COUNT_MAX", "400"),
    ("subscriptions that are listed", survey, "SUBSCRIPTIONS_KEPT_MAX", "those furthest behind"),
    ("topics with series of their own", metrics, "TOPICS_SHOWN_MAX", "the rest is summed"),
    ("subscriptions with such", metrics, "SUBSCRIPTIONS_SHOWN_MAX", "the rest is summed"),
    ("points of the last hour, 5 s each", past, "POINTS_MAX", "the oldest is forgotten"),
    ("events of the timeline", past, "EVENTS_MAX", "the oldest is forgotten"),
)
# Of the client library: (what, value, unit, what happens over it).
CLIENT_LIMITS: Final = (
    (
        "the outbox; each publication counts 4 bytes more (`outbox_bytes_max`)",
        state.OUTBOX_BYTES_MAX,
        "bytes",
        "`OutboxFull`",
    ),
    (
        "publications that a producer queues",
        producer.QUEUE_COUNT_MAX,
        "count",
        "`send` waits, then `Overloaded`",
    ),
    ("their bytes", producer.QUEUE_BYTES_MAX, "bytes", "`send` waits, then `Overloaded`"),
    (
        "a producer's batches in flight (`in_flight_max`)",
        connection.REQUESTS_QUEUED_MAX - 1,
        "count",
        "`ValueError`",
    ),
    ("how long a call may try (`timeout`)", retry.DEADLINE_MS_MAX, "ms", "`ValueError`"),
    (
        "hosts whose names it looks up at the same time, in a process",
        names.LOOKUPS_MAX,
        "count",
        "the attempt goes to the next endpoint",
    ),
)


def limit_table() -> str:
    """Return the limits as Markdown: of the wire, of the state, of a node, of the library."""
    lines = ["| of | limit | over it | set |", "|---|---|---|---|"]
    for what, name, over in WIRE_LIMITS:
        lines.append(f"| {what} | {_amount(name, getattr(protocol, name))} | {over} | no |")
    lines.append(f"| nodes of a cluster | {MEMBER_COUNTS[-1]} | the node does not start | no |")
    limits = store.Limits()
    for what, name in STATE_LIMITS:
        lines.append(f"| {what} | {_amount(name, getattr(limits, name))} | `too_many` | no |")
    for what, name, over in GROUP_LIMITS:
        lines.append(f"| {what} | {_amount(name, getattr(limits.groups, name))} | {over} | no |")
    for what, name, over in SETTING_LIMITS:
        row = config.SETTINGS[f"limits.{name}"]
        limit = _amount(row.key, row.default) if row.default else "none"
        lines.append(f"| {what} | {limit} | {over} | `{row.key}` |")
    for what, name, over in QUOTAS:
        row = config.SETTINGS[f"quotas.{name}"]
        limit = _amount(row.key, row.default) if row.default else "none"
        lines.append(f"| {what} | {limit} | {over} | `{row.key}` |")
    for what, module, name, over in NODE_LIMITS:
        lines.append(f"| {what} | {_amount(name, getattr(module, name))} | {over} | no |")
    for what, name in ACT_LIMITS:
        limit = _amount(name, getattr(acts, name))
        lines.append(f"| {what} | {limit} | the oldest is forgotten | no |")
    for what, module, name, over in HTTP_LIMITS:
        lines.append(f"| HTTP: {what} | {_amount(name, getattr(module, name))} | {over} | no |")
    for what, value, unit, over in CLIENT_LIMITS:
        how = "as an argument" if what.endswith(")") else "no"
        lines.append(f"| the library: {what} | {_amount(unit, value)} | {over} | {how} |")
    return "\n".join(lines) + "\n"


def level_table() -> str:
    """Return what each feature level of this build allows as Markdown."""
    lines = ["| level | since version | allows |", "|---|---|---|"]
    for level in range(levels.BUILD.level_min, levels.BUILD.level_max + 1):
        version, what = levels.ALLOWED[level]
        lines.append(f"| {level} | {version} | {what} |")
    return "\n".join(lines) + "\n"


def _amount(name: str, value: int) -> str:
    """Return a limit with its unit, which stands in its name."""
    words = name.lower().replace(".", "_").split("_")
    if "ms" in words:
        return f"{value // 3_600_000} h" if value % 3_600_000 == 0 else f"{value / 1000:g} s"
    if "s" in words and "per" not in words:
        return f"{value:g} s"
    if "bytes" not in words:
        return f"{value:,}"
    power = max(power for power in range(4) if value % 1024**power == 0)
    return f"{value // 1024**power:,} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# (file, name of the marker) -> what stands between `<!-- NAME: … -->` and `<!-- end -->`.
GENERATED: Final[Mapping[tuple[str, str], Callable[[], str]]] = {
    ("docs/protocol.md", "errors"): error_table,
    ("docs/limits.md", "limits"): limit_table,
    ("docs/configuration.md", "settings"): config.describe,
    ("docs/deploy.md", "levels"): level_table,
    ("docs/metrics.md", "metrics"): metrics_table,
    ("docs/simulation.md", "bugs"): bug_table,
    ("docs/faults.md", "faults"): fault_table,
    ("docs/chaos.md", "experiments"): experiment_table,
    ("docs/chaos.md", "clients"): client_table,
}


def rendered(text: str, marker: str, content: str) -> str:
    """Return `text` with `content` between the markers. Raises ValueError if there are none."""
    pattern = rf"(<!-- {marker}:[^\n]*-->\n).*?(<!-- end -->)"
    new, count = re.subn(pattern, lambda m: m[1] + content + m[2], text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{count} places for {marker!r}, not one")
    return new


def main() -> None:
    """Write every generated part; say which files changed."""
    for (name, marker), content in GENERATED.items():
        file = ROOT / name
        old = file.read_text(encoding="utf-8")
        new = rendered(old, marker, content())
        if new != old:
            file.write_text(new, encoding="utf-8")
            print(f"{name}: {marker} written")


if __name__ == "__main__":
    main()
