"""POST /images/classify and /images/answer"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from models.base import StepControl
from models.inputs.images import ImageInput
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import (
    IMAGE_TYPES,
    binary_response,
    job_responses,
    json_or_form_body,
    problems,
)
from service.endpoints.common.cost import estimate_cost
from service.endpoints.images.crop import decode_and_fit, fitted
from service.endpoints.images.encode import encode_images
from service.endpoints.images.infer import Recognised, recognise
from service.endpoints.images.parse import ImageInputs, read_look
from service.endpoints.images.schemas import (
    AnswerImagesForm,
    AnswerImagesRequest,
    AnswerImagesResponse,
    ClassifyImagesForm,
    ClassifyImagesRequest,
    ClassifyImagesResponse,
)
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.engine.engine import Workload
from service.http.body import require_media_type
from service.http.negotiation import select_media_type
from service.media_types import JSON, MULTIPART, SAFETENSORS
from service.payload import ResponsePayload
from service.registry.handles import ImageClassifier, VisualQuestionModel

router = APIRouter(prefix="/images", tags=["images"])
_PROBLEMS = (
    problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | job_responses()
    | binary_response(SAFETENSORS)
)


def _body(of_json: type[BaseModel], of_form: type[BaseModel]) -> dict[str, Any]:
    description = "Images of any size, as JSON with base64 or as a form with files."
    return json_or_form_body(description, of_json, of_form, {"image": IMAGE_TYPES})


@router.post(
    "/classify",
    response_model=ClassifyImagesResponse,
    summary="Say what images show",
    responses=_PROBLEMS,
    openapi_extra=_body(ClassifyImagesRequest, ClassifyImagesForm),
)
async def classify_images(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """What does each image show, and with what energy did the network come to think so?

    One result per image, in order; each is what it would be alone. An image is upright by its
    EXIF, brought to the model's size by averaging areas (what is enlarged is interpolated), made
    grey or RGB as the model reads it, and where it is transparent the mean colour of the model's
    training images shows. One that cannot be read refuses the request. By the Accept header the
    answer is JSON, with the most telling of the reasons that are included, or a safetensors file
    with all of them, image after image (the rest as JSON in its metadata entry `response`).
    """
    return await _handle(request, context, ClassifyImagesTask)


@router.post(
    "/answer",
    response_model=AnswerImagesResponse,
    summary="Answer questions about images",
    responses=_PROBLEMS,
    openapi_extra=_body(AnswerImagesRequest, AnswerImagesForm),
)
async def answer_about_images(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Is the red object on the left? What is the shape of the one closest to it?

    One result per image and question, in order; each is what it would be alone. Images are
    shown as by POST /images/classify.
    """
    return await _handle(request, context, AnswerImagesTask)


async def _handle(request: Request, context: AppContext, task_type: type[ImagesTask]) -> Response:
    require_media_type(request, (JSON, MULTIPART), f"{JSON} and {MULTIPART}")
    context.registry.require_ready()
    accept = select_media_type(request, (JSON, SAFETENSORS))
    content_type = request.headers["content-type"]  # with the boundary of a form
    return await handle_inference(request, task_type(request, context, content_type, accept))


class ImagesTask(InferenceTask[Recognised]):
    """Classify images, or answer questions about them; each is computed by itself."""

    model_type: ClassVar[type[ImageClassifier] | type[VisualQuestionModel]]
    inputs: ImageInputs
    rows: list[ImageInput]  # an image at the model's size, with its question if there is one

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        registry, settings = self.context.registry, self.settings
        inputs = await self.on_codec(
            read_look, body, self.content_type, self.model_type, registry, settings
        )
        self.state.timer.lap("parse")
        model = inputs.model
        fit = partial(fitted, shape=model.config.shape, blank_C=model.mean_color, fit=inputs.fit)
        decoder = self.context.image_decoder
        images = []
        for where, file in inputs.images:
            async with decoder.reserve(self.caller.name) as run:
                images.append(await run(decode_and_fit, file, where, fit))
        # The encoded files are not needed any more; the response tells only their sizes.
        sizes = [(where, replace(file, data=b"")) for where, file in inputs.images]
        self.inputs = replace(inputs, images=sizes)
        self.rows = [
            ImageInput(images[place], None if question is None else question.encode())
            for place, question in inputs.rows
        ]
        self.state.timer.lap("decode")

    def workload(self) -> Workload:
        model, params = self.inputs.model, self.inputs.params
        tokens = len(self.rows) * model.config.num_tokens
        cost = estimate_cost(model.network, params, tokens, self.inputs.include)
        return Workload(flow=model.name, cost=cost)

    def run(self, control: StepControl) -> Recognised:
        inputs = self.inputs
        return recognise(
            inputs.model,
            self.rows,
            inputs.params,
            inputs.include,
            self.state.progress,
            control,
            self.max_tensor_bytes,
        )

    async def render(self, result: Recognised) -> ResponsePayload:
        model = self.inputs.model
        tokens = model.config.num_tokens
        self.context.metrics.observe_images(model.name, tokens, result.convergences)
        return await self.on_codec(encode_images, self.inputs, result, self.accept)


class ClassifyImagesTask(ImagesTask):
    model_type = ImageClassifier


class AnswerImagesTask(ImagesTask):
    model_type = VisualQuestionModel
