"""Ray Serve: python -m benchmarks.peers.with_ray PORT"""

from __future__ import annotations

import sys
import threading
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from benchmarks.peers.work import MOST, WAIT_S, answer, chosen


@serve.deployment(max_ongoing_requests=256)
class Peer:
    def __init__(self) -> None:
        self.work = chosen()

    @serve.batch(max_batch_size=MOST, batch_wait_timeout_s=WAIT_S)
    async def predict(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return answer(self.work, requests)

    async def __call__(self, request: Request) -> dict[str, Any]:
        return await self.predict(await request.json())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Peer.bind(), route_prefix="/predict")  # type: ignore[attr-defined]
    threading.Event().wait()
