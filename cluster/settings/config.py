"""The settings of a node: one table of dataclass fields drives TOML, environment and docs.

What lives here: every setting with its default, bounds and reason, and the strict reading of them.
What must not: anything that acts on a setting, or a default that stands somewhere else as well.

A setting `limits.parked_gets_max` is the key `parked_gets_max` in the TOML table `[limits]` and
the environment variable `FLOTILLA_LIMITS_PARKED_GETS_MAX`, which wins. Everything is checked
before the node starts, and all that is wrong is reported at once, each with the name of its key.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, get_origin, get_type_hints

ENV_PREFIX: Final = "FLOTILLA_"
MEMBER_COUNTS: Final = (1, 3, 5, 7)  # an even count adds a node that can fail and no tolerance
NAME_PATTERN: Final = re.compile(r"[a-z0-9-]{1,32}")
PORT_MAX: Final = 65_535
HTTP_TOKEN_CHARACTERS_MIN: Final = 16  # 96 bits in base64: beyond guessing over a network
CLOSE_ENOUGH: Final = 0.8  # likeness above which an unknown name is taken for a slip of the pen
KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


class ConfigError(Exception):
    """The configuration cannot be used. `problems`: one line each, starting with the key."""

    def __init__(self, problems: list[str]) -> None:
        assert problems, "a ConfigError names at least one problem"
        super().__init__("\n".join(problems))
        self.problems = problems


# --- the table ----------------------------------------------------------------------------------


def _setting(
    why: str, default: Any = MISSING, *, low: int = 0, high: int = 0, of: tuple[str, ...] = ()
) -> Any:
    metadata = {"why": why, "low": low, "high": high, "of": of}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class RaftSettings:
    """The clocks of the consensus. Each is a trade between fail-over and false alarms."""

    election_min_ms: int = _setting(
        "A follower waits at least this long for its leader; over 3 heartbeats, so that two lost "
        "ones depose nobody.",
        300,
        low=10,
        high=60_000,
    )
    election_max_ms: int = _setting(
        "…and at most this long; the spread keeps two candidates from standing at once.",
        600,
        low=20,
        high=120_000,
    )
    heartbeat_ms: int = _setting(
        "The leader's sign of life; shorter costs messages on an idle cluster.",
        80,
        low=1,
        high=10_000,
    )
    fallback_ms: int = _setting(
        "A leader that hears no majority for so long steps down, so that its clients go elsewhere.",
        1000,
        low=10,
        high=60_000,
    )

    takeover_ms: int = _setting(
        "A member has to be silent for so long, to all that the leader hears, before an empty "
        "directory is admitted in its place, or another process gets its connection: five of the "
        "longest elections, six of the signs of life that nodes exchange, so that nobody who lives "
        "is replaced; longer delays the return of a wiped node.",
        3000,
        low=1000,
        high=600_000,
    )


@dataclass(frozen=True)
class LimitSettings:
    """Bounds of every queue and buffer that clients can fill."""

    requests_per_turn_max: int = _setting(
        "Requests that are read from clients at a time. How many of them a turn looks at is "
        "bounded by time, an eighth of `raft.heartbeat_ms`; the others have the turns after it.",
        512,
        low=1,
        high=65_536,
    )
    in_flight_max: int = _setting(
        "Requests under way at the leader, writes and reads; more get `overloaded`. One principal"
        " has three quarters of them at most.",
        4096,
        low=1,
        high=1_000_000,
    )
    relays_max: int = _setting(
        "Requests that a follower has passed to the leader and awaits; more get `overloaded`. "
        "One principal has three quarters of them at most, so that none alone keeps the others "
        "out.",
        4096,
        low=1,
        high=1_000_000,
    )
    parked_gets_max: int = _setting(
        "GETs that wait at the leader for a publication, about 1 KiB each.",
        10_000,
        low=1,
        high=1_000_000,
    )
    backlog_bytes_max: int = _setting(
        "Unread publications of one topic; over it PUT gets `backlog_full` and the other topics "
        "go on.",
        8 * GIB,
        low=64 * KIB,
        high=1024 * GIB,
    )
    client_idle_days: int = _setting(
        "A client that was not heard of for so long is forgotten, with its subscriptions and what "
        "they keep, and gets `forgotten` when it comes back. Off (0): a subscription stands until "
        "it is ended, and a PUT is recognized however late it is repeated; only the operator can "
        "know after what time nobody will come back. Counted while the cluster runs, at level 3.",
        0,
        high=36_500,
    )
    disk_free_min_bytes: int = _setting(
        "Free disk below which PUT gets `disk_full`: room for the journal and for the garbage "
        "collection that makes more. Free pages of the store count, for at most half of it.",
        64 * MIB,
        low=MIB,
        high=1024 * GIB,
    )
    uncommitted_entries_max: int = _setting(
        "Entries that a leader appends ahead of the majority: bounds what a cut-off leader piles "
        "up in vain.",
        256,
        low=1,
        high=65_536,
    )
    client_queue_max: int = _setting(
        "Requests of one connection that have no reply yet; more stay in the connection.",
        512,
        low=1,
        high=1_000_000,
    )
    connections_max: int = _setting(
        "Connections of clients; more are closed. Half of the process's descriptors if that is "
        "less: the others are for journal, peers and store.",
        4096,
        low=1,
        high=1_000_000,
    )
    unfinished_bytes_max: int = _setting(
        "Large messages that clients have begun to send (4 MiB each count); more wait in their "
        "connections. Every connection may hold 32 KiB besides.",
        128 * MIB,
        low=4 * MIB,
        high=64 * GIB,
    )
    unread_bytes_max: int = _setting(
        "Replies that clients don't take. From half of it on GET of who has 256 KiB of them gets "
        "`overloaded`; over it the connections with most of them are closed.",
        256 * MIB,
        low=16 * MIB,
        high=64 * GIB,
    )


@dataclass(frozen=True)
class QuotaSettings:
    """What one principal may use up; 0: no quota. Without keys: one address."""

    requests_per_s_max: int = _setting(
        "Requests a second of one principal at this node; more get `quota` with the time to wait. "
        "Off (0): in each turn everybody has a fair share anyway, and what others leave over need "
        "not lie idle. For those who may have a part and no more. Of this node alone: who asks "
        "three has three times as much.",
        0,
        high=10_000_000,
    )
    bytes_per_s_max: int = _setting(
        "The same of bytes, of its requests and of the replies to them.",
        0,
        high=1024 * GIB,
    )
    connections_max: int = _setting(
        "Connections of one principal to this node; what a further one asks gets `quota`. Half of "
        "`limits.connections_max`, so that no principal alone keeps the others out.",
        2048,
        high=1_000_000,
    )
    clients_max: int = _setting(
        "Client ids that belong to one principal, of the whole cluster; a further one gets "
        "`quota`. Half of what there are, so that no principal alone takes them all. This and what "
        "follows: of clusters with keys, from level 3 on.",
        500_000,
        high=1_000_000,
    )
    topics_max: int = _setting(
        "Topics that the clients of one principal subscribe to; half of what there may be.",
        5_000,
        high=10_000,
    )
    names_per_hour_max: int = _setting(
        "Topics of new names that one principal makes in an hour, by SUB, or by PUT where "
        "somebody's pattern wants them; a further one gets `quota` with the time to wait. An "
        "hour's worth may be made at once. A name is kept for ever, so that its ids go on, and a "
        "cluster has 8 million: one principal takes 70 days for them. Topics that administrators "
        "create don't count. Each leader counts from its start on.",
        5_000,
        high=10_000_000,
    )
    subscriptions_max: int = _setting(
        "Subscriptions of the clients of one principal; half of what there may be. Beyond it a "
        "pattern does not bring a topic that is made: its GETs say `too_many`, and which.",
        50_000,
        high=100_000,
    )
    patterns_max: int = _setting(
        "Subscriptions to patterns of one principal; half of what there may be.",
        500,
        high=1_000,
    )
    groups_max: int = _setting(
        "Groups that one principal has made; half of what there may be. Those that were there when "
        "the leader started are nobody's.",
        500,
        high=1_000,
    )
    parked_gets_max: int = _setting(
        "GETs of one principal that wait at the leader; half of `limits.parked_gets_max`.",
        5_000,
        high=1_000_000,
    )
    unread_bytes_max: int = _setting(
        "Publications of one principal that somebody has yet to read, of all topics; over it PUT "
        "gets `quota` until they are read. As much as four full topics; set it by your disks, "
        "which who fills them fills for all. What was there when the leader started is nobody's.",
        32 * GIB,
        high=1024 * GIB,
    )


@dataclass(frozen=True)
class JournalSettings:
    """The sizes of the Raft log on disk."""

    segment_bytes: int = _setting(
        "A segment file; compaction drops whole ones.", 16 * MIB, low=64 * KIB, high=GIB
    )
    keep_bytes: int = _setting(
        "Log kept behind the applied index, so that a follower back from a short absence needs "
        "entries and no copy of the database.",
        64 * MIB,
        low=64 * KIB,
        high=1024 * GIB,
    )


@dataclass(frozen=True)
class ScrubSettings:
    """The reading back of what is on the disk, before it is needed."""

    bytes_per_s_max: int = _setting(
        "What is read of journal and store in the background, to find damage before it is needed. "
        "A few percent of what a slow disk gives, and of a core: 340 GiB a day. Off (0): damage is "
        "found when it is read.",
        4 * MIB,
        high=GIB,
    )
    period_s: int = _setting(
        "A pass over everything begins so long after the one before it began, or when that is over "
        "if it takes longer. A disk that begins to fail goes on failing: a day is soon enough to "
        "replace it before the next one.",
        24 * 3600,
        high=365 * 24 * 3600,
    )


@dataclass(frozen=True)
class LogSettings:
    """What the process says about itself, on standard error."""

    level: str = _setting(
        "The least urgent line that is written.", "info", of=("debug", "info", "warning", "error")
    )
    format: str = _setting(
        "`auto`: console on a terminal, else JSON lines.", "auto", of=("auto", "json", "console")
    )


@dataclass(frozen=True)
class NodeConfig:
    """All settings of one node, checked. Made by `load`."""

    cluster_id: str = _setting(
        "Names the cluster; nodes of another one are refused, so that a wrong address joins no "
        "strangers. 1 to 32 of a-z, 0-9 and -."
    )
    node: str = _setting("This node's name, one of the members. 1 to 32 of a-z, 0-9 and -.")
    data_dir: Path = _setting("Where journal and database live; made if missing.")
    client_listen: str = _setting("`host:port` for clients (ZeroMQ).")
    peer_listen: str = _setting("`host:port` for the other nodes (TCP).")
    members: Mapping[str, str] = _setting(
        "Name and peer address (`host:port`) of every node, this one included: 1, 3, 5 or 7. In "
        "the environment `n1=host:port,n2=host:port,…`."
    )
    health_file: str = _setting(
        "A file that the node touches once a second, from its loop: a probe looks at its age and "
        "asks nobody. Empty: none.",
        "",
    )
    http_listen: str = _setting(
        "`host:port` for metrics, health and the live page ([metrics](metrics.md)). Off unless "
        "given: it shows topics' names and clients' ids.",
        "",
    )
    http_token_file: str = _setting(
        "A file with the token that has to be shown there (`Authorization: Bearer …`), 16 "
        "characters or more. Needed for an `http_listen` that is not this machine's alone. Read at "
        "the start.",
        "",
    )
    http_certificate_file: str = _setting(
        "A PEM file with a key and its certificate, and those between it and an authority that "
        "browsers and Prometheus believe: `http_listen` speaks HTTPS alone. Needed where the "
        "token is needed. Read at the start.",
        "",
    )
    http_reads_as: str = _setting(
        "A user whose permissions the page has: it shows publications of the topics that this user "
        "may subscribe to, to whoever may open it, and moves no cursor ([metrics](metrics.md)). "
        "Empty: it shows none.",
        "",
    )
    otlp_endpoint: str = _setting(
        "Where spans of publications that are traced go, by OTLP over HTTP "
        "([tracing](tracing.md)): `http://127.0.0.1:4318/v1/traces`, say. Needs the extra `otel`. "
        "Empty: none are made.",
        "",
    )
    keys_dir: str = _setting(
        "The directory that `flotilla-keys node` has made for this node: clients and nodes have to "
        "prove who they are ([security](security.md)). It is read again when it changes, and on "
        "SIGHUP. Empty: anybody may come.",
        "",
    )
    admins: tuple[str, ...] = _setting(
        "Names of keys whose principals may administrate the cluster, whatever else is said of them"
        " ([permissions](security.md#who-may-what)): somebody has to be the first. The same on all"
        " nodes. In the environment `admin,ops`.",
        ("admin",),
    )
    raft: RaftSettings = field(default_factory=RaftSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    scrub: ScrubSettings = field(default_factory=ScrubSettings)
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True)
class Setting:
    """One row of the table. `default` is MISSING for a setting that has to be given."""

    key: str
    kind: type
    default: Any
    why: str
    low: int
    high: int
    of: tuple[str, ...]

    @property
    def env(self) -> str:
        """The environment variable that overrides the key."""
        return ENV_PREFIX + self.key.replace(".", "_").upper()

    @property
    def unit(self) -> str:
        """The unit, which stands in the name: "ms", "bytes", "count", or "" for a text."""
        if self.kind is not int:
            return ""
        return next((unit for unit in ("ms", "bytes") if unit in self.key.split("_")), "count")


SECTIONS: Final[Mapping[str, type]] = {
    "raft": RaftSettings,
    "limits": LimitSettings,
    "quotas": QuotaSettings,
    "journal": JournalSettings,
    "scrub": ScrubSettings,
    "log": LogSettings,
}


def _rows(owner: type, prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(owner)
    for each in fields(owner):
        if each.name not in SECTIONS:
            kind = hints[each.name]
            if not isinstance(kind, type):  # a Mapping: members; a tuple: admins
                kind = tuple if get_origin(kind) is tuple else dict
            yield Setting(prefix + each.name, kind, each.default, **each.metadata)


SETTINGS: Final[Mapping[str, Setting]] = {
    row.key: row
    for prefix, owner in [("", NodeConfig), *((f"{name}.", SECTIONS[name]) for name in SECTIONS)]
    for row in _rows(owner, prefix)
}


# --- reading ------------------------------------------------------------------------------------


def load(path: Path | None, environ: Mapping[str, str]) -> NodeConfig:
    """Return the settings of the TOML file at `path` (None: no file), overridden by `environ`.

    Raises ConfigError with every problem found: a file that cannot be read, unknown keys (with
    the likely meant one), missing ones, values of the wrong kind or out of bounds.
    """
    problems: list[str] = []
    given = _from_file(path, problems) | _from_environ(environ, problems)
    values: dict[str, Any] = {}
    for key, row in SETTINGS.items():
        if key not in given and row.default is MISSING:
            problems.append(f"{key}: is missing; set it in the file or as {row.env}")
        elif key in given:
            _take(row, given[key], values, problems)
    if problems:
        raise ConfigError(problems)
    config = _build(values)
    problems = _contradictions(config)
    if problems:
        raise ConfigError(problems)
    return config


def in_force(
    config: NodeConfig, path: Path | None, environ: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return every setting by its key: `value`, and `from`, where it comes from.

    `config` is what `load` has made of that file and those variables. None of them is a secret:
    those stand in files of their own, and a setting is the file's name.
    """
    in_environ = _from_environ(environ, [])
    in_file = _from_file(path, [])
    found = {}
    for key, row in SETTINGS.items():
        section, _, name = key.rpartition(".")
        value = getattr(getattr(config, section) if section else config, name)
        origin = "default"
        if key in in_environ:
            origin = row.env
        elif key in in_file:
            origin = str(path)
        value = str(value) if isinstance(value, Path) else value
        found[key] = {"value": value, "from": origin}
    return found


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of "host:port" or "[v6]:port". Raises ValueError that says what is off.

    Port 0 is refused: a node is found under the port that its configuration names.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{address!r} is not host:port")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port) <= PORT_MAX:
        raise ValueError(f"the port of {address!r} is not a number from 1 to {PORT_MAX}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{address!r}: an IPv6 address stands in brackets, as in [::1]:7001")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches what listens there; "" is nowhere."""
    if not address:
        return True
    host = split_address(address)[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def http_page(config: NodeConfig) -> str:
    """Return where a browser finds the node's page, as its peers are told; "" for nowhere.

    A node that listens everywhere is found where its peers find it.
    """
    if not config.http_listen:
        return ""
    host, port = split_address(config.http_listen)
    if host in ("0.0.0.0", "::"):
        host = split_address(config.members[config.node])[0]
    scheme = "https" if config.http_certificate_file else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def http_token(config: NodeConfig) -> str:
    """Return the token of `http_token_file`, "" without one. Raises ConfigError."""
    if not config.http_token_file:
        return ""
    try:
        token = Path(config.http_token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"http_token_file: cannot be read: {error}"]) from None
    if len(token) < HTTP_TOKEN_CHARACTERS_MIN or not token.isprintable() or " " in token:
        least = HTTP_TOKEN_CHARACTERS_MIN
        raise ConfigError([f"http_token_file: holds no token of {least} characters or more"])
    return token


def _from_file(path: Path | None, problems: list[str]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    given = dict(_flat(document, problems))
    for key in given.keys() - SETTINGS.keys():
        problems.append(f"{key}: no such setting in {path}{_did_you_mean(key, SETTINGS)}")
    return given


def _flat(document: Mapping[str, Any], problems: list[str]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if name not in SECTIONS:
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            problems.append(f"{name}: is a table of settings ([{name}]), not a value")


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    by_env = {row.env: row for row in SETTINGS.values()}
    for name in sorted(name for name in environ if name.startswith(ENV_PREFIX)):
        if name not in by_env and _is_meant_for_us(name, by_env):
            problems.append(f"{name}: no such variable{_did_you_mean(name, by_env)}")
    return {row.key: environ[env] for env, row in by_env.items() if env in environ}


def _is_meant_for_us(name: str, known: Mapping[str, Setting]) -> bool:
    # Not every FLOTILLA_ variable is ours: clients have some, and Kubernetes sets FLOTILLA_PORT
    # and the like in every pod beside a service of that name.
    if name.startswith(tuple(f"{ENV_PREFIX}{section.upper()}_" for section in SECTIONS)):
        return True
    tails = [each.removeprefix(ENV_PREFIX) for each in known]
    return bool(difflib.get_close_matches(name.removeprefix(ENV_PREFIX), tails, 1, CLOSE_ENOUGH))


def _did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _take(row: Setting, raw: Any, values: dict[str, Any], problems: list[str]) -> None:
    try:
        values[row.key] = _PARSERS[row.kind](row, raw)
    except ValueError as error:
        problems.append(f"{row.key}: {error}")


def _integer(row: Setting, raw: Any) -> int:
    if isinstance(raw, str) and re.fullmatch(r"-?[0-9][0-9_]*", raw.strip()):
        raw = int(raw.replace("_", ""))
    if type(raw) is not int:  # a bool is no number here
        raise ValueError(f"{raw!r} is not a whole number")
    if not row.low <= raw <= row.high:
        raise ValueError(f"{raw} is not from {row.low} to {row.high} {row.unit}")
    return raw


def _text(row: Setting, raw: Any) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError(f"{raw!r} is not a text")
    if row.of and raw not in row.of:
        raise ValueError(f"{raw!r} is not one of {', '.join(row.of)}")
    if row.key.endswith("_listen"):
        split_address(raw)
    if row.key in ("node", "cluster_id", "http_reads_as"):
        _check_name(raw)
    return raw


def _path(row: Setting, raw: Any) -> Path:
    return Path(_text(row, raw))


def _members(row: Setting, raw: Any) -> dict[str, str]:
    if isinstance(raw, str):
        pairs = [pair.partition("=")[::2] for pair in raw.split(",")]
        if len(dict(pairs)) < len(pairs):
            raise ValueError("names one node twice")
        raw = dict(pairs)
    if not isinstance(raw, dict):
        raise ValueError(f"{raw!r} is not a table of name = 'host:port'")
    for name, address in raw.items():
        _check_name(name)
        if not isinstance(address, str):
            raise ValueError(f"{name}: {address!r} is not 'host:port'")
        split_address(address)
    return dict(sorted(raw.items()))


def _check_name(name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(f"{name!r} is not 1 to 32 of a-z, 0-9 and -")


def _names(row: Setting, raw: Any) -> tuple[str, ...]:
    names = raw.split(",") if isinstance(raw, str) and raw else raw or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ValueError(f"{raw!r} is not a list of names")
    names = [each.strip() for each in names]
    for name in names:
        _check_name(name)
    return tuple(sorted(set(names)))


_PARSERS: Final = {int: _integer, str: _text, Path: _path, dict: _members, tuple: _names}


def _build(values: Mapping[str, Any]) -> NodeConfig:
    top = {key: value for key, value in values.items() if "." not in key}
    for name, owner in SECTIONS.items():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): values[key] for key in values if key.startswith(prefix)}
        top[name] = owner(**own)
    return NodeConfig(**top)


def _contradictions(config: NodeConfig) -> list[str]:
    raft, journal, members = config.raft, config.journal, config.members
    rules = (  # the three of raft are pysyncobj's own conditions (config.py: validate)
        (
            raft.election_min_ms > 3 * raft.heartbeat_ms,
            f"raft.election_min_ms: {raft.election_min_ms} is not over 3 * raft.heartbeat_ms "
            f"= {3 * raft.heartbeat_ms}",
        ),
        (
            raft.election_max_ms > raft.election_min_ms,
            f"raft.election_max_ms: {raft.election_max_ms} is not over raft.election_min_ms "
            f"= {raft.election_min_ms}",
        ),
        (
            raft.fallback_ms > raft.heartbeat_ms,
            f"raft.fallback_ms: {raft.fallback_ms} is not over raft.heartbeat_ms "
            f"= {raft.heartbeat_ms}",
        ),
        (
            journal.keep_bytes >= journal.segment_bytes,
            f"journal.keep_bytes: {journal.keep_bytes} is less than one segment "
            f"(journal.segment_bytes = {journal.segment_bytes})",
        ),
        (
            len(members) in MEMBER_COUNTS,
            f"members: {len(members)} of them; a cluster has 1, 3, 5 or 7",
        ),
        (
            config.node in members,
            f"node: {config.node!r} is not among the members {', '.join(members)}",
        ),
        (
            len(set(members.values())) == len(members),
            "members: two of them have the same address",
        ),
        (
            config.client_listen != config.peer_listen,
            "peer_listen: is the same address as client_listen",
        ),
        (
            config.http_listen not in (config.client_listen, config.peer_listen),
            "http_listen: is the same address as client_listen or peer_listen",
        ),
        (
            bool(config.http_token_file) or is_loopback(config.http_listen),
            f"http_listen: {config.http_listen} is not this machine's alone, and whoever reaches it"
            " sees topics and clients; give http_token_file as well",
        ),
        (
            bool(config.http_certificate_file) or is_loopback(config.http_listen),
            f"http_listen: {config.http_listen} is not this machine's alone, and by plain HTTP"
            " whoever listens on the way has the token; give http_certificate_file as well",
        ),
        (
            not config.otlp_endpoint or config.otlp_endpoint.startswith(("http://", "https://")),
            f"otlp_endpoint: {config.otlp_endpoint!r} does not begin with http:// or https://",
        ),
        (
            "@" not in config.otlp_endpoint.partition("://")[2].partition("/")[0],
            "otlp_endpoint: has a password in it, and settings are shown to who may observe;"
            " the variable OTEL_EXPORTER_OTLP_HEADERS says who sends the spans",
        ),
    )
    return [problem for holds, problem in rules if not holds]


# --- documentation ------------------------------------------------------------------------------


def describe() -> str:
    """Return the settings as a Markdown table, in the order of the dataclasses."""
    lines = ["| setting | environment | default | bounds | why |", "|---|---|---|---|---|"]
    for row in SETTINGS.values():
        default = "must be given" if row.default is MISSING else _shown(row, row.default) or "none"
        bounds = ", ".join(row.of)
        if row.kind is int:
            bounds = f"{_shown(row, row.low)} … {_shown(row, row.high)}"
        lines.append(f"| `{row.key}` | `{row.env}` | {default} | {bounds} | {row.why} |")
    return "\n".join(lines) + "\n"


_BYTE_UNITS: Final = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("bytes", 1))


def _shown(row: Setting, value: Any) -> str:
    if row.kind is tuple:
        return ",".join(value)
    if row.kind is not int:
        return str(value)
    if row.unit == "bytes":
        if not value:
            return "0 bytes"
        name, size = next((n, s) for n, s in _BYTE_UNITS if value % s == 0)
        return f"{value // size} {name}"
    return f"{value:,} {row.unit}".removesuffix(" count")
