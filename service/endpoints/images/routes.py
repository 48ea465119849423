"""POST /images/classify and /images/answer"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import State

from models.inputs.images import Picture
from models.inputs.questions import Question
from models.interpret.prototypes import gallery
from service.context import AppContext, get_context
from service.endpoints.common.convergence import aggregate
from service.endpoints.common.dynamics import steps_of
from service.endpoints.common.reasons import tensors, told
from service.endpoints.fast_path import FastRoute
from service.endpoints.images.crop import fitted
from service.endpoints.images.infer import Recognised, recognise
from service.endpoints.images.parse import ImageRequest, read_look
from service.endpoints.images.schemas import (
    AnswerImagesForm,
    AnswerImagesRequest,
    AnswerImagesResponse,
    ClassifyImagesForm,
    ClassifyImagesRequest,
    ClassifyImagesResponse,
)
from service.endpoints.openapi import also, images_body, jobs, problems
from service.endpoints.pipeline import handle_inference, run_inference
from service.http.body import require_media_type
from service.http.negotiation import select_media_type
from service.media_types import JSON, MULTIPART, SAFETENSORS
from service.observability.stopwatch import StageTimer
from service.payload import ResponsePayload, as_json, as_tensors
from service.registry.handles import ImageClassifier, VisualQuestionModel

router = APIRouter(prefix="/images", tags=["images"], route_class=FastRoute)
_PROBLEMS = (
    problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504) | jobs() | also(SAFETENSORS)
)


@router.post(
    "/classify",
    response_model=ClassifyImagesResponse,
    summary="Say what pictures show",
    responses=_PROBLEMS,
    openapi_extra=images_body(ClassifyImagesRequest, ClassifyImagesForm),
)
async def classify_images(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """What does each picture show, and with what energy did the network come to think so?

    One result per picture, in order; each is what it would be alone. A picture is upright by its
    EXIF, brought to the model's size by averaging areas (what is enlarged is interpolated), made
    grey or RGB as the model reads it, and where it is transparent the mean colour of the model's
    training pictures shows. One that cannot be read refuses the request. By the Accept header the
    answer is JSON, with the most telling of the reasons that are included, or a safetensors file
    with all of them, picture after picture (the rest as JSON in its metadata entry `response`).
    """
    return await _exchanged(request, context, ImageClassifier)


@router.post(
    "/answer",
    response_model=AnswerImagesResponse,
    summary="Answer questions about pictures",
    responses=_PROBLEMS,
    openapi_extra=images_body(AnswerImagesRequest, AnswerImagesForm),
)
async def answer_about_images(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Is the red object on the left? What is the shape of the one closest to it?

    One result per picture and question, in order; each is what it would be alone. Pictures are
    shown as by POST /images/classify.
    """
    return await _exchanged(request, context, VisualQuestionModel)


async def _exchanged(
    request: Request, context: AppContext, kind: type[ImageClassifier] | type[VisualQuestionModel]
) -> Response:
    require_media_type(request, (JSON, MULTIPART), f"{JSON} and {MULTIPART}")
    context.registry.require_ready()
    form = select_media_type(request, (JSON, SAFETENSORS))
    content_type = request.headers["content-type"]  # with the boundary of its parts
    work = partial(
        answer,
        content_type=content_type,
        form=form,
        context=context,
        state=request.state,
        kind=kind,
    )
    return await handle_inference(request, context, work, context.models_fingerprint)


async def answer(
    body: bytes,
    content_type: str,
    form: str,
    context: AppContext,
    state: State,
    kind: type[ImageClassifier] | type[VisualQuestionModel],
) -> ResponsePayload:
    """What a body of this type is answered in this form."""
    watch: StageTimer = state.stopwatch
    on_codec = partial(asyncio.get_running_loop().run_in_executor, context.codec)
    registry, settings = context.registry, context.settings
    task = await on_codec(read_look, body, content_type, kind, registry, settings)
    del body
    watch.lap("parse")
    model = task.model
    see = partial(fitted, shape=model.config.shape, blank_C=model.mean, fit=task.fit)
    shown = [await context.pictures.look(file, where, see) for where, file in task.images]
    # What is decoded need not be kept; of each file only its size is told.
    seen = [(where, replace(file, data=b"")) for where, file in task.images]
    task = replace(task, images=seen)
    watch.lap("decode")
    pictures = [
        Picture(shown[place], None if asked is None else asked.encoded())
        for place, asked in task.rows
    ]
    room = settings.max_response_bytes if form == SAFETENSORS else None
    recognised = await run_inference(
        context,
        state,
        partial(recognise, model, pictures, task.knobs, task.include, state.progress, room=room),
        model.name,
        len(pictures) * model.config.tokens * steps_of(model.network, task.knobs),
    )
    context.metrics.observe_images(model.name, model.config.tokens, recognised.convergences)
    return await on_codec(_encode, task, recognised, form)


def _encode(task: ImageRequest, recognised: Recognised, form: str) -> ResponsePayload:
    labels, model = task.model.tasks[0].labels, task.model
    convergences = recognised.convergences
    found = [
        _result(index, asked, labels, p_C)
        | {"image": _shown(task, place), "convergence": convergence}
        for index, ((place, asked), p_C, convergence) in enumerate(
            zip(task.rows, recognised.probabilities_RC, convergences, strict=True)
        )
    ]
    rest = {
        "model": model.told,
        "dynamics": recognised.dynamics,
        "convergence": aggregate(convergences),
    }
    if form == SAFETENSORS:
        return as_tensors(tensors(recognised.reasons), {"results": found} | rest)
    tiles = "memories" in gallery(model.network)
    for result, reasons in zip(found, recognised.reasons, strict=False):
        result["reasons"] = told(reasons, tiles=tiles)
    return as_json({"results": found} | rest)


def _result(
    index: int, asked: Question | None, labels: Sequence[str], p_C: np.ndarray
) -> dict[str, Any]:
    best = int(p_C.argmax())
    told: dict[str, Any] = {"index": index}
    if asked is not None:
        parts = {name: part for name, part in asdict(asked).items() if part is not None}
        told["question"] = {"text": asked.text, **parts}
    return told | {
        "label" if asked is None else "answer": labels[best],
        "probability": float(p_C[best]),
        "probabilities": dict(zip(labels, p_C.tolist(), strict=True)),
    }


def _shown(task: ImageRequest, place: int) -> dict[str, Any]:
    height, width = task.images[place][1].shape
    _, *size = task.model.config.shape
    return {"width": width, "height": height, "fit": task.fit, "size": size[::-1]}
