"""Labels on pictures: what the loop trains on for recognition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast, final

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from models.architectures.ait import AiT, AiTConfig
from models.inputs.images import ImageBatch
from training.datasets.labeled_images import LabeledImageDataset
from training.metrics import compute_metrics
from training.trainer import DEFAULT_BETAS, TrainingTask, split_between_processes

_EVALUATED = 256  # pictures at a time without gradients
_FRESH = 3  # beside the seeds of train, val and test
_MARGIN = 4  # pixels by which an augmented picture may be moved


@dataclass(frozen=True)
class ImageClassifierTrainConfig:
    """How to train one network on pictures; `config` goes to the network, the rest to the loop.

    `balance` is sigma of the balance loss. To `shift` moves pictures by up to four pixels and
    mirrors half of them (appendix A.1). `fresh` draws the pictures to train on as they are needed,
    no two epochs alike, where the dataset is generated. `reset_memory` is an ablation of table 2.
    """

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    epochs: int = 40
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05
    clip: float = 1.0
    check_every: int = 1
    batch_pictures: int = 128
    balance: float = 1e-2
    augment: Literal["shift"] | None = None
    fresh: bool = False
    reset_memory: bool = False
    centralise: bool = False

    @property
    def betas(self) -> tuple[float, float]:
        return DEFAULT_BETAS


class TrainStep(NamedTuple):
    """A batch with the label of each answer (R,), and whether an epoch begins with it."""

    batch: ImageBatch
    target_R: Tensor
    starts_epoch: bool


@final
class ImageClassifierTrainingTask(TrainingTask):
    """Cross entropy on `split.train` and sigma times the balance loss.

    `validate` is accuracy; equal accuracies are parted by the cross entropy. Where questions are
    apart, a picture comes with all of its own.
    """

    measure = "val_accuracy"

    def __init__(
        self,
        dataset: LabeledImageDataset,
        config: AiTConfig,
        recipe: ImageClassifierTrainConfig,
        device: torch.device,
    ) -> None:
        if recipe.fresh and (dataset.generate is None or dataset.questions is not None):
            raise ValueError(f"{dataset.name}: fresh pictures there are none")
        if recipe.fresh and recipe.augment is not None:
            raise ValueError("fresh pictures need no augmenting")
        self.dataset, self.recipe, self.device = dataset, recipe, device
        apart = config.question > 0 and config.asked == "apart"
        self.together = len(dataset.labels) // len(dataset.pixels) if apart else 1
        self.tokens = config.num_tokens + self.together - 1
        self.split = dataset.split
        # The labels of the test part are not here: what is not there cannot be read.
        chosen_by = np.union1d(self.split.train, self.split.val)
        self.labels = np.full_like(dataset.labels, -1)
        self.labels[chosen_by] = dataset.labels[chosen_by]

    def identity(self) -> dict[str, Any]:
        return {"split": self.split.name, "data": self.dataset.fingerprint}

    def batches(self, seed: int, fabric: Fabric) -> Iterator[TrainStep]:
        order = np.random.default_rng(seed).permutation(self._rows(self.split.train))
        size = self.recipe.batch_pictures
        # Whole batches alone: what competes in a pool is always as much.
        starts = range(0, len(order) // size * size, size)
        for step, start in enumerate(split_between_processes(starts, fabric)):
            chosen_RK = order[start : start + size]
            # A seed for each batch: what it shows does not depend on how many processes there are.
            if self.recipe.fresh:
                yield self._fresh(size, (seed, start, _FRESH), step == 0)
                continue
            target_R = torch.from_numpy(self.labels[chosen_RK.ravel()]).to(self.device)
            batch = self._batch(chosen_RK, np.random.default_rng((seed, start)))
            yield TrainStep(batch, target_R, step == 0)

    def _fresh(self, count: int, seed: tuple[int, ...], first: bool) -> TrainStep:
        draw = self.dataset.generate
        assert draw is not None
        pixels, labels = draw(count, seed)
        pixels_RCHW = torch.from_numpy(pixels).to(self.device).float() / 255
        batch = ImageBatch(pixels_RCHW, None, self.tokens)
        return TrainStep(batch, torch.from_numpy(labels).to(self.device), first)

    def loss(self, model: nn.Module, step: TrainStep) -> Tensor:
        if step.starts_epoch and self.recipe.reset_memory:
            cast(AiT, model).reset_memories()
        entropy = nn.functional.cross_entropy(model(step.batch), step.target_R)
        return entropy + self.recipe.balance * cast(AiT, model).balance

    def validate(self, network: nn.Module) -> float:
        val = self.split.val
        labels_S1 = self.labels[val][:, None]
        (figures,) = compute_metrics(self._logits(network, val), labels_S1, (self.dataset.task,))
        return figures.accuracy - 1e-3 * figures.cross_entropy

    def predict(self, network: nn.Module) -> np.ndarray:
        """Logits (S, C) of every sample, in evaluation mode."""
        return self._logits(network, np.arange(len(self.labels)))

    def _rows(self, samples: np.ndarray) -> np.ndarray:
        """Samples by what comes with one picture, (R, K)."""
        samples_RK = samples.reshape(-1, self.together)
        of_RK = self.dataset.image_ids[samples_RK]
        if (of_RK != of_RK[:, :1]).any():
            raise ValueError(f"{self.dataset.name}: pictures are not asked {self.together} each")
        return samples_RK

    def _batch(self, samples_RK: np.ndarray, rng: np.random.Generator | None = None) -> ImageBatch:
        data = self.dataset
        pixels = data.pixels[data.image_ids[samples_RK[:, 0]]]
        if rng is not None and self.recipe.augment is not None:
            pixels = shift_and_mirror(pixels, rng)
        asked = None
        if data.questions is not None:
            asked = torch.from_numpy(data.questions[samples_RK]).to(self.device)
        return ImageBatch(
            torch.from_numpy(pixels).to(self.device).float() / 255, asked, self.tokens
        )

    @torch.no_grad()
    def _logits(self, network: nn.Module, samples: np.ndarray) -> np.ndarray:
        network.eval()
        parts = []
        samples_RK = self._rows(samples)
        for start in range(0, len(samples_RK), _EVALUATED):
            batch = self._batch(samples_RK[start : start + _EVALUATED])
            parts.append(network(batch).float().cpu().numpy())
        return np.concatenate(parts)


def shift_and_mirror(pixels_RCHW: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each picture moved by up to four pixels each way, black behind it, half of them mirrored."""
    rows = np.arange(len(pixels_RCHW))
    edge = (_MARGIN, _MARGIN)
    padded = np.pad(pixels_RCHW, ((0, 0), (0, 0), edge, edge))
    windows = np.lib.stride_tricks.sliding_window_view(padded, pixels_RCHW.shape[2:], (2, 3))
    down, right = rng.integers(0, 2 * _MARGIN + 1, (2, len(rows)))
    moved = windows[rows, :, down, right]
    mirrored = rng.random(len(rows)) < 0.5
    moved[mirrored] = moved[mirrored, ..., ::-1]
    return moved
