"""POST /complete"""

from __future__ import annotations

import base64
import os
from contextlib import AsyncExitStack
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response

from models.base import StepControl
from models.inputs.image_files.data import ImageError
from models.inputs.inpainting.plan import (
    MAX_PIXELS,
    HoleTooLargeError,
    Plan,
    Tiling,
    WholeImage,
    plan_windows,
)
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import (
    IMAGE_TYPES,
    binary_response,
    job_responses,
    json_or_form_body,
    problems,
    schema_name,
)
from service.endpoints.common.envelope import require_supported_params
from service.endpoints.common.include import reason_bytes, require_supported_includes
from service.endpoints.common.reasons import reasons_to_dict, reasons_to_tensors
from service.endpoints.complete.decoding import DecodedRequest, decode_request
from service.endpoints.complete.infer import Completed, CompleteInputs, complete_image
from service.endpoints.complete.parse import CompletionRequest, read_request
from service.endpoints.complete.previews import Frames
from service.endpoints.complete.recall import (
    RecalledMemory,
    recall_memory,
    require_fitting_memory,
    require_max_work,
)
from service.endpoints.complete.schemas import (
    Box,
    CompleteForm,
    CompleteRequest,
    CompleteResponse,
    FrameEvent,
)
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.engine.engine import Workload
from service.errors import Problem, make_problem
from service.http.body import require_media_type
from service.http.negotiation import select_media_type
from service.http.sse import EVENTS, EventStream
from service.imaging.encode import encode_base64_png, encode_png, encode_sheet
from service.imaging.errors import image_errors_at
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
_WHOLE = slice(None), slice(None)
_BODY = json_or_form_body(
    "An image and what of it to fill, as JSON with base64 or as a form with files.",
    CompleteRequest,
    CompleteForm,
    {"image": IMAGE_TYPES, "mask": IMAGE_TYPES, "num_samples": JSON},
)
schema_name(FrameEvent)  # which the description of the route refers to


@router.post(
    "/complete",
    response_model=CompleteResponse,
    summary="Complete an image",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | job_responses()
    | binary_response(PNG, SAFETENSORS, EVENTS),
    openapi_extra=_BODY,
)
async def complete_unknown(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Fill what a mask marks of an image of any size; all else comes back as it was.

    The answer comes as JSON with PNGs in base64 or, by the Accept header, as a PNG: the completion,
    or all of them side by side. What else there is to say is then in its text chunk `basin`. In a
    safetensors file the images are `image_0` and so on, with all of the reasons included. As
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
    _is_from_memory = False

    async def fingerprint(self, body: bytes) -> bytes:
        models = await super().fingerprint(body)
        # A key may be written with escapes. Once parsed, it is known that it was, and the other
        # fingerprint keeps that answer out of the cache.
        if b"memory" not in body and not self._is_from_memory:
            return models
        try:
            return models + await self.context.memories_fingerprint()
        except Problem:  # memories cannot be read now; models complete images all the same
            return models + os.urandom(16)

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        context, settings, timer = self.context, self.settings, self.state.timer
        upload = await self.on_codec(read_request, body, self.content_type, settings)
        model = None
        if upload.memory is None:
            model = self._find_model(upload)
        else:
            self._is_from_memory = True
            await self.on_codec(require_fitting_memory, upload, context.memories)
        timer.lap("parse")
        run = await resources.enter_async_context(context.image_decoder.reserve())
        opened = await run(decode_request, upload)
        if model is None:
            model, plan = await self._recall(upload, opened)
        else:
            plan = await self._plan(upload, opened, Tiling.from_size(model.config.size))
        self.inputs = CompleteInputs(
            model,
            opened.image,
            plan,
            upload.num_samples,
            upload.dynamics.to_params(),
            upload.include,
            opened.hole.weights,
            _find_box(opened.hole.hidden) if upload.region == "hole" else _WHOLE,
        )
        if isinstance(model, RecalledMemory):
            require_max_work(self.inputs.memory_work, settings)
        require_response_fits(self.inputs, self.accept, settings)
        timer.lap("decode")
        self.frames = _frames(self.inputs, self.events, settings)

    def _find_model(self, upload: CompletionRequest) -> Completer:
        name = upload.model or self.settings.default_completion_model
        model = self.context.registry.get_of_kind(Completer, name)
        require_supported_params(upload.dynamics, model.config)
        require_supported_includes(model.network, upload.include)
        return model

    async def _recall(
        self, upload: CompletionRequest, opened: DecodedRequest
    ) -> tuple[RecalledMemory, WholeImage]:
        assert upload.memory is not None
        store = self.context.memories
        memory = await self.on_codec(recall_memory, upload.memory, store, opened)
        return memory, WholeImage(opened.hole.hidden)

    async def _plan(
        self, upload: CompletionRequest, opened: DecodedRequest, tiling: Tiling
    ) -> Plan:
        max_windows = self.settings.max_windows
        with image_errors_at("/mask" if upload.mask else "/image"):
            return await self.on_codec(
                _plan, opened.hole.hidden, tiling, max_windows, upload.num_samples
            )

    def workload(self) -> Workload:
        inputs = self.inputs
        return Workload(
            flow=inputs.model.name,
            cost=inputs.cost,
            is_isolated=inputs.params.deterministic,
        )

    def run(self, control: StepControl) -> Completed:
        progress, limit = self.state.progress, self.max_tensor_bytes
        return complete_image(self.inputs, progress, control, self.frames, limit)

    async def render(self, result: Completed) -> ResponsePayload:
        return await self.on_codec(_encode, self.inputs, result, self.accept, self.context)


def _plan(hidden_HW: np.ndarray, tiling: Tiling, max_windows: int, num_samples: int) -> Plan:
    """
    Raises:
        ImageError: the holes take more than `max_windows` for all samples, or have too many pixels.
    """
    try:
        return plan_windows(hidden_HW, tiling, max_windows // num_samples)
    except HoleTooLargeError as error:
        limit = f"{max_windows} windows (BASIN_MAX_WINDOWS)"
        if error.limit == "pixels":
            limit = f"{MAX_PIXELS} pixels beside known ones"
        fewer = "" if num_samples == 1 else ", lower `num_samples`"
        rule = (
            f"This image takes more than {limit} to complete. Mark fewer pixels{fewer}, or send a "
            "smaller image."
        )
        raise ImageError("too_much_work", rule, "invalid-request") from error


def _find_box(hidden_HW: np.ndarray) -> tuple[slice, slice]:
    """The smallest rectangle with all hidden pixels, as rows and columns."""
    rows, columns = (np.flatnonzero(hidden_HW.any(axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def require_response_fits(task: CompleteInputs, form: str, settings: Settings) -> None:
    """Refuse a response that would be too large, before anything is computed."""
    size = _size(task, form)
    size = size * 4 // 3 if form == JSON else size
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
    max_frames = settings.max_response_bytes // (_size(task, JSON) * 4 // 3) - task.count
    max_frames = max(min(settings.max_frames, max_frames), 0)
    return Frames(max_frames, lambda frame: feed.publish(frame.to_event))


def _size(task: CompleteInputs, form: str) -> int:
    """Bytes of one completion where a PNG of it saves none."""
    image, box = task.image, task.box
    alpha = 0 if image.alpha is None else image.alpha[box].nbytes
    uncertainty = image.pixels[box][..., 0].size if "uncertainty" in task.include else 0
    uncertainty *= 4 if form == SAFETENSORS else 1  # float32, or a level of grey
    return image.pixels[box].nbytes + alpha + uncertainty + len(image.profile or b"")


def _encode(
    task: CompleteInputs, completed: Completed, media_type: str, context: AppContext
) -> ResponsePayload:
    completions = completed.completions
    for completion in completions:
        context.metrics.observe_windows(task.model.name, task.patches, completion.windows)
    images = [completion.image for completion in completions]
    entries: list[dict[str, Any]] = [{"convergence": c.convergence} for c in completions]
    reasons = [c.reasons for c in completions if c.reasons is not None]
    document: dict[str, Any] = {
        "images": entries,
        **task.model.origin,
        "dynamics": completed.dynamics,
    }
    if task.box != _WHOLE:
        rows, columns = task.box
        height, width = images[0].pixels.shape[:2]
        box = Box(left=columns.start, top=rows.start, width=width, height=height)
        document["box"] = box.model_dump()
    errors = [c.expected_error for c in completions if c.expected_error is not None]
    if media_type == SAFETENSORS:
        arrays = {f"image_{i}": np.array(image.to_array()) for i, image in enumerate(images)}
        arrays |= {f"uncertainty_{i}": np.array(error) for i, error in enumerate(errors)}
        return make_tensors_payload(arrays | reasons_to_tensors(reasons), document)
    for entry, row in zip(entries, reasons, strict=False):
        entry["reasons"] = reasons_to_dict(row, tiles=isinstance(task.model, Completer))
    for entry, error in zip(entries, errors, strict=False):
        grey = np.rint(255 * error).astype(np.uint8)
        entry["b64_uncertainty_png"] = base64.b64encode(encode_png(grey)).decode()
    if media_type == PNG:
        return make_image_payload(encode_sheet(images), document)
    pairs = zip(images, entries, strict=True)
    document["images"] = [{"b64_png": encode_base64_png(image), **entry} for image, entry in pairs]
    return make_json_payload(document)
