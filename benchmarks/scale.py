"""How time and memory of scoring grow with the edges of a graph, up to T-Finance's size.

Each size runs in a process of its own, so that its peak memory is its own. The largest is a random
graph as large as T-Finance: 39,357 nodes, 21.2 million edges, 10 features.

    python -m benchmarks.scale
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from models.architectures.cdat import CDAT, CDATConfig
from models.base import DynamicsParams
from models.inputs.graph import Graph

NODES, FEATURES = 39_357, 10
EDGES = (1_325_000, 2_650_000, 5_300_000, 10_600_000, 21_200_000)
ROUNDS = 3


def _graph(edges: int) -> Graph:
    rng = np.random.default_rng(0)
    # Distinct pairs a < b, so that every one of them is a real edge.
    pairs = NODES * (NODES - 1) // 2
    chosen = np.unique(rng.integers(0, pairs, int(edges * 1.05)))
    chosen = np.sort(rng.permutation(chosen)[:edges])
    b = ((1 + np.sqrt(1 + 8 * chosen.astype(np.float64))) / 2).astype(np.int64)
    b -= b * (b - 1) // 2 > chosen
    b += (b + 1) * b // 2 <= chosen
    a = chosen - b * (b - 1) // 2
    x = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    return Graph(x, np.stack([a, b]).astype(np.int32))


def peak_kib(*, reset: bool = False) -> int:
    """Peak resident memory of this process (Linux); `reset` starts it anew from what is held."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def _measure(edges: int) -> dict[str, float]:
    """Score one graph; peak memory beyond what stood before it, and medians of the phases."""
    network, _ = CDAT.build_example(0)  # loads and compiles what is needed
    graph = _graph(edges)
    small = Graph(graph.x, graph.edge_index[:, :1000])
    config = CDATConfig(features=tuple("abcdefghij"), hops=3, bins=4)
    network, batch = CDAT.from_data(config, [small], 0)
    network.eval()
    network.infer(batch, [DynamicsParams()])
    before = peak_kib(reset=True)
    packing, inference = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        batch = network.pack([graph])
        packed = time.perf_counter()
        output = network.infer(batch, [DynamicsParams()])
        inference.append(time.perf_counter() - packed)
        packing.append(packed - start)
        assert output.logits.isfinite().all()
        assert batch.relations[0].num_edges == 2 * edges
        del batch, output
    peak = peak_kib()
    return {
        "edges": edges,
        "pack_s": statistics.median(packing),
        "infer_s": statistics.median(inference),
        "peak_gib": peak / 2**20,
        "grown_gib": (peak - before) / 2**20,
    }


def main() -> None:
    print(describe())
    rows = []
    for edges in EDGES:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale", str(edges)],
            check=True,
            capture_output=True,
            text=True,
        )
        rows.append(json.loads(done.stdout))
        row = rows[-1]
        print(
            f"{edges:>11,} edges  pack {row['pack_s']:6.2f} s  infer {row['infer_s']:6.2f} s  "
            f"peak {row['peak_gib']:5.2f} GiB, {row['grown_gib']:5.2f} of it for the graph",
            flush=True,
        )
    log_edges = np.log([row["edges"] for row in rows])
    for row in rows:
        row["score_s"] = row["pack_s"] + row["infer_s"]
    for name in ("pack_s", "infer_s", "score_s", "grown_gib"):
        exponent = np.polyfit(log_edges, np.log([row[name] for row in rows]), 1)[0]
        print(f"{name} grows as edges^{exponent:.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_measure(int(sys.argv[1]))))
    else:
        main()
