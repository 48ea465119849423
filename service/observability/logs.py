"""One JSON object per log line, on stderr; whatever uvicorn logs goes the same way."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from typing import Any, final

import orjson
import structlog


def configure(level: str) -> None:
    """Set up logging for this process."""
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(serializer=_text),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=least, force=True)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it tells what was sent
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs URLs, which may hold a secret
    # Ours goes past the standard library, by which a line costs over three times as much.
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(serializer=_dumps)],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=lambda *_: _Lines(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )


@final
class _Lines(structlog.BytesLogger):
    """Drops lines that cannot be written, for example to a closed pipe."""

    def msg(self, message: bytes) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = error = critical = msg


def _dumps(line: dict[str, Any], **options: Any) -> bytes:
    try:
        return orjson.dumps(line, **options)
    except orjson.JSONEncodeError:  # invalid Unicode, or an integer of more than 64 bits
        return json.dumps(line, **options).encode()


def _text(line: dict[str, Any], **options: Any) -> str:
    return _dumps(line, **options).decode()
