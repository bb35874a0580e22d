"""cluster/settings/logs.py: one line an event, one form for all, in JSON or for a person."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from cluster.settings import logs
from cluster.settings.config import LogSettings


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_time_level_logger_and_node_first() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), "n1", stream)

    logs.get("cluster.node").info("led", term=3)

    (line,) = _lines(stream)
    assert list(line) == ["timestamp", "level", "logger", "node", "event", "term"]
    assert line["term"] == 3
    assert line["node"] == "n1"
    assert datetime.fromisoformat(line["timestamp"]).tzinfo == UTC


def test_lines_of_libraries_have_the_same_form_in_every_thread() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), "n1", stream)

    thread = threading.Thread(target=lambda: logging.getLogger("lib").warning("%s too", "this"))
    thread.start()
    thread.join()

    (line,) = _lines(stream)
    assert list(line) == ["timestamp", "level", "logger", "node", "event"]
    assert line["event"] == "this too"


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(level="warning"), "n1", stream)

    logs.get("ours").info("no")
    logging.getLogger("theirs").info("no")
    logs.get("ours").warning("yes")

    assert [line["event"] for line in _lines(stream)] == ["yes"]


def test_an_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), "n1", stream)

    try:
        raise OSError("the disk is gone")
    except OSError:
        logs.get("ours").exception("stopping")

    (line,) = _lines(stream)
    assert "OSError: the disk is gone" in line["exception"]


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(), "n1", stream)

    logs.get("ours").info("odd", data=b"\xff", table={1: 2})

    (line,) = _lines(stream)
    assert line["data"] == "b'\\xff'"
    assert line["table"] == {"1": 2}


def test_the_console_form_is_for_reading() -> None:
    stream = io.StringIO()
    logs.configure(LogSettings(format="console"), "n1", stream)

    logs.get("ours").info("led", term=3)

    assert "[info     ] led" in stream.getvalue()
    assert "term=3" in stream.getvalue()


def test_a_second_set_up_replaces_the_first_for_loggers_already_made() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(LogSettings(), "n1", first)
    logger = logs.get("ours")
    logger.info("one")

    logs.configure(LogSettings(), "n2", second)
    logger.info("two")

    assert [line["event"] for line in _lines(first)] == ["one"]
    assert [(line["event"], line["node"]) for line in _lines(second)] == [("two", "n2")]
