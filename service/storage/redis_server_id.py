"""Which process of Redis a connection leads to."""

from __future__ import annotations

import re
from typing import Any

from redis.exceptions import ConnectionError, NoPermissionError

_RUN_ID = re.compile(rb"run_id:(\w+)")


class RedisReplacedError(ConnectionError):
    """The connection leads to another process of Redis than before, or to other data."""


def read_run_id(connection: Any) -> str:
    """Read the id of the process over a connection; empty if this user may not."""
    connection.send_command("INFO", "server")
    try:
        return _parse(connection.read_response())
    except NoPermissionError:
        return ""


async def read_run_id_async(connection: Any) -> str:
    """Read the id of the process over a connection; empty if this user may not."""
    await connection.send_command("INFO", "server")
    try:
        return _parse(await connection.read_response())
    except NoPermissionError:
        return ""


def _parse(info: bytes) -> str:
    match = _RUN_ID.search(info)
    return match.group(1).decode() if match else ""
