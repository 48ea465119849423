"""A trained AiT as a checkpoint that the server loads."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
from pydantic import JsonValue

from models.architectures.ait import AiT
from models.checkpoint import Checkpoint, save_checkpoint
from models.inputs.images import ImageInput
from models.manifest import EnergyReference, Manifest
from training.datasets.labeled_images import LabeledImageDataset
from training.datasets.nodes import draw_sample
from training.export import build_manifest, compute_energy_reference
from training.model_card import build_card
from training.tasks.images.train import ImageClassifierRun

_PROTOCOL = (
    "weights, memories, and the mean and spread of channels, from the training part; epoch and "
    "temperature from the validation part; test part measured once, at the end"
)
_FIGURES = ("accuracy", "macro_f1", "roc_auc", "cross_entropy", "brier")


def export_image_classifier(
    folder: Path, name: str, dataset: LabeledImageDataset, run: ImageClassifierRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network, split = run.network, dataset.split
    manifest = build_manifest(
        network,
        dataset,
        split,
        run,
        name=name,
        seed=seed,
        unit="samples",
        fingerprint=dataset.fingerprint,
        protocol=_PROTOCOL,
        features=(),
        temperatures=run.evaluation.temperatures,
        energy=image_classifier_energy_reference(network, dataset),
        metrics=_metrics(dataset, run),
    )
    return save_checkpoint(
        folder, network, manifest, build_card(manifest, _card(manifest, dataset))
    )


def image_classifier_energy_reference(
    network: AiT, dataset: LabeledImageDataset
) -> EnergyReference:
    """Quantiles of the final energy per token, summed over the layers, over training samples."""
    chosen = samples_to_inputs(dataset, draw_sample(dataset.split.train))
    return compute_energy_reference(network, chosen, network.config.num_tokens)


def samples_to_inputs(dataset: LabeledImageDataset, samples: np.ndarray) -> list[ImageInput]:
    """Samples as a client sends them."""
    pixels = dataset.pixels[dataset.image_ids[samples]].astype(np.float32) / 255
    asked = dataset.questions
    return [
        ImageInput(picture, None if asked is None else asked[sample])
        for picture, sample in zip(pixels, samples, strict=True)
    ]


def _metrics(dataset: LabeledImageDataset, run: ImageClassifierRun) -> dict[str, JsonValue]:
    metrics: dict[str, JsonValue] = {}
    for part, (measured,) in run.evaluation.parts.items():
        figures = measured.to_dict()
        shown = {name: figures[name] for name in _FIGURES} | {"samples": measured.graphs}
        metrics[part] = {dataset.task.name: shown}
    if run.accuracy_by_kind:
        metrics["test_accuracy_by_kind"] = dict(run.accuracy_by_kind)
    return metrics


def _card(manifest: Manifest, dataset: LabeledImageDataset) -> str:
    t, task = manifest.training, dataset.task
    tables = cast(dict[str, dict[str, dict[str, float]]], manifest.metrics)
    rows = "\n".join(
        f"| {part} | "
        + " | ".join("" if m[key] is None else f"{m[key]:.4f}" for key in _FIGURES)
        + f" | {m['samples']} |"
        for part, m in ((part, tables[part][task.name]) for part in ("train", "val", "test"))
    )
    kinds = cast(dict[str, float], manifest.metrics.get("test_accuracy_by_kind", {}))
    by_kind = "".join(f"- **Test accuracy, {kind}**: {v:.4f}.\n" for kind, v in kinds.items())
    of = "questions about pictures" if dataset.questions is not None else "pictures"
    channels, height, width = dataset.pixels.shape[1:]
    return f"""# {manifest.name}

AiT that classifies {of}.

- **Data**: {t["dataset"]}, {len(dataset.pixels)} pictures of {channels} x {height} x {width}.
  {t["note"]}
- **Labels** ({task.name}): {", ".join(task.labels)}.
- **Split**: `{t["split"]}`: {t["train_samples"]} {of} to train, {t["val_samples"]} to choose by,
  {t["test_samples"]} to report on.
- **Protocol**: {t["protocol"]}.
- **Dynamics**: {manifest.knobs.steps} step(s) of {manifest.knobs.step_size} in each of
  {len(manifest.knobs.beta)} layer(s).
{by_kind}
| part | accuracy | macro-F1 | ROC-AUC | cross entropy | Brier | samples |
|---|---|---|---|---|---|---|
{rows}

Probabilities are softmax(logits / T) with T fitted on the validation part
({manifest.temperatures[0]:.3f}). They mean something on pictures like those above; the energy
percentile of an answer says how unlike them one is, as a hint and no more.
"""
