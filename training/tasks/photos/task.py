"""Holes of windows to fill: what the loop trains on for photographs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from models.inputs.windows import WindowBatch
from training.tasks.photos.configs import PhotoTrainConfig
from training.tasks.photos.data import PhotoSet, Windows, WindowSource
from training.tasks.photos.evaluate import complete_windows, measure_psnr
from training.trainer import TrainingTask, split_between_processes

_VAL_SEED = 2**31  # of the validation windows; seeds of training are smaller
_EVEN = 0.02  # errors below it count squared, above it as they are
_DOUBT = 0.002  # weight of the uncertainty loss; it trains only the uncertainty head


def compute_loss(outputs: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    """Charbonnier loss of the hidden pixels, plus the negative log-likelihood of their errors if
    these have a Laplace distribution of the scale that is expected.

    Args:
        outputs: (R, C + 1, S, S) of a completer.
        truth: windows (R, C, S, S).
        mask: (R, 1, S, S), 1 where hidden.
    """
    error = outputs[:, :-1] - truth
    charbonnier = ((error.square() + _EVEN**2).sqrt() - _EVEN) * mask
    main = charbonnier.sum() / (truth.shape[1] * mask.sum())
    off = error.detach().abs().mean(1, keepdim=True)
    log_error = outputs[:, -1:].clamp(-8, 2)
    doubt = ((off * (-log_error).exp() + log_error) * mask).sum() / mask.sum()
    return main + _DOUBT * doubt


@final
class PhotoTrainingTask(TrainingTask):
    """Windows drawn anew every step; `validate` is the mean PSNR of the hidden pixels of windows of
    the validation photographs, whose masks and places stay the same."""

    measure = "val_psnr"

    def __init__(
        self, photos: PhotoSet, recipe: PhotoTrainConfig, device: torch.device, *, seed: int
    ) -> None:
        self.photos, self.recipe = photos, recipe
        size = recipe.config["size"]
        self.num_tokens = (size // recipe.config["patch"]) ** 2
        train, val = (torch.from_numpy(part).to(device) for part in (photos.train, photos.val))
        self.source = WindowSource(
            train, recipe.masks, size, seed, turn=True, jpeg_share=recipe.jpeg_share
        )
        fixed = WindowSource(val, recipe.val_windows, size, _VAL_SEED, turn=False)
        self.val, self.val_kinds = fixed.draw_in_order(recipe.val_windows)

    def identity(self) -> dict[str, Any]:
        return {"split": self.photos.split.name, "data": self.photos.fingerprint}

    def muon_parameters(self, network: nn.Module) -> list[nn.Parameter]:
        """Matrices of energies and layers; the codec's face pixels."""
        return [
            p
            for name, p in network.named_parameters()
            if name.startswith(("blocks.", "layers.")) and p.ndim > 1 and "bias" not in name
        ]

    def batches(self, seed: int, fabric: Fabric) -> Iterator[Windows]:
        for batch in split_between_processes(range(self.recipe.epoch_batches), fabric):
            # A seed for each batch: windows do not depend on how many processes there are.
            self.source.seed((seed * self.recipe.epoch_batches + batch) % 2**31)
            yield self.source.draw(self.recipe.batch_windows)

    def loss(self, model: nn.Module, step: Windows) -> Tensor:
        batch = WindowBatch(step.prefilled, step.mask, self.num_tokens)
        return compute_loss(model(batch).float(), step.truth, step.mask)

    def validate(self, network: nn.Module) -> float:
        network.eval()
        completed, _ = complete_windows(network, self.val)
        return float(measure_psnr(completed, self.val.truth, self.val.mask).mean())
