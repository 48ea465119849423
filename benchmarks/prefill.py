"""What the prefill of a hole costs beside the network, and what sharing it between samples saves.

The constants of `service.endpoints.complete.infer` are the medians below: seconds of a pixel that
Laplace's equation is solved for, over those of one step of one token of `et-photos`.

    taskset -c 0 python -m benchmarks.prefill
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.holes import KINDS, draw_hole
from benchmarks.inpaint import REPO, Network
from benchmarks.machine import describe
from models.base import DynamicsParams
from models.inputs.inpainting.fill import Answers, HoleFiller
from models.inputs.inpainting.laplace import DIRECT_PIXELS, fill_harmonic
from models.inputs.inpainting.plan import Plan, plan_windows
from service.endpoints.common.dynamics import max_total_steps

_SAMPLES = 4
_SHAPES = ((321, 481), (1500, 2000), (3000, 4000))
_ROUNDS = 2


def take_seconds(work: Callable[[], object]) -> float:
    """The least of a few rounds."""
    took = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def solve(hidden: np.ndarray, places: np.ndarray, flat: np.ndarray) -> None:
    fill_harmonic(places, hidden.shape, lambda known: flat[known])


def fill(image: np.ndarray, plan: Plan, times: int) -> None:
    """Complete an image by a network that takes no time."""
    holes = HoleFiller(image, plan)
    for _ in range(times):
        holes.fill(lambda windows, _: Answers(windows.pixels, None))


def main() -> None:
    rng = np.random.default_rng(0)
    network = Network(REPO / "checkpoints" / "et-photos")
    model, size = network.network, network.tiling.size
    hidden = np.ones((16, size, size), bool)
    batch = model.pack_windows(rng.random((16, size, size, 3), np.float32), hidden)
    params = [DynamicsParams()] * batch.rows
    steps = batch.rows * model.num_tokens * max_total_steps(model, params[0])
    print(
        "| photograph | holes | pixels | solved | cost a pixel | share of the network | "
        f"{_SAMPLES} samples alone, s | shared, s |\n|---|---|---|---|---|---|---|---|"
    )
    costs: dict[str, list[float]] = {}
    for height, width in _SHAPES:
        image = rng.random((height, width, 3), np.float32)
        for kind in KINDS:
            hidden = draw_hole(kind, "prefill", (height, width))
            plan = plan_windows(hidden, network.tiling, 10**9)
            places = np.flatnonzero(plan.levels[0].completed)
            # In turns with the network, for a machine is not equally fast all the time.
            step_s = take_seconds(partial(model.infer, batch, params)) / steps
            solve_s = take_seconds(partial(solve, hidden, places, image.reshape(-1, 3)))
            window_s = step_s * steps / batch.rows
            how = "directly" if len(places) <= DIRECT_PIXELS else "by iteration"
            costs.setdefault(how, []).append(solve_s / len(places) / step_s)
            alone_s = _SAMPLES * take_seconds(partial(fill, image, plan, 1))
            shared_s = take_seconds(partial(fill, image, plan, _SAMPLES))
            print(
                f"| {width} x {height} | {kind} | {len(places)} | {how} | {costs[how][-1]:.3f} | "
                f"{solve_s / (plan.num_windows * window_s):.1%} | {alone_s:.2f} | {shared_s:.2f} |",
                flush=True,
            )
    medians = ", ".join(f"{how} {np.median(cost):.3f}" for how, cost in costs.items())
    print(f"\nMedian cost of a pixel: {medians}. {describe()}.")


if __name__ == "__main__":
    main()
