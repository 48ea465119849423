"""Parse large JSON bodies in a separate process.

The JSON parser holds the GIL throughout: for tens of megabytes that blocks all other requests for
seconds. Such a body goes to a new process, which returns a safetensors file: the graph as arrays,
the other fields as JSON, and the problem, if there is one. One body is parsed at a time; its memory
is freed when its process ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping

import orjson
import structlog

from service.errors import Problem
from service.settings import Settings
from service.shares import FairSemaphore
from service.validation.json_graph import GraphSchema

CONDENSED = "application/vnd.basin.condensed"
"""Media type of the result; no client can send it."""

LARGE_BODY_BYTES = 4 << 20
"""Size from which a process is worth it: it takes 0.2 s to start; parsing this size takes 30 ms."""


class LargeJsonParser:
    """Converts bodies to `CONDENSED`, one at a time."""

    def __init__(self) -> None:
        self._one = FairSemaphore(1)

    async def condense(
        self, body: bytes, schemas: Mapping[str, GraphSchema], settings: Settings, key: str = ""
    ) -> bytes:
        """Convert a request to `CONDENSED`; cancellation kills the process. API keys take turns.

        Raises:
            Problem: the process failed.
        """
        rules = {
            "models": {
                name: [schema.features, schema.relations, schema.edge_features]
                for name, schema in schemas.items()
            },
            "default": settings.default_anomaly_model,
            "max_nodes": settings.max_nodes,
            "max_edges": settings.max_edges,
        }
        async with self._one.reserve(key):
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
