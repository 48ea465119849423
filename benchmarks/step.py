"""The step of Energy Transformer against the papers' way: the gradient of the energy, by autograd.

Both take as many steps with equal weights from equal states, and end where the other does. On
images (tokens that all see each other), on molecules, which the papers' way fills up to one length,
and on edge lists; these also where memory that is freed is kept, for else most of what the papers'
way takes goes into asking the system for it anew. `relax` is the loop alone; `solve` also measures:
energies by component, residuals, and what is finite, after each step; `onnx` is `solve` on ONNX
Runtime, and `fused`, where a server does so, is `solve` with a look in one call.
Rounds take turns, each as many calls as a fifth of a second has; printed are medians, their ratios,
and the share of what the same library makes of a large product of float32 in the same run: of the
products of all steps, and where is measured, of those of one look more, at the end. Peak memory is
that of a process of its own for each way.

    python -m benchmarks.step [images | molecules | edges]
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch_geometric.utils import scatter

from benchmarks.machine import describe, keep_what_is_freed
from benchmarks.results_file import record
from benchmarks.scale import peak_kib
from models.base import Block, Config, DynamicsParams
from models.dynamics import RUN_ALONE, Descent, EnergyLayerNorm, StepBackend
from models.energies import DotProductAttention, Hopfield, Sum
from models.fused.system import FusedSystem
from models.layouts import Dense, EdgeList, Layout
from models.onnx_backend.system import OnnxSystem

ROUNDS = 9
ROUND_S = 0.2
SETTLE_S = 0.05  # threads that have nothing to do spin for a while, in the way of the next
IMAGES = (  # rows, tokens, dim, heads, head_dim, memories, steps
    (1, 196, 768, 12, 64, 3072, 12),
    (8, 196, 768, 12, 64, 3072, 12),
    (1, 196, 256, 4, 64, 1024, 12),
    (1, 196, 128, 2, 64, 512, 12),
    (8, 196, 128, 2, 64, 512, 12),
)
MOLECULES = (64, 128, 12, 64, 512, 4)  # rows, dim, heads, head_dim, memories, steps
NODES, EDGES, GRAPH = 12_000, (400_000, 4_400_000), (64, 2, 32, 256, 2)


@dataclass(frozen=True)
class Case:
    """One block and what it moves. Where products are all there is, `flops` of those of its steps,
    and of a look that finds energies alone.

    Autograd moves `padded` where that is given, whose tokens `kept` are those of `x_ND`.
    """

    block: Block
    layout: Layout
    x_ND: Tensor
    params: list[DynamicsParams]
    onnx: OnnxSystem
    fused: StepBackend
    autograd: Callable[[Tensor, Tensor], Tensor]
    flops: float = math.nan
    look_flops: float = math.nan
    padded_ND: Tensor | None = None
    kept_N: Tensor | None = None


def block_of(dim: int, heads: int, head_dim: int, memories: int, steps: int) -> Block:
    torch.manual_seed(0)
    config = Config(
        dim=dim, heads=heads, head_dim=head_dim, memories=memories, steps=steps, step_size=0.1
    )
    energy = Sum(DotProductAttention(dim, heads, head_dim), Hopfield(dim, memories))
    return Block(energy, Descent(), EnergyLayerNorm(dim), config).eval()


def systems(block: Block) -> tuple[OnnxSystem, StepBackend]:
    """As a server has them ready."""
    onnx = OnnxSystem.of_block(block, torch.get_num_threads())
    return onnx, FusedSystem.of_block(block, onnx)


def written_out(
    block: Block, rows: int, sees_RLL: Tensor | None = None, real_RL: Tensor | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """The energy as the papers have it, of rows that are filled up to one length."""
    attention, hopfield = block.energy.energies  # type: ignore[union-attr]
    query_KD, key_KD = attention.query_HYD.flatten(0, 1), attention.key_HYD.flatten(0, 1)

    def energy(g_ND: Tensor, beta_H: Tensor) -> Tensor:
        def heads_of(weight_KD: Tensor) -> Tensor:
            found_NK = g_ND @ weight_KD.T
            return found_NK.view(rows, -1, len(beta_H), attention.head_dim).transpose(1, 2)

        logits_RHLL = (heads_of(query_KD) * beta_H[:, None, None]) @ heads_of(key_KD).mT
        if sees_RLL is not None:
            logits_RHLL = logits_RHLL.masked_fill(~sees_RLL[:, None], -1e9)
        lse_RHL = torch.logsumexp(logits_RHLL, -1)
        up_RLM = (g_ND @ hopfield.memories_MD.T).relu().view(rows, lse_RHL.shape[2], -1)
        if real_RL is not None:
            lse_RHL, up_RLM = lse_RHL * real_RL[:, None], up_RLM * real_RL[..., None]
        return -(lse_RHL / beta_H[:, None]).sum() - up_RLM.square().sum() / 2

    return energy


def images(rows: int, tokens: int, *shape: int) -> Case:
    dim, heads, head_dim, memories, steps = shape
    block = block_of(*shape)
    layout = Dense(torch.ones(1, tokens, tokens, dtype=torch.bool).expand(rows, -1, -1))
    inner = heads * head_dim
    up, along = 2 * tokens * dim * (2 * inner + memories), 2 * inner * tokens**2
    flops = rows * steps * (2 * up + 3 * along), rows * (up + along)
    x_ND = torch.randn(rows * tokens, dim)
    energy = written_out(block, rows)
    return Case(block, layout, x_ND, [DynamicsParams()] * rows, *systems(block), energy, *flops)


def molecules(rows: int, *shape: int) -> Case:
    """Chains with a few rings, of 4 to 40 atoms: ours lie one behind the other, with a list of
    their bonds; the papers' way fills all up to the largest and masks who sees whom."""
    dim, *_ = shape
    block, rng = block_of(*shape), np.random.default_rng(0)
    sizes = np.clip(rng.normal(17, 7, rows).round().astype(int), 4, 40)
    first, length = np.cumsum([0, *sizes])[:-1], int(sizes.max())
    bonds = []
    for size in sizes:
        chain = np.stack([np.arange(size - 1), np.arange(1, size)])
        rings = np.sort(rng.integers(0, size, (2, size // 6)), 0)
        bonds.append(np.concatenate([chain, rings[:, rings[0] < rings[1]]], 1))
    ours = np.concatenate([pair + at for pair, at in zip(bonds, first, strict=True)], 1)
    row_of_N = torch.arange(rows).repeat_interleave(torch.from_numpy(sizes))
    layout = EdgeList.from_edges(ours, int(sizes.sum()), row_of_N=row_of_N, rows=rows)
    sees_RLL = torch.zeros(rows, length, length, dtype=torch.bool)
    for row, (a, b) in enumerate(bonds):
        sees_RLL[row, a, b] = sees_RLL[row, b, a] = True
    real_RL = torch.arange(length) < torch.from_numpy(sizes)[:, None]
    energy = written_out(block, rows, sees_RLL, real_RL)
    kept_N = real_RL.flatten().nonzero()[:, 0]
    x_ND, padded_ND = torch.randn(len(kept_N), dim), torch.zeros(rows * length, dim)
    padded_ND[kept_N] = x_ND
    whole = {"padded_ND": padded_ND, "kept_N": kept_N}
    return Case(block, layout, x_ND, [DynamicsParams()] * rows, *systems(block), energy, **whole)


def graph(nodes: int, edges: int, *shape: int) -> Case:
    _, heads, head_dim, _, _ = shape
    block = block_of(*shape)
    rng = np.random.default_rng(0)
    layout = EdgeList.from_edges(rng.integers(0, nodes, (2, edges // 2)), nodes)
    sees, seen = layout.receivers_E, layout.indices_E.long()
    attention, hopfield = block.energy.energies  # type: ignore[union-attr]

    def energy(g_ND: Tensor, beta_H: Tensor) -> Tensor:
        q_NHY = (g_ND @ attention.query_HYD.flatten(0, 1).T).view(nodes, heads, head_dim)
        k_NHY = (g_ND @ attention.key_HYD.flatten(0, 1).T).view(nodes, heads, head_dim)
        s_EH = (q_NHY.index_select(0, sees) * k_NHY.index_select(0, seen)).sum(-1) * beta_H
        top_NH = scatter(s_EH.detach(), sees, 0, nodes, "max")
        sum_NH = scatter((s_EH - top_NH.index_select(0, sees)).exp(), sees, 0, nodes, "sum")
        lse_NH = (sum_NH.clamp(min=1e-30).log() + top_NH) * (layout.degree_N > 0)[:, None]
        up = (g_ND @ hopfield.memories_MD.T).relu()
        return -(lse_NH / beta_H).sum() - up.square().sum() / 2

    x_ND = torch.randn(nodes, shape[0])
    return Case(block, layout, x_ND, [DynamicsParams()], *systems(block), energy)


def by_autograd(case: Case) -> Tensor:
    """The papers' way."""
    block, x_ND = case.block, case.x_ND if case.padded_ND is None else case.padded_ND
    beta_H = block.log_beta_H.detach().exp()
    for _ in range(block.steps):
        with torch.enable_grad():
            g_ND = block.norm(x_ND).detach().requires_grad_()
            (slope_ND,) = torch.autograd.grad(case.autograd(g_ND, beta_H), g_ND)
        x_ND = x_ND - block.step_size * slope_ND
    return x_ND if case.kept_N is None else x_ND[case.kept_N]


def by_relax(case: Case) -> Tensor:
    return case.block.relax(case.x_ND, case.layout, case.params)


def by_solve(case: Case) -> Tensor:
    return case.block.solve(case.x_ND, case.layout, case.params, RUN_ALONE).x_ND


def by_onnx(case: Case) -> Tensor:
    return _prepared(case, case.onnx)


def by_fused(case: Case) -> Tensor:
    return _prepared(case, case.fused)


def _prepared(case: Case, system: StepBackend) -> Tensor:
    case.block.prepared_backend = system
    try:
        return by_solve(case)
    finally:
        case.block.prepared_backend = None


WAYS = {"autograd": by_autograd, "relax": by_relax, "solve": by_solve, "onnx": by_onnx}
ALL_WAYS = WAYS | {"fused": by_fused}
MEASURED = {"solve", "onnx", "fused"}


def peaks() -> dict[str, Callable[[], float]]:
    """GFLOP/s of a large product, the best of some, of either library."""
    n = 2048
    a, b = torch.randn(n, n), torch.randn(n, n)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (n, n)) for name in "ac"]
    node, weights = helper.make_node("MatMul", ["a", "b"], ["c"]), numpy_helper.from_array
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [weights(b.numpy(), "b")])
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feed = {"a": a.numpy()}

    def best(work: Callable[[], object]) -> float:
        return max(2 * n**3 / _seconds(work) / 1e9 for _ in range(4))

    return {
        "torch": lambda: best(lambda: a @ b),
        "onnx": lambda: best(lambda: session.run(["c"], feed)),
    }


def _warm(work: Callable[[], object]) -> float:
    """Seconds of `work`; of what is short the mean of several, once it has run: clock and caches
    are by then those of a processor at work, not of one that slept."""
    first = _seconds(work)
    more = round(ROUND_S / first)
    return _seconds(lambda: [work() for _ in range(more)]) / more if more else first


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@torch.no_grad()
def compare(name: str, case: Case) -> None:
    fuses = isinstance(case.fused, FusedSystem) and case.fused.takes(case.x_ND, case.layout)
    ways = ALL_WAYS if fuses else WAYS
    ends = {way: work(case) for way, work in ways.items()}
    scale = float(ends["autograd"].abs().max())
    for x_ND in ends.values():
        torch.testing.assert_close(x_ND, ends["autograd"], rtol=1e-3, atol=1e-4 * scale)
    took: dict[str, list[float]] = {way: [] for way in ways}
    of_peak, reached = peaks(), dict[str, list[float]]()
    for _ in range(ROUNDS):
        for library, best in of_peak.items():
            reached.setdefault(library, []).append(best())
        for way, work in ways.items():
            time.sleep(SETTLE_S)
            took[way].append(_warm(lambda work=work: work(case)))
    top = {library: statistics.median(each) for library, each in reached.items()}
    medians = record(name, "autograd", took)
    for way, median in medians.items():
        ratios = [a / b for a, b in zip(took["autograd"], took[way], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        peak = top["onnx" if way == "onnx" else "torch"]
        flops = case.flops + (case.look_flops if way in MEASURED else 0)
        share = flops / median / 1e9 / peak
        told = "" if math.isnan(share) else f"  {share:5.2f} of {peak:.0f} GFLOP/s"
        ratio = statistics.median(ratios)
        print(
            f"{name:30} {way:9}{1e3 * median:9.1f} ms  ratio {ratio:5.2f} ({spread}){told}",
            flush=True,
        )


@torch.no_grad()
def _grown_mib(way: str, edges: int) -> float:
    """Peak memory beyond what stood before, in this process."""
    case = graph(NODES, edges, *GRAPH)
    ALL_WAYS[way](graph(NODES, 1000, *GRAPH))
    before = peak_kib(reset=True)
    ALL_WAYS[way](case)
    return (peak_kib() - before) / 1024


def _memory(edges: int) -> None:
    grown = {}
    for way in ALL_WAYS:
        command = [sys.executable, "-m", "benchmarks.step", way, str(edges)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        grown[way] = json.loads(done.stdout)
    told = ", ".join(f"{way} {mib:,.0f}" for way, mib in grown.items())
    print(f"{edges:,} edges, peak MiB: {told}", flush=True)


def main(which: Literal["", "images", "molecules", "edges"] = "") -> None:
    print(describe())
    if which in ("", "molecules"):
        compare(f"{MOLECULES[0]} molecules, D = {MOLECULES[1]}", molecules(*MOLECULES))
    if which in ("", "images"):
        for shape in IMAGES:
            rows, tokens, dim = shape[:3]
            compare(f"{rows} x {tokens} tokens, D = {dim}", images(*shape))
    if which in ("", "edges"):
        for edges in EDGES:
            compare(f"{NODES:,} nodes, {edges:,} edges", graph(NODES, edges, *GRAPH))
            _memory(edges)
        keep_what_is_freed()  # of more edges the papers' way has arrays that are larger than that
        compare(f"{EDGES[0]:,} edges, memory kept", graph(NODES, EDGES[0], *GRAPH))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(_grown_mib(sys.argv[1], int(sys.argv[2]))))
    elif len(sys.argv) == 2 and sys.argv[1] not in ("images", "molecules", "edges"):
        sys.exit(__doc__)
    else:
        main(*sys.argv[1:])  # type: ignore[arg-type]
