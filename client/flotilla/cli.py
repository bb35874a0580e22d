"""`flotilla`: the client on the command line, for people and for shell scripts.

What lives here: arguments, what is printed, exit codes. What must not: anything about the protocol;
it uses `Client` as any application does, and the standard library for the rest.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import orjson

from flotilla.client import Client, endpoints_of
from flotilla.errors import FlotillaError, Unavailable
from flotilla.operations import Message, PutResult
from flotilla.shell import Shell

ENDPOINTS: Final = "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003"
GET_COUNT: Final = 1_000  # publications that `get --all` and `--follow` fetch at once
FOLLOW_WAIT_MS: Final = 5_000  # one wait of `get --follow`; it asks again for ever
PROGRESS_S: Final = 0.5  # between two lines of progress: readable

OK: Final = 0
NOTHING_NEW: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
UNKNOWN: Final = 4
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells say it
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE

_EPILOG: Final = """\
environment:
  FLOTILLA_ENDPOINTS  HOST:PORT,... of the nodes, instead of -e
  FLOTILLA_STATE      this client's state directory, instead of --state

exit codes:
  0    done
  1    get: nothing new
  2    wrong usage
  3    refused: it did not happen (unknown topic, not subscribed, too large, ...)
  4    unavailable: no answer in time; a publication may have been stored, and if not it
       stands in the state directory and is sent before the next one
  130  interrupted; 141 the reader of the output went away

Each state directory is one client with its own subscriptions; give each program its own.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        return _run(options)
    except ValueError as error:
        parser.error(str(error))
    except FlotillaError as error:
        return complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


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
    parser.add_argument("-e", "--endpoints", default=endpoints, metavar="HOST:PORT,...")
    parser.add_argument("--state", default=state, metavar="DIR", help=f"default: {state}")
    parser.add_argument(
        "--deadline", type=_seconds, default=15.0, metavar="SECONDS", help="default: 15"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    add_verbs(verbs)
    verbs.add_parser("shell", help="type commands")
    return parser


def add_verbs(verbs: Any) -> None:
    """Add the commands that the command line and the shell share, each with its `run`."""

    def verb(name: str, run: Callable[[Client, Any], int], text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
        parser.set_defaults(run=run)
        return parser

    verb("sub", _sub, "Subscribe to a topic.").add_argument("topic")
    verb("unsub", _unsub, "End a subscription.").add_argument("topic")
    put = verb("put", _put, "Publish; prints the publication's id.")
    put.add_argument("topic")
    put.add_argument("text", help="the publication, or - for one a line from standard input")
    _add_get_options(verb("get", _get, "Read; a publication is acknowledged once it is written."))
    topics = verb("topics", _topics, "List my subscriptions.")
    topics.add_argument("--all", action="store_true", help="every topic of the cluster")
    topics.add_argument("--json", action="store_true")
    verb("status", _status, "Ask every node for its view of the cluster.").add_argument(
        "--json", action="store_true"
    )


def _add_get_options(get: argparse.ArgumentParser) -> None:
    get.add_argument("topic", nargs="?", help="left out: any of my topics")
    how_many = get.add_mutually_exclusive_group()
    how_many.add_argument("--all", action="store_true", help="until there is nothing new")
    how_many.add_argument("--follow", action="store_true", help="for ever")
    get.add_argument("--wait", type=_seconds, default=0.0, metavar="SECONDS", help="for the next")
    get.add_argument("--json", action="store_true", help="one JSON object a line")


def default_state_dir() -> str:
    """Return the state directory of this user, after the XDG base directory specification."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(home) / "flotilla")


def complain(error: FlotillaError) -> int:
    """Say an error on stderr; return its exit code."""
    say(f"flotilla: {error.code}: {error.message}")
    return UNKNOWN if isinstance(error, Unavailable) or not error.definite else REFUSED


def say(text: str, end: str = "\n") -> None:
    """Write to stderr."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


def write(data: bytes) -> None:
    """Write to stdout, all of it and now: what is acknowledged must have been written.

    A pipe that is closed in the middle shows as a short count first, and only then as an error.
    """
    sys.stdout.flush()
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def _run(options: Any) -> int:
    endpoints = endpoints_of(options.endpoints)
    with Client(endpoints, options.state, int(options.deadline * 1000)) as client:
        if options.verb == "shell":
            return _shell(client, Path(options.state))
        code: int = options.run(client, options)
        return code


def _shell(client: Client, state_dir: Path) -> int:
    parser = argparse.ArgumentParser(prog="", add_help=False)
    add_verbs(parser.add_subparsers(dest="verb", required=True, metavar="COMMAND"))

    def execute(argv: Sequence[str]) -> None:
        try:
            options = parser.parse_args(argv)
            options.run(client, options)
        except SystemExit:  # argparse has said what was wrong
            return
        except FlotillaError as error:
            complain(error)

    Shell(execute, lambda: [row["topic"] for row in client.topics()], state_dir / "history").run()
    return OK


# --- commands -----------------------------------------------------------------------------------


def _sub(client: Client, options: Any) -> int:
    result = client.subscribe(options.topic)
    how = "resumed" if result.resumed else "subscribed"
    write(f"{how}: publications after id {result.last_id} will come\n".encode())
    return OK


def _unsub(client: Client, options: Any) -> int:
    was_subscribed = client.unsubscribe(options.topic)
    write(b"unsubscribed\n" if was_subscribed else b"was not subscribed\n")
    return OK


def _put(client: Client, options: Any) -> int:
    if options.text == "-":
        return _put_lines(client, options.topic, sys.stdin.buffer)
    result = client.put(options.topic, os.fsencode(options.text))
    write(f"{result.id}\n".encode())
    if result.id == 0 and not result.duplicate:
        say(f"flotilla: nobody subscribes to {options.topic}: not stored")
    return OK


class _Tally:
    """Counts a producer's results; called in its thread."""

    def __init__(self) -> None:
        self.stored = 0
        self.last_id = 0
        self.error: FlotillaError | None = None
        self._is_shown = sys.stderr.isatty()
        self._shown_s = time.monotonic()

    def add(self, future: Future[PutResult]) -> None:
        """Count a result, and now and then show how far it is."""
        error = future.exception()
        if error is not None:
            self.error = self.error or (error if isinstance(error, FlotillaError) else None)
            return
        self.stored += 1
        self.last_id = future.result().id
        if self._is_shown and time.monotonic() - self._shown_s > PROGRESS_S:
            self._shown_s = time.monotonic()
            say(f"\r{self.stored:,} stored", end="")

    def finish(self) -> None:
        """End the line of progress."""
        if self._is_shown:
            say(f"\r{self.stored:,} stored")


def _put_lines(client: Client, topic: str, lines: Iterable[bytes]) -> int:
    tally = _Tally()
    try:
        with client.producer(topic) as producer:
            for line in lines:
                producer.send(line.removesuffix(b"\n")).add_done_callback(tally.add)
                if tally.error is not None:
                    break
    finally:
        tally.finish()
    write(f"{tally.stored} stored, last id {tally.last_id}\n".encode())
    if tally.error is not None:
        raise tally.error
    return OK


def _get(client: Client, options: Any) -> int:
    wait_ms = FOLLOW_WAIT_MS if options.follow else int(options.wait * 1000)
    count_max = GET_COUNT if options.all or options.follow else 1
    code = NOTHING_NEW
    while True:
        delivery = client.get(options.topic, wait_ms, count_max, ack="manual")
        if delivery is not None:
            line = _as_json if options.json else _as_text
            write(b"".join(map(line, delivery)))
            client.acknowledge(delivery.topic, delivery.last_id)
            code = OK
        if not options.follow and (delivery is None or not options.all):
            return code


def _as_text(message: Message) -> bytes:
    return message.publication + b"\n"


def _as_json(message: Message) -> bytes:
    row: dict[str, Any] = {"topic": message.topic, "id": message.id}
    try:
        row["publication"] = message.publication.decode()
    except UnicodeDecodeError:
        row["publication_base64"] = base64.b64encode(message.publication).decode()
    return orjson.dumps(row) + b"\n"


def _topics(client: Client, options: Any) -> int:
    columns = ("topic", "last_id", "cursor", "backlog")
    if options.all:
        columns = ("topic", "last_id", "subscribers", "backlog_bytes")
    _print_rows(client.topics(options.all), columns, options.json)
    return OK


def _status(client: Client, options: Any) -> int:
    rows = [_status_row(client, number) for number in range(len(client.endpoints))]
    columns = ("endpoint", "node", "role", "term", "leader", "commit_index", "applied_index")
    _print_rows(rows, columns, options.json)
    return OK if any("error" not in row for row in rows) else UNKNOWN


def _status_row(client: Client, number: int) -> dict[str, Any]:
    endpoint = client.endpoints[number]
    try:
        return {"endpoint": endpoint, **client.status(number)}
    except FlotillaError as error:
        return {"endpoint": endpoint, "role": error.code, "error": error.message}


def _print_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        write(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        return
    table = [tuple(columns), *(tuple(str(row.get(c, "-")) for c in columns) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        write("  ".join(cells).rstrip().encode() + b"\n")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < 24 * 3600:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds up to a day")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
