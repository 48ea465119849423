"""Score a graph, and say how its state came to rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.contract import Architecture, Interrupt, Knobs
from service.engine.convergence import Courses, heard_by
from service.errors import refuse
from service.parsing.request import ScoreTask


@dataclass(frozen=True)
class Scored:
    """Logits of all nodes and the parts of the answer that tell how they came about."""

    logits_N: np.ndarray
    dynamics: dict[str, Any]
    convergence: dict[str, Any]


def score(task: ScoreTask, interrupt: Interrupt) -> Scored:
    """Run the model of `task` on its graph; returns early, unfinished, once `interrupt` says so.

    Raises:
        Problem: the dynamics diverged so far that no score is left.
    """
    network = task.model.network
    with heard_by(task.include) as heard:
        output = network.infer(network.pack([task.graph]), [task.knobs], interrupt)
    logits_N = output.logits.cpu().numpy()
    if not np.isfinite(logits_N).all():
        knobs = "step_size, steps or noise"
        raise refuse("diverged", "/dynamics", "diverged", f"no finite score left; lower {knobs}")
    energy, nodes = task.model.manifest.energy, task.graph.num_nodes
    return Scored(
        logits_N,
        resolved(network, task.knobs),
        Courses(output.solutions, heard, as_trained=as_trained(network, task.knobs)).row(
            0, nodes, energy, task.include
        ),
    )


def results(task: ScoreTask, logits_N: np.ndarray) -> list[dict[str, Any]]:
    """One result per target, in the order asked."""
    manifest = task.model.manifest
    rows = np.arange(len(logits_N)) if task.targets is None else task.targets
    logits = logits_N[rows]
    probability = manifest.calibration(logits)
    rank = np.empty(len(rows), np.int64)
    rank[np.lexsort((rows, -logits))] = np.arange(1, len(rows) + 1)  # ties in order of rows
    ids = rows.tolist() if task.node_ids is None else [task.node_ids[row] for row in rows]
    columns = (
        ids,
        logits.tolist(),
        probability.tolist(),
        (probability >= manifest.threshold).astype(int).tolist(),
        rank.tolist(),
    )
    return [
        {
            "node_id": node_id,
            "score": logit,
            "probability": p,
            "label": label,
            "threshold": manifest.threshold,
            "rank": place,
        }
        for node_id, logit, p, label, place in zip(*columns, strict=True)
    ]


def resolved(network: Architecture, knobs: Knobs) -> dict[str, Any]:
    """The dynamics that ran: what was asked for, and as trained where nothing was."""
    blocks = network.blocks_in_order()
    first, resonance = blocks[0], network.resonance(knobs.resonance)
    return {
        "steps": first.steps if knobs.steps is None else knobs.steps,
        "beta": [block.resolve([knobs]).beta_RH[0].tolist() for block in blocks],
        "beta_scale": knobs.beta_scale if knobs.beta is None else None,
        "step_size": first.step_size if knobs.step_size is None else knobs.step_size,
        "tolerance": knobs.tolerance,
        "noise": knobs.noise,
        "seed": knobs.seed,
        "resonance": None if resonance is None else resonance.model_dump(mode="json"),
    }


def as_trained(network: Architecture, knobs: Knobs) -> bool:
    """Does the state move as it did when the checkpoint's energies were taken?"""
    return resolved(network, replace(knobs, seed=0)) == resolved(network, Knobs())
