"""Labels on the nodes of one graph: what the loop trains on for anomalies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np
import torch
from lightning_fabric import Fabric
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from models.inputs.graph_batch import GraphBatch
from training.common.results_log import hash_arrays
from training.datasets import Split
from training.tasks.anomaly.neighbor_sampler import NeighborSampler
from training.tasks.anomaly.stacked_trees import BoostingConfig
from training.trainer import DEFAULT_BETAS, TrainingTask

Step = tuple[GraphBatch, Tensor, Tensor, Tensor]
"""(graph, encoding, seeds in it, the same nodes in the whole graph)"""


@dataclass(frozen=True)
class NodeTrainConfig:
    """How to train a network that scores nodes. `config` goes to the network, the rest to the loop.

    `batch_nodes` set: each step trains on the labels of that many nodes, unset: on all of them.
    With `fanouts` a step sees a limited number of sampled neighbours per hop, for graphs that do
    not fit or whose labels are far apart; without, the whole graph.

    `sparsity` weighs a group lasso on the inputs of the embedding, sum_p |E_:p|_2 (Yuan & Lin
    2006): with few labels, what a network must not do is use every column.

    With `trees` the model is a hybrid, with `labels` one that reads labels of neighbours too. Of
    more than one of `members` it is an ensemble, whose networks differ by their seed.
    """

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    epochs: int = 120
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    warmup: float = 0.1
    clip: float = 1.0
    batch_nodes: int | None = None
    fanouts: tuple[int, ...] | None = None
    sparsity: float = 0.0
    trees: BoostingConfig | None = None
    labels: bool = False
    members: int = 1
    check_every: int = 2

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without `trees`, `labels` and `members` where there are none, so that results
        that were kept before there were any are still known."""
        values = asdict(self)
        off = {"trees": None, "labels": False, "members": 1}
        return {k: v for k, v in values.items() if k not in off or v != off[k]}

    @property
    def centralise(self) -> bool:
        return False

    @property
    def betas(self) -> tuple[float, float]:
        return DEFAULT_BETAS


@final
class NodeTrainingTask(TrainingTask):
    """Weighted cross entropy on `split.train`, Energy Transformer eq. 12 (with the sign the text
    means); ROC-AUC on `split.val`."""

    measure = "val_roc_auc"

    def __init__(
        self,
        batch: GraphBatch,
        encoded_NP: Tensor,
        labels: np.ndarray,
        split: Split,
        recipe: NodeTrainConfig,
        device: torch.device,
    ) -> None:
        self.batch, self.encoded_NP = batch.to(device), encoded_NP.to(device)
        self.labels, self.split, self.recipe = labels, split, recipe
        self.target_N = torch.from_numpy(labels).float().to(device)
        fraud = float((labels[split.train] == 1).mean())
        self.weight = torch.tensor((1 - fraud) / fraud, device=device)

    def identity(self) -> dict[str, Any]:
        edges = [part for r in self.batch.relations for part in (r.indptr_N1, r.indices_E)]
        parts = self.split.parts().values()
        attr = () if self.batch.edge_attr_eP is None else (self.batch.edge_attr_eP,)
        data = hash_arrays(self.batch.x_NF, self.encoded_NP, *edges, *attr, self.labels, *parts)
        return {"split": self.split.name, "data": data}

    def batches(self, seed: int, fabric: Fabric) -> Iterator[Step]:
        batch, encoded_NP = self.batch, self.encoded_NP
        recipe, train = self.recipe, self.split.train
        device = fabric.device
        if recipe.batch_nodes is None:
            nodes = torch.from_numpy(train).to(device)
            yield batch, encoded_NP, nodes, nodes
            return
        order = np.random.default_rng(seed).permutation(train)
        size = recipe.batch_nodes
        # Every process takes the same number of steps, or the others would wait for it for ever.
        together = size * fabric.world_size
        if len(order) >= together:
            order = order[: len(order) // together * together]
        elif fabric.world_size > 1:
            order = np.resize(order, together)
        sampler = NeighborSampler(batch, recipe.fanouts) if recipe.fanouts else None
        for step, start in enumerate(range(0, len(order), size)):
            if step % fabric.world_size != fabric.global_rank:
                continue
            chosen = order[start : start + size]
            if sampler is None:
                nodes = torch.from_numpy(chosen).to(device)
                yield batch, encoded_NP, nodes, nodes
                continue
            part, kept = sampler.sample(chosen, seed=hash((seed, step)) % 2**32)
            nodes = torch.from_numpy(kept).to(device)
            seeds = torch.arange(len(chosen), device=device)
            yield part.to(device), encoded_NP[nodes], seeds, nodes[: len(chosen)]

    def loss(self, model: nn.Module, step: Step) -> Tensor:
        part, encoded, seeds, nodes = step
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(part, None, encoded)[seeds], self.target_N[nodes], pos_weight=self.weight
        )
        if self.recipe.sparsity:
            # The embedding comes before every other layer, in each network here.
            first = next(m for m in model.modules() if isinstance(m, nn.Linear))
            loss = loss + self.recipe.sparsity * first.weight.norm(dim=0).sum()
        return loss

    def validate(self, network: nn.Module) -> float:
        val = self.split.val
        return float(roc_auc_score(self.labels[val], self.predict(network)[val]))

    @torch.no_grad()
    def predict(self, network: nn.Module) -> np.ndarray:
        """Logits (N,) of every node, in evaluation mode."""
        network.eval()
        return network(self.batch, None, self.encoded_NP).float().cpu().numpy()
