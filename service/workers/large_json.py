"""Large bodies of JSON, read in a process of their own.

The parser holds the interpreter from the first byte to the last: for tens of megabytes that is
seconds in which no other request moves. Such a body goes to a fresh process, which reads it as any
other and answers with a safetensors file: the graph as arrays, the rest of the request as it was,
and what is wrong with it, if anything. One body at a time; its memory ends with its process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping

import orjson
import structlog

from service.errors import Problem
from service.settings import Settings
from service.validation.json_graph import GraphSchema

CONDENSED = "application/vnd.basin.condensed"
"""Media type of what comes back; no client can send it."""

LARGE_BODY_BYTES = 4 << 20
"""Bytes from which a process pays: it takes 0.2 s to start, the parser holds 30 ms for these."""


class LargeJsonParser:
    """Condenses bodies, one at a time."""

    def __init__(self) -> None:
        self._one = asyncio.Semaphore()

    async def condense(
        self, body: bytes, schemas: Mapping[str, GraphSchema], settings: Settings
    ) -> bytes:
        """The same request as `CONDENSED`. Cancelled, it kills the process.

        Raises:
            Problem: the process died.
        """
        rules = {
            "models": {name: [r.features, r.relations] for name, r in schemas.items()},
            "default": settings.default_anomaly_model,
            "max_nodes": settings.max_nodes,
            "max_edges": settings.max_edges,
        }
        async with self._one:
            return await _run_worker([orjson.dumps(rules), b"\n", body])


async def _run_worker(parts: Iterable[bytes]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "service.workers.large_json_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for part in parts:
            for start in range(0, len(part), 1 << 20):
                process.stdin.write(part[start : start + (1 << 20)])
                await process.stdin.drain()
        process.stdin.close()
        answer = await process.stdout.read()
        if await process.wait() == 0:
            return answer
    except ConnectionError:  # it died while it was being written to
        await process.wait()
    finally:
        if process.returncode is None:  # the request is gone or late: so is its process
            process.kill()
            await asyncio.shield(process.wait())
    assert process.stderr is not None
    reason = (await process.stderr.read()).decode(errors="replace")[-2000:]
    log = structlog.get_logger()
    log.error("the parser of large bodies died", code=process.returncode, reason=reason)
    raise Problem(
        "internal-error",
        "The process that parses large bodies failed. The server log has the details.",
    )
