"""Score a graph, and say how its state came to rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.contract import Interrupt
from models.graphs import GraphBatch
from models.reasons import Reasons
from service.engine.explaining import explained_score
from service.engine.reasons import Gathering, told
from service.engine.resolving import resolved
from service.errors import refuse
from service.parsing.include import TOKENS
from service.parsing.request import ScoreTask


@dataclass(frozen=True)
class Scored:
    """Logits of all nodes and the parts of the answer that tell how they came about."""

    logits_N: np.ndarray
    dynamics: dict[str, Any]
    convergence: dict[str, Any]
    reasons: list[Reasons]
    explanations: dict[int, dict[str, Any]]


def score(
    task: ScoreTask, batch: GraphBatch, interrupt: Interrupt, room: int | None = None
) -> Scored:
    """Run the model of `task` on its graph; returns early, unfinished, once `interrupt` says so.

    Args:
        batch: the graph as the model takes it.
        room: bytes that reasons may have as tensors, if they are wanted as such.

    Raises:
        Problem: the dynamics diverged so far that no score is left, or there is no room.
    """
    network = task.model.network
    gathering, knobs = Gathering(task.include, interrupt, room), [task.knobs]
    output = gathering.run(network, knobs, lambda: network.infer(batch, knobs, interrupt))
    logits_N = output.logits.cpu().numpy()
    if not np.isfinite(logits_N).all():
        rule = "no finite score left; lower step_size, steps or noise"
        raise refuse("diverged", "/dynamics", "diverged", rule)
    energy, nodes = task.model.manifest.energy, task.graph.num_nodes
    reasons = list(gathering.take(1, suspects(task, logits_N)[:TOKENS].tolist()))
    return Scored(
        logits_N,
        resolved(network, task.knobs),
        gathering.courses(output).row(0, nodes, energy, task.include),
        reasons,
        _explained(task, logits_N, gathering, interrupt),
    )


def _explained(
    task: ScoreTask, logits_N: np.ndarray, gathering: Gathering, interrupt: Interrupt
) -> dict[int, dict[str, Any]]:
    """Why each target was scored as it was, where that is asked for."""
    if "explanation" not in task.include or interrupt() is not None:
        return {}
    targets = suspects(task, logits_N).tolist()
    fired = gathering.fired(0, targets)
    return {
        node: explained_score(task, node, float(logits_N[node]), fired, place, interrupt)
        for place, node in enumerate(targets)
    }


def suspects(task: ScoreTask, logits_N: np.ndarray) -> np.ndarray:
    """The targets, the most suspicious first, ties in order of rows."""
    rows = np.arange(len(logits_N)) if task.targets is None else task.targets
    return rows[np.lexsort((rows, -logits_N[rows]))]


def named(task: ScoreTask, reasons: Reasons) -> dict[str, Any]:
    """Reasons by the names of nodes."""
    ids = task.node_ids
    return told(reasons, lambda node: {"node_id": node if ids is None else ids[node]})


def table(task: ScoreTask, logits_N: np.ndarray) -> dict[str, np.ndarray]:
    """A result for each target, in the order asked, as columns: the row of the node in the graph,
    its logit and probability, the label at the model's threshold, and its rank among the targets.
    """
    manifest = task.model.manifest
    rows = np.arange(len(logits_N)) if task.targets is None else task.targets
    logits = logits_N[rows]
    probability = manifest.calibration(logits)
    rank = np.empty(len(rows), np.int64)
    rank[np.lexsort((rows, -logits))] = np.arange(1, len(rows) + 1)  # ties in order of rows
    label = (probability >= manifest.threshold).astype(np.int64)
    return {
        "row": rows.astype(np.int64),
        "score": logits,
        "probability": probability,
        "label": label,
        "rank": rank,
    }


def results(task: ScoreTask, scored: Scored) -> list[dict[str, Any]]:
    """One result per target, in the order asked."""
    columns, threshold = table(task, scored.logits_N), task.model.manifest.threshold
    ids, explained = task.node_ids, scored.explanations
    return [
        {
            "node_id": row if ids is None else ids[row],
            "score": logit,
            "probability": p,
            "label": label,
            "threshold": threshold,
            "rank": place,
            **({"explanation": explained[row]} if row in explained else {}),
        }
        for row, logit, p, label, place in zip(
            *(column.tolist() for column in columns.values()), strict=True
        )
    ]
