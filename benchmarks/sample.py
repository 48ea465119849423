"""Langevin steps against the two matrix products they cannot do without, and a NumPy loop.

30 chains on K = 100 patterns of d = 784, the protocol of the paper's digits. The limit of a step is
its 4 C K d operations at the speed of a large float32 matrix product on this machine; the products
at the shape of the step, which are slower, stand beside it. Rounds are interleaved; medians.

    python -m benchmarks.sample
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.results_file import record
from models.energies import ModernHopfield
from models.sampling import Method, Schedule, run_chains
from models.sampling.philox import fill_normal

CHAINS, PATTERNS, DIM, BETA, ALPHA = 30, 100, 784, 2000.0, 0.01
STEPS, ROUNDS, LARGE = 500, 7, 2048


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _numpy_loop(x: np.ndarray, at: np.ndarray, steps: int) -> np.ndarray:
    """What one would write first: eq. 10, line by line."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        z = BETA * at @ x.T
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        noise = rng.standard_normal(at.shape, dtype=np.float32)
        at = (1 - ALPHA) * at + ALPHA * p @ x + np.float32((2 * ALPHA / BETA) ** 0.5) * noise
    return at


@torch.no_grad()
def main() -> None:
    print(describe())
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(PATTERNS, DIM, generator=generator), dim=1)
    energy, start = ModernHopfield(x), x[:CHAINS].clone()
    square, out = torch.randn(LARGE, LARGE, generator=generator), torch.empty(LARGE, LARGE)
    z, back, keys = torch.empty(CHAINS, PATTERNS), torch.empty(CHAINS, DIM), x.T.contiguous()
    schedule = Schedule(STEPS, 0, STEPS, 1)
    block, rng = torch.empty(STEPS // 20, CHAINS, DIM), np.random.default_rng(0)

    def products() -> None:
        for _ in range(STEPS):
            torch.mm(start, keys, out=z)
            torch.mm(z, x, out=back)

    works: dict[str, Callable[[], object]] = {
        "large product": lambda: torch.mm(square, square, out=out),
        "two products": products,
        "ULA": lambda: run_chains(energy, start, BETA, ALPHA, schedule),
        "MALA": lambda: run_chains(energy, start, BETA, ALPHA, schedule, method=Method.MALA),
        "our noise": lambda: fill_normal(block.numpy(), 0, 0, 1),
        "torch noise": lambda: block.normal_(generator=generator),
        "numpy noise": lambda: rng.standard_normal(out=block.numpy(), dtype=np.float32),
        "NumPy loop": lambda: _numpy_loop(x.numpy(), start.numpy(), STEPS),
    }
    rounds = [{name: _time(work) for name, work in works.items()} for _ in range(ROUNDS + 1)][1:]
    took = record("", "NumPy loop", {name: [r[name] for r in rounds] for name in works})
    peak = 2 * LARGE**3 / took["large product"]
    limit = 4 * CHAINS * PATTERNS * DIM / peak
    shaped, plain = took["two products"] / STEPS, took["NumPy loop"] / STEPS
    print(
        f"large float32 product {peak / 1e9:.0f} GFLOP/s; two products at that speed "
        f"{1e6 * limit:.0f} us, at their shape {1e6 * shaped:.0f} us"
    )
    draws = [
        f"{name} {1e9 * took[name] / block.numel():.2f} ns" for name in works if "noise" in name
    ]
    print(f"a normal number: {', '.join(draws)}")
    for name in ("ULA", "MALA", "NumPy loop"):
        step = took[name] / STEPS
        print(
            f"{name:10}  {1 / step:7.0f} steps/s of {CHAINS} chains  "
            f"{limit / step:4.2f} of the products at peak  {shaped / step:4.2f} at their shape  "
            f"{plain / step:4.2f} times the NumPy loop  5,000 steps in {5000 * step:5.2f} s"
        )


if __name__ == "__main__":
    main()
