"""/v2: the Open Inference Protocol"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from models.base import StepControl
from service.context import JSON_COST_FACTOR, AppContext, get_context
from service.endpoints.anomaly import routes as anomaly
from service.endpoints.classify import routes as classify
from service.endpoints.common.api_docs import binary_response, job_responses, schema_ref
from service.endpoints.complete import routes as complete
from service.endpoints.images import routes as images
from service.endpoints.open_inference.adapters import ModelAdapter, Samples, of_model
from service.endpoints.open_inference.errors import ROOT
from service.endpoints.open_inference.schemas import (
    IndexEntry,
    InferRequest,
    InferResponse,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
    protocol_problems,
)
from service.endpoints.open_inference.tensors import (
    BINARY,
    HEADER,
    Inference,
    read,
    require_results_fit,
    written,
)
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.endpoints.sample import routes as sample
from service.engine.engine import Workload
from service.errors import Problem, make_problem
from service.http.body import require_identity
from service.media_types import JSON, SAFETENSORS
from service.payload import ResponsePayload
from service.registry.handles import (
    Classifier,
    Completer,
    ImageClassifier,
    Scorer,
    VisualQuestionModel,
)
from service.version import VERSION

_INCLUDED = ("attention_", "memories_", "components_", "samples_", "ptr", "index")
router = APIRouter(prefix=ROOT, tags=["open inference protocol"])


@router.get("", summary="The server", responses=protocol_problems(500))
async def describe_server() -> ServerMetadata:
    return ServerMetadata(name="basin", version=VERSION, extensions=["binary_tensor_data"])


@router.get("/health/live", summary="Is the server running?", responses=protocol_problems(500))
async def live() -> Live:
    return Live(live=True)


@router.get(
    "/health/ready", summary="Are its models loaded?", responses=protocol_problems(500, 503)
)
async def ready(context: Annotated[AppContext, Depends(get_context)]) -> Ready:
    context.require_ready()
    return Ready(ready=True)


@router.post(
    "/repository/index",
    summary="The models and memories there are",
    responses=protocol_problems(500, 503),
)
async def index(context: Annotated[AppContext, Depends(get_context)]) -> list[IndexEntry]:
    cards = await asyncio.to_thread(context.memories.list_cards)
    models = [of_model(model) for model in context.registry]
    taken = {model.name for model in models}
    memories = [Samples(name, card) for name, card in cards.items() if name not in taken]
    return [
        IndexEntry(name=one.name, version=one.version, state="READY", reason="")
        for one in (*models, *memories)
    ]


async def _named(name: str, context: Annotated[AppContext, Depends(get_context)]) -> ModelAdapter:
    """
    Raises:
        Problem: there is none of this name.
    """
    try:
        return of_model(context.registry.get(name))
    except Problem as problem:
        if problem.kind == "not-ready":
            raise
        try:
            return Samples(name, await asyncio.to_thread(context.memories.get_card, name))
        except Problem:
            raise problem from None


Named = Annotated[ModelAdapter, Depends(_named)]


async def _of_version(one: Named, version: str) -> ModelAdapter:
    """
    Raises:
        Problem: another version is served.
    """
    if version != one.version:
        rule = f"Version {one.version} is served. Ask for it, or for no version."
        raise make_problem("unknown-model", "/version", "unknown_version", rule)
    return one


OfVersion = Annotated[ModelAdapter, Depends(_of_version)]
_VERSION = "/models/{name}/versions/{version}"
_BODY = {
    "requestBody": {
        "required": True,
        "description": (
            f"JSON, or JSON with tensors in bytes behind it and its length in the header {HEADER}; "
            "the content type is not looked at."
        ),
        "content": {
            JSON: {"schema": schema_ref(InferRequest)},
            BINARY: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
_TOLD: dict[str, Any] = {"responses": protocol_problems(404, 500, 503)}
_INFERRED: dict[str, Any] = {
    "response_model": InferResponse,
    "responses": protocol_problems(400, 404, 408, 413, 415, 422, 429, 500, 503, 504)
    | job_responses(protocol_problems)
    | binary_response(BINARY),
    "openapi_extra": _BODY,
}


@router.get("/models/{name}", summary="The tensors of a model", **_TOLD)
async def describe_tensors(one: Named) -> ModelMetadata:
    """A memory is a model of no inputs. Shapes have -1 where any length will do."""
    return ModelMetadata(
        name=one.name,
        versions=[one.version],
        platform=one.platform,
        inputs=one.inputs,
        outputs=one.outputs,
    )


@router.get(_VERSION, summary="The tensors of a version", **_TOLD)
async def describe_tensors_of_version(one: OfVersion) -> ModelMetadata:
    return await describe_tensors(one)


@router.get("/models/{name}/ready", summary="Is it served?", **_TOLD)
async def model_ready(one: Named) -> ModelReady:
    return ModelReady(name=one.name, ready=True)


@router.get(f"{_VERSION}/ready", summary="Is this version served?", **_TOLD)
async def version_ready(one: OfVersion) -> ModelReady:
    return await model_ready(one)


@router.post("/models/{name}/infer", summary="Infer", **_INFERRED)
async def infer(
    one: Named, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Asks the route that serves the model: tensors are its inputs, parameters its knobs.

    Tensors are in the JSON, or in bytes behind it, whose length is then in the header
    `Inference-Header-Content-Length`, of requests as of answers.
    """
    require_identity(request)
    if request.headers.get("content-type", "").strip().lower().startswith("multipart/"):
        raise Problem(
            "unsupported-media-type",
            "This route reads JSON with tensors behind it. Do not send a form.",
        )
    task = OpenInferenceTask(request, context, request.headers.get(HEADER) or "", SAFETENSORS)
    task.adapter = one
    task.native = _TASKS[one.route](request, context, "", SAFETENSORS)
    return await handle_inference(request, task)


@router.post(f"{_VERSION}/infer", summary="Infer with this version", **_INFERRED)
async def infer_with_version(
    one: OfVersion, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    return await infer(one, request, context)


class OpenInferenceTask(InferenceTask[Any]):
    """Translate to the native route of the model and back; `content_type` is the header that says
    how long the JSON before binary tensors is."""

    adapter: ModelAdapter
    native: InferenceTask[Any]
    inference: Inference

    async def fingerprint(self, body: bytes) -> bytes:
        return await self.native.fingerprint(body)

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        context, header = self.context, self.content_type or None
        weight = len(body) * (JSON_COST_FACTOR if header is None else 1)
        inference = await context.offload_if_large(weight, read, body, header)
        _require_known_outputs(self.adapter, inference)
        request = await context.offload_if_large(
            weight, self.adapter.to_native, inference, self.settings
        )
        self.inference = replace(inference, inputs={})
        self.native.content_type = request.content_type
        await self.native.parse(request.body, resources)
        if (count := self.native.num_results) is not None:
            outputs, limit = self.adapter.outputs, self.settings.max_response_bytes
            require_results_fit(self.inference, outputs, count, limit)

    def workload(self) -> Workload:
        return self.native.workload()

    def run(self, control: StepControl) -> Any:
        return self.native.run(control)

    async def render(self, result: Any) -> ResponsePayload:
        payload = await self.native.render(result)
        response = await self.context.offload_if_large(
            payload.size_bytes,
            _to_response,
            self.adapter,
            self.inference,
            payload,
            self.settings.max_response_bytes,
        )
        return response if payload.is_cacheable else response.without_caching()


_TASKS: dict[str, type[InferenceTask[Any]]] = {
    Scorer.route: anomaly.ScoreTask,
    Classifier.route: classify.ClassifyTask,
    Completer.route: complete.CompleteTask,
    ImageClassifier.route: images.ClassifyImagesTask,
    VisualQuestionModel.route: images.AnswerImagesTask,
    Samples.route: sample.SampleTask,
}


def _require_known_outputs(one: ModelAdapter, inference: Inference) -> None:
    """Refuse unknown outputs before anything is computed."""
    names = [each.name for each in one.outputs]
    for i, name in enumerate(inference.wanted or ()):
        if name not in names and not name.startswith(_INCLUDED):
            rule = f"The outputs are {', '.join(names)}, and those that `include` adds."
            raise make_problem("invalid-request", f"/outputs/{i}/name", "unknown", rule)


def _to_response(
    one: ModelAdapter, inference: Inference, answer: ResponsePayload, limit: int
) -> ResponsePayload:
    """
    Raises:
        Problem: the model was replaced during the request.
    """
    response = orjson.loads(answer.document)
    of = response["memory" if isinstance(one, Samples) else "model"]
    if of["sha256"] != one.sha256:
        detail = "The model was replaced during the request. Retry after 1 s."
        raise Problem("not-ready", detail, headers={"retry-after": "1"})
    arrays_by_name = one.from_native(answer)
    names = [each.name for each in one.outputs if each.name in arrays_by_name]
    in_order = names + sorted(arrays_by_name.keys() - names)
    arrays = {name: arrays_by_name[name] for name in in_order}
    return written(inference, one.name, one.version, arrays, answer.document, limit)
