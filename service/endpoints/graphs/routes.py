"""GET /graphs; PUT, PATCH, GET and DELETE /graphs/{id}; POST /graphs/{id}/nodes and /edges"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.context import JSON_COST_FACTOR, AppContext, get_context
from service.endpoints.common.api_docs import (
    json_body,
    json_or_tensors_body,
    list_tensors,
    problems,
)
from service.endpoints.graphs.parse import TENSORS_OF_GRAPH, parse_graph, parse_update
from service.endpoints.graphs.schemas import (
    AlertSettings,
    EdgesToAdd,
    GraphBody,
    GraphDetail,
    GraphList,
    GraphUpdate,
    NodesToSet,
    StoreArrays,
    StoreRows,
    StoreTransactions,
)
from service.http.body import require_media_type, require_small
from service.http.cancellation import run_until_deadline_or_disconnect
from service.media_types import JSON, SAFETENSORS
from service.storage.graphs import GraphMetadata

router = APIRouter(tags=["graphs"])
_WRITING = problems(400, 404, 408, 409, 413, 415, 422, 429, 500, 503, 504, 507)
_BODY = json_or_tensors_body(
    f"JSON, or a safetensors file with the tensors {list_tensors(TENSORS_OF_GRAPH)}, of which "
    "`edge_type` and `node_ids` may be left out, and `edge_attr` comes with models that have "
    "`edge_features`; `labels` are 1, 0, or -1 where not known. The entry `request` of its "
    "`__metadata__` holds `model`, `alerts`, `feature_names`, `edge_feature_names` and "
    "`relation_names` as JSON text. `node_ids` are numbers, or a list of names as JSON in bytes.",
    StoreArrays,
    StoreRows,
    StoreTransactions,
)


@router.get(
    "/graphs",
    summary="The graphs that are stored",
    response_model_exclude_none=True,
    responses=problems(500, 503),
)
async def list_graphs(context: Annotated[AppContext, Depends(get_context)]) -> GraphList:
    """Those of the key that asks."""
    listed = await context.graphs.list_metadata()
    graphs = [_body(id, head) for id, head in listed.graphs.items()]
    return GraphList(graphs=graphs, damaged=listed.damaged or None)


@router.put(
    "/graphs/{id}",
    summary="Store a graph, or replace one",
    response_model=GraphBody,
    responses=problems(400, 404, 408, 413, 415, 422, 429, 500, 503, 504, 507)
    | {201: {"description": "Stored; there was none", "model": GraphBody}},
    openapi_extra=_BODY,
)
async def store_graph(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """The answer is 201 where there was none of this id, and 200 where one was replaced.

    The body is that of `POST /anomaly/score`, without what is to be done with the graph. Nodes
    without ids go by their row numbers; an edge that comes twice is there once, and needs the same
    features each time. With `labels`, which may be empty, more may follow. With `alerts` its nodes
    are scored now and after each change, and raise alerts. With the name of a model that reads
    transactions it is `model`, `threshold` and `keep`, and the graph is empty.
    """
    media_type = require_media_type(request, (JSON, SAFETENSORS), f"{JSON} and {SAFETENSORS}")
    context.registry.require_ready()
    settings = context.settings

    async def stored() -> tuple[GraphMetadata, bool]:
        parse = partial(parse_graph, body, media_type, context.registry, settings)
        graph, base = await context.graphs.build(parse)
        return await context.graphs.put(id, graph, base)

    async with context.body_reader.read(request, settings.body_timeout_s) as body:
        require_small(body, media_type)
        head, new = await run_until_deadline_or_disconnect(
            stored(), request.receive, settings.deadline_s
        )
    return _respond_with_metadata(id, head, 201 if new else 200)


@router.get(
    "/graphs/{id}",
    summary="What a graph is",
    response_model_exclude_none=True,
    responses=problems(404, 500, 503),
)
async def describe_graph(
    id: str, context: Annotated[AppContext, Depends(get_context)]
) -> GraphDetail:
    head = await context.graphs.get_metadata(id)
    body = _body(id, head).model_dump()
    if head.model is None:
        if head.watch is None:
            return GraphDetail(**body)
        scored = await context.graphs.alerts.find_scored_revision(id, head)
        alerts = AlertSettings.from_watch(head.watch)
        return GraphDetail(**body, alerts=alerts, scored_revision=scored)
    settings = (await context.graphs.get_transactions(id)).settings
    return GraphDetail(
        **body,
        transactions=settings.recipe,
        threshold=settings.threshold,
        keep=settings.keep,
        webhook=settings.webhook,
    )


@router.patch(
    "/graphs/{id}",
    summary="Change a graph atomically",
    response_model=GraphBody,
    responses=_WRITING,
    openapi_extra=json_body(GraphUpdate),
)
async def change_graph(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """A score sees the graph with all of the change or none of it. The change is stored durably
    before the response.

    Sent again it changes nothing, so a client that saw no response may repeat it.
    """
    return await _change(id, request, context, GraphUpdate.model_fields)


@router.post(
    "/graphs/{id}/nodes",
    summary="Add nodes to a graph, or change their features",
    response_model=GraphBody,
    responses=_WRITING,
    openapi_extra=json_body(NodesToSet),
)
async def set_nodes(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    return await _change(id, request, context, NodesToSet.model_fields)


@router.post(
    "/graphs/{id}/edges",
    summary="Add edges to a graph",
    response_model=GraphBody,
    responses=_WRITING,
    openapi_extra=json_body(EdgesToAdd),
)
async def add_edges(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    return await _change(id, request, context, EdgesToAdd.model_fields)


@router.delete(
    "/graphs/{id}",
    summary="Forget a graph",
    status_code=204,
    responses=problems(404, 500, 503),
)
async def forget_graph(id: str, context: Annotated[AppContext, Depends(get_context)]) -> Response:
    await context.graphs.delete(id)
    return Response(status_code=204)


async def _change(
    id: str, request: Request, context: AppContext, parts: Collection[str]
) -> Response:
    require_media_type(request, (JSON,), JSON)
    schema = (await context.graphs.get_nodes_and_edges(id)).schema
    settings = context.settings

    async def changed() -> GraphMetadata:
        weight = JSON_COST_FACTOR * len(body)
        update = await context.offload_if_large(weight, parse_update, body, schema, parts)
        return await context.graphs.update(id, schema, update)

    async with context.body_reader.read(request, settings.body_timeout_s) as body:
        require_small(body, JSON)
        head = await run_until_deadline_or_disconnect(
            changed(), request.receive, settings.deadline_s
        )
    return _respond_with_metadata(id, head, 200)


def _respond_with_metadata(id: str, head: GraphMetadata, status: int) -> Response:
    body = _body(id, head).model_dump_json(exclude_none=True)
    return Response(body, status, media_type=JSON)


def _body(id: str, head: GraphMetadata) -> GraphBody:
    return GraphBody(
        id=id,
        features=list(head.features),
        edge_features=list(head.edge_features),
        relations=list(head.relations),
        labels=head.labels,
        num_nodes=head.num_nodes,
        num_edges=head.num_edges,
        revision=head.revision,
        digest=head.short_digest,
        model=head.model if head.watch is None else head.watch.model,
    )
