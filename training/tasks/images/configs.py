"""How each network is trained on pictures, and what the ablations take from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from training.tasks.images.task import ImageClassifierTrainConfig

# Table 2 of the paper; no-write is that of tables 7 and 8, batch-pool trains as the paper does.
ABLATIONS: dict[str, dict[str, Any]] = {
    "reset-memory": {},
    "no-hopfield": {"hopfield": False},
    "no-memory": {"workspace": False},
    "dense": {"workspace": False, "attention": False},
    "no-bottleneck": {"share": 1.0},
    "no-attention": {"attention": False},
    "no-feedforward": {"feedforward": False},
    "no-write": {"write": False},
    "batch-pool": {"pool": "batch"},
}
BASELINE = "vit"

# Pools of one picture, as in service: of what a whole batch writes a slot is a mean of many
# patches, and of one picture a patch or a few, which a network that never saw that takes for noise.
_OURS: dict[str, Any] = {
    "dim": 128,
    "heads": 4,
    "head_dim": 32,
    "mlp": 512,
    "blocks": 2,
    "pool": "picture",
}
# Of CIFAR-10 two convolutions and patches of two make 16 tokens of a picture, where the paper cuts
# 64 patches of 4 pixels, which take four times as long. One of each picture passes.
_RECIPES = {
    "cifar10": ImageClassifierTrainConfig(
        "",
        _OURS | {"stem": (32, 64), "patch": 2, "share": 1 / 16, "places": 0.5},
        epochs=30,
        learning_rate=2e-3,
        augment="shift",
    ),
    # Four convolutions make 16 tokens, where the paper cuts four patches of 32 pixels: of those
    # fifty thousand pictures taught no more than 0.85, as they are or turned. One of each picture
    # passes. Its pictures are drawn as they are needed, as by the reference.
    "triangle": ImageClassifierTrainConfig(
        "",
        _OURS | {"stem": (16, 32, 64, 64), "patch": 1, "share": 1 / 16, "places": 0.5},
        epochs=40,
        fresh=True,
    ),
    # Four convolutions make 25 tokens of a picture, as in the relation networks of Santoro et al.
    # 2017; the paper cuts it into 225 patches of 5. One of each picture passes. What asks where
    # something is finds nothing as long as places are a fiftieth of what is seen there. A batch
    # holds 16 pictures with 20 questions each.
    "sort-of-clevr": ImageClassifierTrainConfig(
        "",
        _OURS
        | {"stem": (16, 32, 32, 32), "patch": 1, "share": 1 / 25, "blocks": 3, "places": 0.5}
        | {"asked": "apart"},
        epochs=100,
        batch_pictures=16,
    ),
}


def image_classifier_train_config(model: str, dataset: str) -> ImageClassifierTrainConfig:
    """The recipe of `model`: "ait", one of its ablations as in "ait:no-hopfield", or "vit".

    Raises:
        ValueError: for an unknown model or dataset.
    """
    if dataset not in _RECIPES:
        raise ValueError(f"unknown dataset {dataset!r}; known are {', '.join(_RECIPES)}")
    chosen = replace(_RECIPES[dataset], model=model)
    name, _, ablation = model.partition(":")
    if model == BASELINE or model == "ait":
        return chosen
    if name != "ait" or ablation not in ABLATIONS:
        known = ", ".join(("ait", BASELINE, *(f"ait:{taken}" for taken in ABLATIONS)))
        raise ValueError(f"unknown model {model!r}; known are {known}")
    config = chosen.config | ABLATIONS[ablation]
    return replace(chosen, config=config, reset_memory=ablation == "reset-memory")


def smoke_image_classifier_config(chosen: ImageClassifierTrainConfig) -> ImageClassifierTrainConfig:
    """The same recipe for a look whether everything runs."""
    small = {"dim": 16, "heads": 2, "head_dim": 8, "mlp": 32, "memories": 8, "blocks": 2}
    config = chosen.config | small | {"slot_dim": 8, "slot_heads": 2}
    return replace(chosen, epochs=3, batch_pictures=chosen.batch_pictures // 8, config=config)
