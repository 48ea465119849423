"""Labels of transactions, or of their accounts: what the loop trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import torch
from lightning_fabric import Fabric
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

from models.inputs.graph_batch import GraphBatch
from models.tasks.node_scorer import NodeScorer
from training.datasets.nodes import draw_sample
from training.datasets.transactions import DescribedTransactions
from training.tasks.anomaly.task import NodeTrainConfig
from training.trainer import TrainingTask, split_between_processes

_AT_A_TIME = {"transactions": 4096, "accounts": 512}  # about as many nodes
_EPOCH_ROWS = 100_000  # to train on; more of them would train longer, and not better
_VALIDATED_ROWS = 50_000  # after each epoch

Step = tuple[GraphBatch, Tensor, Tensor, np.ndarray]
"""(neighbourhoods, encoding of their nodes, nodes that are scored, the targets these are)"""


@final
class TransactionTrainingTask(TrainingTask):
    """Weighted cross entropy of training targets, each in the neighbourhood of the transactions
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
        labels = described.targets.labels
        self.target_N = torch.from_numpy(labels).float()
        train = described.split.train
        self.frauds, self.others = train[labels[train] == 1], train[labels[train] == 0]
        count = min(len(train), _EPOCH_ROWS)
        # The loss weighs both labels alike, so that drawing more of one does not change it.
        self.num_frauds = min(len(self.frauds), max(count // 2, count - len(self.others)))
        self.weight = torch.tensor((count - self.num_frauds) / self.num_frauds, device=device)

    def identity(self) -> dict[str, Any]:
        described = self.described
        return {
            "split": described.split.name,
            "data": described.fingerprint,
            "features": described.recipe.model_dump(mode="json"),
        }

    def build_step(self, rows: np.ndarray) -> Step:
        """Return the neighbourhoods of targets as a network takes them."""
        graph, places = self.described.build_graph(rows)
        batch = self.architecture.pack([graph])
        encoded = self.architecture.features(batch).to(self.device)
        return batch.to(self.device), encoded, torch.from_numpy(places).to(self.device), rows

    def batches(self, seed: int, fabric: Fabric) -> Iterator[Step]:
        rng = np.random.default_rng(seed)
        order = rng.permutation(self._draw_rows(rng))
        size = self.recipe.batch_nodes or len(order)
        starts = range(0, max(1, len(order) - size + 1), size)
        for start in split_between_processes(starts, fabric):
            yield self.build_step(order[start : start + size])

    def _draw_rows(self, rng: np.random.Generator) -> np.ndarray:
        """The rows of an epoch: all, or, of more than `_EPOCH_ROWS`, as many: all frauds, up to
        half of the rows unless there are fewer others, and others at random."""
        train = self.described.split.train
        if len(train) <= _EPOCH_ROWS:
            return train
        others = rng.choice(self.others, _EPOCH_ROWS - self.num_frauds, replace=False)
        return np.concatenate([rng.choice(self.frauds, self.num_frauds, replace=False), others])

    def loss(self, model: nn.Module, step: Step) -> Tensor:
        batch, encoded, places, rows = step
        target = self.target_N[rows].to(self.device)
        return nn.functional.binary_cross_entropy_with_logits(
            model(batch, None, encoded)[places], target, pos_weight=self.weight
        )

    def validate(self, network: nn.Module) -> float:
        val = draw_sample(self.described.measured["val"], _VALIDATED_ROWS)
        return float(
            average_precision_score(self.described.targets.labels[val], self.predict(network, val))
        )

    def describe(self, rows: np.ndarray) -> np.ndarray:
        """Return the columns (n, C) that trees read, of targets in their neighbourhoods."""
        return self._read(rows, self.architecture.features.compute_node_columns)

    def predict_trees(self, rows: np.ndarray) -> np.ndarray:
        """Return the log-odds (n,) that the trees of a hybrid give targets."""
        features = self.architecture.features
        return self._read(rows, features.compute_table)[:, features.count_node_columns(1)]

    def _read(self, rows: np.ndarray, compute: Callable[[GraphBatch], Tensor]) -> np.ndarray:
        parts, size = [], _AT_A_TIME[self.described.targets.unit]
        for start in range(0, len(rows), size):
            graph, places = self.described.build_graph(rows[start : start + size])
            parts.append(compute(self.architecture.pack([graph])).numpy()[places])
        return np.concatenate(parts)

    @torch.no_grad()
    def predict(self, network: nn.Module, rows: np.ndarray) -> np.ndarray:
        """Return the logits (n,) of targets, in evaluation mode."""
        network.eval()
        parts, size = [], _AT_A_TIME[self.described.targets.unit]
        for start in range(0, len(rows), size):
            batch, encoded, places, _ = self.build_step(rows[start : start + size])
            parts.append(network(batch, None, encoded)[places].float().cpu().numpy())
        return np.concatenate(parts)
