"""BentoML: python -m bentoml serve benchmarks.peers.with_bentoml:Peer --port PORT"""

from __future__ import annotations

from typing import Any

import bentoml

from benchmarks.peers.work import MOST, answer, chosen


@bentoml.service(workers=1, traffic={"timeout": 120})
class Peer:
    def __init__(self) -> None:
        self.work = chosen()

    @bentoml.api(batchable=True, max_batch_size=MOST, max_latency_ms=60_000, route="/predict")
    def predict(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return answer(self.work, requests)
