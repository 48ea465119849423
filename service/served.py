"""A checkpoint in service: what each kind of model is to the route that it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, final

import numpy as np
from scipy.special import softmax

from models.checkpoint import Checkpoint, CheckpointError, Manifest
from models.contract import Architecture, Knobs
from models.graph import Column, Graph
from models.graph_classifier import GraphClassifier, Task
from models.image_completer import ImageCompleter, ImageConfig
from models.molecules import ATOM_COLUMNS, BOND_COLUMNS
from models.node_scorer import NodeScorer
from models.patches import MaskedImage
from service.schemas import ModelRef

N = TypeVar("N", bound=Architecture)


@dataclass(frozen=True)
class Model(ABC, Generic[N]):
    """A network and what is known of it; `route` is the path that it answers."""

    route: ClassVar[str]

    network: N
    manifest: Manifest
    sha256: str

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def ref(self) -> ModelRef:
        manifest = self.manifest
        return ModelRef(name=manifest.name, version=manifest.version, sha256=self.sha256)

    def warm_up(self) -> None:
        """Run once, so that no client waits for kernels to load."""
        self.network.infer(self.network.pack([self._smallest()]), [Knobs()])

    @abstractmethod
    def _smallest(self) -> Graph | MaskedImage:
        """Two nodes and an edge, or an image of which nothing is known."""


@final
class Scorer(Model[NodeScorer]):
    """Scores the nodes of a graph."""

    route = "/anomaly/score"

    @property
    def features(self) -> tuple[str, ...]:
        return self.network.config.features

    @property
    def relations(self) -> tuple[str, ...]:
        return self.network.config.relations

    def _smallest(self) -> Graph:
        x = np.zeros((2, len(self.features)), np.float32)
        return Graph(x, np.array([[0], [1]]), np.zeros(1, np.int64))


@final
class Classifier(Model[GraphClassifier]):
    """Classifies whole graphs, and molecules where its columns are those of SMILES."""

    route = "/classify"

    @property
    def node_features(self) -> tuple[Column, ...]:
        return self.network.config.node_features

    @property
    def edge_features(self) -> tuple[Column, ...]:
        return self.network.config.edge_features

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.network.config.tasks

    @property
    def temperatures(self) -> tuple[float, ...]:
        """T of each task; 1 where the checkpoint has none."""
        return self.manifest.temperatures or (1.0,) * len(self.tasks)

    @property
    def reads_smiles(self) -> bool:
        return (self.node_features, self.edge_features) == (ATOM_COLUMNS, BOND_COLUMNS)

    def probabilities(self, logits_RC: np.ndarray) -> list[np.ndarray]:
        """softmax(logits / T) of each task, float64 (R, its labels)."""
        ends = np.cumsum([len(task.labels) for task in self.tasks])[:-1]
        parts = np.split(logits_RC.astype(np.float64), ends, axis=1)
        return [softmax(part / t, 1) for part, t in zip(parts, self.temperatures, strict=True)]

    def _smallest(self) -> Graph:
        x = np.zeros((2, len(self.node_features)), np.float32)
        attr = np.zeros((1, len(self.edge_features)), np.float32)
        return Graph(x, np.array([[0], [1]]), None, attr)


@final
class Completer(Model[ImageCompleter]):
    """Completes pictures, window by window."""

    route = "/complete"

    @property
    def config(self) -> ImageConfig:
        return self.network.config

    def _smallest(self) -> MaskedImage:
        c = self.config
        occluded = np.ones((c.size // c.patch,) * 2, bool)
        return MaskedImage(np.zeros((c.size, c.size, c.channels), np.uint8), occluded)


def served(checkpoint: Checkpoint) -> Model[Any]:
    """The model that a checkpoint makes.

    Raises:
        CheckpointError: no route has a use for it, or its calibration is not that of its tasks.
    """
    network, manifest = checkpoint.network, checkpoint.manifest
    if isinstance(network, NodeScorer):
        return Scorer(network, manifest, checkpoint.sha256)
    if isinstance(network, GraphClassifier):
        model = Classifier(network, manifest, checkpoint.sha256)
        if len(model.temperatures) != len(model.tasks):
            raise CheckpointError(f"{manifest.name}: it needs one temperature per task")
        return model
    if isinstance(network, ImageCompleter):
        return Completer(network, manifest, checkpoint.sha256)
    raise CheckpointError(f"{manifest.name}: no route serves the task {manifest.task!r}")
