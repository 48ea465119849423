"""/v2: the Open Inference Protocol"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from importlib.metadata import version as version_of
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import State

from service.context import JSON_WEIGHS, Services, services
from service.endpoints.anomaly import routes as anomaly
from service.endpoints.anomaly.parse import SAFETENSORS
from service.endpoints.classify import routes as classify
from service.endpoints.complete import routes as complete
from service.endpoints.images import routes as images
from service.endpoints.open_inference.adapters import Samples, Subject, of_model
from service.endpoints.open_inference.errors import ROOT
from service.endpoints.open_inference.schemas import (
    IndexEntry,
    InferResponse,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    ServerMetadata,
)
from service.endpoints.open_inference.tensors import BINARY, HEADER, Inference, read, written
from service.endpoints.openapi import also, faults, infer_body, jobs
from service.endpoints.pipeline import exchange
from service.endpoints.sample import routes as sample
from service.errors import Problem, refuse
from service.http.body import require_identity
from service.payload import Answer
from service.registry.handles import Answerer, Classifier, Completer, PictureClassifier, Scorer

_INCLUDED = ("attention_", "memories_", "components_", "samples_", "ptr", "index")
router = APIRouter(prefix=ROOT, tags=["open inference protocol"])
_ANSWERS: dict[str, Any] = {
    Scorer.route: anomaly.answer,
    Classifier.route: classify.answer,
    Completer.route: complete.answer,
    PictureClassifier.route: partial(images.answer, kind=PictureClassifier),
    Answerer.route: partial(images.answer, kind=Answerer),
    Samples.route: sample.answer,
}


@router.get("", summary="The server", responses=faults(500))
async def describe_server() -> ServerMetadata:
    return ServerMetadata(
        name="basin", version=version_of("basin"), extensions=["binary_tensor_data"]
    )


@router.get("/health/live", summary="Is the server running?", responses=faults(500))
async def live() -> Live:
    return Live(live=True)


@router.get("/health/ready", summary="Are its models loaded?", responses=faults(500, 503))
async def ready(services: Annotated[Services, Depends(services)]) -> Ready:
    services.registry.require_ready()
    return Ready(ready=True)


@router.post(
    "/repository/index", summary="The models and memories there are", responses=faults(500, 503)
)
async def index(services: Annotated[Services, Depends(services)]) -> list[IndexEntry]:
    cards = await asyncio.to_thread(services.memories.cards)
    models = [of_model(model) for model in services.registry]
    taken = {model.name for model in models}
    memories = [Samples(name, card) for name, card in cards.items() if name not in taken]
    return [
        IndexEntry(name=one.name, version=one.version, state="READY", reason="")
        for one in (*models, *memories)
    ]


async def _named(name: str, services: Annotated[Services, Depends(services)]) -> Subject:
    """
    Raises:
        Problem: there is none of this name.
    """
    try:
        return of_model(services.registry.get(name))
    except Problem as problem:
        if problem.kind == "not-ready":
            raise
        try:
            return Samples(name, await asyncio.to_thread(services.memories.card, name))
        except Problem:
            raise problem from None


Named = Annotated[Subject, Depends(_named)]


async def _of_version(one: Named, version: str) -> Subject:
    """
    Raises:
        Problem: another version is served.
    """
    if version != one.version:
        rule = f"{one.version} is served"
        raise refuse("unknown-model", "/version", "unknown_version", rule)
    return one


OfVersion = Annotated[Subject, Depends(_of_version)]
_VERSION = "/models/{name}/versions/{version}"
_TOLD: dict[str, Any] = {"responses": faults(404, 500, 503)}
_INFERRED: dict[str, Any] = {
    "response_model": InferResponse,
    "responses": faults(400, 404, 408, 413, 415, 422, 429, 500, 503, 504)
    | jobs(faults)
    | also(BINARY),
    "openapi_extra": infer_body(),
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
    one: Named, request: Request, services: Annotated[Services, Depends(services)]
) -> Response:
    """Asks the route that serves the model: tensors are its inputs, parameters its knobs.

    Tensors are in the JSON, or in bytes behind it, whose length is then in the header
    `Inference-Header-Content-Length`, of requests as of answers.
    """
    require_identity(request)
    if request.headers.get("content-type", "").strip().lower().startswith("multipart/"):
        raise Problem("unsupported-media-type", "this route reads JSON and tensors behind it")
    header = request.headers.get(HEADER)
    stamp = services.memories_stamp if isinstance(one, Samples) else services.models_stamp
    work = partial(_answer, one=one, header=header, services=services, state=request.state)
    return await exchange(request, services, work, stamp)


@router.post(f"{_VERSION}/infer", summary="Infer with this version", **_INFERRED)
async def infer_with_version(
    one: OfVersion, request: Request, services: Annotated[Services, Depends(services)]
) -> Response:
    return await infer(one, request, services)


async def _answer(
    body: bytes, one: Subject, header: str | None, services: Services, state: State
) -> Answer:
    weight = len(body) * (JSON_WEIGHS if header is None else 1)
    inference = await services.aside(weight, read, body, header)
    _require_there(one, inference)
    native = await services.aside(weight, one.asked, inference, services.settings)
    inference = replace(inference, inputs={})
    answers = _ANSWERS[one.route]
    answering = answers(native.body, native.content_type, SAFETENSORS, services, state)
    del body, native
    answer = await answering
    told = await services.aside(answer.size, _told, one, inference, answer)
    return told if answer.lasting else told.passing()


def _require_there(one: Subject, inference: Inference) -> None:
    """Refuse an output that surely will not be, before it is computed."""
    names = [each.name for each in one.outputs]
    for i, name in enumerate(inference.wanted or ()):
        if name not in names and not name.startswith(_INCLUDED):
            rule = f"the outputs are {', '.join(names)}, and what is included"
            raise refuse("invalid-request", f"/outputs/{i}/name", "unknown", rule)


def _told(one: Subject, inference: Inference, answer: Answer) -> Answer:
    """
    Raises:
        Problem: it is of another model than was asked, which took its place meanwhile.
    """
    response = orjson.loads(answer.told)
    of = response["memory" if isinstance(one, Samples) else "model"]
    if of["sha256"] != one.sha256:
        detail = "it was replaced while this was read; ask again"
        raise Problem("not-ready", detail, headers={"retry-after": "1"})
    found = one.told(answer)
    names = [each.name for each in one.outputs if each.name in found]
    in_order = names + sorted(found.keys() - names)
    arrays = {name: found[name] for name in in_order}
    return written(inference, one.name, one.version, arrays, answer.told)
