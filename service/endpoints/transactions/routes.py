"""POST /graphs/{id}/transactions and /labels"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from models.base import StepControl
from service.auth.keys import get_caller
from service.context import JSON_COST_FACTOR, AppContext, get_context
from service.endpoints.anomaly.infer import (
    Scored,
    named,
    pack_if_large,
    response_weight,
    results,
    score,
    workload_of,
)
from service.endpoints.anomaly.parse import ScoreInputs
from service.endpoints.common.api_docs import job_responses, json_body, problems
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.endpoints.transactions.parse import (
    parse_new_labels,
    parse_new_transactions,
    parse_node_labels,
)
from service.endpoints.transactions.schemas import (
    NewLabelsBody,
    NewTransactionsBody,
    StoredLabels,
    StoredTransactions,
    TransactionScores,
)
from service.endpoints.transactions.score import (
    Outcome,
    build_inputs,
    find_outcomes,
    find_scorer,
    record_outcomes,
    require_supported,
)
from service.engine.engine import Workload
from service.errors import make_problem
from service.http.body import require_media_type, require_small
from service.http.cancellation import run_until_deadline_or_disconnect
from service.media_types import JSON
from service.payload import ResponsePayload, make_json_payload
from service.storage.graphs import (
    AddedTransactions,
    DynamicGraph,
    Targets,
    TransactionGraph,
)
from service.validation.arrays import pointer_builder
from service.validation.ids import NodeId

router = APIRouter(tags=["transactions"])
_AT = pointer_builder("transactions")


@router.post(
    "/graphs/{id}/transactions",
    response_model=TransactionScores | StoredTransactions,
    summary="Store transactions and score them",
    responses=problems(400, 404, 406, 408, 409, 413, 415, 422, 429, 500, 503, 504, 507)
    | job_responses(),
    openapi_extra=json_body(NewTransactionsBody),
)
async def add_transactions(
    id: str,
    request: Request,
    context: Annotated[AppContext, Depends(get_context)],
    score: bool = True,
) -> Response:
    """The graph was stored with a model that reads transactions; that model scores them, by
    themselves and the transactions stored before. Those from the threshold on raise alerts, see
    GET /graphs/{id}/alerts. If the model scores accounts (`scores` of its `transactions`), it
    scores who pays and who is paid instead, as of each transaction; an account raises an alert when
    it reaches the threshold, and another only after it was below.

    The response comes once all is stored durably. Where it does not come, the transactions may be
    stored: they are scored later and raise their alerts then, and may be sent again. With
    `score=false` they are stored alone, as the past of those to come.
    """
    require_media_type(request, (JSON,), JSON)
    context.registry.require_ready()
    if score:
        return await handle_inference(request, AddTask(request, context, id))
    return await _store_alone(id, request, context)


@router.post(
    "/graphs/{id}/labels",
    response_model=StoredLabels,
    summary="Tell what stored transactions or nodes turned out to be",
    responses=problems(400, 404, 408, 409, 413, 415, 422, 429, 500, 503, 504, 507),
    openapi_extra=json_body(NewLabelsBody),
)
async def add_labels(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Of transactions, for graphs whose model reads labels (`label` of its `transactions`): they
    count for transactions that are stored later, once a label is as old as in training
    (`known_after`); no score that was given changes.

    Of nodes, for graphs that were stored with `labels`: they count from the next request on for the
    scores of the neighbours of these nodes, by models that read labels. `PATCH /graphs/{id}` can
    take one back.

    Sent again they change nothing.
    """
    require_media_type(request, (JSON,), JSON)
    graph = await context.graphs.get(id)
    if isinstance(graph, DynamicGraph):
        parse = partial(parse_node_labels, schema=graph.schema)
    else:
        assert isinstance(graph, TransactionGraph)
        if graph.settings.recipe.label is None:
            detail = (
                f"The model {graph.settings.model} reads no labels. Train one with --known-after, "
                "and store the graph with it."
            )
            raise make_problem("invalid-request", "/labels", "not_allowed", detail)
        parse = parse_new_labels

    async def store(body: bytes) -> StoredLabels:
        weight = JSON_COST_FACTOR * len(body)
        labels = await context.offload_if_large(weight, parse, body)
        head, changed = await context.graphs.add_labels(id, graph.schema, labels)
        version = {"revision": head.revision, "digest": head.short_digest}
        return StoredLabels(id=id, changed=changed, **version)

    return await _respond_once_stored(request, context, store)


async def _store_alone(id: str, request: Request, context: AppContext) -> Response:
    graph, caller = await context.graphs.get_transactions(id), get_caller(request.scope)

    async def store(body: bytes) -> StoredTransactions:
        weight = JSON_COST_FACTOR * len(body)
        recipe = graph.settings.recipe
        new, _ = await context.offload_if_large(weight, parse_new_transactions, body, recipe)
        async with context.usage_limits.charge_quota(caller, len(new.node_ids)):
            added = await context.graphs.add_transactions(id, graph.schema, new, scored=False)
        head = added.head
        return StoredTransactions(
            id=id,
            added=len(added.new),
            num_nodes=head.num_nodes,
            revision=head.revision,
            digest=head.short_digest,
        )

    return await _respond_once_stored(request, context, store)


async def _respond_once_stored(
    request: Request, context: AppContext, store: Callable[[bytes], Coroutine[Any, Any, BaseModel]]
) -> Response:
    async with context.body_reader.read(request, context.settings.body_timeout_s) as body:
        require_small(body, JSON)
        result = await run_until_deadline_or_disconnect(
            store(body), request.receive, context.settings.deadline_s
        )
    return Response(result.model_dump_json(), media_type=JSON)


class AddTask(InferenceTask[Scored]):
    """Store transactions, score them, and record their alerts."""

    is_cached = False
    added: AddedTransactions
    inputs: ScoreInputs
    targets: Targets
    _workload: Workload

    def __init__(self, request: Request, context: AppContext, graph_id: str) -> None:
        super().__init__(request, context, JSON, JSON)
        self.graph_id = graph_id

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        require_small(body, JSON)
        context, graphs = self.context, self.context.graphs
        graph = await graphs.get_transactions(self.graph_id)
        model = find_scorer(graph, context.registry)
        weight = JSON_COST_FACTOR * len(body)
        recipe = graph.settings.recipe
        new, include = await context.offload_if_large(weight, parse_new_transactions, body, recipe)
        require_supported(model, include, len(new.node_ids), self.settings)
        self.state.timer.lap("parse")
        # A key whose quota is used up stores nothing; what is stored is scored in any case.
        async with context.usage_limits.charge_quota(self.caller, len(new.node_ids)):
            self.added = await graphs.add_transactions(self.graph_id, graph.schema, new)
        self.state.timer.lap("store")
        arguments = (
            self.graph_id,
            self.added.graph,
            model,
            new.node_ids,
            include,
            self.settings,
            _AT,
        )
        self.inputs, self.targets = await self.on_codec(build_inputs, *arguments)
        self._workload = await self.on_codec(workload_of, self.inputs)

    def workload(self) -> Workload:
        return self._workload

    def run(self, control: StepControl) -> Scored:
        return score(self.inputs, pack_if_large(self.inputs), control)

    async def render(self, result: Scored) -> ResponsePayload:
        context, inputs = self.context, self.inputs
        weight = response_weight(inputs, JSON)
        payload, outcomes = await context.offload_if_large(weight, self._encode, result)
        for each in self.added.pending:
            await record_outcomes(context, context.graphs, self.added.graph, each, outcomes)
        asyncio.get_running_loop().call_soon(
            context.metrics.observe, inputs.model.name, inputs.graph.num_nodes, result.convergence
        )
        return payload

    def _encode(self, scored: Scored) -> tuple[ResponsePayload, dict[NodeId, list[Outcome]]]:
        inputs, graph = self.inputs, self.added.graph
        listed = results(inputs, scored)
        outcomes = find_outcomes(graph, inputs, self.targets, listed)
        of_accounts = graph.settings.recipe.scores == "accounts"
        for result, row in zip(listed, graph.describe(self.targets.row_ids), strict=True):
            result["late_by"] = row["late_by"]
            if of_accounts:
                result["transaction_id"] = row["id"]
        document: dict[str, Any] = {
            "results": listed,
            "graph": inputs.subgraph,
            "added": len(self.added.new),
            "model": inputs.model.ref_dict,
            "dynamics": scored.dynamics,
            "convergence": scored.convergence,
        }
        if scored.reasons:
            document["reasons"] = named(inputs, scored.reasons[0])
        return make_json_payload(document), outcomes
