"""On a GPU: steps of pictures over the rate of its own products, and graphs beside their peers.

Twelve steps of Energy Transformer on 64 pictures of 196 tokens, 768 wide, as training makes them,
in float32, with TF32 and in bfloat16: the share of what a product of 8192 by 8192 reaches in the
same precision, measured beside it, and how far the state ends from that of float32. Then
`benchmarks.feedforward` there: batches of 64 molecules and pictures over networks of equal size.

    python -m benchmarks.gpu [cpu]      # on the CPU only to see it run, in small
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from benchmarks import feedforward
from benchmarks.machine import describe
from benchmarks.step import Case, by_relax, images
from benchmarks.timing import medians
from models.layouts import Dense

PICTURES, SMALL = (64, 196, 768, 12, 64, 3072, 12), (2, 16, 64, 2, 32, 128, 3)
SIDE, SMALL_SIDE = 8192, 256


@contextmanager
def _tf32(on: bool):
    torch.backends.cuda.matmul.allow_tf32 = on
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def _on(case: Case, device: str, dtype: torch.dtype) -> Case:
    rows, tokens = case.layout.rows, cast(Dense, case.layout).length
    sees = torch.ones(1, tokens, tokens, dtype=torch.bool, device=device).expand(rows, -1, -1)
    block = case.block.to(device, dtype)
    return replace(case, block=block, layout=Dense(sees), x_ND=case.x_ND.to(device, dtype))


@torch.no_grad()
def pictures(device: str, shape: tuple[int, ...], side: int) -> None:
    print("| precision | ms | TFLOP/s | of a large product | state off by |\n|---|---|---|---|---|")
    known: Tensor | None = None
    for name, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("TF32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
    ):
        case = _on(images(*shape), device, dtype)
        square = torch.randn(side, side, device=device, dtype=dtype)
        works: dict[str, Callable[[], Tensor]] = {
            "product": partial(torch.mm, square, square),
            "steps": partial(by_relax, case),
        }
        with _tf32(tf32):
            x_ND = works["steps"]().float()
            took = medians(works, f"pictures {shape}, {name}", "product")
        known = x_ND if known is None else known
        off = float((x_ND - known).norm() / known.norm())
        rate, most = case.flops / took["steps"], 2 * side**3 / took["product"]
        cells = (name, 1e3 * took["steps"], rate / 1e12, rate / most, off)
        print("| {} | {:.2f} | {:.1f} | {:.2f} | {:.1e} |".format(*cells), flush=True)


def main() -> None:
    small = sys.argv[1:] == ["cpu"]
    if not small and not torch.cuda.is_available():
        sys.exit("there is no GPU here that torch can use")
    device = "cpu" if small else "cuda"
    print(describe() if small else f"{describe()}, {torch.cuda.get_device_name()}")
    pictures(device, *((SMALL, SMALL_SIDE) if small else (PICTURES, SIDE)))
    feedforward.main(device)


if __name__ == "__main__":
    main()
