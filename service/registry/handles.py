"""Handles of loaded models, one class per route."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, final

import numpy as np
from scipy.special import softmax

from models.architectures.ait import AiT, AiTConfig
from models.base import Architecture, DynamicsParams
from models.checkpoint import Checkpoint
from models.inputs.graph import Column, Graph, OutsideNeighbors
from models.inputs.images import ImageInput
from models.inputs.molecules import ATOM_COLUMNS, BOND_COLUMNS
from models.inputs.questions import ANSWERS, QUESTION_WIDTH, QUESTIONS
from models.inputs.transactions import TransactionRecipe, Transactions, find_history_kind
from models.layouts import Layout
from models.manifest import CheckpointError, EnergyReference, Manifest
from models.tasks.completer import CompletionConfig, CompletionNetwork
from models.tasks.graph_classifier import ClassificationTask, GraphClassifier
from models.tasks.node_scorer import NodeScorer
from service.registry.model_ref import ModelRef

N = TypeVar("N", bound=Architecture)


@dataclass(frozen=True)
class Model(ABC, Generic[N]):
    """A network with its manifest; `route` is the path that it serves."""

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

    @cached_property
    def ref_dict(self) -> dict[str, Any]:
        """`ref` as a dict, for responses."""
        return self.ref.model_dump()

    @property
    def size_bytes(self) -> int:
        """Bytes of weights and buffers."""
        tensors = [*self.network.parameters(), *self.network.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def runtime(self) -> str:
        """Backend of the matrix products: `torch`, or that of the prepared blocks."""
        backends = (block.prepared_backend for block in self.network.blocks_in_order())
        return next((backend.runtime for backend in backends if backend is not None), "torch")

    def layouts(self) -> list[Layout]:
        """Layouts of the energies of its blocks, for a small input."""
        return self.network.build_layouts(self.network.pack([self._dummy_input()]))

    def warm_up(self) -> None:
        """Run once, so that no request waits for kernels to load."""
        self.network.infer(self.network.pack([self._dummy_input()]), [DynamicsParams()])

    @abstractmethod
    def _dummy_input(self) -> Any:
        """Return a small input: two nodes and an edge, a fully masked image, or a black image."""


class ClassifierBase(Model[N], ABC):
    """A model with calibrated probabilities of labels."""

    @property
    @abstractmethod
    def tasks(self) -> tuple[ClassificationTask, ...]:
        """Classification tasks, each with its labels."""

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Calibration temperature of each task; 1 if the manifest has none."""
        return self.manifest.temperatures or (1.0,) * len(self.tasks)

    def probabilities(self, logits_RC: np.ndarray) -> list[np.ndarray]:
        """Return softmax(logits / T) of each task, float64 (R, its labels)."""
        ends = np.cumsum([len(task.labels) for task in self.tasks])[:-1]
        parts = np.split(logits_RC.astype(np.float64), ends, axis=1)
        return [softmax(part / t, 1) for part, t in zip(parts, self.temperatures, strict=True)]


L = TypeVar("L", bound=ClassifierBase[Any])


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

    @property
    def edge_features(self) -> tuple[str, ...]:
        return self.network.config.edge_features

    @property
    def recipe(self) -> TransactionRecipe | None:
        """How transactions become its features; None where it reads graphs."""
        return self.manifest.transactions

    @property
    def explained_features(self) -> Sequence[int]:
        """Places of the features that tell one target from another: of accounts their own."""
        recipe = self.recipe
        return range(len(self.features)) if recipe is None else recipe.own_features

    def warm_up(self) -> None:
        super().warm_up()
        if self.recipe is None:  # as part of a stored graph, which has kernels of its own
            part = replace(self._dummy_input(), outside=self._no_neighbors())
            self.network.infer(self.network.pack([part]), [DynamicsParams()])
        else:
            history = find_history_kind(self.recipe)(self.recipe)
            zero, text = np.zeros(1), np.array(["a"], object)
            history.append(
                Transactions(
                    *(zero, text, text, zero),
                    dict.fromkeys(self.recipe.text_columns, text),
                    dict.fromkeys(self.recipe.numbers, zero),
                )
            )
            history.build_graph(np.zeros(1, np.int64))

    def _dummy_input(self) -> Graph:
        x = np.zeros((2, len(self.features)), np.float32)
        attr = np.zeros((1, len(self.edge_features)), np.float32)
        return Graph(x, np.array([[0], [1]]), np.zeros(1, np.int64), attr)

    def _no_neighbors(self) -> OutsideNeighbors:
        """Nothing outside of the small input."""
        nodes, features = (len(self.relations), 2), len(self.features)
        rule = self.network.neighbor_rule
        sums = np.zeros((*nodes, rule.hops, rule.width(features)))
        scores = None if rule.trees is None else np.zeros(nodes)
        squares = np.zeros((*nodes, features + 1))
        return OutsideNeighbors(np.zeros(nodes), sums, squares, scores=scores)


@final
class Classifier(ClassifierBase[GraphClassifier]):
    """Classifies graphs, and molecules if its columns are those of SMILES."""

    route = "/classify"

    @property
    def node_features(self) -> tuple[Column, ...]:
        return self.network.config.node_features

    @property
    def edge_features(self) -> tuple[Column, ...]:
        return self.network.config.edge_features

    @property
    def tasks(self) -> tuple[ClassificationTask, ...]:
        return self.network.config.tasks

    @property
    def reads_smiles(self) -> bool:
        return (self.node_features, self.edge_features) == (ATOM_COLUMNS, BOND_COLUMNS)

    def _dummy_input(self) -> Graph:
        x = np.zeros((2, len(self.node_features)), np.float32)
        attr = np.zeros((1, len(self.edge_features)), np.float32)
        return Graph(x, np.array([[0], [1]]), None, attr)


@final
class Completer(Model[CompletionNetwork]):
    """Completes images, window by window."""

    route = "/complete"

    @property
    def config(self) -> CompletionConfig:
        return self.network.config

    @property
    def energy_reference(self) -> EnergyReference:
        return self.manifest.energy

    @property
    def cost_per_step(self) -> int:
        """Cost of a step of a window: its tokens."""
        return self.network.num_tokens

    @property
    def origin(self) -> dict[str, Any]:
        """What the response names as its source."""
        return {"model": self.ref_dict}

    def _dummy_input(self) -> Any:
        c = self.config
        black = np.zeros((c.size, c.size, c.channels), np.float32)
        return self.network.make_item(black, np.ones((c.size, c.size), bool))


class ImageModel(ClassifierBase[AiT], ABC):
    """A model of images of one size."""

    @property
    def config(self) -> AiTConfig:
        return self.network.config

    @property
    def tasks(self) -> tuple[ClassificationTask, ...]:
        return self.config.tasks

    @property
    def mean_color(self) -> np.ndarray:
        """Mean color of the training images, (C,) in [0, 1]."""
        return self.network.mean_C.cpu().numpy()

    def _dummy_input(self) -> ImageInput:
        c = self.config
        asked = np.zeros(c.question, np.float32) if c.question else None
        return ImageInput(np.zeros(c.shape, np.float32), asked)


@final
class ImageClassifier(ImageModel):
    """Classifies images."""

    route = "/images/classify"


@final
class VisualQuestionModel(ImageModel):
    """Answers questions about an image."""

    route = "/images/answer"

    @property
    def question_kinds(self) -> tuple[str, ...]:
        """Kinds of question in the training data; all if the manifest does not list them."""
        accuracies = self.manifest.metrics.get("test_accuracy_by_kind")
        trained = accuracies if isinstance(accuracies, dict) else QUESTIONS
        return tuple(kind for kind in QUESTIONS if kind in trained)


def handle_for(checkpoint: Checkpoint) -> Model[Any]:
    """Return the handle for a checkpoint.

    Raises:
        CheckpointError: no route serves its task, its temperatures do not match its tasks, or it
            has no energy.
    """
    network, manifest = checkpoint.network, checkpoint.manifest
    if isinstance(network, NodeScorer):
        return Scorer(network, manifest, checkpoint.sha256)
    if isinstance(network, GraphClassifier):
        return _calibrated(Classifier(network, manifest, checkpoint.sha256))
    if isinstance(network, CompletionNetwork):
        return Completer(network, manifest, checkpoint.sha256)
    if isinstance(network, AiT):
        _require_image_model(network, manifest.name)
        kind = VisualQuestionModel if network.config.question else ImageClassifier
        return _calibrated(kind(network, manifest, checkpoint.sha256))
    raise CheckpointError(f"{manifest.name}: no route serves the task {manifest.task!r}.")


def _calibrated(model: L) -> L:
    if len(model.temperatures) != len(model.tasks):
        raise CheckpointError(
            f"{model.name}: the manifest needs one temperature per task ({len(model.tasks)}), "
            f"not {len(model.temperatures)}."
        )
    return model


def _require_image_model(network: AiT, name: str) -> None:
    c = network.config
    if not network.blocks_in_order():
        raise CheckpointError(
            f"{name}: the model has no Hopfield network, so it has no energy to report."
        )
    if c.shape[0] not in (1, 3):
        raise CheckpointError(
            f"{name}: the model must read images with 1 or 3 channels, not {c.shape[0]}."
        )
    if c.question and (c.question, c.tasks[0].labels) != (QUESTION_WIDTH, ANSWERS):
        raise CheckpointError(
            f"{name}: questions and answers of the model must be those of Sort-of-CLEVR."
        )
