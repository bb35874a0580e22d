"""`flotilla`: the client on the command line, for people and for shell scripts.

What lives here: arguments, what is printed, exit codes. What must not: anything about the protocol;
it uses `Client` as any application does, and the standard library for the rest.
"""

from __future__ import annotations

import argparse
import base64
import functools
import io
import os
import select
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import orjson

from flotilla_client import directory
from flotilla_client.admin_cli import add_admin
from flotilla_client.arguments import (
    CommandParser,
    OneHeader,
    OneText,
    ShowVersion,
    count,
    deadline_s,
    delay,
    directory_type,
    endpoints_type,
    expiry,
    file_type,
    lease_s,
    seconds,
    start,
)
from flotilla_client.batches import Publishable, publication_of
from flotilla_client.client import Client, WorkItems, now_ms
from flotilla_client.completion import SHELLS
from flotilla_client.errors import (
    BadRequest,
    Compacted,
    Expired,
    FlotillaError,
    Gap,
    Purged,
    StateInUse,
    TooLarge,
    Unavailable,
    UnheardWarning,
)
from flotilla_client.lines import Lines
from flotilla_client.operations import (
    PutResult,
    check_client_id,
    check_subscribed,
    check_topic,
)
from flotilla_client.producer import Producer
from flotilla_client.protocol import (
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    NEW,
    PUBLICATION_BYTES_MAX,
)
from flotilla_client.reading import Delivery, Message
from flotilla_client.retry import DEADLINE_MS
from flotilla_client.sharing import SharedClient
from flotilla_client.shell import Shell
from flotilla_client.terminal import (
    BOLD,
    GREEN,
    RED,
    StreamError,
    drop_output,
    open_closed_streams,
    painted,
)
from flotilla_client.topic_cli import add_topic
from flotilla_client.work import PREFETCH, WorkItem

ENDPOINTS: Final = "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003"
GET_COUNT: Final = 1_000  # publications that `get --all` and `--follow` fetch at once
FOLLOW_WAIT_S: Final = 2.0  # one wait of `get --follow`: well below FOLLOW_SILENCE_S
PROGRESS_S: Final = 0.5  # between two lines of progress: readable
SILENCE_S: Final = 2.0  # no answer at all: a person wonders by then
FOLLOW_SILENCE_S: Final = 5.0  # above an election and a silent node, which are nobody's concern
TURN_S: Final = 2.0  # of `put -`, then others have the state: well below anybody's deadline
TURN_GAP_S: Final = 2 * directory.LOOK_S  # who waits looks that often
KEEP_PAUSE_S: Final = 2.0  # of an input while nobody answers: then it is not waited for
BURST_PAUSE_S: Final = 0.1  # without a line: above the pauses of a program that writes
LOOK_S: Final = 0.2  # between looks whether the cluster has answered

OF_NOBODY: Final = frozenset({"work", "status", "upgrade", "admin", "topic", "read", "doctor"})
OK: Final = 0
NOTHING_NEW: Final = 1
FAILED: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
UNKNOWN: Final = 4
STREAM_BROKEN: Final = 5
Wrap = Callable[[bytes], Publishable]

INTERRUPTED: Final = 130  # 128 + SIGINT, as shells say it
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE

_EPILOG: Final = """\
environment:
  FLOTILLA_ENDPOINTS  HOST:PORT,... of the nodes, instead of -e
  FLOTILLA_STATE      this client's state directory, instead of --state
  FLOTILLA_KEY        this client's key file, instead of --key

exit codes:
  0    done
  1    get, read, work: nothing new; doctor: something is wrong; admin checkpoint: not on all
       nodes; shell: a command of a script failed
  2    wrong usage
  3    refused: it did not happen (unknown topic, not subscribed, too large, ...); put: not
       stored, as nobody subscribes to the topic (--allow-unheard: 0)
  4    unavailable: no answer in time; a publication may have been stored, and if not it
       stands in the state directory (the outbox) and is sent before the next one
  5    the output cannot be written (a full disk), or the input not be read; get has acknowledged
       nothing of what was not written
  130  interrupted; 141 the reader of the output went away

Each state directory is one client with its own subscriptions; give each program its own.
Commands in several terminals may share one, and take turns.
"""
_SHELL: Final = "Type commands; HELP lists them."
_COMPLETION: Final = "Print a script that completes commands: source <(flotilla completion bash)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    open_closed_streams()
    options = build_parser().parse_args(argv)
    try:
        with warnings.catch_warnings():  # `put` says it in its own words
            warnings.simplefilter("ignore", UnheardWarning)
            return _run(options)
    except FlotillaError as error:
        return complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return PIPE_CLOSED
    except StreamError as error:
        say(f"{painted('flotilla:', RED, sys.stderr)} {error}")
        drop_output()
        return STREAM_BROKEN


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="flotilla",
        description="Publish to and read from a Flotilla cluster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    endpoints = os.environ.get("FLOTILLA_ENDPOINTS") or ENDPOINTS
    state = os.environ.get("FLOTILLA_STATE") or default_state_dir()
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version")
    _add_settings(parser, endpoints=endpoints, state=state, deadline=DEADLINE_MS / 1000)
    # Behind a command they are the same: left out there, what stands before it holds.
    settings = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    _add_settings(settings.add_argument_group("options of every command"))
    verbs = _verbs(parser)
    add_verbs(verbs, [settings])
    verbs.add_parser("shell", help="Type commands.", description=_SHELL, parents=[settings])
    completion = verbs.add_parser("completion", help=_COMPLETION, description=_COMPLETION)
    completion.add_argument("shell", choices=sorted(SHELLS))
    return parser


def _verbs(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(
        dest="verb", required=True, metavar="COMMAND", parser_class=CommandParser
    )


def _add_settings(parser: Any, **defaults: Any) -> None:
    """Add the options that every command has; without defaults: only what is given counts."""

    def option(*names: str, **about: Any) -> None:
        name = names[-1].lstrip("-")
        parser.add_argument(
            *names, **about, **({"default": defaults.get(name)} if defaults else {})
        )

    option("-v", "--verbose", action="store_true", help="say when nobody answers")
    option(
        "-e",
        "--endpoints",
        type=endpoints_type,
        metavar="HOST:PORT,...",
        help="the cluster's nodes",
    )
    said = f"; default: {defaults['state']}" if defaults else ""
    option("--state", type=directory_type, metavar="DIR", help=f"this client's directory{said}")
    option("--key", type=file_type, metavar="FILE", help="this client's key, if nodes ask for one")
    patience = f"patience; default: {DEADLINE_MS / 1000:g}"
    option("--deadline", type=deadline_s, metavar="SECONDS", help=patience)
    recorded = "record what is done, for `flotilla-check DIR`"
    option("--record", type=directory_type, metavar="DIR", help=recorded)


def add_verbs(verbs: Any, parents: Sequence[argparse.ArgumentParser] = ()) -> None:
    """Add the commands that the command line and the shell share, each with its `run`."""

    def verb(name: str, run: Callable[[Client, Any], int], text: str) -> argparse.ArgumentParser:
        first, stop, _ = text.partition(". ")  # the list of all commands has no room for more
        parser: argparse.ArgumentParser = verbs.add_parser(
            name, help=first + stop.rstrip(), description=text, parents=parents
        )
        parser.set_defaults(run=run)
        return parser

    sub = verb("sub", _sub, "Subscribe to a topic, or to all topics of a pattern.")
    sub.add_argument(
        "topic",
        help="its name; or a pattern, which also has the topics that come later: 'orders.*' (* is "
        "one word between dots), 'orders.>' (> is one or more, at the end)",
    )
    sub.add_argument(
        "--from",
        dest="start",
        type=start,
        default=NEW,
        metavar="START",
        help="where to begin: new (the default), earliest, the first id to be read, or a time; "
        "a subscription that stands goes on where it is",
    )
    seek = verb("seek", _seek, "Move my subscription, to either side.")
    seek.add_argument("topic")
    seek.add_argument("start", type=start, help="new, earliest, the first id to be read, or a time")
    read = verb("read", _read_topic, "Read a topic without a subscription; nothing moves.")
    read.add_argument("topic")
    read.add_argument(
        "--from",
        dest="start",
        type=count,
        metavar="ID",
        help="the first to be read; default: the first that the topic keeps",
    )
    read.add_argument("--count", type=count, metavar="N", help="at most N; default: to its end")
    read.add_argument("--json", action="store_true", help="one JSON object a line")
    unsub = verb("unsub", _unsub, "End a subscription.")
    unsub.add_argument("topic")
    unsub.add_argument(
        "--client",
        metavar="ID",
        help="another client's, whose state directory is lost (see `topics --subscribers`)",
    )
    put = verb("put", _put, "Publish; prints the publication's id, or `not stored`.")
    put.add_argument("topic")
    put.usage = f"{put.prog} [options] topic text"
    put.add_argument(
        "--allow-unheard",
        action="store_true",
        help="exit 0 although nobody subscribes, so that nothing is stored",
    )
    put.add_argument(
        "-k",
        "--publication-key",
        metavar="KEY",
        help="what it is about; stored and handed over with it (--key is the client's)",
    )
    put.add_argument(
        "--header",
        action=OneHeader,
        metavar="NAME=VALUE",
        help="one more header; with `put -` key and headers are of each line",
    )
    put.add_argument(
        "--expires",
        type=expiry,
        metavar="TIME",
        help="give it to nobody any more so long after it was stored (30s, 12h, 7d); level 5",
    )
    put.add_argument(
        "--deliver-after",
        type=delay,
        metavar="TIME",
        help="store it now, and have it in the topic so long after (30s, 12h, 7d), where it gets "
        "its id; of one publication; level 5",
    )
    put.add_argument(
        "text",
        nargs="+",
        action=OneText,
        help="the publication, or - for one a line from standard input",
    )
    _add_get_options(verb("get", _get, "Read; a publication is acknowledged once it is written."))
    _add_work_options(
        verb(
            "work",
            _work,
            "Work in a group, which shares a topic's publications among its workers: print what "
            "this one is given. Each is acknowledged once it is written. It needs no directory.",
        )
    )
    topics = verb("topics", _topics, "List my subscriptions, patterns last.")
    which = topics.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every topic of the cluster")
    which.add_argument("--subscribers", metavar="TOPIC", help="instead: who subscribes to TOPIC")
    topics.add_argument("--json", action="store_true")
    verb(
        "adopt",
        _adopt,
        "Go on after `cluster_recovered` or `unknown_client`, and say what is lost. This takes it"
        " as it is what the cluster has lost of what it told this client.",
    )
    verb("status", _status, "Ask every node for its view of the cluster.").add_argument(
        "--json", action="store_true"
    )
    upgrade = verb(
        "upgrade",
        _upgrade,
        "Raise the cluster's feature level, once every node runs a newer version. Older versions "
        "can't take part any more; there is no way back.",
    )
    upgrade.add_argument(
        "--level", type=count, metavar="N", help="default: the highest that any node understands"
    )
    upgrade.add_argument("--json", action="store_true")
    add_admin(verb, _print_rows)
    add_topic(verb, _print_rows)
    verb(
        "doctor",
        _doctor,
        "Measure this machine and the cluster: what is wrong, what follows, what to do. Exit 1 if "
        "anything is.",
    ).add_argument("--json", action="store_true", help="one JSON object a line")


def _add_get_options(get: argparse.ArgumentParser) -> None:
    get.add_argument("topic", nargs="?", help="left out: any of my topics")
    how_many = get.add_mutually_exclusive_group()
    how_many.add_argument("--all", action="store_true", help="until there is nothing new")
    how_many.add_argument("--follow", action="store_true", help="for ever")
    get.add_argument("--count", type=count, metavar="N", help="at most N, then stop; default: 1")
    get.add_argument("--wait", type=seconds, default=0.0, metavar="SECONDS", help="for the next")
    get.add_argument("--json", action="store_true", help="one JSON object a line")


def _add_work_options(work: argparse.ArgumentParser) -> None:
    work.add_argument("topic")
    work.add_argument("--group", required=True, metavar="NAME", help="made if it is not there")
    how_many = work.add_mutually_exclusive_group()
    how_many.add_argument("--all", action="store_true", help="until there is nothing to do")
    how_many.add_argument("--follow", action="store_true", help="for ever")
    work.add_argument("--count", type=count, metavar="N", help="at most N, then stop; default: 1")
    work.add_argument("--wait", type=seconds, default=0.0, metavar="SECONDS", help="for the next")
    work.add_argument(
        "--lease", type=lease_s, metavar="SECONDS", help="of the group; default: as it is, or 30"
    )
    work.add_argument(
        "--ordered-by-key",
        action="store_true",
        default=None,
        help="of a group that is made: what has one key is given one after the other, in order",
    )
    work.add_argument(
        "--start",
        type=start,
        default="new",
        metavar="WHERE",
        help="of a group that is made: new (default), earliest, an id, or a time",
    )
    work.add_argument("--json", action="store_true", help="one JSON object a line")


def default_state_dir() -> str:
    """Return the state directory of this user, after the XDG base directory specification."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(home) / "flotilla")


def complain(error: FlotillaError, fate: str = "") -> int:
    """Say an error on stderr, and what became of the publication; return its exit code."""
    reason = error.details.get("reason", error.message)
    name = painted("flotilla:", RED, sys.stderr)
    say(f"{name} {error.code}: {reason}{fate and f' ({fate})'}")
    return UNKNOWN if isinstance(error, Unavailable) or not error.definite else REFUSED


def say(text: str, end: str = "\n") -> None:
    """Write to stderr."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


def write(data: bytes) -> None:
    """Write to stdout, all of it and now: what is acknowledged must have been written.

    A pipe that is closed in the middle shows as a short count first, and only then as an error.
    Raises BrokenPipeError, StreamError.
    """
    try:
        sys.stdout.flush()
        rest = memoryview(data)
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StreamError(f"the output cannot be written: {error.strerror}") from error


def _run(options: Any) -> int:
    if options.verb == "completion":
        write(SHELLS[options.shell](build_parser()).encode())
        return OK
    _check_names(options)
    with _client(options) as client:
        if options.verb == "shell":
            return _shell(client, options)
        return _perform(client, options, options)


def _check_names(options: Any) -> None:
    """Refuse, before a directory is made, what every cluster would."""
    for name in (getattr(options, "topic", None), getattr(options, "subscribers", None)):
        if name is not None:
            check_topic(name)
    if getattr(options, "client", None) is not None:
        check_client_id(options.client)
    database = Path(options.state) / directory.DATABASE_NAME
    if options.verb == "sub" and not os.path.exists(database):  # `Path.exists` may raise
        check_subscribed(options.topic)


def _client(options: Any) -> Client:
    """Return the client that a command needs. A record is of one process: it shares no state."""
    timeout: float = options.deadline
    of_nobody = options.verb == "topics" and (options.all or options.subscribers is not None)
    if of_nobody or options.verb in OF_NOBODY:
        record, key = options.record, options.key
        return Client(options.endpoints, timeout=timeout, record=record, key=key)
    if options.record:
        return Client(
            options.endpoints,
            state_dir=options.state,
            timeout=timeout,
            record=options.record,
            key=options.key,
        )
    return SharedClient(options.endpoints, options.state, timeout, options.key)


def _perform(client: Client, options: Any, settings: Any) -> int:
    """Run a command; `settings`: of the whole command line, for the shell's commands too."""
    is_follow = bool(getattr(options, "follow", False))
    try:
        with _watched(client, settings, is_follow):
            code: int = options.run(client, options)
            return code
    finally:
        if isinstance(client, SharedClient):
            client.end_turns()  # Ctrl-C ends a command of the shell anywhere, and the shell goes on


def _shell(client: Client, settings: Any) -> int:
    parser = argparse.ArgumentParser(prog="flotilla", add_help=False)
    add_verbs(_verbs(parser))

    def execute(argv: Sequence[str]) -> bool:
        try:
            options = parser.parse_args(argv)
            code = _perform(client, options, settings)
        except SystemExit as end:  # argparse has said what was wrong, or the help
            return not end.code
        except FlotillaError as error:
            complain(error)
            return False
        if code == NOTHING_NEW:
            say("nothing new")
        return code in (OK, NOTHING_NEW)

    def topics() -> list[str]:
        return [row.topic for row in client.topics()]

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # any bytes, as arguments are
    shell = Shell(execute, topics, Path(settings.state) / directory.HISTORY_NAME)
    try:
        succeeded = shell.run()
    except BrokenPipeError:
        raise
    except OSError as error:  # of Python's `input`, which writes what stands in the output first
        raise StreamError(f"the output cannot be written: {error.strerror}") from error
    return OK if succeeded or sys.stdin.isatty() else FAILED


@contextmanager
def _watched(client: Client, settings: Any, is_follow: bool) -> Iterator[None]:
    """Say on stderr, to a person, while the cluster does not answer."""
    is_over = threading.Event()
    work = functools.partial(_watch, client, settings.deadline, is_follow, is_over)
    watcher = threading.Thread(target=work, name="flotilla-watch", daemon=True)
    if settings.verbose or sys.stderr.isatty():
        watcher.start()
    try:
        yield
    finally:
        is_over.set()
        if watcher.ident is not None:
            watcher.join()


def _watch(client: Client, patience_s: float, is_follow: bool, is_over: threading.Event) -> None:
    """Until the first answer, or for as long as `get --follow` reads.

    Others than it are not watched longer: a GET that waits has no answer and needs none.
    """
    names, start_ms, is_said = ", ".join(client.endpoints), now_ms(), False
    while not is_over.wait(LOOK_S):
        heard_ms = client.heard_ms
        silence_s = (now_ms() - max(heard_ms or 0.0, start_ms)) / 1000
        if is_said and silence_s < SILENCE_S:
            say("flotilla: the cluster answers again")
            is_said = False
        elif not is_said and heard_ms is None and silence_s > SILENCE_S:
            say(f"flotilla: no answer from {names}; trying until {patience_s:g} s are over")
            is_said = True
        elif not is_said and heard_ms is not None and silence_s > FOLLOW_SILENCE_S:
            say(f"flotilla: no answer from {names} for {FOLLOW_SILENCE_S:g} s; still trying")
            is_said = True
        if heard_ms is not None and not is_follow:
            return


# --- commands -----------------------------------------------------------------------------------


def _sub(client: Client, options: Any) -> int:
    result = client.subscribe(options.topic, options.start)
    how = "resumed" if result.resumed else "subscribed"
    if options.topic in client.patterns():
        count = f"{len(result.topics)} topics" if len(result.topics) != 1 else "1 topic"
        write(f"{how}: {count} now, and each that comes later\n".encode())
        return OK
    write(f"{how}: publications after id {result.last_id} will come\n".encode())
    return OK


def _seek(client: Client, options: Any) -> int:
    last_id = client.seek(options.topic, options.start)
    write(f"moved: publications after id {last_id} will come\n".encode())
    return OK


def _read_topic(client: Client, options: Any) -> int:
    """Print a topic from an id on, to its end as it is then."""
    line = _as_json if options.json else _as_text
    next_id, left = options.start, options.count or sys.maxsize
    code = NOTHING_NEW
    while left:
        try:
            found = client.read_runs(options.topic, next_id or 1, min(left, GET_COUNT))
        except Gap as gap:
            if options.start is not None or code == OK:
                raise
            next_id = gap.details["last_id"] + 1  # the first that is kept
            continue
        except (Expired, Compacted) as error:
            next_id = error.details["last_id"] + 1
            continue
        if not found:
            break
        write(b"".join(line(message) for delivery in found for message in delivery))
        next_id, code = found[-1].last_id + 1, OK
        left -= sum(len(delivery.publications) for delivery in found)
    return code


def _unsub(client: Client, options: Any) -> int:
    was_subscribed = client.unsubscribe(options.topic, client_id=options.client)
    write(b"unsubscribed\n" if was_subscribed else b"was not subscribed\n")
    return OK


def _put(client: Client, options: Any) -> int:
    wrap = functools.partial(
        publication_of,
        key=options.publication_key,
        headers=options.header,
        expires=options.expires,
        deliver_after=options.deliver_after,
    )
    if options.text == "-" and options.deliver_after is not None:
        raise BadRequest("--deliver-after is of one publication: give it instead of -")
    if options.text == "-":
        code, unheard = _put_lines(client, options.topic, Lines(sys.stdin.fileno()), wrap)
        return REFUSED if code == OK and unheard and not options.allow_unheard else code
    try:
        publication = wrap(os.fsencode(options.text))
        result = client.publish(options.topic, publication, allow_unheard=True)
    except FlotillaError as error:
        return complain(error, _fate(error))
    if result.stored is False:
        write(b"not stored\n")
        say(f"flotilla: nobody subscribes to {options.topic}: not stored")
        return OK if options.allow_unheard else REFUSED
    write(b"delayed\n" if result.delayed else f"{result.id}\n".encode())
    return OK


def _fate(error: FlotillaError) -> str:
    """Return what became of a publication that met this error."""
    if error.details.get("kept"):
        return "kept in the outbox: it is sent before your next one"
    return "not stored" if error.definite else ""


class _Tally:
    """Counts what becomes of lines; `add` is called in the producer's thread, in their order.

    `wrap` makes publications of them.
    """

    def __init__(self, wrap: Wrap) -> None:
        self.wrap = wrap
        self.taken = self.stored = self.kept = self.unheard = self.last_id = 0
        self.refused: list[int] = []  # lines; those of the queue at most, as reading stops
        self.error: FlotillaError | None = None
        self.is_done = False  # all lines were read, and have their answers
        self._is_shown = sys.stderr.isatty()
        self._shown_s = time.monotonic()

    def add(self, line: int, future: Future[PutResult]) -> None:
        """Count a result, and now and then show how far it is."""
        error = future.exception()
        if isinstance(error, FlotillaError):
            self.error = self.error or error
            if error.definite:
                self.refused.append(line)
            else:
                self.kept += 1
            return
        result = future.result()
        if result.stored is False:
            self.unheard += 1
            return
        self.stored += 1
        self.last_id = result.id
        if self._is_shown and time.monotonic() - self._shown_s > PROGRESS_S:
            self._shown_s = time.monotonic()
            say(f"\r{self.stored:,} stored", end="")

    def keep(self, count: int) -> None:
        """Count lines that have been put into the outbox unasked."""
        self.taken += count
        self.kept += count

    def finish(self) -> None:
        """End the line of progress."""
        if self._is_shown:
            say(f"\r{self.stored:,} stored")

    def result(self) -> str:
        """Return what stdout says."""
        parts = [f"{self.stored} stored"]
        if self.stored or self.is_done:
            parts.append(f"last id {self.last_id}")
        if self.kept:
            parts.append(f"{self.kept} kept in the outbox")
        return ", ".join(parts)

    def summary(self, is_at_end: bool) -> str:
        """Return how far it came: from the line named on, a rerun doubles nothing."""
        parts = [f"{self.stored} stored", f"{self.kept} kept in the outbox"]
        if self.unheard:
            parts.append(f"{self.unheard} not stored as nobody subscribes")
        stop = self.taken + 1
        while self.refused and self.refused[-1] == stop - 1:
            stop = self.refused.pop()
            is_at_end = False
        if self.refused:  # and what follows them was taken
            first, last = self.refused[0], self.refused[-1]
            parts.append(f"{len(self.refused)} refused from line {first} to {last}")
        end = " (the end of the input)" if is_at_end else ""
        return ", ".join([*parts, f"stopped before line {stop}{end}"])


def _put_lines(client: Client, topic: str, lines: Lines, wrap: Wrap) -> tuple[int, int]:
    """Publish lines; return the exit code and how many nobody subscribed to."""
    tally = _Tally(wrap)
    code = OK
    try:
        _send_lines(client, topic, lines, tally)
        if isinstance(tally.error, Unavailable):
            _keep_lines(client, topic, lines, tally)
    except FlotillaError as error:  # of a line that could not be kept
        code = complain(error)
    finally:
        tally.finish()
        code = code if tally.error is None else complain(tally.error)
        if not tally.is_done:
            say(f"flotilla: {tally.summary(lines.have_ended())}")
    write(f"{tally.result()}\n".encode())
    if tally.unheard and tally.is_done:
        say(f"flotilla: nobody subscribes to {topic}: {tally.unheard} not stored")
    return code, tally.unheard


def _send_lines(client: Client, topic: str, lines: Lines, tally: _Tally) -> None:
    """Send lines until they end or there is an error, which the tally has then.

    In bursts: while a producer is open, no command in another terminal has its turn, and the next
    line may come in an hour.
    """
    try:
        client.open()  # which sends what an earlier run has kept, though there be no line
        while tally.error is None and (line := lines.next()) is not None:
            lines.put_back(line)
            with client.producer(topic) as producer:
                _send_burst(producer, lines, tally)
            time.sleep(TURN_GAP_S)
        tally.is_done = tally.error is None
    except FlotillaError as error:
        tally.error = tally.error or error


def _send_burst(producer: Producer, lines: Lines, tally: _Tally) -> None:
    """Send lines until none comes for a moment, or others have waited long enough."""
    end_s, before = time.monotonic() + TURN_S, tally.taken
    try:
        while tally.error is None and time.monotonic() < end_s:
            line = lines.next(BURST_PAUSE_S)
            if line is None:
                return
            number = tally.taken + 1
            try:
                future = producer.send(tally.wrap(_fitting(line, number)))
            except FlotillaError:
                lines.put_back(line)
                raise
            tally.taken = number
            future.add_done_callback(functools.partial(tally.add, number))
    finally:  # ctrl-C may come behind the sending of a line: it is taken all the same
        tally.taken = before + producer.begin_flushing()


def _keep_lines(client: Client, topic: str, lines: Lines, tally: _Tally) -> None:
    """Put the other lines into the outbox, as nobody answers: what a `put` of each would do.

    Until the input ends or pauses, or the outbox is full.
    """
    state = client._session.state
    while batch := _next_batch(lines, tally):
        with state.turn():
            before = state.counter(topic)
            try:
                client.enqueue(topic, list(map(tally.wrap, batch)))
            finally:  # ctrl-C, or a disk that fails, may come behind the change
                kept = state.counter(topic) - before
                tally.keep(kept)
                for line in reversed(batch[kept:]):
                    lines.put_back(line)


def _next_batch(lines: Lines, tally: _Tally) -> list[bytes]:
    """Return as many lines as one change of the outbox takes. Raises TooLarge for the first one."""
    batch: list[bytes] = []
    size_bytes = 0
    while size_bytes < BATCH_BYTES_MAX and len(batch) < BATCH_COUNT_MAX:
        line = lines.next(BURST_PAUSE_S if batch else KEEP_PAUSE_S)
        if line is None:
            break
        if batch and len(line) > PUBLICATION_BYTES_MAX:
            lines.put_back(line)
            break
        batch.append(_fitting(line, tally.taken + 1))
        size_bytes += len(line)
    return batch


def _fitting(line: bytes, number: int) -> bytes:
    """Return a line that is not too long. Raises TooLarge."""
    if len(line) <= PUBLICATION_BYTES_MAX:
        return line
    message = f"line {number} has more than {PUBLICATION_BYTES_MAX:,} bytes, its end not counted"
    raise TooLarge(message, details={"limit": PUBLICATION_BYTES_MAX})


def _get(client: Client, options: Any) -> int:
    with client.reading() if isinstance(client, SharedClient) else nullcontext():
        return _read(client, options)


def _read(client: Client, options: Any) -> int:
    is_endless = options.all or options.follow
    left = options.count or (sys.maxsize if is_endless else 1)
    code = NOTHING_NEW
    while left:
        try:
            delivery = _next(client, options, min(left, GET_COUNT))
        except (Gap, Purged) as error:  # said once: whoever comes next goes on behind it
            code = complain(error)
            if options.follow:
                continue
            return code
        if delivery is not None:
            line = _as_json if options.json else _as_text
            write(b"".join(map(line, delivery)))
            client.acknowledge(delivery.topic, delivery.last_id)
            left -= len(delivery.publications)
            code = OK
        elif not options.follow:
            break
    return code


def _next(client: Client, options: Any, count_max: int) -> Delivery | None:
    """GET once. `--follow` outlives an outage: nothing is lost by asking again for ever."""
    idle = FOLLOW_WAIT_S if options.follow else options.wait
    if options.follow:
        _check_reader()
    try:
        return client.get(options.topic, idle=idle, max_count=count_max, ack="manual")
    except (Unavailable, StateInUse):  # by a command in another terminal that waits for an answer
        if not options.follow or client.heard_ms is None:
            raise
        return None


def _check_reader() -> None:
    """Raise BrokenPipeError if the reader of stdout has gone: there may be no write for hours."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)  # errors are always told
    if poller.poll(0):
        raise BrokenPipeError


def _as_text(message: Message) -> bytes:
    return message.publication + b"\n"


def _work(client: Client, options: Any) -> int:
    if isinstance(client, SharedClient):
        # Processes that share a client would count their takes as one.
        session = client._session
        timeout, key = session.deadline_ms / 1000, session.key.path if session.key else None
        with Client(session.endpoints, timeout=timeout, key=key) as own:
            return _work(own, options)
    left = options.count or (sys.maxsize if options.all or options.follow else 1)
    idle = None if options.follow else options.wait
    prefetch = min(left, PREFETCH)
    work = client.work(
        options.topic,
        options.group,
        lease=options.lease,
        ordered_by_key=options.ordered_by_key,
        start=options.start,
        prefetch=prefetch,
        idle=idle,
    )
    code = NOTHING_NEW
    with work as items:
        while left and (item := _next_item(client, items, options)) is not None:
            as_json, attempt = options.json, item.attempt
            write(_as_json(item.message, attempt) if as_json else _as_text(item.message))
            left -= 1
            code = OK
            # What is fetched and given back unseen has had an attempt.
            items._loop.prefetch = max(1, min(left, PREFETCH))
    return code


def _next_item(client: Client, items: WorkItems, options: Any) -> WorkItem | None:
    """Return the next item; `--follow` outlives an outage, as nothing is lost by asking again."""
    while True:
        if options.follow:
            _check_reader()
        try:
            return next(items, None)
        except Unavailable:
            if not options.follow or client.heard_ms is None:
                raise


def _as_json(message: Message, attempt: int | None = None) -> bytes:
    row: dict[str, Any] = {"topic": message.topic, "id": message.id}
    if attempt is not None:
        row["attempt"] = attempt
    if message.redelivered:
        row["redelivered"] = True
    if message.timestamp is not None:
        row["timestamp"] = message.timestamp.isoformat(timespec="milliseconds")
    if message.key is not None:
        row |= _named("key", message.key)
    if message.expires_ms is not None:
        row["expires_ms"] = message.expires_ms
    if message.deliver_after_ms is not None:
        row["deliver_after_ms"] = message.deliver_after_ms
    for name, value in message.headers.items():
        for kind, shown in _named("headers", value).items():
            row.setdefault(kind, {})[name] = shown
    try:
        row["publication"] = message.publication.decode()
    except UnicodeDecodeError:
        row |= _named("publication", message.publication)
    return orjson.dumps(row) + b"\n"


def _named(name: str, value: str | bytes) -> dict[str, str]:
    """Return a value as JSON has it: text under its name, bytes under another one."""
    if isinstance(value, str):
        return {name: value}
    return {f"{name}_base64": base64.b64encode(value).decode()}


def _topics(client: Client, options: Any) -> int:
    if options.subscribers is not None:
        rows = client.subscribers(options.subscribers)
        _print_rows(rows, ("client_id", "cursor", "backlog"), options.json)
        return OK
    columns: tuple[str, ...] = ("topic", "last_id", "cursor", "backlog")
    if options.all:
        columns = ("topic", "last_id", "subscribers", "backlog_bytes", "delayed")
    own: list[Mapping[str, Any]] = [*client.topics(options.all)]
    if not options.all:
        own += [{"topic": pattern} for pattern in client.patterns()]
    _print_rows(own, columns, options.json)
    return OK


def _adopt(client: Client, options: Any) -> int:
    lost = client.adopt()
    lines = list(lost.sentences()) or ["nothing is lost"]
    write("".join(f"{line}\n" for line in lines).encode())
    return OK


def _status(client: Client, options: Any) -> int:
    rows = [_status_row(client, number) for number in range(len(client.endpoints))]
    columns = (
        *("endpoint", "node", "role", "term", "leader", "commit_index", "applied_index"),
        *("level", "version", "levels"),
    )
    _print_rows(rows, columns, options.json)
    if not options.json:
        for line in (*(line for row in rows for line in _troubles(row)), *_strangers(rows)):
            write(line.encode() + b"\n")
    return OK if any("error" not in row for row in rows) else UNKNOWN


def _troubles(row: dict[str, Any]) -> Iterator[str]:
    """Yield what an operator should look at in a node's status."""
    node = row.get("node", "")
    if "cause" in row:
        yield f"{row['endpoint']} is {row['role']}: {row['cause']}"
    for line in row.get("waiting_for", ()):
        yield f"{node} waits for {line}"
    for reason in row.get("refused_by", {}).values():
        yield f"{node} is refused: {reason}"
    for found in row.get("damage", ()):
        what = " ".join(str(value) for key, value in found.items() if key != "reason")
        yield f"{node}'s disk is damaged: {what}: {found['reason']}"
    for peer, settings in row.get("settings_differ", {}).items():
        for key, (mine, theirs) in settings.items():
            yield f"{node} has {key} = {mine}, {peer} has {theirs}"


def _strangers(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield who is of another cluster than the first one that answers.

    The nodes of a cluster name the same members, and a node has one incarnation.
    """
    answered = [row for row in rows if "incarnation" in row]
    incarnations: dict[str, str] = {}
    for row in answered:
        incarnation = incarnations.setdefault(row["node"], row["incarnation"])
        if _members(row) != _members(answered[0]) or incarnation != row["incarnation"]:
            first, members = answered[0]["endpoint"], ", ".join(sorted(_members(row)))
            yield f"{row['endpoint']} is of another cluster than {first}: that of {members}"


def _members(row: dict[str, Any]) -> set[str]:
    return {row["node"], *row.get("members", ())}


def _status_row(client: Client, number: int) -> dict[str, Any]:
    endpoint = client.endpoints[number]
    try:
        status = client.status(number)
    except FlotillaError as error:
        cause = error.details.get("causes", {}).get(endpoint, error.message)
        return {"endpoint": endpoint, "role": error.code, "cause": cause, "error": error.message}
    versions = status.get("versions", {})
    low, high = versions.get("levels", (1, 1))  # version 0.1 names none
    own = {"version": versions.get("flotilla", "-"), "levels": f"{low}-{high}"}
    return {"endpoint": endpoint, **own, **status}


def _doctor(client: Client, options: Any) -> int:
    from flotilla_client import doctor  # it is for people: nobody else waits for its import

    def status(number: int) -> dict[str, Any]:
        try:
            return dict(client.status(number))
        except FlotillaError as error:
            causes = error.details.get("causes", {})
            raise OSError(causes.get(client.endpoints[number], error.message)) from error

    findings = doctor.examine_machine(Path(options.state))
    findings += doctor.examine_cluster(client.endpoints, status)
    text, code = doctor.shown(findings)
    if options.json:
        text = "".join(f"{orjson.dumps(each.row()).decode()}\n" for each in findings)
    write(text.encode())
    return code


def _upgrade(client: Client, options: Any) -> int:
    done = client.upgrade(options.level)
    if options.json:
        write(orjson.dumps(dict(done)) + b"\n")
    elif done.level > done.before:
        write(b"level %d; it was %d\n" % (done.level, done.before))
    else:
        write(b"level %d already\n" % done.level)
    return OK


def _print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        write(b"".join(orjson.dumps(dict(row)) + b"\n" for row in rows))
        return
    head = tuple(column.removesuffix("_index") for column in columns)
    table = [head, *(tuple(str(row.get(c, "-")) for c in columns) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    has_room = sum(widths) + 2 * (len(widths) - 1) <= shutil.get_terminal_size().columns
    gap = "  " if has_room else " "
    for number, line in enumerate(table):
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        padded[-1] = line[-1]
        cells = [
            painted(text, _style(cell, is_head=number == 0), sys.stdout)
            for text, cell in zip(padded, line, strict=True)
        ]
        write(gap.join(cells).rstrip().encode() + b"\n")


def _style(cell: str, is_head: bool) -> str:
    return BOLD if is_head else {"leader": GREEN, Unavailable.CODE: RED}.get(cell, "")


if __name__ == "__main__":
    sys.exit(main())
