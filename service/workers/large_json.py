"""Parse large JSON bodies in a separate process.

The JSON parser holds the GIL throughout: 4 MB block all other requests for 30 ms, tens of megabytes
for seconds. Such a body goes to a process, which returns a safetensors file: the graph as arrays,
the other fields as JSON, and the problem, if there is one. One body is parsed at a time. The
process is started by the first body and kept for the next, unless a body was so large that its
memory is worth more than the start of another process.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping

import orjson
import structlog

from service.errors import Problem
from service.settings import Settings
from service.shares import FairSemaphore
from service.validation.json_graph import GraphSchema

CONDENSED = "application/vnd.basin.condensed"
"""Media type of the result; no client can send it."""

LARGE_BODY_BYTES = 4 << 20
"""Most bytes of JSON for what the process cannot parse: parsing this size takes 30 ms."""
MAX_INLINE_BYTES = 1 << 19
"""Most bytes of JSON with a graph that are parsed in the process of the server, in 4 ms."""
LENGTH_BYTES = 8
"""An answer begins with its length. One of no bytes says that the server is to parse the body."""
_MAX_KEPT_BYTES = 8 << 20  # a process that has parsed more is not kept
_PART_BYTES = 1 << 20


class LargeJsonParser:
    """Converts bodies to `CONDENSED`, one at a time."""

    def __init__(self) -> None:
        self._one = FairSemaphore(1)
        self._process: Process | None = None  # the one that waits for a body

    async def condense(
        self, body: bytes, schemas: Mapping[str, GraphSchema], settings: Settings, key: str = ""
    ) -> bytes | None:
        """Convert a request to `CONDENSED`; cancellation kills the process. API keys take turns.

        Returns:
            None if the body, of at most `LARGE_BODY_BYTES`, is to be parsed here.

        Raises:
            Problem: the process failed.
        """
        rules = {
            "size": len(body),
            "models": {
                name: [schema.features, schema.relations, schema.edge_features]
                for name, schema in schemas.items()
            },
            "default": settings.default_anomaly_model,
            "max_nodes": settings.max_nodes,
            "max_edges": settings.max_edges,
        }
        async with self._one.reserve(key):
            process, self._process = self._process, None  # no other body uses it
            if process is None or process.returncode is not None:
                process = await _start_process()
            answer = await _ask(process, orjson.dumps(rules) + b"\n", body)
            if len(body) <= _MAX_KEPT_BYTES:
                self._process = process
            else:
                await _kill(process)
        return answer or None

    async def close(self) -> None:
        """End the process that is kept."""
        if self._process is not None:
            await _kill(self._process)


async def _start_process() -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "service.workers.large_json_worker",
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=_PART_BYTES,
    )


async def _ask(process: Process, rules: bytes, body: bytes) -> bytes:
    """Send a body and return the answer. Where there is none, the process is killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    is_answered = False
    try:
        process.stdin.write(rules)
        for start in range(0, len(body), _PART_BYTES):
            process.stdin.write(body[start : start + _PART_BYTES])
            await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
        answer = await process.stdout.readexactly(length)
        is_answered = True
        return answer
    except (ConnectionError, asyncio.IncompleteReadError):  # it died
        await process.wait()
    finally:
        if not is_answered:  # or the request is gone or late: so is its process
            await _kill(process)
    assert process.stderr is not None
    reason = (await process.stderr.read()).decode(errors="replace")[-2000:]
    log = structlog.get_logger()
    log.error("the parser of large bodies died", code=process.returncode, reason=reason)
    raise Problem(
        "internal-error",
        "The process that parses large bodies failed. The server log has the details.",
    )


async def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await asyncio.shield(process.wait())
