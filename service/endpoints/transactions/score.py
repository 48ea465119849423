"""Score stored transactions, and make alerts of the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from service.context import AppContext
from service.endpoints.anomaly.parse import ScoreInputs, rule_of
from service.endpoints.common.alerts import encode_alert
from service.endpoints.common.include import require_max_explained, require_supported_includes
from service.endpoints.common.schemas import Dynamics
from service.errors import Problem
from service.registry.handles import Scorer
from service.registry.registry import Registry
from service.settings import Settings
from service.storage.graphs import GraphStore, PendingScore, TransactionGraph
from service.validation.arrays import PointerFn, make_graph_problem_at
from service.validation.ids import NodeId
from service.validation.json_graph import check_graph_size


def find_scorer(graph: TransactionGraph, registry: Registry) -> Scorer:
    """Return the model that scores a graph.

    Raises:
        Problem: it is not loaded, or it describes transactions in another way now.
    """
    model = registry.get_of_kind(Scorer, graph.settings.model)
    if model.recipe != graph.settings.recipe:
        raise Problem(
            "graph-replaced",
            f"The model {model.name!r} was replaced by one that describes transactions in another "
            "way. Store the graph anew with PUT /graphs/{id}, and send its transactions again.",
        )
    return model


def require_supported(
    model: Scorer, include: frozenset[str], count: int, settings: Settings
) -> None:
    """Check, before they are stored, that `count` transactions can be scored in one request.

    Raises:
        Problem: their neighbourhoods may have more nodes than allowed, or `include` asks for what
            the model cannot tell.
    """
    require_supported_includes(model.network, include)
    require_max_explained(include, count, "/transactions", settings)
    assert model.recipe is not None
    limit = max(settings.max_nodes // model.recipe.max_nodes, 1)
    if count > limit:
        rule = (
            f"{count} transactions were sent to be scored; at most {limit} are allowed, each with "
            f"up to {model.recipe.max_nodes} nodes around it (BASIN_MAX_NODES). Send several "
            "requests, or store them with score=false."
        )
        raise make_graph_problem_at("/transactions", "too_many", rule)


def build_inputs(
    graph_id: str,
    graph: TransactionGraph,
    model: Scorer,
    node_ids: Sequence[NodeId],
    include: frozenset[str],
    settings: Settings,
    at: PointerFn,
) -> ScoreInputs:
    """Return the neighbourhoods of stored transactions as inputs of the model.

    Args:
        at: pointer to one of `node_ids` in the request, for errors.

    Raises:
        Problem: see `TransactionGraph.build_neighborhoods`.
    """
    taken, names = graph.build_neighborhoods(node_ids, settings.max_nodes, at)
    num_nodes, num_edges = taken.num_nodes, taken.edge_index.shape[1]
    check_graph_size(num_nodes, num_edges, settings, at(), at())
    dynamics = Dynamics.model_validate({})
    sizes = {"num_nodes": num_nodes, "num_edges": num_edges}
    return ScoreInputs(
        *(
            model,
            taken,
            names,
            np.arange(len(node_ids)),
            dynamics,
            dynamics.to_params(),
            include,
            rule_of(graph),
        ),
        {"id": graph_id, "revision": graph.revision} | sizes,
    )


def make_alerts(
    graph: TransactionGraph, inputs: ScoreInputs, scored: list[dict[str, Any]]
) -> dict[NodeId, bytes]:
    """Return the alerts of those of the `results` that have label 1, as JSON, by id."""
    raised = [result for result in scored if result["label"] == 1]
    rows = graph.describe([result["node_id"] for result in raised])
    return {
        result["node_id"]: encode_alert(result, inputs.model.ref_dict, transaction=row)
        for result, row in zip(raised, rows, strict=True)
    }


async def record_alerts(
    context: AppContext,
    graphs: GraphStore,
    model: str,
    pending: PendingScore,
    alerts: Mapping[NodeId, bytes],
) -> None:
    """Record those of the alerts that are of the pending transactions, unless that was done.

    An alert is recorded before its request is answered. If there is none, the answer does not wait
    until this is recorded; if it is lost, the transactions are scored again and raise none.
    """
    raised = [alerts[node_id] for node_id in pending.node_ids if node_id in alerts]
    count = partial(context.metrics.count_alerts, model, len(pending.node_ids), len(raised))
    if not raised:
        graphs.alerts.record_none(pending, count)
    elif await graphs.alerts.record(pending, raised):
        count()
