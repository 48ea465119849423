"""Train one core for a number of seconds; energies and their peers in the same."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from scipy.stats import rankdata
from torch import Tensor, nn

from training.common.muon import Muon
from training.studies.photos.data import Windows, WindowSource
from training.studies.photos.masks import KINDS
from training.studies.photos.network import Core, WindowCompleter

_EVEN = 0.02  # errors below it count squared, above it as they are
_DOUBT = 0.002  # weight of the loss of what expects the error, which nothing else learns from
_EMA = 0.998


def compute_loss(network: nn.Module, windows: Windows) -> Tensor:
    """Charbonnier loss of hidden pixels, plus the likelihood of the errors that are expected."""
    truth, mask, prefilled = windows
    device = truth.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        residual, log_error = network(prefilled, mask)
    error = prefilled + mask * residual - truth
    main = (((error.square() + _EVEN**2).sqrt() - _EVEN) * mask).sum() / (3 * mask.sum())
    off, log_error = error.detach().abs().mean(1, keepdim=True), log_error.clamp(-8, 2)
    doubt = ((off * (-log_error).exp() + log_error) * mask).sum() / mask.sum()
    return main + _DOUBT * doubt


@torch.no_grad()
def evaluate(network: nn.Module, windows: Windows, kinds: Tensor, device: str) -> dict[str, Any]:
    """PSNR of the hidden pixels by kind of mask, of the prefill and completed, in dB, the mean
    over windows; and the rank correlation of expected and true errors over hidden pixels."""
    truth, mask, prefilled = windows
    answers: list[tuple[Tensor, Tensor]] = []
    for one, other in zip(prefilled.split(128), mask.split(128), strict=True):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            answers.append(network(one, other))
    residual, log_error = (torch.cat(parts) for parts in zip(*answers, strict=True))
    completed = (prefilled + mask * residual).clamp(0, 1)
    before, after = (_psnr(values, truth, mask) for values in (prefilled, completed))
    some = mask.sum((1, 2, 3)) > 0
    rows: dict[str, Any] = {"all": [before[some].mean().item(), after[some].mean().item()]}
    for place, kind in enumerate(KINDS):
        of_kind = some & (kinds == place)
        rows[kind] = [before[of_kind].mean().item(), after[of_kind].mean().item()]
    error = (completed - truth).abs().mean(1, keepdim=True)[mask > 0]
    expected = log_error[mask > 0]
    ranks = [rankdata(values.cpu().numpy()) for values in (error, expected)]
    rows["doubt"] = float(np.corrcoef(*ranks)[0, 1])
    return rows


def train_core(
    core: Core,
    train: WindowSource,
    val: WindowSource,
    *,
    seconds: float,
    rows: int,
    learning_rate: float,
    seed: int,
    out: Path,
    compiled: bool,
    val_rows: int = 500,
) -> dict[str, Any]:
    """Train for `seconds`, compilation not counted; the figures of the averaged weights.

    The rate rises over the first fiftieth of the time and falls to zero by a cosine. `out` gets
    the weights in half precision, and a row of figures every minute.
    """
    device = train.masks.device.type
    torch.manual_seed(seed)
    network = WindowCompleter(core, size=train.size).to(device)
    averaged = WindowCompleter(core, size=train.size).to(device)
    averaged.load_state_dict(network.state_dict())
    matrices = [
        p
        for name, p in network.named_parameters()
        if name.startswith("blocks.") and p.ndim == 2 and not name.endswith("bias_HP")
    ]
    optimizer = Muon(
        list(network.parameters()),
        matrices,
        lr=learning_rate,
        weight_decay=0.01,
        betas=(0.9, 0.99),
    )
    loss_fn = torch.compile(compute_loss, dynamic=False) if compiled else compute_loss

    def step(rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_fn(network, train.draw(rows))
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step(0.0)  # compiles
    windows, kinds = val.draw_in_order(val_rows)
    out.mkdir(parents=True, exist_ok=True)
    spent, taken, minutes = 0.0, 0, 0
    row: dict[str, Any] = {}
    while spent < seconds:
        began, share = time.perf_counter(), spent / seconds
        step(learning_rate * min(1, share / 0.02 + 0.01) * (0.5 + 0.5 * math.cos(math.pi * share)))
        taken += 1
        with torch.no_grad():
            pairs = zip(averaged.parameters(), network.parameters(), strict=True)
            for mean, now in pairs:
                mean.lerp_(now, 1 - min(_EMA, 1 - 1 / (taken + 1)))
        if device == "cuda" and taken % 20 == 0:
            torch.cuda.synchronize()
        spent += time.perf_counter() - began
        if spent // 60 > minutes or spent >= seconds:
            minutes = int(spent // 60)
            figures = _measure(averaged, windows, kinds, device)
            row = {"core": core, "seed": seed, "seconds": round(spent), "steps": taken, **figures}
            with (out / f"{core}.jsonl").open("a") as log:
                log.write(json.dumps(row) + "\n")
            halves = {name: p.half().contiguous() for name, p in averaged.state_dict().items()}
            save_file(halves, out / f"{core}.safetensors")
    return row


def _measure(
    network: WindowCompleter, windows: Windows, kinds: Tensor, device: str
) -> dict[str, Any]:
    figures = evaluate(network, windows, kinds, device)
    count = sum(p.numel() for p in network.parameters())
    return {"parameters": count, **_round(figures)}


def _round(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [round(v, 3) for v in value] if isinstance(value, list) else round(value, 3)
        for name, value in figures.items()
    }


def _psnr(values: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    squared = ((values - truth).square() * mask).sum((1, 2, 3))
    return -10 * (squared / (3 * mask.sum((1, 2, 3)).clamp(min=1))).clamp(min=1e-7).log10()
