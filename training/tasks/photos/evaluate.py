"""Figures of completed windows: PSNR of the hidden pixels, and what expected errors are worth."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.inputs.windows import WindowBatch
from training.metrics import rank_correlation
from training.tasks.photos.data import Windows
from training.tasks.photos.masks import KINDS

_AT_A_TIME = 64
_LEAST_ERROR = 1e-7


@torch.no_grad()
def complete_windows(network: nn.Module, windows: Windows) -> tuple[Tensor, Tensor]:
    """Completed pixels (R, C, S, S), from 0 to 1, and the logarithm of the error to expect
    (R, 1, S, S)."""
    outputs = [
        network(WindowBatch(*both, _count_tokens(network)))
        for both in zip(
            windows.prefilled.split(_AT_A_TIME), windows.mask.split(_AT_A_TIME), strict=True
        )
    ]
    values = torch.cat(outputs).float()
    return values[:, :-1].clamp(0, 1), values[:, -1:]


def measure_psnr(values: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    """Of the hidden pixels of each window (R,), in dB."""
    channels = truth.shape[1]
    squared = ((values - truth).square() * mask).sum((1, 2, 3))
    mse = squared / (channels * mask.sum((1, 2, 3)).clamp(min=1))
    return -10 * mse.clamp(min=_LEAST_ERROR).log10()


def evaluate_windows(network: nn.Module, windows: Windows, kinds: Tensor) -> dict[str, float]:
    """Mean PSNR over windows by kind of mask, `prefill_psnr_*` of the prefill and `psnr_*`
    completed; and as `doubt` the rank correlation of expected and true errors over hidden
    pixels."""
    network.eval()
    truth, mask, prefilled = windows
    completed, log_error = complete_windows(network, windows)
    before, after = (measure_psnr(values, truth, mask) for values in (prefilled, completed))
    some = mask.sum((1, 2, 3)) > 0
    parts = {"all": some} | {kind: some & (kinds == place) for place, kind in enumerate(KINDS)}
    figures: dict[str, float] = {}
    for kind, part in parts.items():
        if part.any():
            name = kind.replace(" ", "_")
            figures[f"prefill_psnr_{name}"] = round(before[part].mean().item(), 4)
            figures[f"psnr_{name}"] = round(after[part].mean().item(), 4)
    error = (completed - truth).abs().mean(1, keepdim=True)[mask > 0]
    doubt = rank_correlation(error.cpu().numpy(), log_error[mask > 0].cpu().numpy())
    return figures | {"doubt": round(doubt, 4)}


def _count_tokens(network: nn.Module) -> int:
    codec = getattr(network, "codec", None)
    return 0 if codec is None else codec.num_tokens
