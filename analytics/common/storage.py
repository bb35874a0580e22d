"""Where a run's directory is: on this machine's disk, or anywhere that Spark can read.

What lives here: `RemotePath`, the few methods of `pathlib.Path` that the analytics use, over
Hadoop's FileSystem in Spark's JVM (`file:`, `hdfs:`, `s3a:` … as Spark is configured for them).
What must not: what the files mean.
"""

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

BUFFER_BYTES: Final = 1024 * 1024  # a call into the JVM costs as much as copying this
PATTERN_CHARACTERS: Final = re.compile(r"[\\*?\[\]{}]")  # of Hadoop's paths
NOT_FOUND: Final = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


def is_url(text: str) -> bool:
    """Return whether `text` names a place by its file system, such as `s3a://bucket/run`."""
    scheme, colon, _ = text.partition(":")
    return bool(colon) and scheme.isalnum() and not Path(text).exists()


def place_of(spark: SparkSession, text: str) -> "Place":
    """Return the directory that a command line named."""
    return RemotePath(spark, text.rstrip("/")) if is_url(text) else Path(text)


@dataclass(frozen=True, slots=True)
class Stat:
    """Size in bytes and modification time, as `os.stat_result` names them."""

    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class RemotePath:
    """A file or directory behind Hadoop's FileSystem. Raises OSError as `pathlib.Path` does."""

    spark: SparkSession
    url: str

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.spark, f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    def __lt__(self, other: "RemotePath") -> bool:
        return self.url < other.url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return Path(self.name).stem

    def resolve(self) -> "RemotePath":
        """Return the path itself: a URL is absolute."""
        return self

    def exists(self) -> bool:
        """Return whether there is something under this path."""
        return bool(self._asked(lambda files, path: files.exists(path)))

    def is_file(self) -> bool:
        """Return whether it is there and no directory."""
        return bool(
            self._asked(
                lambda files, path: files.exists(path) and files.getFileStatus(path).isFile()
            )
        )

    def stat(self) -> Stat:
        """Return size and modification time."""
        status = self._asked(lambda files, path: files.getFileStatus(path))
        return Stat(status.getLen(), status.getModificationTime() * 1_000_000)

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """Yield what is in this directory under names like `pattern`; nothing if there is none."""
        try:
            found = self._asked(lambda files, path: files.listStatus(path))
        except FileNotFoundError:
            return
        for status in found:
            name = status.getPath().getName()
            if fnmatch(name, pattern):
                yield self / name

    def open(self, mode: str) -> io.BufferedReader:
        """Open for reading bytes; `mode` is "rb"."""
        assert mode == "rb", mode
        stream = self._asked(lambda files, path: files.open(path))
        return io.BufferedReader(_HadoopStream(stream, self.stat().st_size), BUFFER_BYTES)

    def read_bytes(self) -> bytes:
        """Return the whole content."""
        with self.open("rb") as file:
            return file.read()

    def write_text(self, text: str) -> None:
        """Write a small file anew."""

        def write(files: Any, path: Any) -> None:
            stream = files.create(path, True)
            try:
                stream.write(bytearray(text, "utf-8"))
            finally:
                stream.close()

        self._asked(write)

    def remove_tree(self) -> None:
        """Delete the directory with all that is in it; nothing happens if it is not there."""
        self._asked(lambda files, path: files.delete(path, True))

    def _asked(self, question: Callable[[Any, Any], Any]) -> Any:
        jvm = self.spark._jvm
        assert jvm is not None, "Spark has been stopped"
        try:
            path = jvm.org.apache.hadoop.fs.Path(self.url)
            files = path.getFileSystem(self.spark._jsc.hadoopConfiguration())
            return question(files, path)
        except Py4JJavaError as error:
            cause = error.java_exception
            kind = FileNotFoundError if cause.getClass().getName() in NOT_FOUND else OSError
            raise kind(0, str(cause), self.url) from error


class _HadoopStream(io.RawIOBase):
    """A Hadoop stream as Python's."""

    def __init__(self, stream: Any, size_bytes: int) -> None:
        self._stream = stream
        self._size_bytes = size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._size_bytes}
        position = base[whence] + offset
        self._stream.seek(position)
        return position

    def tell(self) -> int:
        return int(self._stream.getPos())

    def readinto(self, buffer: Any) -> int:
        data = self._stream.readNBytes(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


Place = Path | RemotePath


def for_spark(place: Place) -> str:
    """Return how Spark is told where to write: with what a URI would escape (a space) as it is."""
    return str(place) if isinstance(place, RemotePath) else f"file:{place.absolute()}"


def to_read(place: Place) -> str:
    """Return how Spark is told what to read: a character that is not escaped may be a pattern."""
    return PATTERN_CHARACTERS.sub(r"\\\g<0>", for_spark(place))


def escaped_names(spark: SparkSession, places: Iterable[Place]) -> dict[str, str]:
    """Return the names that Spark's `_metadata.file_name` has otherwise: as a URI has them."""
    jvm = spark._jvm
    assert jvm is not None, "Spark has been stopped"
    path_of = jvm.org.apache.hadoop.fs.Path
    escaped = {path_of(for_spark(one)).toUri().getRawPath(): one.name for one in places}
    names = {path.rpartition("/")[2]: name for path, name in escaped.items()}
    return {spelt: name for spelt, name in names.items() if spelt != name}


def files_in(directory: Place, pattern: str) -> tuple[Place, ...]:
    """Return what is in `directory` under names like `pattern`, sorted; none if it is not there."""
    found: list[Place] = []
    found += directory.glob(pattern)
    return tuple(sorted(found, key=str))
