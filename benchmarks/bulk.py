"""A graph of ten million edges, scored in parts on two Ray nodes, half-way through which all dies.

The graph is that of `benchmarks.stored_graphs`, with a tenth as many nodes. It is scored whole, in
one process; in parts, by one process; and in parts on two Ray nodes of this machine, of which one
is killed with the command itself once half of the work is done, and the command given again. The
bits of the two in parts are compared, and their distance from the whole.

    python -m benchmarks.bulk [edges]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.machine import describe
from benchmarks.nodes import cluster
from benchmarks.stored_graphs import MODEL, market
from models import checkpoint
from models.contract import Knobs
from models.graph import Graph

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / MODEL


def tables(folder: Path, edges: int) -> tuple[Path, Path]:
    """Nodes and edges, as Parquet."""
    features = checkpoint.load(CHECKPOINT).manifest.features
    graph = market(edges, features)
    nodes = pd.DataFrame(graph.x, columns=[feature.name for feature in features])
    paths = folder / "nodes.parquet", folder / "edges.parquet"
    nodes.assign(id=graph.node_ids).to_parquet(paths[0])
    ends = dict(zip(("source", "target"), graph.edge_index, strict=True))
    pd.DataFrame(ends).to_parquet(paths[1])
    return paths


def whole(nodes: Path, edges: Path) -> tuple[np.ndarray, float]:
    """The logits of all nodes at once, and the seconds of packing and inference."""
    loaded = checkpoint.load(CHECKPOINT)
    frame, ends = pd.read_parquet(nodes), pd.read_parquet(edges)
    names = [feature.name for feature in loaded.manifest.features]
    graph = Graph(frame[names].to_numpy(np.float32), ends.to_numpy().T)
    network: Any = loaded.network
    network.infer(network.pack([Graph(graph.x[:2], np.zeros((2, 1), np.int64))]), [Knobs()])
    start = time.perf_counter()
    output = network.infer(network.pack([graph]), [Knobs()])
    return output.logits.numpy(), time.perf_counter() - start


class Command:
    """`basin score --bulk`, in a process of its own."""

    def __init__(self, nodes: Path, edges: Path, folder: Path, *more: str) -> None:
        self.out, self._start = folder.with_suffix(".parquet"), time.perf_counter()
        arguments = [nodes, edges, "--bulk", folder, "--out", self.out, "--model", MODEL, *more]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "basin", "score", *map(str, arguments)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # as Ray's workers have
        )

    def finish(self) -> tuple[np.ndarray, float]:
        assert self._process.wait() == 0
        return pd.read_parquet(self.out)["score"].to_numpy(), time.perf_counter() - self._start

    def require_running(self) -> None:
        assert self._process.poll() is None

    def kill(self) -> float:
        self._process.kill()
        self._process.wait()
        return time.perf_counter() - self._start


def done(folder: Path) -> int:
    """Parts of passes that are."""
    with suppress(FileNotFoundError):
        return sum("." in path.name for path in (folder / "done").iterdir())
    return 0


def killed_half_way(nodes: Path, edges: Path, folder: Path, half: int) -> np.ndarray:
    with cluster() as found:
        command = Command(nodes, edges, folder, "--ray", found.address)
        while done(folder) < half:
            command.require_running()
            time.sleep(0.02)
        seconds, before = command.kill(), done(folder)
        found.remove_node(found.list_all_nodes()[-1], allow_graceful=False)
        print(f"two nodes: all killed after {seconds:.1f} s, {before} of {2 * half} parts done")
        found.add_node(num_cpus=1, object_store_memory=256 << 20)
        logits, seconds = Command(nodes, edges, folder, "--ray", found.address).finish()
        print(f"two nodes: the rest {seconds:.1f} s")
    return logits


def main(edges: int) -> None:
    print(describe())
    with TemporaryDirectory() as place:
        folder = Path(place)
        paths = tables(folder, edges)
        at_once, seconds = whole(*paths)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{len(at_once):,} nodes, {edges:,} edges; whole {seconds:.1f} s, peak {peak:.1f} GiB"
        )
        alone, seconds = Command(*paths, folder / "alone").finish()
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        total = done(folder / "alone")
        print(f"one process: {total} parts of passes, {seconds:.1f} s, peak {peak:.1f} GiB")
        found = killed_half_way(*paths, folder / "killed", total // 2)
    same = "the same bits" if found.tobytes() == alone.tobytes() else "OTHER BITS"
    print(f"killed half-way and by one process: {same}")
    print(f"in parts and whole: at most {np.abs(found - at_once).max():.1e} apart", end=", ")
    print(f"of logits from {at_once.min():.2f} to {at_once.max():.2f}")


if __name__ == "__main__":
    sys.exit(main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000))
