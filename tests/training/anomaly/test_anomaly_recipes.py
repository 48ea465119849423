"""What ships was made by the recipes as they are."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from models.checkpoint import load
from service.settings import Settings
from training.anomaly.command import SHIPPED
from training.anomaly.recipes import node_recipe


@pytest.mark.parametrize(("model", "dataset"), SHIPPED)
def test_shipped_checkpoints_follow_their_recipes(model: str, dataset: str) -> None:
    folder = Settings().checkpoints / f"{model}-{dataset}"
    trained = load(folder).manifest.training
    nodes = trained["train_nodes"]
    assert isinstance(nodes, int)
    expected = node_recipe(model, dataset, nodes)
    assert asdict(expected) | trained["recipe"] == json.loads(json.dumps(asdict(expected)))  # type: ignore[operator]
