"""What a user would pick instead, trained with the same features, splits, loop and care."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_torch_csr_tensor

from models.inputs.graph_batch import GraphBatch
from models.layouts import EdgeList
from models.tasks.node_config import NodeConfig
from models.tasks.node_network import build_embedding
from training.datasets import Split
from training.tasks.anomaly.stacked_trees import BoostingConfig, fit_stacked_trees


class GraphTransformerConv(nn.Module):
    """softmax(q . k / sqrt(Y)) v over the neighbours, Shi et al. 2021 eq. 3-4, no edge features.

    The same function as PyTorch Geometric's TransformerConv (compared in the tests), through the
    CSR kernel that the energies use: keys carry the values along, queries are zero there.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.skip = nn.Linear(dim, dim)

    def forward(self, x_ND: Tensor, edges: EdgeList) -> Tensor:
        q, k, v = self.qkv(x_ND).view(len(x_ND), 3, self.heads, self.head_dim).unbind(1)
        beta = q.new_full((len(x_ND), self.heads), self.head_dim**-0.5)
        carried = edges.attend(
            torch.cat([q, torch.zeros_like(q)], -1).contiguous(), torch.cat([k, v], -1), beta
        ).pk_NHY
        return carried[..., self.head_dim :].flatten(1) + self.skip(x_ND)


class _Layered(nn.Module):
    """embed -> L x (norm, mix with the neighbours, MLP, residual) -> head, as in Platonov 2023.

    Embedding, width and dropout are those of the architecture it stands beside, and it has a layer
    for each of its steps.
    """

    def __init__(self, config: NodeConfig) -> None:
        super().__init__()
        dim, dropout, layers = config.dim, config.dropout, config.blocks * config.steps
        self.embed = nn.Sequential(build_embedding(config), nn.Dropout(config.state_dropout))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.mixers = nn.ModuleList(self.mixer(dim) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim)
            )
            for _ in range(layers)
        )
        self.head = nn.Sequential(
            nn.LayerNorm(dim), nn.Dropout(config.state_dropout), nn.Linear(dim, 1)
        )

    def mixer(self, dim: int) -> nn.Module:
        raise TypeError("a baseline chooses its mixer")

    def structure(self, batch: GraphBatch) -> Any:
        return batch.relations[0]

    def forward(
        self, batch: GraphBatch, params: Sequence[Any] | None, encoded_NP: Tensor
    ) -> Tensor:
        """Logits (N,); `knobs` is there only to be called like an architecture."""
        x_ND = self.embed(encoded_NP)
        structure = self.structure(batch)
        for norm, mixer, mlp in zip(self.norms, self.mixers, self.mlps, strict=True):
            with torch.autocast(x_ND.device.type, enabled=False):  # no sparse product in half
                mixed_ND = mixer(norm(x_ND.float()), structure)
            x_ND = x_ND + mlp(mixed_ND)
        return self.head(x_ND).squeeze(-1)


class GraphTransformer(_Layered):
    """Graph transformer on the edges."""

    def mixer(self, dim: int) -> nn.Module:
        return GraphTransformerConv(dim, heads=4)


class GCN(_Layered):
    """Graph convolutional network: PyTorch Geometric's GCNConv (Kipf & Welling 2017)."""

    def mixer(self, dim: int) -> nn.Module:
        return GCNConv(dim, dim)

    def structure(self, batch: GraphBatch) -> Tensor:
        edges = batch.relations[0]
        if getattr(self, "_of", None) is not edges:
            receivers = torch.repeat_interleave(
                torch.arange(len(batch.x_NF), device=edges.indices_E.device), edges.degree_N
            )
            index = torch.stack([edges.indices_E.long(), receivers])
            n = len(batch.x_NF)
            self._of, self._csr = edges, to_torch_csr_tensor(index, size=(n, n))
        return cast(Tensor, self._csr)


GRAPH_BASELINES: dict[str, type[_Layered]] = {"gcn": GCN, "graph_transformer": GraphTransformer}


TREE_MODELS = ("gradient_boosting", "random_forest")
BAG = "boosting_bag"
"""Boosting in folds on more columns, as the trees of a hybrid, without a network."""


def fit_trees(
    table_NC: np.ndarray,
    labels: np.ndarray,
    split: Split,
    seed: int,
    kinds: Sequence[str] = TREE_MODELS,
) -> dict[str, tuple[np.ndarray, float, str]]:
    """Gradient boosting and a random forest on the network's own table, each tuned on validation.

    Returns, by kind, logits of every node, the validation ROC-AUC, and the setting chosen.
    """
    x, y = table_NC[split.train], labels[split.train]
    weight = np.where(y == 1, (y == 0).sum() / (y == 1).sum(), 1.0)
    best: dict[str, tuple[np.ndarray, float, str]] = {}
    for kind in kinds:
        for model in list_trees(kind, len(x), seed):
            model.fit(x, y, sample_weight=weight)
            p = model.predict_proba(table_NC)[:, 1].clip(1e-6, 1 - 1e-6)
            value = float(roc_auc_score(labels[split.val], p[split.val]))
            if kind not in best or value > best[kind][1]:
                best[kind] = (np.log(p / (1 - p)), value, repr(model))
    return best


def fit_bag(
    table_NC: np.ndarray,
    labels: np.ndarray,
    split: Split,
    seed: int,
    is_exact_C: np.ndarray | None = None,
) -> tuple[np.ndarray, float, str]:
    """A bag of boosted trees, its setting tuned on validation; returned as by `fit_trees`.

    Args:
        is_exact_C: as of `fit_stacked_trees`.
    """
    best: tuple[np.ndarray, float, str] | None = None
    for rounds in (100, 250, 400):
        for leaves in (7, 15, 31):
            config = BoostingConfig(rounds=rounds, leaves=leaves)
            bag = fit_stacked_trees(table_NC, labels, split.train, config, seed, is_exact_C)
            logits = bag(torch.from_numpy(table_NC)).numpy()
            value = float(roc_auc_score(labels[split.val], logits[split.val]))
            if best is None or value > best[1]:
                best = logits, value, repr(config)
    assert best is not None
    return best


def list_trees(kind: str, rows: int, seed: int) -> list[Any]:
    """The settings of one of `TREE_MODELS` to choose from by validation.

    Args:
        rows: number of rows to train on.
    """
    if kind == "gradient_boosting":
        return [
            HistGradientBoostingClassifier(
                learning_rate=rate,
                max_iter=rounds,
                max_leaf_nodes=leaves,
                min_samples_leaf=min(20, max(2, rows // 20)),
                l2_regularization=1.0,
                random_state=seed,
            )
            for rate, rounds in ((0.03, 100), (0.03, 200), (0.03, 400), (0.1, 100))
            for leaves in (7, 15, 31)
        ]
    shares: tuple[Any, ...] = ("sqrt", 0.3)  # of the columns, for each split of a tree
    return [
        RandomForestClassifier(
            400,
            min_samples_leaf=leaf,
            max_features=share,
            n_jobs=torch.get_num_threads(),
            random_state=seed,
        )
        for leaf in (1, 3, 10)
        for share in shares
    ]
