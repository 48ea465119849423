"""The energy step on an edge list: the kernels against keys gathered per edge, in one run.

The peer is what PyTorch users write: `index_select` of queries and keys, a scatter softmax, and
`index_add`, forward only and with gradients. Rounds are interleaved; medians and their ratio.

    python -m benchmarks.attend
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import softmax

from benchmarks.machine import describe
from benchmarks.results_file import record
from models.layouts import EdgeList

NODES, HEADS, HEAD_DIM, ROUNDS = 12_000, 2, 32, 7


def _gathered(q: Tensor, k: Tensor, beta: Tensor, receiver: Tensor, source: Tensor):
    q_E, k_E = q.index_select(0, receiver), k.index_select(0, source)
    s = (q_E * k_E).sum(-1) * beta.index_select(0, receiver)
    p = softmax(s, receiver, num_nodes=len(q))[..., None]
    pk = torch.zeros_like(k).index_add(0, receiver, p * k_E)
    return pk, torch.zeros_like(q).index_add(0, source, p * q_E)


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    print(describe())
    for edges in (100_000, 400_000):
        rng = np.random.default_rng(0)
        layout = EdgeList.from_edges(rng.integers(0, NODES, (2, edges // 2)), NODES)
        source = layout.indices_E.long()
        receiver = torch.repeat_interleave(torch.arange(NODES), layout.degree_N)
        q, k = (torch.randn(NODES, HEADS, HEAD_DIM, requires_grad=True) for _ in range(2))
        beta = torch.full((NODES, HEADS), HEAD_DIM**-0.5)

        def kernels(layout=layout, q=q, k=k, beta=beta):
            out = layout.attend(q, k, beta)
            return out.pk_NHY, out.ptq_NHY

        def gathered(q=q, k=k, beta=beta, receiver=receiver, source=source):
            return _gathered(q, k, beta, receiver, source)

        for a, b in zip(kernels(), gathered(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)

        def backward(forward: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], object]:
            return lambda: sum(t.square().sum() for t in forward()).backward()  # type: ignore

        for name, ours, peer in (
            ("forward", torch.no_grad()(kernels), torch.no_grad()(gathered)),
            ("forward and backward", backward(kernels), backward(gathered)),
        ):
            times = [(_time(ours), _time(peer)) for _ in range(ROUNDS + 1)][1:]
            took = dict(zip(("kernels", "gathered"), zip(*times, strict=True), strict=True))
            mine, theirs = record(f"{layout.num_edges} edges, {name}", "gathered", took).values()
            print(
                f"{layout.num_edges:>8,} edges, {name:20}  kernels {1e3 * mine:7.1f} ms  "
                f"gathered {1e3 * theirs:7.1f} ms  ratio {theirs / mine:5.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
