"""Labels on whole graphs: what the loop trains on for classification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from models.inputs.tokens import GraphTokens, TokenBatch, collate_tokens
from models.tasks.graph_classifier import ClassificationTask
from training.common.results_log import hash_arrays
from training.datasets import Split
from training.metrics import compute_metrics, fit_temperatures
from training.trainer import DEFAULT_BETAS, TrainingTask, split_between_processes

_EVALUATED = 256  # graphs at a time without gradients


@dataclass(frozen=True)
class GraphTrainConfig:
    """How to train one network on whole graphs; `config` goes to the network, the rest to the loop.

    The papers' recipe (Energy Transformer appendix D.3 and its code): AdamW, warm-up and cosine,
    label smoothing, centralised gradients, batches of 64.
    """

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    epochs: int = 60
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: float = 0.1
    clip: float = 1.0
    check_every: int = 1
    batch_graphs: int = 64
    label_smoothing: float = 0.05
    centralise: bool = True
    balanced: bool = False
    choose_by: Literal["cross_entropy", "roc_auc"] = "cross_entropy"

    @property
    def betas(self) -> tuple[float, float]:
        return DEFAULT_BETAS


@final
class GraphTrainingTask(TrainingTask):
    """Cross entropy with label smoothing on `split.train`, the mean over the tasks.

    Graphs without a label for a task are left out of its mean. `balanced` weighs each class of a
    task by w, the inverse of its share. That teaches softmax(z) proportional to w p, so the loss
    reads z + log w: what the network says, is validated by and ships with is p. `validate` is
    the mean over the tasks of ROC-AUC, or of the negative cross entropy at the temperature that
    would ship: on a hundred graphs it says more than accuracy, which moves by whole graphs.
    """

    def __init__(
        self,
        tokens: Sequence[GraphTokens],
        labels: np.ndarray,
        tasks: Sequence[ClassificationTask],
        split: Split,
        recipe: GraphTrainConfig,
        device: torch.device,
    ) -> None:
        self.tokens, self.split, self.recipe, self.device = tokens, split, recipe, device
        self.tasks = tuple(tasks)
        self.sizes = [len(task.labels) for task in tasks]
        # The labels of the test part are not here: what is not there cannot be read.
        chosen_by = np.union1d(split.train, split.val)
        self.labels = np.full_like(labels, -1)
        self.labels[chosen_by] = labels[chosen_by]
        self.weights = [
            _weights(labels[split.train, t], size, recipe.balanced).to(device)
            for t, size in enumerate(self.sizes)
        ]
        self.measure = f"val_{recipe.choose_by}"

    def identity(self) -> dict[str, Any]:
        graphs = (a for t in self.tokens for a in (t.x, t.indptr, t.indices, t.edge_attr))
        data = hash_arrays(*graphs, self.labels, *self.split.parts().values())
        return {"split": self.split.name, "data": data}

    def batches(self, seed: int, fabric: Fabric) -> Iterator[tuple[TokenBatch, Tensor]]:
        order = np.random.default_rng(seed).permutation(self.split.train)
        size = self.recipe.batch_graphs
        starts = list(range(0, len(order), size))
        if len(order) % size == 1 and len(starts) > 1:
            starts.pop()  # batch norm has nothing to say about a single graph
        for start in split_between_processes(starts, fabric):
            chosen = order[start : start + size]
            batch = collate_tokens([self.tokens[i] for i in chosen])
            yield batch.to(self.device), torch.from_numpy(self.labels[chosen]).to(self.device)

    def loss(self, model: nn.Module, step: tuple[TokenBatch, Tensor]) -> Tensor:
        batch, target_RT = step
        parts = []
        logits = model(batch).split(self.sizes, -1)
        for logits_RC, target_R, weight_C in zip(logits, target_RT.T, self.weights, strict=True):
            known_R = target_R >= 0
            losses_R = nn.functional.cross_entropy(
                logits_RC + weight_C.log(),
                target_R.clamp(min=0),
                weight=weight_C,
                label_smoothing=self.recipe.label_smoothing,
                reduction="none",
            )
            total = weight_C[target_R[known_R]].sum().clamp(min=1e-6)
            parts.append(losses_R[known_R].sum() / total)
        return torch.stack(parts).mean()

    def validate(self, network: nn.Module) -> float:
        val = self.split.val
        logits, labels = self._logits(network, val), self.labels[val]
        tasks = compute_metrics(
            logits, labels, self.tasks, fit_temperatures(logits, labels, self.tasks)
        )
        if self.recipe.choose_by == "cross_entropy":
            return -float(np.mean([task.cross_entropy for task in tasks]))
        values = [task.roc_auc for task in tasks if task.roc_auc is not None]
        return float(np.mean(values)) if values else 0.0

    def predict(self, network: nn.Module) -> np.ndarray:
        """Logits (G, C) of every graph, in evaluation mode."""
        return self._logits(network, np.arange(len(self.tokens)))

    @torch.no_grad()
    def _logits(self, network: nn.Module, graphs: np.ndarray) -> np.ndarray:
        network.eval()
        parts = []
        for start in range(0, len(graphs), _EVALUATED):
            tokens = [self.tokens[i] for i in graphs[start : start + _EVALUATED]]
            parts.append(network(collate_tokens(tokens).to(self.device)).float().cpu().numpy())
        return np.concatenate(parts)


def _weights(labels: np.ndarray, classes: int, balanced: bool) -> Tensor:
    if not balanced:
        return torch.ones(classes)
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    return torch.from_numpy(counts.sum() / (classes * np.maximum(counts, 1))).float()
