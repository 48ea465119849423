"""Log lines on stderr, as text for people or as one JSON object each; uvicorn's too."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from typing import Any, Literal, final

import orjson
import structlog
from structlog.typing import Processor


def configure(level: str, log_format: Literal["auto", "text", "json"] = "auto") -> None:
    """Set up logging for this process.

    Args:
        log_format: `auto` is `text` where stderr is a terminal, else `json`.
    """
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    min_level = logging.getLevelNamesMapping()[level.upper()]
    shared, render = _text_processors() if is_text else _json_processors()
    handler = logging.StreamHandler(sys.stderr)
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
        logger_factory=lambda *_: _Lines(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )


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
        colors=sys.stderr.isatty(),
        pad_event_to=0,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return shared, render


@final
class _Lines(structlog.BytesLogger):
    """Drops lines that cannot be written, for example to a closed pipe."""

    def msg(self, message: bytes) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = msg


def _dumps(line: dict[str, Any], **options: Any) -> str:
    try:
        return orjson.dumps(line, **options).decode()
    except orjson.JSONEncodeError:  # invalid Unicode, or an integer of more than 64 bits
        return json.dumps(line, **options)
