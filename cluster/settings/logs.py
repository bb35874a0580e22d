"""What a process writes about itself: one structured line an event, on standard error.

What lives here: the set-up of structlog and of the standard library's logging, for one process.
What must not: filters that know a particular library's messages, or any log call.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO

import orjson
import structlog
from structlog.typing import Processor

from cluster.settings.config import LogSettings

# Run on every event, whether it comes from our own loggers or from a library's.
_SHARED: Final[tuple[Processor, ...]] = (
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)

_FIRST: Final = ("timestamp", "level", "logger", "node", "event")  # a line is read from the left


def configure(settings: LogSettings, node: str, stream: TextIO | None = None) -> None:
    """Set up logging for this process: lines to `stream` (default: standard error).

    Every line carries `timestamp` (UTC, ISO 8601), `level`, `logger`, `node` and `event`. Lines
    of libraries that use `logging` come out in the same form. Calling it again replaces the
    earlier set-up.
    """
    stream = stream or sys.stderr
    shared: list[Processor] = [*_SHARED, _NodeName(node)]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # or a second set-up would not reach the old loggers
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(settings.format, stream),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger `name`; its calls take an event and fields: `log.info("led", term=3)`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


class _NodeName:
    # A processor, not a context variable: those do not reach the threads that libraries start.
    def __init__(self, node: str) -> None:
        self._node = node

    def __call__(self, _logger: Any, _method: str, event: Any) -> Any:
        return {"node": self._node} | event


def _rendering(form: str, stream: TextIO) -> list[Processor]:
    if form == "console" or (form == "auto" and stream.isatty()):
        plain = structlog.dev.plain_traceback  # the rich one shows locals: publications
        return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(serializer=_json),
    ]


def _json(event: Any, **_options: Any) -> str:
    ordered = {key: event[key] for key in _FIRST if key in event} | event
    return orjson.dumps(ordered, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
