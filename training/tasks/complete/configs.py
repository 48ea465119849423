"""How each network is trained on images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from models.architectures.et import ETImageConfig
from training.datasets import ImageDataset
from training.tasks.complete.task import CompletionTrainConfig

ABLATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "no-attention": {"attention": False},
    "no-hopfield": {"hopfield": False},
    "self-attention": {"self_attention": True},
    "no-hopfield-self-attention": {"hopfield": False, "self_attention": True},
}
"""Energy Transformer table 14."""

# As table 4 has them: T = 12 steps of 0.1, 1/sqrt(Y) for beta and not learned, M = 4 D.
_DYNAMICS: dict[str, Any] = {"steps": 12, "step_size": 0.1, "learn_beta": False}
_SIZES: dict[str, tuple[dict[str, Any], int]] = {
    "mnist": ({"patch": 4, "dim": 128, "heads": 4, "head_dim": 32, "memories": 512}, 30),
    "cifar10": ({"patch": 4, "dim": 256, "heads": 8, "head_dim": 32, "memories": 1024}, 100),
    "tiny-imagenet": ({"patch": 8, "dim": 384, "heads": 6, "head_dim": 64, "memories": 1536}, 200),
}
PAPER_SIZE = 224
"""Pixels of a side in the paper, whose network of 196 patches those images get."""
_PAPER: dict[str, Any] = {
    **{"patch": 16, "dim": 768, "heads": 12, "head_dim": 64, "memories": 3072},
}
# What a CPU trains in two hours: small networks that see more images in that time, an "epoch" of
# 200 batches, and two blocks of three steps, which learn far sooner than one of six.
_BRIEF: dict[str, Any] = {
    **{"blocks": 2, "steps": 3, "step_size": 0.2},
    **{"dim": 128, "heads": 4, "head_dim": 32, "memories": 256},
}
# The rate was the best on photographs, of those tried with either network in a tenth of the time.
_BRIEF_LOOP: dict[str, Any] = {
    "muon": True,
    "learning_rate": 8e-3,
    "warmup": 0.05,
    "batch_images": 32,
    "epoch_images": 6400,
    "check_every": 4,
}
_BRIEF_EPOCHS = {"mnist": 60}
_CONTRAST = {"mnist": 0.0}  # where black is no surface
_OF_PHOTOS = 0.4  # contrast of others
_VARY = 0.45  # windows that are served have few holes or many
_ANY = {"dim": 256, "heads": 8, "head_dim": 32, "memories": 1024}
_BRIEFLY = 80  # epochs of others
_PATCHES_ALONG = 8  # of images that have no entry above
VIT = "vit"


def completion_train_config(
    model: str, dataset: ImageDataset, ablation: str = "none", *, brief: bool = False
) -> CompletionTrainConfig:
    """The recipe of `model` ("et", or "vit" with as many parameters) for a dataset; `brief` is
    that for a CPU.

    Raises:
        ValueError: for an unknown model, an ablation that the model does not have, or images of a
            size that cannot be served.
    """
    if model not in ("et", VIT):
        raise ValueError(f"unknown model {model!r}; known are et, {VIT}")
    if ablation not in ABLATIONS or (model == VIT and ablation != "none"):
        known = ", ".join(ABLATIONS)
        raise ValueError(f"{model} has no ablation {ablation!r}; those of et are {known}")
    others = _PAPER if dataset.size == PAPER_SIZE else _ANY | {"patch": _patch(dataset.size)}
    sizes, epochs = _SIZES.get(dataset.name, (others, 100))
    shape = {"size": dataset.size, "channels": dataset.channels}
    config = shape | _DYNAMICS | sizes | ABLATIONS[ablation]
    if brief:
        config |= _BRIEF
    ETImageConfig.model_validate(config)  # before anything is trained
    contrast = _CONTRAST.get(dataset.name, _OF_PHOTOS)
    chosen = CompletionTrainConfig(model, config, epochs=epochs, vary=_VARY, contrast=contrast)
    if brief:
        epochs = _BRIEF_EPOCHS.get(dataset.name, _BRIEFLY)
        chosen = replace(chosen, epochs=epochs, **_BRIEF_LOOP)
    return chosen


def _patch(size: int) -> int:
    """The side that divides `size` into as many patches as there can be up to 8 along it."""
    return next(size // along for along in range(_PATCHES_ALONG, 0, -1) if size % along == 0)


def smoke_completion_config(chosen: CompletionTrainConfig) -> CompletionTrainConfig:
    """The same recipe for a look whether everything runs."""
    small = {"dim": 32, "heads": 2, "head_dim": 16, "memories": 64, "steps": 4}
    return replace(
        chosen,
        config=chosen.config | small,
        epochs=4,
        epoch_images=2048,
        batch_images=32,
        learning_rate=3e-3,
    )
