"""Arguments of the command line: what is accepted, and what is said of what is not.

What lives here: types and actions for argparse. What must not: the commands (cli.py).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import datetime, timedelta
from typing import Any, Final

from flotilla_client.client import endpoints_of
from flotilla_client.policies import age_text, parse_age
from flotilla_client.properties import DELIVER_AFTER_MS_MAX, EXPIRES_MS_MAX
from flotilla_client.protocol import EARLIEST, INTEGER_MAX, LEASE_MS_MAX, LEASE_MS_MIN, NEW
from flotilla_client.retry import DEADLINE_MS_MAX
from flotilla_client.version import VERSION

SECONDS_MAX: Final = DEADLINE_MS_MAX // 1000


class CommandParser(argparse.ArgumentParser):
    """Takes words behind options, too: else those of `nargs="*"` end at the first option."""

    _is_within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does with options and words in any order, which calls this again."""
        if self._is_within:
            return super().parse_known_args(args, namespace)
        self._is_within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_within = False


class ShowVersion(argparse.Action):
    """Shows the version; asked for when it is wanted alone, as the look-up takes a while."""

    def __call__(self, *_: object) -> None:
        sys.stdout.write(f"flotilla {VERSION}\n")
        sys.exit(0)


class OneText(argparse.Action):
    """Takes one argument, and says of several how to make one of them."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, values: Any, _: Any = ""
    ) -> None:
        if len(values) > 1:
            quoted = f"{parser.prog} {options.topic} {shlex.quote(' '.join(values))}"
            parser.error(f"{len(values)} texts; one with spaces needs quotes: {quoted.strip()}")
        options.text = values[0]


def endpoints_type(text: str) -> tuple[str, ...]:
    """Return the endpoints in HOST:PORT,..."""
    try:
        return endpoints_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """Return a time of up to a day."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to {SECONDS_MAX} (a day)")
    return value


def deadline_s(text: str) -> float:
    """Return a time of up to a day, and not none."""
    patience_s = seconds(text)
    if patience_s * 1000 < 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.001 to {SECONDS_MAX}")
    return patience_s


def expiry(text: str) -> timedelta:
    """Return a time such as 30s, 12h or 7d, until something expires."""
    return _duration(text, EXPIRES_MS_MAX)


def delay(text: str) -> timedelta:
    """Return a time such as 30s, 12h or 7d, until something is due."""
    return _duration(text, DELIVER_AFTER_MS_MAX)


def _duration(text: str, ms_max: int) -> timedelta:
    try:
        ms = parse_age(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if ms > ms_max:
        raise argparse.ArgumentTypeError(f"{text} is over {age_text(ms_max)}")
    return timedelta(milliseconds=ms)


def lease_s(text: str) -> float:
    """Return how long a publication is lent to a worker."""
    value = seconds(text)
    if not LEASE_MS_MIN <= value * 1000 <= LEASE_MS_MAX:
        lowest, highest = LEASE_MS_MIN / 1000, LEASE_MS_MAX // 1000
        raise argparse.ArgumentTypeError(f"{text} is not from {lowest} to {highest} (12 hours)")
    return value


def directory_type(text: str) -> str:
    """Return a directory's path; an empty one comes of a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text names no directory")
    return text


def text_type(text: str) -> str:
    """Return a text that UTF-8 can say: an argument may have any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no text that UTF-8 can say") from None
    return text


def file_type(text: str) -> str:
    """Return a file's path; an empty one comes of a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text names no file")
    return text


class OneHeader(argparse.Action):
    """Takes NAME=VALUE, each name once."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, values: Any, _: Any = ""
    ) -> None:
        name, equals, value = str(values).partition("=")
        headers: dict[str, str] = {} if options.header is None else options.header
        if not name or not equals:
            parser.error(f"--header {values!r} is not NAME=VALUE")
        if name in headers:
            parser.error(f"--header {name!r} is given twice")
        options.header = headers | {name: value}


def count(text: str) -> int:
    """Return a number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 1 <= value <= INTEGER_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {INTEGER_MAX}")
    return value


def start(text: str) -> str | int | datetime:
    """Return where a subscription is to start: new, earliest, an id or a time (local, if it says
    no zone).
    """
    if text in (NEW, EARLIEST):
        return text
    try:
        return count(text) if text.isdigit() else datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, argparse.ArgumentTypeError):
        message = (
            f"{text!r} is none of {NEW}, {EARLIEST}, an id, the first to be read, and a time, such"
            " as 2026-05-04T17:00"
        )
        raise argparse.ArgumentTypeError(message) from None
