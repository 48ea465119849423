"""Rows that leave when they are done, against batches that wait for their slowest.

The engine alone, without HTTP: 32 requests are under way at any time, each to complete one
picture by an Energy Transformer of random weights (64 patches, 128 wide, 8 heads), with a number
of steps between 1 and 48 and, every other one, the tolerance at which the median picture stops
after the 12 steps that such a network is trained for. Compared are

- steps: the scheduler, where rows join and leave between steps;
- steps, fewer: the same of as many at a time as have the 99th percentile of latency of
  `requests`, by a round before;
- requests: batches of all that wait, up to 32, run until the last row is done, as servers batch;
- offline: all pictures known before, in batches of 32, those of like steps together.

Each for as many pictures; printed are pictures a second over those of offline, and the latency of
a picture; medians of the rounds, which are interleaved.

    python -m benchmarks.throughput
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.results_file import record
from models.base import DynamicsParams, StepControl
from models.dynamics import RUN_ALONE
from models.fused.system import FusedSystem
from models.inputs.patches import MaskedImage
from models.registry import find_architectures
from models.tasks.image_completer import ImageCompleter
from service.engine.scheduler import Scheduler

PICTURES, UNDER_WAY, STEPS, ROUNDS = 256, 32, 48, 5


@dataclass(frozen=True)
class _Request:
    picture: MaskedImage
    params: DynamicsParams


@dataclass(frozen=True)
class _Took:
    seconds: float
    latencies: list[float]


def untrained() -> ImageCompleter:
    kind = find_architectures()["et-image"]
    config = kind.config_type.model_validate(
        {
            "size": 64,
            "patch": 8,
            "dim": 128,
            "heads": 8,
            "head_dim": 16,
            "memories": 512,
            "steps": 12,
            "step_size": 0.1,
        }
    )
    pixels = np.random.default_rng(0).integers(0, 256, (8, 64, 64, 3), np.uint8)
    return kind.from_data(config, pixels, 0).eval()


def trained_tolerance(network: ImageCompleter) -> float:
    """The residual of the median picture after the number of steps that is the network's own."""
    rng = np.random.default_rng(2)
    batch = network.pack([_picture(rng) for _ in range(64)])
    (solution,) = network.infer(batch, [DynamicsParams()] * 64).solutions
    return min(float(np.median(solution.residual_R)), 1.0)  # no request may have more


def _picture(rng: np.random.Generator) -> MaskedImage:
    return MaskedImage(rng.integers(0, 256, (64, 64, 3), np.uint8), rng.random((8, 8)) < 0.5)


def _requests(tolerance: float) -> list[_Request]:
    rng = np.random.default_rng(1)
    return [
        _Request(
            _picture(rng),
            DynamicsParams(
                steps=int(rng.integers(1, STEPS + 1)), tolerance=tolerance * (place % 2)
            ),
        )
        for place in range(PICTURES)
    ]


def _infer(network: ImageCompleter, several: list[_Request], control: StepControl) -> torch.Tensor:
    batch = network.pack([request.picture for request in several])
    return network.infer(batch, [request.params for request in several], control).logits


def _by_steps(
    network: ImageCompleter,
    requests: list[_Request],
    scheduler: Scheduler,
    most: int = UNDER_WAY,
) -> _Took:
    start, waiting, under_way, latencies = time.perf_counter(), deque(requests), {}, []
    while waiting or under_way:
        while waiting and len(under_way) < most:
            run = scheduler.submit(partial(_infer, network, [waiting.popleft()]))
            under_way[run.future] = time.perf_counter()
        done: set[Future] = wait(under_way, return_when=FIRST_COMPLETED).done
        latencies += [time.perf_counter() - under_way.pop(future) for future in done]
    return _Took(time.perf_counter() - start, latencies)


@torch.no_grad()
def _by_requests(network: ImageCompleter, requests: list[_Request]) -> _Took:
    start, waiting, latencies = time.perf_counter(), deque(requests), []
    # All of the batch before are repeated immediately, so that the next batch is full too.
    while waiting:
        began = time.perf_counter()
        several = [waiting.popleft() for _ in range(min(UNDER_WAY, len(waiting)))]
        _infer(network, several, RUN_ALONE)
        latencies += [time.perf_counter() - began] * len(several)
    return _Took(time.perf_counter() - start, latencies)


@torch.no_grad()
def _offline(network: ImageCompleter, requests: list[_Request]) -> _Took:
    start = time.perf_counter()
    known = sorted(requests, key=lambda request: request.params.steps or 0)
    for first in range(0, len(known), UNDER_WAY):
        _infer(network, known[first : first + UNDER_WAY], RUN_ALONE)
    return _Took(time.perf_counter() - start, [0.0])


def main() -> None:
    print(describe())
    network, scheduler = untrained(), Scheduler(None)
    requests = _requests(trained_tolerance(network))
    for block in network.blocks_in_order():  # as the server has it
        block.prepared_backend = FusedSystem.of_block(block, block.build_backend())
    ways = {
        "steps": lambda: _by_steps(network, requests, scheduler),
        "requests": lambda: _by_requests(network, requests),
        "offline": lambda: _offline(network, requests),
    }
    first = {name: way() for name, way in ways.items()}
    late, wanted = (np.percentile(first[name].latencies, 99) for name in ("steps", "requests"))
    fewer = min(int(UNDER_WAY * wanted / late), UNDER_WAY)
    ways["steps, fewer"] = lambda: _by_steps(network, requests, scheduler, fewer)
    rounds = [{name: way() for name, way in ways.items()} for _ in range(ROUNDS)]
    scheduler.close()
    case, took = f"{PICTURES} pictures", {name: [r[name].seconds for r in rounds] for name in ways}
    median = record(case, "offline", took)
    print(f"{fewer} under way in `steps, fewer`, else {UNDER_WAY}")
    print("| batches of | pictures/s | over offline | median latency | p99 |")
    print("|---|---|---|---|---|")
    for name in ways:
        latencies = np.concatenate([r[name].latencies for r in rounds])
        middle, late = (1e3 * np.percentile(latencies, p) for p in (50, 99))
        told = "| |" if name == "offline" else f"| {middle:.0f} ms | {late:.0f} ms |"
        over = median["offline"] / median[name]
        print(f"| {name} | {PICTURES / median[name]:.0f} | {over:.2f} {told}")


if __name__ == "__main__":
    main()
