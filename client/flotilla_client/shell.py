"""`flotilla shell`: the command line's verbs, typed one after the other.

What lives here: the prompt, history and completion. What must not: the verbs themselves (cli.py).
"""

from __future__ import annotations

import cmd
import contextlib
import readline
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from flotilla_client.errors import FlotillaError

HISTORY_LINES_MAX: Final = 1_000  # a file that a person can read
VERBS: Final = (
    "sub",
    "unsub",
    "put",
    "get",
    "work",
    "topics",
    "adopt",
    "status",
    "upgrade",
    "admin",
    "topic",
    "seek",
    "read",
    "doctor",
)

_HELP: Final = """\
SUB topic            subscribe (--from earliest|ID: from there on)
UNSUB topic          end the subscription (--client ID: another client's)
PUT topic text       publish the rest of the line
GET [topic]          the next publication (--all, --follow, --count N, --wait SECONDS, --json)
SEEK topic start     move my subscription: new, earliest or an id
READ topic           without a subscription (--from ID, --count N, --json)
WORK topic           what a group gives (--group NAME; --all, --follow, --count N, --json, …)
TOPICS               my subscriptions (--all: every topic, --subscribers TOPIC, --json)
ADOPT                after `cluster_recovered`: say what is lost, and go on
STATUS               every node's view (--json)
UPGRADE              raise the cluster's level (--level N, --json)
ADMIN what [name]    what the cluster keeps: topics, clients, … (--json, --watch SECONDS)
TOPIC what name      what a topic keeps: create, alter, show, delete
DOCTOR               measure this machine and the cluster (--json)
HELP, EXIT           in any case, as all of them
"""


class Shell(cmd.Cmd):
    """Reads lines and passes each on as arguments.

    `execute` runs ["get", "topic"], reports its errors itself and returns whether there were none;
    `topics` returns the names to complete (may raise FlotillaError); `history` is the file of lines
    typed before. Of a script on stdin nothing but the commands' output is shown.
    """

    def __init__(
        self,
        execute: Callable[[Sequence[str]], bool],
        topics: Callable[[], list[str]],
        history: Path,
    ) -> None:
        super().__init__()
        self._execute = execute
        self._topics = topics
        self._history = history
        self._succeeded = True
        self._is_talking = sys.stdin.isatty()
        self.intro = "Flotilla. HELP lists the commands, EXIT or ctrl-D leaves."
        self.prompt = "flotilla> "
        if not self._is_talking:
            self.intro = self.prompt = ""

    def run(self) -> bool:
        """Read and run lines until EXIT or the end of input; return whether all succeeded.

        ctrl-C gives up one line.
        """
        if self._is_talking:
            self._talk()
        else:
            self.cmdloop()
        return self._succeeded

    def _talk(self) -> None:
        readline.set_completer_delims(" \t\n")  # a topic's name may have anything else in it
        with contextlib.suppress(FileNotFoundError):  # the first shell of this client
            readline.read_history_file(self._history)
        try:
            while not self._loop():
                self.intro = ""
                self.stdout.write("\n")
        finally:
            readline.set_history_length(HISTORY_LINES_MAX)
            try:
                readline.write_history_file(self._history)
            except OSError as error:  # a full disk
                sys.stderr.write(f"what was typed is not kept: {error.strerror}\n")

    def _loop(self) -> bool:
        try:
            self.cmdloop()
        except KeyboardInterrupt:
            return False
        return True

    def onecmd(self, line: str) -> bool:
        """Run one line; return True to leave."""
        verb, _, rest = line.strip().partition(" ")
        match verb.lower():
            case "":
                return False
            case "exit" | "quit" | "eof":
                return True
            case "help" | "?":
                self.stdout.write(_HELP)
            case "put":
                self._put(rest)
            case name if name in VERBS:
                self._pass_on(name, rest)
            case _:
                self._complain(f"unknown command {verb!r}: try HELP")
        return False

    def _complain(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
        self._succeeded = False

    def _put(self, rest: str) -> None:
        topic, _, text = rest.strip().partition(" ")
        text = _unquoted(text.strip())
        if not topic or not text or text == "-":
            self._complain("PUT topic text")
            return
        self._run(["put", "--", topic, text])

    def _run(self, argv: Sequence[str]) -> None:
        self._succeeded = self._execute(argv) and self._succeeded

    def _pass_on(self, verb: str, rest: str) -> None:
        try:
            arguments = shlex.split(rest)
        except ValueError as error:
            self._complain(str(error))
            return
        self._run([verb, *arguments])

    def completenames(self, text: str, *_: object) -> list[str]:
        """Complete a verb, in the case in which it was begun."""
        names = [name for name in (*VERBS, "help", "exit") if name.startswith(text.lower())]
        is_upper = text.isupper() or not text
        return [f"{name.upper() if is_upper else name} " for name in names]

    def completedefault(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """Complete one of this client's topics, after the verb."""
        try:
            return [f"{topic} " for topic in self._topics() if topic.startswith(text)]
        except FlotillaError:
            return []  # no cluster, no names: typing goes on


def _unquoted(text: str) -> str:
    """Take off quotes that match and stand round the whole text, and nowhere in it."""
    inner = text[1:-1]
    is_quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return inner if is_quoted and text[0] not in inner else text
