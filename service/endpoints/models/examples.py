"""A request that each model answers, to start from: small, and of values that training has seen."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from models.base import Architecture
from models.inputs.graph import UNTYPED
from models.inputs.quantile_bins import QuantileBins
from models.inputs.questions import COLORS, list_example_questions
from models.inputs.transactions import TransactionRecipe
from service.imaging.encode import encode_png
from service.registry.handles import (
    Classifier,
    Completer,
    ImageClassifier,
    ImageModel,
    Model,
    Scorer,
    VisualQuestionModel,
)

_SMILES = ["CC(=O)Oc1ccccc1C(=O)O", "O=[N+]([O-])c1ccc(N)cc1"]
_RGB = np.array(  # of `COLORS`
    [[214, 69, 65], [46, 139, 87], [52, 101, 201], [235, 149, 50], [128, 128, 128], [240, 220, 60]]
)
_NODES = 8


_made = WeakKeyDictionary[Architecture, dict[str, Any]]()  # of each network


def make_example(model: Model[Any]) -> dict[str, Any]:
    """Return the body of a request to the route of the model, as JSON; made once, not to be
    changed."""
    if (example := _made.get(model.network)) is not None:
        return example
    makers: dict[type, Callable[[Any], dict[str, Any]]] = {
        Scorer: _make_scores,
        Classifier: _make_graphs,
        Completer: _make_hole,
        ImageClassifier: _make_picture,
        VisualQuestionModel: _make_question,
    }
    example = _made[model.network] = {"model": model.name} | makers[type(model)](model)
    return example


def _make_scores(model: Scorer) -> dict[str, Any]:
    if model.recipe is not None:
        return {"transactions": _make_transactions(model.recipe)}
    values_NF = _spread(model.network.features, len(model.features))
    nodes = [
        {"id": f"n{i}"} | dict(zip(model.features, row.tolist(), strict=True))
        for i, row in enumerate(values_NF)
    ]
    edges = list[dict[str, Any]]()
    pairs = [(i, i + apart) for apart in (1, 3) for i in range(_NODES - apart)]
    for i, (source, target) in enumerate(pairs):
        edge: dict[str, Any] = {"source": f"n{source}", "target": f"n{target}"}
        if model.relations != UNTYPED:
            edge["type"] = model.relations[i % len(model.relations)]
        edges.append(edge | dict.fromkeys(model.edge_features, 1.0))
    return {"nodes": nodes, "edges": edges}


def _spread(bins: QuantileBins, features: int) -> np.ndarray:
    """Return rows (8, F) of quantiles of each feature in training, from low to high."""
    column_P, lower_P, width_P = (
        buffer.cpu().numpy() for buffer in (bins.column_P, bins.lower_P, bins.width_P)
    )
    values_NF = np.zeros((_NODES, features))
    for feature in range(features):
        own = column_P == feature
        if own.any():  # a feature that is constant in training has no bins
            edges = np.r_[lower_P[own], lower_P[own][-1] + width_P[own][-1]]
            at = np.linspace(0, len(edges) - 1, _NODES + 2)[1:-1].round().astype(int)
            values_NF[:, feature] = edges[at]
    return values_NF.astype(np.float32)


def _make_transactions(recipe: TransactionRecipe) -> list[dict[str, Any]]:
    start, gap = 1_769_860_800.0, recipe.windows[0] / 4  # 2026-01-31T12:00:00Z
    amount = recipe.medians[recipe.amount]
    pays = "account" if recipe.accounts_pay_and_are_paid else "payer"
    paid = "account" if recipe.accounts_pay_and_are_paid else "payee"
    rows = list[dict[str, Any]]()
    for i, (source, target) in enumerate(((1, 2), (1, 3), (2, 3), (1, 3))):
        row: dict[str, Any] = {"id": f"t{i}", recipe.time: start + i * gap}
        if recipe.calendar:
            time = datetime.fromtimestamp(start + i * gap, UTC)
            row[recipe.time] = time.isoformat().replace("+00:00", "Z")
        row |= {recipe.source: f"{pays}-{source}", recipe.target: f"{paid}-{target}"}
        row[recipe.amount] = round(amount * (1 + i), 2)
        row |= {name: recipe.medians[name] for name in recipe.numbers}
        row |= {name: f"{name}-1" for name in recipe.shared}
        row |= {name: values[0] for name, values in recipe.categories.items() if values}
        rows.append(row)
    return rows


def _make_graphs(model: Classifier) -> dict[str, Any]:
    if model.reads_smiles:
        return {"smiles": _SMILES}
    edges = [[0, 1, 1, 2], [1, 0, 2, 1]]
    # Zero is the first value of a category.
    graph: dict[str, Any] = {"x": [[0] * len(model.node_features)] * 3, "edge_index": edges}
    if model.edge_features:
        graph["edge_attr"] = [[0] * len(model.edge_features)] * 4
    return {"graphs": [graph]}


def _make_hole(model: Completer) -> dict[str, Any]:
    size, channels = model.config.size, model.config.channels
    row, column = np.mgrid[:size, :size] / size
    sun = (row - 0.3) ** 2 + (column - 0.65) ** 2 < 0.03
    canvas = np.where(row[..., None] < 0.6, (148, 190, 226), (86, 125, 70))
    canvas = np.where(sun[..., None], (250, 214, 92), canvas).astype(np.uint8)
    mask = np.zeros((size, size), np.uint8)
    third = size // 3
    mask[third : third + size // 6, third:-third] = 255
    shown = canvas if channels == 3 else canvas[..., 0]
    return {"image": _encode(shown), "mask": _encode(mask)}


def _make_picture(model: ImageModel) -> dict[str, Any]:
    _, height, width = model.config.shape
    return {"image": _encode(_draw_objects(height, width))}


def _make_question(model: VisualQuestionModel) -> dict[str, Any]:
    questions = list_example_questions(model.question_kinds)
    return _make_picture(model) | {"question": next(iter(questions.values()))[0]}


def _draw_objects(height: int, width: int) -> np.ndarray:
    """Return six objects of the colours that questions name, (H, W, 3) uint8."""
    row, column = np.mgrid[:height, :width]
    canvas = np.full((height, width, 3), 255, np.uint8)
    side = min(height, width)
    for i in range(len(COLORS)):
        down = row - height * (0.25 + 0.5 * (i % 2))
        right = column - width * (0.2 + 0.3 * (i // 2))
        is_circle = i % 3 == 0
        distance = np.hypot(down, right) if is_circle else np.maximum(abs(down), abs(right))
        canvas[distance < 0.08 * side] = _RGB[i]
    return canvas


def _encode(canvas: np.ndarray) -> str:
    return base64.b64encode(encode_png(canvas)).decode()
