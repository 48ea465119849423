"""A trained image completer as a checkpoint that the server loads."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from models.checkpoint import Checkpoint, save_checkpoint
from models.inputs.patches import MaskedImage
from models.manifest import EnergyReference, HiddenReference, Manifest
from models.tasks.image_completer import ImageCompleter
from training.datasets import ImageDataset
from training.datasets.nodes import draw_sample
from training.export import build_manifest, compute_energy_reference
from training.model_card import build_card
from training.tasks.complete.evaluate import draw_occlusion, summarize_over_masks
from training.tasks.complete.train import CompletionRun

_HIDDEN = tuple(sixteenth / 16 for sixteenth in range(17))
"""Shares of the patches, whole patches of them, that energies are told of."""

_PROTOCOL = (
    "weights, and the mean and spread of each channel, from the training images; epoch from the "
    "validation images; test images measured once, at the end, under the masks of ten seeds"
)


def export_image_completer(
    folder: Path, name: str, dataset: ImageDataset, run: CompletionRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network, split = cast(ImageCompleter, run.network), dataset.split
    manifest = build_manifest(
        network,
        dataset,
        split,
        run,
        name=name,
        seed=seed,
        unit="images",
        fingerprint=dataset.fingerprint,
        protocol=_PROTOCOL,
        features=(),
        energy=completion_energy_reference(network, dataset, run.train_config.occluded),
        metrics={part: summarize_over_masks(measured) for part, measured in run.parts.items()},
    )
    return save_checkpoint(
        folder, network, manifest, build_card(manifest, _card(manifest, network))
    )


def completion_energy_reference(
    network: ImageCompleter, dataset: ImageDataset, share: float
) -> EnergyReference:
    """Quantiles of the final energy per patch over training images, `share` of their patches
    hidden, and as much as they may be in a window that is served."""
    along, images = network.config.size // network.config.patch, dataset.images
    chosen = draw_sample(dataset.split.train)

    def of(hidden: float) -> EnergyReference:
        masks = draw_occlusion(0, len(chosen), along, hidden)
        return compute_energy_reference(
            network, list(map(MaskedImage, images[chosen], masks)), along**2
        )

    shares = sorted({round(hidden * along**2) / along**2 for hidden in _HIDDEN})
    by_hidden = tuple(HiddenReference(share=h, values=of(h).values) for h in shares)
    return of(share).model_copy(update={"by_hidden": by_hidden})


def _contrast(contrast: float) -> str:
    if not contrast:
        return ""
    return (
        "- **Even pictures**: standardised by themselves, where what is known deviates by less\n"
        f"  than {contrast:g} of the training images' deviation; not in training.\n"
    )


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
- **Precision**: trained in `{t["precision"]}`, served in float32.
- **Occluded**: {100 * recipe["occluded"]:g} % of the patches, at random.
- **Dynamics**: {manifest.knobs.steps} steps of {manifest.knobs.step_size} in each of
  {len(manifest.knobs.beta)} block(s).
{_contrast(c.contrast)}
| part | of | MSE | PSNR | SSIM | images |
|---|---|---|---|---|---|
{rows}

Pixels count from 0 to 1, completed ones after rounding to 8 bits; known ones are kept as they are.
The energy reference is the final energy per patch, of several shares that are hidden: an answer's
percentile is among training images with as much hidden.
"""
