"""Patches to guess: what the loop trains on for images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from models.inputs.patches import (
    PatchBatch,
    PatchCodec,
    build_patch_batch,
    patch_mask_to_pixels,
    patchify,
)
from training.datasets import ImageDataset
from training.tasks.complete.evaluate import (
    batch_slices,
    draw_occlusion,
    make_completion_function,
    masked_mse,
    psnr,
    random_patch_ranks,
)
from training.trainer import TrainingTask, split_between_processes


@dataclass(frozen=True)
class CompletionTrainConfig:
    """How to train one network on images; `config` goes to the network, the rest to the loop.

    The paper's recipe (Energy Transformer appendix B and table 4): `occluded` is the share of the
    patches that the loss counts, `kept_open` the share of those that the network sees all the
    same, without which the Hopfield network learns no patches. With `vary` the share of an image
    lies anywhere between `occluded` less that and more: a model that is served with few holes must
    have learned with few. `epoch_images` ends an epoch early. Of the paper's augmentation only the
    mirror image is here, where a dataset allows it. With `muon` the matrices of energies or layers
    are trained by that. `contrast` is given to the network once it is trained (`ImageConfig`): of
    what it is trained on next to nothing is as even as windows of photographs are.
    """

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    epochs: int = 100
    learning_rate: float = 5e-4
    weight_decay: float = 0.05
    warmup: float = 0.02
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.99)
    check_every: int = 1
    batch_images: int = 128
    epoch_images: int | None = None
    occluded: float = 0.5
    kept_open: float = 0.1
    vary: float = 0.0
    muon: bool = False
    contrast: float = 0.0

    @property
    def centralise(self) -> bool:
        return False


@final
class CompletionTrainingTask(TrainingTask):
    """Mean over the pictures of the mean squared error of standardised pixels on the patches that
    count, new ones every step.

    `validate` is the mean PSNR of the occluded patches of `split.val`, under masks that stay the
    same. Test images are not looked at.
    """

    measure = "val_psnr"

    def __init__(
        self,
        dataset: ImageDataset,
        codec: PatchCodec,
        recipe: CompletionTrainConfig,
        device: torch.device,
    ) -> None:
        self.dataset, self.recipe, self.device = dataset, recipe, device
        self.patch, self.length = codec.patch, codec.num_patches
        self.std_P = codec.get_training_scale()[1].to(device)

    def identity(self) -> dict[str, Any]:
        return {"split": self.dataset.split.name, "data": self.dataset.fingerprint}

    def muon_parameters(self, network: nn.Module) -> list[nn.Parameter]:
        """Of energies or layers; the codec's face pixels and places."""
        inside = ((name, p) for name, p in network.named_parameters() if p.ndim > 1)
        return [p for name, p in inside if self.recipe.muon and not name.startswith("codec.")]

    def batches(self, seed: int, fabric: Fabric) -> Iterator[tuple[PatchBatch, Tensor]]:
        order = np.random.default_rng(seed).permutation(self.dataset.split.train)
        order = order[: self.recipe.epoch_images]
        size = self.recipe.batch_images
        for start in split_between_processes(range(0, len(order), size), fabric):
            # A generator for each batch: masks do not depend on how many processes there are.
            yield self._step(order[start : start + size], np.random.default_rng((seed, start)))

    def _step(self, chosen: np.ndarray, rng: np.random.Generator) -> tuple[PatchBatch, Tensor]:
        images = torch.from_numpy(self.dataset.images[chosen]).to(self.device)
        if self.dataset.mirror:
            turned = torch.from_numpy(rng.random(len(chosen)) < 0.5).to(self.device)
            images = torch.where(turned[:, None, None, None], images.flip(2), images)
        order = random_patch_ranks(rng, len(chosen), self.length)
        share_R1 = self.recipe.occluded + self.recipe.vary * rng.uniform(-1, 1, (len(chosen), 1))
        counted_R1 = (share_R1 * self.length).round()
        masked_R1 = counted_R1 - (self.recipe.kept_open * counted_R1).round()
        hidden_RL, counted_RL = (
            torch.from_numpy(order < below_R1).to(self.device)
            for below_R1 in (masked_R1, counted_R1)
        )
        return build_patch_batch(images, hidden_RL, self.patch), counted_RL.flatten()

    def loss(self, model: nn.Module, step: tuple[PatchBatch, Tensor]) -> Tensor:
        batch, counted_N = step
        error_NP = (patchify(model(batch), self.patch) - batch.patches_NP) / self.std_P
        error_RL = error_NP.square().mean(1).view(batch.rows, -1)
        counted_RL = counted_N.view(batch.rows, -1)
        # Of each picture first: one with few holes counts as much as one with many.
        return ((error_RL * counted_RL).sum(1) / counted_RL.sum(1).clamp(min=1)).mean()

    def validate(self, network: nn.Module) -> float:
        images = self.dataset.images[self.dataset.split.val]
        along = self.dataset.size // self.patch
        occluded = draw_occlusion(0, len(images), along, self.recipe.occluded)
        complete = make_completion_function(network, self.patch, self.device)
        parts = batch_slices(len(images))
        completed = np.concatenate([complete(images[part], occluded[part]) for part in parts])
        return float(
            psnr(masked_mse(images, completed, patch_mask_to_pixels(occluded, self.patch))).mean()
        )
