"""A trained image completer as a checkpoint that the server loads."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np
import torch

from models.checkpoint import Checkpoint, EnergyReference, Manifest, save, trained_knobs
from models.contract import Knobs
from models.image_completer import ImageCompleter
from models.patches import batch_of
from training.complete.evaluate import occlude, over_seeds
from training.complete.runs import ImageRun
from training.datasets import ImageDataset
from training.export import quantiles

_PROTOCOL = (
    "weights, and the mean and spread of each channel, from the training images; epoch from the "
    "validation images; test images measured once, at the end, under the masks of ten seeds"
)


def export_images(
    folder: Path, name: str, dataset: ImageDataset, run: ImageRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network, split = cast(ImageCompleter, run.network), dataset.split
    manifest = Manifest(
        name=name,
        version="1",
        architecture=network.name,
        task=network.task,
        config=network.config.model_dump(mode="json"),
        knobs=trained_knobs(network),
        features=(),
        energy=image_energy_reference(network, dataset, run.recipe.occluded),
        training={
            "dataset": dataset.name,
            "note": dataset.note,
            "split": split.name,
            "train_images": len(split.train),
            "val_images": len(split.val),
            "test_images": len(split.test),
            "data_sha256": dataset.fingerprint,
            "seed": seed,
            "epoch": run.fitted.best_epoch,
            "recipe": json.loads(json.dumps(asdict(run.recipe))),
            "protocol": _PROTOCOL,
        },
        metrics={part: over_seeds(measured) for part, measured in run.parts.items()},
    )
    return save(folder, network, manifest, _card(manifest, network))


def image_energy_reference(
    network: ImageCompleter, dataset: ImageDataset, share: float, *, count: int = 512
) -> EnergyReference:
    """Quantiles of the final energy per patch over training images, occluded as in training."""
    c, train = network.config, dataset.split.train
    chosen = np.random.default_rng(0).choice(train, min(count, len(train)), replace=False)
    occluded = occlude(0, len(chosen), c.size // c.patch, share).reshape(len(chosen), -1)
    energies: list[float] = []
    for start in range(0, len(chosen), 64):
        images = torch.from_numpy(dataset.images[chosen[start : start + 64]])
        batch = batch_of(images, torch.from_numpy(occluded[start : start + 64]), c.patch)
        output = network.infer(batch, [Knobs()] * batch.rows)
        total_R = torch.stack([s.trace[-1].energy_R for s in output.solutions]).sum(0)
        energies += (total_R / batch.length).tolist()
    return quantiles(energies)


def _card(manifest: Manifest, network: ImageCompleter) -> str:
    t, c = manifest.training, network.config
    recipe = cast(dict[str, float], t["recipe"])
    rows = "\n".join(
        f"| {part} | {where} | "
        + " | ".join(f"{m[key + figure]:.4f}" for figure in ("mse", "psnr", "ssim"))
        + f" | {m['images']} |"
        for part, m in cast(dict[str, dict[str, float]], manifest.metrics).items()
        for where, key in (("occluded patches", ""), ("whole image", "whole_"))
    )
    along = c.size // c.patch
    kind = "grey" if c.channels == 1 else "colour"
    return f"""# {manifest.name}

{manifest.architecture.removesuffix("-image").upper()} that completes {kind} images.

- **Images**: {c.size} x {c.size} pixels, in {along} x {along} patches of {c.patch} x {c.patch}.
- **Data**: {t["dataset"]}. {t["note"]}
- **Split**: `{t["split"]}`: {t["train_images"]} images to train, {t["val_images"]} to choose by,
  {t["test_images"]} to report on.
- **Protocol**: {t["protocol"]}.
- **Occluded**: {100 * recipe["occluded"]:g} % of the patches, at random.
- **Dynamics**: {manifest.knobs.steps} steps of {manifest.knobs.step_size} in each of
  {len(manifest.knobs.beta)} block(s).

| part | of | MSE | PSNR | SSIM | images |
|---|---|---|---|---|---|
{rows}

Pixels count from 0 to 1, completed ones after rounding to 8 bits; known ones are kept as they are.
The energy reference is the final energy per patch with that share occluded: where much more or
much less is, the percentile of an answer says little.
"""
