"""Explain a graph's classes by occlusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from models.base import DynamicsParams, StepControl
from models.inputs.graph import Graph
from models.interpret import occlusion
from models.interpret.occlusion import Perturbation
from models.interpret.reasons import MemoryActivations
from service.endpoints.common.explanations import (
    causes_to_dict,
    explanation_to_dict,
    memory_to_dict,
)
from service.registry.handles import Classifier


@dataclass(frozen=True)
class Explained:
    """Why a graph was classified as it was, by task, and what each of its nodes did (T, n)."""

    by_task: dict[str, dict[str, Any]]
    effect_TN: np.ndarray


def explained_graph(
    model: Classifier,
    graph: Graph,
    params: DynamicsParams,
    logits_C: np.ndarray,
    fired: list[MemoryActivations],
    control: StepControl,
) -> Explained:
    """What moved the answer to each task.

    Raises:
        RunInterruptedError: `control` gave a reason.
    """
    ends = np.cumsum([len(task.labels) for task in model.tasks])[:-1]
    parts = [part[None].astype(np.float64) for part in np.split(logits_C, ends)]
    labels = [int(part.argmax()) for part in parts]
    whole_T = np.array(
        [occlusion.compute_margins(p, at)[0] for p, at in zip(parts, labels, strict=True)]
    )
    value = occlusion.build_margin_func(model.network, params, labels, control)
    cause = partial(occlusion.attribute, value, whole_T, np.ones(len(labels)))
    memories = occlusion.list_memories(fired)

    def cut(parts: Sequence[int]) -> Perturbation:
        return Perturbation(occlusion.remove_nodes(graph, parts))

    def quiet(parts: Sequence[int]) -> Perturbation:
        return Perturbation(graph, tuple(memories[part] for part in sorted(parts)))

    nodes = graph.num_nodes
    by_node = cause(cut, nodes, range(nodes if nodes > 1 else 0))  # of one node nothing would stay
    by_memory = cause(quiet, len(memories), occlusion.select_memories(fired))
    with np.errstate(invalid="ignore"):  # logits that are not finite are an error in its place
        probabilities = model.probabilities(logits_C[None])
    by_task = {
        task.name: explanation_to_dict(
            task.name,
            task.labels[label],
            "log_odds",
            float(whole),
            float(p_1C[0, label]),
            nodes=causes_to_dict(node_effects, lambda part: {"node": part}),
            memories=causes_to_dict(memory_effects, partial(memory_to_dict, memories)),
        )
        for task, label, whole, p_1C, node_effects, memory_effects in zip(
            model.tasks, labels, whole_T, probabilities, by_node, by_memory, strict=True
        )
    }
    return Explained(by_task, np.stack([node_effects.effects for node_effects in by_node]))
