"""Score stored transactions, and make alerts of the scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from service.context import AppContext
from service.endpoints.anomaly.infer import ENTRY_BYTES
from service.endpoints.anomaly.parse import ScoreInputs, rule_of
from service.endpoints.common.alerts import encode_alert
from service.endpoints.common.include import (
    EXPLANATION_BYTES,
    require_max_explained,
    require_supported_includes,
)
from service.endpoints.common.schemas import Dynamics
from service.errors import Problem
from service.payload import require_response_bytes
from service.registry.handles import Scorer
from service.registry.registry import Registry
from service.settings import Settings
from service.storage.graphs import (
    AccountScore,
    GraphStore,
    PendingScore,
    Targets,
    TransactionGraph,
    shorten_digest,
)
from service.validation.arrays import PointerFn, make_graph_problem_at
from service.validation.ids import NodeId
from service.validation.json_graph import check_graph_size

_MORE_BYTES = 150
"""Of a result, beside those of `ENTRY_BYTES`: its ids and how late it is."""


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
    """Check, before they are stored, that `count` transactions, or the accounts that these touch,
    can be scored in one request.

    Raises:
        Problem: their neighbourhoods may have more nodes than allowed, the response would be too
            large, or `include` asks for what the model cannot tell.
    """
    require_supported_includes(model.network, include)
    assert model.recipe is not None
    of_accounts = model.recipe.scores == "accounts"
    num_targets = len(model.recipe.account_sides) if of_accounts else 1  # at most, of each
    require_max_explained(include, num_targets * count, "/transactions", settings)
    size = num_targets * count * (ENTRY_BYTES + _MORE_BYTES)
    if "explanation" in include:
        size += num_targets * count * EXPLANATION_BYTES
    remedy = "Send several requests, or store them with score=false."
    require_response_bytes(size, settings.max_response_bytes, "/transactions", remedy)
    limit = max(settings.max_nodes // (num_targets * model.recipe.max_nodes), 1)
    if count > limit:
        around = "each of its accounts" if of_accounts else "it"
        rule = (
            f"{count} transactions were sent to be scored; at most {limit} are allowed, each with "
            f"up to {model.recipe.max_nodes} nodes around {around} (BASIN_MAX_NODES). Send several "
            "requests, or store them with score=false."
        )
        raise make_graph_problem_at("/transactions", "too_many", rule)


def build_inputs(
    graph_id: str,
    graph: TransactionGraph,
    model: Scorer,
    row_ids: Sequence[NodeId],
    include: frozenset[str],
    settings: Settings,
    at: PointerFn,
) -> tuple[ScoreInputs, Targets]:
    """Return what is scored of stored transactions, and its neighbourhoods as inputs of the model.

    Args:
        at: pointer to one of `row_ids` in the request, for errors.

    Raises:
        Problem: see `TransactionGraph.find_row_targets` and `build_neighborhoods`.
    """
    targets = graph.find_row_targets(row_ids, at)
    taken, names = graph.build_neighborhoods(targets, settings.max_nodes, at)
    num_nodes, num_edges = taken.num_nodes, taken.edge_index.shape[1]
    check_graph_size(num_nodes, num_edges, settings, at(), at())
    dynamics = Dynamics.model_validate({})
    sizes = {"num_nodes": num_nodes, "num_edges": num_edges}
    inputs = ScoreInputs(
        *(
            model,
            taken,
            names,
            np.arange(len(targets.node_ids)),
            dynamics,
            dynamics.to_params(),
            include,
            rule_of(graph),
        ),
        {"id": graph_id, "revision": targets.revision, "digest": shorten_digest(targets.digest)}
        | sizes,
    )
    return inputs, targets


@dataclass(frozen=True)
class Outcome:
    """What the score of a target says of a transaction: the target, and its alert if it has label
    1."""

    node_id: NodeId
    alert: bytes | None


def find_outcomes(
    graph: TransactionGraph, inputs: ScoreInputs, targets: Targets, scored: list[dict[str, Any]]
) -> dict[NodeId, list[Outcome]]:
    """Return what `results` say of each transaction, by its id."""
    pairs = list(zip(targets.row_ids, scored, strict=True))
    raised = list(dict.fromkeys(row_id for row_id, result in pairs if result["label"] == 1))
    rows = dict(zip(raised, graph.describe(raised), strict=True))
    outcomes = defaultdict[NodeId, list[Outcome]](list)
    for row_id, result in pairs:
        alert = None
        if result["label"] == 1:
            alert = encode_alert(result, inputs.model.ref_dict, transaction=rows[row_id])
        outcomes[row_id].append(Outcome(result["node_id"], alert))
    return outcomes


async def record_outcomes(
    context: AppContext,
    graphs: GraphStore,
    graph: TransactionGraph,
    pending: PendingScore,
    outcomes: Mapping[NodeId, list[Outcome]],
) -> None:
    """Record what the scores say of the pending transactions, unless that was done.

    An alert is recorded before its request is answered, and so is every score of accounts, on which
    later ones depend. If transactions raise no alert, the answer does not wait until that is
    recorded; if it is lost, they are scored again and raise none.
    """
    scored = [each for row_id in pending.node_ids for each in outcomes[row_id]]
    raised = [each.alert for each in scored if each.alert is not None]
    count = partial(context.metrics.count_alerts, graph.settings.model, len(pending.node_ids))
    if graph.settings.recipe.scores == "accounts":
        scores = [AccountScore(str(each.node_id), each.alert) for each in scored]
        num_alerts = await graphs.alerts.record_accounts(pending, scores)
        if num_alerts is not None:
            count(num_alerts)
    elif not raised:
        graphs.alerts.record_none(pending, partial(count, 0))
    elif await graphs.alerts.record(pending, raised):
        count(len(raised))
