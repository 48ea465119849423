"""POST /classify"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from models.base import StepControl
from models.inputs.graph import Graph
from models.inputs.molecules import Molecule, MoleculeError
from models.interpret.occlusion import BATCH_ENTRIES
from service.context import AppContext, get_context
from service.endpoints.classify.encode import Drawing, encode_classification, list_drawings
from service.endpoints.classify.graph_list import TENSORS
from service.endpoints.classify.infer import (
    ENTRIES,
    Classified,
    classify,
    error_of,
    graph_results,
    require_any,
)
from service.endpoints.classify.parse import MAX_SVG_BYTES, ClassifyInputs, Item, parse_classify
from service.endpoints.classify.schemas import (
    ClassifyResponse,
    GraphsRequest,
    SmilesRequest,
    TensorClassifyRequest,
)
from service.endpoints.common.api_docs import (
    binary_response,
    job_responses,
    json_or_tensors_body,
    list_tensors,
    problems,
    schema_name,
)
from service.endpoints.common.cost import count_graph_tokens, count_tokens, estimate_cost
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.engine.engine import Workload
from service.http.body import require_media_type, require_small
from service.http.negotiation import select_media_type
from service.media_types import JSON, SAFETENSORS
from service.payload import ResponsePayload
from service.workers.smiles_pool import TRANSIENT_CODES, SmilesParserPool

router = APIRouter(tags=["classify"])
_BODY = json_or_tensors_body(
    f"JSON, or a safetensors file with the tensors {list_tensors(TENSORS)}: graphs one after the "
    "other, as PyTorch Geometric batches them. Graph i has the rows ptr[i] to ptr[i + 1] of x, and "
    "`edge_index` counts rows of all of x; without `ptr` they are one graph. `edge_attr` comes "
    "with models that have `edge_features`. The entry `request` of its `__metadata__` holds the "
    f"rest as JSON text, after the schema {schema_name(TensorClassifyRequest)}.",
    SmilesRequest,
    GraphsRequest,
)


@router.post(
    "/classify",
    response_model=ClassifyResponse,
    summary="Classify molecules or graphs",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | job_responses()
    | binary_response(SAFETENSORS),
    openapi_extra=_BODY,
)
async def classify_graphs(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """What is each molecule or graph, and with what energy did the network come to think so?

    One result per input, in order. A SMILES that cannot be read is an error in its place; only a
    request of nothing else is refused. By the Accept header the answer is JSON, with the most
    telling of the reasons that are included, or a safetensors file with all of them, row after row
    (`index` says of which inputs; the rest is JSON in its metadata entry `response`).
    """
    media_type = require_media_type(request, (JSON, SAFETENSORS), f"{JSON} and {SAFETENSORS}")
    accept = select_media_type(request, (JSON, SAFETENSORS))
    context.registry.require_ready()
    return await handle_inference(request, ClassifyTask(request, context, media_type, accept))


class ClassifyTask(InferenceTask[Classified]):
    """Classify molecules, given as SMILES, or graphs."""

    inputs: ClassifyInputs
    items: list[Item]
    graphs: list[Graph]  # of the items that could be read

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        context, timer = self.context, self.state.timer
        require_small(body, self.content_type)
        inputs = await self.on_codec(
            parse_classify, body, self.content_type, context.registry, self.settings
        )
        timer.lap("parse")
        molecules: list[Molecule | MoleculeError] = []
        if inputs.smiles is not None:
            molecules = await context.smiles_pool.parse_async(inputs.smiles, self.caller.name)
            timer.lap("molecules")
        self.inputs = inputs
        self.items = inputs.items(molecules, self.settings.max_smiles_length)
        errors = [item.error for item in self.items]
        context.metrics.observe_item_errors(inputs.model.name, errors)
        require_any(inputs, errors)
        self.graphs = [item.graph for item in self.items if item.graph is not None]

    def workload(self) -> Workload:
        inputs, model = self.inputs, self.inputs.model
        network, num_tasks = model.network, len(model.tasks)
        size = sum(map(count_tokens, self.graphs))
        explained = 0
        if "explanation" in inputs.include:
            explained = sum(count_graph_tokens(network, graph, num_tasks) for graph in self.graphs)
        return Workload(
            flow=model.name,
            cost=estimate_cost(network, inputs.params, size, inputs.include, explained),
            size=max(min(size, ENTRIES), min(explained, BATCH_ENTRIES)),
            is_isolated=inputs.params.deterministic,
        )

    def run(self, control: StepControl) -> Classified:
        model, params = self.inputs.model, self.inputs.params
        include, limit = self.inputs.include, self.max_tensor_bytes
        return classify(model, self.graphs, params, control, include, limit)

    async def render(self, result: Classified) -> ResponsePayload:
        inputs, context, is_complete = self.inputs, self.context, True
        if inputs.smiles is not None and result.explained:
            drawings = list(list_drawings(inputs.smiles, self.items, result.explained))
            is_complete = await _draw(drawings, context.smiles_pool, self.caller.name)
            self.state.timer.lap("draw")
        payload = await self.on_codec(_encode, self, result)
        if any(item.error is not None and item.error[0] in TRANSIENT_CODES for item in self.items):
            is_complete = False
        # Another time there may be time to read or to draw all of the molecules.
        return payload if is_complete else payload.without_caching()


async def _draw(drawings: Sequence[Drawing], pool: SmilesParserPool, key: str) -> bool:
    """Add to each explanation of a molecule its drawing; was there one for each?"""
    if not drawings:
        return True
    smiles, effects = [each.smiles for each in drawings], [each.effects for each in drawings]
    svgs = await pool.draw_async(smiles, effects, MAX_SVG_BYTES, key)
    for drawing, svg in zip(drawings, svgs, strict=True):
        drawing.explanation["svg"] = svg
    return None not in svgs


def _encode(task: ClassifyTask, classified: Classified) -> ResponsePayload:
    inputs, items, metrics = task.inputs, task.items, task.context.metrics
    results = graph_results(inputs, items, classified, listed=task.accept == JSON)
    for item, result in zip(items, results, strict=True):
        if item.graph is None:  # it could not be read, and was counted then
            continue
        if result["status"] == "ok":
            nodes = item.graph.num_nodes
            metrics.observe_classified(inputs.model.name, nodes, result["convergence"])
        else:
            metrics.observe_item_errors(inputs.model.name, [error_of(result)])
    return encode_classification(inputs, items, results, classified, task.accept)
