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
from models.base import DynamicsParams
from models.inputs.graph import Graph

NODES, EDGES = "nodes.parquet", "edges.parquet"
CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / MODEL


def tables(folder: Path, edges: int) -> None:
    """Nodes and edges, as Parquet."""
    features = checkpoint.load_checkpoint(CHECKPOINT).manifest.features
    graph = market(edges, features)
    nodes = pd.DataFrame(graph.x, columns=[feature.name for feature in features])
    nodes.assign(id=graph.node_ids).to_parquet(folder / NODES)
    ends = dict(zip(("source", "target"), graph.edge_index, strict=True))
    pd.DataFrame(ends).to_parquet(folder / EDGES)
    print(f"{len(nodes):,} nodes, {edges:,} edges", flush=True)


def whole(folder: Path) -> None:
    """Write the logits of all nodes in one pass, in a process of its own, and print the time."""
    loaded = checkpoint.load_checkpoint(CHECKPOINT)
    names = [feature.name for feature in loaded.manifest.features]
    start = time.perf_counter()
    x = pd.read_parquet(folder / NODES)[names].to_numpy(np.float32)
    graph = Graph(x, pd.read_parquet(folder / EDGES).to_numpy().T)
    network: Any = loaded.network
    output = network.infer(network.pack([graph]), [DynamicsParams()])
    seconds = time.perf_counter() - start
    np.save(folder / "whole.npy", output.logits.numpy())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"whole: {seconds:.1f} s from reading the tables on, peak {peak:.1f} GiB", flush=True)


def _run(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "benchmarks.bulk", *map(str, arguments)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


class Command:
    """`basin score --bulk`, in a process of its own."""

    def __init__(self, nodes: Path, edges: Path, folder: Path, *more: str) -> None:
        self.out, self._start = folder.with_suffix(".parquet"), time.perf_counter()
        arguments = [nodes, edges, "--bulk", folder, "--out", self.out, "--model", MODEL, *more]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "basin", "score", *map(str, arguments)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # as Ray's workers have
        )

    def finish(self) -> tuple[np.ndarray, float, float]:
        """The scores, the seconds that it took, and the most GiB that it had."""
        _, status, usage = os.wait4(self._process.pid, 0)
        assert status == 0
        seconds = time.perf_counter() - self._start
        return pd.read_parquet(self.out)["score"].to_numpy(), seconds, usage.ru_maxrss / 2**20

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
        logits, seconds, _ = Command(nodes, edges, folder, "--ray", found.address).finish()
        print(f"two nodes: the rest {seconds:.1f} s")
    return logits


def main(edges: int) -> None:
    print(describe())
    with TemporaryDirectory() as place:
        folder = Path(place)
        _run("tables", folder, str(edges))
        _run("whole", folder)
        paths, at_once = (folder / NODES, folder / EDGES), np.load(folder / "whole.npy")
        alone, seconds, peak = Command(*paths, folder / "alone").finish()
        total = done(folder / "alone")
        print(
            f"one process: {total} parts of passes, {seconds:.1f} s, peak {peak:.1f} GiB",
            flush=True,
        )
        found = killed_half_way(*paths, folder / "killed", total // 2)
    same = "the same bits" if found.tobytes() == alone.tobytes() else "OTHER BITS"
    print(f"killed half-way and by one process: {same}")
    print(f"in parts and whole: at most {np.abs(found - at_once).max():.1e} apart", end=", ")
    print(f"of logits from {at_once.min():.2f} to {at_once.max():.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["tables"]:
        tables(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["whole"]:
        whole(Path(sys.argv[2]))
    else:
        main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000)
