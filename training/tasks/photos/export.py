"""A trained completer of photographs as a checkpoint that the server loads."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import torch

from models.base import DynamicsParams
from models.checkpoint import Checkpoint, save_checkpoint
from models.inputs.windows import WindowBatch
from models.manifest import EnergyReference, HiddenReference, Manifest
from models.tasks.window_completer import WindowCompleter
from training.export import build_manifest, energy_quantiles
from training.model_card import build_card
from training.tasks.photos.configs import PhotoTrainConfig
from training.tasks.photos.data import PhotoSet, WindowSource
from training.tasks.photos.train import PhotoRun

_PROTOCOL = (
    "weights from windows of the training photographs; epoch chosen on windows of the validation "
    "photographs, which the figures are of; the test photographs were not read"
)
_REFERENCE_WINDOWS, _PARTS, _AT_A_TIME = 2048, 8, 32


def export_photo_completer(
    folder: Path, name: str, photos: PhotoSet, run: PhotoRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network = cast(WindowCompleter, run.network)
    manifest = build_manifest(
        network,
        photos,
        photos.split,
        run,
        name=name,
        seed=seed,
        unit="photos",
        fingerprint=photos.fingerprint,
        protocol=_PROTOCOL,
        features=(),
        energy=measure_window_energies(network, photos, run.train_config),
        metrics={"val": run.figures},
    )
    return save_checkpoint(
        folder, network, manifest, build_card(manifest, _card(manifest, network))
    )


@torch.no_grad()
def measure_window_energies(
    network: WindowCompleter, photos: PhotoSet, recipe: PhotoTrainConfig
) -> EnergyReference:
    """Quantiles of the final energy per token over windows of training photographs: of all, and of
    eighths of them by how much of a window is hidden."""
    seen = recipe.epochs * recipe.epoch_batches * recipe.batch_windows
    count = min(_REFERENCE_WINDOWS, seen)
    masks = min(recipe.masks, count)
    train, size = torch.from_numpy(photos.train), network.config.size
    source = WindowSource(train, masks, size, 0, turn=True, jpeg_share=recipe.jpeg_share)
    energies: list[np.ndarray] = []
    shares: list[np.ndarray] = []
    for start in range(0, count, _AT_A_TIME):
        windows = source.draw(min(_AT_A_TIME, count - start))
        batch = WindowBatch(windows.prefilled, windows.mask, network.codec.num_tokens)
        output = network.infer(batch, [DynamicsParams()] * batch.rows)
        energies.append(np.sum([s.trace[-1].energy_R for s in output.solutions], 0))
        shares.append(batch.hidden_share_R.numpy())
    energy = np.concatenate(energies, dtype=np.float64) / network.codec.num_tokens
    share = np.concatenate(shares)
    parts = np.array_split(np.argsort(share), min(_PARTS, count))
    by_hidden = {float(share[part].mean()): energy_quantiles(energy[part]).values for part in parts}
    references = tuple(
        HiddenReference(share=share, values=values) for share, values in sorted(by_hidden.items())
    )
    return energy_quantiles(energy).model_copy(update={"by_hidden": references})


def _card(manifest: Manifest, network: WindowCompleter) -> str:
    t, c = manifest.training, network.config
    figures = cast(dict[str, float], manifest.metrics["val"])
    kinds = [name.removeprefix("psnr_") for name in figures if name.startswith("psnr_")]
    rows = "\n".join(
        f"| {kind.replace('_', ' ')} | {figures[f'prefill_psnr_{kind}']:.2f} | "
        f"{figures[f'psnr_{kind}']:.2f} |"
        for kind in kinds
    )
    return f"""# {manifest.name}

Energy Transformer that completes photographs, by windows whose holes are prefilled.

- **Windows**: {c.size} x {c.size} pixels, in patches of {c.patch} x {c.patch}. Holes are first
  filled by Laplace's equation; the network adds a residual.
- **Data**: {t["dataset"]}. {t["note"]}
- **Split**: `{t["split"]}`: {t["train_photos"]} photographs to train, {t["val_photos"]} to
  validate, {t["test_photos"]} to test.
- **Protocol**: {t["protocol"]}.
- **Precision**: trained in `{t["precision"]}`, served in float32.
- **Dynamics**: {manifest.knobs.steps} steps in each of {len(manifest.knobs.beta)} block(s), each as
  long as the block has learned: a `step_size` of 1.
- **Doubt**: the error to expect of each pixel and the true one have a rank correlation of
  {figures["doubt"]:.2f} over hidden pixels.

PSNR over the hidden pixels in dB, mean over windows of the validation photographs:

| holes | prefill | completed |
|---|---|---|
{rows}

`python -m benchmarks.inpaint` measures whole photographs; of the checkpoint that ships the figures
are in docs/images.md. The energy reference is the final energy per patch, of windows with as much
hidden.
"""
