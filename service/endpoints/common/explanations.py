"""Why a node was scored, or a graph classified, as it was: see `models.interpret.occlusion`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from models.base import Interrupt, Knobs
from models.inputs.graph import Graph
from models.interpret import occlusion
from models.interpret.occlusion import DRAWS, Causes, Variant
from models.interpret.reasons import Fired
from service.endpoints.anomaly.parse import ScoreTask
from service.registry.handles import Classifier

_Part = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Explained:
    """Why a graph was classified as it was, by task, and what each of its nodes did (T, n)."""

    told: dict[str, dict[str, Any]]
    effect_TN: np.ndarray


def explained_score(
    task: ScoreTask, node: int, logit: float, fired: list[Fired], place: int, interrupt: Interrupt
) -> dict[str, Any]:
    """What moved the score of `node`, to which `fired` comes at `place`.

    Raises:
        Interrupted: `interrupt` gave a reason.
    """
    network, graph, knobs = task.model.network, task.graph, task.knobs
    value = occlusion.score_of(network, knobs, node, interrupt)
    probability = task.model.manifest.calibration(np.array([logit]))[0]
    suspicious = probability >= task.model.manifest.threshold
    cause = partial(occlusion.causes, value, np.array([logit]), np.array([1 if suspicious else -1]))
    others = occlusion.neighbours_of(graph, node)
    features = task.model.manifest.features
    instead_F = np.array([feature.mean for feature in features], np.float32)
    memories = occlusion.memories_of(fired)

    def apart(parts: Sequence[int]) -> Variant:
        return Variant(occlusion.without_neighbours(graph, node, others[list(parts)].tolist()))

    def plain(parts: Sequence[int]) -> Variant:
        return Variant(occlusion.without_features(graph, node, parts, instead_F))

    def quiet(parts: Sequence[int]) -> Variant:
        return Variant(graph, tuple(memories[part] for part in sorted(parts)))

    def called(part: int) -> dict[str, Any]:
        other = int(others[part])
        return {"node_id": other if task.node_ids is None else task.node_ids[other]}

    def feature(part: int) -> dict[str, Any]:
        name, value = features[part].name, float(graph.x[node, part])
        return {"feature": name, "value": value, "instead": float(instead_F[part])}

    trying = occlusion.worth_trying(network, graph, knobs, node, others)
    [neighbours] = cause(apart, len(others), trying)
    [own] = cause(plain, len(features), range(len(features)))
    [stored] = cause(quiet, len(memories), occlusion.firing(fired, place))
    return {
        "method": "occlusion",
        "neighbours": _told(neighbours, called),
        "features": _told(own, feature),
        "memories": _told(stored, partial(_memory, memories)),
    }


def explained_graph(
    model: Classifier,
    graph: Graph,
    knobs: Knobs,
    logits_C: np.ndarray,
    fired: list[Fired],
    interrupt: Interrupt,
) -> Explained:
    """What moved the answer to each task.

    Raises:
        Interrupted: `interrupt` gave a reason.
    """
    ends = np.cumsum([len(task.labels) for task in model.tasks])[:-1]
    parts = [part[None].astype(np.float64) for part in np.split(logits_C, ends)]
    labels = [int(part.argmax()) for part in parts]
    whole_T = np.array([occlusion.margins(p, at)[0] for p, at in zip(parts, labels, strict=True)])
    value = occlusion.margin_of(model.network, knobs, labels, interrupt)
    cause = partial(occlusion.causes, value, whole_T, np.ones(len(labels)))
    memories = occlusion.memories_of(fired)

    def cut(parts: Sequence[int]) -> Variant:
        return Variant(occlusion.without_nodes(graph, parts))

    def quiet(parts: Sequence[int]) -> Variant:
        return Variant(graph, tuple(memories[part] for part in sorted(parts)))

    nodes = graph.num_nodes
    by_node = cause(cut, nodes, range(nodes if nodes > 1 else 0))  # of one node nothing would stay
    by_memory = cause(quiet, len(memories), occlusion.firing(fired))
    told = {
        task.name: {
            "method": "occlusion",
            "label": task.labels[label],
            "nodes": _told(of_nodes, lambda part: {"node": part}),
            "memories": _told(of_memories, partial(_memory, memories)),
        }
        for task, label, of_nodes, of_memories in zip(
            model.tasks, labels, by_node, by_memory, strict=True
        )
    }
    return Explained(told, np.stack([of_nodes.effects for of_nodes in by_node]))


def _memory(memories: Sequence[occlusion.Memory], part: int) -> dict[str, Any]:
    block, memory = memories[part]
    return {"block": block, "memory": memory}


def _told(causes: Causes, name: _Part) -> dict[str, Any]:
    deletion = None
    if causes.moved is not None:
        removed = len(causes.supports)
        moved = {"moved": causes.moved, "random": causes.random}
        deletion = {"removed": removed, **moved, "draws": DRAWS}
    return {
        "parts": causes.parts,
        "tried": len(causes.tried),
        "supports": [{**name(part), "effect": effect} for part, effect in causes.supports],
        "opposes": [{**name(part), "effect": effect} for part, effect in causes.opposes],
        "deletion": deletion,
    }
