"""Commands of extras: what is said where an extra is not installed.

What lives here: the look-up of a command's module. What must not: anything that is not in the
standard library; this runs where nothing else is installed.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, NoReturn

EXIT_USAGE: Final = 2
CLIENT: Final = "flotilla_client"
OURS: Final = frozenset({"cluster", "chaos", "analytics", "flotilla_commands"})


def run(command: str, module: str, extra: str) -> Any:
    """Run `main` of a module, which is `command`'s. Exits with 2 if its extra is not installed."""
    try:
        return _imported(module).main()
    except ModuleNotFoundError as error:
        missing = error.name or ""
        package = missing.partition(".")[0]
        if package in OURS:
            raise
        if package == CLIENT:
            _no_client(command)
        _no_extra(command, package, extra)


def require(command: str, package: str, extra: str) -> None:
    """Exit with 2 if the package is not there, which `command` needs in a process of its own."""
    if find_spec(package) is None:
        _no_extra(command, package, extra)


def _imported(module: str) -> ModuleType:
    """Import a module. Ctrl-C meanwhile ends the process as it ends any program that catches no
    signal, without a traceback; what it means later is for `main` to say.
    """
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else nohup's, say
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return import_module(module)
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _no_extra(command: str, package: str, extra: str) -> NoReturn:
    _exit(
        f"{command}: needs the extra `{extra}` ({package} is not installed). Run,"
        f" in a checkout:\n    pip install ./client '.[{extra}]'"
    )


def _no_client(command: str) -> NoReturn:
    found = sys.modules.get(CLIENT)
    if found is None:
        _exit(f"{command}: needs the client library. Run, in a checkout:\n    pip install ./client")
    _exit(
        f"{command}: the package `flotilla_client` in {found.__file__} is another project's."
        " Install flotilla-client and flotilla-broker into an environment without it"
    )


def _exit(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    raise SystemExit(EXIT_USAGE)
