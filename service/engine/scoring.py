"""Score a graph, and say how its state came to rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.contract import Block, Interrupt, Knobs, Output
from models.dynamics import Moment, Solution, StopReason
from service.errors import refuse
from service.parsing.request import ScoreTask

_WORST_FIRST = (
    StopReason.DIVERGED,
    StopReason.CANCELLED,
    StopReason.DEADLINE,
    StopReason.STEP_LIMIT,
    StopReason.CONVERGED,
)


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
    output = network.infer(network.pack([task.graph]), [task.knobs], interrupt)
    logits_N = output.logits.cpu().numpy()
    if not np.isfinite(logits_N).all():
        knobs = "step_size, steps or noise"
        raise refuse("diverged", "/dynamics", "diverged", f"no finite score left; lower {knobs}")
    return Scored(
        logits_N, _resolved(network.blocks_in_order(), task.knobs), _convergence(task, output)
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


def _resolved(blocks: Sequence[Block], knobs: Knobs) -> dict[str, Any]:
    first = blocks[0]
    return {
        "steps": first.steps if knobs.steps is None else knobs.steps,
        "beta": [block.resolve([knobs]).beta_RH[0].tolist() for block in blocks],
        "beta_scale": knobs.beta_scale if knobs.beta is None else None,
        "step_size": first.step_size if knobs.step_size is None else knobs.step_size,
        "tolerance": knobs.tolerance,
        "noise": knobs.noise,
        "seed": knobs.seed,
    }


def _convergence(task: ScoreTask, output: Output) -> dict[str, Any]:
    """Energies and steps summed over the blocks, the largest residual, the worst reason."""
    runs = [_taken(solution) for solution in output.solutions]
    initial = sum(float(run[0].energy_R[0]) for run in runs)
    final = sum(float(run[-1].energy_R[0]) for run in runs)
    steps = sum(len(run) - 1 for run in runs)
    residuals = [float(s.residual_R[0]) for s in output.solutions if int(s.steps_R[0])]
    reasons = {solution.stop_reasons[0] for solution in output.solutions}
    per_node = final / task.graph.num_nodes
    energy = task.model.manifest.energy
    found: dict[str, Any] = {
        "energy_initial": initial,
        "energy_final": final,
        "energy_drop": initial - final,
        "steps": steps,
        "residual": max(residuals, default=None),
        "stop_reason": next(reason for reason in _WORST_FIRST if reason in reasons),
        "energy_percentile": energy.percentile(per_node) if np.isfinite(per_node) else None,
    }
    if "components" in task.include:
        names = dict.fromkeys(name for run in runs for name in run[0].components)
        found["components"] = {
            name: {
                end: sum(float(run[at].components[name][0]) for run in runs)
                for end, at in (("initial", 0), ("final", -1))
            }
            for name in names
        }
    if "trace" in task.include:
        found["trace"] = [_entry(block, moment) for block, run in enumerate(runs) for moment in run]
    return found


def _taken(solution: Solution) -> list[Moment]:
    """The moments up to the last step that the one row of this request took."""
    return solution.trace[: int(solution.steps_R[0]) + 1]


def _entry(block: int, moment: Moment) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "block": block,
        "step": moment.step,
        "energy": float(moment.energy_R[0]),
        **{name: float(part[0]) for name, part in moment.components.items()},
    }
    if moment.storage_R is not None:
        entry["storage"] = float(moment.storage_R[0])
    return entry
