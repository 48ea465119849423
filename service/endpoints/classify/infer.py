"""Classify graphs, and say how each went."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from models.base import DynamicsParams, StepControl
from models.inputs.graph import Graph
from models.inputs.tokens import GraphTokens, collate_tokens
from models.interpret.reasons import RowReasons
from models.tasks.graph_classifier import GraphClassifier
from service.endpoints.classify.explanation import Explained, explained_graph
from service.endpoints.classify.parse import ClassifyInputs, Item
from service.endpoints.common.convergence import ConvergenceReports
from service.endpoints.common.dynamics import resolved_dynamics
from service.endpoints.common.reasons import ReasonCollector, reasons_to_dict
from service.errors import FieldError, Problem, make_problem
from service.registry.handles import Classifier

ENTRIES = 1 << 18
"""Pairs of tokens that see each other in one batch: some 150 MB, and 3,000 molecules."""

_DIVERGED = ("diverged", "no finite answer left; lower step_size, steps or noise")


@dataclass(frozen=True)
class Classified:
    """Logits of each graph, and the courses of each batch with the number of its graphs."""

    logits_RC: np.ndarray
    batches: list[tuple[ConvergenceReports, int]]
    dynamics: dict[str, Any]
    reasons: list[RowReasons]
    explained: list[Explained]

    def rows(self) -> Iterator[tuple[ConvergenceReports, int]]:
        """For each graph its batch's courses and its place there."""
        return ((courses, row) for courses, rows in self.batches for row in range(rows))


def classify(
    model: Classifier,
    graphs: Sequence[Graph],
    params: DynamicsParams,
    control: StepControl,
    include: Collection[str] = (),
    max_tensor_bytes: int | None = None,
) -> Classified:
    """Run `model` on `graphs`; return early, unfinished, once `control` says so.

    Every graph has noise from the same seed, so that its result does not depend on its place.

    Args:
        max_tensor_bytes: limit for the reasons, where they are sent as tensors.
    """
    network = model.network
    logits: list[np.ndarray] = []
    batches: list[tuple[ConvergenceReports, int]] = []
    gathering, reasons = ReasonCollector(include, control, max_tensor_bytes), list[RowReasons]()
    explained: list[Explained] = []
    for tokens in batched(network, graphs, control):
        batch, rows = collate_tokens(tokens), [params] * len(tokens)
        output = gathering.run(network, rows, partial(network.infer, batch, rows, control))
        logits.append(output.logits.cpu().numpy())
        batches.append((gathering.courses(output), len(tokens)))
        reasons += gathering.take(len(tokens))
        if "explanation" in include and control.stop_reason() is None:
            first = len(explained)
            explained += [
                explained_graph(model, graph, params, row_C, gathering.fired(row), control)
                for row, (graph, row_C) in enumerate(
                    zip(graphs[first : first + len(tokens)], logits[-1], strict=True)
                )
            ]
        if control.stop_reason() is not None:
            break
    dynamics = resolved_dynamics(network, params)
    logits_RC = np.concatenate(logits) if logits else np.empty((0, 0))
    return Classified(logits_RC, batches, dynamics, reasons, explained)


def batched(
    network: GraphClassifier, graphs: Sequence[Graph], control: StepControl
) -> Iterator[list[GraphTokens]]:
    """Graphs prepared, as many at a time as memory should hold; a large one by itself."""
    pending: list[GraphTokens] = []
    size = 0
    for graph in graphs:
        if control.stop_reason() is not None:
            return
        tokens = network.tokenize(graph)
        if pending and size + len(tokens.indices) > ENTRIES:
            yield pending
            pending, size = [], 0
        pending.append(tokens)
        size += len(tokens.indices)
    if pending:
        yield pending


def graph_results(
    task: ClassifyInputs, items: Sequence[Item], classified: Classified, listed: bool = True
) -> list[dict[str, Any]]:
    """One result per input, in order; its reasons beside it where they are `listed`."""
    graphs = [item.graph for item in items if item.graph]
    answers = _answers(task, graphs, classified, listed and bool(classified.reasons))
    return [
        {
            "index": index,
            **item.fields,
            **(_failed(*item.error) if item.error else next(answers)),
        }
        for index, item in enumerate(items)
    ]


def require_any(task: ClassifyInputs, errors: Sequence[tuple[str, str] | None]) -> None:
    """Refuse a request of which no input has an answer.

    Raises:
        Problem: `diverged` or `molecules-unread` where that is why, else `nothing-classified` with
            a fault for each.
    """
    item_errors = [error for error in errors if error is not None]
    if len(item_errors) < len(errors):
        return
    if set(item_errors) == {_DIVERGED}:
        raise make_problem("diverged", "/dynamics", *_DIVERGED)
    if {code for code, _ in item_errors} == {"not_reached"}:
        raise Problem("molecules-unread", item_errors[0][1], headers={"retry-after": "1"})
    faults = [FieldError(at, *error) for at, error in zip(task.places, item_errors, strict=True)]
    raise Problem("nothing-classified", faults[0].detail, faults)


def error_of(result: Mapping[str, Any]) -> tuple[str, str] | None:
    """Code and detail of a result that is none."""
    error = result.get("error")
    return None if error is None else (error["code"], error["detail"])


def _answers(
    task: ClassifyInputs, graphs: Sequence[Graph], classified: Classified, listed: bool
) -> Iterator[dict[str, Any]]:
    model, logits_RC = task.model, classified.logits_RC
    explained = classified.explained
    finite_R = np.asarray(np.isfinite(logits_RC).all(1))
    with np.errstate(invalid="ignore"):  # rows that are not finite get an error below
        probabilities = model.probabilities(logits_RC)
    by_task = [(head, p_RC.tolist()) for head, p_RC in zip(model.tasks, probabilities, strict=True)]
    rows = zip(graphs, classified.rows(), strict=True)
    for row, (graph, (courses, batch_row)) in enumerate(rows):
        if not finite_R[row]:
            yield _failed(*_DIVERGED)
            continue
        energy = model.manifest.energy
        yield {
            "status": "ok",
            "predictions": {head.name: _prediction(head.labels, p[row]) for head, p in by_task},
            "convergence": courses.row(batch_row, graph.num_nodes, energy, task.include),
            **({"reasons": reasons_to_dict(classified.reasons[row], _node)} if listed else {}),
            **({"explanation": explained[row].by_task} if explained else {}),
        }


def _node(token: int) -> dict[str, Any]:
    return {"node": token - 1 if token else None}


def _prediction(labels: Sequence[str], p_C: Sequence[float]) -> dict[str, Any]:
    best = int(np.argmax(p_C))
    return {
        "label": labels[best],
        "probability": p_C[best],
        "probabilities": dict(zip(labels, p_C, strict=True)),
    }


def _failed(code: str, detail: str) -> dict[str, Any]:
    return {"status": "error", "error": {"code": code, "detail": detail}}
