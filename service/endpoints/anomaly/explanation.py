"""Explain one node's score by occlusion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from models.base import StepControl
from models.interpret import occlusion
from models.interpret.occlusion import Perturbation
from models.interpret.reasons import MemoryActivations
from service.endpoints.anomaly.parse import ScoreInputs
from service.endpoints.common.explanations import (
    causes_to_dict,
    explanation_to_dict,
    memory_to_dict,
)
from service.validation.ids import NodeId


def explained_score(
    task: ScoreInputs,
    node: int,
    logit: float,
    threshold: float,
    fired: list[MemoryActivations],
    place: int,
    control: StepControl,
) -> dict[str, Any]:
    """What moved the score of `node`, to which `fired` comes at `place`.

    Raises:
        RunInterruptedError: `control` gave a reason.
    """
    network, graph, params = task.model.network, task.graph, task.params
    value = occlusion.build_score_func(network, params, node, control)
    probability = float(task.model.manifest.calibration(np.array([logit]))[0])
    label = int(probability >= threshold)
    cause = partial(occlusion.attribute, value, np.array([logit]), np.array([1 if label else -1]))
    others = occlusion.find_neighbours(graph, node)
    features, own_features = task.model.manifest.features, task.model.explained_features
    instead_F = np.array([feature.mean for feature in features], np.float32)
    memories = occlusion.list_memories(fired)

    def apart(parts: Sequence[int]) -> Perturbation:
        return Perturbation(
            occlusion.remove_neighbour_edges(graph, node, others[list(parts)].tolist())
        )

    def plain(parts: Sequence[int]) -> Perturbation:
        columns = [own_features[part] for part in parts]
        return Perturbation(occlusion.replace_features(graph, node, columns, instead_F))

    def quiet(parts: Sequence[int]) -> Perturbation:
        return Perturbation(graph, tuple(memories[part] for part in sorted(parts)))

    def to_id(row: int) -> NodeId:
        return row if task.node_ids is None else task.node_ids[row]

    def called(part: int) -> dict[str, Any]:
        return {"node_id": to_id(int(others[part]))}

    def feature(part: int) -> dict[str, Any]:
        column = own_features[part]
        name, value = features[column].name, float(graph.x[node, column])
        return {"feature": name, "value": value, "instead": float(instead_F[column])}

    trying = occlusion.select_neighbours(network, graph, params, node, others)
    [neighbours] = cause(apart, len(others), trying)
    [own] = cause(plain, len(own_features), range(len(own_features)))
    [stored] = cause(quiet, len(memories), occlusion.select_memories(fired, place))
    return explanation_to_dict(
        to_id(node),
        label,
        "score",
        logit,
        probability,
        neighbours=causes_to_dict(neighbours, called),
        features=causes_to_dict(own, feature),
        memories=causes_to_dict(stored, partial(memory_to_dict, memories)),
    )
