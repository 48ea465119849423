"""Labels of transactions: what the loop trains on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np
import torch
from lightning_fabric import Fabric
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

from models.inputs.graph_batch import GraphBatch
from models.tasks.node_scorer import NodeScorer
from training.datasets.transactions import DescribedTransactions
from training.tasks.anomaly.task import NodeTrainConfig
from training.trainer import TrainingTask, split_between_processes

_AT_A_TIME = 4096

Step = tuple[GraphBatch, Tensor, Tensor, np.ndarray]
"""(neighbourhoods, encoding of their nodes, nodes that are scored, the transactions these are)"""


@final
class TransactionTrainingTask(TrainingTask):
    """Weighted cross entropy of training transactions, each in the neighbourhood of the ones
    before it; PR-AUC on the validation part."""

    measure = "val_pr_auc"

    def __init__(
        self,
        described: DescribedTransactions,
        architecture: NodeScorer,
        recipe: NodeTrainConfig,
        device: torch.device,
    ) -> None:
        self.described, self.architecture = described, architecture
        self.recipe, self.device = recipe, device
        labels = described.data.labels
        self.target_N = torch.from_numpy(labels).float()
        fraud = float((labels[described.split.train] == 1).mean())
        self.weight = torch.tensor((1 - fraud) / fraud, device=device)

    def identity(self) -> dict[str, Any]:
        described = self.described
        return {
            "split": described.split.name,
            "data": described.data.fingerprint(described.split),
            "features": described.recipe.model_dump(mode="json"),
        }

    def build_step(self, rows: np.ndarray) -> Step:
        """Return the neighbourhoods of transactions as a network takes them."""
        graph, _, places = self.described.history.build_graph(rows)
        batch = self.architecture.pack([graph])
        encoded = self.architecture.features(batch).to(self.device)
        return batch.to(self.device), encoded, torch.from_numpy(places).to(self.device), rows

    def batches(self, seed: int, fabric: Fabric) -> Iterator[Step]:
        order = np.random.default_rng(seed).permutation(self.described.split.train)
        size = self.recipe.batch_nodes or len(order)
        starts = range(0, max(1, len(order) - size + 1), size)
        for start in split_between_processes(starts, fabric):
            yield self.build_step(order[start : start + size])

    def loss(self, model: nn.Module, step: Step) -> Tensor:
        batch, encoded, places, rows = step
        target = self.target_N[rows].to(self.device)
        return nn.functional.binary_cross_entropy_with_logits(
            model(batch, None, encoded)[places], target, pos_weight=self.weight
        )

    def validate(self, network: nn.Module) -> float:
        val = self.described.split.val
        return float(
            average_precision_score(self.described.data.labels[val], self.predict(network, val))
        )

    @torch.no_grad()
    def predict(self, network: nn.Module, rows: np.ndarray) -> np.ndarray:
        """Return the logits (n,) of transactions, in evaluation mode."""
        network.eval()
        parts = []
        for start in range(0, len(rows), _AT_A_TIME):
            batch, encoded, places, _ = self.build_step(rows[start : start + _AT_A_TIME])
            parts.append(network(batch, None, encoded)[places].float().cpu().numpy())
        return np.concatenate(parts)
