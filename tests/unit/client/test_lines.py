"""Lines of standard input: split anywhere, waited for with a bound, bounded in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from flotilla_client.lines import Lines
from flotilla_client.protocol import PUBLICATION_BYTES_MAX

Pipe = tuple[Lines, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, writer = os.pipe()
    lines = Lines(reader)
    yield lines, writer
    os.close(reader)


def test_lines_come_whole_however_they_were_written(pipe: Pipe) -> None:
    lines, writer = pipe
    for piece in (b"a\nbc", b"d\n\n", b"\xff\xfe\nlast"):
        os.write(writer, piece)
    assert [lines.next(0.0) for _ in range(4)] == [b"a", b"bcd", b"", b"\xff\xfe"]
    assert lines.next(0.0) is None  # not yet: its end has not come
    os.close(writer)
    assert lines.next() == b"last"
    assert lines.next() is None
    assert lines.next() is None


def test_a_last_line_with_an_end_is_no_line_more(pipe: Pipe) -> None:
    lines, writer = pipe
    os.write(writer, b"a\n")
    os.close(writer)
    assert (lines.next(), lines.next()) == (b"a", None)


def test_an_input_without_ends_of_lines_does_not_fill_the_memory() -> None:
    with open("/dev/zero", "rb", buffering=0) as endless:
        lines = Lines(endless.fileno())
        for _ in range(3):
            piece = lines.next()
            assert piece is not None
            assert PUBLICATION_BYTES_MAX < len(piece) < 2 * PUBLICATION_BYTES_MAX
