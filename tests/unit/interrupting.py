"""Ctrl-C at a chosen step of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Final, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

# A socket that ctrl-C left nobody to close is closed by its collection, which says so; and what
# comes inside a finalizer Python can raise nowhere. Of tests that break calls off anywhere.
COLLECTED_HERE: Final = (
    pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("collected"),
)
# Whose steps Ctrl-C comes between.
INTERRUPTED: Final = ("/flotilla_client/", "/zmq/sugar/", "/threading.py")


def breaks_off(test: Test) -> Test:
    """Mark a test of a module in which others break nothing off."""
    for mark in COLLECTED_HERE:
        test = mark(test)
    return test


def is_collected(frame: FrameType | None) -> bool:
    """Return whether it is called by a `__del__`, out of which no error comes."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupted(
    work: Callable[[], object], place: int, spared: Collection[str] = frozenset()
) -> bool:
    """Do the work, with Ctrl-C at the `place`-th step at which Python looks for signals.

    Functions of these names are `spared`. Return whether it was broken off.
    """
    steps = 0

    def at(frame: FrameType, event: str, _: object) -> None:
        nonlocal steps
        file = frame.f_code.co_filename
        if frame.f_code.co_name in spared:
            return
        is_ours = event in ("call", "c_return") and any(part in file for part in INTERRUPTED)
        if is_ours and not is_collected(frame):
            steps += 1
            if steps == place:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(at)
    try:
        work()
    except KeyboardInterrupt:
        return True
    except RuntimeError as error:  # what the standard library's Condition may make of it
        if isinstance(error.__context__, KeyboardInterrupt):
            return True
        raise
    finally:
        sys.setprofile(None)
    return False
