"""Score a graph, and say how its state moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from models.base import StepControl
from models.inputs.graph_batch import GraphBatch
from models.interpret.occlusion import BATCH_ENTRIES
from models.interpret.reasons import RowReasons
from models.manifest import Manifest
from service.endpoints.anomaly.explanation import explained_score
from service.endpoints.anomaly.parse import ScoreInputs
from service.endpoints.common.convergence import ConvergenceReports
from service.endpoints.common.cost import count_target_tokens, count_tokens, estimate_cost
from service.endpoints.common.dynamics import as_trained, resolved_dynamics
from service.endpoints.common.include import EXPLANATION_BYTES, TOKENS, reason_bytes
from service.endpoints.common.reasons import ReasonCollector, reasons_to_dict
from service.engine.engine import Workload
from service.engine.request_batch import BatchableRequest
from service.errors import Problem, make_problem
from service.media_types import JSON, SAFETENSORS
from service.payload import require_response_bytes
from service.settings import Settings

_OF_COURSES = frozenset({"trace"})  # includes that look at no token
_RESULT_BYTES = {JSON: 128, SAFETENSORS: 16}
"""Of a target, in the unit of `response_weight`: as columns it takes a tenth of the time and less.
"""
ENTRY_BYTES, _COLUMN_BYTES = 150, 36
"""Of a target in the response, as JSON without its id, and as columns."""
_REASON_BYTES = 128  # of a node or an edge of the graph, whatever the targets are
_SMALL = 1 << 12
"""Nodes and edges: what has more gains nothing by company, and is packed before its turn."""


@dataclass(frozen=True)
class Scored:
    """Logits of all nodes and the parts of the answer that tell how they came about."""

    logits_N: np.ndarray
    dynamics: dict[str, Any]
    convergence: dict[str, Any]
    reasons: list[RowReasons]
    explanations: dict[int, dict[str, Any]]


def pack_if_large(task: ScoreInputs) -> GraphBatch | None:
    """The graph as the model takes it; None where its turn does that, with those of others."""
    return None if count_tokens(task.graph) <= _SMALL else task.model.network.pack([task.graph])


def score(
    task: ScoreInputs,
    batch: GraphBatch | None,
    control: StepControl,
    max_tensor_bytes: int | None = None,
) -> Scored:
    """Run the model of `task` on its graph; returns early, unfinished, once `control` says so.

    Args:
        batch: the graph, if `pack_if_large` packed it.
        max_tensor_bytes: bytes that reasons may have as tensors, if they are wanted as such.

    Raises:
        Problem: the dynamics diverged so far that no score is left, or there is no room.
    """
    network = task.model.network
    gathering, params = ReasonCollector(task.include, control, max_tensor_bytes), [task.params]
    graph = network.pack([task.graph]) if batch is None else batch
    output = gathering.run(network, params, lambda: network.infer(graph, params, control))
    logits_N = output.logits.cpu().numpy()
    if not np.isfinite(logits_N).all():
        raise _diverged()
    energy, nodes = task.energy_reference, task.graph.num_nodes
    (log_degree,) = graph.log_degree_R
    first = suspects(task, logits_N)[:TOKENS].tolist() if task.include else ()
    reasons = list(gathering.take(1, first))
    return Scored(
        logits_N,
        resolved_dynamics(network, task.params),
        gathering.courses(output).row(0, nodes, energy, task.include, log_degree),
        reasons,
        _explained(task, logits_N, gathering, control),
    )


def response_weight(task: ScoreInputs, media_type: str) -> int:
    """Of the response, as `AppContext.offload_if_large` counts bytes."""
    reasons = bool(task.include) * count_tokens(task.graph) * _REASON_BYTES
    return count_results(task) * _RESULT_BYTES[media_type] + reasons


def require_scores_fit(task: ScoreInputs, media_type: str, settings: Settings) -> None:
    """Refuse a response that would be too large, before anything is computed.

    Raises:
        Problem: it would have more bytes than BASIN_MAX_RESPONSE_BYTES.
    """
    if media_type == JSON:
        size, remedy = _json_bytes(task), f"or accept {SAFETENSORS}, which is a fifth as large."
    else:
        size, remedy = count_results(task) * _COLUMN_BYTES, "or send a part of the graph."
    limit = settings.max_response_bytes
    require_response_bytes(size, limit, "/targets", f"Score fewer `targets`, {remedy}")


def count_results(task: ScoreInputs) -> int:
    """Number of nodes with a result in the response."""
    return task.graph.num_nodes if task.targets is None else len(task.targets)


def _json_bytes(task: ScoreInputs) -> int:
    """About how many bytes the response has as JSON."""
    count, ids, network = count_results(task), task.node_ids, task.model.network
    size = count * ENTRY_BYTES
    if ids is not None:
        rows = range(len(ids)) if task.targets is None else task.targets.tolist()
        size += sum(len(id) for id in map(ids.__getitem__, rows) if isinstance(id, str))
    explained = count * EXPLANATION_BYTES if "explanation" in task.include else 0
    return size + explained + reason_bytes(network, task.params, task.include, task.graph.num_nodes)


def workload_of(task: ScoreInputs) -> Workload:
    """What the engine has to know of a score. With explanations it looks at all edges, so call it
    off the event loop."""
    network, size = task.model.network, count_tokens(task.graph)
    explained_tokens = 0
    if "explanation" in task.include:
        targets = range(task.graph.num_nodes) if task.targets is None else task.targets.tolist()
        num_features = len(task.model.explained_features)
        explained_tokens = sum(
            count_target_tokens(network, task.graph, num_features, target) for target in targets
        )
    return Workload(
        flow=task.model.name,
        cost=estimate_cost(network, task.params, size, task.include, explained_tokens),
        size=max(size, min(explained_tokens, BATCH_ENTRIES)),
        is_isolated=task.params.deterministic,
        batchable=batchable(task),
    )


def batchable(task: ScoreInputs) -> BatchableRequest | None:
    """The same for tasks that begin together, of one model with equal params: rows of as many steps
    end together. None where a task is to be run by itself."""
    alone = task.params.tolerance or count_tokens(task.graph) > _SMALL
    if alone or not _OF_COURSES.issuperset(task.include):
        return None
    params = replace(task.params, seed=0) if task.params.seed else task.params
    key = id(task.model.network), params
    return BatchableRequest(key, task, score_all)


def score_all(tasks: Sequence[ScoreInputs], control: StepControl) -> list[Scored | Problem]:
    """Run a model on the graphs of several tasks side by side; all have its `params`."""
    network, params = tasks[0].model.network, [task.params for task in tasks]
    batch = network.pack([task.graph for task in tasks])
    output = network.infer(batch, params, control)
    log_degrees = batch.log_degree_R
    courses = ConvergenceReports(output.solutions, as_trained=as_trained(network, params[0]))
    dynamics = resolved_dynamics(network, params[0])
    bounds = pairwise(accumulate((task.graph.num_nodes for task in tasks), initial=0))
    every_N = output.logits.cpu().numpy()
    found: list[Scored | Problem] = []
    for row, (task, bound) in enumerate(zip(tasks, bounds, strict=True)):
        logits_N = every_N[slice(*bound)]
        if not np.isfinite(logits_N).all():
            found.append(_diverged())
            continue
        nodes, energy = task.graph.num_nodes, task.energy_reference
        course = courses.row(row, nodes, energy, task.include, log_degrees[row])
        found.append(Scored(logits_N, dynamics | {"seed": task.params.seed}, course, [], {}))
    return found


def _diverged() -> Problem:
    rule = "The dynamics diverged: no finite score is left. Lower `step_size`, `steps` or `noise`."
    return make_problem("diverged", "/dynamics", "diverged", rule)


def _explained(
    task: ScoreInputs, logits_N: np.ndarray, gathering: ReasonCollector, control: StepControl
) -> dict[int, dict[str, Any]]:
    """Why each target was scored as it was, where that is asked for."""
    if "explanation" not in task.include or control.stop_reason() is not None:
        return {}
    targets = suspects(task, logits_N).tolist()
    fired = gathering.fired(0, targets)
    threshold = find_threshold(task, logits_N)
    return {
        node: explained_score(task, node, float(logits_N[node]), threshold, fired, place, control)
        for place, node in enumerate(targets)
    }


def suspects(task: ScoreInputs, logits_N: np.ndarray) -> np.ndarray:
    """The targets, the most suspicious first, ties in order of rows."""
    rows = np.arange(len(logits_N)) if task.targets is None else task.targets
    return rows[np.lexsort((rows, -logits_N[rows]))]


def named(task: ScoreInputs, reasons: RowReasons) -> dict[str, Any]:
    """Reasons by the names of nodes."""
    ids = task.node_ids
    return reasons_to_dict(reasons, lambda node: {"node_id": node if ids is None else ids[node]})


def find_threshold(task: ScoreInputs, logits_N: np.ndarray) -> float:
    """The probability from which on targets have label 1: of the request, or of the model."""
    if task.decision is None:
        return task.model.manifest.threshold
    logits = logits_N if task.targets is None else logits_N[task.targets]
    return task.decision.find_threshold(task.model.manifest.calibration(logits))


def table(task: ScoreInputs, logits_N: np.ndarray) -> tuple[dict[str, np.ndarray], float]:
    """A result for each target, in the order asked, as columns, and the threshold of their labels;
    `row` is that of the node."""
    rows = np.arange(len(logits_N)) if task.targets is None else task.targets
    threshold = find_threshold(task, logits_N)
    return labelled(task.model.manifest, logits_N, rows, threshold), threshold


def labelled(
    manifest: Manifest, logits_N: np.ndarray, rows: np.ndarray, threshold: float | None = None
) -> dict[str, np.ndarray]:
    """Of some nodes, as columns: the row of the node in the graph, its logit and probability, the
    label at the model's threshold, or another, and its rank among them."""
    threshold = manifest.threshold if threshold is None else threshold
    logits = logits_N[rows]
    probability = manifest.calibration(logits)
    rank = np.empty(len(rows), np.int64)
    rank[np.lexsort((rows, -logits))] = np.arange(1, len(rows) + 1)  # ties in order of rows
    return {
        "row": rows.astype(np.int64),
        "score": logits,
        "probability": probability,
        "label": (probability >= threshold).astype(np.int64),
        "rank": rank,
    }


def results(task: ScoreInputs, scored: Scored) -> list[dict[str, Any]]:
    """One result per target, in the order asked."""
    return list(iterate_results(task, scored))


def iterate_results(task: ScoreInputs, scored: Scored) -> Iterator[dict[str, Any]]:
    """Yield what `results` lists."""
    columns, threshold = table(task, scored.logits_N)
    ids, explained = task.node_ids, scored.explanations
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    for row, logit, p, label, place in rows:
        yield {
            "node_id": row if ids is None else ids[row],
            "score": logit,
            "probability": p,
            "label": label,
            "threshold": threshold,
            "rank": place,
            **({"explanation": explained[row]} if row in explained else {}),
        }
