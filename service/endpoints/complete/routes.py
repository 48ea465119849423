"""POST /complete"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response

from models.base import StepControl
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import (
    IMAGE_TYPES,
    binary_response,
    job_responses,
    json_or_form_body,
    problems,
    schema_name,
)
from service.endpoints.common.dynamics import max_total_steps
from service.endpoints.common.envelope import require_supported_params
from service.endpoints.common.include import reason_bytes, require_supported_includes
from service.endpoints.common.reasons import reasons_to_dict as told_of
from service.endpoints.common.reasons import reasons_to_tensors
from service.endpoints.complete.decoding import open_picture
from service.endpoints.complete.infer import Completed, CompleteInputs, complete_picture
from service.endpoints.complete.parse import read_request
from service.endpoints.complete.previews import Frames
from service.endpoints.complete.schemas import (
    CompleteForm,
    CompleteRequest,
    CompleteResponse,
    FrameEvent,
)
from service.endpoints.complete.tiling import plan_windows
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.engine.engine import Workload
from service.errors import make_problem
from service.http.body import require_media_type
from service.http.negotiation import select_media_type
from service.http.sse import EVENTS, EventStream
from service.imaging.encode import encode_base64_png, encode_sheet
from service.imaging.image import ImageData, image_errors_at
from service.media_types import JSON, MULTIPART, PNG, SAFETENSORS
from service.payload import (
    ResponsePayload,
    make_image_payload,
    make_json_payload,
    make_tensors_payload,
)
from service.registry.handles import Completer
from service.settings import Settings

router = APIRouter(tags=["complete"])
_BODY = json_or_form_body(
    "A picture and what of it to fill, as JSON with base64 or as a form with files.",
    CompleteRequest,
    CompleteForm,
    {"image": IMAGE_TYPES, "mask": IMAGE_TYPES, "num_samples": JSON},
)
schema_name(FrameEvent)  # which the description of the route refers to


@router.post(
    "/complete",
    response_model=CompleteResponse,
    summary="Complete a picture",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | job_responses()
    | binary_response(PNG, SAFETENSORS, EVENTS),
    openapi_extra=_BODY,
)
async def complete_unknown(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Fill what a mask marks of a picture of any size; all else comes back as it was.

    The answer comes as JSON with PNGs in base64 or, by the Accept header, as a PNG: the completion,
    or all of them side by side. What else there is to say is then in its text chunk `basin`. In a
    safetensors file the pictures are `image_0` and so on, with all of the reasons included. As
    `text/event-stream` it comes while it is computed: `progress` (schema FrameEvent) up to
    BASIN_MAX_FRAMES times, evenly over all steps; at last `done` with what JSON would have, or
    `failed` with the problem.
    """
    require_media_type(request, (JSON, MULTIPART), f"{JSON} and {MULTIPART}")
    accept = select_media_type(request, (JSON, PNG, SAFETENSORS, EVENTS))
    context.registry.require_ready()
    content_type = request.headers["content-type"]  # with the boundary of a form
    is_stream = accept == EVENTS
    return await handle_inference(
        request,
        CompleteTask(request, context, content_type, JSON if is_stream else accept, is_stream),
    )


class CompleteTask(InferenceTask[Completed]):
    """Fill the masked pixels of one image."""

    inputs: CompleteInputs
    frames: Frames | None

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        context, settings, timer = self.context, self.settings, self.state.timer
        upload = await self.on_codec(read_request, body, self.content_type, settings)
        name = upload.model or settings.default_completion_model
        model = context.registry.get_of_kind(Completer, name)
        require_supported_params(upload.dynamics, model.network.config)
        require_supported_includes(model.network, upload.include)
        timer.lap("parse")
        run = await resources.enter_async_context(context.image_decoder.reserve())
        opened = await run(open_picture, upload)
        config, max_windows = model.config, settings.max_windows // upload.num_samples
        with image_errors_at("/mask" if upload.mask else "/image"):
            plan = await self.on_codec(
                plan_windows, opened.unknown, config.size, config.patch, max_windows
            )
        self.inputs = CompleteInputs(
            model,
            opened.picture,
            plan,
            upload.num_samples,
            upload.dynamics.to_params(),
            upload.include,
        )
        require_response_fits(self.inputs, self.accept, settings)
        timer.lap("decode")
        self.frames = _frames(self.inputs, self.events, settings)

    def workload(self) -> Workload:
        inputs, network = self.inputs, self.inputs.model.network
        return Workload(
            flow=inputs.model.name,
            cost=inputs.rows * inputs.patches * max_total_steps(network, inputs.params),
            is_isolated=inputs.params.deterministic,
        )

    def run(self, control: StepControl) -> Completed:
        progress, limit = self.state.progress, self.max_tensor_bytes
        return complete_picture(self.inputs, progress, control, self.frames, limit)

    async def render(self, result: Completed) -> ResponsePayload:
        return await self.on_codec(_encode, self.inputs, result, self.accept, self.context)


def require_response_fits(task: CompleteInputs, form: str, settings: Settings) -> None:
    """Refuse a response that would be too large, before anything is computed."""
    size = _size(task.picture) * 4 // 3 if form == JSON else _size(task.picture)
    size += reason_bytes(task.model.network, task.params, task.include, task.patches)
    if (size := task.count * size) > settings.max_response_bytes:
        rule = (
            f"The response may have {size} bytes; at most {settings.max_response_bytes} "
            "(BASIN_MAX_RESPONSE_BYTES) are allowed. Lower `num_samples`, or send a smaller image."
        )
        raise make_problem("invalid-request", "/num_samples", "too_large", rule)


def _frames(task: CompleteInputs, feed: EventStream | None, settings: Settings) -> Frames | None:
    """Intermediate images of the event stream, within the limit on response bytes."""
    if feed is None:
        return None
    feed.start()
    room = settings.max_response_bytes // (_size(task.picture) * 4 // 3) - task.count
    return Frames(max(min(settings.max_frames, room), 0), lambda frame: feed.publish(frame.told))


def _size(picture: ImageData) -> int:
    """Bytes of a picture where a PNG of it saves none."""
    alpha = 0 if picture.alpha is None else picture.alpha.nbytes
    return picture.pixels.nbytes + alpha + len(picture.profile or b"")


def _encode(
    task: CompleteInputs, completed: Completed, form: str, context: AppContext
) -> ResponsePayload:
    for one in completed.completions:
        context.metrics.observe_windows(task.model.name, task.patches, one.windows)
    pictures = [one.picture for one in completed.completions]
    images: list[dict[str, Any]] = [
        {"convergence": one.convergence} for one in completed.completions
    ]
    reasons = [one.reasons for one in completed.completions if one.reasons is not None]
    rest = {"model": task.model.ref_dict, "dynamics": completed.dynamics}
    if form == SAFETENSORS:
        arrays = {f"image_{i}": np.array(each.to_array()) for i, each in enumerate(pictures)}
        return make_tensors_payload(
            arrays | reasons_to_tensors(reasons), {"images": images, **rest}
        )
    for image, each in zip(images, reasons, strict=False):
        image["reasons"] = told_of(each, tiles=True)
    if form == JSON:
        told = [
            {"b64_png": encode_base64_png(p), **one}
            for p, one in zip(pictures, images, strict=True)
        ]
        return make_json_payload({"images": told, **rest})
    return make_image_payload(encode_sheet(pictures), {"images": images, **rest})
