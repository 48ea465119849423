"""Log lines on stderr, as text for people or as one JSON object each; uvicorn's too.

No line is waited for: `service.observability.log_writer` writes them.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, final

import orjson
import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from structlog.typing import Processor

from service.observability.log_writer import LogWriter, open_stderr, replace_stderr


def configure(level: str, log_format: Literal["auto", "text", "json"] = "auto") -> None:
    """Set up logging for this process.

    Args:
        log_format: `auto` is `text` where stderr is a terminal, else `json`.
    """
    is_text = log_format == "text" or (log_format == "auto" and _is_terminal())
    min_level = logging.getLevelNamesMapping()[level.upper()]
    shared, render = _text_processors() if is_text else _json_processors()
    handler = _Handler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=min_level, force=True)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it tells what was sent
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs URLs, which may hold a secret
    # Ours goes past the standard library, by which a line costs over three times as much.
    structlog.configure(
        processors=[*shared, lambda *event: str(render(*event)).encode(errors="backslashreplace")],
        wrapper_class=structlog.make_filtering_bound_logger(min_level),
        logger_factory=lambda *_: _Lines(),
        cache_logger_on_first_use=True,
    )


def guard_stderr() -> None:
    """Make nothing in this process wait for the reader of stderr, nor fail where it is closed."""
    replace_stderr(writer())


def _json_processors() -> tuple[list[Processor], Processor]:
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    return shared, structlog.processors.JSONRenderer(serializer=_dumps)


def _text_processors() -> tuple[list[Processor], Processor]:
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        lambda _logger, _method, line: {k: v for k, v in line.items() if v is not None},
    ]
    render = structlog.dev.ConsoleRenderer(
        colors=_is_terminal(),
        pad_event_to=0,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return shared, render


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@final
class _Lines:
    """The logger that structlog calls with each line."""

    def msg(self, message: bytes) -> None:
        writer().put(message + b"\n")

    debug = info = warning = error = critical = msg


@final
class _Handler(logging.Handler):
    """Writes the lines of the standard library's loggers."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            writer().put(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except Exception:
            self.handleError(record)


@cache
def writer() -> LogWriter:
    """Return the writer of this process, which starts its thread when it is first needed."""
    writer = LogWriter(open_stderr(), on_drop=_report_dropped)
    atexit.register(writer.close)
    return writer


@final
class LogCollector(Collector):
    """The metric of the log, read at each scrape."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "basin_log_lines_dropped",
            "Log lines that were not written, because stderr is not read or its disk is full.",
            value=writer().dropped_count,
        )


def _report_dropped(count: int) -> None:
    structlog.get_logger().warning("log lines dropped", count=count)


def _dumps(line: dict[str, Any], **options: Any) -> str:
    try:
        return orjson.dumps(line, **options).decode()
    except orjson.JSONEncodeError:  # invalid Unicode, or an integer of more than 64 bits
        return json.dumps(line, **options)
