"""A trained AiT as a checkpoint that the server loads."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
from pydantic import JsonValue

from models.architectures.ait import AiT
from models.checkpoint import Checkpoint, EnergyReference, Manifest, save
from models.inputs.images import Picture
from training.datasets.pictures import PictureDataset
from training.export import drawn, energy_reference, manifest_of
from training.tasks.images.train import PictureRun

_PROTOCOL = (
    "weights, memories, and the mean and spread of channels, from the training part; epoch and "
    "temperature from the validation part; test part measured once, at the end"
)
_FIGURES = ("accuracy", "macro_f1", "roc_auc", "cross_entropy", "brier")


def export_pictures(
    folder: Path, name: str, dataset: PictureDataset, run: PictureRun, *, seed: int
) -> Checkpoint:
    """Write `folder`: weights, manifest and model card, read back and verified."""
    network, split = run.network, dataset.split
    manifest = manifest_of(
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
        energy=picture_energy_reference(network, dataset),
        metrics=_metrics(dataset, run),
    )
    return save(folder, network, manifest, _card(manifest, dataset))


def picture_energy_reference(network: AiT, dataset: PictureDataset) -> EnergyReference:
    """Quantiles of the final energy per token, summed over the layers, over training samples."""
    chosen = pictures_of(dataset, drawn(dataset.split.train))
    return energy_reference(network, chosen, network.config.tokens)


def pictures_of(dataset: PictureDataset, samples: np.ndarray) -> list[Picture]:
    """Samples as a client sends them."""
    pixels = dataset.pixels[dataset.picture_of[samples]].astype(np.float32) / 255
    asked = dataset.questions
    return [
        Picture(picture, None if asked is None else asked[sample])
        for picture, sample in zip(pixels, samples, strict=True)
    ]


def _metrics(dataset: PictureDataset, run: PictureRun) -> dict[str, JsonValue]:
    metrics: dict[str, JsonValue] = {}
    for part, (measured,) in run.evaluation.parts.items():
        figures = measured.as_dict()
        shown = {name: figures[name] for name in _FIGURES} | {"samples": measured.graphs}
        metrics[part] = {dataset.task.name: shown}
    if run.by_kind:
        metrics["test_accuracy_by_kind"] = dict(run.by_kind)
    return metrics


def _card(manifest: Manifest, dataset: PictureDataset) -> str:
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
