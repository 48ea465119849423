"""What is told of completed images, and what a user would pick instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.architectures.et import ETImage, ETImageConfig
from models.inputs.patches import patch_mask_to_pixels
from training.tasks.complete.baselines import UNTRAINED_BASELINES, ViT
from training.tasks.complete.evaluate import (
    CompletionMetrics,
    compute_completion_metrics,
    draw_occlusion,
    ssim_map,
    summarize_over_masks,
)
from training.trainer import count_parameters


def test_ssim_is_that_of_its_formula() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 1, 2, 16, 14))
    y = 0.6 * x + 0.4 * y
    at = np.arange(-5, 6)
    weight = np.exp(-(at[:, None] ** 2 + at**2) / (2 * 1.5**2))
    weight /= weight.sum()
    found = ssim_map(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    for channel, row, column in ((0, 8, 7), (1, 5, 8), (1, 0, 0), (0, 15, 3)):
        windows = (
            np.pad(image[0, channel], 5, "reflect")[row : row + 11, column : column + 11]
            for image in (x, y)
        )
        a, b = windows
        ma, mb = (weight * a).sum(), (weight * b).sum()
        va, vb = (weight * (a - ma) ** 2).sum(), (weight * (b - mb) ** 2).sum()
        ab = (weight * (a - ma) * (b - mb)).sum()
        c1, c2 = 1e-4, 9e-4
        expected = (2 * ma * mb + c1) * (2 * ab + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
        assert found[0, channel, row, column] == pytest.approx(expected, abs=1e-10)
    torch.testing.assert_close(
        ssim_map(*[torch.from_numpy(x)] * 2), torch.ones(1, 2, 16, 14).double()
    )


def test_figures() -> None:
    images = np.full((2, 12, 12, 3), 100, np.uint8)
    occluded = draw_occlusion(0, 2, 4, 0.5)
    assert occluded.sum((1, 2)).tolist() == [8, 8]

    def wrong(true: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        return np.where(patch_mask_to_pixels(hidden, 3)[..., None], true + np.uint8(51), true)

    m = compute_completion_metrics(wrong, images, occluded, 3)
    assert (m.mse, m.whole_mse) == (pytest.approx(0.04), pytest.approx(0.02))
    assert m.psnr == pytest.approx(10 * np.log10(25))
    assert max(m.ssim, m.whole_ssim) < 0.5
    right = compute_completion_metrics(lambda true, _: true, images, occluded, 3)
    assert right == CompletionMetrics(0.0, 100.0, 1.0, 0.0, 100.0, 1.0, 2)
    summary = summarize_over_masks([m, right])
    assert (summary["mse"], summary["mse_std"]) == (pytest.approx(0.02), pytest.approx(0.02))
    assert (summary["images"], summary["masks"]) == (2, 2)


@pytest.mark.parametrize("name", UNTRAINED_BASELINES)
@pytest.mark.parametrize("channels", [1, 3])
def test_baselines_fill_holes_and_nothing_else(name: str, channels: int) -> None:
    rng = np.random.default_rng(0)
    flat = np.full((1, 12, 12, channels), 77, np.uint8)
    noisy = rng.integers(0, 256, (1, 12, 12, channels), np.uint8)
    images, occluded = np.concatenate([flat, noisy]), draw_occlusion(0, 2, 4, 0.5)
    mask = patch_mask_to_pixels(occluded, 3)
    broken = np.where(mask[..., None], rng.integers(0, 256, images.shape, np.uint8), images)
    filled = UNTRAINED_BASELINES[name](3)(broken, occluded)
    assert filled.dtype == np.uint8
    assert (filled[~mask] == images[~mask]).all()
    assert np.abs(filled[0].astype(int) - 77).max() <= 4  # Telea's sums are not exact
    again = UNTRAINED_BASELINES[name](3)(images, occluded)
    assert (again == filled).all()  # what was in the holes has no part
    every = np.ones((2, 4, 4), bool)
    assert UNTRAINED_BASELINES["mean-colour"](3)(images, every).std() == 0


@pytest.mark.parametrize("dim", [64, 256])
def test_the_vit_is_as_large(dim: int) -> None:
    config = ETImageConfig(size=32, patch=4, dim=dim, heads=4, memories=4 * dim)
    vit = ViT.from_et_config(config)
    assert count_parameters(vit) == pytest.approx(count_parameters(ETImage(config)), rel=0.1)
