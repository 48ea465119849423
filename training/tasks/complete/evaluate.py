"""Figures of completed images, on what was occluded and on the whole, over masks of many seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.inputs.patches import build_patch_batch, composite, patch_mask_to_pixels
from training.datasets import ImageDataset

SEEDS = tuple(range(10))  # of the masks, as in Energy Transformer appendix F.2
_AT_A_TIME = 256  # images without gradients
_LEAST_ERROR = 1e-10  # of 8 bits only a perfect image is below; its PSNR is then 100 dB
_WINDOW, _SIGMA = 11, 1.5  # of SSIM's Gaussian
_C1, _C2 = 0.01**2, 0.03**2

CompletionFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Images uint8 (R, S, S, C), and occluded patches bool (R, S / patch, S / patch), to completed
images uint8 (R, S, S, C). What is known is its own."""


@dataclass(frozen=True)
class CompletionMetrics:
    """Means over images of 8 bits, taken as 0 to 1: of the occluded patches, and of all pixels.

    PSNR, in dB, is that of each image; 100 where nothing differs. SSIM is Wang et al. 2004 with
    their Gaussian window, channel by channel, the mean of its map over the pixels in question.
    """

    mse: float
    psnr: float
    ssim: float
    whole_mse: float
    whole_psnr: float
    whole_ssim: float
    images: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def random_patch_ranks(rng: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """The place of each patch in a random order, (R, L): those below k are k patches at random."""
    return rng.random((rows, length)).argsort(1).argsort(1)


def draw_occlusion(seed: int, rows: int, along: int, share: float) -> np.ndarray:
    """bool (R, along, along): the same share of each image, at random."""
    order = random_patch_ranks(np.random.default_rng(seed), rows, along**2)
    return (order < round(share * along**2)).reshape(rows, along, along)


def batch_slices(images: int) -> list[slice]:
    """Batches of as many as memory allows."""
    return [slice(start, start + _AT_A_TIME) for start in range(0, images, _AT_A_TIME)]


def make_completion_function(
    network: nn.Module, patch: int, device: torch.device
) -> CompletionFunction:
    """A network, ours or a baseline, as it would be served."""

    @torch.no_grad()
    def complete(images: np.ndarray, occluded: np.ndarray) -> np.ndarray:
        network.eval()
        hidden_RL = torch.from_numpy(occluded).flatten(1).to(device)
        pixels = network(build_patch_batch(torch.from_numpy(images).to(device), hidden_RL, patch))
        return composite(images, patch_mask_to_pixels(occluded, patch), pixels.float())

    return complete


def compute_completion_metrics(
    complete: CompletionFunction, images: np.ndarray, occluded: np.ndarray, patch: int
) -> CompletionMetrics:
    """The figures under one mask for each image."""
    parts: list[np.ndarray] = []
    for part in batch_slices(len(images)):
        true, hidden = images[part], occluded[part]
        parts.append(_figures(true, complete(true, hidden), patch_mask_to_pixels(hidden, patch)))
    return CompletionMetrics(*np.concatenate(parts, 1).mean(1).tolist(), images=len(images))


def evaluate_completion(
    complete: CompletionFunction,
    dataset: ImageDataset,
    patch: int,
    share: float,
    *,
    parts: Sequence[str] = ("val", "test"),
    count: int | None = None,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, list[CompletionMetrics]]:
    """Each part under the masks of each seed; no more than `count` images of it, drawn once."""
    results: dict[str, list[CompletionMetrics]] = {}
    for part in parts:
        chosen = dataset.parts()[part]
        if count is not None and count < len(chosen):
            chosen = np.sort(np.random.default_rng(0).choice(chosen, count, replace=False))
        images, along = dataset.images[chosen], dataset.size // patch
        results[part] = [
            compute_completion_metrics(
                complete, images, draw_occlusion(seed, len(images), along, share), patch
            )
            for seed in seeds
        ]
    return results


def summarize_over_masks(measured: Sequence[CompletionMetrics]) -> dict[str, Any]:
    """Mean of each figure over the masks, and its standard deviation as `<figure>_std`."""
    names = [field.name for field in fields(CompletionMetrics) if field.name != "images"]
    table = np.array([[getattr(m, name) for name in names] for m in measured])
    means = dict(zip(names, table.mean(0).tolist(), strict=True))
    spreads = zip((f"{name}_std" for name in names), table.std(0).tolist(), strict=True)
    return means | dict(spreads) | {"images": measured[0].images, "masks": len(measured)}


def ssim_map(x_RCSS: Tensor, y_RCSS: Tensor) -> Tensor:
    """The map of SSIM (Wang et al. 2004, eq. 13), same shape, of images from 0 to 1.

    Near an edge the window sees the image mirrored, so that every pixel has a figure; the authors
    leave those pixels out, which would be half of a small image.
    """

    down_SS, along_SS = (_smoothing(size).to(x_RCSS) for size in x_RCSS.shape[2:])

    def smooth(image: Tensor) -> Tensor:
        return down_SS @ image @ along_SS.T

    x, y = smooth(x_RCSS), smooth(y_RCSS)
    xx, yy = smooth(x_RCSS.square()) - x.square(), smooth(y_RCSS.square()) - y.square()
    xy = smooth(x_RCSS * y_RCSS) - x * y
    return (2 * x * y + _C1) * (2 * xy + _C2) / ((x * x + y * y + _C1) * (xx + yy + _C2))


def _smoothing(size: int) -> Tensor:
    """The window along one side of an image as a matrix (size, size), of what each pixel sees:
    ten times as fast as to convolve."""
    half = _WINDOW // 2
    weight = torch.exp(-torch.arange(-half, half + 1).double().square() / (2 * _SIGMA**2))
    seen = nn.functional.pad(torch.eye(size).double(), (half, half), mode="reflect")
    return (seen.unfold(1, _WINDOW, 1) @ (weight / weight.sum())).T


def masked_mse(true: np.ndarray, completed: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean squared error of each image on a mask of its pixels, (R,)."""
    return _mean(np.square((completed.astype(np.float64) - true) / 255).mean(-1), mask)


def psnr(mse: np.ndarray) -> np.ndarray:
    """In dB, of pixels from 0 to 1."""
    return -10 * np.log10(np.maximum(mse, _LEAST_ERROR))


def _figures(true: np.ndarray, completed: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The six figures of each image, (6, R)."""
    x, y = (torch.from_numpy(i).permute(0, 3, 1, 2).double() / 255 for i in (completed, true))
    ssim_RSS = ssim_map(x, y).mean(1).numpy()
    rows = []
    for where in (mask, np.ones_like(mask)):
        mse = masked_mse(true, completed, where)
        rows += [mse, psnr(mse), _mean(ssim_RSS, where)]
    return np.stack(rows)


def _mean(values_RSS: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return (values_RSS * mask).sum((1, 2)) / np.maximum(mask.sum((1, 2)), 1)
