"""Molecules per second, step by step and over HTTP, against PyTorch Geometric's GIN of equal size.

Batches of 1, 64 and 1,024 molecules of AMES (BASIN_DATA) go through what `POST /classify` does,
then over HTTP as a whole. The peer is a GIN with edge features (GINEConv) whose width gives it as
many parameters, forward alone on a batch that is ready, as `relax` is. Tables of categories do not
count, of which a molecule reads a few rows. Rounds are interleaved; medians, and their ratio.

    python -m benchmarks.classify [checkpoint]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import torch

from benchmarks.machine import describe
from benchmarks.server import serving
from benchmarks.timing import medians
from models import checkpoint
from models.base import DynamicsParams
from models.inputs.graph import Graph
from models.inputs.molecules import ATOM_COLUMNS, BOND_COLUMNS, parse_smiles
from models.inputs.tokens import TokenBatch, collate_tokens
from models.tasks.graph_classifier import GraphClassifier
from training.datasets import GraphDataset
from training.datasets.sources import data_folder
from training.tasks.classify.baselines import GIN

SIZES = (1, 64, 1024)


def size_of(network: torch.nn.Module) -> int:
    """Parameters that multiply: without the tables that are looked up in."""
    tables = ("table_VD", "colours.weight")
    return sum(p.numel() for name, p in network.named_parameters() if not name.endswith(tables))


def peer_of(network: GraphClassifier) -> GIN:
    """The GIN of four layers whose size is nearest."""
    labels = np.zeros((0, len(network.config.tasks)), np.int64)
    columns = ATOM_COLUMNS, BOND_COLUMNS
    none = GraphDataset("none", (), labels, network.config.tasks, *columns)
    made = (GIN(none, dim, 4, 0.0) for dim in range(16, 513, 4))
    return min(made, key=lambda gin: abs(size_of(gin) - size_of(network))).eval()


@torch.no_grad()
def _measure(network: GraphClassifier, name: str, smiles: list[str], client: httpx.Client) -> None:
    gin = peer_of(network)
    print(f"{name}: {size_of(network)} parameters that multiply, its GIN {size_of(gin)}")
    for size in SIZES:
        part = smiles[:size]
        graphs: list[Graph] = [parse_smiles(text).graph for text in part]
        tokens = [network.tokenize(graph) for graph in graphs]
        batch: TokenBatch = collate_tokens(tokens)
        params = [DynamicsParams()] * size
        body = {"model": name, "smiles": part}
        works: dict[str, Callable[[], object]] = {
            "read": lambda part=part: [parse_smiles(text) for text in part],
            "prepare": lambda graphs=graphs: network.pack(graphs),
            "relax, measured": lambda batch=batch, params=params: network.infer(batch, params),
            "relax alone": lambda batch=batch: network(batch),
            "GIN alone": lambda batch=batch: gin(batch),
            "over HTTP": lambda body=body: client.post("/classify", json=body).raise_for_status(),
        }
        took = medians(works, f"{name}, {size}", "GIN alone", repeats=max(1, 64 // size))
        forward, peer = took["relax alone"], took["GIN alone"]
        print(
            f"{size:5} molecules: "
            + "  ".join(f"{what} {size / t:7.0f}/s" for what, t in took.items())
            + f"  alone / GIN {peer / forward:.2f}  HTTP / alone {forward / took['over HTTP']:.3f}"
        )


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "cdat-ames"
    folder = Path(__file__).parents[1] / "checkpoints" / name
    path = data_folder() / "molecules" / "AMES.csv"
    for needed, kind in ((folder, "checkpoint"), (path, "data")):
        if not needed.exists():
            print(f"skipped: no {kind} at {needed}")
            return
    print(describe())
    network = checkpoint.load_checkpoint(folder).network
    assert isinstance(network, GraphClassifier)
    with serving() as client:
        _measure(network, name, pd.read_csv(path)["smiles"].tolist(), client)


if __name__ == "__main__":
    main()
