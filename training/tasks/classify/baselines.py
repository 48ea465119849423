"""What a user would pick instead for whole graphs, on the same features, splits and loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn
from torch_geometric.nn import GINConv, GINEConv

from models.inputs.tabular import ColumnEncoder
from models.inputs.tokens import TokenBatch
from training.datasets import GraphDataset, Split

_SMALLEST = 1e-6  # a forest's probability is at least this, so that it has a logit


class _Baseline(nn.Module):
    def __init__(self, dataset: GraphDataset, dim: int) -> None:
        super().__init__()
        self.nodes = ColumnEncoder(dataset.node_features, dim)
        self.outputs = sum(len(task.labels) for task in dataset.tasks)

    def fit_columns(self, dataset: GraphDataset, graphs: np.ndarray) -> None:
        """Standardise on the graphs to train on."""
        for module in self.modules():
            if isinstance(module, ColumnEncoder):
                of_nodes = module is self.nodes
                chosen = [dataset.graphs[i] for i in graphs]
                tables = [g.x if of_nodes else g.edge_attr for g in chosen]
                module.fit([table for table in tables if table is not None])


class GIN(_Baseline):
    """Graph isomorphism network (Xu et al. 2019): PyTorch Geometric's GINConv, sums of every layer.

    With edge features its GINEConv (Hu et al. 2020).
    """

    def __init__(self, dataset: GraphDataset, dim: int, layers: int, dropout: float) -> None:
        super().__init__(dataset, dim)
        edges = dataset.edge_features
        self.edges = ColumnEncoder(edges, dim) if edges else None
        conv: Any = GINEConv if edges else GINConv
        self.convs = nn.ModuleList(conv(_mlp(dim), train_eps=True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(dim) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Sequential(
            nn.Linear((layers + 1) * dim, dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(dim, self.outputs),
        )

    def forward(self, batch: TokenBatch) -> Tensor:
        """Logits (R, C)."""
        x_nD, edges_2e = self.nodes(batch.x_nF), batch.edges_2e
        attr = () if self.edges is None else (self.edges(batch.edge_attr_eP),)
        pooled = [_sums(x_nD, batch)]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x_nD = self.dropout(norm(conv(x_nD, edges_2e, *attr)).relu())
            pooled.append(_sums(x_nD, batch))
        return self.head(torch.cat(pooled, -1))


class SummedMLP(_Baseline):
    """MLP on the sum of relu(W x + b) over nodes: the structure-agnostic baseline of Errica et al.
    2020, section 5.2."""

    def __init__(self, dataset: GraphDataset, dim: int, layers: int, dropout: float) -> None:
        super().__init__(dataset, dim)
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.BatchNorm1d(dim), nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout)]
        self.mlp = nn.Sequential(*parts, nn.Linear(dim, self.outputs))

    def forward(self, batch: TokenBatch) -> Tensor:
        """Logits (R, C)."""
        return self.mlp(_sums(self.nodes(batch.x_nF).relu(), batch))


BASELINE_NETWORKS: dict[str, type[GIN] | type[SummedMLP]] = {"gin": GIN, "mlp": SummedMLP}
FOREST = "forest"


def _mlp(dim: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU()
    )


def _sums(x_nD: Tensor, batch: TokenBatch) -> Tensor:
    out_RD = x_nD.new_zeros(batch.rows, x_nD.shape[1])
    return out_RD.index_add(0, batch.row_of_n, x_nD)


def morgan_fingerprints(smiles: Sequence[str]) -> np.ndarray:
    """2,048-bit Morgan fingerprints of radius 2, uint8 (G, 2048)."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    out = np.zeros((len(smiles), 2048), np.uint8)
    for row, text in zip(out, smiles, strict=True):
        DataStructs.ConvertToNumpyArray(generator.GetFingerprint(Chem.MolFromSmiles(text)), row)
    return out


def fit_forest(dataset: GraphDataset, split: Split, seed: int) -> np.ndarray:
    """Logits (G, C) of a random forest of 500 trees on fingerprints, one forest for each task."""
    if dataset.smiles is None:
        raise ValueError(f"{dataset.name}: a forest on fingerprints needs molecules")
    table = morgan_fingerprints(dataset.smiles)
    columns = []
    for t, task in enumerate(dataset.tasks):
        train = split.train[dataset.labels[split.train, t] >= 0]
        forest = RandomForestClassifier(500, n_jobs=torch.get_num_threads(), random_state=seed)
        forest.fit(table[train], dataset.labels[train, t])
        p = np.zeros((len(table), len(task.labels)))
        p[:, forest.classes_] = forest.predict_proba(table)
        columns.append(np.log(p.clip(_SMALLEST, 1)))
    return np.concatenate(columns, 1)
