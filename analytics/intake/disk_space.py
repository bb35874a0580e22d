"""A disk that is full, told in a sentence: which one, and what to do. Writes nothing itself."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from analytics.common.storage import is_url
from analytics.intake.cache import DIRECTORY, HistoryError

# Of Python's errors and, in their text, of the JVM's.
NUMBERS: Final = (errno.ENOSPC, errno.EDQUOT)
TEXTS: Final = tuple(map(os.strerror, NUMBERS))
# Where Spark keeps what it sorts and sends; without either, the JVM's directory for such files.
LOCAL_DIRECTORIES: Final = "SPARK_LOCAL_DIRS"
LOCAL_DEFAULT: Final = "/tmp"


def is_full(failure: BaseException) -> bool:
    """Return whether `failure` comes of a disk without room."""
    if isinstance(failure, OSError) and failure.errno in NUMBERS:
        return True
    return any(text in str(failure) for text in TEXTS)


@contextmanager
def fullness_named(directory: Path | str) -> Iterator[None]:
    """Let an error that comes of a full disk leave as a HistoryError, in the check of a run."""
    try:
        yield
    except Exception as failure:
        if not is_full(failure):
            raise
        raise HistoryError(said(directory)) from failure


def said(directory: Path | str) -> str:
    """Return which disk is full, and what to do, when the run in `directory` was checked.

    Spark tells no directory, and has removed half of what it wrote before it says anything: the
    one with the least room left is taken to be it.
    """
    local = os.environ.get(LOCAL_DIRECTORIES, LOCAL_DEFAULT).split(",")
    elsewhere = f"or set {LOCAL_DIRECTORIES} to a directory with more"
    remedies = {place: f"make room there, {elsewhere}" for place in local}
    if not is_url(str(directory)):
        cache = f"{directory}/{DIRECTORY}"
        remedies = {
            str(directory): f"make room there, or copy the run to where there is more;"
            f" {cache} can be removed"
        } | remedies
    place = least_room(remedies)
    return f"no room is left on the disk of {place}: {remedies[place]}"


def least_room(places: Iterable[str]) -> str:
    """Return which of the directories has the fewest bytes left; the first of equals."""
    return min((place for place in places if Path(place).is_dir()), key=_free_bytes)


def _free_bytes(place: str) -> int:
    return shutil.disk_usage(place).free
