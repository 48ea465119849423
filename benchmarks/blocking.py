"""Does a short request wait for a long one? Scores of one step while the server samples.

One client asks for scores of `examples/tolokers.json` by one step, over and over: with nothing
else to do, and while four others have the server draw 5,000-step chains all the time (30 chains
on 100 patterns of 784 numbers, the protocol of the paper's digits). Once where steps take turns,
and once where requests do. Printed are median and 99th percentile, their ratio to those alone,
and how long a step of the sampler takes; then how many samples a second there were beside.

    python -m benchmarks.blocking [scores]
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from benchmarks.machine import describe
from benchmarks.results_file import record
from benchmarks.server import serving

EXAMPLE = Path(__file__).parents[1] / "examples" / "tolokers.json"
SAMPLERS, STEPS, SCORES, SECONDS = 4, 5000, 1000, 60.0


class _Beside(NamedTuple):
    took: list[float]
    samples: int
    step_s: float


def _scores(client: httpx.Client, count: int, seconds: float = SECONDS) -> list[float]:
    body = json.loads(EXAMPLE.read_text()) | {"dynamics": {"steps": 1}}
    content, took = json.dumps(body).encode(), []
    end = time.perf_counter() + seconds
    while len(took) < count and time.perf_counter() < end:
        start = time.perf_counter()
        response = client.post(
            "/anomaly/score", content=content, headers={"content-type": "application/json"}
        )
        took.append(time.perf_counter() - start)
        assert response.status_code == 200, response.text
    return took


def _sampling() -> bytes:
    rng = np.random.default_rng(0)
    patterns = np.round(rng.standard_normal((100, 784)), 3).tolist()
    memory = {"kind": "vectors", "patterns": patterns}
    return json.dumps({"memory": memory, "beta": 2000, "steps": STEPS}).encode()


def _sample(client: httpx.Client, content: bytes) -> float:
    """Seconds of compute."""
    response = client.post("/sample", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
    return response.json()["timings_ms"]["compute"] / 1e3


def _beside(client: httpx.Client, count: int) -> _Beside:
    over, took, content = threading.Event(), list[float](), _sampling()

    def draw() -> None:
        with httpx.Client(base_url=client.base_url, timeout=120) as other:
            while not over.is_set():
                took.append(_sample(other, content))

    threads = [threading.Thread(target=draw) for _ in range(SAMPLERS)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    scores = _scores(client, count)
    over.set()
    for thread in threads:
        thread.join()
    return _Beside(scores, len(took), statistics.median(took) / STEPS)


def _p99(took: list[float]) -> float:
    return float(np.percentile(took, 99))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SCORES
    print(describe())
    print("| turns of | scores | median | p99 | p99 / alone | a step of the sampler |")
    print("|---|---|---|---|---|---|")
    for scheduling in ("steps", "requests"):
        with serving(BASIN_SCHEDULING=scheduling) as client:
            _scores(client, 50)
            alone = _scores(client, count)
            beside = _beside(client, count)
        record(f"turns of {scheduling}", "alone", {"alone": alone, "beside sampling": beside.took})
        for name, took in (("alone", alone), ("beside sampling", beside.took)):
            print(
                f"| {scheduling} | {len(took)} {name} | {1e3 * statistics.median(took):.2f} ms "
                f"| {1e3 * _p99(took):.2f} ms | {_p99(took) / _p99(alone):.2f} "
                f"| {1e3 * beside.step_s:.3f} ms |"
            )
        print(f"({beside.samples} times {STEPS} steps meanwhile)")


if __name__ == "__main__":
    main()
