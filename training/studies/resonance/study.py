"""A checkpoint with its data: its figure on test under a resonance, with its weights and with new.

The figure is what its task reports: ROC-AUC of fraud and of classes, PSNR of completed patches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast, final

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress
from scipy.stats import rankdata
from torch import Tensor, nn

from models.base import Architecture, DynamicsParams
from models.checkpoint import Checkpoint
from models.resonance import Resonance
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.image_completer import ImageCompleter
from models.tasks.node_scorer import NodeScorer
from training.provenance import load_graph_data, load_image_data, load_node_data
from training.tasks.anomaly.configs import node_train_config, smoke_node_config
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.train import train_node_scorer
from training.tasks.classify.configs import graph_train_config, smoke_graph_config
from training.tasks.classify.task import GraphTrainConfig
from training.tasks.classify.train import train_graph_classifier
from training.tasks.complete.configs import smoke_completion_config
from training.tasks.complete.evaluate import (
    evaluate_completion,
    make_completion_function,
    summarize_over_masks,
)
from training.tasks.complete.task import CompletionTrainConfig
from training.tasks.complete.train import train_image_completer

_AT_A_TIME = 256
_IMAGES = 1000  # of the test part
R = TypeVar("R", NodeTrainConfig, GraphTrainConfig, CompletionTrainConfig)


@dataclass(frozen=True)
class RetrainOptions:
    """How networks are trained anew: as their recipes say, but for what is set here.

    Attributes:
        smoke: for a look whether everything runs.
        epochs: in place of the recipe's.
    """

    fabric: Fabric
    progress: Progress
    smoke: bool = False
    epochs: int | None = None

    def adjust_recipe(self, chosen: R, small: Callable[[R], R], added: dict[str, Any]) -> R:
        """`chosen`, or what `small` makes of it, with `added` in the network's configuration."""
        chosen = small(chosen) if self.smoke else chosen
        chosen = replace(chosen, config=chosen.config | added)
        return chosen if self.epochs is None else replace(chosen, epochs=self.epochs)


class CheckpointStudy(ABC):
    """One checkpoint, and what it was trained on."""

    metric_name = "roc_auc"

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.manifest = checkpoint, checkpoint.manifest
        self.model = checkpoint.manifest.name.partition("-")[0]

    @abstractmethod
    def compute_scores(self, resonance: Resonance | None) -> np.ndarray:
        """Of the test rows, by the weights there are; for images the PSNR under each mask."""

    @abstractmethod
    def compute_metric(self, scores: np.ndarray) -> float:
        """The figure."""

    @abstractmethod
    def compute_standard_error(self, scores: np.ndarray, base: np.ndarray) -> float:
        """Standard error of the difference of the figures of two, on the same rows."""

    @abstractmethod
    def retrain(self, added: dict[str, Any], seed: int, how: RetrainOptions) -> float:
        """The figure on test of a network trained anew with `added` in its configuration."""


class _Ranked(CheckpointStudy):
    """ROC-AUC of one label against the other."""

    labels: np.ndarray

    def compute_metric(self, scores: np.ndarray) -> float:
        return float(np.mean(_placements(scores, self.labels)[0]))

    def compute_standard_error(self, scores: np.ndarray, base: np.ndarray) -> float:
        return delong_standard_error(scores, base, self.labels)


@final
class _Nodes(_Ranked):
    def __init__(self, checkpoint: Checkpoint, folder: Path | None) -> None:
        super().__init__(checkpoint)
        self.dataset, self.split = load_node_data(self.manifest, folder)
        self.labels = self.dataset.labels[self.split.test]
        self.network = cast(NodeScorer, checkpoint.network)

    @cached_property
    def _posed(self) -> tuple[Any, Tensor]:
        batch = self.network.pack([self.dataset.graph])
        return batch, self.network.features(batch)

    @torch.no_grad()
    def compute_scores(self, resonance: Resonance | None) -> np.ndarray:
        batch, encoded_NP = self._posed
        logits_N = self.network(batch, [DynamicsParams(resonance=resonance)], encoded_NP)
        return logits_N.double().numpy()[self.split.test]

    def retrain(self, added: dict[str, Any], seed: int, how: RetrainOptions) -> float:
        edges = self.dataset.graph.edge_index.shape[1]
        recipe = node_train_config(
            self.model, self.dataset.name, len(self.split.train), edges=edges
        )
        recipe = how.adjust_recipe(recipe, smoke_node_config, added)
        run = train_node_scorer(
            self.dataset,
            self.split,
            recipe,
            seed=seed,
            fabric=how.fabric,
            progress=how.progress,
        )
        return run.evaluation.parts["test"].roc_auc


@final
class _Graphs(_Ranked):
    def __init__(self, checkpoint: Checkpoint, folder: Path | None) -> None:
        super().__init__(checkpoint)
        self.dataset, self.split = load_graph_data(self.manifest, folder)
        labels = self.dataset.labels
        if labels.shape[1] != 1 or labels.max() != 1:
            raise ValueError(f"{self.manifest.name}: only one question of two labels has a ROC-AUC")
        self.test = self.split.test[labels[self.split.test, 0] >= 0]
        self.labels = labels[self.test, 0]
        self.network = cast(GraphClassifier, checkpoint.network)

    @cached_property
    def _batches(self) -> list[Any]:
        graphs = [self.dataset.graphs[i] for i in self.test]
        starts = range(0, len(graphs), _AT_A_TIME)
        return [self.network.pack(graphs[start : start + _AT_A_TIME]) for start in starts]

    @torch.no_grad()
    def compute_scores(self, resonance: Resonance | None) -> np.ndarray:
        params = DynamicsParams(resonance=resonance)
        logits = [self.network(batch, [params] * batch.rows) for batch in self._batches]
        logits_RC = torch.cat(logits).double().numpy()
        return logits_RC[:, 1] - logits_RC[:, 0]

    def retrain(self, added: dict[str, Any], seed: int, how: RetrainOptions) -> float:
        molecules = self.dataset.smiles is not None
        recipe = graph_train_config(self.model, self.dataset.name, molecules=molecules)
        recipe = how.adjust_recipe(recipe, smoke_graph_config, added)
        run = train_graph_classifier(
            self.dataset,
            self.split,
            recipe,
            seed=seed,
            fabric=how.fabric,
            progress=how.progress,
        )
        return cast(float, run.evaluation.mean("test", "roc_auc"))


@final
class _Images(CheckpointStudy):
    figure = "psnr"

    def __init__(self, checkpoint: Checkpoint, folder: Path | None) -> None:
        super().__init__(checkpoint)
        self.dataset = load_image_data(self.manifest, folder)
        if not isinstance(checkpoint.network, ImageCompleter):
            raise ValueError(f"{checkpoint.manifest.name}: this study does not support et-window")
        self.network = checkpoint.network
        self.recipe = CompletionTrainConfig(
            **cast(dict[str, Any], self.manifest.training["recipe"])
        )

    def compute_scores(self, resonance: Resonance | None) -> np.ndarray:
        patch, device = self.network.config.patch, torch.device("cpu")
        asked = make_completion_function(
            _Asked(self.network, DynamicsParams(resonance=resonance)), patch, device
        )
        measured = evaluate_completion(
            asked, self.dataset, patch, self.recipe.occluded, parts=("test",), count=_IMAGES
        )
        return np.array([mask.psnr for mask in measured["test"]])

    def compute_metric(self, scores: np.ndarray) -> float:
        return float(scores.mean())

    def compute_standard_error(self, scores: np.ndarray, base: np.ndarray) -> float:
        return float((scores - base).std(ddof=1) / len(scores) ** 0.5)

    def retrain(self, added: dict[str, Any], seed: int, how: RetrainOptions) -> float:
        run = train_image_completer(
            self.dataset,
            how.adjust_recipe(self.recipe, smoke_completion_config, added),
            seed=seed,
            fabric=how.fabric,
            parts=("test",),
            count=_IMAGES,
            progress=how.progress,
        )
        return summarize_over_masks(run.parts["test"])["psnr"]


class _Asked(nn.Module):
    """A network with the knobs of a request."""

    def __init__(self, network: Architecture, params: DynamicsParams) -> None:
        super().__init__()
        self.network, self.params = network, params

    def forward(self, batch: Any) -> Tensor:
        return self.network(batch, [self.params] * batch.rows)


def load_study(checkpoint: Checkpoint, folder: Path | None = None) -> CheckpointStudy:
    """A checkpoint with its data.

    Raises:
        FileNotFoundError: saying which data are not here.
        ValueError: they are not what it was trained on, or it has no figure.
    """
    kinds = {"anomaly": _Nodes, "classification": _Graphs, "completion": _Images}
    kind = kinds.get(checkpoint.manifest.task)
    if kind is None:
        raise ValueError(f"{checkpoint.manifest.name}: there is no table of its task")
    return kind(checkpoint, folder)


def delong_standard_error(scores: np.ndarray, base: np.ndarray, labels: np.ndarray) -> float:
    """Standard error of the difference of two ROC-AUCs on the same rows (DeLong et al. 1988)."""
    parts = zip(_placements(scores, labels), _placements(base, labels), strict=True)
    return float(np.sqrt(sum((one - other).var(ddof=1) / len(one) for one, other in parts)))


def _placements(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row of label 1 the share of those of label 0 that it outranks, and for each of
    label 0 that of those of label 1 that outrank it; equals count half. Either mean is the AUC."""
    one, other = scores[labels == 1], scores[labels == 0]
    ranks = rankdata(np.r_[one, other])
    above = (ranks[: len(one)] - rankdata(one)) / len(other)
    below = 1 - (ranks[len(one) :] - rankdata(other)) / len(one)
    return above, below
